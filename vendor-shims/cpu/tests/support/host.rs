//! The host's side of the door, as small as a test needs.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};

use shardwright_shim_abi::raw::*;

use super::tables::{bits_of, leak, list, text};

/// An error object, copied out.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub class: u32,
    pub message: String,
    pub details: Vec<(String, String)>,
}

impl Failure {
    pub fn detail(&self, key: &str) -> Option<&str> {
        self.details.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }
}

/// Page-aligned bytes, as a mapping is.
pub struct Region {
    pages: Vec<Page>,
    length: usize,
}

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

impl Region {
    pub fn new(bytes: &[u8]) -> Region {
        let mut pages = vec![Page([0; 4096]); bytes.len().div_ceil(4096)];
        for (page, chunk) in pages.iter_mut().zip(bytes.chunks(4096)) {
            page.0[..chunk.len()].copy_from_slice(chunk);
        }
        Region { pages, length: bytes.len() }
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: pages are plain bytes, `length` of which were copied in.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr().cast(), self.length) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast(), self.length) }
    }
}

/// What compile gave.
pub struct Compiled {
    pub artefact: Region,
    pub head: Vec<u8>,
    pub flags: Vec<(String, u32, String)>,
    pub placements: Vec<(u64, u64, String)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct BindingInfo {
    pub name: String,
    pub direction: u32,
    pub role: u32,
    pub dtype: u32,
    pub update: u32,
    pub shape: Vec<u64>,
    pub bytes: u64,
}

/// An open instance.
pub struct Host {
    table: &'static SwTable,
    shim: *mut SwShim,
    device: *const c_char,
}

// SAFETY: a shim's instance may be used from any thread, one call at a time.
unsafe impl Send for Host {}

unsafe fn string(pointer: *const c_char) -> String {
    // SAFETY: the shim's strings end with NUL.
    unsafe { CStr::from_ptr(pointer) }.to_str().expect("UTF-8").to_owned()
}

fn options(pairs: &[(&str, &str)]) -> Vec<&'static SwOption> {
    pairs
        .iter()
        .map(|(key, value)| {
            leak(SwOption { size: size_of::<SwOption>() as u64, key: text(key), value: text(value) })
        })
        .collect()
}

