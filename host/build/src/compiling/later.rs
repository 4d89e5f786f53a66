use shardwright_bundle::ChainEntry;
use shardwright_vocabulary::{ErrorKind, Notice, NoticeKind};

use crate::{Result, Settled};

/// The chains of a model after its first one: what its plan falls back to, as far as it can be
/// made.
#[derive(Default)]
pub(super) struct LaterChains {
    chains: Vec<ChainEntry>,
    /// What is to be said of this run.
    pub(super) said: Vec<Notice>,
    /// What the bundle says of those that it lacks: the same on every machine.
    pub(super) lacking: Vec<Notice>,
}

impl LaterChains {
    /// Takes a chain, or says why there is none of that name: the others are made without it.
    ///
    /// # Errors
    ///
    /// A cancellation, and a fault of this program.
    pub(super) fn take(&mut self, name: &str, made: Result<(ChainEntry, Settled)>) -> Result<()> {
        match made {
            Ok((chain, settled)) => {
                let notices = settled.report_now().notices.into_iter();
                let fallen = notices.filter(|notice| notice.kind == NoticeKind::Fallback);
                self.said.extend(
                    fallen.map(|notice| Notice::fallback(format!("chain `{name}`: {}", notice.text))),
                );
                self.chains.push(chain);
            }
            Err(error) if matches!(error.kind(), ErrorKind::Cancelled | ErrorKind::Internal) => {
                return Err(error);
            }
            Err(error) => {
                self.said.push(Notice::fallback(format!(
                    "the plan falls back to chain `{name}`, which was not compiled: {error}"
                )));
                self.lacking.push(Notice::note(format!(
                    "the plan falls back to chain `{name}`, which was not compiled"
                )));
            }
        }
        Ok(())
    }

    /// All chains, after the first one.
    pub(super) fn after(self, first: ChainEntry) -> Vec<ChainEntry> {
        std::iter::once(first).chain(self.chains).collect()
    }
}
