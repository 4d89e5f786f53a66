//! The lowering's rules where they depend on the fast memory there is.

use shardwright_shim_abi::EntryView;
use shardwright_shim_abi::raw::{SW_ROLE_STATE, SW_ROLE_STATE_ROWS};
use shardwright_shim_npu::port::element_bytes;

use crate::lower::{KeyRows, Variants};
use crate::session::GraphOptions;
use crate::soc::DEFAULT_VTCM_MEGABYTES;

/// Bytes that joined keys may have of the fast memory's, in eighths. With 1, 2 and 8 MB of it keys
/// of as much compiled and keys of twice as much did not: the compiler finds no way to cut what it
/// joins.
const JOINED_EIGHTHS: u64 = 9;

/// What is taken for an entry unless flags say otherwise, with the fast memory that options give:
/// keys and values that an entry adds to stay apart from those of the state where both together do
/// not fit. Apart they cost up to a fifth of a layer more, and compile.
pub fn of(entry: EntryView<'_>, options: &GraphOptions) -> Variants {
    let rule = Variants::rules(entry);
    // The two sides of a state share its number.
    let is_added_to =
        |state: u64| entry.outputs().any(|port| port.role() == SW_ROLE_STATE_ROWS && port.index() == state);
    let states = entry.inputs().filter(|port| port.role() == SW_ROLE_STATE && is_added_to(port.index()));
    let bytes = |tensor| {
        let tensor = entry.tensor(tensor);
        let elements = tensor.shape().iter().try_fold(1u64, |count, extent| count.checked_mul(*extent))?;
        elements.checked_mul(element_bytes(tensor.dtype())?)
    };
    let largest = states.map(|port| bytes(port.tensor()).unwrap_or(u64::MAX)).max().unwrap_or(0);
    let megabytes = options.vtcm_megabytes.unwrap_or(DEFAULT_VTCM_MEGABYTES);
    let most = u64::from(megabytes) * (1 << 20) / 8 * JOINED_EIGHTHS;
    match largest > most {
        true => Variants { keys: KeyRows::Split, ..rule },
        false => rule,
    }
}
