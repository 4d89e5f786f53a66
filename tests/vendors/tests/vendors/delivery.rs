//! Delivery of a bundle to phones: AI packs for Google Play whose volumes are found again, a script
//! for adb, a folder for a hub, and the list of files needed with the bundle.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use shardwright::{BundleOptions, Section};
use shardwright_bundle::Bundle;
use shardwright_tests::bundles::{contents, logits, some_tokens};
use shardwright_tests::neuron::A16W8;
use shardwright_tests::program::{self, Run, shardwright};
use shardwright_tests::tree;

use crate::variants::{Bench, CHECKPOINT};

fn pack(bundle: &Path, to: &Path, more: &[&str]) -> Run {
    shardwright(["pack"]).argument(bundle).argument("--ai-pack").argument(to).arguments(more)
}

/// Returns the files that a device of a group has after installing: the assets of its group,
/// without suffix.
fn volumes(packs: &Path, report: &Value, group: &str) -> Vec<PathBuf> {
    let of = |pack: &Value| -> Option<PathBuf> {
        let content = pack["content"].as_array().expect("content").iter();
        let content = content.clone().find(|content| content["group"] == group).expect("every group");
        let asset = content["asset"].as_str()?;
        let (folder, file) = asset.split_once('/').expect("a folder");
        let assets = packs.join(pack["name"].as_str().expect("a name")).join("src/main/assets");
        Some(assets.join(format!("{folder}#group_{group}")).join(file))
    };
    report["packs"].as_array().expect("packs").iter().filter_map(of).collect()
}

#[test]
fn volumes_of_ai_packs_are_found_again_and_say_the_same() {
    let (bench, _) = Bench::with_bundle();
    let packs = bench.path("packs");
    // The limit is small enough that a chip's variant needs several packs.
    let largest = Bundle::open(bench.bundle()).expect("a bundle").files().into_iter().map(|file| file.bytes);
    let limit = (largest.max().expect("files") + 800_000).to_string();
    let report = pack(&bench.bundle(), &packs, &["--pack-size", &limit, "--name", "demo"]).json();
    assert_eq!(report["mode"], "on-demand", "{report}");
    for (group, soc) in [("mt6989", "mt6989"), ("mt6993", "mt6993"), ("other", "generic")] {
        let paths = volumes(&packs, &report, group);
        assert!(group == "other" || paths.len() > 1, "{paths:?}");
        // In one folder for the program, and at their own paths for an app.
        let folder = bench.path(&format!("device-{group}"));
        fs::create_dir(&folder).expect("made");
        for path in &paths {
            symlink(path, folder.join(path.file_name().expect("a name"))).expect("a link");
        }
        assert_eq!(bench.generates(&folder, soc), bench.generates(&bench.bundle(), soc), "{group}");
        let verified = shardwright(["inspect", "--verify"]).argument(&folder).json();
        assert_eq!(verified["manifest"]["variants"].as_array().map(Vec::len), Some(1), "{verified}");

        let options = BundleOptions::new().search_path(program::search_path());
        let said = |model: shardwright::Model| {
            let ids = some_tokens(&model, 8);
            logits(&model, &ids[..4], &ids[4..])
        };
        let expected = said(options.open(&folder).expect("a model"));
        let mut backwards = paths.clone();
        backwards.reverse();
        assert_eq!(said(options.open(backwards).expect("a model")), expected);
        let section =
            |path: &PathBuf| Section::whole(path, fs::File::open(path).expect("there")).expect("its length");
        let sections: Vec<Section> = paths.iter().map(section).collect();
        assert_eq!(said(options.open(sections).expect("a model")), expected);
        // A missing volume is an error with help, not a crash.
        if paths.len() > 1 {
            let rest = paths[..paths.len() - 1].to_vec();
            let error = options.open(rest).err().expect("a volume is missing");
            assert!(error.to_string().contains("is missing") && error.help().is_some(), "{error}");
            let error = options.open(paths[1..].to_vec()).err().expect("the first is missing");
            assert!(error.to_string().contains("manifest") && error.help().is_some(), "{error}");
        }
    }
    // Equal inputs give equal packs.
    let again = bench.path("again");
    pack(&bench.bundle(), &again, &["--pack-size", &limit, "--name", "demo"]).succeeds();
    assert!(contents(&packs) == contents(&again));
}

