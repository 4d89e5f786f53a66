//! Tests of `export_shim!`: panics become errors, and errors arrive complete.

use std::ffi::CStr;
use std::ptr;

use shardwright_shim_abi::raw::*;
use shardwright_shim_abi::*;

/// A shim that panics in the function that its option names.
struct Panicking(String);

impl Panicking {
    fn maybe(&self, place: &str) {
        assert!(self.0 != place, "asked to panic in {place}");
    }
}

struct Shard<'m>(&'m Panicking);

impl LoadedShard for Shard<'_> {
    fn flag_verdicts(&self) -> Vec<FlagReport> {
        let evidence = "as it was loaded".to_owned();
        vec![FlagReport { name: "power".to_owned(), outcome: FlagOutcome::Recorded, evidence }]
    }
    fn entries(&self) -> Result<Vec<LoadedEntry>> {
        self.0.maybe("entries");
        let binding = |name: &str, direction| Binding {
            name: name.into(),
            direction,
            role: SW_ROLE_HIDDEN,
            dtype: SW_DTYPE_F32,
            update: SW_UPDATE_NONE,
            shape: vec![4],
            strides: None,
            bytes: 16,
            alignment: 4,
            memory_kinds: MemoryKinds::HOST.and(MemoryKinds::SHIM),
            scale: 1.0,
            zero_point: 0,
        };
        Ok(vec![LoadedEntry {
            name: "encode_4".into(),
            rows: 4,
            context: 4,
            bindings: vec![binding("in", Direction::Input), binding("out", Direction::Output)],
        }])
    }

    fn run(&mut self, mut run: Run<'_>) -> Result<()> {
        self.0.maybe("run");
        run.control.proceed()?;
        let (input, output) = run.bound.split_at_mut(1);
        let input = input[0].values::<f32>()?;
        for (to, from) in output[0].values_mut::<f32>()?.iter_mut().zip(input).take(run.rows) {
            *to = from * 2.0;
        }
        assert!(run.bound[0].bytes_mut().is_err(), "an input is not writable");
        Ok(())
    }
}

impl Drop for Shard<'_> {
    fn drop(&mut self) {
        self.0.maybe("unload");
    }
}

impl Shim for Panicking {
    fn describe() -> Description {
        Description {
            name: "panicking".into(),
            vendor: "test".into(),
            version: "1".into(),
            ..Description::default()
        }
    }
    fn open(options: &Options<'_>) -> Result<Self> {
        options.only(&["panic", "fail"])?;
        if let Some(limit) = options.number::<u64>("fail")? {
            return Err(Error::resource_limit("ops", limit + 1, limit)
                .vendor_code(-6)
                .log_tail("line 1\nline 2"));
        }
        let shim = Panicking(options.get("panic").unwrap_or_default().into());
        shim.maybe("open");
        Ok(shim)
    }
    fn devices(&self, _soc: Option<&str>) -> Result<Vec<Device>> {
        self.maybe("devices");
        Ok(Vec::new())
    }
    fn check(&self, _device: &str, entry: EntryView<'_>) -> Result<Vec<Verdict>> {
        Ok(entry.nodes().map(|_| Verdict::Taken).collect())
    }
    fn compile(
        &self,
        _device: &str,
        _order: WorkOrderView<'_>,
        _output: &mut CompileOutput<'_>,
    ) -> Result<()> {
        Ok(())
    }
    fn compatibility(&self, _device: &str, _head: &[u8]) -> Result<Compatibility> {
        Ok(Compatibility::Optimal)
    }
    fn load<'m>(&'m self, _: &str, _: Artefact<'m>, _: &Options<'_>) -> Result<Box<dyn LoadedShard + 'm>> {
        self.maybe("load");
        Ok(Box::new(Shard(self)))
    }
    fn inspect(&self, bytes: &[u8]) -> Result<Option<Inspection>> {
        self.maybe("inspect");
        let document = match bytes {
            [b'p', rest @ ..] => format!("{{\"rest\":{}}}", rest.len()),
            b"huge" => " ".repeat(SW_DOCUMENT_LIMIT as usize + 1),
            _ => return Ok(None),
        };
        Ok(Some(Inspection { format: "panicking-file".into(), document }))
    }
}

