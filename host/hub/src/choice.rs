//! Chooses the files of a repository that belong to a model.

use std::collections::BTreeMap;

use shardwright_files::shell_quoted;
use shardwright_vocabulary::{Error, Result};

use crate::HubId;

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Path in the repository.
    pub name: String,
    /// Size in bytes, if the list includes it.
    pub bytes: Option<u64>,
}

/// A GGUF model of a repository, which may have several parts.
struct Candidate {
    /// The path of its first part.
    name: String,
    /// Size of all parts in bytes, if the list includes it.
    bytes: Option<u64>,
}

/// Required files of a Hugging Face folder in addition to the weights. Files in subfolders belong
/// to the modules of sentence embeddings (`1_Pooling/config.json`).
const SETTINGS: [&str; 13] = [
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "config_sentence_transformers.json",
    "generation_config.json",
    "modules.json",
    "preprocessor_config.json",
    "processor_config.json",
    "sentence_bert_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
];

// A single file of weights, and the index of several files.
const WHOLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Returns the names of the files to fetch. If `wanted` is given, these are the files that match it
/// as a name, a pattern or a quantisation. Otherwise they are settings and safetensors, or else the
/// only GGUF model.
///
/// # Errors
/// If there are several GGUF models to choose from, if `wanted` matches no file, or if there are
/// neither safetensors nor GGUF files.
pub fn choose(id: &HubId, files: &[Listed], wanted: Option<&str>) -> Result<Vec<String>> {
    if let Some(wanted) = wanted {
        return named(id, files, wanted)?.ok_or_else(|| no_match(id, files, wanted));
    }
    let models = gguf_models(files);
    let weights = weights(files);
    if !weights.is_empty() {
        let settings = files.iter().filter(|file| is_setting(&file.name)).map(|file| file.name.clone());
        return Ok(settings.chain(weights).collect());
    }
    // Projectors and importance matrices are not models.
    let whole = |(name, _): &(&String, _)| {
        let name = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
        !name.contains("mmproj") && !name.contains("imatrix")
    };
    let models: Vec<_> = models.iter().filter(whole).collect();
    match models.as_slice() {
        [] => Err(nothing(id)),
        [(_, parts)] => Ok(parts.iter().map(|part| part.name.clone()).collect()),
        _ => Err(several(id, models)),
    }
}

/// The parts of each GGUF model, by the model's name.
type Models<'l> = BTreeMap<String, Vec<&'l Listed>>;

fn gguf_models(files: &[Listed]) -> Models<'_> {
    let mut models = Models::new();
    for file in files {
        if let Some(stem) = file.name.strip_suffix(".gguf") {
            models.entry(without_part(stem).to_owned()).or_default().push(file);
        }
    }
    models.values_mut().for_each(|parts| parts.sort_by(|a, b| a.name.cmp(&b.name)));
    models
}

/// Removes a suffix such as `-00001-of-00003`.
fn without_part(stem: &str) -> &str {
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let part = stem.rsplit_once("-of-").filter(|(_, count)| digits(count));
    part.and_then(|(rest, _)| rest.rsplit_once('-'))
        .filter(|(_, number)| digits(number))
        .map_or(stem, |(name, _)| name)
}

/// Like [`choose`] for `wanted`, but returns `None` if it matches no file.
pub(crate) fn named(id: &HubId, files: &[Listed], wanted: &str) -> Result<Option<Vec<String>>> {
    let models = gguf_models(files);
    let names = |parts: &[&Listed]| parts.iter().map(|part| part.name.clone()).collect();
    if files.iter().any(|file| file.name == wanted) {
        let of_model = models.values().find(|parts| parts.iter().any(|part| part.name == wanted));
        return Ok(Some(of_model.map_or_else(|| vec![wanted.to_owned()], |parts| names(parts))));
    }
    if wanted.contains(['*', '?', '[']) {
        let Ok(pattern) = glob::Pattern::new(wanted) else { return Ok(None) };
        let matching: Vec<String> =
            files.iter().filter(|file| pattern.matches(&file.name)).map(|file| file.name.clone()).collect();
        return Ok((!matching.is_empty()).then_some(matching));
    }
    let quantised: Vec<_> = models.iter().filter(|(name, _)| has_tag(name, wanted)).collect();
    match quantised.as_slice() {
        [] => Ok(None),
        [(_, parts)] => Ok(Some(names(parts))),
        _ => Err(several(id, quantised)),
    }
}

