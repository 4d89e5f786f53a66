//! Second moments of the inputs of a checkpoint's matrices, and of the derivatives by their
//! results. They are computed on the CPU shim and cached by checkpoint and text.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use shardwright_build::{CPU_SHIM, PlanOptions, thread_options};
use shardwright_files::{eviction, private_files};
use shardwright_forward::{Backward, BackwardLook, Engine, LogitRows, Pass, Shown};
use shardwright_graph::{EntryGraph, Graph, Op, TensorId, gradient_key, range_key};
use shardwright_models::Checkpoint;
use shardwright_quantisation::{MatrixInputs, MomentSums, Moments, SecondMoments, sampled_gradient};
use shardwright_vocabulary::{DeviceKind, Error, ErrorKind, Notice, Part, Result, Watch};

use super::texts::{self, Budget};

/// Text for moments. A matrix may have more columns (12,288) than the text has tokens. Damping
/// compensates for that.
const TEXT: Budget = Budget { tokens: 4096, longest: 512 };
/// Budget for a text of the user, who is assumed to want all of it used.
const OWN_TEXT: Budget = Budget { tokens: 65_536, ..TEXT };

/// Folder of moments in the cache.
const FOLDER: &str = "moments";

/// Returns the moments of a model as it is stored, from the cache as far as possible.
///
/// Layers that were finished before an interruption are run again, but not summed. Without
/// `gradients`, the moments of the derivatives by results are left out, and weights cannot be
/// rounded by the result.
pub(super) fn moments(
    checkpoint: &Checkpoint,
    graph: &Graph,
    options: &PlanOptions,
    gradients: bool,
    notices: &mut Vec<Notice>,
    watch: &mut dyn Watch,
) -> Result<Moments> {
    let started = Instant::now();
    let sequences = text(checkpoint, graph, options, watch)?;
    let identity = Moments::identity_of(checkpoint.content_hash(), &sequences);
    let inputs = MatrixInputs::new(graph)?;
    let folder = options.cache.as_ref().map(|cache| cache.join(FOLDER).join(name_of(identity)));
    let folder = folder.and_then(|folder| trusted(folder, notices));
    let path = |key: &str| folder.as_ref().map(|folder| SecondMoments::path(folder, key));
    let is_kept = |key: &&String| path(key).is_some_and(|path| is_usable(&path));
    let missing: BTreeSet<String> = inputs.widths.keys().filter(|key| !is_kept(key)).cloned().collect();
    let of_results = |weight: &&String| !is_kept(&&MatrixInputs::gradient_key(weight));
    let results = inputs.gradients.keys().filter(|_| gradients);
    let gradients: BTreeSet<String> = results.filter(of_results).cloned().collect();
    let is_whole = missing.is_empty() && gradients.is_empty();
    let mut in_memory = BTreeMap::new();
    if !is_whole {
        let help = "moments are computed on the CPU shim; `--rounding nearest` does not need them";
        let engine = engine(options, FOLDER, help)?;
        let mut take = |key: &str, moments: SecondMoments| match path(key) {
            Some(path) => moments.write(path),
            None => {
                in_memory.insert(key.to_owned(), moments);
                Ok(())
            }
        };
        let mut watch = Part::new(watch, 0..1000);
        let mut pass = match gradients.is_empty() {
            true => Pass::new(graph, &engine, &sequences)?,
            false => Pass::recorded(graph, &engine, &sequences)?,
        };
        let whole = !gradients.is_empty();
        forward(graph, &mut pass, whole, (&inputs, &missing), &mut take, &mut watch.then(400))?;
        if whole {
            let back = Backward::of(pass)?;
            backward(graph, back, (&inputs, &gradients), &mut take, &mut watch.then(1000))?;
        }
    }
    if let (false, Some(cache), Some(folder)) = (is_whole, &options.cache, &folder) {
        // Ignore the error: `doctor` reports a cache that exceeds its limit.
        let _ = eviction::trim(cache, options.cache_bytes_max(), |path| path.starts_with(folder));
    }
    let how = match is_whole {
        true => "were cached for".to_owned(),
        false => format!("were computed in {:.1} s over", started.elapsed().as_secs_f64()),
    };
    let tokens: usize = sequences.iter().map(Vec::len).sum();
    notices.push(Notice::note(format!(
        "input moments of weights {how} {tokens} tokens of {}",
        texts::named(options)
    )));
    Ok(match folder {
        Some(folder) => Moments::in_folder(identity, inputs, folder),
        None => Moments::new(identity, inputs, in_memory),
    })
}

