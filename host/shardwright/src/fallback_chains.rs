//! Fallback chains of a checkpoint, which are built when they are needed.

use std::path::Path;

use shardwright_build::{FallbackChain, PlanOptions};
use shardwright_checkpoints::{Builder, LoadedChain, TowerScope, open_adapted};
use shardwright_runtime::{NextChain, PlacementRecord, SessionError};
use shardwright_vocabulary::{At, Beforehand, Pass};

use crate::join;

/// Returns the fallback chains of a plan for a tower of a checkpoint, or for its text, in order.
/// Each is built when the one before it is lost.
pub(crate) fn on_demand(
    directory: &Path,
    tower: Option<TowerScope>,
    chains: Vec<FallbackChain>,
) -> Box<dyn NextChain> {
    let directory = directory.to_owned();
    let built = move |options: &PlanOptions| {
        let tower = tower.as_ref();
        let passes: Vec<Pass> = [Pass::Step].into_iter().chain(tower.map(|tower| tower.pass)).collect();
        let checkpoint = open_adapted(&directory, &passes, options)?;
        let builder = Builder::new(&checkpoint, tower);
        let LoadedChain { settled, parts, .. } = builder.loaded_chain(options, &mut ())?;
        join(parts, &settled.graph, settled.report.emulated_on, Beforehand::default())
    };
    let mut rest = chains.into_iter();
    Box::new(move |_: &SessionError, _: &PlacementRecord| {
        let FallbackChain { name, options } = rest.next()?;
        Some(built(&options).at(format_args!("chain `{name}`")))
    })
}
