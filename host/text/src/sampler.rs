//! Chooses the next token from a row of logits.

use std::cmp::Ordering;
use std::num::NonZeroUsize;

use shardwright_vocabulary::{Error, Result};

use crate::random::Random;
use crate::token_mask::TokenMask;
use crate::token_rules::TokenRules;

/// Parameters for sampling the next token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingParameters {
    /// Whether to sample at random. Otherwise the largest logit wins, and only `repetition_penalty`
    /// has an effect.
    pub do_sample: bool,
    /// Divisor of the logits. 0 means greedy.
    pub temperature: f32,
    /// Keeps this many of the top logits. 0 keeps all.
    pub top_k: u32,
    /// Keeps the likeliest of the remaining tokens, until their probabilities together reach this
    /// value. 1 keeps all.
    pub top_p: f32,
    /// Drops tokens less likely than this fraction of the likeliest one's probability. 0 keeps all.
    pub min_p: f32,
    /// Logits of tokens already in the text are divided by this number if positive, and multiplied
    /// by it if negative. 1 has no effect.
    pub repetition_penalty: f32,
    /// Seed of the random sequence.
    pub seed: u64,
}

impl Default for SamplingParameters {
    fn default() -> Self {
        SamplingParameters::greedy()
    }
}

impl SamplingParameters {
    /// Returns parameters that always choose the largest logit.
    pub const fn greedy() -> SamplingParameters {
        SamplingParameters {
            do_sample: false,
            temperature: 1.0,
            top_k: 50,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
        }
    }

    /// Returns parameters that sample from the whole distribution at `temperature`. The other
    /// fields can narrow it.
    pub const fn at_temperature(temperature: f32, seed: u64) -> SamplingParameters {
        SamplingParameters { do_sample: true, temperature, top_k: 0, seed, ..SamplingParameters::greedy() }
    }

    /// Checks that every field is in range.
    pub fn validate(&self) -> Result<()> {
        match self.first_fault() {
            None => Ok(()),
            Some((name, expected, value)) => {
                let value = f64::from(value);
                Err(Error::argument(format!("`{name}` should be {expected}, but is {value}"))
                    .with_help(format!("set `{name}` to {expected}")))
            }
        }
    }

    /// Returns the first field out of range: its name, its allowed range, its value.
    pub(crate) fn first_fault(&self) -> Option<(&'static str, &'static str, f32)> {
        let temperature = self.temperature;
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Some(("temperature", "a number from 0 up", temperature));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Some(("top_p", "a number above 0 and at most 1", self.top_p));
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return Some(("min_p", "a number from 0 to 1", self.min_p));
        }
        let penalty = self.repetition_penalty;
        if !(penalty.is_finite() && penalty > 0.0) {
            return Some(("repetition_penalty", "a number above 0", penalty));
        }
        None
    }

    /// Checks whether the largest logit is always chosen.
    pub fn is_greedy(&self) -> bool {
        !self.do_sample || self.temperature == 0.0
    }

    /// Returns the number of top logits that determine the choice, or `None` if all of them do. Of
    /// equal logits, the one with the lower id comes first. Lowering any other logits, down to the
    /// smallest finite number, gives the same tokens.
    pub fn largest_logits(&self) -> Option<NonZeroUsize> {
        // A penalised logit may fall behind any number of others.
        if self.repetition_penalty != 1.0 {
            return None;
        }
        NonZeroUsize::new(if self.is_greedy() { 1 } else { self.top_k as usize })
    }
}

