//! Generated JSON schemas, for measurements of structured output: schemas of every keyword that the
//! parser of grammars implements, and schemas with one keyword that it does not.
//!
//! Each schema can be satisfied, and its replies are short. The bounds of numbers have exact binary
//! fractions, so that a validator with floating-point numbers agrees. A grammar cannot prevent that
//! two members have the same name, so no schema needs more than one member of a free name.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use shardwright_test_checkpoints::Random;

/// The keywords that restrict values in llguidance 1.9.1.
pub const KEYWORDS: [&str; 27] = [
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
];

/// Names of members. None of them is a keyword.
const NAMES: [&str; 24] = [
    "name", "city", "age", "count", "price", "note", "color", "code", "start", "end", "email", "phone",
    "level", "score", "owner", "status", "rate", "unit", "width", "height", "street", "country", "year",
    "day",
];

/// Words of enumerations and constants.
const WORDS: [&str; 12] = [
    "red", "green", "blue", "north", "south", "small", "large", "open", "closed", "daily", "weekly", "never",
];

/// Patterns with bounded texts.
const PATTERNS: [&str; 6] = [
    "^[A-Z][a-z]{2,8}$",
    "^[A-Z]{2}-[0-9]{3}$",
    "^(yes|no|maybe)$",
    "^[0-9]{5}(-[0-9]{4})?$",
    "^#[0-9a-f]{6}$",
    "^v[0-9]+\\.[0-9]+$",
];

const FORMATS: [&str; 8] = ["date", "time", "date-time", "email", "ipv4", "uuid", "hostname", "duration"];

/// Patterns of names that no text matches both of.
const NAME_PATTERNS: [&str; 2] = ["^n_[a-z]{1,4}$", "^s_[a-z]{1,4}$"];

/// Ways to make a schema.
const FORMS: [fn(&mut Maker) -> Value; 20] = [
    Maker::closed_object,
    Maker::object_with_optional_members,
    Maker::at_least_one_member,
    Maker::exactly_one_member,
    Maker::members_by_pattern,
    Maker::members_of_any_name,
    Maker::list,
    Maker::tuple,
    Maker::tuple_and_further_items,
    Maker::tuple_of_draft_7,
    Maker::tagged_union,
    Maker::union_of_types,
    Maker::one_of_types,
    Maker::joined_objects,
    Maker::joined_scalars,
    Maker::shared_definitions,
    Maker::linked_list,
    Maker::tree,
    Maker::texts,
    Maker::numbers,
];

/// Returns `count` schemas. The ways to make them alternate, so that every keyword is in about as
/// many schemas for each seed.
pub fn accepted(seed: u64, count: usize) -> Vec<Value> {
    let mut maker = Maker(Random::new(seed, "schemas"));
    (0..count).map(|index| FORMS[index % FORMS.len()](&mut maker)).collect()
}

/// Makes schemas at random.
struct Maker(Random);

impl Maker {
    fn below(&mut self, end: usize) -> usize {
        self.0.below(end as u64) as usize
    }

    fn between(&mut self, least: i64, most: i64) -> i64 {
        least + self.below((most - least + 1) as usize) as i64
    }

