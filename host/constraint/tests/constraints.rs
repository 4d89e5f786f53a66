//! Tests of grammars over the tokens of a committed checkpoint: replies of random allowed tokens,
//! refusals before the first token, forced tokens, and earlier positions.

use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use shardwright_constraint::{Constraint, ConstraintState, Grammar, Vocabulary};
use shardwright_text::{Random, Tokenizer};
use shardwright_vocabulary::{Error, ErrorKind};

fn tokenizer(name: &str) -> Tokenizer {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    Tokenizer::from_file(fixtures.join(name).join("tokenizer.json")).unwrap()
}

fn gemma() -> &'static (Tokenizer, Vocabulary) {
    static GEMMA: OnceLock<(Tokenizer, Vocabulary)> = OnceLock::new();
    GEMMA.get_or_init(|| {
        let tokenizer = tokenizer("gemma4_text");
        let vocabulary = Vocabulary::new(&tokenizer).unwrap();
        (tokenizer, vocabulary)
    })
}

fn start(grammar: &Grammar) -> ConstraintState {
    Constraint::new(&gemma().1, grammar).unwrap().start().unwrap()
}

fn refused(grammar: &Grammar) -> Error {
    Constraint::new(&gemma().1, grammar).unwrap_err()
}

fn allowed(state: &mut ConstraintState) -> Vec<u32> {
    let mask = state.mask().unwrap();
    (0..gemma().0.vocabulary_size() as u32).filter(|id| mask.allows(*id)).collect()
}

/// Appends random allowed tokens until the text must end, or until it may end after `most` tokens.
fn random_text(state: &mut ConstraintState, random: &mut Random, most: usize) -> String {
    for count in 0..4 * most {
        if state.must_stop().unwrap() || (count >= most && state.is_complete().unwrap()) {
            break;
        }
        if count % 2 == 0 {
            state.begin_mask();
        }
        let choices = allowed(state);
        if choices.is_empty() {
            break;
        }
        let choice = choices[(random.next_unit() * choices.len() as f64) as usize];
        assert_eq!(state.allowed(&[choice]).unwrap(), 1);
        state.accept(choice).unwrap();
    }
    gemma().0.decode(state.tokens(), true).unwrap()
}

/// A schema whose replies have few tokens, with a check of a reply.
fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 12 },
            "age": { "type": "integer", "minimum": 0, "maximum": 120 },
            "tags": { "type": "array", "items": { "enum": ["a", "b", null] }, "maxItems": 3 },
        },
        "required": ["name", "age"],
        "additionalProperties": false,
    })
}

#[test]
fn random_replies_match_their_grammar() {
    let mut random = Random::new(1);
    for round in 0..8 {
        let text = random_text(&mut start(&Grammar::json_schema(&person())), &mut random, 60);
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let members = value.as_object().unwrap();
        assert!(members.keys().all(|key| ["name", "age", "tags"].contains(&key.as_str())), "{text}");
        assert!(value["name"].as_str().unwrap().chars().count() <= 12, "{text}");
        assert!((0..=120).contains(&value["age"].as_i64().unwrap()), "{text}");
        assert!(value.get("tags").is_none_or(|tags| tags.as_array().unwrap().len() <= 3), "{text}");

        let text = random_text(&mut start(&Grammar::regex("(red|green)-[0-9]{2,4}")), &mut random, 40);
        let (colour, digits) = text.split_once('-').unwrap();
        assert!(["red", "green"].contains(&colour), "{text}");
        assert!((2..=4).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit()), "{text}");

        let lark = "start: item (\", \" item)*\nitem: \"ab\" | \"c\" /[0-9]/\n";
        let text = random_text(&mut start(&Grammar::lark(lark)), &mut random, 6 + round);
        assert!(text.split(", ").all(|item| item == "ab" || (item.len() == 2 && item.starts_with('c'))));
    }
}

#[test]
fn any_json_object_is_described() {
    let mut state = start(&Grammar::json_object());
    let tokenizer = &gemma().0;
    for id in tokenizer.encode("{\"a\": [1, {\"b\": null}], \"c\": \"d\"}", false).unwrap() {
        assert!(!state.is_complete().unwrap());
        state.accept(id).unwrap();
    }
    assert!(state.is_complete().unwrap() && state.must_stop().unwrap());
    assert_eq!(state.mask().unwrap().count(), 0);
    assert!(state.forced().unwrap().is_empty());
}

