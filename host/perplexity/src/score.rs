//! The scores of a window, token by token.

use serde::{Deserialize, Serialize};

/// Scores of the last tokens of a window, in their order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WindowScore {
    /// Nats of each token.
    #[serde(with = "bits")]
    pub nll: Vec<f64>,
    /// Comparison with the reference. `None` without one.
    pub against: Option<Against>,
}

/// Comparison with a reference, token by token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Against {
    /// Nats of each token by the reference.
    #[serde(with = "bits")]
    pub nll: Vec<f64>,
    /// KL(reference ‖ model) in nats.
    #[serde(with = "bits")]
    pub kl: Vec<f64>,
    /// Whether both have the same likeliest token.
    pub same_top: Vec<bool>,
}

impl WindowScore {
    /// Checks whether every column has this number of tokens.
    pub fn has(&self, tokens: usize) -> bool {
        let against = self.against.as_ref().is_none_or(|against| {
            [against.nll.len(), against.kl.len(), against.same_top.len()] == [tokens; 3]
        });
        self.nll.len() == tokens && against
    }
}

/// Floats as the integers of their bits: JSON numbers may change in the last digit.
mod bits {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(values: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(|value| value.to_bits()))
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
        let bits = Vec::<u64>::deserialize(deserializer)?;
        Ok(bits.into_iter().map(f64::from_bits).collect())
    }
}
