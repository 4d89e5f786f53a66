//! Weight bytes that are assembled on first use.

use std::sync::{Arc, OnceLock};

use shardwright_graph::{WeightBytes, WeightData};
use shardwright_vocabulary::Result;

type Make = dyn Fn() -> Vec<u8> + Send + Sync;

/// Bytes that no file stores in this order. They stay in memory after their first use.
struct Made {
    length: usize,
    make: Box<Make>,
    bytes: OnceLock<Vec<u8>>,
}

impl WeightBytes for Made {
    fn bytes(&self) -> &[u8] {
        self.bytes.get_or_init(|| {
            let mut bytes = (self.make)();
            // Readers rely on the specified length, even if `make` returned a different one.
            bytes.resize(self.length, 0);
            bytes
        })
    }

    fn length(&self) -> usize {
        self.length
    }
}

/// Returns weight data of `length` bytes that `make` computes on first use. `make` must not wait
/// for other threads.
pub(crate) fn made(length: usize, make: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> Result<WeightData> {
    let source = Made { length, make: Box::new(make), bytes: OnceLock::new() };
    WeightData::new(Arc::new(source), 0, length)
}
