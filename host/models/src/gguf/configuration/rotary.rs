//! Base and scaling of rotary positions.

use serde_json::json;
use shardwright_vocabulary::{Error, Result};

use super::{Making, Parts};
use crate::json::unsupported_field;
use crate::limits;

/// Tensor of divisors of the frequencies, one for each pair.
const FREQUENCIES: &str = "rope_freqs.weight";

/// Divisors from this size on mean that llama.cpp does not rotate the pair.
const NEVER: f32 = 1e20;

impl Making<'_, '_> {
    /// Sets the base and the scaling of a model whose layers all have the same rotation.
    pub(super) fn rotary(&mut self, parts: &Parts<'_, '_>, usual: f64) -> Result<()> {
        let key = self.key("rope.freq_base");
        match self.metadata.number(&key)? {
            Some(base) => self.set("rope_theta", base, &key),
            None => self.assume("rope_theta", usual, "a rotary base of"),
        }
        let (kind_key, factor_key) = (self.key("rope.scaling.type"), self.key("rope.scaling.factor"));
        let old_key = self.key("rope.scale_linear");
        let factor = self.metadata.number(&factor_key)?;
        let old = self.metadata.number(&old_key)?.filter(|factor| *factor != 1.0);
        match (self.metadata.text(&kind_key)?, factor, old) {
            (None | Some("none"), None, None) => {}
            (None | Some("none"), Some(1.0), None) => {}
            (Some("linear"), Some(factor), None) => {
                self.set("rope_scaling", json!({ "rope_type": "linear", "factor": factor }), &factor_key);
            }
            (None, None, Some(factor)) => {
                self.set("rope_scaling", json!({ "rope_type": "linear", "factor": factor }), &old_key);
            }
            (Some("none" | "linear") | None, ..) => {
                return Err(self.unsupported(&factor_key, "a factor with the scaling type `linear`"));
            }
            _ => return Err(self.unsupported(&kind_key, "`none`, `linear`")),
        }
        let Some(divisors) = self.divisors(parts, FREQUENCIES)? else { return Ok(()) };
        // llama.cpp reads the tensor in Llama's models only, and applies both divisors.
        if self.architecture != "llama" || self.fields.contains_key("rope_scaling") {
            let supported = "a divisor for each pair of `llama`, or one factor for all pairs";
            return Err(self.wrong_divisors(FREQUENCIES, format!("{} divisors", divisors.len()), supported));
        }
        // The converter computes the divisors from `llama3`, whose parameters the file does not
        // keep. `longrope` is the type that specifies divisors directly.
        let scaling = json!({
            "rope_type": "longrope", "short_factor": divisors, "long_factor": divisors, "attention_factor": 1.0,
        });
        self.set("rope_scaling", scaling, FREQUENCIES);
        Ok(())
    }

    /// Returns the share of rotated pairs in full layers of Gemma 4.
    pub(super) fn turning_share(&self, parts: &Parts<'_, '_>) -> Result<f64> {
        let Some(divisors) = self.divisors(parts, FREQUENCIES)? else { return Ok(1.0) };
        let turning = divisors.iter().take_while(|divisor| **divisor == 1.0).count();
        if divisors[turning..].iter().any(|divisor| *divisor < NEVER) {
            let supported = "ones, then numbers above 1e20 for pairs that do not turn";
            return Err(self.wrong_divisors(FREQUENCIES, "other divisors".to_owned(), supported));
        }
        Ok(turning as f64 / divisors.len() as f64)
    }

    /// Returns the divisors in a tensor, if the file has it.
    pub(super) fn divisors(&self, parts: &Parts<'_, '_>, name: &str) -> Result<Option<Vec<f32>>> {
        let Some(tensor) = parts.tensor(name) else { return Ok(None) };
        let supported = "a list of as many floats as a head has pairs";
        let shape = || format!("{:?} of {}", tensor.shape, tensor.kind.name());
        let pairs = tensor.shape.iter().try_fold(1_u64, |product, extent| product.checked_mul(*extent));
        if !pairs.is_some_and(|pairs| (1..=limits::HEAD_DIM.end() / 2).contains(&pairs)) {
            return Err(self.wrong_divisors(name, shape(), supported));
        }
        let divisors = parts.values(name).ok_or_else(|| self.wrong_divisors(name, shape(), supported))?;
        Ok(Some(divisors))
    }

    fn wrong_divisors(&self, name: &str, found: String, supported: &str) -> Error {
        unsupported_field(self.metadata.path(), name, found, supported)
    }
}
