//! Chains on the picky shim of `tests/shims/picky`. They go from a quantised graph to a running
//! chain without a planner, so that a test sees the result of legalisation for each entry point.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use shardwright_build::EntryMenu;
use shardwright_graph::{
    ComponentKind, Encodings, EntryGraph, EntryOptions, Graph, LegaliseError, Legalised, NodeVerdict,
    PortSide, Role, legalise_encoded,
};
use shardwright_runtime::{Chain, ChainDescription, ShardDescription};
use shardwright_shims::{
    ArtefactDestination, LoadedShard, ShimError, ShimInstance, ShimRegistry, WorkOrderBuilder,
};
use shardwright_vocabulary::Encoding;

use crate::tree;

const PACKAGE: &str = "shardwright-shim-picky";
/// Package with the features of the surrounding build, so that no dependency is compiled again.
const FEATURES: &str = "shardwright-test-features";
const FOLDER: &str = "tests/shims/picky";
const MANIFEST: &str = "libshardwright_shim_picky.shim.json";

/// Returns a registry with only the picky shim, which is never installed next to a program.
///
/// # Panics
/// If it does not build or is refused.
pub fn registry() -> &'static ShimRegistry {
    static REGISTRY: OnceLock<ShimRegistry> = OnceLock::new();
    REGISTRY.get_or_init(|| {
        let library =
            format!("{}shardwright_shim_picky{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
        // `cargo xtask test` sets this variable after building the library.
        let built =
            std::env::var_os("SHARDWRIGHT_BIN_DIR").map(|folder| PathBuf::from(folder).join(&library));
        let built = match built.filter(|library| library.is_file()) {
            Some(built) => built,
            None => built_now().join(&library),
        };
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::copy(&built, folder.path().join(&library)).expect("the library was built");
        std::fs::copy(tree::root().join(FOLDER).join(MANIFEST), folder.path().join(MANIFEST))
            .expect("a shim has a manifest");
        // A loaded library no longer needs its file.
        let registry = ShimRegistry::builder().directory(folder.path()).build();
        assert!(registry.get("picky").is_some(), "no picky shim: {:?}", registry.skipped());
        registry
    })
}

/// Builds the library with cargo into this program's own target folder and returns its folder.
fn built_now() -> PathBuf {
    let this = std::env::current_exe().expect("the test program's own path");
    // <target>/<profile>/deps/<this>
    let profile = this.ancestors().nth(2).expect("deps lies in the profile's folder");
    let target = profile.parent().expect("the profile's folder lies in the target's");
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build
        .current_dir(tree::root())
        .args(["build", "--quiet", "--package", PACKAGE, "--package", FEATURES, "--target-dir"])
        .arg(target);
    if profile.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo starts").success(), "the picky shim does not build");
    Path::to_owned(profile)
}

/// Opens an instance with options such as `("no-op", "exp")`.
///
/// # Panics
/// If it refuses to open.
pub fn open(options: &[(&str, &str)]) -> ShimInstance {
    let options: Vec<(String, String)> =
        options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    registry().open("picky", "picky", &options).unwrap_or_else(|error| panic!("picky: {error}"))
}

/// A model with quantised constants, and the encodings of its activations without port encodings.
pub struct Formatted<'a> {
    /// The quantised model.
    pub graph: &'a Graph,
    /// Encodings by formats and ranges.
    pub encodings: Encodings<'a>,
}

/// Function that returns the encoding of a port, if it differs from the inside of its shard. It is
/// called for every port except states.
pub type PortEncodings<'a> = &'a dyn Fn(&EntryGraph, PortSide, &Role) -> Option<Encoding>;

/// Encodes ports like the inside.
pub fn as_inside(_: &EntryGraph, _: PortSide, _: &Role) -> Option<Encoding> {
    None
}

/// A shard: its part of the model, and its legalised entry points.
pub struct LegalShard {
    pub component: ComponentKind,
    /// The first layer and the end, exclusive.
    pub layers: (u32, u32),
    /// Entry points in the order of the menu.
    pub entries: Vec<Legalised>,
}

impl LegalShard {
    fn name(&self) -> String {
        match self.layers {
            (0, 0) => self.component.to_string(),
            (first, end) => format!("{}.{first}-{end}", self.component),
        }
    }
}

