//! Carries out a checked plan: entry graphs, legalisation, work orders, `compile`.

use shardwright_graph::{
    Encodings, EntryGraph, EntryOptions, EntryPoint, LegaliseError, PortSide, Role, Segments, Weight,
    legalise_encoded,
};
use shardwright_planning::check::{CheckedPlan, CheckedShard};
use shardwright_planning::feedback::{Detail, Feedback};
use shardwright_planning::plan::Shard;
use shardwright_planning::request::Request;
use shardwright_shims::{Artefact, ShimError, ShimInstance, WorkOrderBuilder};
use shardwright_vocabulary::{
    Encoding, EntryName, Error, ErrorClass, ErrorKind, Flag, FlagStage, Limit, Part, Provenance, Rewrite,
    RewriteKind, ShardFormats, ShardOrigin, ShimIdentity, SoftcapPlace, Watch, limit_names,
};

use crate::{ArtefactStore, ModelFormats, TargetOffer, needs_ranges};

/// The shim and device that compile and run the shards of one target.
#[derive(Clone)]
pub struct TargetExecutor {
    pub instance: ShimInstance,
    pub device: String,
    /// The shim's description of the device: the version of the vendor's library and how the shim
    /// lowers graphs.
    pub detail: Option<String>,
    /// Whether the device is a simulator of the planned target.
    pub simulated: bool,
    /// Whether each artefact is loaded once after compiling. This finds bindings that contradict
    /// the graph here instead of on the phone. It is set for artefacts that are stored and devices
    /// that are present.
    pub loads: bool,
    /// Whether this is the planned target itself and not a substitute. Vendor flags are passed only
    /// to the target itself.
    pub is_target: bool,
}

#[derive(Clone, Debug)]
pub struct BuiltShard {
    /// Name by components and layers: `decoder.0-12`, `head`.
    pub name: String,
    pub segments: Segments,
    /// Index of the target in the request.
    pub target: usize,
    /// Formats of its layers.
    pub formats: ShardFormats,
    pub artefact: Artefact,
    /// Flags with which the plan loads the artefact.
    pub load_flags: Vec<Flag>,
    /// Whether it was compiled for a simulator of the planned target.
    pub simulated: bool,
    /// Nodes that were decomposed, and states that the runtime updates.
    pub rewritten: Vec<Rewrite>,
    /// The logits soft-cap that the plan leaves to the runtime: the compiled graph returns uncapped
    /// logits.
    pub logits_softcap: Option<f32>,
    /// The graphs that were compiled.
    pub compiled: CompiledGraphs,
    /// A message if the artefact's size differs from the cost table by more than the tolerance.
    pub unpromised_size: Option<String>,
}

impl BuiltShard {
    /// Returns the target that `request` has for this shard, its formats, and how it was rewritten
    /// and compiled.
    pub fn origin(&self, request: &Request) -> ShardOrigin {
        let origin = self.artefact.head().origin();
        ShardOrigin {
            requested: request.targets.get(self.target).map(|target| target.target.clone()),
            formats: Some(self.formats.clone()),
            rewritten: self.rewritten.clone(),
            compiled_by: origin.compiled_by.map(|made| ShimIdentity { simulated: self.simulated, ..made }),
            ..origin
        }
    }
}

/// The entry graphs of a shard as passed to its shim. Verification compares results against them.
#[derive(Clone, Debug)]
pub struct CompiledGraphs {
    /// Entry graphs, legalised and encoded, one for each entry point.
    pub graphs: Vec<EntryGraph>,
    /// The constants that the graphs refer to, by id. Data are shared.
    pub weights: Vec<Weight>,
}

/// Why a plan was not carried out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A compiler refused a shard. The planner can act on it.
    #[error("{}", .0.message)]
    Refused(Box<Feedback>),
    /// A failure that no other plan avoids.
    #[error(transparent)]
    Other(#[from] Error),
}

/// The kind of a refusal is [`ErrorKind::Planning`].
impl From<BuildError> for Error {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Refused(feedback) => Error::new(ErrorKind::Planning, feedback.message)
                .with_help("try another planner, limit or target: `shardwright plan` shows the reasons"),
            BuildError::Other(error) => error,
        }
    }
}

/// Returns the error of a build that its caller ended.
pub(crate) fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "building was cancelled")
}

