//! The template engine set up as Hugging Face sets up Jinja, on a meter.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use minijinja::machinery::{CompiledTemplate, Instructions, TemplateConfig, eval, make_string_output};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::clock::strftime;
use super::meter::{
    CHECK, CHECK_KEPT, Halt, Meter, RENDERED_BYTES_MAX, TICK, TIME_MAX, check_source, metered,
};
use super::python::{JsonStyle, to_json};
use crate::error::{Result, TextError};
use crate::spelled::Marks;

/// Steps one rendering may take. A conversation of a thousand turns takes some hundred thousand.
pub const TEMPLATE_FUEL: u64 = 5_000_000;

/// Filters of the engine that Jinja does not have, or that are unbounded.
const REMOVED_FILTERS: [&str; 6] = ["chain", "zip", "pprint", "lines", "split", "bool"];

/// Largest count accepted by `batch` and `slice`.
const PIECES_MAX: i64 = 10_000;

/// Widest indentation accepted by `indent` and `tojson`.
const INDENT_MAX: usize = 64;

/// Compiles `source` and discards the result: reports errors in a template before anything is
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

/// Runs `source` over `variables`, whose texts may contain `marks`; they remain in the output.
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
        return Err(too_large(path, RENDERED_BYTES_MAX as u64, "bytes"));
    }
    Ok(rendered)
}

/// Hugging Face sets trimming and left-stripping of blocks; Jinja drops the last newline of the
/// source by default.
fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

