//! Which modules an adapter changes, and settings that depend on the name of a module.

use std::path::Path;

use fancy_regex::Regex;
use serde_json::Value;
use shardwright_vocabulary::{Error, Result};

use crate::json::{Fields, shortened};
use crate::limits;

/// Value of `target_modules` for all linear layers except the output matrix.
const ALL_LINEAR: &str = "all-linear";

/// Names of output matrices, by the last part of a module's name.
const OUTPUT: &str = "lm_head";

/// A regular expression of a settings file, which must match a whole name.
pub(super) struct Expression {
    field: &'static str,
    text: String,
    compiled: Regex,
}

impl Expression {
    /// Compiles an expression. `around` has the name's place in it as `{}`.
    fn new(fields: Fields<'_>, field: &'static str, text: &str, around: &str) -> Result<Self> {
        if text.len() > limits::LORA_EXPRESSION_BYTES {
            let (length, most) = (text.len(), limits::LORA_EXPRESSION_BYTES);
            return Err(
                fields.invalid(field, format!("has an expression of {length} bytes, more than {most}"))
            );
        }
        let compiled = Regex::new(&around.replace("{}", text)).map_err(|error| {
            fields.invalid(field, format!("is not a supported regular expression: {error}"))
        })?;
        Ok(Expression { field, text: text.to_owned(), compiled })
    }

    fn matches(&self, path: &Path, name: &str) -> Result<bool> {
        self.compiled.is_match(name).map_err(|error| {
            let Expression { field, text, .. } = self;
            Error::invalid(format!("`{field}`: the expression `{}` fails on `{name}`: {error}", short(text)))
                .at(path.display())
                .with_help("list the names of the modules instead")
        })
    }
}

fn short(text: &str) -> String {
    text.chars().take(80).collect()
}

/// A number that patterns may replace for some modules.
pub(super) struct Pattern {
    field: &'static str,
    usual: f64,
    special: Vec<(Expression, f64)>,
}

impl Pattern {
    /// Reads the usual number of `usual`, and the numbers of `field`, each with `number`.
    pub fn read(
        fields: Fields<'_>,
        usual: &'static str,
        field: &'static str,
        default: f64,
        number: impl Fn(&Value) -> Result<f64, String>,
    ) -> Result<Self> {
        let of = |fields: Fields<'_>, name: &str, value: &Value| {
            number(value).map_err(|reason| fields.invalid(name, reason))
        };
        let value = fields.get(usual).map(|value| of(fields, usual, value)).transpose()?;
        let mut special = Vec::new();
        if let Some(patterns) = fields.object(field)? {
            for name in patterns.names() {
                let Some(value) = patterns.get(name) else { continue };
                let expression = Expression::new(fields, field, name, r"\A(.*\.)?({})\z")?;
                special.push((expression, of(patterns, name, value)?));
            }
        }
        Ok(Pattern { field, usual: value.unwrap_or(default), special })
    }

    /// Returns the number of a module.
    ///
    /// # Errors
    ///
    /// If two patterns match, but have different numbers. Which of them PEFT uses depends on their
    /// order in the file.
    pub fn of(&self, path: &Path, module: &str) -> Result<f64> {
        let mut found: Option<(&Expression, f64)> = None;
        for (expression, number) in &self.special {
            if !expression.matches(path, module)? {
                continue;
            }
            match found {
                Some((first, other)) if other != *number => {
                    let (first, second) = (short(&first.text), short(&expression.text));
                    let what = format!(
                        "`{}` has different numbers for module `{module}`: `{first}` has {other}, `{second}` has {number}",
                        self.field
                    );
                    return Err(Error::unsupported(what)
                        .at(path.display())
                        .with_help("keep one of the two patterns"));
                }
                _ => found = Some((expression, *number)),
            }
        }
        Ok(found.map_or(self.usual, |(_, number)| number))
    }
}

/// Names of modules, as a settings file specifies them.
pub(super) enum Names {
    AllLinear,
    Expression(Box<Expression>),
    List(Vec<String>),
}

impl Names {
    fn read(fields: Fields<'_>, field: &'static str) -> Result<Option<Self>> {
        match fields.get(field) {
            Some(Value::String(text)) => {
                let expression = Expression::new(fields, field, text, r"\A(?:{})\z")?;
                Ok(Some(Names::Expression(Box::new(expression))))
            }
            _ => Ok(names(fields, field)?.map(Names::List)),
        }
    }

    fn matches(&self, path: &Path, module: &Module<'_>) -> Result<bool> {
        match self {
            Names::AllLinear => Ok(!module.is_table && module.name.rsplit('.').next() != Some(OUTPUT)),
            Names::Expression(expression) => expression.matches(path, module.name),
            Names::List(names) => Ok(names.iter().any(|name| is_named(module.name, name))),
        }
    }
}

/// Checks whether a module has this name, or ends with it as one of its parts.
pub(super) fn is_named(module: &str, name: &str) -> bool {
    module == name || module.strip_suffix(name).is_some_and(|before| before.ends_with('.'))
}

