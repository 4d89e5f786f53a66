//! Storing and restoring of compiled networks.

use std::ptr;

use neuron_adapter::*;
use shardwright_neuron_adapter::operand::{
    TENSOR_FLOAT32, TENSOR_INT32, TENSOR_QUANT8_SYMM_PER_CHANNEL, TENSOR_QUANT16_SYMM,
};
use shardwright_neuron_adapter::result::{BAD_DATA, BAD_STATE, NO_ERROR, OUT_OF_MEMORY};
use shardwright_neuron_adapter::{extension, operation as op};

use crate::child;
use crate::client::{Compiled, Model, last_message, numbers, restore, run, tensor};

/// Compiles an A16W8 layer whose weight is long enough to be lent.
fn layer(options: &str) -> Compiled {
    let mut model = Model::new();
    let a16 = |dimensions: &[u32]| tensor(TENSOR_QUANT16_SYMM, dimensions, 0.001, 0);
    let x = model.operand(&a16(&[2, 40]));
    let bytes: Vec<u8> = numbers(400, 127.0, 4).iter().map(|x| *x as i8 as u8).collect();
    let weight = model.constant(&tensor(TENSOR_QUANT8_SYMM_PER_CHANNEL, &[10, 40], 0.0, 0), bytes);
    let scales: Vec<f32> = (1..=10).map(|channel| 0.001 * channel as f32).collect();
    assert_eq!(model.symmetric_channels(weight, 0, &scales), NO_ERROR);
    let bias = model.constant(&tensor(TENSOR_INT32, &[10], 0.0, 0), vec![7; 40]);
    let (none, out) = (model.int(0), model.operand(&a16(&[2, 10])));
    model.operation(op::FULLY_CONNECTED, &[x, weight, bias, none], &[out]);
    assert_eq!(model.try_finish(&[x], &[out]), NO_ERROR, "{}", last_message());
    model.try_compile(options).unwrap_or_else(|refused| panic!("{refused:?}"))
}

fn input() -> Vec<u8> {
    numbers(80, 30_000.0, 5).iter().flat_map(|x| (*x as i16).to_le_bytes()).collect()
}

/// Returns the code of a blob.
fn code(blob: &[u8]) -> &[u8] {
    let number = |at: usize| u64::from_le_bytes(blob[at..at + 8].try_into().expect("eight")) as usize;
    &blob[number(32)..number(32) + number(40)]
}

#[test]
fn what_is_restored_computes_the_same() {
    let compiled = layer("--opt 3");
    let expected = compiled.run(&[input()], &[40]);
    let blob = compiled.stored();
    assert_eq!(blob, layer("--opt 3").stored(), "the same model gives the same bytes");
    let restored = restore(&blob).unwrap_or_else(|refused| panic!("{refused:?}"));
    assert_eq!(restored.run(&[input()], &[40]), expected);
    let mut size = 0usize;
    // SAFETY: the compilation is alive.
    let again = unsafe { NeuronCompilation_getCompiledNetworkSize(restored.handle, &raw mut size) };
    assert_eq!(again, BAD_STATE);
    let (mut bytes, mut dimensions) = (0usize, [0u32; 4]);
    // SAFETY: four entries are written.
    unsafe {
        assert_eq!(NeuronCompilation_getOutputPaddedSize(restored.handle, 0, &raw mut bytes), NO_ERROR);
        assert_eq!(
            NeuronCompilation_getInputPaddedDimensions(restored.handle, 0, dimensions.as_mut_ptr()),
            NO_ERROR
        );
        assert_eq!(
            NeuronCompilation_getInputPaddedDimensions(restored.handle, 1, dimensions.as_mut_ptr()),
            BAD_DATA
        );
    }
    assert_eq!((bytes, dimensions), (40, [2, 40, 1, 1]));
}

#[test]
fn a_model_is_compiled_again_although_what_it_was_lent_is_gone() {
    let mut model = Model::new();
    let kind = tensor(TENSOR_FLOAT32, &[64], 0.0, 0);
    let (x, none, out) = (model.operand(&kind), model.int(0), model.operand(&kind));
    let weight = model.constant(&kind, kind.encode(&[0.5; 64]));
    model.operation(op::ADD, &[x, weight, none], &[out]);
    assert_eq!(model.try_finish(&[x], &[out]), NO_ERROR);
    for options in ["", "--opt 3"] {
        let compilation = model.compilation(options);
        // SAFETY: the compilation is alive. The lent memory stays alive until the first compilation
        // is finished.
        assert_eq!(unsafe { NeuronCompilation_finish(compilation) }, NO_ERROR, "{}", last_message());
        model.kept().clear();
        assert_eq!(kind.decode(&run(compilation, &[kind.encode(&[1.0; 64])], &[256])[0]), [1.5; 64]);
        // SAFETY: no other object depends on it.
        unsafe { NeuronCompilation_free(compilation) };
    }
    // SAFETY: no other object depends on it.
    unsafe { NeuronModel_free(model.handle) };
}

