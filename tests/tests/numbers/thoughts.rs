//! Thoughts of a model are separate from its answers and are left out of later turns.

use shardwright::{ErrorKind, GenerationEvent, Model, OpenOptions, Session};
use shardwright_tests::checkpoints::{Copy, DEMO_MODEL, TEXT_FIXTURES};
use shardwright_tests::program::search_path;
use shardwright_tests::scripted::scripted;
use shardwright_tests::tree;
use shardwright_text::{ChatTemplate, Message, RenderOptions, Tokenizer};

/// Tokens of the scripted model, each with its successor. The demo model uses Gemma 4's template:
/// `<|channel>Q<channel|>Z<turn|>`.
const PAIRS: [(&str, &str); 4] =
    [("\n", "<|channel>"), ("<|channel>", "Q"), ("Q", "<channel|>"), ("<channel|>", "Z")];

fn open(checkpoint: &Copy) -> (Model, Session) {
    let model = OpenOptions::new().search_path(search_path()).open(checkpoint.path()).expect("a model");
    let session = model.session().expect("a session");
    (model, session)
}

fn prompt_tokens(checkpoint: &Copy, messages: &[Message]) -> usize {
    let template = ChatTemplate::from_directory(checkpoint.path()).expect("read").expect("a template");
    let tokenizer = Tokenizer::from_checkpoint(checkpoint.path()).expect("a tokenizer");
    template.encode(&tokenizer, messages, &RenderOptions::default()).expect("ids").len()
}

#[test]
fn thoughts_are_events_and_no_part_of_later_turns() {
    let checkpoint = scripted(&PAIRS);
    let (_model, mut session) = open(&checkpoint);
    let mut reply = session.chat("hello").expect("a reply");
    let (mut thoughts, mut answer) = (String::new(), String::new());
    for event in reply.by_ref() {
        match event.expect("an event") {
            GenerationEvent::ThoughtDelta { text } => thoughts += &text,
            GenerationEvent::TextDelta { text } => answer += &text,
            _ => {}
        }
    }
    assert_eq!((thoughts.as_str(), answer.as_str(), reply.thoughts()), ("Q", "Z", "Q"));
    let statistics = reply.statistics();
    assert_eq!((statistics.generated_tokens, statistics.thought_tokens), (5, 1));
    drop(reply);

    let answered = [Message::user("hello"), Message::assistant("Z"), Message::user("more")];
    let mut reply = session.chat("more").expect("a reply");
    assert!(reply.by_ref().all(|event| event.is_ok()));
    assert_eq!(reply.statistics().prompt_tokens, prompt_tokens(&checkpoint, &answered));
    drop(reply);
    let kept = &session.messages()[1];
    assert_eq!(kept.content, Message::assistant("Z").content);
    assert_eq!(kept.fields, [("reasoning_content".to_owned(), "Q".into())]);
}

#[test]
fn thinking_is_switched_and_limited() {
    let checkpoint = scripted(&PAIRS);
    let (_model, mut session) = open(&checkpoint);
    let mut prompts = Vec::new();
    for on in [false, true] {
        session.set_thinking(on).expect("a switch");
        let mut reply = session.chat("hello").expect("a reply");
        assert!(reply.by_ref().all(|event| event.is_ok()));
        prompts.push(reply.statistics().prompt_tokens);
        drop(reply);
        session.clear();
    }
    // The additional text is `<|turn>system\n<|think|><turn|>\n`.
    assert!(prompts[1] > prompts[0] + 3, "{prompts:?}");
    session.options.max_thought_tokens = Some(0);
    let mut reply = session.chat("hello").expect("a reply");
    assert!(reply.by_ref().all(|event| event.is_ok()));
    assert_eq!((reply.thoughts(), reply.statistics().generated_tokens), ("", 4));
    assert_eq!(reply.text().expect("text"), "Z");

    let model = OpenOptions::new().search_path(search_path()).open(tree::root().join(TEXT_FIXTURES[0]));
    let mut session = model.expect("a model").session().expect("a session");
    let error = session.set_thinking(true).expect_err("no template");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

/// The rules and limits of the checkpoint apply to replies.
#[test]
fn replies_keep_to_the_generation_settings_of_the_checkpoint() {
    let reply = |settings: &[(&str, serde_json::Value)]| {
        let checkpoint = Copy::of(DEMO_MODEL).json("generation_config.json", |config| {
            settings.iter().for_each(|(name, value)| config[name] = value.clone());
        });
        let (_model, mut session) = open(&checkpoint);
        let mut reply = session.chat("What is politics?").expect("a reply");
        let mut ids = Vec::new();
        for event in reply.by_ref() {
            if let GenerationEvent::Token { id } = event.expect("an event") {
                ids.push(id);
            }
        }
        ids
    };
    let plain = reply(&[]);
    assert!(plain.len() > 8, "{plain:?}");
    let suppressed = reply(&[("suppress_tokens", [plain[2]].into())]);
    assert!(suppressed[..2] == plain[..2] && !suppressed.contains(&plain[2]), "{suppressed:?}");
    let other_begin = reply(&[("begin_suppress_tokens", [plain[0]].into())]);
    assert_ne!(other_begin[0], plain[0]);
    let bad = serde_json::json!([[plain[3], plain[4]]]);
    let avoided = reply(&[("bad_words_ids", bad)]);
    assert!(avoided[..4] == plain[..4] && avoided[4] != plain[4], "{avoided:?}");
    let longer = reply(&[("min_new_tokens", (plain.len() + 5).into())]);
    assert!(longer.len() >= plain.len() + 5, "{} and {}", longer.len(), plain.len());
    assert_eq!(reply(&[("max_new_tokens", 5.into())]), plain[..5]);
    let prompt = prompt_tokens(&Copy::of(DEMO_MODEL), &[Message::user("What is politics?")]);
    assert_eq!(reply(&[("max_length", (prompt + 6).into())]), plain[..6]);
}

/// Qwen 3 thinks unless it is switched off, and Granite's switch has another name.
#[test]
fn the_switch_of_every_template_changes_the_prompt() {
    let granite = Copy::of("tests/fixtures/granite").json("tokenizer_config.json", |config| {
        let template = config["chat_template"].as_str().expect("a template");
        config["chat_template"] = template.replace("enable_thinking", "thinking").into();
    });
    for (checkpoint, switch) in [(Copy::of("tests/fixtures/qwen3"), "enable_thinking"), (granite, "thinking")]
    {
        let (_model, mut session) = open(&checkpoint);
        session.options.max_tokens = Some(1);
        let template = ChatTemplate::from_directory(checkpoint.path()).expect("read").expect("a template");
        let tokenizer = Tokenizer::from_checkpoint(checkpoint.path()).expect("a tokenizer");
        let mut prompts = Vec::new();
        for on in [None, Some(true), Some(false)] {
            let mut options = RenderOptions::default();
            if let Some(on) = on {
                session.set_thinking(on).expect("a switch");
                options = options.with_variable(switch, on);
            }
            let expected = template.encode(&tokenizer, &[Message::user("hello")], &options).expect("ids");
            let mut reply = session.chat("hello").expect("a reply");
            assert!(reply.by_ref().all(|event| event.is_ok()));
            assert_eq!(reply.statistics().prompt_tokens, expected.len(), "{switch}: {on:?}");
            prompts.push(expected.len());
            drop(reply);
            session.clear();
        }
        // The additional text is an empty thought.
        assert_eq!(prompts, [prompts[0], prompts[0], prompts[0] + 6], "{switch}");
    }
}
