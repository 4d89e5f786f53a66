//! LoRA adapters in PEFT layout, merged into the weights of a checkpoint.
//!
//! A folder has `adapter_config.json` and `adapter_model.safetensors`. Each pair of matrices
//! changes the weight of a linear layer or a table by their product. Some tensors replace others.
//!
//! Everything that reads weights gets the merged ones, because the store of tensors applies
//! the changes when a tensor becomes a weight. Values are computed when they are read.
//!
//! Source: `src/peft/tuners/lora` and `src/peft/utils/save_and_load.py` of PEFT.

mod changes;
mod config;
mod folder;
mod merge;
mod targets;
mod tensors;
mod values;

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use shardwright_vocabulary::{Error, ErrorKind, Ignored, Lora, LoraScale, Result};

pub(crate) use changes::Changes;
use config::Config;
use targets::is_named;
use tensors::{Tensors, WEIGHTS};

use crate::limits;
use crate::source::name_of;

/// An adapter that was merged into a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// Name of its folder.
    pub name: String,
    /// Factor of its changes, in addition to the scaling of its settings.
    pub scale: LoraScale,
    /// SHA-256 of `adapter_config.json`.
    pub config: [u8; 32],
    /// SHA-256 of `adapter_model.safetensors`.
    pub weights: [u8; 32],
    /// Number of tensors of the checkpoint that it changes.
    pub tensors: usize,
}

impl Adapter {
    /// Adds everything to a hash that decides about the merged weights.
    pub(crate) fn add_to(&self, digest: &mut Sha256) {
        digest.update(b"lora");
        digest.update(self.scale.get().to_bits().to_le_bytes());
        digest.update(self.config);
        digest.update(self.weights);
    }
}

/// Adapters that were read and checked, in the order in which they are merged.
pub(crate) struct Adapters(Vec<Opened>);

struct Opened {
    folder: PathBuf,
    scale: LoraScale,
    config: Config,
    tensors: Tensors,
}

impl Opened {
    fn open(lora: &Lora) -> Result<Self> {
        let Lora { folder, scale } = lora;
        if folder.is_file() {
            let what = format!("{} is a file, not the folder of an adapter", folder.display());
            return Err(Error::new(ErrorKind::Argument, what)
                .with_help("name the folder with adapter_config.json and adapter_model.safetensors"));
        }
        let config = Config::read(folder)?;
        let tensors = Tensors::read(folder, &config)?;
        Ok(Opened { folder: folder.clone(), scale: *scale, config, tensors })
    }

    fn weights(&self) -> PathBuf {
        self.folder.join(WEIGHTS)
    }

    /// Returns the settings and files that have no effect on a checkpoint of this name in `folder`.
    fn ignored(&self, checkpoint: &str, folder: &Path) -> Vec<Ignored> {
        let path = &self.config.path;
        let mut found = self.config.ignored.clone();
        if let Some(base) = &self.config.base {
            let last = base.trim_end_matches(['/', '\\']).rsplit(['/', '\\']).next().unwrap_or(base);
            if !last.eq_ignore_ascii_case(checkpoint) {
                let reason =
                    format!("the adapter was trained on `{base}`, and the checkpoint is `{checkpoint}`");
                found.push(Ignored::field(path, "base_model_name_or_path", reason));
            }
        }
        let unmatched = |name: &&String| !self.tensors.pairs.keys().any(|module| is_named(module, name));
        for name in self.config.listed_targets().iter().filter(unmatched) {
            let reason = format!("the adapter has no tensors of `{name}`");
            found.push(Ignored::field(path, "target_modules", reason));
        }
        for name in &self.config.saved {
            let has =
                |tensor: &String| tensor.rsplit_once('.').is_some_and(|(module, _)| contains(module, name));
            if !self.tensors.whole.keys().any(has) {
                let reason = format!("the adapter has no tensors of `{name}`");
                found.push(Ignored::field(path, "modules_to_save", reason));
            }
        }
        found.extend(folder::ignored(&self.folder, folder));
        found
    }
}

/// Checks whether a module, or one that contains it, has a name that ends with `name`.
fn contains(module: &str, name: &str) -> bool {
    module.ends_with(name) || module.contains(&format!("{name}."))
}

impl Adapters {
    /// Reads and checks adapters.
    pub fn open(adapters: &[Lora]) -> Result<Self> {
        if adapters.len() > limits::LORA_ADAPTERS {
            let what = format!("{} adapters, more than {}", adapters.len(), limits::LORA_ADAPTERS);
            return Err(Error::new(ErrorKind::Argument, what).with_help("merge some of them into one"));
        }
        adapters.iter().map(Opened::open).collect::<Result<_>>().map(Adapters)
    }

    /// Returns the settings and files that have no effect on a checkpoint of this name in `folder`.
    pub fn ignored(&self, checkpoint: &str, folder: &Path) -> Vec<Ignored> {
        self.0.iter().flat_map(|adapter| adapter.ignored(checkpoint, folder)).collect()
    }

    /// Describes the adapters.
    pub fn described(&self) -> Vec<Adapter> {
        let describe = |adapter: &Opened| Adapter {
            name: name_of(&adapter.folder),
            scale: adapter.scale,
            config: adapter.config.sha256,
            weights: adapter.tensors.sha256,
            tensors: adapter.tensors.changed(),
        };
        self.0.iter().map(describe).collect()
    }
}
