//! A compiled artefact that is ready to run.

use shardwright_neuron_adapter::setting::MEMORY_ALIGNMENT;
use shardwright_shim_abi::{
    Bound, Buffer, Control, Error, FlagReport, HostBuffer, LoadedEntry, LoadedShard, Result, Run,
};
use shardwright_shim_npu::Power;
use shardwright_shim_npu::artefact::{Entry as _, incompatible, loads};
use shardwright_shim_npu::port::{PortKind, check_run, element_bytes};

use crate::artefact::{Artefact, Entry, Port};
use crate::compatibility;
use crate::driver::Driver;
use crate::memory::{MEMORY_KINDS, SharedBuffer};
use crate::power;
use crate::session::{Execution, Network, PaddedSide};

/// Restored networks, one for each entry point.
pub(crate) struct Shard {
    entries: Vec<Loaded>,
    flags: Vec<FlagReport>,
}

/// An entry that is ready to run.
struct Loaded {
    entry: Entry,
    execution: Execution,
    /// Number of ports that are inputs. Outputs follow.
    inputs: usize,
    /// How each port is bound.
    ways: Vec<Way>,
}

/// How a port is bound.
struct Way {
    /// Bytes in the hardware's layout.
    bytes: usize,
    /// Extents in the hardware's layout, if they differ from the port's.
    padded: Option<Vec<u64>>,
    /// A copy of an input in which rows beyond the valid ones are zero, if one is needed.
    rows: Option<HostBuffer>,
    /// Memory in the hardware's layout, if it differs from the port's layout.
    staged: Option<HostBuffer>,
}

impl Shard {
    /// Checks the artefact and then restores it with the library. A failure is returned, without a
    /// fallback.
    ///
    /// # Errors
    ///
    /// `ErrorClass::CorruptArtefact`, `ErrorClass::IncompatibleArtefact`, and the library's
    /// errors, with both versions.
    pub fn load(driver: &Driver, soc: &str, bytes: &[u8], asked: Option<Power>) -> Result<Shard> {
        let artefact = Artefact::read(bytes)?;
        let head = &artefact.descriptor.head;
        loads(compatibility::judge(head, soc, driver.maker()), || {
            format!("compile the work order for {soc} with this library")
        })
        .map_err(|error| {
            let (made, here) = (head.made_by.version(), driver.library().version());
            error.detail("made-by-version", made).detail("adapter-version", here)
        })?;
        let mut entries = Vec::with_capacity(artefact.descriptor.entries.len());
        for entry in &artefact.descriptor.entries {
            let blob = artefact.blob(entry)?;
            let restored = Network::restore(driver.library(), blob);
            let network = restored.map_err(|error| {
                // The bytes are undamaged and for this chip and this major version, so the library
                // has another reason.
                Error::from(error)
                    .detail("entry", &entry.name)
                    .detail("made-by-version", head.made_by.version())
                    .detail("made-for", &head.soc)
            })?;
            entries.push(Loaded::new(entry.clone(), network, power::boost(asked.unwrap_or(power::UNASKED)))?);
        }
        let is_simulated = driver.library().simulator().is_some();
        let flags = asked.map(|power| power::report(power, is_simulated)).into_iter().collect();
        Ok(Shard { entries, flags })
    }
}

fn invalid(reason: String) -> Error {
    Error::invalid_argument(reason)
}

impl Loaded {
    fn new(entry: Entry, network: Network, boost: u8) -> Result<Loaded> {
        let inputs = entry.ports.iter().filter(|port| port.kind != PortKind::Output).count();
        let mut ways = Vec::with_capacity(entry.ports.len());
        for (index, port) in entry.ports.iter().enumerate() {
            let (side, place) = match index < inputs {
                true => (PaddedSide::Input, index),
                false => (PaddedSide::Output, index - inputs),
            };
            let (bytes, dimensions) = network.padded(side, place, port.place.len())?;
            ways.push(Way::new(port, entry.rows, bytes, dimensions)?);
        }
        let execution = Execution::new(network, inputs, entry.ports.len() - inputs, boost)?;
        Ok(Loaded { entry, execution, inputs, ways })
    }

