//! Random numbers for sampling.

/// The SplitMix64 generator. Each step adds to the state the odd constant nearest 2⁶⁴ divided by
/// the golden ratio. Each output is the state mixed by two rounds of xor-shift and multiplication.
/// It uses only integer arithmetic, so the same seed gives the same numbers on every platform. It
/// is not suitable for secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Starts the sequence of `seed`.
    pub fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns the next number in [0, 1), a multiple of 2⁻⁵³.
    pub fn next_unit(&mut self) -> f64 {
        const STEP: f64 = 1.0 / (1u64 << 53) as f64;
        (self.next_u64() >> 11) as f64 * STEP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_is_fixed() {
        // The published first outputs of SplitMix64 for seed 1234567.
        let mut random = Random::new(1_234_567);
        let numbers: Vec<u64> = (0..3).map(|_| random.next_u64()).collect();
        assert_eq!(
            numbers,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn units_fill_the_interval_evenly() {
        let mut random = Random::new(1);
        let mut tenths = [0u32; 10];
        for _ in 0..10_000 {
            let unit = random.next_unit();
            assert!((0.0..1.0).contains(&unit));
            tenths[(unit * 10.0) as usize] += 1;
        }
        assert!(tenths.iter().all(|count| (850..1150).contains(count)), "{tenths:?}");
    }
}
