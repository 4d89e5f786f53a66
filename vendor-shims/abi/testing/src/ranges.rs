//! Ranges as calibration collects them: from evaluations in f32 to an entry with an encoding for
//! every tensor.

use std::collections::HashMap;

use shardwright_shim_abi::raw::*;

use crate::encoding::TableEncoding;
use crate::evaluate::Tensor;
use crate::tables::Builder;

/// Lowest and highest observed value.
pub type Ends = (f64, f64);

/// Widens the range of every tensor by the values of one evaluation.
pub fn observe(seen: &mut HashMap<u32, Ends>, tensors: &HashMap<u32, Tensor>) {
    for (tensor, values) in tensors {
        let ends = seen.entry(*tensor).or_insert((0.0, 0.0));
        for value in values.data.iter().filter(|value| value.is_finite()) {
            *ends = (ends.0.min(*value), ends.1.max(*value));
        }
    }
}

/// Returns a class for each tensor. Tensors that are only moved into each other must share an
/// encoding, so they have the same class: the smallest index among them.
fn classes(builder: &Builder) -> Vec<u32> {
    let mut of: Vec<u32> = (0..builder.tensors.len() as u32).collect();
    let moves = [SW_OP_RESHAPE, SW_OP_TRANSPOSE, SW_OP_SLICE, SW_OP_CONCAT, SW_OP_STATE_UPDATE];
    for node in builder.nodes.iter().filter(|node| moves.contains(&node.op)) {
        for input in &node.inputs {
            let constant = builder.constants.iter().any(|(tensor, _)| tensor == input);
            if builder.tensors[*input as usize].encoding == TableEncoding::F32 && !constant {
                let (a, b) = (of[*input as usize], of[node.outputs[0] as usize]);
                of.iter_mut()
                    .filter(|class| **class == a || **class == b)
                    .for_each(|class| *class = a.min(b));
            }
        }
    }
    of
}

/// Encodes every tensor of values as `activation`, and states and their sources as `state`. `seen`
/// has the ranges of this entry's tensors. `states` has the ranges of each state over all entries.
/// Logits stay f32.
pub fn encode_all(
    builder: &mut Builder,
    (activation, state): (u32, u32),
    seen: &HashMap<u32, Ends>,
    states: &HashMap<String, Ends>,
) {
    let of = classes(builder);
    let outputs = builder.outputs.clone();
    for class in 0..of.len() as u32 {
        let members: Vec<u32> = (0..of.len() as u32).filter(|tensor| of[*tensor as usize] == class).collect();
        let is_value = |tensor: &u32| {
            let constant = builder.constants.iter().any(|(id, _)| id == tensor);
            builder.tensors[*tensor as usize].encoding == TableEncoding::F32 && !constant
        };
        let logits =
            |tensor: &u32| outputs.iter().any(|port| port.tensor == *tensor && port.role == SW_ROLE_LOGITS);
        if members.is_empty() || !members.iter().all(is_value) || members.iter().any(logits) {
            continue;
        }
        let name = builder
            .inputs
            .iter()
            .find(|port| port.role == SW_ROLE_STATE && members.contains(&port.tensor))
            .map(|port| port.name.clone());
        let dtype = if name.is_some() { state } else { activation };
        let ends = match name {
            Some(name) => states[&name],
            None => members
                .iter()
                .filter_map(|tensor| seen.get(tensor))
                .fold((0.0, 0.0), |ends: Ends, one| (ends.0.min(one.0), ends.1.max(one.1))),
        };
        for tensor in members {
            builder.encode(tensor, TableEncoding::over(dtype, ends.0, ends.1));
        }
    }
}
