//! A small bundle with content in every field, and operations on directories.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use shardwright_bundle::{
    Bundle, BundleWriter, ChainEntry, Digest, Manifest, ModelIdentity, ShardEntry, Structure, Variant,
    Verification,
};
use shardwright_graph::{
    Asset, ComponentKind, Segment, State, StateKind, Weight, WeightData, WeightQuantisation,
};
use shardwright_vocabulary::{
    At, DType, Flag, FlagRecord, FlagVerdict, FormatTuple, Granularity, NodePlacement, Notice, NoticeKind,
    PlainName, PlannerIdentity, Result, Rewrite, RewriteKind, ShimIdentity, Target, TargetKind,
};

/// Returns an empty directory and the path for a bundle in it.
pub fn place() -> (tempfile::TempDir, PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("demo");
    (parent, directory)
}

/// Returns reproducible incompressible bytes.
pub fn noise(seed: u8, length: usize) -> Vec<u8> {
    let mut state = u32::from(seed) + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Returns a table of 4-bit values with one scale per row, and a float table.
pub fn tables() -> [Asset; 2] {
    let scales = (0..6).flat_map(|row| (0.5_f32 + row as f32).to_le_bytes()).collect();
    let quantised = Weight {
        name: "embed_tokens.weight".to_owned(),
        part: "embedding",
        shape: vec![6, 5],
        dtype: DType::I4,
        data: WeightData::from_vec(noise(1, 18)),
        quantisation: Some(WeightQuantisation {
            granularity: Granularity::PerChannel,
            scale_dtype: DType::F32,
            scales: WeightData::from_vec(scales),
            zero_point: 0,
        }),
    };
    let float = Weight {
        name: "embed_tokens_per_layer.weight".to_owned(),
        part: "embedding",
        shape: vec![6, 4],
        dtype: DType::Bf16,
        data: WeightData::from_vec(noise(2, 48)),
        quantisation: None,
    };
    [
        Asset { name: "embedding".to_owned(), table: quantised, redirect: vec![(5, 0), (3, 0)] },
        Asset { name: "per-layer-embedding".to_owned(), table: float, redirect: Vec::new() },
    ]
}

/// Writes a checkpoint's text files, and other files that do not belong in a bundle.
pub fn checkpoint(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    for (name, text) in [
        ("tokenizer.json", "{\"model\":{}}"),
        ("tokenizer_config.json", "{\"bos_token\":\"<bos>\"}"),
        ("chat_template.jinja", "{{ messages }}"),
        ("config.json", "{\"eos_token_id\":1}"),
        ("model.safetensors", "weights"),
        ("README.md", "words"),
    ] {
        fs::write(directory.join(name), text).unwrap();
    }
}

/// Parameters of a test bundle: number of layers, and whether there is a second chain.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    pub seed: u8,
    pub layers: u32,
    pub fallback: bool,
}

pub const RECIPE: Recipe = Recipe { seed: 3, layers: 2, fallback: true };

/// Adds everything and returns the manifest, as a build would.
pub fn fill(writer: &mut BundleWriter, recipe: Recipe) -> Result<Manifest> {
    let assets = tables().iter().map(|table| writer.add_asset(table)).collect::<Result<_, _>>()?;
    let texts = {
        let parent = tempfile::tempdir().unwrap();
        checkpoint(parent.path());
        writer.add_texts(parent.path())?
    };
    let mut chains = vec![chain(writer, recipe, "primary", TargetKind::Npu)?];
    if recipe.fallback {
        chains.push(chain(writer, recipe, "cpu", TargetKind::Cpu)?);
    }
    let report = writer.add_bytes(b"{\"worst\":1e-4}")?;
    Ok(Manifest {
        program: "shardwright 0.1.0".to_owned(),
        model: ModelIdentity {
            name: "demo".to_owned(),
            family: "gemma4".to_owned(),
            checkpoint: Digest::of(b"checkpoint"),
        },
        texts,
        tokenizer_index: None,
        goldens: None,
        variants: vec![Variant {
            soc: PlainName::new("mt6989").unwrap(),
            aliases: vec!["Dimensity 9300".to_owned()],
            calibration: None,
            planner: PlannerIdentity {
                name: "generic".to_owned(),
                version: "0.1.0".to_owned(),
                built_in: true,
            },
            options: BTreeMap::from([("context".to_owned(), 64.into())]),
            structure: Structure {
                hidden: 5,
                vocabulary: 6,
                context: 512,
                per_layer_width: 2,
                layers: recipe.layers,
                components: vec![ComponentKind::Embed, ComponentKind::Decoder, ComponentKind::Head],
                states: (0..recipe.layers)
                    .map(|layer| State {
                        name: format!("layer.{layer}.k"),
                        layer,
                        width: 4,
                        kind: StateKind::Ring { window: 8 },
                    })
                    .collect(),
            },
            assets,
            chains,
            towers: Vec::new(),
            verifications: vec![Verification {
                name: "boundaries".to_owned(),
                chain: "primary".to_owned(),
                passed: true,
                summary: "largest relative error 1e-4".to_owned(),
                report,
                twin: None,
            }],
            notices: vec![Notice {
                kind: NoticeKind::Fallback,
                text: "head runs on the CPU, not on mt6989: its vocabulary is too large".to_owned(),
            }],
        }],
    })
}

