use serde_json::{Value, json};
use shardwright_runtime::{SavedState, SavedStates, Storage};
use shardwright_text::ToolCall;

use super::*;
use crate::turns::{Role, TurnPart};

const CONTEXT: u64 = 16;
const WIDTH: u64 = 2;

/// Returns a file with two turns, a picture in the history, and states of one layer.
fn file() -> Vec<u8> {
    file_of(json!([
        { "role": "user", "parts": [{ "seen": 0 }, { "text": "what?" }] },
        { "role": "assistant", "parts": [{ "thought": "hm" }, { "text": "a bug" }] },
    ]))
}

fn states() -> SavedStates {
    let state = SavedState { storage: Storage::F32, capacity: 16, window: 16, row_bytes: 4 };
    SavedStates { filled: 5, high_water: 6, states: vec![state] }
}

fn head(turns_bytes: u64) -> Head {
    let begins = vec![1];
    Head {
        saved_by: "0.1.0".to_owned(),
        model: "toy".to_owned(),
        vocabulary: Digest::of(b"vocabulary"),
        tables: Some(Digest::of(b"tables")),
        plan: "plan".to_owned(),
        engine: Some(Digest::of(b"engine")),
        tokens: 6,
        turns_bytes,
        parts: vec![PartHead { sense: SavedSense::Picture, origin: Digest::of(b"picture"), rows: 3, begins }],
        states: StatesHead::Saved(states()),
    }
}

fn file_of(turns: Value) -> Vec<u8> {
    let turns = serde_json::to_vec(&turns).unwrap();
    file_with(&head(turns.len() as u64), &turns, &[0.5; 6])
}

fn file_with(head: &Head, turns: &[u8], rows: &[f32]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut writer = Writer::begin(&mut file, head, &[1, 9, 9, 9, 4, 5], turns).unwrap();
    writer.rows(rows).unwrap();
    std::io::Write::write_all(&mut writer, &[7; 20]).unwrap();
    let bytes = writer.finish().unwrap();
    assert_eq!(bytes, file.len() as u64);
    file
}

fn read(bytes: &[u8]) -> Result<(usize, usize)> {
    inspect(bytes, bytes.len() as u64, CONTEXT, WIDTH)
}

fn refused(bytes: &[u8], kind: ErrorKind, words: &str) {
    let error = read(bytes).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(words), "no `{words}`: {error}");
    assert!(error.help().is_some(), "{error}");
}

/// Returns a file with a changed head. Its other lengths stay.
fn with_head(change: impl FnOnce(&mut Head)) -> Vec<u8> {
    let turns = b"[]";
    let mut head = head(turns.len() as u64);
    change(&mut head);
    file_with(&head, turns, &[0.5; 6])
}

#[test]
fn a_complete_file_is_read() {
    assert_eq!(read(&file()).unwrap(), (2, 6));
    let whole = file();
    let mut reader = Reader::new(&whole[..]);
    let (found, _) = reader.head().unwrap();
    assert_eq!((found.states, found.tokens), (StatesHead::Saved(states()), 6));
}

