//! Every failing call causes a typed error that names the call. No failure ends the process.

use std::collections::HashMap;

use serde_json::json;
use shardwright_shim_abi::raw::*;
use shardwright_shim_testing::{Builder, ErrorObject, Region, TableEncoding, Weight, refused, values};

use crate::support::{DEVICE, Simulator};

const ENTRY: &str = "decode_2@4";

fn entry() -> Builder {
    let fixed = TableEncoding::integers(SW_DTYPE_I16, 0.001, 0);
    let mut b = Builder::new(ENTRY, SW_ENTRY_DECODE, 2, 4);
    b.encoding = fixed;
    let x = b.input_as("hidden", SW_ROLE_HIDDEN, &[2, 16], fixed);
    let y = b.norm(x, None, 16, 0.0);
    let y = b.linear(y, &Weight::matrix("w", [16, 16], &values(256, 3, 0.2), 8));
    b.output("out", SW_ROLE_TAP, y);
    b
}

/// Compiles, loads and runs the entry.
fn whole(simulator: &Simulator) -> Result<Vec<f64>, ErrorObject> {
    let host = simulator.host(DEVICE, "lean");
    let compiled = host.compile(&[entry().build()], &[("opt", "3")])?;
    let mut loaded = host.load(&compiled.artefact, &[])?;
    let fixed = TableEncoding::integers(SW_DTYPE_I16, 0.001, 0);
    let hidden = Region::new(&fixed.encode_f32(&values(32, 9, 3.0)));
    let mut bound = HashMap::from([("hidden".to_owned(), hidden)]);
    loaded.run(ENTRY, 2, &mut bound)?;
    Ok(fixed.decode(bound["out"].bytes()))
}

const CALLS: &[&str] = &[
    "Neuron_getVersion",
    "NeuronModel_create",
    "NeuronModel_setName",
    "NeuronModel_addOperand",
    "NeuronModel_setOperandValue",
    "NeuronModel_setOperandSymmPerChannelQuantParams",
    "NeuronModel_getExtensionOperandType",
    "NeuronModel_getExtensionOperationType",
    "NeuronModel_identifyInputsAndOutputs",
    "NeuronModel_addOperation",
    "NeuronModel_finish",
    "NeuronModel_relaxComputationFloat32toFloat16",
    "NeuronCompilation_createWithOptions",
    "NeuronCompilation_setPriority",
    "NeuronCompilation_setPreference",
    "NeuronCompilation_setOptimizationHint",
    "NeuronCompilation_finish",
    "NeuronCompilation_getCompiledNetworkSize",
    "NeuronCompilation_storeCompiledNetwork",
    "NeuronModel_restoreFromCompiledNetwork",
    "NeuronCompilation_getInputPaddedSize",
    "NeuronCompilation_getInputPaddedDimensions",
    "NeuronCompilation_getOutputPaddedSize",
    "NeuronCompilation_getOutputPaddedDimensions",
    "NeuronExecution_create",
    "NeuronExecution_setBoostHint",
    "NeuronExecution_setInput",
    "NeuronExecution_setOutput",
    "NeuronExecution_compute",
];

#[test]
fn every_call_that_fails_is_named_with_code_and_version() {
    let simulator = Simulator::with(json!({"strict": true}));
    let expected = whole(&simulator).expect("without failures");
    for function in CALLS {
        for code in [1, 4, 5, 7] {
            simulator.set(json!({"failures": [{"function": function, "how": {"result": code}}]}));
            let failure = whole(&simulator).expect_err(function);
            assert!(failure.message.contains(function), "{function} {code}: {failure:?}");
            assert_eq!(failure.vendor_code, code, "{failure:?}");
            assert_eq!(failure.detail("function").unwrap_or(function), *function, "{failure:?}");
            if *function != "Neuron_getVersion" {
                assert!(failure.message.contains("8.2.28"), "{failure:?}");
                assert!(failure.log_tail.contains(function), "{failure:?}");
            }
        }
    }
    simulator.set(json!({}));
    assert_eq!(whole(&simulator).expect("again without"), expected);
}

#[test]
fn a_refusal_of_the_whole_says_how_many_operations_were_sent() {
    let simulator = Simulator::with(json!({"most_operations": 1}));
    let failure = refused(whole(&simulator), SW_ERROR_UNMAPPABLE, "NEURON_UNMAPPABLE");
    assert_eq!(failure.detail("limit"), Some("ops"));
    assert_eq!(failure.detail("value"), Some("2"));
    assert_eq!(failure.detail("max"), Some("1"));
    simulator.set(json!({"failures": [{"function": "NeuronCompilation_finish", "how": {"result": 6}}]}));
    let failure = refused(whole(&simulator), SW_ERROR_UNMAPPABLE, "NeuronCompilation_finish");
    assert_eq!((failure.detail("value"), failure.detail("entry")), (Some("2"), Some(ENTRY)));
}

#[test]
fn a_compiler_that_gives_nothing_is_an_error() {
    let how = json!([{"function": "NeuronCompilation_getCompiledNetworkSize", "how": "empty"}]);
    let simulator = Simulator::with(json!({"failures": how}));
    refused(whole(&simulator), SW_ERROR_UNMAPPABLE, "0 bytes");
}

#[test]
fn what_an_artefact_was_made_for_is_known_before_the_library_is_asked() {
    let simulator = Simulator::with(json!({}));
    let compiled = {
        let host = simulator.host(DEVICE, "lean");
        let compiled = host.compile(&[entry().build()], &[]).expect("compiled");
        let again = host.compile(&[entry().build()], &[]).expect("compiled");
        assert_eq!(compiled.artefact.bytes(), again.artefact.bytes(), "the same bytes");
        assert_eq!(host.compatibility(&compiled.head).expect("reported").0, SW_COMPATIBILITY_OPTIMAL);
        let mut damaged = Region::new(compiled.artefact.bytes());
        let last = damaged.bytes().len() - 9;
        damaged.bytes_mut()[last] ^= 1;
        refused(host.load(&damaged, &[]), SW_ERROR_CORRUPT_ARTEFACT, "hash");
        compiled
    };
    refused(
        simulator.host("mt6991.simulated", "lean").load(&compiled.artefact, &[]),
        SW_ERROR_INCOMPATIBLE_ARTEFACT,
        "made for mt6989",
    );
    simulator.set(json!({"version": [9, 0, 3]}));
    let host = simulator.host(DEVICE, "lean");
    let (answer, reason) = host.compatibility(&compiled.head).expect("reported");
    assert_eq!(answer, SW_COMPATIBILITY_UNSUPPORTED);
    assert!(reason.contains("8.2.28") && reason.contains("9.0.3"), "{reason}");
    let failure = refused(host.load(&compiled.artefact, &[]), SW_ERROR_INCOMPATIBLE_ARTEFACT, "9.0.3");
    assert_eq!(failure.detail("made-by-version"), Some("8.2.28"));
    assert_eq!(failure.detail("adapter-version"), Some("9.0.3"));
    let (answer, _) = host.compatibility(b"somebody else's").expect("reported");
    assert_eq!(answer, SW_COMPATIBILITY_NOT_MINE);
}