/// Returns the text that moments are computed over, as token ids.
///
/// # Errors
/// Fails if a text, template or tokenizer cannot be read.
pub fn moment_text(checkpoint: &Checkpoint, options: &PlanOptions) -> Result<Vec<Vec<u32>>> {
    text(checkpoint, checkpoint.graph(), options, &())
}

/// Returns the text like [`moment_text`], until `watch` is cancelled.
pub(super) fn text(
    checkpoint: &Checkpoint,
    graph: &Graph,
    options: &PlanOptions,
    watch: &dyn Watch,
) -> Result<Vec<Vec<u32>>> {
    let budget = if options.calibration_text.is_some() { OWN_TEXT } else { TEXT };
    texts::conversations(checkpoint, graph, options, budget, watch)
}

/// Returns the moments of a checkpoint as it is stored, from the cache as far as possible, and
/// notices about them.
///
/// # Errors
/// Fails if a text, template or tokenizer cannot be read, or if the CPU shim fails.
pub fn checkpoint_moments(
    checkpoint: &Checkpoint,
    options: &PlanOptions,
    watch: &mut dyn Watch,
) -> Result<(Moments, Vec<Notice>)> {
    let mut notices = Vec::new();
    let moments = moments(checkpoint, checkpoint.graph(), options, true, &mut notices, watch)?;
    Ok((moments, notices))
}

/// Runs all sequences through the layers, and sums missing moments. Stops when they are complete,
/// unless `whole` requires a run to the end.
fn forward(
    graph: &Graph,
    pass: &mut Pass<'_>,
    whole: bool,
    (inputs, missing): (&MatrixInputs, &BTreeSet<String>),
    take: &mut dyn FnMut(&str, SecondMoments) -> Result<()>,
    watch: &mut dyn Watch,
) -> Result<()> {
    let mut readers = inputs.readers();
    for joined in readers.values_mut() {
        joined.retain(|joined| missing.contains(*joined));
    }
    readers.retain(|_, joined| !joined.is_empty());
    // A sum is complete after the last tensor that adds to it.
    let mut left: BTreeMap<&str, usize> = BTreeMap::new();
    for joined in readers.values().flatten() {
        *left.entry(joined).or_default() += 1;
    }
    let mut sums: BTreeMap<&str, MomentSums> = BTreeMap::new();
    let parts = pass.parts();
    let mut all = Part::new(watch, 0..1000);
    for (index, part) in parts.iter().enumerate() {
        if left.is_empty() && !whole {
            break;
        }
        let end = (index + 1) * 1000 / parts.len().max(1);
        let mut watch = all.then(end as u32).named("computing moments");
        let look = |entry: &EntryGraph, tensor: TensorId| readers.contains_key(&*range_key(entry, tensor));
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut show = |looked: shardwright_forward::Looked<'_>| {
            let Some((key, joined)) = looked.key().and_then(|key| readers.get_key_value(key)) else { return };
            seen.insert(key);
            for joined in joined {
                let width = inputs.widths.get(*joined).copied().unwrap_or_default();
                sums.entry(joined).or_insert_with(|| MomentSums::new(width)).add(looked.values);
            }
        };
        pass.run(part, graph, &look, &mut show, &mut watch)?;
        for joined in seen.into_iter().flat_map(|key| readers.get(key).into_iter().flatten()) {
            let Some(count) = left.get_mut(joined) else { continue };
            *count -= 1;
            if *count == 0
                && let Some(sums) = sums.remove(joined)
            {
                left.remove(joined);
                take(joined, sums.finish())?;
            }
        }
    }
    match left.keys().next() {
        None => Ok(()),
        Some(key) => {
            let what = format!("no layer returned `{key}`, the input of a matrix");
            Err(Error::new(ErrorKind::Internal, what).with_help("report this"))
        }
    }
}

/// A matrix product of a layer.
struct Product {
    weight: String,
    /// Name of the tensor that the weight is multiplied with.
    input: String,
    rows: usize,
}

