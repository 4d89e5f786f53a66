//! The order of calls, and the support of versions and processors.

use std::ptr;

use neuron_adapter::*;
use shardwright_neuron_adapter::operand::{
    EXT_TENSOR_INT32_SYMM_PER_CHANNEL, EXT_TENSOR_QUANT4_SYMM, EXT_TENSOR_QUANT4_SYMM_PER_CHANNEL,
    TENSOR_FLOAT32, TENSOR_INT32, TENSOR_QUANT8_SYMM_PER_CHANNEL, TENSOR_QUANT16_SYMM,
};
use shardwright_neuron_adapter::result::{BAD_DATA, BAD_STATE, NO_ERROR, UNEXPECTED_NULL, UNMAPPABLE};
use shardwright_neuron_adapter::{FUNCTIONS, Functions, RuntimeVersion, operation as op};

use crate::child;
use crate::client::{Kind, Model, last_message, tensor};

fn f32s(dimensions: &[u32]) -> Kind {
    tensor(TENSOR_FLOAT32, dimensions, 0.0, 0)
}

/// Returns an unfinished model of x + x.
fn doubling() -> (Model, [u32; 2]) {
    let mut model = Model::new();
    let (x, none, out) = (model.operand(&f32s(&[4])), model.int(0), model.operand(&f32s(&[4])));
    model.operation(op::ADD, &[x, x, none], &[out]);
    (model, [x, out])
}

#[test]
fn models_are_fixed_once_they_are_finished() {
    let (mut model, [x, out]) = doubling();
    assert_eq!(model.try_finish(&[x], &[out]), NO_ERROR);
    assert_eq!(model.try_operand(&f32s(&[4])), BAD_STATE);
    assert_eq!(model.try_operation(op::ADD, &[x, x, 1], &[out]), BAD_STATE);
    // SAFETY: the model is alive, and no memory is lent.
    unsafe {
        assert_eq!(NeuronModel_finish(model.handle), BAD_STATE);
        assert_eq!(NeuronModel_setOperandValue(model.handle, 0, [0u8; 16].as_ptr().cast(), 16), BAD_STATE);
        assert_eq!(
            NeuronModel_identifyInputsAndOutputs(model.handle, 1, &raw const x, 1, &raw const out),
            BAD_STATE
        );
    }
    assert!(last_message().contains("the model is finished"), "{}", last_message());
    // Google's client calls it on a finished model too.
    model.relax();
    let compiled = model.try_compile("--opt 3").expect("compiles");
    // SAFETY: the compilation is alive.
    unsafe {
        assert_eq!(NeuronCompilation_finish(compiled.handle), BAD_STATE);
        assert_eq!(NeuronCompilation_setPriority(compiled.handle, 110), BAD_STATE);
        assert_eq!(
            NeuronCompilation_getSupportedOperations(compiled.handle, 1, [0u8].as_mut_ptr()),
            BAD_STATE
        );
    }
}

#[test]
fn handles_that_are_null_freed_or_in_use_are_told() {
    let (mut model, [x, out]) = doubling();
    let mut unfinished = ptr::null_mut();
    // SAFETY: null and freed handles are under test. The library looks them up and never
    // dereferences them.
    unsafe {
        assert_eq!(NeuronModel_finish(ptr::null_mut()), UNEXPECTED_NULL);
        assert_eq!(NeuronCompilation_create(model.handle, &raw mut unfinished), BAD_STATE);
        assert_eq!(NeuronModel_create(ptr::null_mut()), UNEXPECTED_NULL);
        assert_eq!(NeuronModel_addOperand(model.handle, ptr::null()), UNEXPECTED_NULL);
    }
    assert_eq!(model.try_finish(&[x], &[out]), NO_ERROR);
    let handle = model.handle;
    let compilation = model.compilation("");
    let mut execution = ptr::null_mut();
    // SAFETY: as above.
    unsafe {
        assert_eq!(NeuronExecution_create(compilation, &raw mut execution), BAD_STATE);
        assert!(last_message().contains("not finished"));
        assert_eq!(NeuronCompilation_finish(compilation), NO_ERROR);
        // An object with dependents stays alive if it is freed too early.
        NeuronModel_free(handle);
        assert_eq!(NeuronExecution_create(compilation, &raw mut execution), NO_ERROR);
        NeuronCompilation_free(compilation);
        assert_eq!(NeuronExecution_compute(execution), BAD_STATE);
        assert!(last_message().contains("has no buffer"), "{}", last_message());
        NeuronExecution_free(execution);
        NeuronCompilation_free(compilation);
        NeuronModel_free(handle);
        assert_eq!(NeuronModel_relaxComputationFloat32toFloat16(handle, 1), BAD_STATE);
        assert!(last_message().contains("was freed"), "{}", last_message());
        NeuronExecution_free(ptr::null_mut());
    }
}

