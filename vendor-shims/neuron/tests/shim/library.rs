//! The choice of the library, and libraries that lack functions.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use shardwright_shim_abi::raw::*;
use shardwright_shim_neuron::failure::{LibraryError, NeuronError};
use shardwright_shim_neuron::library::{Library, LibraryChoice};
use shardwright_shim_neuron::shim_entry;
use shardwright_shim_testing::{Builder, Host, TableEncoding, refused};

use crate::support::{Simulator, simulator};

/// Compiles C source to a library in a folder.
fn built(folder: &Path, name: &str, source: &str) -> PathBuf {
    let (code, library) = (folder.join(format!("{name}.c")), folder.join(format!("{name}.so")));
    std::fs::write(&code, source).expect("written");
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&code).status();
    assert!(made.expect("a C compiler").success());
    library
}

fn versioned(minor: u8) -> String {
    format!("int Neuron_getVersion(unsigned char *v) {{ v[0] = 8; v[1] = {minor}; v[2] = 0; return 0; }}")
}

/// Builds an entry of one operation.
fn gelu() -> &'static SwEntry {
    let mut entry = Builder::new("decode_1@1", SW_ENTRY_DECODE, 1, 1);
    let fixed = TableEncoding::integers(SW_DTYPE_I16, 0.001, 0);
    entry.encoding = fixed;
    let x = entry.input_as("x", SW_ROLE_HIDDEN, &[1, 8], fixed);
    let y = entry.unary(SW_OP_GELU, x, vec![]);
    entry.output("y", SW_ROLE_TAP, y);
    entry.build()
}

#[test]
fn the_first_place_of_the_rule_wins_and_every_step_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let beside = folder.path().join("beside");
    std::fs::create_dir(&beside).expect("made");
    let [first, second, third] =
        [1, 2, 3].map(|minor| built(folder.path(), &format!("v{minor}"), &versioned(minor)));
    std::fs::rename(built(&beside, "libneuron_adapter", &versioned(4)), beside.join("libneuron_adapter.so"))
        .expect("in its place");
    let name = |path: &Path| path.display().to_string();
    let names = vec!["libneuron-nowhere.so".to_owned(), name(&third), name(&second)];
    let minor = |choice: &LibraryChoice| Library::open(choice).map(|library| library.version().minor);
    let all = LibraryChoice {
        option: Some(first.clone()),
        variable: Some(second.clone()),
        stand_in: Some(first.clone()),
        beside: Some(beside.clone()),
        names: names.clone(),
    };
    assert_eq!(minor(&all), Ok(1));
    assert_eq!(minor(&LibraryChoice { option: None, ..all.clone() }), Ok(2));
    assert_eq!(minor(&LibraryChoice { option: Some(beside.clone()), ..all.clone() }), Ok(4), "a folder");
    let without = LibraryChoice { option: None, variable: None, ..all };
    assert_eq!(minor(&without), Ok(4), "a stand-in that is not a simulator is skipped");
    let by_name = LibraryChoice { names, ..LibraryChoice::default() };
    let library = Library::open(&by_name).expect("the second name opens");
    assert_eq!(library.version().minor, 3, "the first that opens, not the last");
    let steps = library.steps().join("\n");
    for part in ["option `library`: not set", "libneuron-nowhere.so", "later names are not tried", "8.3.0"] {
        assert!(steps.contains(part), "`{part}` not in `{steps}`");
    }
    assert_eq!(library.simulator(), None);
    let played = "const char *ShardwrightNeuronSimulator_describe(void) { return \"{}\"; }";
    let played = built(folder.path(), "played", &format!("{}\n{played}", versioned(5)));
    let names = vec![name(&played), name(&third)];
    let by_name = LibraryChoice { names, ..LibraryChoice::default() };
    let library = Library::open(&by_name).expect("the second name opens");
    assert_eq!(library.version().minor, 3, "a simulator is not come across");
    assert!(library.steps().join("\n").contains("only if it is named"), "{:?}", library.steps());
    let named = LibraryChoice { variable: Some(played.clone()), ..LibraryChoice::default() };
    assert!(Library::open(&named).expect("named").simulator().is_some());
    let stands_in = LibraryChoice { stand_in: Some(played), ..without };
    assert_eq!(minor(&stands_in), Ok(5), "before what lies beside the shim");
    assert_eq!(minor(&LibraryChoice { variable: Some(second), ..stands_in }), Ok(2));
}