shardwright_shim_abi::export_shim!(Panicking);

unsafe extern "C" {
    fn shardwright_shim_entry(host: *const SwHost, answer: *mut SwAnswer);
}

fn enter() -> &'static SwTable {
    let host = Box::leak(Box::new(SwHost {
        size: size_of::<SwHost>() as u64,
        version_min: SW_VERSION_0_1,
        version_max: SW_VERSION,
        name: c"test".as_ptr(),
        log: None,
        log_context: ptr::null_mut(),
    }));
    let mut answer = empty_answer();
    // SAFETY: both structs are whole.
    unsafe { shardwright_shim_entry(host, &mut answer) };
    assert!(answer.refusal.is_null());
    // SAFETY: a table is static.
    unsafe { answer.table.as_ref() }.unwrap()
}

fn empty_answer() -> SwAnswer {
    SwAnswer {
        size: size_of::<SwAnswer>() as u64,
        version_min: 0,
        version_max: 0,
        version: 0,
        reserved: 0,
        table: ptr::null(),
        refusal: ptr::null(),
    }
}

/// Class, message and details of an error.
type Taken = (u32, String, Vec<(String, String)>);

/// Reads an error object and frees it.
fn take(error: *mut SwError) -> Option<Taken> {
    // SAFETY: the error came from the shim and is freed once, here.
    unsafe {
        let raised = error.as_ref()?;
        let text = |pointer| CStr::from_ptr(pointer).to_str().unwrap().to_owned();
        let details = (0..raised.detail_count as usize)
            .map(|index| &**raised.details.add(index))
            .map(|detail| (text(detail.key), text(detail.value)))
            .collect();
        let taken = (raised.error_class, text(raised.message), details);
        if !raised.log_tail.is_null() {
            assert_eq!(text(raised.log_tail), "line 1\nline 2");
            assert_eq!(raised.vendor_code, -6);
        }
        enter().error_free.unwrap()(error);
        Some(taken)
    }
}

fn open(key: &CStr, value: &CStr) -> (*mut SwError, *mut SwShim) {
    let option = SwOption { size: size_of::<SwOption>() as u64, key: key.as_ptr(), value: value.as_ptr() };
    let options = [&raw const option];
    let mut shim = ptr::null_mut();
    // SAFETY: all pointers are to live values.
    let error = unsafe { enter().open.unwrap()(ptr::null(), options.as_ptr(), 1, &mut shim) };
    (error, shim)
}

const NO_ARTEFACT: SwArtefact = SwArtefact {
    size: size_of::<SwArtefact>() as u64,
    head: ptr::null(),
    head_length: 0,
    pointer: ptr::null(),
    length: 0,
    fd: -1,
    reserved: 0,
    fd_offset: 0,
};

fn load(shim: *mut SwShim) -> (*mut SwError, *mut SwShard) {
    let mut shard = ptr::null_mut();
    // SAFETY: the shim is open, the artefact static.
    let error =
        unsafe { enter().load.unwrap()(shim, c"cpu".as_ptr(), &NO_ARTEFACT, ptr::null(), 0, &mut shard) };
    (error, shard)
}

fn run(shard: *mut SwShard, input: &[f32], output: &mut [f32], rows: u64) -> *mut SwError {
    let bound = |pointer: *mut std::ffi::c_void, length: usize| SwBound {
        size: size_of::<SwBound>() as u64,
        buffer: ptr::null_mut(),
        pointer,
        offset: 0,
        length: length as u64 * 4,
    };
    let bounds = [
        bound(input.as_ptr().cast_mut().cast(), input.len()),
        bound(output.as_mut_ptr().cast(), output.len()),
    ];
    let pointers = [&raw const bounds[0], &raw const bounds[1]];
    let run = SwRun {
        size: size_of::<SwRun>() as u64,
        entry: 0,
        rows,
        bounds: pointers.as_ptr(),
        bound_count: 2,
        deadline_nanoseconds: 0,
        largest_logits: 0,
    };
    // SAFETY: everything is alive and no memory overlaps.
    unsafe { enter().run.unwrap()(shard, &run) }
}

