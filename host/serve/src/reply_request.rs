//! A request for a reply, whatever its endpoint.

use serde_json::{Value, json};
use shardwright::{Grammar, ToolChoice, ToolDefinition, Turn};

use crate::fields::{self, Fields};
use crate::limits::Limits;
use crate::refusal::Refusal;

/// A request for a reply.
#[derive(Debug)]
pub(crate) struct ReplyRequest {
    pub model: String,
    pub input: Input,
    pub settings: Settings,
    pub names: Names,
    pub stream: bool,
    /// Whether a stream ends with the usage.
    pub reports_usage: bool,
    /// Fields of the request without effect.
    pub inert: Vec<String>,
}

/// Names of fields that differ between endpoints.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    /// The field with the text that the reply continues.
    pub input: &'static str,
    pub effort: &'static str,
    pub format: &'static str,
}

impl Names {
    pub const CHAT: Names =
        Names { input: "messages", effort: "reasoning_effort", format: "response_format" };
    /// A completion has no effort and no format.
    pub const COMPLETIONS: Names = Names { input: "prompt", ..Names::CHAT };
    pub const RESPONSES: Names = Names { input: "input", effort: "reasoning.effort", format: "text.format" };
}

/// The text that a reply continues.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    Conversation(Conversation),
    Text(String),
    Ids(Vec<u32>),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation {
    pub turns: Vec<Turn>,
    pub tools: Vec<ToolDefinition>,
    pub choice: ToolChoice,
}

/// Settings of a reply. Absent ones keep the values of the model.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<u32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub seed: Option<u64>,
    pub max_tokens: Option<usize>,
    pub stop: Vec<String>,
    pub grammar: Option<Grammar>,
    /// Number of likeliest tokens to report for each token.
    pub likelihoods: Option<usize>,
    pub thinking: Option<bool>,
    /// Variables of the chat template.
    pub variables: Vec<(String, bool)>,
    /// Whether the reply ends after its first call of a tool.
    pub one_call: bool,
}

/// Fields that describe the client and have no effect on a reply.
pub(crate) const INERT: [&str; 6] =
    ["user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier"];

impl Settings {
    /// Reads the fields that all endpoints with replies share.
    pub fn read(fields: &mut Fields, limits: &Limits) -> Result<Self, Refusal> {
        let narrow = |count: Option<u64>| count.and_then(|count| u32::try_from(count).ok());
        let settings = Settings {
            temperature: fields.number("temperature", 0.0, 2.0)?,
            top_p: fields.number("top_p", 1e-6, 1.0)?,
            top_k: narrow(fields.count("top_k", 0, u64::from(u32::MAX))?),
            min_p: fields.number("min_p", 0.0, 1.0)?,
            repetition_penalty: fields.number("repetition_penalty", 0.01, 100.0)?,
            seed: read_seed(fields)?,
            stop: read_stop(fields, limits)?,
            ..Settings::default()
        };
        fields.only("n", &[json!(1)], "send one request for each reply")?;
        let zero = [json!(0), json!(0.0)];
        for name in ["frequency_penalty", "presence_penalty"] {
            fields.only(name, &zero, "use `repetition_penalty`")?;
        }
        fields.only("logit_bias", &[json!({})], "use `response_format`, or a penalty")?;
        Ok(settings)
    }

    /// Checks that no sampling parameter is without effect.
    pub fn expect_effects(&self) -> Result<(), Refusal> {
        if self.temperature != Some(0.0) {
            return Ok(());
        }
        let unused = [
            ("top_k", self.top_k.is_some()),
            ("min_p", self.min_p.is_some_and(|least| least > 0.0)),
            ("top_p", self.top_p.is_some_and(|most| most < 1.0)),
        ];
        match unused.into_iter().find(|(_, is_set)| *is_set) {
            None => Ok(()),
            Some((name, _)) => {
                let what = format!("`{name}` has no effect, because `temperature` is 0");
                Err(Refusal::value(name, what, "remove it, or raise `temperature`"))
            }
        }
    }
}

/// Reads a seed. Clients also send negative ones.
fn read_seed(fields: &mut Fields) -> Result<Option<u64>, Refusal> {
    let path = fields.path("seed");
    let Some(value) = fields.take("seed") else { return Ok(None) };
    let seed = value.as_u64().or(value.as_i64().map(i64::cast_unsigned));
    seed.map(Some).ok_or_else(|| fields::unexpected(&path, "a whole number", &value))
}

fn read_stop(fields: &mut Fields, limits: &Limits) -> Result<Vec<String>, Refusal> {
    let path = fields.path("stop");
    let Some(value) = fields.take("stop") else { return Ok(Vec::new()) };
    let values = match value {
        Value::String(_) => vec![value],
        other => fields::list(other, &path)?,
    };
    if values.len() > limits.stop_strings {
        let what = format!("{} stop strings, expected at most {}", values.len(), limits.stop_strings);
        return Err(Refusal::value(&path, what, "send fewer"));
    }
    values.into_iter().map(|value| fields::text(value, &path)).collect()
}

