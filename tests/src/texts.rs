//! Texts for drafts. The acceptance of a draft depends on the text.
//!
//! * *goldens*: greedy replies of the demo model to the prompts of its goldens
//! * *rewriting*: a held-out passage, then the same passage with every thirteenth token changed
//! * *lists*: lines of one form
//! * *held out*: passages that the demo model was not trained on

use serde_json::Value;
use shardwright_text::Tokenizer;

use crate::tree;

/// Tokens of a prompt before a given text.
const PROMPT: usize = 16;

/// A prompt and its continuation.
#[derive(Clone, Debug)]
pub struct Text {
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// Token ids of the continuation. `None` if the model generates it.
    pub given: Option<Vec<u32>>,
}

/// Returns all groups by name, in the tokens of the demo model.
///
/// # Panics
///
/// If the demo model's files are not as expected.
pub fn groups(tokenizer: &Tokenizer) -> Vec<(&'static str, Vec<Text>)> {
    let encode = |text: &str, special| tokenizer.encode(text, special).expect("tokens");
    let goldens = std::fs::read(tree::root().join("demo-model/goldens.json")).expect("goldens");
    let goldens: Value = serde_json::from_slice(&goldens).expect("JSON");
    let prompts = goldens["prompts"].as_array().expect("prompts").iter();
    let said = prompts.map(|prompt| {
        let text = prompt["text"].as_str().expect("a text").trim_start_matches("<bos>");
        Text { prompt: encode(text, true), given: None }
    });
    let held_out = held_out();
    let vocabulary = tokenizer.vocabulary_size() as u32;
    let rewriting = held_out.iter().take(8).map(|passage| {
        let passage = &passage[..passage.len().min(200)];
        let changed = |(at, &id): (usize, &u32)| if at % 13 == 12 { (id + 1) % vocabulary } else { id };
        Text { prompt: passage.to_vec(), given: Some(passage.iter().enumerate().map(changed).collect()) }
    });
    let lists = ["apple", "king", "program", "river"].map(|what| {
        let line =
            |count: usize| format!("{count}. The {what} of the house was {} and good.\n", count * 7 % 10);
        let text: String = (1..16).map(line).collect();
        let ids = encode(&text, true);
        Text { prompt: ids[..PROMPT].to_vec(), given: Some(ids[PROMPT..].to_vec()) }
    });
    let plain = held_out
        .iter()
        .take(16)
        .map(|passage| Text { prompt: passage[..PROMPT].to_vec(), given: Some(passage[PROMPT..].to_vec()) });
    vec![
        ("goldens", said.collect()),
        ("rewriting", rewriting.collect()),
        ("lists", lists.into()),
        ("held out", plain.collect()),
    ]
}

/// Returns held-out passages of at least 100 tokens.
fn held_out() -> Vec<Vec<u32>> {
    let bytes = std::fs::read(tree::root().join("demo-model/eval.safetensors")).expect("held-out text");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("tensors");
    let integers = |name: &str| -> Vec<u32> {
        let data = tensors.tensor(name).expect("a tensor").data().to_vec();
        data.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes) as u32).collect()
    };
    let (ids, lengths) = (integers("input_ids"), integers("lengths"));
    let width = ids.len() / lengths.len();
    let rows = ids.chunks(width).zip(&lengths);
    rows.filter(|(_, length)| **length >= 100).map(|(row, length)| row[..*length as usize].to_vec()).collect()
}