fn chain(writer: &mut BundleWriter, recipe: Recipe, name: &str, kind: TargetKind) -> Result<ChainEntry> {
    let mut shards = vec![shard(writer, recipe, "embed", ComponentKind::Embed, (0, 0), kind)?];
    for layer in 0..recipe.layers {
        let layers = (layer, layer + 1);
        let name = format!("decoder.{layer}-{}", layer + 1);
        shards.push(shard(writer, recipe, &name, ComponentKind::Decoder, layers, kind)?);
    }
    shards.push(shard(writer, recipe, "head", ComponentKind::Head, (0, 0), kind)?);
    Ok(ChainEntry {
        name: name.to_owned(),
        emulated_on: None,
        within: Vec::new(),
        planner: None,
        request: writer.add_bytes(b"{\"request\":1}")?,
        plan: writer.add_bytes(format!("{{\"plan\":\"{name}\"}}").as_bytes())?,
        report: Some(writer.add_bytes(b"{\"report\":1}")?),
        speculation: None,
        shards,
    })
}

fn shard(
    writer: &mut BundleWriter,
    recipe: Recipe,
    name: &str,
    component: ComponentKind,
    layers: (u32, u32),
    kind: TargetKind,
) -> Result<ShardEntry> {
    let shim = if kind == TargetKind::Cpu { "cpu" } else { "neuron" }.to_owned();
    let payload =
        [format!("{shim} {name} {}", recipe.seed).into_bytes(), noise(recipe.seed, 70_000)].concat();
    let work_order = Digest::of(&payload);
    let key = format!("artefact {work_order} by {shim} 0.1.0");
    let artefact = match writer.recall(&key) {
        Some(artefact) => artefact,
        None => {
            let compiled = writer.staging()?.join(format!("{work_order}.swa"));
            fs::write(&compiled, &payload).at(compiled.display())?;
            let artefact = writer.adopt(&compiled)?;
            writer.remember(&key, artefact)?;
            artefact
        }
    };
    let target = Target { name: shim.clone(), shim: shim.clone(), device: shim.clone(), kind };
    Ok(ShardEntry {
        name: name.to_owned(),
        segments: Segment { component, layers }.into(),
        target,
        compiled_by: ShimIdentity {
            shim: shim.clone(),
            version: "0.1.0".to_owned(),
            device: shim,
            simulated: false,
        },
        formats: FormatTuple::F32.into(),
        entries: vec!["prefill_8@64".parse().unwrap(), "decode_1@64".parse().unwrap()],
        artefact,
        head: writer.add_bytes(format!("head of {name}").as_bytes())?,
        work_order,
        load_flags: vec![Flag { name: "power".to_owned(), value: "saver".to_owned() }],
        flags: vec![FlagRecord {
            flag: Flag { name: "opt".to_owned(), value: "3".to_owned() },
            verdict: FlagVerdict::Inert,
            reason: "same code without it".to_owned(),
        }],
        rewritten: vec![Rewrite {
            entry: "decode_1@64".parse().unwrap(),
            name: "layer.0.norm".to_owned(),
            rewrite: RewriteKind::Decomposed,
            reason: "unknown operation".to_owned(),
        }],
        logits_softcap: None,
        placements: vec![NodePlacement {
            entry: "decode_1@64".parse().unwrap(),
            node: "layer.0.softmax".to_owned(),
            place: "cpu".to_owned(),
            reason: String::new(),
        }],
    })
}

pub fn write(directory: &Path, recipe: Recipe) -> Result<Bundle> {
    let mut writer = BundleWriter::create(directory)?;
    let manifest = fill(&mut writer, recipe)?;
    writer.finish(&manifest)
}

/// Returns every path below a directory with its bytes, or `None` for directories.
pub fn snapshot(directory: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(directory).unwrap().to_owned();
            if path.is_dir() {
                found.insert(name, None);
                open.push(path);
            } else {
                found.insert(name, Some(fs::read(path).unwrap()));
            }
        }
    }
    found
}

/// Returns the files of a bundle, sorted.
pub fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        fs::read_dir(directory.join("files")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}
