use shardwright_build::{PlanReport, Settled};
use shardwright_bundle::ChainEntry;
use shardwright_vocabulary::{ErrorKind, Notice, NoticeKind, Result};

/// The chains of a model after its first one: the fallbacks of its plan, as far as they can be
/// made.
#[derive(Default)]
pub(super) struct LaterChains {
    chains: Vec<ChainEntry>,
    /// Texts of the notices of the first chain, which are not repeated.
    known: Vec<String>,
    /// Notices about this run.
    pub(super) said: Vec<Notice>,
    /// The bundle's notices about missing chains, which are equal on every machine.
    pub(super) lacking: Vec<Notice>,
}

impl LaterChains {
    /// Returns no chains yet. `first` is the plan of the first chain.
    pub(super) fn of(first: &PlanReport) -> Self {
        let known = first.notices.iter().map(|notice| notice.text.clone()).collect();
        LaterChains { known, ..LaterChains::default() }
    }

    /// Adds a chain, or the notice why the chain of that name is missing. The others are made
    /// without it.
    ///
    /// # Errors
    ///
    /// Fails if `made` is a cancellation or an internal error.
    pub(super) fn take(&mut self, name: &str, made: Result<(ChainEntry, Settled)>) -> Result<()> {
        match made {
            Ok((chain, settled)) => {
                let notices = settled.report_now().notices.into_iter();
                let fallen = notices.filter(|notice| {
                    notice.kind == NoticeKind::Fallback && !self.known.contains(&notice.text)
                });
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

    /// Returns all chains, with `first` as the first one.
    pub(super) fn after(self, first: ChainEntry) -> Vec<ChainEntry> {
        std::iter::once(first).chain(self.chains).collect()
    }
}
