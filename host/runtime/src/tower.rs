//! Runs a tower, which converts the features of one picture or clip to soft rows.

use crate::cancel::CancelHandle;
use crate::chain::Chain;
use crate::engine::{Engine, StepRows};
use crate::error::{SessionError, not_a_tower};
use crate::features::Features;
use crate::next_chain::NextChain;
use crate::placement::PlacementRecord;
use crate::session::failover::{Successor, is_loss, take};
use crate::soft_rows::SoftRows;
use crate::step::Given;
use shardwright_vocabulary::{EntryKind, Error, Place};

/// A tower with its own memory. It keeps no state between pictures or clips.
pub struct Tower {
    engine: Engine,
    next: Option<Box<dyn NextChain>>,
    moves: Vec<TowerMove>,
}

/// A picture or clip that was run again on another chain, because its chain was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TowerMove {
    /// Error with which the chain was lost.
    pub lost: String,
    /// Places of the new chain's shards, each once, in their order.
    pub to: Vec<Place>,
    /// Chains that were tried before and were unusable, with the reasons.
    pub passed_over: Vec<String>,
}

impl std::fmt::Debug for Tower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tower").field("chain", &self.engine.chain).finish_non_exhaustive()
    }
}

impl Chain {
    /// Creates a tower on this chain.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`ErrorKind::Unsupported`] if the chain returns anything other
    /// than soft rows, and the errors of allocation.
    ///
    /// [`ErrorKind::Unsupported`]: shardwright_vocabulary::ErrorKind::Unsupported
    pub fn tower(&self) -> Result<Tower, SessionError> {
        match is_tower(self) {
            true => Ok(Tower { engine: Engine::new(self.clone())?, next: None, moves: Vec::new() }),
            false => Err(not_a_tower()),
        }
    }
}

/// Checks whether a chain only returns soft rows.
fn is_tower(chain: &Chain) -> bool {
    chain.layout().schedules.iter().all(|schedule| schedule.soft_rows.is_some())
}

/// Returns the entry points that accept features.
fn inputs(chain: &Chain) -> impl Iterator<Item = (usize, FeatureInput)> + '_ {
    chain.schedules(EntryKind::Encode).filter_map(|index| {
        let schedule = &chain.layout().schedules[index];
        let (count, width) = schedule.features()?;
        Some((index, FeatureInput { count, width, to_a_row: count / schedule.point.rows as usize }))
    })
}

impl Tower {
    /// Sets the source of chains to continue on if the chain is lost. With `None`, the loss is an
    /// error.
    pub fn set_next_chain(&mut self, next: Option<Box<dyn NextChain>>) {
        self.next = next;
    }

    /// Returns the pictures and clips that were run again on another chain so far.
    pub fn moves(&self) -> &[TowerMove] {
        &self.moves
    }

    /// Returns the chain that the tower runs on.
    pub fn chain(&self) -> &Chain {
        &self.engine.chain
    }

