//! Steps without an operation: values of encoded tensors, and zeros beyond the valid rows.

use crate::execute::Stage;
use crate::kernels::encoding::{Element, decode, encode, nearest};
use crate::program::{Bounds, Checked, ensure, step};

impl step::Decode {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        let count = bounds.most(self.count)?;
        bounds.reads_stored(self.source, count)?;
        bounds.writes(self.out, count, &[self.source])
    }

    #[inline]
    pub fn execute(&self, stage: &Stage<'_, '_>) {
        let Stage { memory, level, pool, rows, .. } = *stage;
        let (source, count) = (memory.stored(self.source), self.count.at(rows));
        decode(level, pool, source, count, memory.write(self.out));
    }
}

impl step::Encode {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        let count = bounds.most(self.count)?;
        bounds.reads(self.x, count)?;
        bounds.writes_stored(self.target, count, &[self.x])
    }

    #[inline]
    pub fn execute(&self, stage: &Stage<'_, '_>) {
        let Stage { memory, level, pool, rows, .. } = *stage;
        encode(level, pool, memory.read(self.x), self.count.at(rows), memory.stored_mut(self.target));
    }
}

impl step::Nearest {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        let step::Nearest { encoding, count, values } = self;
        let value = encoding.is_consistent() && encoding.element != Element::I32;
        ensure(value, || format!("values as {encoding:?}"))?;
        bounds.writes(*values, bounds.most(*count)?, &[])
    }

    #[inline]
    pub fn execute(&self, stage: &Stage<'_, '_>) {
        let Stage { memory, level, pool, rows, .. } = *stage;
        nearest(level, pool, self.encoding, self.count.at(rows), memory.write(self.values));
    }
}

impl step::ZeroTail {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        bounds.writes(self.target, bounds.most(self.valid)?, &[])
    }

    #[inline]
    pub fn execute(&self, stage: &Stage<'_, '_>) {
        stage.memory.write(self.target)[self.valid.at(stage.rows)..].fill(0.0);
    }
}
