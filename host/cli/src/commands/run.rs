use std::io::IsTerminal;
use std::path::Path;

use serde_json::json;
use shardwright::{
    ChatPart, DoneReason, ErrorKind, GenerationEvent, GenerationStatistics, Model, Session, ToolCall,
    ToolDefinition,
};
use shardwright_build::units;
use shardwright_runtime::Move;

use super::draft::{Drafts, drafts};
use super::parts::{expect_one_input, parts};
use super::structure::{constrain, grammar};
use super::{
    PROMPT_BYTES_MAX, json as json_line, open, saved_session, say_each, say_notices_and_of_text,
    say_verified, standard_input, text_of, write,
};
use crate::arguments::{Format, RunArguments, Thinking};
use crate::outcome::{Failure, Outcome};
use crate::{interrupt, views};

/// Generates one reply to `--prompt`, or in a chat without a prompt one reply per line of standard
/// input.
pub fn run(arguments: &RunArguments, format: Format) -> Result<Outcome, Failure> {
    expect_one_input(arguments)?;
    if arguments.raw && arguments.prompt.len() > 1 {
        let what = "`--raw` continues one `--prompt`, but several are given";
        return Err(Failure::Arguments(what.to_owned()));
    }
    let grammar = grammar(arguments)?;
    let asked = &arguments.drafts.drafts;
    let model =
        open(&arguments.target, &arguments.execution, &arguments.checkpoint, &arguments.bundled, asked)?;
    say_notices_and_of_text(&model, arguments.quiet)?;
    let mut session = saved_session::opened(&model, arguments)?;
    configure(&mut session, arguments)?;
    constrain(&mut session, grammar.as_ref(), arguments)?;
    let drafts = drafts(asked, &model, &arguments.target, &arguments.execution, arguments.quiet)?;
    match drafts {
        Drafts::Planned => {}
        Drafts::Off => session.set_speculation(None)?,
        Drafts::These(speculation) => session.set_speculation(Some(*speculation))?,
    }
    let reply_to_end = session.cancel_handle();
    interrupt::call(move || reply_to_end.cancel());

    session.picture_tokens = arguments.soft_tokens;
    let seen = arguments.parts.len() > 1;
    let implied = seen
        || arguments.system.is_some()
        || arguments.thinking.is_some()
        || arguments.tools.is_some()
        || arguments.control_tokens_in_text;
    let chats = arguments.chat || implied || (model.has_chat_template() && !arguments.raw);
    // Piped text is one prompt. With `--chat`, each of its lines is a turn.
    let prompt = match arguments.prompt.first() {
        None if !chats || !(arguments.chat || std::io::stdin().is_terminal()) => Some(prompt_from_stdin()?),
        prompt => prompt.cloned(),
    };
    let replied = match chats {
        true => talk(&mut session, &model, prompt.as_deref(), arguments, format),
        false => {
            let text = prompt.unwrap_or_default();
            reply(&mut session, Turn::Text(&text), arguments, format).map(outcome_of)
        }
    };
    // Complete turns are saved even if a later one failed.
    let saved = match replied.is_err() && session.turns().is_empty() {
        // There is nothing to save, and an earlier session stays.
        true => Ok(()),
        false => saved_session::save(&mut session, arguments),
    };
    let outcome = replied?;
    saved?;
    Ok(outcome)
}

