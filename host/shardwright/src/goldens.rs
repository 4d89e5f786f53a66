//! The test that a bundle carries of itself: what it said when it was compiled.

use std::path::Path;
use std::sync::Arc;

use shardwright_bundle::{Bundle, BundleWriter, ChainEntry, TextFile};
use shardwright_runtime::Goldens;

use crate::bundled::BundleOptions;
use crate::text_side::{TextSide, TokenizerStart};
use crate::{Error, ErrorKind, Result};

/// The shim whose results others are compared with.
const CPU: &str = "cpu";

/// A text of common words: what any model has an opinion on.
const TEXT: &str = "The sun was going down over the hills, and the people of the town came out of \
                    their houses to see what the children had found by the river. It was";

/// Most tokens of it.
const TOKENS: usize = 24;

/// Adds goldens to a bundle that holds a chain for a chip and one for the CPU, which says them.
/// Gives the bundle with them; `None` where it stays as it is: a bundle for the CPU alone needs
/// none, and a model that embeds, or one without a tokenizer, has none.
///
/// # Errors
///
/// Those of running the CPU's chain, and of writing.
pub(crate) fn add(path: &Path, options: &BundleOptions) -> Result<Option<Bundle>> {
    let bundle = Bundle::open(path)?;
    let manifest = bundle.manifest();
    if manifest.all_chains().all(is_of_the_cpu) || !manifest.texts.contains_key(&TextFile::Tokenizer) {
        return Ok(None);
    }
    let variants = manifest.variants.iter().enumerate();
    let chains = variants.flat_map(|(variant, entry)| {
        let chains = entry.chains.iter().enumerate();
        chains.map(move |(chain, own)| (variant, chain, own, entry.structure.is_generative()))
    });
    let mut of_the_cpu = chains.filter(|(.., own, is_generative)| *is_generative && is_of_the_cpu(own));
    let Some((variant, chain, ..)) = of_the_cpu.next() else { return Ok(None) };
    let text = TextSide::of_bundle(&Arc::new(bundle.clone()), TokenizerStart::WhenAsked, None)?;
    let mut ids = text.tokenizer()?.encode(TEXT, true)?;
    let vocabulary = manifest.variants[variant].structure.vocabulary;
    // A tokenizer may know more tokens than a model that was cut down has rows for.
    ids.retain(|id| u64::from(*id) < vocabulary);
    let chain = options.load_chain(&bundle, variant, chain)?;
    ids.truncate(TOKENS.min(usize::try_from(chain.context()).unwrap_or(TOKENS)));
    let Some(goldens) = Goldens::record(&chain, &ids).map_err(Error::from)? else { return Ok(None) };
    drop(chain);
    let mut writer = BundleWriter::create(path)?;
    let mut manifest = writer.previous().cloned().ok_or_else(|| {
        Error::new(ErrorKind::Missing, format!("{}: no bundle that is whole", path.display()))
            .with_help("compile the checkpoint again")
    })?;
    let bytes = goldens
        .to_bytes()
        .map_err(|error| Error::new(ErrorKind::Internal, format!("the goldens as JSON: {error}")))?;
    manifest.goldens = Some(writer.add_bytes(&bytes)?);
    Ok(Some(writer.finish(&manifest)?))
}

fn is_of_the_cpu(chain: &ChainEntry) -> bool {
    chain.shards.iter().all(|shard| shard.compiled_by.shim == CPU)
}
