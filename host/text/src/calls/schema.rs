//! Rules of a grammar for a JSON schema, in the syntax of Gemma's calls: strings between marks,
//! keys without quotes.
//!
//! The rules accept only values that the schema accepts, but not all of them: members that
//! `properties` does not name are left out where possible, and members come in the order in which
//! templates sort them. A keyword that cannot be enforced is an error that names it.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::{Map, Value};
use shardwright_vocabulary::{Error, Result};

use super::grammar::quoted;
use super::parser::is_name_character;
use crate::input::JSON_NESTING_MAX;

/// Most bytes of the rules of a tool.
const RULES_BYTES_MAX: usize = 256 << 10;

/// Keywords that do not restrict values.
const ANNOTATIONS: [&str; 18] = [
    "title",
    "description",
    "default",
    "examples",
    "example",
    "$comment",
    "$schema",
    "$id",
    "$defs",
    "definitions",
    "format",
    "deprecated",
    "readOnly",
    "writeOnly",
    "nullable",
    "contentMediaType",
    "contentEncoding",
    "id",
];

/// Keywords that restrict values and are enforced.
const ENFORCED: [&str; 21] = [
    "type",
    "enum",
    "const",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "pattern",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];

/// The schema of any value.
static ANY: Value = Value::Bool(true);

/// Keywords of numbers, which JSON and Gemma write alike.
const OF_NUMBERS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// The rules of one schema.
pub(crate) struct SchemaRules<'s> {
    root: &'s Value,
    /// Id of the token around strings.
    quote: u32,
    /// The start of the names of rules.
    prefix: &'s str,
    tool: &'s str,
    rules: String,
    count: usize,
    /// Rules of referenced schemas by their reference.
    references: HashMap<String, String>,
    any: Option<String>,
}

impl<'s> SchemaRules<'s> {
    /// Returns the name of the rule of `schema`, and all rules. Their names start with `prefix`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](shardwright_vocabulary::ErrorKind::Unsupported) for a keyword that
    /// cannot be enforced, and [`ErrorKind::Argument`](shardwright_vocabulary::ErrorKind::Argument)
    /// for a schema that is invalid or too large.
    pub(crate) fn of(
        schema: &'s Value,
        quote: u32,
        prefix: &'s str,
        tool: &'s str,
    ) -> Result<(String, String)> {
        let mut rules = SchemaRules {
            root: schema,
            quote,
            prefix,
            tool,
            rules: String::new(),
            count: 0,
            references: HashMap::new(),
            any: None,
        };
        let root = rules.schema(schema, 0)?;
        Ok((root, rules.rules))
    }

    /// Adds a rule and returns its name.
    fn rule(&mut self, body: &str) -> Result<String> {
        let name = self.name();
        self.define(&name, body)?;
        Ok(name)
    }

    fn name(&mut self) -> String {
        self.count += 1;
        format!("{}_{}", self.prefix, self.count)
    }

    fn define(&mut self, name: &str, body: &str) -> Result<()> {
        // Writing to a string does not fail.
        let _ = writeln!(self.rules, "{name}: {body}");
        if self.rules.len() <= RULES_BYTES_MAX {
            return Ok(());
        }
        Err(self.invalid(&format!("becomes a grammar of more than {RULES_BYTES_MAX} bytes")))
    }

    fn schema(&mut self, schema: &'s Value, depth: usize) -> Result<String> {
        if depth > JSON_NESTING_MAX {
            return Err(self.invalid(&format!("is nested deeper than {JSON_NESTING_MAX} levels")));
        }
        let keywords = match schema {
            Value::Bool(true) => return self.any(),
            Value::Object(keywords) => keywords,
            _ => return Err(self.invalid("has a schema that is not an object or `true`")),
        };
        let is_known =
            |key: &&String| ENFORCED.contains(&key.as_str()) || ANNOTATIONS.contains(&key.as_str());
        if let Some(unknown) = keywords.keys().find(|key| !is_known(key)) {
            return Err(self.unsupported(unknown, ""));
        }
        if let Some(reference) = keywords.get("$ref") {
            self.expect_alone("$ref", keywords, &[])?;
            return self.reference(reference, depth);
        }
        if let Some(value) = keywords.get("const") {
            self.expect_alone("const", keywords, &["type"])?;
            return self.choice(std::slice::from_ref(value), keywords);
        }
        if let Some(values) = keywords.get("enum") {
            self.expect_alone("enum", keywords, &["type"])?;
            let values = values.as_array().ok_or_else(|| self.invalid("has an `enum` that is not a list"))?;
            return self.choice(values, keywords);
        }
        for keyword in ["anyOf", "oneOf", "allOf"] {
            if let Some(schemas) = keywords.get(keyword) {
                return self.composed(keyword, schemas, keywords, depth);
            }
        }
        self.typed(keywords, depth)
    }

