//! Closed lists of names, and the error for a word that is not in one.

use std::fmt;

/// A word that is not in a closed list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownName {
    /// The kind of name that was expected, such as "provenance".
    pub what: &'static str,
    /// The word that was passed, cut to a printable length.
    pub value: String,
    /// Every name of the list, comma separated.
    pub expected: String,
}

impl UnknownName {
    /// Maximum number of characters of an unknown word that a message repeats. The word may come
    /// from a hostile file.
    const QUOTED_CHARS: usize = 64;

    pub(crate) fn new(what: &'static str, value: &str, expected: String) -> Self {
        Self { what, value: value.chars().take(Self::QUOTED_CHARS).collect(), expected }
    }

    /// Returns the known names, as help for the user.
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

/// Defines a closed list of names: an enum with `ALL`, `name`, `Display`, `FromStr` and serde
/// support based on the names.
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

            /// Returns the stable kebab-case name.
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
