//! Sampling with drafted tokens: chosen tokens have the same distribution as without a draft.

use shardwright_text::{Distribution, Random, Sampler, SamplingParameters, TokenVerdict};

/// Number of draws in each test.
const DRAWS: usize = 200_000;

/// Number of tokens in the vocabulary.
const VOCABULARY: usize = 8;

/// Returns a small language: for each token, the logits of the next one.
fn logits(seed: u64, spread: f64) -> Vec<Vec<f32>> {
    let mut random = Random::new(seed);
    let mut row = || (0..VOCABULARY).map(|_| (spread * random.next_unit()) as f32).collect();
    (0..VOCABULARY).map(|_| row()).collect()
}

fn samplings() -> [SamplingParameters; 5] {
    let drawn = SamplingParameters::at_temperature(1.0, 3);
    [
        drawn,
        SamplingParameters { temperature: 1.7, ..drawn },
        SamplingParameters { top_k: 5, ..drawn },
        SamplingParameters { top_p: 0.85, ..drawn },
        SamplingParameters { min_p: 0.1, repetition_penalty: 1.3, ..drawn },
    ]
}

/// Computes Pearson's statistic of counts against probabilities, and its degrees of freedom.
/// Categories with an expected count below five are combined.
fn chi_square(counts: &[u64], probabilities: &[f64]) -> (f64, f64) {
    let total: u64 = counts.iter().sum();
    let (mut statistic, mut categories) = (0.0, 0.0);
    let (mut rare, mut rarely) = (0.0, 0.0);
    for (&count, &probability) in counts.iter().zip(probabilities) {
        let expected = probability * total as f64;
        assert!(probability > 0.0 || count == 0, "a token that has no probability was drawn");
        if expected < 5.0 {
            rare += count as f64;
            rarely += expected;
            continue;
        }
        statistic += (count as f64 - expected).powi(2) / expected;
        categories += 1.0;
    }
    if rarely >= 5.0 {
        statistic += (rare - rarely).powi(2) / rarely;
        categories += 1.0;
    }
    (statistic, categories - 1.0)
}

/// Returns the value that the statistic exceeds in one of a hundred samples of the distribution
/// (Wilson and Hilferty 1931).
fn one_percent(freedom: f64) -> f64 {
    const NORMAL: f64 = 2.326_347_9;
    let part = 2.0 / (9.0 * freedom);
    freedom * (1.0 - part + NORMAL * part.sqrt()).powi(3)
}

fn last(history: &[u32]) -> usize {
    history.last().map_or(0, |&id| id as usize)
}

/// A source of drafts, three tokens at a time.
trait Draft {
    fn next(&mut self, history: &[u32]) -> (u32, Option<Distribution>);
}

/// A function of the history: the token that followed the previous occurrence of the last token, as
/// in prompt lookup.
struct Lookup;

impl Draft for Lookup {
    fn next(&mut self, history: &[u32]) -> (u32, Option<Distribution>) {
        let (&token, before) = history.split_last().unwrap();
        let found = before.iter().rposition(|&other| other == token);
        (found.map_or(token, |at| history[at + 1]), None)
    }
}

/// Draws from a different language.
struct Draws {
    logits: Vec<Vec<f32>>,
    sampler: Sampler,
    random: Random,
}

impl Draft for Draws {
    fn next(&mut self, history: &[u32]) -> (u32, Option<Distribution>) {
        let drawn_from = self.sampler.distribution(&self.logits[last(history)], history).unwrap();
        (drawn_from.draw(&mut self.random), Some(drawn_from))
    }
}

/// Generates like a reply, with three drafted tokens per step. Returns counts of pairs of
/// consecutive tokens, and the share of accepted drafted tokens. The history is kept short, so that
/// a penalty leads to few different probabilities.
fn pairs(target: &[Vec<f32>], parameters: SamplingParameters, draft: &mut dyn Draft) -> (Vec<u64>, f64) {
    let mut sampler = Sampler::new(parameters).unwrap();
    let mut counts = vec![0; VOCABULARY * VOCABULARY];
    let mut history = vec![0_u32, 1];
    let (mut drafted, mut accepted, mut draws) = (0_u64, 0_u64, 0);
    while draws < DRAWS {
        history = vec![history[history.len() - 2], history[history.len() - 1]];
        let mut proposal = history.clone();
        let mut from = Vec::new();
        for _ in 0..3 {
            // The penalty covers the last two tokens, here and below.
            let (id, drawn_from) = draft.next(&proposal[proposal.len() - 2..]);
            proposal.push(id);
            from.push(drawn_from);
        }
        for row in 0..=3 {
            let known = &history[history.len() - 2..];
            let row_logits = &target[last(known)];
            let (id, goes_on) = match from.get(row) {
                None => (sampler.sample(row_logits, known).unwrap(), false),
                Some(drawn_from) => {
                    drafted += 1;
                    let expected = proposal[2 + row];
                    match sampler.verify(row_logits, known, expected, drawn_from.as_ref()).unwrap() {
                        TokenVerdict::Accepted => {
                            accepted += 1;
                            (expected, true)
                        }
                        TokenVerdict::Replaced(id) => (id, false),
                    }
                }
            };
            counts[last(known) * VOCABULARY + id as usize] += 1;
            history.push(id);
            draws += 1;
            if !goes_on {
                break;
            }
        }
    }
    (counts, accepted as f64 / drafted as f64)
}

