//! The changes of adapters, by the tensors of a checkpoint that they change.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use shardwright_graph::{Weight, WeightData};
use shardwright_vocabulary::{Error, Ignored, Result};

use super::merge::{Delta, Merged};
use super::tensors::Pair;
use super::values::Values;
use super::{Adapters, Opened};
use crate::tensor_names::{HEADS, Has, PREFIXES, USUAL_PREFIX, prefix_of};

/// A change of one tensor.
#[derive(Clone)]
struct Change {
    /// The file with the adapter's tensors.
    path: PathBuf,
    what: What,
}

#[derive(Clone)]
enum What {
    /// Adds a product, multiplied by a further factor.
    Added(Pair, f64),
    /// Replaces the tensor. The name is that of the adapter's tensor.
    Replaced(String, Values),
}

impl Change {
    /// Returns the name of the adapter's tensor.
    fn name(&self) -> &str {
        match &self.what {
            What::Added(pair, _) => &pair.name,
            What::Replaced(name, _) => name,
        }
    }

    fn at(&self, error: Error) -> Error {
        error.at(format_args!("tensor `{}`", self.name())).at(self.path.display())
    }
}

/// The changes of a checkpoint's tensors, in the order of the adapters.
#[derive(Default)]
pub(crate) struct Changes(BTreeMap<String, Vec<Change>>);

impl Changes {
    /// Finds the tensors of a checkpoint that the adapters change.
    ///
    /// # Errors
    ///
    /// If the checkpoint does not have a changed tensor, or if changes exclude each other.
    pub fn of(adapters: &Adapters, has: &Has<'_>) -> Result<Self> {
        let mut changes = Changes::default();
        for adapter in &adapters.0 {
            let path = adapter.weights();
            for (module, pair) in &adapter.tensors.pairs {
                let change =
                    Change { path: path.clone(), what: What::Added(pair.clone(), adapter.scale.get()) };
                let name = found(has, &format!("{module}.weight"), &change)?;
                changes.0.entry(name).or_default().push(change);
            }
            for (tensor, (name, values)) in &adapter.tensors.whole {
                let what = What::Replaced(name.clone(), values.clone());
                changes.replace(adapter, has, tensor, Change { path: path.clone(), what })?;
            }
        }
        Ok(changes)
    }

    /// Adds a change that replaces a tensor. Products of the same adapter are added to the new
    /// values.
    fn replace(&mut self, adapter: &Opened, has: &Has<'_>, tensor: &str, change: Change) -> Result<()> {
        let name = found(has, tensor, &change)?;
        if adapter.scale.get() != 1.0 {
            let what = format!(
                "replaces `{name}`, which has no scale, but the adapter's scale is {}",
                adapter.scale
            );
            return Err(change.at(Error::unsupported(what).with_help("merge this adapter with scale 1")));
        }
        let all = self.0.entry(name.clone()).or_default();
        if let Some(other) = all.iter().find(|other| other.path != change.path) {
            let what = format!("replaces `{name}`, which {} changes too", other.path.display());
            return Err(change.at(Error::unsupported(what).with_help("drop one of the two adapters")));
        }
        if all.iter().any(|other| matches!(other.what, What::Replaced(..))) {
            return Err(change.at(Error::invalid(format!("replaces `{name}` twice"))));
        }
        all.insert(0, change);
        Ok(())
    }