    fn run(&mut self, rows: usize, bound: &mut [Bound<'_>], control: Control<'_>) -> Result<()> {
        let Entry { name, rows: static_rows, ports, .. } = &self.entry;
        check_run(name, ports.len(), bound.len(), *static_rows, rows)?;
        // The library cannot be stopped while it runs, so this is the last check.
        control.proceed()?;
        for (index, ((port, way), bound)) in
            self.entry.ports.iter().zip(&self.ways).zip(bound.iter_mut()).enumerate()
        {
            let bytes = port.bytes().unwrap_or(0) as usize;
            let shared = bound
                .buffer()
                .and_then(|(buffer, offset)| Some((buffer.as_any().downcast_ref::<SharedBuffer>()?, offset)));
            let unmapped = || invalid(format!("the memory bound to `{}` cannot be mapped", port.name));
            let is_partial = (rows as u64) < self.entry.rows;
            let is_direct = way.staged.is_none() && !(is_partial && way.rows.is_some());
            if let (Some((shared, offset)), true) = (shared, is_direct) {
                match port.kind {
                    PortKind::Output => {
                        let place = index - self.inputs;
                        self.execution.output_from(place, shared.handle(), offset, bytes)?;
                    }
                    _ => self.execution.input_from(index, shared.handle(), offset, bytes)?,
                }
                continue;
            }
            if port.kind == PortKind::Output {
                let pointer = match &way.staged {
                    Some(staged) => staged.pointer(),
                    None => {
                        let memory = bound.bytes_mut()?;
                        if memory.len() != bytes {
                            return Err(unmapped());
                        }
                        memory.as_mut_ptr()
                    }
                };
                // SAFETY: memory of the binding or of this entry. Both live until the run is over,
                // and no one else writes there.
                unsafe { self.execution.output(index - self.inputs, pointer, way.bytes) }?;
                continue;
            }
            let memory = bound.bytes();
            if memory.len() != bytes {
                return Err(unmapped());
            }
            let pointer = way.input(port, self.entry.rows, rows as u64, memory);
            // SAFETY: memory of the binding or of this entry. Both live until the run is over.
            unsafe { self.execution.input(index, pointer, way.bytes) }?;
        }
        // SAFETY: every input and output was bound above.
        unsafe { self.execution.compute() }?;
        let outputs = self.entry.ports.iter().zip(&self.ways).zip(bound.iter_mut()).skip(self.inputs);
        for ((port, way), bound) in outputs {
            if let (Some(staged), Some(padded)) = (&way.staged, &way.padded) {
                let element = element_bytes(port.dtype).unwrap_or(1) as usize;
                // SAFETY: the buffer has that many bytes, written by the run that is over.
                let from = unsafe { std::slice::from_raw_parts(staged.pointer(), staged.length()) };
                copy_padded(&port.place, padded, element, |dense, at, length| {
                    if let (Ok(to), Some(from)) = (bound.bytes_mut(), from.get(at..at + length)) {
                        to[dense..dense + length].copy_from_slice(from);
                    }
                });
            }
        }
        Ok(())
    }
}

impl Way {
    fn new(port: &Port, rows: u64, bytes: usize, dimensions: Option<[u32; 4]>) -> Result<Way> {
        let dense = port.bytes().unwrap_or(0);
        let buffer = |length: usize| HostBuffer::new(length, MEMORY_ALIGNMENT);
        let copy = if port.needs_blank_rows(rows) { Some(buffer(dense as usize)?) } else { None };
        if bytes as u64 == dense {
            return Ok(Way { bytes, padded: None, rows: copy, staged: None });
        }
        let own_shape: Option<Vec<u64>> = dimensions.and_then(|dimensions| {
            let own: Vec<u64> =
                dimensions.iter().take(port.place.len()).map(|extent| u64::from(*extent)).collect();
            let element = element_bytes(port.dtype)?;
            let whole = own.iter().try_fold(element, |bytes, extent| bytes.checked_mul(*extent))?;
            let holds = own.iter().zip(&port.place).all(|(padded, extent)| padded >= extent);
            (holds && whole == bytes as u64).then_some(own)
        });
        let Some(padded) = own_shape else {
            let reason = format!(
                "the library requires {bytes} bytes for `{}` of {:?}, which has {dense}, and reports the dimensions {dimensions:?}, which do not account for them",
                port.name, port.place
            );
            let help = "this layout is unknown; another version of the adapter may pad differently";
            return Err(incompatible(reason, help));
        };
        Ok(Way { bytes, padded: Some(padded), rows: copy, staged: Some(buffer(bytes)?) })
    }

