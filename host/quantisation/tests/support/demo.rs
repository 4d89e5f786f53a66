//! The demo model, its held-out rows, and the format combinations of its report.

#![allow(dead_code, reason = "each user takes a part")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::SafeTensors;
use shardwright_graph::Graph;
use shardwright_models::Checkpoint;
use shardwright_quantisation::{Calibration, Calibrator, Candidate, Moments, TableFormats, content_hash};
use shardwright_vocabulary::{
    ActivationFormat, FormatTuple, RoleFormat, StateFormat, WeightFormat, WeightRole,
};

/// One in this many held-out rows is set aside for calibration and never evaluated.
const SET_ASIDE: usize = 10;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model")
}

pub fn graph() -> Graph {
    Checkpoint::open(directory()).unwrap().into_graph()
}

/// Returns calibration rows and evaluation rows. Chat rows already include the template with its
/// markers.
pub fn rows() -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
    let bytes = std::fs::read(directory().join("eval.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let integers = |name: &str| -> Vec<usize> {
        let data = tensors.tensor(name).unwrap().data().to_vec();
        data.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes) as usize).collect()
    };
    let (ids, lengths) = (integers("input_ids"), integers("lengths"));
    let width = ids.len() / lengths.len();
    let (mut calibration, mut evaluation) = (Vec::new(), Vec::new());
    for (index, (row, &length)) in ids.chunks(width).zip(&lengths).enumerate() {
        let row = row[..length].iter().map(|&id| id as u32).collect();
        if index % SET_ASIDE == 0 { calibration.push(row) } else { evaluation.push(row) }
    }
    (calibration, evaluation)
}

/// Returns the special and placeholder ids that no held-out row has, in the order of a template: a
/// turn with tools, thinking, a picture, sound.
pub fn special() -> Vec<u32> {
    vec![
        2, 15, 300, 301, 302, 17, 19, 19, 19, 18, 20, 22, 22, 21, 23, 16, 15, 12, 13, 310, 14, 7, 320, 11,
        321, 11, 8, 9, 330, 10, 340, 16,
    ]
}

pub fn calibrate(graph: &Graph, rows: &[Vec<u32>]) -> Calibration {
    let mut calibrator = Calibrator::new(graph, content_hash(graph).unwrap()).unwrap();
    rows.iter().for_each(|ids| calibrator.add(ids).unwrap());
    calibrator.add(&special()).unwrap();
    calibrator.finish().unwrap()
}

/// Computes moments over the rows that [`calibrate`] uses for ranges.
pub fn moments(graph: &Graph, rows: &[Vec<u32>]) -> Arc<Moments> {
    Arc::new(Moments::by_reference(graph, content_hash(graph).unwrap(), rows).unwrap())
}

pub fn candidate(
    weights: WeightFormat,
    head: WeightFormat,
    activations: ActivationFormat,
    states: StateFormat,
    table: WeightFormat,
) -> Candidate {
    let roles =
        if head == weights { Vec::new() } else { vec![RoleFormat { role: WeightRole::Head, format: head }] };
    Candidate {
        formats: FormatTuple { weights, roles, activations, states, ..FormatTuple::F32 },
        tables: TableFormats { embedding: Some(table), per_layer: Some(table) },
        moments: None,
    }
}

/// Returns the combinations that the report compares.
pub fn candidates(moments: &Arc<Moments>) -> Vec<Candidate> {
    use ActivationFormat::{A8Dynamic, A16, A16Symmetric};
    use WeightFormat::*;
    let plain = |weights| candidate(weights, weights, ActivationFormat::F32, StateFormat::F32, Bf16);
    let mixed =
        |weights, table| candidate(weights, W8PerChannel, ActivationFormat::F32, StateFormat::F32, table);
    let inner = |weights, activations, states| candidate(weights, weights, activations, states, Bf16);
    let mut candidates: Vec<Candidate> =
        [F16, W8PerChannel, W8PerTensor, W4Block32, W4PerChannel, W4PerTensor, W2PerChannel]
            .map(plain)
            .into();
    candidates.extend([
        mixed(W4Block32, Bf16),
        mixed(W4PerChannel, Bf16),
        mixed(W2PerChannel, Bf16),
        mixed(W8PerChannel, W8PerChannel),
        mixed(W8PerChannel, W4Block32),
        mixed(W4Block32, W4Block32),
        inner(Bf16, ActivationFormat::F16, StateFormat::F16),
        inner(Bf16, A16, StateFormat::A16),
        inner(Bf16, A16Symmetric, StateFormat::A16),
        inner(Bf16, A16, StateFormat::A8),
        inner(W8PerChannel, A16, StateFormat::A16),
        inner(W8PerChannel, A8Dynamic, StateFormat::F32),
        inner(W4Block32, A16, StateFormat::A16),
        inner(W4Block32, A8Dynamic, StateFormat::F16),
    ]);
    for weights in [W8PerChannel, W4Block32, W4PerChannel, W2PerChannel] {
        candidates.push(Candidate { moments: Some(Arc::clone(moments)), ..plain(weights) });
    }
    candidates
}
