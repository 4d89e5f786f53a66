//! Tests of every reason for which a shim is not loaded.

use std::path::{Path, PathBuf};

use crate::common;
use crate::common::Shims;
use shardwright_shim_abi::raw::{SwAnswer, SwHost};
use shardwright_shims::{LayoutCheck, LoadError, ShimError, ShimRegistry};
use shardwright_vocabulary::{ErrorClass, ErrorKind};

fn door(shims: &Shims, way: u32) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/door.c");
    let stem = format!("door_{way}");
    shims.manifest(&stem, "door", |_| {});
    shims.compile(&stem, &[source], &[format!("-DWAY={way}")])
}

/// Returns the only reason for which the registry is empty.
fn skipped(registry: ShimRegistry) -> LoadError {
    assert!(registry.shims().is_empty(), "{:?}", registry.shims());
    assert_eq!(registry.skipped().len(), 1, "{:?}", registry.skipped());
    let mut registry = registry;
    let error = registry.take_skipped().remove(0).error;
    assert!(error.help().is_some(), "{error}");
    let how_to = std::fs::read_to_string(common::repository().join("vendor-shims/README.md")).unwrap();
    assert!(how_to.contains(&format!("`{}`", error.reason())), "{} is not in the how-to", error.reason());
    error
}

#[test]
fn faults_of_the_entry_function_are_distinguished() {
    let shims = Shims::new();
    let cases: [(u32, &str, &str); 15] = [
        (1, "too-new", "supports contract 2.0 to 2.3, newer than the host's 0.1"),
        (2, "too-old", "supports contract 0.0, older than the host's 0.1"),
        (3, "table-too-small", "expected a table of at least"),
        (4, "refused", "no licence on this machine"),
        (5, "answer-invalid", "neither a table nor a refusal"),
        (6, "answer-invalid", "a table and a refusal"),
        (7, "answer-invalid", "version 9.0, which the host does not offer"),
        (8, "answer-invalid", "the table has version 0.2, but the answer has version 0.1"),
        (9, "function-missing", "`check`"),
        (10, "function-missing", "`unload`"),
        (11, "describe-failed", "out of order"),
        (12, "describe-failed", "expected exactly one description"),
        (14, "other-draft", "the shim has draft 0badc0de of version 0.1, but the host has draft"),
        (13, "answer-invalid", "the shim has the name `someone`, but its manifest has `door`"),
        (15, "not-a-library", "vendor_start"),
    ];
    for (way, reason, text) in cases {
        let library = door(&shims, way);
        let error = skipped(ShimRegistry::builder().library(&library).build());
        assert_eq!(error.reason(), reason, "{error}");
        assert!(error.to_string().contains(text), "{error}");
        assert!(error.place().is_some_and(|place| place.contains(&format!("door_{way}"))), "{error}");
    }
}

#[test]
fn files_that_are_no_shims_are_distinguished() {
    let shims = Shims::new();
    let at = |name: &str| shims.path().join(name);

    let missing = skipped(ShimRegistry::builder().library(at("absent.so")).build());
    assert_eq!(missing.reason(), "not-found");
    let nowhere = skipped(ShimRegistry::builder().directory(at("nowhere")).build());
    assert_eq!(nowhere.reason(), "not-found");
    let file = skipped(ShimRegistry::builder().directory(file!()).build());
    assert!(matches!(file.reason(), "unreadable" | "not-found"), "{file}");

    std::fs::write(at("bare.so"), b"text").unwrap();
    let registry = ShimRegistry::builder().directory(shims.path()).build();
    // The error for a missing shim reports that it was skipped, and why.
    let missed = registry.open("bare", "here", &[]).unwrap_err().to_string();
    assert!(missed.contains("found: none; skipped: ") && missed.contains("bare.shim.json"), "{missed}");
    let bare = skipped(registry);
    assert_eq!(bare.reason(), "no-manifest");
    assert!(bare.to_string().contains("bare.shim.json"), "{bare}");

    shims.manifest("bare", "bare", |_| {});
    let text = skipped(ShimRegistry::builder().library(at("bare.so")).build());
    assert_eq!(text.reason(), "not-a-library");

    shims.manifest("gone", "gone", |_| {});
    let gone = skipped(ShimRegistry::builder().library(at("gone.shim.json")).build());
    assert_eq!(gone.reason(), "not-found");
    assert!(gone.to_string().contains("gone.so"), "{gone}");

    shims.manifest("broken", "broken", |manifest| *manifest = serde_json::json!(7));
    let broken = skipped(ShimRegistry::builder().library(at("broken.shim.json")).build());
    assert_eq!(broken.reason(), "manifest-invalid");

    for (versions, reason) in [(("0.2", "0.9"), "too-new"), (("0.0", "0.0"), "too-old")] {
        // The library does not even exist, since the manifest alone decides.
        shims.manifest("versions", "versions", |manifest| {
            manifest["abi"] = serde_json::json!({"min": versions.0, "max": versions.1});
        });
        let error = skipped(ShimRegistry::builder().library(at("versions.shim.json")).build());
        assert_eq!(error.reason(), reason);
    }
}

