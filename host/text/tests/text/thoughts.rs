//! Thoughts and answers of replies, kept apart.

use std::path::PathBuf;

use shardwright_text::{Reply, Stop, StopRules, ThoughtTokens, Tokenizer};

fn tokenizer(folder: &str) -> Tokenizer {
    let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    Tokenizer::from_checkpoint(repository.join(folder)).unwrap()
}

/// Returns thought, answer and reason of a reply with the ids of `text` to a prompt.
fn reply(tokenizer: &Tokenizer, prompt: &str, text: &str) -> (String, String, Option<Stop>) {
    let tokens = ThoughtTokens::of(tokenizer).unwrap();
    let rules = StopRules::new([1, 16]).with_strings(["STOP"]).unwrap();
    let prompt = tokenizer.encode(prompt, false).unwrap();
    let mut reply = Reply::new(tokenizer, &rules, true).with_thoughts(tokens, &prompt);
    let (mut thought, mut answer) = (String::new(), String::new());
    for id in tokenizer.encode(text, false).unwrap() {
        let step = reply.push(id).unwrap();
        (thought, answer) = (thought + &step.thought, answer + &step.text);
        if step.stop.is_some() {
            return (thought, answer, step.stop);
        }
    }
    let step = reply.finish().unwrap();
    (thought + &step.thought, answer + &step.text, None)
}

#[test]
fn thoughts_of_gemma_4_are_no_part_of_the_answer() {
    let tokenizer = tokenizer("demo-model");
    let end = Some(Stop::Id(16));
    let reply = |text: &str| reply(&tokenizer, "", text);
    let expect = |thought: &str, answer: &str| (thought.to_owned(), answer.to_owned(), end.clone());
    for (text, thought, answer) in [
        ("<|channel>Q<channel|>Z<turn|>", "Q", "Z"),
        ("<|channel>thought\nFirst.\nThen.\n<channel|>\n\nBoth.\n<turn|>", "First.\nThen.", "Both.\n"),
        ("<|channel>thought\n<channel|>Z<turn|>", "", "Z"),
        ("A<|channel>Q<channel|>Z<turn|>", "Q", "AZ"),
        ("<|channel>never ended<turn|>", "never ended", ""),
        ("<|channel>STOP<channel|>Z<turn|>", "STOP", "Z"),
        ("no thought<turn|>", "", "no thought"),
        ("a<channel|>b<turn|>", "", "ab"),
    ] {
        assert_eq!(reply(text), expect(thought, answer), "{text}");
    }
    let stopped = (String::from("Q"), String::from("a "), Some(Stop::Text("STOP".into())));
    assert_eq!(reply("<|channel>Q<channel|>a STOP b<turn|>"), stopped);
    // A limit ends a reply within a thought, or after text that may be the start of a stop string.
    assert_eq!(reply("<|channel>thou"), ("thou".into(), String::new(), None));
    assert_eq!(reply("a STO<|channel>Q"), ("Q".into(), "a STO".into(), None));
}

#[test]
fn a_prompt_may_begin_the_thought() {
    let tokenizer = tokenizer("demo-model");
    let continued = reply(&tokenizer, "<|turn>model\n<|channel>thought\n", "Q\n<channel|>Z<turn|>");
    assert_eq!(continued, ("Q".into(), "Z".into(), Some(Stop::Id(16))));
    let closed = reply(&tokenizer, "<|channel>thought\n<channel|>", "Z<turn|>");
    assert_eq!(closed, (String::new(), "Z".into(), Some(Stop::Id(16))));
}

#[test]
fn vocabularies_without_such_tokens_have_no_thoughts() {
    assert_eq!(ThoughtTokens::of(&tokenizer("tests/fixtures/gemma3_text")), None);
}
