use shardwright_vocabulary::{ErrorKind, Relief, TimeCost};

use super::*;

const MINIMAL: &str =
    r#"{"schema": 1, "name": "NAME", "title": "T", "vendor": "V", "shim": "cpu", "kind": "npu"}"#;

fn directory_with(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

#[test]
fn built_in_profiles_are_found_by_every_name() {
    let registry = ProfileRegistry::new();
    for (wanted, name) in [
        ("generic", "generic"),
        ("mt6989", "mt6989"),
        ("MT6989", "mt6989"),
        ("Dimensity 9300", "mt6989"),
        ("dimensity-9300", "mt6989"),
        ("dimensity_9300+", "mt6989"),
        ("MT8792", "mt6897"),
        ("Dimensity 9500", "mt6993"),
        ("d9400", "mt6991"),
        ("dimensity 7300", "mt6878"),
        ("Dimensity 1080", "mt6877"),
        ("mt6985w", "mt6985"),
        ("sm8850", "sm8850"),
        ("Snapdragon 8 Gen 2", "sm8550"),
        ("SM8650-AC", "sm8650"),
        ("Snapdragon 8 Elite", "sm8750"),
        ("snapdragon_8_elite_gen_5", "sm8850"),
        ("X Elite", "sc8380xp"),
        ("qnn-soc-72", "soc-72"),
    ] {
        assert_eq!(registry.find(wanted).unwrap().profile.name, name, "{wanted}");
    }
}

#[test]
fn built_in_profiles_say_what_was_reported() {
    let registry = ProfileRegistry::new();
    let mt6989 = registry.find("mt6989").unwrap().profile;
    let ops = mt6989.limits.iter().find(|limit| limit.name == "ops").unwrap();
    assert_eq!((ops.value, ops.provenance), (2600, Provenance::Reported));
    assert!(ops.note.contains("18 layers were accepted and 35 refused"));
    // Sets of flags that were tried against the refusal. Each flag is known not to help.
    let tried: Vec<String> = ops.relief.iter().map(|relief| relief.flag.to_string()).collect();
    assert_eq!(tried, ["opt=3", "mdla-mlo=true", "mem-opt=3", "stable-linearize=true", "num-mdla=4"]);
    let remained = |note: &str| note.contains("refusal remained");
    assert!(ops.relief.iter().all(|relief| relief.value.is_none() && remained(&relief.note)));
    assert!(mt6989.legal_formats().all(|formats| !formats.to_string().contains("w4-per-channel")));
    let sm8850 = registry.find("sm8850").unwrap().profile;
    assert!(sm8850.limits.iter().any(|limit| limit.name == "context-bytes"));
    assert!(sm8850.facts.iter().any(|fact| fact.value == "v81"));
}

/// Number, architecture, and formats that the library is known to support or refuse, chip by chip.
#[test]
fn qualcomm_profiles_hold_to_the_table_of_chips() {
    let registry = ProfileRegistry::new();
    let chips = [
        ("sa8295", "39", "v68", "reported"),
        ("sm8550", "43", "v73", "reported"),
        ("sm8650", "57", "v75", "reported"),
        ("sm8750", "69", "v79", "reported"),
        ("sm8850", "87", "v81", "reported"),
        ("sc8380xp", "60", "v73", "modelled"),
        ("soc-72", "72", "v81", "declared"),
    ];
    let served =
        registry.list().unwrap().found.into_iter().filter(|found| found.profile.shim == "qnn").count();
    assert_eq!(served, chips.len(), "each profile of this shim is in the table above");
    for (name, id, arch, vtcm) in chips {
        let found = registry.find(name).unwrap();
        let profile = found.profile;
        assert_eq!(found.source.to_string(), format!("built-in {name}.json"));
        let fact = |wanted: &str| profile.facts.iter().find(|fact| fact.name == wanted).unwrap();
        assert_eq!(fact("soc-id").value, id, "{name}");
        assert_eq!(fact("hexagon-arch").value, arch, "{name}");
        assert_eq!((&*fact("vtcm-megabytes").value, fact("vtcm-megabytes").provenance.name()), ("8", vtcm));
        let stand_in = if arch == "v68" { "62" } else { "72" };
        assert_eq!(fact("performance-estimate-soc-id").value, stand_in, "{name}");
        // The simulator's estimate is for this chip only if it simulates the same architecture.
        let alike = matches!(arch, "v68" | "v81");
        let estimate = if alike { Provenance::Simulated } else { Provenance::Modelled };
        assert_eq!(fact("performance-estimate-soc-id").provenance, estimate, "{name}");
        let limit = profile.limits.iter().find(|limit| limit.name == "context-bytes").unwrap();
        // One chip was reported to refuse with its limit. For other chips, the address space is the
        // bound.
        let (bytes, by) = match name {
            "sa8295" => (2_097_152 << 10, Provenance::Reported),
            _ => (3_670_016_000, Provenance::Modelled),
        };
        assert_eq!((limit.value, limit.provenance), (bytes, by), "{name}");
        // In addition to the modelled limits, some were reported.
        let parts = profile.limits.iter().find(|limit| limit.name == "artefact-bytes");
        let reported = match name {
            "sa8295" => None,
            "sm8850" => Some((1_810_000_000, Provenance::Reported)),
            _ => Some((1_700_000_000, Provenance::Reported)),
        };
        assert_eq!(parts.map(|limit| (limit.value, limit.provenance)), reported, "{name}");
        // Every profile specifies how finalize optimises, because the shim has no rule of its own.
        assert_eq!(fact("finalize-mode").value, if arch == "v81" { "3" } else { "0" }, "{name}");

        let legal: Vec<String> = profile.legal_formats().map(ToString::to_string).collect();
        let mut known = vec![
            "w4-block32-stepped[head=w8-per-channel]",
            "w4-per-channel[head=w8-per-channel]",
            "w4-per-channel",
            "w8-per-channel",
            "w2-per-channel",
        ];
        // On v68, weights of two bits compile but give wrong numbers. Blocks and separate head
        // formats were not tried there.
        known.retain(|formats| {
            arch != "v68"
                || !["w2", "w4-block32", "w4-per-channel[head"].iter().any(|tried| formats.starts_with(tried))
        });
        let of = |activations: &str| -> Vec<String> {
            known.iter().map(|weights| format!("{weights}/{activations}/a8")).collect()
        };
        let floats = vec!["f16/f16/f16".to_owned()];
        // Formats with only static integers are offered only if named: with massive activations
        // they lose much.
        let streams = [of("a16-f16-stream"), floats.clone()].concat();
        assert_eq!(legal, [of("a16-f16-stream"), of("a16"), floats].concat(), "{name}");
        // Two bits, and four bits per channel, are offered only with a quality goal.
        let offered = |goal| profile.offered_formats(goal).map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(offered(true), streams, "{name}");
        let lossy =
            |tuple: &String| ["w4-per-channel", "w2-per-channel"].iter().any(|own| tuple.starts_with(own));
        let without: Vec<_> = streams.into_iter().filter(|tuple| !lossy(tuple)).collect();
        assert_eq!(offered(false), without, "{name}");
        let refused: Vec<_> = profile.formats.iter().filter(|entry| !entry.legal).collect();
        let said: Vec<String> = refused.iter().map(|entry| entry.formats.to_string()).collect();
        for formats in ["f32/f32/f32", "w8-per-channel/a16-symmetric/a16", "w8-per-channel/a8-dynamic/a8"] {
            assert!(said.iter().any(|said| said == formats), "{name}: {formats} is not among {said:?}");
        }
        assert!(refused.iter().all(|entry| !entry.note.is_empty()), "{name}: a refusal has a reason");
        // The operations were run on ids 43, 69 and 87, the estimates on 72, and decoders on 39.
        let run = ["39", "43", "69", "87", "72"].contains(&id);
        let provenance = if run { Provenance::Simulated } else { Provenance::Modelled };
        for entry in profile.formats.iter().filter(|entry| entry.legal) {
            assert_eq!(entry.provenance, provenance, "{name}: {}", entry.formats);
        }
    }
}

/// Known facts of a MediaTek chip: name, cores, KiB of fast memory, architecture, major version of
/// the adapter, flags and their source, formats in addition to those of all chips, and whether it
/// refuses 4-bit weights per channel.
type MediatekChip = (
    &'static str,
    Option<&'static str>,
    Option<&'static str>,
    Option<&'static str>,
    &'static str,
    usize,
    FourBits,
);

/// Support of 4-bit weights with scales per channel.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FourBits {
    Unknown,
    Refused,
    FromAdapter,
}

