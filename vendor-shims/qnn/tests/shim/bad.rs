//! Tests that missing, wrong, damaged or incompatible input ends in an error with the reason.

use std::collections::HashMap;

use shardwright_shim_abi::raw::*;
use shardwright_shim_qnn::artefact::{Artefact, FORMAT};

use crate::Compiled;
use crate::layer::HIDDEN;
use crate::{Host, Layer, Region, host, inspected, library, on, open, refused, values};

fn compiled(host: &Host) -> Compiled {
    host.compile(&[Layer::new(64, 128, 8).entry("decode_1@8", 1).build()], &[]).expect("compiled")
}

#[test]
fn options_are_known_or_refused() {
    refused(open(&[("librari", "x")]).map(|_| ()), SW_ERROR_INVALID_ARGUMENT, "librari");
    refused(open(&[("log-level", "loud")]).map(|_| ()), SW_ERROR_INVALID_ARGUMENT, "warning");
    refused(open(&[("skel", "/")]).map(|_| ()), SW_ERROR_INVALID_ARGUMENT, "phone");
    open(&[("log-level", "error")]).expect("opened");
}

#[test]
fn a_missing_library_says_where_it_was_looked_for() {
    let host = open(&[("library", "/nowhere/libQnnHtp.so")]).expect("opened");
    let failure = refused(host.devices(Some("sm8850")), SW_ERROR_INVALID_ARGUMENT, "/nowhere/libQnnHtp.so");
    assert!(failure.message.contains("option `library`"), "{failure:?}");
    refused(host.devices(None), SW_ERROR_INVALID_ARGUMENT, "/nowhere");
    let entry = Layer::new(64, 128, 8).entry("decode_1@8", 1).build();
    refused(host.compile(&[entry], &[]).map(|_| ()), SW_ERROR_INVALID_ARGUMENT, "/nowhere");
    refused(host.estimate(entry), SW_ERROR_INVALID_ARGUMENT, "/nowhere");
    // Calls that do not need the library succeed without it.
    assert_eq!(host.refusals(entry).expect("checked"), []);
    assert!(host.told().is_ok());
    assert_eq!(host.devices(Some("mt6989")).expect("no error"), []);
    assert_eq!(host.compatibility(b"another vendor's").expect("answered").0, SW_COMPATIBILITY_NOT_MINE);
}

#[test]
fn a_wrong_library_is_distinguished_from_a_missing_one() {
    let text = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(text.path(), "no library").expect("written");
    let open = |path: &std::path::Path| open(&[("library", path.to_str().expect("text"))]).expect("opened");
    let devices = |path: &std::path::Path| open(path).devices(Some("sm8850"));
    refused(devices(text.path()), SW_ERROR_INVALID_ARGUMENT, "cannot be loaded");
    let Some(library) = library() else { return };
    let system = library.with_file_name("libQnnSystem.so");
    refused(devices(&system), SW_ERROR_INVALID_ARGUMENT, "libQnnSystem.so");
}

#[test]
fn devices_are_those_of_chips_that_were_made_known() {
    let Some(library) = library() else { return };
    let host = on(&library, "sm8850");
    let described = |soc| {
        let devices = host.devices(Some(soc)).expect("described");
        devices.into_iter().map(|device| (device.name, device.soc, device.kind)).collect::<Vec<_>>()
    };
    let pair = |name: &str| {
        vec![
            (name.to_owned(), name.to_owned(), SW_DEVICE_OFFLINE),
            (format!("{name}.simulated"), name.to_owned(), SW_DEVICE_SIMULATED),
        ]
    };
    assert_eq!(described("sm8850"), pair("sm8850"));
    assert_eq!(described("soc-72"), pair("soc-72"));
    assert_eq!(described("mt6989"), []);
    assert_eq!(described("nobodys"), []);
    assert_eq!(host.devices(None).expect("described"), []);
    host.chip("nobodys", &[], &[("hexagon-arch", "v75")]).expect("a chip");
    assert_eq!(described("nobodys"), pair("nobodys"));
    let entry = Layer::new(64, 128, 8).entry("decode_1@8", 1).build();
    for device in ["gpu", "sm8850.emulated", "x-elite", ""] {
        let host = on(&library, device);
        refused(host.check(entry), SW_ERROR_INVALID_ARGUMENT, &format!("unknown device `{device}`"));
        refused(host.compile(&[entry], &[]).map(|_| ()), SW_ERROR_INVALID_ARGUMENT, "unknown device");
        refused(host.told(), SW_ERROR_INVALID_ARGUMENT, "unknown device");
    }
}

