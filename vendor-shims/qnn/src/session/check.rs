//! Checks a graph before it is passed to the library, which trusts counts, indices and lengths.

use super::data::stored_bytes;
use crate::failure::{QnnError, Result};
use crate::graph::{DataType, Param, QnnEncoding, QnnGraph, QnnTensor, StaticData, TensorKind};
use std::collections::HashSet;
use std::ffi::CString;

/// The library counts a tensor's bytes in 32 bits.
const MOST_BYTES: u64 = u32::MAX as u64;
/// More axes than any operation supports.
const MOST_AXES: usize = 8;
/// Least number of steps that a factor's value has at its scale. A factor stored as one or two
/// steps (0.3 as 1 times 0.3) started a search in the library that exhausted memory. Three to nine
/// steps were computed inexactly.
const LEAST_STEPS: u64 = 10;

/// Context for errors while a graph is composed.
pub(super) struct Composer<'g, 'w> {
    pub(super) graph: &'g QnnGraph<'w>,
}

impl<'w> Composer<'_, 'w> {
    pub(super) fn invalid(&self, place: String, problem: impl Into<String>) -> QnnError {
        QnnError::GraphInvalid { graph: self.graph.name.clone(), place, problem: problem.into() }
    }

    pub(super) fn text(&self, place: &str, text: &str) -> Result<CString> {
        CString::new(text)
            .map_err(|_| self.invalid(place.to_owned(), format!("{text:?} has a null character")))
    }

    /// Checks everything that the library trusts: counts, indices, lengths behind pointers.
    pub(super) fn check(&self) -> Result<()> {
        let mut names = HashSet::new();
        for tensor in &self.graph.tensors {
            let place = || format!("tensor `{}`", tensor.name);
            if !names.insert(tensor.name.as_str()) {
                return Err(self.invalid(place(), "the name is already used"));
            }
            self.check_tensor(tensor).map_err(|problem| self.invalid(place(), problem))?;
        }
        let mut written: Vec<bool> = self
            .graph
            .tensors
            .iter()
            .map(|tensor| !matches!(tensor.kind, TensorKind::Native | TensorKind::Output))
            .collect();
        let mut names = HashSet::new();
        for node in &self.graph.nodes {
            let place = || format!("node `{}` ({})", node.name, node.op);
            if !names.insert(node.name.as_str()) {
                return Err(self.invalid(place(), "the name is already used"));
            }
            for input in &node.inputs {
                match written.get(input.0 as usize) {
                    None => return Err(self.invalid(place(), format!("there is no tensor {}", input.0))),
                    Some(false) => {
                        let name = &self.graph.tensors[input.0 as usize].name;
                        return Err(self.invalid(place(), format!("`{name}` is read before it is written")));
                    }
                    Some(true) => {}
                }
            }
            for output in &node.outputs {
                match written.get_mut(output.0 as usize) {
                    None => return Err(self.invalid(place(), format!("there is no tensor {}", output.0))),
                    Some(true) => {
                        let name = &self.graph.tensors[output.0 as usize].name;
                        return Err(self.invalid(place(), format!("`{name}` is written twice or read-only")));
                    }
                    Some(written) => *written = true,
                }
            }
            if node.op == "ElementWiseMultiply"
                && let Some(input) =
                    node.inputs.iter().find(|input| is_coarse(&self.graph.tensors[input.0 as usize]))
            {
                let name = &self.graph.tensors[input.0 as usize].name;
                let problem = format!(
                    "`{name}` is stored in fewer than {LEAST_STEPS} steps, for which the library may not terminate"
                );
                return Err(self.invalid(place(), problem));
            }
            let says = |param: &str| node.params.iter().any(|(name, _)| *name == param);
            if node.op == "MatMul" && !(says("transpose_in0") && says("transpose_in1")) {
                return Err(self.invalid(
                    place(),
                    "the library crashes on a MatMul without transpose_in0 and transpose_in1",
                ));
            }
            for (name, param) in &node.params {
                let (count, dims) = match param {
                    Param::I32s(values, dims) => (values.len(), dims),
                    Param::U32Block(values, dims) => (values.len(), dims),
                    _ => continue,
                };
                if dims.iter().try_fold(1u64, |all, extent| all.checked_mul(u64::from(*extent)))
                    != Some(count as u64)
                {
                    return Err(self.invalid(place(), format!("`{name}` has {count} values in {dims:?}")));
                }
            }
        }
        match self.graph.tensors.iter().zip(&written).find(|(_, written)| !**written) {
            Some((tensor, _)) => Err(self.invalid(format!("tensor `{}`", tensor.name), "no node writes it")),
            None => Ok(()),
        }
    }

    pub(super) fn check_tensor(&self, tensor: &QnnTensor<'_>) -> std::result::Result<(), String> {
        if tensor.dims.len() > MOST_AXES {
            return Err(format!("{} axes, at most {MOST_AXES} are supported", tensor.dims.len()));
        }
        let bytes =
            super::data::declared_bytes(tensor.dtype, &tensor.dims).ok_or("its size is beyond 64 bits")?;
        if bytes > MOST_BYTES {
            return Err(format!("{bytes} bytes, at most {MOST_BYTES} can be passed to the library"));
        }
        if bytes == 0 {
            return Err("an axis has the extent 0".to_owned());
        }
        let elements = bytes / tensor.dtype.bytes();
        let along = |axis: i32| usize::try_from(axis).ok().and_then(|axis| tensor.dims.get(axis)).copied();
        let counted = |what: &str, found: usize, expected: u64| match found as u64 == expected {
            true => Ok(()),
            false => Err(format!("{found} {what}, expected {expected}")),
        };
        let per_axis = |axis: i32, scales: &[f32]| match along(axis) {
            Some(extent) => counted("scales", scales.len(), u64::from(extent)),
            None => Err(format!("there is no axis {axis}")),
        };
        let blocks = |extents: &[u32]| -> std::result::Result<u64, String> {
            counted("block extents", extents.len(), tensor.dims.len() as u64)?;
            tensor.dims.iter().zip(extents).try_fold(1u64, |blocks, (extent, block)| match block {
                0 => Err("a block has the extent 0".to_owned()),
                block => Ok(blocks * u64::from(extent.div_ceil(*block))),
            })
        };
        match &tensor.encoding {
            QnnEncoding::None | QnnEncoding::PerTensor(_) | QnnEncoding::BitWidth { .. } => {}
            QnnEncoding::PerAxis { axis, scales } | QnnEncoding::BitWidthPerAxis { axis, scales, .. } => {
                per_axis(*axis, scales)?;
            }
            QnnEncoding::BlockExpansion { axis, scales, blocks_per_channel, multiples } => {
                per_axis(*axis, scales)?;
                counted(
                    "block multiples",
                    multiples.len(),
                    scales.len() as u64 * u64::from(*blocks_per_channel),
                )?;
                if *blocks_per_channel == 0 || !elements.is_multiple_of(multiples.len() as u64) {
                    return Err(format!("{} blocks do not divide {elements} values", multiples.len()));
                }
            }
            QnnEncoding::Block { extents, scales } => {
                counted("block scales", scales.len(), blocks(extents)?)?
            }
            QnnEncoding::FloatBlock { extents, scales }
            | QnnEncoding::BitWidthFloatBlock { extents, scales, .. } => {
                counted("block scales", scales.len(), blocks(extents)?)?;
            }
        }
        let TensorKind::Static(data) = &tensor.kind else { return Ok(()) };
        let Some(expected) = stored_bytes(tensor, data)? else { return Ok(()) };
        let found = match data {
            StaticData::Bytes(bytes) => bytes.len(),
            StaticData::Packed { bytes, .. } | StaticData::Transposed(bytes) => bytes.len(),
            StaticData::Stand { .. } => return Ok(()),
        };
        counted("bytes", found, expected)
    }
}

/// Checks whether a tensor is a constant factor with too few steps.
fn is_coarse(tensor: &QnnTensor<'_>) -> bool {
    let (DataType::Ufixed16, QnnEncoding::PerTensor(one), TensorKind::Static(StaticData::Bytes(bytes))) =
        (tensor.dtype, &tensor.encoding, &tensor.kind)
    else {
        return false;
    };
    let Ok(stored) = <[u8; 2]>::try_from(bytes.as_ref()) else { return false };
    let steps = (i64::from(u16::from_le_bytes(stored)) + i64::from(one.offset)).unsigned_abs();
    (1..LEAST_STEPS).contains(&steps)
}
