//! Where the shards of a plan run, and how their artefacts are loaded there.

use shardwright_planning::feedback::Feedback;
use shardwright_planning::request::Request;
use shardwright_shims::{Chip, LoadedShard, ShimError, ShimInstance};
use shardwright_vocabulary::{Error, ShardOrigin};
use shardwright_worker::Shims;

use crate::{BuiltShard, CPU_SHIM, Stage, TargetExecutor, feedback_of};

/// A loaded shard and its origin.
pub struct LoadedPart {
    /// Name by components and layers: `decoder.0-12`, `head`.
    pub name: String,
    pub shard: LoadedShard,
    /// The request for the shard and how it was compiled and loaded.
    pub origin: ShardOrigin,
    /// The logits soft-cap that the plan leaves to the runtime.
    pub logits_softcap: Option<f32>,
}

/// Why shards could not be loaded.
pub(crate) struct NotLoaded {
    pub(crate) error: Error,
    /// Feedback for the planner, if another plan may avoid the failure.
    pub(crate) feedback: Option<Feedback>,
}

impl NotLoaded {
    fn of(index: usize, name: &str, error: ShimError) -> Self {
        let feedback = feedback_of(index, name, &error, Stage::Load);
        NotLoaded { error: error.into(), feedback }
    }
}

impl From<Error> for NotLoaded {
    fn from(error: Error) -> Self {
        NotLoaded { error, feedback: None }
    }
}

/// One place per target of a request.
pub(crate) struct RunPlaces {
    shims: Shims,
    places: Vec<RunPlace>,
    threads: Option<u32>,
}

/// Where the shards of a target run.
struct RunPlace {
    shim: String,
    name: String,
    device: String,
    /// Chip facts that the shim reads.
    chip: Option<Chip>,
    /// Whether the device is a simulator.
    simulated: bool,
    /// The instance that compiled the shards, if it also runs them.
    instance: Option<ShimInstance>,
}

/// Returns the thread option of the CPU shim, if `threads` is set. Other shims get no option.
pub fn thread_options(shim: &str, threads: Option<u32>) -> Vec<(String, String)> {
    match threads {
        Some(threads) if shim == CPU_SHIM => vec![("threads".to_owned(), threads.to_string())],
        _ => Vec::new(),
    }
}

impl RunPlaces {
    /// Closes instances that were opened for questions and compiling, unless they also run shards:
    /// a chip may be open only once.
    pub(crate) fn of(shims: Shims, executors: Vec<TargetExecutor>, threads: Option<u32>) -> Self {
        let keeps = shims.compiles_where_it_runs();
        let place = |executor: TargetExecutor| RunPlace {
            shim: executor.instance.shim().name().to_owned(),
            name: executor.instance.name().to_owned(),
            chip: executor.instance.chip_of(&executor.device),
            device: executor.device,
            simulated: executor.simulated,
            instance: keeps.then_some(executor.instance),
        };
        let places = executors.into_iter().map(place).collect();
        RunPlaces { shims, places, threads }
    }

    /// Loads every shard where its target runs.
    pub(crate) fn load(
        &self,
        shards: &[BuiltShard],
        request: &Request,
    ) -> std::result::Result<Vec<LoadedPart>, NotLoaded> {
        let mut runners: Vec<Option<ShimInstance>> =
            self.places.iter().map(|place| place.instance.clone()).collect();
        let mut loaded = Vec::with_capacity(shards.len());
        for (index, shard) in shards.iter().enumerate() {
            let place = &self.places[shard.target];
            let options = thread_options(&place.shim, self.threads);
            let runner = match &runners[shard.target] {
                Some(runner) => runner.clone(),
                None => {
                    let opened =
                        self.shims.open_to_run(&place.shim, &place.name, &options, place.simulated)?;
                    if let Some(chip) = &place.chip {
                        opened.know(chip).map_err(Error::from)?;
                    }
                    runners[shard.target].insert(opened).clone()
                }
            };
            let artefact = runner.load_with(&place.device, &shard.artefact, &options, &shard.load_flags);
            let artefact = artefact.map_err(|error| NotLoaded::of(index, &shard.name, error))?;
            loaded.push(LoadedPart {
                name: shard.name.clone(),
                origin: ShardOrigin { loaded_with: artefact.flags().to_vec(), ..shard.origin(request) },
                shard: artefact,
                logits_softcap: shard.logits_softcap,
            });
        }
        Ok(loaded)
    }
}
