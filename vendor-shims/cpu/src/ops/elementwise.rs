//! Functions of one or two values, and the gates and limits that are made of them.

use shardwright_shim_abi::Error;

use super::Operation;
use crate::execute::Stage;
use crate::kernels::elementwise::{self, Broadcast, Unary, glu, unary};
use crate::lower::{Emit, Following, Here, Recognised, Site, Source, expect, invalid, unsupported};
use crate::program::{Bounds, Checked, Step, ensure, product, step};

pub fn recognise_unary(here: &Here<'_, '_>, kind: Unary) -> Recognised<Operation> {
    here.operands(1, 1)?;
    let x = here.float(0)?;
    here.output_shape(&x.shape)?;
    Ok(Operation::Unary(kind))
}

pub fn recognise_softcap(here: &Here<'_, '_>) -> Recognised<Operation> {
    let cap = here.finite("cap")?;
    if cap <= 0.0 {
        return invalid(format!("attribute `cap` is {cap}"));
    }
    recognise_unary(here, Unary::Softcap(cap))
}

pub fn recognise_binary(here: &Here<'_, '_>, kind: elementwise::Binary) -> Recognised<Operation> {
    here.operands(2, 2)?;
    let (a, b) = (here.float(0)?, here.float(1)?);
    let Some(broadcast) = Broadcast::of(&a.shape, &b.shape) else {
        return invalid(format!("{:?} and {:?} do not broadcast", a.shape, b.shape));
    };
    if a.shape.is_empty() && b.shape.is_empty() {
        here.output_shape(&[])?;
    } else {
        here.output_shape(&broadcast.shape)?;
    }
    Ok(Operation::Binary(kind))
}

pub fn recognise_clamp(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(3, 3)?;
    let x = here.float(0)?;
    for bound in 1..3 {
        let tensor = here.float(bound)?;
        expect(&tensor.shape, &[1], bound)?;
        if tensor.weight().is_none() {
            return unsupported(format!(
                "the bound `{}` is computed; `max` and `min` support that",
                tensor.name
            ));
        }
    }
    here.output_shape(&x.shape)?;
    Ok(Operation::Clamp)
}

pub fn recognise_glu(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(1, 1)?;
    let x = here.float(0)?;
    match x.shape.split_last() {
        Some((&last, leading)) if last % 2 == 0 => here.output_shape(&[leading, &[last / 2]].concat())?,
        _ => return invalid(format!("the last axis of {:?} cannot be halved", x.shape)),
    }
    Ok(Operation::Glu)
}

pub fn binary_follows_rows(node: &mut Following<'_, '_>) -> bool {
    let row = node.by_rows(node.output) && node.inputs.iter().any(|tensor| is_aligned(node, *tensor));
    for place in 0..node.inputs.len() {
        if !(row && is_aligned(node, node.inputs[place])) {
            node.cross(place..place + 1);
        }
    }
    row
}

/// Checks whether an operand follows rows with the same axis as the result.
fn is_aligned(node: &Following<'_, '_>, tensor: u32) -> bool {
    node.follows(tensor) && node.rank(tensor) == node.rank(node.output)
}

pub fn lower_unary(emit: &mut Emit<'_, '_>, site: &Site<'_>, kind: Unary) -> Result<Step, Error> {
    Ok(Step::Unary(step::Unary {
        kind,
        x: emit.input(site.node, 0)?,
        count: emit.extent(site.output, site.groups() * site.last()),
        out: site.out,
    }))
}

pub fn lower_clamp(emit: &mut Emit<'_, '_>, site: &Site<'_>) -> Result<Step, Error> {
    let [low, high] = bounds(emit, site.node)?;
    lower_unary(emit, site, Unary::Clamp(low, high))
}

/// Returns the bounds of a clamp.
pub fn bounds(emit: &mut Emit<'_, '_>, node: usize) -> Result<[f32; 2], Error> {
    let bounds = [1, 2].map(|place| emit.graph.input(node, place).map(|tensor| tensor.source));
    let [Some(Source::Constant(low)), Some(Source::Constant(high))] = bounds else {
        return Err(emit.missing(format!("node `{}` has no bounds", emit.graph.nodes[node].name())));
    };
    Ok([emit.weights.scalar(low)?, emit.weights.scalar(high)?])
}

