//! Descriptions of the text of a reply, with their limits.

use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};
use shardwright_vocabulary::{Error, Result, UniqueKeys};

use crate::counts::Counts;
use crate::faults::too_large;
use crate::schema::OPTIONS;

/// Most bytes of a JSON schema. The largest published ones have about 1 MB.
pub const SCHEMA_BYTES_MAX: usize = 2 << 20;

/// Most bytes of a Lark grammar.
pub const GRAMMAR_BYTES_MAX: usize = 512 << 10;

/// Most bytes of a regular expression.
pub const REGEX_BYTES_MAX: usize = 64 << 10;

/// Deepest nesting of a schema's JSON and of the brackets of a grammar or a regular expression. The
/// parsers are recursive.
pub const NESTING_MAX: usize = 64;

/// White space between the tokens of JSON: a space, or a new line with its indentation. Without a
/// bound, a model may continue white space up to its token limit.
const WHITE_SPACE: &str = r" |\r?\n( {0,40}|\t{0,20})";

/// Most lines of a Lark grammar. Each can define a rule, and the compiler descends once for each
/// rule that leads to the next. The time grows with the square of such rules.
const LINES_MAX: usize = 10_000;

/// A description of the text of a reply. [`Constraint::new`](crate::Constraint::new) checks it.
#[derive(Clone, Debug, PartialEq)]
pub struct Grammar(Kind);

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Schema(Value),
    Regex(String),
    Lark(String),
}

impl Grammar {
    /// Describes JSON that a schema accepts. White space between tokens is allowed. Of a schema
    /// that is nested deeper than [`NESTING_MAX`] levels, only enough is copied to refuse it.
    pub fn json_schema(schema: &Value) -> Grammar {
        Grammar(Kind::Schema(upper_levels(schema, NESTING_MAX)))
    }

    /// Parses the text of a JSON schema, for [`Grammar::json_schema`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](shardwright_vocabulary::ErrorKind::Invalid) if the text is not JSON or
    /// has a key twice in one object.
    pub fn json_schema_text(text: &str) -> Result<Grammar> {
        let unique = serde_json::from_str::<UniqueKeys>(text);
        unique.map_err(|error| match error.is_data() {
            true => Error::invalid(error.to_string()).with_help(UniqueKeys::HELP),
            false => not_json(&error),
        })?;
        serde_json::from_str(text)
            .map(|schema| Grammar(Kind::Schema(schema)))
            .map_err(|error| not_json(&error))
    }

    /// Describes any JSON object.
    pub fn json_object() -> Grammar {
        Grammar(Kind::Schema(json!({ "type": "object" })))
    }

    /// Describes text that as a whole matches a regular expression in the syntax of Rust's `regex`,
    /// without anchors.
    pub fn regex(pattern: &str) -> Grammar {
        Grammar(Kind::Regex(pattern.to_owned()))
    }

    /// Describes text by a Lark grammar in the dialect of llguidance: the rule `start` is the whole
    /// text, `%json { … }` embeds a schema, and `<|name|>` is a special token.
    pub fn lark(text: &str) -> Grammar {
        Grammar(Kind::Lark(text.to_owned()))
    }

    /// Returns the schema, if the grammar is one.
    pub(crate) fn schema(&self) -> Option<&Value> {
        match &self.0 {
            Kind::Schema(schema) => Some(schema),
            Kind::Regex(_) | Kind::Lark(_) => None,
        }
    }

