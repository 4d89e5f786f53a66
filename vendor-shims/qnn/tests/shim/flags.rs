//! Tests that every flag has a verdict backed by evidence.

use shardwright_shim_abi::raw::*;

use crate::layer::run;
use crate::{Layer, library, on, open, refused, values};

#[test]
fn flags_are_applied_recorded_inert_refused_or_unknown_by_what_they_do() {
    let Some(library) = library("flags_are_applied_recorded_inert_refused_or_unknown_by_what_they_do") else {
        return;
    };
    let host = on(&library, "sm8850");
    let entry = Layer::new(64, 128, 8).entry("decode_1@8", 1).build();
    let cases = [
        ("finalize-mode", "0", SW_FLAG_APPLIED, "bytes of code differ"),
        ("hvx-threads", "2", SW_FLAG_APPLIED, "bytes of code differ"),
        ("vtcm-megabytes", "8", SW_FLAG_INERT, "what is done without it"),
        ("finalize-mode", "3", SW_FLAG_INERT, "what is done without it"),
        ("mask", "repeated", SW_FLAG_INERT, "lowered the same"),
        ("mask", "here", SW_FLAG_REFUSED, "broadcast, repeated, auto"),
        ("widest", "16", SW_FLAG_REFUSED, "256 to 1048576"),
        ("vtcm-megabytes", "4", SW_FLAG_RECORDED, "4194304 bytes of fast memory, 8388608 without it"),
        ("hvx-threads", "8", SW_FLAG_RECORDED, "8 vector threads, 0 without it"),
        ("finalize.there_is_no_such_key", "1", SW_FLAG_UNKNOWN, "any key silently"),
        ("finalize.there_is_no_such_key", "text", SW_FLAG_UNKNOWN, "the same code"),
        ("product", "convolution", SW_FLAG_APPLIED, "nodes in its graph"),
        ("product", "auto", SW_FLAG_INERT, "what is done without it"),
        ("rotary", "pairs", SW_FLAG_INERT, "lowered the same"),
        ("turbo", "1", SW_FLAG_UNKNOWN, "no such flag"),
        ("vtcm-megabytes", "99", SW_FLAG_REFUSED, "`99` is not within 1 to 64"),
        ("vtcm-megabytes", "many", SW_FLAG_REFUSED, "`many`"),
        ("finalize-mode", "-1", SW_FLAG_REFUSED, "0 to 3"),
        ("hvx-threads", "0", SW_FLAG_REFUSED, "1 to 16"),
        ("weights-packing", "yes", SW_FLAG_REFUSED, "true, false"),
        ("heads", "many", SW_FLAG_REFUSED, "grouped"),
        ("turned-keys", "no", SW_FLAG_REFUSED, "true, false, auto"),
        ("turned-keys", "false", SW_FLAG_INERT, "lowered the same"),
        ("turned-keys", "auto", SW_FLAG_INERT, "what is done without it"),
        ("keys", "lost", SW_FLAG_REFUSED, "joined"),
        ("finalize.", "1", SW_FLAG_REFUSED, "1 to 256 bytes"),
    ];
    for (name, value, outcome, part) in cases {
        let compiled = host.compile(&[entry], &[(name, value)]).expect("compiled");
        assert_eq!(compiled.flags.len(), 1);
        let (found, evidence) = compiled.flag(name);
        assert_eq!(found, outcome, "{name}={value}: {evidence}");
        assert!(evidence.contains(part), "{name}={value}: `{part}` not in `{evidence}`");
    }
}

/// The flag belongs to a session. No order accepts it, every load does.
#[test]
fn power_is_voted_for_when_a_shard_is_loaded_and_the_outcome_is_reported() {
    let Some(library) = library("power_is_voted_for_when_a_shard_is_loaded_and_the_outcome_is_reported")
    else {
        return;
    };
    let host = on(&library, "sm8850.simulated");
    let entry = Layer::new(64, 128, 8).entry("decode_1@8", 1).build();
    let compiled = host.compile(&[entry], &[("power", "burst")]).expect("compiled");
    let (outcome, evidence) = compiled.flag("power");
    assert_eq!(outcome, SW_FLAG_REFUSED);
    assert!(evidence.contains("when a shard is loaded"), "{evidence}");
    for mode in ["burst", "sustained", "balanced", "saver"] {
        let mut loaded = host.load(&compiled.artefact, &[("power", mode)]).expect("loaded");
        let reports = loaded.flags().expect("reports");
        let [(name, outcome, evidence)] = reports.as_slice() else { panic!("{reports:?}") };
        assert_eq!((name.as_str(), *outcome), ("power", SW_FLAG_INERT), "{evidence}");
        assert!(evidence.contains("no power settings"), "{evidence}");
        run(&mut loaded, "decode_1@8", 1, &values(64, 3, 1.0));
    }
    assert_eq!(host.load(&compiled.artefact, &[]).expect("loaded").flags().expect("answered"), []);
    let wrong = host.load(&compiled.artefact, &[("power", "turbo")]);
    refused(wrong, SW_ERROR_INVALID_ARGUMENT, "expected burst, sustained, balanced, saver");
    let unknown = host.load(&compiled.artefact, &[("strength", "9")]);
    refused(unknown, SW_ERROR_INVALID_ARGUMENT, "unknown option `strength`");
}

