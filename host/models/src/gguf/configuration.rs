//! Makes a `config.json` from a file's metadata.
//!
//! A table lists the keys of each architecture: used, checked or irrelevant. Any other key is
//! refused by name, since it may change the result of the model, and so are unknown keys of other
//! groups (`groups.rs`). llama.cpp has some facts in its code that files omit. They are reported as
//! *assumed*.

mod embedding;
mod granite;
mod phi3;
mod rotary;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Map, Value as Json, json};
use shardwright_gguf::{ARCHITECTURE, Head, List, Metadata, Tensor, Value, check_parts, expect_model};
use shardwright_graph::WeightBytes as _;
use shardwright_vocabulary::{Error, Result};

use super::groups;
use super::names::ARCHITECTURES;
use crate::family::Family;
use crate::json::unsupported_field;
use crate::limits;
use crate::weight_file::Mapped;

/// How the value of a key is used.
#[derive(Clone, Copy)]
enum Use {
    /// A field of the configuration.
    Field(&'static str),
    /// Known from another source, and must agree with that field.
    Same(&'static str),
    /// Off in every supported model of the family: 0, `false` or absent.
    Off,
    /// Without effect on the result of the model.
    Irrelevant,
    /// Read by separate code.
    Own,
}

/// Keys that all architectures have, after the prefix `ARCHITECTURE.`.
const COMMON: &[(&str, Use)] = &[
    ("context_length", Use::Field("max_position_embeddings")),
    ("embedding_length", Use::Field("hidden_size")),
    ("block_count", Use::Field("num_hidden_layers")),
    ("attention.head_count", Use::Field("num_attention_heads")),
    ("attention.layer_norm_rms_epsilon", Use::Field("rms_norm_eps")),
    ("rope.freq_base", Use::Own),
    ("rope.scaling.type", Use::Own),
    ("rope.scaling.factor", Use::Own),
    ("rope.scale_linear", Use::Own),
    ("rope.scaling.original_context_length", Use::Own),
    ("rope.scaling.finetuned", Use::Own),
    ("vocab_size", Use::Same("vocab_size")),
    ("attention.causal", Use::Own),
    ("expert_count", Use::Off),
    ("expert_used_count", Use::Off),
    // The factor multiplies cosines and sines.
    ("rope.scaling.attn_factor", Use::Own),
    ("final_logit_softcapping", Use::Field("final_logit_softcapping")),
    ("attn_logit_softcapping", Use::Field("attn_logit_softcapping")),
];

/// Keys that every model requires.
const REQUIRED: [&str; 6] = [
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
];

/// Additional keys of architectures whose layers all have the same sizes.
const ALIKE: &[(&str, Use)] = &[
    ("feed_forward_length", Use::Field("intermediate_size")),
    ("attention.head_count_kv", Use::Own),
    ("attention.key_length", Use::Field("head_dim")),
    ("attention.value_length", Use::Same("head_dim")),
];

/// Additional keys of architectures that rotate all pairs of a head.
const TURNING: &[(&str, Use)] = &[("rope.dimension_count", Use::Same("head_dim"))];

const GRANITE: &[(&str, Use)] = &[
    ("attention.scale", Use::Own),
    ("embedding_scale", Use::Own),
    ("residual_scale", Use::Own),
    ("logit_scale", Use::Own),
    // Converters of the variant with recurrent layers and experts also write the sizes of absent
    // ones.
    ("ssm.conv_kernel", Use::Irrelevant),
    ("ssm.state_size", Use::Irrelevant),
    ("ssm.group_count", Use::Irrelevant),
    ("ssm.inner_size", Use::Irrelevant),
    ("ssm.time_step_rank", Use::Irrelevant),
    ("expert_shared_feed_forward_length", Use::Same("intermediate_size")),
];

const PHI3: &[(&str, Use)] = &[("rope.dimension_count", Use::Own), ("attention.sliding_window", Use::Own)];

const GEMMA3: &[(&str, Use)] = &[
    ("attention.sliding_window", Use::Field("sliding_window")),
    ("attention.sliding_window_pattern", Use::Own),
    ("rope.freq_base_swa", Use::Own),
];

/// Keys in addition to [`GEMMA3`].
const EMBEDDING: &[(&str, Use)] = &[
    ("pooling_type", Use::Own),
    ("dense_2_feat_in", Use::Own),
    ("dense_2_feat_out", Use::Own),
    ("dense_3_feat_in", Use::Own),
    ("dense_3_feat_out", Use::Own),
];

const GEMMA4: &[(&str, Use)] = &[
    ("feed_forward_length", Use::Own),
    ("attention.head_count_kv", Use::Own),
    // Sizes of full layers. Sliding layers have separate keys.
    ("attention.key_length", Use::Field("global_head_dim")),
    ("attention.value_length", Use::Same("global_head_dim")),
    ("rope.dimension_count", Use::Same("global_head_dim")),
    ("attention.key_length_swa", Use::Field("head_dim")),
    ("attention.value_length_swa", Use::Same("head_dim")),
    ("rope.dimension_count_swa", Use::Same("head_dim")),
    ("attention.sliding_window", Use::Field("sliding_window")),
    ("attention.sliding_window_pattern", Use::Own),
    ("attention.shared_kv_layers", Use::Field("num_kv_shared_layers")),
    ("embedding_length_per_layer_input", Use::Field("hidden_size_per_layer_input")),
    ("rope.freq_base_swa", Use::Own),
    ("expert_feed_forward_length", Use::Off),
];

/// A configuration made from metadata.
#[derive(Clone, Debug)]
pub(crate) struct Configuration {
    /// The content of the `config.json`.
    pub value: Json,
    /// The key of each field, for messages.
    pub keys: BTreeMap<String, String>,
    /// Assumed facts that the file omits, as sentences.
    pub assumed: Vec<String>,
}

impl Configuration {
    /// Reads the heads of the files of a model and makes the configuration.
    pub fn read(paths: &[PathBuf]) -> Result<Self> {
        let files = paths.iter().map(|path| super::map(path)).collect::<Result<Vec<_>, _>>()?;
        let heads = super::heads(paths, &files)?;
        check_parts(&heads)?;
        Self::of(&Parts { heads: &heads, files: &files })
    }

    /// Makes the configuration of a model.
    fn of(parts: &Parts<'_, '_>) -> Result<Self> {
        let metadata = parts.metadata()?;
        expect_model(metadata)?;
        let path = metadata.path();
        let found = metadata.text(ARCHITECTURE)?.unwrap_or_default();
        let known = ARCHITECTURES.iter().find(|(name, _)| *name == found);
        let Some(&(architecture, family)) = known else {
            let found: String = found.chars().take(80).collect();
            let known = ARCHITECTURES.map(|(name, _)| name).join(", ");
            return Err(Error::unsupported(format!("architecture `{found}` is not supported"))
                .at(path.display())
                .with_help(format!("supported architectures: {known}")));
        };
        groups::check(parts.heads, architecture)?;
        let tables: &[&[(&str, Use)]] = match family {
            Family::Gemma3 => &[COMMON, ALIKE, TURNING, GEMMA3],
            Family::Gemma4 => &[COMMON, GEMMA4],
            Family::EmbeddingGemma => &[COMMON, ALIKE, TURNING, GEMMA3, EMBEDDING],
            Family::Granite => &[COMMON, ALIKE, TURNING, GRANITE],
            Family::Phi3 => &[COMMON, ALIKE, PHI3],
            _ => &[COMMON, ALIKE, TURNING],
        };
        let mut making =
            Making { metadata, architecture, fields: Map::new(), keys: BTreeMap::new(), assumed: Vec::new() };
        making.sizes(parts, family, tables)?;
        match family {
            Family::Gemma3 => {
                making.rotary(parts, 1e6)?;
                making.gemma3()?;
            }
            Family::EmbeddingGemma => {
                making.rotary(parts, 1e6)?;
                making.gemma3()?;
                making.embedding(parts)?;
            }
            Family::Gemma4 => making.gemma4(parts)?,
            Family::SmolLM3 => {
                making.rotary(parts, 1e4)?;
                making.assume("no_rope_layer_interval", 4, "no rotation in every layer of number");
            }
            Family::Granite => {
                making.rotary(parts, 1e4)?;
                making.granite()?;
            }
            Family::Phi3 => making.phi3(parts)?,
            _ => making.rotary(parts, 1e4)?,
        }
        let Making { fields, keys, assumed, .. } = making;
        Ok(Configuration { value: Json::Object(fields), keys, assumed })
    }
}

/// The heads of the files of a model, and the files.
struct Parts<'h, 'f> {
    heads: &'h [Head<'f>],
    files: &'h [Mapped],
}

impl<'h, 'f> Parts<'h, 'f> {
    /// Returns the metadata of the model, which its first file contains.
    fn metadata(&self) -> Result<&'h Metadata<'f>> {
        let first = self.heads.first().ok_or_else(|| Error::missing("no GGUF file"))?;
        Ok(&first.metadata)
    }

