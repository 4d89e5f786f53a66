//! Running a tower: what a front end made of one picture or clip goes in, soft rows come out.

use crate::cancel::CancelHandle;
use crate::chain::Chain;
use crate::engine::{Engine, StepRows};
use crate::error::SessionError;
use crate::features::Features;
use crate::placement::PlacementRecord;
use crate::soft::SoftRows;
use crate::step::Given;
use shardwright_vocabulary::EntryKind;

/// A tower with memories of its own. It keeps nothing from one picture or clip to the next.
pub struct Tower {
    engine: Engine,
}

impl std::fmt::Debug for Tower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tower").field("chain", &self.engine.chain).finish_non_exhaustive()
    }
}

impl Chain {
    /// The tower of this chain.
    ///
    /// # Errors
    ///
    /// [`SessionError::NotATower`] if it gives something else than soft rows; those of allocating.
    pub fn tower(&self) -> Result<Tower, SessionError> {
        let gives_rows = |schedule: &crate::chain::layout::Schedule| schedule.soft_rows.is_some();
        match self.layout().schedules.iter().all(gives_rows) {
            true => Ok(Tower { engine: Engine::new(self.clone())? }),
            false => Err(SessionError::NotATower),
        }
    }
}

impl Tower {
    /// The chain it runs on.
    pub fn chain(&self) -> &Chain {
        &self.engine.chain
    }

    /// A handle that cancels a run from other threads.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.engine.cancel.clone()
    }

    /// Runs are cancelled by this handle from now on, such as that of the session they are for.
    pub fn set_cancel_handle(&mut self, handle: CancelHandle) {
        self.engine.cancel = handle;
    }

    /// Where everything ran so far.
    pub fn placement(&self) -> PlacementRecord {
        self.engine.counters.record(&self.engine.chain)
    }

    /// Values of a patch or frame.
    pub fn feature_width(&self) -> usize {
        self.schedules().map(|(_, features)| features.width).next().unwrap_or(0)
    }

    /// Most patches or frames of one run.
    pub fn most_features(&self) -> usize {
        self.schedules().map(|(_, features)| features.count).max().unwrap_or(0)
    }

    fn schedules(&self) -> impl Iterator<Item = (usize, FeatureInput)> + '_ {
        let chain = &self.engine.chain;
        chain.schedules(EntryKind::Encode).filter_map(|index| {
            let schedule = &chain.layout().schedules[index];
            let (count, width) = schedule.features()?;
            Some((index, FeatureInput { count, width, to_a_row: count / schedule.point.rows as usize }))
        })
    }

    /// The soft rows of a picture or clip of that origin, in the smallest entry point that holds
    /// it.
    ///
    /// # Errors
    ///
    /// [`SessionError::Features`] if there are none, more than the largest entry point takes, or
    /// patches without positions; [`SessionError::SoftRowsNotFinite`]; those of running shards.
    pub fn encode(&mut self, features: Features<'_>, origin: [u8; 32]) -> Result<SoftRows, SessionError> {
        let most = self.most_features();
        let refused = |reason| SessionError::Features { count: features.count, most, reason };
        if features.count == 0 {
            return Err(refused("nothing was given"));
        }
        let Some((schedule, input)) = self.schedules().find(|(_, input)| input.count >= features.count)
        else {
            return Err(refused("the largest entry point holds fewer"));
        };
        let chain = self.engine.chain.clone();
        let plan = &chain.layout().schedules[schedule];
        let on_a_grid = plan.reads_a_grid();
        let positions = [features.columns, features.rows];
        if on_a_grid && positions.iter().any(|along| along.len() != features.count) {
            return Err(refused("each patch needs a column and a row"));
        }
        let beyond =
            |along: &[i32]| along.iter().any(|&at| at < 0 || i64::from(at) >= plan.grid_limit(&chain));
        if on_a_grid && positions.iter().any(|along| beyond(along)) {
            return Err(refused("a column or row is beyond the table of positions"));
        }
        let valid = features.count.div_ceil(input.to_a_row);
        let given = Given::Features { features: &features, to_a_row: input.to_a_row as u64 };
        self.engine.step(schedule, StepRows { position: 0, count: valid, given }, None)?;
        let Some(located) = &plan.soft_rows else { return Err(SessionError::NotATower) };
        let (all, width) = (located.shape[0] as usize, located.shape[1] as usize);
        let rows = (valid * all).div_ceil(plan.point.rows as usize);
        let mut values = Vec::new();
        let read = self.engine.read(located, rows * width, &mut values);
        read.map_err(|source| self.engine.not_read(schedule, 0, source))?;
        SoftRows::new(width, values, origin)
    }
}

/// The features of an entry point.
#[derive(Clone, Copy)]
struct FeatureInput {
    count: usize,
    width: usize,
    to_a_row: usize,
}
