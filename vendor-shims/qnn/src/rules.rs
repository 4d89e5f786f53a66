//! Rules of the lowering that depend on the size of the fast memory.

use shardwright_shim_abi::EntryView;
use shardwright_shim_abi::raw::{SW_ROLE_STATE, SW_ROLE_STATE_ROWS};
use shardwright_shim_npu::port::element_bytes;

use crate::lower::{KeyRows, Variants};
use crate::session::GraphOptions;
use crate::soc::DEFAULT_VTCM_MEGABYTES;

/// Largest size of concatenated keys relative to the fast memory, in eighths. With 1, 2 and 8 MB,
/// keys of this size compiled and keys of twice the size did not, because the compiler cannot split
/// the concatenation.
const JOINED_EIGHTHS: u64 = 9;

/// Returns the default variants for an entry, given the fast memory in the options. Flags may
/// override them. New keys and values stay separate from the state's if both together do not fit.
/// Separate ones cost up to a fifth of a layer more, but compile.
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
