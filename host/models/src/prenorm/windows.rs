//! The layers that have a window, and its width.

use shardwright_vocabulary::Result;

use crate::family::Family;
use crate::json::{Fields, shortened, unsupported_field};
use crate::{LayerType, limits, pattern};

/// Returns the type of each layer, and the window. The window is 0 if no layer has one.
///
/// `turning` specifies whether a layer rotates queries and keys. `context` is the number of
/// positions.
pub(super) fn read(
    fields: Fields<'_>,
    family: Family,
    turning: &[bool],
    context: u64,
) -> Result<(Vec<LayerType>, u32)> {
    let layers = turning.len() as u32;
    match family {
        Family::Mistral => read_mistral(fields, layers),
        Family::Qwen2 | Family::Qwen3 => {
            let first = fields.whole("max_window_layers", &(0..=u64::from(u32::MAX)))?.unwrap_or(28);
            read_switched(fields, layers, |layer| u64::from(layer) >= first)
        }
        Family::SmolLM3 => {
            // The library has this field of Qwen but does not use it.
            fields.superseded("max_window_layers");
            read_switched(fields, layers, |layer| !turning[layer as usize])
        }
        Family::Phi3 => {
            let window = fields.whole("sliding_window", &limits::WINDOW)?;
            // Some published files have a window that is wider than the context.
            Ok(match window.filter(|window| *window < context) {
                Some(window) => (vec![LayerType::Sliding; layers as usize], window as u32),
                None => (vec![LayerType::Full; layers as usize], 0),
            })
        }
        Family::Granite if super::is_hybrid(fields)? => Ok((read_attention(fields, layers)?, 0)),
        _ => Ok((vec![LayerType::Full; layers as usize], 0)),
    }
}

/// Returns the layer types and the window. Without a list of types, the rule `slides` selects the
/// sliding layers if the window is switched on.
fn read_switched(
    fields: Fields<'_>,
    layers: u32,
    slides: impl Fn(u32) -> bool,
) -> Result<(Vec<LayerType>, u32)> {
    let sliding = fields.flag("use_sliding_window")?.unwrap_or(false);
    // Files that switch the window off may still specify its width.
    fields.superseded("sliding_window");
    let window = if sliding { fields.whole("sliding_window", &limits::WINDOW)? } else { None };
    let window = window.unwrap_or(0) as u32;
    let by_rule = |layer: u32| if window > 0 && slides(layer) { LayerType::Sliding } else { LayerType::Full };
    let types = match pattern::read_list(fields, layers)? {
        Some(types) => types,
        None => (0..layers).map(by_rule).collect(),
    };
    if window == 0 && types.contains(&LayerType::Sliding) {
        return Err(fields.invalid("layer_types", "has sliding layers, but no window is switched on"));
    }
    Ok((types, window))
}

/// Returns the layer types and the window. Without a list of types, all layers slide, unless the
/// window is `null` in the file.
fn read_mistral(fields: Fields<'_>, layers: u32) -> Result<(Vec<LayerType>, u32)> {
    let window = match fields.whole("sliding_window", &limits::WINDOW)? {
        Some(window) => window as u32,
        None if fields.mentions("sliding_window") => 0,
        None => 4096,
    };
    let every = if window > 0 { LayerType::Sliding } else { LayerType::Full };
    let types = pattern::read_list(fields, layers)?.unwrap_or_else(|| vec![every; layers as usize]);
    match types.contains(&LayerType::Sliding) {
        true if window == 0 => {
            Err(fields.invalid("layer_types", "has sliding layers, but `sliding_window` is null"))
        }
        true => Ok((types, window)),
        false => Ok((types, 0)),
    }
}

/// Returns the layer types of a family that may have recurrent layers. Refuses all types except
/// attention.
fn read_attention(fields: Fields<'_>, layers: u32) -> Result<Vec<LayerType>> {
    let name = ["layer_types", "layers_block_type"].into_iter().find(|name| fields.get(name).is_some());
    let name = name.unwrap_or("layer_types");
    let supported = "`attention` for every layer";
    let list = fields.list(name)?.ok_or_else(|| fields.unsupported(name, supported))?;
    if list.len() != layers as usize {
        return Err(fields.invalid(name, format!("has {} entries for {layers} layers", list.len())));
    }
    let is_other = |word: &serde_json::Value| !matches!(word.as_str(), Some("attention" | "full_attention"));
    match list.iter().enumerate().find(|(_, word)| is_other(word)) {
        Some((layer, word)) => {
            let field = format!("{name}[{layer}]");
            Err(unsupported_field(fields.path(), &field, shortened(word), supported))
        }
        None => Ok(vec![LayerType::Full; layers as usize]),
    }
}
