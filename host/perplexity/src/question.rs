//! A hash of all inputs of a window's scores, which names kept windows.

use std::fmt::Display;

use serde_json::{Value, json};
use shardwright::Model;
use shardwright::tools::ModelTools;
use shardwright_bundle::Digest;
use shardwright_shims::LoadedShard;
use shardwright_vocabulary::Notice;

use crate::windows::Windows;

/// Hashes everything that the scores of a window depend on. The error is a notice that the code
/// which runs a shard cannot be identified.
pub(crate) fn question(models: &[&Model], text: Digest, windows: &Windows) -> Result<Digest, Notice> {
    let models: Vec<Value> = models.iter().map(|model| identity(model)).collect::<Result<_, _>>()?;
    let windows = format!("{windows:?}");
    let all = json!([env!("CARGO_PKG_VERSION"), models, text.to_string(), windows]);
    Ok(Digest::of(all.to_string().as_bytes()))
}

fn identity(model: &Model) -> Result<Value, Notice> {
    let (chain, description) = (model.chain(), model.chain().description());
    let mut shards = Vec::new();
    for (index, shard) in description.shards.iter().enumerate() {
        let unknown = |reason: &dyn Display| {
            let what =
                format!("finished windows are not kept, because the code of `{}` is unknown", shard.name);
            Notice::note(format!("{what}: {reason}"))
        };
        let loaded = |loaded: &mut LoadedShard| {
            (loaded.shim().cloned(), loaded.artefact().map(|artefact| artefact.name()))
        };
        let (shim, artefact) = chain.with_executor(index, loaded).unwrap_or_default();
        let shim = shim.ok_or_else(|| unknown(&"no shim runs it"))?;
        // A rebuilt shim of the same version may compute something else.
        let library = shim.library_hash().map_err(|error| unknown(&error))?;
        let flags: Vec<_> = shard.origin.loaded_with.iter().map(|outcome| &outcome.flag).collect();
        shards.push(json!([shard.place, shim.description(), library, artefact, flags]));
    }
    // A bundle's hash covers its tables.
    let tables = match model.bundle() {
        Some(bundle) => vec![bundle.sha256().to_string()],
        None => chain.assets().iter().map(|table| Digest::of(table.table.data.bytes()).to_string()).collect(),
    };
    Ok(json!([model.plan_id(), description.emulated_on, shards, tables]))
}
