//! Python's operators, which replace the engine's instructions (see `substitute.rs`).

use std::cmp::Ordering;
use std::sync::Arc;

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::display::text_of;
use super::meter::{Halt, Meter, is_dict};
use super::objects::BoundMethod;
use super::substitute::{
    ATTRIBUTE, CONCATENATE, CONTAINS, DICT_METHODS, EXPECT_ITERABLE, GREATER, GREATER_OR_EQUAL, LESS,
    LESS_OR_EQUAL, LISTED, REMAINDER, SLICE, SUM,
};
use crate::control_tokens::Marks;

/// Adds the functions that substituted instructions call.
pub(crate) fn add(environment: &mut Environment<'static>, meter: &Arc<Meter>, marks: Option<&Arc<Marks>>) {
    let (account, marks) = (Arc::clone(meter), marks.cloned());
    environment.add_function(CONCATENATE, move |left: Value, right: Value| {
        let text = |value: &Value| {
            text_of(value, marks.as_deref()).map_err(|what| account.halt(Halt::Unsupported(what)))
        };
        Ok::<_, Error>(Value::from(text(&left)? + &text(&right)?))
    });
    environment.add_function(SLICE, slice);
    environment.add_function(SUM, sum);
    environment.add_function(REMAINDER, remainder);
    environment.add_function(CONTAINS, contains);
    environment.add_function(EXPECT_ITERABLE, expect_iterable);
    environment.add_function(ATTRIBUTE, attribute);
    environment.add_function(LISTED, |value: Value| match value.kind() {
        ValueKind::Iterable => value.try_iter().map(|items| items.collect::<Value>()),
        _ => Ok(value),
    });
    environment.add_function(LESS, |a: Value, b: Value| Ok::<_, Error>(compared(&a, &b)?.is_lt()));
    environment.add_function(LESS_OR_EQUAL, |a: Value, b: Value| Ok::<_, Error>(compared(&a, &b)?.is_le()));
    environment.add_function(GREATER, |a: Value, b: Value| Ok::<_, Error>(compared(&a, &b)?.is_gt()));
    environment
        .add_function(GREATER_OR_EQUAL, |a: Value, b: Value| Ok::<_, Error>(compared(&a, &b)?.is_ge()));
}

fn failed(words: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, words)
}

/// Refuses to iterate `none`.
pub(super) fn expect_iterable(value: Value) -> Result<Value, Error> {
    if value.is_none() { Err(failed("`none` is not iterable".to_owned())) } else { Ok(value) }
}

fn slice(value: Value, start: Value, stop: Value, step: Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    let index = |value: &Value| match value.is_none() {
        true => Ok(None),
        false => value
            .as_i64()
            .map(Some)
            .ok_or_else(|| failed(format!("a slice needs integers, not a {}", value.kind()))),
    };
    let (start, stop, step) = (index(&start)?, index(&stop)?, index(&step)?.unwrap_or(1));
    if step == 0 {
        return Err(failed("the step of a slice cannot be zero".to_owned()));
    }
    if let Some(text) = value.as_str() {
        let characters: Vec<char> = text.chars().collect();
        let places = places(characters.len(), start, stop, step);
        return Ok(Value::from(places.map(|place| characters[place]).collect::<String>()));
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            let kept: Vec<Value> =
                places(items.len(), start, stop, step).map(|place| items[place].clone()).collect();
            Ok(if value.is_tuple() { Value::from(Tuple::from(kept)) } else { Value::from(kept) })
        }
        // Jinja returns an undefined value if Python cannot slice the value.
        _ => Ok(Value::UNDEFINED),
    }
}

