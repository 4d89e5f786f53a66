//! Comparing a chain with recorded outputs.

mod goldens;
mod report;

use std::path::Path;

use shardwright_build::models::Checkpoint;
use shardwright_build::reference::{Arrangement, ReferenceError, ReferenceModel};
use shardwright_runtime::text::{Message, RenderOptions, TemplateValue, messages_from_json};
use shardwright_runtime::{Session, StepView};

pub use report::{Comparison, VerifyReport, tolerance};

use self::goldens::{ChatGolden, Evaluation, Floats, Golden, TokenizerGolden};
use self::report::Tally;
use crate::{Error, ErrorKind, Model, OpenOptions, Result};

/// Compares what `checkpoint` gives, opened with `options`, with the recorded outputs in `goldens`: hidden states of every layer,
/// logits, greedy tokens, tokenizer, chat template, sentence vectors, and the evaluation rows.
///
/// Where no hidden states were recorded, those of the plain reference evaluator on the same checkpoint stand in for them. A
/// difference is not an error: it is in the report, with the first layer that differs.
pub fn verify(checkpoint: &Path, goldens: &Path, options: &OpenOptions) -> Result<VerifyReport> {
    let model = options.clone().taps(true).open(checkpoint)?;
    Verification::new(&model, checkpoint)?.run(goldens)
}

/// What [`self_test`] found.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct SelfTestReport {
    /// The verification of the checkpoint as it is.
    pub intact: VerifyReport,
    /// The layer one of whose norm scales was changed.
    pub broken_layer: u32,
    /// The verification of the broken model.
    pub broken: VerifyReport,
    /// Whether the intact model passes, the broken one fails, and the layer is named.
    pub passed: bool,
}

/// Verifies, then breaks one norm scale in one layer and verifies again: the second must fail and name that layer.
pub fn self_test(checkpoint: &Path, goldens: &Path, options: &OpenOptions) -> Result<SelfTestReport> {
    let intact = verify(checkpoint, goldens, options)?;
    let model = options.clone().taps(true).break_middle_layer().open(checkpoint)?;
    let broken_layer = model.broken_layer().ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, "the model has no layer with a norm scale that could be broken")
    })?;
    let broken = Verification::new(&model, checkpoint)?.run(goldens)?;
    let passed = intact.passed && !broken.passed && broken.first_divergent_layer == Some(broken_layer);
    Ok(SelfTestReport { intact, broken_layer, broken, passed })
}

struct Verification<'m> {
    model: &'m Model,
    session: Session,
    tally: Tally,
    first_divergent_layer: Option<u32>,
    skipped: Vec<String>,
    /// The checkpoint as it lies there, whatever the model was made of.
    intact: Checkpoint,
}

impl<'m> Verification<'m> {
    fn new(model: &'m Model, checkpoint: &Path) -> Result<Self> {
        let session = model.chain().session()?;
        Ok(Verification {
            model,
            session,
            tally: Tally::default(),
            first_divergent_layer: None,
            skipped: Vec::new(),
            intact: Checkpoint::open(checkpoint)?,
        })
    }

    fn run(mut self, directory: &Path) -> Result<VerifyReport> {
        for (index, golden) in goldens::read_goldens(directory)?.iter().enumerate() {
            let prompt = format!("p{index}");
            if self.has_soft_tokens(golden) {
                self.skipped
                    .push(format!("{prompt}: its prompt holds pictures or sound, which need the towers"));
            } else if self.model.chain().is_generative() {
                match &golden.hidden {
                    Some(_) => self.generative(&prompt, golden)?,
                    None => self.generative(&prompt, &self.with_reference_hidden(golden)?)?,
                }
            } else {
                self.encoder(&prompt, golden)?;
            }
        }
        if let Some(evaluation) = goldens::read_evaluation(directory)? {
            self.evaluation(&evaluation)?;
        }
        self.texts(directory)?;

        let comparisons = self.tally.finish();
        let plan = self.model.plan();
        Ok(VerifyReport {
            model: plan.model.clone(),
            soc: plan.soc.clone(),
            emulated_on: plan.emulated_on.clone(),
            shards: plan.shards.len(),
            decoder_shards: plan.shards.iter().filter(|shard| shard.layers.is_some()).count(),
            passed: !comparisons.is_empty() && comparisons.iter().all(|comparison| comparison.passed),
            comparisons,
            first_divergent_layer: self.first_divergent_layer,
            skipped: self.skipped,
            notices: plan.notices.iter().map(|notice| notice.text.clone()).collect(),
        })
    }

    /// Whether the prompt holds placeholders, whose rows only the towers could provide.
    fn has_soft_tokens(&self, golden: &Golden) -> bool {
        let assets = &self.intact.graph().assets;
        golden.ids.iter().any(|&id| assets.iter().any(|asset| asset.row_of(id) != id))
    }