/// Samples tokens. The order is that of Hugging Face: repetition penalty, rules that exclude
/// tokens, mask, temperature, top-k, top-p, min-p, sampling.
///
/// Greedy sampling uses the plain maximum. Of equal logits the lower id comes first, so top-k keeps
/// exactly k tokens (Hugging Face keeps all that tie with the last). The same logits, parameters
/// and seed give the same tokens on every platform: probabilities use only operations that IEEE 754
/// defines to the last bit.
///
/// The vocabulary is never sorted as a whole. The time for sampling is proportional to the
/// vocabulary. Scratch memory of a few bytes per token is kept between calls.
#[derive(Debug, Clone)]
pub struct Sampler {
    parameters: SamplingParameters,
    rules: TokenRules,
    /// Tokens that may be chosen next, `None` for all.
    mask: Option<TokenMask>,
    /// Number of tokens in the prompt. The rest of a history is the reply.
    prompt: usize,
    pub(crate) random: Random,
    /// Logits after penalty, rules and mask, by id. Filled only if one of them may change a logit.
    changed: Vec<f32>,
    candidates: Vec<Candidate>,
    weights: Vec<f64>,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    id: u32,
    logit: f32,
}

/// Orders candidates by larger logit, then by lower id.
fn better_first(left: &Candidate, right: &Candidate) -> Ordering {
    right.logit.partial_cmp(&left.logit).unwrap_or(Ordering::Equal).then(left.id.cmp(&right.id))
}

impl Sampler {
    /// Creates a sampler at the start of the seed's sequence.
    pub fn new(parameters: SamplingParameters) -> Result<Sampler> {
        parameters.validate()?;
        Ok(Sampler {
            parameters,
            rules: TokenRules::default(),
            mask: None,
            prompt: 0,
            random: Random::new(parameters.seed),
            changed: Vec::new(),
            candidates: Vec::new(),
            weights: Vec::new(),
        })
    }

    /// Excludes tokens by `rules` in the reply to a prompt of `prompt` tokens.
    #[must_use]
    pub fn with_rules(mut self, rules: TokenRules, prompt: usize) -> Sampler {
        (self.rules, self.prompt) = (rules, prompt);
        self
    }

    /// Sets the tokens that may be chosen from now on, `None` for all. The caller sets the mask
    /// before each choice.
    pub fn set_mask(&mut self, mask: Option<TokenMask>) {
        self.mask = mask;
    }

    /// Checks whether [`Sampler::sample`] makes the same choice if only the top
    /// [`Sampler::largest_logits`] logits are exact: the mask must allow all tokens that come into
    /// question without it.
    ///
    /// # Errors
    ///
    /// The errors of [`Sampler::sample`].
    pub fn is_decided(&mut self, logits: &[f32], history: &[u32]) -> Result<bool> {
        let Some(mask) = self.mask.take() else { return Ok(true) };
        let decided = self.with_rules_applied(logits, history, |sampler, logits| {
            if sampler.parameters.is_greedy() {
                return mask.allows(largest(logits));
            }
            let kept = (sampler.parameters.top_k as usize).min(logits.len());
            best(logits, kept, &mut sampler.candidates);
            sampler.candidates.iter().all(|candidate| mask.allows(candidate.id))
        });
        self.mask = Some(mask);
        decided
    }

    /// Returns the number of top logits that determine the choice without a mask, like
    /// [`SamplingParameters::largest_logits`], plus the largest number of tokens that rules
    /// exclude.
    pub fn largest_logits(&self) -> Option<NonZeroUsize> {
        self.parameters.largest_logits()?.checked_add(self.rules.most_excluded()?)
    }

    /// Returns the sampling parameters.
    pub fn parameters(&self) -> &SamplingParameters {
        &self.parameters
    }