    /// Returns a handle that cancels a run from other threads.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.engine.cancel.clone()
    }

    /// Sets the handle that cancels runs from now on, for example the handle of the session that
    /// uses the rows.
    pub fn set_cancel_handle(&mut self, handle: CancelHandle) {
        self.engine.cancel = handle;
    }

    /// Returns the record of all placements so far.
    pub fn placement(&self) -> PlacementRecord {
        self.engine.counters.record(&self.engine.chain)
    }

    /// Returns the number of values of a patch or frame.
    pub fn feature_width(&self) -> usize {
        self.schedules().map(|(_, features)| features.width).next().unwrap_or(0)
    }

    /// Returns the largest number of patches or frames of one run.
    pub fn most_features(&self) -> usize {
        self.schedules().map(|(_, features)| features.count).max().unwrap_or(0)
    }

    /// Returns the number of patches or frames that become one soft row.
    pub(crate) fn features_of_a_row(&self) -> usize {
        self.schedules().map(|(_, features)| features.to_a_row).next().unwrap_or(1)
    }

    fn schedules(&self) -> impl Iterator<Item = (usize, FeatureInput)> + '_ {
        inputs(&self.engine.chain)
    }

    /// Computes the soft rows of a picture or clip with this origin, in the smallest sufficient
    /// entry point. If the chain is lost and another one is available, the picture or clip is run
    /// again there.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`ErrorKind::Argument`] if there are no features, more than the
    /// largest entry point accepts, or patches without positions. Returns
    /// [`SessionError::NotFinite`] for a NaN or infinity, and the errors of running shards.
    ///
    /// [`ErrorKind::Argument`]: shardwright_vocabulary::ErrorKind::Argument
    pub fn encode(&mut self, features: Features<'_>, origin: [u8; 32]) -> Result<SoftRows, SessionError> {
        let mut asked = 0;
        loop {
            match self.encode_here(&features, origin) {
                Err(error) if is_loss(&error) => self.go_on(error, &features, &mut asked)?,
                done => return done,
            }
        }
    }

    fn go_on(
        &mut self,
        lost: SessionError,
        features: &Features<'_>,
        asked: &mut usize,
    ) -> Result<(), SessionError> {
        let Some(mut next) = self.next.take() else { return Err(lost) };
        let (count, width) = (features.count, self.feature_width());
        let fits = &mut |chain: &Chain| {
            let holds = |input: FeatureInput| input.count >= count && input.width == width;
            match is_tower(chain) && inputs(chain).any(|(_, input)| holds(input)) {
                true => Ok(()),
                false => Err("the next chain does not accept such features".to_owned()),
            }
        };
        let record = self.placement();
        let interrupted = &mut || self.engine.interrupted(0);
        let taken = take(next.as_mut(), lost, &record, asked, fits, interrupted);
        self.next = Some(next);
        let (lost, Successor { mut engine, passed_over }) = taken?;
        // The cancel handle must keep working across chains.
        engine.cancel = self.engine.cancel.clone();
        self.engine = engine;
        let mut to: Vec<Place> = Vec::new();
        for shard in &self.engine.chain.description().shards {
            if !to.contains(&shard.place) {
                to.push(shard.place.clone());
            }
        }
        self.moves.push(TowerMove { lost: lost.to_string(), to, passed_over });
        Ok(())
    }

    fn encode_here(&mut self, features: &Features<'_>, origin: [u8; 32]) -> Result<SoftRows, SessionError> {
        let most = self.most_features();
        let refused = |reason: &str| -> SessionError {
            let count = features.count;
            let message = format!("{count} patches or frames, at most {most} per run: {reason}");
            let help =
                "choose a smaller budget of soft tokens or a shorter clip, or plan a larger entry point";
            Error::argument(message).with_help(help).into()
        };
        if features.count == 0 {
            return Err(refused("no features were given"));
        }
        let Some((schedule, input)) = self.schedules().find(|(_, input)| input.count >= features.count)
        else {
            return Err(refused("the largest entry point accepts fewer"));
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
        let given = Given::Features { features, to_a_row: input.to_a_row as u64 };
        self.engine.step(schedule, StepRows { position: 0, count: valid, given }, None)?;
        let Some(located) = &plan.soft_rows else { return Err(not_a_tower()) };
        let (all, width) = (located.shape[0] as usize, located.shape[1] as usize);
        let rows = (valid * all).div_ceil(plan.point.rows as usize);
        let mut values = Vec::new();
        let read = self.engine.read(located, rows * width, &mut values);
        read.map_err(|source| self.engine.not_read(schedule, 0, source))?;
        SoftRows::new(width, values, origin)
    }
}

/// Dimensions of an entry point's features.
#[derive(Clone, Copy)]
struct FeatureInput {
    count: usize,
    width: usize,
    to_a_row: usize,
}