    /// The same with the hidden states of the reference evaluator.
    fn with_reference_hidden(&self, golden: &Golden) -> Result<Golden> {
        let fault = |error: ReferenceError| {
            let help = error.help().map(|help| help.to_string());
            Error::from_room(ErrorKind::Internal, error, help)
        };
        let arrangement = Arrangement::whole(golden.ids.len() as u64);
        let reference = ReferenceModel::new(self.intact.graph(), arrangement).map_err(fault)?;
        let layers = reference.trace(&golden.ids).map_err(fault)?.hidden;
        let width = self.intact.graph().hidden as usize;
        Ok(Golden {
            hidden: Some(Floats {
                shape: vec![layers.len(), golden.ids.len(), width],
                values: layers.iter().flat_map(|layer| layer.floats().into_owned()).collect(),
            }),
            ..golden.clone()
        })
    }

    fn generative(&mut self, prompt: &str, golden: &Golden) -> Result<()> {
        let mut comparer = StepComparer {
            tally: &mut self.tally,
            divergent: &mut self.first_divergent_layer,
            prompt,
            golden,
        };
        self.session.clear();
        self.session.score(&golden.ids, &mut |view| comparer.step(view))?;

        // A new session: prefill entries this time, as generation uses them.
        self.session.clear();
        self.session.append(&golden.ids)?;
        for (step, &wanted) in golden.greedy.iter().enumerate() {
            let place = format!("{prompt} token {step}");
            let logits = self.session.logits().unwrap_or_default();
            let got = argmax(logits);
            self.tally.equal("greedy", &place, got == Some(wanted));
            if let Some(recorded) = &golden.step_top_logits
                && let Some(best) = got
            {
                self.tally.arrays(
                    "step logits",
                    tolerance::LOGITS,
                    &place,
                    &[logits[best as usize]],
                    &recorded.part(step)[..1],
                );
            }
            if step + 1 == golden.greedy.len() {
                if let Some(last) = &golden.last_logits {
                    self.tally.arrays("logits", tolerance::LOGITS, &place, logits, &last.values);
                }
            } else {
                // The recorded token goes on, so that one difference does not become many.
                self.session.append(&[wanted])?;
            }
        }
        Ok(())
    }

    fn encoder(&mut self, prompt: &str, golden: &Golden) -> Result<()> {
        let mut comparer = StepComparer {
            tally: &mut self.tally,
            divergent: &mut self.first_divergent_layer,
            prompt,
            golden,
        };
        let embedding = self.session.encode_with(&golden.ids, &mut |view| comparer.step(view))?;
        if let Some(recorded) = &golden.embedding {
            self.tally.arrays("embedding", tolerance::EMBEDDING, prompt, &embedding, &recorded.values);
        }
        Ok(())
    }

    /// Mean nats per predicted token over all rows; position 0 is given, not predicted.
    fn evaluation(&mut self, evaluation: &Evaluation) -> Result<()> {
        let (mut nats, mut predicted) = (0.0_f64, 0_u64);
        for row in &evaluation.rows {
            let Some(last) = row.len().checked_sub(1).filter(|&last| last > 0) else { continue };
            self.session.clear();
            self.session.score(&row[..last], &mut |view| {
                for offset in 0..view.rows() {
                    let next = row[view.position() + offset + 1];
                    if let Some(logits) = view.logits(offset) {
                        nats += negative_log_likelihood(logits, next);
                        predicted += 1;
                    }
                }
            })?;
        }
        let nll = nats / predicted.max(1) as f64;
        let place = format!("{nll:.6} nats per token, recorded {:.6}", evaluation.nll);
        self.tally.number("nll", tolerance::NLL, &place, (nll - evaluation.nll).abs(), predicted);
        Ok(())
    }

    fn texts(&mut self, directory: &Path) -> Result<()> {
        let tokenizer = self.model.tokenizer()?;
        let list: Vec<TokenizerGolden> = goldens::read_list(directory, "tokenizer_goldens.json")?;
        for golden in &list {
            let ids = tokenizer.encode(&golden.text, true)?;
            let plain = tokenizer.encode(&golden.text, false)?;
            let decoded = tokenizer.decode(&golden.ids, true)?;
            let equal = ids == golden.ids && plain == golden.ids_no_special && decoded == golden.decoded;
            self.tally.equal("tokenizer", &format!("{:?}", golden.text), equal);
        }
        let list: Vec<ChatGolden> = goldens::read_list(directory, "chat_goldens.json")?;
        for (index, golden) in list.iter().enumerate() {
            let messages: Vec<Message> =
                messages_from_json(&golden.messages.to_string(), "chat_goldens.json")?;
            let mut options = RenderOptions::default();
            for (name, value) in &golden.kw {
                if name == "add_generation_prompt" {
                    options.add_generation_prompt = value.as_bool().unwrap_or(false);
                } else {
                    options = options.with_variable(
                        name,
                        TemplateValue::from_json(&value.to_string(), "chat_goldens.json")?,
                    );
                }
            }
            let rendered = self.model.render(&messages, &options)?;
            let ids = tokenizer.encode(&rendered, false)?;
            self.tally.equal(
                "chat",
                &format!("conversation {index}"),
                rendered == golden.rendered && ids == golden.ids,
            );
        }
        Ok(())
    }
}