    /// Returns the noun for messages.
    pub(crate) fn noun(&self) -> &'static str {
        match &self.0 {
            Kind::Schema(_) => "JSON schema",
            Kind::Regex(_) => "regular expression",
            Kind::Lark(_) => "grammar",
        }
    }

    /// Checks sizes and nesting.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.0 {
            Kind::Schema(schema) if !is_shallow(schema, NESTING_MAX) => Err(self.too_deep()),
            Kind::Schema(schema) => {
                self.check_size(schema.to_string().len(), SCHEMA_BYTES_MAX)?;
                let mut counts = Counts::default();
                counts.add(schema);
                counts.check(self.noun())
            }
            // Without a pattern, Lark would read its slashes as a comment.
            Kind::Regex(pattern) if pattern.is_empty() => {
                Err(Error::argument("the regular expression is empty")
                    .with_help("use a pattern that matches at least one character, such as `.+`"))
            }
            Kind::Regex(pattern) => {
                self.check_size(pattern.len(), REGEX_BYTES_MAX)?;
                self.check_nesting(pattern)
            }
            Kind::Lark(text) => {
                self.check_size(text.len(), GRAMMAR_BYTES_MAX)?;
                self.check_nesting(text)?;
                let lines = text.lines().count();
                if lines > LINES_MAX {
                    let what = format!("the grammar has {lines} lines; at most {LINES_MAX} are allowed");
                    return Err(too_large(&what));
                }
                let mut counts = Counts::default();
                counts.add_embedded(text)?;
                counts.check(self.noun())
            }
        }
    }

    /// Converts to the parser's input.
    pub(crate) fn top_level(&self) -> TopLevelGrammar {
        match &self.0 {
            Kind::Schema(schema) => TopLevelGrammar::from_json_schema(with_options(schema)),
            Kind::Regex(pattern) => TopLevelGrammar::from_regex(pattern),
            Kind::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
        }
    }

    fn check_size(&self, bytes: usize, most: usize) -> Result<()> {
        if bytes <= most {
            return Ok(());
        }
        Err(too_large(&format!("the {} has {bytes} bytes; at most {most} are allowed", self.noun())))
    }

    fn check_nesting(&self, text: &str) -> Result<()> {
        if deepest_bracket(text) <= NESTING_MAX { Ok(()) } else { Err(self.too_deep()) }
    }

    fn too_deep(&self) -> Error {
        too_large(&format!("the {} is nested deeper than {NESTING_MAX} levels", self.noun()))
    }
}

fn not_json(error: &serde_json::Error) -> Error {
    Error::invalid(format!("the JSON schema is not valid JSON: {error}"))
        .with_help("correct the JSON of the schema")
}

/// Returns the schema with the project's options of llguidance, unless it has its own.
fn with_options(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(members) = schema.as_object_mut() {
        members.entry(OPTIONS).or_insert_with(|| json!({ "whitespace_pattern": WHITE_SPACE }));
    }
    schema
}

/// Copies `levels` levels of a value. Lists and objects below them are empty in the copy.
fn upper_levels(value: &Value, levels: usize) -> Value {
    match (value, levels.checked_sub(1)) {
        (Value::Array(items), Some(rest)) => items.iter().map(|item| upper_levels(item, rest)).collect(),
        (Value::Object(members), Some(rest)) => {
            members.iter().map(|(name, member)| (name.clone(), upper_levels(member, rest))).collect()
        }
        (Value::Array(_), None) => Value::Array(Vec::new()),
        (Value::Object(_), None) => Value::Object(Map::new()),
        (scalar, _) => scalar.clone(),
    }
}

/// Checks whether a value has at most `levels` levels.
fn is_shallow(value: &Value, levels: usize) -> bool {
    match (value, levels.checked_sub(1)) {
        (Value::Array(items), Some(rest)) => items.iter().all(|item| is_shallow(item, rest)),
        (Value::Object(members), Some(rest)) => members.values().all(|member| is_shallow(member, rest)),
        (Value::Array(_) | Value::Object(_), None) => false,
        _ => true,
    }
}

