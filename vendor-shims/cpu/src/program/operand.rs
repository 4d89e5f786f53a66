//! Operands and counts of steps.

use serde::{Deserialize, Serialize};

/// Location of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OperandPlace {
    /// The shard's own memory, reused from step to step.
    Arena,
    Constant,
    /// A bound tensor, by port index.
    Bound(u32),
}

/// A run of values. In a bound tensor it is a run of elements, and only some steps can read these
/// in their stored encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Operand {
    pub place: OperandPlace,
    /// Index of the first value.
    pub offset: u64,
    pub elements: u64,
}

/// A count that may depend on the valid rows of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Extent {
    /// A count that is independent of the number of rows.
    Fixed(u64),
    /// A count per valid row.
    PerRow(u64),
    /// A count per group of rows with at least one valid row.
    PerRows {
        /// Rows of a group.
        rows: u64,
        count: u64,
    },
}

impl Extent {
    /// Returns the count for `rows` valid rows.
    pub fn at(self, rows: usize) -> usize {
        match self {
            Extent::Fixed(count) => count as usize,
            Extent::PerRow(count) => count as usize * rows,
            Extent::PerRows { rows: group, count } => count as usize * rows.div_ceil(group as usize),
        }
    }

    /// Returns the count for all rows, or `None` on overflow.
    pub fn most(self, rows: u64) -> Option<u64> {
        match self {
            Extent::Fixed(count) => Some(count),
            Extent::PerRow(count) => count.checked_mul(rows),
            Extent::PerRows { rows: 0, .. } => None,
            Extent::PerRows { rows: group, count } => count.checked_mul(rows.div_ceil(group)),
        }
    }
}
