//! Checks that the published schema agrees with the reader, using a small validator for the
//! keywords in the schema.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{manifest, sample};
use crate::FORMAT_VERSION;
use crate::envelope::seal;
use crate::manifest::Manifest;

const SCHEMA: &str = include_str!("../../../bundle.schema.json");

fn schema() -> Value {
    serde_json::from_str(SCHEMA).expect("JSON")
}

/// Returns the first violation of the schema, with its place.
fn fault(root: &Value, schema: &Value, value: &Value, at: &str) -> Option<String> {
    let words = schema.as_object().expect("an object");
    for (word, rule) in words {
        let held = match word.as_str() {
            "$schema" | "title" | "description" | "$defs" => true,
            "$ref" => {
                let name = rule.as_str().and_then(|name| name.strip_prefix("#/$defs/")).expect("a name");
                let found = fault(root, &root["$defs"][name], value, at);
                if found.is_some() {
                    return found;
                }
                true
            }
            "type" => match rule.as_str().expect("a type") {
                "object" => value.is_object(),
                "array" => value.is_array(),
                "string" => value.is_string(),
                "boolean" => value.is_boolean(),
                "integer" => value.is_u64() || value.is_i64(),
                "number" => value.is_number(),
                other => panic!("type {other}"),
            },
            "const" => value == rule,
            "enum" => rule.as_array().expect("a list").contains(value),
            "pattern" => {
                assert_eq!(rule, "^[0-9a-f]{64}$", "the one pattern");
                let is_digit = |byte: u8| b"0123456789abcdef".contains(&byte);
                value.as_str().is_none_or(|text| text.len() == 64 && text.bytes().all(is_digit))
            }
            "minimum" => {
                assert_eq!(rule, 0, "the one minimum");
                !value.is_number() || value.is_u64()
            }
            "minItems" => value.as_array().is_none_or(|items| items.len() as u64 >= rule.as_u64().unwrap()),
            "maxItems" => value.as_array().is_none_or(|items| items.len() as u64 <= rule.as_u64().unwrap()),
            "items" | "prefixItems" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    let own = if word == "items" { rule } else { &rule[index] };
                    let found = fault(root, own, item, &format!("{at}[{index}]"));
                    if found.is_some() {
                        return found;
                    }
                }
                true
            }
            "properties" => {
                for (name, own) in rule.as_object().expect("an object") {
                    let found =
                        value.get(name).and_then(|value| fault(root, own, value, &format!("{at}.{name}")));
                    if found.is_some() {
                        return found;
                    }
                }
                true
            }
            "required" => {
                let mut names = rule.as_array().expect("a list").iter().filter_map(Value::as_str);
                names.all(|name| value.get(name).is_some())
            }
            "additionalProperties" => {
                let known =
                    |name: &str| words.get("properties").is_some_and(|known| known.get(name).is_some());
                let mut others = value.as_object().into_iter().flatten().filter(|(name, _)| !known(name));
                match rule {
                    Value::Bool(false) => others.next().is_none(),
                    rule => others.all(|(name, value)| fault(root, rule, value, name).is_none()),
                }
            }
            "oneOf" => {
                let options = rule.as_array().expect("a list").iter();
                options.filter(|option| fault(root, option, value, at).is_none()).count() == 1
            }
            other => panic!("the validator does not know `{other}`"),
        };
        if !held {
            return Some(format!("{at}: {word} {rule} of {value}"));
        }
    }
    None
}

fn file(manifest: &Manifest) -> Value {
    let json = serde_json::to_string(manifest).expect("JSON");
    serde_json::from_slice(&seal(json.as_bytes()).0).expect("JSON")
}

/// Collects every member of every nested object by its path.
fn members(value: &Value, way: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    match value {
        Value::Object(object) => {
            for (name, inner) in object {
                way.push(name.clone());
                found.push(way.clone());
                members(inner, way, found);
                way.pop();
            }
        }
        Value::Array(items) => {
            for (index, inner) in items.iter().enumerate() {
                way.push(index.to_string());
                members(inner, way, found);
                way.pop();
            }
        }
        _ => {}
    }
}

fn parent<'v>(value: &'v mut Value, way: &[String]) -> &'v mut Value {
    way[..way.len() - 1].iter().fold(value, |value, name| match value {
        Value::Array(items) => &mut items[name.parse::<usize>().expect("an index")],
        value => &mut value[name.as_str()],
    })
}

#[test]
fn the_schema_is_of_this_version_and_takes_a_manifest_with_everything_in_it() {
    let schema = schema();
    assert_eq!(schema["properties"]["shardwright-bundle"]["const"], FORMAT_VERSION);
    assert_eq!(fault(&schema, &schema, &file(&sample()), ""), None);
}

/// The schema and the reader must agree when a member is missing, renamed or has another type.
#[test]
fn members_are_asked_for_and_allowed_as_the_reader_has_it() {
    let schema = schema();
    let whole = file(&sample());
    let mut ways = Vec::new();
    members(&whole["manifest"], &mut Vec::new(), &mut ways);
    assert!(ways.len() > 200, "{}", ways.len());
    let agree = |changed: Value, what: &str| {
        // The reader accepts a value only if it is written back identically, as the form is
        // canonical.
        let stated = &changed["manifest"];
        let read = serde_json::from_value::<Manifest>(stated.clone()).ok();
        let is_read = read.is_some_and(|read| serde_json::to_value(read).is_ok_and(|again| again == *stated));
        let found = fault(&schema, &schema, &changed, "");
        assert_eq!(is_read, found.is_none(), "{what}: {found:?}");
    };
    for way in ways {
        let name = way.last().expect("a name").as_str();
        let shown = way.join(".");
        let with = |change: &dyn Fn(&mut serde_json::Map<String, Value>)| {
            let mut changed = whole.clone();
            let object = parent(&mut changed["manifest"], &way);
            change(object.as_object_mut().expect("an object"));
            changed
        };
        agree(with(&|object| drop(object.remove(name))), &format!("without {shown}"));
        // Options may have any name.
        if !way.contains(&"options".to_owned()) {
            agree(
                with(&|object| drop(object.insert("another".to_owned(), json!(1)))),
                &format!("beside {shown}"),
            );
        }
        agree(
            with(&|object| drop(object.insert(name.to_owned(), json!([[true]])))),
            &format!("another {shown}"),
        );
    }
}

proptest! {
    #[test]
    fn every_manifest_is_as_the_schema_says(manifest in manifest()) {
        let schema = schema();
        prop_assert_eq!(fault(&schema, &schema, &file(&manifest), ""), None);
    }
}
