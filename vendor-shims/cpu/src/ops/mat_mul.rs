//! Product of two matrices. One with a constant right matrix becomes a linear map.

use shardwright_shim_abi::Error;

use super::Operation;
use crate::execute::Stage;
use crate::kernels::elementwise::Broadcast;
use crate::kernels::linear::{self, Sizes};
use crate::lower::{Emit, Following, Here, Recognised, Site, Source, invalid};
use crate::program::{Bounds, Checked, Step, product, step};
use crate::simd::LANES;

pub fn recognise(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(2, 2)?;
    let transpose_b = here.truth("transpose_b")?;
    let a = here.float(0)?;
    // A constant matrix is packed, so its type may be unsupported elsewhere.
    let b = match here.any(1)? {
        tensor if tensor.weight().is_some() && tensor.shape.len() == 2 => here.weights(1, transpose_b)?.0,
        _ => here.float(1)?,
    };
    let (rank_a, rank_b) = (a.shape.len(), b.shape.len());
    if rank_a < 2 || rank_b < 2 {
        return invalid(format!("{:?} and {:?} are not matrices", a.shape, b.shape));
    }
    let (m, k) = (a.shape[rank_a - 2], a.shape[rank_a - 1]);
    let (inner, n) = match transpose_b {
        true => (b.shape[rank_b - 1], b.shape[rank_b - 2]),
        false => (b.shape[rank_b - 2], b.shape[rank_b - 1]),
    };
    let Some(batch) = Broadcast::of(&a.shape[..rank_a - 2], &b.shape[..rank_b - 2]) else {
        return invalid(format!("the batches of {:?} and {:?} do not broadcast", a.shape, b.shape));
    };
    if k != inner {
        let (a, b) = (&a.shape, &b.shape);
        return invalid(format!("{a:?} cannot be multiplied by {b:?}, transpose_b {transpose_b}"));
    }
    let leading = if rank_a.max(rank_b) == 2 { Vec::new() } else { batch.shape };
    here.output_shape(&[&leading[..], &[m, n]].concat())?;
    Ok(Operation::MatMul { transpose_b })
}

/// Rows of the left matrix are independent. A right matrix that follows rows is read across rows.
pub fn follows_rows(node: &mut Following<'_, '_>) -> bool {
    let row = node.rank(node.x()) == 2 && node.rank(node.output) == 2 && node.follows(node.x());
    node.cross(usize::from(row)..node.inputs.len());
    row
}

pub fn lower(emit: &mut Emit<'_, '_>, site: &Site<'_>, transpose_b: bool) -> Result<Step, Error> {
    let (graph, index, out) = (emit.graph, site.node, site.out);
    let (Some(a), Some(b)) = (graph.input(index, 0), graph.input(index, 1)) else {
        return Err(emit.missing(format!("node `{}` has no operands", graph.nodes[index].name())));
    };
    let (rank_a, rank_b) = (a.shape.len(), b.shape.len());
    let (m, k) = (a.shape[rank_a - 2], a.shape[rank_a - 1]);
    let n = if transpose_b { b.shape[rank_b - 2] } else { b.shape[rank_b - 1] };
    // A constant matrix is packed once, during compilation.
    if let (Source::Constant(weight), 2) = (b.source, rank_b) {
        let rows = a.elements() / k.max(1);
        return Ok(Step::Linear(step::Linear {
            x: emit.input(index, 0)?,
            rows: emit.extent(site.output, rows),
            weights: emit.weights.panels(weight, !transpose_b)?,
            bias: None,
            bounds: None,
            out,
        }));
    }
    let Some(batch) = Broadcast::of(&a.shape[..rank_a - 2], &b.shape[..rank_b - 2]) else {
        return Err(emit.missing(format!("node `{}` does not broadcast", graph.nodes[index].name())));
    };
    Ok(Step::MatMul(step::MatMul {
        a: emit.input(index, 0)?,
        b: emit.input(index, 1)?,
        out,
        sizes: [m as u64, k as u64, n as u64],
        transpose_b,
        batch,
    }))
}

impl step::MatMul {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        let step::MatMul { a, b, out, sizes: [m, k, n], batch, .. } = self;
        let (batches, reach_a, reach_b) = bounds.broadcast(batch)?;
        product(&[n.div_ceil(LANES as u64), LANES as u64, *k])?;
        bounds.reads(*a, product(&[reach_a, product(&[*m, *k])?])?)?;
        bounds.reads(*b, product(&[reach_b, product(&[*k, *n])?])?)?;
        bounds.writes(*out, product(&[batches, product(&[*m, *n])?])?, &[*a, *b])
    }

    pub fn scratch(&self) -> Option<usize> {
        let [m, k, n] = self.sizes;
        linear::scratch_values(Sizes {
            m: usize::try_from(m).ok()?,
            k: usize::try_from(k).ok()?,
            n: usize::try_from(n).ok()?,
            transpose_b: self.transpose_b,
        })
    }

    #[inline]
    pub fn execute(&self, stage: &mut Stage<'_, '_>) {
        let Stage { memory, level, pool, .. } = *stage;
        let [m, k, n] = self.sizes.map(|size| size as usize);
        let sizes = Sizes { m, k, n, transpose_b: self.transpose_b };
        let (a, b) = (memory.read(self.a), memory.read(self.b));
        linear::mat_mul(level, pool, sizes, &self.batch, a, b, stage.scratch, memory.write(self.out));
    }
}