#[test]
fn a_system_library_is_not_a_shim() {
    let shims = Shims::new();
    shims.manifest("libm", "libm", |manifest| {
        manifest["library"] = "libm.so.6".into();
        manifest["search"] = "system".into();
    });
    let manifest = shims.path().join("libm.shim.json");
    let error = skipped(ShimRegistry::builder().library(manifest).build());
    assert_eq!(error.reason(), "not-a-shim", "{error}");
}

#[test]
fn a_library_is_checked_against_the_hash_in_its_manifest() {
    use sha2::Digest;
    let shims = Shims::new();
    let library = shims.faulty();
    let sum = sha2::Sha256::digest(std::fs::read(&library).unwrap());
    let hash: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    shims.manifest("faulty", "faulty", |manifest| manifest["sha256"] = hash.clone().into());
    let registry = shims.registry();
    assert_eq!(registry.shims().len(), 1);
    assert_eq!(registry.get("faulty").unwrap().library_hash().unwrap(), hash);

    let mut changed = std::fs::read(&library).unwrap();
    changed.push(0);
    std::fs::remove_file(&library).unwrap();
    std::fs::write(&library, changed).unwrap();
    let error = skipped(ShimRegistry::builder().library(&library).build());
    assert_eq!(error.reason(), "hash-mismatch", "{error}");
    let text = error.to_string();
    assert!(text.contains(&format!("expected SHA-256 {hash}")) && !text.ends_with(&hash), "{text}");
}

#[test]
fn a_shim_without_a_stated_hash_has_that_of_its_file() {
    let shims = Shims::new();
    let library = shims.faulty();
    let registry = shims.registry();
    let shim = registry.get("faulty").unwrap();
    let before = shim.library_hash().unwrap();
    assert_eq!(shim.library_hash().unwrap(), before);
    std::fs::remove_file(&library).unwrap();
    let error = shim.library_hash().unwrap_err();
    assert_eq!((error.reason(), error.place()), ("unreadable", library.to_str()));
    std::fs::write(&library, b"rebuilt").unwrap();
    assert_ne!(shim.library_hash().unwrap(), before);
}

/// The hashed file is the one that runs, even if another file replaces it at the path after it was
/// hashed.
#[cfg(target_os = "linux")]
#[test]
fn a_hashed_library_is_opened_by_what_was_hashed() {
    use sha2::Digest;
    let shims = Shims::new();
    let template = shims.template();
    let content = std::fs::read(&template).unwrap();
    let hash: String = sha2::Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
    shims.manifest("template_c", "template-c", |manifest| manifest["sha256"] = hash.into());
    let open_by_descriptor = |path: &Path| {
        let open = std::fs::read_dir("/proc/self/fd").unwrap();
        open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()).any(|file| file == path)
    };
    assert!(!open_by_descriptor(&template));
    let registry = shims.registry();
    assert!(open_by_descriptor(&template), "the descriptor that was hashed stays with the library");

    // Now another file has the path.
    std::fs::remove_file(&template).unwrap();
    std::fs::write(&template, [content, vec![0]].concat()).unwrap();
    // This process has the library that was hashed.
    registry.open("template-c", "here", &[]).unwrap();
}

