//! Damage to stored bytes, which their reader must detect.

/// Asserts that bytes are sound, and unsound after any flipped bit, any cut and an added byte.
pub fn assert_damage_is_found(bytes: &[u8], is_sound: impl Fn(&[u8]) -> bool) {
    assert!(is_sound(bytes));
    for at in 0..bytes.len() {
        let mut damaged = bytes.to_vec();
        damaged[at] ^= 1 << (at % 8);
        assert!(!is_sound(&damaged), "a bit at {at}");
    }
    for length in (0..bytes.len()).step_by(97).chain([0, 1, 8, 71, 72, bytes.len() - 1]) {
        assert!(!is_sound(&bytes[..length]), "cut to {length}");
    }
    assert!(!is_sound(&[bytes, &[0]].concat()));
}
