//! `adapter_config.json`: classifies each of its fields as used, refused, unable to change a
//! result, or ignored and reported.

use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};
use shardwright_vocabulary::{Error, Ignored, Result};

use super::targets::{self, Names, Pattern, Targets};
use crate::json::{self, Fields, shortened};
use crate::limits;

/// Name of an adapter's settings in its folder.
pub(super) const CONFIG: &str = "adapter_config.json";

/// Fields that this module reads.
const USED: [&str; 15] = [
    "peft_type",
    "base_model_name_or_path",
    "r",
    "rank_pattern",
    "lora_alpha",
    "alpha_pattern",
    "use_rslora",
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "modules_to_save",
    "bias",
    "init_lora_weights",
    "use_dora",
];

/// Fields of other kinds of adapters, and of changes to the model's structure. They must be off.
const OFF: [&str; 7] = [
    "lora_bias",
    "use_qalora",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "megatron_config",
];

/// Settings of variants of LoRA, which have other matrices or change the model's own weights. An
/// empty object selects a variant with its defaults.
const VARIANTS: [&str; 5] =
    ["use_bdlora", "arrow_config", "kasa_config", "monteclora_config", "velora_config"];

/// Fields that cannot change a result, with the reason.
const CANNOT_MATTER: [(&str, &[&str]); 4] = [
    ("records of the file's making", &["peft_version", "revision", "auto_mapping", "task_type"]),
    (
        "settings of training",
        &[
            "lora_dropout",
            "inference_mode",
            "loftq_config",
            "eva_config",
            "corda_config",
            "lora_ga_config",
            "runtime_config",
        ],
    ),
    ("settings of features that must be off", &["qalora_group_size", "megatron_core"]),
    ("a setting for tied weights, for which adapters are refused", &["ensure_weight_tying"]),
];

/// Initialisations of plain adapters. Most others change the weights of the model, so that an
/// adapter belongs to the changed ones.
const INITIALISATIONS: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// Which biases an adapter replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Biases {
    None,
    /// Biases of the whole model, or of the modules that it targets.
    Replaced,
}

/// The settings of an adapter.
pub(super) struct Config {
    pub path: PathBuf,
    /// SHA-256 of the file.
    pub sha256: [u8; 32],
    /// The name of the model that the adapter was trained on.
    pub base: Option<String>,
    pub targets: Targets,
    /// Names of the modules that the adapter replaces as a whole.
    pub saved: Vec<String>,
    pub biases: Biases,
    pub ignored: Vec<Ignored>,
    rank: Pattern,
    alpha: Pattern,
    is_rank_stabilised: bool,
}

impl Config {
    /// Reads and checks the settings in an adapter's folder.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(CONFIG);
        let bytes = json::read_capped(&path, limits::CONFIG_BYTES).map_err(|error| {
            let help = "name a folder that PEFT's `save_pretrained` wrote: adapter_config.json and adapter_model.safetensors";
            if error.is_not_found() { error.with_help(help) } else { error }
        })?;
        Config::parse(&path, &bytes)
    }

    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let value = json::parse(path, bytes)?;
        let fields = Fields::new(path, &value)?;
        expect_lora(fields)?;
        let saved = targets::names(fields, "modules_to_save")?.unwrap_or_default();
        let rank = Pattern::read(fields, "r", "rank_pattern", 8.0, rank)?;
        let alpha = Pattern::read(fields, "lora_alpha", "alpha_pattern", 8.0, finite)?;
        Ok(Config {
            path: path.to_owned(),
            sha256: Sha256::digest(bytes).into(),
            base: fields.text("base_model_name_or_path")?.map(str::to_owned),
            targets: Targets::read(fields)?,
            saved,
            biases: biases(fields)?,
            ignored: ignored(fields)?,
            rank,
            alpha,
            is_rank_stabilised: fields.flag("use_rslora")?.unwrap_or(false),
        })
    }

    /// Returns the rank of a module's matrices, which is a whole number.
    pub fn rank(&self, module: &str) -> Result<u64> {
        Ok(self.rank.of(&self.path, module)? as u64)
    }

    /// Returns the factor of a module's change.
    pub fn scaling(&self, module: &str) -> Result<f64> {
        let (rank, alpha) = (self.rank.of(&self.path, module)?, self.alpha.of(&self.path, module)?);
        Ok(alpha / if self.is_rank_stabilised { rank.sqrt() } else { rank })
    }

    /// Returns the targets, if they are a list of names.
    pub fn listed_targets(&self) -> &[String] {
        match self.targets.names() {
            Names::List(names) => names,
            Names::AllLinear | Names::Expression(_) => &[],
        }
    }

    /// Checks whether the adapter replaces a module, or one that contains it, as a whole.
    pub fn is_saved(&self, module: &str) -> bool {
        let ends = module.match_indices('.').map(|(end, _)| end).chain([module.len()]);
        ends.map(|end| &module[..end]).any(|outer| self.saved.iter().any(|name| outer.ends_with(name)))
    }
}

