use std::io::IsTerminal;
use std::path::Path;

use serde_json::json;
use shardwright::{ChatPart, DoneReason, ErrorKind, GenerationEvent, GenerationStatistics, Session};
use shardwright_build::units;
use shardwright_runtime::Move;

use super::draft::{Drafts, drafts};
use super::parts::{expect_one_input, parts};
use super::{
    PROMPT_BYTES_MAX, json as json_line, open, say_each, say_notices_and_of_text, say_verified,
    standard_input, write,
};
use crate::arguments::{Format, RunArguments, Thinking};
use crate::outcome::{Failure, Outcome};
use crate::{interrupt, views};

/// Generates one reply to `--prompt`, or in a chat without a prompt one reply per line of standard
/// input.
pub fn run(arguments: &RunArguments, format: Format) -> Result<Outcome, Failure> {
    expect_one_input(arguments)?;
    let asked = &arguments.drafts.drafts;
    let model =
        open(&arguments.target, &arguments.execution, &arguments.checkpoint, &arguments.bundled, asked)?;
    say_notices_and_of_text(&model, arguments.quiet)?;
    let mut session = model.session()?;
    configure(&mut session, arguments)?;
    let drafts = drafts(asked, &model, &arguments.target, &arguments.execution, arguments.quiet)?;
    match drafts {
        Drafts::Planned => {}
        Drafts::Off => session.set_speculation(None)?,
        Drafts::These(speculation) => session.set_speculation(Some(*speculation))?,
    }
    let reply_to_end = session.cancel_handle();
    interrupt::call(move || reply_to_end.cancel());

    session.picture_tokens = arguments.soft_tokens;
    let seen = !arguments.image.is_empty() || !arguments.audio.is_empty();
    let implied = seen
        || arguments.system.is_some()
        || arguments.thinking.is_some()
        || arguments.control_tokens_in_text;
    let chats = arguments.chat || implied || (model.has_chat_template() && !arguments.raw);
    // Piped text is one prompt. With `--chat`, each of its lines is a turn.
    let prompt = match &arguments.prompt {
        None if !chats || !(arguments.chat || std::io::stdin().is_terminal()) => Some(prompt_from_stdin()?),
        prompt => prompt.clone(),
    };
    if !chats {
        let text = prompt.unwrap_or_default();
        return reply(&mut session, Turn::Text(&text), arguments, format).map(outcome_of);
    }
    if let Some(system) = &arguments.system {
        session.system(system);
    }
    match &prompt {
        Some(prompt) if seen => {
            let turn = Turn::Parts(parts(prompt, arguments)?);
            let reason = reply(&mut session, turn, arguments, format)?;
            // The turn itself opens the towers.
            say_each(&model.report().notices_of_towers, arguments.quiet);
            let verified = model.report().verified_towers;
            verified.iter().for_each(|(pass, verified)| {
                say_verified(&format!("the tower of a {pass}: "), verified, arguments.quiet);
            });
            Ok(outcome_of(reason))
        }
        Some(prompt) => reply(&mut session, Turn::Chat(prompt), arguments, format).map(outcome_of),
        None => super::chat::talk(&mut session, &model, arguments, format),
    }
}

/// Reads the prompt from standard input. The final line end belongs to the file or `echo`, not to
/// the prompt.
fn prompt_from_stdin() -> Result<String, Failure> {
    if std::io::stdin().is_terminal() {
        views::say("reading the prompt from the terminal: end it with Ctrl-D, or use --prompt or --chat");
    }
    let mut prompt = standard_input(PROMPT_BYTES_MAX)?;
    if prompt.ends_with('\n') {
        prompt.pop();
        if prompt.ends_with('\r') {
            prompt.pop();
        }
    }
    Ok(prompt)
}

/// Returns the outcome of a reply. A reply that was stopped is not a success.
fn outcome_of(reason: DoneReason) -> Outcome {
    match reason {
        DoneReason::Cancelled => Outcome::Interrupted,
        _ => Outcome::Done,
    }
}

/// Largest number of tokens of a reply if neither the command nor the checkpoint has a limit.
const TOKENS: usize = 512;