/// A flag that is reported to be useless or harmful on a chip must not be a default there, and
/// every default must name its source.
#[test]
fn no_profile_recommends_a_flag_that_it_leaves_out() {
    let found = ProfileRegistry::new().list().unwrap().found;
    let mut left_out = Vec::new();
    for profile in found.into_iter().map(|found| found.profile) {
        for flag in &profile.flags {
            assert!(!flag.note.is_empty(), "{}: where does {} come from?", profile.name, flag.name);
        }
        let Some(fact) = profile.fact("flags-left-out") else { continue };
        for name in fact.value.split(", ") {
            assert!(profile.flags.iter().all(|flag| flag.name != name), "{}: {name}", profile.name);
            left_out.push((profile.name.clone(), name.to_owned()));
        }
    }
    for (soc, flag) in [("mt6989", "mdla-conv-exp"), ("mt6897", "mdla-conv-exp"), ("mt6897", "mlo")] {
        assert!(left_out.contains(&(soc.to_owned(), flag.to_owned())), "{soc} {flag}: {left_out:?}");
    }
}

#[test]
fn mediatek_profiles_hold_to_the_table_of_chips() {
    use FourBits::{FromAdapter, Refused, Unknown};
    let registry = ProfileRegistry::new();
    let (two, four) = ((Some("2"), Some("3072")), (Some("4"), Some("7168")));
    let chips: [MediatekChip; 7] = [
        ("mt6877", None, None, None, "unknown", 3, Unknown),
        ("mt6878", None, None, None, "unknown", 3, Unknown),
        ("mt6897", two.0, two.1, Some("5.0"), "8", 11, Unknown),
        ("mt6985", None, None, None, "8", 3, Unknown),
        ("mt6989", four.0, four.1, Some("5.1"), "8", 12, Refused),
        ("mt6991", four.0, four.1, Some("5.5"), "8", 13, FromAdapter),
        ("mt6993", four.0, four.1, Some("6.0"), "9", 20, FromAdapter),
    ];
    let served =
        registry.list().unwrap().found.into_iter().filter(|found| found.profile.shim == "neuron").count();
    assert_eq!(served, chips.len(), "each profile of this shim is in the table above");
    for (name, cores, memory, arch, major, flags, four_bits) in chips {
        let found = registry.find(name).unwrap();
        assert_eq!(found.source.to_string(), format!("built-in {name}.json"));
        let profile = found.profile;
        let fact = |wanted: &str| profile.fact(wanted).map(|fact| fact.value.as_str());
        let flag = |wanted: &str| {
            profile.flags.iter().find(|flag| flag.name == wanted).map(|flag| flag.value.as_str())
        };
        assert_eq!(
            (fact("mdla-cores"), fact("l1-kilobytes"), fact("mdla-arch")),
            (cores, memory, arch),
            "{name}"
        );
        assert_eq!(fact("neuropilot-major"), Some(major), "{name}");
        let played =
            fact("simulated-adapter").map_or("unknown", |version| version.split('.').next().unwrap());
        assert_eq!(played, major, "{name}: a simulator plays a library that the chip has");
        // Flags agree with facts. A missing fact means a missing flag.
        assert_eq!((flag("num-mdla"), flag("l1-size-kb")), (cores, memory), "{name}");
        assert_eq!(fact("platform"), Some(name), "what the compiler is told");
        let rule = match four_bits {
            Refused => Some("refused"),
            Unknown => Some("by-version"),
            FromAdapter => None,
        };
        assert_eq!(fact("four-bits-per-channel"), rule, "{name}: as its formats say");
        assert_eq!((flag("opt"), flag("relax-fp32")), (Some("3"), Some("true")), "{name}");
        assert_eq!(profile.flags.len(), flags, "{name}");
        assert!(profile.fact(fact_names::COST_OF_MISSING_FLAGS).unwrap().note.contains("2900 ms per token"));
        // These facts were not measured here, and the maker publishes none. Rates are modelled.
        let is_modelled =
            |fact: &Fact| fact.name.starts_with("tera-operations-") || fact.name == "simulated-adapter";
        let (modelled, told): (Vec<&Fact>, Vec<&Fact>) =
            profile.facts.iter().partition(|fact| is_modelled(fact));
        assert!(modelled.iter().all(|fact| fact.provenance == Provenance::Modelled), "{name}");
        assert!(modelled.iter().all(|fact| !fact.note.is_empty()), "{name}: it follows from something");
        let known = told.iter().map(|fact| fact.provenance);
        let known = known.chain(profile.flags.iter().map(|flag| flag.provenance));
        assert!(known.into_iter().all(|provenance| provenance == Provenance::Reported), "{name}");
        // Only one chip has a reported limit.
        assert_eq!(!profile.limits.is_empty(), name == "mt6989", "{name}");

        // Tools and bundles for these chips are public.
        let is_told = matches!(name, "mt6989" | "mt6991" | "mt6993");
        // The rates of the shim's estimates are complete or missing.
        let of_roofline = ["memory-gigabytes-per-second", "tera-operations-16x8", "tera-operations-16x4"];
        let of_roofline = of_roofline.into_iter().chain(["tera-operations-16x16", "tera-operations-f16"]);
        let declared: Vec<bool> = of_roofline.map(|wanted| fact(wanted).is_some()).collect();
        assert_eq!(declared, [is_told; 5], "{name}");

        let legality = |wanted: &str| {
            let entry = profile.formats.iter().find(|entry| entry.formats.to_string() == wanted);
            entry.map(|entry| (entry.legal, entry.provenance))
        };
        let eight_bits = if is_told { Provenance::Reported } else { Provenance::Modelled };
        assert_eq!(
            profile.legal_formats().next().unwrap().to_string(),
            "w8-per-channel/a16-symmetric-f16-stream/a16",
            "{name}"
        );
        let stream = legality("w8-per-channel/a16-symmetric-f16-stream/a16");
        assert_eq!(stream, Some((true, Provenance::Modelled)), "{name}");
        assert_eq!(legality("w8-per-channel/a16-symmetric/a16"), Some((true, eight_bits)), "{name}");
        assert_eq!(legality("f16/f16/f16"), Some((true, Provenance::Reported)), "{name}");
        // Four bits lose much here, so all such formats need a goal.
        let offered: Vec<_> = profile.offered_formats(false).map(ToString::to_string).collect();
        assert!(!offered.iter().any(|tuple| tuple.starts_with("w4")), "{name}: {offered:?}");
        // The reported format stays on offer after the one that no chip was seen to run.
        let is_static = |tuple: &&String| tuple.ends_with("/a16-symmetric/a16");
        let statics: Vec<_> = offered.iter().filter(is_static).collect();
        assert_eq!(statics, ["w8-per-channel/a16-symmetric/a16"], "{name}");
        let by_channel = legality("w4-per-channel/a16-symmetric/a16").map(|(legal, _)| legal);
        let expected = match four_bits {
            Unknown => None,
            Refused => Some(false),
            FromAdapter => Some(true),
        };
        assert_eq!(by_channel, expected, "{name}");
        for formats in
            ["w8-per-channel/a16/a16", "w4-block32/a16-symmetric/a16", "w8-per-channel/a8-dynamic/a8"]
        {
            assert_eq!(legality(formats).map(|(legal, _)| legal), Some(false), "{name}: {formats}");
        }
        for entry in &profile.formats {
            assert!(!entry.note.is_empty(), "{name}: {} has no reason", entry.formats);
            let is_by_channel = entry.formats.weights.name() == "w4-per-channel";
            assert_eq!(
                is_by_channel && entry.legal,
                entry.note.contains("8.2.28"),
                "{name}: {}",
                entry.formats
            );
        }
    }
    // The published bundle has twenty options, and the public tools pass one of them.
    let published = registry.find("mt6993").unwrap().profile;
    assert_eq!(published.flags.iter().filter(|flag| flag.name != "relax-fp32").count(), 19);
    assert_eq!(published.flags.iter().find(|flag| flag.name == "mem-opt").unwrap().value, "3");
}