#[test]
fn two_drafts_leave_the_distribution_as_it_is() {
    let target = logits(1, 4.0);
    for parameters in samplings() {
        let penalised = parameters.repetition_penalty != 1.0;
        let draws = |seed, spread| Draws {
            logits: logits(seed, spread),
            sampler: Sampler::new(parameters).unwrap(),
            random: Random::new(parameters.of_a_draft().seed),
        };
        let drafts: [(&str, Box<dyn Draft>); 3] = [
            ("a function of the text", Box::new(Lookup)),
            ("another language", Box::new(draws(2, 3.0))),
            ("the same language", Box::new(draws(1, 4.0))),
        ];
        for (name, mut draft) in drafts {
            let (counts, accepted) = pairs(&target, parameters, draft.as_mut());
            assert!(accepted > 0.05, "{name}: {accepted}");
            assert_eq!(accepted == 1.0, name == "the same language", "{name}: {accepted}");
            if penalised {
                // Probabilities also depend on the token before the last, so the reference is plain
                // sampling.
                let (plain, _) = pairs(&target, parameters, &mut Never);
                let total: u64 = plain.iter().sum();
                for (&one, &other) in counts.iter().zip(&plain) {
                    let spread = (((one + other) as f64) * (DRAWS as f64 / total as f64)).sqrt();
                    assert!(
                        (one as f64 - other as f64).abs() < 5.0 * spread.max(1.0),
                        "{name}: {one} {other}"
                    );
                }
                continue;
            }
            let mut sampler = Sampler::new(parameters).unwrap();
            let (mut all, mut of) = (0.0, 0.0);
            for (token, row) in target.iter().enumerate() {
                let distribution = sampler.distribution(row, &[]).unwrap();
                let probabilities: Vec<f64> =
                    (0..VOCABULARY as u32).map(|id| distribution.probability(id)).collect();
                let counts = &counts[token * VOCABULARY..][..VOCABULARY];
                if counts.iter().sum::<u64>() < 1000 {
                    continue;
                }
                let (statistic, freedom) = chi_square(counts, &probabilities);
                (all, of) = (all + statistic, of + freedom);
            }
            assert!(of >= 10.0 && all < one_percent(of), "{name}, {parameters:?}: {all} of {of}");
        }
    }
}

/// Drafts a token that is never chosen, so that every token is sampled.
struct Never;

impl Draft for Never {
    fn next(&mut self, _: &[u32]) -> (u32, Option<Distribution>) {
        (u32::MAX, None)
    }
}

#[test]
fn the_first_token_of_many_replies_is_distributed_as_sampled() {
    let target = logits(7, 5.0);
    let parameters = SamplingParameters::at_temperature(0.9, 21);
    let probabilities: Vec<f64> = {
        let distribution = Sampler::new(parameters).unwrap().distribution(&target[3], &[]).unwrap();
        (0..VOCABULARY as u32).map(|id| distribution.probability(id)).collect()
    };
    let mut draft = Draws {
        logits: logits(8, 2.0),
        sampler: Sampler::new(parameters).unwrap(),
        random: Random::new(parameters.of_a_draft().seed),
    };
    let mut sampler = Sampler::new(parameters).unwrap();
    let drafts: [&mut dyn Draft; 2] = [&mut draft, &mut Lookup];
    for draft in drafts {
        let mut counts = vec![0; VOCABULARY];
        for _ in 0..DRAWS {
            let (expected, drawn_from) = draft.next(&[5, 3]);
            let id = match sampler.verify(&target[3], &[5, 3], expected, drawn_from.as_ref()).unwrap() {
                TokenVerdict::Accepted => expected,
                TokenVerdict::Replaced(id) => id,
            };
            counts[id as usize] += 1;
        }
        let (statistic, freedom) = chi_square(&counts, &probabilities);
        assert!(statistic < one_percent(freedom), "{statistic} of {freedom}: {counts:?}");
    }
}

#[test]
fn a_test_of_another_distribution_fails() {
    let target = logits(7, 5.0);
    let mut sampler = Sampler::new(SamplingParameters::at_temperature(0.9, 21)).unwrap();
    let row = sampler.distribution(&target[3], &[]).unwrap();
    let probabilities: Vec<f64> = (0..VOCABULARY as u32).map(|id| row.probability(id)).collect();
    let mut other = Sampler::new(SamplingParameters::at_temperature(0.92, 21)).unwrap();
    let mut counts = vec![0; VOCABULARY];
    for _ in 0..DRAWS {
        counts[other.sample(&target[3], &[]).unwrap() as usize] += 1;
    }
    let (statistic, freedom) = chi_square(&counts, &probabilities);
    assert!(statistic > one_percent(freedom), "{statistic} of {freedom}");
}

#[test]
fn distributions_are_of_distinct_likely_tokens() {
    assert!(Distribution::new([]).is_none());
    for weights in
        [[(1, 0.5), (1, 0.5)], [(1, 0.5), (2, 0.0)], [(1, 0.5), (2, -1.0)], [(1, f64::NAN), (2, 1.0)]]
    {
        assert!(Distribution::new(weights).is_none(), "{weights:?}");
    }
    assert!(Distribution::new([(1, f64::INFINITY)]).is_none());
    let found = Distribution::new([(9, 3.0), (2, 1.0)]).unwrap();
    assert_eq!(found.tokens().collect::<Vec<_>>(), [(2, 0.25), (9, 0.75)]);
    assert_eq!((found.probability(2), found.probability(5)), (0.25, 0.0));
    let greedy = Sampler::new(SamplingParameters::greedy()).unwrap().distribution(&[0.0, 2.0, 1.0], &[]);
    assert_eq!(greedy.unwrap().tokens().collect::<Vec<_>>(), [(1, 1.0)]);
}
