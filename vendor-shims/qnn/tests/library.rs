//! Tests of the vendor's library through owned handles: the search for it, its results, and its
//! reaction to bad input.

mod cases;

use cases::*;
use shardwright_shim_abi::{Error, ErrorClass};
use shardwright_shim_npu::Power;
use shardwright_shim_qnn::ffi::Version;
use shardwright_shim_qnn::graph::{DataType, Param, QnnEncoding, StaticData, TensorIndex, TensorKind};
use shardwright_shim_qnn::log::{self, Level};
use shardwright_shim_qnn::session::{
    Backend, CallFailure, CodeFor, Context, ContextBinary, ContextOptions, Device, FinalizeValue,
    GraphOptions, Library, LibraryChoice, LibraryError, LoadedContext, PowerVote, Profile, QnnError, SocId,
    System, describe_binary,
};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

/// Returns eight bits per weight with a scale per output channel.
fn w8(channels: u32) -> Kind {
    (DataType::Sfixed8, QnnEncoding::PerAxis { axis: 0, scales: vec![0.1 / 127.0; channels as usize] })
}

fn fully_connected(name: &str, rows: u32, inner: u32, channels: u32) -> Case {
    let mut case = Case::new(name);
    let x = case.input(&[rows, inner], a16(1.0), &random((rows * inner) as usize, 1.0, 1));
    let w = case.constant(&[channels, inner], w8(channels), &random((channels * inner) as usize, 0.1, 2));
    let y = case.output(&[rows, channels], a16(2.0));
    case.node("FullyConnected", vec![], &[x, w], &[y]);
    case
}

fn compiled(device: &Arc<Device>, case: &Case) -> ContextBinary {
    let mut context = Context::new(device.clone(), ContextOptions::default()).expect("a context");
    let mut graph = context.compose(&case.graph, &GraphOptions::default()).expect("composed");
    graph.finalize(false).expect("finalized");
    context.binary().expect("a binary")
}

fn failure(error: QnnError) -> CallFailure {
    match error {
        QnnError::Call(failure) => *failure,
        error => panic!("no call failed, but: {error}"),
    }
}

// ---- which library

fn only(option: impl Into<PathBuf>) -> LibraryChoice {
    LibraryChoice { option: Some(option.into()), ..LibraryChoice::default() }
}

#[test]
fn a_named_library_that_is_missing_is_not_replaced_by_another() {
    let folder = tempfile::tempdir().expect("a folder");
    for path in [folder.path().join("none.so"), folder.path().to_owned()] {
        let mut choice = only(&path);
        choice.variable = Some("/somewhere/else.so".into());
        let Err(QnnError::Library(LibraryError::NotFound { tried })) = Library::open(&choice) else {
            panic!("{path:?} is no library")
        };
        assert_eq!(tried.len(), 1, "{tried:?}");
        assert!(
            tried[0].contains("option `library`") && tried[0].contains(&*path.to_string_lossy()),
            "{tried:?}"
        );
    }
    let choice = LibraryChoice { variable: Some("/no/such/file".into()), ..LibraryChoice::default() };
    let error = Library::open(&choice).expect_err("there is no such file").to_string();
    assert!(error.contains("SHARDWRIGHT_QNN_LIB: /no/such/file is not a file"), "{error}");
}