/// Replies in a conversation: to a prompt, or to each line of standard input.
fn talk(
    session: &mut Session,
    model: &Model,
    prompt: Option<&str>,
    arguments: &RunArguments,
    format: Format,
) -> Result<Outcome, Failure> {
    if let Some(system) = &arguments.system {
        session.system(system);
    }
    match prompt {
        Some(_) if arguments.parts.len() > 1 => {
            let turn = Turn::Parts(parts(arguments)?);
            let reason = reply(session, turn, arguments, format)?;
            // The turn itself opens the towers.
            say_each(&model.report().notices_of_towers, arguments.quiet);
            let verified = model.report().verified_towers;
            verified.iter().for_each(|(pass, verified)| {
                say_verified(&format!("the tower of a {pass}: "), verified, arguments.quiet);
            });
            Ok(outcome_of(reason))
        }
        Some(prompt) => reply(session, Turn::Chat(prompt), arguments, format).map(outcome_of),
        None => super::chat::talk(session, model, arguments, format),
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
    /// The results of calls, which the conversation has.
    Results,
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
    if let Some(path) = &arguments.tools {
        session.set_tools(ToolDefinition::list_from_json(&text_of(path)?, &path.display().to_string())?)?;
    }
    session.set_tool_choice(arguments.tool_choice.clone().unwrap_or_default());
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
    if format == Format::Text && ended.as_ref().is_ok_and(|replied| replied.line_is_open) {
        write(b"\n")?;
    }
    for moved in &moves {
        views::say(&move_notice(moved));
    }
    let Replied { text, thoughts, calls, reason, statistics, .. } = ended?;
    if format == Format::Json {
        let done = json!({
            "done": reason,
            "reply": text,
            "thoughts": thoughts,
            "calls": calls.iter().map(call_as_json).collect::<Vec<_>>(),
            "statistics": in_seconds(&statistics),
            "moves": moves,
        });
        write(json_line(&done)?.as_bytes())?;
    }
    if statistics.incomplete {
        views::say(&incomplete(&reason));
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
    calls: Vec<ToolCall>,
    /// Whether the output ends within a line.
    line_is_open: bool,
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
        "forced_tokens": statistics.forced_tokens,
        "repeated_steps": statistics.repeated_steps,
        "incomplete": statistics.incomplete,
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
            let mut watch = views::ProgressLine::new("reading", Path::new("pictures and sounds"));
            session.chat_parts_watched(parts, &mut watch)?
        }
        Turn::Results => session.answer()?,
        Turn::Text(text) => session.complete(text)?,
    };
    let mut output = Output::new();
    let mut ended = None;
    for event in reply.by_ref() {
        match (event?, format) {
            (GenerationEvent::Done { reason, statistics }, _) => ended = Some((reason, statistics)),
            (GenerationEvent::DraftDropped { draft }, _) if arguments.target.strict => {
                return Err(Failure::Refused {
                    kind: ErrorKind::Strict,
                    message: draft.because,
                    help: format!("{}, or leave --strict out", draft.help),
                });
            }
            (event, Format::Text) => output.show(event, arguments.quiet)?,
            (event, Format::Json) => output.write_json(event)?,
        }
    }
    output.end()?;
    let (thoughts, calls) = (reply.thoughts().to_owned(), reply.calls().to_vec());
    let Some((reason, statistics)) = ended else {
        return Err(Failure::Refused {
            kind: ErrorKind::Internal,
            message: "the reply ended without a reason".to_owned(),
            help: "run it again with `-vv` and report the output".to_owned(),
        });
    };
    let Output { said: text, line_is_open, .. } = output;
    Ok(Replied { text, thoughts, calls, line_is_open, reason, statistics })
}

/// The output of one reply.
struct Output {
    said: String,
    thoughts: views::Thoughts,
    flow: views::Flow,
    /// Whether the output needs a line end. True for an empty reply too.
    line_is_open: bool,
    /// Whether the current line has text.
    has_text: bool,
}

impl Output {
    fn new() -> Output {
        Output {
            said: String::new(),
            thoughts: views::Thoughts::default(),
            flow: views::Flow::on_stdout(),
            line_is_open: true,
            has_text: false,
        }
    }

