//! Refuses metadata keys whose effect is unknown, outside the keys of the architecture.

use shardwright_gguf::Head;
use shardwright_vocabulary::{Error, Result};

use crate::json::unsupported_field;

/// Keys that the crates for the format and for texts read.
const USED: [&str; 5] =
    ["general.architecture", "general.alignment", "general.type", "split.no", "split.count"];

/// Beginnings of further keys that the crate for texts checks one by one.
const USED_GROUPS: [&str; 2] = ["tokenizer.", "general.sampling."];

/// Records of a file and its making, which cannot change a result.
const RECORDS: [&str; 21] = [
    "general.author",
    "general.basename",
    "general.datasets",
    "general.description",
    "general.doi",
    "general.file_type",
    "general.finetune",
    "general.languages",
    "general.license",
    "general.name",
    "general.organization",
    "general.parameter_count",
    "general.quantization_version",
    "general.quantized_by",
    "general.repo_url",
    "general.size_label",
    "general.tags",
    "general.url",
    "general.uuid",
    "general.version",
    "split.tensors.count",
];

/// Beginnings of further records.
const RECORD_GROUPS: [&str; 6] = [
    "general.base_model.",
    "general.dataset.",
    "general.license.",
    "general.source.",
    // The text that llama.cpp's program for quantising measured.
    "quantize.imatrix.",
    // A publisher of many quantised models.
    "mradermacher.",
];

/// Keys of which each part of a split model has its own values.
const OWN: [&str; 4] = ["split.no", "split.count", "split.tensors.count", "general.alignment"];

/// Checks the metadata of all files of a model of an architecture. The first file has the metadata
/// of the model.
///
/// # Errors
/// If the first file has a key of unknown effect, or a later one a key that differs from the first
/// file's.
pub(super) fn check(heads: &[Head<'_>], architecture: &str) -> Result<()> {
    let Some((first, later)) = heads.split_first() else { return Ok(()) };
    let of_architecture = format!("{architecture}.");
    for (key, value) in first.metadata.entries() {
        let mut groups = USED_GROUPS.iter().chain(&RECORD_GROUPS);
        let known = USED.contains(&key)
            || RECORDS.contains(&key)
            || key.starts_with(&of_architecture)
            || groups.any(|group| key.starts_with(group));
        if !known {
            return Err(refused(first, key, &value.shown(), "keys whose effect on the model is known"));
        }
    }
    for part in later {
        for (key, value) in part.metadata.entries() {
            if !OWN.contains(&key) && first.metadata.get(key) != Some(value) {
                let supported = "in later parts of a split model, the values of the first part";
                return Err(refused(part, key, &value.shown(), supported));
            }
        }
    }
    Ok(())
}

fn refused(head: &Head<'_>, key: &str, found: &str, supported: &str) -> Error {
    let key: String = key.chars().take(80).collect();
    unsupported_field(head.metadata.path(), &key, found, supported)
}
