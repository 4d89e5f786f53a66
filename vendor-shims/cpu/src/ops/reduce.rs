//! Reductions of the last axis, and means of consecutive rows.

use shardwright_shim_abi::Error;

use super::Operation;
use crate::execute::Stage;
use crate::kernels::pooling::mean_rows;
use crate::kernels::reduce::{Reduction, reduce};
use crate::lower::{Emit, Following, Here, Recognised, Site, invalid, matrix};
use crate::program::{Bounds, Checked, Extent, Step, ensure, product, step};

pub fn recognise(here: &Here<'_, '_>, kind: Reduction) -> Recognised<Operation> {
    here.operands(1, 1)?;
    let x = here.float(0)?;
    let Some((_, leading)) = x.shape.split_last() else { return invalid("a scalar has no last axis") };
    here.output_shape(&[leading, &[1]].concat())?;
    Ok(Operation::Reduce(kind))
}

pub fn recognise_mean_rows(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(1, 1)?;
    let x = here.float(0)?;
    let [all, width] = matrix(x, 0)?;
    let rows = here.positive("rows")?;
    if all % rows != 0 {
        return invalid(format!("{all} rows cannot be averaged in groups of {rows}"));
    }
    here.output_shape(&[all / rows, width])?;
    Ok(Operation::MeanRows { rows })
}

pub fn means_follow_rows(node: &mut Following<'_, '_>) -> bool {
    node.or_cross(node.follows(node.x()) && node.by_rows(node.output))
}

pub fn lower(emit: &mut Emit<'_, '_>, site: &Site<'_>, kind: Reduction) -> Result<Step, Error> {
    Ok(Step::Reduce(step::Reduce {
        kind,
        x: emit.input(site.node, 0)?,
        width: site.last() as u64,
        groups: emit.extent(site.output, site.groups()),
        out: site.out,
    }))
}

pub fn lower_mean_rows(emit: &mut Emit<'_, '_>, site: &Site<'_>, rows: usize) -> Result<Step, Error> {
    Ok(Step::MeanRows(step::MeanRows {
        x: emit.input(site.node, 0)?,
        sizes: [site.last() as u64, rows as u64],
        valid: match emit.rows.follows[site.output as usize] {
            true => emit.extent(site.x, site.x_shape[0]),
            false => Extent::Fixed(site.x_shape[0] as u64),
        },
        groups: emit.extent(site.output, site.out_shape[0]),
        out: site.out,
    }))
}

impl step::Reduce {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        let step::Reduce { x, width, groups, out, .. } = self;
        let groups = bounds.most(*groups)?;
        bounds.reads(*x, product(&[groups, *width])?)?;
        bounds.writes(*out, groups, &[*x])
    }

    #[inline]
    pub fn execute(&self, stage: &Stage<'_, '_>) {
        let Stage { memory, level, pool, rows, .. } = *stage;
        let (x, groups) = (memory.read(self.x), self.groups.at(rows));
        reduce(level, pool, self.kind, x, self.width as usize, groups, memory.write(self.out));
    }
}

impl step::MeanRows {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        let step::MeanRows { x, sizes: [width, rows], valid, groups, out } = self;
        let groups = bounds.most(*groups)?;
        ensure(*rows > 0, || "means of no rows".into())?;
        product(&[groups, *rows])?;
        bounds.reads(*x, product(&[bounds.most(*valid)?, *width])?)?;
        bounds.writes(*out, product(&[groups, *width])?, &[*x])
    }

    #[inline]
    pub fn execute(&self, stage: &Stage<'_, '_>) {
        let Stage { memory, level, pool, rows: run, .. } = *stage;
        let [width, rows] = self.sizes.map(|size| size as usize);
        let (x, valid, groups) = (memory.read(self.x), self.valid.at(run), self.groups.at(run));
        mean_rows(level, pool, x, width, rows, valid, groups, memory.write(self.out));
    }
}
