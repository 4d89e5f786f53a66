//! Quantised safetensors: `quantization_config`, and the tensors that it describes.
//!
//! A quantised module has different tensors in place of its `weight`: packed integers, scales, zero
//! points. They become one weight of the graph with the same integers and scales, assembled on
//! first use. If no form of the graph can represent them, the module is refused by name.
//!
//! **Supported**, since the CPU shim and the reference compute it without rounding a weight:
//! * one scale per tensor or per output, widened to `F32`
//! * one scale per group of inputs, as `F16`: every scale must be exactly a binary16
//! * integers of 2 bits as `I2`, of 4 bits as `I4` and of 8 bits as `I8`, if the zero point is the
//!   middle of their range: the stored integer is the difference from it
//! * integers of 4 bits with any other zero point as `I8`: a difference of two such integers needs
//!   five bits, and values are products of differences and scales. This costs twice the memory, and
//!   changes no value.
//!
//! **Unsupported:**
//! * 8 bits with a specified zero point, since the differences need nine bits
//! * scales per group that are not exactly a binary16
//! * inputs in a different order than in the matrix (`g_idx`)
//!
//! Zero points, orders and scales are checked when the checkpoint is opened.

mod awq;
mod compressed;
mod gemma;
mod gptq;
mod layout;
mod module;

pub(crate) use gemma::{is_scale as is_unused_scale, note as unused_scales};
pub(crate) use module::{Found, Module, Stored};

use shardwright_graph::{Weight, WeightData};
use shardwright_vocabulary::Result;

use crate::json::Fields;
use layout::{Group, Layout};

/// The quantisation method of a checkpoint's modules.
#[derive(Clone, Debug)]
pub(crate) enum Scheme {
    Compressed(compressed::Compressed),
    Gptq(gptq::Gptq),
    Awq(awq::Awq),
    Gemma(gemma::Gemma),
}

/// Name of the field with the settings.
pub(crate) const FIELD: &str = "quantization_config";

impl Scheme {
    /// Reads `quantization_config`, if the settings have it.
    pub fn read(top: Fields<'_>) -> Result<Option<Self>> {
        // `compression_config` is an older name of the field.
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

    /// Returns the name of a tensor that exists if and only if a module of that name is quantised.
    pub fn mark(&self, module: &str) -> &'static str {
        match self {
            Scheme::Compressed(scheme) => scheme.mark(),
            Scheme::Gptq(_) | Scheme::Awq(_) => "qweight",
            Scheme::Gemma(_) => gemma::Gemma::mark(module),
        }
    }

    /// Checks whether the module of a matrix is quantised, from the settings alone.
    pub fn implies(&self, name: &str, part: &str) -> bool {
        match self {
            Scheme::Gemma(scheme) => scheme.implies(name),
            // Few recipes quantise embeddings and heads, and none does by default.
            _ => !["embedding", "head"].contains(&part),
        }
    }

    /// Returns a note for reports on settings that a weight cannot represent.
    pub fn note(&self) -> Option<String> {
        match self {
            Scheme::Compressed(scheme) => scheme.note(),
            Scheme::Gptq(_) | Scheme::Awq(_) | Scheme::Gemma(_) => None,
        }
    }

    /// Checks whether the tensor belongs to settings that [`Scheme::note`] reports as left to the
    /// plan.
    pub fn leaves_out(&self, name: &str) -> bool {
        match self {
            Scheme::Compressed(scheme) => scheme.leaves_out(name),
            Scheme::Gptq(_) | Scheme::Awq(_) | Scheme::Gemma(_) => false,
        }
    }

    /// Reads the matrix `[outputs, inputs]` of a module.
    pub fn weight(&self, module: &mut Module<'_>, part: &'static str, shape: [u64; 2]) -> Result<Weight> {
        let whole = match self {
            Scheme::Compressed(scheme) => scheme.take(module, shape)?,
            Scheme::Gptq(scheme) => scheme.take(module, shape)?,
            Scheme::Awq(scheme) => scheme.take(module, shape)?,
            Scheme::Gemma(scheme) => scheme.take(module, shape)?,
        };
        Ok(whole.weight(module.weight_name(), part, shape))
    }

    /// Like [`Scheme::weight`], but without bytes and without a header. Zero points are assumed to
    /// be in the middle.
    pub fn planned(&self, name: &str, part: &'static str, shape: [u64; 2]) -> Result<Weight> {
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