#[test]
fn facts_are_declared_and_checked_against_the_library() {
    let declared = Host::facts(shardwright_shim_qnn::shim_entry()).expect("answered");
    let required: Vec<&str> =
        declared.iter().filter(|(_, required)| *required).map(|(name, _)| name.as_str()).collect();
    assert_eq!((required, declared.len()), (vec!["hexagon-arch"], 5));
    // The shim itself detects these wrong facts, without the library.
    let host = open(&[("library", "/nowhere/libQnnHtp.so")]).expect("opened");
    for (facts, fact, says) in [
        (&[("hexagon-arch", "v89")][..], "hexagon-arch", "1002"),
        (&[("hexagon-arch", "v66")], "hexagon-arch", "no tensor processor"),
        (&[("hexagon-arch", "81")], "hexagon-arch", "`v81`"),
        (&[("hexagon-arch", "v81"), ("soc-id", "x")], "soc-id", "not a number"),
    ] {
        let failure = refused(host.chip("nobodys", &[], facts), SW_ERROR_INVALID_ARGUMENT, says);
        assert_eq!((failure.detail("chip"), failure.detail("fact")), (Some("nobodys"), Some(fact)));
    }
    let Some(library) = library() else { return };
    let host = on(&library, "nobodys");
    for (facts, fact, says) in [
        (&[("hexagon-arch", "v79"), ("soc-id", "87")][..], "hexagon-arch", "v81 code for soc-id 87"),
        (&[("hexagon-arch", "v99")], "hexagon-arch", "makes v68 code"),
        (&[("hexagon-arch", "v81"), ("soc-id", "122")], "soc-id", "cannot compile for soc-id 122"),
        (
            &[("hexagon-arch", "v81"), ("performance-estimate-soc-id", "999")],
            "performance-estimate-soc-id",
            "cannot compile for soc-id 999",
        ),
    ] {
        host.chip("nobodys", &[], facts).expect("nothing is asked of the library yet");
        let failure = refused(host.devices(Some("nobodys")), SW_ERROR_INVALID_ARGUMENT, says);
        assert_eq!((failure.detail("chip"), failure.detail("fact")), (Some("nobodys"), Some(fact)));
    }
}

#[test]
fn code_is_made_by_architecture_where_the_library_does_not_know_the_number() {
    let Some(host) = host("nobodys.simulated") else { return };
    let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    for (facts, soc, asked) in [
        (&[("hexagon-arch", "v81"), ("soc-id", "999")][..], 87, Some(999)),
        (&[("hexagon-arch", "v81")], 87, None),
        (&[("hexagon-arch", "v81"), ("soc-id", "97")], 97, Some(97)),
        (&[("hexagon-arch", "v68"), ("soc-id", "39")], 39, Some(39)),
    ] {
        host.chip("nobodys", &[], facts).expect("a chip");
        assert_eq!(host.devices(Some("nobodys")).expect("known").len(), 2);
        let made = compiled(&host);
        let arch = facts[0].1;
        assert_eq!(made.made_for, pairs(&[("soc-id", &soc.to_string()), ("hexagon-arch", arch)]));
        let read = Artefact::read(made.artefact.bytes()).expect("read").descriptor.head;
        assert_eq!((read.soc.0, read.asked.map(|id| id.0)), (soc, asked), "{facts:?}");
        assert_eq!((format!("v{}", read.arch).as_str(), read.soc_name.as_str()), (arch, "nobodys"));
        assert_eq!(host.compatibility(&made.head).expect("answered").0, SW_COMPATIBILITY_OPTIMAL);
        host.load(&made.artefact, &[]).expect("loaded");
    }
}

#[test]
fn damage_is_found_before_the_library_sees_it() {
    let Some(host) = host("sm8850.simulated") else { return };
    let bytes = compiled(&host).artefact.bytes().to_vec();
    let load = |bytes: &[u8]| {
        let region = Region::new(bytes);
        host.load(&region, &[]).map(|_| ())
    };
    load(&bytes).expect("undamaged");
    let length = bytes.len();
    // Header, descriptor, the binary's own header, its weights, its last byte.
    for at in [9, 17, 4096, 8192, 8400, length / 2, length * 3 / 4, length - 1] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        let failure = load(&damaged).expect_err("refused");
        // A wrong format or magic means another format, not damage.
        let class = if at == 9 { SW_ERROR_INCOMPATIBLE_ARTEFACT } else { SW_ERROR_CORRUPT_ARTEFACT };
        assert_eq!(failure.class, class, "a bit at {at}: {failure:?}");
        assert!(failure.detail("help").is_some_and(|help| help.contains("again")), "{failure:?}");
    }
    for cut in [0, 7, 71, 4096, 8192, length / 2, length - 1] {
        assert!(load(&bytes[..cut]).is_err(), "cut to {cut}");
    }
    refused(
        load(b"SWCPUART of another shim"),
        SW_ERROR_INCOMPATIBLE_ARTEFACT,
        "not an artefact of the qnn shim",
    );
    refused(host.inspect(&bytes[..length - 1]), SW_ERROR_CORRUPT_ARTEFACT, "expected a binary");
    assert_eq!(host.inspect(b"SWCPUART of another shim").expect("answered"), None);
    assert_eq!(host.inspect(b"").expect("answered"), None);
}

