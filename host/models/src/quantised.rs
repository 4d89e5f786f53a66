//! Quantised safetensors: what `quantization_config` says, and the tensors it speaks of.
//!
//! A quantised module has other tensors in place of its `weight`: packed integers, scales, zero
//! points. They become one weight of the graph with the same integers and scales, put together when
//! it is first read; where no form of the graph holds them, the module is refused and named.
//!
//! **What is held**, by what the CPU shim and the reference compute without rounding a weight:
//! * one scale per tensor or per output, widened to `F32`;
//! * one scale per group of inputs, as `F16`: every scale must be a binary16 exactly;
//! * integers of 2 bits as `I2`, of 4 bits as `I4` and of 8 bits as `I8`, where the zero point is
//!   the middle of their range: then the difference from it is what is stored;
//! * integers of 4 bits with any other zero point as `I8`: a difference of two of them takes five
//!   bits, and differences and scales are what the values are products of. It costs twice the
//!   memory, and changes no value.
//!
//! **What is not:** 8 bits with a zero point of their own, whose differences take nine; scales per
//! group that no binary16 is; inputs in another order than that of the matrix (`g_idx`).
//!
//! Zero points, orders and scales are checked when the checkpoint is opened.

mod awq;
mod compressed;
mod gemma;
mod gptq;
mod layout;
mod module;

pub(crate) use gemma::note as unused_scales;
pub(crate) use module::{Found, Module};

use shardwright_graph::{Weight, WeightData};

use crate::CheckpointError;
use crate::json::Fields;
use layout::{Group, Layout};

/// How a checkpoint's modules are quantised.
#[derive(Clone, Debug)]
pub(crate) enum Scheme {
    Compressed(compressed::Compressed),
    Gptq(gptq::Gptq),
    Awq(awq::Awq),
    Gemma(gemma::Gemma),
}

/// Name of the settings.
pub(crate) const FIELD: &str = "quantization_config";

impl Scheme {
    /// Reads `quantization_config`, if the settings have it.
    pub fn read(top: Fields<'_>) -> Result<Option<Self>, CheckpointError> {
        // An older name of it.
        top.must_be_off("compression_config")?;
        let Some(fields) = top.object(FIELD)? else { return Ok(None) };
        if fields.names().next().is_none() {
            return Ok(None);
        }
        Ok(Some(match fields.text("quant_method")? {
            Some("compressed-tensors") => Scheme::Compressed(compressed::Compressed::read(fields)?),
            Some("gptq") => Scheme::Gptq(gptq::Gptq::read(fields)?),
            Some("awq") => Scheme::Awq(awq::Awq::read(fields)?),
            Some("gemma") => Scheme::Gemma(gemma::Gemma::read(fields)?),
            _ => {
                let supported = "`compressed-tensors`, `gptq`, `awq`, `gemma`";
                return Err(fields.unsupported("quant_method", supported));
            }
        }))
    }

    /// The tensor that a module of that name has if it is quantised, and only then.
    pub fn mark(&self, module: &str) -> &'static str {
        match self {
            Scheme::Compressed(scheme) => scheme.mark(),
            Scheme::Gptq(_) | Scheme::Awq(_) => "qweight",
            Scheme::Gemma(_) => gemma::Gemma::mark(module),
        }
    }

    /// Whether the module of a matrix is quantised where nothing but the settings is known.
    pub fn implies(&self, name: &str, part: &str) -> bool {
        match self {
            Scheme::Gemma(scheme) => scheme.implies(name),
            // Embeddings and heads are quantised by few recipes, and by no default.
            _ => !["embedding", "head"].contains(&part),
        }
    }

    /// What the settings ask for that a weight does not hold, for a report.
    pub fn note(&self) -> Option<String> {
        match self {
            Scheme::Compressed(scheme) => scheme.note(),
            Scheme::Gptq(_) | Scheme::Awq(_) | Scheme::Gemma(_) => None,
        }
    }

    /// The matrix `[outputs, inputs]` of a module.
    pub fn weight(
        &self,
        module: &mut Module<'_>,
        part: &'static str,
        shape: [u64; 2],
    ) -> Result<Weight, CheckpointError> {
        let whole = match self {
            Scheme::Compressed(scheme) => scheme.take(module, shape)?,
            Scheme::Gptq(scheme) => scheme.take(module, shape)?,
            Scheme::Awq(scheme) => scheme.take(module, shape)?,
            Scheme::Gemma(scheme) => scheme.take(module, shape)?,
        };
        Ok(whole.weight(module.weight_name(), part, shape))
    }

    /// The same without its bytes, where no header describes them and zero points are taken to be
    /// in the middle.
    pub fn planned(
        &self,
        name: &str,
        part: &'static str,
        shape: [u64; 2],
    ) -> Result<Weight, CheckpointError> {
        let (bits, group) = match self {
            Scheme::Compressed(scheme) => (scheme.bits(), scheme.group()),
            Scheme::Gptq(scheme) => (scheme.bits, scheme.group),
            Scheme::Awq(scheme) => (awq::BITS, scheme.group),
            Scheme::Gemma(scheme) => (scheme.planned_bits()?, Group::Channel),
        };
        let layout = Layout::of(bits, group, shape);
        let (data, scales) = layout.sizes(name, shape)?;
        let (data, scales) = (WeightData::planned(data), WeightData::planned(scales));
        Ok(layout.with(data, scales).weight(name.to_owned(), part, shape))
    }
}
