//! Counts of the parts of schemas on which the time and the memory of the compiler depend.

use serde_json::{Map, Value};
use shardwright_vocabulary::Result;

use crate::faults::too_large;

/// Most references. The compiler descends once for each that leads to the next.
const REFERENCES_MAX: usize = 20_000;

/// Most properties. The time of an object grows with the square of its properties, and the compiler
/// joins the objects of `allOf`.
const PROPERTIES_MAX: usize = 4_000;

/// Most properties next to `minProperties` or `maxProperties`, which can list the other properties
/// once for each property.
const COUNTED_PROPERTIES_MAX: usize = 250;

/// Most patterns for the names of properties. Each is compared with each name.
const PATTERNS_MAX: usize = 500;

/// Most alternatives of `oneOf`. Each is compared with each other one.
const ALTERNATIVES_MAX: usize = 5_000;

/// Most places in a grammar at which `%json` has no JSON after it, such as in comments.
const WITHOUT_JSON_MAX: usize = 64;

/// The counts of all schemas of a grammar.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    references: usize,
    properties: usize,
    patterns: usize,
    alternatives: usize,
    /// Whether a schema limits the number of properties.
    has_limits: bool,
}

impl Counts {
    /// Adds a schema of limited nesting.
    pub(crate) fn add(&mut self, schema: &Value) {
        match schema {
            Value::Array(items) => items.iter().for_each(|item| self.add(item)),
            Value::Object(members) => {
                self.add_keywords(members);
                members.values().for_each(|member| self.add(member));
            }
            _ => {}
        }
    }

    fn add_keywords(&mut self, members: &Map<String, Value>) {
        let size = |name: &str| members.get(name).and_then(Value::as_object).map_or(0, Map::len);
        let is_number = |name: &str| members.get(name).is_some_and(Value::is_number);
        self.references += usize::from(members.get("$ref").is_some_and(Value::is_string));
        self.properties += size("properties");
        self.patterns += size("patternProperties");
        self.alternatives += members.get("oneOf").and_then(Value::as_array).map_or(0, Vec::len);
        self.has_limits |= is_number("minProperties") || is_number("maxProperties");
    }

    /// Adds the schemas that a Lark grammar embeds.
    ///
    /// # Errors
    ///
    /// If too many places only look like embedded schemas.
    pub(crate) fn add_embedded(&mut self, lark: &str) -> Result<()> {
        let (mut end, mut without_json) = (0, 0);
        for (start, keyword) in lark.match_indices("%json") {
            if start < end {
                continue;
            }
            let rest = &lark[start + keyword.len()..];
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
            match values.next() {
                Some(Ok(schema)) => {
                    end = start + keyword.len() + values.byte_offset();
                    self.add(&schema);
                }
                _ if without_json == WITHOUT_JSON_MAX => {
                    let what = "the grammar has `%json` without JSON";
                    return Err(too_large(&format!("{what} at more than {WITHOUT_JSON_MAX} places")));
                }
                _ => without_json += 1,
            }
        }
        Ok(())
    }

    /// Checks the limits.
    ///
    /// # Errors
    ///
    /// If a count is too large for the compiler.
    pub(crate) fn check(&self, noun: &str) -> Result<()> {
        let (properties, most) = match self.has_limits {
            true => ("properties with `minProperties` or `maxProperties`", COUNTED_PROPERTIES_MAX),
            false => ("properties", PROPERTIES_MAX),
        };
        for (count, name, most) in [
            (self.references, "references", REFERENCES_MAX),
            (self.properties, properties, most),
            (self.patterns, "members of `patternProperties`", PATTERNS_MAX),
            (self.alternatives, "alternatives of `oneOf`", ALTERNATIVES_MAX),
        ] {
            if count > most {
                return Err(too_large(&format!("the {noun} has {count} {name}; at most {most} are allowed")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    fn list(count: usize, item: &Value) -> Value {
        (0..count).map(|_| item.clone()).collect()
    }

    fn members(count: usize) -> Value {
        (0..count).map(|index| (format!("m{index}"), json!({}))).collect()
    }

    fn check(schema: &Value) -> Result<()> {
        let mut counts = Counts::default();
        counts.add(schema);
        let plain = counts.check("JSON schema");
        // An embedded schema has the same limits.
        let mut counts = Counts::default();
        counts.add_embedded(&format!("# %json\nstart: \"a\" %json {schema} %json {{}}\n"))?;
        let embedded = counts.check("JSON schema");
        assert_eq!(plain.map_err(|error| error.to_string()), embedded.map_err(|error| error.to_string()));
        counts.check("JSON schema")
    }

    #[test]
    fn counts_are_limited_in_plain_and_in_embedded_schemas() {
        let reference = json!({ "$ref": "#" });
        let counted = |count| json!({ "allOf": [{ "properties": members(count) }, { "minProperties": 1 }] });
        let of_properties = |count| json!({ "properties": members(count) });
        let halves = |count| json!({ "allOf": [of_properties(count - 9), of_properties(9)] });
        type Schema<'a> = &'a dyn Fn(usize) -> Value;
        let kinds: [(Schema, usize, &str); 5] = [
            (&|count| json!({ "anyOf": list(count, &reference) }), REFERENCES_MAX, "20001 references"),
            (&halves, PROPERTIES_MAX, "4001 properties; at most 4000"),
            (&counted, COUNTED_PROPERTIES_MAX, "251 properties with `minProperties`"),
            (&|count| json!({ "patternProperties": members(count) }), PATTERNS_MAX, "501 members of"),
            (&|count| json!({ "oneOf": list(count, &json!({})) }), ALTERNATIVES_MAX, "5001 alternatives"),
        ];
        for (schema, most, words) in kinds {
            check(&schema(most)).unwrap();
            let error = check(&schema(most + 1)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument);
            assert!(error.message().contains(words) && error.help().is_some(), "{error}");
        }
        // Properties may have the names of keywords.
        let named = json!({ "minProperties": {}, "$ref": {}, "m": of_properties(600) });
        check(&json!({ "properties": named })).unwrap();
    }

    #[test]
    fn places_that_look_like_schemas_are_limited() {
        let mut counts = Counts::default();
        counts.add_embedded(&"# %json\n".repeat(WITHOUT_JSON_MAX)).unwrap();
        let error = counts.add_embedded(&"# %json\n".repeat(WITHOUT_JSON_MAX + 1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert!(error.message().contains("without JSON") && error.help().is_some(), "{error}");
    }
}
