//! Limits the work for one file, whatever it contains. Parts of a file may overlap, so a small file
//! could otherwise require any amount of reading.

use crate::{ContainerError, Result};

/// Maximum number of pieces of compiled code. Published bundles contain a handful.
const BLOBS: u64 = 1024;
/// Maximum number of counted operations. A model of 8 billion parameters has about ten thousand.
const OPERATIONS: u64 = 4 << 20;
/// Maximum number of bytes that are searched for a compiler's record.
const SEARCHED: u64 = 64 << 20;
/// Maximum number of names, numbers and texts in addition to the above.
const ENTRIES: u64 = 64 << 10;

/// Remaining budget for one file.
#[derive(Clone, Debug)]
pub struct Budget {
    blobs: u64,
    operations: u64,
    searched: u64,
    entries: u64,
    summed: u64,
    most_summed: u64,
}

fn take(left: &mut u64, count: u64, most: u64, what: &'static str, offset: u64) -> Result<()> {
    *left = left.checked_sub(count).ok_or(ContainerError::TooMany {
        what,
        offset,
        count: (most - *left).saturating_add(count),
        most,
    })?;
    Ok(())
}

impl Budget {
    /// Creates the budget for a file of `length` bytes.
    pub const fn of(length: usize) -> Self {
        // In regular files, the checksummed parts do not overlap.
        let summed = (length as u64).saturating_mul(2);
        Budget {
            blobs: BLOBS,
            operations: OPERATIONS,
            searched: SEARCHED,
            entries: ENTRIES,
            summed,
            most_summed: summed,
        }
    }

    /// Counts bytes that are checksummed.
    pub fn summed(&mut self, count: u64, offset: u64) -> Result<()> {
        take(&mut self.summed, count, self.most_summed, "bytes to sum", offset)
    }

    /// Counts one piece of compiled code.
    pub fn blob(&mut self, offset: u64) -> Result<()> {
        take(&mut self.blobs, 1, BLOBS, "pieces of compiled code", offset)
    }

    /// Counts operations.
    pub fn operations(&mut self, count: u64, offset: u64) -> Result<()> {
        take(&mut self.operations, count, OPERATIONS, "operations", offset)
    }

    /// Counts bytes that are searched.
    pub fn searched(&mut self, count: u64, offset: u64) -> Result<()> {
        take(&mut self.searched, count, SEARCHED, "bytes to search for a compiler's record", offset)
    }

    /// Counts names, numbers and texts.
    pub fn entries(&mut self, count: u64, offset: u64) -> Result<()> {
        take(&mut self.entries, count, ENTRIES, "entries", offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_ends_where_it_says() {
        let mut budget = Budget::of(100);
        for _ in 0..BLOBS {
            budget.blob(7).expect("within");
        }
        let error = budget.blob(7).expect_err("one too many");
        assert!(
            matches!(error, ContainerError::TooMany { offset: 7, count, most: BLOBS, .. } if count == BLOBS + 1)
        );
        assert!(error.help().contains("damaged"));
        assert!(budget.operations(u64::MAX, 0).is_err());
        assert!(budget.summed(200, 0).is_ok() && budget.summed(1, 0).is_err());
        assert!(budget.entries(ENTRIES, 0).is_ok() && budget.entries(1, 0).is_err());
        assert!(budget.searched(SEARCHED + 1, 0).is_err() && budget.searched(SEARCHED, 0).is_ok());
    }
}
