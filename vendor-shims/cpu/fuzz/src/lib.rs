//! Bytes of anyone's for the loader of the CPU shim's artefacts, and for whatever it takes.
//!
//! **Job.** Two targets, which must return whatever the bytes are: a whole artefact, and a program
//! alone with an artefact made around it. What loads is run. Checksums are made to fit, since they
//! protect against accidents only and would stop every other damage at the door.
//! `RUSTC_BOOTSTRAP=1 cargo fuzz run -s none TARGET` drives them from `vendor-shims/cpu`, and the
//! crate's ordinary tests run them over the corpus and over damaged copies of it.
//!
//! **Not its job.** It does **not** check that results are right: the tests of the crate beside it
//! do.

use std::collections::HashMap;
use std::sync::OnceLock;

use shardwright_shim_abi::raw::*;
use shardwright_shim_cpu::artefact::{Artefact, Checksum, FORMAT};
use shardwright_shim_testing::{Bound, Failure, Host, Loaded, Memory, Region, values};

/// A target: its name and its function.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[("artefact", artefact), ("program", program)];

/// Most bytes of activations and bindings of an entry that the targets run. Steps may take the
/// square of it in time: products of all with all.
const MOST_BYTES: u64 = 1 << 16;
/// Bytes of the weights around a program that came without.
const WEIGHT_BYTES: u64 = 1 << 14;
/// Bytes before the program.
const HEADER: usize = 64;
/// Where the program's length and the checksum of header and program stand.
const LENGTH_AT: usize = 24;
const SUM_AT: usize = 48;
const PAGE: u64 = 4096;

/// A whole artefact.
pub fn artefact(bytes: &[u8]) {
    let mut region = Region::new(bytes);
    mend(region.bytes_mut());
    target(&region);
}

/// The program of an artefact.
pub fn program(bytes: &[u8]) {
    target(&around(bytes));
}

fn target(region: &Region) {
    static HOST: OnceLock<Host> = OnceLock::new();
    // One thread, and nothing asked for at load: a call leaves nothing behind.
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

/// Where the program of an artefact ends by what its header says; nothing where there is no header
/// or the artefact ends before.
pub fn program_end(bytes: &[u8]) -> Option<usize> {
    let length = bytes.get(LENGTH_AT..LENGTH_AT + 8)?.try_into().ok().map(u64::from_le_bytes)?;
    let end = usize::try_from(length).ok()?.checked_add(HEADER)?;
    (end <= bytes.len()).then_some(end)
}

/// The bytes of the program of an artefact.
pub fn program_of(bytes: &[u8]) -> Option<&[u8]> {
    bytes.get(HEADER..program_end(bytes)?)
}

/// Makes the checksum of header and program fit, where there are both.
pub fn mend(bytes: &mut [u8]) {
    if let Some(end) = program_end(bytes) {
        let mut sum = Checksum::default();
        sum.add(&bytes[..SUM_AT]);
        sum.add(&bytes[HEADER..end]);
        bytes[SUM_AT..SUM_AT + 8].copy_from_slice(&sum.finish().to_le_bytes());
    }
}

/// An artefact around a program, with weights of every byte there is.
pub fn around(program: &[u8]) -> Region {
    let weights_at = (HEADER as u64 + program.len() as u64).next_multiple_of(PAGE);
    let total = weights_at + WEIGHT_BYTES + 16;
    let mut bytes = b"SWCPUART".to_vec();
    for number in [u64::from(FORMAT), total, program.len() as u64, weights_at, WEIGHT_BYTES, 0, 0] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(program);
    bytes.resize(weights_at as usize, 0);
    // Not a power of two of bytes, so that no two rows of weights are alike.
    bytes.extend((0..WEIGHT_BYTES).map(|at| (at % 251) as u8));
    // Nobody asks for the checksum of the weights.
    bytes.extend([0; 8]);
    bytes.extend(b"SWCPUEND");
    mend(&mut bytes);
    Region::new(&bytes)
}

/// Loads an artefact, and runs every entry whose activations and bindings have at most so many
/// bytes: with one row and with all. Fails as loading does.
///
/// # Panics
/// When what was loaded cannot be read, or a run fails otherwise than by refusing what it was
/// given.
pub fn load_and_run(host: &Host, region: &Region, largest: u64, most: u64) -> Result<(), Failure> {
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

/// Something for every binding of an entry, unless all have more than `most` bytes or two share a
/// name.
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
        // Two bindings of one name cannot be told apart here.
        if bound.insert(binding.name.clone(), value).is_some() {
            return None;
        }
    }
    Some(bound)
}
