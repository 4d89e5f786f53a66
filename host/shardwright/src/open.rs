use crate::{BundleOptions, Model, Result, Source};

impl Model {
    /// Opens a bundle with the default [`BundleOptions`]. With the feature `build`, a path that is
    /// not a bundle is opened as a checkpoint with the default `OpenOptions`: planned for the
    /// generic profile, compiled and loaded on this machine's CPU.
    pub fn open(source: impl Into<Source>) -> Result<Model> {
        let source = source.into();
        #[cfg(feature = "build")]
        if let Source::Path(path) = &source
            && !crate::is_bundle(path)
        {
            return crate::OpenOptions::new().open(path);
        }
        BundleOptions::new().open(source)
    }
}
