//! Weights where they are mapped, for the kernels.

use shardwright_shim_abi::{Error, typed};

use crate::kernels::integer::Tiles;
use crate::kernels::integer::split::Split;
use crate::kernels::linear::{Numbers, PanelData, PanelType, Panels, Scales};
use crate::program::{NumberForm, PackedScales, PackedSplit, PackedTiles, PackedWeights};

/// Returns the mapped panels of a checked program.
pub fn packed<'m>(section: &'m [u8], weights: &PackedWeights) -> Result<Panels<'m>, Error> {
    let [panels, scales] = weights.bytes().unwrap_or_default();
    let bytes = &section[weights.offset as usize..][..panels as usize];
    let data = match weights.kind {
        PanelType::F32 => PanelData::F32(typed(bytes)?.as_chunks().0),
        PanelType::Bf16 => PanelData::Bf16(typed(bytes)?.as_chunks().0),
        PanelType::F16 => PanelData::F16(typed(bytes)?.as_chunks().0),
        PanelType::I8 => PanelData::I8(typed(bytes)?.as_chunks().0),
        PanelType::I4 => PanelData::I4(bytes.as_chunks().0),
        PanelType::I2 => PanelData::I2(bytes.as_chunks().0),
    };
    let scales = packed_scales(section, weights.scales, scales)?;
    let (inputs, outputs) = (weights.inputs as usize, weights.outputs as usize);
    Ok(Panels { data, scales, zero: weights.zero, inputs, outputs })
}

/// Returns the mapped tiles of a checked program.
pub fn tiles<'m>(section: &'m [u8], weights: &PackedTiles) -> Result<Tiles<'m>, Error> {
    let [bytes, scales] = weights.bytes().unwrap_or_default();
    Ok(Tiles {
        kind: weights.kind,
        base: weights.base,
        data: &section[weights.offset as usize..][..bytes as usize],
        scales: packed_scales(section, weights.scales, scales)?,
        inputs: weights.inputs as usize,
        outputs: weights.outputs as usize,
    })
}

/// Returns the mapped weights in two parts of a checked program.
pub fn split<'m>(section: &'m [u8], weights: &PackedSplit) -> Result<Split<'m>, Error> {
    let [high, low, spread, scales] =
        weights.parts().map(|(offset, bytes)| &section[offset as usize..][..bytes as usize]);
    let (inputs, outputs) = (weights.inputs as usize, weights.outputs as usize);
    Ok(Split { high, low, spread, scales: typed(scales)?, inputs, outputs })
}

fn packed_scales(section: &[u8], scales: PackedScales, bytes: u64) -> Result<Scales<'_>, Error> {
    let part = |offset: u64| &section[offset as usize..][..bytes as usize];
    Ok(match scales {
        PackedScales::None => Scales::None,
        PackedScales::PerOutput { offset } => Scales::PerOutput(typed(part(offset))?),
        PackedScales::Blocks { offset, size, minimum, form } => {
            let numbers = match form {
                NumberForm::F16 => Numbers::F16(typed(part(offset))?.as_chunks().0),
                NumberForm::F32 => Numbers::F32(typed(part(offset))?.as_chunks().0),
                NumberForm::Small { group } => {
                    let group = usize::try_from(group).unwrap_or(usize::MAX);
                    Numbers::Small { pieces: typed(part(offset))?.as_chunks().0, group }
                }
            };
            Scales::Blocks { size: size as usize, minimum, numbers }
        }
    })
}
