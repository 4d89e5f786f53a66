//! Determines the effect of a compiler flag: compiles the same graph with and without it and
//! compares the results.
//!
//! The library silently accepts unknown keys and values of wrong types, and its binaries echo
//! settings that it does not use. So only different code counts as an effect. Two binaries of one
//! graph are never equal within a process, because tensors and operations are numbered
//! consecutively, which changes a few hundred bytes. This noise is measured by compiling the same
//! graph twice.
//!
//! The first subject is a small graph of our own with a product, a norm, an activation and a
//! softmax over 64 rows. If its code does not change, the smallest entry of the order is compiled
//! too, unless its weights are too large.

use std::fmt::Write;
use std::sync::{Arc, PoisonError};

use sha2::{Digest, Sha256};
use shardwright_shim_abi::FlagOutcome;

use crate::driver::Driver;
use crate::estimate::cost;
use crate::failure::{QnnError, Result};
use crate::flags::{CompilerFlag, Flags, Reach};
use crate::graph::{
    DataType, Param, QnnEncoding, QnnGraph, QnnNode, QnnTensor, ScaleOffset, StaticData, TensorIndex,
    TensorKind,
};
use crate::recognise::recognise;
use crate::session::{Context, ContextBinary, ContextOptions, GraphOptions, GraphSizes};
use crate::soc::Soc;

/// Entries with more weights than this are not compiled again to probe a flag.
const MAX_PROBED_BYTES: u64 = 32 << 20;
/// Number of additional pairs of compilations that must differ before a flag counts as applied.
const REPEATED: usize = 3;
/// Number of results cached for the next flag or order.
const MAX_KEPT: usize = 16;
/// A number occupies up to four bytes, of which usually one changes between compilations.
const NUMBERS_FACTOR: usize = 4;
/// Tolerated additional difference, in bytes.
const NUMBERS_SLACK: usize = 64;

/// The result of one compilation.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    binary: Arc<[u8]>,
    /// Number of bytes by which a repeated compilation differed, if measured.
    noise: Option<usize>,
    /// Sizes reported by the binary.
    sizes: Option<GraphSizes>,
    /// Simulated cycles on the stand-in chip.
    cycles: Option<u64>,
}

/// The outcome of a flag and the evidence.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbedFlag {
    pub outcome: FlagOutcome,
    pub evidence: String,
}

fn verdict(outcome: FlagOutcome, evidence: String) -> ProbedFlag {
    ProbedFlag { outcome, evidence }
}

/// A graph to compile with and without a flag.
struct Subject<'g, 'w> {
    what: &'static str,
    graph: &'g QnnGraph<'w>,
}

fn compile(
    driver: &Driver,
    soc: &Soc,
    graph: &QnnGraph<'_>,
    options: &GraphOptions,
) -> Result<ContextBinary> {
    let mut context = Context::new(driver.device(recognise(driver, soc)?.code)?, ContextOptions::default())?;
    context.compose(graph, options)?.finalize(false)?;
    context.binary()
}

/// Compiles a graph for a chip and inspects the result. If `is_reference`, also measures the noise
/// between equal compilations.
fn try_out(
    driver: &Driver,
    soc: &Soc,
    graph: &QnnGraph<'_>,
    options: &GraphOptions,
    is_reference: bool,
) -> Result<Trial> {
    let key = format!("{soc:?} {options:?} {}", content_of(graph));
    let known = driver.trials.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
    if let Some(known) = known.filter(|known| known.noise.is_some() || !is_reference) {
        return Ok(known);
    }
    let binary = compile(driver, soc, graph, options)?;
    let noise = match is_reference {
        true => Some(differing(&binary.bytes, &compile(driver, soc, graph, options)?.bytes)),
        false => None,
    };
    let graphs =
        binary.description.as_ref().map(|description| description.graphs.as_slice()).unwrap_or_default();
    let trial = Trial {
        noise,
        sizes: graphs.first().and_then(|graph| graph.sizes),
        cycles: match soc.stand_in {
            Some(stand_in) => cost(driver, stand_in, graph, options)?.map(|cost| cost.cycles),
            None => None,
        },
        binary: binary.bytes.into(),
    };
    let mut trials = driver.trials.lock().unwrap_or_else(PoisonError::into_inner);
    if trials.len() >= MAX_KEPT {
        trials.clear();
    }
    trials.insert(key, trial.clone());
    Ok(trial)
}