/// Reads `max_tokens` under its names. Two different values are refused.
pub(crate) fn read_max_tokens(fields: &mut Fields, names: &[&str]) -> Result<Option<usize>, Refusal> {
    let mut found: Option<u64> = None;
    for name in names {
        let Some(count) = fields.count(name, 0, u64::MAX)? else { continue };
        if found.is_some_and(|other| other != count) {
            let what = format!("`{}` has two values under its names", names.join("` and `"));
            return Err(Refusal::value(name, what, "send one of them"));
        }
        found = Some(count);
    }
    Ok(found.map(|count| usize::try_from(count).unwrap_or(usize::MAX)))
}

/// Reads `response_format`, or `text.format` of another endpoint, in which the schema is not in an
/// object of its own.
pub(crate) fn read_format(format: Option<Fields>, limits: &Limits) -> Result<Option<Grammar>, Refusal> {
    let Some(mut format) = format else { return Ok(None) };
    let (path, kind) = (format.path("type"), format.required_text("type")?);
    let grammar = match kind.as_str() {
        "text" => None,
        "json_object" => Some(Grammar::json_object()),
        "json_schema" => {
            let nested = format.object("json_schema")?;
            let is_nested = nested.is_some();
            let mut schema = nested.unwrap_or_else(|| std::mem::replace(&mut format, Fields::empty()));
            let grammar = read_schema(&mut schema, limits)?;
            schema.finish()?;
            if !is_nested {
                return Ok(Some(grammar));
            }
            Some(grammar)
        }
        other => {
            let what = format!("unknown format `{}`", fields::shortened(other));
            return Err(Refusal::value(&path, what, "use `text`, `json_object` or `json_schema`"));
        }
    };
    format.finish()?;
    Ok(grammar)
}

/// Reads a named schema. It is enforced whether `strict` is set or not.
fn read_schema(fields: &mut Fields, limits: &Limits) -> Result<Grammar, Refusal> {
    fields.without_effect(&["name", "description", "strict"]);
    let (path, schema) = (fields.path("schema"), fields.required("schema")?);
    expect_size(&schema, &path, limits)?;
    Ok(Grammar::json_schema(&schema))
}

fn expect_size(schema: &Value, path: &str, limits: &Limits) -> Result<(), Refusal> {
    let bytes = schema.to_string().len();
    if bytes <= limits.schema_bytes {
        return Ok(());
    }
    let what = format!("the schema has {bytes} bytes, expected at most {}", limits.schema_bytes);
    Err(Refusal::value(path, what, "send a smaller schema"))
}

/// Reads `tools`, in the form of chat completions.
pub(crate) fn read_tools(fields: &mut Fields, limits: &Limits) -> Result<Vec<ToolDefinition>, Refusal> {
    let values = fields.list("tools")?.unwrap_or_default();
    define_tools(values, &fields.path("tools"), limits)
}

pub(crate) fn define_tools(
    values: Vec<Value>,
    path: &str,
    limits: &Limits,
) -> Result<Vec<ToolDefinition>, Refusal> {
    if values.len() > limits.tools {
        let what = format!("{} tools, expected at most {}", values.len(), limits.tools);
        return Err(Refusal::value(path, what, "send fewer"));
    }
    let define = |(index, value): (usize, Value)| {
        let path = format!("{path}[{index}]");
        expect_size(&value, &path, limits)?;
        ToolDefinition::new(value).map_err(|error| Refusal::of_request(&error).at(&path))
    };
    values.into_iter().enumerate().map(define).collect()
}

/// Reads `tool_choice`. A choice by name is an object whose name is in the field `function`, or in
/// the object itself.
pub(crate) fn read_choice(fields: &mut Fields, tools: &[ToolDefinition]) -> Result<ToolChoice, Refusal> {
    let path = fields.path("tool_choice");
    let choice = match fields.take("tool_choice") {
        None => return Ok(ToolChoice::Auto),
        Some(Value::String(name)) => match name.as_str() {
            "auto" => ToolChoice::Auto,
            "none" => ToolChoice::None,
            "required" => ToolChoice::Required,
            other => {
                let what = format!("unknown choice of a tool: `{}`", fields::shortened(other));
                let help = "use `auto`, `none`, `required`, or an object with the name of a function";
                return Err(Refusal::value(&path, what, help));
            }
        },
        Some(value) => {
            let mut chosen = Fields::of(value, &path)?;
            chosen.only("type", &[json!("function")], "choose a function, `auto`, `none` or `required`")?;
            let name = match chosen.object("function")? {
                Some(mut function) => {
                    let name = function.required_text("name")?;
                    function.finish()?;
                    name
                }
                None => chosen.required_text("name")?,
            };
            chosen.finish()?;
            ToolChoice::Named(name)
        }
    };
    let is_known = match &choice {
        ToolChoice::Named(name) => tools.iter().any(|tool| tool.name() == name),
        ToolChoice::Required => !tools.is_empty(),
        _ => true,
    };
    match is_known {
        true => Ok(choice),
        false => Err(Refusal::value(&path, "the chosen tool is not in `tools`", "add it to `tools`")),
    }
}

