//! The tokens that files other than `tokenizer.json` name, combined as in `transformers`.
//!
//! `special_tokens_map.json` and `added_tokens.json` are older files. They are read only if
//! `tokenizer_config.json` has no `added_tokens_decoder`. Fields of the map then replace equal
//! fields of the configuration.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use shardwright_vocabulary::{Error, Ignored, Result};

use crate::input::{Files, invalid_field};

const CONFIG_FILE: &str = "tokenizer_config.json";
const MAP_FILE: &str = "special_tokens_map.json";
const ADDED_FILE: &str = "added_tokens.json";

/// Added tokens by their ids.
const DECODER: &str = "added_tokens_decoder";
/// A list of added tokens, or an object of further roles.
const EXTRA: &str = "extra_special_tokens";
/// The older name of the list.
const ADDITIONAL: &str = "additional_special_tokens";
/// An object of further roles, used if no other field has any.
const MODEL: &str = "model_specific_special_tokens";

/// Fields of `tokenizer_config.json` that name tokens, in addition to the roles (`…_token`).
pub(crate) const TOKEN_FIELDS: [&str; 4] = [DECODER, EXTRA, ADDITIONAL, MODEL];

/// Roles of every tokenizer. Others are a model's own.
const COMMON_ROLES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Properties of an added token, with their names in the files.
const FLAGS: [&str; 5] = ["single_word", "lstrip", "rstrip", "normalized", "special"];

/// Flags among the fields that end like roles.
pub(crate) const END_FLAGS: [&str; 2] = ["add_bos_token", "add_eos_token"];

/// The token of a role, such as `bos_token`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Role {
    pub name: String,
    pub content: String,
    pub file: PathBuf,
    /// The field of the file, with the name of the enclosing object.
    pub field: String,
}

/// Tokens that `tokenizer.json` should have according to another file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Statement {
    pub file: PathBuf,
    /// The field that names the tokens. `None` if each token is a field.
    pub field: Option<String>,
    pub tokens: Vec<StatedToken>,
}

/// A token as another file describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StatedToken {
    pub content: String,
    pub id: Option<u32>,
    /// Properties that the file specifies.
    pub flags: Vec<(&'static str, bool)>,
    /// Whether the token must be an added one. Otherwise it may be in the vocabulary alone.
    pub added: bool,
}

/// The fields of a file. A missing file has none.
struct Source {
    path: PathBuf,
    fields: Map<String, Value>,
}

impl Source {
    fn read(files: &Files<'_>, name: &str) -> Result<Source> {
        Ok(Source { path: files.path(name), fields: files.object(name)?.unwrap_or_default() })
    }

    /// Returns a field that exists and is not null.
    fn present(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    fn role(&self, name: &str, field: String, value: &Value) -> Result<Option<Role>> {
        if matches!(value, Value::Null | Value::Bool(_)) {
            // Settings such as `add_bos_token` are not tokens.
            return Ok(None);
        }
        let content = self.content(&field, value)?.to_owned();
        Ok(Some(Role { name: name.to_owned(), content, file: self.path.clone(), field }))
    }

    /// Returns the text of a token: a string, or an object with the string as `content`.
    fn content<'v>(&self, field: &str, value: &'v Value) -> Result<&'v str> {
        let content = if value.is_object() { value.get("content") } else { Some(value) };
        content
            .and_then(Value::as_str)
            .ok_or_else(|| invalid_field(&self.path, field, "a string, or an object with `content`", value))
    }

    /// Returns the roles of an object.
    fn inner_roles(&self, object: &str, fields: &Map<String, Value>) -> Result<Vec<Role>> {
        let mut roles = Vec::new();
        for (name, value) in fields {
            roles.extend(self.role(name, format!("{object}.{name}"), value)?);
        }
        Ok(roles)
    }

    fn statement(&self, field: Option<&str>, tokens: Vec<StatedToken>) -> Statement {
        Statement { file: self.path.clone(), field: field.map(str::to_owned), tokens }
    }
}