    /// Checks that no other keyword restricts the value.
    fn expect_alone(&self, keyword: &str, keywords: &Map<String, Value>, also: &[&str]) -> Result<()> {
        let restricts = |key: &&String| {
            *key != keyword && !also.contains(&key.as_str()) && !ANNOTATIONS.contains(&key.as_str())
        };
        match keywords.keys().find(restricts) {
            None => Ok(()),
            Some(other) => Err(self.unsupported(other, &format!(" next to `{keyword}`"))),
        }
    }

    fn reference(&mut self, reference: &'s Value, depth: usize) -> Result<String> {
        let reference =
            reference.as_str().ok_or_else(|| self.invalid("has a `$ref` that is not a string"))?;
        if let Some(name) = self.references.get(reference) {
            return Ok(name.clone());
        }
        let schema = reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer));
        let Some(schema) = schema else {
            return Err(self.invalid(&format!("refers to `{reference}`, which does not exist in it")));
        };
        let name = self.name();
        self.references.insert(reference.to_owned(), name.clone());
        let body = self.schema(schema, depth + 1)?;
        self.define(&name, &body)?;
        Ok(name)
    }

    /// Returns the rule of these values, without ones of another type.
    fn choice(&mut self, values: &[Value], keywords: &Map<String, Value>) -> Result<String> {
        let types = self.types(keywords)?;
        let fits =
            |value: &&Value| types.as_ref().is_none_or(|types| types.iter().any(|kind| is_of(value, kind)));
        let values: Vec<String> = values.iter().filter(fits).map(|value| self.literal(value)).collect();
        if values.is_empty() {
            return Err(self.invalid("has an `enum` or `const` without a value of its type"));
        }
        self.rule(&values.join(" | "))
    }

    fn composed(
        &mut self,
        keyword: &str,
        schemas: &'s Value,
        keywords: &'s Map<String, Value>,
        depth: usize,
    ) -> Result<String> {
        self.expect_alone(keyword, keywords, &[])?;
        let schemas = schemas.as_array().filter(|schemas| !schemas.is_empty());
        let schemas = schemas
            .ok_or_else(|| self.invalid(&format!("has an `{keyword}` that is not a list of schemas")))?;
        match keyword {
            "allOf" if schemas.len() > 1 => return Err(self.unsupported("allOf", " of several schemas")),
            "oneOf" if !are_disjoint(schemas) => {
                return Err(self.unsupported("oneOf", " of schemas that may overlap"));
            }
            _ => {}
        }
        let names: Result<Vec<String>> =
            schemas.iter().map(|schema| self.schema(schema, depth + 1)).collect();
        self.rule(&names?.join(" | "))
    }

    /// Returns the types of a schema. `None` if it does not restrict them.
    fn types(&self, keywords: &Map<String, Value>) -> Result<Option<Vec<String>>> {
        const TYPES: [&str; 7] = ["string", "integer", "number", "boolean", "null", "object", "array"];
        let names: Vec<&Value> = match keywords.get("type") {
            None => return Ok(None),
            Some(Value::Array(names)) if !names.is_empty() => names.iter().collect(),
            Some(name) => vec![name],
        };
        let known = |name: &&Value| name.as_str().filter(|name| TYPES.contains(name)).map(str::to_owned);
        let names: Option<Vec<String>> = names.iter().map(known).collect();
        names.map(Some).ok_or_else(|| self.invalid("has an unknown `type`"))
    }

    fn typed(&mut self, keywords: &'s Map<String, Value>, depth: usize) -> Result<String> {
        let has = |names: &[&str]| names.iter().any(|name| keywords.contains_key(*name));
        let types = match self.types(keywords)? {
            Some(types) => types,
            None if has(&["properties", "required", "additionalProperties"]) => vec!["object".to_owned()],
            None if has(&["items", "minItems", "maxItems"]) => vec!["array".to_owned()],
            None if has(&["minLength", "maxLength", "pattern"]) => vec!["string".to_owned()],
            None if has(&OF_NUMBERS) => vec!["number".to_owned()],
            None => return self.any(),
        };
        let mut names = Vec::new();
        for kind in types {
            names.push(match kind.as_str() {
                "string" => self.string(keywords)?,
                "integer" | "number" => self.number(&kind, keywords)?,
                "boolean" => self.rule("\"true\" | \"false\"")?,
                "null" => self.rule("\"null\"")?,
                "array" => self.array(keywords, depth)?,
                _ => self.object(keywords, depth)?,
            });
        }
        if names.len() == 1 { Ok(names.swap_remove(0)) } else { self.rule(&names.join(" | ")) }
    }

    fn string(&mut self, keywords: &Map<String, Value>) -> Result<String> {
        let least = self.count_of(keywords, "minLength")?.unwrap_or(0);
        let most = self.count_of(keywords, "maxLength")?;
        let terminal = self.name().to_uppercase();
        let inside = match keywords.get("pattern") {
            Some(pattern) => {
                if least > 0 || most.is_some() {
                    return Err(self.unsupported("pattern", " next to `minLength` or `maxLength`"));
                }
                let pattern = pattern.as_str().and_then(whole_pattern);
                let pattern =
                    pattern.ok_or_else(|| self.unsupported("pattern", " with anchors or look-around"))?;
                self.define(&terminal, &pattern)?;
                terminal
            }
            None if most.is_some_and(|most| most < least) => {
                return Err(self.invalid("has a `maxLength` below its `minLength`"));
            }
            None if most == Some(0) => String::new(),
            None => {
                let most = most.map(|most| most.to_string()).unwrap_or_default();
                self.define(&terminal, &format!("/(?s:.){{{},{most}}}/", least.max(1)))?;
                if least == 0 { terminal + "?" } else { terminal }
            }
        };
        self.rule(&format!("<[{0}]> {inside} <[{0}]>", self.quote))
    }

    fn number(&mut self, kind: &str, keywords: &Map<String, Value>) -> Result<String> {
        let mut schema = Map::from_iter([("type".to_owned(), Value::from(kind))]);
        for name in OF_NUMBERS {
            schema.extend(keywords.get(name).map(|value| (name.to_owned(), value.clone())));
        }
        self.rule(&format!("%json {}", Value::Object(schema)))
    }

    fn array(&mut self, keywords: &'s Map<String, Value>, depth: usize) -> Result<String> {
        let item = match keywords.get("items") {
            None => self.any()?,
            Some(Value::Array(_)) => return Err(self.unsupported("items", " with a list of schemas")),
            Some(schema) => self.schema(schema, depth + 1)?,
        };
        let least = self.count_of(keywords, "minItems")?.unwrap_or(0);
        let most = self.count_of(keywords, "maxItems")?;
        if most.is_some_and(|most| most < least) {
            return Err(self.invalid("has a `maxItems` below its `minItems`"));
        }
        if most == Some(0) {
            return self.rule("\"[\" \"]\"");
        }
        let further = most.map(|most| (most - 1).to_string()).unwrap_or_default();
        let items = format!("{item} (\",\" {item}){{{},{further}}}", least.saturating_sub(1));
        self.rule(&if least == 0 {
            format!("\"[\" ({items})? \"]\"")
        } else {
            format!("\"[\" {items} \"]\"")
        })
    }

    fn object(&mut self, keywords: &'s Map<String, Value>, depth: usize) -> Result<String> {
        let properties = match keywords.get("properties") {
            None => None,
            Some(Value::Object(properties)) => Some(properties),
            Some(_) => return Err(self.invalid("has `properties` that are not an object")),
        };
        let required: Vec<&str> = match keywords.get("required") {
            None => Vec::new(),
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            Some(_) => return Err(self.invalid("has a `required` that is not a list")),
        };
        let additional = keywords.get("additionalProperties").unwrap_or(&ANY);
        if properties.is_none_or(Map::is_empty) && required.is_empty() {
            return match additional {
                Value::Bool(false) => self.rule("\"{\" \"}\""),
                _ if properties.is_some() => self.rule("\"{\" \"}\""),
                schema => {
                    let value = self.schema(schema, depth + 1)?;
                    self.map(&value)
                }
            };
        }
        let mut members: Vec<(&str, String)> = Vec::new();
        for (name, schema) in properties.into_iter().flatten() {
            let value = self.schema(schema, depth + 1)?;
            members.push((name, value));
        }
        for name in &required {
            if members.iter().any(|(existing, _)| existing == name) {
                continue;
            }
            if *additional == Value::Bool(false) {
                return Err(self.invalid(&format!("requires `{name}`, which it does not allow")));
            }
            let value = self.schema(additional, depth + 1)?;
            members.push((name, value));
        }
        // As templates sort them.
        members.sort_by_key(|(name, _)| name.to_lowercase());
        self.members(&members, &required)
    }

    /// Returns the rule of an object with these members, of which some are required.
    fn members(&mut self, members: &[(&str, String)], required: &[&str]) -> Result<String> {
        // From the last member on: the members after one that is present.
        let mut after = String::new();
        let mut beginnings = Vec::new();
        for (name, value) in members.iter().rev() {
            let member = self.rule(&format!("{} {value}", self.key(name)))?;
            let is_required = required.contains(name);
            if is_required {
                beginnings.clear();
            }
            beginnings.push(format!("{member} {after}"));
            let further = if is_required { format!("\",\" {member}") } else { format!("(\",\" {member})?") };
            after = self.rule(&format!("{further} {after}"))?;
        }
        if !members.iter().any(|(name, _)| required.contains(name)) {
            beginnings.push("\"\"".to_owned());
        }
        let inside = self.rule(&beginnings.join(" | "))?;
        self.rule(&format!("\"{{\" {inside} \"}}\""))
    }

    /// Returns the rule of an object with any keys.
    fn map(&mut self, value: &str) -> Result<String> {
        let key = self.name().to_uppercase();
        self.define(&key, "/[A-Za-z_][A-Za-z0-9_]*/")?;
        self.rule(&format!("\"{{\" ({key} \":\" {value} (\",\" {key} \":\" {value})*)? \"}}\""))
    }

    /// Returns the rule of any value.
    fn any(&mut self) -> Result<String> {
        if let Some(any) = &self.any {
            return Ok(any.clone());
        }
        let any = self.name();
        self.any = Some(any.clone());
        let (text, number) = (self.string(&Map::new())?, self.number("number", &Map::new())?);
        let map = self.map(&any)?;
        let list = self.rule(&format!("\"[\" ({any} (\",\" {any})*)? \"]\""))?;
        self.define(&any, &format!("{text} | {number} | \"true\" | \"false\" | \"null\" | {list} | {map}"))?;
        Ok(any)
    }

    /// Returns a key with its colon.
    fn key(&self, name: &str) -> String {
        if !name.is_empty() && name.chars().all(|c| is_name_character(c) && c != ':') {
            return quoted(&format!("{name}:"));
        }
        format!("<[{0}]> {1} <[{0}]> \":\"", self.quote, quoted(name))
    }

    /// Returns a value, written out.
    fn literal(&self, value: &Value) -> String {
        let joined = |parts: Vec<String>| parts.join(" \",\" ");
        match value {
            Value::String(text) => format!("<[{0}]> {1} <[{0}]>", self.quote, quoted(text)),
            Value::Array(items) => {
                format!("\"[\" {} \"]\"", joined(items.iter().map(|item| self.literal(item)).collect()))
            }
            Value::Object(members) => {
                let member =
                    |(name, value): (&String, &Value)| format!("{} {}", self.key(name), self.literal(value));
                format!("\"{{\" {} \"}}\"", joined(members.iter().map(member).collect()))
            }
            scalar => quoted(&scalar.to_string()),
        }
    }

    fn count_of(&self, keywords: &Map<String, Value>, name: &str) -> Result<Option<usize>> {
        /// Most repetitions in a rule: a longer text or list is not limited by a count.
        const COUNT_MAX: u64 = 100_000;
        match keywords.get(name) {
            None => Ok(None),
            Some(value) => match value.as_u64().filter(|count| *count <= COUNT_MAX) {
                Some(count) => Ok(Some(count as usize)),
                None => {
                    Err(self.invalid(&format!("has a `{name}` that is not a number from 0 to {COUNT_MAX}")))
                }
            },
        }
    }

    fn unsupported(&self, keyword: &str, details: &str) -> Error {
        let what = format!(
            "calls of the tool `{}` cannot be forced: its schema has `{keyword}`{details}",
            self.tool
        );
        Error::unsupported(what)
            .with_help("remove the keyword, or let the model choose whether it calls tools")
    }

    fn invalid(&self, what: &str) -> Error {
        Error::argument(format!("the schema of the tool `{}` {what}", self.tool))
            .with_help("correct the schema")
    }
}

