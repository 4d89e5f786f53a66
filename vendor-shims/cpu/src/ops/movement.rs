//! Operations that only move values: reshaping, transposition, slices and concatenation.

use shardwright_shim_abi::Error;

use super::Operation;
use crate::execute::Stage;
use crate::kernels::elementwise::{Broadcast, Unary};
use crate::kernels::shape::{Strided, strided_copy};
use crate::lower::{Emit, Following, Here, Recognised, Site, invalid};
use crate::program::{Bounds, Checked, Extent, Operand, Step, axes, ensure, product, step};

pub fn recognise_reshape(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(1, 1)?;
    let x = here.float(0)?;
    let output = here.output()?;
    let shape = here.node.attribute_list("shape")?;
    let same = shape.len() == output.shape.len()
        && shape.iter().zip(&output.shape).all(|(asked, actual)| usize::try_from(*asked) == Ok(*actual));
    if !same || output.elements() != x.elements() {
        let (x, output) = (&x.shape, &output.shape);
        return invalid(format!("{x:?} cannot be reshaped to {shape:?}, the output is {output:?}"));
    }
    here.same_encoding(0..1)?;
    Ok(Operation::Reshape)
}

pub fn recognise_transpose(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(1, 1)?;
    let x = here.float(0)?;
    let rank = x.shape.len();
    let mut seen = vec![false; rank];
    let mut perm = Vec::with_capacity(rank);
    for &axis in here.node.attribute_list("perm")? {
        match usize::try_from(axis).ok().filter(|axis| *axis < rank && !seen[*axis]) {
            Some(axis) => {
                seen[axis] = true;
                perm.push(axis);
            }
            None => return invalid(format!("invalid axis {axis} in a permutation of {rank}")),
        }
    }
    if perm.len() != rank {
        return invalid(format!("a permutation of {} axes for rank {rank}", perm.len()));
    }
    here.output_shape(&perm.iter().map(|axis| x.shape[*axis]).collect::<Vec<usize>>())?;
    here.same_encoding(0..1)?;
    Ok(Operation::Transpose(perm))
}

pub fn recognise_slice(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(1, 1)?;
    let x = here.float(0)?;
    let axis = here.axis(x.shape.len())?;
    let (start, end) = (here.node.attribute_usize("start")?, here.node.attribute_usize("end")?);
    if start >= end || end > x.shape[axis] {
        return invalid(format!("{start}..{end} is not a range of an axis of {}", x.shape[axis]));
    }
    let mut shape = x.shape.clone();
    shape[axis] = end - start;
    here.output_shape(&shape)?;
    here.same_encoding(0..1)?;
    Ok(Operation::Slice { axis, start })
}

pub fn recognise_concat(here: &Here<'_, '_>) -> Recognised<Operation> {
    let count = here.node.inputs().len();
    here.operands(1, count.max(1))?;
    let first = here.float(0)?;
    let axis = here.axis(first.shape.len())?;
    let mut shape = first.shape.clone();
    shape[axis] = 0;
    for place in 0..count {
        let part = here.float(place)?;
        let fits = part.shape.len() == shape.len()
            && part.shape.iter().enumerate().all(|(at, extent)| at == axis || *extent == first.shape[at]);
        if !fits {
            let (part, first) = (&part.shape, &first.shape);
            return invalid(format!("{part:?} cannot be joined with {first:?} along axis {axis}"));
        }
        shape[axis] += part.shape[axis];
    }
    here.output_shape(&shape)?;
    here.same_encoding(0..count)?;
    Ok(Operation::Concat { axis })
}

pub fn reshape_follows_rows(node: &mut Following<'_, '_>) -> bool {
    let (before, after) = (node.extent(node.x()), node.extent(node.output));
    let row = node.follows(node.x()) && node.by_rows(node.output);
    // A row that combines several rows may include rows beyond the valid ones.
    node.or_cross(row && (after >= node.rows() || after == before));
    row
}

pub fn transpose_follows_rows(node: &mut Following<'_, '_>, perm: &[usize]) -> bool {
    node.or_cross(node.follows(node.x()) && perm.first() == Some(&0))
}

