//! Bundles laid out for their channels, and refusals.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;
use shardwright_bundle::{Bundle, BundleWriter, FileProgress};
use shardwright_delivery::{
    AiPackReport, Audience, Card, ChipName, DeliveryMode, PlayOptions, adb_folder, ai_packs, hub_folder,
    needs,
};
use shardwright_vocabulary::{
    AndroidNeeds, BroughtBy, Error, ErrorKind, NeededLibrary, Notice, PlainName, ShimNeeds, VersionRange,
};

use support::{bundle, bundle_with, files};

fn on(_: FileProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn chips(models: &[&str]) -> Audience {
    let chip = |model: &&str| ChipName { manufacturer: "QTI".to_owned(), model: (*model).to_owned() };
    Audience::Chips(models.iter().map(chip).collect())
}

fn audiences() -> Vec<(String, Audience)> {
    vec![
        ("sm8650".to_owned(), chips(&["SM8650", "SM8650-AC"])),
        ("sm8750".to_owned(), chips(&["SM8750"])),
        ("generic".to_owned(), Audience::Others),
    ]
}

fn options() -> PlayOptions {
    PlayOptions { name: None, mode: DeliveryMode::OnDemand, pack_bytes: None, app_bytes: None }
}

fn laid_out(bundle: &Bundle, options: &PlayOptions, to: &Path) -> AiPackReport {
    ai_packs(bundle, &audiences(), options, to, on).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the volumes that a device of a group has after the packs are installed.
fn installed(packs: &Path, report: &AiPackReport, group: &str) -> Vec<PathBuf> {
    let assets = |name: &str| packs.join(name).join("src/main/assets");
    let folder = |name: &str| assets(name).join(format!("model#group_{group}"));
    let all = report.packs.iter().flat_map(|pack| fs::read_dir(folder(&pack.name)).unwrap());
    let paths = all.map(|entry| entry.unwrap().path());
    let mut volumes: Vec<PathBuf> = paths.filter(|path| path.extension().unwrap() == "swb").collect();
    volumes.sort();
    volumes
}

fn refused(error: &Error, kind: ErrorKind, word: &str) {
    assert!(error.to_string().contains(word), "no `{word}` in {error}");
    assert!(error.help().is_some() && error.kind() == kind, "{error:?}");
}

#[test]
fn every_group_gets_its_variant_and_nothing_else() {
    let parent = tempfile::tempdir().unwrap();
    let bundle = bundle(parent.path());
    let to = parent.path().join("packs");
    let report = laid_out(&bundle, &options(), &to);
    assert_eq!(report.packs.len(), 1);
    for (group, soc) in [("sm8650", "sm8650"), ("sm8750", "sm8750"), ("other", "generic")] {
        let opened = Bundle::open_volumes(&installed(&to, &report, group)).unwrap();
        opened.verify_all(|_| ()).unwrap();
        let socs: Vec<&str> = opened.manifest().variants.iter().map(|variant| variant.soc.as_str()).collect();
        assert_eq!(socs, [soc]);
        let audience = report.audiences.iter().find(|audience| audience.group == group).unwrap();
        assert_eq!(audience.bundle.as_deref(), Some(opened.sha256().to_string().as_str()));
    }
    let read = |name: &str| fs::read_to_string(to.join(name)).unwrap();
    let targeting = read("device_targeting_config.xml");
    // Play uses the first group that matches.
    assert!(targeting.find("name=\"sm8650\"").unwrap() < targeting.find("name=\"sm8750\"").unwrap());
    assert!(targeting.contains("manufacturer=\"QTI\" model=\"SM8650-AC\"/>"), "{targeting}");
    assert!(!targeting.contains("\"other\"") && targeting.matches("device-selector>").count() == 4);
    let module = read("two__chips_/build.gradle");
    assert!(module.contains("com.android.ai-pack") && module.contains("packName = \"two__chips_\""));
    assert!(module.contains("deliveryType = \"on-demand\""), "{module}");
    let readme = read("README.md");
    let lines = [
        "include ':two__chips_'",
        "assetPacks = [\":two__chips_\"]",
        "enableDeviceTargetingConfigApi=true",
        "defaultGroup = \"other\"",
        "assetsPath()",
    ];
    for line in lines {
        assert!(readme.contains(line), "no {line} in {readme}");
    }
    // Writing again gives the same bytes.
    laid_out(&bundle, &options(), &parent.path().join("again"));
    assert!(files(&to) == files(&parent.path().join("again")));
}

#[test]
fn what_does_not_fit_a_pack_lies_in_several_that_all_have_every_group() {
    let parent = tempfile::tempdir().unwrap();
    let bundle = bundle(parent.path());
    let limit = 640_000;
    let options = PlayOptions {
        name: Some("gemma".to_owned()),
        mode: DeliveryMode::InstallTime,
        pack_bytes: Some(limit),
        app_bytes: None,
    };
    let to = parent.path().join("packs");
    let report = laid_out(&bundle, &options, &to);
    let names: Vec<&str> = report.packs.iter().map(|pack| pack.name.as_str()).collect();
    assert_eq!(names, ["gemma", "gemma_2"]);
    let mut assets = BTreeSet::new();
    for pack in &report.packs {
        assert_eq!(pack.content.len(), 3);
        for content in &pack.content {
            assert!(content.bytes <= limit);
            let folder = to.join(&pack.name).join("src/main/assets");
            let folder = folder.join(format!("model#group_{}", content.group));
            let names: Vec<_> =
                fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(names.len(), 1, "no folder is empty");
            // An app may have all packs at once, so no asset may occur twice for a device.
            assert!(assets.insert((content.group.clone(), names[0].clone())), "{names:?}");
        }
    }
    for group in ["sm8650", "sm8750", "other"] {
        let volumes = installed(&to, &report, group);
        assert_eq!(volumes.len(), if group == "other" { 1 } else { 2 });
        Bundle::open_volumes(&volumes).unwrap().verify_all(|_| ()).unwrap();
    }
    let content = |pack: usize, group: &str| {
        report.packs[pack].content.iter().find(|content| content.group == group).unwrap()
    };
    assert_eq!(content(1, "other").asset, None);
    assert_eq!(content(1, "sm8650").asset.as_deref(), Some("model/volume-2.swb"));
    assert!(fs::read_to_string(to.join("README.md")).unwrap().contains("openFd"));
}

#[test]
fn without_a_variant_for_others_they_get_nothing_and_that_is_said() {
    let parent = tempfile::tempdir().unwrap();
    let bundle = bundle(parent.path());
    let to = parent.path().join("packs");
    let report = ai_packs(&bundle, &audiences()[..1], &options(), &to, on).unwrap();
    assert!(report.notices.iter().any(|notice| notice.contains("without a model")), "{report:?}");
    assert!(report.notices.iter().any(|notice| notice.contains("sm8750 is in no pack")), "{report:?}");
    assert!(installed(&to, &report, "other").is_empty());
    let other = report.audiences.last().unwrap();
    assert!(other.group == "other" && other.soc.is_none() && other.bytes == 0);
    // If all devices get the same, there is no targeting.
    let to = parent.path().join("one");
    let report = ai_packs(&bundle, &audiences()[2..], &options(), &to, on).unwrap();
    assert!(!to.join("device_targeting_config.xml").exists());
    assert!(to.join("two__chips_/src/main/assets/model/volume-1.swb").is_file(), "{report:?}");
}

#[test]
fn what_play_does_not_take_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    let bundle = bundle(parent.path());
    let to = parent.path().join("packs");
    let ask = |audiences: &[(String, Audience)], options: &PlayOptions| {
        let error = ai_packs(&bundle, audiences, options, &to, on).unwrap_err();
        assert!(!to.exists(), "{error}");
        error
    };
    for name in ["1st", "a-b", "", "base"] {
        let error = ask(&audiences(), &PlayOptions { name: Some(name.to_owned()), ..options() });
        refused(&error, ErrorKind::Argument, &format!("`{name}` is not a valid name of an AI pack"));
    }
    let error = ask(&[("sm8650".to_owned(), chips(&[]))], &options());
    refused(&error, ErrorKind::Missing, "the Android names of sm8650 are unknown");
    let twice = [("sm8650".to_owned(), chips(&["SM8650"])), ("sm8750".to_owned(), chips(&["SM8650"]))];
    let error = ask(&twice, &options());
    refused(&error, ErrorKind::Unsupported, "QTI SM8650 belongs to both sm8650 and sm8750");
    let same = [("sm8650".to_owned(), chips(&["a"])), ("sm8650".to_owned(), chips(&["b"]))];
    let error = ask(&same, &options());
    refused(&error, ErrorKind::Unsupported, "device group `sm8650`");
    let error = ask(&audiences(), &PlayOptions { pack_bytes: Some(200_000), ..options() });
    refused(&error, ErrorKind::Unsupported, "artefact");
    refused(&error, ErrorKind::Unsupported, "the limit of an AI pack is 200000");
    let error = ask(&audiences(), &PlayOptions { app_bytes: Some(700_000), ..options() });
    refused(&error, ErrorKind::Unsupported, "devices with sm8650 would get");
    refused(&error, ErrorKind::Unsupported, "may have 700000");
    let error = ask(&[("mt1".to_owned(), chips(&["MT1"]))], &options());
    refused(&error, ErrorKind::Argument, "no variant for `mt1`");

    fs::create_dir(&to).unwrap();
    fs::write(to.join("mine"), "").unwrap();
    let error = ai_packs(&bundle, &audiences(), &options(), &to, on).unwrap_err();
    refused(&error, ErrorKind::Argument, "not empty");
    let error = ai_packs(&bundle, &audiences(), &options(), &to.join("absent/packs"), on).unwrap_err();
    refused(&error, ErrorKind::Missing, "absent");
    let stop = |_: FileProgress| ControlFlow::Break(());
    let stopped = parent.path().join("stopped");
    let error = ai_packs(&bundle, &audiences(), &options(), &stopped, stop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    assert!(!stopped.exists());
}

#[test]
fn code_is_in_no_pack() {
    for (bytes, word) in [
        (&b"\x7fELF\x02\x01\x01 a shim"[..], "native library"),
        (b"\0asm\x0d\0\x01\0 a planner", "WebAssembly"),
        (b"SWPACK\0 a planner", "planner pack"),
        (b"PK\x03\x04 a package", "archive"),
    ] {
        let parent = tempfile::tempdir().unwrap();
        let bundle = bundle_with(parent.path(), bytes);
        let to = parent.path().join("packs");
        let error = ai_packs(&bundle, &audiences(), &options(), &to, on).unwrap_err();
        refused(&error, ErrorKind::Unsupported, "only models may be delivered");
        refused(&error, ErrorKind::Unsupported, "head");
        refused(&error, ErrorKind::Unsupported, word);
        assert!(!to.exists());
    }
}

fn library(file: &str, brought_by: BroughtBy) -> NeededLibrary {
    NeededLibrary {
        file: file.to_owned(),
        brought_by,
        versions: Some(VersionRange { of: "core API".to_owned(), min: "2.32".to_owned(), below: None }),
        licence: "Its maker's".to_owned(),
        obtained: "Maven".to_owned(),
        note: String::new(),
    }
}

fn shims() -> Vec<ShimNeeds> {
    let android = AndroidNeeds {
        extracted_libraries: true,
        variables: BTreeMap::from([("ADSP_LIBRARY_PATH".to_owned(), "{libraries};/vendor/dsp".to_owned())]),
        device_folders: vec!["/vendor/lib64".to_owned()],
        note: "the processor loads its half by path".to_owned(),
    };
    let shim = |name: &str, needs: Vec<NeededLibrary>, android: AndroidNeeds| ShimNeeds {
        name: name.to_owned(),
        vendor: "a vendor".to_owned(),
        library: format!("shim_{name}"),
        licence: Some("MIT".to_owned()),
        needs,
        android,
    };
    let libraries = vec![
        library("libHtp.so", BroughtBy::App),
        library("libHtp{arch}Skel.so", BroughtBy::App),
        library("libcdsprpc.so", BroughtBy::Device),
    ];
    vec![shim("qnn", libraries, android), shim("cpu", Vec::new(), AndroidNeeds::default())]
}

fn facts() -> BTreeMap<String, BTreeMap<String, String>> {
    BTreeMap::from([("sm8650".to_owned(), BTreeMap::from([("arch".to_owned(), "v75".to_owned())]))])
}

#[test]
fn needs_are_those_of_the_shims_that_load_it() {
    let parent = tempfile::tempdir().unwrap();
    let bundle = bundle(parent.path());
    let report = needs(&bundle, None, &shims(), &facts()).unwrap();
    let variant = |soc: &str| report.variants.iter().find(|variant| variant.soc == soc).unwrap();
    let names =
        |soc: &str| -> Vec<&str> { variant(soc).shims.iter().map(|shim| shim.name.as_str()).collect() };
    assert_eq!((names("sm8650"), names("generic")), (vec!["cpu", "qnn"], vec!["cpu"]));
    let of = |soc: &str| -> Vec<&str> {
        variant(soc).shims[1].libraries.iter().map(|library| library.file.as_str()).collect()
    };
    assert_eq!(of("sm8650"), ["libHtp.so", "libHtpV75Skel.so", "libcdsprpc.so"]);
    assert_eq!(of("sm8750")[1], "libHtp*Skel.so", "the facts of that chip are not known");
    assert_eq!(variant("sm8650").shims[1].compiled_by, ["0.1.0"]);
    let android = &report.android;
    assert_eq!(
        android.manifest,
        ["<uses-native-library android:name=\"libcdsprpc.so\" android:required=\"false\" />"]
    );
    assert!(android.extracted_libraries && android.variables.contains_key("ADSP_LIBRARY_PATH"));

    let of_others = needs(&bundle, Some("generic"), &shims(), &facts()).unwrap();
    assert!(of_others.variants.len() == 1 && of_others.android.manifest.is_empty(), "{of_others:?}");
    let error = needs(&bundle, None, &shims()[1..], &facts()).unwrap_err();
    refused(&error, ErrorKind::Missing, "needs the shim `qnn`");
}

/// Records its arguments, one call per line, and fails to push a missing file.
const FAKE_ADB: &str = "#!/bin/sh
for each in \"$@\"; do printf '%s\\t' \"$each\"; done >> \"$RECORD\"
printf '\\n' >> \"$RECORD\"
if [ \"$1\" = push ] && [ ! -f \"$2\" ]; then
    echo \"no such file: $2\" >&2
    exit 1
fi
";

/// The folder of a script, with a phone that only records its commands.
struct Phone {
    folder: tempfile::TempDir,
}

impl Phone {
    fn new(files: &[&str]) -> Phone {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        let adb = folder.path().join("adb");
        fs::write(&adb, FAKE_ADB).unwrap();
        fs::set_permissions(&adb, fs::Permissions::from_mode(0o755)).unwrap();
        Phone { folder }
    }

    /// Returns whether the script succeeded, its messages, and the calls of `adb`.
    fn runs(&self, script: &Path, arguments: &[&str]) -> (bool, String, Vec<String>) {
        let record = self.folder.path().join("record");
        let _ = fs::remove_file(&record);
        let path = format!("{}:{}", self.folder.path().display(), std::env::var("PATH").unwrap());
        let run = Command::new("sh")
            .arg(script)
            .args(arguments)
            .env("PATH", path)
            .env("RECORD", &record)
            .env("SHARDWRIGHT_ANDROID", self.folder.path().join("program"))
            .env("VENDOR_LIBRARIES", self.folder.path().join("libraries"))
            .output()
            .unwrap();
        let calls = fs::read_to_string(&record).unwrap_or_default();
        let calls = calls.lines().map(|line| line.trim_end_matches('\t').to_owned()).collect();
        (run.status.success(), String::from_utf8(run.stderr).unwrap(), calls)
    }
}

const FILES_OF_A_PHONE: [&str; 9] = [
    "program/shardwright",
    "program/shardwright-worker",
    "program/shims/libshim_qnn.so",
    "program/shims/libshim_qnn.shim.json",
    "program/shims/libshim_qnn.shim.json.sig",
    "program/shims/libshim_cpu.so",
    "program/shims/libshim_cpu.shim.json",
    "libraries/libHtp.so",
    "libraries/libHtpV75Skel.so",
];

#[test]
fn the_script_pushes_what_is_needed_and_sets_the_vendor_s_path() {
    let parent = tempfile::tempdir().unwrap();
    let bundle = bundle(parent.path());
    let to = parent.path().join("phone with blanks");
    let report = adb_folder(&bundle, Some("sm8650"), &shims(), &facts(), &to, on).unwrap();
    assert_eq!(report.libraries, ["libHtp.so", "libHtpV75Skel.so"]);
    assert_eq!(Bundle::open(to.join("bundle.swb")).unwrap().manifest().variants.len(), 1);
    let script = to.join("push.sh");
    assert!(Command::new("sh").arg("-n").arg(&script).status().unwrap().success());

    let phone = Phone::new(&FILES_OF_A_PHONE);
    let (done, stderr, calls) = phone.runs(&script, &["--prompt", "it's $HOME \"here\"", "-n", "4"]);
    assert!(done, "{stderr}");
    let there = "/data/local/tmp/shardwright";
    for (what, place) in [
        ("bundle.swb", "bundle.swb"),
        ("shardwright-worker", "shardwright-worker"),
        ("libshim_qnn.so", "shims/libshim_qnn.so"),
        ("libshim_cpu.shim.json", "shims/libshim_cpu.shim.json"),
        ("libshim_qnn.shim.json.sig", "shims/libshim_qnn.shim.json.sig"),
        ("libHtpV75Skel.so", "libraries/libHtpV75Skel.so"),
    ] {
        let ending = format!("/{what}\t{there}/{place}");
        let is_pushed = |line: &String| line.starts_with("push\t") && line.ends_with(&ending);
        assert!(calls.iter().any(is_pushed), "{what}: {calls:?}");
    }
    assert!(
        calls.iter().all(|call| !call.contains("libshim_cpu.shim.json.sig")),
        "it is not signed: {calls:?}"
    );
    let expected = format!(
        "shell\tcd '{there}' && LD_LIBRARY_PATH='{there}/libraries:/vendor/lib64' \
         ADSP_LIBRARY_PATH='{there}/libraries;/vendor/dsp' ./shardwright run bundle.swb --shims shims \
         '--prompt' 'it'\\''s $HOME \"here\"' '-n' '4'"
    );
    assert_eq!(calls.last(), Some(&expected));
    // Without arguments the program is not run.
    let is_run = |calls: &[String]| calls.iter().any(|call| call.contains("./shardwright run"));
    let (done, _, calls) = phone.runs(&script, &[]);
    assert!(done && !is_run(&calls), "{calls:?}");
    // A missing library ends the script.
    let without = Phone::new(&FILES_OF_A_PHONE[..8]);
    let (done, stderr, calls) = without.runs(&script, &["--prompt", "a"]);
    assert!(!done && stderr.contains("libHtpV75Skel.so") && !is_run(&calls), "{stderr}");

    // The variant for any machine needs no folder of libraries.
    let to = parent.path().join("any");
    let report = adb_folder(&bundle, Some("generic"), &shims(), &facts(), &to, on).unwrap();
    assert!(report.libraries.is_empty() && report.shims == ["shim_cpu"]);
    assert!(!fs::read_to_string(to.join("push.sh")).unwrap().contains("VENDOR_LIBRARIES:?"));
    let error = adb_folder(&bundle, None, &[], &facts(), &parent.path().join("none"), on).unwrap_err();
    refused(&error, ErrorKind::Missing, "needs the shim `cpu`, whose manifest was not found");
}

#[test]
fn a_card_says_what_the_bundle_knows() {
    let parent = tempfile::tempdir().unwrap();
    let bundle = bundle(parent.path());
    let to = parent.path().join("hub");
    let card = Card { licence: Some("gemma".to_owned()), base_model: Some("google/gemma-3-270m".to_owned()) };
    let report = hub_folder(&bundle, &card, &to, on).unwrap();
    assert_eq!(report.files.len(), 3);
    for file in &report.files {
        let opened = Bundle::open(to.join(file.name.as_str())).unwrap();
        assert_eq!(opened.sha256().to_string(), file.bundle);
        assert_eq!(opened.manifest().variants[0].soc, *file.soc);
        assert_eq!(file.bytes, fs::metadata(to.join(file.name.as_str())).unwrap().len());
    }
    let checked = Command::new("sha256sum").args(["-c", "SHA256SUMS"]).current_dir(&to).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    assert!(fs::read_to_string(to.join(".gitattributes")).unwrap().contains("*.swb filter=lfs"));
    let text = fs::read_to_string(to.join("README.md")).unwrap();
    let (front, body) = text.strip_prefix("---\n").unwrap().split_once("\n---\n").unwrap();
    let lines =
        ["license: gemma", "base_model: google/gemma-3-270m", "library_name: shardwright", "- sm8650"];
    for line in lines {
        assert!(front.lines().any(|known| known == line), "{front}");
    }
    // Facts of the bundle, with markup in a manifest shown as text.
    assert!(body.contains("| `two__chips_-sm8650.swb` |") && body.contains("f32"), "{body}");
    assert!(body.contains("worst \\| largest error 1e-4") && body.contains("passed"), "{body}");
    assert!(body.contains("# two \\<chips\\>"), "{body}");
}

#[test]
fn a_card_without_a_licence_or_with_other_markup_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    let bundle = bundle(parent.path());
    for (licence, base, word) in [
        (None, None, "the licence of `two <chips>` is unknown"),
        (Some("gemma\nx: y"), None, "not a valid licence"),
        (Some("mit"), Some("a b"), "`a b` is not a valid model of a hub"),
        (Some(""), None, "`` is not a valid licence"),
    ] {
        let card = Card { licence: licence.map(str::to_owned), base_model: base.map(str::to_owned) };
        let to = parent.path().join("refused");
        let error = hub_folder(&bundle, &card, &to, on).unwrap_err();
        refused(&error, ErrorKind::Argument, word);
        assert!(!to.exists());
    }
}

/// An absolute path that does not exist.
const OUTSIDE: &str = "/outside-of-every-delivery";

/// Returns texts that would leave a folder, a table or a command if they were used unchanged.
fn hostile_text() -> impl Strategy<Value = String> {
    let paths = vec!["..", "../outside", "../../outside", "a/../../../outside", OUTSIDE, "."];
    prop_oneof![
        proptest::sample::select(paths).prop_map(str::to_owned),
        "[a-z0-9-]{1,12}",
        "[a-z./\\\\$`'\"; |&<>#*%\\-]{1,24}",
        "\\PC{1,24}",
    ]
}

/// Replaces the texts of a bundle's manifest. Returns `None` if the manifest may not have them.
fn with_texts(bundle: &Path, texts: &[String; 12]) -> Option<Bundle> {
    let writer = BundleWriter::create(bundle).unwrap();
    let mut manifest = writer.previous().cloned().unwrap();
    let variant = &mut manifest.variants[0];
    let (chain, proof) = (&mut variant.chains[0], &mut variant.verifications[0]);
    let shard = &mut chain.shards[0];
    let [soc, alias, others @ ..] = texts;
    variant.soc = PlainName::new(soc.as_str()).ok()?;
    let places = [
        &mut manifest.program,
        &mut manifest.model.name,
        &mut manifest.model.family,
        &mut variant.planner.name,
        &mut chain.name,
        &mut shard.name,
        &mut shard.target.name,
        &mut shard.compiled_by.device,
        &mut proof.name,
        &mut proof.summary,
    ];
    for (place, text) in places.into_iter().zip(others) {
        place.clone_from(text);
    }
    variant.aliases = vec![alias.clone()];
    variant.notices = vec![Notice::note(alias)];
    writer.finish(&manifest).ok()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// No text of a manifest, a shim's name or a fact of a profile changes anything outside the new
    /// folder.
    #[test]
    fn no_text_leaves_the_folder(
        texts in proptest::array::uniform12(hostile_text()),
        is_legal_chip in proptest::bool::ANY,
        others in proptest::array::uniform3(hostile_text()),
    ) {
        let parent = tempfile::tempdir().unwrap();
        let place = parent.path().join("in/several/folders");
        fs::create_dir_all(&place).unwrap();
        bundle(&place);
        let mut texts = texts;
        if is_legal_chip {
            texts[0] = "sm-8".to_owned();
        }
        let Some(bundle) = with_texts(&place.join("bundle"), &texts) else { return Ok(()) };
        let [library, fact, chip] = others;
        let mut shims = shims();
        shims[0].library = library;
        let soc = bundle.manifest().variants[0].soc.to_string();
        let facts = BTreeMap::from([(soc.clone(), BTreeMap::from([("arch".to_owned(), fact)]))]);
        let audiences = [(soc.clone(), chips(&[&chip])), ("generic".to_owned(), Audience::Others)];
        let card = Card { licence: Some("mit".to_owned()), base_model: Some(chip) };
        let before = files(parent.path());
        for writer in 0..3 {
            let to = place.join("out");
            let written = match writer {
                0 => ai_packs(&bundle, &audiences, &options(), &to, on).map(|_| ()),
                1 => adb_folder(&bundle, Some(&soc), &shims, &facts, &to, on).map(|_| ()),
                _ => hub_folder(&bundle, &card, &to, on).map(|_| ()),
            };
            match written {
                Ok(()) => {
                    let script = to.join("push.sh");
                    if script.is_file() {
                        prop_assert!(Command::new("sh").arg("-n").arg(&script).status().unwrap().success());
                    }
                    fs::remove_dir_all(&to).unwrap();
                }
                Err(error) => prop_assert!(error.help().is_some() && !to.exists(), "{error}"),
            }
            prop_assert!(files(parent.path()) == before, "writer {writer} changed the parent folder");
            prop_assert!(!Path::new(OUTSIDE).exists());
        }
    }
}
