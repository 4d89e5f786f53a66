//! Calls of tools in replies: tables of replies with their text and calls, however the reply is cut
//! into pieces.

use serde::Deserialize;
use serde_json::{Value, json};
use shardwright_text::*;

#[derive(Deserialize)]
struct Case {
    case: String,
    reply: String,
    text: String,
    calls: Vec<Called>,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
struct Called {
    name: String,
    arguments: Value,
}

/// The outcome of a reply.
#[derive(Debug, Default, PartialEq)]
struct Parsed {
    text: String,
    calls: Vec<Called>,
}

const FAMILIES: [(CallFamily, &str); 4] = [
    (CallFamily::Gemma4, "gemma4"),
    (CallFamily::FunctionGemma, "functiongemma"),
    (CallFamily::Hermes, "hermes"),
    (CallFamily::Llama, "llama"),
];

/// The marks of each family.
fn marks(family: CallFamily) -> &'static [&'static str] {
    match family {
        CallFamily::Gemma4 => &["<|tool_call>", "<tool_call|>", "<|\"|>"],
        CallFamily::FunctionGemma => &["<start_function_call>", "<end_function_call>", "<escape>"],
        CallFamily::Hermes => &["<tool_call>", "</tool_call>"],
        CallFamily::Llama => &["<|python_tag|>"],
    }
}

fn table(name: &str) -> Vec<Case> {
    let path = format!("{}/tests/calls/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let cases: Vec<Case> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert!(cases.len() >= 60, "{name}");
    cases
}

fn tools() -> Vec<ToolDefinition> {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    ["get_weather", "now", "f"].iter().map(|name| ToolDefinition::new(tool(name)).unwrap()).collect()
}

fn parser(format: CallFormat) -> CallParser {
    CallParser::new(CallRules::new(format, &tools()))
}

/// Adds events to an outcome, and checks that they follow each other as documented.
#[derive(Default)]
struct Heard {
    parsed: Parsed,
    open: Option<(usize, String, String, String)>,
    ids: Vec<String>,
}

impl Heard {
    fn hear(&mut self, events: Vec<CallEvent>) {
        for event in events {
            match event {
                CallEvent::Text(text) => {
                    assert!(!text.is_empty() && self.open.is_none(), "text within a call: {text:?}");
                    self.parsed.text += &text;
                }
                CallEvent::Begin { index, id, name } => {
                    assert!(self.open.is_none() && index == self.ids.len(), "call {index} begins");
                    assert!(id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric()), "{id}");
                    assert!(!self.ids.contains(&id), "{id} comes twice");
                    self.ids.push(id.clone());
                    self.open = Some((index, id, name, String::new()));
                }
                CallEvent::Arguments { index, text } => {
                    let open = self.open.as_mut().expect("a call");
                    assert!(open.0 == index && !text.is_empty());
                    open.3 += &text;
                }
                CallEvent::End { index, call } => {
                    let (open, id, name, arguments) = self.open.take().expect("a call");
                    assert_eq!((open, &id, &name), (index, &call.id, &call.name));
                    let streamed: Value = serde_json::from_str(&arguments).unwrap();
                    assert_eq!(streamed.to_string(), call.arguments.to_string(), "also in order");
                    self.parsed.calls.push(Called { name, arguments: streamed });
                }
                CallEvent::Dropped { index } => {
                    let open = self.open.take().expect("a call");
                    assert_eq!(open.0, index);
                }
            }
        }
    }
}

/// Parses a reply in which marks are spelled out, in pieces of `size` characters.
fn parse_spelled(family: CallFamily, reply: &str, size: usize) -> Parsed {
    let mut parser = parser(CallFormat::with_ids(family, |_| None));
    let (characters, mut heard): (Vec<char>, _) = (reply.chars().collect(), Heard::default());
    for piece in characters.chunks(size) {
        heard.hear(parser.push(&piece.iter().collect::<String>()));
    }
    heard.hear(parser.finish());
    assert!(heard.open.is_none());
    heard.parsed
}

/// Returns the format in which all marks of the family are tokens.
fn with_tokens(family: CallFamily) -> CallFormat {
    CallFormat::with_ids(family, |spelling| {
        let index = marks(family).iter().position(|mark| *mark == spelling);
        Some(u32::try_from(index.unwrap_or(marks(family).len())).unwrap())
    })
}

/// Parses a reply whose marks are tokens.
fn parse_tokens(family: CallFamily, reply: &str) -> Parsed {
    let mut parser = parser(with_tokens(family));
    let mut heard = Heard::default();
    let mut rest = reply;
    while !rest.is_empty() {
        let next = marks(family)
            .iter()
            .enumerate()
            .filter_map(|(id, mark)| Some((rest.find(mark)?, id, *mark)))
            .min();
        let Some((start, id, mark)) = next else { break };
        heard.hear(parser.push(&rest[..start]));
        heard.hear(parser.push_token(u32::try_from(id).unwrap(), true).expect("a mark"));
        rest = &rest[start + mark.len()..];
    }
    heard.hear(parser.push(rest));
    heard.hear(parser.finish());
    heard.parsed
}

