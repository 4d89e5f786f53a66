//! `adapter_model.safetensors`: pairs of matrices by module, and tensors that replace others.

use std::collections::BTreeMap;
use std::path::Path;

use sha2::{Digest, Sha256};
use shardwright_vocabulary::{DType, Error, Result};

use super::config::{Biases, Config, dora};
use super::targets::{Module, is_named};
use super::values::Values;
use crate::safetensors;
use crate::weight_file::{Content, StoredTensor, WeightFile};

/// Name of an adapter's tensors in its folder.
pub(super) const WEIGHTS: &str = "adapter_model.safetensors";

/// Beginning of the names of tensors. The name of a module follows.
const PREFIX: &str = "base_model.model.";

/// Last parts of names of modules whose own weight PEFT saves next to their low-rank matrices.
const EMBEDDINGS: [&str; 2] = ["embed_tokens", "lm_head"];

/// The two matrices of a module's change, which is their product.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    /// Name of the first matrix in the file, for messages.
    pub name: String,
    pub a: Values,
    pub b: Values,
    /// Whether rows of the weight are read by token id. Its change is the transposed product.
    pub is_table: bool,
    pub rank: u64,
    /// The factor of the product.
    pub scaling: f64,
}

/// The tensors of an adapter.
pub(super) struct Tensors {
    /// SHA-256 of the file.
    pub sha256: [u8; 32],
    /// The pairs, by module.
    pub pairs: BTreeMap<String, Pair>,
    /// The tensors that replace others, by the name of the replaced tensor, each with its own name.
    pub whole: BTreeMap<String, (String, Values)>,
}

/// What a tensor of an adapter is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    A,
    B,
    TableA,
    TableB,
}

/// Ends of the names of low-rank matrices.
const ROLES: [(&str, Role); 4] = [
    (".lora_A.weight", Role::A),
    (".lora_B.weight", Role::B),
    (".lora_embedding_A", Role::TableA),
    (".lora_embedding_B", Role::TableB),
];

impl Tensors {
    /// Reads and checks the tensors in an adapter's folder. All values must be present and finite.
    pub fn read(folder: &Path, config: &Config) -> Result<Self> {
        let path = folder.join(WEIGHTS);
        let file = safetensors::open(&path).map_err(|error| {
            let help = "save the adapter as safetensors: `adapter_model.bin` and other formats are not read";
            if error.is_not_found() { error.with_help(help) } else { error }
        })?;
        let Some(bytes) = file.weights().map(|source| Sha256::digest(source.bytes())) else {
            return Err(Error::invalid("contains a header, but no values")
                .at(path.display())
                .with_help("download the whole file"));
        };
        let mut parts: BTreeMap<(String, bool), [Option<&StoredTensor>; 2]> = BTreeMap::new();
        let mut whole = BTreeMap::new();
        for tensor in &file.tensors {
            let name = module_name(&path, &tensor.name)?;
            match ROLES.iter().find_map(|(end, role)| Some((name.strip_suffix(end)?, *role))) {
                Some((module, role)) => {
                    let is_table = matches!(role, Role::TableA | Role::TableB);
                    let place = usize::from(matches!(role, Role::B | Role::TableB));
                    parts.entry((module.to_owned(), is_table)).or_default()[place] = Some(tensor);
                }
                None => {
                    let replaced = replaced(&path, tensor, name, config)?;
                    let values = values(&file, tensor)?;
                    if whole.insert(replaced.clone(), (tensor.name.clone(), values)).is_some() {
                        let what = format!("two tensors replace `{replaced}`");
                        return Err(Error::invalid(what).at(path.display()));
                    }
                }
            }
        }
        let mut pairs = BTreeMap::new();
        for ((module, is_table), found) in parts {
            let pair = pair(&file, &module, is_table, found, config)?;
            if pairs.insert(module.clone(), pair).is_some() {
                let what = format!("module `{module}` has matrices of a linear layer and of a table");
                return Err(Error::invalid(what).at(path.display()));
            }
        }
        if pairs.is_empty() && whole.is_empty() {
            return Err(Error::invalid("contains no tensors").at(path.display()));
        }
        Ok(Tensors { sha256: bytes.into(), pairs, whole })
    }

    /// Counts the tensors of a checkpoint that change. A tensor may be replaced, and then changed.
    pub fn changed(&self) -> usize {
        let replaced = |module: &&String| self.whole.contains_key(&format!("{module}.weight"));
        self.whole.len() + self.pairs.keys().filter(|module| !replaced(module)).count()
    }
}