/// The library accepts every priority with the binary, and runs stay correct.
#[test]
fn priority_is_given_to_the_library_when_a_shard_is_loaded() {
    let Some(library) = library("priority_is_given_to_the_library_when_a_shard_is_loaded") else { return };
    let host = on(&library, "sm8850.simulated");
    let entry = Layer::new(64, 128, 8).entry("decode_1@8", 1).build();
    let compiled = host.compile(&[entry], &[("priority", "high")]).expect("compiled");
    let (outcome, evidence) = compiled.flag("priority");
    assert_eq!(outcome, SW_FLAG_REFUSED);
    assert!(evidence.contains("when a shard is loaded"), "{evidence}");
    let inputs = values(64, 3, 1.0);
    let mut unasked = host.load(&compiled.artefact, &[]).expect("loaded");
    let expected = run(&mut unasked, "decode_1@8", 1, &inputs);
    for priority in ["low", "normal", "high"] {
        let asked = [("priority", priority), ("power", "saver")];
        let mut loaded = host.load(&compiled.artefact, &asked).expect("loaded");
        let reports = loaded.flags().expect("reports");
        let [power, (name, outcome, evidence)] = reports.as_slice() else { panic!("{reports:?}") };
        assert_eq!(power.0, "power");
        assert_eq!((name.as_str(), *outcome), ("priority", SW_FLAG_INERT), "{evidence}");
        assert!(evidence.contains(&format!("with priority {priority}")), "{evidence}");
        assert_eq!(run(&mut loaded, "decode_1@8", 1, &inputs), expected);
    }
    let wrong = host.load(&compiled.artefact, &[("priority", "first")]);
    refused(wrong, SW_ERROR_INVALID_ARGUMENT, "expected low, normal, high");
}

#[test]
fn every_flag_of_an_order_has_its_own_verdict() {
    let Some(library) = library("every_flag_of_an_order_has_its_own_verdict") else { return };
    let host = on(&library, "sm8650");
    let entry = Layer::new(64, 128, 8).entry("decode_1@8", 1).build();
    let flags =
        [("finalize-mode", "3"), ("finalize.nothing", "true"), ("vtcm-megabytes", "2"), ("turbo", "1")];
    let compiled = host.compile(&[entry], &flags).expect("compiled");
    let outcomes: Vec<_> =
        compiled.flags.iter().map(|(name, outcome, _)| (name.as_str(), *outcome)).collect();
    assert_eq!(outcomes[0], ("finalize-mode", SW_FLAG_APPLIED), "{:?}", compiled.flags);
    assert_eq!(outcomes[1], ("finalize.nothing", SW_FLAG_UNKNOWN), "{:?}", compiled.flags);
    assert!(
        matches!(outcomes[2], ("vtcm-megabytes", SW_FLAG_APPLIED | SW_FLAG_RECORDED)),
        "{:?}",
        compiled.flags
    );
    assert_eq!(outcomes[3], ("turbo", SW_FLAG_UNKNOWN), "{:?}", compiled.flags);
}

#[test]
fn the_schema_lists_what_is_read_and_every_device_has_it() {
    for device in ["sm8850", "sm8550.simulated", "soc-72"] {
        let (flags, limits) = open(&[]).expect("opened").on_device(device).told().expect("answered");
        for name in [
            "vtcm-megabytes",
            "finalize-mode",
            "hvx-threads",
            "weights-packing",
            "mask",
            "leaving",
            "widest",
            "rotary",
            "turned-keys",
            "keys",
            "heads",
            "product",
            "power",
            "priority",
        ] {
            assert!(flags.iter().any(|flag| flag == name), "{name} of {device}");
        }
        // The limits of a chip are in its profile. These limits are the shim's own.
        let limits: Vec<&str> = limits.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(limits, ["repeated-mask-bytes", "entries", "ports"], "{device}");
    }
}
