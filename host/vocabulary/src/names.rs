//! Closed lists of names, and the error for a word that is not in one.

use std::fmt;

/// A word that is not in a closed list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownName {
    /// What the word should name, such as "provenance".
    pub what: &'static str,
    /// The word that was passed, cut to a printable length.
    pub value: String,
    /// Every name of the list, comma separated.
    pub expected: String,
}

impl UnknownName {
    /// Longest part of an unknown word that is repeated in a message; the word may come from a
    /// hostile file.
    const QUOTED_CHARS: usize = 64;

    pub(crate) fn new(what: &'static str, value: &str, expected: String) -> Self {
        Self { what, value: value.chars().take(Self::QUOTED_CHARS).collect(), expected }
    }

    /// Help: the known names.
    pub fn help(&self) -> Option<String> {
        Some(format!("known names: {}", self.expected))
    }
}

impl fmt::Display for UnknownName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "unknown {} `{}`", self.what, self.value)
    }
}

impl std::error::Error for UnknownName {}

/// A closed list of names: an enum with `ALL`, `name`, `Display`, `FromStr` and serde by the names.
macro_rules! names {
    ($(#[$meta:meta])* $type:ident, $what:literal { $($(#[$case_meta:meta])* $case:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
        )]
        pub enum $type {
            $($(#[$case_meta])* #[serde(rename = $name)] $case,)+
        }

        impl $type {
            /// Every member, in the order of declaration.
            pub const ALL: &'static [$type] = &[$($type::$case,)+];

            /// The stable kebab-case name.
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$case => $name,)+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::UnknownName;

            fn from_str(text: &str) -> Result<Self, $crate::UnknownName> {
                match text {
                    $($name => Ok($type::$case),)+
                    _ => Err($crate::UnknownName::new($what, text, [$($name),+].join(", "))),
                }
            }
        }
    };
}

pub(crate) use names;
