//! The template engine, configured like Jinja in Hugging Face, with a meter.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use minijinja::machinery::{CompiledTemplate, Instructions, TemplateConfig, eval, make_string_output};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use shardwright_vocabulary::{self as vocabulary, Result};

use super::clock::strftime;
use super::display::text_of;
use super::filters::{self, check_format, foresee_replacement};
use super::meter::{
    CHECK, CHECK_KEPT, Halt, Meter, RENDERED_BYTES_MAX, TICK, TIME_MAX, check_source, is_dict, metered,
};
use super::{operators, strings};
use crate::control_tokens::Marks;

/// Most steps of one rendering. A conversation of a thousand turns needs some hundred thousand.
pub const TEMPLATE_FUEL: u64 = 5_000_000;

/// Compiles `source` and discards the result, to report errors in a template before anything is
/// rendered.
pub(crate) fn check(source: &str, path: &Path) -> Result<()> {
    compile(source, path).map(drop)
}

/// Returns whether `source` reads a variable that it does not set itself.
pub(crate) fn reads(source: &str, variable: &str) -> bool {
    let mut environment = Environment::new();
    let Ok(syntax) = syntax() else { return false };
    environment.set_syntax(syntax);
    let template = environment.template_from_str(source);
    template.is_ok_and(|template| template.undeclared_variables(false).contains(variable))
}

/// Renders `source` with `variables`, whose texts may contain `marks`. The marks remain in the
/// output.
pub(crate) fn render(
    source: &str,
    path: &Path,
    variables: Value,
    now: u64,
    marks: Option<&Arc<Marks>>,
) -> Result<String> {
    render_within(TIME_MAX, source, path, variables, now, marks)
}

pub(crate) fn render_within(
    time: Duration,
    source: &str,
    path: &Path,
    variables: Value,
    now: u64,
    marks: Option<&Arc<Marks>>,
) -> Result<String> {
    let compiled = compile(source, path)?;
    let instructions = metered(&compiled.instructions);
    let blocks: BTreeMap<&str, Instructions<'_>> =
        compiled.blocks.iter().map(|(name, block)| (*name, metered(block))).collect();
    let meter = Arc::new(Meter::new(time));
    let environment = environment(&meter, now, marks);
    let mut rendered = String::new();
    let result = {
        let mut output = make_string_output(&mut rendered);
        eval(&environment, &instructions, variables, &blocks, &mut output, AutoEscape::None).map(drop)
    };
    if let Err(error) = result {
        return Err(failure(&error, meter.take_halt(), path));
    }
    if rendered.len() > RENDERED_BYTES_MAX {
        return Err(exhausted(path, &format!("builds more than {RENDERED_BYTES_MAX} bytes")));
    }
    Ok(rendered)
}

/// Returns the syntax as Hugging Face configures it, with trimming and left-stripping of blocks. By
/// default, Jinja drops the last newline of the source.
fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

fn compile<'source>(source: &'source str, path: &Path) -> Result<CompiledTemplate<'source>> {
    let syntax = syntax().map_err(|error| failure(&error, None, path))?;
    check_source(source, syntax.clone()).map_err(|(line, halt)| match halt {
        Halt::TooLarge { max, unit } => invalid(path, line, &format!("it has more than {max} {unit}")),
        other => stopped(other, path, line),
    })?;
    let config =
        TemplateConfig { syntax_config: syntax, default_auto_escape: Arc::new(|_| AutoEscape::None) };
    CompiledTemplate::new("chat_template", source, &config).map_err(|error| failure(&error, None, path))
}