#[test]
fn every_place_is_named_when_there_is_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let choice = LibraryChoice { beside: Some(folder.path().to_owned()), ..LibraryChoice::default() };
    match Library::open(&choice) {
        Err(QnnError::Library(LibraryError::NotFound { tried })) => {
            assert_eq!(tried.len(), 4, "{tried:?}");
            assert!(tried[2].starts_with("next to the shim"), "{tried:?}");
            assert!(tried[3].starts_with("the loader's path"), "{tried:?}");
        }
        // The vendor's library is installed on this machine.
        Ok(library) => assert_eq!(library.path(), PathBuf::from("libQnnHtp.so")),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn other_files_are_refused_for_what_they_are() {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("a list of mappings");
    let libc =
        maps.lines().find_map(|line| line.split_whitespace().nth(5).filter(|path| path.contains("/libc")));
    match Library::open(&only(libc.expect("this program uses a C library"))) {
        Err(QnnError::NotAQnnLibrary { symbol, .. }) => assert_eq!(symbol, "QnnInterface_getProviders"),
        other => panic!("{other:?}"),
    }
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("libQnnHtp.so");
    std::fs::write(&text, "no library").expect("written");
    match Library::open(&only(folder.path())) {
        Err(QnnError::Library(LibraryError::NotLoadable { path, reason })) => {
            assert!(path == text && !reason.is_empty(), "{reason}")
        }
        other => panic!("{other:?}"),
    }
    let error = System::open_file("/no/such/libQnnSystem.so".into()).expect_err("there is none");
    assert!(matches!(error, QnnError::Library(LibraryError::NotFound { .. })), "{error}");
}

#[test]
fn the_vendors_other_libraries_are_not_taken_for_this_one() {
    let Some(library) = library() else { return };
    let folder = library.path().parent().expect("a folder");
    match Library::open(&only(folder.join("libQnnSystem.so"))) {
        Err(QnnError::NotAQnnLibrary { .. }) => {}
        other => panic!("{other:?}"),
    }
    match Library::open(&only(folder.join("libQnnSaver.so"))) {
        Err(QnnError::NoHtpProvider { found, .. }) => assert!(!found.is_empty(), "{found:?}"),
        other => panic!("{other:?}"),
    }
    match System::open_file(library.path().to_owned()) {
        Err(QnnError::NotAQnnLibrary { symbol, .. }) => assert_eq!(symbol, "QnnSystemInterface_getProviders"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_opened_library_tells_how_it_was_found_and_what_it_is() {
    let Some(library) = library() else { return };
    assert!(library.steps().iter().any(|step| step.contains("core interface 2.")), "{:?}", library.steps());
    assert!(library.build_id().starts_with('v'), "{}", library.build_id());
    assert_eq!(library.system().expect("beside it").version().major, 1);
    assert!(library.code_name(1002).contains("MEM_ALLOC"), "{}", library.code_name(1002));
    let operations = device(&library, 69).backend().supported_operations().expect("a list");
    for operation in ["FullyConnected", "MatMul", "RmsNorm", "RotaryEmbedding", "Softmax", "Convert"] {
        assert!(operations.iter().any(|known| known == operation), "no {operation} in {operations:?}");
    }
}

// ---- its results

#[test]
fn a_graph_comes_back_from_its_binary_bit_for_bit() {
    let Some(library) = library() else { return };
    let device = device(&library, 69);
    let case = fully_connected("product", 3, 96, 64);
    let mut context = Context::new(device.clone(), ContextOptions::default()).expect("a context");
    let options = GraphOptions {
        vtcm_megabytes: Some(8),
        finalize_mode: Some(3),
        keys: vec![("sim_ddr_channels".to_owned(), FinalizeValue::U32(8))],
        ..GraphOptions::default()
    };
    let mut graph = context.compose(&case.graph, &options).expect("composed");
    assert_eq!(
        graph.finalize(true).expect("finalized"),
        Some(Profile::default()),
        "this chip has no estimate"
    );
    let mut first = vec![0u8; 3 * 64 * 2];
    graph.execute(&[&case.inputs[0]], &mut [&mut first]).expect("executed");

    let (x, w) = (case.real(TensorIndex(0)), case.real(TensorIndex(1)));
    let plain: Vec<f64> = (0..3 * 64)
        .map(|at| (0..96).map(|inner| x[at / 64 * 96 + inner] * w[at % 64 * 96 + inner]).sum())
        .collect();
    let found = decode(&first, &a16(2.0), &[3, 64]);
    assert!(worst(&found, &plain) < 2.0 / 32768.0, "worst {}", worst(&found, &plain));

    let binary = context.binary().expect("a binary");
    let description = binary.description.as_ref().expect("a system library");
    assert_eq!((description.soc_model, description.arch), (69, Some(79)));
    assert_eq!(description.build_id, library.build_id());
    assert_eq!(description.graphs[0].sizes.expect("sizes").vtcm_bytes, 8 << 20);
    // The graph keeps its context, whichever of the two is dropped first.
    drop(context);
    drop(graph);

    let loaded = LoadedContext::from_binary(device, &binary.bytes, None).expect("loaded");
    let graph = loaded.graph("product").expect("the graph");
    assert_eq!((graph.inputs()[0].name.as_str(), graph.inputs()[0].dims.as_slice()), ("t0", &[3u32, 96][..]));
    assert_eq!(graph.outputs()[0].bytes(), Some(3 * 64 * 2));
    drop(loaded);
    let mut second = vec![0u8; first.len()];
    graph.execute(&[&case.inputs[0]], &mut [&mut second]).expect("executed");
    assert_eq!(first, second);
}

/// Forms of repeating a mask of `[rows, slots]` for its heads before it is added to their scores.
#[derive(Clone, Copy, Debug)]
enum Written {
    /// Heads within rows, as in this shim: from `[1, rows, 1, slots]` to `[1, rows, heads, slots]`.
    WithinRows,
    /// Rows within heads in one axis, as reported: from `[1, 1, rows, slots]` to
    /// `[1, 1, heads · rows, slots]`.
    OneAfterAnother,
    /// Not repeated. The sum broadcasts it over the heads within rows.
    Broadcast,
}

/// Phones were reported to add a mask of 1,081,344 bytes, concatenated from one copy per head, to
/// other rows, but a mask of 1,048,576 bytes to the correct ones. The library's simulation adds
/// both correctly.
#[test]
fn a_mask_written_out_for_its_heads_is_added_to_its_own_rows_around_a_mebibyte() {
    let Some(library) = library() else { return };
    let (rows, heads) = (64, 8);
    for soc in [87, 69] {
        let device = device(&library, soc);
        for (slots, bytes) in [(1024, 1_048_576), (1056, 1_081_344), (4224, 4_325_376)] {
            assert_eq!(rows * heads * slots * 2, bytes);
            for form in [Written::WithinRows, Written::OneAfterAnother, Written::Broadcast] {
                let (shared, whole) = match form {
                    Written::OneAfterAnother => ([1, 1, rows, slots], [1, 1, heads * rows, slots]),
                    _ => ([1, rows, 1, slots], [1, rows, heads, slots]),
                };
                let mut case = Case::new("masked");
                // Every row has different numbers, so that any exchanged row is detected.
                let mask = case.input(&shared, a16(4.0), &random((rows * slots) as usize, 4.0, 3));
                let random_scores = random((rows * heads * slots) as usize, 8.0, 5);
                let scores = case.input(&whole, a16(8.0), &random_scores);
                let added = match form {
                    Written::Broadcast => mask,
                    _ => {
                        let joined = case.native(&whole, a16(4.0));
                        let axis = vec![("axis", Param::U32(2))];
                        case.node("Concat", axis, &vec![mask; heads as usize], &[joined]);
                        joined
                    }
                };
                let sum = case.output(&whole, a16(16.0));
                case.node("ElementWiseAdd", vec![], &[scores, added], &[sum]);
                let found = case.run(&device).expect("it runs").remove(0);
                let (mask, scores) = (case.real(mask), case.real(scores));
                let slots = slots as usize;
                let row = |line: usize| match form {
                    Written::OneAfterAnother => line % rows as usize,
                    _ => line / heads as usize,
                };
                let wrong = found.chunks(slots).zip(scores.chunks(slots)).enumerate().filter(
                    |(line, (found, scores))| {
                        let mask = &mask[row(*line) * slots..][..slots];
                        let right = scores.iter().zip(mask).map(|(score, mask)| score + mask);
                        // Tolerance of one step of the sum, because the library rounds once or
                        // twice.
                        found.iter().zip(right).any(|(found, right)| (found - right).abs() > 16.0 / 32768.0)
                    },
                );
                assert_eq!(wrong.count(), 0, "rows of {bytes} bytes on {soc}, {form:?}");
            }
        }
    }
}

/// Computes the Tanh of a product, in 16-bit integers or f16, in these extents. Returns whether
/// each row is correct. Tanh of f16 is within six thousandths.
fn tanh_of_a_product(device: &Arc<Device>, rows: u32, extents: &[u32], half: bool) -> Vec<bool> {
    const COLUMNS: u32 = 512;
    let extents = [extents, &[COLUMNS]].concat();
    let kind = |bound: f64| if half { f16() } else { a16(bound) };
    let product = |name| match half {
        false => fully_connected(name, rows, 64, COLUMNS),
        true => {
            let mut case = Case::new(name);
            let x = case.input(&[rows, 64], f16(), &random(64 * rows as usize, 1.0, 1));
            let w = case.constant(&[COLUMNS, 64], f16(), &random(64 * COLUMNS as usize, 0.1, 2));
            let y = case.output(&[rows, COLUMNS], f16());
            case.node("FullyConnected", vec![], &[x, w], &[y]);
            case
        }
    };
    let plain = product("product").run(device).expect("computed").remove(0);
    let mut case = product("tanh");
    case.graph.tensors[2].kind = TensorKind::Native;
    let operand = case.native(&extents, kind(2.0));
    case.node("Reshape", vec![], &[TensorIndex(2)], &[operand]);
    let tanh = case.native(&extents, kind(1.0));
    case.node("Tanh", vec![], &[operand], &[tanh]);
    let out = case.output(&[rows, COLUMNS], kind(1.0));
    case.node("Reshape", vec![], &[tanh], &[out]);
    let found = case.run(device).expect("computed").remove(0);
    let rows = found.chunks(COLUMNS as usize).zip(plain.chunks(COLUMNS as usize));
    rows.map(|(found, plain)| {
        let expected: Vec<f64> = plain.iter().map(|value| value.tanh()).collect();
        worst(found, &expected) < if half { 0.01 } else { 0.001 }
    })
    .collect()
}

#[test]
fn a_tanh_of_sixteen_rows_is_wrong() {
    let Some(library) = library() else { return };
    for soc in [69, 87] {
        let device = device(&library, soc);
        for half in [false, true] {
            for rows in [4, 8, 15, 17, 32, 64] {
                let right = tanh_of_a_product(&device, rows, &[rows], half);
                assert_eq!(right, vec![true; rows as usize], "{rows} rows, f16: {half}");
            }
            assert_eq!(tanh_of_a_product(&device, 16, &[1, 2, 8], half), [true; 16], "f16: {half}");
        }
        assert_eq!(tanh_of_a_product(&device, 16, &[16], true), [true; 16]);
        // This is why lowering splits such operations. If a new library is correct, it need not.
        assert!(tanh_of_a_product(&device, 16, &[16], false).contains(&false));
    }
}

/// Computes a product of integers from a norm of halves, whose result is converted in these
/// extents. Returns whether each row is correct.
fn product_of_a_norm(device: &Arc<Device>, rows: u32, extents: &[u32]) -> Vec<bool> {
    const WIDTH: u32 = 256;
    const COLUMNS: u32 = 64;
    let mut case = Case::new("norm");
    let x = case.input(&[rows, WIDTH], f16(), &random((WIDTH * rows) as usize, 3.0, 1));
    let gain = case.constant(&[WIDTH], f16(), &vec![1.0; WIDTH as usize]);
    let norm = case.native(&[rows, WIDTH], f16());
    let params = vec![("epsilon", Param::F32(1e-6)), ("axes", Param::U32s(vec![1]))];
    case.node("RmsNorm", params, &[x, gain], &[norm]);
    let extents = [extents, &[WIDTH]].concat();
    let blocks = case.native(&extents, f16());
    case.node("Reshape", vec![], &[norm], &[blocks]);
    let integers = case.native(&extents, a16(4.0));
    case.node("Quantize", vec![], &[blocks], &[integers]);
    let flat = case.native(&[rows, WIDTH], a16(4.0));
    case.node("Reshape", vec![], &[integers], &[flat]);
    let w = case.constant(&[COLUMNS, WIDTH], w8(COLUMNS), &random((COLUMNS * WIDTH) as usize, 0.1, 2));
    let y = case.output(&[rows, COLUMNS], a16(8.0));
    case.node("FullyConnected", vec![], &[flat, w], &[y]);
    let found = case.run(device).expect("computed").remove(0);
    let (x, w) = (case.real(x), case.real(w));
    let right = |(row, found): (&[f64], &[f64])| {
        let root = (row.iter().map(|x| x * x).sum::<f64>() / f64::from(WIDTH) + 1e-6).sqrt();
        let expected: Vec<f64> =
            w.chunks(WIDTH as usize).map(|w| w.iter().zip(row).map(|(w, x)| w * x / root).sum()).collect();
        worst(found, &expected) < 0.01
    };
    x.chunks(WIDTH as usize).zip(found.chunks(COLUMNS as usize)).map(right).collect()
}

#[test]
fn a_conversion_of_sixteen_rows_is_wrong() {
    let Some(library) = library() else { return };
    for soc in [69, 87] {
        let device = device(&library, soc);
        for rows in [1, 8, 15, 17, 32] {
            assert_eq!(product_of_a_norm(&device, rows, &[rows]), vec![true; rows as usize], "{rows} rows");
        }
        assert_eq!(product_of_a_norm(&device, 16, &[1, 2, 8]), [true; 16]);
        // This is why lowering splits such operations. If a new library is correct, it need not.
        assert!(product_of_a_norm(&device, 16, &[16]).contains(&false));
    }
}

#[test]
fn weights_are_widened_and_exchanged_on_the_way() {
    let Some(library) = library() else { return };
    let device = device(&library, 69);
    // Odd extents: rows of the packed form end within a byte.
    let (inner, channels) = (37usize, 21usize);
    for bits in [4u32, 2] {
        let scales: Vec<f32> = (0..channels).map(|channel| 0.01 + channel as f32 * 1e-3).collect();
        let most = (1i64 << (bits - 1)) - 1;
        let stored = |row: usize, column: usize| (row * 7 + column * 3) as i64 % (2 * most + 2) - most - 1;
        let per_byte = 8 / bits as usize;
        let mut packed = vec![0u8; channels * inner.div_ceil(per_byte)];
        for row in 0..channels {
            for column in 0..inner {
                let low = (stored(row, column) & ((1 << bits) - 1)) as u8;
                packed[row * inner.div_ceil(per_byte) + column / per_byte] |=
                    low << (column % per_byte * bits as usize);
            }
        }
        let packed: &'static [u8] = packed.leak();
        let mut outputs = Vec::new();
        for transposed in [false, true] {
            let mut case = Case::new(if transposed { "exchanged" } else { "straight" });
            let x = case.input(&[1, inner as u32], a16(1.0), &random(inner, 1.0, 5));
            let (dims, axis) = match transposed {
                false => ([channels as u32, inner as u32], 0),
                true => ([inner as u32, channels as u32], 1),
            };
            let kind =
                (DataType::Sfixed8, QnnEncoding::BitWidthPerAxis { bits, axis, scales: scales.clone() });
            let w = case.constant(&dims, kind, &vec![0.0; inner * channels]);
            case.graph.tensors[w.0 as usize].kind =
                TensorKind::Static(StaticData::Packed { bytes: packed, bits, transposed });
            let y = case.output(&[1, channels as u32], a16(4.0));
            match transposed {
                false => case.node("FullyConnected", vec![], &[x, w], &[y]),
                true => case.node(
                    "MatMul",
                    vec![("transpose_in0", Param::Bool(false)), ("transpose_in1", Param::Bool(false))],
                    &[x, w],
                    &[y],
                ),
            }
            let found = case.run(&device).expect("runs").remove(0);
            let plain: Vec<f64> = (0..channels)
                .map(|row| {
                    let weight = |column| stored(row, column) as f64 * f64::from(scales[row]);
                    case.real(x).iter().enumerate().map(|(column, x)| x * weight(column)).sum()
                })
                .collect();
            assert!(
                worst(&found, &plain) < 3.0 * 4.0 / 32768.0,
                "{bits} bits, {transposed}: {}",
                worst(&found, &plain)
            );
            outputs.push(found);
        }
    }
}

#[test]
fn estimates_are_those_of_the_stand_in_chip_and_the_same_every_time() {
    let Some(library) = library() else { return };
    let device = device(&library, 72);
    let estimate = || {
        let mut case = fully_connected("estimated", 1, 1536, 6144);
        case.graph.tensors[1].kind = TensorKind::Static(StaticData::Stand { seed: 7 });
        let mut context = Context::new(device.clone(), ContextOptions::default()).expect("a context");
        let options = GraphOptions { vtcm_megabytes: Some(8), ..GraphOptions::default() };
        let mut graph = context.compose(&case.graph, &options).expect("composed");
        graph.finalize(true).expect("finalized").expect("a profile")
    };
    let (first, second) = (estimate(), estimate());
    assert_eq!(first, second);
    let cycles = first.cycles.expect("this chip has estimates") as f64;
    assert!((cycles / 243_513.0 - 1.0).abs() < 0.02, "{first:?}");
    assert!(
        first.microseconds.is_some() && first.read_bytes.is_some_and(|bytes| bytes > 9 << 20),
        "{first:?}"
    );
    assert_eq!((first.uncosted_count, first.uncosted.len()), (0, 0));
}

#[test]
fn operations_without_a_cost_are_named() {
    let Some(library) = library() else { return };
    let mut case = Case::new("rotary");
    let x = case.input(&[1, 2, 4, 64], a16(1.0), &random(512, 1.0, 1));
    let cos = case.input(&[1, 4, 32], a16(1.0), &random(128, 1.0, 2));
    let sin = case.input(&[1, 4, 32], a16(1.0), &random(128, 1.0, 3));
    let y = case.output(&[1, 2, 4, 64], a16(2.0));
    case.node("RotaryEmbedding", vec![("interleaved", Param::Bool(false))], &[x, cos, sin], &[y]);
    let mut context = Context::new(device(&library, 72), ContextOptions::default()).expect("a context");
    let mut graph = context.compose(&case.graph, &GraphOptions::default()).expect("composed");
    let profile = graph.finalize(true).expect("finalized").expect("a profile");
    assert!(profile.uncosted_count > 0, "{profile:?}");
    assert!(profile.uncosted.iter().any(|name| name.contains("Rotary")), "{profile:?}");
}

#[test]
fn several_graphs_run_at_once_as_one_after_another() {
    let Some(library) = library() else { return };
    // Two chips, two contexts of one of them, in one process.
    let jobs: Vec<_> = [(69, 1), (43, 2), (69, 3)]
        .into_iter()
        .map(|(soc, rows)| {
            let device = device(&library, soc);
            let case = fully_connected("product", rows, 64, 48);
            let binary = compiled(&device, &case).bytes;
            let graph = LoadedContext::from_binary(device, &binary, None)
                .expect("loaded")
                .graph("product")
                .expect("there");
            let mut alone = vec![0u8; rows as usize * 48 * 2];
            graph.execute(&[&case.inputs[0]], &mut [&mut alone]).expect("executed");
            (graph, case, alone)
        })
        .collect();
    std::thread::scope(|scope| {
        for (graph, case, alone) in &jobs {
            for _ in 0..2 {
                scope.spawn(move || {
                    for _ in 0..10 {
                        let mut output = vec![0u8; alone.len()];
                        graph.execute(&[&case.inputs[0]], &mut [&mut output]).expect("executed");
                        assert_eq!(&output, alone);
                    }
                });
            }
        }
    });
}

#[test]
fn equal_weights_of_two_graphs_are_kept_once_and_not_loaded_here() {
    let Some(library) = library() else { return };
    let device = device(&library, 72);
    let binary = |weight_sharing| {
        let mut context = Context::new(device.clone(), ContextOptions { weight_sharing }).expect("a context");
        for rows in [1, 8] {
            let case = fully_connected(&format!("rows_{rows}"), rows, 512, 512);
            context
                .compose(&case.graph, &GraphOptions::default())
                .expect("composed")
                .finalize(false)
                .expect("finalized");
        }
        context.binary().expect("a binary")
    };
    let (shared, apart) = (binary(true), binary(false));
    assert!(
        shared.bytes.len() + 100_000 < apart.bytes.len(),
        "{} and {}",
        shared.bytes.len(),
        apart.bytes.len()
    );
    let names = |binary: &ContextBinary| -> Vec<String> {
        binary.description.iter().flat_map(|one| &one.graphs).map(|graph| graph.name.clone()).collect()
    };
    assert_eq!(names(&shared), ["rows_1", "rows_8"]);
    assert_eq!(names(&apart), ["rows_1", "rows_8"]);
    if cfg!(target_arch = "x86_64") {
        let error = LoadedContext::from_binary(device.clone(), &shared.bytes, None)
            .expect_err("not on this platform");
        assert_eq!(error.class(), ErrorClass::IncompatibleArtefact, "{error}");
    }
    let loaded = LoadedContext::from_binary(device, &apart.bytes, None).expect("loaded");
    match loaded.graph("rows_2") {
        Err(QnnError::GraphMissing { name, available }) => {
            assert_eq!(
                (name.as_str(), available.as_slice()),
                ("rows_2", &["rows_1".to_owned(), "rows_8".to_owned()][..])
            );
        }
        other => panic!("{other:?}"),
    }
}

// ---- bad input

#[test]
fn bytes_that_are_no_binary_are_refused_and_damaged_heads_end_nothing() {
    let Some(library) = library() else { return };
    let system = library.system().expect("beside it");
    let good = compiled(&device(&library, 69), &fully_connected("product", 1, 64, 32)).bytes;
    assert_eq!(describe_binary(system, &good).expect("a binary").soc_model, 69);
    let own = std::fs::read(std::env::current_exe().expect("a name")).expect("this program");
    let mut foreign: Vec<(&str, Vec<u8>)> = vec![
        ("nothing", Vec::new()),
        ("a byte", vec![0]),
        ("zeros", vec![0; 70_000]),
        ("ones", vec![0xff; 70_000]),
        ("text", b"no binary at all, but long enough to be one, one should think".to_vec()),
        ("a program", own[..1 << 20].to_vec()),
        ("a binary after a gap", [&[0u8; 16][..], &good].concat()),
    ];
    foreign.extend(
        [1, 39, 100, 500, 4096, good.len() / 2, good.len() - 1]
            .map(|length| ("a part", good[..length].to_vec())),
    );
    for (what, bytes) in foreign {
        let error = describe_binary(system, &bytes).expect_err(what);
        assert!(matches!(error, QnnError::BinaryInvalid { .. }), "{what}: {error}");
        assert_eq!(error.class(), ErrorClass::CorruptArtefact, "{what}");
    }
    // Damaged heads are described or refused.
    let mut refused = 0;
    for at in (0..1000).step_by(9) {
        let mut damaged = good.clone();
        damaged[at] ^= if at % 2 == 0 { 0xff } else { 0x01 };
        match describe_binary(system, &damaged) {
            Ok(_) => {}
            Err(QnnError::BinaryInvalid { .. }) => refused += 1,
            Err(error) => panic!("byte {at}: {error}"),
        }
    }
    assert!(refused > 10, "{refused} refused");
    // Some of them crash the process that reads them.
    let fatal = (40..120).find_map(|at| {
        let mut damaged = good.clone();
        damaged[at] ^= 0x01;
        describe_binary(system, &damaged)
            .err()
            .map(|error| error.to_string())
            .filter(|text| text.contains("signal"))
    });
    assert!(fatal.is_some(), "no byte of the head is fatal any more: the child may not be needed");
}

#[test]
fn a_binary_for_a_newer_processor_is_incompatible() {
    let Some(library) = library() else { return };
    let newer = compiled(&device(&library, 87), &fully_connected("product", 1, 64, 32)).bytes;
    let error = LoadedContext::from_binary(device(&library, 69), &newer, None)
        .expect_err("made for v81, loaded on v79");
    let failure = failure(error);
    assert_eq!((failure.class, failure.code), (ErrorClass::IncompatibleArtefact, 5005), "{failure}");
    assert!(failure.log.contains("HMX"), "{}", failure.log);
}

#[test]
fn chips_the_library_does_not_know_are_refused() {
    let Some(library) = library() else { return };
    let backend = device(&library, 69).backend().clone();
    let error = failure(Device::new(backend, CodeFor::Chip(SocId(9999))).expect_err("no such chip"));
    assert_eq!((error.class, error.code), (ErrorClass::InvalidArgument, 14001));
    assert_eq!(error.function, "deviceCreate");
}

#[test]
fn the_newest_architecture_is_refused_with_the_logs_reason() {
    let Some(library) = library() else { return };
    // Another architecture's registry stays in the process, so this runs in a separate process.
    if !alone("the_newest_architecture_is_refused_with_the_logs_reason") {
        return;
    }
    let error = failure(fully_connected("product", 1, 64, 32).run(&device(&library, 122)).expect_err("v89"));
    assert_eq!((error.function, error.code), ("graphFinalize", 1002), "{error}");
    assert!(error.log.contains("RouterX86 graph prepare failed"), "{}", error.log);
    assert_ne!(error.class, ErrorClass::ResourceLimit, "the code is named after memory, and it is not that");
}

#[test]
fn refusals_name_the_node() {
    let Some(library) = library() else { return };
    let device = device(&library, 69);
    let tanh = |op: &'static str, to: &[u32], kind: Kind| {
        let mut case = Case::new("chain");
        let x = case.input(&[4, 64], a16(1.0), &random(256, 1.0, 1));
        let n = case.native(&[4, 64], a16(1.0));
        let y = case.output(to, kind);
        case.node("Tanh", vec![], &[x], &[n]);
        case.node(op, vec![], &[n], &[y]);
        case
    };
    let unvalidated = GraphOptions { unvalidated: true, ..GraphOptions::default() };
    for (case, options, function) in [
        (tanh("NoSuchOperation", &[4, 64], a16(1.0)), GraphOptions::default(), "backendValidateOpConfig"),
        (tanh("NoSuchOperation", &[4, 64], a16(1.0)), unvalidated.clone(), "graphFinalize"),
        (tanh("Tanh", &[5, 64], a16(1.0)), GraphOptions::default(), "backendValidateOpConfig"),
        (
            tanh("Tanh", &[4, 64], (DataType::Sfixed4, per_tensor(0.1, 0))),
            unvalidated,
            "tensorCreateGraphTensor",
        ),
    ] {
        let error = failure(case.run_with(&device, &options).expect_err(function));
        assert_eq!(error.function, function, "{error}");
        assert_eq!(error.class, ErrorClass::UnsupportedOp, "{error}");
        assert_eq!(error.node.as_deref(), Some(case.graph.nodes[1].name.as_str()), "{error}");
        let op = case.graph.nodes[1].op;
        let converted: Error = QnnError::Call(Box::new(error.clone())).into();
        assert_eq!(converted.class, ErrorClass::UnsupportedOp);
        assert_eq!(converted.vendor_code, error.code as i64);
        assert!(converted.details.contains(&("op".to_owned(), op.to_owned())), "{:?}", converted.details);
        assert!(converted.log_tail.is_some_and(|log| !log.is_empty()));
    }
}

#[test]
fn calls_out_of_order_are_the_callers_mistake() {
    let Some(library) = library() else { return };
    let case = fully_connected("product", 1, 64, 32);
    let mut context = Context::new(device(&library, 69), ContextOptions::default()).expect("a context");
    let mut graph = context.compose(&case.graph, &GraphOptions::default()).expect("composed");
    let mut output = vec![0u8; 64];
    let error = failure(graph.execute(&[&case.inputs[0]], &mut [&mut output]).expect_err("not finalized"));
    assert_eq!((error.class, error.code), (ErrorClass::InvalidArgument, 6023));
    let error = failure(context.binary().expect_err("not finalized"));
    assert_eq!((error.class, error.code), (ErrorClass::InvalidArgument, 5003));
    let error = failure(context.compose(&case.graph, &GraphOptions::default()).expect_err("a name twice"));
    assert_eq!((error.class, error.code), (ErrorClass::InvalidArgument, 6003));
    graph.finalize(false).expect("finalized");

    let count = graph.execute(&[], &mut [&mut output]).expect_err("no input");
    assert!(matches!(count, QnnError::MemoryCount { what: "inputs", expected: 1, found: 0, .. }), "{count}");
    let size = graph.execute(&[&case.inputs[0][1..]], &mut [&mut output]).expect_err("too short");
    assert!(matches!(size, QnnError::MemorySize { expected: 128, found: 127, .. }), "{size}");
}

#[test]
fn graphs_that_contradict_themselves_never_reach_the_library() {
    let Some(library) = library() else { return };
    let device = device(&library, 69);
    let broken = |what: &str, spoil: &dyn Fn(&mut Case)| {
        let mut case = fully_connected("product", 1, 64, 32);
        spoil(&mut case);
        let mut context = Context::new(device.clone(), ContextOptions::default()).expect("a context");
        match context.compose(&case.graph, &GraphOptions::default()) {
            Err(QnnError::GraphInvalid { problem, .. }) => {
                assert!(problem.contains(what), "{what}: {problem}")
            }
            other => panic!("{what}: {other:?}"),
        }
    };
    broken("there is no tensor 9", &|case| case.graph.nodes[0].inputs[1] = TensorIndex(9));
    broken("there is no tensor 9", &|case| case.graph.nodes[0].outputs[0] = TensorIndex(9));
    broken("read before it is written", &|case| case.graph.nodes[0].inputs[0] = TensorIndex(2));
    broken("read-only", &|case| case.graph.nodes[0].outputs[0] = TensorIndex(0));
    broken("no node writes it", &|case| drop(case.graph.nodes.pop()));
    broken("the name is already used", &|case| case.graph.tensors[1].name = "t0".to_owned());
    broken("the name is already used", &|case| {
        let again = case.graph.nodes[0].clone();
        case.graph.nodes.push(again);
    });
    broken("null character", &|case| case.graph.tensors[1].name = "t\0".to_owned());
    broken("null character", &|case| case.graph.name = "\0".to_owned());
    broken("bytes, expected 2048", &|case| {
        case.graph.tensors[1].kind = TensorKind::Static(StaticData::Transposed(b"x"))
    });
    broken("bytes, expected 1024", &|case| {
        case.graph.tensors[1].kind =
            TensorKind::Static(StaticData::Packed { bytes: b"x", bits: 4, transposed: false });
    });
    broken("3 bits", &|case| {
        case.graph.tensors[1].kind =
            TensorKind::Static(StaticData::Packed { bytes: b"x", bits: 3, transposed: true });
    });
    broken("scales, expected 32", &|case| case.graph.tensors[1].encoding = w8(31).1);
    broken("there is no axis 2", &|case| {
        case.graph.tensors[1].encoding = QnnEncoding::PerAxis { axis: 2, scales: vec![1.0] };
    });
    broken("block multiples", &|case| {
        case.graph.tensors[1].encoding = QnnEncoding::BlockExpansion {
            axis: 0,
            scales: vec![1.0; 32],
            blocks_per_channel: 2,
            multiples: vec![1],
        };
    });
    broken("an axis has the extent 0", &|case| case.graph.tensors[0].dims = vec![1, 0]);
    broken("beyond 64 bits", &|case| case.graph.tensors[0].dims = vec![u32::MAX; 4]);
    broken("can be passed to the library", &|case| case.graph.tensors[0].dims = vec![1 << 20, 1 << 20]);
    broken("9 axes", &|case| case.graph.tensors[0].dims = vec![1; 9]);
    broken("crashes on a MatMul", &|case| case.graph.nodes[0].op = "MatMul");
    broken("may not terminate", &|case| {
        let factor = case.constant(&[1], (DataType::Ufixed16, per_tensor(0.3, -7)), &[0.6]);
        case.graph.nodes[0].op = "ElementWiseMultiply";
        case.graph.nodes[0].inputs[1] = factor;
    });
    broken("has 1 values", &|case| {
        case.graph.nodes[0].params.push(("ranges", Param::I32s(vec![1], vec![1, 3])));
    });
}

#[test]
fn memory_of_a_phone_is_not_offered_here() {
    use std::os::fd::AsFd;
    let Some(library) = library() else { return };
    if !cfg!(target_arch = "x86_64") {
        return skipped("this is not the x86-64 library");
    }
    let context = Context::new(device(&library, 69), ContextOptions::default()).expect("a context");
    let file = tempfile::tempfile().expect("a file");
    match context.register_ion(file.as_fd(), DataType::Ufixed8, &[64]) {
        Err(QnnError::NotOffered { reason, .. }) => assert!(reason.contains("QnnMem"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_encoding_that_kills_the_compiler_kills_a_child() {
    const NAME: &str = "an_encoding_that_kills_the_compiler_kills_a_child";
    let Some(library) = library() else { return };
    if std::env::var_os(CHILD).is_none() {
        use std::os::unix::process::ExitStatusExt;
        let output = child(NAME).output().expect("this program starts");
        assert_eq!(output.status.signal(), Some(libc::SIGFPE), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let mut case = Case::new("deadly");
    let x = case.input(&[1, 64], a16(1.0), &random(64, 1.0, 1));
    let kind = (
        DataType::Sfixed8,
        QnnEncoding::BitWidthFloatBlock { bits: 4, extents: vec![32, 1], scales: vec![0.01; 2 * 32] },
    );
    let w = case.constant(&[64, 32], kind, &random(64 * 32, 0.05, 2));
    let y = case.output(&[1, 32], a16(2.0));
    let transposes = vec![("transpose_in0", Param::Bool(false)), ("transpose_in1", Param::Bool(false))];
    case.node("MatMul", transposes, &[x, w], &[y]);
    let options = GraphOptions { unvalidated: true, ..GraphOptions::default() };
    let outcome = case.run_with(&device(&library, 69), &options);
    panic!("the compiler survives it now: {outcome:?}");
}

#[test]
fn every_error_has_a_class_of_the_contract() {
    let path = PathBuf::from("libQnnHtp.so");
    let version = Version { major: 3, minor: 1, patch: 0 };
    let call = |class| {
        QnnError::Call(Box::new(CallFailure {
            class,
            function: "graphExecute",
            code: 1007,
            name: "SYSTEM_COMMUNICATION".to_owned(),
            node: Some("node".to_owned()),
            op: None,
            reason: "gone".to_owned(),
            log: "[E] gone".to_owned(),
        }))
    };
    let graph = || "graph".to_owned();
    for (error, class, part) in [
        (
            QnnError::VersionOutOfRange {
                path: path.clone(),
                interface: "core",
                found: version,
                major: 2,
                at_least: 32,
            },
            ErrorClass::InvalidArgument,
            "has version 3.1.0 of the core interface; this shim supports 2.32 and later 2.x",
        ),
        (
            QnnError::FunctionMissing { path: path.clone(), function: "graph_execute", slot: 21 },
            ErrorClass::Internal,
            "graph_execute (slot 21)",
        ),
        (
            QnnError::NoHtpProvider { path, found: vec!["GPU (4)".to_owned()] },
            ErrorClass::InvalidArgument,
            "GPU (4)",
        ),
        (
            QnnError::WrongTarget { asked: 69, made: 30, arch: Some(68) },
            ErrorClass::Internal,
            "chip 30 (v68)",
        ),
        (
            QnnError::GraphMissing { name: graph(), available: vec![] },
            ErrorClass::IncompatibleArtefact,
            "`graph`",
        ),
        (QnnError::BinaryInvalid { reason: "short".to_owned() }, ErrorClass::CorruptArtefact, "short"),
        (call(ErrorClass::UnsupportedOp), ErrorClass::UnsupportedOp, "at node `node`"),
        (call(ErrorClass::DeviceLost), ErrorClass::DeviceLost, "graphExecute failed with 1007"),
    ] {
        let converted: Error = error.into();
        assert_eq!(converted.class, class, "{converted}");
        assert!(converted.message.contains(part), "{part}: {converted}");
    }
}

#[test]
fn backends_can_be_made_again() {
    let Some(library) = library() else { return };
    for _ in 0..3 {
        let backend = Backend::new(library.clone()).expect("a backend");
        let device = Device::new(backend, CodeFor::Chip(SocId(69))).expect("a device");
        fully_connected("product", 1, 64, 32).run(&device).expect("runs");
    }
}

/// The library's verbose log repeats every number it reads from a vote, and so reveals whether the
/// layout is correct.
#[test]
fn a_vote_is_read_as_it_was_written_and_taken_back() {
    const NAME: &str = "a_vote_is_read_as_it_was_written_and_taken_back";
    let Some(library) = library() else { return };
    if !alone(NAME) {
        return;
    }
    let device = device(&library, 87);
    device.backend().set_log_level(Level::Verbose).expect("taken");
    for (power, [scaling, mode, latency, corner], polling) in [
        (Power::Burst, [0, 1, 40, 0xa0], true),
        (Power::Sustained, [0, 1, 100, 0x80], true),
        (Power::Balanced, [1, 16, 1000, 0x70], false),
        (Power::Saver, [1, 16, 1000, 0x40], false),
    ] {
        let mark = log::mark();
        let vote = PowerVote::cast(device.clone(), power).expect("the library takes it");
        let lines: Vec<String> = log::since(mark).into_iter().map(|line| line.text).collect();
        let said = |text: &str| lines.iter().any(|line| line == text);
        for number in [
            format!("dcvsEnable {scaling}"),
            format!("powerMode {mode}"),
            format!("sleepLatency {latency}"),
            "setDcvsEnable 1".to_owned(),
            "setSleepLatency 1".to_owned(),
            "setSleepDisable 0".to_owned(),
            "setBusParams 1".to_owned(),
            format!("busVoltageCornerMin {corner}"),
            format!("busVoltageCornerTarget {corner}"),
            format!("busVoltageCornerMax {corner}"),
            "setCoreParams 1".to_owned(),
            format!("coreVoltageCornerMin {corner}"),
            format!("coreVoltageCornerTarget {corner}"),
            format!("coreVoltageCornerMax {corner}"),
        ] {
            assert!(said(&number), "{power:?}: no `{number}` in {lines:#?}");
        }
        assert_eq!(said("set power settings rpc polling time 9999"), polling, "{power:?}: {lines:#?}");
        assert!(said("No perf settings support on this platform"), "{power:?}: {lines:#?}");
        let mark = log::mark();
        drop(vote);
        let lines: Vec<String> = log::since(mark).into_iter().map(|line| line.text).collect();
        let destroyed = |line: &String| line.starts_with("Destroyed power config id");
        assert!(lines.iter().any(destroyed) && lines.contains(&"powerMode 4".to_owned()), "{lines:#?}");
    }
}

// ---- children

/// Environment variable of a child with the name of the test it runs.
const CHILD: &str = "SHARDWRIGHT_QNN_TEST_CHILD";

/// Returns a command that starts this program again with one test.
fn child(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a name"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, test);
    command
}

/// Returns true in the child that runs the test. Otherwise starts the child and checks its end.
fn alone(test: &str) -> bool {
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let output = child(test).output().expect("this program starts");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    false
}