#[test]
fn panics_become_errors_and_the_process_lives() {
    for place in ["open", "devices", "load", "entries", "run", "unload"] {
        let name = std::ffi::CString::new(place).unwrap();
        let (error, shim) = open(c"panic", &name);
        let mut found = take(error);
        if found.is_none() && place == "devices" {
            let sink =
                SwDeviceSink { size: size_of::<SwDeviceSink>() as u64, context: ptr::null_mut(), item: None };
            // SAFETY: the shim is open.
            let error = unsafe { enter().devices.unwrap()(shim, ptr::null(), &sink) };
            // A sink without a function is refused before the shim is called.
            assert_eq!(take(error).unwrap().0, SW_ERROR_INVALID_ARGUMENT);
            continue;
        }
        if found.is_none() {
            let (error, shard) = load(shim);
            found = take(error);
            if found.is_none() {
                found = take(run(shard, &[1.0; 4], &mut [0.0; 4], 4));
                // SAFETY: loaded above. A panic in here can only be logged.
                unsafe { enter().unload.unwrap()(shard) };
            }
        }
        match found {
            Some((class, message, details)) => {
                assert_eq!(class, SW_ERROR_INTERNAL);
                assert_eq!(message, format!("the shim panicked: asked to panic in {place}"));
                assert_eq!(details, [("panic".to_owned(), "1".to_owned())]);
            }
            None => assert_eq!(place, "unload"),
        }
        if !shim.is_null() {
            // SAFETY: opened above, its shard is gone.
            unsafe { enter().close.unwrap()(shim) };
        }
    }
}