pub fn slice_follows_rows(node: &mut Following<'_, '_>, axis: usize) -> bool {
    node.or_cross(node.follows(node.x()) && axis != 0)
}

pub fn concat_follows_rows(node: &mut Following<'_, '_>, axis: usize) -> bool {
    node.or_cross(axis != 0 && node.inputs.iter().any(|tensor| node.follows(*tensor)))
}

/// The result is an alias of a bound or computed tensor. Only a weight must be copied out.
pub fn lower_reshape(emit: &mut Emit<'_, '_>, site: &Site<'_>) -> Result<(), Error> {
    if emit.storage.operand(emit.graph, site.x).is_none() {
        let x = emit.input(site.node, 0)?;
        let count = Extent::Fixed(x.elements);
        emit.steps.push(Step::Unary(step::Unary { kind: Unary::Copy, x, count, out: site.out }));
    }
    Ok(())
}

pub fn lower_transpose(emit: &mut Emit<'_, '_>, site: &Site<'_>, perm: &[usize]) -> Result<Step, Error> {
    let from = dense(site.x_shape);
    let copy = Strided {
        shape: site.out_shape.to_vec(),
        source: perm.iter().map(|axis| from[*axis]).collect(),
        target: dense(site.out_shape),
    };
    Ok(Step::Copy(step::StridedCopy { copy, source: emit.input(site.node, 0)?, target: site.out }))
}

pub fn lower_slice(emit: &mut Emit<'_, '_>, site: &Site<'_>, axis: usize, start: usize) -> Result<(), Error> {
    if axis == 0 && emit.storage.operand(emit.graph, site.x).is_some() {
        return Ok(());
    }
    let strides = dense(site.x_shape);
    let mut source = emit.input(site.node, 0)?;
    let skip = (start * strides[axis]) as u64;
    source.offset += skip;
    source.elements -= skip;
    let (shape, target) = (site.out_shape.to_vec(), dense(site.out_shape));
    let copy = Strided { shape, source: strides, target };
    emit.steps.push(Step::Copy(step::StridedCopy { copy, source, target: site.out }));
    Ok(())
}

pub fn lower_concat(emit: &mut Emit<'_, '_>, site: &Site<'_>, axis: usize) -> Result<(), Error> {
    let (graph, out) = (emit.graph, site.out);
    let strides = dense(site.out_shape);
    let mut at = 0;
    for place in 0..graph.nodes[site.node].inputs().len() {
        let Some(part) = graph.input(site.node, place) else { continue };
        let skip = (at * strides[axis]) as u64;
        let source = emit.input(site.node, place)?;
        let target = Operand { offset: out.offset + skip, elements: out.elements - skip, ..out };
        let shape = part.shape.clone();
        let copy = Strided { source: dense(&shape), shape, target: strides.clone() };
        emit.steps.push(Step::Copy(step::StridedCopy { copy, source, target }));
        at += part.shape[axis];
    }
    Ok(())
}

/// Returns the strides of a dense tensor.
fn dense(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (0..shape.len().saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1] * shape[axis + 1];
    }
    strides
}

impl step::StridedCopy {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        let step::StridedCopy { copy, source, target } = self;
        axes([&copy.shape, &copy.source, &copy.target])?;
        let rank = copy.shape.len();
        ensure(copy.source.len() == rank && copy.target.len() == rank, || "a broken copy".into())?;
        let total = product(&copy.shape.iter().map(|extent| *extent as u64).collect::<Vec<u64>>())?;
        ensure(total <= target.elements, || format!("{total} values copied to {}", target.elements))?;
        let reach = |strides: &[usize]| {
            Broadcast::reach(&copy.shape, strides)
                .map(|reach| reach as u64)
                .ok_or_else(|| "a copy reaches too far".to_owned())
        };
        bounds.reads(*source, reach(&copy.source)?)?;
        bounds.writes(*target, reach(&copy.target)?, &[*source])
    }

    #[inline]
    pub fn execute(&self, stage: &Stage<'_, '_>) {
        let memory = stage.memory;
        strided_copy(&self.copy, memory.read(self.source), memory.write(self.target));
    }
}
