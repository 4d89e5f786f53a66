//! A small bundle for two chips and any machine.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use shardwright_bundle::{
    Bundle, BundleWriter, ChainEntry, Digest, Manifest, ModelIdentity, ShardEntry, Structure, Variant,
    Verification,
};
use shardwright_graph::{ComponentKind, Segment};
use shardwright_vocabulary::{FormatTuple, PlainName, PlannerIdentity, ShimIdentity, Target, TargetKind};

/// Returns the bytes of an artefact: incompressible enough, and different for each.
fn artefact(name: &str) -> Vec<u8> {
    let mut bytes = b"SWARTEF\0".to_vec();
    bytes.extend(name.bytes().cycle().take(150_000));
    bytes
}

/// Writes the bundle, whose heads are ordinary bytes.
pub fn bundle(parent: &Path) -> Bundle {
    bundle_with(parent, b"the heads of the artefact")
}

/// Writes the bundle with these bytes as heads.
pub fn bundle_with(parent: &Path, head: &[u8]) -> Bundle {
    let directory = parent.join("bundle");
    let mut writer = BundleWriter::create(&directory).unwrap();
    let variants = [("sm8650", true), ("sm8750", true), ("generic", false)];
    let variants = variants.map(|(soc, is_npu)| variant(&mut writer, soc, is_npu, head)).into();
    writer
        .finish(&Manifest {
            program: "shardwright 0.1.0".to_owned(),
            model: ModelIdentity {
                name: "two <chips>".to_owned(),
                family: "gemma4".to_owned(),
                checkpoint: Digest::of(b"checkpoint"),
            },
            texts: BTreeMap::new(),
            tokenizer_index: None,
            goldens: None,
            variants,
        })
        .unwrap()
}

fn variant(writer: &mut BundleWriter, soc: &str, is_npu: bool, head: &[u8]) -> Variant {
    let cpu = chain(writer, "cpu", "cpu", head);
    let chains = match is_npu {
        true => vec![chain(writer, "primary", &format!("qnn {soc}"), head), cpu],
        false => vec![cpu],
    };
    Variant {
        soc: PlainName::new(soc).unwrap(),
        aliases: Vec::new(),
        calibration: None,
        planner: PlannerIdentity { name: "generic".to_owned(), version: "0.1.0".to_owned(), built_in: true },
        options: BTreeMap::new(),
        structure: Structure {
            hidden: 5,
            vocabulary: 0,
            context: 512,
            per_layer_width: 0,
            layers: 0,
            components: vec![ComponentKind::Embed],
            states: Vec::new(),
        },
        assets: Vec::new(),
        verifications: vec![Verification {
            name: "boundaries".to_owned(),
            chain: "cpu".to_owned(),
            passed: true,
            summary: "worst | largest error 1e-4".to_owned(),
            report: writer.add_bytes(b"{\"worst\":1e-4}").unwrap(),
            twin: None,
        }],
        chains,
        towers: Vec::new(),
        notices: Vec::new(),
    }
}

fn chain(writer: &mut BundleWriter, name: &str, made: &str, head: &[u8]) -> ChainEntry {
    let shim = made.split(' ').next().unwrap().to_owned();
    let kind = if shim == "cpu" { TargetKind::Cpu } else { TargetKind::Npu };
    let artefact = writer.add_bytes(&artefact(made)).unwrap();
    let shard = ShardEntry {
        name: "embed".to_owned(),
        segments: Segment::whole(ComponentKind::Embed).into(),
        target: Target { name: shim.clone(), shim: shim.clone(), device: shim.clone(), kind },
        compiled_by: ShimIdentity {
            shim: shim.clone(),
            version: "0.1.0".to_owned(),
            device: shim,
            simulated: false,
        },
        formats: FormatTuple::F32.into(),
        entries: vec!["encode_8".parse().unwrap()],
        artefact,
        head: writer.add_bytes(head).unwrap(),
        work_order: Digest::of(made.as_bytes()),
        flags: Vec::new(),
        load_flags: Vec::new(),
        rewritten: Vec::new(),
        logits_softcap: None,
        placements: Vec::new(),
    };
    ChainEntry {
        name: name.to_owned(),
        emulated_on: None,
        within: Vec::new(),
        planner: None,
        request: writer.add_bytes(b"{\"the\":\"request\"}").unwrap(),
        plan: writer.add_bytes(format!("{{\"plan\":\"{name}\"}}").as_bytes()).unwrap(),
        report: None,
        speculation: None,
        shards: vec![shard],
    }
}

/// Reads every file below a folder. Folders have the path of their own entry `.`.
pub fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => {
                    // A folder without files is a change too.
                    found.insert(path.strip_prefix(folder).unwrap().join("."), Vec::new());
                    open.push(path);
                }
                false => {
                    found.insert(path.strip_prefix(folder).unwrap().to_owned(), fs::read(&path).unwrap());
                }
            }
        }
    }
    found
}
