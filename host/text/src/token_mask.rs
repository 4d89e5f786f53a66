//! A set of tokens that may be chosen next.

/// A set of token ids, one bit each. Ids beyond its size are not in the set.
///
/// ```
/// use shardwright_text::TokenMask;
///
/// let mut mask = TokenMask::none(100);
/// mask.allow(40);
/// assert!(mask.allows(40) && !mask.allows(41) && !mask.allows(1000));
/// assert_eq!(mask.count(), 1);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
}

impl TokenMask {
    /// Creates the empty set for ids below `size`.
    pub fn none(size: usize) -> TokenMask {
        TokenMask { words: vec![0; size.div_ceil(32)] }
    }

    /// Creates a set from words of 32 ids, the lowest bit first.
    pub const fn from_words(words: Vec<u32>) -> TokenMask {
        TokenMask { words }
    }

    /// Checks whether `id` is in the set.
    pub fn allows(&self, id: u32) -> bool {
        self.words.get(id as usize / 32).is_some_and(|word| word & bit(id) != 0)
    }

    /// Adds `id`, unless it is beyond the size of the set.
    pub fn allow(&mut self, id: u32) {
        if let Some(word) = self.words.get_mut(id as usize / 32) {
            *word |= bit(id);
        }
    }

    /// Removes `id`.
    pub fn forbid(&mut self, id: u32) {
        if let Some(word) = self.words.get_mut(id as usize / 32) {
            *word &= !bit(id);
        }
    }

    /// Returns the number of ids in the set.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Sets the logits of all other ids to negative infinity. Returns whether any finite logit is
    /// left.
    pub(crate) fn apply(&self, logits: &mut [f32]) -> bool {
        let mut left = false;
        let words = self.words.iter().copied().chain(std::iter::repeat(0));
        for (logits, word) in logits.chunks_mut(32).zip(words) {
            match word {
                0 => logits.fill(f32::NEG_INFINITY),
                u32::MAX => {}
                _ => {
                    for (index, logit) in logits.iter_mut().enumerate() {
                        if word & bit(index as u32) == 0 {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
            }
            left = left || (word != 0 && logits.iter().any(|logit| logit.is_finite()));
        }
        left
    }
}

/// Returns the bit of an id in its word.
const fn bit(id: u32) -> u32 {
    1 << (id % 32)
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;
    use crate::random::Random;
    use crate::sampler::{Sampler, SamplingParameters};
    use crate::token_rules::TokenRules;

    #[test]
    fn a_mask_excludes_all_other_tokens_and_all_beyond_its_size() {
        for size in [0, 1, 31, 32, 33, 100] {
            let mut mask = TokenMask::none(size);
            let allowed: Vec<u32> = (0..size as u32).filter(|id| id % 3 == 1).collect();
            allowed.iter().for_each(|id| mask.allow(*id));
            mask.allow(10_000);
            assert_eq!(mask.count(), allowed.len());
            let mut logits = vec![1.5; 120];
            assert_eq!(mask.apply(&mut logits), !allowed.is_empty());
            for (id, logit) in (0..).zip(&logits) {
                assert_eq!(logit.is_finite(), allowed.contains(&id), "{id} of {size}");
                assert_eq!(mask.allows(id), allowed.contains(&id));
            }
            if let Some(&id) = allowed.first() {
                mask.forbid(id);
                assert!(!mask.allows(id));
            }
        }
        let mut logits = vec![1.0; 64];
        assert!(TokenMask::from_words(vec![u32::MAX; 2]).apply(&mut logits));
        assert_eq!(logits, vec![1.0; 64]);
    }

    fn logits(random: &mut Random, count: usize) -> Vec<f32> {
        (0..count).map(|_| ((random.next_unit() * 12.0) as f32 * 4.0).round() / 4.0).collect()
    }

    #[test]
    fn samplers_choose_allowed_tokens_as_if_the_others_had_no_probability() {
        let mut random = Random::new(5);
        for case in 0..200_u64 {
            let logits = logits(&mut random, 300);
            let mut mask = TokenMask::none(290);
            (0..290).filter(|id| (id * 7 + case as u32) % 5 < 2).for_each(|id| mask.allow(id));
            let parameters = SamplingParameters {
                do_sample: case % 3 > 0,
                top_k: [0, 1, 5, 40][(case % 4) as usize],
                repetition_penalty: if case % 7 == 0 { 1.3 } else { 1.0 },
                ..SamplingParameters::at_temperature(1.2, case)
            };
            let excluded: Vec<u32> = (0..300).filter(|id| !mask.allows(*id)).collect();
            let rules = TokenRules { suppress_tokens: excluded, ..TokenRules::default() };
            let mut expected = Sampler::new(parameters).unwrap().with_rules(rules, 0);
            let mut masked = Sampler::new(parameters).unwrap();
            for _ in 0..10 {
                masked.set_mask(Some(mask.clone()));
                let id = masked.sample(&logits, &[3, 9]).unwrap();
                assert!(mask.allows(id));
                assert_eq!(id, expected.sample(&logits, &[3, 9]).unwrap(), "{parameters:?}");
            }
            masked.set_mask(None);
            assert!(masked.is_decided(&logits, &[]).unwrap());
        }
    }

    #[test]
    fn the_largest_logits_decide_exactly_if_the_mask_allows_all_of_them() {
        let mut random = Random::new(8);
        let mut decisions = [0; 2];
        for case in 0..600_u64 {
            let whole = logits(&mut random, 200);
            let mut mask = TokenMask::none(200);
            (0..200).filter(|_| random.next_unit() < 0.9).for_each(|id| mask.allow(id));
            let parameters = SamplingParameters {
                do_sample: case % 2 == 0,
                top_k: 1 + (case % 6) as u32,
                ..SamplingParameters::at_temperature(0.9, case)
            };
            let mut sampler = Sampler::new(parameters).unwrap();
            let count = sampler.largest_logits().unwrap().get();
            let mut order: Vec<usize> = (0..200).collect();
            order.sort_by(|one, other| whole[*other].total_cmp(&whole[*one]).then(one.cmp(other)));
            let mut part = whole.clone();
            order[count..].iter().for_each(|&id| part[id] = f32::MIN);
            sampler.set_mask(Some(mask.clone()));
            let decided = sampler.is_decided(&part, &[]).unwrap();
            assert_eq!(decided, order[..count].iter().all(|id| mask.allows(*id as u32)));
            decisions[usize::from(decided)] += 1;
            if decided {
                let of_part = sampler.clone().sample(&part, &[]).unwrap();
                assert_eq!(of_part, sampler.sample(&whole, &[]).unwrap());
            }
        }
        assert!(decisions.iter().all(|count| *count > 50), "{decisions:?}");
    }

    #[test]
    fn a_mask_and_rules_that_exclude_everything_are_an_error() {
        let rules = TokenRules { suppress_tokens: vec![1], ..TokenRules::default() };
        let mut sampler = Sampler::new(SamplingParameters::greedy()).unwrap().with_rules(rules, 0);
        let mut mask = TokenMask::none(3);
        mask.allow(1);
        sampler.set_mask(Some(mask));
        let error = sampler.sample(&[0.0, 1.0, 2.0], &[2]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().starts_with("the grammar and the rules"), "{error}");
        assert!(error.help().is_some_and(|help| help.contains("change the grammar")));
    }
}