/// Reads a list of names.
pub(super) fn names(fields: Fields<'_>, field: &'static str) -> Result<Option<Vec<String>>> {
    let Some(list) = fields.list(field)? else { return Ok(None) };
    let name = |value: &Value| match value.as_str() {
        Some(name) if !name.is_empty() => Ok(name.to_owned()),
        _ => Err(fields.invalid(field, format!("has {} in its list, not a name", shortened(value)))),
    };
    list.iter().map(name).collect::<Result<_>>().map(Some)
}

/// A module that an adapter has matrices for.
pub(super) struct Module<'m> {
    pub name: &'m str,
    /// Whether rows of its weight are read by token id.
    pub is_table: bool,
}

/// The modules that get low-rank changes.
pub(super) struct Targets {
    targets: Names,
    excluded: Option<Names>,
    /// Modules that are replaced as a whole, and so get no other change.
    saved: Vec<Expression>,
    layers: Option<Vec<u64>>,
    /// Parts of names before the number of a layer. If empty, any part.
    before_layer: Vec<Expression>,
}

impl Targets {
    pub fn read(fields: Fields<'_>) -> Result<Self> {
        let targets = target_modules(fields)?;
        let layers = layers_to_transform(fields)?;
        let before_layer = layers_pattern(fields)?;
        // PEFT refuses these settings too.
        for field in ["layers_to_transform", "layers_pattern"] {
            if fields.get(field).is_some() && !matches!(targets, Names::List(_)) {
                return Err(fields.invalid(field, "needs `target_modules` to be a list of names"));
            }
        }
        if !before_layer.is_empty() && fields.get("layers_to_transform").is_none() {
            return Err(fields.invalid("layers_pattern", "needs `layers_to_transform`"));
        }
        let field = "modules_to_save";
        let saved = names(fields, field)?.unwrap_or_default();
        let saved =
            saved.iter().map(|name| Expression::new(fields, field, name, r"\A(?:(^|.*\.){}($|\..*))"));
        Ok(Targets {
            targets,
            excluded: Names::read(fields, "exclude_modules")?,
            saved: saved.collect::<Result<_>>()?,
            layers,
            before_layer,
        })
    }

    pub fn names(&self) -> &Names {
        &self.targets
    }

    /// Checks whether a module gets low-rank changes.
    pub fn contain(&self, path: &Path, module: &Module<'_>) -> Result<bool> {
        if let Some(excluded) = &self.excluded
            && excluded.matches(path, module)?
        {
            return Ok(false);
        }
        for saved in &self.saved {
            if saved.matches(path, module.name)? {
                return Ok(false);
            }
        }
        if !self.targets.matches(path, module)? {
            return Ok(false);
        }
        // PEFT does not look at the layers of a module that is listed by its whole name.
        if let Names::List(names) = &self.targets
            && names.iter().any(|name| name == module.name)
        {
            return Ok(true);
        }
        let Some(layers) = &self.layers else { return Ok(true) };
        let number = self.layer_of(path, module.name)?;
        Ok(number.is_some_and(|number| layers.contains(&number)))
    }

    /// Returns the number of the layer that contains a module.
    fn layer_of(&self, path: &Path, module: &str) -> Result<Option<u64>> {
        if self.before_layer.is_empty() {
            // The number is neither among the first two parts of the name nor the last part. Later
            // numbers may be those of experts.
            let parts: Vec<&str> = module.split('.').collect();
            let inner = parts.get(2..parts.len().saturating_sub(1)).unwrap_or_default();
            return Ok(inner.iter().find_map(|part| part.parse().ok()));
        }
        for expression in &self.before_layer {
            if !expression.matches(path, module)? {
                continue;
            }
            let found = expression.compiled.captures(module).ok().flatten();
            let number = found.and_then(|groups| groups.name("index")?.as_str().parse().ok());
            return Ok(number);
        }
        Ok(None)
    }
}

/// Reads the modules that an adapter targets, before exceptions.
fn target_modules(fields: Fields<'_>) -> Result<Names> {
    let field = "target_modules";
    if let Some(Value::String(text)) = fields.get(field)
        && text.eq_ignore_ascii_case(ALL_LINEAR)
    {
        return Ok(Names::AllLinear);
    }
    match Names::read(fields, field)? {
        None => Err(fields.invalid(field, "is missing")),
        Some(Names::List(names)) if names.is_empty() => Err(fields.invalid(field, "is an empty list")),
        Some(targets) => Ok(targets),
    }
}

/// Reads the numbers of the layers that an adapter changes. `None` means all layers.
fn layers_to_transform(fields: Fields<'_>) -> Result<Option<Vec<u64>>> {
    let field = "layers_to_transform";
    let number = |value: &Value| {
        value.as_u64().ok_or_else(|| {
            let what = format!("is {}, not the number of a layer or a list of them", shortened(value));
            fields.invalid(field, what)
        })
    };
    match fields.get(field) {
        None => Ok(None),
        Some(Value::Array(list)) if list.is_empty() => Ok(None),
        Some(Value::Array(list)) => list.iter().map(number).collect::<Result<_>>().map(Some),
        Some(value) => Ok(Some(vec![number(value)?])),
    }
}

