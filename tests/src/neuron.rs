//! Checkpoints on the MediaTek shim with the simulator of its library, compared with the
//! reference's numbers.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use shardwright::{Executor, FormatChoice, OpenOptions, SearchPath};
use shardwright_verify::{VerifyOptions, VerifyReport};
use tempfile::TempDir;

use crate::formats::{Effort, Recorded};
use crate::qnn::{COSINE, ROW_P95, ROW_WORST};
use crate::{program, tree};

/// Formats with 16-bit activations without a zero point and 8-bit weights.
pub const A16W8: &str = "w8-per-channel/a16-symmetric/a16";

/// A folder with the shim and a manifest that names the simulator and the lowering, deleted on
/// drop.
#[derive(Debug)]
pub struct Shim {
    folder: TempDir,
}

impl Shim {
    /// Copies the built shim and writes a manifest with this lowering.
    ///
    /// # Panics
    /// If the shim or the simulator was not built.
    pub fn with(lowering: &str) -> Shim {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let name =
            |stem: &str| format!("{}{stem}{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
        let library = name("shardwright_shim_neuron");
        let built = program::folder().join("shims").join(&library);
        fs::copy(&built, folder.path().join(&library))
            .unwrap_or_else(|error| panic!("{}: {error}; `cargo xtask build` builds it", built.display()));
        let simulator = program::folder().join(name("neuron_adapter"));
        assert!(simulator.is_file(), "{}: `cargo xtask build` builds it", simulator.display());
        let manifest = json!({
            "manifest": 1,
            "name": "neuron",
            "vendor": "MediaTek",
            "abi": { "min": "0.1", "max": "0.1" },
            "library": library,
            "options": { "library": simulator, "lowering": lowering },
        });
        let beside = folder.path().join(name("shardwright_shim_neuron")).with_extension("shim.json");
        fs::write(beside, manifest.to_string()).expect("written");
        Shim { folder }
    }

    pub fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    fn search_path(&self) -> SearchPath {
        let mut path = program::search_path();
        path.shims.insert(0, self.folder());
        path
    }
}

/// A checkpoint for a chip, with its decoder cut into pieces.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Folder of the checkpoint, relative to the root.
    pub checkpoint: &'static str,
    /// Number of decoder shards.
    pub pieces: u32,
    /// The shim's lowering of entry points.
    pub lowering: &'static str,
    /// Name of the chip's profile.
    pub soc: &'static str,
    /// Positions of the context. `None` uses the context of the checkpoint.
    pub context: Option<u32>,
}

impl Case {
    /// Returns the case with the fields of a table row.
    pub fn table_case(&self) -> crate::qnn::Case {
        crate::qnn::Case {
            checkpoint: self.checkpoint,
            formats: A16W8,
            pieces: self.pieces,
            soc: self.soc,
            context: self.context,
        }
    }

    /// Returns options to open the case with a shim in its lowering.
    ///
    /// # Panics
    /// If the formats are invalid.
    pub fn options(&self, shim: &Shim, cache: &Path) -> OpenOptions {
        let choice: FormatChoice = A16W8.parse().expect("formats");
        let open = match self.context {
            Some(tokens) => OpenOptions::new().context(tokens),
            None => OpenOptions::new(),
        };
        open.search_path(shim.search_path())
            .cache_directory(cache)
            .soc(self.soc)
            .on(Executor::Simulator)
            .planner("even")
            .planner_option("pieces", self.pieces.to_string())
            .strict(true)
            .formats(choice)
    }

    /// Compares every shard alone with the reference, and the whole chain with recorded outputs, on
    /// the simulator.
    ///
    /// # Panics
    /// If it cannot be run, or the plan differs from the case.
    pub fn verify(&self, recorded: Option<&Recorded>, effort: Effort, cache: &Path) -> VerifyReport {
        let shim = Shim::with(self.lowering);
        let open = self.options(&shim, cache);
        let checkpoint = tree::root().join(self.checkpoint);
        let goldens = recorded.map_or(checkpoint.clone(), Recorded::folder);
        let options = VerifyOptions::new()
            .all()
            .rows(effort.rows)
            .steps(effort.steps)
            .greedy(effort.greedy)
            .threshold("row-p95", ROW_P95)
            .threshold("row-worst", ROW_WORST)
            .threshold("cosine", COSINE);
        let report = shardwright_verify::verify(&checkpoint, Some(&goldens), &open, &options, &mut ());
        let report = report.unwrap_or_else(|error| panic!("{self:?}: {error} ({:?})", error.help()));
        assert_eq!(report.decoder_shards, self.pieces as usize, "{self:?}");
        assert_eq!(report.emulated_on, None, "{self:?}");
        report
    }
}
