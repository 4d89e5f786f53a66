//! A conversation: a turn for each line of standard input, with a line editor if that is a
//! terminal.

use std::io::IsTerminal;

use rustyline::config::Behavior;
use rustyline::error::ReadlineError;
use rustyline::{Config, DefaultEditor};
use shardwright::tools::ModelTools;
use shardwright::{DoneReason, ErrorKind, Model, Role, Session, TurnPart};

use super::InputLines;
use super::run::{Turn, reply};
use crate::arguments::{Format, RunArguments};
use crate::outcome::{self, Failure, Outcome};
use crate::{interrupt, views};

/// Commands to the program, which do not go to the model.
const COMMANDS: [(&str, &str); 4] = [
    ("/clear", "forget the conversation"),
    ("/result", "followed by text: the result of the first call without one"),
    ("/help", "list these commands; Ctrl-C stops a reply, arrow keys recall earlier lines"),
    ("/bye", "quit, like Ctrl-D"),
];

/// Replies to each line until the input ends.
pub fn talk(
    session: &mut Session,
    model: &Model,
    arguments: &RunArguments,
    format: Format,
) -> Result<Outcome, Failure> {
    if std::io::stdin().is_terminal() {
        return at_a_terminal(session, model, arguments, format);
    }
    let (mut lines, mut skipped) = (InputLines::default(), 0);
    while let Some(line) = lines.next()? {
        match line.as_deref().map(str::trim) {
            Ok("") => {}
            Ok(turn) => take_turn(session, turn, arguments, format)?,
            Err(_) => skipped += 1,
        }
        if let Err(failure) = line {
            outcome::report(failure, format);
        }
    }
    match skipped {
        0 => Ok(Outcome::Done),
        lines => Err(Failure::Refused {
            kind: ErrorKind::Invalid,
            message: format!("{lines} of the lines of standard input got no reply"),
            help: "see the errors above".to_owned(),
        }),
    }
}

fn at_a_terminal(
    session: &mut Session,
    model: &Model,
    arguments: &RunArguments,
    format: Format,
) -> Result<Outcome, Failure> {
    // Standard output is reserved for replies, even if it is not a terminal.
    let settings = Config::builder().behavior(Behavior::PreferTerm).auto_add_history(true).build();
    let mut editor = DefaultEditor::with_config(settings).map_err(unreadable)?;
    if !arguments.quiet {
        let described = model.chain().description();
        views::say(&format!(
            "{}, {} tokens of context. /help lists commands, /bye quits.",
            described.model,
            model.chain().context()
        ));
    }
    let mut leaving = false;
    loop {
        let line = editor.readline("> ");
        let interrupted = std::mem::take(&mut leaving);
        match line {
            Ok(line) => match line.trim() {
                "" => {}
                "/bye" | "/exit" | "/quit" => return Ok(Outcome::Done),
                "/clear" => {
                    session.clear();
                    if let Some(system) = &arguments.system {
                        session.system(system);
                    }
                    views::say("the conversation is forgotten");
                }
                "/help" | "/?" => {
                    COMMANDS.iter().for_each(|(name, what)| views::say(&format!("{name:<8}{what}")));
                }
                command if is_command(command) && result_in(command).is_none() => {
                    views::say(&format!("unknown command `{command}`; /help lists the commands"));
                }
                turn => match take_turn(session, turn, arguments, format) {
                    // The error is about this turn only, so the next one may work.
                    Err(failure) if failure.is_of_what_was_asked() => {
                        outcome::report(failure, format);
                    }
                    ended => ended?,
                },
            },
            // The interrupt cleared the line. A second one ends the program.
            Err(ReadlineError::Interrupted) if interrupted => return Ok(Outcome::Interrupted),
            Err(ReadlineError::Interrupted) => {
                views::say("press Ctrl-C again to quit");
                leaving = true;
            }
            Err(ReadlineError::Eof) => return Ok(Outcome::Done),
            Err(error) => return Err(unreadable(error)),
        }
    }
}

fn unreadable(error: ReadlineError) -> Failure {
    outcome::io("the terminal")(match error {
        ReadlineError::Io(error) => error,
        error => std::io::Error::other(error),
    })
}

/// Checks for a slash and one word. A path or a sentence goes to the model.
fn is_command(line: &str) -> bool {
    line.strip_prefix('/').is_some_and(|name| !name.is_empty() && name.chars().all(char::is_alphabetic))
}

/// Handles a line for the model: a turn, or while calls wait for results, the result of one.
fn take_turn(
    session: &mut Session,
    line: &str,
    arguments: &RunArguments,
    format: Format,
) -> Result<(), Failure> {
    let open = open_calls(session);
    let (Some(result), Some(id)) = (result_in(line), open.first()) else {
        if result_in(line).is_some() && !session.tools().is_empty() {
            views::say("no call waits for a result");
            return Ok(());
        }
        return answer(session, line, arguments, format);
    };
    session.tool_result(id, result)?;
    if open.len() > 1 {
        return Ok(());
    }
    session.cancel_handle().reset();
    interrupt::begin();
    reply(session, Turn::Results, arguments, format).map(drop)
}

/// Returns the text after `/result`.
fn result_in(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("/result")?;
    (rest.is_empty() || rest.starts_with(char::is_whitespace)).then(|| rest.trim())
}

/// Returns the ids of the calls of the last reply that have no result.
fn open_calls(session: &Session) -> Vec<String> {
    let turns = session.turns();
    let last = turns.iter().rposition(|turn| turn.role != Role::Tool);
    let Some((reply, results)) = last.and_then(|last| turns[last..].split_first()) else { return Vec::new() };
    let has_result = |id: &str| {
        let parts = results.iter().flat_map(|turn| &turn.parts);
        parts.into_iter().any(|part| matches!(part, TurnPart::ToolResult { id: of, .. } if of == id))
    };
    reply.calls().map(|call| call.id.clone()).filter(|id| !has_result(id)).collect()
}

/// Replies to one turn. If the conversation exceeds the context, its oldest turns are removed, with
/// a notice.
fn answer(
    session: &mut Session,
    turn: &str,
    arguments: &RunArguments,
    format: Format,
) -> Result<(), Failure> {
    // Reset once per turn: an interrupt while old turns are removed is meant for this turn.
    session.cancel_handle().reset();
    interrupt::begin();
    let mut forgotten = 0;
    let ended = loop {
        match reply(session, Turn::Chat(turn), arguments, format) {
            Err(Failure::Library(error))
                if error.kind() == ErrorKind::Context && session.forget_oldest_turn() =>
            {
                forgotten += 1;
            }
            ended => break ended?,
        }
    };
    if ended == DoneReason::ContextFull && session.forget_oldest_turn() {
        forgotten += 1;
    }
    match forgotten {
        0 => {}
        1 => views::say("note: the context was full; the oldest turn is forgotten"),
        turns => views::say(&format!("note: the context was full; the oldest {turns} turns are forgotten")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn results_are_the_text_after_their_command() {
        for (line, result) in [
            ("/result 21 degrees", Some("21 degrees")),
            ("/result {\"a\": 1} ", Some("{\"a\": 1}")),
            ("/result", Some("")),
            ("/results", None),
            ("a /result b", None),
        ] {
            assert_eq!(super::result_in(line), result, "{line}");
        }
    }

    #[test]
    fn commands_are_distinguished_from_text_for_the_model() {
        for (line, command) in
            [("/save", true), ("/etc/passwd", false), ("/", false), ("/help me", false), ("a /b", false)]
        {
            assert_eq!(super::is_command(line), command, "{line}");
        }
    }
}
