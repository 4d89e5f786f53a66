//! Filters like Jinja's, with a meter: the engine's own filters behind a check, and filters that
//! differ.

use std::sync::Arc;

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::display::text_of;
use super::meter::{Halt, Meter, RENDERED_BYTES_MAX};
use super::objects::Generator;
use super::operators::expect_iterable;
use super::python::{JsonStyle, to_json};
use super::strings;
use crate::control_tokens::Marks;
use crate::white_space::is_space;

/// Filters of the engine that do not exist in Jinja, or whose output is unbounded.
const REMOVED_FILTERS: [&str; 6] = ["chain", "zip", "pprint", "lines", "split", "bool"];

/// Largest count accepted by `batch` and `slice`.
const PIECES_MAX: i64 = 10_000;

/// Widest indentation accepted by `indent` and `tojson`.
const INDENT_MAX: usize = 64;

/// Adds the filters of a chat template.
pub(super) fn add(environment: &mut Environment<'static>, meter: &Arc<Meter>, marks: Option<&Arc<Marks>>) {
    for name in REMOVED_FILTERS {
        environment.remove_filter(name);
    }
    let (account, kept) = (Arc::clone(meter), marks.cloned());
    environment.add_filter("tojson", move |value: &Value, arguments: Rest<ValueOrKwargs>| {
        tojson(&account, value, arguments, kept.clone())
    });
    let kept = marks.cloned();
    environment.add_filter("trim", move |text: String, of: Option<String>| match &kept {
        Some(marks) => Ok(Value::from(marks.strip(&text, of.as_deref(), true, true))),
        None => strings::stripped(&text, of.as_deref(), true, true),
    });
    let texts = Texts { meter: Arc::clone(meter), marks: marks.cloned() };
    let own = texts.clone();
    environment.add_filter("string", move |value: Value| own.of(&value));
    let own = texts.clone();
    environment.add_filter(
        "join",
        move |state: &mut State<'_, '_>, value: Value, arguments: Rest<ValueOrKwargs>| {
            own.join(state, value, arguments)
        },
    );
    environment.add_filter("replace", move |value: Value, from: Value, to: Value, count: Option<i64>| {
        texts.replace(&value, &from, &to, count)
    });
    environment.add_filter(
        "int",
        |state: &mut State<'_, '_>, value: Value, arguments: Rest<ValueOrKwargs>| {
            number(state, "engine's int", value, arguments, Value::from(0))
        },
    );
    environment.add_filter(
        "float",
        |state: &mut State<'_, '_>, value: Value, arguments: Rest<ValueOrKwargs>| {
            number(state, "engine's float", value, arguments, Value::from(0.0))
        },
    );
    environment.add_filter("engine's int", minijinja::filters::int);
    environment.add_filter("engine's float", minijinja::filters::float);
    for name in ["length", "count"] {
        environment.add_filter(name, |value: &Value| match value.is_undefined() {
            true => Ok(0),
            false => minijinja::filters::length(value),
        });
    }
    add_bounded_filter(
        environment,
        meter,
        "indent",
        minijinja::filters::indent,
        |meter, value, arguments| {
            let width = arguments.first().and_then(Value::as_usize).unwrap_or(0);
            meter.foresee(value.as_str().map_or(0, |text| text.lines().count()), width)
        },
    );
    add_bounded_filter(environment, meter, "format", minijinja::filters::format, |meter, value, _| {
        check_format(meter, value)
    });
    add_bounded_filter(environment, meter, "batch", minijinja::filters::batch, check_pieces);
    add_bounded_filter(environment, meter, "slice", minijinja::filters::slice, check_pieces);
    add_iterating_filters(environment, meter);
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
    // A space in the name prevents templates from calling it directly.
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

/// Adds filters that iterate and do not accept `none`, and filters that return a generator in
/// Python.
fn add_iterating_filters(environment: &mut Environment<'static>, meter: &Arc<Meter>) {
    use minijinja::filters;
    let refuse = |_: &Meter, value: &Value, _: &[Value]| expect_iterable(value.clone()).map(drop);
    add_bounded_filter(environment, meter, "first", filters::first, refuse);
    add_bounded_filter(environment, meter, "last", filters::last, refuse);
    add_bounded_filter(environment, meter, "list", filters::list, refuse);
    add_bounded_filter(environment, meter, "sort", filters::sort, refuse);
    add_bounded_filter(environment, meter, "sum", filters::sum, refuse);
    add_generator(environment, "items", filters::items);
    add_generator(environment, "map", filters::map);
    add_generator(environment, "reject", filters::reject);
    add_generator(environment, "rejectattr", filters::rejectattr);
    add_generator(environment, "reverse", filters::reverse);
    add_generator(environment, "select", filters::select);
    add_generator(environment, "selectattr", filters::selectattr);
    add_generator(environment, "unique", filters::unique);
}

/// Adds a filter whose list is a generator in Python: it has no length, is always true, and is read
/// once.
fn add_generator<F, Rv, Args>(environment: &mut Environment<'static>, name: &'static str, filter: F)
where
    F: minijinja::functions::Function<Rv, Args>,
    Rv: minijinja::value::FunctionResult,
    Args: for<'a> minijinja::value::FunctionArgs<'a>,
{
    let engine_name = format!("engine's {name}");
    environment.add_filter(engine_name.clone(), filter);
    environment.add_filter(
        name,
        move |state: &mut State<'_, '_>, value: Value, arguments: Rest<ValueOrKwargs>| {
            let mut all = vec![value];
            all.extend(arguments.into_values().iter().cloned());
            let made = state.apply_filter(&engine_name, &all)?;
            if made.as_str().is_some() {
                return Ok(made);
            }
            Ok::<_, Error>(Value::from_object(Generator::new(made.try_iter()?.collect())))
        },
    );
}

/// Implements `int` and `float`, which return the default for values that are not numbers.
fn number(
    state: &mut State<'_, '_>,
    engine_name: &str,
    value: Value,
    arguments: Rest<ValueOrKwargs>,
    zero: Value,
) -> Result<Value, Error> {
    let arguments = arguments.into_values();
    let (positional, named): (&[Value], Kwargs) = minijinja::value::from_args(&arguments)?;
    let default = match positional.first() {
        Some(default) => default.clone(),
        None => named.get::<Option<Value>>("default")?.unwrap_or(zero),
    };
    let value = value.as_str().map_or(value.clone(), |text| Value::from(text.trim_matches(is_space)));
    let mut all = vec![value];
    all.extend(arguments.iter().cloned());
    Ok(state.apply_filter(engine_name, &all).unwrap_or(default))
}

/// A converter of values to texts, with a meter.
#[derive(Clone)]
struct Texts {
    meter: Arc<Meter>,
    marks: Option<Arc<Marks>>,
}

impl Texts {
    fn of(&self, value: &Value) -> Result<String, Error> {
        text_of(value, self.marks.as_deref()).map_err(|what| self.meter.halt(Halt::Unsupported(what)))
    }

    /// Implements `join(d="", attribute=None)`.
    fn join(
        &self,
        state: &mut State<'_, '_>,
        value: Value,
        arguments: Rest<ValueOrKwargs>,
    ) -> Result<Value, Error> {
        let arguments = arguments.into_values();
        let (separator, attribute, named): (Option<Value>, Option<Value>, Kwargs) =
            minijinja::value::from_args(&arguments)?;
        let separator = separator.or(named.get::<Option<Value>>("d")?);
        let attribute = attribute.or(named.get::<Option<Value>>("attribute")?);
        named.assert_all_used()?;
        let items = match attribute {
            Some(attribute) => {
                let attribute = Kwargs::from_iter([("attribute", attribute)]);
                state.apply_filter("map", &[value, Value::from(attribute)])?
            }
            None => expect_iterable(value)?,
        };
        let separator = separator.map_or(Ok(String::new()), |separator| self.of(&separator))?;
        let mut joined = String::new();
        for (index, item) in items.try_iter()?.enumerate() {
            if index > 0 {
                joined.push_str(&separator);
            }
            joined.push_str(&self.of(&item)?);
            if joined.len() > RENDERED_BYTES_MAX {
                return Err(self.meter.too_large());
            }
        }
        Ok(Value::from(joined))
    }

    /// Implements `replace(old, new, count=None)`.
    fn replace(&self, value: &Value, from: &Value, to: &Value, count: Option<i64>) -> Result<Value, Error> {
        let (text, from, to) = (self.of(value)?, self.of(from)?, self.of(to)?);
        foresee_replacement(&self.meter, &text, &from, &to)?;
        let count = count.and_then(|count| usize::try_from(count).ok());
        Ok(Value::from(match count {
            Some(count) => text.replacen(&from, &to, count),
            None => text.replace(&from, &to),
        }))
    }
}

/// Refuses a replacement that would build too much text.
pub(super) fn foresee_replacement(meter: &Meter, text: &str, from: &str, to: &str) -> Result<(), Error> {
    let times = if from.is_empty() { text.len() + 1 } else { text.matches(from).count() };
    meter.foresee(times, to.len())
}

/// Refuses widths and precisions of more than four digits, which would generate long texts, and
/// `*`, which hides them.
pub(super) fn check_format(meter: &Meter, format: &Value) -> Result<(), Error> {
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

/// Implements `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`, as
/// Hugging Face defines it.
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