pub fn lower_binary(
    emit: &mut Emit<'_, '_>,
    site: &Site<'_>,
    kind: elementwise::Binary,
) -> Result<Step, Error> {
    let b_shape = emit.graph.input(site.node, 1).map_or(&[][..], |tensor| &tensor.shape);
    let Some(broadcast) = Broadcast::of(site.x_shape, b_shape) else {
        let name = emit.graph.nodes[site.node].name();
        return Err(emit.missing(format!("node `{name}` does not broadcast")));
    };
    let flat = broadcast.merged(0);
    let whole = !emit.rows.follows[site.output as usize] || flat.shape.len() == 1;
    let broadcast = if whole { flat } else { broadcast.merged(1) };
    let outer = emit.extent(site.output, broadcast.shape[0]);
    let (a, b) = (emit.input(site.node, 0)?, emit.input(site.node, 1)?);
    Ok(Step::Binary(step::Binary { kind, broadcast, outer, a, b, out: site.out }))
}

pub fn lower_glu(emit: &mut Emit<'_, '_>, site: &Site<'_>) -> Result<Step, Error> {
    Ok(Step::Glu(step::Glu {
        x: emit.input(site.node, 0)?,
        width: site.last() as u64 / 2,
        groups: emit.extent(site.output, site.groups()),
        out: site.out,
    }))
}

impl step::Unary {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        let count = bounds.most(self.count)?;
        bounds.reads(self.x, count)?;
        bounds.writes(self.out, count, &[self.x])
    }

    #[inline]
    pub fn execute(&self, stage: &Stage<'_, '_>) {
        let Stage { memory, level, pool, rows, .. } = *stage;
        unary(level, pool, self.kind, memory.read(self.x), self.count.at(rows), memory.write(self.out));
    }
}

impl step::Gated {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        let step::Gated { gate, up, count, out, .. } = self;
        let count = bounds.most(*count)?;
        bounds.reads(*gate, count)?;
        bounds.reads(*up, count)?;
        bounds.writes(*out, count, &[*gate, *up])
    }

    #[inline]
    pub fn execute(&self, stage: &Stage<'_, '_>) {
        let Stage { memory, level, pool, rows, .. } = *stage;
        let (gate, up, count) = (memory.read(self.gate), memory.read(self.up), self.count.at(rows));
        elementwise::gated(level, pool, self.kind, gate, up, count, memory.write(self.out));
    }
}

impl step::Binary {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        let step::Binary { broadcast, outer, a, b, out, .. } = self;
        let (total, reach_a, reach_b) = bounds.broadcast(broadcast)?;
        let most = bounds.most(*outer)?;
        let inner = |strides: &[usize]| strides.last().is_some_and(|stride| *stride <= 1);
        ensure(inner(&broadcast.a) && inner(&broadcast.b), || "an innermost axis with gaps".into())?;
        ensure(most <= broadcast.shape[0] as u64, || format!("{most} steps of {}", broadcast.shape[0]))?;
        bounds.reads(*a, reach_a)?;
        bounds.reads(*b, reach_b)?;
        bounds.writes(*out, total, &[*a, *b])
    }

    #[inline]
    pub fn execute(&self, stage: &Stage<'_, '_>) {
        let Stage { memory, level, pool, rows, .. } = *stage;
        let (a, b, outer) = (memory.read(self.a), memory.read(self.b), self.outer.at(rows));
        elementwise::binary(level, pool, self.kind, &self.broadcast, outer, a, b, memory.write(self.out));
    }
}

impl step::Glu {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        let step::Glu { x, width, groups, out } = self;
        let groups = bounds.most(*groups)?;
        bounds.reads(*x, product(&[2, groups, *width])?)?;
        bounds.writes(*out, product(&[groups, *width])?, &[*x])
    }

    #[inline]
    pub fn execute(&self, stage: &Stage<'_, '_>) {
        let Stage { memory, level, pool, rows, .. } = *stage;
        let (x, groups) = (memory.read(self.x), self.groups.at(rows));
        glu(level, pool, x, self.width as usize, groups, memory.write(self.out));
    }
}