/// The inputs for carrying out a plan.
#[derive(Clone, Copy)]
pub struct BuildSite<'a> {
    /// The model in the formats of the request, with its constants quantised.
    pub formats: &'a ModelFormats,
    pub request: &'a Request,
    /// The targets of the request, by index, each with its judge.
    pub offers: &'a [TargetOffer],
    /// The executor of each target.
    pub executors: &'a [TargetExecutor],
    /// Parts of entry graphs that a run does not need, such as taps.
    pub options: EntryOptions,
}

/// Compiles every shard of the plan with the executor of its target (by index in the request).
///
/// A refusal names the shard and carries the shim's class and details, for `revise`. The compiled
/// graphs are checked against the cost table, because a planner relies on exact sums.
pub fn compile_plan(
    site: &BuildSite<'_>,
    plan: &CheckedPlan,
    store: &mut dyn ArtefactStore,
    watch: &mut dyn Watch,
) -> Result<Vec<BuiltShard>, BuildError> {
    let mut built = Vec::new();
    let mut all = Part::new(watch, 0..1000);
    let bytes = |shard: &CheckedShard| shard.cost.weight_bytes.max(1);
    let all_bytes = plan.shards().iter().map(bytes).fold(0, u64::saturating_add);
    let mut bytes_done = 0_u64;
    for (index, checked) in plan.shards().iter().enumerate() {
        if all.cancelled() {
            return Err(cancelled().into());
        }
        bytes_done = bytes_done.saturating_add(bytes(checked));
        let end = u128::from(bytes_done) * 1000 / u128::from(all_bytes.max(1));
        let mut watch = all.then(end as u32).named(format!("compiling {}", checked.name));
        built.push(compile_shard(site, plan, index, Extent::Planned, store, &mut watch)?);
    }
    Ok(built)
}

/// How much of a shard is compiled.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Extent<'a> {
    /// The whole planned shard. The graphs and the size of the artefact must match the cost table.
    Planned,
    /// The whole planned shard, with the inputs and outputs of every linear operation as further
    /// outputs.
    Tapped,
    /// Adjacent segments of the shard, in the formats that they have there.
    Some(&'a Segments),
}