    /// Returns a weight with the changes of its tensor.
    ///
    /// # Errors
    ///
    /// If shapes differ, or if the weight consists of integers with scales.
    pub fn applied(&self, tensor: &str, weight: Weight) -> Result<Weight> {
        let Some(changes) = self.0.get(tensor) else { return Ok(weight) };
        if let (Some(_), Some(change)) = (&weight.quantisation, changes.first()) {
            let what = format!(
                "changes `{tensor}`, which is stored as {} with scales; only floats can be merged exactly",
                weight.dtype
            );
            return Err(change.at(Error::unsupported(what).with_help(
                "use the checkpoint in f32, f16 or bf16: its merged weights are quantised as the plan requires",
            )));
        }
        let (mut whole, mut deltas) = (None, Vec::new());
        for change in changes {
            let shape = match &change.what {
                What::Added(pair, factor) => {
                    let delta = Delta::new(pair.clone(), *factor);
                    let shape = delta.shape().to_vec();
                    deltas.push(delta);
                    shape
                }
                What::Replaced(_, values) => {
                    whole = Some(values.clone());
                    values.shape.clone()
                }
            };
            if shape != weight.shape {
                let what = format!(
                    "changes a tensor of the shape {shape:?}, but `{tensor}` has the shape {:?}",
                    weight.shape
                );
                let help =
                    "use the model that the adapter was trained on; extended vocabularies are not supported";
                return Err(change.at(Error::incompatible(what).with_help(help)));
            }
        }
        if !weight.data.is_present() {
            return Ok(weight);
        }
        let width = weight.row_width();
        let (rows, length) = (weight.rows(), weight.data.length());
        let (dtype, base) = (weight.dtype, weight.data.clone());
        let merged = Merged { dtype, rows, width, base, whole, deltas, bytes: OnceLock::new() };
        Ok(Weight { data: WeightData::new(Arc::new(merged), 0, length)?, ..weight })
    }

    /// Checks that no tensor of a tied pair is changed.
    ///
    /// # Errors
    ///
    /// If one is. PEFT trains such an adapter for one of the two uses, but merges it into both.
    pub fn expect_untied(&self, embedding: &str) -> Result<()> {
        let changed = [embedding].into_iter().chain(HEADS).find_map(|name| self.0.get_key_value(name));
        let Some((name, change)) = changed.and_then(|(name, changes)| Some((name, changes.first()?))) else {
            return Ok(());
        };
        let what = format!("changes `{name}`, but embedding and output matrix of this model are tied");
        Err(change.at(Error::unsupported(what).with_help(
            "save the model with an output matrix of its own (`tie_word_embeddings: false` and `lm_head.weight`), or train the adapter without these modules",
        )))
    }

    /// Iterates over the changed tensors.
    pub fn tensors(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Returns the reports on the changes of a tensor that is not read.
    pub fn unread(&self, tensor: &str) -> Vec<Ignored> {
        let changes = self.0.get(tensor).into_iter().flatten();
        let reason = format!("the model does not read `{tensor}`, which it changes");
        changes.map(|change| Ignored::tensor(&change.path, change.name(), reason.clone())).collect()
    }
}

/// Returns the name of the checkpoint's tensor that PEFT calls `tensor`.
///
/// PEFT uses the names of modules in memory. Files of a model may have another prefix, and so has
/// the text part of a model with towers.
fn found(has: &Has<'_>, tensor: &str, change: &Change) -> Result<String> {
    let prefix = prefix_of(has).unwrap_or(USUAL_PREFIX);
    let heads = HEADS.into_iter().filter(|_| HEADS.contains(&tensor)).map(str::to_owned);
    let texts =
        PREFIXES.iter().filter_map(|own| tensor.strip_prefix(own)).map(|rest| format!("{prefix}{rest}"));
    let tower = match tensor.strip_prefix("model.") {
        Some(rest) => rest.to_owned(),
        None => format!("model.{tensor}"),
    };
    let mut candidates: Vec<String> = vec![tensor.to_owned()];
    candidates.extend(heads.chain(texts).chain([tower]));
    if let Some(name) = candidates.iter().find(|name| has(name) == Some(true)) {
        return Ok(name.clone());
    }
    if has(&candidates[0]).is_none() {
        // No file lists names. The most specific prefix of the adapter is the model's.
        let usual = if HEADS.contains(&tensor) { 0 } else { 1 };
        return Ok(candidates.swap_remove(usual));
    }
    let module = tensor.rsplit_once('.').map_or(tensor, |(module, _)| module);
    let is_head = HEADS.contains(&tensor);
    let (what, help) = match is_head {
        true => (
            format!("changes module `{module}`, but the checkpoint has no output matrix of its own"),
            "save the model with an output matrix of its own (`tie_word_embeddings: false` and `lm_head.weight`), or train the adapter without this module",
        ),
        false => (
            format!("changes module `{module}`, but the checkpoint has no tensor `{tensor}`"),
            "use the model that the adapter was trained on",
        ),
    };
    Err(change.at(Error::incompatible(what).with_help(help)))
}
