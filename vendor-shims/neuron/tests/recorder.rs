//! Tests the run side, call by call. No published client for x86-64 exercises it. So it is checked
//! against rules that were read from two clients published for phones. A library without
//! computation records every call and ends the process if a rule is broken. Each record comes from
//! a separate process.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use shardwright_shim_abi::Buffer;
use shardwright_shim_abi::raw::*;
use shardwright_shim_neuron::artefact::Artefact;
use shardwright_shim_neuron::library::{Library, LibraryChoice};
use shardwright_shim_neuron::session::{Execution, Network, SharedHandle};
use shardwright_shim_neuron::{SharedBuffer, shim_entry};
use shardwright_shim_testing::{Builder, Host, Region, TableEncoding, Weight, values};

const DEVICE: &str = "mt6989.simulated";
const ENTRIES: [(&str, u64); 2] = [("decode_1@4", 1), ("decode_4@4", 4)];
/// Variable that names the case to run in a child process.
const CASE: &str = "SHARDWRIGHT_NEURON_RECORDER_CASE";

/// Returns the recorder's file: from the variable, or next to this program.
fn recorder() -> PathBuf {
    if let Some(path) = std::env::var_os("SHARDWRIGHT_NEURON_RECORDER_LIB").filter(|path| !path.is_empty()) {
        return PathBuf::from(path);
    }
    let program = std::env::current_exe().expect("a program");
    let folders = program.ancestors().skip(1).take(2);
    let found =
        folders.map(|folder| folder.join("libshardwright_neuron_recorder.so")).find(|file| file.is_file());
    found.expect("the recorder: `cargo build -p shardwright-neuron-recorder` builds it")
}

fn fixed() -> TableEncoding {
    TableEncoding::integers(SW_DTYPE_I16, 0.001, 0)
}

/// Builds two entry points of one small graph with one input and two outputs.
fn entries() -> Vec<&'static SwEntry> {
    let entry = |(name, rows): (&str, u64)| {
        let mut b = Builder::new(name, SW_ENTRY_DECODE, rows, 4);
        b.encoding = fixed();
        let x = b.input_as("hidden", SW_ROLE_HIDDEN, &[rows, 24], fixed());
        let w = Weight::matrix("w", [24, 24], &values(24 * 24, 3, 0.2), 8);
        let y = b.linear(x, &w);
        let z = b.binary(SW_OP_ADD, x, y);
        b.output("out", SW_ROLE_TAP, y);
        b.output("sum", SW_ROLE_TAP, z);
        b.build()
    };
    ENTRIES.into_iter().map(entry).collect()
}

fn host() -> Host {
    let library = recorder().display().to_string();
    let host = Host::open(shim_entry(), DEVICE, &[("library", library.as_str())]).expect("an instance");
    host.chip("mt6989", &[], &[("platform", "mt6989")]).expect("a chip");
    host
}

/// Compiles and loads the entries, runs each twice, and frees everything.
fn run_all(options: &[(&str, &str)]) {
    let host = host();
    let compiled = host.compile(&entries(), &[]).expect("compiled");
    let mut loaded = host.load(&compiled.artefact, options).expect("loaded");
    for (name, rows) in ENTRIES {
        for valid in [rows, 1] {
            let input = Region::new(&vec![1; rows as usize * 24 * 2]);
            let mut bound = HashMap::from([("hidden".to_owned(), input)]);
            loaded.run(name, valid as usize, &mut bound).expect("it runs");
            assert!(bound["out"].bytes().iter().all(|byte| *byte == 0), "every byte of an output is written");
        }
    }
}