impl Host {
    pub fn table() -> &'static SwTable {
        let host = leak(SwHost {
            size: size_of::<SwHost>() as u64,
            version_min: SW_VERSION_0_1,
            version_max: SW_VERSION,
            name: text("test"),
            log: None,
            log_context: null_mut(),
        });
        // SAFETY: all zeros is a valid answer, as the contract says.
        let mut answer: SwAnswer = unsafe { std::mem::zeroed() };
        answer.size = size_of::<SwAnswer>() as u64;
        // SAFETY: both structs are as the contract says.
        unsafe { (shardwright_shim_cpu::shim_entry())(host, &mut answer) };
        assert!(!answer.table.is_null(), "refused");
        // SAFETY: the table is static.
        unsafe { &*answer.table }
    }

    pub fn open(pairs: &[(&str, &str)]) -> Result<Host, Failure> {
        let table = Host::table();
        let pairs = options(pairs);
        let mut shim = null_mut();
        let host = SwHost {
            size: size_of::<SwHost>() as u64,
            version_min: SW_VERSION_0_1,
            version_max: SW_VERSION,
            name: text("test"),
            log: None,
            log_context: null_mut(),
        };
        let open = table.open.expect("required");
        let count = pairs.len() as u64;
        // SAFETY: everything outlives the call.
        let error = unsafe { open(leak(host), list(pairs).cast(), count, &mut shim) };
        Host::failed(table, error)?;
        Ok(Host { table, shim, device: text("cpu") })
    }

    fn failed(table: &SwTable, error: *mut SwError) -> Result<(), Failure> {
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: an error object of the shim, freed once below.
        unsafe {
            let raw = &*error;
            let details = (0..raw.detail_count as usize)
                .map(|index| {
                    let detail = &**raw.details.add(index);
                    (string(detail.key), string(detail.value))
                })
                .collect();
            let failure = Failure { class: raw.error_class, message: string(raw.message), details };
            if let Some(free) = table.error_free {
                free(error);
            }
            Err(failure)
        }
    }

    pub fn on_device(mut self, device: &str) -> Host {
        self.device = text(device);
        self
    }

    /// Verdict and reason per node.
    pub fn check(&self, entry: &SwEntry) -> Result<Vec<(u32, String)>, Failure> {
        type Told = HashMap<u64, (u32, String)>;
        unsafe extern "C" fn item(context: *mut c_void, verdict: *const SwVerdict) {
            // SAFETY: the context is the map below, the verdict the shim's.
            unsafe {
                let told = &mut *context.cast::<Told>();
                let verdict = &*verdict;
                let reason = if verdict.reason.is_null() { String::new() } else { string(verdict.reason) };
                told.insert(verdict.node, (verdict.verdict, reason));
            }
        }
        let mut told = Told::new();
        let sink = SwVerdictSink {
            size: size_of::<SwVerdictSink>() as u64,
            context: (&raw mut told).cast(),
            item: Some(item),
        };
        let check = self.table.check.expect("required");
        // SAFETY: everything outlives the call.
        let error = unsafe { check(self.shim, self.device, entry, &sink) };
        Host::failed(self.table, error)?;
        Ok((0..entry.node_count).map(|node| told.remove(&node).expect("a verdict per node")).collect())
    }

    /// Microseconds, bytes, uncosted nodes.
    pub fn estimate(&self, entry: &SwEntry) -> Result<(u64, u64, Vec<u64>), Failure> {
        type Told = Option<(u64, u64, Vec<u64>, u32)>;
        unsafe extern "C" fn item(context: *mut c_void, estimate: *const SwEstimate) {
            // SAFETY: the context is the option below, the estimate the shim's.
            unsafe {
                let estimate = &*estimate;
                let uncosted =
                    (0..estimate.uncosted_count as usize).map(|i| *estimate.uncosted.add(i)).collect();
                *context.cast::<Told>() =
                    Some((estimate.time_microseconds, estimate.bytes_moved, uncosted, estimate.provenance));
            }
        }
        let mut told: Told = None;
        let sink = SwEstimateSink {
            size: size_of::<SwEstimateSink>() as u64,
            context: (&raw mut told).cast(),
            item: Some(item),
        };
        let estimate = self.table.estimate.expect("offered");
        // SAFETY: everything outlives the call.
        let error = unsafe { estimate(self.shim, self.device, entry, &sink) };
        Host::failed(self.table, error)?;
        let (time, bytes, uncosted, provenance) = told.expect("an estimate");
        assert_eq!(provenance, SW_PROVENANCE_MODELLED);
        Ok((time, bytes, uncosted))
    }

    pub fn compile(&self, entries: &[&'static SwEntry], flags: &[(&str, &str)]) -> Result<Compiled, Failure> {
        self.compile_until(entries, flags, usize::MAX)
    }

    /// Asks to stop after so many calls of progress or cancelled.
    pub fn compile_until(
        &self,
        entries: &[&'static SwEntry],
        flags: &[(&str, &str)],
        patience: usize,
    ) -> Result<Compiled, Failure> {
        #[derive(Default)]
        struct Output {
            bytes: Vec<u8>,
            head: Vec<u8>,
            flags: Vec<(String, u32, String)>,
            placements: Vec<(u64, u64, String)>,
            patience: usize,
        }
        unsafe extern "C" fn write(context: *mut c_void, bytes: *const c_void, length: u64) -> u32 {
            // SAFETY: the context is the output below; the shim hands over `length` bytes.
            unsafe {
                if length > 0 {
                    let bytes = std::slice::from_raw_parts(bytes.cast::<u8>(), length as usize);
                    (*context.cast::<Output>()).bytes.extend_from_slice(bytes);
                }
            }
            0
        }
        unsafe extern "C" fn head(context: *mut c_void, bytes: *const c_void, length: u64) -> u32 {
            // SAFETY: as above.
            unsafe {
                (*context.cast::<Output>()).head =
                    std::slice::from_raw_parts(bytes.cast::<u8>(), length as usize).to_vec();
            }
            0
        }
        unsafe extern "C" fn progress(_: *mut c_void, per_mille: u32, _: *const c_char) {
            assert!(per_mille <= 1000);
        }
        unsafe extern "C" fn cancelled(context: *mut c_void) -> u32 {
            // SAFETY: as above.
            let output = unsafe { &mut *context.cast::<Output>() };
            output.patience = output.patience.saturating_sub(1);
            u32::from(output.patience == 0)
        }
        unsafe extern "C" fn flag(context: *mut c_void, verdict: *const SwFlagVerdict) {
            // SAFETY: as above.
            unsafe {
                let verdict = &*verdict;
                let told = (string(verdict.name), verdict.verdict, string(verdict.evidence));
                (*context.cast::<Output>()).flags.push(told);
            }
        }
        unsafe extern "C" fn placement(context: *mut c_void, placement: *const SwPlacement) {
            // SAFETY: as above.
            unsafe {
                let placement = &*placement;
                let told = (placement.entry, placement.node, string(placement.place));
                (*context.cast::<Output>()).placements.push(told);
            }
        }
        let mut output = Output { patience, ..Output::default() };
        let sink = SwCompileOutput {
            size: size_of::<SwCompileOutput>() as u64,
            context: (&raw mut output).cast(),
            write: Some(write),
            head: Some(head),
            progress: Some(progress),
            cancelled: Some(cancelled),
            flag: Some(flag),
            placement: Some(placement),
        };
        let flags = options(flags);
        let order = SwWorkOrder {
            size: size_of::<SwWorkOrder>() as u64,
            name: text("order"),
            entry_count: entries.len() as u64,
            entries: list(entries.to_vec()).cast(),
            weights: null(),
            weight_count: 0,
            flag_count: flags.len() as u64,
            flags: list(flags).cast(),
            options: null(),
            option_count: 0,
        };
        let compile = self.table.compile.expect("offered");
        // SAFETY: everything outlives the call.
        let error = unsafe { compile(self.shim, self.device, &order, &sink) };
        Host::failed(self.table, error)?;
        Ok(Compiled {
            artefact: Region::new(&output.bytes),
            head: output.head,
            flags: output.flags,
            placements: output.placements,
        })
    }

    /// The answer about a head.
    pub fn compatibility(&self, head: &[u8]) -> Result<u32, Failure> {
        unsafe extern "C" fn item(context: *mut c_void, compatibility: *const SwCompatibility) {
            // SAFETY: the context is the number below, the answer the shim's.
            unsafe { *context.cast::<u32>() = (*compatibility).answer };
        }
        let mut answer = 0u32;
        let sink = SwCompatibilitySink {
            size: size_of::<SwCompatibilitySink>() as u64,
            context: (&raw mut answer).cast(),
            item: Some(item),
        };
        let compatibility = self.table.compatibility.expect("required");
        // SAFETY: everything outlives the call.
        let error =
            unsafe { compatibility(self.shim, self.device, head.as_ptr().cast(), head.len() as u64, &sink) };
        Host::failed(self.table, error)?;
        Ok(answer)
    }

    pub fn load<'h>(&'h self, artefact: &'h Region, pairs: &[(&str, &str)]) -> Result<Loaded<'h>, Failure> {
        self.load_bytes(artefact.bytes(), pairs)
    }

    pub fn load_bytes<'h>(&'h self, bytes: &'h [u8], pairs: &[(&str, &str)]) -> Result<Loaded<'h>, Failure> {
        let mapping = SwArtefact {
            size: size_of::<SwArtefact>() as u64,
            head: null(),
            head_length: 0,
            pointer: bytes.as_ptr().cast(),
            length: bytes.len() as u64,
            fd: -1,
            reserved: 0,
            fd_offset: 0,
        };
        let pairs = options(pairs);
        let count = pairs.len() as u64;
        let mut shard = null_mut();
        let load = self.table.load.expect("offered");
        // SAFETY: the mapping outlives the loaded shard by its lifetime.
        let error = unsafe { load(self.shim, self.device, &mapping, list(pairs).cast(), count, &mut shard) };
        Host::failed(self.table, error)?;
        let mut loaded = Loaded { host: self, shard, entries: Vec::new() };
        loaded.entries = loaded.told()?;
        Ok(loaded)
    }

    /// Names of devices, of flags, of limits.
    pub fn names(&self, soc: Option<&str>) -> [Vec<String>; 3] {
        macro_rules! item {
            ($name:ident, $type:ty) => {
                unsafe extern "C" fn $name(context: *mut c_void, told: *const $type) {
                    // SAFETY: the context is a list of names, the struct the shim's.
                    unsafe { (*context.cast::<Vec<String>>()).push(string((*told).name)) };
                }
            };
        }
        item!(device, SwDevice);
        item!(flag, SwFlag);
        item!(limit, SwLimit);
        let mut names = [Vec::new(), Vec::new(), Vec::new()];
        let context = |list: &mut Vec<String>| (&raw mut *list).cast::<c_void>();
        let size = size_of::<SwDeviceSink>() as u64;
        let soc = soc.map_or(null(), text);
        let [devices, flags, limits] = &mut names;
        // SAFETY: everything outlives the calls.
        unsafe {
            let sink = SwDeviceSink { size, context: context(devices), item: Some(device) };
            Host::failed(self.table, (self.table.devices.expect("required"))(self.shim, soc, &sink))
                .expect("devices");
            let sink = SwFlagSink { size, context: context(flags), item: Some(flag) };
            let error = (self.table.flags.expect("offered"))(self.shim, self.device, &sink);
            Host::failed(self.table, error).expect("flags");
            let sink = SwLimitSink { size, context: context(limits), item: Some(limit) };
            let error = (self.table.limits.expect("offered"))(self.shim, self.device, &sink);
            Host::failed(self.table, error).expect("limits");
        }
        names
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(close) = self.table.close {
            // SAFETY: opened once, closed once; shards borrow the host.
            unsafe { close(self.shim) };
        }
    }
}

/// A loaded artefact: per entry its name and bindings.
pub struct Loaded<'h> {
    host: &'h Host,
    shard: *mut SwShard,
    pub entries: Vec<(String, Vec<BindingInfo>)>,
}