#[test]
fn operands_that_cannot_be_are_refused() {
    let mut model = Model::new();
    for (kind, problem) in [
        (tensor(777, &[4], 0.0, 0), "unknown operand type 777"),
        (f32s(&[4, 0]), "a dimension of 0"),
        (f32s(&[4, u32::MAX]), "a dimension of 4294967295"),
        (f32s(&[1 << 20, 1 << 20, 4]), "too many elements"),
        (f32s(&[1; 9]), "9 dimensions"),
        (tensor(1, &[1], 0.0, 0), "1 dimensions of an operand of type 1"),
        (tensor(TENSOR_QUANT16_SYMM, &[4], f32::NAN, 0), "a scale of NaN"),
        (tensor(TENSOR_QUANT16_SYMM, &[4], 1.0, 3), "a zero point of 3"),
    ] {
        assert_eq!(model.try_operand(&kind), BAD_DATA, "{problem}");
        assert!(last_message().contains(problem), "{}", last_message());
    }
    let operand = model.operand(&tensor(TENSOR_INT32, &[4], 0.0, 0));
    // SAFETY: the bytes stay alive for the call.
    unsafe {
        assert_eq!(
            NeuronModel_setOperandValue(model.handle, operand as i32, [0u8; 16].as_ptr().cast(), 12),
            BAD_DATA
        );
        assert_eq!(NeuronModel_setOperandValue(model.handle, 7, [0u8; 16].as_ptr().cast(), 16), BAD_DATA);
        assert_eq!(NeuronModel_setOperandValue(model.handle, -1, [0u8; 16].as_ptr().cast(), 16), BAD_DATA);
    }
    // A public report describes this error: per-channel scales for an ordinary bias.
    assert_eq!(model.symmetric_channels(operand, 0, &[1.0; 4]), BAD_DATA);
    let weight = model.operand(&tensor(TENSOR_QUANT8_SYMM_PER_CHANNEL, &[4, 2], 0.0, 0));
    for (axis, scales) in
        [(1, &[1.0; 4][..]), (2, &[1.0; 2]), (0, &[1.0, 0.0, 1.0, 1.0]), (0, &[1.0, f32::INFINITY, 1.0, 1.0])]
    {
        assert_eq!(model.symmetric_channels(weight, axis, scales), BAD_DATA);
    }
    assert_eq!(model.channels(weight, 0, &[1.0; 4], &[0, 1, 0, 0]), BAD_DATA);
    assert_eq!(model.channels(weight, 0, &[1.0; 4], &[0; 3]), BAD_DATA);
    assert_eq!(model.channels(weight, 0, &[1.0; 4], &[0; 4]), NO_ERROR);
}