/// Compiles one shard of the plan, or part of it. See [`compile_plan`].
pub(crate) fn compile_shard(
    site: &BuildSite<'_>,
    plan: &CheckedPlan,
    index: usize,
    extent: Extent<'_>,
    store: &mut dyn ArtefactStore,
    watch: &mut dyn Watch,
) -> Result<BuiltShard, BuildError> {
    let &BuildSite { formats, request, offers, executors, options } = site;
    let checked = &plan.shards()[index];
    let CheckedShard { name, planned: shard, cost, .. } = checked;
    let target = shard.target as usize;
    let executor = &executors[target];
    watch.progress(0, "checking supported operations");
    // Activation and state formats are the same in every layer.
    let format = shard.formats().next().unwrap_or(0) as usize;
    let graph = formats.graph_of(plan, checked)?;
    let graph = graph.as_ref();
    if formats.encodings(format).assumed.is_some() && checked.formats.tuples().any(needs_ranges) {
        let what = format!("{} needs calibrated ranges", checked.formats);
        return Err(Error::new(ErrorKind::Shim, what)
            .at(format!("shard {name}"))
            .with_help("calibrate the checkpoint, or offer formats with float activations and states")
            .into());
    }
    let refused = |error: ShimError| refusal(index, name, error, Stage::Compile);

    let logits_softcap = match shard.softcap {
        Some(SoftcapPlace::Runtime) => graph.logits_softcap(),
        Some(SoftcapPlace::Graph) | None => None,
    };
    let uncapped = logits_softcap.map(|_| graph.without_logits_softcap());
    let graph = uncapped.as_ref().unwrap_or(graph);
    let (segments, options, tapped) = match extent {
        Extent::Planned => (&checked.segments, options, None),
        Extent::Tapped => (&checked.segments, EntryOptions { taps: true }, Some(graph.with_operation_taps())),
        Extent::Some(segments) => (segments, EntryOptions { taps: false }, None),
    };
    let graph = tapped.as_ref().unwrap_or(graph);
    let is_planned = matches!(extent, Extent::Planned);
    let mut order = WorkOrderBuilder::new(&graph.weights);
    let mut rewritten = Vec::new();
    let mut graphs = Vec::new();
    for (entry, promised) in shard.entries.iter().zip(&cost.entries) {
        let point = point_of(plan, entry);
        let Some(plain) = graph.entry_of(segments, point, options)? else {
            continue;
        };
        let encodings = Encodings { ports: ports(&plain, shard), ..formats.encodings(format) };
        let check = |shown: &EntryGraph| executor.instance.check(&executor.device, shown, &graph.weights);
        let legal = legalise_encoded(&plain, &encodings, check).map_err(|error| match error {
            LegaliseError::Check(error) => refused(error),
            other => unsupported(index, name, &other),
        })?;
        // The cost table describes the target, not its substitute.
        if executor.is_target && is_planned {
            let counted = offers[target].judge.operations(graph, &legal.graph);
            let found = counted.unwrap_or(legal.graph.nodes.len() as u64);
            if found != promised.ops {
                let promised = promised.ops;
                let what = format!("expected {promised} operations from the cost table, got {found}");
                return Err(Error::internal(what)
                    .at(format!("shard {name} at {entry}"))
                    .with_help("report this: the cost table given to the planner was wrong")
                    .into());
            }
        }
        let note = |rewrite, name, reason| Rewrite { entry: *entry, rewrite, name, reason };
        let decomposed = legal.decomposed.into_iter();
        rewritten.extend(decomposed.map(|(name, reason)| note(RewriteKind::Decomposed, name, reason)));
        rewritten.extend(legal.by_runtime.into_iter().map(|(state, reason)| {
            note(RewriteKind::ByRuntime, graph.states[state.0 as usize].name.clone(), reason)
        }));
        order = order.entry(&legal.graph).map_err(ShimError::work_order).map_err(refused)?;
        graphs.push(legal.graph);
    }
    let at_load = |flag: &&Flag| {
        let mut schema = request.targets[target].schema.iter();
        schema.any(|known| known.name == flag.name && known.stage == FlagStage::Load)
    };
    let mut load_flags = Vec::new();
    if executor.is_target {
        load_flags = shard.flags.iter().filter(at_load).cloned().collect();
        for flag in shard.flags.iter().filter(|flag| !at_load(flag)) {
            order = order.flag(flag.clone());
        }
    }
    let order = order.temporary().map_err(|error| match error.kind() {
        // A weight has an invalid value, or temporary files cannot be created, which no other plan
        // avoids.
        ErrorKind::Invalid | ErrorKind::Missing => BuildError::Other(error),
        _ => refused(ShimError::work_order(error)),
    })?;
    let artefact = match store.recall(&order, executor)? {
        Some(artefact) => artefact,
        None => {
            let place = store.place().map_err(BuildError::from);
            let compiled = place.and_then(|place| {
                executor.instance.compile(&executor.device, &order, place, watch).map_err(refused)
            });
            match compiled {
                Ok(made) => store.keep(&order, executor, made)?,
                Err(error) => {
                    store.not_made();
                    return Err(error);
                }
            }
        }
    };
    if executor.loads && is_planned {
        let loaded = executor.instance.load(&executor.device, &artefact, &[]);
        loaded.map_err(|error| refusal(index, name, error, Stage::Load))?;
    }
    // A substitute, or another device of the same shim, has its own artefact format.
    let is_own = executor.is_target && executor.device == checked.target.device;
    let unpromised_size = match is_own && is_planned {
        true => {
            let limits = &request.targets[target].limits;
            promised_size(limits, index, checked, artefact.payload().len() as u64)?
        }
        false => None,
    };
    let compiled = CompiledGraphs { graphs, weights: graph.weights.clone() };
    Ok(BuiltShard {
        load_flags,
        name: name.clone(),
        segments: segments.clone(),
        target,
        formats: checked.formats.clone(),
        artefact,
        simulated: executor.simulated,
        rewritten,
        logits_softcap,
        compiled,
        unpromised_size,
    })
}

/// Largest difference between an artefact's size and the cost table, in per cent. Sizes in the
/// table are modelled, and compilers add headers and padding.
const SIZE_TOLERANCE_PERCENT: u64 = 10;
/// Differences up to this size in bytes are not reported, whatever [`SIZE_TOLERANCE_PERCENT`]
/// gives.
const SIZE_TOLERANCE_BYTES: u64 = 1 << 20;

