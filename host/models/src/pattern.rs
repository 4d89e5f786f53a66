//! The pattern of layers that see all positions or only a window.

use std::ops::RangeInclusive;

use crate::CheckpointError;
use crate::json::Fields;

/// The positions that a layer attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayerType {
    /// Every position.
    Full,
    /// A window of positions.
    Sliding,
}

/// Reads `layer_types`, if the file has it.
pub(crate) fn read_list(fields: Fields<'_>, layers: u32) -> Result<Option<Vec<LayerType>>, CheckpointError> {
    let name = "layer_types";
    let Some(list) = fields.list(name)? else { return Ok(None) };
    if list.len() != layers as usize {
        return Err(fields.invalid(name, format!("has {} entries for {layers} layers", list.len())));
    }
    let mut types = Vec::with_capacity(list.len());
    for (layer, word) in list.iter().enumerate() {
        types.push(match word.as_str() {
            Some("full_attention") => LayerType::Full,
            Some("sliding_attention") => LayerType::Sliding,
            Some(_) => {
                return Err(CheckpointError::UnsupportedField {
                    path: fields.path().to_owned(),
                    field: format!("{name}[{layer}]"),
                    found: crate::json::shortened(word),
                    supported: "`full_attention`, `sliding_attention`",
                });
            }
            None => return Err(fields.invalid(name, format!("has no word for layer {layer}"))),
        });
    }
    Ok(Some(types))
}

/// Reads `layer_types`. Without it, every n-th layer is full. Either spelling of the pattern
/// specifies n, and the default is 6.
pub(crate) fn read(fields: Fields<'_>, layers: u32) -> Result<Vec<LayerType>, CheckpointError> {
    if let Some(types) = read_list(fields, layers)? {
        return Ok(types);
    }
    const PATTERN: RangeInclusive<u64> = 1..=1 << 16;
    let named = fields.whole("sliding_window_pattern", &PATTERN)?;
    let every = named.or(fields.whole("_sliding_window_pattern", &PATTERN)?).unwrap_or(6);
    let full = |layer: u32| (u64::from(layer) + 1).is_multiple_of(every);
    Ok((0..layers).map(|layer| if full(layer) { LayerType::Full } else { LayerType::Sliding }).collect())
}