    /// Returns the pointer to bind for an input. It is the input's own memory if no copy is needed.
    fn input(&self, port: &Port, rows: u64, valid: u64, memory: &[u8]) -> *const u8 {
        let mut from = memory;
        if let (Some(copy), true) = (&self.rows, valid < rows) {
            // SAFETY: the buffer has that many bytes. It belongs to this entry, which runs one call
            // at a time.
            let to = unsafe { std::slice::from_raw_parts_mut(copy.pointer(), copy.length()) };
            port.copy_rows(rows, valid, memory, to);
            from = to;
        }
        if let (Some(staged), Some(padded)) = (&self.staged, &self.padded) {
            let element = element_bytes(port.dtype).unwrap_or(1) as usize;
            // SAFETY: as above. It is not the buffer that is read.
            let to = unsafe { std::slice::from_raw_parts_mut(staged.pointer(), staged.length()) };
            copy_padded(&port.place, padded, element, |dense, at, length| {
                if let (Some(to), Some(from)) = (to.get_mut(at..at + length), from.get(dense..dense + length))
                {
                    to.copy_from_slice(from);
                }
            });
            return staged.pointer();
        }
        from.as_ptr()
    }
}

/// Calls `each` with every run of values along the last axis: its offset in the dense layout, its
/// offset in the padded layout, and its length, all in bytes.
fn copy_padded(dense: &[u64], padded: &[u64], element: usize, mut each: impl FnMut(usize, usize, usize)) {
    let Some((last, outer)) = dense.split_last() else { return };
    let length = *last as usize * element;
    let count: u64 = outer.iter().product();
    for number in 0..count {
        let (mut rest, mut at, mut stride) = (number, 0u64, padded.last().copied().unwrap_or(1));
        for (extent, padded) in outer.iter().zip(padded).rev() {
            at += rest % extent * stride;
            rest /= extent;
            stride *= padded;
        }
        each(number as usize * length, at as usize * element, length);
    }
}

impl LoadedShard for Shard {
    fn entries(&self) -> Result<Vec<LoadedEntry>> {
        let loaded =
            |loaded: &Loaded| loaded.entry.outline().loaded(MEMORY_KINDS, |_| MEMORY_ALIGNMENT as u64);
        Ok(self.entries.iter().map(loaded).collect())
    }

    fn flag_verdicts(&self) -> Vec<FlagReport> {
        self.flags.clone()
    }

    fn run(&mut self, run: Run<'_>) -> Result<()> {
        let Run { entry, rows, mut bound, control, .. } = run;
        let count = self.entries.len();
        let Some(loaded) = self.entries.get_mut(entry) else {
            return Err(invalid(format!("no entry {entry} of {count}")));
        };
        loaded.run(rows, &mut bound, control)
    }
}

#[cfg(test)]
mod tests {
    use shardwright_shim_abi::raw::SW_DTYPE_F32;

    use super::*;

    #[test]
    fn padded_runs_stand_where_the_outer_extents_put_them() {
        let mut seen = Vec::new();
        copy_padded(&[2, 3, 5], &[2, 4, 8], 2, |dense, at, length| seen.push((dense, at, length)));
        assert_eq!(seen, [(0, 0, 10), (10, 16, 10), (20, 32, 10), (30, 64, 10), (40, 80, 10), (50, 96, 10)]);
    }

    fn port() -> Port {
        Port {
            name: "hidden".to_owned(),
            kind: PortKind::Input,
            role: 0,
            index: 0,
            dtype: SW_DTYPE_F32,
            shape: vec![3, 2],
            scale_bits: 1.0f64.to_bits(),
            zero_point: 0,
            place: vec![3, 2],
        }
    }

    #[test]
    fn rows_beyond_the_valid_ones_are_zero_for_the_library() {
        let way = Way::new(&port(), 3, 24, Some([3, 2, 1, 1])).expect("dense");
        let memory = [f32::NAN.to_le_bytes(), 1f32.to_le_bytes()].concat().repeat(3);
        let pointer = way.input(&port(), 3, 1, &memory);
        // SAFETY: the copy has that many bytes.
        let seen = unsafe { std::slice::from_raw_parts(pointer, 24) };
        assert_eq!((&seen[..8], &seen[8..]), (&memory[..8], &[0u8; 16][..]));
        assert_eq!(way.input(&port(), 3, 3, &memory), memory.as_ptr(), "all rows are bound where they lie");
    }

    #[test]
    fn padding_that_is_not_understood_is_refused_with_both_sizes() {
        let way = Way::new(&port(), 3, 48, Some([3, 4, 0, 0])).expect("padded");
        assert_eq!((way.bytes, way.padded), (48, Some(vec![3, 4])));
        for (bytes, dimensions) in [(48, Some([3, 3, 0, 0])), (16, Some([2, 2, 0, 0])), (48, None)] {
            match Way::new(&port(), 3, bytes, dimensions) {
                Err(error) => assert!(error.message.contains("24"), "{error}"),
                Ok(_) => panic!("{bytes} {dimensions:?}"),
            }
        }
    }
}
