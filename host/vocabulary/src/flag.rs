use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind};

/// A compiler flag with the value asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flag {
    /// Name as the schema spells it.
    pub name: String,
    /// Value as text; `true`/`false` for a switch.
    pub value: String,
}

impl fmt::Display for Flag {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}={}", self.name, self.value)
    }
}

impl Flag {
    /// Whether `schema` has this flag, set when shards are loaded, and accepts the value.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Argument`] if it does not accept the value.
    pub fn is_taken_at_load(&self, schema: &[FlagSchema]) -> crate::Result<bool> {
        let Some(known) = schema.iter().find(|known| known.name == self.name) else { return Ok(false) };
        if known.stage == FlagStage::Compile {
            return Ok(false);
        }
        known.accepts(&self.value).map_err(|expected| self.refused(&format!("it takes {expected}")))?;
        Ok(true)
    }

    /// The error that the flag cannot be set, and why.
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
    /// Free text of at most so many bytes.
    Text {
        /// Longest legal value in bytes.
        max_bytes: u32,
    },
}

/// When a flag takes effect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlagStage {
    /// It is passed to the compiler, and artefacts may depend on it: a plan decides it.
    #[default]
    Compile,
    /// It is set when shards are loaded, and no artefact depends on it: a plan decides it, and a
    /// session may decide otherwise, for a bundle too.
    Load,
}

impl FlagStage {
    /// The stable kebab-case name.
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

/// One flag a shim understands.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlagSchema {
    /// Name, unique in the schema of a target.
    pub name: String,
    /// Legal values.
    pub values: FlagType,
    /// Value if the flag is not set; `None` if the vendor does not document it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// What it does, in one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// When it takes effect.
    #[serde(default, skip_serializing_if = "FlagStage::is_compile")]
    pub stage: FlagStage,
}

impl FlagSchema {
    /// Whether `value` is legal; if not, what is.
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

/// The outcome of a flag. An echo in an artefact proves nothing, hence *recorded* is not *applied*.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "kebab-case", deny_unknown_fields)]
pub enum FlagVerdict {
    /// The flag had an effect.
    Applied {
        /// The evidence.
        evidence: String,
    },
    /// The compiler echoed it; no effect is shown.
    Recorded,
    /// Compiling with and without it gave the same code.
    Inert,
    /// The compiler rejected it.
    Refused,
    /// The compiler said nothing about it.
    Unknown,
}

impl FlagVerdict {
    /// The stable kebab-case name, without the evidence.
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
