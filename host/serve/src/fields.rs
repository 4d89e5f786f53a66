//! Fields of requests. Each field is used, has no effect by its definition, or is refused by name.

use serde_json::{Map, Value};

use crate::refusal::Refusal;

/// An object of a request, whose fields are removed as they are read.
#[derive(Debug)]
pub(crate) struct Fields {
    /// Path of the object, empty for the request itself.
    at: String,
    values: Map<String, Value>,
    /// Fields that have no effect by their definition.
    inert: Vec<String>,
}

impl Fields {
    pub fn of(value: Value, at: &str) -> Result<Self, Refusal> {
        match value {
            Value::Object(values) => Ok(Fields { at: at.to_owned(), values, inert: Vec::new() }),
            other => Err(unexpected(at, "an object", &other)),
        }
    }

    /// Creates an object without fields.
    pub fn empty() -> Self {
        Fields { at: String::new(), values: Map::new(), inert: Vec::new() }
    }

    /// Returns the path of a field, such as `messages[0].role`.
    pub fn path(&self, name: &str) -> String {
        if self.at.is_empty() { name.to_owned() } else { format!("{}.{name}", self.at) }
    }

    /// Removes a field. `null` counts as absent.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.values.remove(name).filter(|value| !value.is_null())
    }

    pub fn required(&mut self, name: &str) -> Result<Value, Refusal> {
        self.take(name).ok_or_else(|| {
            let path = self.path(name);
            let what = format!("the field `{path}` is missing");
            Refusal::invalid("missing_field", what, format!("set `{path}`")).at(&path)
        })
    }

    pub fn text(&mut self, name: &str) -> Result<Option<String>, Refusal> {
        let path = self.path(name);
        self.take(name).map(|value| text(value, &path)).transpose()
    }

    pub fn required_text(&mut self, name: &str) -> Result<String, Refusal> {
        let (value, path) = (self.required(name)?, self.path(name));
        text(value, &path)
    }

    pub fn flag(&mut self, name: &str) -> Result<Option<bool>, Refusal> {
        let path = self.path(name);
        let flag = |value: Value| value.as_bool().ok_or_else(|| unexpected(&path, "true or false", &value));
        self.take(name).map(flag).transpose()
    }

    /// Reads a number from `least` to `most`.
    pub fn number(&mut self, name: &str, least: f64, most: f64) -> Result<Option<f32>, Refusal> {
        let (path, expected) = (self.path(name), format!("a number from {least} to {most}"));
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = value.as_f64().filter(|number| (least..=most).contains(number));
        number.map(|number| Some(number as f32)).ok_or_else(|| unexpected(&path, &expected, &value))
    }

    /// Reads a whole number from `least` to `most`.
    pub fn count(&mut self, name: &str, least: u64, most: u64) -> Result<Option<u64>, Refusal> {
        let path = self.path(name);
        let Some(value) = self.take(name) else { return Ok(None) };
        // Clients of some languages write 5.0.
        let whole = value.as_f64().filter(|number| number.fract() == 0.0 && (0.0..9e15).contains(number));
        let count = value.as_u64().or(whole.map(|number| number as u64));
        let count = count.filter(|count| (least..=most).contains(count));
        let expected = match most {
            u64::MAX => format!("a whole number from {least} up"),
            most => format!("a whole number from {least} to {most}"),
        };
        count.map(Some).ok_or_else(|| unexpected(&path, &expected, &value))
    }

    pub fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>, Refusal> {
        let path = self.path(name);
        self.take(name).map(|value| list(value, &path)).transpose()
    }

    pub fn object(&mut self, name: &str) -> Result<Option<Fields>, Refusal> {
        let path = self.path(name);
        self.take(name).map(|value| Fields::of(value, &path)).transpose()
    }

    /// Removes fields that have no effect by their definition, such as `user`. The response
    /// reports them.
    pub fn without_effect(&mut self, names: &[&str]) {
        for name in names {
            if self.take(name).is_some() {
                self.inert.push(self.path(name));
            }
        }
    }

    /// Accepts a field only with one of these values, which request the only behaviour that the
    /// server supports.
    pub fn only(&mut self, name: &str, accepted: &[Value], help: &str) -> Result<(), Refusal> {
        let path = self.path(name);
        match self.take(name) {
            Some(value) if !accepted.contains(&value) => Err(unsupported(&path, &value, help)),
            _ => Ok(()),
        }
    }

    /// Refuses fields that the server knows and does not support.
    pub fn refuse(&mut self, names: &[&str], help: &str) -> Result<(), Refusal> {
        names.iter().try_for_each(|name| self.only(name, &[], help))
    }

    /// Refuses all fields that are left. Returns the fields without effect.
    pub fn finish(self) -> Result<Vec<String>, Refusal> {
        // A field that is `null` is absent.
        match self.values.iter().find(|(_, value)| !value.is_null()) {
            None => Ok(self.inert),
            Some((name, _)) => {
                let path = self.path(&shortened(name));
                let what = format!("unknown field `{path}`");
                Err(Refusal::invalid("unknown_field", what, "remove the field").at(&path))
            }
        }
    }
}

