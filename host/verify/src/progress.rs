use shardwright_vocabulary::{Error, ErrorKind, Part, Result, Watch};

/// Forwards the progress of a part of the verification, and checks for a cancellation.
pub(crate) struct PartProgress<'w>(pub(crate) Part<'w>);

impl PartProgress<'_> {
    /// Reports that `fraction` of this part is done.
    pub(crate) fn step(&mut self, fraction: f64, stage: impl FnOnce() -> String) -> Result<()> {
        self.check()?;
        self.0.progress((fraction.clamp(0.0, 1.0) * 1000.0) as u32, &stage());
        Ok(())
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.0.cancelled() {
            true => Err(Error::new(ErrorKind::Cancelled, "the verification was cancelled")),
            false => Ok(()),
        }
    }
}

/// Converts an error of the reference. It supports everything that models contain, so an error is a
/// bug.
pub(crate) fn reference_fault(error: Error) -> Error {
    error.with_kind(ErrorKind::Internal)
}