/// Returns the deepest nesting of brackets. Quoted and escaped brackets do not count. Brackets in
/// regular expressions between slashes do not either, because their parser limits their nesting.
fn deepest_bracket(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let (mut quoted, mut pattern, mut escaped) = (false, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            // Strings and patterns end on their line, and a comment may contain one mark of a pair.
            b'\n' => (quoted, pattern) = (false, false),
            b'/' if !quoted => pattern = !pattern,
            _ if pattern => {}
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'(' | b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    fn nested(levels: usize) -> Value {
        (0..levels).fold(json!({ "type": "null" }), |inner, _| json!({ "items": inner }))
    }

    fn patterns(count: usize) -> Value {
        let members: Value = (0..count).map(|index| (format!("m{index}"), json!({}))).collect();
        json!({ "patternProperties": members })
    }

    #[test]
    fn texts_of_schemas_are_json_without_repeated_keys() {
        let schema = json!({ "type": "null" });
        assert_eq!(Grammar::json_schema_text("{\"type\": \"null\"}").unwrap(), Grammar::json_schema(&schema));
        let deep = "[".repeat(100_000);
        for (text, words) in [
            ("{\"a\": 1, \"a\": 2}", "second key `a`"),
            ("{", "not valid JSON"),
            ("", "not valid JSON"),
            (&*deep, "not valid"),
        ] {
            let error = Grammar::json_schema_text(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.message().contains(words), "{error}");
            assert!(error.help().is_some());
        }
    }

    #[test]
    fn deep_schemas_are_refused_on_a_thread_of_the_usual_stack() {
        // Only a large stack can drop the value.
        let builder = std::thread::Builder::new().stack_size(512 << 20);
        let build = || {
            let deep = (0..100_000).fold(json!({}), |inner, level| match level % 2 {
                0 => Value::Array(vec![inner]),
                _ => Value::Object(Map::from_iter([("items".to_owned(), inner)])),
            });
            let refuse = || {
                let grammar = Grammar::json_schema(&deep);
                assert_eq!(grammar, grammar.clone());
                let error = grammar.check().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Argument);
                assert!(error.message().contains("64 levels") && error.help().is_some(), "{error}");
            };
            std::thread::scope(|scope| scope.spawn(refuse).join()).unwrap();
        };
        builder.spawn(build).unwrap().join().unwrap();
    }

    #[test]
    fn sizes_and_nesting_are_limited() {
        let brackets = |levels: usize| format!("{}a{}", "(".repeat(levels), ")".repeat(levels));
        let refused = [
            (Grammar::json_schema(&json!({ "title": "x".repeat(SCHEMA_BYTES_MAX) })), "bytes"),
            (Grammar::json_schema(&nested(NESTING_MAX)), "64 levels"),
            (Grammar::regex(&"a".repeat(REGEX_BYTES_MAX + 1)), "bytes"),
            (Grammar::regex(&brackets(NESTING_MAX + 1)), "64 levels"),
            (Grammar::regex(""), "empty"),
            (Grammar::lark(&"a".repeat(GRAMMAR_BYTES_MAX + 1)), "bytes"),
            (Grammar::lark(&format!("start: {}", brackets(100_000))), "64 levels"),
            (Grammar::lark(&"\n".repeat(LINES_MAX + 1)), "10001 lines"),
            (Grammar::lark(&format!("start: %json {}", patterns(501))), "`patternProperties`"),
            (Grammar::json_schema(&patterns(501)), "`patternProperties`"),
        ];
        for (grammar, words) in refused {
            let error = grammar.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument);
            assert!(error.message().contains(words), "{error}");
            assert!(error.help().is_some());
        }
        for grammar in [
            Grammar::json_schema(&nested(NESTING_MAX - 1)),
            Grammar::json_schema(&patterns(500)),
            Grammar::lark(&"\n".repeat(LINES_MAX)),
            Grammar::json_object(),
            Grammar::regex(&brackets(NESTING_MAX)),
            Grammar::lark(&format!("start: {}", brackets(NESTING_MAX))),
            Grammar::lark(&"start: \"(\"\n".repeat(100)),
            Grammar::regex(&r"\(".repeat(100)),
        ] {
            grammar.check().unwrap();
        }
    }
}
