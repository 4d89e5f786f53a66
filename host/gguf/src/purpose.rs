//! Refuses files of the format that do not contain a model.

use shardwright_vocabulary::{Error, Result};

use crate::metadata::Metadata;

const TYPE: &str = "general.type";

/// The type of a model. Files that do not specify a type are models.
const MODEL: &str = "model";

/// The type of an adapter.
const ADAPTER: &str = "adapter";

/// Beginning of the keys of an adapter.
const ADAPTER_KEYS: &str = "adapter.";

/// Refuses a file that is an adapter, such as a LoRA, or that states another type than a model.
///
/// # Errors
/// If `general.type` is not `model`, or a key begins with `adapter.`.
pub fn expect_model(metadata: &Metadata<'_>) -> Result<()> {
    let stated = metadata.text(TYPE)?.unwrap_or(MODEL);
    let key = metadata.entries().map(|(key, _)| key).find(|key| key.starts_with(ADAPTER_KEYS));
    let path = metadata.path().display();
    if let Some(key) = key.or((stated == ADAPTER).then_some(TYPE)) {
        let key: String = key.chars().take(80).collect();
        let help = "merge the adapter into its model (`llama-export-lora`), and name the merged file";
        return Err(Error::unsupported(format!("the file is an adapter, as `{key}` shows"))
            .at(path)
            .with_help(help));
    }
    if stated == MODEL {
        return Ok(());
    }
    let found = metadata.get(TYPE).map_or_else(String::new, |value| value.shown());
    Err(Error::unsupported(format!("metadata `{TYPE}` is {found}, expected `{MODEL}`"))
        .at(path)
        .with_help("name the file of the model itself"))
}
