//! `calibration-text`: calibrates on the model's own replies, because these resemble its inputs in
//! use.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use serde::Serialize;
use shardwright::{ErrorKind, GenerationEvent, SamplingParameters, Session, Watch};
use shardwright_files::output::OutputKind;
use shardwright_files::read_named;

use super::{TEXTS_BYTES_MAX, expect_applicable, interrupted, open, print, say_notices_and_of_text};
use crate::arguments::{CalibrationTextArguments, Format};
use crate::outcome::{Failure, Outcome, io};
use crate::{interrupt, views};

/// The written text. Whether it has the same prompts is checked line by line.
const TEXT: OutputKind = OutputKind { name: "a calibration text", is_earlier: |_| true };

/// Number of successive prompts without a reply after which the command stops.
const SILENT_MOST: usize = 64;

/// The written text.
#[derive(Serialize)]
struct Written {
    file: String,
    /// Number of conversations in the file, and how many of them an earlier run wrote.
    conversations: usize,
    found: usize,
    /// Tokens of the replies that this run drew.
    tokens: u64,
}

/// Draws replies to prompts and appends each to the file as soon as it is complete.
pub fn calibration_text(arguments: &CalibrationTextArguments, format: Format) -> Result<Outcome, Failure> {
    let CalibrationTextArguments { target, execution, checkpoint, bundled, .. } = arguments;
    expect_applicable(target, execution, checkpoint, bundled)?;
    let prompts = prompts(arguments.prompts.as_deref())?;
    let (found, words) = begun(&arguments.output, &prompts)?;
    let model = open(target, execution, checkpoint, bundled, &[])?;
    say_notices_and_of_text(&model, false)?;
    let mut session = model.session()?;
    session.options.max_tokens = Some(arguments.longest as usize);
    let stop = session.cancel_handle();
    interrupt::call(move || stop.cancel());
    let path = || arguments.output.display().to_string();
    let mut file = None;
    let mut progress = views::ProgressLine::new("generating text with", checkpoint);
    // The tokens of replies from an earlier run are counted again.
    let mut tokens = 0;
    for reply in words {
        tokens += model.encode_until(&reply, false, interrupt::happened)?.len() as u64;
    }
    let (there, mut conversations, mut silent) = (tokens, found, 0);
    while tokens < arguments.tokens {
        interrupted("generating text")?;
        progress.progress((tokens * 1000 / arguments.tokens.max(1)) as u32, "generating replies");
        let prompt = &prompts[conversations % prompts.len()];
        session.clear();
        session.options.sampling =
            SamplingParameters::at_temperature(1.0, arguments.seed.wrapping_add(conversations as u64));
        let (reply, count) = reply(&mut session, &prompt.replace("\\n", "\n"))?;
        interrupted("generating text")?;
        let line = match reply.trim().is_empty() {
            true => format!("{prompt}\n"),
            false => format!("{prompt}\t{}\n", reply.replace('\t', " ").replace('\n', "\\n")),
        };
        let file = match &mut file {
            Some(file) => file,
            none => {
                let append = OpenOptions::new().create(true).append(true).open(&arguments.output);
                none.insert(append.map_err(io(path()))?)
            }
        };
        file.write_all(line.as_bytes()).map_err(io(path()))?;
        silent = if count == 0 { silent + 1 } else { 0 };
        if silent == SILENT_MOST {
            return Err(Failure::Refused {
                kind: ErrorKind::Unsupported,
                message: format!("the model gave empty replies to {silent} prompts in a row"),
                help: "pass other prompts with `--prompts`".to_owned(),
            });
        }
        tokens += count;
        conversations += 1;
    }
    drop(progress);
    let written = Written { file: path(), conversations, found, tokens: tokens - there };
    print(format, &written, |written| {
        let Written { file, conversations, found, tokens } = written;
        let continued = if *found > 0 { format!(", {found} from an earlier run") } else { String::new() };
        format!("{file}: {conversations} conversations{continued}; {tokens} tokens generated\n")
    })
}

/// Returns the prompts as in a line of the text.
fn prompts(file: Option<&Path>) -> Result<Vec<String>, Failure> {
    let Some(file) = file else {
        return Ok(shardwright::calibration_prompts().into_iter().map(str::to_owned).collect());
    };
    let text = String::from_utf8(read_named(file, TEXTS_BYTES_MAX)?).map_err(|_| Failure::Refused {
        kind: ErrorKind::Invalid,
        message: format!("{} is not UTF-8", file.display()),
        help: "write one prompt per line, in UTF-8".to_owned(),
    })?;
    let lines = text.lines().map(|line| line.replace('\t', " "));
    let prompts: Vec<String> = lines.filter(|line| !line.trim().is_empty()).collect();
    if prompts.is_empty() {
        return Err(Failure::Refused {
            kind: ErrorKind::Invalid,
            message: format!("{} has no prompts", file.display()),
            help: "write one prompt per line".to_owned(),
        });
    }
    Ok(prompts)
}

