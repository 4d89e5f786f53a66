//! Phi 3: partly rotated heads, and divisors for short and for long texts.

use serde_json::{Value as Json, json};
use shardwright_vocabulary::Result;

use super::{Making, Parts};
use crate::weight_file::missing_tensor;

/// Tensors of divisors, one for each rotated pair, and their fields.
const LISTS: [(&str, &str); 2] =
    [("rope_factors_short.weight", "short_factor"), ("rope_factors_long.weight", "long_factor")];

impl Making<'_, '_> {
    /// Sets rotary positions and the window.
    pub(super) fn phi3(&mut self, parts: &Parts<'_, '_>) -> Result<()> {
        self.rotary(parts, 1e4)?;
        let key = self.key("attention.sliding_window");
        if let Some(window @ 1..) = self.metadata.whole(&key)? {
            self.set("sliding_window", window, &key);
        }
        let head_dim = self.whole_field("head_dim").unwrap_or(0);
        let key = self.key("rope.dimension_count");
        if let Some(turning) = self.metadata.whole(&key)?.filter(|turning| *turning != head_dim) {
            // Adds half a value: the family rounds down, and the share may have been rounded down
            // too.
            let share = (turning as f64 + 0.5) / head_dim.max(1) as f64;
            self.set("partial_rotary_factor", share, &key);
        }
        let key = self.key("rope.scaling.original_context_length");
        if let Some(original) = self.metadata.whole(&key)? {
            self.set("original_max_position_embeddings", original, &key);
        }
        let lists = LISTS.map(|(tensor, _)| parts.tensor(tensor).is_some());
        let factor_key = self.key("rope.scaling.attn_factor");
        let factor = self.metadata.number(&factor_key)?;
        match lists {
            [false, false] if factor.is_none_or(|factor| factor == 1.0) => return Ok(()),
            [false, false] => return Err(self.unsupported(&factor_key, "1 without lists of divisors")),
            [true, true] if self.fields.contains_key("rope_scaling") => {
                let key = self.key("rope.scaling.factor");
                return Err(self.unsupported(&key, "none with lists of divisors"));
            }
            [true, true] => {}
            [short, _] => {
                let (tensor, _) = LISTS[usize::from(short)];
                return Err(missing_tensor(self.metadata.path(), tensor));
            }
        }
        if factor.is_none() {
            self.note_assumed(&1.0.into(), "cosines and sines multiplied by");
        }
        let mut scaling = json!({ "rope_type": "longrope", "attention_factor": factor.unwrap_or(1.0) });
        for (tensor, field) in LISTS {
            scaling[field] = Json::from(self.divisors(parts, tensor)?.unwrap_or_default());
        }
        self.set("rope_scaling", scaling, LISTS[0].0);
        Ok(())
    }
}