#[test]
fn blobs_are_marked_as_the_simulators_and_end_as_the_fields_do() {
    let options = "--opt 3 --invented --show-exec-plan";
    let blob = layer(options).stored();
    assert!(blob.starts_with(b"SWNEURON"));
    assert_eq!((&blob[12..16], &blob[16..22]), (&[8, 2, 28, 0][..], &b"mt6989"[..]));
    let mut rest = &blob[u64::from_le_bytes(blob[48..56].try_into().expect("eight")) as usize..];
    let mut strings = Vec::new();
    while !rest.is_empty() {
        let length = u32::from_le_bytes(rest[..4].try_into().expect("four")) as usize;
        assert_eq!(rest[4..8], [0; 4]);
        strings.push(std::str::from_utf8(&rest[8..8 + length]).expect("text"));
        rest = &rest[8 + length..];
    }
    assert_eq!((strings.len(), strings[0].len(), strings[2]), (3, 36, options));
    assert!(
        strings[1].starts_with(r#"{"Compiler": "shardwright-simulator 8.2.28", "Neuron SHA1": ""#),
        "{}",
        strings[1]
    );
}

#[test]
fn honoured_options_change_the_code_and_others_the_trailer_alone() {
    let without = layer("").stored();
    for (options, changes) in [
        ("--opt 3", true),
        ("--num-mdla=4", true),
        ("--relax-fp32", true),
        ("--invented 1", false),
        ("--show-exec-plan", false),
    ] {
        let with = layer(options).stored();
        assert_ne!(with, without, "{options}: recorded");
        assert_eq!(code(&with) != code(&without), changes, "{options}");
    }
    assert_ne!(code(&layer("--opt 2").stored()), code(&layer("--opt 3").stored()));
}

#[test]
fn no_option_is_honoured_where_that_is_configured() {
    child::alone(r#"{"honoured": "none"}"#, || {
        assert_eq!(code(&layer("--opt 3 --relax-fp32 --num-mdla 4").stored()), code(&layer("").stored()));
    });
}

#[test]
fn one_option_is_honoured_and_one_refused_where_that_is_configured() {
    child::alone(r#"{"honoured": ["invented"], "refused_options": ["gno"]}"#, || {
        assert_ne!(code(&layer("--invented 3").stored()), code(&layer("").stored()));
        assert_eq!(code(&layer("--opt 3").stored()), code(&layer("").stored()));
        let compiled = layer("");
        let mut compilation = ptr::null_mut();
        // SAFETY: the model is alive, and the text ends with a zero byte.
        let refused = unsafe {
            NeuronCompilation_createWithOptions(compiled.model, &raw mut compilation, c"--gno=LTS".as_ptr())
        };
        assert_eq!(refused, BAD_DATA);
        assert!(last_message().contains("`--gno` is refused"), "{}", last_message());
    });
}

/// Stores a blob in a file, because a case runs in a process of its own and cannot receive the blob
/// otherwise.
fn blob_of_this_process() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), layer("").stored()).expect("written");
    file
}

#[test]
#[ignore = "a case"]
fn case_a_foreign_blob_is_refused() {
    if !child::is_case() {
        return;
    }
    let (Some(blob), Some(words)) = (std::env::var_os("BLOB"), std::env::var("WORDS").ok()) else { return };
    let (code, message) = restore(&std::fs::read(blob).expect("readable")).map(|_| ()).expect_err("refused");
    assert_eq!(code, BAD_DATA);
    assert!(message.contains(&words), "{message}");
}

