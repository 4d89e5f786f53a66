use shardwright_reference::ReferenceError;
use shardwright_shims::{Part, Watch};
use shardwright_vocabulary::{Error, ErrorKind, Result};

/// Passes on how far a part of the verification is, and asks whether to go on.
pub(crate) struct Progress<'w>(pub(crate) Part<'w>);

impl Progress<'_> {
    /// `fraction` of this part is done.
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

/// The reference refuses nothing that models make; when it does, that is a fault here.
pub(crate) fn reference_fault(error: ReferenceError) -> Error {
    let help = error.help().map(|help| help.to_string());
    Error::caused_by(ErrorKind::Internal, error, help)
}
