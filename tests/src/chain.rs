//! Chains of shards on real shims, cut by hand: everything between a graph and a session, without a
//! planner.
//!
//! [`Bench`] follows the steps of the program: a request from the graph, a plan, the check, the
//! build, loaded shards, a chain. Only the plan is written here, one [`Cut`] at a time. Every step
//! that a test does not examine panics when it fails.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use shardwright_build::{
    BuildSite, BuiltShard, EntryMenu, ModelFormats, ModelName, Question, ShimJudge, TargetExecutor,
    TargetOffer,
};
use shardwright_graph::{EntryOptions, Graph};
use shardwright_models::Checkpoint;
use shardwright_planning::check::{CheckedPlan, check};
use shardwright_planning::plan::{Boundary, BuildTime, Plan, PlannedSegment, Shard};
use shardwright_planning::request::{Goals, PrefillPart, Request, TargetSummary};
use shardwright_quantisation::{Recipe, quantise};
use shardwright_runtime::{Chain, ChainDescription, ShardDescription};
use shardwright_shims::{LoadedShard, ShimInstance, ShimRegistry};
use shardwright_test_checkpoints::Spec;
use shardwright_vocabulary::{EntryKind, EntryName, Error, FormatTuple, SoftcapPlace, Target, TargetKind};
use shardwright_worker::{Caps, Launcher};

use crate::tree;

/// Returns the shims next to the program. They come from `SHARDWRIGHT_BIN_DIR` if it is set, as
/// `cargo xtask test` does. Otherwise the CPU shim and the C example are built now.
///
/// # Panics
/// If the CPU shim is missing or refused.
pub fn shims() -> &'static ShimRegistry {
    static SHIMS: OnceLock<ShimRegistry> = OnceLock::new();
    SHIMS.get_or_init(|| {
        let registry = match std::env::var_os("SHARDWRIGHT_BIN_DIR") {
            Some(folder) => ShimRegistry::builder().directory(PathBuf::from(folder).join("shims")).build(),
            None => built_now(),
        };
        assert!(registry.get("cpu").is_some(), "no CPU shim: {:?}", registry.skipped());
        registry
    })
}

fn built_now() -> ShimRegistry {
    let folder = tempfile::tempdir().expect("a temporary folder");
    build_shims(folder.path());
    // A loaded library no longer needs its file.
    ShimRegistry::builder().directory(folder.path()).build()
}

fn build_shims(folder: &Path) {
    build_cpu_shim(folder);
    build_c_example(folder);
}

/// Returns the shims for worker processes, which open their files again and again, and the launcher
/// of those workers. They come from `SHARDWRIGHT_BIN_DIR`. If it is not set, they are built now,
/// the shims into `folder`.
///
/// # Panics
/// If the CPU shim is missing or refused.
pub fn isolated_shims(folder: &Path) -> (ShimRegistry, Launcher) {
    let (shims, worker) = match std::env::var_os("SHARDWRIGHT_BIN_DIR") {
        Some(beside) => {
            (PathBuf::from(&beside).join("shims"), PathBuf::from(&beside).join("shardwright-worker"))
        }
        None => {
            build_shims(folder);
            let output = cargo_build(&["--package", "shardwright-worker", "--bin", "shardwright-worker"]);
            (folder.to_owned(), output.join("shardwright-worker"))
        }
    };
    let isolation = Launcher { worker, caps: Caps::default() };
    let registry = ShimRegistry::builder().isolated(isolation.clone()).directory(shims).build();
    assert!(registry.get("cpu").is_some(), "no CPU shim: {:?}", registry.skipped());
    (registry, isolation)
}

/// Builds packages with cargo into this program's own target folder and returns the folder of the
/// profile. That is quick, because the dependencies were built with this program. It ensures that
/// the packages are not older than their source.
fn cargo_build(selection: &[&str]) -> PathBuf {
    let this = std::env::current_exe().expect("the test program's own path");
    // <target>/<profile>/deps/<this>
    let profile = this.ancestors().nth(2).expect("deps lies in the profile's folder");
    let target = profile.parent().expect("the profile's folder lies in the target's");
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.current_dir(tree::root()).args(["build", "--quiet"]).args(selection);
    build.arg("--target-dir").arg(target);
    if profile.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo starts").success(), "{selection:?} does not build");
    profile.to_owned()
}