/// Counts the bytes by which a graph compiled with a flag differs from the graph compiled without
/// it. Several compilations of each are compared and the minimum is returned. It stops as soon as
/// the minimum is at most `most`. A single differing pair is not conclusive, because a number that
/// grows by a digit between compilations shifts everything behind it. If the code differs, every
/// pair differs.
fn least_differing(
    driver: &Driver,
    soc: &Soc,
    graph: &QnnGraph<'_>,
    (with, without): (&GraphOptions, &GraphOptions),
    (bare, flagged): (&Trial, &Trial),
    most: usize,
) -> Result<usize> {
    let mut least = differing(&bare.binary, &flagged.binary);
    let (mut without_it, mut with_it) = (vec![bare.binary.clone()], vec![flagged.binary.clone()]);
    for _ in 0..REPEATED {
        if least <= most {
            break;
        }
        without_it.push(compile(driver, soc, graph, without)?.bytes.into());
        with_it.push(compile(driver, soc, graph, with)?.bytes.into());
        let pairs = without_it.iter().flat_map(|bare| with_it.iter().map(move |flagged| (bare, flagged)));
        least = pairs.map(|(bare, flagged)| differing(bare, flagged)).min().unwrap_or(least);
    }
    Ok(least)
}

/// Counts the differing bytes and adds the difference in length.
fn differing(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).filter(|(a, b)| a != b).count() + a.len().abs_diff(b.len())
}

/// Hashes everything in a graph that affects its compilation.
fn content_of(graph: &QnnGraph<'_>) -> String {
    let mut sum = Sha256::new();
    for tensor in &graph.tensors {
        sum.update(format!("{} {:?} {:?} {:?}", tensor.name, tensor.dtype, tensor.dims, tensor.encoding));
        match &tensor.kind {
            TensorKind::Static(StaticData::Bytes(bytes)) => sum.update(bytes),
            TensorKind::Static(StaticData::Packed { bytes, .. } | StaticData::Transposed(bytes)) => {
                sum.update(bytes)
            }
            other => sum.update(format!("{other:?}")),
        }
    }
    for node in &graph.nodes {
        sum.update(format!("{node:?}"));
    }
    sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the verdict on each flag of an order that reaches the compiler, and `None` for other
/// flags. `smallest` is the smallest compiled entry.
pub fn judge(
    driver: &Driver,
    soc: &Soc,
    flags: &Flags,
    smallest: Option<&QnnGraph<'_>>,
) -> Vec<Option<ProbedFlag>> {
    let own = sample();
    let mut subjects = vec![Subject { what: "a small graph", graph: &own }];
    if let Some(graph) = smallest.filter(|graph| weight_bytes(graph) <= MAX_PROBED_BYTES) {
        subjects.push(Subject { what: "the smallest entry", graph });
    }
    let with = flags.graph_options(soc, None);
    let one = |(index, asked): (usize, &crate::flags::Asked)| {
        let Reach::Compiler(flag) = &asked.reach else { return None };
        let without = flags.graph_options(soc, Some(index));
        Some(judge_one(driver, soc, flag, (&with, &without), &subjects))
    };
    flags.asked.iter().enumerate().map(one).collect()
}

fn judge_one(
    driver: &Driver,
    soc: &Soc,
    flag: &CompilerFlag,
    (with, without): (&GraphOptions, &GraphOptions),
    subjects: &[Subject<'_, '_>],
) -> ProbedFlag {
    if with == without {
        return verdict(FlagOutcome::Inert, "it requests the default".to_owned());
    }
    let mut same = String::new();
    let mut is_echoed = false;
    for subject in subjects {
        let bare = match try_out(driver, soc, subject.graph, without, true) {
            Ok(bare) => bare,
            Err(error) => {
                return verdict(
                    FlagOutcome::Unknown,
                    format!("{} cannot be compiled: {error}", subject.what),
                );
            }
        };
        let flagged = match try_out(driver, soc, subject.graph, with, false) {
            Ok(flagged) => flagged,
            Err(error @ QnnError::Call(_)) => return verdict(FlagOutcome::Refused, error.to_string()),
            Err(error) => return verdict(FlagOutcome::Unknown, error.to_string()),
        };
        let noise = bare.noise.unwrap_or(0);
        let most = NUMBERS_FACTOR * noise + NUMBERS_SLACK;
        let bytes =
            match least_differing(driver, soc, subject.graph, (with, without), (&bare, &flagged), most) {
                Ok(bytes) => bytes,
                Err(error) => return verdict(FlagOutcome::Unknown, error.to_string()),
            };
        let estimate = match (bare.cycles, flagged.cycles) {
            (Some(bare), Some(flagged)) if bare != flagged => {
                format!(", {bare} simulated cycles become {flagged}")
            }
            _ => String::new(),
        };
        let compiled = format!("{} compiled for {} with and without it", subject.what, soc.name);
        if bytes > most {
            let evidence = format!(
                "{compiled}: {bytes} bytes of code differ, {noise} between equal compilations{estimate}"
            );
            return verdict(FlagOutcome::Applied, evidence);
        }
        let and = if same.is_empty() { "" } else { "; " };
        let _ = write!(same, "{and}{compiled}: the same code{estimate}");
        if let Some(echo) = echo(&bare, &flagged) {
            let _ = write!(same, ", and the binary records {echo}");
            is_echoed = true;
        }
    }
    match flag {
        _ if is_echoed => verdict(FlagOutcome::Recorded, same),
        // The existence of such a key cannot be determined.
        CompilerFlag::Key(..) => {
            verdict(FlagOutcome::Unknown, format!("{same}; the library accepts any key silently"))
        }
        _ => verdict(FlagOutcome::Inert, same),
    }
}

/// Describes how the binary's reported sizes echo a flag.
fn echo(bare: &Trial, flagged: &Trial) -> Option<String> {
    let (bare, flagged) = (bare.sizes?, flagged.sizes?);
    let numbers = [
        ("bytes of fast memory", bare.vtcm_bytes, flagged.vtcm_bytes),
        ("vector threads", bare.hvx_threads, flagged.hvx_threads),
        ("level", u64::from(bare.level), u64::from(flagged.level)),
    ];
    let (what, bare, flagged) = numbers.into_iter().find(|(_, bare, flagged)| bare != flagged)?;
    Some(format!("{flagged} {what}, {bare} without it"))
}

fn weight_bytes(graph: &QnnGraph<'_>) -> u64 {
    let bytes = |tensor: &QnnTensor<'_>| match tensor.kind {
        TensorKind::Static(_) => tensor
            .dims
            .iter()
            .fold(tensor.dtype.bytes(), |bytes, extent| bytes.saturating_mul(u64::from(*extent))),
        _ => 0,
    };
    graph.tensors.iter().map(bytes).fold(0, u64::saturating_add)
}