fn environment(meter: &Arc<Meter>, now: u64, marks: Option<&Arc<Marks>>) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(TEMPLATE_FUEL));
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);

    let (account, kept) = (Arc::clone(meter), marks.cloned());
    environment.set_formatter(move |output, state, value| {
        if value.as_str().is_some() {
            account.charge(value.as_str().map_or(0, str::len))?;
            return minijinja::escape_formatter(output, state, value);
        }
        let text = text_of(value, kept.as_deref()).map_err(|what| account.halt(Halt::Unsupported(what)))?;
        account.charge(text.len() + 24)?;
        output.write_str(&text).map_err(Error::from)
    });
    let account = Arc::clone(meter);
    environment.add_function(CHECK, move |value: Value| account.check(value));
    let account = Arc::clone(meter);
    environment.add_function(CHECK_KEPT, move |value: Value| account.check_kept(value));
    let account = Arc::clone(meter);
    environment.add_function(TICK, move || account.tick());

    let account = Arc::clone(meter);
    environment.add_function("raise_exception", move |message: Value| -> Result<Value, Error> {
        Err(account.halt(Halt::Raised(message.to_string())))
    });
    let account = Arc::clone(meter);
    environment.add_function("strftime_now", move |format: String| {
        strftime(&format, now)
            .map_err(|directive| account.halt(Halt::Unsupported(format!("the date directive `{directive}`"))))
    });

    environment.add_function("joiner", |separator: Option<String>| {
        minijinja_contrib::globals::joiner(separator.map(Value::from))
    });
    filters::add(&mut environment, meter, marks);
    operators::add(&mut environment, meter, marks);
    add_tests(&mut environment);
    let (account, marks) = (Arc::clone(meter), marks.cloned());
    environment.set_unknown_method_callback(move |state, value, method, arguments| {
        method_callback(&account, state, value, method, arguments, marks.as_deref())
    });
    environment
}

/// Adds tests that the engine lacks, or whose result differs in Python.
fn add_tests(environment: &mut Environment<'static>) {
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    // Values with a length and items, including strings, maps and ranges.
    environment.add_test("sequence", |value: &Value| {
        let kinds = [ValueKind::Undefined, ValueKind::String, ValueKind::Seq, ValueKind::Map];
        kinds.contains(&value.kind())
    });
    environment.add_test("callable", |value: &Value| {
        value.kind() == ValueKind::Plain || (value.kind() == ValueKind::Map && !is_dict(value))
    });
}

/// Implements Python's methods.
fn method_callback(
    meter: &Meter,
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    arguments: &[Value],
    marks: Option<&Marks>,
) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        if method == "copy" && value.kind() == ValueKind::Map {
            return Ok(value.clone());
        }
        return strings::list_method(value, method, arguments)
            .unwrap_or_else(|| unknown_method_callback(state, value, method, arguments));
    };
    match method {
        "replace" => {
            let argument = |place: usize| arguments.get(place).and_then(Value::as_str).unwrap_or_default();
            foresee_replacement(meter, text, argument(0), argument(1))?;
        }
        "join" => {
            let items = arguments.first().and_then(Value::len).unwrap_or(RENDERED_BYTES_MAX);
            meter.foresee(items, text.len())?;
            if let Some(items) = arguments.first()
                && items.try_iter()?.any(|item| item.as_str().is_none())
            {
                return Err(Error::new(ErrorKind::InvalidOperation, "`join` needs strings"));
            }
        }
        "format" => check_format(meter, value)?,
        "expandtabs" => meter.foresee(text.matches('\t').count(), strings::TAB_MAX)?,
        _ => {}
    }
    let own = match (marks.filter(|marks| marks.are_in(text)), method) {
        (Some(marks), "strip" | "lstrip" | "rstrip") => {
            let (of,): (Option<&str>,) = minijinja::value::from_args(arguments)?;
            return Ok(Value::from(marks.strip(text, of, method != "rstrip", method != "lstrip")));
        }
        (Some(marks), "startswith" | "endswith" | "count") => {
            strings::method(&marks.without(text), method, arguments)
        }
        _ => strings::method(text, method, arguments),
    };
    own.unwrap_or_else(|| unknown_method_callback(state, value, method, arguments))
}

