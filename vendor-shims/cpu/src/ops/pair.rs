//! Two nodes that become one step.

use shardwright_shim_abi::Error;

use super::linear::{self, Finished};
use super::{Operation, elementwise};
use crate::lower::{Emit, Fusion, Taken};
use crate::program::{Step, step};

/// Emits two nodes as one step, at the position of the second node.
pub fn lower(
    emit: &mut Emit<'_, '_>,
    index: usize,
    taken: Taken,
    operations: &[Option<Operation>],
) -> Result<(), Error> {
    let node = emit.graph.nodes[index];
    let Some(&output) = node.outputs().first() else {
        return Err(emit.missing(format!("node `{}` has no result", node.name())));
    };
    let (x, out) = (emit.input(taken.node, 0)?, emit.operand(output)?);
    let other = taken.other.map(|other| emit.operand(other)).transpose()?;
    let result = &emit.graph.tensors[output as usize];
    let (elements, last) = (result.elements(), result.shape.last().copied().unwrap_or(1));
    let step = match (taken.what, &operations[taken.node], other) {
        (Fusion::Residual, &Some(Operation::RmsNorm(norm)), Some(residual)) => Step::RmsNorm(step::RmsNorm {
            norm,
            x,
            weight: emit.optional(taken.node, 1)?,
            residual: Some(residual),
            groups: emit.extent(output, elements / norm.width),
            out,
        }),
        (Fusion::Gated(kind), _, Some(up)) => {
            Step::Gated(step::Gated { kind, gate: x, up, count: emit.extent(output, elements), out })
        }
        (Fusion::Clamped, &Some(Operation::Linear { rounding }), _) => {
            let rows = emit.extent(output, elements / last);
            let (weight, bias) = (emit.weight(taken.node)?, emit.optional(taken.node, 2)?);
            let bounds = Some(elementwise::bounds(emit, index)?);
            return linear::lower_map(emit, rounding, weight, x, rows, Finished { bias, bounds, out });
        }
        (Fusion::Capped(cap), ..) if linear::is_logits(emit, output, out) => {
            let rows = emit.extent(output, elements / last.max(1));
            match emit.weights.split(emit.weight(taken.node)?)? {
                Some(weights) => {
                    Step::SplitLinear(step::SplitLinear { x, rows, weights, cap: Some(cap), out })
                }
                None => return Err(emit.missing(format!("node `{}` caps no head in parts", node.name()))),
            }
        }
        _ => {
            let reason = format!("node `{}` does not form a pair with its input", node.name());
            return Err(emit.missing(reason));
        }
    };
    emit.steps.push(step);
    Ok(())
}
