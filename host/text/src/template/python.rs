//! JSON as written by Python's `json.dumps`, which chat templates call `tojson`.

use std::sync::Arc;

use minijinja::Value;
use minijinja::value::ValueKind;

use crate::control_tokens::Marks;

/// Deepest value that is written. The values of a template are checked against the same depth when
/// they are created.
pub(crate) const VALUE_NESTING_MAX: usize = 64;

/// Format of the output.
#[derive(Debug, Clone)]
pub(crate) struct JsonStyle {
    /// Spaces of indentation per level, with one item per line. `None` for everything on one line.
    pub(crate) indent: Option<usize>,
    /// Texts between items, and between key and value. Python's defaults if absent.
    pub(crate) separators: Option<(String, String)>,
    /// Whether keys are sorted by their characters instead of keeping their order.
    pub(crate) sort_keys: bool,
    /// Whether characters beyond ASCII are written as `\uXXXX`.
    pub(crate) ascii: bool,
    /// Characters that are not part of the text. They are written unchanged.
    pub(crate) marks: Option<Arc<Marks>>,
}

/// Writes `value`, or reports the part of it that JSON cannot represent. Stops with an error after
/// `max` bytes.
pub(crate) fn to_json(value: &Value, style: &JsonStyle, max: usize) -> Result<String, String> {
    let (item, key) = match (&style.separators, style.indent) {
        (Some((item, key)), _) => (item.as_str(), key.as_str()),
        (None, Some(_)) => (",", ": "),
        (None, None) => (", ", ": "),
    };
    let mut writer = Writer { style, item, key, max, out: String::new() };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct Writer<'style> {
    style: &'style JsonStyle,
    item: &'style str,
    key: &'style str,
    max: usize,
    out: String,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), String> {
        if depth > VALUE_NESTING_MAX {
            return Err(format!("value nests deeper than {VALUE_NESTING_MAX} levels"));
        }
        if self.out.len() > self.max {
            return Err(format!("JSON has more than {} bytes", self.max));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.out.push_str(&value.to_string()),
            ValueKind::Number => {
                let number = f64::try_from(value.clone()).map_err(|error| error.to_string())?;
                self.out.push_str(&python_float(number));
            }
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
            ValueKind::Seq => self.sequence(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            other => return Err(format!("value of kind {other} is not JSON serializable")),
        }
        Ok(())
    }

    fn sequence(&mut self, value: &Value, depth: usize) -> Result<(), String> {
        let items = value.try_iter().map_err(|error| error.to_string())?;
        self.out.push('[');
        let mut empty = true;
        for item in items {
            self.before_item(&mut empty, depth + 1);
            self.value(&item, depth + 1)?;
        }
        self.after_items(empty, depth);
        self.out.push(']');
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), String> {
        let mut keys: Vec<Value> = value.try_iter().map_err(|error| error.to_string())?.collect();
        if self.style.sort_keys {
            keys.sort();
        }
        self.out.push('{');
        let mut empty = true;
        for key in keys {
            self.before_item(&mut empty, depth + 1);
            match key.kind() {
                ValueKind::String => self.string(key.as_str().unwrap_or_default())?,
                ValueKind::Number | ValueKind::Bool | ValueKind::None => {
                    self.out.push('"');
                    self.value(&key, depth)?;
                    self.out.push('"');
                }
                other => return Err(format!("key of kind {other} is not JSON serializable")),
            }
            self.out.push_str(self.key);
            let item = value.get_item(&key).map_err(|error| error.to_string())?;
            self.value(&item, depth + 1)?;
        }
        self.after_items(empty, depth);
        self.out.push('}');
        Ok(())
    }

    fn before_item(&mut self, first: &mut bool, depth: usize) {
        if !std::mem::replace(first, false) {
            self.out.push_str(self.item);
        }
        self.new_line(depth);
    }

    fn after_items(&mut self, empty: bool, depth: usize) {
        if !empty {
            self.new_line(depth);
        }
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = self.style.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent.saturating_mul(depth)));
        }
    }

    fn string(&mut self, text: &str) -> Result<(), String> {
        // Python and `serde_json` escape the same characters.
        let quoted = serde_json::to_string(text).map_err(|error| error.to_string())?;
        for character in quoted.chars() {
            let is_mark = self.style.marks.as_ref().is_some_and(|marks| marks.has(character));
            if self.style.ascii && character > '~' && !is_mark {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    self.out.push_str(&format!("\\u{unit:04x}"));
                }
            } else {
                self.out.push(character);
            }
        }
        Ok(())
    }
}

/// Formats a float like Python: the shortest digits that parse to the same value, with an exponent
/// from 1e16 up and below 1e-4.
pub(crate) fn python_float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.unsigned_abs());
    }
    let plain = format!("{number}");
    if plain.contains('.') { plain } else { plain + ".0" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::TemplateValue;

    const PLAIN: JsonStyle =
        JsonStyle { indent: None, separators: None, sort_keys: false, ascii: false, marks: None };

    fn dumped(json: &str, style: &JsonStyle) -> String {
        to_json(&TemplateValue::from_json(json, "test").unwrap().0, style, 1 << 20).unwrap()
    }

    #[test]
    fn one_line_is_pythons() {
        for (json, expected) in [
            (
                r#"{"b":1,"a":[1,2.0,-0.5,null,true,false],"c":{}}"#,
                r#"{"b": 1, "a": [1, 2.0, -0.5, null, true, false], "c": {}}"#,
            ),
            (r#""é<>&'\"\\\n\t\u0001\u007f/""#, "\"é<>&'\\\"\\\\\\n\\t\\u0001\u{7f}/\""),
            (
                r#""\b\f\r\u0000\u000b\u001f\u2028\ufdd0""#,
                "\"\\b\\f\\r\\u0000\\u000b\\u001f\u{2028}\u{fdd0}\"",
            ),
            ("[]", "[]"),
            ("18446744073709551615", "18446744073709551615"),
            ("-9223372036854775808", "-9223372036854775808"),
        ] {
            assert_eq!(dumped(json, &PLAIN), expected);
        }
    }

    #[test]
    fn options_are_pythons() {
        let json = r#"{"b": [1, {"x": "é🙂"}], "a": {}}"#;
        let indented = JsonStyle { indent: Some(2), ..PLAIN };
        assert_eq!(
            dumped(json, &indented),
            "{\n  \"b\": [\n    1,\n    {\n      \"x\": \"é🙂\"\n    }\n  ],\n  \"a\": {}\n}"
        );
        let compact =
            JsonStyle { separators: Some((",".into(), ":".into())), sort_keys: true, ascii: true, ..PLAIN };
        assert_eq!(dumped(json, &compact), r#"{"a":{},"b":[1,{"x":"\u00e9\ud83d\ude42"}]}"#);
        assert_eq!(dumped(r#""~\u007f\n""#, &compact), r#""~\u007f\n""#);
    }

    #[test]
    fn floats_are_pythons() {
        for (number, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (2.75, "2.75"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(python_float(number), expected);
        }
    }

    #[test]
    fn values_that_json_cannot_represent_are_refused() {
        assert!(to_json(&Value::UNDEFINED, &PLAIN, 100).unwrap_err().contains("not JSON serializable"));
        let long = Value::from(vec!["x".repeat(80); 3]);
        assert!(to_json(&long, &PLAIN, 100).unwrap_err().contains("more than 100"));
    }
}