/// Reads the parts of names before the number of a layer.
fn layers_pattern(fields: Fields<'_>) -> Result<Vec<Expression>> {
    let field = "layers_pattern";
    let patterns = match fields.get(field) {
        Some(Value::String(pattern)) if pattern.is_empty() => Vec::new(),
        Some(Value::String(pattern)) => vec![pattern.clone()],
        _ => names(fields, field)?.unwrap_or_default(),
    };
    let around = r"\A(?:(?:^|.*?\.){}\.(?P<index>\d+)\.)";
    patterns.iter().map(|pattern| Expression::new(fields, field, pattern, around)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn contain(config: Value, module: &str, is_table: bool) -> bool {
        let path = Path::new("adapter_config.json");
        let targets = Targets::read(Fields::new(path, &config).unwrap()).unwrap();
        targets.contain(path, &Module { name: module, is_table }).unwrap()
    }

    #[test]
    fn modules_match_as_in_the_library() {
        const Q: &str = "model.layers.3.self_attn.q_proj";
        for (config, module, expected) in [
            (json!({"target_modules": ["q_proj"]}), Q, true),
            (json!({"target_modules": ["proj"]}), Q, false),
            (json!({"target_modules": [Q]}), Q, true),
            (json!({"target_modules": "q_proj"}), Q, false),
            (json!({"target_modules": r".*\.(q|v)_proj"}), Q, true),
            (json!({"target_modules": r".*\.(k|v)_proj"}), Q, false),
            (json!({"target_modules": r"(?!.*vision).*q_proj"}), Q, true),
            (json!({"target_modules": "all-linear"}), Q, true),
            (json!({"target_modules": "All-Linear"}), Q, true),
            (json!({"target_modules": ["q_proj"], "exclude_modules": "all-linear"}), Q, true),
            (json!({"target_modules": "all-linear"}), "lm_head", false),
            (json!({"target_modules": ["q_proj"], "exclude_modules": ["self_attn.q_proj"]}), Q, false),
            (json!({"target_modules": ["q_proj"], "exclude_modules": r".*layers\.4.*"}), Q, true),
            (json!({"target_modules": ["q_proj"], "layers_to_transform": 3}), Q, true),
            (json!({"target_modules": ["q_proj"], "layers_to_transform": [1, 2]}), Q, false),
            (json!({"target_modules": ["q_proj"], "layers_to_transform": []}), Q, true),
            (
                json!({"target_modules": ["q_proj"], "layers_to_transform": [3], "layers_pattern": "layers"}),
                Q,
                true,
            ),
            (
                json!({"target_modules": ["q_proj"], "layers_to_transform": [3], "layers_pattern": ["h"]}),
                Q,
                false,
            ),
            (
                json!({"target_modules": ["q_proj"], "layers_to_transform": [3], "layers_pattern": "layers"}),
                "layers.3.q_proj",
                true,
            ),
            (
                json!({"target_modules": ["up"], "layers_to_transform": [1], "layers_pattern": "layers|h"}),
                "layers.1.h.7.up",
                false,
            ),
            (
                json!({"target_modules": ["up"], "layers_to_transform": [1], "layers_pattern": "(h|layers)"}),
                "model.layers.1.experts.7.h.2.up",
                true,
            ),
            (
                json!({"target_modules": ["up"], "layers_to_transform": [1]}),
                "model.layers.1.experts.7.up",
                true,
            ),
            (
                json!({"target_modules": ["up"], "layers_to_transform": [7]}),
                "model.layers.1.experts.7.up",
                false,
            ),
            (json!({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}), Q, true),
            (json!({"target_modules": ["q_proj"], "modules_to_save": ["attn"]}), Q, true),
            (json!({"target_modules": ["q_proj"], "modules_to_save": ["self_attn"]}), Q, false),
            (json!({"target_modules": [Q], "modules_to_save": ["(k|q)_proj"]}), Q, false),
        ] {
            assert_eq!(contain(config.clone(), module, false), expected, "{config} {module}");
        }
        assert!(!contain(json!({"target_modules": "all-linear"}), "model.embed_tokens", true));
    }

    #[test]
    fn expressions_are_bounded_in_length_and_in_steps() {
        let path = Path::new("adapter_config.json");
        let config = json!({"target_modules": "a".repeat(limits::LORA_EXPRESSION_BYTES + 1)});
        let error = Targets::read(Fields::new(path, &config).unwrap()).map(drop).unwrap_err();
        assert!(error.to_string().contains("an expression of 65537 bytes"), "{error}");
        let config = json!({"target_modules": r"((a|aa)+)\1c"});
        let targets = Targets::read(Fields::new(path, &config).unwrap()).unwrap();
        let name = "a".repeat(80);
        let error = targets.contain(path, &Module { name: &name, is_table: false }).unwrap_err();
        assert!(error.to_string().contains("`target_modules`: the expression"), "{error}");
        assert!(error.help().is_some(), "{error:?}");
    }
}
