//! A folder for a hub of models: a file for each chip, and a card with the facts in the bundle.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::Path;

use serde::Serialize;
use shardwright_bundle::{Bundle, FileProgress, Variant};
use shardwright_vocabulary::{Error, PlainName, Result};

use crate::folder::{Folder, Part};
use crate::play::rules::name_of;

/// Facts for a card that are not in the bundle.
#[derive(Clone, Debug, Default)]
pub struct Card {
    /// The licence of the model in the hub's spelling: `gemma`, `apache-2.0`.
    pub licence: Option<String>,
    /// The model on the hub from which the bundle was made: `google/gemma-3-270m-it`.
    pub base_model: Option<String>,
}

/// The written files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HubReport {
    /// Path of the folder.
    pub path: String,
    /// Name of the model.
    pub model: String,
    /// A file for each variant.
    pub files: Vec<HubFile>,
}

/// A variant in a file of its own, which a device downloads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HubFile {
    pub name: PlainName,
    /// Chip of the variant.
    pub soc: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// SHA-256 of the file.
    pub sha256: String,
    /// Hash of the bundle in it.
    pub bundle: String,
}

/// Writes a folder with each variant as a packed bundle, a card with the metadata of Hugging Face's
/// hub, their hashes, and `.gitattributes`. `to` must be missing or empty.
///
/// # Errors
///
/// Without a licence, because a bundle does not contain its model's. Also if a file cannot be read
/// or written.
pub fn hub_folder(
    bundle: &Bundle,
    card: &Card,
    to: &Path,
    mut progress: impl FnMut(FileProgress) -> ControlFlow<()>,
) -> Result<HubReport> {
    let model = &bundle.manifest().model;
    let licence = card.licence.as_deref();
    let licence = licence.ok_or_else(|| {
        Error::argument(format!("the licence of `{}` is unknown", model.name)).with_help(
            "name it with `--licence`, as the hub spells it: `gemma`, `apache-2.0`; \
             the publisher of the checkpoint states it",
        )
    })?;
    expect_plain("licence", licence)?;
    if let Some(base) = &card.base_model {
        expect_plain("model of a hub", base)?;
    }
    let folder = Folder::create(to)?;
    let mut files = Vec::new();
    for variant in &bundle.manifest().variants {
        let share = bundle.share(&[&variant.soc])?;
        let name = PlainName::new(format!("{}-{}.swb", name_of(&model.name), variant.soc))?;
        let path = folder.path(&[Part::Name(&name)])?;
        let packed = share.pack(&share.volume(), &path, &mut progress)?;
        let sha256 = shardwright_bundle::digest_of(&path)?.to_string();
        let bundle = packed.bundle.to_string();
        files.push(HubFile { name, soc: variant.soc.to_string(), bytes: packed.bytes, sha256, bundle });
    }
    let mut sums = String::new();
    for file in &files {
        let _ = writeln!(sums, "{}  {}", file.sha256, file.name);
    }
    folder.write(&[Part::Ours("SHA256SUMS")], &sums)?;
    folder.write(&[Part::Ours(".gitattributes")], "*.swb filter=lfs diff=lfs merge=lfs -text\n")?;
    folder.write(&[Part::Ours("README.md")], &text(bundle, card, licence, &files))?;
    folder.keep()?;
    Ok(HubReport { path: to.display().to_string(), model: model.name.clone(), files })
}

/// Checks a value that is inserted into the metadata unchanged.
fn expect_plain(what: &str, value: &str) -> Result<()> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    if !value.is_empty() && value.len() <= 128 && value.bytes().all(legal) {
        return Ok(());
    }
    let value: String = value.chars().take(64).collect();
    Err(Error::argument(format!("`{value}` is not a valid {what}"))
        .with_help("use 1 to 128 letters, digits and `-_./`"))
}

