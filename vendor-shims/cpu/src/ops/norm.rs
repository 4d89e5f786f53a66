//! Norms over groups of values, and softmax.

use shardwright_shim_abi::Error;

use super::Operation;
use crate::execute::Stage;
use crate::kernels::norm::{LayerNorm, RmsNorm, l2_normalize, layer_norm, rms_norm, softmax};
use crate::lower::{Emit, Here, Recognised, Site, expect, invalid};
use crate::program::{Bounds, Checked, Extent, Operand, Step, product, step};

pub fn recognise_rms(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(1, 2)?;
    let x = here.float(0)?;
    let width = here.positive("width")?;
    let eps = here.finite("eps")?;
    let offset = here.finite("weight_offset")?;
    match x.shape.last() {
        Some(last) if last % width == 0 => {}
        _ => return invalid(format!("input 0 is {:?}, groups are {width} wide", x.shape)),
    }
    if here.node.optional_input(1).is_some() {
        expect(&here.float(1)?.shape, &[width], 1)?;
    }
    here.output_shape(&x.shape)?;
    Ok(Operation::RmsNorm(RmsNorm { width, eps, offset }))
}

pub fn recognise_layer(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(1, 3)?;
    let x = here.float(0)?;
    let eps = here.finite("eps")?;
    let Some(&width) = x.shape.last() else { return invalid("a scalar has no last axis") };
    for place in 1..3 {
        if here.node.optional_input(place).is_some() {
            expect(&here.float(place)?.shape, &[width], place)?;
        }
    }
    here.output_shape(&x.shape)?;
    Ok(Operation::LayerNorm { eps })
}

pub fn lower_rms(emit: &mut Emit<'_, '_>, site: &Site<'_>, norm: RmsNorm) -> Result<Step, Error> {
    Ok(Step::RmsNorm(step::RmsNorm {
        norm,
        x: emit.input(site.node, 0)?,
        weight: emit.optional(site.node, 1)?,
        residual: None,
        groups: emit.extent(site.output, site.groups() * (site.last() / norm.width)),
        out: site.out,
    }))
}

pub fn lower_layer(emit: &mut Emit<'_, '_>, site: &Site<'_>, eps: f32) -> Result<Step, Error> {
    Ok(Step::LayerNorm(step::LayerNorm {
        norm: LayerNorm { width: site.last(), eps },
        x: emit.input(site.node, 0)?,
        weight: emit.optional(site.node, 1)?,
        bias: emit.optional(site.node, 2)?,
        groups: emit.extent(site.output, site.groups()),
        out: site.out,
    }))
}

pub fn lower_l2(emit: &mut Emit<'_, '_>, site: &Site<'_>) -> Result<Step, Error> {
    Ok(Step::L2Normalize(step::L2Normalize {
        x: emit.input(site.node, 0)?,
        width: site.last() as u64,
        groups: emit.extent(site.output, site.groups()),
        out: site.out,
    }))
}

pub fn lower_softmax(emit: &mut Emit<'_, '_>, site: &Site<'_>) -> Result<Step, Error> {
    Ok(Step::Softmax(step::Softmax {
        x: emit.input(site.node, 0)?,
        width: site.last() as u64,
        groups: emit.extent(site.output, site.groups()),
        out: site.out,
    }))
}

/// Checks a step whose result has the size of its operand.
fn check_groups(bounds: &Bounds<'_>, x: Operand, width: u64, groups: Extent, out: Operand) -> Checked {
    let count = product(&[bounds.most(groups)?, width])?;
    bounds.reads(x, count)?;
    bounds.writes(out, count, &[x])
}

impl step::RmsNorm {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        let step::RmsNorm { norm, x, weight, residual, groups, out } = self;
        let count = product(&[bounds.most(*groups)?, norm.width as u64])?;
        bounds.reads(*x, count)?;
        if let Some(weight) = weight {
            bounds.reads(*weight, norm.width as u64)?;
        }
        if let Some(residual) = residual {
            bounds.reads(*residual, count)?;
        }
        bounds.writes(*out, count, &[&[*x], weight.as_slice(), residual.as_slice()].concat())
    }

    #[inline]
    pub fn execute(&self, stage: &Stage<'_, '_>) {
        let Stage { memory, level, pool, rows, .. } = *stage;
        let [weight, residual] = [self.weight, self.residual].map(|values| values.map(|at| memory.read(at)));
        let (x, groups) = (memory.read(self.x), self.groups.at(rows));
        rms_norm(level, pool, self.norm, x, weight, residual, groups, memory.write(self.out));
    }
}

impl step::LayerNorm {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        let step::LayerNorm { norm, x, weight, bias, groups, out } = self;
        let count = product(&[bounds.most(*groups)?, norm.width as u64])?;
        bounds.reads(*x, count)?;
        for values in [weight, bias].into_iter().flatten() {
            bounds.reads(*values, norm.width as u64)?;
        }
        bounds.writes(*out, count, &[&[*x], weight.as_slice(), bias.as_slice()].concat())
    }

    #[inline]
    pub fn execute(&self, stage: &Stage<'_, '_>) {
        let Stage { memory, level, pool, rows, .. } = *stage;
        let [weight, bias] = [self.weight, self.bias].map(|values| values.map(|at| memory.read(at)));
        let (x, groups) = (memory.read(self.x), self.groups.at(rows));
        layer_norm(level, pool, self.norm, x, weight, bias, groups, memory.write(self.out));
    }
}

impl step::L2Normalize {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        check_groups(bounds, self.x, self.width, self.groups, self.out)
    }

    #[inline]
    pub fn execute(&self, stage: &Stage<'_, '_>) {
        let Stage { memory, level, pool, rows, .. } = *stage;
        let (x, groups) = (memory.read(self.x), self.groups.at(rows));
        l2_normalize(level, pool, x, self.width as usize, groups, memory.write(self.out));
    }
}

impl step::Softmax {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        check_groups(bounds, self.x, self.width, self.groups, self.out)
    }

    #[inline]
    pub fn execute(&self, stage: &Stage<'_, '_>) {
        let Stage { memory, level, pool, rows, .. } = *stage;
        let (x, groups) = (memory.read(self.x), self.groups.at(rows));
        softmax(level, pool, x, self.width as usize, groups, memory.write(self.out));
    }
}