fn build_cpu_shim(folder: &Path) {
    let profile = cargo_build(&["--package", "shardwright-shim-cpu-library"]);
    let library =
        format!("{}shardwright_shim_cpu{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    std::fs::copy(profile.join(&library), folder.join(&library)).expect("the library was built");
    copy_manifest("vendor-shims/cpu/library", "libshardwright_shim_cpu", folder);
}

fn build_c_example(folder: &Path) {
    let source = tree::root().join("vendor-shims/template/c");
    let mut compile = Command::new("cc");
    compile
        .args(["-std=c11", "-O2", "-fPIC", "-shared", "-I"])
        .arg(tree::root().join("vendor-shims/abi/include"));
    compile.arg("-o").arg(folder.join("template_c.so"));
    for entry in std::fs::read_dir(&source).expect("the C example's folder") {
        let path = entry.expect("a file of the C example").path();
        if path.extension().is_some_and(|extension| extension == "c") {
            compile.arg(path);
        }
    }
    match compile.arg("-lm").status() {
        Ok(status) => assert!(status.success(), "the C example does not build"),
        // The test that needs the example reports that it is missing.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
        Err(error) => panic!("cc: {error}"),
    }
    copy_manifest("vendor-shims/template/c", "template_c", folder);
}

/// A manifest is next to its library and has the same name.
fn copy_manifest(source: &str, library: &str, folder: &Path) {
    let name = format!("{library}.shim.json");
    std::fs::copy(tree::root().join(source).join(&name), folder.join(&name)).expect("a shim has a manifest");
}

/// Reads the graph of a committed checkpoint. The folder is relative to the root.
///
/// # Panics
/// If it cannot be read.
pub fn committed(folder: &str) -> Graph {
    let checkpoint = Checkpoint::open(tree::root().join(folder));
    checkpoint.unwrap_or_else(|error| panic!("{folder}: {error}")).into_graph()
}

/// Returns the graph of a checkpoint generated from a specification.
///
/// # Panics
/// If it cannot be written and read back.
pub fn made(spec: &Spec) -> Graph {
    let folder = tempfile::tempdir().expect("a temporary folder");
    spec.write(folder.path()).expect("written");
    // The mapped files stay readable after the folder is deleted.
    Checkpoint::open(folder.path()).unwrap_or_else(|error| panic!("{spec:?}: {error}")).into_graph()
}

/// Returns `count` tokens of a vocabulary without a pattern. They are the same every time, because
/// recorded outputs are compared between revisions of the tree.
pub(crate) fn tokens_below(vocabulary: u64, count: usize) -> Vec<u32> {
    let mut state = 0x9e37_79b9_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % vocabulary
    };
    (0..count).map(|_| next() as u32).collect()
}

/// Returns `count` tokens of the model without a pattern, the same ones every time.
pub fn tokens(graph: &Graph, count: usize) -> Vec<u32> {
    tokens_below(graph.assets[0].entries(), count)
}

/// Builds a menu of prefill and decode entries.
pub fn menu(context: u32, prefill: &[u32], decode: &[u32]) -> EntryMenu {
    let of =
        |kind, rows: &[u32]| rows.iter().map(|&rows| EntryName { kind, rows, context }).collect::<Vec<_>>();
    EntryMenu { context, entries: [of(EntryKind::Prefill, prefill), of(EntryKind::Decode, decode)].concat() }
}

/// Builds a menu of one encode entry.
pub fn encode_menu(rows: u32) -> EntryMenu {
    EntryMenu { context: rows, entries: vec![EntryName { kind: EntryKind::Encode, rows, context: 0 }] }
}

/// Options of a shim instance to open.
#[derive(Clone, Debug)]
pub struct Opened {
    pub shim: &'static str,
    /// Name of this instance.
    pub name: &'static str,
    /// Number of threads. 0 uses the shim's default.
    pub threads: u32,
}

impl Opened {
    /// Returns options for the CPU shim under a name, on one thread.
    pub fn cpu(name: &'static str) -> Self {
        Opened { shim: "cpu", name, threads: 1 }
    }
}

/// A short form of a plan: the cuts of the decoder, and the instance of each part. Numbers index
/// the bench's instances.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Layers before which the decoder is cut, ascending.
    pub before: Vec<u32>,
    /// Instance of everything except the decoder.
    pub around: usize,
    /// Instance of each decoder shard. The last one applies to all further shards. If empty, the
    /// decoder runs on the instance in `around`.
    pub decoders: Vec<usize>,
    /// Index of the format tuple of each decoder layer. If empty, the first tuple applies to all.
    pub formats: Vec<u32>,
}

impl Cut {
    /// Cuts the decoder before these layers, with all shards on the first instance.
    pub fn before(layers: &[u32]) -> Self {
        Cut { before: layers.to_vec(), ..Cut::default() }
    }
}

/// A graph, the instances it may run on, and the request for them.
pub struct Bench<'g> {
    graph: &'g Graph,
    formats: ModelFormats,
    executors: Vec<TargetExecutor>,
    offers: Vec<TargetOffer>,
    request: Request,
}