/// Checks the size of a shard's artefact against the target's limits and the cost table.
///
/// Fails if the size exceeds a limit that the planner must keep. Returns a message if it differs
/// from the cost table by more than the tolerance.
fn promised_size(
    limits: &[Limit],
    index: usize,
    CheckedShard { name: shard, planned, cost, .. }: &CheckedShard,
    found: u64,
) -> Result<Option<String>, BuildError> {
    let loaded = found.saturating_add(cost.state_bytes);
    for (name, value) in [(limit_names::ARTEFACT_BYTES, found), (limit_names::CONTEXT_BYTES, loaded)] {
        let bounds = limits.iter().filter(|limit| limit.name == name);
        if let Some(max) = bounds.map(|limit| limit.under(&planned.flags)).min().filter(|max| value > *max) {
            let feedback = Feedback::over_limit(index as u32, name, value, Some(max));
            return Err(BuildError::Refused(Box::new(feedback)));
        }
    }
    let promised = cost.artefact_bytes;
    let tolerance = SIZE_TOLERANCE_BYTES.max(promised / 100 * SIZE_TOLERANCE_PERCENT);
    if found.abs_diff(promised) <= tolerance {
        return Ok(None);
    }
    let rests_on = cost.artefact_provenance.map_or("modelled", Provenance::name);
    Ok(Some(format!(
        "shard {shard}: its artefact has {found} bytes, but {promised} were planned ({rests_on}). The \
         difference exceeds {SIZE_TOLERANCE_PERCENT} %, so limits on bytes may be exceeded"
    )))
}

/// Returns the graph's entry point for a plan's entry. Ring buffers contain the window plus the
/// rows of the largest entry point of the whole plan, in whichever shard it is.
pub(crate) fn point_of(plan: &CheckedPlan, entry: &EntryName) -> EntryPoint {
    EntryPoint::of(*entry, plan.largest_rows())
}

/// Returns the ports whose encoding the plan fixes.
fn ports(entry: &EntryGraph, shard: &Shard) -> Vec<(PortSide, Role, Encoding)> {
    let mut found = Vec::new();
    let sides =
        [(PortSide::Input, &entry.inputs, &shard.inputs), (PortSide::Output, &entry.outputs, &shard.outputs)];
    for (side, ports, boundaries) in sides {
        for (_, role) in ports.iter().filter(|(_, role)| !matches!(role, Role::State { .. })) {
            let boundary = boundaries.iter().find(|boundary| boundary.name == role.name());
            if let Some(encoding) = boundary.and_then(|boundary| boundary.encoding) {
                found.push((side, role.clone(), encoding));
            }
        }
    }
    found
}

/// The step at which a shard failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The compiler refused it.
    Compile,
    /// It was compiled but could not be loaded.
    Load,
    /// It was loaded but a run failed.
    Run,
}

/// Returns the feedback for the planner about the failure of shard number `index`. Returns `None`
/// for cancelled calls and for failures that no other plan avoids.
pub fn feedback_of(index: usize, name: &str, error: &ShimError, stage: Stage) -> Option<Feedback> {
    let plannable = match stage {
        Stage::Compile => &[
            ErrorClass::UnsupportedOp,
            ErrorClass::Unmappable,
            ErrorClass::ResourceLimit,
            ErrorClass::Deadline,
        ][..],
        // A library that crashes on one shard may run another.
        Stage::Load | Stage::Run => &[
            ErrorClass::UnsupportedOp,
            ErrorClass::Unmappable,
            ErrorClass::ResourceLimit,
            ErrorClass::Deadline,
            ErrorClass::DeviceLost,
        ],
    };
    let class = error.class().filter(|class| plannable.contains(class) && !error.is_cancelled())?;
    let mut details: Vec<Detail> =
        error.details().iter().map(|(key, value)| Detail::new(key, value)).collect();
    match stage {
        Stage::Compile => {}
        Stage::Load => details.push(Detail::new("stage", "load")),
        Stage::Run => details.push(Detail::new("stage", "run")),
    }
    let message = format!("shard {name}: {error}");
    Some(Feedback::refused(index as u32, class, message, details))
}

/// Converts failures that another plan may avoid into feedback. Other failures end the build.
fn refusal(index: usize, name: &str, error: ShimError, stage: Stage) -> BuildError {
    if error.is_cancelled() {
        return cancelled().into();
    }
    match feedback_of(index, name, &error, stage) {
        Some(feedback) => BuildError::Refused(Box::new(feedback)),
        None => BuildError::Other(error.into()),
    }
}

fn unsupported<E: std::fmt::Display>(index: usize, name: &str, error: &LegaliseError<E>) -> BuildError {
    let mut details = Vec::new();
    if let LegaliseError::Refused { node, op, layer, reason, .. } = error {
        details.extend([Detail::new("node", node), Detail::new("op", op), Detail::new("reason", reason)]);
        details.extend(layer.map(|layer| Detail::new("layer", layer)));
    }
    let message = format!("shard {name}: {error}");
    BuildError::Refused(Box::new(Feedback::refused(
        index as u32,
        ErrorClass::UnsupportedOp,
        message,
        details,
    )))
}