    /// Returns the tensor of that name, from any file.
    fn tensor(&self, name: &str) -> Option<&'h Tensor<'f>> {
        self.heads.iter().flat_map(|head| &head.tensors).find(|tensor| tensor.name == name)
    }

    /// Returns a tensor's values. `None` if it is absent, or if values of its type are not
    /// supported.
    fn values(&self, name: &str) -> Option<Vec<f32>> {
        self.heads.iter().zip(self.files).find_map(|(head, file)| {
            let tensor = head.tensors.iter().find(|tensor| tensor.name == name)?;
            let end = tensor.begin + tensor.length;
            tensor.kind.values(file.bytes().get(tensor.begin as usize..end as usize)?)
        })
    }
}

/// A configuration under construction.
struct Making<'h, 'f> {
    metadata: &'h Metadata<'f>,
    architecture: &'static str,
    fields: Map<String, Json>,
    keys: BTreeMap<String, String>,
    assumed: Vec<String>,
}

impl Making<'_, '_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn set(&mut self, field: &str, value: impl Into<Json>, key: &str) {
        self.fields.insert(field.to_owned(), value.into());
        self.keys.insert(field.to_owned(), key.to_owned());
    }

    /// Sets a field that the file omits.
    fn assume(&mut self, field: &str, value: impl Into<Json>, words: &str) {
        let value = value.into();
        self.note_assumed(&value, words);
        self.fields.insert(field.to_owned(), value);
    }