impl<'g> Bench<'g> {
    /// Opens the instances and fills the request.
    ///
    /// # Panics
    /// If a shim is missing or refuses.
    pub fn new(graph: &'g Graph, menu: &EntryMenu, instances: &[Opened]) -> Self {
        Bench::over(graph, menu, instances.iter().map(open).collect())
    }

    /// Fills the request for open instances.
    ///
    /// # Panics
    /// If an instance has no device.
    pub fn over(graph: &'g Graph, menu: &EntryMenu, instances: Vec<ShimInstance>) -> Self {
        Bench::with_formats(graph, ModelFormats::stored(graph), menu, instances)
    }

    /// Creates a bench of one CPU instance with one thread, with the model in several format
    /// tuples.
    ///
    /// # Panics
    /// If the graph cannot be stored in one of them.
    pub fn in_formats(graph: &'g Graph, menu: &EntryMenu, tuples: &[FormatTuple]) -> Self {
        Bench::cpu_in_formats(graph, menu, 1, tuples)
    }

    /// Like [`in_formats`](Self::in_formats), but with this number of threads.
    ///
    /// # Panics
    /// If the graph cannot be stored in one of the tuples.
    pub fn cpu_in_formats(graph: &'g Graph, menu: &EntryMenu, threads: u32, tuples: &[FormatTuple]) -> Self {
        let formats = ModelFormats::counted(graph, tuples).unwrap_or_else(|error| panic!("{error}"));
        Bench::with_formats(graph, formats, menu, vec![open(&Opened { threads, ..Opened::cpu("cpu") })])
    }

    fn with_formats(
        graph: &'g Graph,
        formats: ModelFormats,
        menu: &EntryMenu,
        instances: Vec<ShimInstance>,
    ) -> Self {
        let executors: Vec<TargetExecutor> = instances.into_iter().map(executor).collect();
        let offers: Vec<TargetOffer> = executors.iter().map(offer).collect();
        let goals = Goals {
            quality_micronats: None,
            least_loss: false,
            memory_bytes: None,
            // Encoders have no context of positions.
            context: if graph.is_generative() { menu.context } else { 0 },
            max_prefill_rows: menu.largest_rows(),
            size_bytes: None,
            token_microseconds: None,
            first_token_microseconds: None,
            prompt_tokens: 0,
            answer_tokens: 0,
        };
        let model = ModelName { name: graph.name.clone(), family: graph.name.clone(), towers: Vec::new() };
        let question = Question {
            model: &model,
            menu,
            goals,
            prompts: Vec::new(),
            drafts: Vec::new(),
            options: Vec::new(),
        };
        let request = shardwright_build::make_request(graph, &offers, &formats, question, &mut ())
            .unwrap_or_else(|error| panic!("the request: {error}"));
        request.validate().unwrap_or_else(|fault| panic!("the request: {fault}"));
        Bench { graph, formats, executors, offers, request }
    }

    /// Creates a bench of one CPU instance.
    pub fn cpu(graph: &'g Graph, menu: &EntryMenu, threads: u32) -> Self {
        Bench::new(graph, menu, &[Opened { threads, ..Opened::cpu("cpu") }])
    }

    /// Returns the layers before which the decoder can be cut.
    pub fn cuts(&self) -> std::ops::Range<u32> {
        1..self.graph.layers()
    }

    /// Builds the plan of a cut, with every entry point a shard can have.
    pub fn plan(&self, cut: &Cut) -> Plan {
        let mut shards = Vec::new();
        for (index, component) in self.request.model.components.iter().enumerate() {
            let layers = component.layer_count();
            let ends = match layers {
                0 => vec![0],
                _ => cut.before.iter().copied().chain([layers]).collect(),
            };
            let mut first = 0;
            for (number, end) in ends.into_iter().enumerate() {
                let target = match layers {
                    0 => cut.around,
                    _ => *cut.decoders.get(number).or(cut.decoders.last()).unwrap_or(&cut.around),
                };
                let mut shard = self.shard(index as u32, first, end, target as u32);
                if layers > 0 && !cut.formats.is_empty() {
                    shard.segments[0].formats = cut.formats[first as usize..end as usize].to_vec();
                }
                shards.push(shard);
                first = end;
            }
        }
        Plan {
            shards,
            tables: vec![0; self.request.tables.len()],
            fallback: Vec::new(),
            speculation: None,
            reasons: Vec::new(),
            lessons: Vec::new(),
        }
    }