#[test]
fn files_that_are_not_saved_sessions_are_named() {
    refused(b"", ErrorKind::Invalid, "not a saved session");
    refused(b"GGUF\0\0\0\0 and more", ErrorKind::Invalid, "not a saved session");
    refused(&MAGIC, ErrorKind::Invalid, "expected a prefix of 16 bytes, got 8");
    let mut other_version = file();
    other_version[8] = 2;
    refused(&other_version, ErrorKind::Incompatible, "expected format version 1, got 2");
    let mut long_head = file();
    long_head[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    refused(&long_head, ErrorKind::Invalid, "expected a head of at most");
    let whole = file();
    refused(&whole[..40], ErrorKind::Invalid, "bytes, got 24");
    let mut no_json = file();
    no_json[16] = b'?';
    refused(&no_json, ErrorKind::Invalid, "the head: ");
    let unknown = json!({ "a": 1 }).to_string();
    let bytes = [&MAGIC[..], &1_u32.to_le_bytes(), &(unknown.len() as u32).to_le_bytes(), unknown.as_bytes()];
    refused(&bytes.concat(), ErrorKind::Invalid, "the head: unknown field");
}

#[test]
fn lengths_are_checked_before_anything_is_allocated() {
    let whole = file();
    for length in 0..whole.len() {
        let error = read(&whole[..length]).unwrap_err();
        assert!(error.help().is_some() && error.kind() == ErrorKind::Invalid, "{length}: {error}");
    }
    refused(&[&whole[..], &[0]].concat(), ErrorKind::Invalid, "bytes, got");
    refused(
        &with_head(|head| head.tokens = 17),
        ErrorKind::Context,
        "17 tokens, more than the context of 16",
    );
    refused(&with_head(|head| head.turns_bytes = u64::MAX), ErrorKind::Invalid, "bytes of turns, got");
    refused(&with_head(|head| head.parts[0].rows = 33), ErrorKind::Invalid, "at most 32 rows");
    let many = with_head(|head| {
        head.parts[0].rows = u64::MAX;
        head.parts.push(head.parts[0].clone());
    });
    refused(&many, ErrorKind::Invalid, "at most 32 rows");
    refused(&with_head(|head| head.tokens = 7), ErrorKind::Invalid, "bytes, got");
    let contradicting = with_head(|head| {
        head.states = StatesHead::Saved(SavedStates { filled: 7, ..states() });
    });
    refused(&contradicting, ErrorKind::Invalid, "contradict each other");
    // A file that is shorter than its length claims, because it was truncated meanwhile.
    let error = inspect(&whole[..whole.len() - 5], whole.len() as u64, CONTEXT, WIDTH).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("too early"), "{error}");
    let error = inspect(&whole[..whole.len() - 40], whole.len() as u64, CONTEXT, WIDTH).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("too early"), "{error}");
}

#[test]
fn damage_is_found() {
    let whole = file();
    for at in [whole.len() - 1, whole.len() - 33, whole.len() - 40, whole.len() - 60] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        refused(&damaged, ErrorKind::Invalid, "does not match the content");
    }
}

#[test]
fn the_page_about_security_has_the_limits() {
    use super::format::{HEAD_BYTES_MAX, TURNS_BYTES_MAX};

    let page = include_str!("../../../../../docs/security.md").replace('\n', " ");
    let (head, turns) = (HEAD_BYTES_MAX >> 20, TURNS_BYTES_MAX >> 20);
    assert!(page.contains(&format!("The head has at most {head} MiB and the turns {turns} MiB")));
}