fn is_of(value: &Value, kind: &str) -> bool {
    match kind {
        "string" => value.is_string(),
        "integer" => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "object" => value.is_object(),
        _ => value.is_array(),
    }
}

/// Checks that no value matches two of the schemas, by their types or by their values.
fn are_disjoint(schemas: &[Value]) -> bool {
    let kind = |schema: &Value| {
        let kind = schema.get("type")?.as_str()?;
        Some(if kind == "integer" { "number" } else { kind }.to_owned())
    };
    let values = |schema: &Value| match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value.clone()]),
        (None, Some(Value::Array(values))) => Some(values.clone()),
        _ => None,
    };
    schemas.iter().enumerate().all(|(index, schema)| {
        schemas[..index].iter().all(|other| match (kind(schema), kind(other)) {
            (Some(one), Some(two)) if one != two => true,
            _ => match (values(schema), values(other)) {
                (Some(one), Some(two)) => one.iter().all(|value| !two.contains(value)),
                _ => false,
            },
        })
    })
}

/// Returns the regular expression of a terminal for texts that contain a match of `pattern`. `None`
/// if it has anchors other than one at each end, or look-around.
fn whole_pattern(pattern: &str) -> Option<String> {
    let (inside, begins) = pattern.strip_prefix('^').map_or((pattern, false), |rest| (rest, true));
    let escapes = inside.strip_suffix('$').map_or(0, |rest| rest.len() - rest.trim_end_matches('\\').len());
    let ends = inside.ends_with('$') && escapes % 2 == 0;
    let inside = if ends { &inside[..inside.len() - 1] } else { inside };
    let mut escaped = false;
    let mut class = false;
    let mut out = String::new();
    for character in inside.chars() {
        match character {
            _ if character.is_control() => return None,
            'b' | 'B' | 'A' | 'z' | 'Z' if escaped && !class => return None,
            '^' | '$' if !escaped && !class => return None,
            // Anchors at the ends would belong to one alternative only.
            '|' if !escaped && !class && (begins || ends) && !is_grouped(inside) => return None,
            '/' if !escaped => out.push('\\'),
            '[' if !escaped => class = true,
            ']' if !escaped => class = false,
            _ => {}
        }
        out.push(character);
        escaped = character == '\\' && !escaped;
    }
    if out.is_empty() || out.contains("(?=") || out.contains("(?!") || out.contains("(?<") {
        return None;
    }
    let (before, after) = (if begins { "" } else { "(?s:.*)" }, if ends { "" } else { "(?s:.*)" });
    Some(format!("/{before}({out}){after}/"))
}

/// Checks whether all alternatives of a pattern are within groups.
fn is_grouped(pattern: &str) -> bool {
    let (mut depth, mut escaped, mut class) = (0_usize, false, false);
    for character in pattern.chars() {
        match character {
            _ if escaped => {}
            '[' => class = true,
            ']' => class = false,
            '(' if !class => depth += 1,
            ')' if !class => depth = depth.saturating_sub(1),
            '|' if !class && depth == 0 => return false,
            _ => {}
        }
        escaped = character == '\\' && !escaped;
    }
    true
}