    /// Samples the token that follows `history` from its row of logits, one for each id. Every
    /// logit must be finite. `history` is the prompt and the generated tokens. Only the repetition
    /// penalty and rules read it.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32> {
        self.with_rules_applied(logits, history, |sampler, logits| match sampler.parameters.is_greedy() {
            true => largest(logits),
            false => sampler.draw(logits),
        })
    }

    /// Checks the logits, applies the repetition penalty and excludes tokens by rules and the mask.
    /// Then passes the result to `choose`.
    pub(crate) fn with_rules_applied<T>(
        &mut self,
        logits: &[f32],
        history: &[u32],
        choose: impl FnOnce(&mut Self, &[f32]) -> T,
    ) -> Result<T> {
        if logits.is_empty() || u32::try_from(logits.len()).is_err() {
            return Err(Error::invalid(format!("a row of {} logits has no token to choose", logits.len())));
        }
        if let Some(id) = first_not_finite(logits) {
            let help =
                "the model's arithmetic overflowed: run `shardwright verify` to find the first bad layer";
            return Err(Error::invalid(format!("the logit of token {id} is {}", logits[id])).with_help(help));
        }
        let penalty = self.parameters.repetition_penalty;
        if penalty == 1.0 && self.rules.is_empty() && self.mask_keeps_choice(logits) {
            return Ok(choose(self, logits));
        }
        let mut changed = std::mem::take(&mut self.changed);
        changed.clear();
        changed.extend_from_slice(logits);
        if penalty != 1.0 {
            penalise(&mut changed, history, penalty);
        }
        self.rules.apply(&mut changed, history, self.prompt)?;
        if let Some(mask) = &self.mask
            && !mask.apply(&mut changed)
        {
            return Err(all_excluded(history.len()));
        }
        let chosen = choose(self, &changed);
        self.changed = changed;
        Ok(chosen)
    }

    /// Checks whether the mask cannot affect the choice. For greedy choices, that saves a copy of
    /// all logits.
    fn mask_keeps_choice(&self, logits: &[f32]) -> bool {
        let greedy = self.parameters.is_greedy();
        self.mask.as_ref().is_none_or(|mask| greedy && mask.allows(largest(logits)))
    }

    /// Draws one of the tokens that may be chosen.
    fn draw(&mut self, logits: &[f32]) -> u32 {
        let _ = self.weigh(logits);
        let total: f64 = self.weights.iter().sum();
        let index = position_at(&self.weights, total * self.random.next_unit());
        // The index is always valid: the best candidate's weight is 1, which no parameter excludes.
        self.candidates.get(index).map_or(0, |candidate| candidate.id)
    }

    /// Finds the tokens that may be chosen, with positive weights proportional to their
    /// probabilities.
    pub(crate) fn weigh(&mut self, logits: &[f32]) -> impl Iterator<Item = (u32, f64)> + '_ {
        let SamplingParameters { temperature, top_k, top_p, min_p, .. } = self.parameters;
        let candidates = &mut self.candidates;
        let kept = match top_k as usize {
            0 => logits.len(),
            k => k.min(logits.len()),
        };
        // Dividing by a positive temperature keeps the order. So the best are selected first and
        // divided afterwards.
        best(logits, kept, candidates);
        let sorted = kept < logits.len();
        if sorted {
            candidates.sort_unstable_by(better_first);
        }

        let largest = candidates.iter().fold(f32::NEG_INFINITY, |largest, c| largest.max(c.logit));
        let weights = &mut self.weights;
        weights.clear();
        weights.extend(candidates.iter().map(|candidate| {
            let below = (f64::from(candidate.logit) - f64::from(largest)) / f64::from(temperature);
            exponential(below)
        }));
        let total: f64 = weights.iter().sum();

        if top_p < 1.0 {
            let kept = nucleus(candidates, weights, sorted, f64::from(top_p) * total);
            candidates.truncate(kept);
            weights.truncate(kept);
        }
        // The best candidate's weight is exactly 1, so the bound is `min_p` itself.
        let least = f64::from(min_p);
        let may_be_chosen = |weight: f64| weight >= least && weight > 0.0;
        let mut from = weights.iter();
        candidates.retain(|_| from.next().is_some_and(|&weight| may_be_chosen(weight)));
        weights.retain(|&weight| may_be_chosen(weight));
        candidates.iter().map(|candidate| candidate.id).zip(weights.iter().copied())
    }
}

/// Returns the error that neither the rules nor the mask allow a token.
fn all_excluded(tokens: usize) -> Error {
    let what = "the grammar and the rules of `generation_config.json` together leave no token to follow";
    Error::invalid(format!("{what} {tokens} tokens"))
        .with_help("change the grammar, or remove the rules that exclude its tokens from the file")
}

