//! Tools that an application offers to a model, and the calls that the model makes.

use std::path::Path;

use serde_json::{Map, Value};
use shardwright_vocabulary::{Error, ErrorKind, Result};

use crate::input::parse_json;
use crate::template::TemplateValue;

/// Most tools of a conversation.
pub const TOOLS_MAX: usize = 128;

/// Longest name of a tool, in bytes.
pub const TOOL_NAME_BYTES_MAX: usize = 64;

/// Most bytes of the JSON of all tools of a conversation.
pub const TOOLS_BYTES_MAX: usize = 1 << 20;

/// A tool as in OpenAI's requests: `{"type": "function", "function": {"name": …, "description": …,
/// "parameters": …}}`.
///
/// Templates get the whole object, including further fields such as `return`. The field `strict`
/// has no effect: arguments are enforced for [`ToolChoice::Required`] and [`ToolChoice::Named`],
/// and for no other choice.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolDefinition {
    value: Value,
}

/// The tools that a reply may call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides whether it calls tools.
    #[default]
    Auto,
    /// Tools are not offered, and the reply is text.
    None,
    /// The reply is at least one call, with arguments that match the tool's schema.
    Required,
    /// The reply is one call of the tool with this name, with arguments that match its schema.
    Named(String),
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// Id that connects a result with its call.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// The arguments, usually an object. Its members keep the order in which the model wrote them.
    pub arguments: Value,
}

impl ToolDefinition {
    /// Checks a definition.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Argument`] that names the invalid field.
    pub fn new(value: Value) -> Result<ToolDefinition> {
        let tool = value.as_object().ok_or_else(|| invalid("a tool should be a JSON object"))?;
        match tool.get("type") {
            Some(Value::String(kind)) if kind == "function" => {}
            Some(kind) => {
                return Err(invalid(&format!("`type` of a tool should be \"function\", got {kind}")));
            }
            None => return Err(invalid("a tool has no `type`")),
        }
        let function = tool.get("function").and_then(Value::as_object);
        let function = function.ok_or_else(|| invalid("`function` of a tool should be an object"))?;
        let name = function.get("name").and_then(Value::as_str);
        let name = name.ok_or_else(|| invalid("`function.name` of a tool should be a string"))?;
        if !is_tool_name(name) {
            let name: String = name.chars().take(80).collect();
            return Err(invalid(&format!(
                "`function.name` of a tool should have 1 to {TOOL_NAME_BYTES_MAX} \
                                         letters, digits, `_` or `-`, got \"{name}\""
            )));
        }
        check_function(name, function)?;
        let bytes = value.to_string().len();
        if bytes > TOOLS_BYTES_MAX {
            let what = format!("the tool `{name}` has {bytes} bytes, more than {TOOLS_BYTES_MAX}");
            return Err(Error::argument(what).with_help("shorten its description or its schema"));
        }
        Ok(ToolDefinition { value })
    }

    /// Reads tools from JSON: a list of definitions, or one definition. Errors name `origin`, a
    /// file or an option.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for invalid JSON, and the errors of [`ToolDefinition::new`] and of
    /// [`ToolDefinition::check_list`].
    pub fn list_from_json(text: &str, origin: &str) -> Result<Vec<ToolDefinition>> {
        let tools = match parse_json(text.as_bytes(), Path::new(origin))? {
            Value::Array(tools) => tools,
            tool => vec![tool],
        };
        let tools: Result<Vec<_>> = tools.into_iter().map(ToolDefinition::new).collect();
        let tools = tools.map_err(|error| error.at(origin))?;
        ToolDefinition::check_list(&tools).map_err(|error| error.at(origin))?;
        Ok(tools)
    }

