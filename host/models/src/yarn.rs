//! `yarn`: slow pairs are divided and fast pairs are not. Pairs in between are divided by a share
//! that grows with their index (Peng et al. 2023, "YaRN: Efficient Context Window Extension").

use std::f64::consts::TAU;

use shardwright_vocabulary::Result;

use crate::json::Fields;
use crate::limits;

pub(crate) struct Yarn {
    /// A divisor for each rotated pair.
    pub divisors: Vec<f32>,
    /// Factor on cosines and sines.
    pub magnitude: f32,
}

/// Names of the fields of this type.
pub(crate) const FIELDS: [&str; 7] =
    ["factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"];

impl Yarn {
    /// Reads the parameters of heads with `pairs` rotated pairs and a base of `theta`. `context` is
    /// the default for the positions of training.
    ///
    /// Source: `_compute_yarn_parameters` of transformers.
    pub fn read(fields: Fields<'_>, pairs: usize, theta: f32, context: u64) -> Result<Self> {
        let number = |name| fields.positive(name).map(|number| number.map(f64::from));
        let original = fields.whole("original_max_position_embeddings", &limits::CONTEXT)?.unwrap_or(context);
        let factor = number("factor")?.ok_or_else(|| fields.invalid("factor", "is missing for `yarn`"))?;
        let scale = |share: f64| if factor <= 1.0 { 1.0 } else { 0.1 * share * factor.ln() + 1.0 };
        let magnitude = match (number("attention_factor")?, number("mscale")?, number("mscale_all_dim")?) {
            (Some(magnitude), _, _) => magnitude,
            (None, Some(one), Some(all)) => scale(one) / scale(all),
            (None, _, _) => scale(1.0),
        };
        // The index of the pair that makes this many turns within the positions of training.
        let width = 2.0 * pairs as f64;
        let pair =
            |turns: f64| width * (original as f64 / (turns * TAU)).ln() / (2.0 * f64::from(theta).ln());
        let (fast, slow) = (number("beta_fast")?.unwrap_or(32.0), number("beta_slow")?.unwrap_or(1.0));
        let (mut low, mut high) = (pair(fast), pair(slow));
        if fields.flag("truncate")?.unwrap_or(true) {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, mut high) = (low.max(0.0), high.min(width - 1.0));
        if !(low.is_finite() && high.is_finite()) {
            return Err(fields.invalid("rope_theta", "is 1, which turns all pairs alike"));
        }
        if low == high {
            high += 0.001;
        }
        let divisor = |pair: usize| {
            let slow = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
            (slow / factor + (1.0 - slow)).recip() as f32
        };
        Ok(Yarn { divisors: (0..pairs).map(divisor).collect(), magnitude: magnitude as f32 })
    }
}