/// Returns whether a name has a tag such as `Q4_K_M` as a whole word, ignoring case.
fn has_tag(name: &str, tag: &str) -> bool {
    let (name, tag) = (name.to_ascii_lowercase(), tag.to_ascii_lowercase());
    let tag = tag.strip_suffix(".gguf").unwrap_or(&tag);
    !tag.is_empty()
        && name.match_indices(tag).any(|(at, _)| {
            let before = name[..at].chars().next_back();
            let after = name[at + tag.len()..].chars().next();
            before.is_none_or(|c| "-_./".contains(c)) && after.is_none_or(|c| "-./".contains(c))
        })
}

fn candidate(parts: &[&Listed]) -> Candidate {
    Candidate {
        name: parts.first().map(|part| part.name.clone()).unwrap_or_default(),
        bytes: parts.iter().map(|part| part.bytes).try_fold(0_u64, |sum, bytes| sum.checked_add(bytes?)),
    }
}

/// Returns the error for a repository without weights in a supported format.
pub(crate) fn nothing(id: &HubId) -> Error {
    Error::unsupported(format!("{} has neither safetensors nor GGUF files", id.repository()))
        .with_help("choose a repository with safetensors or GGUF files, or name files with `--file`")
}

fn several<'m>(id: &HubId, models: impl IntoIterator<Item = (&'m String, &'m Vec<&'m Listed>)>) -> Error {
    let candidates: Vec<Candidate> = models.into_iter().map(|(_, parts)| candidate(parts)).collect();
    let id = id.repository();
    Error::argument(format!("{id} has several GGUF models: {}", listed(&candidates)))
        .with_help(choice_help(&id, &candidates))
}

fn no_match(id: &HubId, files: &[Listed], wanted: &str) -> Error {
    let candidates: Vec<Candidate> = gguf_models(files).values().map(|parts| candidate(parts)).collect();
    let id = id.repository();
    let error = Error::argument(format!("{id} has no file that matches `{wanted}`"));
    if candidates.is_empty() {
        return error.with_help("name one of its files, or a pattern such as `*.safetensors`");
    }
    let models = listed(&candidates);
    error.with_more(format!("its GGUF models: {models}")).with_help(choice_help(&id, &candidates))
}

/// Maximum number of models in a message.
const LISTED: usize = 40;

/// Formats candidates, such as `a.gguf (253 MB), b.gguf`.
fn listed(candidates: &[Candidate]) -> String {
    let one = |candidate: &Candidate| match candidate.bytes {
        Some(bytes) => format!("{} ({})", candidate.name, megabytes(bytes)),
        None => candidate.name.clone(),
    };
    let mut words: Vec<String> = candidates.iter().take(LISTED).map(one).collect();
    if candidates.len() > LISTED {
        words.push(format!("and {} more", candidates.len() - LISTED));
    }
    words.join(", ")
}