/// The files except `tokenizer.json`.
pub(crate) struct TokenFiles {
    config: Source,
    map: Source,
    added: Source,
}

impl TokenFiles {
    pub(crate) fn read(files: &Files<'_>) -> Result<TokenFiles> {
        let config = Source::read(files, CONFIG_FILE)?;
        let older = |name: &str| match config.fields.contains_key(DECODER) {
            true => Ok(Source { path: files.path(name), fields: Map::new() }),
            false => Source::read(files, name),
        };
        let (map, added) = (older(MAP_FILE)?, older(ADDED_FILE)?);
        Ok(TokenFiles { config, map, added })
    }

    /// Returns `tokenizer_config.json`: its path and its fields.
    pub(crate) fn config(&self) -> (&Path, &Map<String, Value>) {
        (&self.config.path, &self.config.fields)
    }

    /// Returns the token of each role. Later roles of the same name count. Null ones have no token.
    pub(crate) fn roles(&self) -> Result<Vec<Role>> {
        let mut roles = Vec::new();
        let own = self.config.fields.iter().filter(|(name, _)| !self.map.fields.contains_key(*name));
        let all = own.map(|field| (&self.config, field));
        for (source, (name, value)) in all.chain(self.map.fields.iter().map(|field| (&self.map, field))) {
            if name.ends_with("_token") {
                roles.extend(source.role(name, name.clone(), value)?);
            }
        }
        for source in [&self.config, &self.map] {
            if let Some(Value::Object(fields)) = source.fields.get(EXTRA) {
                roles.extend(source.inner_roles(EXTRA, fields)?);
            }
        }
        if roles.iter().all(|role| COMMON_ROLES.contains(&role.name.as_str())) {
            roles.extend(self.model_roles()?);
        }
        Ok(roles)
    }

    fn model_roles(&self) -> Result<Vec<Role>> {
        match self.config.present(MODEL) {
            None => Ok(Vec::new()),
            Some(Value::Object(fields)) => self.config.inner_roles(MODEL, fields),
            Some(other) => Err(invalid_field(&self.config.path, MODEL, "an object of tokens", other)),
        }
    }

    /// Returns fields that other fields replace, and unknown fields of `special_tokens_map.json`.
    /// `roles` are all [`roles`](Self::roles).
    pub(crate) fn ignored(&self, roles: &[Role]) -> Result<Vec<Ignored>> {
        let mut ignored = Vec::new();
        for (name, value) in &self.map.fields {
            let path = &self.map.path;
            if !(name.ends_with("_token") || [EXTRA, ADDITIONAL].contains(&name.as_str()) || value.is_null())
            {
                ignored.push(Ignored::field(path, name, "the field is not known"));
            }
            if !name.ends_with("_token") || self.config.fields.get(name).is_none_or(Value::is_boolean) {
                continue;
            }
            let replaced = self.config.role(name, name.clone(), &self.config.fields[name])?;
            let own = roles.iter().find(|role| role.field == *name && role.file == *path);
            if replaced.as_ref().map(|role| &role.content) != own.map(|role| &role.content) {
                let found = own.map_or("null".to_owned(), |role| format!("`{}`", role.content));
                let reason = format!("`{MAP_FILE}` has {found}");
                ignored.push(Ignored::field(&self.config.path, name, reason));
            }
        }
        let used =
            |role: &Role| roles.iter().any(|other| other.name == role.name && other.content == role.content);
        if let Some(role) = self.model_roles()?.into_iter().find(|role| !used(role)) {
            let reason = "other fields name tokens of the model";
            ignored.push(Ignored::field(&role.file, role.field, reason));
        }
        Ok(ignored)
    }