#[test]
fn a_profile_is_there_while_its_file_is() {
    let fictional = MINIMAL.replace("NAME", "fictional");
    let directory = directory_with(&[("fictional.json", &fictional), ("notes.txt", "no profile")]);
    let registry = ProfileRegistry::new().with_directory(directory.path());
    let found = registry.find("Fictional").unwrap();
    assert!(matches!(found.source, ProfileSource::File(_)));
    assert_eq!(registry.list().unwrap().found.len(), BUILTIN.len() + 1);
    std::fs::remove_file(directory.path().join("fictional.json")).unwrap();
    assert_eq!(registry.get("fictional").unwrap(), None);
    let error = registry.find("fictional").unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Missing, "no profile for SoC `fictional`"));
}

#[test]
fn an_unknown_name_lists_those_near_it() {
    let registry = ProfileRegistry::new();
    for (wanted, near) in
        [("mt6988", "mt6989"), ("sm885", "sm8850"), ("dimensity", "mt6989"), ("sm8805", "sm8850")]
    {
        let error = registry.find(wanted).unwrap_err();
        assert!(error.help().unwrap().contains(near), "{wanted}: {:?}", error.help());
    }
    let error = registry.find("abacus").unwrap_err();
    let help = error.help().unwrap();
    assert!(help.starts_with("known: generic") && help.contains("`--profiles DIR`"), "{help}");
    let error = registry.find(&"x".repeat(1 << 20)).unwrap_err();
    assert!(error.to_string().len() < 300);
}