/// Imports a file, binds an input and outputs to it, runs, binds others, and frees everything in
/// an unusual order.
fn share_memory() {
    let compiled = host().compile(&entries()[..1], &[]).expect("compiled");
    let artefact = Artefact::read(compiled.artefact.bytes()).expect("an artefact");
    let blob = artefact.blob(&artefact.descriptor.entries[0]).expect("a network");
    let choice = LibraryChoice { option: Some(recorder()), ..LibraryChoice::default() };
    let library = Library::open(&choice).expect("the recorder");
    let network = Network::restore(&library, blob).expect("restored");
    let mut execution = Execution::new(network, 1, 2, 100).expect("an execution");

    let file = tempfile::tempfile().expect("a file");
    file.set_len(8192).expect("longer");
    let fd = OwnedFd::from(file);
    // An import as a host makes it, aligned for the hardware, and memory at other offsets.
    let buffer = SharedBuffer::import(&library, fd.as_raw_fd(), 0, 4096).expect("imported");
    assert!((buffer.pointer() as usize).is_multiple_of(64));
    let (first, second) = (shared(&library, &fd, 64, 4096), shared(&library, &fd, 4160, 1024));
    execution.input_from(0, &first, 0, 48).expect("bound");
    execution.output_from(0, &first, 64, 48).expect("bound");
    execution.output_from(1, &second, 128, 48).expect("bound");
    // SAFETY: everything is bound to memory that lives.
    unsafe { execution.compute() }.expect("it runs");
    // Binds other memory, so that the second memory is unused.
    execution.output_from(1, &first, 128, 48).expect("bound");
    drop(second);
    // SAFETY: as above.
    unsafe { execution.compute() }.expect("it runs again");
    assert!(execution.input_from(0, &first, 32, 48).is_err(), "misaligned");
    assert!(execution.input_from(0, &first, 4096, 48).is_err(), "beyond the end");
    // This side drops it first, but the execution still keeps it.
    drop(first);
    // SAFETY: as above.
    unsafe { execution.compute() }.expect("it runs a third time");
    drop(execution);
    drop(buffer);
}

fn shared(library: &Arc<Library>, fd: &OwnedFd, offset: u64, length: usize) -> Arc<SharedHandle> {
    Arc::new(SharedHandle::from_fd(library, fd.as_raw_fd(), offset, length).expect("shared"))
}

/// Not a test: the process that the others start.
#[test]
fn the_child() {
    match std::env::var(CASE).as_deref() {
        Ok("run") => run_all(&[]),
        Ok("saver") => run_all(&[("power", "saver")]),
        Ok("memory") => share_memory(),
        _ => {}
    }
}

/// Returns the calls of a child process.
fn record(case: &str, padding: u32) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("record");
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "the_child", "--nocapture"])
        .env(CASE, case)
        .env("SHARDWRIGHT_NEURON_RECORDER", &file)
        .env("SHARDWRIGHT_NEURON_RECORDER_PADDING", padding.to_string())
        .output()
        .expect("it runs");
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !text.contains("VIOLATION"), "{errors}\n{text}");
    text.lines().map(str::to_owned).collect()
}

/// Returns the name of the call in a line.
fn call(line: &str) -> &str {
    line.split(' ').next().unwrap_or_default()
}

