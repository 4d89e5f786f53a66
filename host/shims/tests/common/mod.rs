//! Shims for tests, and small graphs to run through them.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod example;

use std::path::{Path, PathBuf};
use std::process::Command;

use shardwright_graph::{
    Attention, ComponentKind, EntryGraph, EntryNode, EntryPoint, KeySource, Op, Role, Rope, Segment, State,
    StateId, StateKind, StatePort, Tensor, TensorId, Weight, WeightData, WeightId, WeightQuantisation,
};
use shardwright_shims::ShimRegistry;
use shardwright_vocabulary::{Affine, AttentionFormat, DType, EntryKind, Granularity, ScaleBits};

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A directory with shims compiled into it.
pub struct Shims {
    pub directory: tempfile::TempDir,
}

impl Shims {
    pub fn new() -> Shims {
        Shims { directory: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn library(&self, stem: &str) -> PathBuf {
        self.path().join(format!("{stem}.so"))
    }

    /// Compiles C files to `<stem>.so`.
    pub fn compile(&self, stem: &str, sources: &[PathBuf], defines: &[String]) -> PathBuf {
        self.compile_with(&repository().join("vendor-shims/abi/include"), stem, sources, defines)
    }

    /// Like [`Shims::compile`], but with the header of another folder.
    pub fn compile_with(
        &self,
        include: &Path,
        stem: &str,
        sources: &[PathBuf],
        defines: &[String],
    ) -> PathBuf {
        let library = self.library(stem);
        let output = Command::new("cc")
            .args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"])
            .arg("-fvisibility=hidden")
            .args(defines)
            .arg("-I")
            .arg(include)
            .args(sources)
            .arg("-o")
            .arg(&library)
            .arg("-lm")
            .output()
            .expect("a C compiler is needed for this test");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        library
    }

    /// Writes `<stem>.shim.json` for `<stem>.so`, changed by `change`.
    pub fn manifest(&self, stem: &str, name: &str, change: impl FnOnce(&mut serde_json::Value)) {
        let mut manifest = serde_json::json!({
            "manifest": 1, "name": name, "vendor": "test", "abi": {"min": "0.1", "max": "0.1"},
            "library": format!("{stem}.so"),
        });
        change(&mut manifest);
        std::fs::write(self.path().join(format!("{stem}.shim.json")), manifest.to_string()).unwrap();
    }

    /// Compiles the C example.
    pub fn template(&self) -> PathBuf {
        let folder = repository().join("vendor-shims/template/c");
        let sources = ["shim.c", "error.c", "program.c", "kernels.c"].map(|file| folder.join(file));
        self.manifest("template_c", "template-c", |_| {});
        self.compile("template_c", &sources, &[])
    }

    /// Compiles the C example from copies of its files, including the header. `change` replaces
    /// their texts by name.
    pub fn changed_template(&self, change: impl Fn(&str, String) -> String) -> PathBuf {
        let folder = self.path().join("changed");
        std::fs::create_dir_all(&folder).unwrap();
        let example = repository().join("vendor-shims/template/c");
        let sources = ["shim.c", "error.c", "program.c", "kernels.c"];
        let headers = ["program.h", "kernels.h"].map(|file| example.join(file));
        let files = sources.iter().map(|file| example.join(file)).chain(headers);
        for file in files.chain([repository().join("vendor-shims/abi/include/shim.h")]) {
            let name = file.file_name().unwrap().to_str().unwrap();
            std::fs::write(folder.join(name), change(name, std::fs::read_to_string(&file).unwrap())).unwrap();
        }
        self.manifest("template_c", "template-c", |_| {});
        self.compile_with(&folder, "template_c", &sources.map(|file| folder.join(file)), &[])
    }

    /// Compiles a shim that breaks the contract at the place named by the option `fault`.
    pub fn faulty(&self) -> PathBuf {
        let source = repository().join("host/shims/tests/c/faulty.c");
        self.manifest("faulty", "faulty", |_| {});
        self.compile("faulty", &[source], &[])
    }

    /// Compiles a shim that dies at the place and in the way named by its instance's options. With
    /// `at_once` it dies in the given way when it is opened or described.
    pub fn dying(&self, at_once: Option<(&str, &str)>) -> PathBuf {
        let source = repository().join("host/shims/tests/c/dying.c");
        self.manifest("dying", "dying", |_| {});
        let defines = at_once.map(|(place, how)| format!("-D{place}=\"{how}\""));
        self.compile("dying", &[source], &Vec::from_iter(defines))
    }

    /// Compiles the shim of [`Shims::dying`] with an error in its declarations.
    pub fn dying_with(&self, define: &str) -> PathBuf {
        let source = repository().join("host/shims/tests/c/dying.c");
        self.manifest("dying", "dying", |_| {});
        self.compile("dying", &[source], &[format!("-D{define}"), "-Wno-unused-function".to_owned()])
    }

    pub fn registry(&self) -> ShimRegistry {
        let registry = ShimRegistry::builder().directory(self.path()).build();
        assert!(registry.skipped().is_empty(), "{:?}", registry.skipped());
        registry
    }
}

pub fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub fn i32_bytes(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub fn f32_values(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|chunk| f32::from_le_bytes(chunk.try_into().unwrap())).collect()
}

pub fn weight(name: &str, part: &'static str, shape: &[u64], values: &[f32]) -> Weight {
    Weight {
        name: name.to_owned(),
        part,
        shape: shape.to_vec(),
        dtype: DType::F32,
        data: WeightData::from_vec(f32_bytes(values)),
        quantisation: None,
    }
}

/// Creates a weight stored as bf16, which must represent the values exactly.
pub fn weight_bf16(name: &str, part: &'static str, shape: &[u64], values: &[f32]) -> Weight {
    let bytes = values.iter().flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes()).collect();
    Weight { dtype: DType::Bf16, data: WeightData::from_vec(bytes), ..weight(name, part, shape, &[]) }
}

/// Adds tensors and nodes by name.
pub struct Builder {
    pub entry: EntryGraph,
}

impl Builder {
    pub fn new(kind: EntryKind, rows: u64, context: u64, largest_rows: u64) -> Builder {
        Builder {
            entry: EntryGraph {
                segments: Segment::decoder(0, 1).into(),
                point: EntryPoint { kind, rows, context, largest_rows },
                tensors: Vec::new(),
                nodes: Vec::new(),
                inputs: Vec::new(),
                outputs: Vec::new(),
                states: Vec::new(),
            },
        }
    }