    /// Checks tools that are offered together: at most [`TOOLS_MAX`], with different names and at
    /// most [`TOOLS_BYTES_MAX`] bytes of JSON.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Argument`].
    pub fn check_list(tools: &[ToolDefinition]) -> Result<()> {
        if tools.len() > TOOLS_MAX {
            let what = format!("{} tools, more than {TOOLS_MAX}", tools.len());
            return Err(Error::argument(what).with_help("offer fewer tools"));
        }
        for (index, tool) in tools.iter().enumerate() {
            if tools[..index].iter().any(|other| other.name() == tool.name()) {
                let what = format!("two tools have the name `{}`", tool.name());
                return Err(Error::argument(what).with_help("rename one of them"));
            }
        }
        let bytes: usize = tools.iter().map(|tool| tool.value.to_string().len()).sum();
        if bytes > TOOLS_BYTES_MAX {
            let what = format!("the tools have {bytes} bytes, more than {TOOLS_BYTES_MAX}");
            return Err(Error::argument(what).with_help("offer fewer tools, or shorten their descriptions"));
        }
        Ok(())
    }

    /// Returns the name of the tool.
    pub fn name(&self) -> &str {
        self.value["function"]["name"].as_str().unwrap_or_default()
    }

    /// Returns the description of the tool.
    pub fn description(&self) -> Option<&str> {
        self.value["function"]["description"].as_str()
    }

    /// Returns the JSON schema of the arguments. `None` for a tool without parameters.
    pub fn parameters(&self) -> Option<&Value> {
        self.value["function"].get("parameters").filter(|parameters| !parameters.is_null())
    }

    /// Returns the whole definition.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Returns the variable `tools` of a chat template.
    pub fn template_value(tools: &[ToolDefinition]) -> TemplateValue {
        TemplateValue::from(Value::Array(tools.iter().map(|tool| tool.value.clone()).collect()))
    }
}

impl ToolCall {
    /// Returns the call as an item of `tool_calls` of a message.
    pub fn template_value(&self) -> Value {
        serde_json::json!({
            "id": self.id,
            "type": "function",
            "function": { "name": self.name, "arguments": self.arguments },
        })
    }
}

impl ToolChoice {
    /// Checks that the choice can be made among `tools`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Argument`] if a call is required but no tool is offered, or the named one is
    /// not.
    pub fn check(&self, tools: &[ToolDefinition]) -> Result<()> {
        match self {
            ToolChoice::Auto | ToolChoice::None => Ok(()),
            ToolChoice::Required if !tools.is_empty() => Ok(()),
            ToolChoice::Required => {
                Err(Error::new(ErrorKind::Argument, "a call is required, but no tool is offered")
                    .with_help("offer tools, or let the model choose"))
            }
            ToolChoice::Named(name) if tools.iter().any(|tool| tool.name() == name) => Ok(()),
            ToolChoice::Named(name) => {
                let known: Vec<&str> = tools.iter().map(ToolDefinition::name).collect();
                let what = format!("no tool is named `{}`", name.chars().take(80).collect::<String>());
                Err(Error::argument(what).with_help(match known.is_empty() {
                    true => "offer the tool".to_owned(),
                    false => format!("available tools: {}", known.join(", ")),
                }))
            }
        }
    }

    /// Returns whether the reply must be a call.
    pub const fn is_forced(&self) -> bool {
        matches!(self, ToolChoice::Required | ToolChoice::Named(_))
    }
}

/// Checks whether a tool can have this name.
pub(crate) fn is_tool_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=TOOL_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits)
}

fn check_function(name: &str, function: &Map<String, Value>) -> Result<()> {
    if function.get("description").is_some_and(|text| !text.is_string() && !text.is_null()) {
        return Err(invalid(&format!("`function.description` of the tool `{name}` should be a string")));
    }
    let schema = match function.get("parameters") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Object(schema)) => schema,
        Some(_) => {
            return Err(invalid(&format!("`function.parameters` of the tool `{name}` should be an object")));
        }
    };
    match schema.get("type") {
        None => Ok(()),
        Some(Value::String(kind)) if kind == "object" => Ok(()),
        Some(kind) => {
            let what =
                format!("the parameters of the tool `{name}` should have the type \"object\", got {kind}");
            Err(invalid(&what))
        }
    }
}

