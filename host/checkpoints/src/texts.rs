//! The texts on which ranges, moments and losses are measured, encoded for a model.

use std::path::Path;

use shardwright_build::{AcceptedSteps, PlanOptions};
use shardwright_drafting::{Acceptance, acceptance_of_lookup};
use shardwright_graph::Graph;
use shardwright_models::Checkpoint;
use shardwright_text::{ChatTemplate, Message, RenderOptions, Tokenizer};
use shardwright_vocabulary::{Error, ErrorKind, Result, Watch};

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

/// Encodes the user's text, or the built-in ones alternately, as token ids, until `watch` is
/// cancelled.
pub(super) fn conversations(
    checkpoint: &Checkpoint,
    graph: &Graph,
    options: &PlanOptions,
    budget: Budget,
    watch: &dyn Watch,
) -> Result<Vec<Vec<u32>>> {
    let own = options.read_calibration_text()?;
    let lines: Vec<&str> = match &own {
        Some(text) => text.lines().collect(),
        None => in_turns(),
    };
    encoded(checkpoint, graph, &lines, budget, watch)
}

/// Encodes the built-in text that plans are measured on, like [`conversations`].
pub(super) fn unseen(checkpoint: &Checkpoint, graph: &Graph, budget: Budget) -> Result<Vec<Vec<u32>>> {
    encoded(checkpoint, graph, &UNSEEN.lines().collect::<Vec<_>>(), budget, &())
}

fn encoded(
    checkpoint: &Checkpoint,
    graph: &Graph,
    lines: &[&str],
    budget: Budget,
    watch: &dyn Watch,
) -> Result<Vec<Vec<u32>>> {
    let encoder = Encoder::of(checkpoint.directory())?;
    let mut conversations = Vec::new();
    let mut tokens = 0;
    for line in lines.iter().filter(|line| !line.trim().is_empty()) {
        let mut ids = encoder.encode(&turns_of(line), false, watch)?;
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

/// Encodes conversations with the chat template of a checkpoint if there is one, and with special
/// tokens.
struct Encoder {
    template: Option<ChatTemplate>,
    tokenizer: Tokenizer,
}

impl Encoder {
    fn of(directory: &Path) -> Result<Self> {
        let template = ChatTemplate::from_directory(directory)?;
        Ok(Encoder { template, tokenizer: Tokenizer::from_checkpoint(directory)? })
    }

    /// Encodes turns, user first, until `watch` is cancelled. `opens` adds the beginning of the
    /// model's turn.
    fn encode(&self, turns: &[String], opens: bool, watch: &dyn Watch) -> Result<Vec<u32>> {
        if watch.cancelled() {
            return Err(Error::new(ErrorKind::Cancelled, "encoding a text was cancelled"));
        }
        match &self.template {
            Some(template) => {
                let options = RenderOptions { add_generation_prompt: opens, ..RenderOptions::default() };
                let messages = messages_of(turns);
                template.encode_until(&self.tokenizer, &messages, &options, || watch.cancelled())
            }
            None => self.tokenizer.encode_until(&turns.join("\n"), true, || watch.cancelled()),
        }
    }
}

/// Measures how often prompt lookup is right in the replies of these conversations, until `watch`
/// is cancelled.
pub(super) fn accepted(directory: &Path, conversations: &str, watch: &dyn Watch) -> Result<AcceptedSteps> {
    let encoder = Encoder::of(directory)?;
    let mut found = Acceptance::default();
    for line in conversations.lines().filter(|line| !line.trim().is_empty()) {
        let turns = turns_of(line);
        for reply in (1..turns.len()).step_by(2) {
            let prompt = encoder.encode(&turns[..reply], true, watch)?;
            let whole = encoder.encode(&turns[..=reply], false, watch)?;
            // A template may write a finished turn differently from the beginning of one.
            let common = prompt.iter().zip(&whole).take_while(|(one, other)| one == other).count();
            found = found.and(&acceptance_of_lookup(&whole[..common], &whole[common..]));
        }
    }
    if found.tokens() == 0 {
        return Err(Error::new(ErrorKind::Invalid, "the text of conversations has no reply")
            .with_help("pass one conversation per line, with a tab between the user's turn and the reply"));
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

    /// A watch that is cancelled.
    struct Cancelled;

    impl Watch for Cancelled {
        fn cancelled(&self) -> bool {
            true
        }
    }

    #[test]
    fn texts_are_encoded_until_they_are_cancelled() {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model");
        let conversation = "What is faith?\tBelief without evidence.\n";
        assert!(accepted(&demo, conversation, &()).is_ok());
        let error = accepted(&demo, conversation, &Cancelled).err().unwrap();
        assert_eq!((error.kind(), error.message()), (ErrorKind::Cancelled, "encoding a text was cancelled"));
    }

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
