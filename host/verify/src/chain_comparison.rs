//! Compares the chain as a whole, running by itself, with recorded outputs.

use std::path::Path;

use shardwright::Model;
use shardwright::tools::ModelTools;
use shardwright_graph::Graph;
use shardwright_reference::{Arrangement, ReferenceModel, Sequence};
use shardwright_runtime::{Session, StepView};
use shardwright_text::{Message, RenderOptions, TemplateValue, messages_from_json};
use shardwright_vocabulary::Result;

use crate::effort::Effort;
use crate::goldens::{self, ChatGolden, Evaluation, Floats, Golden, Goldens, TokenizerGolden};
use crate::progress::{PartProgress, reference_fault};
use crate::recorded_rows;
use crate::report::{Comparison, Tally, TokenVerification, tolerance};
use crate::rows::largest_error;
use crate::thresholds::Thresholds;

/// The results of the comparison.
pub(crate) struct Found {
    pub(crate) comparisons: Vec<Comparison>,
    pub(crate) first_divergent_layer: Option<u32>,
    pub(crate) tokens: Option<TokenVerification>,
}

pub(crate) struct ChainComparison<'m> {
    model: &'m Model,
    /// The unchanged checkpoint's graph.
    graph: &'m Graph,
    effort: Effort,
    thresholds: Thresholds,
    /// Whether the chain keeps the values of the checkpoint.
    exact: bool,
    session: Session,
    tally: Tally,
    first_divergent_layer: Option<u32>,
    likelihood: Likelihood,
    greedy: Greedy,
}

/// Nats of predicted tokens, of the chain and of its reference.
#[derive(Default)]
struct Likelihood {
    text: &'static str,
    source: &'static str,
    predicted: u64,
    nats: f64,
    wanted_nats: f64,
}

/// Counts of greedily chosen tokens.
#[derive(Default)]
struct Greedy {
    tokens: u64,
    agreed: u64,
    first_difference: Option<String>,
}

impl<'m> ChainComparison<'m> {
    pub(crate) fn new(
        model: &'m Model,
        graph: &'m Graph,
        effort: Effort,
        thresholds: Thresholds,
        exact: bool,
    ) -> Result<Self> {
        Ok(ChainComparison {
            model,
            graph,
            effort,
            thresholds,
            exact,
            session: model.chain().session()?,
            tally: Tally::default(),
            first_divergent_layer: None,
            likelihood: Likelihood::default(),
            greedy: Greedy::default(),
        })
    }

    pub(crate) fn run(
        &mut self,
        prompts: &[(String, &Golden)],
        goldens: &Goldens,
        progress: &mut PartProgress<'_>,
    ) -> Result<()> {
        let evaluation = goldens.evaluation.as_ref();
        let most = self.effort.evaluation.unwrap_or(usize::MAX);
        let evaluated = evaluation.map_or(0, |evaluation| evaluation.rows.len().min(most));
        let all = (prompts.len() + evaluated).max(1) as f64;
        for (index, (name, golden)) in prompts.iter().enumerate() {
            progress.step(index as f64 / all, || format!("{name} as a whole"))?;
            if !self.model.chain().is_generative() {
                self.encoder(name, golden)?;
                continue;
            }
            // The plain evaluator is slow, and its results do not apply to a model in other
            // formats.
            match golden.hidden.is_none() && self.exact {
                true => self.generative(name, &self.with_reference_hidden(golden)?)?,
                false => self.generative(name, golden)?,
            }
            // Placeholders are never predicted.
            if evaluation.is_none() && golden.soft.is_empty() {
                self.likelihood.text = match goldens.directory {
                    Some(_) => "recorded prompts",
                    None => "built-in prompts",
                };
                self.prompt_likelihood(&golden.ids)?;
            }
        }
        if let Some(evaluation) = evaluation {
            self.evaluation(evaluation, |row| {
                let done = (prompts.len() + row) as f64 / all;
                progress.step(done, || format!("evaluation row {row}"))
            })?;
        }
        goldens.directory.as_ref().map_or(Ok(()), |directory| self.texts(directory))
    }