#[test]
fn operations_whose_operands_do_not_fit_are_refused_when_the_model_is_finished() {
    type Build = fn(&mut Model) -> [u32; 2];
    let cases: [(&str, Build); 6] = [
        ("cannot be broadcast", |model| {
            let (x, none, out) = (model.operand(&f32s(&[4])), model.int(0), model.operand(&f32s(&[4])));
            let y = model.constant(&f32s(&[3]), vec![0; 12]);
            model.operation(op::ADD, &[x, y, none], &[out]);
            [x, out]
        }),
        ("expected 3 to 3 and 1", |model| {
            let (x, out) = (model.operand(&f32s(&[4])), model.operand(&f32s(&[4])));
            model.operation(op::ADD, &[x, x], &[out]);
            [x, out]
        }),
        ("no source", |model| {
            let (x, y, none, out) = (
                model.operand(&f32s(&[4])),
                model.operand(&f32s(&[4])),
                model.int(0),
                model.operand(&f32s(&[4])),
            );
            model.operation(op::ADD, &[x, y, none], &[out]);
            [x, out]
        }),
        ("two sources", |model| {
            let (x, none, out) = (model.operand(&f32s(&[4])), model.int(0), model.operand(&f32s(&[4])));
            model.operation(op::ADD, &[x, x, none], &[out]);
            model.operation(op::MUL, &[x, x, none], &[out]);
            [x, out]
        }),
        ("circle", |model| {
            let (x, none) = (model.operand(&f32s(&[4])), model.int(0));
            let (a, b) = (model.operand(&f32s(&[4])), model.operand(&f32s(&[4])));
            model.operation(op::ADD, &[x, b, none], &[a]);
            model.operation(op::ADD, &[x, a, none], &[b]);
            [x, b]
        }),
        ("not a permutation", |model| {
            let (x, out, order) =
                (model.operand(&f32s(&[4, 4])), model.operand(&f32s(&[4, 4])), model.ints(&[1, 1]));
            model.operation(op::TRANSPOSE, &[x, order], &[out]);
            [x, out]
        }),
    ];
    for (problem, build) in cases {
        let mut model = Model::new();
        let [x, out] = build(&mut model);
        assert_eq!(model.try_finish(&[x], &[out]), BAD_DATA, "{problem}");
        assert!(last_message().contains(problem), "{}", last_message());
    }
    let mut model = Model::new();
    assert_eq!(model.try_operation(op::ADD, &[5], &[6]), BAD_DATA);
}

/// Queries in both ways whether the operations of a finished model are supported.
fn supported(model: &mut Model, count: usize) -> Vec<u8> {
    let compilation = model.compilation("");
    let (mut early, mut late) = (vec![9u8; count], vec![9u8; count]);
    // SAFETY: there is room for as many results.
    unsafe {
        assert_eq!(
            NeuronCompilation_getSupportedOperations(compilation, count as u32, early.as_mut_ptr()),
            NO_ERROR
        );
        assert_eq!(
            NeuronModel_getSupportedOperations(model.handle, late.as_mut_ptr(), count as u32),
            NO_ERROR
        );
        assert_eq!(
            NeuronCompilation_getSupportedOperations(compilation, count as u32 + 1, early.as_mut_ptr()),
            BAD_DATA
        );
        NeuronCompilation_free(compilation);
    }
    assert_eq!(early, late);
    early
}

#[test]
fn what_a_client_could_not_lower_is_not_supported() {
    let (mut model, [x, out]) = doubling();
    // Google's client sends this for operations without a number and elements without a type.
    let odd = model.operand(&tensor(14, &[4], 0.0, 0));
    model.operation(op::UNKNOWN, &[out], &[odd]);
    let high = [1, 1, 1, 1, 4];
    let (five, also, none) = (model.operand(&f32s(&high)), model.operand(&f32s(&high)), model.int(0));
    model.operation(op::ADD, &[five, five, none], &[also]);
    assert_eq!(model.try_finish(&[x, five], &[odd, also]), NO_ERROR, "{}", last_message());
    assert_eq!(supported(&mut model, 3), [1, 0, 0]);
    let (code, message) = model.try_compile("").map(|_| ()).expect_err("not everything can run");
    assert_eq!(code, UNMAPPABLE);
    assert!(
        message.contains("operation 1 (type 10001)") || message.contains("operation 2 (type 0): rank 5"),
        "{message}"
    );
}