#[test]
fn a_name_claimed_twice_is_an_error_that_names_both() {
    for name in ["mt6989", "dimensity9300", "generic"] {
        let directory = directory_with(&[("again.json", &MINIMAL.replace("NAME", name))]);
        let registry = ProfileRegistry::new().with_directory(directory.path());
        let all = registry.list().unwrap();
        assert_eq!((all.found.len(), all.skipped.len()), (BUILTIN.len(), 1));
        let error = registry.find(name).unwrap_err();
        // A user who requests another chip gets it.
        assert!(registry.find("sm8850").is_ok());
        assert!(error.message().contains("is a name of two profiles"), "{error}");
        assert_eq!(registry.get(name).unwrap_err().to_string(), error.to_string());
        assert!(
            error.to_string().contains("again.json") && error.to_string().contains("built-in"),
            "{error}"
        );
        assert!(error.help().is_some());
    }
}

#[test]
fn bad_files_are_named_with_line_and_reason() {
    let with = |from: &str, to: &str| MINIMAL.replace("NAME", "chip").replace(from, to);
    let limit = r#"{"name": "ops", "value": 1, "provenance": "user"}"#;
    let formats = r#"{"formats": {"weights": "f32", "activations": "f32", "states": "f32"}, "legal": true,
        "provenance": "declared"}"#;
    let offer = formats.replace(r#""legal": true,"#, r#""legal": true, "offer": "sometimes","#);
    let roles = formats.replace(
        r#""weights": "f32","#,
        r#""weights": "f32", "roles": [{"role": "head", "format": "f16"}, {"role": "head", "format": "f32"}],"#,
    );
    let list = |field: &str, entry: &str, count: usize| {
        with(r#""kind""#, &format!(r#""{field}": [{}], "kind""#, vec![entry; count].join(",")))
    };
    let cases = [
        ("syntax", "{".to_owned()),
        ("syntax", String::new()),
        ("syntax", with(r#""schema": 1"#, r#""schema": 1, "colour": "red""#)),
        ("syntax", with(r#""schema": 1"#, r#""schema": 1, "schema": 1"#)),
        ("syntax", with(r#""npu""#, r#""abacus""#)),
        ("syntax", list("limits", r#"{"name": "ops", "value": -1, "provenance": "user"}"#, 1)),
        ("syntax", list("limits", r#"{"name": "ops", "value": 1, "provenance": "rumour"}"#, 1)),
        ("invalid", with(r#""schema": 1"#, r#""schema": 2"#)),
        ("invalid", with("chip", "Chip One")),
        ("invalid", with(r#""T""#, r#""""#)),
        ("invalid", with(r#""V""#, &format!("\"{}\"", "v".repeat(1000)))),
        ("invalid", list("aliases", r#"" - ""#, 1)),
        ("invalid", list("aliases", r#""x""#, 1000)),
        ("invalid", list("limits", limit, 2)),
        ("invalid", list("flags", r#"{"name": "opt", "value": "3", "provenance": "reported"}"#, 2)),
        ("invalid", list("facts", r#"{"name": "a", "value": "3", "provenance": "reported"}"#, 2)),
        ("invalid", list("formats", formats, 2)),
        ("invalid", list("formats", &roles, 1)),
        ("syntax", list("formats", &offer, 1)),
        ("file", " ".repeat(300 << 10)),
    ];
    for (kind, text) in cases {
        let directory = directory_with(&[("chip.json", &text)]);
        let registry = ProfileRegistry::new().with_directory(directory.path());
        let mut all = registry.list().unwrap();
        assert_eq!((all.found.len(), all.skipped.len()), (BUILTIN.len(), 1));
        assert!(registry.find("generic").is_ok());
        let error = registry.find("chip").unwrap_err();
        assert_eq!(error.to_string(), all.skipped.remove(0).to_string());
        let shown: String = text.chars().take(200).collect();
        let place = error.place().unwrap();
        assert!(place.starts_with("profile ") && place.contains("chip.json"), "{error}");
        let line = error.message().rsplit_once(" at line ");
        let line = line.map(|(_, rest)| rest.split_once(" column ").unwrap().0);
        let is_profile = error.help().is_some_and(|help| help.contains("plugins/README.md"));
        match kind {
            "syntax" => assert!(line.unwrap().parse::<u32>().unwrap() <= 2 && is_profile, "{shown}: {error}"),
            "invalid" => assert!(line.is_none() && is_profile, "{shown}: {error}"),
            _ => assert!(line.is_none() && error.message().contains("more than"), "{shown}: {error}"),
        }
    }
    let error = read(Path::new("no/such/chip.json")).unwrap_err();
    assert!(error.is_not_found() && error.place() == Some("profile no/such/chip.json"), "{error}");
    let file = directory_with(&[("file", "")]);
    let file = file.path().join("file");
    let error = ProfileRegistry::new().with_directory(&file).list().unwrap_err();
    assert_eq!((error.kind(), error.place()), (ErrorKind::Missing, file.to_str()));
}

#[test]
fn a_second_key_is_named_at_any_depth() {
    for (member, key) in [
        (r#""kind": "npu""#, "kind"),
        (r#""limits": [{"name": "ops", "value": 1, "value": 2, "provenance": "user"}]"#, "value"),
    ] {
        let error = with_member(member).unwrap_err();
        assert!(error.message().contains(&format!("a second key `{key}` at line ")), "{error}");
        assert!(error.place().is_some_and(|place| place.contains("chip.json")), "{error}");
        assert!(error.help().is_some());
    }
}

#[test]
fn values_that_the_host_reads_itself_are_checked() {
    for (field, name, value, words) in [
        ("overheads", "colour", "5", "unknown overhead `colour`"),
        ("facts", "polling-microseconds", r#""soon""#, "expected a number of microseconds, got `soon`"),
    ] {
        let entry = format!(r#"{{"name": "{name}", "value": {value}, "provenance": "user", "note": "n"}}"#);
        let text = MINIMAL.replace("NAME", "chip");
        let text = text.replace(r#""kind""#, &format!(r#""{field}": [{entry}], "kind""#));
        let directory = directory_with(&[("chip.json", &text)]);
        let error = ProfileRegistry::new().with_directory(directory.path()).find("chip").unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}

/// Returns a profile with this member, or the error of its file.
fn with_member(member: &str) -> Result<Profile> {
    let text = MINIMAL.replace("NAME", "chip").replace(r#""kind""#, &format!(r#"{member}, "kind""#));
    parse(text.as_bytes(), &ProfileSource::Builtin("chip.json"))
}

const TIMES: &str = r#""times": {
    "estimates": {"low": 1.1, "likely": 1.9, "high": 4, "provenance": "reported", "note": "n"},
    "roofline": {"gigabytes-per-second": 76.8, "tera-operations": 6.9, "low": 1, "likely": 2.5, "high": 4,
        "provenance": "reported"},
    "cpu": {"gigabytes-per-second": 40, "tera-operations": 0.2, "low": 1.0, "likely": 2, "high": 4,
        "provenance": "declared"}
}"#;

#[test]
fn times_of_a_profile_are_intervals_around_rates_and_estimates() {
    let profile = with_member(TIMES).unwrap();
    let text = serde_json::to_string(&profile).unwrap();
    assert_eq!(serde_json::from_str::<Profile>(&text).unwrap(), profile);
    let ProfileTimes { estimates, roofline, cpu } = profile.times;
    let (estimates, roofline, cpu) = (estimates.unwrap(), roofline.unwrap(), cpu.unwrap());
    let around = estimates.around(1000, Provenance::Simulated);
    assert_eq!(around, TimeCost::within(1100, 1900, 4000, Provenance::Reported));
    assert_eq!(estimates.around(1000, Provenance::Modelled).provenance, Provenance::Modelled);
    // Bounds are rounded outwards, and a number of any size has an interval.
    assert_eq!(estimates.around(1, Provenance::Measured), TimeCost::within(1, 2, 4, Provenance::Reported));
    assert_eq!(estimates.around(u64::MAX, Provenance::Measured).high, u64::MAX);
    // 768 MB at 76.8 GB/s are 10 ms, and 6.9 billion multiplications are 1 ms.
    let moved = TimeCost::within(10_000, 25_000, 40_000, Provenance::Reported);
    assert_eq!(roofline.time(768_000_000, 6_900_000_000), moved);
    let computed = TimeCost::within(1000, 2500, 4000, Provenance::Reported);
    assert_eq!(roofline.time(768_000, 6_900_000_000), computed);
    assert_eq!(cpu.time(0, 0), TimeCost::exact(0, Provenance::Declared));
    assert!(cpu.time(u64::MAX, u64::MAX).is_ordered());
    // A profile without the member is written as before.
    let plain = with_member(r#""aliases": []"#).unwrap();
    assert_eq!(plain.times, ProfileTimes::default());
    let text = serde_json::to_string(&plain).unwrap();
    assert!(!text.contains("times") && !text.contains("memory"), "{text}");
}

#[test]
fn the_memory_of_a_device_is_the_smallest_variant_or_stated() {
    let numbers = r#""gibibytes": [8, 12, 16], "app-share-percent": 60"#;
    let memory = format!(r#""memory": {{{numbers}, "provenance": "modelled", "note": "n"}}"#);
    let profile = with_member(&memory).unwrap();
    let text = serde_json::to_string(&profile).unwrap();
    assert_eq!(serde_json::from_str::<Profile>(&text).unwrap(), profile);
    let memory = profile.memory.unwrap();
    assert_eq!(memory.app_bytes(None), (8_u64 << 30) * 60 / 100);
    assert_eq!(memory.app_bytes(Some(1000)), 600);
    assert_eq!(memory.app_bytes(Some(u64::MAX)), u64::MAX / 5 * 3);
}

#[test]
fn impossible_times_and_memory_are_refused() {
    let factors = |numbers: &str| {
        let names = ["low", "likely", "high"].into_iter().zip(numbers.split(' '));
        let members: String = names.map(|(name, number)| format!(r#""{name}": {number}, "#)).collect();
        format!(r#""times": {{"estimates": {{{members} "provenance": "user"}}}}"#)
    };
    let memory = |sizes: &str, share: &str| {
        format!(r#""memory": {{"gibibytes": {sizes}, "app-share-percent": {share}, "provenance": "user"}}"#)
    };
    let overhead = |bounds: &str| {
        let rest = r#""name": "call-microseconds", "value": 300, "provenance": "user""#;
        format!(r#""overheads": [{{{bounds}, {rest}}}]"#)
    };
    for (member, words) in [
        (factors("2 1 4"), "times of `estimates`: expected low ≤ likely ≤ high, got 2, 1, 4"),
        (factors("1 5 4"), "expected low ≤ likely ≤ high, got 1, 5, 4"),
        (factors("0.001 1 1.001"), "`high` is more than 1000 times `low`"),
        (factors("0 1 2"), "expected a number above 0 with at most three digits after the point, got 0"),
        (factors("-1 1 2"), "expected a number above 0"),
        (factors("1 1 1e300"), "expected a number above 0"),
        (factors("0.0001 1 2"), "expected a number above 0"),
        (factors("1 1.2345 2"), "at most three digits after the point, got 1.2345"),
        (factors("1 null 2"), "null"),
        (TIMES.replace(r#""low": 1.0"#, r#""low": 3"#), "times of `cpu`: expected low ≤ likely ≤ high"),
        (TIMES.replace("76.8", "0"), "expected a number above 0"),
        (memory("[]", "60"), "expected sizes of 1 to 4096 GiB, got []"),
        (memory("[0, 8]", "60"), "expected sizes of 1 to 4096 GiB"),
        (memory("[8, 5000]", "60"), "expected sizes of 1 to 4096 GiB"),
        (memory("[8, 8]", "60"), "expected sizes in rising order"),
        (memory("[16, 8]", "60"), "expected sizes in rising order"),
        (memory("[8]", "0"), "expected a share of 1 to 100 percent, got 0"),
        (memory("[8]", "101"), "expected a share of 1 to 100 percent, got 101"),
        (overhead(r#""low": 400"#), "`call-microseconds`: expected low ≤ likely ≤ high, got 400, 300, 300"),
        (overhead(r#""high": 299"#), "expected low ≤ likely ≤ high, got 300, 300, 299"),
        (overhead(r#""low": 1, "high": 1000001"#), "at most 1000000 times the shortest, got 1 to 1000001"),
        (overhead(r#""high": 3600000000001"#), "expected a time of at most 3600000000000"),
        (
            TIMES.replace(r#""low": 1, "likely": 2.5, "high": 4"#, r#""low": 0.001, "likely": 1, "high": 2"#),
            "times of `roofline`: `high` is more than 1000 times `low`",
        ),
    ] {
        let error = with_member(&member).unwrap_err();
        assert!(error.to_string().contains(words) && error.help().is_some(), "{member}: {error}");
    }
}

#[test]
fn profiles_survive_their_file_form() {
    for found in ProfileRegistry::new().list().unwrap().found {
        let text = serde_json::to_string(&found.profile).unwrap();
        assert_eq!(serde_json::from_str::<Profile>(&text).unwrap(), found.profile);
    }
}

/// The how-to page shows entries of a profile, and each must be valid.
#[test]
fn the_examples_of_the_how_to_page_are_read() {
    let page = include_str!("../../../../plugins/README.md");
    let joined = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let snippets: Vec<&str> = joined.split('`').filter(|snippet| snippet.starts_with("{\"")).collect();
    let mut read = 0;
    for snippet in snippets {
        let limit = serde_json::from_str::<Limit>(snippet).is_ok();
        let format = serde_json::from_str::<ProfileFormat>(snippet).is_ok();
        let relief = serde_json::from_str::<Relief>(snippet).is_ok();
        let chip = serde_json::from_str::<AndroidChip>(snippet).is_ok();
        assert!(limit || format || relief || chip, "{snippet}");
        read += 1;
    }
    assert!(read >= 2);
    assert!(page.contains("put the file into `profiles/`: it is built in with the next build"));
}

#[test]
fn every_file_of_the_folder_is_built_in() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/profiles");
    let mut files: Vec<(String, String)> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            let text = std::fs::read_to_string(&path).unwrap();
            (path.file_name().unwrap().to_string_lossy().into_owned(), text)
        })
        .collect();
    files.sort();
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(BUILTIN.iter().map(|(name, _)| *name).collect::<Vec<_>>(), names);
    for ((name, text), (_, existing)) in BUILTIN.iter().zip(&files) {
        assert!(text == existing, "{name} differs from its file");
        let profile = parse(text.as_bytes(), &ProfileSource::Builtin(name)).unwrap();
        assert_eq!(format!("{}.json", profile.name), **name);
    }
}

#[test]
fn a_profile_falls_back_to_others_by_any_of_their_names() {
    let named = |name: &str, more: &str| {
        MINIMAL.replace("NAME", name).replace(r#""kind": "npu""#, &format!(r#""kind": "npu"{more}"#))
    };
    let registry = |fallback: &str| {
        let alpha = named("alpha", &format!(r#", "fallback": {fallback}"#));
        let beta = named("beta", r#", "aliases": ["B 2"], "fallback": ["gamma"]"#);
        let folder = directory_with(&[
            ("alpha.json", &alpha),
            ("beta.json", &beta),
            ("gamma.json", &named("gamma", "")),
            ("primary.json", &named("primary", "")),
            ("picture.json", &named("picture", "")),
        ]);
        (ProfileRegistry::new().with_directory(folder.path()), folder)
    };
    let of = |fallback: &str| {
        let (registry, _folder) = registry(fallback);
        let alpha = registry.find("alpha")?;
        let found = registry.fallbacks(&alpha)?;
        Ok::<_, Error>(found.into_iter().map(|found| found.profile.name).collect::<Vec<_>>())
    };
    // Fallbacks of fallbacks are ignored.
    assert_eq!(of(r#"["b2"]"#).unwrap(), ["beta"]);
    assert_eq!(of(r#"["gamma", "beta"]"#).unwrap(), ["gamma", "beta"]);
    assert_eq!(of("[]").unwrap(), [""; 0]);
    for (fallback, word) in [
        (r#"["delta"]"#, "no profile for SoC `delta`"),
        (r#"["alpha"]"#, "it is the profile itself"),
        (r#"["beta", "b-2"]"#, "`beta` is listed twice"),
        (r#"["generic"]"#, "a CPU cannot be listed"),
        (r#"["primary"]"#, "reserved for chains of a bundle"),
        (r#"["picture"]"#, "reserved for chains of a bundle"),
        (r#"[""]"#, "is empty"),
        (r#"["a","b","c","d","e","f","g","h","i"]"#, "9 fallback chips, expected at most 8"),
    ] {
        let error = of(fallback).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Missing, "{fallback}: {error:?}");
        assert!(error.place().unwrap().starts_with("profile "), "{fallback}: {error}");
        assert!(error.to_string().contains(word), "{fallback}: {error}");
        assert!(error.to_string().contains("alpha.json") && error.help().is_some(), "{error}");
    }
    let cpu = named("cpu-chip", r#", "fallback": ["beta"]"#).replace("npu", "cpu");
    let folder = directory_with(&[("cpu-chip.json", &cpu)]);
    let error = ProfileRegistry::new().with_directory(folder.path()).find("cpu-chip").unwrap_err();
    assert!(error.to_string().contains("always the last fallback"), "{error}");
    // Older profiles are serialised unchanged.
    let before = ProfileRegistry::new().find("mt6989").unwrap().profile;
    assert!(!serde_json::to_string(&before).unwrap().contains("fallback"));
}