/// Returns the number after `name=` in a line.
fn number(line: &str, name: &str) -> u64 {
    let mut words = line.split(' ').filter_map(|word| word.split_once('='));
    let found = words.find(|(known, _)| *known == name);
    found.and_then(|(_, value)| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in `{line}`"))
}

/// Groups the calls of every restored network by the number of its compilation.
fn restored(lines: &[String]) -> BTreeMap<u64, Vec<&str>> {
    let mut networks: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    let (mut executions, mut models) = (BTreeMap::new(), BTreeMap::new());
    let run = lines.iter().skip_while(|line| call(line) != "NeuronModel_restoreFromCompiledNetwork");
    for line in run {
        let network = match call(line) {
            "Neuron_getVersion" | "Neuron_getL1MemorySizeKb" => continue,
            name if name.starts_with("NeuronMemory") => continue,
            "NeuronModel_restoreFromCompiledNetwork" => {
                models.insert(number(line, "model"), number(line, "compilation"));
                number(line, "compilation")
            }
            "NeuronExecution_create" => {
                executions.insert(number(line, "execution"), number(line, "compilation"));
                number(line, "compilation")
            }
            name if name.starts_with("NeuronExecution") => executions[&number(line, "execution")],
            name if name.starts_with("NeuronCompilation") => number(line, "compilation"),
            "NeuronModel_free" => models[&number(line, "model")],
            other => panic!("{other} has no place in a run: {line}"),
        };
        networks.entry(network).or_default().push(line);
    }
    networks
}

/// The order is the same as in the dispatcher on phones. A network is restored as a whole, and the
/// padded size and dimensions of every input and output are queried. One execution serves all runs
/// at full boost, and all memory is bound before each run. The objects are freed in the order
/// execution, compilation, model.
#[test]
fn a_network_is_restored_run_and_freed_in_the_order_of_the_known_clients() {
    for padding in [1, 32] {
        let lines = record("run", padding);
        let networks = restored(&lines);
        assert_eq!(networks.len(), ENTRIES.len(), "{lines:#?}");
        for calls in networks.values() {
            let names: Vec<&str> = calls.iter().map(|line| call(line)).collect();
            let bound =
                ["NeuronExecution_setInput", "NeuronExecution_setOutput", "NeuronExecution_setOutput"];
            let run = [&bound[..], &["NeuronExecution_compute"]].concat();
            let wanted = [
                &["NeuronModel_restoreFromCompiledNetwork"][..],
                &["NeuronCompilation_getInputPaddedSize", "NeuronCompilation_getInputPaddedDimensions"],
                &["NeuronCompilation_getOutputPaddedSize", "NeuronCompilation_getOutputPaddedDimensions"],
                &["NeuronCompilation_getOutputPaddedSize", "NeuronCompilation_getOutputPaddedDimensions"],
                &["NeuronExecution_create", "NeuronExecution_setBoostHint"],
                &run,
                &run,
                &["NeuronExecution_free", "NeuronCompilation_free", "NeuronModel_free"],
            ]
            .concat();
            assert_eq!(names, wanted, "{calls:#?}");
            let boost = calls.iter().find(|line| call(line) == "NeuronExecution_setBoostHint").expect("set");
            assert_eq!(number(boost, "boost"), 100);
            // Inputs are bound with the padded length, not the plain one.
            let size = number(calls[1], "bytes");
            let inputs = calls.iter().filter(|line| call(line) == "NeuronExecution_setInput");
            assert!(inputs.clone().all(|line| number(line, "length") == size), "{calls:#?}");
            assert!(size.is_multiple_of(u64::from(padding) * 2), "{calls:#?}");
        }
    }
}

#[test]
fn a_session_that_saves_power_asks_for_less_boost() {
    let lines = record("saver", 1);
    let boosts = lines.iter().filter(|line| call(line) == "NeuronExecution_setBoostHint");
    let boosts: Vec<u64> = boosts.map(|line| number(line, "boost")).collect();
    assert_eq!(boosts, [20; ENTRIES.len()]);
}

/// Memory shared by application and hardware is registered once, bound by an unsigned index and an
/// offset, and freed once after its last use.
#[test]
fn shared_memory_is_made_known_bound_and_freed() {
    let lines = record("memory", 1);
    let places = |name: &str| -> Vec<usize> {
        let numbered = lines.iter().enumerate().filter(|(_, line)| call(line) == name);
        numbered.map(|(place, _)| place).collect()
    };
    let (made, freed) = (places("NeuronMemory_createFromFd"), places("NeuronMemory_free"));
    assert_eq!((made.len(), freed.len()), (3, 3), "{lines:#?}");
    assert!(made.iter().all(|place| number(&lines[*place], "protection") == 3), "{lines:#?}");
    let offsets: Vec<u64> = made.iter().map(|place| number(&lines[*place], "offset")).collect();
    assert_eq!(offsets, [0, 64, 4160]);
    assert_eq!(places("NeuronExecution_setInputFromMemory").len(), 1);
    assert_eq!(places("NeuronExecution_setOutputFromMemory").len(), 3);
    assert_eq!(places("NeuronExecution_compute").len(), 3);
    // Memory bound to an execution outlives it. Memory that is no longer bound is freed at once.
    let execution = places("NeuronExecution_free");
    let before = freed.iter().filter(|place| **place < execution[0]).count();
    assert_eq!((before, execution.len()), (1, 1), "{lines:#?}");
}
