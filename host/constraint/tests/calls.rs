//! Grammars of forced calls: replies of random allowed tokens are calls whose arguments match the
//! tool's schema, in every format.

use std::path::Path;

use serde_json::{Value, json};
use shardwright_constraint::{Constraint, Grammar, Vocabulary};
use shardwright_text::{
    CallEvent, CallFamily, CallFormat, CallRules, Random, Reply, StopRules, Tokenizer, ToolCall, ToolChoice,
    ToolDefinition,
};
use shardwright_vocabulary::{Error, ErrorKind};

/// A format with the vocabulary of a committed checkpoint.
struct Model {
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
    format: CallFormat,
}

fn models() -> Vec<Model> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let cases = [
        ("gemma4_text", CallFamily::Gemma4, "<|tool_call><tool_call|><|\"|>"),
        ("functiongemma", CallFamily::FunctionGemma, "<start_function_declaration><escape>"),
        ("smollm3", CallFamily::Hermes, "<tool_call>{\"name\": </tool_call>"),
        ("llama3", CallFamily::Llama, "{\"name\": function name, \"parameters\":"),
    ];
    cases
        .map(|(fixture, family, source)| {
            let tokenizer = Tokenizer::from_file(fixtures.join(fixture).join("tokenizer.json")).unwrap();
            let format = CallFormat::of(source, &tokenizer).unwrap();
            assert_eq!(format.family(), family);
            Model { vocabulary: Vocabulary::new(&tokenizer).unwrap(), tokenizer, format }
        })
        .into()
}

fn tool(name: &str, parameters: &Value) -> ToolDefinition {
    let value = json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    ToolDefinition::new(value).unwrap()
}

fn tools() -> Vec<ToolDefinition> {
    let trip = json!({
        "type": "object",
        "title": "A trip",
        "properties": {
            "to": {"type": "string", "minLength": 1, "maxLength": 6, "description": "The town."},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "class": {"enum": ["first", "second", 3, null]},
            "stops": {"type": "array", "minItems": 1, "maxItems": 3, "items": {"$ref": "#/$defs/stop"}},
            "code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]$"},
            "direct": {"type": ["boolean", "null"]},
        },
        "required": ["to", "stops", "code"],
        "$defs": {"stop": {
            "type": "object",
            "properties": {
                "at": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"const": "noon"}]},
                "then": {"$ref": "#/$defs/stop"},
            },
            "required": ["at"],
            "additionalProperties": false,
        }},
    });
    let value = json!({"type": "function", "function": {"name": "now"}});
    vec![tool("book_trip", &trip), ToolDefinition::new(value).unwrap()]
}

/// Returns the calls and the text of a reply of random allowed tokens that ends as soon as it may.
fn random_reply(model: &Model, choice: &ToolChoice, random: &mut Random) -> (Vec<ToolCall>, String) {
    let grammar = model.format.grammar(&tools(), choice).unwrap().unwrap();
    let constraint = Constraint::new(&model.vocabulary, &Grammar::lark(&grammar))
        .unwrap_or_else(|error| panic!("{error}\n{grammar}"));
    let mut state = constraint.start().unwrap();
    let rules = CallRules::new(model.format, &tools());
    let mut reply = Reply::new(&model.tokenizer, &StopRules::default(), true).with_calls(rules);
    let (mut calls, mut text) = (Vec::new(), String::new());
    let mut hear = |step: shardwright_text::ReplyStep| {
        text += &step.text;
        for event in step.calls {
            match event {
                CallEvent::End { call, .. } => calls.push(call),
                CallEvent::Text(more) => text += &more,
                CallEvent::Dropped { .. } => panic!("a forced call is dropped: {text}"),
                CallEvent::Begin { .. } | CallEvent::Arguments { .. } => {}
            }
        }
    };
    for _ in 0..4000 {
        if state.is_complete().unwrap() {
            break;
        }
        let mask = state.mask().unwrap();
        let size = u32::try_from(model.tokenizer.vocabulary_size()).unwrap();
        let choices: Vec<u32> = (0..size).filter(|id| mask.allows(*id)).collect();
        let id = choices[(random.next_unit() * choices.len() as f64) as usize];
        state.accept(id).unwrap();
        hear(reply.push(id).unwrap());
    }
    assert!(state.is_complete().unwrap(), "the reply does not end");
    hear(reply.finish().unwrap());
    (calls, text)
}

