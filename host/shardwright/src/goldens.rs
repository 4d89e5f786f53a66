//! Goldens: a self-test stored in a bundle, with the outputs of the model when it was compiled.

use std::path::Path;
use std::sync::Arc;

use shardwright_bundle::{Bundle, BundleWriter, ChainEntry, Manifest, TextFile};
use shardwright_runtime::Goldens;
use shardwright_vocabulary::Pass;

use crate::bundled::BundleOptions;
use crate::text_side::{TextSide, TokenizerStart};
use crate::{Error, ErrorKind, Result};

/// The shim whose results are the reference.
const CPU: &str = "cpu";

/// A text of common words, which any model can continue.
const TEXT: &str = "The sun was going down over the hills, and the people of the town came out of \
                    their houses to see what the children had found by the river. It was";

/// Maximum number of tokens of `TEXT` that are used.
const TOKENS: usize = 24;

/// Adds goldens to a bundle that contains chains for a chip and chains for the CPU. The CPU's
/// chains produce them, from `TEXT` and for each tower. Returns the bundle with goldens, or `None`
/// if it is unchanged: a bundle for only the CPU needs none.
///
/// # Errors
///
/// Errors of running the CPU's chains and of writing.
pub(crate) fn add(path: &Path, options: &BundleOptions) -> Result<Option<Bundle>> {
    let bundle = Bundle::open(path)?;
    let manifest = bundle.manifest();
    if manifest.all_chains().all(is_of_the_cpu) {
        return Ok(None);
    }
    let mut goldens = Goldens::default();
    for pass in Pass::ALL {
        let Some((variant, chain)) = of_the_cpu(manifest, *pass) else { continue };
        if *pass != Pass::Step {
            let chain = options.load_chain(&bundle, variant, *pass, chain)?;
            goldens.record_tower(*pass, &chain).map_err(Error::from)?;
        } else if manifest.texts.contains_key(&TextFile::Tokenizer) {
            let text = TextSide::of_bundle(&Arc::new(bundle.clone()), TokenizerStart::WhenAsked, None)?;
            let mut ids = text.tokenizer()?.encode(TEXT, true)?;
            let chain = options.load_chain(&bundle, variant, *pass, chain)?;
            // The tokenizer may have more tokens than the tables of a truncated model have rows.
            let assets = chain.assets();
            ids.retain(|id| assets.iter().all(|asset| u64::from(asset.row_of(*id)) < asset.entries()));
            ids.truncate(TOKENS.min(usize::try_from(chain.context()).unwrap_or(TOKENS)));
            goldens.record(&chain, &ids).map_err(Error::from)?;
        }
    }
    if goldens.is_empty() {
        return Ok(None);
    }
    let mut writer = BundleWriter::create(path)?;
    let mut manifest = writer.previous().cloned().ok_or_else(|| {
        Error::new(ErrorKind::Missing, format!("{}: not a complete bundle", path.display()))
            .with_help("compile the checkpoint again")
    })?;
    let bytes = goldens.to_bytes().map_err(|error| {
        Error::new(ErrorKind::Internal, format!("cannot write the goldens as JSON: {error}"))
    })?;
    manifest.goldens = Some(writer.add_bytes(&bytes)?);
    Ok(Some(writer.finish(&manifest)?))
}

/// Returns the first chain of a pass that runs only on the CPU: its variant, and its index there.
fn of_the_cpu(manifest: &Manifest, pass: Pass) -> Option<(usize, usize)> {
    manifest.variants.iter().enumerate().find_map(|(variant, entry)| {
        let chain = entry.model_of(pass)?.chains.iter().position(is_of_the_cpu)?;
        Some((variant, chain))
    })
}

fn is_of_the_cpu(chain: &ChainEntry) -> bool {
    chain.shards.iter().all(|shard| shard.compiled_by.shim == CPU)
}
