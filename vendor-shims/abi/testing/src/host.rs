//! The host's side of the contract, as small as a test needs.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};

use shardwright_shim_abi::raw::*;

use crate::memory::{Memory, Region};
use crate::tables::{leak, list, text};

/// An error object, copied from the shim.
#[derive(Clone, Debug, PartialEq)]
pub struct ErrorObject {
    /// `SW_ERROR_…`
    pub class: u32,
    pub message: String,
    pub details: Vec<(String, String)>,
    /// 0 if the vendor did not report a code.
    pub vendor_code: i64,
    /// Empty if the shim did not attach a log.
    pub log_tail: String,
}

impl ErrorObject {
    /// Returns the value of a detail.
    pub fn detail(&self, key: &str) -> Option<&str> {
        self.details.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }
}

/// Output of a compilation.
pub struct Compiled {
    pub artefact: Region,
    pub head: Vec<u8>,
    /// Name, outcome (`SW_FLAG_…`) and evidence of each flag.
    pub flags: Vec<(String, u32, String)>,
    /// Entry, node and place of each reported placement.
    pub placements: Vec<(u64, u64, String)>,
    /// Stage names reported as progress.
    pub stages: Vec<String>,
    /// Chip facts that the shim read back from the compiled code.
    pub made_for: Vec<(String, String)>,
}

impl Compiled {
    /// Returns the outcome and evidence of a flag.
    pub fn flag(&self, name: &str) -> (u32, &str) {
        let (_, outcome, evidence) = self
            .flags
            .iter()
            .find(|(flag, ..)| flag == name)
            .unwrap_or_else(|| panic!("no verdict on `{name}`"));
        (*outcome, evidence)
    }
}

/// One binding of a loaded entry.
#[derive(Clone, Debug, PartialEq)]
pub struct BindingInfo {
    pub name: String,
    /// `SW_BINDING_…`
    pub direction: u32,
    /// `SW_ROLE_…`
    pub role: u32,
    /// `SW_DTYPE_…`
    pub dtype: u32,
    /// `SW_UPDATE_…`
    pub update: u32,
    pub shape: Vec<u64>,
    /// Bytes to bind.
    pub bytes: u64,
    /// Scale of stored integers.
    pub scale: f64,
    /// Zero point of stored integers.
    pub zero_point: i64,
}

/// A device that the shim lists.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    /// Name by which calls select the device.
    pub name: String,
    /// Name of the chip.
    pub soc: String,
    /// `SW_DEVICE_…`
    pub kind: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct EstimateInfo {
    /// Time of one run.
    pub microseconds: u64,
    /// Bytes moved to and from memory in one run.
    pub bytes: u64,
    /// Indices of nodes that the estimate does not include.
    pub uncosted: Vec<u64>,
    /// `SW_PROVENANCE_…`
    pub provenance: u32,
}

/// Names and values of limits.
pub type Limits = Vec<(String, u64)>;

/// An open instance of a shim.
pub struct Host {
    table: &'static SwTable,
    shim: *mut SwShim,
    device: *const c_char,
}

// SAFETY: a shim's instance may be used from any thread, one call at a time.
unsafe impl Send for Host {}
// SAFETY: as above. Tests make one call at a time.
unsafe impl Sync for Host {}