    /// Returns the tokens that `tokenizer.json` should have. `roles` are all
    /// [`roles`](Self::roles).
    pub(crate) fn statements(&self, roles: &[Role]) -> Result<Vec<Statement>> {
        // GGUF files do not mark the token for unknown text as one that is matched.
        let unknown = roles.iter().find(|role| role.name == "unk_token").map(|role| &role.content);
        let of_role = |role: &Role| Statement {
            file: role.file.clone(),
            field: Some(role.field.clone()),
            tokens: vec![StatedToken {
                content: role.content.clone(),
                id: None,
                flags: Vec::new(),
                added: unknown != Some(&role.content),
            }],
        };
        let mut statements: Vec<Statement> = roles.iter().map(of_role).collect();
        for source in [&self.config, &self.map] {
            for field in [EXTRA, ADDITIONAL] {
                statements.extend(list(source, field)?);
            }
        }
        statements.extend(self.decoder()?);
        let mut added = Vec::new();
        for (content, value) in &self.added.fields {
            let id = id_of(value).ok_or_else(|| invalid_id(&self.added.path, content, value))?;
            added.push(StatedToken {
                content: content.clone(),
                id: Some(id),
                flags: Vec::new(),
                added: true,
            });
        }
        statements.push(self.added.statement(None, added));
        statements.retain(|statement| !statement.tokens.is_empty());
        Ok(statements)
    }

    fn decoder(&self) -> Result<Option<Statement>> {
        let source = &self.config;
        let fields = match source.present(DECODER) {
            None => return Ok(None),
            Some(Value::Object(fields)) => fields,
            Some(other) => {
                return Err(invalid_field(&source.path, DECODER, "an object of tokens by their ids", other));
            }
        };
        let mut tokens = Vec::new();
        for (id, value) in fields {
            let field = format!("{DECODER}.{id}");
            let content = source.content(&field, value)?.to_owned();
            let id: u32 = id.parse().map_err(|_| invalid_id(&source.path, DECODER, &id.clone().into()))?;
            let mut flags = Vec::new();
            for name in FLAGS {
                match value.get(name) {
                    None => {}
                    Some(Value::Bool(flag)) => flags.push((name, *flag)),
                    Some(other) => {
                        let field = format!("{field}.{name}");
                        return Err(invalid_field(&source.path, &field, "true or false", other));
                    }
                }
            }
            tokens.push(StatedToken { content, id: Some(id), flags, added: true });
        }
        Ok(Some(source.statement(Some(DECODER), tokens)))
    }
}

/// Returns the tokens of a list. An object under the newer name has roles instead.
fn list(source: &Source, field: &str) -> Result<Option<Statement>> {
    let items = match source.present(field) {
        None => return Ok(None),
        Some(Value::Array(items)) => items,
        Some(Value::Object(_)) if field == EXTRA => return Ok(None),
        Some(other) => return Err(invalid_field(&source.path, field, "a list of tokens", other)),
    };
    let token = |value: &Value| -> Result<StatedToken> {
        let content = source.content(field, value)?.to_owned();
        Ok(StatedToken { content, id: None, flags: Vec::new(), added: true })
    };
    Ok(Some(source.statement(Some(field), items.iter().map(token).collect::<Result<_>>()?)))
}