/// Returns the number of conversations that an earlier run wrote, and their replies. Removes an
/// incomplete last line.
fn begun(path: &Path, prompts: &[String]) -> Result<(usize, Vec<String>), Failure> {
    if path.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        return Ok((0, Vec::new()));
    }
    TEXT.expect_at(path)?;
    let text = read_named(path, TEXTS_BYTES_MAX)?;
    let other = || Failure::Refused {
        kind: ErrorKind::Argument,
        message: format!("{} already exists and was not made from these prompts", path.display()),
        help: "choose another file, or pass the same prompts as before".to_owned(),
    };
    let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    let lines = std::str::from_utf8(&text[..whole]).map_err(|_| other())?;
    let mut replies = Vec::new();
    let mut count = 0;
    for (line, prompt) in lines.lines().zip(prompts.iter().cycle()) {
        let (first, reply) = line.split_once('\t').unwrap_or((line, ""));
        if first != prompt {
            return Err(other());
        }
        replies.push(reply.replace("\\n", "\n"));
        count += 1;
    }
    let begins = |prompt: &String| {
        prompt.as_bytes().starts_with(&text[whole..]) || text[whole..].starts_with(prompt.as_bytes())
    };
    if whole < text.len() {
        if !begins(&prompts[count % prompts.len()]) {
            return Err(other());
        }
        let file = OpenOptions::new().write(true).open(path).map_err(io(path.display().to_string()))?;
        file.set_len(whole as u64).map_err(io(path.display().to_string()))?;
    }
    Ok((count, replies))
}

/// Returns the model's reply to a prompt, and its number of tokens.
fn reply(session: &mut Session, prompt: &str) -> Result<(String, u64), Failure> {
    let (mut said, mut tokens) = (String::new(), 0);
    for event in session.chat(prompt)? {
        match event? {
            GenerationEvent::TextDelta { text } | GenerationEvent::ThoughtDelta { text } => said += &text,
            GenerationEvent::Token { .. } => tokens += 1,
            // Without tools there are no calls.
            GenerationEvent::ToolCallBegin { .. }
            | GenerationEvent::ToolCallArguments { .. }
            | GenerationEvent::ToolCall { .. }
            | GenerationEvent::ToolCallDropped { .. }
            | GenerationEvent::DraftDropped { .. }
            | GenerationEvent::Done { .. } => {}
        }
    }
    Ok((said, tokens))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn prompts_are_lines_of_utf_8_and_there_is_one_at_least() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("prompts.txt");
        for (bytes, words) in [(&b" \n\n"[..], "has no prompts"), (b"caf\xe9\n", "is not UTF-8")] {
            fs::write(&path, bytes).unwrap();
            let Some(Failure::Refused { kind, message, .. }) = prompts(Some(&path)).err() else {
                panic!("no `{words}`")
            };
            assert!(kind == ErrorKind::Invalid && message.contains(words), "{message}");
        }
    }

    #[test]
    fn a_text_that_was_begun_is_continued_and_another_s_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("own.txt");
        let prompts = ["What?".to_owned(), "How?".to_owned()];
        let begun = |text: &str| {
            fs::write(&path, text).unwrap();
            begun(&path, &prompts)
        };
        let whole = "What?\tThis.\nHow?\nWhat?\tThat\\nway.\n";
        let (count, replies) = begun(whole).ok().unwrap();
        assert_eq!((count, &replies[..]), (3, &["This.".into(), String::new(), "That\nway.".into()][..]));
        for end in ["H", "How?", "How?\tSo to sp"] {
            assert_eq!(begun(&format!("{whole}{end}")).ok().unwrap().0, 3);
            assert_eq!(fs::read_to_string(&path).unwrap(), whole);
        }
        for other in ["Why?\tSo.\n", "letters of another kind", "What?\tThis.\nWhy"] {
            assert!(begun(other).is_err(), "{other}");
            assert_eq!(fs::read_to_string(&path).unwrap(), other);
        }
        #[cfg(unix)]
        {
            let link = folder.path().join("link");
            std::os::unix::fs::symlink(&path, &link).unwrap();
            fs::write(&path, whole).unwrap();
            let refused = super::begun(&link, &prompts).err();
            let says = |error: &shardwright::Error| error.to_string().contains("a symbolic link");
            assert!(matches!(refused, Some(Failure::Library(error)) if says(&error)));
        }
    }
}