#[test]
fn replies_are_separated_into_text_and_calls_however_they_are_cut() {
    for (family, name) in FAMILIES {
        for Case { case, reply, text, calls } in table(name) {
            let expected = Parsed { text, calls };
            let most = reply.chars().count().max(1);
            for size in (1..=most.min(40)).chain([most]) {
                let found = parse_spelled(family, &reply, size);
                assert_eq!(found, expected, "{name}: {case}, in pieces of {size}: {reply}");
            }
            assert_eq!(parse_tokens(family, &reply), expected, "{name}: {case}, with tokens: {reply}");
        }
    }
}

#[test]
fn every_cut_of_a_reply_gives_calls_that_were_complete_and_loses_no_text() {
    for (family, name) in FAMILIES {
        for Case { case, reply, calls, .. } in table(name).into_iter().filter(|case| case.reply.len() < 200) {
            for (cut, _) in reply.char_indices() {
                let found = parse_spelled(family, &reply[..cut], 3);
                // A cut call can be a call of its own only if its end mark is missing.
                assert!(found.calls.len() <= calls.len() + 1, "{name}: {case} at {cut}: {found:?}");
                if found.calls.is_empty() {
                    assert_eq!(found.text, &reply[..cut], "{name}: {case} at {cut}");
                }
            }
        }
    }
}

#[test]
fn letters_that_spell_a_mark_are_text_if_the_mark_is_a_token() {
    for (family, name) in FAMILIES.into_iter().filter(|(family, _)| *family != CallFamily::Llama) {
        for Case { case, reply, .. } in table(name) {
            let mut parser = parser(with_tokens(family));
            let mut heard = Heard::default();
            heard.hear(parser.push(&reply));
            heard.hear(parser.finish());
            assert_eq!(heard.parsed, Parsed { text: reply, calls: Vec::new() }, "{name}: {case}");
        }
    }
}

/// Replies as ids of fixtures' vocabularies, through the whole of [`Reply`].
#[test]
fn replies_of_tokens_have_the_calls_of_the_tables() {
    let sources = [
        (CallFamily::Gemma4, "gemma4", "gemma4_text", "<|tool_call><tool_call|><|\"|>"),
        (CallFamily::FunctionGemma, "functiongemma", "functiongemma", "<start_function_declaration><escape>"),
        (CallFamily::Hermes, "hermes", "smollm3", "<tool_call>{\"name\": </tool_call>"),
    ];
    for (family, name, fixture, source) in sources {
        let folder = format!("{}/../../tests/fixtures/{fixture}", env!("CARGO_MANIFEST_DIR"));
        let tokenizer = Tokenizer::from_checkpoint(folder).unwrap();
        let format = CallFormat::of(source, &tokenizer).unwrap();
        assert_eq!(format.family(), family);
        for Case { case, reply, calls, .. } in table(name) {
            let ids = tokenizer.encode(&reply, false).unwrap();
            let rules = CallRules::new(format, &tools());
            let mut parsed = Reply::new(&tokenizer, &StopRules::default(), true).with_calls(rules);
            let mut heard = Heard::default();
            let mut hear = |step: ReplyStep| {
                assert!(step.thought.is_empty() && step.stop.is_none());
                heard.parsed.text += &step.text;
                heard.hear(step.calls);
            };
            ids.iter().for_each(|id| hear(parsed.push(*id).unwrap()));
            hear(parsed.finish().unwrap());
            assert_eq!(heard.parsed.calls, calls, "{name}: {case}: {reply}");
        }
    }
}

