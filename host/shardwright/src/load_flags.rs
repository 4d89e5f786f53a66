//! Flags that take effect when shards are loaded, such as `power`. A plan sets them for the chains
//! it makes, a session may override them, and no artefact depends on them.

use shardwright_bundle::ShardEntry;
use shardwright_runtime::ShardDescription;
use shardwright_vocabulary::{Flag, FlagRecord, FlagSchema, FlagStage, FlagVerdict};

use crate::{Error, Result};

/// Returns whether a shim supports the flag when it loads `shard`.
///
/// # Errors
///
/// [`ErrorKind::Argument`](crate::ErrorKind::Argument) if the shim does not support the value, or
/// if the flag takes effect when shards are compiled.
pub(crate) fn taken(flag: &Flag, schema: &[FlagSchema], shard: &ShardEntry) -> Result<bool> {
    let is_known = schema.iter().any(|known| known.name == flag.name);
    if flag.is_taken_at_load(schema)? || !is_known {
        return Ok(is_known);
    }
    let existing = match shard.flags.iter().find(|existing| existing.flag.name == flag.name) {
        Some(existing) => format!("shard {} was compiled with {}", shard.name, existing.flag),
        None => format!("shard {} was compiled without it", shard.name),
    };
    Err(flag
        .refused(&format!("it is fixed in the bundle: {existing}"))
        .with_help("compile the checkpoint again to set it"))
}

/// Returns the error for a flag that no loaded shim supports.
pub(crate) fn unknown(flag: &Flag, schemas: &[FlagSchema]) -> Error {
    let known = schemas.iter().filter(|known| known.stage == FlagStage::Load);
    let mut known: Vec<&str> = known.map(|known| known.name.as_str()).collect();
    known.dedup();
    let help = match known.as_slice() {
        [] => "its shims have no flags that a session can set".to_owned(),
        known => format!("flags that a session can set: {}", known.join(", ")),
    };
    flag.refused("no loaded shim supports it").with_help(help)
}

/// Returns the outcome of each flag that shards were loaded with, without duplicates, and whether
/// it differs from the request.
pub(crate) fn outcomes(shards: &[ShardDescription]) -> Vec<(bool, String)> {
    let mut outcomes: Vec<(bool, String)> = Vec::new();
    for FlagRecord { flag, verdict, reason } in shards.iter().flat_map(|shard| &shard.origin.loaded_with) {
        let otherwise = matches!(verdict, FlagVerdict::Refused | FlagVerdict::Unknown);
        let mut text = format!("flag {flag} is {}", verdict.name());
        if !reason.is_empty() {
            text += &format!(": {reason}");
        }
        if outcomes.iter().all(|(_, known)| *known != text) {
            outcomes.push((otherwise, text));
        }
    }
    outcomes
}