#[test]
fn special_tokens_are_allowed_only_if_a_rule_names_them() {
    let (tokenizer, _) = gemma();
    let [open, close] = ["<|tool_call>", "<tool_call|>"].map(|name| tokenizer.token_to_id(name).unwrap());
    let mut state = start(&Grammar::lark("start: <|tool_call> \"ok\" <tool_call|>"));
    assert!(state.is_special(open));
    assert_eq!(allowed(&mut state), [open]);
    state.accept(open).unwrap();
    for id in tokenizer.encode("ok", false).unwrap() {
        state.accept(id).unwrap();
    }
    assert_eq!(allowed(&mut state), [close]);
    state.accept(close).unwrap();
    assert!(state.must_stop().unwrap());

    let mut text = start(&Grammar::regex("(?s:.){1,9}"));
    assert!(allowed(&mut text).iter().all(|id| !tokenizer.is_special(*id)));
    let error = refused(&Grammar::lark("start: <|no_such_token>"));
    assert_eq!(error.kind(), ErrorKind::Argument);
    assert!(error.message().contains("<|no_such_token>"), "{error}");
}

#[test]
fn forced_tokens_are_the_tokenizers_and_leave_the_same_position() {
    let (tokenizer, _) = gemma();
    let schema = json!({
        "type": "object",
        "properties": { "a_rather_long_name_of_a_member": { "type": "boolean" } },
        "required": ["a_rather_long_name_of_a_member"],
        "additionalProperties": false,
        "x-guidance": { "whitespace_flexible": false },
    });
    let mut state = start(&Grammar::json_schema(&schema));
    let forced = state.forced().unwrap();
    let text = "{\"a_rather_long_name_of_a_member\":";
    let spelled = tokenizer.decode(&forced, true).unwrap();
    assert!(text.starts_with(&spelled) && spelled.len() > 20, "{spelled:?}");
    assert_eq!(forced, tokenizer.encode(text, false).unwrap()[..forced.len()]);
    assert_eq!(state.allowed(&forced).unwrap(), forced.len());
    for id in &forced {
        assert_eq!(allowed(&mut state), [*id]);
        state.accept(*id).unwrap();
    }
    let text = random_text(&mut state, &mut Random::new(4), 30);
    assert!(serde_json::from_str::<Value>(&text).unwrap()["a_rather_long_name_of_a_member"].is_boolean());
}

#[test]
fn earlier_positions_are_restored() {
    let constraint = Constraint::new(&gemma().1, &Grammar::json_schema(&person())).unwrap();
    let mut state = constraint.start().unwrap();
    let mut random = Random::new(9);
    let mut masks = Vec::new();
    while !state.must_stop().unwrap() && masks.len() < 25 {
        let choices = allowed(&mut state);
        masks.push(choices.clone());
        state.accept(choices[(random.next_unit() * choices.len() as f64) as usize]).unwrap();
    }
    let tokens = state.tokens().to_vec();
    for (count, mask) in masks.iter().enumerate().rev() {
        state.begin_mask();
        state.rollback(state.tokens().len() - count).unwrap();
        assert_eq!((&allowed(&mut state), state.tokens()), (mask, &tokens[..count]));
        // Another reply of the same constraint gets there from the tokens.
        let mut again = constraint.start().unwrap();
        tokens[..count].iter().for_each(|id| again.accept(*id).unwrap());
        assert_eq!(&allowed(&mut again), mask);
    }
    let error = state.rollback(1).unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Argument, "cannot remove 1 tokens of 0"));
}

#[test]
fn tokens_outside_of_the_mask_are_refused_and_change_no_state() {
    let mut state = start(&Grammar::regex("[0-9]+"));
    let letter = gemma().0.encode("a", false).unwrap()[0];
    let before = allowed(&mut state);
    assert_eq!(state.allowed(&[before[0], letter]).unwrap(), 1);
    let error = state.accept(letter).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Argument);
    assert!(error.message().contains("does not allow token"), "{error}");
    assert_eq!((allowed(&mut state), state.tokens()), (before, &[][..]));
}

