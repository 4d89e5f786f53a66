//! Grammars of replies that must be calls, in llguidance's dialect of Lark.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use shardwright_vocabulary::{Error, Result};

use super::definition::{ToolChoice, ToolDefinition};
use super::format::{CallFamily, CallFormat, Mark};
use super::schema::SchemaRules;

/// Most calls of a reply that must be calls, if the format allows several.
const FORCED_CALLS_MAX: usize = 16;

impl CallFormat {
    /// Returns the grammar of replies for a choice that forces calls, with arguments that match the
    /// schema of the tool. `None` for other choices. The annotation `format` of a schema has no
    /// effect in the families of Gemma. Arguments without a member in `properties` are not
    /// generated unless the schema requires them.
    ///
    /// # Errors
    ///
    /// The errors of [`ToolChoice::check`], and
    /// [`ErrorKind::Unsupported`](shardwright_vocabulary::ErrorKind::Unsupported) for a keyword of
    /// a schema that cannot be enforced, which the message names.
    pub fn grammar(&self, tools: &[ToolDefinition], choice: &ToolChoice) -> Result<Option<String>> {
        choice.check(tools)?;
        let (tools, most): (Vec<&ToolDefinition>, usize) = match choice {
            ToolChoice::Auto | ToolChoice::None => return Ok(None),
            ToolChoice::Required => (tools.iter().collect(), FORCED_CALLS_MAX),
            ToolChoice::Named(name) => (tools.iter().filter(|tool| tool.name() == name).collect(), 1),
        };
        let names: Vec<String> = (0..tools.len()).map(|index| format!("call_{index}")).collect();
        let separator = match self.family() {
            CallFamily::Hermes => Some("\"\\n\" "),
            CallFamily::Gemma4 | CallFamily::FunctionGemma => Some(""),
            // Its templates reject several calls in a turn.
            CallFamily::Llama => None,
        };
        let mut text = match separator.filter(|_| most > 1) {
            Some(separator) => format!("start: call ({separator}call){{0,{}}}\n", most - 1),
            None => "start: call\n".to_owned(),
        };
        // Writing to a string does not fail.
        let _ = writeln!(text, "call: {}", names.join(" | "));
        for (index, tool) in tools.into_iter().enumerate() {
            match self.family() {
                CallFamily::Hermes | CallFamily::Llama => self.json_call(&mut text, index, tool),
                CallFamily::Gemma4 | CallFamily::FunctionGemma => self.tagged_call(&mut text, index, tool)?,
            }
        }
        Ok(Some(text))
    }

    fn json_call(&self, text: &mut String, index: usize, tool: &ToolDefinition) {
        let (begin, key, end) = match self.family() {
            CallFamily::Hermes => (self.lark(Mark::Open) + " ", "arguments", "}\n"),
            _ => (String::new(), "parameters", "}"),
        };
        let line = if begin.is_empty() { "" } else { "\n" };
        let head = quoted(&format!("{line}{{\"name\": {}, \"{key}\": ", Value::from(tool.name())));
        let close = match self.family() {
            CallFamily::Hermes => format!(" {}", self.lark(Mark::Close)),
            _ => String::new(),
        };
        let _ = writeln!(text, "call_{index}: {begin}{head} arguments_{index} {}{close}", quoted(end));
        let mut schema = arguments_schema(tool);
        let options = json!({ "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": " });
        schema.insert("x-guidance".to_owned(), options);
        let _ = writeln!(text, "arguments_{index}: %json {}", Value::Object(schema));
    }

    fn tagged_call(&self, text: &mut String, index: usize, tool: &ToolDefinition) -> Result<()> {
        let quote = self.id(Mark::Quote).ok_or_else(|| {
            let quote = self.family().spelling(Mark::Quote).unwrap_or_default();
            Error::unsupported(format!("the vocabulary lacks the token `{quote}`, so calls cannot be forced"))
                .with_help("let the model choose whether it calls tools")
        })?;
        let head = quoted(&format!("call:{}", tool.name()));
        let schema = Value::Object(arguments_schema(tool));
        let (root, rules) = SchemaRules::of(&schema, quote, &format!("t{index}"), tool.name())?;
        let (open, close) = (self.lark(Mark::Open), self.lark(Mark::Close));
        let _ = writeln!(text, "call_{index}: {open} {head} {root} {close}");
        *text += &rules;
        Ok(())
    }

    /// Returns a mark as a token, or as its spelling.
    fn lark(&self, mark: Mark) -> String {
        match self.id(mark) {
            Some(id) => format!("<[{id}]>"),
            None => quoted(self.family().spelling(mark).unwrap_or_default()),
        }
    }
}

/// Returns the schema of a tool's arguments, which does not allow members that it does not name if
/// it says nothing about them.
fn arguments_schema(tool: &ToolDefinition) -> Map<String, Value> {
    let mut schema = tool.parameters().and_then(Value::as_object).cloned().unwrap_or_default();
    if !["$ref", "anyOf", "oneOf", "allOf"].iter().any(|keyword| schema.contains_key(*keyword)) {
        schema.entry("type").or_insert_with(|| "object".into());
    }
    let composed = ["additionalProperties", "patternProperties", "$ref", "anyOf", "oneOf", "allOf"];
    if !composed.iter().any(|keyword| schema.contains_key(*keyword)) {
        schema.entry("properties").or_insert_with(|| json!({}));
        let required = schema.get("required").and_then(Value::as_array);
        let named = |name: &Value| name.as_str().is_some_and(|name| schema["properties"].get(name).is_some());
        if required.is_none_or(|required| required.iter().all(named)) {
            schema.insert("additionalProperties".to_owned(), false.into());
        }
    }
    schema
}

/// Returns a text as a string of Lark.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    fn tools() -> Vec<ToolDefinition> {
        let weather = json!({"type": "function", "function": {"name": "get_weather", "parameters": {
            "type": "object", "required": ["town"],
            "properties": {"town": {"type": "string"}, "days": {"type": "integer", "minimum": 1}}}}});
        let now = json!({"type": "function", "function": {"name": "now"}});
        [weather, now].into_iter().map(|tool| ToolDefinition::new(tool).unwrap()).collect()
    }

