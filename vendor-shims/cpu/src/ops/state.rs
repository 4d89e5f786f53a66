//! Copy of rows to slots of a state, which changes in place.

use shardwright_shim_abi::Error;

use super::Operation;
use crate::execute::Stage;
use crate::kernels::shape::state_update;
use crate::lower::{Emit, Here, Recognised, Site, invalid, matrix};
use crate::program::{Bounds, Checked, Extent, Step, ensure, product, step};

pub fn recognise(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(3, 3)?;
    let (state, new) = (here.float(0)?, here.float(1)?);
    let [_, width] = matrix(state, 0)?;
    let [rows, new_width] = matrix(new, 1)?;
    if width != new_width || rows != here.graph.rows() {
        return invalid(format!(
            "rows {:?} do not fit a state {:?} in an entry of {} rows",
            new.shape,
            state.shape,
            here.graph.rows()
        ));
    }
    here.index_vector(2, rows)?;
    here.output_shape(&state.shape)?;
    here.same_encoding(0..2)?;
    Ok(Operation::StateUpdate)
}

pub fn lower(emit: &mut Emit<'_, '_>, site: &Site<'_>) -> Result<Step, Error> {
    Ok(Step::StateUpdate(step::StateUpdate {
        state: site.out,
        width: site.last() as u64,
        new: emit.input(site.node, 1)?,
        slots: emit.input(site.node, 2)?,
        // Rows beyond the valid ones are never written, regardless of their slots.
        rows: Extent::PerRow(1),
    }))
}

impl step::StateUpdate {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        let step::StateUpdate { state, width, new, slots, rows } = self;
        let rows = bounds.most(*rows)?;
        ensure(*width > 0 && state.elements % width == 0, || format!("a state of rows of {width} values"))?;
        bounds.reads(*new, product(&[rows, *width])?)?;
        bounds.reads(*slots, rows)?;
        bounds.writes_stored(*state, 0, &[*new, *slots])
    }

    #[inline]
    pub fn execute(&self, stage: &Stage<'_, '_>) -> Result<(), Error> {
        let Stage { memory, level, rows, .. } = *stage;
        let slots = &memory.read_i32(self.slots)[..self.rows.at(rows)];
        let (target, new) = (memory.stored_mut(self.state), memory.read(self.new));
        state_update(level, target, self.width as usize, new, slots).map_err(|outside| {
            let (row, slot, rows) = (outside.row, outside.slot, self.state.elements / self.width);
            Error::invalid_argument(format!("row {row} goes to slot {slot}, the state has {rows} rows"))
        })
    }
}