    fn note_assumed(&mut self, value: &Json, words: &str) {
        self.assumed.push(format!("assumed: {words} {value}, which the file omits and llama.cpp uses"));
    }

    fn whole_field(&self, field: &str) -> Option<u64> {
        self.fields.get(field).and_then(Json::as_u64)
    }

    fn unsupported(&self, key: &str, supported: &str) -> Error {
        let found = self.metadata.get(key).map_or_else(|| "absent".to_owned(), |value| value.shown());
        unsupported_field(self.metadata.path(), key, found, supported)
    }

    /// Sets the fields that come from a single key or shape.
    fn sizes(
        &mut self,
        parts: &Parts<'_, '_>,
        family: Family,
        tables: &[&[(&'static str, Use)]],
    ) -> Result<()> {
        let model_type = match family {
            Family::Gemma3 | Family::EmbeddingGemma => "gemma3_text",
            Family::Gemma4 => "gemma4_text",
            family => family.name(),
        };
        self.set("model_type", model_type, "general.architecture");
        if let Some(embedding) = parts.tensor("token_embd.weight") {
            let rows = embedding.shape.first().copied().unwrap_or(0);
            self.set("vocab_size", rows, "token_embd.weight");
        }
        // The converter omits an output matrix that equals the embedding.
        self.set("tie_word_embeddings", parts.tensor("output.weight").is_none(), "output.weight");
        let all = || tables.iter().copied().flatten().copied();
        for (name, used) in all() {
            let key = self.key(name);
            let Some(value) = self.metadata.get(&key) else { continue };
            match used {
                Use::Field(field) => {
                    let json = plain(value).ok_or_else(|| self.metadata.wrong(&key, "a number or a flag"))?;
                    // A soft-cap of 0 means that there is none.
                    if !(field.ends_with("softcapping") && json.as_f64() == Some(0.0)) {
                        self.set(field, json, &key);
                    }
                }
                Use::Off if !matches!(value, Value::Integer(0) | Value::Flag(false)) => {
                    return Err(self.unsupported(&key, "0"));
                }
                _ => {}
            }
        }
        for name in REQUIRED {
            let key = self.key(name);
            if self.metadata.get(&key).is_none() {
                return Err(self.metadata.missing(&key));
            }
        }
        let heads = self.whole_field("num_attention_heads").unwrap_or(0);
        match self.metadata.get(&self.key("attention.head_count_kv")) {
            Some(_) => self.key_value_heads()?,
            // The code for Gemma 4 requires them below.
            None if family == Family::Gemma4 => {}
            None => self.assume("num_key_value_heads", heads, "a number of key/value heads of"),
        }
        // The family later refuses a width that is not a multiple of the number of heads.
        if let (None, Some(hidden), 1..) =
            (self.whole_field("head_dim"), self.whole_field("hidden_size"), heads)
        {
            self.assume("head_dim", hidden / heads, "heads of a width of");
        }
        for (name, used) in all() {
            let (Use::Same(field), key) = (used, self.key(name)) else { continue };
            let Some(value) = self.metadata.whole(&key)? else { continue };
            if self.whole_field(field).is_some_and(|known| known != value) {
                let same = "the same as the other sizes of the file";
                return Err(self.unsupported(&key, same));
            }
        }
        self.refuse_others(family, tables)
    }

    /// Refuses keys whose effect is unknown, or does not fit the family.
    fn refuse_others(&self, family: Family, tables: &[&[(&'static str, Use)]]) -> Result<()> {
        let prefix = self.key("");
        for (key, _) in self.metadata.entries() {
            let Some(name) = key.strip_prefix(&prefix) else { continue };
            if !tables.iter().copied().flatten().any(|(known, _)| *known == name) {
                return Err(self.unsupported(key, "keys whose effect on this architecture is known"));
            }
        }
        // Only Phi 3 has this factor, which its own code reads.
        let key = self.key("rope.scaling.attn_factor");
        if family != Family::Phi3 && self.metadata.number(&key)?.is_some_and(|factor| factor != 1.0) {
            return Err(self.unsupported(&key, "1"));
        }
        let key = self.key("attention.causal");
        if self.metadata.flag(&key)?.is_some_and(|causal| causal == (family == Family::EmbeddingGemma)) {
            return Err(self.unsupported(&key, "true, or false in an encoder"));
        }
        Ok(())
    }

    /// Sets the types of layers, if the file specifies them as a list or as a number. Returns
    /// whether it does.
    fn layer_types(&mut self) -> Result<bool> {
        let key = self.key("attention.sliding_window_pattern");
        match self.metadata.get(&key) {
            None => return Ok(false),
            Some(Value::Integer(_)) => {
                let pattern = self.metadata.whole(&key)?.unwrap_or(0);
                self.set("sliding_window_pattern", pattern, &key);
            }
            Some(Value::List(list)) => {
                self.check_layers(&key, list)?;
                let word = |value| match value {
                    Value::Flag(true) | Value::Integer(1) => Some(Json::from("sliding_attention")),
                    Value::Flag(false) | Value::Integer(0) => Some(Json::from("full_attention")),
                    _ => None,
                };
                let words: Option<Vec<Json>> = list.iter().map(word).collect();
                let words = words.ok_or_else(|| self.metadata.wrong(&key, "a list of flags"))?;
                self.set("layer_types", words, &key);
            }
            Some(_) => return Err(self.metadata.wrong(&key, "a number, or a list of flags")),
        }
        Ok(true)
    }

    /// Reads the layers of Gemma 3. Facts that files omit come from llama.cpp.
    fn gemma3(&mut self) -> Result<()> {
        if !self.layer_types()? {
            self.assume("sliding_window_pattern", 6, "full attention in every layer of number");
        }
        let key = self.key("rope.freq_base_swa");
        match self.metadata.number(&key)? {
            Some(base) => self.set("rope_local_base_freq", base, &key),
            None => self.assume("rope_local_base_freq", 10_000.0, "a rotary base of sliding layers of"),
        }
        let whole = |name| self.whole_field(name);
        let head_dim = whole("head_dim").unwrap_or(256);
        let scalar = match (whole("num_hidden_layers"), whole("hidden_size"), whole("num_attention_heads")) {
            // The 27B model scales queries by the size that its rows divided by its heads would
            // have.
            (Some(62), Some(hidden), Some(heads)) if heads > 0 => hidden / heads,
            _ => head_dim,
        };
        self.assume("query_pre_attn_scalar", scalar, "queries divided by the root of");
        Ok(())
    }

    /// Refuses a list with more values than a model has layers, before it becomes a larger JSON
    /// list.
    fn check_layers(&self, key: &str, list: List<'_>) -> Result<()> {
        match list.len() > *limits::LAYERS.end() {
            true => Err(self.metadata.wrong(key, "a value for each of at most 512 layers")),
            false => Ok(()),
        }
    }

    /// Returns the values of a key, which has one number or one for each layer.
    fn per_layer(&self, name: &str) -> Result<Vec<u64>> {
        let key = self.key(name);
        let wrong = || self.metadata.wrong(&key, "a number, or one for each layer");
        match self.metadata.get(&key) {
            None => Err(self.metadata.missing(&key)),
            Some(Value::List(list)) => {
                self.check_layers(&key, list)?;
                let whole = |value| match value {
                    Value::Integer(number) => u64::try_from(number).ok(),
                    _ => None,
                };
                let numbers: Option<Vec<u64>> = list.iter().map(whole).collect();
                numbers.filter(|numbers| !numbers.is_empty()).ok_or_else(wrong)
            }
            Some(_) => Ok(vec![self.metadata.whole(&key)?.ok_or_else(wrong)?]),
        }
    }

    /// Sets the number of key/value heads, which a file may specify for each layer.
    fn key_value_heads(&mut self) -> Result<()> {
        let key = self.key("attention.head_count_kv");
        let heads = self.per_layer("attention.head_count_kv")?;
        if heads.iter().any(|count| *count != heads[0]) {
            return Err(self.unsupported(&key, "the same number of key/value heads in all layers"));
        }
        self.set("num_key_value_heads", heads[0], &key);
        Ok(())
    }

    /// Returns a rotary base. If the file omits it, llama.cpp's default `usual` is assumed.
    fn base(&mut self, name: &str, usual: f64, words: &str) -> Result<f64> {
        let given = self.metadata.number(&self.key(name))?;
        if given.is_none() {
            self.note_assumed(&usual.into(), words);
        }
        Ok(given.unwrap_or(usual))
    }

    /// Sets the sizes of Gemma 4 that differ between layers, and its rotary positions.
    fn gemma4(&mut self, parts: &Parts<'_, '_>) -> Result<()> {
        if !self.layer_types()? {
            let key = self.key("attention.sliding_window_pattern");
            return Err(self.metadata.missing(&key));
        }
        let layers = self.whole_field("num_hidden_layers").unwrap_or(0);
        let shared = self.whole_field("num_kv_shared_layers").unwrap_or(0);
        let key = self.key("feed_forward_length");
        let widths = self.per_layer("feed_forward_length")?;
        let narrow = widths[0];
        // Layers that share keys may be twice as wide.
        let wide = |layer: usize| (layer as u64) >= layers.saturating_sub(shared);
        let double = widths.iter().enumerate().any(|(layer, width)| wide(layer) && *width == 2 * narrow);
        let implied = |layer: usize| if double && wide(layer) { 2 * narrow } else { narrow };
        if widths.len() > 1 && widths.iter().enumerate().any(|(layer, width)| *width != implied(layer)) {
            return Err(self.unsupported(&key, "one width, doubled in layers that share keys and values"));
        }
        self.set("intermediate_size", narrow, &key);
        self.set("use_double_wide_mlp", double, &key);
        self.key_value_heads()?;
        if self.whole_field("hidden_size_per_layer_input").is_none() {
            self.fields.insert("hidden_size_per_layer_input".to_owned(), 0.into());
        }
        if let Some(table) = parts.tensor("per_layer_token_embd.weight") {
            let rows = table.shape.first().copied().unwrap_or(0);
            self.set("vocab_size_per_layer_input", rows, "per_layer_token_embd.weight");
        }
        let full = self.base("rope.freq_base", 1e6, "a rotary base of full layers of")?;
        let sliding = self.base("rope.freq_base_swa", 1e4, "a rotary base of sliding layers of")?;
        let partial = self.turning_share(parts)?;
        let rotary = json!({
            "full_attention": { "rope_type": "proportional", "rope_theta": full, "partial_rotary_factor": partial },
            "sliding_attention": { "rope_type": "default", "rope_theta": sliding },
        });
        let key = self.key("rope.freq_base");
        self.set("rope_parameters", rotary, &key);
        Ok(())
    }
}

/// Converts a number or a boolean to JSON.
fn plain(value: Value<'_>) -> Option<Json> {
    match value {
        Value::Integer(number) => {
            u64::try_from(number).map(Json::from).or_else(|_| i64::try_from(number).map(Json::from)).ok()
        }
        Value::Float(number) => serde_json::Number::from_f64(number).map(Json::Number),
        Value::Flag(flag) => Some(flag.into()),
        Value::Text(_) | Value::List(_) => None,
    }
}