#[test]
fn what_is_no_adapter_is_told_from_what_is_not_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = |path: PathBuf| {
        Library::open(&LibraryChoice { option: Some(path), ..LibraryChoice::default() }).map(drop)
    };
    assert!(matches!(
        open(built(folder.path(), "other", "int other;")),
        Err(NeuronError::NotAnAdapter { .. })
    ));
    let text = folder.path().join("text.so");
    std::fs::write(&text, "no library").expect("written");
    assert!(matches!(open(text), Err(NeuronError::Library(LibraryError::NotLoadable { .. }))));
    assert!(matches!(
        open(folder.path().join("nowhere.so")),
        Err(NeuronError::Library(LibraryError::NotFound { .. }))
    ));
    let failing = "int Neuron_getVersion(void *v) { (void)v; return 4; }";
    match open(built(folder.path(), "failing", failing)) {
        Err(NeuronError::Call(failure)) => {
            assert_eq!((failure.function, failure.code), ("Neuron_getVersion", 4))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_missing_function_is_named_when_it_is_needed_and_not_called() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = built(folder.path(), "bare", &versioned(2)).display().to_string();
    let host = Host::open(shim_entry(), "mt6991", &[("library", &library)]).expect("opened");
    crate::chips::make_known(&host, "mt6991");
    let devices = host.devices(Some("mt6991")).expect("reported");
    assert_eq!((devices.len(), devices[0].kind), (1, SW_DEVICE_OFFLINE), "it says nothing of a simulator");
    let compiled = host.compile(&[gelu()], &[]);
    let failure = refused(compiled, SW_ERROR_INVALID_ARGUMENT, "no function `NeuronModel_free`");
    assert_eq!(failure.detail("adapter-version"), Some("8.2.0"));
}

#[test]
fn a_simulator_is_told_by_what_it_says_and_plays_no_chip_itself() {
    let existing = Simulator::with(json!({}));
    let host = existing.host("mt6989.simulated", "lean");
    let devices = host.devices(Some("mt6989")).expect("reported");
    assert_eq!(devices.len(), 1);
    assert_eq!((devices[0].name.as_str(), devices[0].kind), ("mt6989.simulated", SW_DEVICE_SIMULATED));
    assert_eq!(host.devices(Some("sm8850")).expect("reported"), []);
    assert_eq!(host.devices(None).expect("reported"), []);
    let choice = LibraryChoice { option: Some(simulator()), ..LibraryChoice::default() };
    let library = Library::open(&choice).expect("the simulator");
    assert!(library.describe().contains("a simulator of adapter 8.2.28"), "{}", library.describe());
    refused(
        Host::open(shim_entry(), "mt6989", &[("lowering", "quick")]).map(drop),
        SW_ERROR_INVALID_ARGUMENT,
        "lean, plain",
    );
    refused(
        Host::open(shim_entry(), "mt6989", &[("colour", "red")]).map(drop),
        SW_ERROR_INVALID_ARGUMENT,
        "colour",
    );
    let (flags, limits) = host.told().expect("reported");
    assert!(flags.iter().any(|flag| flag == "opt"), "{flags:?}");
    assert!(limits.iter().any(|(name, value)| name == "l1-kilobytes" && *value > 0), "{limits:?}");
}

#[test]
fn facts_are_declared_and_a_chip_under_another_name_is_the_chip_of_its_platform() {
    let declared = Host::facts(shim_entry()).expect("reported");
    let required: Vec<&str> =
        declared.iter().filter(|(_, required)| *required).map(|(name, _)| name.as_str()).collect();
    assert_eq!((required, declared.len()), (vec!["platform"], 11));
    let existing = Simulator::with(json!({}));
    let host = existing.host("nobodys.simulated", "lean");
    for (facts, fact, says) in [
        (&[("platform", "Dimensity")][..], "platform", "`Dimensity`"),
        (&[("platform", "mt6989"), ("four-bits-per-channel", "maybe")], "four-bits-per-channel", "`maybe`"),
        (&[("platform", "mt6989"), ("l1-kilobytes", "much")], "l1-kilobytes", "number"),
    ] {
        let failure = refused(host.chip("nobodys", &[], facts), SW_ERROR_INVALID_ARGUMENT, says);
        assert_eq!((failure.detail("chip"), failure.detail("fact")), (Some("nobodys"), Some(fact)));
    }
    assert_eq!(host.devices(Some("nobodys")).expect("reported"), []);
    host.chip("nobodys", &[], &[("platform", "mt6991"), ("mdla-cores", "2")]).expect("a chip");
    let devices = host.devices(Some("nobodys")).expect("reported");
    assert_eq!(devices[0].name, "nobodys.simulated");
    let compiled = host.compile(&[gelu()], &[("num-mdla", "4")]).expect("compiled");
    assert_eq!(compiled.made_for, [("platform".to_owned(), "mt6991".to_owned())]);
    let (outcome, evidence) = compiled.flag("num-mdla");
    assert_eq!(outcome, SW_FLAG_REFUSED, "more cores than the profile says: {evidence}");
    host.load(&compiled.artefact, &[]).expect("loaded");
}