#[test]
fn groups_are_the_chips_as_android_names_them() {
    let (bench, _) = Bench::with_bundle();
    let packs = bench.path("packs");
    let text = pack(&bench.bundle(), &packs, &["--delivery", "fast-follow"]).succeeds();
    assert!(text.contains("fast-follow") && text.contains("Mediatek MT6989"), "{text}");
    let targeting = fs::read_to_string(packs.join("device_targeting_config.xml")).expect("written");
    // The XML is checked with another reader.
    let script = "import sys, xml.etree.ElementTree as tree
space = '{http://schemas.android.com/apk/config}'
root = tree.parse(sys.argv[1]).getroot()
assert root.tag == space + 'device-targeting-config', root.tag
for group in root:
    assert group.tag == space + 'device-group' and 1 <= len(group) <= 5
    for selector in group:
        for chip in selector:
            print(group.get('name'), chip.tag.removeprefix(space), chip.get('manufacturer'), chip.get('model'))";
    let run =
        Command::new("python3").args(["-c", script]).arg(packs.join("device_targeting_config.xml")).output();
    let run = run.expect("python3");
    assert!(run.status.success(), "{targeting}\n{}", String::from_utf8_lossy(&run.stderr));
    let found = String::from_utf8(run.stdout).expect("text");
    let lines: Vec<&str> = found.lines().collect();
    assert!(lines.contains(&"mt6989 system-on-chip Mediatek MT6989"), "{found}");
    assert!(lines.contains(&"mt6993 system-on-chip Mediatek MT6993"), "{found}");

    // Packs that Play does not accept, and a chip without a profile.
    pack(&bench.bundle(), &packs, &[]).refuses_with(2, &["not empty"]);
    let to = bench.path("refused");
    for (option, value, code, said) in [
        ("--name", "a-b", 2, "not a valid name of an AI pack"),
        ("--pack-size", "10000", 5, "the limit of an AI pack is 10000"),
        ("--app-size", "100KB", 5, "a version of an app may have"),
    ] {
        pack(&bench.bundle(), &to, &[option, value]).refuses_with(code, &[said]);
    }
    let profiles = bench.path("profiles");
    fs::create_dir(&profiles).expect("made");
    let own = tree::read(Path::new("plugins/profiles/generic.json"));
    let own = own.replace("\"name\": \"generic\"", "\"name\": \"my-chip\"");
    fs::write(profiles.join("my-chip.json"), own).expect("written");
    let unnamed = bench.path("unnamed");
    let compile = bench.run(["compile", CHECKPOINT, "--soc", "my-chip", "--context", "64"]);
    compile.argument("--profiles").argument(&profiles).argument("-o").argument(&unnamed).succeeds();
    pack(&unnamed, &to, &[]).refuses_with(3, &["the Android names of my-chip are unknown"]);
    assert!(!to.exists());
}

