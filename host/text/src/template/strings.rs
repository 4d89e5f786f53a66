//! Methods of Python's strings that the engine's compatibility table lacks or defines differently.

use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Value};

use super::display::is_printable;
use crate::white_space::is_space;

/// Widest tab.
pub(crate) const TAB_MAX: usize = 64;

/// Widest text that a method may pad to.
const WIDTH_MAX: usize = 1 << 16;

/// Returns the result of `text.method(arguments)`, or `None` for a method that is not in this
/// module.
pub(crate) fn method(text: &str, method: &str, arguments: &[Value]) -> Option<Result<Value, Error>> {
    let result = match method {
        "strip" => from_args(arguments).and_then(|(of,)| stripped(text, of, true, true)),
        "lstrip" => from_args(arguments).and_then(|(of,)| stripped(text, of, true, false)),
        "rstrip" => from_args(arguments).and_then(|(of,)| stripped(text, of, false, true)),
        "split" => split(text, arguments, false),
        "rsplit" => split(text, arguments, true),
        "splitlines" => split_lines(text, arguments),
        "partition" => partition(text, arguments, false),
        "rpartition" => partition(text, arguments, true),
        "startswith" => starts_or_ends(text, arguments, |part, affix| part.starts_with(affix)),
        "endswith" => starts_or_ends(text, arguments, |part, affix| part.ends_with(affix)),
        "count" => sought(text, arguments).map(|(part, of, _)| Value::from(part.matches(of).count())),
        "find" => found(text, arguments, |part, of| part.find(of), false),
        "rfind" => found(text, arguments, |part, of| part.rfind(of), false),
        "index" => found(text, arguments, |part, of| part.find(of), true),
        "rindex" => found(text, arguments, |part, of| part.rfind(of), true),
        "removeprefix" => removed(text, arguments, |part| text.strip_prefix(part)),
        "removesuffix" => removed(text, arguments, |part| text.strip_suffix(part)),
        "center" => padded(text, arguments, |width, pad| pad / 2 + (pad & width & 1)),
        "ljust" => padded(text, arguments, |_, _| 0),
        "rjust" => padded(text, arguments, |_, pad| pad),
        "zfill" => zero_filled(text, arguments),
        "expandtabs" => expanded(text, arguments),
        "title" => without_arguments(arguments, || Value::from(titled(text))),
        "swapcase" => without_arguments(arguments, || Value::from(swapped(text))),
        "casefold" => {
            without_arguments(arguments, || text.to_lowercase().replace('ß', "ss").replace('ς', "σ").into())
        }
        "istitle" => {
            without_arguments(arguments, || (text.chars().any(is_cased) && titled(text) == text).into())
        }
        "isspace" => without_arguments(arguments, || (!text.is_empty() && text.chars().all(is_space)).into()),
        "isprintable" => without_arguments(arguments, || text.chars().all(is_printable).into()),
        "isdecimal" => without_arguments(arguments, || {
            (!text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || !c.is_ascii() && c.is_numeric()))
                .into()
        }),
        "isidentifier" => without_arguments(arguments, || {
            let starts = text.starts_with(|c: char| c.is_alphabetic() || c == '_');
            (starts && text.chars().all(|c| c.is_alphanumeric() || c == '_')).into()
        }),
        _ => return None,
    };
    Some(result)
}

fn failed(words: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, words)
}

fn without_arguments(arguments: &[Value], result: impl FnOnce() -> Value) -> Result<Value, Error> {
    let () = from_args(arguments)?;
    Ok(result())
}

/// Returns `text` without white space, or the characters `of`, at its ends.
pub(crate) fn stripped(text: &str, of: Option<&str>, start: bool, end: bool) -> Result<Value, Error> {
    let goes = |c: char| of.map_or_else(|| is_space(c), |of| of.contains(c));
    let text = if start { text.trim_start_matches(goes) } else { text };
    Ok(Value::from(if end { text.trim_end_matches(goes) } else { text }))
}