#[test]
fn other_chips_binaries_are_refused_though_the_library_would_load_them() {
    let Some(library) = library() else { return };
    let older = on(&library, "sm8550.simulated");
    let newer = on(&library, "sm8750.simulated");
    let made = compiled(&older);
    let (answer, reason) = newer.compatibility(&made.head).expect("answered");
    assert_eq!(answer, SW_COMPATIBILITY_UNSUPPORTED);
    assert!(reason.contains("sm8550 (v73), sm8750 is v79"), "{reason}");
    let failure = refused(newer.load(&made.artefact, &[]).map(|_| ()), SW_ERROR_INCOMPATIBLE_ARTEFACT, "v73");
    assert!(failure.detail("help").is_some_and(|help| help.contains("sm8750.simulated")), "{failure:?}");
    // For the same architecture it runs, but recompiling would be better.
    let sibling = on(&library, "sc8380xp.simulated");
    assert_eq!(sibling.compatibility(&made.head).expect("answered").0, SW_COMPATIBILITY_RECOMPILE);
    sibling.load(&made.artefact, &[]).expect("loaded");
    let head = String::from_utf8(made.head.clone()).expect("text");
    for (head, answer) in [
        (head.replace("\"format\":3", "\"format\":9"), SW_COMPATIBILITY_UNSUPPORTED),
        (head.replace("\"core\":[2,", "\"core\":[3,"), SW_COMPATIBILITY_UNSUPPORTED),
        (head.replace("\"build\":\"v2.", "\"build\":\"v1."), SW_COMPATIBILITY_RECOMPILE),
        ("\x7fELF of somebody else".to_owned(), SW_COMPATIBILITY_NOT_MINE),
        (String::new(), SW_COMPATIBILITY_NOT_MINE),
    ] {
        assert_eq!(older.compatibility(head.as_bytes()).expect("answered").0, answer, "{head}");
    }
    refused(older.compatibility(&made.head[..60]), SW_ERROR_CORRUPT_ARTEFACT, "the head is damaged");
}

#[test]
fn a_binary_under_another_description_is_refused() {
    let Some(host) = host("sm8850.simulated") else { return };
    let layer = Layer::new(64, 128, 8);
    let made = |rows| host.compile(&[layer.entry("decode@8", rows).build()], &[]).expect("compiled").artefact;
    let (small, large) = (made(1), made(32));
    let (small, large) =
        (Artefact::read(small.bytes()).expect("read"), Artefact::read(large.bytes()).expect("read"));
    // Every hash is recomputed, so only the binary's own description reveals the mismatch. It
    // writes more than is bound.
    let binary = large.binary().expect("undamaged");
    let mut descriptor = small.descriptor.clone();
    descriptor.head.binary_bytes = binary.len() as u64;
    descriptor.head.binary_sha256 = shardwright_shim_npu::artefact::hash(binary);
    let mut bytes = FORMAT.prefix(&descriptor, binary.len() as u64).expect("written");
    bytes.extend(binary);
    let region = Region::new(&bytes);
    refused(host.load(&region, &[]).map(|_| ()), SW_ERROR_CORRUPT_ARTEFACT, "is not in the binary");

    let (format, description) = inspected(&host, binary).expect("description").expect("a context binary");
    assert_eq!(
        (format.as_str(), &description["soc_model"], &description["arch"]),
        ("qnn-context-binary", &87.into(), &81.into())
    );
    assert_eq!(description["graphs"][0]["inputs"][0]["dims"], serde_json::json!([32, 64]));
    assert!(description["build_id"].as_str().is_some_and(|build| build.starts_with("v2.")), "{description}");
    assert!(host.inspect(&binary[..100]).is_err());
}

#[test]
fn runs_end_at_their_deadline_and_a_device_can_be_made_again() {
    let Some(host) = host("sm8850.simulated") else { return };
    let made = compiled(&host);
    let mut bound = HashMap::from([("hidden".to_owned(), HIDDEN.encode_f32(&values(64, 1, 2.0)))]);
    {
        let mut loaded = host.load(&made.artefact, &[]).expect("loaded");
        refused(loaded.run_until("decode_1@8", 1, &mut bound, 1), SW_ERROR_DEADLINE, "deadline");
        loaded.run_until("decode_1@8", 1, &mut bound, 60_000_000_000).expect("in time");
    }
    refused(host.load(&made.artefact, &[("threads", "1")]).map(|_| ()), SW_ERROR_INVALID_ARGUMENT, "threads");
    host.recover().expect("made again");
    let mut again = bound.clone();
    host.load(&made.artefact, &[]).expect("loaded").run("decode_1@8", 1, &mut again).expect("run");
    assert_eq!(bound, again);
    host.allocate(10_000, 4096).expect("allocated");
    refused(host.import(0), SW_ERROR_INVALID_ARGUMENT, "phone");
}