fn check_stop(stop: &Value) {
    let members = stop.as_object().unwrap();
    assert!(members["at"] == "noon" || (0..=9).contains(&members["at"].as_i64().unwrap()), "{stop}");
    members.get("then").into_iter().for_each(check_stop);
    assert!(members.keys().all(|key| ["at", "then"].contains(&key.as_str())), "{stop}");
}

fn check_trip(trip: &Value) {
    let members = trip.as_object().unwrap();
    let known = ["to", "days", "class", "stops", "code", "direct"];
    assert!(members.keys().all(|key| known.contains(&key.as_str())), "{trip}");
    let to = members["to"].as_str().unwrap();
    assert!((1..=6).contains(&to.chars().count()), "{trip}");
    let code: Vec<char> = members["code"].as_str().unwrap().chars().collect();
    assert!(code.len() == 3 && code[..2].iter().all(char::is_ascii_uppercase) && code[2].is_ascii_digit());
    let stops = members["stops"].as_array().unwrap();
    assert!((1..=3).contains(&stops.len()), "{trip}");
    stops.iter().for_each(check_stop);
    assert!(members.get("days").is_none_or(|days| (1..=14).contains(&days.as_i64().unwrap())), "{trip}");
    let classes = [json!("first"), json!("second"), json!(3), json!(null)];
    assert!(members.get("class").is_none_or(|class| classes.contains(class)), "{trip}");
    assert!(members.get("direct").is_none_or(|direct| direct.is_boolean() || direct.is_null()), "{trip}");
}

#[test]
fn random_replies_are_calls_with_arguments_of_the_schema() {
    for model in models() {
        let mut random = Random::new(7);
        let family = model.format.family();
        for round in 0..6 {
            let choice = ToolChoice::Named("book_trip".to_owned());
            let (calls, text) = random_reply(&model, &choice, &mut random);
            assert_eq!((calls.len(), text.as_str()), (1, ""), "{family:?} {round}");
            assert_eq!(calls[0].name, "book_trip");
            check_trip(&calls[0].arguments);
            let (calls, text) = random_reply(&model, &ToolChoice::Required, &mut random);
            assert_eq!((calls.len(), text.as_str()), (1, ""), "{family:?} {round}");
            match calls[0].name.as_str() {
                "book_trip" => check_trip(&calls[0].arguments),
                "now" => assert_eq!(calls[0].arguments, json!({})),
                name => panic!("{name} is not a tool"),
            }
        }
    }
}

#[test]
fn formats_with_several_calls_allow_more_after_the_first() {
    for model in models() {
        let grammar = model.format.grammar(&tools(), &ToolChoice::Required).unwrap().unwrap();
        let mut state =
            Constraint::new(&model.vocabulary, &Grammar::lark(&grammar)).unwrap().start().unwrap();
        let (one, two) = match model.format.family() {
            CallFamily::Gemma4 => ("<|tool_call>call:now{}<tool_call|>", true),
            CallFamily::FunctionGemma => ("<start_function_call>call:now{}<end_function_call>", true),
            CallFamily::Hermes => ("<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", true),
            CallFamily::Llama => ("{\"name\": \"now\", \"parameters\": {}}", false),
        };
        for id in model.tokenizer.encode(one, false).unwrap() {
            state.accept(id).unwrap_or_else(|error| panic!("{error}: {one}"));
        }
        assert!(state.is_complete().unwrap());
        assert_eq!(!state.must_stop().unwrap(), two, "{:?}", model.format.family());
    }
}

