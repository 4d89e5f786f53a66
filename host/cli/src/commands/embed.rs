use serde::Serialize;
use shardwright::{CancelHandle, EmbedOptions};

use super::{TEXTS_BYTES_MAX, interrupted, json, open, say_notices_and_of_text, standard_input, write};
use crate::arguments::{EmbedArguments, Format};
use crate::interrupt;
use crate::outcome::{Failure, Outcome};

#[derive(Serialize)]
struct Embedding<'a> {
    text: &'a str,
    embedding: Vec<f32>,
}

/// Prints one vector per text: with JSON a document per line, otherwise the numbers of a vector on
/// a line.
pub fn embed(arguments: &EmbedArguments, format: Format) -> Result<Outcome, Failure> {
    let model =
        open(&arguments.target, &arguments.execution, &arguments.checkpoint, &arguments.bundled, &[])?;
    say_notices_and_of_text(&model, false)?;
    let options =
        EmbedOptions { prompt_name: arguments.prompt_name.clone(), dimensions: arguments.dimensions };
    let cancel = CancelHandle::default();
    let stop = cancel.clone();
    interrupt::call(move || stop.cancel());
    let read;
    let texts: Vec<&str> = if arguments.texts.is_empty() {
        read = standard_input(TEXTS_BYTES_MAX)?;
        read.lines().collect()
    } else {
        arguments.texts.iter().map(String::as_str).collect()
    };
    let mut embeddings = Vec::new();
    for text in texts {
        interrupted("embedding")?;
        embeddings.push(Embedding { text, embedding: model.embed_until(text, &options, &cancel)? });
    }
    match format {
        Format::Json => write(json(&embeddings)?.as_bytes()),
        Format::Text => {
            let line = |embedding: &Embedding<'_>| {
                let numbers: Vec<String> = embedding.embedding.iter().map(f32::to_string).collect();
                numbers.join(" ") + "\n"
            };
            write(embeddings.iter().map(line).collect::<String>().as_bytes())
        }
    }
}
