//! Attention to the rows just before, with scores for each distance.

use shardwright_shim_abi::Error;

use super::Operation;
use crate::execute::Stage;
use crate::kernels::relative::{Operands, Relative, relative_attention, scratch_values};
use crate::lower::{Emit, Here, Recognised, Site, expect, invalid, matrix};
use crate::program::{Bounds, Checked, Entry, Step, ensure, product, step};

pub fn recognise(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(4, 4)?;
    let (q, by_distance) = (here.float(0)?, here.float(3)?);
    let (heads, head_dim) = (here.positive("heads")?, here.positive("head_dim")?);
    let softcap = here.finite("softcap")?;
    let [rows, width] = matrix(q, 0)?;
    if heads.checked_mul(head_dim) != Some(width) || softcap < 0.0 {
        let reason = format!("invalid: {heads} heads of {head_dim} in rows of {width}, capped at {softcap}");
        return invalid(reason);
    }
    for place in 1..3 {
        expect(&here.float(place)?.shape, &[rows, width], place)?;
    }
    let [of, all] = matrix(by_distance, 3)?;
    let window = all / heads;
    if window == 0 {
        return invalid(format!("{all} scores by distance do not fit {heads} heads"));
    }
    expect(&[of, all], &[rows, heads * window], 3)?;
    here.output_shape(&q.shape)?;
    Ok(Operation::RelativeAttention(Relative { heads, head_dim, window, softcap }))
}

pub fn lower(emit: &mut Emit<'_, '_>, site: &Site<'_>, relative: Relative) -> Result<Step, Error> {
    Ok(Step::RelativeAttention(step::RelativeAttention {
        relative,
        q: emit.input(site.node, 0)?,
        k: emit.input(site.node, 1)?,
        v: emit.input(site.node, 2)?,
        by_distance: emit.input(site.node, 3)?,
        rows: emit.extent(site.output, site.x_shape[0]),
        out: site.out,
    }))
}

impl step::RelativeAttention {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        let step::RelativeAttention { relative, q, k, v, by_distance, rows, out } = self;
        let width = product(&[relative.heads as u64, relative.head_dim as u64])?;
        ensure(width > 0 && relative.window > 0, || format!("broken {relative:?}"))?;
        let rows = bounds.most(*rows)?;
        let count = product(&[rows, width])?;
        for values in [q, k, v] {
            bounds.reads(*values, count)?;
        }
        bounds.reads(*by_distance, product(&[rows, relative.heads as u64, relative.window as u64])?)?;
        bounds.writes(*out, count, &[*q, *k, *v, *by_distance])
    }

    pub fn scratch(&self, entry: &Entry, threads: usize) -> Option<usize> {
        let rows = usize::try_from(self.rows.most(entry.rows)?).ok()?;
        scratch_values(self.relative, rows, threads)
    }

    #[inline]
    pub fn execute(&self, stage: &mut Stage<'_, '_>) {
        let Stage { memory, level, pool, rows, .. } = *stage;
        let [q, k, v, by_distance] =
            [self.q, self.k, self.v, self.by_distance].map(|operand| memory.read(operand));
        let operands = Operands { q, k, v, by_distance };
        let (rows, out) = (self.rows.at(rows), memory.write(self.out));
        relative_attention(level, pool, self.relative, operands, rows, stage.scratch, out);
    }
}