// SAFETY: a shard may be used from any thread, one run at a time.
unsafe impl Send for Loaded<'_> {}
// SAFETY: only `cancel` takes a shared reference from another thread, which the contract allows.
unsafe impl Sync for Loaded<'_> {}

/// Values for one binding.
#[derive(Clone, Debug, PartialEq)]
pub enum Bound {
    F32(Vec<f32>),
    I32(Vec<i32>),
    /// Bits of any type of two bytes.
    U16(Vec<u16>),
    /// Bits of any type of one byte.
    U8(Vec<u8>),
}

impl Bound {
    pub fn f32(&self) -> &[f32] {
        match self {
            Bound::F32(values) => values,
            _ => panic!("integers"),
        }
    }

    /// `count` elements of nothing in particular.
    pub fn poison(dtype: u32, count: usize) -> Bound {
        match bits_of(dtype) {
            32 => Bound::F32(vec![f32::NAN; count]),
            16 => Bound::U16(vec![0x7e11; count]),
            _ => Bound::U8(vec![0x5a; count]),
        }
    }
}

impl Loaded<'_> {
    fn told(&self) -> Result<Vec<(String, Vec<BindingInfo>)>, Failure> {
        unsafe extern "C" fn entry_item(context: *mut c_void, entry: *const SwLoadedEntry) {
            // SAFETY: the context is the list below, the entry the shim's.
            unsafe { (*context.cast::<Vec<String>>()).push(string((*entry).name)) };
        }
        unsafe extern "C" fn binding_item(context: *mut c_void, binding: *const SwBinding) {
            // SAFETY: the context is the list below, the binding the shim's.
            unsafe {
                let binding = &*binding;
                let shape = (0..binding.rank as usize).map(|axis| *binding.shape.add(axis)).collect();
                (*context.cast::<Vec<BindingInfo>>()).push(BindingInfo {
                    name: string(binding.name),
                    direction: binding.direction,
                    role: binding.role,
                    dtype: binding.dtype,
                    update: binding.update,
                    shape,
                    bytes: binding.bytes,
                });
            }
        }
        let table = self.host.table;
        let mut names: Vec<String> = Vec::new();
        let sink = SwLoadedEntrySink {
            size: size_of::<SwLoadedEntrySink>() as u64,
            context: (&raw mut names).cast(),
            item: Some(entry_item),
        };
        // SAFETY: everything outlives the call.
        let error = unsafe { (table.entries.expect("offered"))(self.shard, &sink) };
        Host::failed(table, error)?;
        let mut entries = Vec::new();
        for (index, name) in names.into_iter().enumerate() {
            let mut bindings: Vec<BindingInfo> = Vec::new();
            let sink = SwBindingSink {
                size: size_of::<SwBindingSink>() as u64,
                context: (&raw mut bindings).cast(),
                item: Some(binding_item),
            };
            // SAFETY: everything outlives the call.
            let error = unsafe { (table.bindings.expect("offered"))(self.shard, index as u64, &sink) };
            Host::failed(table, error)?;
            entries.push((name, bindings));
        }
        Ok(entries)
    }

    /// Runs an entry by name; `bound` by binding name, outputs are added or overwritten.
    pub fn run(
        &mut self,
        entry: &str,
        rows: usize,
        bound: &mut HashMap<String, Bound>,
    ) -> Result<(), Failure> {
        self.run_until(entry, rows, bound, 0)
    }

    pub fn run_until(
        &mut self,
        entry: &str,
        rows: usize,
        bound: &mut HashMap<String, Bound>,
        deadline_nanoseconds: u64,
    ) -> Result<(), Failure> {
        let index = self.entries.iter().position(|(name, _)| name == entry).expect("an entry of that name");
        let bindings = self.entries[index].1.clone();
        let mut bounds: Vec<SwBound> = Vec::new();
        for binding in &bindings {
            if binding.direction == SW_BINDING_OUTPUT {
                let count = binding.shape.iter().product::<u64>() as usize;
                bound.insert(binding.name.clone(), Bound::poison(binding.dtype, count));
            }
        }
        for binding in &bindings {
            let held =
                bound.get_mut(&binding.name).unwrap_or_else(|| panic!("`{}` is not bound", binding.name));
            let (pointer, length) = match held {
                Bound::F32(values) => (values.as_mut_ptr().cast::<c_void>(), values.len() * 4),
                Bound::I32(values) => (values.as_mut_ptr().cast::<c_void>(), values.len() * 4),
                Bound::U16(values) => (values.as_mut_ptr().cast::<c_void>(), values.len() * 2),
                Bound::U8(values) => (values.as_mut_ptr().cast::<c_void>(), values.len()),
            };
            bounds.push(SwBound {
                size: size_of::<SwBound>() as u64,
                buffer: null_mut(),
                pointer,
                offset: 0,
                length: length as u64,
            });
        }
        let pointers: Vec<*const SwBound> = bounds.iter().map(std::ptr::from_ref).collect();
        let run = SwRun {
            size: size_of::<SwRun>() as u64,
            entry: index as u64,
            rows: rows as u64,
            bounds: pointers.as_ptr().cast(),
            bound_count: pointers.len() as u64,
            deadline_nanoseconds,
        };
        // SAFETY: everything outlives the call; every vector is bound once.
        let error = unsafe { (self.host.table.run.expect("offered"))(self.shard, &run) };
        Host::failed(self.host.table, error)
    }

    pub fn cancel(&self) {
        // SAFETY: may be called from any thread.
        unsafe { (self.host.table.cancel.expect("offered"))(self.shard) };
    }
}

impl Drop for Loaded<'_> {
    fn drop(&mut self) {
        if let Some(unload) = self.host.table.unload {
            // SAFETY: loaded once, unloaded once.
            unsafe { unload(self.shard) };
        }
    }
}