/// Returns the index of the weight at which the running sum passes `target`, which is less than the
/// sum of all weights. If rounding leaves a remainder after the last weight, returns the last
/// index.
pub(crate) fn position_at(weights: &[f64], target: f64) -> usize {
    let mut left = target;
    for (index, &weight) in weights.iter().enumerate() {
        if left < weight {
            return index;
        }
        left -= weight;
    }
    weights.len().saturating_sub(1)
}

/// Number of logits that are scanned together, without a branch. A piece is scanned one by one only
/// if the first scan found something in it.
const PIECE: usize = 256;

/// Returns the lowest id with a NaN or infinite logit.
fn first_not_finite(logits: &[f32]) -> Option<usize> {
    const EXPONENT: u32 = f32::INFINITY.to_bits();
    let found = |logit: &f32| logit.to_bits() & EXPONENT == EXPONENT;
    let mut pieces = logits.chunks(PIECE);
    let piece = pieces.position(|piece| piece.iter().fold(false, |any, logit| any | found(logit)))?;
    let start = piece * PIECE;
    logits[start..].iter().position(found).map(|id| start + id)
}

/// Returns the lowest id with the largest logit.
pub(crate) fn largest(logits: &[f32]) -> u32 {
    let (mut best, mut start) = (f32::NEG_INFINITY, 0);
    for (piece, logits) in logits.chunks(PIECE).enumerate() {
        let largest = largest_of(logits);
        if largest > best {
            (best, start) = (largest, piece * PIECE);
        }
    }
    // Zeros are equal regardless of their sign.
    let id = logits[start..].iter().position(|logit| *logit == best);
    (start + id.unwrap_or(0)) as u32
}

/// Returns the largest of finite numbers. If it is zero, the sign is arbitrary.
fn largest_of(logits: &[f32]) -> f32 {
    // A compiler cannot reorder a sequential maximum of floating-point numbers. These lanes are
    // independent.
    let mut lanes = [f32::NEG_INFINITY; 16];
    let larger = |one: f32, other: f32| if one > other { one } else { other };
    let (rows, rest) = logits.as_chunks::<16>();
    for row in rows {
        for (lane, logit) in lanes.iter_mut().zip(row) {
            *lane = larger(*logit, *lane);
        }
    }
    lanes.into_iter().chain(rest.iter().copied()).fold(f32::NEG_INFINITY, larger)
}

/// Applies the penalty once to every token of the history.
fn penalise(logits: &mut [f32], history: &[u32], penalty: f32) {
    let mut seen = vec![0u64; logits.len().div_ceil(64)];
    for &id in history {
        let id = id as usize;
        let Some(logit) = logits.get_mut(id) else {
            continue;
        };
        let bit = 1 << (id % 64);
        if seen[id / 64] & bit == 0 {
            seen[id / 64] |= bit;
            let changed = if *logit < 0.0 { *logit * penalty } else { *logit / penalty };
            // An extreme penalty must not turn a finite logit into an infinite one.
            *logit = changed.clamp(f32::MIN, f32::MAX);
        }
    }
}

/// Fills `candidates` with the `kept` best, in any order.
fn best(logits: &[f32], kept: usize, candidates: &mut Vec<Candidate>) {
    candidates.clear();
    if kept >= logits.len() {
        let all = logits.iter().enumerate();
        candidates.extend(all.map(|(id, &logit)| Candidate { id: id as u32, logit }));
        return;
    }
    // At most twice `kept` candidates are stored. Whenever they are full, the better half is kept
    // and sets the bar.
    let mut bar = f32::NEG_INFINITY;
    for (piece, logits) in logits.chunks(PIECE).enumerate() {
        // Ids ascend, so a logit equal to the bar loses against all that set it.
        if largest_of(logits) <= bar {
            continue;
        }
        for (place, &logit) in logits.iter().enumerate() {
            if logit > bar {
                candidates.push(Candidate { id: (piece * PIECE + place) as u32, logit });
                if candidates.len() >= kept.saturating_mul(2) {
                    candidates.select_nth_unstable_by(kept - 1, better_first);
                    candidates.truncate(kept);
                    bar = candidates[kept - 1].logit;
                }
            }
        }
    }
    if candidates.len() > kept {
        candidates.select_nth_unstable_by(kept - 1, better_first);
        candidates.truncate(kept);
    }
}