/// Reads how much the model thinks before it answers.
pub(crate) fn read_effort(value: Option<String>, path: &str) -> Result<Option<bool>, Refusal> {
    match value.as_deref() {
        None => Ok(None),
        Some("none" | "minimal") => Ok(Some(false)),
        Some("low" | "medium" | "high" | "xhigh") => Ok(Some(true)),
        Some(other) => {
            let what = format!("unknown effort `{}`", fields::shortened(other));
            Err(Refusal::value(path, what, "use `none` or `medium`"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(value: Value) -> Fields {
        Fields::of(value, "").unwrap()
    }

    fn param<T: std::fmt::Debug>(result: Result<T, Refusal>) -> String {
        result.unwrap_err().json()["error"]["param"].as_str().unwrap_or_default().to_owned()
    }

    #[test]
    fn shared_fields_are_read_or_refused_by_name() {
        let limits = Limits::default();
        let document = json!({"temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": -1,
            "stop": "x", "n": 1, "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}});
        let mut read = fields(document);
        let settings = Settings::read(&mut read, &limits).unwrap();
        read.finish().unwrap();
        assert_eq!((settings.seed, settings.stop.len()), (Some(u64::MAX), 1));
        assert_eq!((settings.temperature, settings.top_k), (Some(0.5), Some(40)));
        for (name, value) in [
            ("temperature", json!(3)),
            ("top_p", json!(0)),
            ("top_k", json!(-1)),
            ("n", json!(2)),
            ("frequency_penalty", json!(0.5)),
            ("presence_penalty", json!("x")),
            ("logit_bias", json!({"5": -100})),
            ("seed", json!(1.5)),
            ("stop", json!([1])),
            ("stop", json!(vec!["x"; 17])),
        ] {
            let document = Value::Object([(name.to_owned(), value)].into_iter().collect());
            assert_eq!(param(Settings::read(&mut fields(document), &limits)), name);
        }
        for name in ["top_k", "top_p", "min_p"] {
            let mut document = json!({"temperature": 0});
            document[name] = if name == "top_k" { json!(3) } else { json!(0.5) };
            let settings = Settings::read(&mut fields(document), &limits).unwrap();
            assert_eq!(param(settings.expect_effects()), name);
        }
    }

    #[test]
    fn formats_choices_and_efforts_are_read() {
        let limits = Limits { schema_bytes: 100, ..Limits::default() };
        let format = |value| read_format(Some(fields(value)), &limits);
        assert!(format(json!({"type": "text"})).unwrap().is_none());
        assert!(format(json!({"type": "json_object"})).unwrap().is_some());
        let schema = json!({"type": "object"});
        let nested =
            json!({"type": "json_schema", "json_schema": {"name": "a", "strict": true, "schema": schema}});
        let flat = json!({"type": "json_schema", "name": "a", "schema": schema});
        assert_eq!(format(nested).unwrap(), format(flat).unwrap());
        assert_eq!(param(format(json!({"type": "xml"}))), "type");
        assert_eq!(param(format(json!({"type": "json_object", "x": 1}))), "x");
        let missing = format(json!({"type": "json_schema", "json_schema": {"name": "a"}}));
        assert_eq!(param(missing), "json_schema.schema");
        let large = json!({"enum": vec!["x"; 100]});
        assert_eq!(param(format(json!({"type": "json_schema", "schema": large}))), "schema");

        let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
        let tools = define_tools(vec![tool], "tools", &limits).unwrap();
        let choice = |value| read_choice(&mut fields(json!({"tool_choice": value})), &tools);
        assert_eq!(choice(json!("required")).unwrap(), ToolChoice::Required);
        let named = ToolChoice::Named("f".to_owned());
        assert_eq!(choice(json!({"type": "function", "function": {"name": "f"}})).unwrap(), named);
        assert_eq!(choice(json!({"type": "function", "name": "f"})).unwrap(), named);
        assert_eq!(param(choice(json!({"type": "function", "name": "g"}))), "tool_choice");
        assert_eq!(param(choice(json!("any"))), "tool_choice");
        assert_eq!(param(read_choice(&mut fields(json!({"tool_choice": "required"})), &[])), "tool_choice");
        assert_eq!(param(define_tools(vec![json!({"type": "x"})], "tools", &limits)), "tools[0]");
        let few = Limits { tools: 0, ..Limits::default() };
        assert_eq!(param(define_tools(vec![json!({})], "tools", &few)), "tools");

        let effort = |text: &str| read_effort(Some(text.to_owned()), "reasoning_effort");
        assert_eq!(effort("none").unwrap(), Some(false));
        assert_eq!(effort("high").unwrap(), Some(true));
        assert_eq!(param(effort("much")), "reasoning_effort");
        let two = read_max_tokens(&mut fields(json!({"a": 1, "b": 2})), &["a", "b"]);
        assert_eq!(param(two), "b");
    }
}