/// The input of a reply.
pub enum Turn<'t> {
    /// A user's turn in a conversation.
    Chat(&'t str),
    /// A user's turn with pictures and sounds.
    Parts(Vec<ChatPart>),
    /// A text to continue.
    Text(&'t str),
}

fn configure(session: &mut Session, arguments: &RunArguments) -> Result<(), Failure> {
    let sampling = &mut session.options.sampling;
    if arguments.greedy {
        sampling.do_sample = false;
    }
    if arguments.temperature.is_some()
        || arguments.top_k.is_some()
        || arguments.top_p.is_some()
        || arguments.min_p.is_some()
    {
        sampling.do_sample = true;
    }
    let set = |field: &mut f32, value: Option<f32>| *field = value.unwrap_or(*field);
    set(&mut sampling.temperature, arguments.temperature);
    set(&mut sampling.top_p, arguments.top_p);
    set(&mut sampling.min_p, arguments.min_p);
    set(&mut sampling.repetition_penalty, arguments.repetition_penalty);
    sampling.top_k = arguments.top_k.unwrap_or(sampling.top_k);
    sampling.seed = arguments.seed.unwrap_or(sampling.seed);
    if sampling.is_greedy() {
        let unused = [
            ("--top-k", arguments.top_k.is_some()),
            ("--top-p", arguments.top_p.is_some()),
            ("--min-p", arguments.min_p.is_some()),
            ("--seed", arguments.seed.is_some()),
        ];
        if let Some((name, _)) = unused.into_iter().find(|(_, asked)| *asked) {
            return Err(Failure::Refused {
                kind: ErrorKind::Argument,
                message: format!("{name} has no effect, because the likeliest token is always chosen"),
                help: format!("leave {name} out, or sample with --temperature above 0"),
            });
        }
    }
    let most = arguments.max_tokens.map(|most| most as usize);
    let usual = (!session.has_length_limit()).then_some(TOKENS);
    session.options.max_tokens = most.or(session.options.max_tokens).or(usual);
    session.add_stop_strings(&arguments.stop)?;
    match arguments.thinking {
        None => {}
        Some(Thinking::Off) => session.set_thinking(false)?,
        Some(Thinking::On(most)) => {
            session.set_thinking(true)?;
            session.options.max_thought_tokens = most;
        }
    }
    session.template.control_tokens_in_text = arguments.control_tokens_in_text;
    Ok(())
}

/// Streams one reply: the text to standard output as it arrives, statistics to standard error.
/// Returns why it ended.
pub fn reply(
    session: &mut Session,
    turn: Turn<'_>,
    arguments: &RunArguments,
    format: Format,
) -> Result<DoneReason, Failure> {
    let moved_before = session.placement().moves.len();
    let ended = stream(session, turn, arguments, format);
    let moves = session.placement().moves.split_off(moved_before);
    if format == Format::Text && ended.is_ok() {
        write(b"\n")?;
    }
    for moved in &moves {
        views::say(&move_notice(moved));
    }
    let Replied { text, thoughts, reason, statistics } = ended?;
    if format == Format::Json {
        let done = json!({
            "done": reason,
            "reply": text,
            "thoughts": thoughts,
            "statistics": in_seconds(&statistics),
            "moves": moves,
        });
        write(json_line(&done)?.as_bytes())?;
    }
    if !arguments.quiet && format == Format::Text {
        views::say(&summary(&reason, &statistics));
    }
    Ok(reason)
}

/// A complete reply.
struct Replied {
    text: String,
    thoughts: String,
    reason: DoneReason,
    statistics: GenerationStatistics,
}

/// Returns counts, and times as plain numbers.
fn in_seconds(statistics: &GenerationStatistics) -> serde_json::Value {
    json!({
        "prompt_tokens": statistics.prompt_tokens,
        "reused_tokens": statistics.reused_tokens,
        "run_tokens": statistics.run_tokens,
        "recomputed_tokens": statistics.recomputed_tokens,
        "generated_tokens": statistics.generated_tokens,
        "thought_tokens": statistics.thought_tokens,
        "parts_seconds": statistics.parts_time.as_secs_f64(),
        "prompt_seconds": statistics.prompt_time.as_secs_f64(),
        "decode_seconds": statistics.decode_time.as_secs_f64(),
        "first_token_seconds": statistics.time_to_first_token.as_secs_f64(),
        "steps": statistics.speculation.steps,
        "drafted_tokens": statistics.speculation.drafted,
        "accepted_tokens": statistics.speculation.accepted,
        "draft_seconds": statistics.speculation.draft_time.as_secs_f64(),
    })
}

/// Writes a reply as it arrives, and returns why it ended.
fn stream(
    session: &mut Session,
    turn: Turn<'_>,
    arguments: &RunArguments,
    format: Format,
) -> Result<Replied, Failure> {
    let mut reply = match turn {
        Turn::Chat(text) => session.chat(text)?,
        Turn::Parts(parts) => {
            let mut watch = views::Progress::new("reading", Path::new("pictures and sounds"));
            session.chat_parts_watched(parts, &mut watch)?
        }
        Turn::Text(text) => session.complete(text)?,
    };
    let mut said = String::new();
    let mut thoughts = views::Thoughts::default();
    let mut flow = views::Flow::on_stdout();
    let mut ended = None;
    for event in reply.by_ref() {
        match (event?, format) {
            (GenerationEvent::TextDelta { text }, format) => {
                thoughts.end();
                match format {
                    Format::Text => write(flow.push(&text).as_bytes())?,
                    Format::Json => write(json_line(&json!({ "text": text }))?.as_bytes())?,
                };
                said += &text;
            }
            (GenerationEvent::ThoughtDelta { text }, Format::Text) if arguments.quiet => drop(text),
            (GenerationEvent::ThoughtDelta { text }, Format::Text) => thoughts.show(&text),
            (GenerationEvent::ThoughtDelta { text }, Format::Json) => {
                write(json_line(&json!({ "thought": text }))?.as_bytes())?;
            }
            (GenerationEvent::Token { id }, Format::Json) => {
                write(json_line(&json!({ "token": id }))?.as_bytes())?;
            }
            (GenerationEvent::Done { reason, statistics }, _) => ended = Some((reason, statistics)),
            (GenerationEvent::Token { .. }, Format::Text) => {}
            (GenerationEvent::DraftDropped { draft }, _) if arguments.target.strict => {
                return Err(Failure::Refused {
                    kind: ErrorKind::Strict,
                    message: draft.because,
                    help: format!("{}, or leave --strict out", draft.help),
                });
            }
            (GenerationEvent::DraftDropped { draft }, Format::Json) => {
                write(json_line(&json!({ "draft_dropped": draft }))?.as_bytes())?;
            }
            (GenerationEvent::DraftDropped { draft }, Format::Text) => {
                views::say(&format!(
                    "fallback: {}; the reply continues without it. help: {}",
                    draft.because, draft.help
                ));
            }
        }
    }
    thoughts.end();
    write(flow.end().as_bytes())?;
    let thoughts = reply.thoughts().to_owned();
    let Some((reason, statistics)) = ended else {
        return Err(Failure::Refused {
            kind: ErrorKind::Internal,
            message: "the reply ended without a reason".to_owned(),
            help: "run it again with `-vv` and report the output".to_owned(),
        });
    };
    Ok(Replied { text: said, thoughts, reason, statistics })
}

/// Returns a notice that is printed even without statistics: part of the reply was computed
/// elsewhere than planned.
fn move_notice(moved: &Move) -> String {
    let to: Vec<String> = moved.to.iter().map(ToString::to_string).collect();
    let mut text = format!(
        "fallback: shard {} failed on {} at token {}; resumed on {}",
        moved.shard,
        moved.from,
        moved.tokens,
        to.join(", ")
    );
    if let Some(seconds) = moved.seconds_to_catch_up {
        text += &format!(" within {seconds:.2} s");
    }
    text += &format!(": {}", moved.error);
    for passed in &moved.passed_over {
        text += &format!("; passed over: {passed}");
    }
    text
}

/// Formats `14 prompt tokens at 1230 tokens/s, first token after 12.3 ms, 64 tokens at 346
/// tokens/s, ended by a stop token`.
fn summary(reason: &DoneReason, statistics: &GenerationStatistics) -> String {
    let reason = match reason {
        DoneReason::StopToken { .. } => "ended by a stop token".to_owned(),
        DoneReason::StopText { text } => format!("ended by stop text {text:?}"),
        DoneReason::MaxTokens => "ended by the token limit".to_owned(),
        DoneReason::ContextFull => "ended because the context is full".to_owned(),
        DoneReason::Cancelled => "cancelled".to_owned(),
        DoneReason::Deadline => "ended by the deadline".to_owned(),
    };
    let reused = match statistics.reused_tokens {
        0 => String::new(),
        reused => format!(" ({reused} reused)"),
    };
    let parts = match statistics.parts_time.as_secs_f64() {
        0.0 => String::new(),
        seconds => format!("pictures and sounds took {}, ", units::seconds(seconds)),
    };
    let thoughts = match statistics.thought_tokens {
        0 => String::new(),
        thoughts => format!(" ({thoughts} of thoughts)"),
    };
    let drafted = match statistics.speculation.drafted {
        0 => String::new(),
        drafted => format!(", {} of {drafted} drafted accepted", statistics.speculation.accepted),
    };
    // Reused prompts and the first token have no rate.
    let rate = |rate: f64| match rate > 0.0 {
        true => format!(" at {}", units::tokens_per_second(rate)),
        false => String::new(),
    };
    format!(
        "[{parts}{}{reused}{}, first token after {}, {}{thoughts}{}{drafted}, {reason}]",
        units::count(statistics.prompt_tokens as u64, "prompt token"),
        rate(statistics.prefill_tokens_per_second()),
        units::seconds(statistics.time_to_first_token.as_secs_f64()),
        units::count(statistics.generated_tokens as u64, "token"),
        rate(statistics.decode_tokens_per_second()),
    )
}
