//! The target for calls of tools in replies.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;

use serde_json::{Value, json};
use shardwright_text::{
    CALLS_MAX, CallEvent, CallFamily, CallFormat, CallParser, CallRules, ToolCall, ToolDefinition,
};

/// Names of the offered tools.
const TOOLS: [&str; 2] = ["get_weather", "now"];

/// Bits of the first byte with the family of the format.
const FAMILY: u8 = 3;

/// Bit of the first byte that hides tokens of marks where they have no meaning.
const HIDDEN: u8 = 4;

/// The first of the bits that make marks tokens. Other marks are spelled out.
const FIRST_TOKEN: u32 = 4;

/// Lengths of the pieces in which a reply arrives, in characters.
const PIECES: [usize; 4] = [1, 2, 7, 32];

/// A part of a reply.
enum Part<'t> {
    Text(&'t str),
    /// The token of a mark.
    Mark(u32),
}

/// Parses a reply after a byte of settings, as a whole and in pieces. The reply counts as accepted
/// if it has a call.
///
/// The pieces must not matter, the events must follow each other as documented, and the text
/// outside of calls must stay as it is.
pub fn calls(bytes: &[u8]) -> bool {
    let Some((settings, reply)) = bytes.split_first() else { return false };
    let Ok(reply) = std::str::from_utf8(reply) else { return false };
    let (format, tokens) = format_of(*settings);
    let tools = TOOLS.map(|name| json!({ "type": "function", "function": { "name": name } }));
    let Ok(tools) = tools.into_iter().map(ToolDefinition::new).collect::<Result<Vec<_>, _>>() else {
        return false;
    };
    let rules = CallRules::new(format, &tools);
    let is_shown = settings & HIDDEN == 0;
    let parts = parts(reply, &tokens);
    let whole = events(&rules, &parts, is_shown, usize::MAX);
    for size in PIECES {
        assert_eq!(events(&rules, &parts, is_shown, size), whole, "in pieces of {size}");
    }
    let texts = texts(&whole);
    if is_shown || tokens.is_empty() {
        expect_unchanged(reply, &texts);
    }
    texts.len() > 1
}

/// Returns the format of these settings, and the spellings of the marks that are tokens.
fn format_of(settings: u8) -> (CallFormat, Vec<(String, u32)>) {
    let family = CallFamily::ALL[usize::from(settings & FAMILY)];
    let (marks, tokens) = (Cell::new(0_u32), RefCell::new(Vec::new()));
    let format = CallFormat::with_ids(family, |spelling| {
        let id = marks.replace(marks.get() + 1);
        let is_token = (settings >> (FIRST_TOKEN + id)) & 1 == 1;
        is_token.then(|| {
            tokens.borrow_mut().push((spelling.to_owned(), id));
            id
        })
    });
    (format, tokens.into_inner())
}

/// Splits a reply at the marks that are tokens.
fn parts<'t>(reply: &'t str, tokens: &[(String, u32)]) -> Vec<Part<'t>> {
    let (mut parts, mut begin, mut at) = (Vec::new(), 0, 0);
    while let Some(next) = reply[at..].chars().next() {
        match tokens.iter().find(|(mark, _)| reply[at..].starts_with(mark.as_str())) {
            None => at += next.len_utf8(),
            Some((mark, id)) => {
                parts.push(Part::Text(&reply[begin..at]));
                parts.push(Part::Mark(*id));
                at += mark.len();
                begin = at;
            }
        }
    }
    parts.push(Part::Text(&reply[begin..]));
    parts
}

/// Parses a reply in pieces of `size` characters. Texts that follow each other are joined.
fn events(rules: &CallRules, parts: &[Part<'_>], is_shown: bool, size: usize) -> Vec<CallEvent> {
    let (mut parser, mut found) = (CallParser::new(rules.clone()), Vec::new());
    for part in parts {
        match part {
            Part::Mark(id) => add(&mut found, parser.push_token(*id, is_shown).expect("a mark")),
            Part::Text(text) => {
                let mut rest = *text;
                while !rest.is_empty() {
                    let end = rest.char_indices().nth(size).map_or(rest.len(), |(end, _)| end);
                    let (piece, after) = rest.split_at(end);
                    add(&mut found, parser.push(piece));
                    rest = after;
                }
            }
        }
    }
    add(&mut found, parser.finish());
    found
}

fn add(found: &mut Vec<CallEvent>, events: Vec<CallEvent>) {
    for event in events {
        let is_joined = match (found.last_mut(), &event) {
            (Some(CallEvent::Text(text)), CallEvent::Text(more)) => {
                *text += more;
                true
            }
            (
                Some(CallEvent::Arguments { index, text }),
                CallEvent::Arguments { index: next, text: more },
            ) if *index == *next => {
                *text += more;
                true
            }
            _ => false,
        };
        if !is_joined {
            found.push(event);
        }
    }
}

/// Checks that events follow each other as documented. Returns the texts before, between and after
/// the calls.
fn texts(events: &[CallEvent]) -> Vec<String> {
    let (mut texts, mut text) = (Vec::new(), String::new());
    let (mut begun, mut ids) = (0, HashSet::new());
    // Id, name and arguments so far.
    let mut open: Option<(&str, &str, String)> = None;
    for event in events {
        match event {
            CallEvent::Text(more) => {
                assert!(open.is_none() && !more.is_empty(), "text within a call: {more:?}");
                text += more;
            }
            CallEvent::Begin { index, id, name } => {
                assert!(open.is_none() && *index == begun && begun < CALLS_MAX, "call {index} begins");
                assert!(ids.insert(id), "{id} comes twice");
                open = Some((id.as_str(), name.as_str(), String::new()));
                begun += 1;
            }
            CallEvent::Arguments { index, text: more } => {
                let (_, _, arguments) = open.as_mut().expect("a call");
                assert!(index + 1 == begun && !more.is_empty(), "arguments of call {index}");
                *arguments += more;
            }
            CallEvent::End { index, call } => {
                assert_eq!(index + 1, begun);
                expect_call(call, open.take().expect("a call"));
                texts.push(std::mem::take(&mut text));
            }
            CallEvent::Dropped { index } => {
                assert!(open.take().is_some() && index + 1 == begun, "call {index} is dropped");
            }
        }
    }
    assert!(open.is_none(), "a call does not end");
    texts.push(text);
    texts
}

/// Checks a call against its id, its name and the text of its arguments.
fn expect_call(call: &ToolCall, (id, name, arguments): (&str, &str, String)) {
    assert_eq!((call.id.as_str(), call.name.as_str()), (id, name));
    let streamed: Value = serde_json::from_str(&arguments).expect("JSON");
    assert!(streamed.is_object() && streamed == call.arguments, "{arguments} for {}", call.arguments);
}

/// Checks that the texts before, between and after the calls are those of the reply.
fn expect_unchanged(reply: &str, texts: &[String]) {
    let [first, between @ .., last] = texts else {
        assert_eq!(texts, [reply], "no call");
        return;
    };
    assert!(reply.starts_with(first) && reply.ends_with(last), "{texts:?} of {reply:?}");
    let (mut at, end) = (first.len(), reply.len() - last.len());
    for text in between {
        let found = reply.get(at..end).and_then(|rest| rest.find(text));
        at += found.unwrap_or_else(|| panic!("{text:?} is not between the calls of {reply:?}")) + text.len();
    }
    assert!(at < end, "the last call has no text: {texts:?} of {reply:?}");
}
