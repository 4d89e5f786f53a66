//! Tokens that rules of a checkpoint exclude, compared with transformers.

use serde_json::Value;
use shardwright_text::{GenerationConfig, Sampler, SamplingParameters, TokenRules};
use shardwright_vocabulary::ErrorKind;

/// Reads the rules of a `generation_config.json`.
fn rules(fields: &Value) -> TokenRules {
    let file = |name: &str| (name == "generation_config.json").then(|| fields.to_string().into_bytes());
    GenerationConfig::from_files("model", file).unwrap().rules
}

/// The expected values come from `tests/models/make_rules.py`.
#[test]
fn excluded_tokens_are_those_of_transformers() {
    let goldens: Value = serde_json::from_str(include_str!("token_rules.json")).unwrap();
    let ids = |value: &Value| serde_json::from_value::<Vec<u32>>(value.clone()).unwrap();
    let vocabulary = goldens["vocabulary"].as_u64().unwrap() as u32;
    let cases = goldens["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 300);
    for case in cases {
        let mut fields = case["fields"].clone();
        fields["eos_token_id"] = goldens["eos_token_id"].clone();
        let (history, excluded) = (ids(&case["history"]), ids(&case["excluded"]));
        let prompt = case["prompt"].as_u64().unwrap() as usize;
        let rules = rules(&fields);
        let most = rules.most_excluded();
        assert!(most.is_none_or(|most| most >= excluded.len()), "{case}");
        let parameters = SamplingParameters::at_temperature(1.0, 1);
        let mut sampler = Sampler::new(parameters).unwrap().with_rules(rules, prompt);
        let distribution = sampler.distribution(&vec![0.5; vocabulary as usize], &history).unwrap();
        let left: Vec<u32> = distribution.tokens().map(|(id, _)| id).collect();
        let expected: Vec<u32> = (0..vocabulary).filter(|id| !excluded.contains(id)).collect();
        assert_eq!(left, expected, "{case}");
        // Logits descend, so the chosen token is the lowest remaining id.
        let logits: Vec<f32> = (0..vocabulary).map(|id| -(id as f32)).collect();
        let mut sampler =
            Sampler::new(SamplingParameters::greedy()).unwrap().with_rules(self::rules(&fields), prompt);
        assert_eq!(sampler.sample(&logits, &history).unwrap(), expected[0], "{case}");
    }
}

#[test]
fn rules_that_exclude_every_token_are_an_error() {
    let rules = TokenRules { suppress_tokens: vec![0, 1], ..TokenRules::default() };
    let mut sampler = Sampler::new(SamplingParameters::greedy()).unwrap().with_rules(rules, 1);
    let error = sampler.sample(&[1.0, 2.0], &[0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().ends_with("leave no token to follow 1 tokens"), "{error}");
    assert!(error.help().is_some_and(|help| help.contains("suppress_tokens")));
    let rules =
        TokenRules { forced_bos_token_id: Some(1), suppress_tokens: vec![1], ..TokenRules::default() };
    let mut sampler = Sampler::new(SamplingParameters::greedy()).unwrap().with_rules(rules, 1);
    let error = sampler.sample(&[1.0, 2.0], &[0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("leave no token"), "{error}");
}