#[test]
fn errors_arrive_whole() {
    let (class, message, details) = take(open(c"fail", c"2600").0).unwrap();
    assert_eq!((class, message.as_str()), (SW_ERROR_RESOURCE_LIMIT, "ops is 2601, at most 2600 fit"));
    let expected = [("limit", "ops"), ("value", "2601"), ("max", "2600")];
    assert_eq!(details, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let (class, message, _) = take(open(c"fial", c"1").0).unwrap();
    assert_eq!(class, SW_ERROR_INVALID_ARGUMENT);
    assert!(message.contains("unknown option `fial`, available options: panic, fail"), "{message}");
    let (class, message, _) = take(open(c"fail", c"many").0).unwrap();
    assert_eq!(class, SW_ERROR_INVALID_ARGUMENT);
    assert!(message.contains("`many` is not a number"), "{message}");
}

#[test]
fn flags_of_a_load_are_reported() {
    unsafe extern "C" fn item(context: *mut std::ffi::c_void, verdict: *const SwFlagVerdict) {
        // SAFETY: the context is the list below, the verdict the shim's.
        unsafe {
            let verdict = &*verdict;
            let text = |pointer| CStr::from_ptr(pointer).to_str().unwrap().to_owned();
            let flag = (text(verdict.name), verdict.verdict, text(verdict.evidence));
            (*context.cast::<Vec<(String, u32, String)>>()).push(flag);
        }
    }
    let (error, shim) = open(c"panic", c"never");
    assert!(error.is_null());
    let (error, shard) = load(shim);
    assert!(error.is_null());
    let mut flags: Vec<(String, u32, String)> = Vec::new();
    let mut sink = SwFlagVerdictSink {
        size: size_of::<SwFlagVerdictSink>() as u64,
        context: (&raw mut flags).cast(),
        item: Some(item),
    };
    // SAFETY: the shard is loaded, the sink whole.
    let error = unsafe { enter().flag_verdicts.unwrap()(shard, &sink) };
    assert!(error.is_null());
    assert_eq!(flags, [("power".to_owned(), SW_FLAG_RECORDED, "as it was loaded".to_owned())]);
    sink.item = None;
    // SAFETY: as above.
    let (class, message, _) = take(unsafe { enter().flag_verdicts.unwrap()(shard, &sink) }).unwrap();
    assert_eq!(class, SW_ERROR_INVALID_ARGUMENT);
    assert!(message.contains("sink function is null"), "{message}");
    // SAFETY: loaded and opened above, in this order.
    unsafe {
        enter().unload.unwrap()(shard);
        enter().close.unwrap()(shim);
    }
}

#[test]
fn a_run_sees_what_is_bound_and_refuses_what_does_not_fit() {
    let (error, shim) = open(c"panic", c"never");
    assert!(error.is_null());
    let (error, shard) = load(shim);
    assert!(error.is_null());
    let mut output = [0.0; 4];
    assert!(run(shard, &[1.0, 2.0, 3.0, 4.0], &mut output, 3).is_null());
    assert_eq!(output, [2.0, 4.0, 6.0, 0.0]);
    for (rows, length, expected) in [(0, 4, "0 rows"), (5, 4, "5 rows"), (1, 3, "expected 16 bytes, got 12")]
    {
        let (class, message, _) = take(run(shard, &[0.0; 4][..length], &mut [0.0; 4], rows)).unwrap();
        assert_eq!(class, SW_ERROR_INVALID_ARGUMENT);
        assert!(message.contains(expected), "{message}");
    }
    let bytes = [0_u8; 24];
    let start = bytes.as_ptr().align_offset(4) + 1;
    // SAFETY: the four values at an odd address are never read. The shim must refuse them.
    let odd = unsafe { std::slice::from_raw_parts(bytes.as_ptr().add(start).cast::<u8>(), 16) };
    let misaligned = {
        let bounds = SwBound {
            size: size_of::<SwBound>() as u64,
            buffer: ptr::null_mut(),
            pointer: odd.as_ptr().cast_mut().cast(),
            offset: 0,
            length: 16,
        };
        let pointers = [&raw const bounds, &raw const bounds];
        let run = SwRun {
            size: size_of::<SwRun>() as u64,
            entry: 0,
            rows: 1,
            bounds: pointers.as_ptr(),
            bound_count: 2,
            deadline_nanoseconds: 0,
            largest_logits: 0,
        };
        // SAFETY: everything is alive. The first binding is refused before any memory is written.
        take(unsafe { enter().run.unwrap()(shard, &run) }).unwrap()
    };
    assert!(misaligned.1.contains("alignment of 4"), "{}", misaligned.1);
    // SAFETY: loaded and opened above, in this order.
    unsafe {
        enter().unload.unwrap()(shard);
        enter().close.unwrap()(shim);
    }
}

#[test]
fn buffers_are_zeroed_aligned_and_bounded() {
    let (_, shim) = open(c"panic", c"never");
    let table = enter();
    // SAFETY: the shim is open. Buffers are freed before it closes.
    unsafe {
        let mut buffer = ptr::null_mut();
        assert!(table.buffer_allocate.unwrap()(shim, c"cpu".as_ptr(), 100, 256, &mut buffer).is_null());
        let mut pointer = ptr::null_mut();
        assert!(table.buffer_map.unwrap()(shim, buffer, &mut pointer).is_null());
        assert_eq!(pointer as usize % 256, 0);
        assert!(std::slice::from_raw_parts(pointer.cast::<u8>(), 100).iter().all(|&byte| byte == 0));
        assert!(table.buffer_sync.unwrap()(shim, buffer, 0, 100, SW_SYNC_BEFORE_HOST).is_null());
        let beyond = take(table.buffer_sync.unwrap()(shim, buffer, 90, 20, SW_SYNC_AFTER_HOST));
        assert_eq!(beyond.unwrap().0, SW_ERROR_INVALID_ARGUMENT);
        table.buffer_free.unwrap()(shim, buffer);
        let odd = take(table.buffer_allocate.unwrap()(shim, c"cpu".as_ptr(), 100, 3, &mut buffer));
        assert_eq!(odd.unwrap().0, SW_ERROR_INVALID_ARGUMENT);
        let huge = take(table.buffer_allocate.unwrap()(shim, c"cpu".as_ptr(), u64::MAX, 64, &mut buffer));
        assert!(huge.is_some());
        let import = SwImport {
            size: size_of::<SwImport>() as u64,
            kind: SW_MEMORY_DMA_BUF,
            fd: -1,
            fd_offset: 0,
            handle: ptr::null_mut(),
            length: 1,
        };
        let refused = take(table.buffer_import.unwrap()(shim, c"cpu".as_ptr(), &import, &mut buffer));
        assert!(refused.unwrap().1.contains("does not import foreign memory"));
        let lost = take(table.recover.unwrap()(shim, c"cpu".as_ptr()));
        assert_eq!(lost.unwrap().0, SW_ERROR_DEVICE_LOST);
        table.close.unwrap()(shim);
    }
}

#[test]
fn a_file_is_reported_once_or_not_at_all() {
    unsafe extern "C" fn item(context: *mut std::ffi::c_void, inspection: *const SwInspection) {
        // SAFETY: the context below, and a whole struct of strings.
        unsafe {
            let text = |pointer| CStr::from_ptr(pointer).to_str().unwrap().to_owned();
            (*context.cast::<Vec<_>>()).push((text((*inspection).format), text((*inspection).document)));
        }
    }
    let ask = |shim: *mut SwShim, bytes: &[u8]| {
        let mut found: Vec<(String, String)> = Vec::new();
        let sink = SwInspectionSink {
            size: size_of::<SwInspectionSink>() as u64,
            context: (&raw mut found).cast(),
            item: Some(item),
        };
        let pointer = if bytes.is_empty() { ptr::null() } else { bytes.as_ptr().cast() };
        // SAFETY: the shim is open, everything is alive.
        let error = unsafe { enter().inspect.unwrap()(shim, pointer, bytes.len() as u64, &sink) };
        (found, take(error))
    };
    let (_, shim) = open(c"panic", c"inspect");
    assert!(ask(shim, b"p").1.unwrap().1.contains("asked to panic in inspect"));
    let (_, quiet) = open(c"panic", c"never");
    assert_eq!(ask(quiet, b"pqr"), (vec![("panicking-file".into(), "{\"rest\":2}".into())], None));
    assert_eq!(ask(quiet, b"other"), (Vec::new(), None));
    assert_eq!(ask(quiet, b""), (Vec::new(), None));
    let (found, error) = ask(quiet, b"huge");
    assert_eq!((found.len(), error.unwrap().0), (0, SW_ERROR_RESOURCE_LIMIT));
    // SAFETY: opened above.
    unsafe {
        enter().close.unwrap()(shim);
        enter().close.unwrap()(quiet);
    }
}

#[test]
fn the_door_refuses_other_versions_and_small_structs() {
    let mut host = SwHost {
        size: size_of::<SwHost>() as u64,
        version_min: SW_VERSION + 1,
        version_max: SW_VERSION + 9,
        name: c"test".as_ptr(),
        log: None,
        log_context: ptr::null_mut(),
    };
    let mut answer = empty_answer();
    // SAFETY: both structs are whole.
    unsafe { shardwright_shim_entry(&host, &mut answer) };
    assert!(answer.table.is_null());
    assert_eq!((answer.version_min, answer.version_max), (SW_VERSION_0_1, SW_VERSION));
    // SAFETY: a refusal is a string.
    let refusal = unsafe { CStr::from_ptr(answer.refusal) }.to_str().unwrap();
    assert!(refusal.contains("0.1") && refusal.contains("0.2"), "{refusal}");

    host.size = 8;
    let mut answer = empty_answer();
    // SAFETY: as above. The host claims to know fewer members.
    unsafe { shardwright_shim_entry(&host, &mut answer) };
    assert!(answer.table.is_null() && !answer.refusal.is_null());

    let mut answer = SwAnswer { size: 8, ..empty_answer() };
    // SAFETY: as above. The shim must not write beyond the size.
    unsafe { shardwright_shim_entry(&host, &mut answer) };
    assert_eq!(answer.version_max, 0);
}

#[test]
fn the_side_door_has_the_name_that_abi_stable_looks_for() {
    let source = include_str!("../../src/lib.rs");
    let exported = format!("export_name = \"{}\"", abi_stable::library::ROOT_MODULE_LOADER_NAME);
    assert!(source.contains(&exported), "{exported}");
    let header = shardwright_shim_abi::export::lib_header::<Panicking>();
    header.ensure_layout::<ShimModuleRef>().unwrap();
}
