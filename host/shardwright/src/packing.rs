//! Packing a bundle into one file.

use std::ops::ControlFlow;
use std::path::Path;

use shardwright_bundle::{Bundle, PackReport};
use shardwright_shims::Watch;

use crate::{BundleOptions, Result};

impl BundleOptions {
    /// Packs a bundle that is signed as the rules ask, in a directory or packed, into the file
    /// `to`: an uncompressed ZIP archive that [`open`](Self::open) opens like the directory. Every
    /// byte is verified on the way; equal bundles give equal files. The file appears whole or not
    /// at all.
    ///
    /// # Errors
    ///
    /// Those of opening the bundle, of a damaged file and of writing, and
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled).
    pub fn pack(
        &self,
        bundle: impl AsRef<Path>,
        to: impl AsRef<Path>,
        watch: &mut dyn Watch,
    ) -> Result<PackReport> {
        let bundle = Bundle::open_trusting(bundle, &self.rules()?)?;
        let report = shardwright_bundle::pack(&bundle, to.as_ref(), |progress| {
            let done = u128::from(progress.done) * 1000 / u128::from(progress.total.max(1));
            watch.progress(done as u32, "copying");
            if watch.cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(report)
    }
}