/// Creates the refusal of a known field with an unsupported value.
pub(crate) fn unsupported(path: &str, value: &Value, help: &str) -> Refusal {
    let what = format!("unsupported value {} of the field `{path}`", shown(value));
    Refusal::invalid("unsupported_value", what, help).at(path)
}

/// Creates the refusal of a value of another kind.
pub(crate) fn unexpected(path: &str, expected: &str, value: &Value) -> Refusal {
    let named = if path.is_empty() { "the body".to_owned() } else { format!("`{path}`") };
    let what = format!("{named}: expected {expected}, got {}", shown(value));
    let help = format!("set {named} to {expected}");
    let refusal = Refusal::invalid("invalid_value", what, help);
    if path.is_empty() { refusal } else { refusal.at(path) }
}

pub(crate) fn text(value: Value, path: &str) -> Result<String, Refusal> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(unexpected(path, "a string", &other)),
    }
}

pub(crate) fn list(value: Value, path: &str) -> Result<Vec<Value>, Refusal> {
    match value {
        Value::Array(values) => Ok(values),
        other => Err(unexpected(path, "an array", &other)),
    }
}

/// Returns a value for messages: a kind, or a short text.
fn shown(value: &Value) -> String {
    match value {
        Value::Object(_) => "an object".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::String(text) => format!("`{}`", shortened(text)),
        other => format!("`{other}`"),
    }
}

/// Returns the beginning of a foreign text, without control characters.
pub(crate) fn shortened(text: &str) -> String {
    const MOST: usize = 60;
    let shown = |letter: char| if letter.is_control() { '\u{fffd}' } else { letter };
    let mut short: String = text.chars().take(MOST).map(shown).collect();
    if text.chars().nth(MOST).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn error<T: std::fmt::Debug>(result: Result<T, Refusal>) -> (String, String) {
        let document = result.unwrap_err().json();
        let field = |name: &str| document["error"][name].as_str().unwrap_or_default().to_owned();
        (field("code"), field("param"))
    }

    fn pair(code: &str, param: &str) -> (String, String) {
        (code.to_owned(), param.to_owned())
    }

    #[test]
    fn every_field_is_used_inert_or_refused() {
        let mut fields = Fields::of(json!({"a": 1, "user": "me", "n": 1, "x": null}), "").unwrap();
        fields.without_effect(&["user", "metadata"]);
        fields.only("n", &[json!(1)], "use 1").unwrap();
        assert_eq!(fields.count("a", 0, 3).unwrap(), Some(1));
        assert_eq!(fields.finish().unwrap(), ["user"]);
        let fields = Fields::of(json!({"b": 1}), "messages[2]").unwrap();
        assert_eq!(error(fields.finish()), pair("unknown_field", "messages[2].b"));
        let mut fields = Fields::of(json!({"n": 2, "store": true}), "").unwrap();
        assert_eq!(error(fields.only("n", &[json!(1)], "use 1")), pair("unsupported_value", "n"));
        assert_eq!(error(fields.refuse(&["store"], "no")), pair("unsupported_value", "store"));
        assert_eq!(error(fields.required("model")), pair("missing_field", "model"));
    }

    #[test]
    fn values_of_other_kinds_are_refused_with_their_path() {
        let document = json!({"t": 3, "f": 1, "c": -1, "d": 1.5, "e": 5.0, "g": "x", "h": {}, "i": []});
        let mut fields = Fields::of(document, "").unwrap();
        assert_eq!(error(fields.text("t")), pair("invalid_value", "t"));
        assert_eq!(error(fields.flag("f")), pair("invalid_value", "f"));
        assert_eq!(error(fields.count("c", 0, 9)), pair("invalid_value", "c"));
        assert_eq!(error(fields.count("d", 0, 9)), pair("invalid_value", "d"));
        assert_eq!(fields.count("e", 0, 9).unwrap(), Some(5));
        assert_eq!(error(fields.number("g", 0.0, 2.0)), pair("invalid_value", "g"));
        assert_eq!(error(fields.list("h")), pair("invalid_value", "h"));
        assert_eq!(error(fields.object("i")), pair("invalid_value", "i"));
        assert_eq!(error(Fields::of(json!([]), "")), pair("invalid_value", ""));
    }

    #[test]
    fn foreign_names_are_shortened_in_messages() {
        let name = format!("a\u{1b}{}", "b".repeat(500));
        let fields = Fields::of(json!({ name: 1 }), "").unwrap();
        let message = fields.finish().unwrap_err().json().to_string();
        assert!(message.len() < 400 && !message.contains('\u{1b}'), "{message}");
    }
}