/// Runs backwards through all layers with the derivatives of tokens sampled from the model's own
/// predictions, and sums missing moments of them. Each row is weighted with the norm of the
/// product's input. This gives the second moments of the derivative by the weight, summed over its
/// columns.
fn backward(
    graph: &Graph,
    mut back: Backward<'_>,
    (inputs, missing): (&MatrixInputs, &BTreeSet<String>),
    take: &mut dyn FnMut(&str, SecondMoments) -> Result<()>,
    watch: &mut dyn Watch,
) -> Result<()> {
    let mut left = missing.clone();
    let parts = back.parts();
    let mut all = Part::new(watch, 0..1000);
    let products = |entry: &EntryGraph| -> BTreeMap<TensorId, Product> {
        let mut products = BTreeMap::new();
        for node in entry.nodes.iter().filter(|node| node.op == Op::Linear) {
            let Some(weight) = entry.tensor(node.inputs[1]).weight.map(|weight| graph.weight(weight)) else {
                continue;
            };
            if missing.contains(&weight.name) {
                let input = entry.tensor(node.inputs[0]).name.clone();
                let product = Product { weight: weight.name.clone(), input, rows: weight.rows() };
                products.insert(node.output, product);
            }
        }
        products
    };
    let loss = |rows: LogitRows<'_>| {
        let seed = ((rows.sequence as u64) << 32) + rows.first as u64;
        sampled_gradient(rows.values, rows.width, seed)
    };
    for (index, part) in parts.iter().enumerate() {
        let end = (index + 1) * 1000 / parts.len().max(1);
        let mut watch = all.then(end as u32).named("computing moments of derivatives");
        let seen: RefCell<BTreeMap<String, Product>> = RefCell::default();
        let values = |entry: &EntryGraph, tensor: TensorId| {
            products(entry).values().any(|product| product.input == entry.tensor(tensor).name)
        };
        let gradients = |entry: &EntryGraph, tensor: TensorId| match products(entry).remove(&tensor) {
            Some(product) => {
                seen.borrow_mut().insert(gradient_key(&entry.tensor(tensor).name), product);
                true
            }
            None => false,
        };
        let look = BackwardLook { values: &values, gradients: &gradients, loss: &loss };
        let mut sums: BTreeMap<String, MomentSums> = BTreeMap::new();
        let mut show = |_: usize, shown: &Shown| {
            for (key, product) in seen.borrow().iter() {
                let (Some(gradient), Some(input)) = (shown.get(key), shown.get(&product.input)) else {
                    continue;
                };
                let count = gradient.len() / product.rows.max(1);
                let width = input.len() / count.max(1);
                let inputs = input.chunks_exact(width.max(1));
                let weighed = gradient.chunks_exact(product.rows.max(1)).zip(inputs).flat_map(|(row, x)| {
                    let norm = x.iter().map(|x| x * x).sum::<f32>().sqrt();
                    row.iter().map(move |value| value * norm)
                });
                let of_weight = sums.entry(product.weight.clone());
                of_weight.or_insert_with(|| MomentSums::new(product.rows)).add(&weighed.collect::<Vec<_>>());
            }
        };
        back.run(part, graph, &look, &mut show, &mut watch)?;
        for (weight, sums) in sums {
            left.remove(&weight);
            take(&MatrixInputs::gradient_key(&weight), sums.finish())?;
        }
    }
    // Results that do not affect the loss have no sums.
    for weight in left {
        let rows = inputs.gradients.get(&weight).copied().unwrap_or_default();
        take(&MatrixInputs::gradient_key(&weight), MomentSums::new(rows).finish())?;
    }
    Ok(())
}

/// Opens the CPU shim for `purpose`, in this process unless the user requests another one.
pub(super) fn engine(options: &PlanOptions, purpose: &str, help: &str) -> Result<Engine> {
    let shims = options.shims_by(&options.rules()?)?;
    let threads = thread_options(CPU_SHIM, options.threads);
    let instance =
        shims.open_to_run(CPU_SHIM, purpose, &threads, false).map_err(|error| error.with_help(help))?;
    let devices = instance.devices(None)?;
    let device = devices.into_iter().find(|device| device.kind == DeviceKind::Present).ok_or_else(|| {
        Error::new(ErrorKind::Shim, format!("shim `{CPU_SHIM}` has no device in this machine"))
    })?;
    Ok(Engine::new(instance, device.name))
}

/// Checks whether a file of moments exists and only this user can have written it.
fn is_usable(path: &Path) -> bool {
    match private_files::open_file(path) {
        Ok((file, _)) => {
            // Other programs then evict files that are not in use first.
            let _ = file.set_modified(SystemTime::now());
            true
        }
        Err(_) => false,
    }
}

fn name_of(identity: [u8; 32]) -> String {
    shardwright_bundle::Digest::from(identity).to_string()
}

/// Creates the folder if necessary. Returns `None` with a notice if that fails or if others may
/// write to it.
fn trusted(folder: PathBuf, notices: &mut Vec<Notice>) -> Option<PathBuf> {
    let above = folder.parent().unwrap_or(Path::new("."));
    let own = private_files::create_folder(&folder)
        .map_err(|error| error.to_string())
        .and_then(|()| private_files::expect_folder(above).map_err(|error| error.to_string()))
        .and_then(|()| private_files::expect_folder(&folder).map_err(|error| error.to_string()));
    match own {
        Ok(()) => Some(folder),
        Err(error) => {
            let what = "input moments of weights cannot be cached";
            notices.push(Notice::note(format!("{what}: {error}")));
            None
        }
    }
}