impl Formatted<'_> {
    /// Presents every entry point of every shard to the shim, with the decoder cut before these
    /// layers.
    ///
    /// # Errors
    /// If the shim does not support a node.
    ///
    /// # Panics
    /// If the model cannot be cut there.
    pub fn legalise(
        &self,
        menu: &EntryMenu,
        before: &[u32],
        shim: &ShimInstance,
        ports: PortEncodings<'_>,
    ) -> Result<Vec<LegalShard>, LegaliseError<ShimError>> {
        let device = device(shim);
        self.legalise_with(menu, before, ports, |shown| shim.check(&device, shown, &self.graph.weights))
    }

    /// Like [`legalise`](Self::legalise), but `check` decides which nodes are supported.
    ///
    /// # Errors
    /// If `check` refuses a node.
    ///
    /// # Panics
    /// If the model cannot be cut there.
    pub fn legalise_with<E>(
        &self,
        menu: &EntryMenu,
        before: &[u32],
        ports: PortEncodings<'_>,
        mut check: impl FnMut(&EntryGraph) -> Result<Vec<NodeVerdict>, E>,
    ) -> Result<Vec<LegalShard>, LegaliseError<E>> {
        let mut shards = Vec::new();
        for component in &self.graph.components {
            let ends = match component.layers {
                0 => vec![0],
                layers => before.iter().copied().chain([layers]).collect(),
            };
            let (kind, mut first) = (component.kind, 0);
            for end in ends {
                let mut entries = Vec::new();
                for &entry in &menu.entries {
                    let point = menu.point(entry);
                    let entry = self.graph.entry(kind, first..end, point, EntryOptions::default());
                    let Some(entry) = entry.unwrap_or_else(|error| panic!("{kind} {first}..{end}: {error}"))
                    else {
                        continue;
                    };
                    let encodings =
                        Encodings { ports: port_encodings(&entry, ports), ..self.encodings.clone() };
                    entries.push(legalise_encoded(&entry, &encodings, &mut check)?);
                }
                shards.push(LegalShard { component: kind, layers: (first, end), entries });
                first = end;
            }
        }
        Ok(shards)
    }

    /// Compiles and loads legalised shards and makes a chain of them.
    ///
    /// # Errors
    /// If the shim cannot compile or load a shard.
    ///
    /// # Panics
    /// If a work order cannot be made, or the shards do not form a chain.
    pub fn chain(&self, shards: &[LegalShard], shim: &ShimInstance) -> Result<Chain, ShimError> {
        let device = device(shim);
        let (mut described, mut executors) = (Vec::new(), Vec::<LoadedShard>::new());
        for shard in shards.iter().filter(|shard| !shard.entries.is_empty()) {
            let name = shard.name();
            let mut order = WorkOrderBuilder::new(&self.graph.weights);
            for legal in &shard.entries {
                order = order.entry(&legal.graph).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
            let order = order.temporary().unwrap_or_else(|error| panic!("{name}: {error}"));
            let artefact = shim.compile(&device, &order, ArtefactDestination::Temporary, &mut ())?;
            let loaded = shim.load(&device, &artefact, &[])?;
            described.push(ShardDescription::of(&name, &loaded).expect("an artefact has entries"));
            executors.push(loaded);
        }
        let description = ChainDescription::of(self.graph, described);
        Ok(Chain::new(description, executors, self.graph.assets.clone())
            .unwrap_or_else(|error| panic!("{error}")))
    }
}

fn device(shim: &ShimInstance) -> String {
    let devices = shim.devices(None).unwrap_or_else(|error| panic!("{}: {error}", shim.name()));
    devices.first().expect("a shim that runs here has a device").name.clone()
}

fn port_encodings(entry: &EntryGraph, ports: PortEncodings<'_>) -> Vec<(PortSide, Role, Encoding)> {
    let sides = [(PortSide::Input, &entry.inputs), (PortSide::Output, &entry.outputs)];
    let mut found = Vec::new();
    for (side, roles) in sides {
        for (_, role) in roles.iter().filter(|(_, role)| !matches!(role, Role::State { .. })) {
            found.extend(ports(entry, side, role).map(|encoding| (side, role.clone(), encoding)));
        }
    }
    found
}