/// Implements `split(sep=None, maxsplit=-1)` and `rsplit`.
fn split(text: &str, arguments: &[Value], from_end: bool) -> Result<Value, Error> {
    let (separator, most, named): (Option<Value>, Option<i64>, Kwargs) = from_args(arguments)?;
    let separator = match separator {
        Some(value) => Some(value),
        None => named.get::<Option<Value>>("sep")?,
    };
    let most = most.or(named.get::<Option<i64>>("maxsplit")?).unwrap_or(-1);
    named.assert_all_used()?;
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let Some(separator) = separator.filter(|value| !value.is_none()) else {
        return Ok(words(text, most, from_end));
    };
    let separator = separator.as_str().ok_or_else(|| failed("the separator should be a string"))?;
    if separator.is_empty() {
        return Err(failed("empty separator"));
    }
    let pieces = most.saturating_add(1);
    let parts: Vec<Value> = if from_end {
        let mut parts: Vec<Value> = text.rsplitn(pieces, separator).map(Value::from).collect();
        parts.reverse();
        parts
    } else {
        text.splitn(pieces, separator).map(Value::from).collect()
    };
    Ok(Value::from(parts))
}

/// Splits at runs of white space, at most `most` times. The rest is one word.
fn words(text: &str, most: usize, from_end: bool) -> Value {
    let mut words: Vec<Value> = Vec::new();
    let trim = |text| {
        if from_end { str::trim_end_matches(text, is_space) } else { str::trim_start_matches(text, is_space) }
    };
    let mut rest: &str = trim(text);
    while !rest.is_empty() {
        let cut = if from_end { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(cut) = cut.filter(|_| words.len() < most) else {
            words.push(Value::from(rest));
            break;
        };
        let width = rest[cut..].chars().next().map_or(0, char::len_utf8);
        let (before, after) = (&rest[..cut], &rest[cut + width..]);
        words.push(Value::from(if from_end { after } else { before }));
        rest = trim(if from_end { before } else { after });
    }
    if from_end {
        words.reverse();
    }
    Value::from(words)
}

fn split_lines(text: &str, arguments: &[Value]) -> Result<Value, Error> {
    let (keep, named): (Option<bool>, Kwargs) = from_args(arguments)?;
    let keep = keep.or(named.get::<Option<bool>>("keepends")?).unwrap_or(false);
    named.assert_all_used()?;
    let ends = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let (mut lines, mut rest) = (Vec::new(), text);
    while let Some(end) = rest.find(ends) {
        let width = match rest[end..].chars().next() {
            Some('\r') if rest[end + 1..].starts_with('\n') => 2,
            other => other.map_or(0, char::len_utf8),
        };
        lines.push(Value::from(&rest[..if keep { end + width } else { end }]));
        rest = &rest[end + width..];
    }
    if !rest.is_empty() {
        lines.push(Value::from(rest));
    }
    Ok(Value::from(lines))
}

fn partition(text: &str, arguments: &[Value], last: bool) -> Result<Value, Error> {
    let (separator,): (&str,) = from_args(arguments)?;
    if separator.is_empty() {
        return Err(failed("empty separator"));
    }
    let parts = match if last { text.rsplit_once(separator) } else { text.split_once(separator) } {
        Some((before, after)) => [before, separator, after],
        None if last => ["", "", text],
        None => [text, "", ""],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

/// Returns the part of `text` from character `start` to `end`, like a slice in Python, and the
/// number of characters before it. `None` if `start` is beyond the text, where not even an empty
/// text is found.
fn part(text: &str, start: Option<i64>, end: Option<i64>) -> Option<(&str, usize)> {
    let length = text.chars().count();
    let place = |index: i64| {
        let back = usize::try_from(index.unsigned_abs()).unwrap_or(usize::MAX);
        if index < 0 { length.saturating_sub(back) } else { back }
    };
    let (start, end) = (place(start.unwrap_or(0)), end.map_or(length, place).min(length));
    let byte = |index: usize| text.char_indices().nth(index).map_or(text.len(), |(byte, _)| byte);
    (start <= end).then(|| (&text[byte(start)..byte(end)], start))
}

/// Parses the arguments of `count` and `find`. Returns the part of the text to search, the text to
/// find, and the number of characters before the part.
fn sought<'t>(text: &'t str, arguments: &'t [Value]) -> Result<(&'t str, &'t str, usize), Error> {
    let (of, start, end): (&str, Option<i64>, Option<i64>) = from_args(arguments)?;
    let (part, before) = part(text, start, end).unwrap_or(("", 0));
    Ok((part, of, before))
}

fn found(
    text: &str,
    arguments: &[Value],
    find: impl Fn(&str, &str) -> Option<usize>,
    required: bool,
) -> Result<Value, Error> {
    let (part, of, before) = sought(text, arguments)?;
    match find(part, of) {
        Some(byte) => Ok(Value::from(before + part[..byte].chars().count())),
        None if required => Err(failed("substring not found")),
        None => Ok(Value::from(-1)),
    }
}

fn starts_or_ends(
    text: &str,
    arguments: &[Value],
    holds: impl Fn(&str, &str) -> bool,
) -> Result<Value, Error> {
    let (affix, start, end): (&Value, Option<i64>, Option<i64>) = from_args(arguments)?;
    let part = part(text, start, end).map(|(part, _)| part);
    let holds = |affix: &Value| match affix.as_str() {
        Some(affix) => Ok(part.is_some_and(|part| holds(part, affix))),
        None => Err(failed("the argument should be a string or a tuple of strings")),
    };
    if !affix.is_tuple() {
        return holds(affix).map(Value::from);
    }
    for affix in affix.try_iter()? {
        if holds(&affix)? {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

fn removed<'t>(
    text: &'t str,
    arguments: &[Value],
    strip: impl Fn(&str) -> Option<&'t str>,
) -> Result<Value, Error> {
    let (part,): (&str,) = from_args(arguments)?;
    Ok(Value::from(strip(part).unwrap_or(text)))
}

/// Pads to a width. `place` returns the part of the padding that precedes the text.
fn padded(text: &str, arguments: &[Value], place: impl Fn(usize, usize) -> usize) -> Result<Value, Error> {
    let (width, fill): (i64, Option<&str>) = from_args(arguments)?;
    let fill = fill.unwrap_or(" ");
    if fill.chars().count() != 1 {
        return Err(failed("the fill should be one character"));
    }
    let width = bounded_width(width)?;
    let pad = width.saturating_sub(text.chars().count());
    let before = place(width, pad);
    Ok(Value::from(format!("{}{text}{}", fill.repeat(before), fill.repeat(pad - before))))
}

fn bounded_width(width: i64) -> Result<usize, Error> {
    match usize::try_from(width.max(0)) {
        Ok(width) if width <= WIDTH_MAX => Ok(width),
        _ => Err(failed("the width should be a small number")),
    }
}

fn zero_filled(text: &str, arguments: &[Value]) -> Result<Value, Error> {
    let (width,): (i64,) = from_args(arguments)?;
    let pad = "0".repeat(bounded_width(width)?.saturating_sub(text.chars().count()));
    let sign = usize::from(text.starts_with(['+', '-']));
    Ok(Value::from(format!("{}{pad}{}", &text[..sign], &text[sign..])))
}

fn expanded(text: &str, arguments: &[Value]) -> Result<Value, Error> {
    let (size, named): (Option<i64>, Kwargs) = from_args(arguments)?;
    let size = size.or(named.get::<Option<i64>>("tabsize")?).unwrap_or(8);
    named.assert_all_used()?;
    let size = bounded_width(size)?;
    if size > TAB_MAX {
        return Err(failed("the width should be a small number"));
    }
    let (mut out, mut column) = (String::with_capacity(text.len()), 0);
    for character in text.chars() {
        match character {
            '\t' => {
                let width = if size == 0 { 0 } else { size - column % size };
                out.extend(std::iter::repeat_n(' ', width));
                column += width;
            }
            other => {
                out.push(other);
                column = if matches!(other, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    Ok(Value::from(out))
}

fn is_cased(character: char) -> bool {
    character.is_uppercase() || character.is_lowercase()
}

/// Returns the text with lower case for letters that follow a letter, and upper case for the
/// others.
fn titled(text: &str) -> String {
    let (mut out, mut inside) = (String::with_capacity(text.len()), false);
    for character in text.chars() {
        if inside {
            out.extend(character.to_lowercase());
        } else {
            out.extend(character.to_uppercase());
        }
        inside = is_cased(character);
    }
    out
}

fn swapped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_uppercase() {
            out.extend(character.to_lowercase());
        } else {
            out.extend(character.to_uppercase());
        }
    }
    out
}

/// Implements methods of lists and tuples that the compatibility table lacks.
pub(crate) fn list_method(list: &Value, method: &str, arguments: &[Value]) -> Option<Result<Value, Error>> {
    if list.kind() != ValueKind::Seq {
        return None;
    }
    match method {
        "copy" => Some(without_arguments(arguments, || list.clone())),
        "index" => Some(from_args(arguments).and_then(|(item,): (&Value,)| {
            let place = list.try_iter()?.position(|other| other == *item);
            place.map(Value::from).ok_or_else(|| failed("the list does not contain the item"))
        })),
        _ => None,
    }
}