/// The error of the grammar, or of compiling it.
fn refused(model: &Model, parameters: &Value) -> Error {
    let tools = [tool("f", parameters)];
    match model.format.grammar(&tools, &ToolChoice::Required) {
        Err(error) => error,
        Ok(grammar) => Constraint::new(&model.vocabulary, &Grammar::lark(&grammar.unwrap())).unwrap_err(),
    }
}

#[test]
fn keywords_that_cannot_be_enforced_are_named() {
    let of = |schema: Value| json!({"properties": {"a": schema}, "required": ["a"]});
    for model in models() {
        let family = model.format.family();
        for keyword in ["not", "if", "contains", "uniqueItems", "dependentRequired", "propertyNames"] {
            let error = refused(&model, &of(json!({"type": "array", keyword: {"type": "string"}})));
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{family:?} {keyword}: {error}");
            assert!(
                error.message().contains(keyword) && error.help().is_some(),
                "{family:?} {keyword}: {error}"
            );
        }
        let error = refused(&model, &json!({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}));
        assert_eq!(error.kind(), ErrorKind::Argument, "an endless schema: {family:?}: {error}");
    }
}

#[test]
fn schemas_of_gemma_that_cannot_be_written_are_refused() {
    let of = |schema: Value| json!({"properties": {"a": schema}, "required": ["a"]});
    let deep = (0..70).fold(json!({"type": "null"}), |inner, _| json!({"type": "array", "items": inner}));
    let many: serde_json::Map<String, Value> = (0..6000)
        .map(|index| (format!("member_with_a_long_name_{index}"), json!({"type": "string"})))
        .collect();
    for (schema, kind, expected) in [
        (of(json!({"type": "string", "pattern": "a(?=b)"})), ErrorKind::Unsupported, "`pattern`"),
        (of(json!({"type": "string", "pattern": "^a|b$"})), ErrorKind::Unsupported, "`pattern`"),
        (
            of(json!({"type": "string", "pattern": "a", "maxLength": 3})),
            ErrorKind::Unsupported,
            "`pattern` next to",
        ),
        (of(json!({"allOf": [{"type": "string"}, {"minLength": 1}]})), ErrorKind::Unsupported, "`allOf`"),
        (of(json!({"oneOf": [{"type": "integer"}, {"type": "number"}]})), ErrorKind::Unsupported, "`oneOf`"),
        (of(json!({"items": [{"type": "string"}]})), ErrorKind::Unsupported, "`items`"),
        (of(json!({"$ref": "#/$defs/x"})), ErrorKind::Argument, "`#/$defs/x`, which does not exist"),
        (of(json!({"$ref": 1})), ErrorKind::Argument, "`$ref`"),
        (of(json!({"type": "text"})), ErrorKind::Argument, "unknown `type`"),
        (of(json!({"enum": []})), ErrorKind::Argument, "`enum`"),
        (of(json!({"type": "string", "enum": [1]})), ErrorKind::Argument, "without a value of its type"),
        (of(json!({"minLength": 3, "maxLength": 1})), ErrorKind::Argument, "`maxLength` below"),
        (of(json!({"minItems": 3, "maxItems": 1})), ErrorKind::Argument, "`maxItems` below"),
        (of(json!({"maxLength": -1})), ErrorKind::Argument, "`maxLength`"),
        (of(json!(false)), ErrorKind::Argument, "not an object or `true`"),
        (of(deep), ErrorKind::Argument, "nested deeper"),
        (json!({"properties": many}), ErrorKind::Argument, "bytes"),
        (
            json!({"properties": {}, "required": ["a"], "additionalProperties": false}),
            ErrorKind::Argument,
            "`a`",
        ),
    ] {
        let error = refused(&models()[0], &schema);
        assert_eq!(error.kind(), kind, "{schema}: {error}");
        assert!(error.message().contains(expected) && error.help().is_some(), "{error} lacks {expected}");
    }
}
