//! A host without a compiler: it does not contain one, gets the same plan from a signed pack under
//! Pulley, and refuses invalid packs.

#![cfg(feature = "compiler")]

use std::path::PathBuf;
use std::process::{Command, Output};

use shardwright_planning::builtin;
use shardwright_planning::pack;
use shardwright_planning::registry::PlannerEntry;
use shardwright_planning::sandbox::{EngineKind, Sandbox};
use shardwright_planning::shipped;
use shardwright_trust::{SecretKey, Trust};

use crate::common::{cache, generic, mediatek, qualcomm, request, with_limit, workspace};

const PACKAGE: &str = "shardwright-planning-runtime-only";

fn cargo(arguments: &[&str]) -> Output {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    Command::new(cargo).current_dir(workspace()).args(arguments).output().unwrap()
}

fn lines(output: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(output).lines().map(str::to_owned).collect()
}

#[test]
fn the_runtime_contains_no_compiler() {
    let output =
        cargo(&["tree", "--package", PACKAGE, "--edges", "normal,no-proc-macro", "--prefix", "none"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let crates = lines(&output.stdout);
    assert!(crates.iter().any(|name| name.starts_with("wasmtime v")));
    for forbidden in [
        "cranelift-codegen",
        "wasmtime-internal-cranelift",
        "wit-component",
        "rayon",
        "tokenizers",
        "shardwright-planner",
        "shardwright-models",
        "shardwright-quantisation",
        "shardwright-reference",
    ] {
        let found = crates.iter().find(|name| name.starts_with(forbidden));
        assert_eq!(found, None);
    }
}

/// Returns the program: from `SHARDWRIGHT_RUNTIME_ONLY_DIR`, which `cargo xtask test` sets,
/// otherwise built in the target directory of this test, so that only crates with other features
/// are compiled again.
fn program() -> PathBuf {
    let name = format!("{PACKAGE}{}", std::env::consts::EXE_SUFFIX);
    if let Some(folder) = std::env::var_os("SHARDWRIGHT_RUNTIME_ONLY_DIR") {
        return PathBuf::from(folder).join(name);
    }
    let this = std::env::current_exe().unwrap();
    // <target>/<profile>/deps/<this>
    let profile = this.ancestors().nth(2).unwrap();
    let target = profile.parent().unwrap().to_str().unwrap();
    let output = cargo(&["runtime-only", "--target-dir", target]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    profile.join(name)
}

/// The embedded pack is committed. Its source is compiled here.
#[test]
fn the_embedded_pack_is_what_its_source_compiles_to() {
    let key = SecretKey::from_seed([0; 32]);
    let built = pack::write("generic", generic(), &key).unwrap();
    assert!(
        built == builtin::PACK,
        "plugins/generic/generic.pack is not of this source: run `cargo xtask pack`"
    );
    let planner = builtin::open().unwrap();
    assert_eq!(planner.description().name, builtin::NAME);
    let request = request(12);
    let native = builtin::load(&Sandbox::new(EngineKind::Native).unwrap(), Some(&cache())).unwrap();
    assert_eq!(planner.make_plan(&request).plan.unwrap(), native.make_plan(&request).plan.unwrap());
}

/// The packs of the vendors' planners are committed with their digests. Their sources are compiled
/// here.
#[test]
fn the_shipped_packs_are_what_their_sources_compile_to() {
    let key = SecretKey::from_seed([0; 32]);
    let request = with_limit(request(12), "ops", 450);
    let sources = [("mediatek", mediatek()), ("qualcomm", qualcomm())];
    assert_eq!(shipped::DIGESTS.lines().count(), sources.len());
    for (name, component) in sources {
        let path = workspace().join(format!("plugins/{name}/{name}.pack"));
        let bytes = std::fs::read(&path).unwrap_or_default();
        assert!(
            pack::write(name, component, &key).unwrap() == bytes && shipped::is_shipped(&bytes),
            "plugins/{name}/{name}.pack or its digest is not of this source: run `cargo xtask pack`"
        );
        // No key is trusted.
        let entry = PlannerEntry::from_path(&path);
        let portable = entry.open(&Trust::off()).unwrap();
        assert_eq!(portable.description().name, name);
        let sandbox = Sandbox::new(EngineKind::Native).unwrap();
        let native = entry.load(&sandbox, Some(&cache()), &Trust::off()).unwrap();
        assert_eq!((portable.engine(), native.engine()), (EngineKind::Pulley, EngineKind::Native));
        assert_eq!(portable.make_plan(&request).plan.unwrap(), native.make_plan(&request).plan.unwrap());
        assert_eq!(portable.bounds().fuel, builtin::open().unwrap().bounds().fuel);

        let (folder, mut altered) = (tempfile::tempdir().unwrap(), bytes);
        let middle = altered.len() / 2;
        altered[middle] ^= 4;
        let path = folder.path().join(format!("{name}.pack"));
        std::fs::write(&path, &altered).unwrap();
        let error = PlannerEntry::from_path(&path).open(&Trust::off()).unwrap_err();
        assert!(error.to_string().starts_with(&format!("planner `{name}.pack`: damaged pack")), "{error}");
        assert!(error.help().unwrap().contains(path.to_str().unwrap()), "{:?}", error.help());
    }
}

#[test]
fn a_runtime_only_host_runs_packs_and_nothing_else() {
    let program = program();
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = directory.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let key = SecretKey::from_seed([7; 32]);
    let trusted = key.public().to_string();
    let bytes = pack::write("generic", builtin::component().unwrap(), &key).unwrap();
    let question = with_limit(request(12), "ops", 450);
    let request = file("request.json", &question.canonical_bytes());
    let run = |pack: &str, key: &str| Command::new(&program).args([pack, key, &request]).output().unwrap();

    let output = run(&file("good.pack", &bytes), &trusted);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let native = builtin::load(&Sandbox::new(EngineKind::Native).unwrap(), Some(&cache())).unwrap();
    let expected = native.make_plan(&question).plan.unwrap().canonical_bytes();
    assert_eq!(lines(&output.stdout), [String::from_utf8(expected).unwrap()]);

    let mut altered = bytes.clone();
    let middle = altered.len() / 2;
    altered[middle] ^= 4;
    let manifest = pack::inspect(&bytes).unwrap();
    let stale = pack::resign_for_tests(&bytes, &manifest.wasmtime, "47.0.0", &key);
    let stranger = SecretKey::from_seed([8; 32]).public().to_string();
    for (name, bytes, key, words) in [
        ("unsigned.pack", &bytes[..bytes.len() - 64], &trusted, "not signed"),
        ("altered.pack", &altered, &trusted, "damaged pack"),
        ("stale.pack", &stale, &trusted, "compiled for wasmtime 47.0.0"),
        ("stranger.pack", &bytes, &stranger, "not a trusted key"),
        ("garbage.pack", b"nothing of the kind", &trusted, "not a planner pack"),
        ("planner.wasm", builtin::component().unwrap(), &trusted, "needs a compiler"),
    ] {
        let output = run(&file(name, bytes), key);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert!(error.contains(words), "{name}: {error}");
    }
}