    /// Returns the results. The likelihood may lose `most` nats of KL divergence.
    pub(crate) fn finish(self, most: Option<f64>) -> Found {
        let ChainComparison { likelihood, greedy, thresholds, exact, .. } = self;
        let predicted = likelihood.predicted.max(1) as f64;
        let (nll, wanted) = (likelihood.nats / predicted, likelihood.wanted_nats / predicted);
        let loss = if wanted == 0.0 { nll } else { nll / wanted - 1.0 };
        let nll_bound = most.filter(|_| wanted > 0.0).map_or(0.0, |most| most / wanted).max(thresholds.nll);
        let share = if greedy.tokens == 0 { 1.0 } else { greedy.agreed as f64 / greedy.tokens as f64 };
        let tokens = (likelihood.predicted > 0 || greedy.tokens > 0).then(|| TokenVerification {
            text: likelihood.text.to_owned(),
            source: likelihood.source.to_owned(),
            predicted: likelihood.predicted,
            nll,
            wanted_nll: wanted,
            loss,
            greedy_tokens: greedy.tokens,
            greedy_agreed: greedy.agreed,
            first_difference: greedy.first_difference,
            nll_bound,
            nll_passed: loss.abs() <= nll_bound,
            greedy_passed: share >= thresholds.greedy,
            greedy_judged: thresholds.greedy > 0.0,
        });
        Found {
            comparisons: self.tally.finish(exact),
            first_divergent_layer: self.first_divergent_layer,
            tokens,
        }
    }

    /// Adds the hidden states of the reference evaluator to a prompt.
    fn with_reference_hidden(&self, golden: &Golden) -> Result<Golden> {
        let arrangement = Arrangement::whole(golden.ids.len() as u64);
        let reference = ReferenceModel::new(self.graph, arrangement).map_err(reference_fault)?;
        let mut sequence = Sequence { soft: golden.soft.clone(), ..reference.start() };
        let trace = match self.graph.is_generative() {
            true => reference.decode(&mut sequence, &golden.ids, true),
            false => reference.encode(&golden.ids, true),
        };
        let layers = trace.map_err(reference_fault)?.hidden;
        let width = self.graph.hidden as usize;
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
            tapped: !self.model.compiled().is_empty(),
        };
        self.session.clear();
        let parts = recorded_rows::prompt(golden)?;
        self.session.score_parts(&parts, &mut |view| comparer.step(view))?;

