//! Packing a bundle into one file.

use std::ops::ControlFlow;
use std::path::Path;

use shardwright_bundle::{Bundle, PackReport};
use shardwright_shims::Watch;

use crate::Result;

/// Packs a bundle, in a directory or packed, into the file `to`: an uncompressed ZIP archive that
/// [`BundleOptions`](crate::BundleOptions) opens like the directory. Every byte is verified on the
/// way; equal bundles give equal files. The file appears whole or not at all.
pub fn pack(bundle: impl AsRef<Path>, to: impl AsRef<Path>, watch: &mut dyn Watch) -> Result<PackReport> {
    let bundle = Bundle::open(bundle)?;
    let report = shardwright_bundle::pack(&bundle, to.as_ref(), |progress| {
        let done = u128::from(progress.done) * 1000 / u128::from(progress.total.max(1));
        watch.progress(done as u32, "copying");
        if watch.cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(report)
}