#[test]
fn grammars_that_no_reply_can_match_are_refused() {
    let requires_itself = json!({
        "type": "object", "properties": { "next": { "$ref": "#" } }, "required": ["next"],
    });
    let in_circles = json!({
        "$ref": "#/$defs/a",
        "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } },
    });
    let contradictions = [
        Grammar::json_schema(&json!(false)),
        Grammar::json_schema(&json!({ "type": "integer", "minimum": 5, "maximum": 4 })),
        Grammar::json_schema(&json!({ "allOf": [{ "type": "string" }, { "type": "null" }] })),
        Grammar::json_schema(&json!({ "enum": [] })),
        Grammar::json_schema(&json!({ "type": "array", "minItems": 3, "maxItems": 2 })),
        Grammar::json_schema(&json!({
            "type": "object", "properties": { "a": false }, "required": ["a"],
        })),
        Grammar::json_schema(&requires_itself),
        Grammar::json_schema(&in_circles),
        Grammar::json_schema(&json!({ "$ref": "#" })),
        Grammar::lark("start: \"a\" start"),
        Grammar::lark("start: a\na: \"x\" b\nb: \"y\" a\n"),
        Grammar::lark(&format!("start: \"x\" %json {requires_itself}")),
        Grammar::lark("start: \"x\" %lark {\nstart: \"y\" start\n}\n"),
    ];
    for grammar in &contradictions {
        let error = refused(grammar);
        assert_eq!(error.kind(), ErrorKind::Argument, "{grammar:?}: {error}");
        assert!(error.message().starts_with("no reply can match the "), "{grammar:?}: {error}");
        assert!(error.help().is_some(), "{error}");
    }
    for grammar in [&requires_itself, &in_circles].map(Grammar::json_schema) {
        assert!(refused(&grammar).message().contains("never ends"), "{}", refused(&grammar));
    }
    // Recursion that can end is accepted.
    let tree = json!({
        "type": "object",
        "properties": { "children": { "type": "array", "items": { "$ref": "#" } } },
        "required": ["children"],
        "additionalProperties": false,
    });
    let text = random_text(&mut start(&Grammar::json_schema(&tree)), &mut Random::new(2), 40);
    assert!(text.starts_with('{'), "{text}");
    start(&Grammar::lark("start: \"(\" start? \")\"")).mask().unwrap();
}

#[test]
fn unsupported_keywords_and_formats_are_named() {
    for (schema, name) in [
        (json!({ "not": { "type": "null" } }), "`not` at `/not`"),
        (json!({ "if": {}, "then": {} }), "`if` at `/if`"),
        (json!({ "properties": { "a": { "contains": {} } } }), "`contains` at `/properties/a/contains`"),
        (json!({ "type": "array", "uniqueItems": true }), "`uniqueItems`"),
        (json!({ "dependentRequired": { "a": ["b"] } }), "`dependentRequired`"),
        (json!({ "dependencies": { "a": ["b"] } }), "`dependencies`"),
        (json!({ "propertyNames": { "maxLength": 2 } }), "`propertyNames`"),
        (json!({ "unevaluatedProperties": false }), "`unevaluatedProperties`"),
        (json!({ "type": "string", "format": "no-such-format" }), "format `no-such-format`"),
        (json!({ "oneOf": [{ "type": "integer" }, { "minimum": 3 }] }), "`oneOf`"),
        (json!({ "$ref": "other.json#/x" }), "reference"),
    ] {
        let error = refused(&Grammar::json_schema(&schema));
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{schema}: {error}");
        assert!(error.message().contains(name), "{schema}: {error}");
        assert!(error.help().is_some());
    }
    let lenient = json!({ "x-guidance": { "coerce_one_of": true }, "oneOf": [
        { "type": "object", "properties": { "a": { "type": "integer" } } },
        { "type": "object", "properties": { "b": { "type": "integer" } } },
    ] });
    assert_eq!(refused(&Grammar::json_schema(&lenient)).kind(), ErrorKind::Unsupported);
    let warm = Grammar::lark("start: text\ntext[temperature=0.5]: /[a-z]{3}/\n");
    assert!(refused(&warm).message().contains("`temperature`"), "{}", refused(&warm));
}

#[test]
fn unknown_keywords_are_listed() {
    let schema = json!({ "type": "object", "nullable": true, "properties": { "a": { "requried": [] } } });
    let constraint = Constraint::new(&gemma().1, &Grammar::json_schema(&schema)).unwrap();
    assert_eq!(constraint.ignored(), ["/nullable", "/properties/a/requried"]);
    assert_eq!(constraint.grammar(), &Grammar::json_schema(&schema));
    assert!(Constraint::new(&gemma().1, &Grammar::regex("a+")).unwrap().ignored().is_empty());
}

