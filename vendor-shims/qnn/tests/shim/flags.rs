//! Tests that every flag has a verdict backed by evidence.

use shardwright_shim_abi::raw::*;

use crate::layer::run;
use crate::{Layer, host, open, refused, values};

#[test]
fn flags_are_applied_recorded_inert_refused_or_unknown_by_what_they_do() {
    let Some(host) = host("sm8850") else { return };
    let entry = Layer::new(64, 128, 8).entry("decode_1@8", 1).build();
    // Flags that the compiler does not see are judged without a compilation, and share an order.
    let orders: [&[(&str, &str, u32, &str)]; 9] = [
        &[("finalize-mode", "0", SW_FLAG_APPLIED, "bytes of code differ")],
        &[("hvx-threads", "2", SW_FLAG_APPLIED, "bytes of code differ")],
        &[("vtcm-megabytes", "4", SW_FLAG_RECORDED, "4194304 bytes of fast memory, 8388608 without it")],
        &[("hvx-threads", "8", SW_FLAG_RECORDED, "8 vector threads, 0 without it")],
        &[("finalize.there_is_no_such_key", "1", SW_FLAG_UNKNOWN, "any key silently")],
        &[("finalize.there_is_no_such_key", "text", SW_FLAG_UNKNOWN, "the same code")],
        &[
            ("vtcm-megabytes", "8", SW_FLAG_INERT, "it requests the default"),
            ("finalize-mode", "3", SW_FLAG_INERT, "it requests the default"),
            ("mask", "repeated", SW_FLAG_INERT, "lowered in the same way"),
            ("product", "convolution", SW_FLAG_APPLIED, "nodes in its graph"),
            ("rotary", "pairs", SW_FLAG_INERT, "lowered in the same way"),
            ("turned-keys", "false", SW_FLAG_INERT, "lowered in the same way"),
            ("turbo", "1", SW_FLAG_UNKNOWN, "no such flag"),
        ],
        &[
            ("product", "auto", SW_FLAG_INERT, "it requests the default"),
            ("turned-keys", "auto", SW_FLAG_INERT, "it requests the default"),
            ("mask", "here", SW_FLAG_REFUSED, "broadcast, repeated, auto"),
            ("widest", "16", SW_FLAG_REFUSED, "256 to 1048576"),
            ("vtcm-megabytes", "99", SW_FLAG_REFUSED, "`99` is not within 1 to 64"),
            ("finalize-mode", "-1", SW_FLAG_REFUSED, "0 to 3"),
            ("hvx-threads", "0", SW_FLAG_REFUSED, "1 to 16"),
            ("weights-packing", "yes", SW_FLAG_REFUSED, "true, false"),
            ("heads", "many", SW_FLAG_REFUSED, "grouped"),
            ("keys", "lost", SW_FLAG_REFUSED, "joined"),
            ("finalize.", "1", SW_FLAG_REFUSED, "1 to 256 bytes"),
        ],
        &[
            ("vtcm-megabytes", "many", SW_FLAG_REFUSED, "`many`"),
            ("turned-keys", "no", SW_FLAG_REFUSED, "true, false, auto"),
        ],
    ];
    for order in orders {
        let flags: Vec<(&str, &str)> = order.iter().map(|(name, value, ..)| (*name, *value)).collect();
        let compiled = host.compile(&[entry], &flags).expect("compiled");
        assert_eq!(compiled.flags.len(), order.len());
        for (name, value, outcome, part) in order {
            let (found, evidence) = compiled.flag(name);
            assert_eq!(found, *outcome, "{name}={value}: {evidence}");
            assert!(evidence.contains(part), "{name}={value}: `{part}` not in `{evidence}`");
        }
    }
}

/// The flags belong to a session. No order accepts them, every load does. The library accepts every
/// priority with the binary, and runs stay correct.
#[test]
fn power_and_priority_are_given_to_the_library_when_a_shard_is_loaded() {
    let Some(host) = host("sm8850.simulated") else { return };
    let entry = Layer::new(64, 128, 8).entry("decode_1@8", 1).build();
    let compiled = host.compile(&[entry], &[("power", "burst"), ("priority", "high")]).expect("compiled");
    for name in ["power", "priority"] {
        let (outcome, evidence) = compiled.flag(name);
        assert_eq!(outcome, SW_FLAG_REFUSED);
        assert!(evidence.contains("when a shard is loaded"), "{evidence}");
    }
    let inputs = values(64, 3, 1.0);
    let mut unasked = host.load(&compiled.artefact, &[]).expect("loaded");
    assert_eq!(unasked.flags().expect("answered"), []);
    let expected = run(&mut unasked, "decode_1@8", 1, &inputs);
    for options in [
        &[("power", "burst")][..],
        &[("power", "sustained"), ("priority", "low")],
        &[("power", "balanced"), ("priority", "normal")],
        &[("power", "saver"), ("priority", "high")],
    ] {
        let mut loaded = host.load(&compiled.artefact, options).expect("loaded");
        let reports = loaded.flags().expect("reports");
        assert_eq!(reports.len(), options.len(), "{reports:?}");
        for ((name, value), (reported, outcome, evidence)) in options.iter().zip(&reports) {
            assert_eq!((reported.as_str(), *outcome), (*name, SW_FLAG_INERT), "{evidence}");
            let said = match *name {
                "power" => "no power settings".to_owned(),
                _ => format!("with priority {value}"),
            };
            assert!(evidence.contains(&said), "{evidence}");
        }
        assert_eq!(run(&mut loaded, "decode_1@8", 1, &inputs), expected);
    }
    for (option, value, part) in [
        ("power", "turbo", "expected burst, sustained, balanced, saver"),
        ("priority", "first", "expected low, normal, high"),
        ("strength", "9", "unknown option `strength`"),
    ] {
        let wrong = host.load(&compiled.artefact, &[(option, value)]);
        refused(wrong, SW_ERROR_INVALID_ARGUMENT, part);
    }
}

#[test]
fn every_flag_of_an_order_has_its_own_verdict() {
    let Some(host) = host("sm8650") else { return };
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
        let names = "vtcm-megabytes finalize-mode hvx-threads weights-packing mask leaving widest rotary \
                     turned-keys keys heads product power priority";
        for name in names.split(' ') {
            assert!(flags.iter().any(|flag| flag == name), "{name} of {device}");
        }
        // The limits of a chip are in its profile. These limits are the shim's own.
        let limits: Vec<&str> = limits.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(limits, ["repeated-mask-bytes", "entries", "ports"], "{device}");
    }
}
