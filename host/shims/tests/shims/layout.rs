//! Tests of the layouts of Rust shims. The example is accepted. A shim built with a changed struct
//! is refused although its symbol and version are correct. A shim built with another minor version
//! is still accepted.

use shardwright_vocabulary::Compatibility;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Shims, doubling, f32_bytes, f32_values, repository};
use shardwright_shims::{
    ArtefactDestination, Bound, Heads, LayoutCheck, RunOptions, ShimInstance, ShimRegistry, WorkOrderBuilder,
};

/// Builds the example's crate, whose library is called `library`, and returns its path. Its
/// dependencies have the features of the whole workspace, so they are already built.
fn build(manifest: &Path, library: &str) -> PathBuf {
    let output = Command::new(env!("CARGO"))
        .args([
            "build",
            "--offline",
            "--quiet",
            "--message-format=json",
            "--lib",
            "--package",
            "shardwright-shim-template",
            "--package",
            "shardwright-test-features",
            "--manifest-path",
        ])
        .arg(manifest)
        .env("CARGO_TARGET_DIR", target())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let messages = String::from_utf8(output.stdout).unwrap();
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == library)
        .filter_map(|message| {
            message["filenames"]
                .as_array()?
                .iter()
                .filter_map(|file| file.as_str())
                .find(|file| file.ends_with(std::env::consts::DLL_SUFFIX))
                .map(PathBuf::from)
        })
        .next()
        .expect("the shim crate builds a library")
}

/// Returns the directory into which cargo built this test, shared with the builds started here.
fn target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().to_owned()
}

/// Copies a library and its manifest into a separate directory.
fn place(shims: &Shims, library: &Path) -> PathBuf {
    std::fs::copy(library, shims.library("rust")).unwrap();
    shims.manifest("rust", "template-rust", |_| {});
    shims.library("rust")
}

/// Builds a copy of the contract crate, its dependencies and the example in a separate workspace,
/// with replaced texts: (file, text, replacement).
///
/// The copies are in a folder named after the variant within that workspace, and the library is
/// named after it too. Otherwise two workspaces with a package of the same name, version and
/// relative path would mix their artefacts in a shared target directory.
fn build_changed(name: &str, changes: &[(&str, &str, &str)]) -> PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("layout").join(name);
    let inner = root.join(name);
    let copy = |folder: &str| {
        let list = Command::new("find").arg(repository().join(folder)).args(["-type", "f"]).output().unwrap();
        for path in String::from_utf8(list.stdout).unwrap().lines() {
            let relative = Path::new(path).strip_prefix(repository().join(folder)).unwrap();
            let place = inner.join(folder).join(relative);
            std::fs::create_dir_all(place.parent().unwrap()).unwrap();
            let mut text = std::fs::read_to_string(path).unwrap();
            if folder == "vendor-shims/template/rust" {
                text = text.replace("[lib]\n", &format!("[lib]\nname = \"template_{name}\"\n"));
            }
            for (file, from, to) in changes {
                if Path::new(folder).join(relative) == Path::new(file) {
                    assert!(text.contains(from), "`{from}` is not in {file}");
                    text = text.replace(from, to);
                }
            }
            // An unchanged file keeps its time, so that it is not built twice.
            if std::fs::read_to_string(&place).ok().as_ref() != Some(&text) {
                std::fs::write(&place, text).unwrap();
            }
        }
    };
    let copied = [
        "planner/amounts",
        "host/vocabulary",
        "vendor-shims/abi",
        "vendor-shims/template/rust",
        "tests/features",
    ];
    copied.into_iter().for_each(copy);
    let workspace = std::fs::read_to_string(repository().join("Cargo.toml")).unwrap();
    let start = workspace.find("members = [").unwrap();
    let end = start + workspace[start..].find(']').unwrap() + 1;
    let members = copied.map(|folder| format!("\"{name}/{folder}\"")).join(", ");
    let mut workspace = format!("{}members = [{members}]{}", &workspace[..start], &workspace[end..]);
    for folder in &copied[..3] {
        workspace =
            workspace.replace(&format!("path = \"{folder}\""), &format!("path = \"{name}/{folder}\""));
    }
    for (file, from, to) in changes.iter().filter(|(file, ..)| *file == "Cargo.toml") {
        assert!(workspace.contains(from), "`{from}` is not in {file}");
        workspace = workspace.replacen(from, to, 1);
    }
    let manifest = root.join("Cargo.toml");
    if std::fs::read_to_string(&manifest).ok().as_ref() != Some(&workspace) {
        std::fs::write(&manifest, workspace).unwrap();
    }
    std::fs::copy(repository().join("Cargo.lock"), root.join("Cargo.lock")).unwrap();
    build(&manifest, &format!("template_{name}"))
}