/// Help for a template with a fault in its source.
const CORRECT: &str =
    "put a corrected chat_template.jinja into the folder of the checkpoint; it takes precedence";

/// Help for a template that failed on a conversation.
const CHECK_MESSAGES: &str = "check the roles and contents of the messages against what the template expects";

/// Adds the place: the template and its line, which is 0 if it is unknown.
fn at_line(error: vocabulary::Error, path: &Path, line: usize) -> vocabulary::Error {
    error.at(format_args!("chat template {}, line {line}", path.display()))
}

fn invalid(path: &Path, line: usize, reason: &str) -> vocabulary::Error {
    at_line(vocabulary::Error::invalid(reason).with_help(CORRECT), path, line)
}

fn unsupported(path: &Path, line: usize, what: &str) -> vocabulary::Error {
    let error = vocabulary::Error::unsupported(format!("unsupported: {what}"));
    at_line(error.with_help(CORRECT), path, line)
}

/// Returns the error of a template that reached a limit of steps, time or size.
fn exhausted(path: &Path, what: &str) -> vocabulary::Error {
    vocabulary::Error::invalid(what)
        .at(format_args!("chat template {}", path.display()))
        .with_help("shorten the conversation; if it is short already, the template is at fault")
}

fn stopped(halt: Halt, path: &Path, line: usize) -> vocabulary::Error {
    match halt {
        Halt::Raised(message) => vocabulary::Error::invalid(format!("conversation refused: {message}"))
            .at(format_args!("chat template {}", path.display()))
            .with_help(CHECK_MESSAGES),
        Halt::TooLarge { max, unit } => exhausted(path, &format!("builds more than {max} {unit}")),
        Halt::TooSlow => exhausted(path, &format!("did not end within {} s", TIME_MAX.as_secs())),
        Halt::Unsupported(what) => unsupported(path, line, &what),
    }
}

/// Classifies the engine's error: stopped by the meter, out of fuel, unsupported, invalid, or
/// failed while running.
fn failure(error: &Error, halt: Option<Halt>, path: &Path) -> vocabulary::Error {
    let line = error.line().unwrap_or(0);
    if let Some(halt) = halt {
        return stopped(halt, path, line);
    }
    let detail = error.detail().unwrap_or_default();
    // An error inside a macro or a filter is the source of the one outside.
    let kind = causes(error).find(|kind| *kind == ErrorKind::OutOfFuel).unwrap_or(error.kind());
    match kind {
        ErrorKind::OutOfFuel => exhausted(path, &format!("did not end within {TEMPLATE_FUEL} steps")),
        ErrorKind::UnknownFilter
        | ErrorKind::UnknownTest
        | ErrorKind::UnknownFunction
        | ErrorKind::UnknownMethod
        | ErrorKind::TemplateNotFound
        | ErrorKind::BadInclude => unsupported(path, line, &unknown(error)),
        ErrorKind::SyntaxError if detail.starts_with("unknown statement") => unsupported(path, line, detail),
        ErrorKind::SyntaxError | ErrorKind::BadEscape => invalid(path, line, &words(error)),
        _ => at_line(vocabulary::Error::invalid(words(error)).with_help(CHECK_MESSAGES), path, line),
    }
}

fn causes(error: &Error) -> impl Iterator<Item = ErrorKind> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    std::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error.downcast_ref::<Error>().map(Error::kind))
    })
    .flatten()
}

/// Returns the unknown item of a template, such as `filter sparkle`.
fn unknown(error: &Error) -> String {
    match (error.kind(), error.detail().and_then(|detail| detail.strip_suffix(" is unknown"))) {
        (ErrorKind::UnknownFunction, Some(name)) => format!("function {name}"),
        (_, Some(what)) => what.to_owned(),
        (_, None) => words(error),
    }
}

/// Returns the engine's message without the position, which the error has separately.
fn words(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}