fn text(bundle: &Bundle, card: &Card, licence: &str, files: &[HubFile]) -> String {
    let manifest = bundle.manifest();
    let model = &manifest.model;
    let is_generative = bundle.manifest().variants.iter().any(|variant| variant.structure.is_generative());
    let mut text = format!("---\nlicense: {licence}\nlibrary_name: shardwright\n");
    let task = if is_generative { "text-generation" } else { "feature-extraction" };
    let _ = writeln!(text, "pipeline_tag: {task}");
    if let Some(base) = &card.base_model {
        let _ = writeln!(text, "base_model: {base}\nbase_model_relation: quantized");
    }
    text.push_str("tags:\n- shardwright\n- on-device\n");
    let tags: BTreeSet<&str> = std::iter::once(model.family.as_str())
        .chain(manifest.variants.iter().map(|variant| variant.soc.as_str()))
        .collect();
    for tag in tags {
        let _ = writeln!(text, "- {}", quoted(tag));
    }
    let _ = write!(
        text,
        "---\n\n# {}\n\nCompiled by {} from a checkpoint of the family {}, whose hash is `{}`. Each file is a \
         bundle\nfor one chip, and what it falls back to on the CPU.\n\n| file | chip | bytes | formats | context \
         |\n|---|---|---|---|---|\n",
        plain(&model.name),
        plain(&manifest.program),
        plain(&model.family),
        model.checkpoint
    );
    for (variant, file) in manifest.variants.iter().zip(files) {
        let chip = match variant.aliases.first() {
            Some(alias) => format!("{} ({})", plain(&variant.soc), plain(alias)),
            None => plain(&variant.soc),
        };
        let (name, bytes) = (&file.name, file.bytes);
        let _ =
            writeln!(text, "| `{name}` | {chip} | {bytes} | {} | {} |", formats(variant), context(variant));
    }
    text.push_str("\n## How to run it\n\n```sh\n");
    if let Some(file) = files.first() {
        let _ = writeln!(text, "shardwright run {} --prompt \"Once upon\"", file.name);
        let _ = writeln!(text, "shardwright needs {}", file.name);
    }
    text.push_str(
        "```\n\nThe second command lists the vendor's libraries that it needs, which are not part of it.\n\n\
         ## What was verified\n\n",
    );
    verified(&mut text, manifest.variants.iter());
    text
}

/// Adds the recorded verifications, and no other claims.
fn verified<'v>(text: &mut String, variants: impl Iterator<Item = &'v Variant>) {
    let mut is_any = false;
    for variant in variants {
        for proof in &variant.verifications {
            if !is_any {
                text.push_str("| chip | check | chain | outcome | |\n|---|---|---|---|---|\n");
            }
            is_any = true;
            let outcome = if proof.passed { "passed" } else { "failed" };
            let (soc, name) = (plain(&variant.soc), plain(&proof.name));
            let (chain, summary) = (plain(&proof.chain), plain(&proof.summary));
            let _ = writeln!(text, "| {soc} | {name} | {chain} | {outcome} | {summary} |");
        }
    }
    if !is_any {
        text.push_str("Nothing is recorded in the bundle.\n");
    }
}

/// Returns the formats of the first chain's shards, without duplicates.
fn formats(variant: &Variant) -> String {
    let shards = variant.chains.first().map(|chain| chain.shards.as_slice()).unwrap_or_default();
    let mut found: Vec<String> = Vec::new();
    for shard in shards {
        let formats = plain(&shard.formats.to_string());
        if !found.contains(&formats) {
            found.push(formats);
        }
    }
    found.join(", ")
}

/// Returns the context that a variant was compiled for, or the model's context if it has none.
fn context(variant: &Variant) -> String {
    let entries = variant.chains.iter().flat_map(|chain| &chain.shards).flat_map(|shard| &shard.entries);
    let most = entries.map(|entry| entry.context).filter(|context| *context > 0).max();
    most.map_or_else(|| variant.structure.context.to_string(), |context| context.to_string())
}

/// Escapes a text of the manifest for a Markdown table: on one line, and without markup.
fn plain(text: &str) -> String {
    let legal = |character: char| if character.is_control() { ' ' } else { character };
    let mut shown = String::new();
    for character in text.chars().map(legal) {
        if "|<>[]`*_\\".contains(character) {
            shown.push('\\');
        }
        shown.push(character);
    }
    shown
}

/// Quotes a text for YAML if needed.
fn quoted(text: &str) -> String {
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    let begins = text.starts_with(|first: char| first.is_ascii_alphabetic());
    if plain && begins { text.to_owned() } else { format!("{text:?}") }
}