/// Returns the indices of a slice of `length` items, like Python's `slice.indices`. All are below
/// `length`.
fn places(length: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> impl Iterator<Item = usize> {
    let length = length as i64;
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let place =
        |index: i64| if index < 0 { (index.saturating_add(length)).max(low) } else { index.min(high) };
    let start = start.map_or(if step > 0 { low } else { high }, place);
    let stop = stop.map_or(if step > 0 { high } else { low }, place);
    std::iter::successors(Some(start), move |place| place.checked_add(step))
        .take_while(move |place| if step > 0 { *place < stop } else { *place > stop })
        .map(|place| place as usize)
}

/// Implements `+`. If one text is marked as HTML by `|safe`, the other one is escaped.
fn sum(left: Value, right: Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
        return Ok(match (left.is_safe(), right.is_safe()) {
            (false, false) => Value::from([a, b].concat()),
            (true, true) => Value::from_safe_string([a, b].concat()),
            (true, false) => Value::from_safe_string(a.to_owned() + &escaped(b)),
            (false, true) => Value::from_safe_string(escaped(a) + b),
        });
    }
    let impossible = || failed(format!("a {} and a {} have no sum", left.kind(), right.kind()));
    if left.kind() == ValueKind::Seq && right.kind() == ValueKind::Seq {
        if left.is_tuple() != right.is_tuple() {
            return Err(impossible());
        }
        let items: Vec<Value> = left.try_iter()?.chain(right.try_iter()?).collect();
        return Ok(if left.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) });
    }
    if let (Some(a), Some(b)) = (as_whole(&left), as_whole(&right)) {
        return a.checked_add(b).map(whole).ok_or_else(impossible);
    }
    let (Some(a), Some(b)) = (as_float(&left), as_float(&right)) else {
        return Err(impossible());
    };
    Ok(Value::from(a + b))
}

fn as_float(value: &Value) -> Option<f64> {
    let is_number = matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    is_number.then(|| f64::try_from(value.clone()).ok()).flatten()
}

/// Returns `text` with the special characters of HTML as references.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            other => out.push(other),
        }
    }
    out
}

/// Implements `%`, which formats if the left operand is a string.
fn remainder(state: &mut State<'_, '_>, left: Value, right: Value) -> Result<Value, Error> {
    if left.as_str().is_some() {
        let mut all = vec![left];
        if right.is_tuple() {
            all.extend(right.try_iter()?);
        } else {
            all.push(right);
        }
        return state.apply_filter("format", &all);
    }
    if let (Some(left), Some(right)) = (as_whole(&left), as_whole(&right)) {
        let rest = left.checked_rem(right).ok_or_else(|| failed("modulo by zero".to_owned()))?;
        return Ok(whole(if rest != 0 && (rest < 0) != (right < 0) { rest + right } else { rest }));
    }
    let (Some(left), Some(right)) = (as_float(&left), as_float(&right)) else {
        return Err(failed(format!("a {} has no remainder by a {}", left.kind(), right.kind())));
    };
    if right == 0.0 {
        return Err(failed("modulo by zero".to_owned()));
    }
    let rest = left % right;
    Ok(Value::from(if rest != 0.0 && (rest < 0.0) != (right < 0.0) { rest + right } else { rest }))
}

fn as_whole(value: &Value) -> Option<i128> {
    let is_whole = value.is_integer() || value.kind() == ValueKind::Bool;
    is_whole.then(|| i128::try_from(value.clone()).ok()).flatten()
}

fn whole(number: i128) -> Value {
    i64::try_from(number).map_or_else(|_| Value::from(number), Value::from)
}

fn contains(state: &mut State<'_, '_>, item: Value, container: Value) -> Result<bool, Error> {
    if container.as_str().is_some() && item.as_str().is_none() {
        return Err(failed(format!("a string contains strings, not a {}", item.kind())));
    }
    if container.is_none() {
        return expect_iterable(container).map(|_| false);
    }
    state.perform_test("in", &[item, container])
}

/// Compares two values that Python can order.
fn compared(a: &Value, b: &Value) -> Result<Ordering, Error> {
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    let is_sequence = |value: &Value| value.kind() == ValueKind::Seq;
    let ordered = (is_number(a) && is_number(b))
        || (a.as_str().is_some() && b.as_str().is_some())
        || (is_sequence(a) && is_sequence(b) && a.is_tuple() == b.is_tuple());
    if ordered {
        Ok(a.cmp(b))
    } else {
        Err(failed(format!("a {} and a {} have no order", a.kind(), b.kind())))
    }
}

/// Implements `value.name` if the name is a method of `dict`: returns the method, even if there is
/// an item with that name.
fn attribute(value: Value, name: Value) -> Result<Value, Error> {
    let name = name.as_str().unwrap_or_default();
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    if !is_dict(&value) {
        return value.get_attr(name);
    }
    Ok(match DICT_METHODS.iter().find(|method| **method == name) {
        Some(method) => Value::from_object(BoundMethod { of: value, method }),
        None => Value::UNDEFINED,
    })
}
