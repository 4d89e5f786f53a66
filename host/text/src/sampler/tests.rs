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
        let parameters =
            SamplingParameters { top_k: 64, top_p: 0.95, ..SamplingParameters::at_temperature(1.0, seed) };
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
