//! Fuzz targets for loading and running artefacts of the CPU shim.
//!
//! **Job.** Two targets, which must return for any bytes: a whole artefact, and a program alone
//! with an artefact built around it. Artefacts that load are also run. Checksums are corrected
//! first, since they protect against accidents only and would otherwise reject every mutation.
//! `RUSTC_BOOTSTRAP=1 cargo fuzz run -s none TARGET` drives the targets from `vendor-shims/cpu`.
//! The crate's ordinary tests run them over the corpus and over damaged copies of it.
//!
//! **Not its job.** It does **not** check that results are right: the tests of the CPU shim do.

use std::collections::HashMap;
use std::sync::OnceLock;

use shardwright_shim_abi::raw::*;
use shardwright_shim_cpu::artefact::{Artefact, Checksum, FORMAT};
use shardwright_shim_testing::{Bound, ErrorObject, Host, Loaded, Memory, Region, values};

/// A target: its name and its function.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: &[Target] = &[("artefact", artefact), ("program", program)];

/// Most bytes of activations and bindings of an entry that the targets run. Step time may grow
/// quadratically with this size, as in all-pairs products.
const MOST_BYTES: u64 = 1 << 16;
/// Bytes of the weights added to a program.
const WEIGHT_BYTES: u64 = 1 << 14;
/// Bytes of the header, before the program.
const HEADER: usize = 64;
/// Offsets of the program's length and of the checksum of header and program.
const LENGTH_AT: usize = 24;
const SUM_AT: usize = 48;
const PAGE: u64 = 4096;

/// Fuzzes a whole artefact.
pub fn artefact(bytes: &[u8]) {
    let mut region = Region::new(bytes);
    mend(region.bytes_mut());
    target(&region);
}

/// Fuzzes the program of an artefact.
pub fn program(bytes: &[u8]) {
    target(&around(bytes));
}

fn target(region: &Region) {
    static HOST: OnceLock<Host> = OnceLock::new();
    // One thread, started once: no call leaves state for the next.
    let host = HOST.get_or_init(|| {
        Host::open(shardwright_shim_cpu::shim_entry(), "cpu", &[("threads", "1")]).expect("opened")
    });
    for largest in [0, 2] {
        if let Err(failure) = load_and_run(host, region, largest, MOST_BYTES) {
            let known = [SW_ERROR_CORRUPT_ARTEFACT, SW_ERROR_INCOMPATIBLE_ARTEFACT, SW_ERROR_RESOURCE_LIMIT];
            assert!(known.contains(&failure.class), "{failure:?}");
        }
    }
}

/// Returns the end of an artefact's program according to its header, or `None` if the header is
/// missing or the artefact is too short.
pub fn program_end(bytes: &[u8]) -> Option<usize> {
    let length = bytes.get(LENGTH_AT..LENGTH_AT + 8)?.try_into().ok().map(u64::from_le_bytes)?;
    let end = usize::try_from(length).ok()?.checked_add(HEADER)?;
    (end <= bytes.len()).then_some(end)
}

/// Returns the bytes of an artefact's program.
pub fn program_of(bytes: &[u8]) -> Option<&[u8]> {
    bytes.get(HEADER..program_end(bytes)?)
}

/// Corrects the checksum of header and program, if both exist.
pub fn mend(bytes: &mut [u8]) {
    if let Some(end) = program_end(bytes) {
        let mut sum = Checksum::default();
        sum.add(&bytes[..SUM_AT]);
        sum.add(&bytes[HEADER..end]);
        bytes[SUM_AT..SUM_AT + 8].copy_from_slice(&sum.finish().to_le_bytes());
    }
}

/// Builds an artefact around a program, with weights of almost every byte value.
pub fn around(program: &[u8]) -> Region {
    let weights_at = (HEADER as u64 + program.len() as u64).next_multiple_of(PAGE);
    let total = weights_at + WEIGHT_BYTES + 16;
    let mut bytes = b"SWCPUART".to_vec();
    for number in [u64::from(FORMAT), total, program.len() as u64, weights_at, WEIGHT_BYTES, 0, 0] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(program);
    bytes.resize(weights_at as usize, 0);
    // The period is not a power of two, so no two rows of weights are alike.
    bytes.extend((0..WEIGHT_BYTES).map(|at| (at % 251) as u8));
    // The checksum of the weights is verified only on request, so zero will do.
    bytes.extend([0; 8]);
    bytes.extend(b"SWCPUEND");
    mend(&mut bytes);
    Region::new(&bytes)
}

/// Loads an artefact, and runs every entry whose activations and bindings have at most `most`
/// bytes, with one row and with all. Returns an error if loading fails.
///
/// # Panics
/// If the loaded artefact cannot be read, or if a run fails with an error other than an invalid
/// argument.
pub fn load_and_run(host: &Host, region: &Region, largest: u64, most: u64) -> Result<(), ErrorObject> {
    let mut loaded = host.load(region, &[])?;
    let Artefact { program, .. } = Artefact::read(region.bytes()).expect("what loaded can be read");
    for (index, entry) in program.entries.iter().enumerate() {
        let Some(left) = entry.arena.checked_mul(4).and_then(|arena| most.checked_sub(arena)) else {
            continue;
        };
        for rows in [1, entry.rows as usize] {
            let Some(mut bound) = bind(&loaded, index, left) else { continue };
            if let Err(failure) = loaded.run_for_largest(&entry.name, rows, &mut bound, largest) {
                assert_eq!(failure.class, SW_ERROR_INVALID_ARGUMENT, "{failure:?}");
            }
        }
    }
    Ok(())
}

/// Creates a value for every binding of an entry. Returns `None` if together they have more than
/// `most` bytes or two share a name.
pub fn bind(loaded: &Loaded<'_>, entry: usize, most: u64) -> Option<HashMap<String, Bound>> {
    let bindings = &loaded.entries[entry].1;
    if bindings.iter().map(|binding| binding.bytes).fold(0, u64::saturating_add) > most {
        return None;
    }
    let mut bound = HashMap::new();
    for binding in bindings {
        let count = binding.shape.iter().product::<u64>() as usize;
        let value = match binding.dtype {
            SW_DTYPE_I32 => Bound::I32((0..count as i32).collect()),
            SW_DTYPE_F32 => Bound::F32(values(count, 3, 1.0)),
            other => Bound::poison(other, binding.bytes),
        };
        // Two bindings of the same name cannot be distinguished here.
        if bound.insert(binding.name.clone(), value).is_some() {
            return None;
        }
    }
    Some(bound)
}
