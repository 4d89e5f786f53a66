//! A checkpoint without its weights, as a source of models that can only be planned.

use shardwright_build::{
    AcceptedSteps, Download, DownloadBasis, LossGround, Losses, Making, MeasuredLoss, ModelFormats,
    ModelName, PlanOptions, PlanSource, StatedDraft,
};
use shardwright_graph::Graph;
use shardwright_models::{Outline, OutlineBasis};
use shardwright_planning::check::CheckedPlan;
use shardwright_report::stored_bytes;
use shardwright_vocabulary::{FormatTuple, Ignored, Notice, Result, Watch};

use super::checkpoint_source::{making, towers};
use super::losses::expected_losses;

/// A checkpoint's outline to plan for. It cannot be compiled, because it is not a
/// [`ModelSource`](shardwright_build::ModelSource).
pub struct OutlineSource<'a> {
    outline: &'a Outline,
    graph: Graph,
    options: &'a PlanOptions,
    notices: Vec<Notice>,
}

impl<'a> OutlineSource<'a> {
    /// Creates the source of an outline, with its graph altered if `options` request it.
    pub fn new(outline: &'a Outline, options: &'a PlanOptions) -> Self {
        let mut graph = outline.graph().clone();
        if let Some(alter) = options.alter {
            alter(&mut graph);
        }
        let notices = vec![Notice::note(notice(outline))];
        OutlineSource { outline, graph, options, notices }
    }
}

/// Reports the basis of the plan, and what cannot be known without weights.
fn notice(outline: &Outline) -> String {
    let lack = outline.lack().map_or_else(|| outline.name().to_owned(), ToString::to_string);
    let rests_on = match outline.basis() {
        OutlineBasis::Headers => "shapes and element types come from the headers",
        OutlineBasis::Index => {
            "names and the download's size come from the index, shapes and the element type from config.json"
        }
        OutlineBasis::Configuration => {
            "shapes and the element type come from config.json, and files may be larger than the model needs"
        }
    };
    format!(
        "the weights are missing ({lack}): {rests_on}; losses assume normally distributed weights, and \
         integer ranges are not calibrated"
    )
}

impl PlanSource for OutlineSource<'_> {
    fn name(&self) -> ModelName {
        ModelName {
            name: self.outline.name().to_owned(),
            family: self.outline.family().to_string(),
            towers: towers(|pass| self.outline.graph_of(pass)),
        }
    }

    fn graph(&self) -> &Graph {
        &self.graph
    }

    fn download(&self) -> Option<Download> {
        let rests_on = match self.outline.basis() {
            OutlineBasis::Headers => DownloadBasis::Headers,
            OutlineBasis::Index => DownloadBasis::Index,
            OutlineBasis::Configuration => DownloadBasis::Configuration,
        };
        let read = || stored_bytes(&self.graph);
        Some(Download { bytes: self.outline.download_bytes().unwrap_or_else(read), rests_on })
    }

    fn making(&self) -> Making {
        making(&self.graph, self.options)
    }

    fn remakes_tables(&self) -> bool {
        true
    }

    fn losses(
        &mut self,
        tuples: &[FormatTuple],
        _ground: LossGround,
        _watch: &mut dyn Watch,
    ) -> Result<Losses> {
        expected_losses(&self.graph, self.options, tuples)
    }

    fn accepted(&self, _: &str, _: &dyn Watch) -> Result<Option<AcceptedSteps>> {
        Ok(None)
    }

    fn draft_models(&self, _: &str, _: u32) -> Result<(Vec<StatedDraft>, Vec<Notice>)> {
        let what = "drafts cannot be used, because their measurements require the weights, which are missing";
        let notice = (!self.options.draft_models.is_empty()).then(|| Notice::note(what));
        Ok((Vec::new(), notice.into_iter().collect()))
    }

    fn measured(
        &mut self,
        _: &ModelFormats,
        _: &CheckedPlan,
        _: &mut dyn Watch,
    ) -> Result<Option<MeasuredLoss>> {
        Ok(None)
    }

    fn ignored(&self) -> &[Ignored] {
        self.outline.ignored()
    }

    fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }
}