/// Compiles A16 by weights of a type, with per-channel scales if `scales` are given. Returns the
/// code of finishing the compilation and the message.
fn weighted(of: i32, scale: f32, scales: &[f32]) -> (i32, String) {
    let mut model = Model::new();
    let a16 = |dimensions: &[u32]| tensor(TENSOR_QUANT16_SYMM, dimensions, 0.001, 0);
    let x = model.operand(&a16(&[1, 4]));
    let kind = tensor(of, &[3, 4], scale, 0);
    let code = model.try_operand(&kind);
    if code != NO_ERROR {
        return (code, last_message());
    }
    assert_eq!(model.short_value(1, &[1; 12]), NO_ERROR);
    if !scales.is_empty() {
        assert_eq!(model.symmetric_channels(1, 0, scales), NO_ERROR);
    }
    let bias_scale = if scales.is_empty() { 0.001 * scale } else { 0.0 };
    let bias = model.constant(&tensor(TENSOR_INT32, &[3], bias_scale, 0), vec![0; 12]);
    let (none, out) = (model.int(0), model.operand(&a16(&[1, 3])));
    model.operation(op::FULLY_CONNECTED, &[x, 1, bias, none], &[out]);
    assert_eq!(model.try_finish(&[x], &[out]), NO_ERROR, "{}", last_message());
    let answer = supported(&mut model, 1);
    match model.try_compile("") {
        Ok(_) => {
            assert_eq!(answer, [1]);
            (NO_ERROR, String::new())
        }
        Err(refused) => {
            assert_eq!(answer, [0]);
            refused
        }
    }
}

const SCALES: [f32; 3] = [0.01, 0.02, 0.03];

#[test]
fn four_bits_per_channel_need_a_version() {
    child::alone(r#"{"version": [8, 2, 27], "soc": "mt6991"}"#, || {
        let (code, message) = weighted(EXT_TENSOR_QUANT4_SYMM_PER_CHANNEL, 0.0, &SCALES);
        assert_eq!(code, BAD_DATA);
        assert!(message.contains("needs version 8.2.28, but this is 8.2.27"), "{message}");
        // Google's client sends this instead: a per-tensor type whose scale is 0.
        let (code, message) = weighted(EXT_TENSOR_QUANT4_SYMM, 0.0, &[]);
        assert_eq!(code, UNMAPPABLE);
        assert!(message.contains("scales were lost"), "{message}");
        assert_eq!(weighted(EXT_TENSOR_QUANT4_SYMM, 0.01, &[]).0, NO_ERROR);
        assert_eq!(weighted(TENSOR_QUANT8_SYMM_PER_CHANNEL, 0.0, &SCALES).0, NO_ERROR);
        let bias = tensor(EXT_TENSOR_INT32_SYMM_PER_CHANNEL, &[4], 0.0, 0);
        assert_eq!(Model::new().try_operand(&bias), BAD_DATA);
    });
}

#[test]
fn four_bits_per_channel_are_taken() {
    child::alone(r#"{"version": [8, 2, 28], "soc": "mt6991"}"#, || {
        assert_eq!(weighted(EXT_TENSOR_QUANT4_SYMM_PER_CHANNEL, 0.0, &SCALES), (NO_ERROR, String::new()));
    });
}

#[test]
fn four_bits_per_channel_are_refused_by_the_default_processor() {
    // The library's default processor was reported to refuse them in any version.
    let (code, message) = weighted(EXT_TENSOR_QUANT4_SYMM_PER_CHANNEL, 0.0, &SCALES);
    assert_eq!(code, UNMAPPABLE);
    assert!(message.contains("on mt6989"), "{message}");
    assert_eq!(weighted(EXT_TENSOR_QUANT4_SYMM, 0.01, &[]).0, NO_ERROR);
}

