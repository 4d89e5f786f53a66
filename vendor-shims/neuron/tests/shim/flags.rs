//! A flag's outcome is applied only if the code differs, even if the compiler repeats the flag.

use serde_json::{Value, json};
use shardwright_neuron_files::options::OptionString;
use shardwright_shim_abi::raw::*;
use shardwright_shim_testing::{Builder, Compiled, TableEncoding, refused, values};

use crate::support::{DEVICE, Simulator};

/// Options of a published bundle, as quoted in a public report.
const PUBLISHED: &str = include_str!("../../files/fuzz/corpus/options/published.txt");

/// Builds a product with a small matrix.
fn entry() -> Builder {
    let mut entry = Builder::new("decode_1@1", SW_ENTRY_DECODE, 1, 1);
    let fixed = TableEncoding::integers(SW_DTYPE_I16, 0.001, 0);
    entry.encoding = fixed;
    let x = entry.input_as("x", SW_ROLE_HIDDEN, &[1, 16], fixed);
    let weight = shardwright_shim_testing::Weight::matrix("w", [8, 16], &values(128, 7, 0.3), 8);
    let y = entry.linear(x, &weight);
    entry.output("y", SW_ROLE_TAP, y);
    entry
}

fn compiled(simulator: &Simulator, device: &str, flags: &[(&str, &str)]) -> Compiled {
    simulator.host(device, "lean").compile(&[entry().build()], flags).expect("compiled")
}

/// Returns the shim's report on an artefact.
fn inspected(simulator: &Simulator, device: &str, compiled: &Compiled) -> Value {
    let host = simulator.host(device, "lean");
    let (format, document) = host.inspect(compiled.artefact.bytes()).expect("readable").expect("recognised");
    assert_eq!(format, "neuron-artefact");
    serde_json::from_str(&document).expect("JSON")
}

#[test]
fn a_flag_is_applied_where_the_code_is_another_one_and_refused_where_nobody_knows_it() {
    let simulator = Simulator::with(json!({"honoured": ["opt", "warp"]}));
    let flags = [
        ("opt", "3"),
        ("opt-bw", "true"),
        ("opt-size", "false"),
        ("warp", "9"),
        ("num-mdla", "99"),
        ("mem-opt", "3"),
    ];
    let compiled = compiled(&simulator, DEVICE, &flags);
    let (outcome, evidence) = compiled.flag("opt");
    assert_eq!(outcome, SW_FLAG_APPLIED, "{evidence}");
    assert!(evidence.contains("bytes of code differ"), "{evidence}");
    let (outcome, evidence) = compiled.flag("opt-bw");
    assert_eq!(outcome, SW_FLAG_INERT, "{evidence}");
    assert!(evidence.contains("the same code") && evidence.contains("not prove an effect"), "{evidence}");
    assert_eq!(compiled.flag("opt-size").0, SW_FLAG_INERT);
    for (name, reason) in [
        ("warp", "unknown option"),
        ("num-mdla", "not within 1 to 4"),
        ("mem-opt", "from adapter 9 on, but this is 8.2.28"),
    ] {
        let (outcome, evidence) = compiled.flag(name);
        assert_eq!(outcome, SW_FLAG_REFUSED, "{name}: {evidence}");
        assert!(evidence.contains(reason), "{name}: {evidence}");
    }
    let document = inspected(&simulator, DEVICE, &compiled);
    assert_eq!(document["compilations"][0]["options"], "--opt 3 --opt-bw");
    assert_eq!(
        document["compilations"][0]["flags"],
        json!([{"name": "opt", "value": "3"}, {"name": "opt-bw", "value": "true"}])
    );
    assert_eq!(document["compilations"][0]["soc"], "mt6989");
}

