use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind};

/// A compiler flag with the requested value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flag {
    /// Name as in the schema.
    pub name: String,
    /// Value as text. `true` or `false` for a switch.
    pub value: String,
}

impl fmt::Display for Flag {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}={}", self.name, self.value)
    }
}

impl Flag {
    /// Returns whether `schema` has this flag at stage [`FlagStage::Load`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Argument`] if the flag does not accept the value.
    pub fn is_taken_at_load(&self, schema: &[FlagSchema]) -> crate::Result<bool> {
        let Some(known) = schema.iter().find(|known| known.name == self.name) else { return Ok(false) };
        if known.stage == FlagStage::Compile {
            return Ok(false);
        }
        known.accepts(&self.value).map_err(|expected| self.refused(&format!("it takes {expected}")))?;
        Ok(true)
    }

    /// Returns the error that the flag cannot be set because of `why`.
    pub fn refused(&self, why: &str) -> Error {
        Error::new(ErrorKind::Argument, format!("flag {self}: {why}"))
            .with_help("`shardwright shim list` lists every flag")
    }
}

/// The legal values of a flag.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum FlagType {
    /// `true` or `false`.
    Switch,
    /// A decimal integer in an inclusive range.
    Integer {
        /// Smallest legal value.
        min: i64,
        /// Largest legal value.
        max: i64,
    },
    /// One of a list of words.
    Choice {
        /// The legal words.
        values: Vec<String>,
    },
    /// Free text of limited length.
    Text {
        /// Longest legal value in bytes.
        max_bytes: u32,
    },
}

/// The stage at which a flag has its effect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlagStage {
    /// The flag is passed to the compiler, and artefacts may depend on it. Only a plan can set it.
    #[default]
    Compile,
    /// The flag is set when shards are loaded, and no artefact depends on it. A plan sets it, and a
    /// session may override it, even for a bundle.
    Load,
}

impl FlagStage {
    /// Returns the stable kebab-case name.
    pub const fn name(self) -> &'static str {
        match self {
            FlagStage::Compile => "compile",
            FlagStage::Load => "load",
        }
    }

    fn is_compile(&self) -> bool {
        *self == FlagStage::Compile
    }
}

/// One flag that a shim supports.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlagSchema {
    /// Name, unique in the schema of a target.
    pub name: String,
    /// Legal values.
    pub values: FlagType,
    /// Value if the flag is not set. `None` if the vendor does not document it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// Effect of the flag, in one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Stage at which the flag has its effect.
    #[serde(default, skip_serializing_if = "FlagStage::is_compile")]
    pub stage: FlagStage,
}

impl FlagSchema {
    /// Checks whether `value` is legal. The error describes the legal values.
    pub fn accepts(&self, value: &str) -> Result<(), String> {
        match &self.values {
            FlagType::Switch if matches!(value, "true" | "false") => Ok(()),
            FlagType::Switch => Err("`true` or `false`".to_owned()),
            FlagType::Integer { min, max } => match value.parse::<i64>() {
                Ok(number) if (*min..=*max).contains(&number) => Ok(()),
                _ => Err(format!("an integer from {min} to {max}")),
            },
            FlagType::Choice { values } if values.iter().any(|known| known == value) => Ok(()),
            FlagType::Choice { values } => Err(format!("one of {}", values.join(", "))),
            FlagType::Text { max_bytes } if value.len() <= *max_bytes as usize => Ok(()),
            FlagType::Text { max_bytes } => Err(format!("text of at most {max_bytes} bytes")),
        }
    }
}

/// The outcome of a flag. The echo of a flag in an artefact does not prove an effect, so *recorded*
/// is not *applied*.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "kebab-case", deny_unknown_fields)]
pub enum FlagVerdict {
    /// The flag had an effect.
    Applied {
        /// Evidence of the effect.
        evidence: String,
    },
    /// The compiler echoed the flag, but no effect is proven.
    Recorded,
    /// Compiling with and without the flag gave the same code.
    Inert,
    /// The compiler rejected the flag.
    Refused,
    /// The compiler did not report on the flag.
    Unknown,
}

impl FlagVerdict {
    /// Returns the stable kebab-case name, without the evidence.
    pub const fn name(&self) -> &'static str {
        match self {
            FlagVerdict::Applied { .. } => "applied",
            FlagVerdict::Recorded => "recorded",
            FlagVerdict::Inert => "inert",
            FlagVerdict::Refused => "refused",
            FlagVerdict::Unknown => "unknown",
        }
    }
}

impl fmt::Display for FlagVerdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlagVerdict::Applied { evidence } => write!(formatter, "applied ({evidence})"),
            other => formatter.write_str(other.name()),
        }
    }
}