/// Moves the likeliest candidates whose weights reach `wanted` to the front, best first, and
/// returns their number. Only as many as needed are sorted, a block at a time.
fn nucleus(candidates: &mut [Candidate], weights: &mut [f64], sorted: bool, wanted: f64) -> usize {
    const FIRST_BLOCK: usize = 256;
    let mut reached = 0.0;
    if sorted {
        for (index, weight) in weights.iter().enumerate() {
            reached += weight;
            if reached >= wanted {
                return index + 1;
            }
        }
        return weights.len();
    }
    // The weights are in the order of candidates by id here, so they are moved by id.
    let by_id = weights.to_vec();
    let mut start = 0;
    let mut block = FIRST_BLOCK;
    while start < candidates.len() {
        let rest = &mut candidates[start..];
        let length = block.min(rest.len());
        if length < rest.len() {
            rest.select_nth_unstable_by(length - 1, better_first);
        }
        rest[..length].sort_unstable_by(better_first);
        for (offset, candidate) in rest[..length].iter().enumerate() {
            let weight = by_id[candidate.id as usize];
            weights[start + offset] = weight;
            reached += weight;
            if reached >= wanted {
                return start + offset + 1;
            }
        }
        start += length;
        block = block.saturating_mul(2);
    }
    candidates.len()
}

