//! Values passed to a template.

use std::path::Path;

use minijinja::Value;
use minijinja::value::Serde;
use serde::{Deserialize, Deserializer};
use shardwright_vocabulary::Result;

use crate::input::parse_json;

/// A value of a template variable: any JSON value. Objects keep the order of their fields, since
/// templates print them with `tojson` and the model was trained on that order.
#[derive(Debug, Clone, PartialEq)]
pub struct TemplateValue(pub(crate) Value);

impl TemplateValue {
    /// Parses JSON, for example a list of tools. Errors name `origin`, a file or an option.
    pub fn from_json(text: &str, origin: &str) -> Result<TemplateValue> {
        parse_json(text.as_bytes(), Path::new(origin))
    }

    /// Returns the value of JSON's `null`, which is a template's `none`.
    pub fn none() -> TemplateValue {
        TemplateValue(Value::from(()))
    }
}

impl<'de> Deserialize<'de> for TemplateValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TemplateValue, D::Error> {
        Value::deserialize(deserializer).map(TemplateValue)
    }
}

impl From<serde_json::Value> for TemplateValue {
    fn from(value: serde_json::Value) -> Self {
        TemplateValue(Value::from(Serde(value)))
    }
}

impl From<bool> for TemplateValue {
    fn from(value: bool) -> Self {
        TemplateValue(value.into())
    }
}

impl From<i64> for TemplateValue {
    fn from(value: i64) -> Self {
        TemplateValue(value.into())
    }
}

impl From<&str> for TemplateValue {
    fn from(value: &str) -> Self {
        TemplateValue(value.into())
    }
}

impl From<String> for TemplateValue {
    fn from(value: String) -> Self {
        TemplateValue(value.into())
    }
}