#[test]
fn the_rust_example_has_the_hosts_layouts_and_runs() {
    let library = build(&repository().join("Cargo.toml"), "shardwright_shim_template");
    let shims = Shims::new();
    place(&shims, &library);
    let registry = shims.registry();
    assert_eq!(registry.get("template-rust").unwrap().layout(), &LayoutCheck::Same);

    doubles(&registry.open("template-rust", "embed", &[]).unwrap());
}

/// Compiles, loads and runs [`doubling`].
fn doubles(instance: &ShimInstance) {
    let order = WorkOrderBuilder::new(&[]).entry(&doubling()).unwrap().temporary().unwrap();
    let verdicts = instance.check("cpu", &order.head().entries[0], &[]).unwrap();
    assert!(verdicts[0].accepted, "{verdicts:?}");
    let artefact = instance.compile("cpu", &order, ArtefactDestination::Temporary, &mut ()).unwrap();
    assert_eq!(instance.compatibility("cpu", &Heads::of(&artefact)).unwrap(), Compatibility::Optimal);
    let mut shard = instance.load("cpu", &artefact, &[]).unwrap();
    let (x, y) = (instance.allocate("cpu", 16, 64).unwrap(), instance.allocate("cpu", 16, 64).unwrap());
    x.write().unwrap().copy_from_slice(&f32_bytes(&[1.0, -2.0, 0.5, 8.0]));
    shard.run(0, 4, &mut [Bound::Buffer(&x), Bound::Buffer(&y)], RunOptions::default()).unwrap();
    assert_eq!(f32_values(&y.read().unwrap()), [2.0, -4.0, 1.0, 16.0]);
}

#[test]
fn a_rust_shim_with_one_changed_field_is_refused() {
    // Two members of one struct are exchanged. The symbol, the version and every size do not
    // change.
    let library = build_changed(
        "field",
        &[(
            "vendor-shims/abi/src/raw.rs",
            "    pub bytes: u64,\n    pub alignment: u64,",
            "    pub alignment: u64,\n    pub bytes: u64,",
        )],
    );
    let shims = Shims::new();
    let library = place(&shims, &library);
    let registry = ShimRegistry::builder().library(&library).build();
    assert!(registry.shims().is_empty());
    let error = &registry.skipped()[0].error;
    let text = error.to_string();
    assert_eq!(error.reason(), "layout-differs", "{text}");
    assert!(text.contains("layout of `SwBinding`: expected member `bytes`, got `alignment`"), "{text}");
    assert!(text.len() < 1200, "{} bytes of text", text.len());
}

#[test]
fn a_rust_shim_that_knows_a_later_member_is_refused() {
    // The shim would read a member that the host's structs do not have.
    let library = build_changed(
        "later",
        &[
            (
                "vendor-shims/abi/src/raw.rs",
                "    pub largest_logits: u64,\n}",
                "    pub largest_logits: u64,\n    pub later: u64,\n}",
            ),
            ("Cargo.toml", "version = \"0.1.0\"", "version = \"0.1.1\""),
        ],
    );
    let shims = Shims::new();
    let library = place(&shims, &library);
    let registry = ShimRegistry::builder().library(&library).build();
    assert!(registry.shims().is_empty());
    let error = &registry.skipped()[0].error;
    assert_eq!(error.reason(), "layout-differs", "{error}");
    assert!(error.to_string().contains("layout of `SwRun`: expected 56 bytes, got 64"), "{error}");
}

#[test]
fn a_rust_shim_of_a_later_minor_version_runs() {
    // The structs it passes are longer than this host's, and the structs it receives are shorter
    // than its own.
    let raw = "vendor-shims/abi/src/raw.rs";
    let library = build_changed(
        "minor",
        &[
            (raw, "    pub memory_bytes: u64,\n}", "    pub memory_bytes: u64,\n    pub later: u64,\n}"),
            (raw, "    pub largest_logits: u64,\n}", "    pub largest_logits: u64,\n    pub later: u64,\n}"),
            (raw, "    pub option_count: u64,\n}", "    pub option_count: u64,\n    pub later: u64,\n}"),
            (
                "vendor-shims/abi/src/export.rs",
                "memory_bytes: reported.memory_bytes,",
                "memory_bytes: reported.memory_bytes, later: u64::MAX,",
            ),
            ("Cargo.toml", "version = \"0.1.0\"", "version = \"0.2.0\""),
        ],
    );
    let shims = Shims::new();
    let library = place(&shims, &library);
    let registry = ShimRegistry::builder().library(&library).build();
    assert!(registry.skipped().is_empty(), "{:?}", registry.skipped());
    match registry.shims()[0].layout() {
        LayoutCheck::Skipped(reason) => assert!(reason.contains("0.2.0"), "{reason}"),
        other => panic!("{other:?}"),
    }
    doubles(&registry.open("template-rust", "embed", &[]).unwrap());
}