    fn pick(&mut self, from: &[&'static str]) -> &'static str {
        from[self.below(from.len())]
    }

    /// Returns `count` different entries.
    fn several(&mut self, from: &[&'static str], count: usize) -> Vec<&'static str> {
        let mut left = from.to_vec();
        (0..count.min(from.len())).map(|_| left.swap_remove(self.below(left.len()))).collect()
    }

    fn text(&mut self) -> Value {
        match self.below(7) {
            0 | 1 => json!({ "type": "string", "maxLength": self.between(6, 24) }),
            2 => {
                let least = self.between(1, 6);
                json!({ "type": "string", "minLength": least, "maxLength": least + self.between(4, 16) })
            }
            3 => json!({ "type": "string", "pattern": self.pick(&PATTERNS) }),
            4 => json!({ "type": "string", "format": self.pick(&FORMATS) }),
            5 => json!({ "const": self.pick(&WORDS) }),
            _ => json!({ "type": "string", "enum": self.several(&WORDS, 3) }),
        }
    }

    fn number(&mut self) -> Value {
        let least = self.between(-20, 50);
        let most = least + self.between(10, 400);
        match self.below(6) {
            0 => json!({ "type": "integer", "minimum": least, "maximum": most }),
            1 => json!({ "type": "integer", "exclusiveMinimum": least, "exclusiveMaximum": most }),
            2 => {
                let step = self.between(2, 7);
                json!({ "type": "integer", "minimum": 0, "maximum": 40 * step, "multipleOf": step })
            }
            3 => {
                let (least, most) = (least as f64 + 0.5, most as f64 + 0.25);
                json!({ "type": "number", "minimum": least, "maximum": most, "multipleOf": 0.25 })
            }
            4 => json!({ "type": "number", "exclusiveMinimum": least, "maximum": most, "multipleOf": 0.5 }),
            _ => json!({ "enum": [least, least + 1, most] }),
        }
    }

    fn scalar(&mut self) -> Value {
        match self.below(9) {
            0..=3 => self.text(),
            4..=6 => self.number(),
            7 => json!({ "type": "boolean" }),
            _ => json!({ "type": ["string", "null"], "maxLength": self.between(6, 16) }),
        }
    }

    /// Makes a scalar, or a small list or object of scalars.
    fn value(&mut self) -> Value {
        match self.below(6) {
            0 => json!({ "type": "array", "items": self.scalar(), "maxItems": 2 }),
            1 => {
                let names = self.several(&NAMES, 2);
                let members = self.members(&names, Maker::scalar);
                object(members, &names)
            }
            _ => self.scalar(),
        }
    }

    fn members(&mut self, names: &[&str], mut make: impl FnMut(&mut Maker) -> Value) -> Value {
        Value::Object(names.iter().map(|name| ((*name).to_owned(), make(self))).collect())
    }

    /// Makes an object with `count` members. The first `required` of them are required.
    fn object_of(&mut self, count: usize, required: usize) -> Value {
        let names = self.several(&NAMES, count);
        let members = self.members(&names, Maker::value);
        object(members, &names[..required])
    }

    fn closed_object(&mut self) -> Value {
        let count = 2 + self.below(3);
        self.object_of(count, count)
    }

    fn object_with_optional_members(&mut self) -> Value {
        let count = 2 + self.below(3);
        self.object_of(count, 1)
    }

    fn at_least_one_member(&mut self) -> Value {
        let mut schema = self.object_of(3, 0);
        schema["minProperties"] = json!(1);
        schema
    }

    fn exactly_one_member(&mut self) -> Value {
        let mut schema = self.object_of(3, 0);
        (schema["minProperties"], schema["maxProperties"]) = (json!(1), json!(1));
        schema
    }

    fn members_by_pattern(&mut self) -> Value {
        let mut schema = self.object_of(1, 1);
        let patterns = self.members(&NAME_PATTERNS, Maker::scalar);
        schema["patternProperties"] = patterns;
        (schema["minProperties"], schema["maxProperties"]) = (json!(2), json!(3));
        schema
    }

    fn members_of_any_name(&mut self) -> Value {
        let member = self.number();
        json!({ "type": "object", "additionalProperties": member, "minProperties": 1, "maxProperties": 3 })
    }

    fn list(&mut self) -> Value {
        let least = self.between(0, 2);
        json!({ "type": "array", "items": self.value(), "minItems": least, "maxItems": least + 2 })
    }

    fn tuple(&mut self) -> Value {
        let items = [self.scalar(), self.scalar()];
        json!({ "type": "array", "prefixItems": items, "items": false, "minItems": 2 })
    }

    fn tuple_and_further_items(&mut self) -> Value {
        let (first, items) = ([self.value()], self.scalar());
        json!({ "type": "array", "prefixItems": first, "items": items, "minItems": 1, "maxItems": 4 })
    }

    fn tuple_of_draft_7(&mut self) -> Value {
        let further = if self.below(2) == 0 { json!(false) } else { self.scalar() };
        let pair = json!({
            "type": "array", "items": [self.scalar(), self.scalar()], "additionalItems": further,
            "minItems": 2, "maxItems": 3,
        });
        let names = self.several(&NAMES, 2);
        let members = self.members(&names, |_| json!({ "$ref": "#/definitions/pair" }));
        let mut schema = object(members, &names);
        schema["$schema"] = json!("http://json-schema.org/draft-07/schema#");
        schema["definitions"] = json!({ "pair": pair });
        schema
    }

    fn tagged_union(&mut self) -> Value {
        let tags = self.several(&WORDS, 3);
        let alternatives: Vec<Value> = tags
            .into_iter()
            .map(|tag| {
                let names = self.several(&NAMES, 1);
                let mut members = json!({ "kind": { "const": tag } });
                members[names[0]] = self.scalar();
                object(members, &["kind", names[0]])
            })
            .collect();
        json!({ "oneOf": alternatives })
    }

    fn union_of_types(&mut self) -> Value {
        let names = self.several(&NAMES, 2);
        let members = self
            .members(&names, |maker| json!({ "anyOf": [maker.text(), maker.number(), { "type": "null" }] }));
        object(members, &names)
    }

    fn one_of_types(&mut self) -> Value {
        let names = self.several(&NAMES, 2);
        let members = self.members(&names, |maker| {
            let text = json!({ "type": "string", "maxLength": maker.between(4, 16) });
            let number = json!({ "type": "integer", "minimum": 0, "maximum": maker.between(3, 300) });
            json!({ "oneOf": [text, number, { "type": "boolean" }] })
        });
        object(members, &names)
    }

    fn joined_objects(&mut self) -> Value {
        let names = self.several(&NAMES, 2);
        let parts: Vec<Value> = names
            .iter()
            .map(|name| {
                let members = self.members(&[*name], Maker::scalar);
                json!({ "type": "object", "properties": members, "required": [name] })
            })
            .collect();
        let members = self.members(&names, |_| json!(true));
        json!({ "allOf": parts, "type": "object", "properties": members, "additionalProperties": false })
    }

    fn joined_scalars(&mut self) -> Value {
        let (names, least) = (self.several(&NAMES, 2), self.between(1, 9));
        let number = json!({ "allOf": [
            { "type": "integer", "minimum": least },
            { "type": "integer", "maximum": least + 90 },
        ] });
        let text = json!({ "allOf": [
            { "type": "string", "minLength": 2 },
            { "type": "string", "maxLength": 9 },
            { "type": "string", "pattern": "^[A-Z]" },
        ] });
        let mut kinds = [number, text].into_iter().cycle();
        let members = self.members(&names, |_| kinds.next().unwrap_or_default());
        object(members, &names)
    }

    fn shared_definitions(&mut self) -> Value {
        let inner = self.several(&NAMES, 2);
        let members = self.members(&inner, Maker::scalar);
        let definitions = json!({ "pair": object(members, &inner), "one": self.scalar() });
        let names = self.several(&NAMES, 3);
        let mut targets = ["pair", "one", "pair"].into_iter();
        let members = self
            .members(&names, |_| json!({ "$ref": format!("#/$defs/{}", targets.next().unwrap_or("one")) }));
        let mut schema = object(members, &names);
        schema["$defs"] = definitions;
        schema
    }

    fn linked_list(&mut self) -> Value {
        let next = json!({ "anyOf": [{ "$ref": "#/$defs/node" }, { "type": "null" }] });
        let node = object(json!({ "held": self.number(), "next": next }), &["held", "next"]);
        json!({ "$defs": { "node": node }, "$ref": "#/$defs/node" })
    }

    fn tree(&mut self) -> Value {
        let children = json!({ "type": "array", "items": { "$ref": "#" }, "maxItems": 2 });
        object(json!({ "held": self.text(), "children": children }), &["held"])
    }

    fn texts(&mut self) -> Value {
        let names = self.several(&NAMES, 3);
        let members = self.members(&names, Maker::text);
        object(members, &names)
    }

    fn numbers(&mut self) -> Value {
        let names = self.several(&NAMES, 4);
        let members = self.members(&names, Maker::number);
        object(members, &names)
    }
}

/// Returns the schema of an object without further members.
fn object(members: Value, required: &[&str]) -> Value {
    json!({
        "type": "object", "properties": members, "required": required, "additionalProperties": false,
    })
}

/// A schema with a keyword that the parser does not implement.
#[derive(Clone, Debug)]
pub struct Rejected {
    pub schema: Value,
    pub keyword: &'static str,
    /// The place of the keyword, as a JSON pointer.
    pub pointer: String,
}

/// Returns 60 schemas: 20 keywords at the top, in a member and in the items of a list.
pub fn rejected() -> Vec<Rejected> {
    let keywords: [(&str, Value); 20] = [
        ("not", json!({ "type": "null" })),
        ("if", json!({ "type": "string" })),
        ("then", json!({ "minLength": 1 })),
        ("else", json!({ "minimum": 1 })),
        ("contains", json!({ "type": "integer" })),
        ("minContains", json!(1)),
        ("maxContains", json!(2)),
        ("uniqueItems", json!(true)),
        ("dependencies", json!({ "name": ["city"] })),
        ("dependentRequired", json!({ "name": ["city"] })),
        ("dependentSchemas", json!({ "name": { "required": ["city"] } })),
        ("propertyNames", json!({ "maxLength": 3 })),
        ("unevaluatedItems", json!(false)),
        ("unevaluatedProperties", json!(false)),
        ("$dynamicRef", json!("#node")),
        ("$dynamicAnchor", json!("node")),
        ("$recursiveRef", json!("#")),
        ("contentSchema", json!({ "type": "object" })),
        ("extends", json!({ "type": "object" })),
        ("disallow", json!("string")),
    ];
    let places = keywords.into_iter().flat_map(|(keyword, value)| {
        let inner = Value::Object(Map::from_iter([(keyword.to_owned(), value)]));
        let member = object(json!({ "name": inner }), &["name"]);
        let items = json!({ "type": "array", "items": inner, "maxItems": 3 });
        [("", inner), ("/properties/name", member), ("/items", items)].map(|(place, schema)| Rejected {
            schema,
            keyword,
            pointer: format!("{place}/{keyword}"),
        })
    });
    places.collect()
}

/// Returns the keywords of [`KEYWORDS`] in a schema of this module, in which neither a member nor a
/// constant has the name of a keyword.
pub fn keywords_in(schema: &Value) -> BTreeSet<&'static str> {
    let mut found = BTreeSet::new();
    match schema {
        Value::Object(members) => {
            for (name, value) in members {
                found.extend(KEYWORDS.iter().find(|keyword| *keyword == name));
                found.extend(keywords_in(value));
            }
        }
        Value::Array(values) => values.iter().for_each(|value| found.extend(keywords_in(value))),
        _ => {}
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_have_all_keywords_and_are_the_same_for_a_seed() {
        let schemas = accepted(1, 100);
        assert_eq!(schemas, accepted(1, 100));
        assert_ne!(schemas, accepted(2, 100));
        let found: BTreeSet<&str> = schemas.iter().flat_map(keywords_in).collect();
        assert_eq!(found.len(), KEYWORDS.len(), "{found:?}");
        assert!(NAMES.iter().chain(&WORDS).all(|name| !KEYWORDS.contains(name)));
    }

    #[test]
    fn rejected_schemas_differ_and_have_their_keyword_at_its_place() {
        let rejected = rejected();
        assert_eq!(rejected.len(), 60);
        let texts: BTreeSet<String> = rejected.iter().map(|rejected| rejected.schema.to_string()).collect();
        assert_eq!(texts.len(), 60);
        for Rejected { schema, keyword, pointer } in &rejected {
            assert!(schema.pointer(pointer).is_some() && !KEYWORDS.contains(keyword), "{schema}: {pointer}");
        }
    }
}
