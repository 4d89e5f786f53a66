use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

use crate::{Error, Result};

/// A LoRA adapter to merge into the weights of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lora {
    /// Folder in PEFT layout: `adapter_config.json` and `adapter_model.safetensors`.
    pub folder: PathBuf,
    /// Factor of the adapter's change, in addition to the scaling of its settings.
    pub scale: LoraScale,
}

/// Factor of an adapter's change: a finite number. The default of 1 applies the adapter as it was
/// trained.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(transparent)]
pub struct LoraScale(f64);

impl LoraScale {
    /// Creates a factor.
    ///
    /// # Errors
    ///
    /// If the number is infinite or not a number.
    pub fn new(factor: f64) -> Result<Self> {
        match factor.is_finite() {
            // Both zeros are equal, so that they have equal bits.
            true => Ok(LoraScale(if factor == 0.0 { 0.0 } else { factor })),
            false => Err(Error::argument(format!("expected a finite scale of an adapter, got {factor}"))
                .with_help("use a number such as 0.5; the default is 1")),
        }
    }

    /// Returns the factor.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl Default for LoraScale {
    fn default() -> Self {
        LoraScale(1.0)
    }
}

impl PartialEq for LoraScale {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for LoraScale {}

impl fmt::Display for LoraScale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for LoraScale {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let number = text.parse().map_err(|_| {
            Error::argument(format!("`{text}` is not a number"))
                .with_help("use a number such as 0.5 as the scale of an adapter; the default is 1")
        })?;
        LoraScale::new(number)
    }
}

impl<'de> Deserialize<'de> for LoraScale {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        LoraScale::new(f64::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_finite_numbers() {
        assert_eq!("0.5".parse::<LoraScale>().unwrap().get(), 0.5);
        assert_eq!("-0".parse::<LoraScale>().unwrap(), LoraScale::new(0.0).unwrap());
        assert_eq!(serde_json::to_string(&LoraScale::default()).unwrap(), "1.0");
        assert_eq!(serde_json::from_str::<LoraScale>("2").unwrap().to_string(), "2");
        for wrong in ["", "half", "inf", "NaN", "1e999"] {
            let error = wrong.parse::<LoraScale>().unwrap_err();
            assert!(error.help().is_some_and(|help| help.contains("0.5")), "{wrong}: {error}");
        }
    }
}