/// Computes eˣ for x ≤ 0, to about 1e-15, using additions and multiplications only. The library
/// functions of two platforms differ in their last bits, which could change the drawn token.
fn exponential(x: f64) -> f64 {
    const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    // Below this the result would be subnormal, which is too unlikely to matter.
    if x < -708.0 {
        return 0.0;
    }
    let halvings = (x * std::f64::consts::LOG2_E).round();
    let rest = (x - halvings * LN_2_HIGH) - halvings * LN_2_LOW;
    // |rest| ≤ 0.35: the next term of the series would be below 1e-18.
    let mut sum = 1.0;
    for divisor in (1..=14).rev() {
        sum = 1.0 + rest / f64::from(divisor) * sum;
    }
    let exponent = (halvings as i64 + 1023) as u64;
    sum * f64::from_bits(exponent << 52)
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    fn logits(seed: u64, count: usize, spread: f64) -> Vec<f32> {
        let mut random = Random::new(seed);
        (0..count).map(|_| ((random.next_unit() - 0.5) * spread) as f32).collect()
    }

    #[test]
    fn greedy_is_the_maximum_at_the_lowest_id() {
        let mut sampler = Sampler::new(SamplingParameters::greedy()).unwrap();
        assert_eq!(sampler.sample(&[1.0, 3.0, 3.0, -2.0], &[1]).unwrap(), 1);
        assert_eq!(sampler.sample(&[-0.0, 0.0], &[]).unwrap(), 0);
        assert_eq!(sampler.sample(&[f32::MIN, f32::MAX], &[]).unwrap(), 1);
        let cold = SamplingParameters { temperature: 0.0, ..SamplingParameters::at_temperature(1.0, 3) };
        assert_eq!(Sampler::new(cold).unwrap().sample(&[1.0, 3.0, 3.0], &[]).unwrap(), 1);
    }

    #[test]
    fn exponential_agrees_with_the_library() {
        for step in 0..=70_800 {
            let x = -f64::from(step) / 100.0;
            let (ours, theirs) = (exponential(x), x.exp());
            assert!((ours - theirs).abs() <= 4e-15 * theirs, "{x}: {ours} {theirs}");
        }
        assert_eq!(exponential(0.0), 1.0);
        assert_eq!(exponential(f64::MIN), 0.0);
        // The exact bits, to detect a platform that computes them differently.
        assert_eq!(exponential(-1.0).to_bits(), 0x3fd7_8b56_362c_ef38);
    }

    /// Makes the choice by its definition: sorts everything.
    fn plain_kept(logits: &[f32], parameters: &SamplingParameters) -> Vec<u32> {
        let mut order: Vec<Candidate> =
            logits.iter().enumerate().map(|(id, &logit)| Candidate { id: id as u32, logit }).collect();
        order.sort_by(better_first);
        if parameters.top_k > 0 {
            order.truncate(parameters.top_k as usize);
        }
        let weight = |c: &Candidate| {
            ((f64::from(c.logit) - f64::from(order[0].logit)) / f64::from(parameters.temperature)).exp()
        };
        let total: f64 = order.iter().map(weight).sum();
        let mut before = 0.0;
        let mut kept = Vec::new();
        for candidate in &order {
            if parameters.top_p < 1.0 && before >= f64::from(parameters.top_p) * total {
                break;
            }
            before += weight(candidate);
            if weight(candidate) >= f64::from(parameters.min_p) {
                kept.push(candidate.id);
            }
        }
        kept
    }

    #[test]
    fn samples_stay_inside_the_tokens_kept_by_the_definition_and_reach_all_of_them() {
        let base = SamplingParameters::at_temperature(0.8, 11);
        let cases = [
            base,
            SamplingParameters { top_k: 5, ..base },
            SamplingParameters { top_k: 1, ..base },
            SamplingParameters { top_p: 0.5, ..base },
            SamplingParameters { top_p: 1e-6, ..base },
            SamplingParameters { min_p: 0.2, ..base },
            SamplingParameters { min_p: 1.0, ..base },
            SamplingParameters { top_k: 20, top_p: 0.9, min_p: 0.05, temperature: 1.7, ..base },
            SamplingParameters { top_k: 1_000_000, top_p: 0.7, ..base },
        ];
        for parameters in cases {
            for (seed, count) in [(1, 40), (2, 700), (3, 1)] {
                let logits = logits(seed, count, 6.0);
                let mut kept = plain_kept(&logits, &parameters);
                kept.sort_unstable();
                let mut sampler = Sampler::new(parameters).unwrap();
                let mut drawn: Vec<u32> = (0..3000).map(|_| sampler.sample(&logits, &[]).unwrap()).collect();
                drawn.sort_unstable();
                drawn.dedup();
                assert!(drawn.iter().all(|id| kept.binary_search(id).is_ok()), "{parameters:?}");
                if kept.len() <= 20 {
                    assert_eq!(drawn, kept, "{parameters:?}");
                }
            }
        }
    }

    #[test]
    fn frequencies_follow_the_probabilities() {
        let logits = [0.0f32, 1.0, 2.0, -1.0];
        let total: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
        let mut sampler = Sampler::new(SamplingParameters::at_temperature(1.0, 5)).unwrap();
        let mut counts = [0u32; 4];
        for _ in 0..40_000 {
            counts[sampler.sample(&logits, &[]).unwrap() as usize] += 1;
        }
        for (count, logit) in counts.iter().zip(logits) {
            let expected = f64::from(logit).exp() / total * 40_000.0;
            assert!((f64::from(*count) - expected).abs() < 5.0 * expected.sqrt(), "{counts:?}");
        }
    }

    #[test]
    fn seeds_fix_the_tokens() {
        let logits = logits(9, 500, 8.0);
        let draw = |seed| {
            let parameters = SamplingParameters {
                top_k: 64,
                top_p: 0.95,
                ..SamplingParameters::at_temperature(1.0, seed)
            };
            let mut sampler = Sampler::new(parameters).unwrap();
            (0..12).map(|_| sampler.sample(&logits, &[]).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn top_k_keeps_the_lowest_ids_of_a_tie() {
        let parameters = SamplingParameters { top_k: 2, ..SamplingParameters::at_temperature(1.0, 0) };
        let mut sampler = Sampler::new(parameters).unwrap();
        let logits = [0.0, 1.0, 1.0, 1.0, 1.0, 0.5];
        for _ in 0..200 {
            assert!([1, 2].contains(&sampler.sample(&logits, &[]).unwrap()));
        }
        let mut found = Vec::new();
        for kept in 1..50 {
            let tied = vec![2.5f32; 50];
            best(&tied, kept, &mut found);
            found.sort_by(better_first);
            assert_eq!(found.iter().map(|c| c.id).collect::<Vec<_>>(), (0..kept as u32).collect::<Vec<_>>());
        }
    }

    #[test]
    fn best_agrees_with_sorting() {
        for (seed, count, kept) in [(1, 1000, 10), (2, 1000, 999), (3, 64, 64), (4, 5, 1), (5, 3000, 700)] {
            let mut logits = logits(seed, count, 10.0);
            // Many ties.
            logits.iter_mut().for_each(|logit| *logit = (*logit * 3.0).round());
            let mut found = Vec::new();
            best(&logits, kept, &mut found);
            found.sort_by(better_first);
            let parameters =
                SamplingParameters { top_k: kept as u32, ..SamplingParameters::at_temperature(1.0, 0) };
            assert_eq!(found.iter().map(|c| c.id).collect::<Vec<_>>(), plain_kept(&logits, &parameters));
        }
    }

    #[test]
    fn the_largest_logits_alone_decide() {
        let mut random = Random::new(23);
        let mut next = |below: u32| (random.next_unit() * f64::from(below)) as u32;
        for case in 0..400_u64 {
            let count = 1 + next(if case % 4 == 0 { 3000 } else { 60 }) as usize;
            let mut whole = logits(case, count, 12.0);
            // With ties, zeros of both signs and the smallest finite number.
            if case % 2 == 0 {
                whole.iter_mut().for_each(|logit| *logit = (*logit * 0.5).round());
            }
            if case % 5 == 0 {
                whole.iter_mut().for_each(|logit| *logit = if next(3) == 0 { *logit } else { f32::MIN });
            }
            let parameters = SamplingParameters {
                do_sample: next(4) > 0,
                temperature: [0.0, 0.3, 1.0, 7.0][next(4) as usize],
                top_k: 1 + next(70),
                top_p: [1.0, 0.9, 0.3][next(3) as usize],
                min_p: [0.0, 0.05, 1.0][next(3) as usize],
                ..SamplingParameters::at_temperature(1.0, u64::from(next(1000)))
            };
            let largest = parameters.largest_logits().unwrap().get();
            assert_eq!(largest, if parameters.is_greedy() { 1 } else { parameters.top_k as usize });

            let mut order: Vec<Candidate> =
                whole.iter().enumerate().map(|(id, &logit)| Candidate { id: id as u32, logit }).collect();
            order.sort_by(better_first);
            let mut part = whole.clone();
            for candidate in order.iter().skip(largest) {
                let logit = &mut part[candidate.id as usize];
                *logit = [f32::MIN, logit.next_down().max(f32::MIN)][next(2) as usize];
            }
            let [mut one, mut other] = [(); 2].map(|()| Sampler::new(parameters).unwrap());
            for _ in 0..20 {
                let (one, other) = (one.sample(&whole, &[]).unwrap(), other.sample(&part, &[]).unwrap());
                assert_eq!(one, other, "case {case}: {parameters:?}");
            }
        }
        let drawn = SamplingParameters::at_temperature(1.0, 0);
        assert_eq!(drawn.largest_logits(), None);
        for base in [SamplingParameters::greedy(), SamplingParameters { top_k: 5, ..drawn }] {
            assert_eq!(SamplingParameters { repetition_penalty: 1.1, ..base }.largest_logits(), None);
        }
    }

    #[test]
    fn pieces_are_scanned_as_one_row() {
        for count in [1, 15, 16, 17, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5] {
            let mut row = vec![f32::MIN; count];
            assert_eq!((largest(&row), first_not_finite(&row)), (0, None));
            for at in (0..count).step_by(7).chain([count - 1]) {
                // Equal logits with higher ids, in the same piece and in a later one.
                row[at..].fill(-0.0);
                row[count - 1] = 0.0;
                assert_eq!(largest(&row), at as u32, "{at} of {count}");
                for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut row = row.clone();
                    row[count - 1] = f32::NAN;
                    row[at] = bad;
                    assert_eq!(first_not_finite(&row), Some(at), "{at} of {count}");
                }
                row.fill(f32::MIN);
            }
        }
    }

    #[test]
    fn repetition_penalty_is_applied_once_and_towards_unlikely() {
        let mut logits = [2.0, -2.0, 4.0, 0.0];
        penalise(&mut logits, &[0, 0, 1, 99, 3], 2.0);
        assert_eq!(logits, [1.0, -4.0, 4.0, 0.0]);
        let mut logits = [f32::MAX, f32::MIN];
        penalise(&mut logits, &[0, 1], 1e-30);
        assert!(logits.iter().all(|logit| logit.is_finite()));
        let parameters = SamplingParameters { repetition_penalty: 3.0, ..SamplingParameters::greedy() };
        let mut sampler = Sampler::new(parameters).unwrap();
        assert_eq!(sampler.sample(&[2.0, 1.0], &[0]).unwrap(), 1);
        assert_eq!(sampler.sample(&[2.0, 1.0], &[]).unwrap(), 0);
    }

    #[test]
    fn bad_parameters_and_logits_are_refused() {
        let base = SamplingParameters::at_temperature(1.0, 0);
        for (parameters, name) in [
            (SamplingParameters { temperature: -1.0, ..base }, "temperature"),
            (SamplingParameters { temperature: f32::NAN, ..base }, "temperature"),
            (SamplingParameters { temperature: f32::INFINITY, ..base }, "temperature"),
            (SamplingParameters { top_p: 0.0, ..base }, "top_p"),
            (SamplingParameters { top_p: 1.1, ..base }, "top_p"),
            (SamplingParameters { top_p: f32::NAN, ..base }, "top_p"),
            (SamplingParameters { min_p: -0.1, ..base }, "min_p"),
            (SamplingParameters { min_p: f32::NAN, ..base }, "min_p"),
            (SamplingParameters { repetition_penalty: 0.0, ..base }, "repetition_penalty"),
            (SamplingParameters { repetition_penalty: f32::INFINITY, ..base }, "repetition_penalty"),
        ] {
            let error = Sampler::new(parameters).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument);
            assert!(error.message().starts_with(&format!("`{name}` should be ")), "{error}");
            assert!(error.help().unwrap().contains(name));
        }
        let mut sampler = Sampler::new(base).unwrap();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = sampler.sample(&[0.0, bad], &[]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.message().starts_with("the logit of token 1 is "), "{error}");
        }
        let error = sampler.sample(&[], &[]).unwrap_err();
        assert_eq!((error.kind(), error.help()), (ErrorKind::Invalid, None));
        assert_eq!(error.message(), "a row of 0 logits has no token to choose");
    }

    #[test]
    fn extreme_logits_are_drawn_without_harm() {
        let parameters =
            SamplingParameters { top_p: 0.9, ..SamplingParameters::at_temperature(f32::MIN_POSITIVE, 0) };
        let mut sampler = Sampler::new(parameters).unwrap();
        assert_eq!(sampler.sample(&[f32::MAX, f32::MIN, 0.0], &[]).unwrap(), 0);
        let flat = SamplingParameters::at_temperature(f32::MAX, 0);
        assert!(Sampler::new(flat).unwrap().sample(&[f32::MAX, f32::MIN, 0.0], &[]).unwrap() < 3);
    }
}
