//! JSON settings: files of limited size, and typed fields. Every error names the path of its field.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::ops::RangeInclusive;
use std::path::Path;

use serde_json::{Map, Value};
use shardwright_files::Links;
use shardwright_vocabulary::{At, Error, Result, UniqueKeys};

use crate::register::Seen;

/// Name of a model's settings file in its folder.
pub(crate) const CONFIG: &str = "config.json";

/// Name of the file that lists the modules of a sentence model.
pub(crate) const MODULES_FILE: &str = "modules.json";

/// Opens a regular file and returns its length. Pipes and devices are refused before they can
/// block.
pub(crate) fn open_file(path: &Path) -> Result<(File, u64)> {
    shardwright_files::open(path, Links::Followed).map_err(|error| {
        let help = help_for_missing(path).filter(|_| error.is_not_found());
        let error = error.at(path.display());
        match help {
            Some(help) => error.with_help(help),
            None => error,
        }
    })
}

fn help_for_missing(path: &Path) -> Option<&'static str> {
    if path.ends_with(CONFIG) {
        Some("give a directory in Hugging Face layout: config.json, *.safetensors or *.gguf, tokenizer.json")
    } else if path.ends_with(MODULES_FILE) {
        Some(
            "download modules.json: it lists the modules whose folders, such as `2_Dense`, are here; remove these folders to get the mean of the rows",
        )
    } else if path.extension().is_some_and(|extension| extension == "safetensors") {
        Some(
            "download the weights: model.safetensors, the files that model.safetensors.index.json lists, or *.gguf; other formats must be converted first",
        )
    } else {
        None
    }
}

/// Returns the error of a file that is longer than `cap`.
pub(crate) fn too_large(path: &Path, bytes: u64, cap: u64) -> Error {
    Error::invalid(format!("{bytes} bytes, more than the limit of {cap}")).at(path.display())
}

/// Returns the error of a text file. `reason` is the parser's message, with line and column.
pub(crate) fn not_json(path: &Path, reason: impl fmt::Display) -> Error {
    Error::invalid(format!("not JSON: {reason}")).at(path.display())
}

/// Returns the error of a field with a valid value that is not supported.
pub(crate) fn unsupported_field(
    path: &Path,
    field: &str,
    found: impl fmt::Display,
    supported: &str,
) -> Error {
    Error::unsupported(format!("`{field}` is {found}, which is not supported"))
        .at(path.display())
        .with_help(format!("supported: {supported}"))
}

/// Reads a file of at most `cap` bytes.
pub(crate) fn read_capped(path: &Path, cap: u64) -> Result<Vec<u8>> {
    let (file, bytes) = open_file(path)?;
    if bytes > cap {
        return Err(too_large(path, bytes, cap));
    }
    // The file may have grown since. The cap applies nevertheless.
    shardwright_files::read_from(file, cap).at(path.display())
}

/// Returns the error of a text whose first invalid byte has this offset in the file.
pub(crate) fn not_utf8(path: &Path, offset: u64) -> Error {
    Error::invalid(format!("not UTF-8 at byte {offset}")).at(path.display())
}

/// Parses JSON text. Nesting deeper than the parser's limit of 128 is an error, and so is an object
/// with two equal keys. The fields of objects are sorted by name, so that messages do not depend on
/// their order in the file.
pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Value> {
    let text = std::str::from_utf8(bytes).map_err(|error| not_utf8(path, error.valid_up_to() as u64))?;
    let checked = serde_json::from_str::<UniqueKeys>(text);
    let parsed = checked.and_then(|UniqueKeys| serde_json::from_str(text));
    let mut value: Value = parsed.map_err(|error| match error.is_data() {
        true => Error::invalid(error.to_string()).at(path.display()).with_help(UniqueKeys::HELP),
        false => not_json(path, error),
    })?;
    value.sort_all_objects();
    Ok(value)
}

/// Nesting depth of objects in settings: `quantization_config.config_groups.group_0.weights`.
const DEPTH: usize = 4;

/// An object of a settings file. A field that is `null` counts as absent.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    path: &'a Path,
    /// Names of this object and of the objects around it, for messages.
    outer: [&'a str; DEPTH],
    map: &'a Map<String, Value>,
    /// Names of the fields in the file's own format, for messages. The keys are the names used
    /// here.
    keys: Option<&'a BTreeMap<String, String>>,
    /// Records which fields are read.
    seen: Option<&'a Seen>,
}

