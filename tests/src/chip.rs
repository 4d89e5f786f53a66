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

/// A folder with the chip's shim and another with its profile, gone when dropped. Each has its own
/// copy of the library, so that the runs of one are not counted for another.
#[derive(Debug)]
pub struct Chip {
    name: String,
    folder: TempDir,
}

impl Chip {
    /// A working chip.
    ///
    /// # Panics
    /// If there is no C compiler, or the shim does not build.
    pub fn new() -> Self {
        Self::named(CHIP, &serde_json::json!({}))
    }

    /// A working chip of another name, which its profile and its shim have too; `profile` has
    /// further fields of the profile.
    ///
    /// # Panics
    /// As [`Chip::new`].
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
        });
        let fields = profile.as_object().expect("fields of a profile");
        whole.as_object_mut().expect("a profile").extend(fields.clone());
        fs::write(chip.profiles().join(format!("{name}.json")), whole.to_string()).expect("written");
        chip
    }

    /// A chip that fails in a run: `how` is `abort`, `overrun` (writes behind a buffer), `hang` or
    /// `lost` (reports the loss and lives on), `run` counts from when an instance is opened, from
    /// 1.
    ///
    /// # Panics
    /// As [`Chip::new`].
    pub fn that_dies(how: &str, run: u32) -> Self {
        let chip = Self::new();
        chip.fails_in(how, run);
        chip
    }

    /// Sets the failure of instances that are opened from now on.
    ///
    /// # Panics
    /// If they cannot be written.
    pub fn fails_in(&self, how: &str, run: u32) {
        fs::write(self.orders(), format!("{how} {run}\n")).expect("written");
    }

    /// Sets the behaviour of instances that are opened from now on: a chip whose library is missing
    /// (`broken`), one that is only compiled for and simulated here (`offline`), another of the
    /// same architecture (`sibling`), or one that estimates (`estimates`); an answer to every
    /// artefact of `recompile`, `unsupported` or `not-mine`; compiling with a node that falls back
    /// to the CPU (`slip`); or no support for hyperbolic tangents (`no-tangent`), nor for
    /// transposition and GELU (`gaps`).
    ///
    /// # Panics
    /// As [`Chip::fails_in`].
    pub fn behaves_as(&self, answer: &str) {
        self.fails_in(answer, 0);
    }

    /// Sets the behaviour of instances that are opened from now on: one that estimates by
    /// operations alone, and takes 20 ms for a run of a shard with more than so many bytes.
    ///
    /// # Panics
    /// As [`Chip::fails_in`].
    pub fn is_slow_above(&self, bytes: u32) {
        self.fails_in("heavy", bytes);
    }

    /// Sets what it computes wrongly from now on, or fails in: one fault a line, as
    /// `tests/shims/faults.h` has them.
    ///
    /// # Panics
    /// As [`Chip::fails_in`].
    pub fn has_faults(&self, faults: &[&str]) {
        fs::write(self.folder.path().join("orders.faults"), faults.join("\n")).expect("written");
    }

    /// The estimates requested so far, if set to `estimates`: device and entry point of each.
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

    /// The folder of its shim.
    pub fn shims(&self) -> PathBuf {
        self.folder.path().join("shims")
    }

    fn profiles(&self) -> PathBuf {
        self.folder.path().join("profiles")
    }

    fn orders(&self) -> PathBuf {
        self.folder.path().join("orders")
    }

    /// Search path of the program's library for it, besides the usual ones.
    pub fn search_path(&self) -> SearchPath {
        let mut path = program::search_path();
        path.shims.insert(0, self.shims());
        path.profiles.insert(0, self.profiles());
        path
    }

    /// A command that finds it.
    pub fn found_by(&self, run: Run) -> Run {
        run.argument("--shims").argument(self.shims()).argument("--profiles").argument(self.profiles())
    }

    /// A command that plans for it.
    pub fn planned_by(&self, run: Run) -> Run {
        self.found_by(run).arguments(["--soc", &self.name])
    }
}

impl Default for Chip {
    fn default() -> Self {
        Self::new()
    }
}
