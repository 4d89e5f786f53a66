//! A model that is planned and compiled at the same time as others.

use shardwright_build::{
    AcceptedSteps, Download, Executor, LossGround, Losses, Making, MeasuredLoss, ModelFormats, ModelName,
    ModelSource, PlanOptions, PlanSource, StatedDraft, TableFormats,
};
use shardwright_graph::{Asset, Graph, Ranges};
use shardwright_planning::check::{CheckedPlan, CheckedShard};
use shardwright_vocabulary::{FormatTuple, Ignored, Notice, Pass, Result, TargetKind, Watch};

use super::gate::Seat;

/// Bytes of memory for compiling a shard for a chip, per byte of its weights. The maximum measured
/// with Qualcomm's compiler (docs/benchmarks/qualcomm.md) is 11.6. MediaTek's was not measured.
const OF_A_CHIP: u64 = 12;

/// Bytes of memory for compiling a shard for the CPU, per byte of its weights: the work order, the
/// artefact in memory, and its file.
const OF_THE_CPU: u64 = 3;

/// Bytes of memory that a compiler's process needs for itself.
const PROCESS: u64 = 256 << 20;

/// A model that waits for its turn if it has a seat. Without a seat it is compiled immediately.
pub(super) struct ThrottledSource<'g> {
    source: Box<dyn ModelSource + 'g>,
    seat: Option<&'g Seat<'g>>,
    on_cpu: bool,
}

impl<'g> ThrottledSource<'g> {
    /// Creates the model after waiting for its turn to be planned.
    ///
    /// # Errors
    ///
    /// Fails if it is cancelled.
    pub fn new(
        source: Box<dyn ModelSource + 'g>,
        options: &PlanOptions,
        seat: Option<&'g Seat<'g>>,
        watch: &mut dyn Watch,
    ) -> Result<Self> {
        let pass = source.graph().pass;
        seat.map_or(Ok(()), |seat| seat.plan(pass, watch))?;
        Ok(ThrottledSource { source, seat, on_cpu: options.recorded.on == Some(Executor::Cpu) })
    }

    /// Returns the maximum bytes that carrying the plan out is expected to need: the compiler of
    /// its largest shard, and weights that were made in memory.
    fn held(&self, plan: &CheckedPlan) -> u64 {
        let compiling = |shard: &CheckedShard| {
            let factor =
                if self.on_cpu || shard.target.kind == TargetKind::Cpu { OF_THE_CPU } else { OF_A_CHIP };
            shard.cost.weight_bytes.saturating_mul(factor).saturating_add(PROCESS)
        };
        let largest = plan.shards().iter().map(compiling).max().unwrap_or(0);
        let made = plan.shards().iter().map(|shard| shard.cost.weight_bytes).fold(0, u64::saturating_add);
        match self.source.making() {
            Making::InMemory => largest.saturating_add(made),
            Making::InFiles => largest,
        }
    }
}

impl PlanSource for ThrottledSource<'_> {
    fn name(&self) -> ModelName {
        self.source.name()
    }

    fn graph(&self) -> &Graph {
        self.source.graph()
    }

    fn download(&self) -> Option<Download> {
        self.source.download()
    }

    fn making(&self) -> Making {
        self.source.making()
    }

    fn remakes_tables(&self) -> bool {
        self.source.remakes_tables()
    }

    fn accepted(&self, conversations: &str, watch: &dyn Watch) -> Result<Option<AcceptedSteps>> {
        self.source.accepted(conversations, watch)
    }

    fn draft_models(&self, soc: &str, context: u32) -> Result<(Vec<StatedDraft>, Vec<Notice>)> {
        self.source.draft_models(soc, context)
    }

    fn losses(
        &mut self,
        tuples: &[FormatTuple],
        ground: LossGround,
        watch: &mut dyn Watch,
    ) -> Result<Losses> {
        self.source.losses(tuples, ground, watch)
    }

    fn measured(
        &mut self,
        counted: &ModelFormats,
        plan: &CheckedPlan,
        watch: &mut dyn Watch,
    ) -> Result<Option<MeasuredLoss>> {
        self.source.measured(counted, plan, watch)
    }

    fn ignored(&self) -> &[Ignored] {
        self.source.ignored()
    }

    fn take_notices(&mut self) -> Vec<Notice> {
        self.source.take_notices()
    }
}

impl ModelSource for ThrottledSource<'_> {
    fn made(
        &mut self,
        counted: &ModelFormats,
        plan: &CheckedPlan,
        watch: &mut dyn Watch,
    ) -> Result<ModelFormats> {
        let made = self.source.made(counted, plan, watch)?;
        if let Some(seat) = self.seat {
            let pass: Pass = self.graph().pass;
            seat.compile(pass, self.held(plan), watch)?;
        }
        Ok(made)
    }

    fn tables(&mut self, formats: TableFormats, watch: &mut dyn Watch) -> Result<Vec<Asset>> {
        self.source.tables(formats, watch)
    }

    fn ranges(&self) -> Option<&Ranges> {
        self.source.ranges()
    }
}
