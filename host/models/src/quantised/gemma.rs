//! Google's mobile checkpoints (`quant_method` `gemma`): 2, 4 or 8 bits, one scale for each output.
//!
//! Layout, as transformers reads it, for N outputs and K inputs:
//!
//! * `weight [N, K]` of signed bytes, or `weight [N, ⌈K·B/8⌉]` of unsigned bytes that pack integers
//!   plus 2^(B−1), low bits first.
//! * `weight_scale [N, 1]`.
//! * A table has `embedding_quantized` and `embedding_scale` of the same layout instead.
//!
//! The number of bits follows from type and shape. The settings also contain patterns that specify
//! it by module name. They are needed only if the tensors are missing.
//!
//! `input_activation_scale` and `output_activation_scale` are for rounding the operand and the
//! result of a product to 8 bits. 0 means no rounding. `k_cache_scale` and `v_cache_scale` are for
//! a cache in integers. In this project the plan decides on activations and caches. So these scales
//! stay unused tensors, and a note counts them.
//!
//! Source: `integrations/gemma_quant.py` and `quantizers/quantizer_gemma.py` of transformers.

use std::path::PathBuf;

use shardwright_graph::WeightData;
use shardwright_vocabulary::{DType, Result};

use super::layout::{Group, Layout, Whole, scales};
use super::module::Found;
use super::{FIELD, Module};
use crate::UnusedTensor;
use crate::deferred_bytes::made;
use crate::json::{Fields, unsupported_field};

/// Names of a module's integers and scales: for matrices, and for tables.
const MATRIX: [&str; 2] = ["weight", "weight_scale"];
const TABLE: [&str; 2] = ["embedding_quantized", "embedding_scale"];

#[derive(Clone, Debug)]
pub(crate) struct Gemma {
    /// Bits of modules that no pattern matches.
    bits: u32,
    /// Whether tables may be quantised.
    tables: bool,
    /// Whether patterns specify different numbers of bits for some modules, or exclude some.
    patterns: bool,
    /// The path of the settings file.
    path: PathBuf,
}

impl Gemma {
    pub fn read(fields: Fields<'_>) -> Result<Self> {
        let supported = "2, 4, 8";
        let bits = |fields: Fields<'_>| match fields.whole("num_bits", &(1..=32))? {
            Some(bits @ (2 | 4 | 8)) => Ok(Some(bits as u32)),
            None => Ok(None),
            Some(_) => Err(fields.unsupported("num_bits", supported)),
        };
        let modules = fields.object("module_quant_configs")?;
        for pattern in modules.iter().flat_map(Fields::names) {
            let Some(options) = modules.and_then(|modules| modules.object(pattern).transpose()) else {
                continue;
            };
            let options = options?;
            bits(options)?;
            if let Some(other) = options.names().find(|name| *name != "num_bits") {
                return Err(options.unsupported(other, "`num_bits` alone"));
            }
        }
        let skipped = fields.list("modules_to_not_convert")?.unwrap_or_default();
        Ok(Gemma {
            bits: bits(fields)?.unwrap_or(4),
            tables: fields.flag("quantize_embeddings")?.unwrap_or(false),
            patterns: modules.is_some_and(|modules| modules.names().next().is_some()) || !skipped.is_empty(),
            path: fields.path().to_owned(),
        })
    }

    /// Returns the name of a module's scales, which every quantised module has.
    pub fn mark(module: &str) -> &'static str {
        names(module)[1]
    }

    pub fn take(&self, module: &mut Module<'_>, shape: [u64; 2]) -> Result<Whole> {
        let [outputs, inputs] = shape;
        let name = module.weight_name();
        let [integers, of_scales] = names(name.strip_suffix(".weight").unwrap_or(&name));
        let packed = |bits: u64| vec![outputs, (inputs * bits).div_ceil(8)];
        let found = module.take_shaped(integers, &["I8", "U8"], &[packed(8), packed(4), packed(2)])?;
        let bits = match (found.tensor.dtype.name, &found.tensor.shape) {
            ("I8", shape) if *shape == packed(8) => 8,
            ("U8", shape) if *shape == packed(4) => 4,
            ("U8", shape) if *shape == packed(2) => 2,
            (kind, shape) => {
                return Err(
                    found.invalid(format!("is {kind} of the shape {shape:?}, which no 2, 4 or 8 bits have"))
                );
            }
        };
        let layout = Layout::of(bits, Group::Channel, shape);
        let scale = module.take(of_scales, &["F32"], &[outputs, 1])?;
        let scales = scales(layout, &name, shape, &scale, |output, _| output)?;
        Ok(layout.with(data(layout, &name, shape, found)?, scales))
    }

    /// Returns the bits of modules without tensors, from the settings alone.
    ///
    /// # Errors
    ///
    /// If the settings have patterns of names.
    pub fn planned_bits(&self) -> Result<u32> {
        match self.patterns {
            false => Ok(self.bits),
            true => Err(unsupported_field(
                &self.path,
                FIELD,
                "with patterns of names of modules",
                "one number of bits where no header of a weight file has the type of a tensor",
            )),
        }
    }

    /// Checks whether the module of a matrix is quantised, from the settings alone.
    pub fn implies(&self, name: &str) -> bool {
        self.tables || names(name.strip_suffix(".weight").unwrap_or(name)) == MATRIX
    }
}

/// Returns a note on scales of activations and caches among the unused tensors.
pub(crate) fn note(unused: &[UnusedTensor]) -> Option<String> {
    let count = unused.iter().filter(|tensor| is_scale(&tensor.name)).count();
    (count > 0).then(|| {
        format!("scales of 8-bit activations or caches, not used: {count}; a plan decides about these here")
    })
}

/// Checks whether the tensor contains scales of activations or of caches.
pub(crate) fn is_scale(name: &str) -> bool {
    ["_activation_scale", "_cache_scale"].iter().any(|end| name.ends_with(end))
}

/// Returns the names of a module's integers and scales.
fn names(module: &str) -> [&'static str; 2] {
    let last = module.rsplit('.').next().unwrap_or_default();
    if last.starts_with("embed_tokens") { TABLE } else { MATRIX }
}

/// Returns the integers by rows, converted from an offset to two's complement.
fn data(layout: Layout, name: &str, shape: [u64; 2], found: Found<'_>) -> Result<WeightData> {
    let (length, _) = layout.sizes(name, shape)?;
    let Some(stored) = found.bytes() else { return Ok(WeightData::planned(length)) };
    let (middles, bits) = match layout.dtype {
        DType::I4 => (0x88, 4),
        DType::I2 => (0xaa, 2),
        // The graph uses signed bytes too.
        _ => return stored.in_place(),
    };
    let row = (length as u64 / shape[0].max(1)) as usize;
    // Bits after the last integer of a row must be 0.
    let used = (shape[1] * bits - 8 * (row as u64 - 1)) as u32;
    let last = u8::MAX >> (8 - used);
    made(length, move || {
        let mut bytes: Vec<u8> = stored.bytes().iter().map(|byte| byte ^ middles).collect();
        bytes.chunks_exact_mut(row).for_each(|row| row[row.len() - 1] &= last);
        bytes
    })
}