impl<'a> Fields<'a> {
    /// Returns the top-level object of a file.
    pub fn new(path: &'a Path, value: &'a Value) -> Result<Self> {
        match value {
            Value::Object(map) => Ok(Fields { path, outer: [""; DEPTH], map, keys: None, seen: None }),
            _ => Err(Error::invalid("not a JSON object").at(path.display())),
        }
    }

    pub fn path(&self) -> &'a Path {
        self.path
    }

    /// Records in `seen` which fields are read.
    pub fn recorded(self, seen: &'a Seen) -> Self {
        Fields { seen: Some(seen), ..self }
    }

    /// Records that other fields make this one irrelevant.
    pub fn superseded(&self, name: &str) {
        self.record(name);
    }

    /// Records that this field contradicts others, which count instead. It is reported with the
    /// reason.
    pub fn overruled(&self, name: &str, reason: &'static str) {
        if let Some(seen) = self.seen {
            seen.overruled(self.path_of(name), reason);
        }
    }

    /// Returns the name of a field, prefixed with the names of the objects around it.
    fn path_of(&self, name: &str) -> String {
        let outer = self.outer.iter().filter(|part| !part.is_empty());
        outer.map(|part| format!("{part}.")).collect::<String>() + name
    }

    fn record(&self, name: &str) {
        if let Some(seen) = self.seen {
            seen.read(self.path_of(name));
        }
    }

    /// Checks whether the field is present, even as `null`.
    pub fn mentions(&self, name: &str) -> bool {
        self.record(name);
        self.map.contains_key(name)
    }

    /// Iterates over the names of the fields that are present.
    pub fn names(&self) -> impl Iterator<Item = &'a str> + 'a {
        self.map.iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| name.as_str())
    }

    /// Returns the JSON value of a field.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.record(name);
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// Makes messages name fields by these keys.
    pub fn called(self, keys: &'a BTreeMap<String, String>) -> Self {
        Fields { keys: Some(keys), ..self }
    }

    /// Returns the name of a field for messages: the key in the file's own format, or the name with
    /// the objects around it.
    pub fn full_name(&self, name: &str) -> String {
        let outermost = self.outer[0];
        let known = |name: &str| self.keys.and_then(|keys| keys.get(name));
        if let Some(key) = known(if outermost.is_empty() { name } else { outermost }) {
            return key.clone();
        }
        self.path_of(name)
    }

    /// Returns the error of an invalid value.
    pub fn invalid(&self, name: &str, reason: impl fmt::Display) -> Error {
        Error::invalid(format!("`{}` {reason}", self.full_name(name))).at(self.path.display())
    }

    /// Returns the error of a valid value that is not supported.
    pub fn unsupported(&self, name: &str, supported: &str) -> Error {
        let found = self.get(name).map_or_else(|| "absent".to_owned(), shortened);
        unsupported_field(self.path, &self.full_name(name), found, supported)
    }

    /// Returns the integer of a field, which must be within a range.
    pub fn whole(&self, name: &str, range: &RangeInclusive<u64>) -> Result<Option<u64>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let Some(number) = value.as_u64() else {
            return Err(self.invalid(name, format!("is {}, not a whole number", shortened(value))));
        };
        if !range.contains(&number) {
            let reason = format!("is {number}, not within {}..={}", range.start(), range.end());
            return Err(self.invalid(name, reason));
        }
        Ok(Some(number))
    }

    /// Returns the number of a field, which must be positive and finite as f32.
    pub fn positive(&self, name: &str) -> Result<Option<f32>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let Some(number) = value.as_f64() else {
            return Err(self.invalid(name, format!("is {}, not a number", shortened(value))));
        };
        let number = number as f32;
        if !number.is_finite() || number <= 0.0 {
            return Err(self.invalid(name, format!("is {}, not a positive number", shortened(value))));
        }
        Ok(Some(number))
    }

    /// Returns the boolean of a field.
    pub fn flag(&self, name: &str) -> Result<Option<bool>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(value) => Err(self.invalid(name, format!("is {}, not true or false", shortened(value)))),
        }
    }

    /// Returns the string of a field.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(value) => Err(self.invalid(name, format!("is {}, not a string", shortened(value)))),
        }
    }

    /// Returns the list of a field.
    pub fn list(&self, name: &str) -> Result<Option<&'a [Value]>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(value) => Err(self.invalid(name, format!("is {}, not a list", shortened(value)))),
        }
    }

    /// Returns the object of a field.
    pub fn object(&self, name: &str) -> Result<Option<Fields<'a>>> {
        match self.map.get_key_value(name) {
            None | Some((_, Value::Null)) => Ok(None),
            Some((name, Value::Object(map))) => {
                let free = self.outer.iter().position(|part| part.is_empty()).unwrap_or(DEPTH - 1);
                let mut outer = self.outer;
                outer[free] = name;
                if let Some(seen) = self.seen {
                    seen.entered(self.path_of(name));
                }
                Ok(Some(Fields { outer, map, ..*self }))
            }
            Some((_, value)) => Err(self.invalid(name, format!("is {}, not an object", shortened(value)))),
        }
    }

    /// Refuses the field unless it is absent, `null`, `false`, 0 or empty.
    pub fn must_be_off(&self, name: &str) -> Result<()> {
        let off = match self.get(name) {
            None | Some(Value::Bool(false)) => true,
            Some(Value::Number(number)) => number.as_f64() == Some(0.0),
            Some(Value::Object(map)) => map.is_empty(),
            Some(Value::Array(list)) => list.is_empty(),
            Some(_) => false,
        };
        if off { Ok(()) } else { Err(self.unsupported(name, "none, or false")) }
    }
}