fn compile<'source>(source: &'source str, path: &Path) -> Result<CompiledTemplate<'source>> {
    let syntax = syntax().map_err(|error| failure(&error, None, path))?;
    check_source(source, syntax.clone()).map_err(|(line, halt)| match halt {
        Halt::TooLarge { max, unit } => TextError::InvalidTemplate {
            path: path.to_owned(),
            line,
            reason: format!("it has more than {max} {unit}"),
        },
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

    let account = Arc::clone(meter);
    environment.set_formatter(move |output, state, value| {
        account.charge(value.as_str().map_or(24, str::len))?;
        minijinja::escape_formatter(output, state, value)
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

    for name in REMOVED_FILTERS {
        environment.remove_filter(name);
    }
    let (account, kept) = (Arc::clone(meter), marks.cloned());
    environment.add_filter("tojson", move |value: &Value, arguments: Rest<ValueOrKwargs>| {
        tojson(&account, value, arguments, kept.clone())
    });
    if let Some(marks) = marks.cloned() {
        environment.add_filter("trim", move |text: String, of: Option<String>| {
            marks.strip(&text, of.as_deref(), true, true).to_owned()
        });
    }
    add_bounded_filter(
        &mut environment,
        meter,
        "join",
        minijinja::filters::join,
        |meter, value, arguments| {
            let joiner = arguments.first().and_then(Value::as_str).map_or(0, str::len);
            meter.foresee(value.len().unwrap_or(RENDERED_BYTES_MAX), joiner)
        },
    );
    add_bounded_filter(&mut environment, meter, "replace", minijinja::filters::replace, foresee_replacement);
    add_bounded_filter(
        &mut environment,
        meter,
        "indent",
        minijinja::filters::indent,
        |meter, value, arguments| {
            let width = arguments.first().and_then(Value::as_usize).unwrap_or(0);
            meter.foresee(value.as_str().map_or(0, |text| text.lines().count()), width)
        },
    );
    add_bounded_filter(&mut environment, meter, "format", minijinja::filters::format, |meter, value, _| {
        check_format(meter, value)
    });
    add_bounded_filter(&mut environment, meter, "batch", minijinja::filters::batch, check_pieces);
    add_bounded_filter(&mut environment, meter, "slice", minijinja::filters::slice, check_pieces);

    let (account, marks) = (Arc::clone(meter), marks.cloned());
    environment.set_unknown_method_callback(move |state, value, method, arguments| {
        method_callback(&account, state, value, method, arguments, marks.as_deref())
    });
    environment
}

/// Adds a check of the arguments before a filter of the engine. `map` and `select` call it in the
/// same way.
fn add_bounded_filter<F, Rv, Args>(
    environment: &mut Environment<'static>,
    meter: &Arc<Meter>,
    name: &'static str,
    filter: F,
    foresee: fn(&Meter, &Value, &[Value]) -> Result<(), Error>,
) where
    F: minijinja::functions::Function<Rv, Args>,
    Rv: minijinja::value::FunctionResult,
    Args: for<'a> minijinja::value::FunctionArgs<'a>,
{
    // A space in the name keeps templates from calling it directly.
    let engine_name = format!("engine's {name}");
    environment.add_filter(engine_name.clone(), filter);
    let meter = Arc::clone(meter);
    environment.add_filter(
        name,
        move |state: &mut State<'_, '_>,
              value: Value,
              arguments: Rest<ValueOrKwargs>|
              -> Result<Value, Error> {
            let arguments = arguments.into_values();
            foresee(&meter, &value, &arguments)?;
            let mut all = vec![value];
            all.extend(arguments.iter().cloned());
            state.apply_filter(&engine_name, &all)
        },
    );
}

fn foresee_replacement(meter: &Meter, value: &Value, arguments: &[Value]) -> Result<(), Error> {
    let text = value.as_str().unwrap_or_default();
    let from = arguments.first().and_then(Value::as_str).unwrap_or_default();
    let to = arguments.get(1).and_then(Value::as_str).map_or(0, str::len);
    let times = if from.is_empty() { text.len() + 1 } else { text.matches(from).count() };
    meter.foresee(times, to)
}

/// Widths and precisions beyond four digits would generate text from nothing, and `*` hides them.
fn check_format(meter: &Meter, format: &Value) -> Result<(), Error> {
    let mut digits = 0;
    for byte in format.as_str().unwrap_or_default().bytes() {
        digits = if byte.is_ascii_digit() { digits + 1 } else { 0 };
        if digits > 4 || byte == b'*' {
            return Err(meter.too_large());
        }
    }
    Ok(())
}

fn check_pieces(meter: &Meter, _: &Value, arguments: &[Value]) -> Result<(), Error> {
    match arguments.first().and_then(Value::as_i64) {
        Some(count) if count > PIECES_MAX => Err(meter.too_large()),
        _ => Ok(()),
    }
}

/// Python's methods. `str.removeprefix` and `removesuffix` are newer than the compatibility table.
fn method_callback(
    meter: &Meter,
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    arguments: &[Value],
    marks: Option<&Marks>,
) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return unknown_method_callback(state, value, method, arguments);
    };
    match method {
        "replace" => foresee_replacement(meter, value, arguments)?,
        "join" => {
            let items = arguments.first().and_then(Value::len).unwrap_or(RENDERED_BYTES_MAX);
            meter.foresee(items, text.len())?;
        }
        "format" => check_format(meter, value)?,
        "removeprefix" | "removesuffix" => {
            let (part,): (&str,) = minijinja::value::from_args(arguments)?;
            let rest =
                if method == "removeprefix" { text.strip_prefix(part) } else { text.strip_suffix(part) };
            return Ok(rest.map_or_else(|| value.clone(), Value::from));
        }
        _ => {}
    }
    if let Some(result) = marks.and_then(|marks| marks.method(state, text, method, arguments)) {
        return result;
    }
    unknown_method_callback(state, value, method, arguments)
}

/// `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`, as Hugging Face
/// defines it.
fn tojson(
    meter: &Meter,
    value: &Value,
    arguments: Rest<ValueOrKwargs>,
    marks: Option<Arc<Marks>>,
) -> Result<Value, Error> {
    let arguments = arguments.into_values();
    let (positional, named): (&[Value], Kwargs) = minijinja::value::from_args(&arguments)?;
    let argument = |place: usize, name: &str| -> Result<Option<Value>, Error> {
        let value = match positional.get(place) {
            Some(value) => Some(value.clone()),
            None => named.get::<Option<Value>>(name)?,
        };
        Ok(value.filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let invalid = |words: &str| Error::new(ErrorKind::InvalidOperation, format!("tojson: {words}"));
    let ascii = argument(0, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let indent = match argument(1, "indent")? {
        None => None,
        Some(width) => match width.as_usize() {
            Some(width) if width <= INDENT_MAX => Some(width),
            _ => return Err(invalid("the indent should be a small number")),
        },
    };
    let separators = match argument(2, "separators")? {
        None => None,
        Some(pair) if pair.kind() == ValueKind::Seq && pair.len() == Some(2) => {
            let text = |place: usize| -> Result<String, Error> {
                let item = pair.get_item(&Value::from(place))?;
                match item.as_str() {
                    Some(text) if text.len() <= INDENT_MAX => Ok(text.to_owned()),
                    _ => Err(invalid("separators should be two short strings")),
                }
            };
            Some((text(0)?, text(1)?))
        }
        Some(_) => return Err(invalid("separators should be two short strings")),
    };
    let sort_keys = argument(3, "sort_keys")?.is_some_and(|value| value.is_true());
    named.assert_all_used()?;
    let style = JsonStyle { indent, separators, sort_keys, ascii, marks };
    let text = to_json(value, &style, RENDERED_BYTES_MAX)
        .map_err(|words| Error::new(ErrorKind::BadSerialization, words))?;
    meter.charge(text.len())?;
    Ok(Value::from(text))
}

fn too_large(path: &Path, max: u64, unit: &'static str) -> TextError {
    TextError::TemplateTooLarge { path: path.to_owned(), max, unit }
}

fn stopped(halt: Halt, path: &Path, line: usize) -> TextError {
    let path = path.to_owned();
    match halt {
        Halt::Raised(message) => TextError::TemplateRaised { path, message },
        Halt::TooLarge { max, unit } => TextError::TemplateTooLarge { path, max, unit },
        Halt::TooSlow => TextError::TemplateTooSlow { path, seconds: TIME_MAX.as_secs() },
        Halt::Unsupported(what) => TextError::UnsupportedTemplate { path, line, what },
    }
}

/// Classifies the engine's error: stopped by the meter, out of fuel, unsupported, invalid, or
/// failed while running.
fn failure(error: &Error, halt: Option<Halt>, path: &Path) -> TextError {
    let line = error.line().unwrap_or(0);
    if let Some(halt) = halt {
        return stopped(halt, path, line);
    }
    let path = path.to_owned();
    let detail = error.detail().unwrap_or_default();
    // An error inside a macro or a filter is the source of the one outside.
    let kind = causes(error).find(|kind| *kind == ErrorKind::OutOfFuel).unwrap_or(error.kind());
    match kind {
        ErrorKind::OutOfFuel => TextError::TemplateOutOfFuel { path, fuel: TEMPLATE_FUEL },
        ErrorKind::UnknownFilter
        | ErrorKind::UnknownTest
        | ErrorKind::UnknownFunction
        | ErrorKind::UnknownMethod
        | ErrorKind::TemplateNotFound
        | ErrorKind::BadInclude => TextError::UnsupportedTemplate { path, line, what: words(error) },
        ErrorKind::SyntaxError if detail.starts_with("unknown statement") => {
            TextError::UnsupportedTemplate { path, line, what: detail.to_owned() }
        }
        ErrorKind::SyntaxError | ErrorKind::BadEscape => {
            TextError::InvalidTemplate { path, line, reason: words(error) }
        }
        _ => TextError::TemplateFailed { path, line, reason: words(error) },
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

/// The engine's message without the position, which the error carries separately.
fn words(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}
