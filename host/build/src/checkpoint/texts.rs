//! The texts on which ranges, moments and losses are measured, encoded for a model.

use std::path::Path;

use shardwright_drafting::{Acceptance, acceptance_of_lookup};
use shardwright_graph::Graph;
use shardwright_models::Checkpoint;
use shardwright_text::{ChatTemplate, Message, RenderOptions, Tokenizer};
use shardwright_vocabulary::{Error, ErrorKind};

use crate::{AcceptedSteps, PlanOptions, Result};

/// The texts that come with the program, written for it: one conversation per line, turns separated
/// by tabs, user first, `\n` for the end of a line.
const TEXTS: [(&str, &str); 5] = [
    ("turns", include_str!("texts/turns.txt")),
    ("code", include_str!("texts/code.txt")),
    ("numbers", include_str!("texts/numbers.txt")),
    ("languages", include_str!("texts/languages.txt")),
    ("long", include_str!("texts/long.txt")),
];

/// A text for measuring plans, one conversation per line as in [`TEXTS`]. It is not used to
/// calibrate ranges or to round weights.
const UNSEEN: &str = include_str!("texts/unseen.txt");

/// Name of [`UNSEEN`] in reports.
pub(super) const UNSEEN_NAME: &str = "built-in text (unseen)";

/// How much text is used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// Approximate number of tokens of all conversations.
    pub tokens: usize,
    /// Largest number of tokens of one conversation. Longer ones are cut.
    pub longest: usize,
}

/// Returns the name in reports of the user's file or the built-in texts.
pub(super) fn named(options: &PlanOptions) -> String {
    match &options.calibration_text {
        Some(path) => path.display().to_string(),
        None => {
            let names: Vec<&str> = TEXTS.iter().map(|(name, _)| *name).collect();
            format!("built-in text ({})", names.join(", "))
        }
    }
}

/// Encodes the user's text, or the built-in ones alternately, as token ids. Uses the chat template
/// if there is one, and special tokens.
pub(super) fn conversations(
    checkpoint: &Checkpoint,
    graph: &Graph,
    options: &PlanOptions,
    budget: Budget,
) -> Result<Vec<Vec<u32>>> {
    let own = options.read_calibration_text()?;
    let lines: Vec<&str> = match &own {
        Some(text) => text.lines().collect(),
        None => in_turns(),
    };
    encoded(checkpoint, graph, &lines, budget)
}

/// Encodes the built-in text that plans are measured on, like [`conversations`].
pub(super) fn unseen(checkpoint: &Checkpoint, graph: &Graph, budget: Budget) -> Result<Vec<Vec<u32>>> {
    encoded(checkpoint, graph, &UNSEEN.lines().collect::<Vec<_>>(), budget)
}

fn encoded(checkpoint: &Checkpoint, graph: &Graph, lines: &[&str], budget: Budget) -> Result<Vec<Vec<u32>>> {
    let directory = checkpoint.directory();
    let template = ChatTemplate::from_directory(directory)?;
    let tokenizer = Tokenizer::from_checkpoint(directory)?;
    let mut conversations = Vec::new();
    let mut tokens = 0;
    for line in lines.iter().filter(|line| !line.trim().is_empty()) {
        let turns = turns_of(line);
        let messages = messages_of(&turns);
        let mut ids = match &template {
            Some(template) => {
                let plain = RenderOptions { add_generation_prompt: false, ..RenderOptions::default() };
                template.encode(&tokenizer, &messages, &plain)?
            }
            None => tokenizer.encode(&turns.join("\n"), true)?,
        };
        ids.truncate(budget.longest.min(budget.tokens).min(graph.context as usize));
        tokens += ids.len();
        if !ids.is_empty() {
            conversations.push(ids);
        }
        if tokens >= budget.tokens {
            break;
        }
    }
    if conversations.is_empty() {
        return Err(Error::new(ErrorKind::Invalid, "the calibration text is empty")
            .with_help("pass a text with at least one line"));
    }
    Ok(conversations)
}

/// Measures how often prompt lookup is right in the replies of these conversations.
pub(super) fn accepted(directory: &Path, conversations: &str) -> Result<AcceptedSteps> {
    let template = ChatTemplate::from_directory(directory)?;
    let tokenizer = Tokenizer::from_checkpoint(directory)?;
    let mut found = Acceptance::default();
    for line in conversations.lines().filter(|line| !line.trim().is_empty()) {
        let turns = turns_of(line);
        let messages = messages_of(&turns);
        for reply in (1..turns.len()).step_by(2) {
            let encoded = |end: usize, goes_on: bool| match &template {
                Some(template) => {
                    let options =
                        RenderOptions { add_generation_prompt: goes_on, ..RenderOptions::default() };
                    template.encode(&tokenizer, &messages[..end], &options)
                }
                None => tokenizer.encode(&turns[..end].join("\n"), true),
            };
            let (prompt, whole) = (encoded(reply, true)?, encoded(reply + 1, false)?);
            // A template may write a finished turn differently from the beginning of one.
            let common = prompt.iter().zip(&whole).take_while(|(one, other)| one == other).count();
            found = found.and(&acceptance_of_lookup(&whole[..common], &whole[common..]));
        }
    }
    if found.tokens() == 0 {
        return Err(Error::new(ErrorKind::Invalid, "the text of conversations has no reply")
            .with_help("pass conversations, one a line, with a tab between what was asked and the reply"));
    }
    let steps = |count: &u64| u32::try_from(*count).unwrap_or(u32::MAX);
    Ok(AcceptedSteps { silent: steps(&found.without), accepted: found.accepted.iter().map(steps).collect() })
}

/// Splits a line of conversations into turns. Turns are separated by tabs, and `\n` stands for the
/// end of a line.
pub fn turns_of(line: &str) -> Vec<String> {
    line.split('\t').map(|turn| turn.replace("\\n", "\n")).collect()
}

/// Converts turns to messages, user first.
pub fn messages_of(turns: &[String]) -> Vec<Message> {
    let message = |(index, turn): (usize, &String)| match index % 2 {
        0 => Message::user(turn),
        _ => Message::assistant(turn),
    };
    turns.iter().enumerate().map(message).collect()
}

/// Returns lines of the built-in texts alternately: the first line of each text, then the second of
/// each, so that a short text has parts of all.
fn in_turns() -> Vec<&'static str> {
    let texts: Vec<Vec<&str>> = TEXTS.iter().map(|(_, text)| text.lines().collect()).collect();
    let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
    (0..longest).flat_map(|line| texts.iter().filter_map(move |text| text.get(line).copied())).collect()
}

/// Returns the first turns of the texts that come with the program, as in a line of a calibration
/// text: `\\n` for the end of a line.
pub fn calibration_prompts() -> Vec<&'static str> {
    in_turns().into_iter().filter_map(|line| line.split('\t').next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_every_text_is_a_conversation() {
        let lines = in_turns();
        assert_eq!(lines.len(), TEXTS.iter().map(|(_, text)| text.lines().count()).sum::<usize>());
        for line in lines.iter().copied().chain(UNSEEN.lines()) {
            let turns: Vec<&str> = line.split('\t').collect();
            assert!(turns.len().is_multiple_of(2), "{line}");
            assert!(turns.iter().all(|turn| !turn.trim().is_empty()), "{line}");
        }
        assert!(UNSEEN.lines().all(|line| !lines.contains(&line)));
        // A short text has parts of all.
        for ((name, text), line) in TEXTS.iter().zip(&lines) {
            assert_eq!(text.lines().next(), Some(*line), "{name}");
        }
    }
}