/// Refuses other kinds of adapters, by the field that selects them.
fn expect_lora(fields: Fields<'_>) -> Result<()> {
    match fields.text("peft_type")? {
        Some("LORA") => {}
        Some(_) => return Err(fields.unsupported("peft_type", "`LORA`")),
        None => return Err(fields.invalid("peft_type", "is missing")),
    }
    if fields.flag("use_dora")?.unwrap_or(false) {
        return Err(dora(fields.path(), "`use_dora` is true"));
    }
    OFF.iter().try_for_each(|name| fields.must_be_off(name))?;
    for name in VARIANTS {
        if !matches!(fields.get(name), None | Some(Value::Bool(false))) {
            return Err(fields.unsupported(name, "none; PEFT merges most variants (`merge_and_unload`)"));
        }
    }
    match fields.get("init_lora_weights") {
        None | Some(Value::Bool(_)) => Ok(()),
        Some(Value::String(name)) if INITIALISATIONS.contains(&name.as_str()) => Ok(()),
        // PEFT ignores the case of this name alone.
        Some(Value::String(name)) if name.eq_ignore_ascii_case(INITIALISATIONS[0]) => Ok(()),
        Some(_) => {
            let supported = "true, false, `gaussian`, `eva`, `orthogonal`; PEFT converts other adapters if `save_pretrained` gets `path_initial_model_for_weight_conversion`";
            Err(fields.unsupported("init_lora_weights", supported))
        }
    }
}

/// Returns the error of an adapter with magnitudes.
pub(super) fn dora(path: &Path, found: &str) -> Error {
    Error::unsupported(format!("DoRA adapters are not supported: {found}"))
        .at(path.display())
        .with_help("merge the adapter with PEFT (`merge_and_unload`), and open the merged model")
}

fn biases(fields: Fields<'_>) -> Result<Biases> {
    match fields.text("bias")? {
        None | Some("none") => Ok(Biases::None),
        Some("all" | "lora_only") => Ok(Biases::Replaced),
        Some(_) => Err(fields.unsupported("bias", "`none`, `all`, `lora_only`")),
    }
}

/// Returns the fields that may matter and have no effect.
fn ignored(fields: Fields<'_>) -> Result<Vec<Ignored>> {
    let known = [&USED[..], &OFF, &VARIANTS].concat();
    let cannot_matter = |name: &str| CANNOT_MATTER.iter().any(|(_, names)| names.contains(&name));
    let mut found = Vec::new();
    for name in fields.names() {
        if name == "fan_in_fan_out" {
            if fields.flag(name)?.unwrap_or(false) {
                let reason = "the matrices of this model store one output per row, so PEFT ignores it too";
                found.push(Ignored::field(fields.path(), name, reason));
            }
        } else if !(known.contains(&name) || cannot_matter(name)) {
            found.push(Ignored::field(fields.path(), name, "the reader of adapters does not use this field"));
        }
    }
    Ok(found)
}

