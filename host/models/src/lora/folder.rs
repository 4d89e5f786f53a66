//! Files next to an adapter's tensors that a checkpoint has too. PEFT loads the adapter without
//! them, but it may have been trained with them.

use std::path::Path;

use shardwright_vocabulary::Ignored;

use super::config::CONFIG;
use super::tensors::WEIGHTS;
use crate::json;

/// Files of texts, of which the checkpoint's own are used.
const TEXTS: [&str; 7] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
];

/// Largest file that is compared. Published tokenizers have 35 megabytes at most.
const COMPARED_BYTES: u64 = 256 << 20;

/// Returns the files of an adapter's folder that may matter and have no effect.
pub(super) fn ignored(adapter: &Path, checkpoint: &Path) -> Vec<Ignored> {
    // If the folder cannot be listed, its two files could not be read either.
    let Ok(entries) = std::fs::read_dir(adapter) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    let reason = |name: &str| match name {
        CONFIG | WEIGHTS => None,
        _ if TEXTS.contains(&name) => (!is_equal(&adapter.join(name), &checkpoint.join(name)))
            .then_some("the checkpoint's own file is used, which differs"),
        _ if name.ends_with(".safetensors") => {
            Some("only the tensors of adapter_model.safetensors are merged")
        }
        _ => None,
    };
    let found = names.iter().filter_map(|name| Some((name, reason(name)?)));
    found.map(|(name, reason)| Ignored::file(adapter.join(name), reason)).collect()
}

/// Checks whether two files have the same bytes. A file that cannot be read differs.
fn is_equal(one: &Path, other: &Path) -> bool {
    let length = |path: &Path| path.metadata().map(|metadata| metadata.len()).ok();
    let is_same_length = length(one).is_some() && length(one) == length(other);
    let read = |path: &Path| json::read_capped(path, COMPARED_BYTES).ok();
    is_same_length && read(one).is_some_and(|bytes| read(other) == Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_texts_are_reported_if_they_differ() {
        let (adapter, checkpoint) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let write = |folder: &tempfile::TempDir, name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
        };
        for name in [CONFIG, WEIGHTS, "README.md", "optimizer.pt", "tokenizer.json", "extra.safetensors"] {
            write(&adapter, name, "a");
        }
        write(&adapter, "chat_template.jinja", "x");
        write(&checkpoint, "chat_template.jinja", "x");
        write(&checkpoint, "tokenizer.json", "b");
        let found = ignored(adapter.path(), checkpoint.path());
        let names: Vec<_> = found.iter().filter_map(|found| found.file.file_name()?.to_str()).collect();
        assert_eq!(names, ["extra.safetensors", "tokenizer.json"]);
        write(&checkpoint, "chat_template.jinja", "longer");
        assert_eq!(ignored(adapter.path(), checkpoint.path()).len(), 3);
    }
}