#[test]
fn a_directory_gives_each_shim_once_and_every_reason() {
    let shims = Shims::new();
    shims.faulty();
    shims.template();
    door(&shims, 4);
    std::fs::write(shims.path().join("notes.txt"), "not looked at").unwrap();
    let registry = ShimRegistry::builder().library(shims.library("faulty")).directory(shims.path()).build();
    let names: Vec<&str> = registry.shims().iter().map(|shim| shim.name()).collect();
    assert_eq!(names, ["faulty", "template-c"]);
    assert_eq!(registry.skipped().len(), 1, "{:?}", registry.skipped());
    let shim = registry.get("faulty").unwrap();
    assert_eq!(shim.layout(), &LayoutCheck::NotRust);
    assert_eq!(shim.abi_version(), "0.1");
    assert_eq!(shim.description().vendor_library.as_deref(), Some("libvendor.so 7.3"));
    assert_eq!(shim.manifest().unwrap().vendor, "test");
    assert!(shim.compiles() && shim.runs());
    match registry.open("qnn", "a", &[]) {
        Err(error @ ShimError::Other(ErrorClass::InvalidArgument, _)) => {
            assert_eq!(error.kind(), ErrorKind::Missing);
            assert!(error.to_string().contains("no shim is named `qnn`"), "{error}");
            assert!(error.to_string().contains("faulty, template-c") && error.help().is_some(), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn of_two_shims_with_one_name_the_first_stays() {
    let shims = Shims::new();
    shims.faulty();
    std::fs::copy(shims.library("faulty"), shims.library("second")).unwrap();
    shims.manifest("second", "faulty", |_| {});
    let registry = ShimRegistry::builder().directory(shims.path()).build();
    assert_eq!(registry.shims().len(), 1);
    assert_eq!(registry.shims()[0].path(), shims.library("faulty"));
    let error = &registry.skipped()[0].error;
    assert_eq!((error.reason(), error.duplicate_name()), ("duplicate-name", Some("faulty")));
    assert!(error.to_string().contains("second"), "{error}");
}

#[test]
fn instances_are_independent_counted_and_exclusive() {
    let shims = Shims::new();
    shims.faulty();
    let registry = shims.registry();
    let fault = |name: &str| vec![("fault".to_owned(), name.to_owned())];
    // One library has two names, each with its own options.
    let good = registry.open("faulty", "head", &[]).unwrap();
    let bad = registry.open("faulty", "decoder", &fault("device-kind")).unwrap();
    assert_eq!((good.name(), bad.name()), ("head", "decoder"));
    assert!(!good.same(&bad) && good.same(&good.clone()));
    assert_eq!(good.devices(None).unwrap()[0].name, "npu");
    assert!(matches!(bad.devices(None), Err(ShimError::Contract { .. })));
    // The shim allows eight instances.
    let six: Vec<_> =
        (0..6).map(|index| registry.open("faulty", &format!("i{index}"), &[]).unwrap()).collect();
    let ninth = registry.open("faulty", "ninth", &[]).unwrap_err();
    assert_eq!(ninth.class(), Some(ErrorClass::ResourceLimit), "{ninth}");
    assert!(ninth.to_string().contains("is in use by other instances"), "{ninth}");
    drop((six, good, bad));

    shims.manifest("faulty", "faulty", |manifest| manifest["exclusive"] = serde_json::json!(["test-dsp"]));
    let registry = shims.registry();
    let first = registry.open("faulty", "first", &[]).unwrap();
    let second = registry.open("faulty", "second", &[]).unwrap_err();
    assert_eq!(second.class(), Some(ErrorClass::ResourceLimit), "{second}");
    assert!(second.to_string().contains("is in use by instance `first`"), "{second}");
    drop(first);
    registry.open("faulty", "third", &[]).unwrap();
}

#[test]
fn a_linked_shim_needs_no_file() {
    let registry = ShimRegistry::builder()
        .linked("template", shardwright_shim_abi::export::entry::<Linked>)
        .linked("closed", closed)
        .build();
    assert_eq!(registry.shims()[0].name(), "linked");
    assert_eq!(registry.shims()[0].layout(), &LayoutCheck::Linked);
    assert!(registry.shims()[0].manifest().is_none());
    let hash = registry.shims()[0].library_hash().unwrap_err();
    assert_eq!(hash.place(), Some("<linked template>"));
    assert!(hash.to_string().contains("linked into this program"), "{hash}");
    assert_eq!(registry.skipped()[0].error.reason(), "refused");
    assert_eq!(registry.skipped()[0].path, Path::new("<linked closed>"));

    // A panic in a shim's entry function is reported as an error, and the process continues.
    let instance = registry.open("linked", "a", &[]).unwrap();
    match instance.devices(None) {
        Err(ShimError::Failed(failure)) => {
            assert_eq!(failure.message, "the shim panicked: no devices today");
            assert_eq!(failure.function, "devices");
            assert_eq!(failure.class, Some(ErrorClass::Internal));
            assert_eq!(failure.details, [("panic".to_owned(), "1".to_owned())]);
        }
        other => panic!("{other:?}"),
    }
    let options = [("threads".to_owned(), "2".to_owned())];
    match registry.open("linked", "b", &options) {
        Err(ShimError::Failed(failure)) => assert!(failure.message.contains("`threads`"), "{failure:?}"),
        other => panic!("{other:?}"),
    }
}

unsafe extern "C" fn closed(_host: *const SwHost, answer: *mut SwAnswer) {
    // SAFETY: the host's struct, complete by contract.
    let answer = unsafe { &mut *answer };
    answer.version_min = 1;
    answer.version_max = 1;
    answer.refusal = c"closed on Sundays".as_ptr();
}

struct Linked;

use shardwright_shim_abi as abi;

impl abi::Shim for Linked {
    fn describe() -> abi::Description {
        abi::Description {
            name: "linked".into(),
            vendor: "test".into(),
            version: "1".into(),
            ..Default::default()
        }
    }
    fn open(options: &abi::Options<'_>) -> abi::Result<Self> {
        options.only(&[])?;
        Ok(Linked)
    }
    fn devices(&self, _soc: Option<&str>) -> abi::Result<Vec<abi::Device>> {
        panic!("no devices today")
    }
    fn check(&self, _: &str, _: abi::EntryView<'_>) -> abi::Result<Vec<abi::Verdict>> {
        Ok(Vec::new())
    }
    fn compile(&self, _: &str, _: abi::WorkOrderView<'_>, _: &mut abi::CompileOutput<'_>) -> abi::Result<()> {
        Ok(())
    }
    fn compatibility(&self, _: &str, _: &[u8]) -> abi::Result<abi::Compatibility> {
        Ok(abi::Compatibility::Optimal)
    }
    fn load<'m>(
        &'m self,
        _: &str,
        _: abi::Artefact<'m>,
        _: &abi::Options<'_>,
    ) -> abi::Result<Box<dyn abi::LoadedShard + 'm>> {
        Err(abi::Error::internal("nothing to load"))
    }
}