    fn shard(&self, component: u32, first: u32, end: u32, target: u32) -> Shard {
        let part = &self.request.model.components[component as usize];
        let kinds = part.kinds(first, end).unwrap_or_default();
        let prefills =
            kinds.iter().any(|&kind| self.request.kinds[kind as usize].prefill != PrefillPart::None);
        let takes = |entry: &&EntryName| prefills || entry.kind != EntryKind::Prefill;
        let plain = |names: &[String]| {
            let boundary = |name: &String| Boundary { name: name.clone(), encoding: None };
            names.iter().map(boundary).collect()
        };
        Shard {
            segments: vec![PlannedSegment {
                component,
                first,
                end,
                formats: vec![0; end.saturating_sub(first).max(1) as usize],
            }],
            target,
            context: self.request.goals.context,
            entries: self.request.entries.iter().filter(takes).copied().collect(),
            inputs: plain(&part.inputs),
            outputs: plain(&part.outputs),
            softcap: part.softcap.is_some().then_some(SoftcapPlace::Graph),
            flags: Vec::new(),
            build: BuildTime::Ahead,
        }
    }

    /// Checks the plan of a cut.
    ///
    /// # Errors
    /// If the plan has a fault.
    pub fn check(&self, cut: &Cut) -> Result<CheckedPlan, Error> {
        check(self.plan(cut), &self.request)
    }

    /// Compiles a cut's shards.
    ///
    /// # Panics
    /// If the plan is refused or a shim refuses.
    pub fn build(&self, cut: &Cut) -> Vec<BuiltShard> {
        let plan = self.check(cut).unwrap_or_else(|fault| panic!("{cut:?}: {fault}"));
        let options = EntryOptions::default();
        let make = |graph: &Graph, weights| {
            quantise(graph, &Recipe { weights, ..Recipe::default() }, &mut (), &mut Vec::new())
        };
        let formats = self.formats.made(self.graph, &plan, None, make);
        let formats = formats.unwrap_or_else(|error| panic!("{cut:?}: {error}"));
        shardwright_build::compile_plan(
            &BuildSite {
                formats: &formats,
                request: &self.request,
                offers: &self.offers,
                executors: &self.executors,
                options,
            },
            &plan,
            &mut shardwright_build::NoArtefactStore,
            &mut (),
        )
        .unwrap_or_else(|error| panic!("{cut:?}: {error}"))
    }

    /// Loads built shards and makes a chain of them. `instances` gives the instance of each shard.
    ///
    /// # Errors
    /// If the shards do not form a chain.
    ///
    /// # Panics
    /// If a shim refuses its own artefact.
    pub fn assemble(&self, built: &[BuiltShard], instances: &[usize]) -> Result<Chain, Error> {
        let (mut shards, mut executors) = (Vec::new(), Vec::<LoadedShard>::new());
        for (shard, &instance) in built.iter().zip(instances) {
            let executor = &self.executors[instance];
            let loaded = executor.instance.load(&executor.device, &shard.artefact, &[]);
            let loaded = loaded.unwrap_or_else(|error| panic!("{}: {error}", shard.name));
            shards.push(ShardDescription::of(&shard.name, &loaded).expect("an artefact has entries"));
            executors.push(loaded);
        }
        Chain::new(ChainDescription::of(self.graph, shards), executors, self.graph.assets.clone())
    }

    /// Plans, checks, builds and loads a chain.
    ///
    /// # Panics
    /// If any of that fails.
    pub fn chain(&self, cut: &Cut) -> Chain {
        let built = self.build(cut);
        let instances: Vec<usize> = built.iter().map(|shard| shard.target).collect();
        self.assemble(&built, &instances).unwrap_or_else(|error| panic!("{cut:?}: {error}"))
    }
}

fn open(opened: &Opened) -> ShimInstance {
    let options = match opened.threads {
        0 => Vec::new(),
        threads => vec![("threads".to_owned(), threads.to_string())],
    };
    let instance = shims().open(opened.shim, opened.name, &options);
    instance.unwrap_or_else(|error| panic!("{}: {error}", opened.shim))
}

fn executor(instance: ShimInstance) -> TargetExecutor {
    let devices = instance.devices(None).unwrap_or_else(|error| panic!("{}: {error}", instance.name()));
    let device = devices.into_iter().next().expect("a shim that runs here has a device");
    let (device, detail) = (device.name, device.detail);
    TargetExecutor { instance, device, detail, simulated: false, loads: false, is_target: true }
}

fn offer(executor: &TargetExecutor) -> TargetOffer {
    let TargetExecutor { instance, device, .. } = executor;
    let refused = |error| panic!("{}: {error}", instance.name());
    let target = Target {
        name: instance.name().to_owned(),
        shim: instance.name().to_owned(),
        device: device.clone(),
        kind: TargetKind::Cpu,
    };
    let summary = TargetSummary {
        limits: instance.limits(device).unwrap_or_else(refused),
        schema: instance.flags(device).unwrap_or_else(|error| panic!("{}: {error}", instance.name())),
        ..TargetSummary::of(target)
    };
    TargetOffer::new(summary, Box::new(ShimJudge::new(instance.clone(), device)))
}
