//! The keywords of a JSON schema: unsupported ones, and ones without effect.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use shardwright_vocabulary::Result;

use crate::faults::too_large;

/// Keywords that restrict values or annotate them, and that the parser of grammars knows.
const KNOWN: [&str; 43] = [
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "const",
    "enum",
    "type",
    "items",
    "additionalItems",
    "prefixItems",
    "minItems",
    "maxItems",
    "properties",
    "additionalProperties",
    "patternProperties",
    "required",
    "minProperties",
    "maxProperties",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "$anchor",
    "$defs",
    "definitions",
    "$schema",
    "$id",
    "id",
    "$comment",
    "title",
    "description",
    "default",
    "readOnly",
    "writeOnly",
    "examples",
    "contentMediaType",
    "contentEncoding",
    "deprecated",
];

/// Keywords of any draft that restrict values, and that the parser does not implement.
const UNSUPPORTED: [&str; 22] = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$dynamicAnchor",
    "$recursiveRef",
    "$recursiveAnchor",
    "$vocabulary",
    "contentSchema",
    "extends",
    "disallow",
];

/// Options of llguidance at the top of a schema, such as `whitespace_flexible`.
pub(crate) const OPTIONS: &str = "x-guidance";

/// Most bytes of the JSON pointers of listed keywords. The names of members repeat in each pointer
/// below them.
const LISTED_BYTES_MAX: usize = 4 << 20;

/// The keywords of a schema that do not have their usual effect, as JSON pointers.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Keywords {
    /// Keywords that restrict values and are not implemented.
    pub(crate) unsupported: Vec<String>,
    /// Unknown keywords, which the JSON Schema specification treats as annotations.
    pub(crate) ignored: Vec<String>,
    /// Bytes of all pointers.
    bytes: usize,
}

impl Keywords {
    /// Finds the keywords of all schemas in `schema`, which is nested in a limited number of
    /// levels.
    ///
    /// # Errors
    ///
    /// If their list would be too long.
    pub(crate) fn of(schema: &Value) -> Result<Keywords> {
        let mut found = Keywords::default();
        let mut referenced = BTreeSet::new();
        found.visit(schema, &mut String::new(), &mut referenced);
        if found.bytes > LISTED_BYTES_MAX {
            let what = format!("unknown or unsupported keywords have paths of {} bytes", found.bytes);
            return Err(too_large(&format!("{what}; at most {LISTED_BYTES_MAX} are allowed")));
        }
        // Members of the whole document that only hold referenced schemas.
        found.ignored.retain(|pointer| !referenced.contains(pointer.as_str()) && pointer != "/x-guidance");
        Ok(found)
    }

    /// Visits the schema at the JSON pointer `at`, which is the same afterwards.
    fn visit<'s>(&mut self, schema: &'s Value, at: &mut String, referenced: &mut BTreeSet<&'s str>) {
        let Value::Object(members) = schema else { return };
        let is_root = at.is_empty();
        for (name, value) in members {
            let length = step(at, name);
            let is_unsupported = UNSUPPORTED.contains(&name.as_str());
            if is_unsupported || !(KNOWN.contains(&name.as_str()) || is_root && name == OPTIONS) {
                self.bytes = self.bytes.saturating_add(at.len());
                let list = if is_unsupported { &mut self.unsupported } else { &mut self.ignored };
                list.extend((self.bytes <= LISTED_BYTES_MAX).then(|| at.clone()));
            }
            if let ("$ref", Some(target)) = (name.as_str(), value.as_str()) {
                referenced.extend(target.strip_prefix('#').and_then(first_step));
            }
            match name.as_str() {
                "properties" | "patternProperties" | "$defs" | "definitions" => {
                    value.as_object().into_iter().flat_map(Map::iter).for_each(|(key, schema)| {
                        self.visit_at(schema, key, at, referenced);
                    });
                }
                "anyOf"
                | "oneOf"
                | "allOf"
                | "prefixItems"
                | "items"
                | "additionalItems"
                | "additionalProperties" => match value {
                    Value::Array(schemas) => schemas.iter().enumerate().for_each(|(index, schema)| {
                        self.visit_at(schema, &index.to_string(), at, referenced);
                    }),
                    schema => self.visit(schema, at, referenced),
                },
                _ => {}
            }
            at.truncate(length);
        }
    }

    /// Visits the schema at the step `name` from `at`.
    fn visit_at<'s>(
        &mut self,
        schema: &'s Value,
        name: &str,
        at: &mut String,
        referenced: &mut BTreeSet<&'s str>,
    ) {
        let length = step(at, name);
        self.visit(schema, at, referenced);
        at.truncate(length);
    }
}

/// Extends a JSON pointer by a step, and returns its length before.
fn step(pointer: &mut String, name: &str) -> usize {
    let length = pointer.len();
    pointer.push('/');
    pointer.push_str(name);
    length
}

/// Returns the first step of a JSON pointer, with its slash.
fn first_step(pointer: &str) -> Option<&str> {
    let rest = pointer.strip_prefix('/')?;
    let length = rest.find('/').unwrap_or(rest.len());
    Some(&pointer[..=length])
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    #[test]
    fn keywords_are_found_where_schemas_are_and_nowhere_else() {
        let schema = json!({
            "x-guidance": { "whitespace_flexible": false },
            "nullable": true,
            "components": { "schemas": { "P": { "type": "string" } } },
            "const": { "not": 1 },
            "properties": {
                "not": { "type": "string", "deprecated": true },
                "a": { "not": {}, "requried": [] },
                "b": { "$ref": "#/components/schemas/P" },
            },
            "anyOf": [{ "items": { "uniqueItems": true } }, true],
            "$defs": { "if": { "if": {} } },
        });
        let Keywords { mut unsupported, mut ignored, .. } = Keywords::of(&schema).unwrap();
        unsupported.sort();
        ignored.sort();
        assert_eq!(unsupported, ["/$defs/if/if", "/anyOf/0/items/uniqueItems", "/properties/a/not"]);
        assert_eq!(ignored, ["/nullable", "/properties/a/requried"]);
        assert_eq!(Keywords::of(&json!(true)).unwrap(), Keywords::default());
    }

    #[test]
    fn long_names_do_not_multiply() {
        let unknown: Value = (0..10_000).map(|index| (format!("k{index}"), json!(1))).collect();
        let deep = json!({ "properties": { "n".repeat(1 << 20): unknown } });
        let error = Keywords::of(&deep).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert!(error.message().contains("keywords have paths of") && error.help().is_some(), "{error}");
    }
}
