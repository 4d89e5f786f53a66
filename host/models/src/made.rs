//! Weight bytes that are put together when they are first read.

use std::sync::{Arc, OnceLock};

use shardwright_graph::{WeightBytes, WeightData};

use crate::CheckpointError;

type Make = dyn Fn() -> Vec<u8> + Send + Sync;

/// Bytes that no file has in this order. They stay in memory from their first reading on.
struct Made {
    length: usize,
    make: Box<Make>,
    bytes: OnceLock<Vec<u8>>,
}

impl WeightBytes for Made {
    fn bytes(&self) -> &[u8] {
        self.bytes.get_or_init(|| {
            let mut bytes = (self.make)();
            // Whatever was made, the length is the one that was promised.
            bytes.resize(self.length, 0);
            bytes
        })
    }

    fn length(&self) -> usize {
        self.length
    }
}

/// The data that `make` will make, of that length. It must not wait for other threads.
pub(crate) fn made(
    length: usize,
    make: impl Fn() -> Vec<u8> + Send + Sync + 'static,
) -> Result<WeightData, CheckpointError> {
    let source = Made { length, make: Box::new(make), bytes: OnceLock::new() };
    Ok(WeightData::new(Arc::new(source), 0, length)?)
}
