//! Limits and rules of Google Play.
//!
//! Each rule names the page that states it, as of 27 November 2026. Pages:
//!
//! * A: <https://developer.android.com/google/play/on-device-ai>
//! * B: bundletool 1.18.1, with which page A recommends to test apps: its own checks of a bundle

/// "Individual AI packs can be up to 1.5GB, based on their compressed download sizes" (A,
/// considerations). We count uncompressed bytes, because compression never makes them much larger.
/// A device gets one group's content of a pack, which is compared with the limit.
pub(crate) const PACK_BYTES: u64 = 1_500_000_000;

/// "The maximum cumulative app size of any version of your app generated from your app bundle is
/// 4GB" (A, considerations): the limit for one device. The app's own code counts too, and only the
/// app knows its size.
pub(crate) const APP_BYTES: u64 = 4_000_000_000;

/// "Apps over 1GB in size must set min SDK Level to 21 or higher" (A, considerations).
pub(crate) const BYTES_OF_SDK_21: u64 = 1_000_000_000;

/// The group of all devices that are in no other group. It "is automatically generated and
/// shouldn't be defined explicitly" (A, device targeting configuration). Folders may name it.
pub(crate) const OTHER: &str = "other";

/// Checks a name. "AI pack names must start with a letter and can only contain letters, numbers,
/// and underscores" (A, extract your model). Names of device groups follow the same rule (B,
/// `DeviceGroupConfigValidator`).
pub(crate) fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Longest name that is made of a text. File names add a chip and an ending.
const NAME_CHARS_MAX: usize = 64;

/// Converts any text to a name of that form.
pub(crate) fn name_of(text: &str) -> String {
    let legal = |character: char| if character.is_ascii_alphanumeric() { character } else { '_' };
    let name: String = text.chars().map(legal).take(NAME_CHARS_MAX).collect();
    if name.starts_with(|first: char| first.is_ascii_alphabetic()) { name } else { format!("model_{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_play_takes() {
        for name in ["a", "Gemma_3", "mt6989"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "3a", "_a", "a-b", "a b", "é"] {
            assert!(!is_name(name), "{name}");
            assert!(is_name(&name_of(name)), "{name}");
        }
        assert_eq!((name_of("gemma-3 270m"), name_of("soc-72")), ("gemma_3_270m".into(), "soc_72".into()));
    }
}
