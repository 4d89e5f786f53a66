//! The pattern of layers that see all positions or only a window.

use std::ops::RangeInclusive;

use shardwright_vocabulary::Result;

use crate::json::{Fields, shortened, unsupported_field};

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
pub(crate) fn read_list(fields: Fields<'_>, layers: u32) -> Result<Option<Vec<LayerType>>> {
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
                let (field, supported) =
                    (format!("{name}[{layer}]"), "`full_attention`, `sliding_attention`");
                return Err(unsupported_field(fields.path(), &field, shortened(word), supported));
            }
            None => return Err(fields.invalid(name, format!("has no word for layer {layer}"))),
        });
    }
    Ok(Some(types))
}

/// The field that specifies the types of layers by a number.
const PATTERN: &str = "sliding_window_pattern";

/// Reads `layer_types`. Without it, every n-th layer is full. Either spelling of the pattern
/// specifies n, and the default is 6. If the file has both, the list counts.
pub(crate) fn read(fields: Fields<'_>, layers: u32) -> Result<Vec<LayerType>> {
    read_from(fields, layers, |types| types)
}

/// Like [`read`], but the last layer is full in any case. The library forces it to be full, so no
/// checkpoint was trained otherwise.
pub(crate) fn read_ending_full(fields: Fields<'_>, layers: u32) -> Result<Vec<LayerType>> {
    read_from(fields, layers, |mut types| {
        if let Some(last) = types.last_mut() {
            *last = LayerType::Full;
        }
        types
    })
}

/// Reads the types of layers. `forced` replaces the types that the library forces.
fn read_from(
    fields: Fields<'_>,
    layers: u32,
    forced: impl Fn(Vec<LayerType>) -> Vec<LayerType>,
) -> Result<Vec<LayerType>> {
    if let Some(types) = read_list(fields, layers)? {
        let types = forced(types);
        if let Some(value) = fields.get(PATTERN) {
            let every = value.as_u64().filter(|every| *every > 0);
            if every.is_none_or(|every| forced(repeated(every, layers)) != types) {
                fields.overruled(PATTERN, "it contradicts `layer_types`, which counts");
            }
        }
        return Ok(types);
    }
    const RANGE: RangeInclusive<u64> = 1..=1 << 16;
    let named = fields.whole(PATTERN, &RANGE)?;
    let every = named.or(fields.whole("_sliding_window_pattern", &RANGE)?).unwrap_or(6);
    Ok(forced(repeated(every, layers)))
}

/// Returns types of layers of which every n-th is full.
fn repeated(every: u64, layers: u32) -> Vec<LayerType> {
    let full = |layer: u32| (u64::from(layer) + 1).is_multiple_of(every);
    (0..layers).map(|layer| if full(layer) { LayerType::Full } else { LayerType::Sliding }).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;
    use crate::register::Seen;

    /// Returns the types of three layers, and the ignored fields.
    fn of_three(
        value: &Value,
        read: fn(Fields<'_>, u32) -> Result<Vec<LayerType>>,
    ) -> (Vec<LayerType>, Vec<String>) {
        let (seen, path) = (Seen::default(), Path::new("config.json"));
        let types = read(Fields::new(path, value).unwrap().recorded(&seen), 3).unwrap();
        (types, seen.ignored(path, value).iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_number_counts_if_there_is_no_list_and_is_reported_if_it_contradicts_the_list() {
        use LayerType::{Full, Sliding};
        let list = |last: &str| json!(["sliding_attention", "full_attention", last]);
        let contradiction =
            "config.json: `sliding_window_pattern` is ignored: it contradicts `layer_types`, which counts";
        let sliding = list("sliding_attention");
        for (value, reported) in [
            (json!({"layer_types": null, "sliding_window_pattern": 2}), None),
            (json!({"layer_types": sliding, "sliding_window_pattern": 2}), None),
            (json!({"layer_types": sliding, "sliding_window_pattern": 3}), Some(contradiction)),
            (json!({"layer_types": sliding, "sliding_window_pattern": 0}), Some(contradiction)),
            (json!({"layer_types": sliding, "sliding_window_pattern": "LLG"}), Some(contradiction)),
        ] {
            let (types, ignored) = of_three(&value, read);
            assert_eq!(types, [Sliding, Full, Sliding], "{value}");
            assert_eq!(ignored, reported.into_iter().collect::<Vec<_>>(), "{value}");
        }
        // The last layer is forced, which contradicts no number.
        for value in [
            json!({"sliding_window_pattern": 2}),
            json!({"layer_types": sliding, "sliding_window_pattern": 2}),
            json!({"layer_types": list("full_attention"), "sliding_window_pattern": 2}),
        ] {
            let (types, ignored) = of_three(&value, read_ending_full);
            assert_eq!(types, [Sliding, Full, Full], "{value}");
            assert_eq!(ignored, [""; 0], "{value}");
        }
    }
}
