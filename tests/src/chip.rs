//! A chip that can fail: the shim of `tests/shims/chip.c`, which is the CPU under another name,
//! with a profile and instructions to fail.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use shardwright::SearchPath;
use tempfile::TempDir;

use crate::program::{self, Run};
use crate::tree;

/// Name of the chip, its profile and its shim.
pub const CHIP: &str = "testchip";

/// Folders with the chip's shim and its profile, deleted on drop. Each chip has its own copy of the
/// library, because the library counts its runs.
#[derive(Debug)]
pub struct TestChip {
    name: String,
    folder: TempDir,
}

impl TestChip {
    /// Builds the shim of a working chip.
    ///
    /// # Panics
    /// If there is no C compiler, or the shim does not build.
    pub fn new() -> Self {
        Self::named(CHIP, &serde_json::json!({}))
    }

    /// Builds the shim of a working chip. The chip, its profile and its shim are called `name`.
    /// `profile` contains further fields of the profile.
    ///
    /// # Panics
    /// As [`TestChip::new`].
    pub fn named(name: &str, profile: &serde_json::Value) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let chip = Self { name: name.to_owned(), folder };
        for made in [chip.shims(), chip.profiles()] {
            fs::create_dir(made).expect("made");
        }
        let library =
            format!("{}shardwright_shim_cpu{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
        let text = |name: &str, value: &str| format!("-D{name}=\"{value}\"");
        let cpu = program::folder().join("shims").join(library);
        let output = Command::new("cc")
            .args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"])
            .args(["-fvisibility=hidden", "-I"])
            .arg(tree::root().join("vendor-shims/abi/include"))
            .arg("-I")
            .arg(tree::root().join("tests/shims"))
            .args([text("NAME", name), text("CPU_SHIM", &cpu.display().to_string())])
            .arg(text("ORDERS", &chip.orders().display().to_string()))
            .arg(tree::root().join("tests/shims/chip.c"))
            .arg("-o")
            .arg(chip.shims().join("chip.so"))
            .args(["-ldl", "-lm"])
            .output()
            .expect("a C compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let manifest = serde_json::json!({
            "manifest": 1, "name": name, "vendor": "test", "abi": {"min": "0.1", "max": "0.1"}, "library": "chip.so",
        });
        fs::write(chip.shims().join("chip.shim.json"), manifest.to_string()).expect("written");
        let mut whole = serde_json::json!({
            "schema": 1, "name": name, "title": "A chip to lose", "vendor": "test", "shim": name, "kind": "npu",
            "overheads": [{
                "name": "call-microseconds", "value": 0, "provenance": "measured", "note": "the chip is this CPU",
            }],
        });
        let fields = profile.as_object().expect("fields of a profile");
        whole.as_object_mut().expect("a profile").extend(fields.clone());
        fs::write(chip.profiles().join(format!("{name}.json")), whole.to_string()).expect("written");
        chip
    }

    /// Builds the shim of a chip that fails in a run. `how` is `abort`, `overrun` (writes behind a
    /// buffer), `hang` or `lost` (reports the loss and continues). `run` counts from 1 for each
    /// opened instance.
    ///
    /// # Panics
    /// As [`TestChip::new`].
    pub fn that_dies(how: &str, run: u32) -> Self {
        let chip = Self::new();
        chip.fails_in(how, run);
        chip
    }

    /// Sets the failure of instances opened from now on.
    ///
    /// # Panics
    /// If the file of orders cannot be written.
    pub fn fails_in(&self, how: &str, run: u32) {
        fs::write(self.orders(), format!("{how} {run}\n")).expect("written");
    }

    /// Sets the behaviour of instances opened from now on:
    ///
    /// * `broken`: the library is missing
    /// * `offline`: the chip is only compiled for and simulated here
    /// * `sibling`: another chip of the same architecture
    /// * `estimates`: a chip that estimates
    /// * `recompile`, `unsupported`, `not-mine`: the answer to every artefact
    /// * `slip`: compiles with a node that falls back to the CPU
    /// * `no-tangent`: no support for hyperbolic tangents
    /// * `gaps`: also no support for transposition and GELU
    ///
    /// # Panics
    /// As [`TestChip::fails_in`].
    pub fn behaves_as(&self, answer: &str) {
        self.fails_in(answer, 0);
    }

    /// Makes instances opened from now on slow for large shards. They estimate by operations alone,
    /// and a run of a shard with more than `bytes` bytes takes 20 ms.
    ///
    /// # Panics
    /// As [`TestChip::fails_in`].
    pub fn is_slow_above(&self, bytes: u32) {
        self.fails_in("heavy", bytes);
    }

    /// Sets the faults of the chip from now on, one fault per line, in the format of
    /// `tests/shims/faults.h`.
    ///
    /// # Panics
    /// As [`TestChip::fails_in`].
    pub fn has_faults(&self, faults: &[&str]) {
        fs::write(self.folder.path().join("orders.faults"), faults.join("\n")).expect("written");
    }

    /// Returns the estimates requested so far, if the chip is set to `estimates`: device and entry
    /// point of each.
    ///
    /// # Panics
    /// If the notes cannot be read.
    pub fn estimated(&self) -> Vec<String> {
        let notes = self.folder.path().join("orders.asked");
        match fs::read_to_string(notes) {
            Ok(text) => text.lines().map(str::to_owned).collect(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns the folder of the chip's shim.
    pub fn shims(&self) -> PathBuf {
        self.folder.path().join("shims")
    }

    fn profiles(&self) -> PathBuf {
        self.folder.path().join("profiles")
    }

    fn orders(&self) -> PathBuf {
        self.folder.path().join("orders")
    }

    /// Returns a search path for the program's library with the chip and the usual folders.
    pub fn search_path(&self) -> SearchPath {
        let mut path = program::search_path();
        path.shims.insert(0, self.shims());
        path.profiles.insert(0, self.profiles());
        path
    }

    /// Adds the options with which a command finds the chip.
    pub fn found_by(&self, run: Run) -> Run {
        run.argument("--shims").argument(self.shims()).argument("--profiles").argument(self.profiles())
    }

    /// Adds the options with which a command plans for the chip.
    pub fn planned_by(&self, run: Run) -> Run {
        self.found_by(run).arguments(["--soc", &self.name])
    }
}

impl Default for TestChip {
    fn default() -> Self {
        Self::new()
    }
}