#[test]
fn scales_per_channel_are_for_weights() {
    let mut model = Model::new();
    let kind = tensor(TENSOR_QUANT8_SYMM_PER_CHANNEL, &[3, 4], 0.0, 0);
    let weight = model.constant(&kind, vec![0; 12]);
    assert_eq!(model.symmetric_channels(weight, 0, &SCALES), NO_ERROR);
    let out = model.operand(&f32s(&[3, 4]));
    model.operation(op::DEQUANTIZE, &[weight], &[out]);
    assert_eq!(model.try_finish(&[], &[out]), NO_ERROR);
    assert_eq!(supported(&mut model, 1), [0]);
}

#[test]
fn strict_libraries_see_constants_change() {
    child::alone(r#"{"strict": true}"#, || {
        let mut model = Model::new();
        let (x, none, out) = (model.operand(&f32s(&[64])), model.int(0), model.operand(&f32s(&[64])));
        let short = model.operand(&f32s(&[32]));
        let mut bytes = [1; 128];
        assert_eq!(model.short_value(short, &bytes), NO_ERROR);
        bytes.fill(0xFF);
        let long = model.constant(&f32s(&[64]), vec![0; 256]);
        model.operation(op::ADD, &[x, long, none], &[out]);
        assert_eq!(model.try_finish(&[x], &[out]), NO_ERROR);
        model.kept().last_mut().expect("kept")[200] = 1;
        let refused = model.try_compile("").map(|_| ()).expect_err("changed");
        assert_eq!(refused.0, BAD_DATA);
        assert!(refused.1.contains("the 256 bytes of operand 4 changed"), "{}", refused.1);
    });
}

#[test]
fn short_constants_are_copied_at_once() {
    let mut model = Model::new();
    let (x, none, out) = (model.operand(&f32s(&[32])), model.int(0), model.operand(&f32s(&[32])));
    let one = model.operand(&f32s(&[32]));
    let mut bytes: Vec<u8> = [1f32; 32].iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(model.short_value(one, &bytes), NO_ERROR);
    bytes.fill(0xFF);
    model.operation(op::ADD, &[x, one, none], &[out]);
    let found = model.compile(&[x], &[out]).run(&[vec![0; 128]], &[128]);
    assert_eq!(f32s(&[32]).decode(&found[0]), [1.0; 32]);
}

#[test]
fn operations_are_counted_as_they_are_sent() {
    child::alone(r#"{"most_operations": 10}"#, || {
        for (count, fits) in [(10, true), (11, false)] {
            let mut model = Model::new();
            let (first, none) = (model.operand(&f32s(&[4])), model.int(0));
            let mut last = first;
            for _ in 0..count {
                let out = model.operand(&f32s(&[4]));
                model.operation(op::ADD, &[last, last, none], &[out]);
                last = out;
            }
            assert_eq!(model.try_finish(&[first], &[last]), NO_ERROR);
            match model.try_compile("") {
                Ok(_) => assert!(fits),
                Err(refused) => {
                    assert!(!fits);
                    assert_eq!(
                        refused,
                        (
                            UNMAPPABLE,
                            "NeuronCompilation_finish: no execution plan: operations=11 most=10".to_owned()
                        )
                    );
                }
            }
        }
    });
}

#[test]
fn settings_that_do_not_exist_are_refused() {
    let (mut model, [x, out]) = doubling();
    assert_eq!(model.try_finish(&[x], &[out]), NO_ERROR);
    let compilation = model.compilation("--opt 3");
    // SAFETY: the compilation is alive, and texts end with a zero byte.
    unsafe {
        assert_eq!(NeuronCompilation_setPreference(compilation, 4), BAD_DATA);
        assert_eq!(NeuronCompilation_setPriority(compilation, 95), BAD_DATA);
        assert_eq!(NeuronCompilation_setOptimizationHint(compilation, 8), BAD_DATA);
        assert_eq!(NeuronCompilation_setL1MemorySizeKb(compilation, 7169), BAD_DATA);
        assert_eq!(NeuronCompilation_setOptimizationString(compilation, c"stray".as_ptr()), BAD_DATA);
        assert_eq!(NeuronCompilation_setOptimizationString(compilation, ptr::null()), UNEXPECTED_NULL);
        assert_eq!(NeuronCompilation_setPreference(compilation, 3), NO_ERROR);
        assert_eq!(NeuronCompilation_setPriority(compilation, 110), NO_ERROR);
        assert_eq!(NeuronCompilation_setOptimizationHint(compilation, 7), NO_ERROR);
        assert_eq!(NeuronCompilation_setL1MemorySizeKb(compilation, 7168), NO_ERROR);
        assert_eq!(NeuronCompilation_finish(compilation), NO_ERROR);
        NeuronCompilation_free(compilation);
        NeuronModel_free(model.handle);
    }
}

