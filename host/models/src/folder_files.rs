//! Classifies every file of a checkpoint's folder as used, unable to change a result, refused, or
//! reported.

use std::collections::BTreeSet;
use std::path::Path;

use shardwright_vocabulary::{Error, Ignored, Result};

use crate::{json, limits};

/// JSON files and templates that this or another crate reads.
const USED: [&str; 15] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "processor_config.json",
    "preprocessor_config.json",
    "model.safetensors.index.json",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "goldens.json",
    "eval.json",
];

/// Files of [`USED`] that not every model needs. They must be JSON nevertheless, because a damaged
/// one indicates a damaged download.
const SOMETIMES_USED: [&str; 6] = [
    "special_tokens_map.json",
    "added_tokens.json",
    "processor_config.json",
    "preprocessor_config.json",
    "modules.json",
    "sentence_bert_config.json",
];

/// JSON files that cannot change a result, with the reason.
const CANNOT_MATTER: [(&str, &[&str]); 4] = [
    ("older copies of what `tokenizer.json` has", &["vocab.json", "tokenizer.model.json"]),
    (
        "settings of other libraries",
        &["params.json", "configuration.json", "tekken.json", "video_preprocessor_config.json"],
    ),
    (
        "indexes of weights in other formats",
        &["pytorch_model.bin.index.json", "consolidated.safetensors.index.json"],
    ),
    (
        "records of training and of tests",
        &[
            "trainer_state.json",
            "training_args.json",
            "train_info.json",
            "train_results.json",
            "all_results.json",
            "eval_results.json",
            "data_info.json",
            "tokenizer_goldens.json",
            "chat_goldens.json",
        ],
    ),
];

/// Files of an adapter, which changes the weights of the model.
const ADAPTER: [&str; 3] = ["adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"];

/// Weights that are a second copy, or belong to tests.
const OTHER_WEIGHTS: [&str; 3] = ["consolidated.safetensors", "goldens.safetensors", "eval.safetensors"];

/// Returns the files that may matter and are not used. `weights` has the names of the files with
/// tensors of the model. Documents, code, and weights in other formats do not matter.
///
/// # Errors
///
/// If the folder has an adapter, which `transformers` would apply, or settings that are not JSON.
pub(crate) fn ignored(folder: &Path, weights: &BTreeSet<String>) -> Result<Vec<Ignored>> {
    // If the folder cannot be listed, a missing file is reported when it is read.
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(Vec::new()) };
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    if let Some(name) = names.iter().find(|name| ADAPTER.contains(&name.as_str())) {
        let help = "move the adapter's files to a folder of their own, and name it with `--lora DIR` to merge the adapter into the weights";
        return Err(Error::unsupported("the checkpoint has an adapter, which is not applied")
            .at(folder.join(name).display())
            .with_help(help));
    }
    for name in names.iter().filter(|name| SOMETIMES_USED.contains(&name.as_str())) {
        let path = folder.join(name);
        match json::read_capped(&path, limits::CONFIG_BYTES) {
            Ok(bytes) => drop(json::parse(&path, &bytes)?),
            // A link without a target counts as a missing file.
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    // Folders with a processor for pictures contain a second copy of the template.
    let has_template = names.iter().any(|name| name == "chat_template.jinja") || in_config(folder);
    let second = |name: &str| name == "chat_template.json" && has_template;
    let found = names.iter().filter(|name| !second(name));
    let found = found.filter_map(|name| Some((name, reason(name, weights)?)));
    Ok(found.map(|(name, reason)| Ignored::file(folder.join(name), reason)).collect())
}

/// Checks whether the configuration of the tokenizer has a chat template.
fn in_config(folder: &Path) -> bool {
    let bytes = json::read_capped(&folder.join("tokenizer_config.json"), limits::CONFIG_BYTES);
    bytes.is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains("\"chat_template\""))
}

fn reason(name: &str, weights: &BTreeSet<String>) -> Option<&'static str> {
    let cannot_matter = || CANNOT_MATTER.iter().any(|(_, names)| names.contains(&name));
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
    match extension {
        _ if USED.contains(&name) || weights.contains(name) => None,
        _ if name == "additional_chat_templates" => Some("one template is used, of chat_template.jinja"),
        Some("jinja") => Some("templates are read from chat_template.jinja and tokenizer_config.json"),
        Some("json") if name == "chat_template.json" => {
            Some("templates are read from chat_template.jinja and tokenizer_config.json")
        }
        Some("json") if !cannot_matter() => Some("the file is not known"),
        // Before the download is complete, the tensors of a file are unknown.
        Some("safetensors") if !weights.is_empty() && !OTHER_WEIGHTS.contains(&name) => {
            Some("its tensors are not those of the model")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    #[test]
    fn settings_that_are_not_json_are_refused_even_if_they_are_not_used() {
        for name in SOMETIMES_USED {
            let folder = tempfile::tempdir().unwrap();
            assert!(USED.contains(&name), "{name}");
            std::fs::write(folder.path().join(name), "{}").unwrap();
            assert_eq!(ignored(folder.path(), &BTreeSet::new()).unwrap(), []);
            for text in ["{", r#"{"a": 1, "a": 2}"#] {
                std::fs::write(folder.path().join(name), text).unwrap();
                let error = ignored(folder.path(), &BTreeSet::new()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
                assert!(error.place().is_some_and(|place| place.ends_with(name)), "{error}");
            }
        }
    }

    #[test]
    fn files_that_may_matter_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "README.md",
            "config.json",
            "extra.json",
            "mtp.safetensors",
            "model.safetensors",
            "tool_use.jinja",
            "chat_template.json",
            "vocab.json",
            "modeling_new.py",
            "pytorch_model.bin",
            "consolidated.safetensors",
        ] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        std::fs::create_dir(folder.path().join("additional_chat_templates")).unwrap();
        let weights = BTreeSet::from(["model.safetensors".to_owned()]);
        let found = ignored(folder.path(), &weights).unwrap();
        let names: Vec<_> = found.iter().filter_map(|found| found.file.file_name()?.to_str()).collect();
        let expected = [
            "additional_chat_templates",
            "chat_template.json",
            "extra.json",
            "mtp.safetensors",
            "tool_use.jinja",
        ];
        assert_eq!(names, expected);
        std::fs::write(folder.path().join("tokenizer_config.json"), r#"{"chat_template": "x"}"#).unwrap();
        assert_eq!(ignored(folder.path(), &weights).unwrap().len(), expected.len() - 1);
        std::fs::write(folder.path().join("adapter_config.json"), "{}").unwrap();
        let error = ignored(folder.path(), &weights).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.place().is_some_and(|place| place.ends_with("adapter_config.json")), "{error}");
        assert!(error.help().is_some_and(|help| help.contains("merge")), "{:?}", error.help());
    }
}