#[test]
fn malformed_grammars_are_refused() {
    for grammar in [
        Grammar::regex("(a"),
        Grammar::regex("[z-a]"),
        Grammar::lark("start: missing_rule"),
        Grammar::lark("no rule"),
        Grammar::lark(""),
        Grammar::json_schema(&json!({ "type": "strnig" })),
        Grammar::json_schema(&json!({ "type": "object", "properties": 3 })),
        Grammar::json_schema(&json!({ "$ref": "#/$defs/missing" })),
        Grammar::json_schema(&json!([1])),
    ] {
        let error = refused(&grammar);
        assert_eq!(error.kind(), ErrorKind::Argument, "{grammar:?}: {error}");
        assert!(!error.message().contains('\n') && error.message().len() < 600, "{error}");
        assert!(error.help().is_some());
    }
}

#[test]
fn large_grammars_end_in_bounded_time() {
    let alternatives: Vec<String> = (0..40_000).map(|index| format!("value number {index}")).collect();
    let many: serde_json::Map<String, Value> =
        (0..4_000).map(|index| (format!("p{index}"), json!({ "$ref": "#/$defs/a" }))).collect();
    // As long as possible.
    let mut chain: serde_json::Map<String, Value> = (0..19_999)
        .map(|index| (format!("a{index}"), json!({ "$ref": format!("#/$defs/a{}", index + 1) })))
        .collect();
    chain.insert("a19999".to_owned(), json!({ "type": "integer" }));
    let rules: String = (0..9_998).map(|index| format!("r{index}: r{}\n", index + 1)).collect();
    let short: serde_json::Map<String, Value> =
        (0..250).map(|index| (format!("{index:x}"), json!({}))).collect();
    let counted = json!({ "properties": short, "additionalProperties": false, "minProperties": 1 });
    let start = Instant::now();
    for grammar in [
        Grammar::json_schema(&json!({ "$ref": "#/$defs/a0", "$defs": chain })),
        Grammar::lark(&format!("start: r0\n{rules}r9998: \"a\"\n")),
        Grammar::json_schema(&counted),
        Grammar::lark(&format!("start: /\"/ {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000))),
        Grammar::json_schema(&json!({ "enum": alternatives })),
        Grammar::json_schema(&json!({ "type": "object", "properties": many, "$defs": { "a": {} } })),
        Grammar::json_schema(&json!({ "type": "array", "minItems": 1_000_000_000 })),
        Grammar::json_schema(&json!({ "type": "string", "minLength": 1_000_000_000 })),
        Grammar::regex("((a|b)*c){500}{500}"),
        Grammar::regex(&format!("({}){{900}}", ".{900}".repeat(100))),
    ] {
        if let Err(error) = Constraint::new(&gemma().1, &grammar) {
            assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
        }
    }
    assert!(start.elapsed() < Duration::from_secs(120), "{:?}", start.elapsed());
}

#[test]
fn every_family_of_tokenizers_spells_json() {
    for name in ["gemma3_text", "qwen3", "llama3", "tinyllama", "phi4mini", "ministral"] {
        let tokenizer = tokenizer(name);
        let vocabulary = Vocabulary::new(&tokenizer).unwrap();
        assert!(format!("{vocabulary:?}").contains("tokens"));
        let constraint = Constraint::new(&vocabulary, &Grammar::json_schema(&person())).unwrap();
        let mut state = constraint.start().unwrap();
        let ids = tokenizer.encode("{\"name\": \"Ann\", \"age\": 7}", false).unwrap();
        let bytes = tokenizer.token_bytes().unwrap();
        // A tokenizer may put a space before a text. It is not part of the reply.
        let skipped = usize::from(tokenizer.prefixes_space() && bytes[ids[0] as usize] == b" ");
        for id in &ids[skipped..] {
            state.accept(*id).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        assert!(state.must_stop().unwrap(), "{name}");
        let whole: Vec<u8> = state.tokens().iter().flat_map(|id| bytes[*id as usize].clone()).collect();
        assert_eq!(whole, b"{\"name\": \"Ann\", \"age\": 7}", "{name}");
    }
}