    /// Shows an event to a person. Calls are lines of JSON.
    fn show(&mut self, event: GenerationEvent, quiet: bool) -> Result<(), Failure> {
        match event {
            GenerationEvent::TextDelta { text } => {
                self.thoughts.end();
                write(self.flow.push(&text).as_bytes())?;
                self.said += &text;
                (self.line_is_open, self.has_text) = (true, true);
            }
            GenerationEvent::ThoughtDelta { text } if !quiet => self.thoughts.show(&text),
            GenerationEvent::ToolCall { call, .. } => {
                self.thoughts.end();
                let line_end = if self.has_text { "\n" } else { "" };
                let call = json_line(&call_as_json(&call))?;
                write(format!("{}{line_end}{call}", self.flow.end()).as_bytes())?;
                self.flow = views::Flow::on_stdout();
                (self.line_is_open, self.has_text) = (false, false);
            }
            GenerationEvent::DraftDropped { draft } => {
                views::say(&format!(
                    "fallback: {}; the reply continues without it. help: {}",
                    draft.because, draft.help
                ));
            }
            GenerationEvent::Token { .. }
            | GenerationEvent::ThoughtDelta { .. }
            | GenerationEvent::ToolCallBegin { .. }
            | GenerationEvent::ToolCallArguments { .. }
            | GenerationEvent::ToolCallDropped { .. }
            | GenerationEvent::Done { .. } => {}
        }
        Ok(())
    }

    /// Writes an event as a line of JSON.
    fn write_json(&mut self, event: GenerationEvent) -> Result<(), Failure> {
        let line = match event {
            GenerationEvent::TextDelta { text } => {
                self.said += &text;
                json!({ "text": text })
            }
            GenerationEvent::ThoughtDelta { text } => json!({ "thought": text }),
            GenerationEvent::Token { id } => json!({ "token": id }),
            GenerationEvent::ToolCallBegin { index, id, name } => {
                json!({ "call_begin": { "index": index, "id": id, "name": name } })
            }
            GenerationEvent::ToolCallArguments { index, text } => {
                json!({ "call_arguments": { "index": index, "text": text } })
            }
            GenerationEvent::ToolCall { index, call } => {
                let mut shown = call_as_json(&call);
                shown["index"] = index.into();
                json!({ "call": shown })
            }
            GenerationEvent::ToolCallDropped { index } => json!({ "call_dropped": { "index": index } }),
            GenerationEvent::DraftDropped { draft } => json!({ "draft_dropped": draft }),
            GenerationEvent::Done { .. } => return Ok(()),
        };
        write(json_line(&line)?.as_bytes()).map(drop)
    }

    fn end(&mut self) -> Result<(), Failure> {
        self.thoughts.end();
        write(self.flow.end().as_bytes()).map(drop)
    }
}

fn call_as_json(call: &ToolCall) -> serde_json::Value {
    json!({ "id": call.id, "name": call.name, "arguments": call.arguments })
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

/// Returns the notice of a reply that ended before it matched its grammar.
fn incomplete(reason: &DoneReason) -> String {
    let notice = "incomplete: the reply ended before it matched the grammar".to_owned();
    match reason {
        DoneReason::MaxTokens => notice + ". help: raise --max-tokens, or allow shorter texts in the grammar",
        DoneReason::ContextFull => notice + ". help: use a longer context, or a shorter prompt",
        DoneReason::StopText { text } => notice + &format!(". help: leave --stop {text:?} out"),
        _ => notice,
    }
}

/// Formats `14 prompt tokens at 1230 tokens/s, first token after 12.3 ms, 64 tokens at 346
/// tokens/s, ended by a stop token`.
fn summary(reason: &DoneReason, statistics: &GenerationStatistics) -> String {
    let reason = match reason {
        DoneReason::StopToken { .. } => "ended by a stop token".to_owned(),
        DoneReason::StopText { text } => format!("ended by stop text {text:?}"),
        DoneReason::GrammarEnd => "ended by the grammar".to_owned(),
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
    let forced = match statistics.forced_tokens {
        0 => String::new(),
        forced => format!(", {forced} forced by the grammar"),
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
        "[{parts}{}{reused}{}, first token after {}, {}{thoughts}{}{forced}{drafted}, {reason}]",
        units::count(statistics.prompt_tokens as u64, "prompt token"),
        rate(statistics.prefill_tokens_per_second()),
        units::seconds(statistics.time_to_first_token.as_secs_f64()),
        units::count(statistics.generated_tokens as u64, "token"),
        rate(statistics.decode_tokens_per_second()),
    )
}