#[test]
fn a_second_key_in_a_calls_arguments_is_refused() {
    let call = |arguments: &str| {
        let part = format!(r#"{{"tool-call":{{"id":"c1","name":"add","arguments":{arguments}}}}}"#);
        let turns = format!(r#"[{{"role":"assistant","parts":[{part}]}}]"#);
        file_with(&head(turns.len() as u64), turns.as_bytes(), &[0.5; 6])
    };
    assert_eq!(read(&call(r#"{"a":1}"#)).unwrap(), (1, 6));
    refused(&call(r#"{"a":1,"a":2}"#), ErrorKind::Invalid, "the turns: a second key `a`");
}

#[test]
fn turns_and_parts_must_fit_together() {
    let user = |part: Value| json!([{ "role": "user", "parts": [part] }]);
    refused(&file_of(json!({})), ErrorKind::Invalid, "the turns: ");
    refused(&file_of(json!([{ "role": "admin", "parts": [] }])), ErrorKind::Invalid, "the turns: ");
    refused(&file_of(user(json!({ "text": "a", "more": 1 }))), ErrorKind::Invalid, "the turns: ");
    refused(&file_of(user(json!({ "thought": "why" }))), ErrorKind::Invalid, "cannot have a thought");
    refused(&file_of(user(json!({ "seen": 1 }))), ErrorKind::Invalid, "the part 1, but the file has 1");
    refused(
        &with_head(|head| head.parts[0].begins = vec![4]),
        ErrorKind::Invalid,
        "does not fit at position 4",
    );
    refused(&with_head(|head| head.parts[0].begins = vec![1, 2]), ErrorKind::Invalid, "does not fit");
    let begins = vec![u64::MAX];
    refused(&with_head(|head| head.parts[0].begins = begins), ErrorKind::Invalid, "does not fit");
    let bytes = file_with(&head(2), b"[]", &[0.5, 0.5, f32::NAN, 0.5, 0.5, 0.5]);
    refused(&bytes, ErrorKind::Invalid, "soft row 1 ");
}

#[test]
fn turns_are_read_as_they_were() {
    let arguments = json!({ "town": "Bern", "days": [1, 2.5, null] });
    let call = ToolCall { id: "1".to_owned(), name: "weather".to_owned(), arguments };
    let result = TurnPart::ToolResult {
        id: "1".to_owned(),
        name: "weather".to_owned(),
        content: "cold <|turn>".to_owned(),
    };
    let turns = [
        Turn::system("Be brief."),
        Turn::user("Weather?"),
        Turn::new(Role::Assistant, [TurnPart::Thought("a tool".to_owned()), TurnPart::ToolCall(call)]),
        Turn::new(Role::Tool, [result]),
        Turn::assistant("Cold."),
    ];
    let json = saved_turns(&turns, Vec::new()).unwrap();
    let saved: Vec<SavedTurn> = serde_json::from_slice(&json).unwrap();
    let found: Vec<Turn> =
        saved.into_iter().map(|turn| restored_turn(turn, &[], &mut Vec::new()).unwrap()).collect();
    assert_eq!(found, turns);
}

#[test]
fn turns_that_cannot_be_read_again_are_not_saved() {
    let mut arguments = json!(1);
    (0..200).for_each(|_| arguments = json!([arguments.take()]));
    let call = ToolCall { id: "1".to_owned(), name: "f".to_owned(), arguments };
    let deep = [Turn::new(Role::Assistant, [TurnPart::ToolCall(call)])];
    let long = [Turn::user("a".repeat(17 << 20))];
    for (turns, words) in [(&deep[..], "a turn cannot be saved: "), (&long, "more than 16777216")] {
        let error = saved_turns(turns, Vec::new()).unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.help().is_some(), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let mut many = head(2);
    many.parts = vec![many.parts[0].clone(); 40_000];
    let error = Writer::begin(&mut Vec::new(), &many, &[], b"[]").err().unwrap();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("(40000)"), "{error}");
}

#[test]
fn the_first_difference_is_the_reason() {
    let identity =
        ChainIdentity { tables: *Digest::of(b"tables").bytes(), engine: *Digest::of(b"engine").bytes() };
    let reason = |change: &dyn Fn(&mut Head), identity| {
        let mut head = head(2);
        change(&mut head);
        difference(&head, "toy", "plan", identity)
    };
    assert_eq!(reason(&|_| (), Some(identity)), None);
    let model = |saved: &str| RestoreReason::Model { saved: saved.to_owned(), own: "toy".to_owned() };
    let plan = RestoreReason::Plan { saved: "other".to_owned(), own: "plan".to_owned() };
    let left_out = RestoreReason::NotSaved("released".to_owned());
    let released = |head: &mut Head| head.states = StatesHead::LeftOut("released".to_owned());
    type Change<'a> = &'a dyn Fn(&mut Head);
    let changes: [(Change, RestoreReason, &str); 7] = [
        (&|head| head.model = "big".to_owned(), model("big"), "the model `big`, not `toy`"),
        (&|head| head.plan = "other".to_owned(), plan, "the plan other, not plan"),
        (&|head| head.tables = None, model("toy"), "other weights of `toy`"),
        (&|head| head.tables = Some(Digest::of(b"")), model("toy"), "other weights"),
        (&|head| head.engine = Some(Digest::of(b"")), RestoreReason::Engine, "other compiled shards"),
        (&released, left_out, "no KV cache: released"),
        (
            &|head| {
                released(head);
                head.model = "big".to_owned();
            },
            model("big"),
            "the model `big`, not `toy`",
        ),
    ];
    for (change, expected, words) in changes {
        let found = reason(change, Some(identity));
        assert_eq!(found, Some(expected));
        assert!(found.is_some_and(|found| found.to_string().contains(words)), "no `{words}`");
    }
    assert_eq!(reason(&|_| (), None), Some(RestoreReason::Engine));
    let not_loaded = RestoreReason::NotLoaded("lost".to_owned());
    assert_eq!(not_loaded.to_string(), "the KV cache cannot be used: lost");
}