/// Compares what a step leaves behind with the recorded arrays, row by row.
struct StepComparer<'a> {
    tally: &'a mut Tally,
    divergent: &'a mut Option<u32>,
    prompt: &'a str,
    golden: &'a Golden,
}

impl StepComparer<'_> {
    fn step(&mut self, view: &mut StepView<'_>) {
        let (position, rows) = (view.position(), view.rows());
        if let Some(hidden) = &self.golden.hidden {
            for index in 0..hidden.shape[0] {
                let name = if index == 0 { "embed".to_owned() } else { format!("layer.{}", index - 1) };
                let width = hidden.shape[2];
                let wanted = &hidden.part(index)[position * width..(position + rows) * width];
                let place = format!("{} {name}", self.prompt);
                let worst = self.named(view, "hidden", &name, &place, wanted);
                if index > 0 && worst > tolerance::HIDDEN {
                    let layer = index as u32 - 1;
                    *self.divergent = Some(self.divergent.map_or(layer, |first| first.min(layer)));
                }
            }
        }
        if let Some(norm) = &self.golden.final_norm {
            let width = norm.shape[1];
            let wanted = &norm.values[position * width..(position + rows) * width];
            let place = format!("{} final-norm", self.prompt);
            self.named(view, "final norm", "final-norm", &place, wanted);
        }
        if let Some(pooled) = &self.golden.pooled {
            let place = format!("{} pooled", self.prompt);
            self.named(view, "pooled", "pooled", &place, &pooled.values);
        }
        if let Some(per_layer) = &self.golden.per_layer {
            self.per_layer(view, per_layer);
        }
        if let Some(logits) = &self.golden.logits {
            for row in 0..rows {
                let Some(index) = (position + row).checked_sub(self.golden.logits_start) else { continue };
                let place = format!("{} position {}", self.prompt, position + row);
                let got = view.logits(row).unwrap_or_default();
                self.tally.arrays("logits", tolerance::LOGITS, &place, got, logits.part(index));
            }
        }
    }

    /// Compares the valid rows of a named tensor; one that is not there differs without bound.
    fn named(&mut self, view: &mut StepView<'_>, what: &str, name: &str, place: &str, wanted: &[f32]) -> f64 {
        let got = view.tensor(name).map(|tensor| tensor.values).unwrap_or_default();
        self.tally.arrays(what, tolerance::HIDDEN, place, got.get(..wanted.len()).unwrap_or_default(), wanted)
    }

    /// Recorded as [T, layers, P], computed as [layers, rows, P].
    fn per_layer(&mut self, view: &mut StepView<'_>, recorded: &goldens::Floats) {
        let Some(tensor) = view.tensor("per-layer-input") else {
            self.tally.number("per-layer inputs", tolerance::HIDDEN, self.prompt, f64::INFINITY, 0);
            return;
        };
        let (layers, width) = (recorded.shape[1], recorded.shape[2]);
        let static_rows = tensor.shape.get(1).map_or(0, |&rows| rows as usize);
        for row in 0..view.rows() {
            let wanted = recorded.part(view.position() + row);
            for layer in 0..layers {
                let start = (layer * static_rows + row) * width;
                let got = tensor.values.get(start..start + width).unwrap_or_default();
                let place = format!("{} layer {layer} position {}", self.prompt, view.position() + row);
                let wanted = &wanted[layer * width..(layer + 1) * width];
                self.tally.arrays("per-layer inputs", tolerance::HIDDEN, &place, got, wanted);
            }
        }
    }
}

/// The largest value's index; the lowest one of equals.
fn argmax(logits: &[f32]) -> Option<u32> {
    let mut best: Option<(usize, f32)> = None;
    for (index, &value) in logits.iter().enumerate() {
        if best.is_none_or(|(_, held)| value > held) {
            best = Some((index, value));
        }
    }
    best.map(|(index, _)| index as u32)
}

/// −log softmax(logits)[token], in f64.
fn negative_log_likelihood(logits: &[f32], token: u32) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&value| f64::from(value - largest).exp()).sum();
    match logits.get(token as usize) {
        Some(&value) => sum.ln() - f64::from(value - largest),
        None => f64::INFINITY,
    }
}