/// Returns the part of a tensor's name from the module on.
fn module_name<'n>(path: &Path, name: &'n str) -> Result<&'n str> {
    if name.contains(".lora_magnitude_vector") {
        return Err(dora(path, &format!("tensor `{name}` is a magnitude")));
    }
    name.strip_prefix(PREFIX).ok_or_else(|| {
        unknown(path, name).with_help(format!("names must begin with `{PREFIX}`, as PEFT writes them"))
    })
}

fn unknown(path: &Path, name: &str) -> Error {
    Error::unsupported(format!("tensor `{name}` is not part of a supported adapter"))
        .at(path.display())
        .with_help(
            "supported: `lora_A.weight`, `lora_B.weight`, `lora_embedding_A` and `lora_embedding_B` of modules, biases, and the modules of `modules_to_save`",
        )
}

/// Returns the tensor that an adapter's tensor replaces. `name` is its name from the module on.
fn replaced(path: &Path, tensor: &StoredTensor, name: &str, config: &Config) -> Result<String> {
    let unknown = || unknown(path, &tensor.name);
    let (module, parameter) = name.rsplit_once('.').ok_or_else(unknown)?;
    let (module, is_wrapped) = match module.strip_suffix(".base_layer") {
        Some(module) => (module, true),
        None => (module, false),
    };
    let is_embedding = EMBEDDINGS.iter().any(|name| is_named(module, name));
    let is_expected = match parameter {
        "bias" => config.biases == Biases::Replaced || config.is_saved(module),
        "weight" => is_embedding || (!is_wrapped && config.is_saved(module)),
        _ => false,
    };
    if name.contains("lora_") || !is_expected {
        return Err(unknown());
    }
    Ok(format!("{module}.{parameter}"))
}

/// Checks the matrices of a module.
fn pair(
    file: &WeightFile,
    module: &str,
    is_table: bool,
    found: [Option<&StoredTensor>; 2],
    config: &Config,
) -> Result<Pair> {
    let path = &file.path;
    let (a, b) = match found {
        [Some(a), Some(b)] => (a, b),
        [Some(one), None] | [None, Some(one)] => {
            let what = format!("tensor `{}` has no counterpart: a change needs two matrices", one.name);
            return Err(Error::invalid(what).at(path.display()));
        }
        [None, None] => return Err(Error::internal("a module without tensors")),
    };
    if !config.targets.contain(&config.path, &Module { name: module, is_table })? {
        let what = format!("tensor `{}` changes module `{module}`, which the settings do not target", a.name);
        return Err(Error::invalid(what).at(path.display()).with_help(
            "adapter_config.json and adapter_model.safetensors may belong to different adapters",
        ));
    }
    let rank = config.rank(module)?;
    let stored =
        [a.shape.first().filter(|_| a.shape.len() == 2), b.shape.get(1).filter(|_| b.shape.len() == 2)];
    if stored != [Some(&rank); 2] {
        let what = format!(
            "tensors `{}` and `{}` have the shapes {:?} and {:?}, but the settings imply matrices of rank {rank}",
            a.name, b.name, a.shape, b.shape
        );
        return Err(Error::invalid(what).at(path.display()).with_help(
            "convolutions are not supported; for linear layers, the two files may belong to different adapters",
        ));
    }
    Ok(Pair {
        name: a.name.clone(),
        a: values(file, a)?,
        b: values(file, b)?,
        is_table,
        rank,
        scaling: config.scaling(module)?,
    })
}

/// Returns the values of a tensor, which must be finite floats.
fn values(file: &WeightFile, tensor: &StoredTensor) -> Result<Values> {
    let at = |error: Error| error.at(format_args!("tensor `{}`", tensor.name)).at(file.path.display());
    let Content::Float(dtype @ (DType::F32 | DType::F16 | DType::Bf16)) = tensor.dtype.content else {
        let what = format!("stored as {}", tensor.dtype.name);
        return Err(at(Error::unsupported(what).with_help("save the adapter in f32, f16 or bf16")));
    };
    let values = Values::new(file, tensor, dtype)?;
    match values.first_not_finite() {
        None => Ok(values),
        Some((index, value)) => {
            let what = format!("expected a finite value, got {value} at {index}");
            Err(at(Error::invalid(what).with_help("the adapter is damaged, or its training failed")))
        }
    }
}