/// Formats a size in decimal units, as hubs do.
fn megabytes(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{bytes} bytes"),
        1_000_000..1_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// Returns a suggestion that names a file, and a quantisation if the names include one. The most
/// common quantisation is preferred.
fn choice_help(id: &str, candidates: &[Candidate]) -> String {
    let usual = candidates.iter().find(|candidate| candidate.name.to_ascii_uppercase().contains("Q4_K_M"));
    let Some(first) = usual.or(candidates.first()) else { return String::new() };
    let stem = first.name.rsplit('/').next().unwrap_or(&first.name).trim_end_matches(".gguf");
    let named = |name: &str| shell_quoted(format!("{id}:{name}"));
    match stem.rsplit(['-', '.']).find(|word| word.contains('_') || word.starts_with(['Q', 'q', 'F', 'B'])) {
        Some(tag) => format!("choose one: `{}`, or a file with `{}`", named(tag), named(&first.name)),
        None => format!("choose one: `{}`", named(&first.name)),
    }
}

fn is_setting(name: &str) -> bool {
    let (folder, file) = name.rsplit_once('/').unwrap_or(("", name));
    SETTINGS.contains(&file) && (folder.is_empty() || is_module(folder))
}

/// Returns whether a folder belongs to a module, such as `2_Dense`.
fn is_module(folder: &str) -> bool {
    let number = folder.split('_').next().unwrap_or_default();
    !folder.contains('/') && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the files of weights, including weights of modules. The files of weights are the single
/// file, or else the files of an index, or else all files in the top folder.
fn weights(files: &[Listed]) -> Vec<String> {
    let has = |wanted: &str| files.iter().any(|file| file.name == wanted);
    let whole = has(WHOLE);
    let is_weight = |name: &str| match name.rsplit_once('/') {
        Some((folder, file)) => is_module(folder) && file == WHOLE,
        None if whole => name == WHOLE,
        None if has(INDEX) => name == INDEX || name.starts_with("model-") && name.ends_with(".safetensors"),
        None => name.ends_with(".safetensors"),
    };
    let names: Vec<String> =
        files.iter().filter(|file| is_weight(&file.name)).map(|file| file.name.clone()).collect();
    // Modules alone, without the model they extend, are not a model.
    if names.iter().all(|name| name.contains('/')) { Vec::new() } else { names }
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    fn chosen(names: &[&str], wanted: Option<&str>) -> Result<Vec<String>> {
        let id = "a/b".parse().expect("an id");
        let files: Vec<Listed> = names
            .iter()
            .map(|name| Listed { name: (*name).to_owned(), bytes: Some(name.len() as u64) })
            .collect();
        choose(&id, &files, wanted)
    }

    #[test]
    fn safetensors_come_with_their_settings_and_nothing_else() {
        let whole = [
            ".gitattributes",
            "README.md",
            "config.json",
            "model.safetensors",
            "consolidated.safetensors",
            "pytorch_model.bin",
            "original/model.safetensors",
            "onnx/model.onnx",
            "onnx/config.json",
            "tokenizer.json",
            "1_Pooling/config.json",
            "2_Dense/model.safetensors",
            "x.gguf",
        ];
        assert_eq!(
            chosen(&whole, None).expect("files"),
            [
                "config.json",
                "tokenizer.json",
                "1_Pooling/config.json",
                "model.safetensors",
                "2_Dense/model.safetensors"
            ]
        );
        let sharded = [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "consolidated-1.safetensors",
        ];
        assert_eq!(chosen(&sharded, None).expect("files"), sharded[..3]);
        assert_eq!(chosen(&["other.safetensors"], None).expect("files"), ["other.safetensors"]);
        for none in [&["README.md", "model.bin"][..], &["2_Dense/model.safetensors"], &["mmproj-x.gguf"], &[]]
        {
            let error = chosen(none, None).expect_err("no weights");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{none:?}: {error}");
        }
    }

    #[test]
    fn one_gguf_model_is_chosen_and_several_are_listed() {
        let one = ["m-Q8_0-00002-of-00002.gguf", "m-Q8_0-00001-of-00002.gguf", "mmproj-F16.gguf"];
        assert_eq!(chosen(&one, None).expect("files"), [one[1], one[0]]);
        let several = [
            "m-Q4_0.gguf",
            "m-Q4_K_M.gguf",
            "m-Q4_K_S.gguf",
            "BF16/m-BF16-00001-of-00001.gguf",
            "m.iq4_xs.gguf",
        ];
        let error = chosen(&several, None).expect_err("several");
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert!(error.message().starts_with("a/b has several GGUF models: "), "{error}");
        assert!(several.iter().all(|name| error.message().contains(name)), "{error}");
        assert!(error.help().is_some_and(|help| help.contains("`a/b:Q4_K_M`")), "{error:?}");
        for (wanted, file) in [
            ("Q4_K_M", "m-Q4_K_M.gguf"),
            ("q4_0", "m-Q4_0.gguf"),
            ("IQ4_XS", "m.iq4_xs.gguf"),
            ("m-Q4_K_S.gguf", "m-Q4_K_S.gguf"),
            ("bf16", "BF16/m-BF16-00001-of-00001.gguf"),
        ] {
            assert_eq!(chosen(&several, Some(wanted)).expect(wanted), [file]);
        }
        for wanted in ["Q4_K", "4_0", "Q5_K_M", "*.bin", "[", "x.gguf", ".gguf"] {
            let error = chosen(&several, Some(wanted)).expect_err(wanted);
            assert_eq!(error.kind(), ErrorKind::Argument, "{wanted}: {error}");
            assert!(error.message().contains(&format!("no file that matches `{wanted}`")), "{error}");
        }
        let error = chosen(&several, Some("m")).expect_err("several");
        assert!(error.message().contains("has several GGUF models"), "{error}");
        assert_eq!(chosen(&several, Some("*Q4_K_*")).expect("files"), several[1..3]);
        assert_eq!(chosen(&["a.txt", "b/c.txt"], Some("b/c.txt")).expect("a file"), ["b/c.txt"]);
    }
}