    fn format(family: CallFamily) -> CallFormat {
        CallFormat::with_ids(family, |spelling| match spelling {
            "<tool_call>" | "<|tool_call>" => Some(7),
            "</tool_call>" | "<tool_call|>" => Some(8),
            "<|\"|>" => Some(11),
            _ => None,
        })
    }

    #[test]
    fn grammars_force_calls_of_the_chosen_tools() {
        let hermes = format(CallFamily::Hermes).grammar(&tools(), &ToolChoice::Required).unwrap().unwrap();
        let lines: Vec<&str> = hermes.lines().collect();
        assert_eq!(lines[0], "start: call (\"\\n\" call){0,15}");
        assert_eq!(lines[1], "call: call_0 | call_1");
        assert_eq!(
            lines[2],
            r#"call_0: <[7]> "\n{\"name\": \"get_weather\", \"arguments\": " arguments_0 "}\n" <[8]>"#
        );
        assert!(
            lines[3].starts_with("arguments_0: %json {\"type\":\"object\",\"required\":[\"town\"]"),
            "{hermes}"
        );
        assert!(lines[3].contains("\"additionalProperties\":false") && lines[3].contains("\"x-guidance\":{"));
        assert!(lines[5].contains("\"properties\":{},\"additionalProperties\":false"), "{hermes}");

        let one = ToolChoice::Named("now".to_owned());
        let llama = format(CallFamily::Llama).grammar(&tools(), &one).unwrap().unwrap();
        assert!(llama.starts_with(
            "start: call\ncall: call_0\ncall_0: \"{\\\"name\\\": \\\"now\\\", \\\"parameters\\\": \""
        ));
        let gemma = format(CallFamily::Gemma4).grammar(&tools(), &ToolChoice::Required).unwrap().unwrap();
        assert!(gemma.starts_with("start: call (call){0,15}\n"), "{gemma}");
        assert!(
            gemma.contains("call_0: <[7]> \"call:get_weather\" t0_") && gemma.contains(" <[8]>\n"),
            "{gemma}"
        );
    }

    #[test]
    fn choices_without_a_grammar_and_impossible_ones_are_distinguished() {
        let gemma = format(CallFamily::Gemma4);
        for choice in [ToolChoice::Auto, ToolChoice::None] {
            assert_eq!(gemma.grammar(&tools(), &choice).unwrap(), None);
        }
        let missing = gemma.grammar(&tools(), &ToolChoice::Named("x".into())).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::Argument);
        let spelled = CallFormat::with_ids(CallFamily::FunctionGemma, |_| None);
        let error = spelled.grammar(&tools(), &ToolChoice::Required).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("lacks the token `<escape>`"), "{error}");
    }

    #[test]
    fn required_members_outside_of_properties_stay_possible() {
        let tool = |parameters: Value| {
            let value = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
            arguments_schema(&ToolDefinition::new(value).unwrap())
        };
        let closed =
            |schema: Map<String, Value>| schema.get("additionalProperties") == Some(&Value::from(false));
        assert!(closed(tool(json!({"properties": {"a": {}}, "required": ["a"]}))));
        assert!(!closed(tool(json!({"properties": {"a": {}}, "required": ["b"]}))));
        assert!(!closed(tool(json!({"additionalProperties": {"type": "string"}}))));
        assert!(!closed(tool(json!({"anyOf": [{"properties": {"a": {}}}]}))));
    }
}