fn rank(value: &Value) -> Result<f64, String> {
    match value.as_u64() {
        Some(rank) if limits::LORA_RANK.contains(&rank) => Ok(rank as f64),
        _ => {
            let (first, last) = (limits::LORA_RANK.start(), limits::LORA_RANK.end());
            Err(format!("is {}, not a whole number within {first}..={last}", shortened(value)))
        }
    }
}

fn finite(value: &Value) -> Result<f64, String> {
    let number = value.as_f64().filter(|number| number.is_finite());
    number.ok_or_else(|| format!("is {}, not a finite number", shortened(value)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    fn with(changes: Value) -> Value {
        let mut config = json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]});
        let (Value::Object(all), Value::Object(changes)) = (&mut config, changes) else { panic!("objects") };
        all.extend(changes);
        config
    }

    fn parse(changes: Value) -> Result<Config> {
        Config::parse(Path::new(CONFIG), with(changes).to_string().as_bytes())
    }

    #[test]
    fn scaling_follows_rank_and_alpha_of_each_module() {
        let patterns = json!({
            "rank_pattern": {"layers.1.q_proj": 16, "^model\\.up": 2}, "alpha_pattern": {"(k|v)_proj": 2.5},
        });
        let config = parse(patterns).unwrap();
        let of = |module: &str| (config.rank(module).unwrap(), config.scaling(module).unwrap());
        assert_eq!(of("model.layers.0.q_proj"), (4, 2.0));
        assert_eq!(of("model.layers.1.q_proj"), (16, 0.5));
        assert_eq!(of("model.layers.11.q_proj"), (4, 2.0), "a whole name");
        assert_eq!(of("model.layers.1.v_proj"), (4, 0.625));
        assert_eq!(of("v_proj"), (4, 0.625));
        let stabilised = parse(json!({"use_rslora": true})).unwrap();
        assert_eq!(stabilised.scaling("q_proj").unwrap(), 4.0);
        let usual = Config::parse(Path::new(CONFIG), br#"{"peft_type": "LORA", "target_modules": ["q"]}"#);
        assert_eq!(usual.unwrap().scaling("q").unwrap(), 1.0, "the library's defaults");
    }

    #[test]
    fn two_patterns_of_one_module_must_agree() {
        let config = parse(json!({"rank_pattern": {"q_proj": 2, "layers.0.q_proj": 3}})).unwrap();
        let error = config.rank("model.layers.0.q_proj").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("`model.layers.0.q_proj`"), "{error}");
        assert_eq!(config.rank("model.layers.1.q_proj").unwrap(), 2);
        let agreeing = parse(json!({"rank_pattern": {"q_proj": 3, "layers.0.q_proj": 3}})).unwrap();
        assert_eq!(agreeing.rank("model.layers.0.q_proj").unwrap(), 3);
    }

    #[test]
    fn saved_modules_contain_others() {
        let config = parse(json!({"modules_to_save": ["lm_head", "mlp"]})).unwrap();
        for module in ["lm_head", "model.lm_head", "model.layers.0.mlp", "model.layers.0.mlp.up_proj"] {
            assert!(config.is_saved(module), "{module}");
        }
        assert!(!config.is_saved("model.layers.0.self_attn.q_proj"));
    }

    #[test]
    fn unknown_fields_are_reported_and_others_are_not() {
        let config = parse(json!({
            "wobble": 1, "fan_in_fan_out": true, "lora_dropout": 0.1, "revision": null, "use_dora": false,
            "layer_replication": null, "trainable_token_indices": null, "runtime_config": {}, "bias": "none",
            "init_lora_weights": true, "task_type": "CAUSAL_LM", "ensure_weight_tying": false,
        }));
        let mut names: Vec<_> = config.unwrap().ignored.into_iter().filter_map(|field| field.field).collect();
        names.sort_unstable();
        assert_eq!(names, ["fan_in_fan_out", "wobble"]);
    }

    #[test]
    fn initialisations_that_change_the_model_are_refused() {
        for name in ["gaussian", "Gaussian", "eva", "orthogonal"] {
            parse(json!({"init_lora_weights": name})).map(drop).unwrap();
        }
        for name in ["pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga", "mica", "EVA"] {
            let error = parse(json!({"init_lora_weights": name})).map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains(&format!("`init_lora_weights` is `{name}`")), "{error}");
            assert!(error.help().is_some_and(|help| help.contains("`gaussian`")), "{error:?}");
        }
    }

    #[test]
    fn other_adapters_and_invalid_values_are_refused_by_name() {
        let (unsupported, invalid) = (ErrorKind::Unsupported, ErrorKind::Invalid);
        for (changes, kind, words) in [
            (json!({"peft_type": "LOHA"}), unsupported, "`peft_type` is `LOHA`"),
            (json!({"peft_type": null}), invalid, "`peft_type` is missing"),
            (json!({"use_dora": true}), unsupported, "DoRA adapters are not supported"),
            (json!({"lora_bias": true}), unsupported, "`lora_bias`"),
            (json!({"layer_replication": [[0, 2]]}), unsupported, "`layer_replication`"),
            (json!({"target_parameters": ["experts.w"]}), unsupported, "`target_parameters`"),
            (json!({"trainable_token_indices": [1]}), unsupported, "`trainable_token_indices`"),
            (json!({"target_parameters": ["a"], "target_modules": []}), unsupported, "`target_parameters`"),
            (json!({"alora_invocation_tokens": [3]}), unsupported, "`alora_invocation_tokens`"),
            (json!({"megatron_config": {"a": 1}}), unsupported, "`megatron_config`"),
            (json!({"use_qalora": true}), unsupported, "`use_qalora`"),
            (json!({"use_bdlora": {"nblocks": 2}}), unsupported, "`use_bdlora`"),
            (json!({"arrow_config": {}}), unsupported, "`arrow_config`"),
            (json!({"kasa_config": {}}), unsupported, "`kasa_config` is an object of 0 fields"),
            (json!({"monteclora_config": {"num_samples": 8}}), unsupported, "`monteclora_config`"),
            (json!({"velora_config": {"scale": 1.0}}), unsupported, "`velora_config`"),
            (json!({"bias": "some"}), unsupported, "`bias` is `some`"),
            (json!({"r": 0}), invalid, "`r` is 0"),
            (json!({"r": 1_u64 << 40}), invalid, "`r` is"),
            (json!({"rank_pattern": {"q": -1}}), invalid, "`rank_pattern.q` is -1"),
            (json!({"rank_pattern": {"(": 1}}), invalid, "regular expression"),
            (json!({"lora_alpha": "8"}), invalid, "`lora_alpha` is `8`"),
            (json!({"alpha_pattern": {"q": []}}), invalid, "`alpha_pattern.q`"),
            (json!({"target_modules": null}), invalid, "`target_modules` is missing"),
            (json!({"target_modules": []}), invalid, "`target_modules`"),
            (json!({"target_modules": [1]}), invalid, "`target_modules`"),
            (json!({"target_modules": "("}), invalid, "regular expression"),
            (json!({"modules_to_save": {"a": 1}}), invalid, "`modules_to_save`"),
            (json!({"layers_to_transform": "1"}), invalid, "`layers_to_transform`"),
            (
                json!({"target_modules": ".*q_proj", "layers_to_transform": [1]}),
                invalid,
                "`layers_to_transform` needs `target_modules` to be a list",
            ),
            (
                json!({"target_modules": "all-linear", "layers_pattern": "h"}),
                invalid,
                "`layers_pattern` needs `target_modules` to be a list",
            ),
            (json!({"layers_pattern": ["h"]}), invalid, "`layers_pattern` needs `layers_to_transform`"),
            (json!({"modules_to_save": ["("]}), invalid, "regular expression"),
            (json!({"use_rslora": 1}), invalid, "`use_rslora`"),
        ] {
            let shown = changes.to_string();
            let error = parse(changes).map(drop).unwrap_err();
            assert_eq!(error.kind(), kind, "{shown}: {error}");
            assert!(error.to_string().contains(words), "{shown}: {error}");
            assert!(error.place().is_some_and(|place| place.contains(CONFIG)), "{shown}: {error:?}");
        }
    }
}