fn invalid(what: &str) -> Error {
    Error::argument(what).with_help(
        "write a tool as {\"type\": \"function\", \"function\": {\"name\": …, \"description\": …, \
         \"parameters\": {JSON schema of an object}}}",
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}})
    }

    fn described(name: &str, bytes: usize) -> Value {
        json!({"type": "function", "function": {"name": name, "description": "x".repeat(bytes)}})
    }

    #[test]
    fn definitions_are_checked_field_by_field() {
        let read = ToolDefinition::new(json!({"type": "function", "function": {
            "name": "get_weather", "description": "The weather.",
            "parameters": {"type": "object", "properties": {"b": {}, "a": {}}},
            "return": {"type": "string"}}}));
        let read = read.unwrap();
        assert_eq!((read.name(), read.description()), ("get_weather", Some("The weather.")));
        let order: Vec<&String> =
            read.parameters().unwrap()["properties"].as_object().unwrap().keys().collect();
        assert_eq!(order, ["b", "a"], "members keep their order");
        assert_eq!(read.value()["function"]["return"]["type"], "string");
        for (value, expected) in [
            (json!([]), "should be a JSON object"),
            (json!({"function": {}}), "no `type`"),
            (json!({"type": "code", "function": {}}), "should be \"function\", got \"code\""),
            (json!({"type": "function"}), "`function` of a tool"),
            (json!({"type": "function", "function": {}}), "`function.name`"),
            (tool(""), "1 to 64"),
            (tool("a b"), "got \"a b\""),
            (tool(&"x".repeat(65)), "1 to 64"),
            (
                json!({"type": "function", "function": {"name": "f", "description": 1}}),
                "`function.description`",
            ),
            (
                json!({"type": "function", "function": {"name": "f", "parameters": []}}),
                "`function.parameters`",
            ),
            (
                json!({"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}),
                "should have the type \"object\", got \"array\"",
            ),
            (described("f", TOOLS_BYTES_MAX), "more than 1048576"),
        ] {
            let error = ToolDefinition::new(value).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
            assert!(error.message().contains(expected) && error.help().is_some(), "{error} lacks {expected}");
        }
    }

    #[test]
    fn lists_have_different_names_and_bounded_sizes() {
        let read = |value: &Value| ToolDefinition::list_from_json(&value.to_string(), "tools.json");
        assert_eq!(read(&json!([tool("a"), tool("b")])).unwrap().len(), 2);
        assert_eq!(read(&tool("a")).unwrap()[0].name(), "a", "one tool needs no list");
        let many: Vec<Value> = (0..=TOOLS_MAX).map(|index| tool(&format!("t{index}"))).collect();
        let long = |name: &str| described(name, 600_000);
        for (value, expected) in [
            (json!([tool("a"), tool("a")]), "two tools have the name `a`"),
            (Value::Array(many), "129 tools, more than 128"),
            (json!([long("a"), long("b")]), "bytes, more than 1048576"),
            (json!(["a"]), "should be a JSON object"),
        ] {
            let error = read(&value).unwrap_err();
            assert_eq!((error.kind(), error.place()), (ErrorKind::Argument, Some("tools.json")));
            assert!(error.message().contains(expected), "{error} lacks {expected}");
        }
        assert_eq!(ToolDefinition::list_from_json("[", "x").unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn choices_name_offered_tools() {
        let tools = [ToolDefinition::new(tool("a")).unwrap()];
        for choice in
            [ToolChoice::Auto, ToolChoice::None, ToolChoice::Required, ToolChoice::Named("a".into())]
        {
            choice.check(&tools).unwrap();
        }
        for (choice, tools, expected) in [
            (ToolChoice::Required, &[][..], "no tool is offered"),
            (ToolChoice::Named("b".into()), &tools[..], "no tool is named `b`"),
            (ToolChoice::Named("b".into()), &[][..], "no tool is named `b`"),
        ] {
            let error = choice.check(tools).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument);
            assert!(error.message().contains(expected) && error.help().is_some(), "{error}");
        }
    }
}