#[test]
fn a_phone_for_development_gets_what_it_needs() {
    let (bench, _) = Bench::with_bundle();
    let to = bench.path("phone");
    let run = shardwright(["pack"]).argument(bench.bundle()).argument("--adb").argument(&to);
    let report = run.arguments(["--soc", "mt6989"]).json();
    assert_eq!(report["variants"], serde_json::json!(["mt6989"]), "{report}");
    assert_eq!(report["shims"], serde_json::json!(["shardwright_shim_cpu", "shardwright_shim_neuron"]));
    let adb = bench.path("adb");
    let record = bench.path("record");
    fs::write(&adb, format!("#!/bin/sh\necho \"$*\" >> '{}'\n", record.display())).expect("written");
    fs::set_permissions(&adb, fs::Permissions::from_mode(0o755)).expect("a program");
    let status = Command::new("sh")
        .arg(to.join("push.sh"))
        .args(["--prompt", "a b"])
        .env("ADB", &adb)
        .env("SHARDWRIGHT_ANDROID", program::folder())
        .status();
    assert!(status.expect("sh").success());
    let calls = fs::read_to_string(record).expect("calls");
    let last = calls.lines().last().expect("a call");
    assert!(last.contains("LD_LIBRARY_PATH=") && last.contains("/vendor/lib64"), "{calls}");
    assert!(last.ends_with("run bundle.swb --shims shims '--prompt' 'a b'"), "{calls}");
    let pushes = calls.lines().filter(|line| line.starts_with("push ")).count();
    assert_eq!(pushes, 7, "bundle, two programs, two shims with their manifests: {calls}");
    // The pushed bundle runs here too.
    let pushed = bench.generates(&to.join("bundle.swb"), "mt6989");
    assert_eq!(pushed, bench.generates(&bench.bundle(), "mt6989"));
}

#[test]
fn a_hub_gets_a_file_for_each_chip_and_a_card() {
    let (bench, _) = Bench::with_bundle();
    let to = bench.path("hub");
    let hub = |more: &[&str]| {
        let run = shardwright(["pack"]).argument(bench.bundle()).argument("--hf").argument(&to);
        run.arguments(more)
    };
    hub(&[]).refuses_with(2, &["the licence of", "--licence"]);
    let report = hub(&["--licence", "gemma"]).json();
    let card = fs::read_to_string(to.join("README.md")).expect("a card");
    for file in report["files"].as_array().expect("files") {
        let (name, soc) = (file["name"].as_str().expect("a name"), file["soc"].as_str().expect("a chip"));
        assert_eq!(bench.generates(&to.join(name), soc), bench.generates(&bench.bundle(), soc));
        assert!(card.contains(&format!("| `{name}` |")) && card.contains(A16W8), "{card}");
    }
    assert!(card.starts_with("---\nlicense: gemma\n") && !card.contains("base_model"), "{card}");
    assert!(card.contains("Nothing is recorded in the bundle."), "{card}");
    // Each channel refuses the options of the others, and only one channel can be chosen.
    for arguments in [
        &["--hf", "x", "--delivery", "on-demand"][..],
        &["--hf", "x", "--soc", "mt6989"],
        &["--adb", "x", "--licence", "mit"],
        &["--ai-pack", "x", "--soc", "mt6989"],
        &["-o", "x", "--base-model", "a/b"],
        &["-o", "x", "--hf", "y"],
        &["--ai-pack", "x", "--adb", "y"],
        &[],
    ] {
        shardwright(["pack"]).argument(bench.bundle()).arguments(arguments).refuses_with(2, &[]);
    }
}

#[test]
fn what_a_bundle_needs_beside_it_is_listed() {
    let (bench, _) = Bench::with_bundle();
    let needs = |more: &[&str]| shardwright(["needs"]).argument(bench.bundle()).arguments(more);
    let report = needs(&[]).json();
    let lines = report["android"]["manifest"].as_array().expect("lines");
    let line =
        "<uses-native-library android:name=\"libneuronusdk_adapter.mtk.so\" android:required=\"false\" />";
    assert!(lines.iter().any(|known| known == line), "{report}");
    let shims = report["variants"][1]["shims"].as_array().expect("shims");
    assert!(shims.iter().all(|shim| shim["licence"] == "Apache-2.0 OR MIT"), "{report}");
    let adapter = &shims[1]["libraries"][0];
    assert!(adapter["versions"]["min"] == "7" && adapter["brought_by"] == "device", "{report}");
    let text = needs(&["--soc", "Dimensity 9300"]).succeeds();
    assert!(text.contains("licence:") && text.contains("== mt6989") && !text.contains("mt6993"), "{text}");
    let text = needs(&["--soc", "generic"]).succeeds();
    assert!(text.contains("an Android app declares\nno entries"), "{text}");
    needs(&["--soc", "sm8750"]).refuses_with(2, &["no variant for `sm8750`"]);
}
