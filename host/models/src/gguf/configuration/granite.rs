//! Granite: its factors, and whether it has rotary positions.

use shardwright_vocabulary::Result;

use super::Making;

/// Factors by their keys: the field, and whether a file must have it. llama.cpp treats 0 as absent.
const FACTORS: [(&str, &str, bool); 3] = [
    ("embedding_scale", "embedding_multiplier", false),
    ("residual_scale", "residual_multiplier", false),
    ("logit_scale", "logits_scaling", true),
];

impl Making<'_, '_> {
    /// Sets the factors of Granite. Refuses a file without rotary positions: such a file belongs to
    /// the variant that has a field for it.
    pub(super) fn granite(&mut self) -> Result<()> {
        for (name, field, required) in FACTORS {
            let key = self.key(name);
            match self.metadata.number(&key)?.filter(|factor| *factor != 0.0) {
                Some(factor) => self.set(field, factor, &key),
                None if required => return Err(self.metadata.missing(&key)),
                None => self.assume(field, 1.0, "a factor of"),
            }
        }
        let key = self.key("attention.scale");
        match self.metadata.number(&key)?.filter(|factor| *factor != 0.0) {
            Some(factor) => self.set("attention_multiplier", factor, &key),
            None => {
                let head_dim = self.whole_field("head_dim").unwrap_or(1) as f64;
                self.assume("attention_multiplier", head_dim.sqrt().recip(), "queries multiplied by");
            }
        }
        // llama.cpp uses this key as the switch of rotary positions.
        let key = self.key("rope.scaling.finetuned");
        if self.metadata.flag(&key)? == Some(false) {
            return Err(self.unsupported(&key, "true"));
        }
        Ok(())
    }
}