unsafe fn string(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
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

fn the_host() -> SwHost {
    SwHost {
        size: size_of::<SwHost>() as u64,
        version_min: SW_VERSION_0_1,
        version_max: SW_VERSION,
        name: text("test"),
        log: None,
        log_context: null_mut(),
    }
}

impl Host {
    /// Calls the entry function and returns the shim's table.
    ///
    /// # Panics
    ///
    /// If the shim refuses a host of this contract's versions.
    pub fn table(entry: SwEntryFunction) -> &'static SwTable {
        // SAFETY: all zeros is a valid answer under the contract.
        let mut answer: SwAnswer = unsafe { std::mem::zeroed() };
        answer.size = size_of::<SwAnswer>() as u64;
        // SAFETY: both structs are valid under the contract.
        unsafe { entry(leak(the_host()), &mut answer) };
        assert!(!answer.table.is_null(), "refused");
        // SAFETY: the table is static.
        unsafe { &*answer.table }
    }

    /// Opens an instance of the shim behind `entry` with options. Later calls name `device`.
    pub fn open(entry: SwEntryFunction, device: &str, pairs: &[(&str, &str)]) -> Result<Host, ErrorObject> {
        let table = Host::table(entry);
        let pairs = options(pairs);
        let mut shim = null_mut();
        let open = table.open.expect("required");
        let count = pairs.len() as u64;
        // SAFETY: everything outlives the call.
        let error = unsafe { open(leak(the_host()), list(pairs).cast(), count, &mut shim) };
        Host::failed(table, error)?;
        Ok(Host { table, shim, device: text(device) })
    }

    fn failed(table: &SwTable, error: *mut SwError) -> Result<(), ErrorObject> {
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
            let failure = ErrorObject {
                class: raw.error_class,
                message: string(raw.message),
                details,
                vendor_code: raw.vendor_code,
                log_tail: string(raw.log_tail),
            };
            if let Some(free) = table.error_free {
                free(error);
            }
            Err(failure)
        }
    }

    /// Selects another device for later calls.
    pub fn on_device(mut self, device: &str) -> Host {
        self.device = text(device);
        self
    }

    /// Returns the names of the facts that the shim reads, and whether each is required.
    pub fn facts(entry: SwEntryFunction) -> Result<Vec<(String, bool)>, ErrorObject> {
        unsafe extern "C" fn item(context: *mut c_void, reported: *const SwFact) {
            // SAFETY: the context is the list below, the fact the shim's.
            unsafe {
                let reported = &*reported;
                let fact = (string(reported.name), reported.required != 0);
                (*context.cast::<Vec<(String, bool)>>()).push(fact);
            }
        }
        let table = Host::table(entry);
        let mut facts: Vec<(String, bool)> = Vec::new();
        let sink = SwFactSink {
            size: size_of::<SwFactSink>() as u64,
            context: (&raw mut facts).cast(),
            item: Some(item),
        };
        // SAFETY: everything outlives the call.
        let error = unsafe { (table.facts.expect("offered"))(&sink) };
        Host::failed(table, error)?;
        Ok(facts)
    }

    /// Passes a chip's facts to the shim.
    pub fn chip(&self, name: &str, aliases: &[&str], facts: &[(&str, &str)]) -> Result<(), ErrorObject> {
        let aliases: Vec<*const c_char> = aliases.iter().map(|alias| text(alias)).collect();
        let facts = options(facts);
        let chip = SwChip {
            size: size_of::<SwChip>() as u64,
            name: text(name),
            aliases: if aliases.is_empty() { null() } else { aliases.as_ptr() },
            alias_count: aliases.len() as u64,
            fact_count: facts.len() as u64,
            facts: list(facts).cast(),
        };
        // SAFETY: everything outlives the call.
        let error = unsafe { (self.table.chip.expect("offered"))(self.shim, &chip) };
        Host::failed(self.table, error)
    }

    /// Returns the devices that the shim lists for a chip, or the present devices.
    pub fn devices(&self, soc: Option<&str>) -> Result<Vec<DeviceInfo>, ErrorObject> {
        unsafe extern "C" fn item(context: *mut c_void, reported: *const SwDevice) {
            // SAFETY: the context is the list below, the device the shim's.
            unsafe {
                let reported = &*reported;
                (*context.cast::<Vec<DeviceInfo>>()).push(DeviceInfo {
                    name: string(reported.name),
                    soc: string(reported.soc),
                    kind: reported.kind,
                });
            }
        }
        let mut devices: Vec<DeviceInfo> = Vec::new();
        let sink = SwDeviceSink {
            size: size_of::<SwDeviceSink>() as u64,
            context: (&raw mut devices).cast(),
            item: Some(item),
        };
        // SAFETY: everything outlives the call.
        let error =
            unsafe { (self.table.devices.expect("required"))(self.shim, soc.map_or(null(), text), &sink) };
        Host::failed(self.table, error)?;
        Ok(devices)
    }

    /// Returns the names of all flags, and the names and values of all limits.
    pub fn told(&self) -> Result<(Vec<String>, Limits), ErrorObject> {
        unsafe extern "C" fn flag(context: *mut c_void, reported: *const SwFlag) {
            // SAFETY: the context is a list of names, the struct the shim's.
            unsafe { (*context.cast::<Vec<String>>()).push(string((*reported).name)) };
        }
        unsafe extern "C" fn limit(context: *mut c_void, reported: *const SwLimit) {
            // SAFETY: the context is a list of pairs, the struct the shim's.
            unsafe {
                (*context.cast::<Vec<(String, u64)>>()).push((string((*reported).name), (*reported).value))
            };
        }
        let (mut flags, mut limits): (Vec<String>, Limits) = (Vec::new(), Vec::new());
        let size = size_of::<SwFlagSink>() as u64;
        let flag_sink = SwFlagSink { size, context: (&raw mut flags).cast(), item: Some(flag) };
        let limit_sink = SwLimitSink { size, context: (&raw mut limits).cast(), item: Some(limit) };
        // SAFETY: everything outlives the calls.
        unsafe {
            let error = (self.table.flags.expect("offered"))(self.shim, self.device, &flag_sink);
            Host::failed(self.table, error)?;
            let error = (self.table.limits.expect("offered"))(self.shim, self.device, &limit_sink);
            Host::failed(self.table, error)?;
        }
        Ok((flags, limits))
    }

    /// Returns the verdict (`SW_VERDICT_…`) and reason for each node.
    ///
    /// # Panics
    ///
    /// If a node has no verdict or more than one.
    pub fn check(&self, entry: &SwEntry) -> Result<Vec<(u32, String)>, ErrorObject> {
        type Verdicts = HashMap<u64, (u32, String)>;
        unsafe extern "C" fn item(context: *mut c_void, verdict: *const SwVerdict) {
            // SAFETY: the context is the map below, the verdict the shim's.
            unsafe {
                let verdict = &*verdict;
                let earlier = (*context.cast::<Verdicts>())
                    .insert(verdict.node, (verdict.verdict, string(verdict.reason)));
                assert!(earlier.is_none(), "two verdicts on node {}", verdict.node);
            }
        }
        let mut verdicts = Verdicts::new();
        let sink = SwVerdictSink {
            size: size_of::<SwVerdictSink>() as u64,
            context: (&raw mut verdicts).cast(),
            item: Some(item),
        };
        // SAFETY: everything outlives the call.
        let error = unsafe { (self.table.check.expect("required"))(self.shim, self.device, entry, &sink) };
        Host::failed(self.table, error)?;
        Ok((0..entry.node_count).map(|node| verdicts.remove(&node).expect("a verdict per node")).collect())
    }

    /// Returns the refused nodes and the reasons.
    pub fn refusals(&self, entry: &SwEntry) -> Result<Vec<(u64, String)>, ErrorObject> {
        let verdicts = (0..).zip(self.check(entry)?);
        let refused = verdicts.filter(|(_, (verdict, _))| *verdict == SW_VERDICT_REFUSED);
        Ok(refused.map(|(node, (_, reason))| (node, reason)).collect())
    }

    /// Returns the cost of a run, or `None` if the shim has no estimate.
    pub fn estimate(&self, entry: &SwEntry) -> Result<Option<EstimateInfo>, ErrorObject> {
        unsafe extern "C" fn item(context: *mut c_void, estimate: *const SwEstimate) {
            // SAFETY: the context is the option below, the estimate the shim's.
            unsafe {
                let estimate = &*estimate;
                let uncosted =
                    (0..estimate.uncosted_count as usize).map(|i| *estimate.uncosted.add(i)).collect();
                *context.cast::<Option<EstimateInfo>>() = Some(EstimateInfo {
                    microseconds: estimate.time_microseconds,
                    bytes: estimate.bytes_moved,
                    uncosted,
                    provenance: estimate.provenance,
                });
            }
        }
        let mut found: Option<EstimateInfo> = None;
        let sink = SwEstimateSink {
            size: size_of::<SwEstimateSink>() as u64,
            context: (&raw mut found).cast(),
            item: Some(item),
        };
        // SAFETY: everything outlives the call.
        let error = unsafe { (self.table.estimate.expect("offered"))(self.shim, self.device, entry, &sink) };
        Host::failed(self.table, error)?;
        Ok(found)
    }

    /// Compiles entries that share weights and states.
    pub fn compile(
        &self,
        entries: &[&'static SwEntry],
        flags: &[(&str, &str)],
    ) -> Result<Compiled, ErrorObject> {
        self.compile_until(entries, flags, usize::MAX)
    }

    /// Compiles, but requests a stop after `patience` calls of `cancelled`.
    pub fn compile_until(
        &self,
        entries: &[&'static SwEntry],
        flags: &[(&str, &str)],
        patience: usize,
    ) -> Result<Compiled, ErrorObject> {
        #[derive(Default)]
        struct Output {
            bytes: Vec<u8>,
            head: Vec<u8>,
            flags: Vec<(String, u32, String)>,
            placements: Vec<(u64, u64, String)>,
            stages: Vec<String>,
            made_for: Vec<(String, String)>,
            patience: usize,
        }
        unsafe extern "C" fn write(context: *mut c_void, bytes: *const c_void, length: u64) -> u32 {
            // SAFETY: the context is the output below. The shim passes `length` bytes.
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
        unsafe extern "C" fn progress(context: *mut c_void, per_mille: u32, stage: *const c_char) {
            assert!(per_mille <= 1000);
            // SAFETY: as above.
            unsafe { (*context.cast::<Output>()).stages.push(string(stage)) };
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
                let flag = (string(verdict.name), verdict.verdict, string(verdict.evidence));
                (*context.cast::<Output>()).flags.push(flag);
            }
        }
        unsafe extern "C" fn placement(context: *mut c_void, placement: *const SwPlacement) {
            // SAFETY: as above.
            unsafe {
                let placement = &*placement;
                let place = (placement.entry, placement.node, string(placement.place));
                (*context.cast::<Output>()).placements.push(place);
            }
        }
        unsafe extern "C" fn made_for(context: *mut c_void, fact: *const SwOption) {
            // SAFETY: as above.
            unsafe {
                let pair = (string((*fact).key), string((*fact).value));
                (*context.cast::<Output>()).made_for.push(pair);
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
            made_for: Some(made_for),
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
        // SAFETY: everything outlives the call.
        let error = unsafe { (self.table.compile.expect("offered"))(self.shim, self.device, &order, &sink) };
        Host::failed(self.table, error)?;
        let Output { bytes, head, flags, placements, stages, made_for, .. } = output;
        Ok(Compiled { artefact: Region::new(&bytes), head, flags, placements, stages, made_for })
    }

    /// Returns the compatibility answer for a head, and the reason.
    pub fn compatibility(&self, head: &[u8]) -> Result<(u32, String), ErrorObject> {
        unsafe extern "C" fn item(context: *mut c_void, reported: *const SwCompatibility) {
            // SAFETY: the context is the pair below, the answer the shim's.
            unsafe { *context.cast::<(u32, String)>() = ((*reported).answer, string((*reported).reason)) };
        }
        let mut answer = (0u32, String::new());
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

    /// Loads an artefact, with options.
    pub fn load<'h>(
        &'h self,
        artefact: &'h Region,
        pairs: &[(&str, &str)],
    ) -> Result<Loaded<'h>, ErrorObject> {
        self.load_bytes(artefact.bytes(), pairs)
    }

    /// Loads an artefact from memory that need not start at a page boundary.
    pub fn load_bytes<'h>(
        &'h self,
        bytes: &'h [u8],
        pairs: &[(&str, &str)],
    ) -> Result<Loaded<'h>, ErrorObject> {
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
        loaded.entries = loaded.read_entries()?;
        Ok(loaded)
    }

    /// Returns the format of a file and its JSON document.
    pub fn inspect(&self, bytes: &[u8]) -> Result<Option<(String, String)>, ErrorObject> {
        type Found = Option<(String, String)>;
        unsafe extern "C" fn item(context: *mut c_void, inspection: *const SwInspection) {
            // SAFETY: the context is the option below, the inspection the shim's.
            unsafe {
                *context.cast::<Found>() =
                    Some((string((*inspection).format), string((*inspection).document)));
            }
        }
        let mut found: Found = None;
        let sink = SwInspectionSink {
            size: size_of::<SwInspectionSink>() as u64,
            context: (&raw mut found).cast(),
            item: Some(item),
        };
        let inspect = self.table.inspect.expect("offered");
        // SAFETY: everything outlives the call.
        let error = unsafe { inspect(self.shim, bytes.as_ptr().cast(), bytes.len() as u64, &sink) };
        Host::failed(self.table, error)?;
        Ok(found)
    }

    /// Makes a lost device usable again.
    pub fn recover(&self) -> Result<(), ErrorObject> {
        // SAFETY: everything outlives the call.
        let error = unsafe { (self.table.recover.expect("offered"))(self.shim, self.device) };
        Host::failed(self.table, error)
    }

    /// Allocates and maps a buffer, checks that it is zeroed, and frees it.
    pub fn allocate(&self, length: u64, alignment: u64) -> Result<(), ErrorObject> {
        let (mut buffer, mut place) = (null_mut(), null_mut());
        // SAFETY: everything outlives the calls, and the buffer is freed once.
        unsafe {
            let allocate = self.table.buffer_allocate.expect("offered");
            Host::failed(self.table, allocate(self.shim, self.device, length, alignment, &mut buffer))?;
            let map = self.table.buffer_map.expect("offered");
            Host::failed(self.table, map(self.shim, buffer, &mut place))?;
            let bytes = std::slice::from_raw_parts_mut(place.cast::<u8>(), length as usize);
            assert!(bytes.iter().all(|byte| *byte == 0));
            bytes.fill(1);
            self.table.buffer_free.expect("offered")(self.shim, buffer);
        }
        Ok(())
    }

    /// Imports a dma-buf descriptor and frees the buffer.
    pub fn import(&self, fd: i32) -> Result<(), ErrorObject> {
        let import = SwImport {
            size: size_of::<SwImport>() as u64,
            kind: SW_MEMORY_DMA_BUF,
            fd,
            fd_offset: 0,
            handle: null_mut(),
            length: 4096,
        };
        let mut buffer = null_mut();
        // SAFETY: everything outlives the calls, and the buffer is freed once.
        unsafe {
            let function = self.table.buffer_import.expect("offered");
            Host::failed(self.table, function(self.shim, self.device, &import, &mut buffer))?;
            self.table.buffer_free.expect("offered")(self.shim, buffer);
        }
        Ok(())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(close) = self.table.close {
            // SAFETY: opened once and closed once. Shards borrow the host.
            unsafe { close(self.shim) };
        }
    }
}

