//! Packing a bundle into one file.

use std::ops::ControlFlow;
use std::path::Path;

use shardwright_bundle::{Bundle, PackReport};
use shardwright_vocabulary::Watch;

use crate::{BundleOptions, Result};

impl BundleOptions {
    /// Packs a bundle, from a directory or a packed file, into the file `to`: an uncompressed ZIP
    /// archive that [`open`](Self::open) opens like the directory. The bundle must be signed as the
    /// policy requires. Every byte is verified on the way, and equal bundles give equal files. The
    /// file is written completely or not at all.
    ///
    /// # Errors
    ///
    /// Errors of opening the bundle, of a damaged file and of writing, and
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled).
    pub fn pack(
        &self,
        bundle: impl AsRef<Path>,
        to: impl AsRef<Path>,
        watch: &mut dyn Watch,
    ) -> Result<PackReport> {
        let bundle = Bundle::open_trusting(bundle, &self.rules()?)?;
        shardwright_bundle::pack(&bundle, to.as_ref(), |progress| {
            let done = u128::from(progress.done) * 1000 / u128::from(progress.total.max(1));
            watch.progress(done as u32, "copying");
            if watch.cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    }
}