#[test]
#[ignore = "a case"]
fn case_the_first_calls() {
    if !child::is_case() {
        return;
    }
    let mut version = RuntimeVersion::default();
    // SAFETY: the result is writable.
    assert_eq!(unsafe { Neuron_getVersion(&raw mut version) }, NO_ERROR);
    let (mut model, [x, out]) = doubling();
    assert_eq!(model.try_finish(&[x], &[out]), NO_ERROR);
    drop(model.try_compile("").expect("compiles"));
}

#[test]
fn processes_end_and_hang_where_they_are_told_to() {
    use std::os::unix::process::ExitStatusExt;
    let case = "rules::case_the_first_calls";
    let failing = |function: &str, how: &str| {
        format!(r#"{{"failures": [{{"function": "{function}", "how": {how}}}], "trace": "TRACE"}}"#)
    };
    let run = |function: &str, how: &str| {
        child::run(case, &failing(function, how).replace(r#", "trace": "TRACE""#, "")).status
    };
    assert_eq!(run("NeuronCompilation_finish", r#"{"signal": 11}"#).signal(), Some(11));
    assert_eq!(run("NeuronModel_addOperation", r#""abort""#).signal(), Some(6));
    assert_eq!(run("NeuronModel_free", r#"{"exit": 3}"#).code(), Some(3));
    child::hangs_after(case, &failing("NeuronModel_finish", r#""hang""#), "NeuronModel_finish -> hangs");
    // Each of these functions returns the injected code, and the case stops there.
    for function in [
        "Neuron_getVersion",
        "NeuronModel_create",
        "NeuronModel_setOperandValue",
        "NeuronModel_finish",
        "NeuronCompilation_finish",
    ] {
        let output =
            child::run(case, &failing(function, r#"{"result": 5}"#).replace(r#", "trace": "TRACE""#, ""));
        assert_eq!(output.status.code(), Some(101), "{function}");
    }
    // A failure after a number of calls does not affect earlier calls.
    let later = r#"{"failures": [{"function": "Neuron_getVersion", "skip": 1, "how": "abort"}]}"#;
    child::succeeds(case, later);
    // An unreadable configuration is not ignored.
    assert_eq!(child::run(case, r#"{"verison": [9, 0, 0]}"#).status.code(), Some(101));
}

#[test]
fn every_function_that_a_known_client_uses_is_there() {
    let library = std::env::current_exe().expect("a path");
    let beside = library.ancestors().skip(1).take(2).map(|folder| folder.join("libneuron_adapter.so"));
    let library =
        beside.into_iter().find(|path| path.is_file()).expect("the simulator was built beside its tests");
    // SAFETY: the library's initialisers are only the standard library's.
    let library = unsafe { libloading::Library::new(library) }.expect("opens");
    // SAFETY: the simulator's functions have the signatures of their names, which it checks where
    // it declares them.
    let functions = unsafe {
        Functions::bind(|name| {
            library
                .get::<*mut std::ffi::c_void>(name.to_bytes_with_nul())
                .map_or(ptr::null_mut(), |symbol| *symbol)
        })
    };
    for (function, bound) in FUNCTIONS.iter().zip(functions.bound()) {
        assert!(bound || !function.is_used(), "{} is missing", function.name);
    }
}