/// A loaded artefact.
pub struct Loaded<'h> {
    host: &'h Host,
    shard: *mut SwShard,
    /// Name and bindings of each entry, in the artefact's order.
    pub entries: Vec<(String, Vec<BindingInfo>)>,
}

// SAFETY: a shard may be used from any thread, one run at a time.
unsafe impl Send for Loaded<'_> {}
// SAFETY: only `cancel` uses a shared reference from another thread, which the contract allows.
unsafe impl Sync for Loaded<'_> {}

impl Loaded<'_> {
    fn read_entries(&self) -> Result<Vec<(String, Vec<BindingInfo>)>, ErrorObject> {
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
                    scale: binding.scale,
                    zero_point: binding.zero_point,
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

    /// Returns the name, verdict and evidence of each flag that the shard was loaded with.
    ///
    /// # Errors
    ///
    /// The shim's error.
    pub fn flags(&self) -> Result<Vec<(String, u32, String)>, ErrorObject> {
        unsafe extern "C" fn item(context: *mut c_void, verdict: *const SwFlagVerdict) {
            // SAFETY: the context is the list below, the verdict the shim's.
            unsafe {
                let verdict = &*verdict;
                let flag = (string(verdict.name), verdict.verdict, string(verdict.evidence));
                (*context.cast::<Vec<(String, u32, String)>>()).push(flag);
            }
        }
        let mut flags: Vec<(String, u32, String)> = Vec::new();
        let sink = SwFlagVerdictSink {
            size: size_of::<SwFlagVerdictSink>() as u64,
            context: (&raw mut flags).cast(),
            item: Some(item),
        };
        let function = self.host.table.flag_verdicts.expect("offered");
        // SAFETY: everything outlives the call.
        let error = unsafe { function(self.shard, &sink) };
        Host::failed(self.host.table, error)?;
        Ok(flags)
    }

    /// Returns the bindings of an entry.
    ///
    /// # Panics
    ///
    /// If the artefact has no such entry.
    pub fn bindings(&self, entry: &str) -> &[BindingInfo] {
        let found = self.entries.iter().find(|(name, _)| name == entry);
        &found.unwrap_or_else(|| panic!("no entry `{entry}`")).1
    }

    /// Runs an entry by name. `bound` contains memory by binding name. Outputs are added or
    /// overwritten.
    pub fn run<M: Memory>(
        &mut self,
        entry: &str,
        rows: usize,
        bound: &mut HashMap<String, M>,
    ) -> Result<(), ErrorObject> {
        self.run_with(entry, rows, bound, 0, 0)
    }

    /// Like [`Loaded::run`], but only the `largest_logits` largest logits of each row must be
    /// exact.
    pub fn run_for_largest<M: Memory>(
        &mut self,
        entry: &str,
        rows: usize,
        bound: &mut HashMap<String, M>,
        largest_logits: u64,
    ) -> Result<(), ErrorObject> {
        self.run_with(entry, rows, bound, 0, largest_logits)
    }

    /// Like [`Loaded::run`], but with a deadline in nanoseconds from the call.
    pub fn run_until<M: Memory>(
        &mut self,
        entry: &str,
        rows: usize,
        bound: &mut HashMap<String, M>,
        deadline_nanoseconds: u64,
    ) -> Result<(), ErrorObject> {
        self.run_with(entry, rows, bound, deadline_nanoseconds, 0)
    }

    /// Runs an entry, with all options.
    ///
    /// # Panics
    ///
    /// If the artefact has no such entry, or a binding is missing in `bound`.
    fn run_with<M: Memory>(
        &mut self,
        entry: &str,
        rows: usize,
        bound: &mut HashMap<String, M>,
        deadline_nanoseconds: u64,
        largest_logits: u64,
    ) -> Result<(), ErrorObject> {
        let index = self.entries.iter().position(|(name, _)| name == entry).expect("an entry of that name");
        let bindings = self.entries[index].1.clone();
        for binding in bindings.iter().filter(|binding| binding.direction == SW_BINDING_OUTPUT) {
            bound.insert(binding.name.clone(), M::poison(binding.dtype, binding.bytes));
        }
        let bounds: Vec<SwBound> = bindings
            .iter()
            .map(|binding| {
                let memory =
                    bound.get_mut(&binding.name).unwrap_or_else(|| panic!("`{}` is not bound", binding.name));
                let (pointer, length) = memory.place();
                SwBound { size: size_of::<SwBound>() as u64, buffer: null_mut(), pointer, offset: 0, length }
            })
            .collect();
        let pointers: Vec<*const SwBound> = bounds.iter().map(std::ptr::from_ref).collect();
        let run = SwRun {
            size: size_of::<SwRun>() as u64,
            entry: index as u64,
            rows: rows as u64,
            bounds: pointers.as_ptr().cast(),
            bound_count: pointers.len() as u64,
            deadline_nanoseconds,
            largest_logits,
        };
        // SAFETY: everything outlives the call, and every memory is bound once.
        let error = unsafe { (self.host.table.run.expect("offered"))(self.shard, &run) };
        Host::failed(self.host.table, error)
    }

    /// Requests a stop of the run in progress, from any thread.
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

/// Returns the error of a call that must fail. The message must contain `part`.
///
/// # Panics
///
/// If the call succeeds, or fails with another class or message.
pub fn refused<T>(result: Result<T, ErrorObject>, class: u32, part: &str) -> ErrorObject {
    match result {
        Ok(_) => panic!("taken, although `{part}` was expected"),
        Err(failure) => {
            assert_eq!(failure.class, class, "{failure:?}");
            assert!(failure.message.contains(part), "`{part}` not in {failure:?}");
            failure
        }
    }
}