    pub fn tensor(&mut self, name: &str, shape: &[u64], dtype: DType) -> TensorId {
        self.entry.tensors.push(Tensor::plain(name, shape.to_vec(), dtype));
        TensorId(self.entry.tensors.len() as u32 - 1)
    }

    pub fn input(&mut self, name: &str, shape: &[u64], dtype: DType, role: Role) -> TensorId {
        let id = self.tensor(name, shape, dtype);
        self.entry.inputs.push((id, role));
        id
    }

    pub fn constant(&mut self, weights: &[Weight], id: u32) -> TensorId {
        let weight = &weights[id as usize];
        let tensor = self.tensor(&weight.name, &weight.shape, weight.dtype);
        self.entry.tensors[tensor.0 as usize].weight = Some(WeightId(id));
        tensor
    }

    pub fn node(&mut self, name: &str, op: Op, inputs: &[TensorId], shape: &[u64]) -> TensorId {
        let output = self.tensor(&format!("{name}.out"), shape, DType::F32);
        let inputs = inputs.to_vec();
        self.entry.nodes.push(EntryNode { name: name.to_owned(), op, inputs, output, layer: Some(0) });
        output
    }
}

/// Sizes of [`decoder`]: values of the residual stream, values of a key or value row, rows of the
/// states.
pub const HIDDEN: u64 = 4;
pub const KEY: u64 = 2;
pub const CONTEXT: u64 = 8;

pub fn decoder_weights() -> Vec<Weight> {
    let spread = |count: usize, step: f32| -> Vec<f32> {
        (0..count).map(|index| ((index * 7 % 11) as f32 - 5.0) * step).collect()
    };
    vec![
        weight("norm", "norm", &[HIDDEN], &[1.0, 0.5, 2.0, 1.5]),
        weight("q", "q", &[HIDDEN, HIDDEN], &spread(16, 0.25)),
        weight_bf16("k", "k", &[KEY, HIDDEN], &spread(8, 0.5)),
        weight_bf16("v", "v", &[KEY, HIDDEN], &[1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]),
    ]
}

/// Returns the weights of [`quantised`]: `q` in eight bits with a scale per channel, `k` in four
/// bits with a scale per block of two and a zero point.
pub fn quantised_weights() -> Vec<Weight> {
    let scales = |dtype: DType, bytes: Vec<u8>| WeightQuantisation {
        granularity: Granularity::PerChannel,
        scale_dtype: dtype,
        scales: WeightData::from_vec(bytes),
        zero_point: 0,
    };
    let mut weights = decoder_weights();
    weights[1].dtype = DType::I8;
    weights[1].data = WeightData::from_vec((0..16).map(|value| value * 7 % 11).collect());
    weights[1].quantisation = Some(scales(DType::F32, f32_bytes(&[0.25, 0.5, 1.0, 2.0])));
    weights[2].dtype = DType::I4;
    weights[2].data = WeightData::from_vec(vec![0x21, 0x43, 0x65, 0x07]);
    // 0.5, 1, 2 and 4 in half precision.
    weights[2].quantisation = Some(WeightQuantisation {
        granularity: Granularity::blocks(2),
        zero_point: 1,
        ..scales(DType::F16, vec![0x00, 0x38, 0x00, 0x3c, 0x00, 0x40, 0x00, 0x44])
    });
    weights
}

/// Returns [`decoder`] with quantised weights and 16-bit hidden rows at the input.
pub fn quantised(kind: EntryKind, rows: u64, largest_rows: u64) -> EntryGraph {
    let mut entry = decoder(kind, rows, largest_rows);
    let weights = quantised_weights();
    for tensor in &mut entry.tensors {
        if let Some(id) = tensor.weight {
            tensor.dtype = weights[id.0 as usize].dtype;
        }
        if tensor.name == "hidden" {
            tensor.dtype = DType::U16;
            tensor.affine = Some(Affine { scale: ScaleBits::new(0.125).unwrap(), zero_point: 32768 });
        }
    }
    entry
}

/// Returns one layer of a decoder: norm, q/k/v, rotary, states, attention of two heads over one
/// key/value head, residual.
pub fn decoder(kind: EntryKind, rows: u64, largest_rows: u64) -> EntryGraph {
    let weights = decoder_weights();
    let mut b = Builder::new(kind, rows, CONTEXT, largest_rows);
    let hidden = b.input("hidden", &[rows, HIDDEN], DType::F32, Role::Hidden);
    let positions = b.input("positions", &[rows], DType::I32, Role::Positions);
    let slots = b.input("slots", &[rows], DType::I32, Role::Slots { capacity: CONTEXT });
    let states = ["layer.0.k", "layer.0.v"].map(|name| {
        let id = StateId(b.entry.states.len() as u32);
        let state = State { name: name.to_owned(), layer: 0, width: KEY, kind: StateKind::Linear };
        b.entry.states.push(StatePort { id, state, capacity: CONTEXT, written: true });
        (id, b.input(&format!("{name}.before"), &[CONTEXT, KEY], DType::F32, Role::State { state: id }))
    });
    let [norm, q, k, v] = [0, 1, 2, 3].map(|id| b.constant(&weights, id));
    let rope = Op::Rope(Rope {
        head_dim: KEY as u32,
        theta: 10_000.0,
        rotated_pairs: 1,
        factor: 1.0,
        divisors: Vec::new(),
        magnitude: 1.0,
    });
    let norm_op = Op::RmsNorm { width: HIDDEN as u32, eps: 1e-6, weight_offset: 0.0 };
    let x = b.node("norm", norm_op, &[hidden, norm], &[rows, HIDDEN]);
    let q = b.node("q", Op::Linear, &[x, q], &[rows, HIDDEN]);
    let q = b.node("q.rope", rope.clone(), &[q, positions], &[rows, HIDDEN]);
    let k = b.node("k", Op::Linear, &[x, k], &[rows, KEY]);
    let k = b.node("k.rope", rope, &[k, positions], &[rows, KEY]);
    let v = b.node("v", Op::Linear, &[x, v], &[rows, KEY]);
    let k = b.node("k.update", Op::StateUpdate, &[states[0].1, k, slots], &[CONTEXT, KEY]);
    let v = b.node("v.update", Op::StateUpdate, &[states[1].1, v, slots], &[CONTEXT, KEY]);
    let attention = Op::Attention(Attention {
        heads: 2,
        kv_heads: 1,
        head_dim: KEY as u32,
        scale: 0.5,
        softcap: 0.0,
        window: 0,
        causal: true,
        keys: KeySource::State,
        products: AttentionFormat::F32,
    });
    let a = b.node("attention", attention, &[q, k, v, positions], &[rows, HIDDEN]);
    let out = b.node("residual", Op::Add, &[a, hidden], &[rows, HIDDEN]);
    b.entry.outputs.push((out, Role::Hidden));
    b.entry.outputs.push((k, Role::State { state: states[0].0 }));
    b.entry.outputs.push((v, Role::State { state: states[1].0 }));
    b.entry
}

/// Returns `y = 2x` over four rows of one value, as one multiplication.
pub fn doubling() -> EntryGraph {
    let mut b = Builder::new(EntryKind::Encode, 4, 4, 4);
    b.entry.segments = Segment::whole(ComponentKind::Embed).into();
    let x = b.input("x", &[4, 1], DType::F32, Role::Hidden);
    let y = b.node("double", Op::MulScalar { value: 2.0 }, &[x], &[4, 1]);
    b.entry.tensors[y.0 as usize].name = "y".to_owned();
    b.entry.outputs.push((y, Role::Hidden));
    b.entry
}

/// Writes an artefact with another payload but the same interface.
pub fn reseal(
    artefact: &shardwright_shims::Artefact,
    payload: &[u8],
    head: &[u8],
) -> shardwright_shims::Artefact {
    let mut bytes = vec![0_u8; 16_384];
    bytes.extend_from_slice(payload);
    bytes.extend_from_slice(head);
    let mut json = artefact.head().clone();
    json.payload_length = payload.len() as u64;
    json.head_length = head.len() as u64;
    let json = serde_json::to_vec(&json).unwrap();
    bytes.extend_from_slice(&json);
    seal(&mut bytes, b"SWARTEF\0", json.len() as u64);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &bytes).unwrap();
    shardwright_shims::Artefact::open(file.path()).unwrap()
}

/// Writes a valid prefix over the first 64 bytes, as an attacker would.
pub fn seal(bytes: &mut [u8], magic: &[u8; 8], head_length: u64) {
    use sha2::Digest;
    let sum = sha2::Sha256::digest(&bytes[64..]);
    let length = bytes.len() as u64;
    bytes[..8].copy_from_slice(magic);
    bytes[8..12].copy_from_slice(&3_u32.to_le_bytes());
    // Payloads of artefacts are aligned to the larger pages of newer phones.
    let page: u32 = if magic == b"SWARTEF\0" { 16_384 } else { 4096 };
    bytes[12..16].copy_from_slice(&page.to_le_bytes());
    bytes[16..24].copy_from_slice(&head_length.to_le_bytes());
    bytes[24..32].copy_from_slice(&length.to_le_bytes());
    bytes[32..64].copy_from_slice(&sum);
}