#[test]
fn blobs_of_other_majors_and_processors_are_refused() {
    let blob = blob_of_this_process();
    let own = layer("").run(&[input()], &[40]);
    for (configuration, words) in [
        (r#"{"version": [9, 0, 3]}"#, "of version 8.2.28, but this is 9.0.3"),
        (r#"{"version": [7, 3, 19]}"#, "of version 8.2.28, but this is 7.3.19"),
        (r#"{"soc": "mt6991"}"#, "for mt6989, and this is mt6991"),
    ] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("configuration.json");
        std::fs::write(&file, configuration).expect("written");
        let output = std::process::Command::new(std::env::current_exe().expect("a path"))
            .args(["blobs::case_a_foreign_blob_is_refused", "--exact", "--ignored"])
            .env("SHARDWRIGHT_NEURON_SIMULATOR", file)
            .env("BLOB", blob.path())
            .env("WORDS", words)
            .output()
            .expect("starts");
        assert!(output.status.success(), "{configuration}: {}", String::from_utf8_lossy(&output.stdout));
    }
    // This process has the blob's own version and processor.
    assert_eq!(
        restore(&std::fs::read(blob.path()).expect("readable")).expect("its own").run(&[input()], &[40]),
        own
    );
}

#[test]
fn damaged_blobs_are_refused_wherever_they_are_damaged() {
    let blob = layer("--opt 3").stored();
    for at in 0..blob.len() {
        // The bytes between the major version and the processor's name may change, and so may the
        // bytes after the end of that name.
        let mut damaged = blob.clone();
        damaged[at] ^= 0x40;
        match restore(&damaged) {
            Err((code, _)) => assert_eq!(code, BAD_DATA, "byte {at}"),
            Ok(_) => assert!((13..16).contains(&at) || (23..32).contains(&at), "byte {at} may not change"),
        }
    }
    for length in [0, 1, 8, 63, 64, blob.len() / 2, blob.len() - 1] {
        assert_eq!(restore(&blob[..length]).map(|_| ()).expect_err("cut off").0, BAD_DATA);
    }
    let (_, message) = restore(b"\xE5\x3C\x03\0 a cache of MediaTek's").map(|_| ()).expect_err("foreign");
    assert!(message.contains("not made by this simulator"), "{message}");
}

#[test]
fn a_compiled_network_is_loaded_as_a_model_of_one_operation() {
    let compiled = layer("");
    let expected = compiled.run(&[input()], &[40]);
    let blob = compiled.stored();
    let name = std::ffi::CString::new(extension::COMPILED_NETWORK).expect("no zeros");
    for code in [extension::COMPILED_NETWORK_OPERAND_CODE, extension::COMPILED_NETWORK_OPERAND_CODE_8] {
        let mut model = Model::new();
        let fake = tensor(TENSOR_FLOAT32, &[], 0.0, 0);
        let x = model.operand(&fake);
        let (mut of, mut operation) = (0, 0);
        // SAFETY: the text and the results stay alive for the calls.
        unsafe {
            assert_eq!(
                NeuronModel_getExtensionOperandType(model.handle, name.as_ptr(), code, &raw mut of),
                NO_ERROR
            );
            assert_eq!(
                NeuronModel_getExtensionOperationType(model.handle, name.as_ptr(), 0, &raw mut operation),
                NO_ERROR
            );
        }
        let network = model.constant(&tensor(of, &[blob.len() as u32], 0.0, 0), blob.clone());
        let out = model.operand(&fake);
        model.operation(operation, &[x, network], &[out]);
        assert_eq!(model.try_finish(&[x], &[out]), NO_ERROR, "{}", last_message());
        let loaded = model.try_compile("").unwrap_or_else(|refused| panic!("{refused:?}"));
        assert_eq!(run(loaded.handle, &[input()], &[40]), expected);
        let mut bytes = 0usize;
        // SAFETY: the result is writable.
        let code = unsafe { NeuronCompilation_getInputPaddedSize(loaded.handle, 0, &raw mut bytes) };
        assert_eq!((code, bytes), (NO_ERROR, 160));
    }
}

#[test]
fn code_imported_for_ever_takes_space_until_there_is_none() {
    child::alone(r#"{"most_device_bytes": 4096}"#, || {
        let options = r#"--apusys-config "{ \"import_forever\": true }""#;
        let first = layer(options);
        let mut model = Model::new();
        let kind = tensor(TENSOR_FLOAT32, &[1024], 0.0, 0);
        let (x, none, out) = (model.operand(&kind), model.int(0), model.operand(&kind));
        let weight = model.constant(&kind, vec![0; 4096]);
        model.operation(op::ADD, &[x, weight, none], &[out]);
        assert_eq!(model.try_finish(&[x], &[out]), NO_ERROR);
        let refused = model.try_compile(options).map(|_| ()).expect_err("no space is left");
        assert_eq!(refused.0, OUT_OF_MEMORY);
        assert!(refused.1.contains("memMapDeviceVa: Out of memory"), "{}", refused.1);
        drop(first);
    });
}
