//! `longrope`: a divisor for each pair, with one list for short texts and one for long texts.
//!
//! The defining library switches to the long list when a text grows beyond the positions of
//! training, and computes all earlier keys again. Here keys stay in states. So the short list
//! always applies, and the context ends where the library would switch.

use serde_json::Value;
use shardwright_vocabulary::Result;

use crate::json::Fields;
use crate::limits;

pub(crate) struct LongRope {
    /// A divisor for each rotated pair.
    pub divisors: Vec<f32>,
    /// Factor on cosines and sines.
    pub magnitude: f32,
    /// Number of positions beyond which the library uses the long list. `None` if it never does, or
    /// if both lists are equal.
    pub limit: Option<u64>,
}

impl LongRope {
    /// Reads the parameters of heads with `pairs` rotated pairs. `original` has priority over
    /// `original_max_position_embeddings`. `context` is the default if both are missing.
    ///
    /// Source: `_compute_longrope_parameters` of transformers.
    pub fn read(fields: Fields<'_>, pairs: usize, original: Option<u64>, context: u64) -> Result<Self> {
        let name = "original_max_position_embeddings";
        let original = original.or(fields.whole(name, &limits::CONTEXT)?).unwrap_or(context);
        let divisors = read_list(fields, "short_factor", pairs)?;
        let long = read_list(fields, "long_factor", pairs)?;
        let factor = fields.positive("factor")?.map_or(context as f64 / original as f64, f64::from);
        let magnitude = match fields.positive("attention_factor")? {
            Some(magnitude) => magnitude,
            None if factor <= 1.0 => 1.0,
            None if original < 2 => return Err(fields.invalid(name, "is less than 2")),
            None => (1.0 + factor.ln() / (original as f64).ln()).sqrt() as f32,
        };
        let limit = (long != divisors && original < context).then_some(original);
        Ok(LongRope { divisors, magnitude, limit })
    }
}

fn read_list(fields: Fields<'_>, name: &str, pairs: usize) -> Result<Vec<f32>> {
    let list = fields.list(name)?.ok_or_else(|| fields.invalid(name, "is missing for `longrope`"))?;
    let divisor = |value: &Value| {
        let number = value.as_f64().map(|number| number as f32);
        number.filter(|number| number.is_finite() && *number > 0.0)
    };
    let divisors: Option<Vec<f32>> = list.iter().map(divisor).collect();
    divisors.filter(|divisors| divisors.len() == pairs).ok_or_else(|| {
        let reason = format!("is a list of {}, expected {pairs} positive numbers", list.len());
        fields.invalid(name, reason)
    })
}