/// Formats a value for a message, with at most about forty characters.
pub(crate) fn shortened(value: &Value) -> String {
    let text = match value {
        Value::Array(list) => return format!("a list of {}", list.len()),
        Value::Object(map) => return format!("an object of {} fields", map.len()),
        Value::String(text) => format!("`{text}`"),
        other => other.to_string(),
    };
    if text.chars().count() <= 40 { text } else { text.chars().take(39).chain(['…']).collect() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_key_that_is_there_twice_is_named_with_its_line() {
        let parse = |text: &str| parse(Path::new("config.json"), text.as_bytes());
        assert!(parse(r#"{"a": {"a": 1}}"#).is_ok());
        let error = parse("{\"a\": 1,\n\"b\": {\"c\": 1, \"c\": 2}}").unwrap_err();
        assert_eq!(error.to_string(), "config.json: a second key `c` at line 2 column 17");
        assert!(error.help().is_some());
        assert!(parse("{").unwrap_err().to_string().starts_with("config.json: not JSON: "));
        let sorted = parse(r#"{"b": {"d": 1, "c": [{"f": 2, "e": 3}]}, "a": 4}"#).unwrap();
        assert_eq!(sorted.to_string(), r#"{"a":4,"b":{"c":[{"e":3,"f":2}],"d":1}}"#);
    }

    #[test]
    fn fields_name_their_place_and_their_fault() {
        let value = json!({
            "a": {"b": {"n": 3, "f": -1.0, "t": [1], "null": null, "long": "x".repeat(100)}},
        });
        let path = Path::new("config.json");
        let fields = Fields::new(path, &value).unwrap().object("a").unwrap().unwrap();
        let fields = fields.object("b").unwrap().unwrap();
        assert_eq!(fields.whole("n", &(1..=3)).unwrap(), Some(3));
        assert_eq!(fields.positive("n").unwrap(), Some(3.0));
        assert_eq!(fields.whole("null", &(1..=3)).unwrap(), None);
        assert!(fields.mentions("null") && fields.get("null").is_none());
        let cases = [
            (fields.whole("n", &(1..=2)).unwrap_err(), "`a.b.n` is 3, not within 1..=2"),
            (fields.whole("f", &(1..=2)).unwrap_err(), "not a whole number"),
            (fields.positive("f").unwrap_err(), "not a positive number"),
            (fields.flag("n").unwrap_err(), "not true or false"),
            (fields.text("t").unwrap_err(), "a list of 1, not a string"),
            (fields.list("n").unwrap_err(), "not a list"),
            (fields.object("n").map(|_| ()).unwrap_err(), "not an object"),
            (fields.must_be_off("n").unwrap_err(), "`a.b.n` is 3, which is not supported"),
            (fields.whole("long", &(1..=2)).unwrap_err(), "xxx…"),
        ];
        for (error, wanted) in cases {
            assert!(error.to_string().contains(wanted), "{error} instead of {wanted}");
        }
        let error = Fields::new(path, &json!([])).map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), "config.json: not a JSON object");
    }
}