        // A new session uses prefill entries this time, like generation.
        self.session.clear();
        self.session.append_parts(&parts)?;
        let wanted = self.greedy_tokens(golden)?;
        let mut agrees = true;
        for (step, &wanted_token) in wanted.iter().enumerate() {
            let place = format!("{prompt} token {step}");
            let logits = self.session.logits().unwrap_or_default();
            let got = argmax(logits);
            self.tally.equal("greedy", &place, got == Some(wanted_token));
            // Up to its first difference, the chain has chosen all tokens itself.
            agrees &= got == Some(wanted_token);
            self.greedy.tokens += 1;
            self.greedy.agreed += u64::from(agrees);
            if !agrees && self.greedy.first_difference.is_none() {
                self.greedy.first_difference = Some(place.clone());
            }
            if let Some(recorded) = &golden.step_top_logits
                && step < recorded.shape[0]
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
            if step + 1 == golden.greedy.len()
                && let Some(last) = &golden.last_logits
            {
                self.tally.arrays("logits", tolerance::LOGITS, &place, logits, &last.values);
            }
            if step + 1 < wanted.len() {
                // The session continues with the wanted token, so that one difference does not
                // become many.
                self.session.append(&[wanted_token])?;
            }
        }
        Ok(())
    }

    /// Returns the tokens to be chosen: the recorded ones, or else the reference's.
    fn greedy_tokens(&self, golden: &Golden) -> Result<Vec<u32>> {
        let room = self.session.remaining();
        if !golden.greedy.is_empty() {
            // The token after the last one that fits is known too.
            let most = self.effort.greedy.min(room + 1);
            return Ok(golden.greedy.iter().copied().take(most).collect());
        }
        let count = self.effort.greedy.min(room);
        let arrangement = Arrangement {
            rows: golden.ids.len() as u64,
            ..Arrangement::whole((golden.ids.len() + count) as u64)
        };
        let reference = ReferenceModel::new(self.graph, arrangement).map_err(reference_fault)?;
        let mut sequence = Sequence { soft: golden.soft.clone(), ..reference.start() };
        reference.greedy_in(&mut sequence, &golden.ids, count).map_err(reference_fault)
    }

    fn encoder(&mut self, prompt: &str, golden: &Golden) -> Result<()> {
        let mut comparer = StepComparer {
            tally: &mut self.tally,
            divergent: &mut self.first_divergent_layer,
            prompt,
            golden,
            tapped: !self.model.compiled().is_empty(),
        };
        let embedding = self.session.encode_with(&golden.ids, &mut |view| comparer.step(view))?;
        if let Some(recorded) = &golden.embedding {
            self.tally.arrays("embedding", tolerance::EMBEDDING, prompt, &embedding, &recorded.values);
        }
        Ok(())
    }

    /// Adds the nats of a prompt's own tokens, with the reference's.
    fn prompt_likelihood(&mut self, ids: &[u32]) -> Result<()> {
        let ids = &ids[..ids.len().min(self.effort.rows)];
        if ids.len() < 2 {
            return Ok(());
        }
        let reference =
            ReferenceModel::new(self.graph, Arrangement::whole(ids.len() as u64)).map_err(reference_fault)?;
        let wanted: f64 = reference.negative_log_likelihoods(ids).map_err(reference_fault)?.into_iter().sum();
        let (nats, predicted) = self.nats(ids)?;
        self.likelihood.source = "reference";
        self.likelihood.nats += nats;
        self.likelihood.wanted_nats += wanted;
        self.likelihood.predicted += predicted;
        Ok(())
    }

    /// Adds the nats of all rows. Position 0 is an input and is not predicted.
    fn evaluation(
        &mut self,
        evaluation: &Evaluation,
        mut before: impl FnMut(usize) -> Result<()>,
    ) -> Result<()> {
        // Only the likelihood of all rows together is recorded.
        if let Some(most) = self.effort.evaluation.filter(|&most| most < evaluation.rows.len()) {
            for (index, row) in evaluation.rows.iter().take(most).enumerate() {
                before(index)?;
                self.prompt_likelihood(row)?;
            }
            self.likelihood.text = "the first evaluation rows";
            return Ok(());
        }
        for (index, row) in evaluation.rows.iter().enumerate() {
            before(index)?;
            let (nats, predicted) = self.nats(row)?;
            self.likelihood.nats += nats;
            self.likelihood.predicted += predicted;
        }
        self.likelihood.text = "evaluation rows";
        self.likelihood.source = "recorded";
        self.likelihood.wanted_nats = evaluation.nll * self.likelihood.predicted as f64;
        Ok(())
    }

    /// Returns the nats of all `ids` except the first, and the number of these.
    fn nats(&mut self, ids: &[u32]) -> Result<(f64, u64)> {
        let (mut nats, mut predicted) = (0.0_f64, 0_u64);
        let Some(last) = ids.len().checked_sub(1).filter(|&last| last > 0) else { return Ok((0.0, 0)) };
        self.session.clear();
        self.session.score(&ids[..last], &mut |view| {
            for offset in 0..view.rows() {
                let next = ids[view.position() + offset + 1];
                if let Some(logits) = view.logits(offset) {
                    nats += negative_log_likelihood(logits, next);
                    predicted += 1;
                }
            }
        })?;
        Ok((nats, predicted))
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

/// Compares the tensors of a step with the recorded arrays, row by row.
struct StepComparer<'a> {
    tally: &'a mut Tally,
    divergent: &'a mut Option<u32>,
    prompt: &'a str,
    golden: &'a Golden,
    /// Whether the chain shows its layers. Otherwise only the available tensors are compared.
    tapped: bool,
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
                let worst = self.named(view, "hidden", &name, &place, wanted, width);
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
            self.named(view, "final norm", "final-norm", &place, wanted, width);
        }
        if let Some(pooled) = &self.golden.pooled {
            let place = format!("{} pooled", self.prompt);
            self.named(view, "pooled", "pooled", &place, &pooled.values, pooled.values.len());
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

    /// Compares the valid rows of a named tensor, each relative to its length, and returns the
    /// largest error. It is infinite if a chain that shows its layers does not have the tensor.
    fn named(
        &mut self,
        view: &mut StepView<'_>,
        what: &str,
        name: &str,
        place: &str,
        wanted: &[f32],
        width: usize,
    ) -> f64 {
        let shown = view.tensor(name);
        if shown.is_none() && !self.tapped {
            return 0.0;
        }
        let got = shown.map(|tensor| tensor.values).unwrap_or_default();
        let worst = largest_error(got.get(..wanted.len()).unwrap_or_default(), wanted, width);
        self.tally.number(what, tolerance::HIDDEN, place, worst, wanted.len() as u64);
        worst
    }

    /// Compares per-layer inputs, which are recorded as [T, layers, P] and computed as [layers,
    /// rows, P].
    fn per_layer(&mut self, view: &mut StepView<'_>, recorded: &goldens::Floats) {
        let Some(tensor) = view.tensor("per-layer-input") else {
            if !self.tapped {
                return;
            }
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
                let worst = largest_error(got, wanted, width);
                self.tally.number("per-layer inputs", tolerance::HIDDEN, &place, worst, width as u64);
            }
        }
    }
}

/// Returns the index of the largest value, the lowest one of equals.
fn argmax(logits: &[f32]) -> Option<u32> {
    let mut best: Option<(usize, f32)> = None;
    for (index, &value) in logits.iter().enumerate() {
        if best.is_none_or(|(_, existing)| value > existing) {
            best = Some((index, value));
        }
    }
    best.map(|(index, _)| index as u32)
}

/// Returns −log softmax(logits)[token], in f64.
fn negative_log_likelihood(logits: &[f32], token: u32) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&value| f64::from(value - largest).exp()).sum();
    match logits.get(token as usize) {
        Some(&value) => sum.ln() - f64::from(value - largest),
        None => f64::INFINITY,
    }
}