/// The flag belongs to a session: no order accepts it, and every load may set it.
#[test]
fn power_is_set_when_a_shard_is_loaded_and_its_outcome_is_reported() {
    let simulator = Simulator::with(json!({}));
    let compiled = compiled(&simulator, DEVICE, &[("power", "saver")]);
    let (outcome, evidence) = compiled.flag("power");
    assert_eq!(outcome, SW_FLAG_REFUSED);
    assert!(evidence.contains("when a shard is loaded"), "{evidence}");
    let host = simulator.host(DEVICE, "lean");
    for (mode, boost) in [("burst", 100), ("sustained", 80), ("balanced", 50), ("saver", 20)] {
        let reported =
            host.load(&compiled.artefact, &[("power", mode)]).expect("loaded").flags().expect("reported");
        let [(name, outcome, evidence)] = reported.as_slice() else { panic!("{reported:?}") };
        assert_eq!((name.as_str(), *outcome), ("power", SW_FLAG_INERT), "{evidence}");
        assert!(evidence.contains(&format!("setBoostHint({boost})")), "{evidence}");
    }
    assert_eq!(host.load(&compiled.artefact, &[]).expect("loaded").flags().expect("reported"), []);
    let wrong = host.load(&compiled.artefact, &[("power", "100")]);
    refused(wrong, SW_ERROR_INVALID_ARGUMENT, "expected burst, sustained, balanced, saver");
}

/// The flag belongs to a compilation: every order may set it, and no load accepts it.
#[test]
fn priority_is_set_when_an_order_is_compiled_and_its_outcome_is_reported() {
    let simulator = Simulator::with(json!({}));
    let host = simulator.host(DEVICE, "lean");
    for (priority, number) in [("low", 90), ("normal", 100), ("high", 110)] {
        let compiled = compiled(&simulator, DEVICE, &[("priority", priority), ("opt", "3")]);
        let (outcome, evidence) = compiled.flag("priority");
        assert_eq!(outcome, SW_FLAG_INERT, "{evidence}");
        assert!(evidence.contains(&format!("setPriority({number})")), "{evidence}");
        let document = inspected(&simulator, DEVICE, &compiled);
        assert_eq!(document["compilations"][0]["options"], "--opt 3", "it is no option of the compiler");
        let loaded = host.load(&compiled.artefact, &[("priority", priority)]);
        refused(loaded, SW_ERROR_INVALID_ARGUMENT, "unknown option `priority`");
    }
    let wrong = compiled(&simulator, DEVICE, &[("priority", "first")]);
    let (outcome, evidence) = wrong.flag("priority");
    assert_eq!(outcome, SW_FLAG_REFUSED);
    assert!(evidence.contains("`first` is not one of low, normal, high"), "{evidence}");
}

#[test]
fn what_is_forced_is_handed_on_whether_it_is_known_or_not() {
    let simulator = Simulator::with(json!({"honoured": ["warp"]}));
    let compiled = compiled(&simulator, DEVICE, &[("opt", "3"), ("options", "--opt 2 --warp 9")]);
    let (outcome, evidence) = compiled.flag("options");
    assert_eq!(outcome, SW_FLAG_APPLIED, "{evidence}");
    assert!(evidence.contains("not known to this shim: warp"), "{evidence}");
    assert_eq!(compiled.flag("opt").0, SW_FLAG_REFUSED);
    let document = inspected(&simulator, DEVICE, &compiled);
    assert_eq!(document["compilations"][0]["options"], "--opt 2 --warp 9");
}

#[test]
fn twenty_flags_that_are_repeated_and_not_used_are_inert_every_one() {
    let simulator = Simulator::with(json!({"version": [9, 0, 3], "soc": "mt6993", "honoured": "none"}));
    let published = OptionString::parse(PUBLISHED).expect("options");
    let flags: Vec<(&str, &str)> =
        published.0.iter().map(|option| (option.name.as_str(), option.value.as_str())).collect();
    assert_eq!(flags.len(), 20);
    let device = "mt6993.simulated";
    let compiled = compiled(&simulator, device, &flags);
    for (name, _) in &flags {
        let (outcome, evidence) = compiled.flag(name);
        assert_eq!(outcome, SW_FLAG_INERT, "{name}: {evidence}");
        assert!(evidence.contains("does not prove an effect"), "{name}: {evidence}");
    }
    // The artefact nevertheless contains all flags.
    let document = inspected(&simulator, device, &compiled);
    assert_eq!(document["compilations"][0]["flags"].as_array().map(Vec::len), Some(20));
    let warnings = document["warnings"].to_string();
    assert!(warnings.contains("no MediaTek chip runs it"), "{warnings}");
}