#[test]
fn stop_strings_are_searched_between_calls_and_results_end_the_reply() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/gemma4_text");
    let tokenizer = Tokenizer::from_checkpoint(folder).unwrap();
    let format = CallFormat::of("<|tool_call><tool_call|><|\"|>", &tokenizer).unwrap();
    let run = |reply: &str, stop: &[&str]| {
        let rules = StopRules::default().with_strings(stop.iter().copied()).unwrap();
        let mut parsed = Reply::new(&tokenizer, &rules, true).with_calls(CallRules::new(format, &tools()));
        let mut heard = Heard::default();
        for id in tokenizer.encode(reply, false).unwrap() {
            let step = parsed.push(id).unwrap();
            heard.parsed.text += &step.text;
            heard.hear(step.calls);
        }
        let rest = parsed.finish().unwrap();
        heard.parsed.text += &rest.text;
        heard.hear(rest.calls);
        (heard.parsed, parsed.stop().cloned())
    };
    let call = "<|tool_call>call:f{a:<|\"|>the end<|\"|>}<tool_call|>";
    let called = Called { name: "f".to_owned(), arguments: json!({"a": "the end"}) };
    let (parsed, stop) = run(&format!("go {call} the end"), &["end"]);
    assert_eq!((parsed.calls.len(), stop), (1, Some(Stop::Text("end".to_owned()))));
    assert_eq!(parsed.calls[0], called, "a stop string within a call does not end it");
    let (parsed, stop) = run(&format!("the en{call}d"), &["end"]);
    assert_eq!(
        (parsed.text.as_str(), parsed.calls.len(), stop),
        ("the end", 1, None),
        "no string spans a call"
    );

    let response = tokenizer.token_to_id("<|tool_response>").unwrap();
    let (parsed, stop) = run(&format!("{call}<|tool_response>response:f"), &[]);
    assert_eq!(
        (parsed, stop),
        (Parsed { text: String::new(), calls: vec![called] }, Some(Stop::Id(response)))
    );
    let (parsed, stop) = run("no call<|tool_response> yet", &[]);
    assert_eq!((parsed.calls.len(), stop), (0, None), "without a call there is no result");
}

#[test]
fn ids_of_the_conversation_are_not_used_again() {
    let format = CallFormat::with_ids(CallFamily::Hermes, |_| None);
    let used = ["call00000", "call00002"].map(str::to_owned);
    let mut parser = CallParser::new(CallRules::new(format, &tools()).with_used_ids(used));
    let call = "<tool_call>{\"name\": \"f\"}</tool_call>";
    let ids: Vec<String> = parser
        .push(&call.repeat(2))
        .into_iter()
        .filter_map(|event| match event {
            CallEvent::End { call, .. } => Some(call.id),
            _ => None,
        })
        .collect();
    assert_eq!(ids, ["call00003", "call00004"]);
}

#[test]
fn the_size_and_the_number_of_calls_are_limited() {
    let format = CallFormat::with_ids(CallFamily::Hermes, |_| None);
    let long = format!(
        "<tool_call>{{\"name\": \"f\", \"arguments\": {{\"a\": \"{}\"}}}}</tool_call>",
        "x".repeat(CALL_BYTES_MAX)
    );
    let mut heard = Heard::default();
    let mut parser = parser(format);
    heard.hear(parser.push(&long));
    heard.hear(parser.finish());
    assert_eq!((heard.parsed.text == long, heard.parsed.calls.len()), (true, 0));

    let call = "<tool_call>{\"name\": \"f\"}</tool_call>";
    let mut heard = Heard::default();
    let mut parser = CallParser::new(CallRules::new(format, &tools()));
    heard.hear(parser.push(&call.repeat(CALLS_MAX + 2)));
    heard.hear(parser.finish());
    assert_eq!((heard.parsed.calls.len(), heard.parsed.text), (CALLS_MAX, call.repeat(2)));
}

/// Templates of llama.cpp's collection, if `cargo xtask vendor templates` has fetched them.
#[test]
fn published_templates_are_recognised() {
    let Some(folder) = std::env::var_os("SHARDWRIGHT_TEMPLATES") else {
        eprintln!("skipped: run `cargo xtask vendor templates` to fetch published templates");
        return;
    };
    for (file, expected) in [
        ("google-gemma-4-31B-it", Some(CallFamily::Gemma4)),
        ("google-gemma-4-31B-it-interleaved", Some(CallFamily::Gemma4)),
        ("Qwen-Qwen3-0.6B", Some(CallFamily::Hermes)),
        ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", Some(CallFamily::Hermes)),
        ("ibm-granite-granite-4.1", Some(CallFamily::Hermes)),
        ("Reka-Edge", Some(CallFamily::Hermes)),
        ("Qwen-Qwen2.5-7B-Instruct", Some(CallFamily::Hermes)),
        ("meta-llama-Llama-3.1-8B-Instruct", Some(CallFamily::Llama)),
        ("meta-llama-Llama-3.2-3B-Instruct", Some(CallFamily::Llama)),
        ("meta-llama-Llama-3.3-70B-Instruct", Some(CallFamily::Llama)),
        // This copy offers no tools, unlike the published file.
        ("HuggingFaceTB-SmolLM3-3B", None),
        ("Qwen3-Coder", None),
        ("MiniMax-M3", None),
        ("unsloth-Apriel-1.5", None),
        ("GLM-4.6", None),
        ("mistralai-Mistral-Nemo-Instruct-2407", None),
        ("google-gemma-2-2b-it", None),
    ] {
        let path = std::path::Path::new(&folder).join(format!("{file}.jinja"));
        let source =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(CallFamily::of_template(&source), expected, "{file}");
    }
}