fn id_of(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

fn invalid_id(path: &Path, field: &str, value: &Value) -> Error {
    invalid_field(path, field, "a token id (a whole number below 2³²)", value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    fn read(files: &[(&str, Value)]) -> Result<TokenFiles> {
        let file = |name: &str| {
            let found = files.iter().find(|(existing, _)| *existing == name);
            found.map(|(_, value)| value.to_string().into_bytes())
        };
        TokenFiles::read(&Files::from_source(Path::new("m"), &file))
    }

    fn pairs(files: &[(&str, Value)]) -> Vec<(String, String)> {
        let mut roles = read(files).unwrap().roles().unwrap();
        roles.sort_by(|one, other| one.name.cmp(&other.name));
        roles.into_iter().map(|role| (role.name, role.content)).collect()
    }

    fn pair(name: &str, content: &str) -> (String, String) {
        (name.to_owned(), content.to_owned())
    }

    #[test]
    fn the_map_replaces_roles_unless_added_tokens_are_decoded() {
        let config = json!({"bos_token": "<a>", "eos_token": "<e>", "add_bos_token": true});
        let map = json!({"bos_token": {"content": "<b>"}, "pad_token": "<p>", "eos_token": null});
        let files = [(CONFIG_FILE, config.clone()), (MAP_FILE, map.clone())];
        assert_eq!(pairs(&files), [pair("bos_token", "<b>"), pair("pad_token", "<p>")]);
        let mut config = config;
        config[DECODER] = json!({});
        let files = [(CONFIG_FILE, config), (MAP_FILE, map), (ADDED_FILE, json!({"<x>": "no id"}))];
        assert_eq!(pairs(&files), [pair("bos_token", "<a>"), pair("eos_token", "<e>")]);
        assert!(read(&files).unwrap().statements(&[]).unwrap().is_empty());
    }

    #[test]
    fn objects_have_further_roles() {
        let config = json!({"eos_token": "<e>", EXTRA: {"image_token": "<i>"}, MODEL: {"x_token": "<x>"}});
        let expected = [pair("eos_token", "<e>"), pair("image_token", "<i>")];
        assert_eq!(pairs(&[(CONFIG_FILE, config)]), expected);
        let config = json!({"eos_token": "<e>", MODEL: {"x_token": "<x>"}});
        assert_eq!(pairs(&[(CONFIG_FILE, config)]), [pair("eos_token", "<e>"), pair("x_token", "<x>")]);
    }

    #[test]
    fn replaced_and_unknown_fields_are_reported() {
        let config = json!({
            "bos_token": "<a>", "eos_token": {"content": "<e>"}, "image_token": "<i>", "sep_token": "<s>",
            MODEL: {"image_token": "<i>", "x_token": "<x>"},
        });
        let map = json!({"bos_token": "<b>", "eos_token": "<e>", "sep_token": null, "wobble": 1});
        let files = read(&[(CONFIG_FILE, config), (MAP_FILE, map)]).unwrap();
        let found = files.ignored(&files.roles().unwrap()).unwrap();
        let mut texts: Vec<String> = found.iter().map(ToString::to_string).collect();
        texts.sort_unstable();
        let expected = [
            "m/special_tokens_map.json: `wobble` is ignored: the field is not known",
            "m/tokenizer_config.json: `bos_token` is ignored: `special_tokens_map.json` has `<b>`",
            "m/tokenizer_config.json: `model_specific_special_tokens.x_token` is ignored: other fields name \
             tokens of the model",
            "m/tokenizer_config.json: `sep_token` is ignored: `special_tokens_map.json` has null",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn wrong_kinds_are_named() {
        for (file, fields, field) in [
            (CONFIG_FILE, json!({"bos_token": 3}), "bos_token"),
            (CONFIG_FILE, json!({"bos_token": {"text": "x"}}), "bos_token"),
            (MAP_FILE, json!({"eos_token": ["x"]}), "eos_token"),
            (CONFIG_FILE, json!({EXTRA: {"image_token": 3}}), "extra_special_tokens.image_token"),
            (CONFIG_FILE, json!({EXTRA: "x"}), EXTRA),
            (CONFIG_FILE, json!({ADDITIONAL: {"a": "x"}}), ADDITIONAL),
            (MAP_FILE, json!({ADDITIONAL: [3]}), ADDITIONAL),
            (CONFIG_FILE, json!({MODEL: ["x"]}), MODEL),
            (CONFIG_FILE, json!({DECODER: ["x"]}), DECODER),
            (CONFIG_FILE, json!({DECODER: {"x": {"content": "a"}}}), DECODER),
            (CONFIG_FILE, json!({DECODER: {"5": 5}}), "added_tokens_decoder.5"),
            (
                CONFIG_FILE,
                json!({DECODER: {"5": {"content": "a", "lstrip": 1}}}),
                "added_tokens_decoder.5.lstrip",
            ),
            (ADDED_FILE, json!({"<x>": -1}), "<x>"),
        ] {
            let files = read(&[(file, fields.clone())]).unwrap();
            let error = files.roles().and_then(|roles| files.statements(&roles)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert_eq!(error.place(), Some(format!("m/{file}").as_str()), "{fields}");
            assert!(error.message().starts_with(&format!("`{field}` should be ")), "{fields}: {error}");
        }
    }
}