/// Rows, width and inner width of the first subject. The graph is large enough to be split for the
/// fast memory and small enough to compile in a second.
const ROWS: u32 = 64;
const WIDTH: u32 = 512;
const INNER: u32 = 2048;

/// Builds `x → norm → product → gelu → product → softmax`.
fn sample() -> QnnGraph<'static> {
    let mut graph = QnnGraph { name: "probe".to_owned(), ..QnnGraph::default() };
    let a16 = |range: f32| QnnEncoding::PerTensor(ScaleOffset { scale: range / 32_768.0, offset: -32_768 });
    let mut tensor = |name: &str, kind: TensorKind<'static>, dtype, dims: &[u32], encoding| {
        graph.tensors.push(QnnTensor { name: name.to_owned(), kind, dtype, dims: dims.to_vec(), encoding });
        TensorIndex(graph.tensors.len() as u32 - 1)
    };
    let fixed = DataType::Ufixed16;
    let stand = |seed| TensorKind::Static(StaticData::Stand { seed });
    let scales = |count: u32| QnnEncoding::PerAxis { axis: 0, scales: vec![0.001; count as usize] };
    let x = tensor("x", TensorKind::Input, fixed, &[ROWS, WIDTH], a16(4.0));
    let gamma = tensor("gamma", stand(1), fixed, &[WIDTH], a16(2.0));
    let normed = tensor("normed", TensorKind::Native, fixed, &[ROWS, WIDTH], a16(4.0));
    let up = tensor("up", stand(2), DataType::Sfixed8, &[INNER, WIDTH], scales(INNER));
    let wide = tensor("wide", TensorKind::Native, fixed, &[ROWS, INNER], a16(8.0));
    let active = tensor("active", TensorKind::Native, fixed, &[ROWS, INNER], a16(8.0));
    let down = tensor("down", stand(3), DataType::Sfixed8, &[WIDTH, INNER], scales(WIDTH));
    let narrow = tensor("narrow", TensorKind::Native, fixed, &[ROWS, WIDTH], a16(8.0));
    let shares = QnnEncoding::PerTensor(ScaleOffset { scale: 1.0 / 65_536.0, offset: 0 });
    let y = tensor("y", TensorKind::Output, fixed, &[ROWS, WIDTH], shares);
    let mut node = |name: &str, op, params, inputs: &[TensorIndex], output| {
        let (name, inputs, outputs) = (name.to_owned(), inputs.to_vec(), vec![output]);
        graph.nodes.push(QnnNode { name, op, params, inputs, outputs, origin: None });
    };
    let norm = vec![("epsilon", Param::F32(1e-6)), ("axes", Param::U32s(vec![1]))];
    node("norm", "RmsNorm", norm, &[x, gamma], normed);
    node("product_up", "FullyConnected", vec![], &[normed, up], wide);
    node("gelu", "Gelu", vec![], &[wide], active);
    node("product_down", "FullyConnected", vec![], &[active, down], narrow);
    node("softmax", "Softmax", vec![("axis", Param::U32(1)), ("beta", Param::F32(1.0))], &[narrow], y);
    graph
}
