//! Option strings of the Neuron compiler, such as
//! `--opt 3 --gno=LTS,Inception --apusys-config "{ \"high_addr\": true }"`.
//!
//! Their grammar is not published. Observed strings consist of words separated by blanks. Text with
//! blanks is in double quotes, and a quote within quotes follows a backslash. A value follows a
//! blank or `=`. `-O3` means `--opt 3`. An option is a switch if it is the last word, or if the
//! next word starts with a hyphen and is not a number.

use std::fmt;

use serde::Serialize;

/// Maximum length of an option string in bytes. The longest observed string has about 600.
pub const MAX_BYTES: usize = 16 << 10;
/// Maximum number of options.
pub const MAX_OPTIONS: usize = 512;

/// An option with its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CompilerOption {
    /// Name without the hyphens, for example `opt`.
    pub name: String,
    /// Value, `true` for a switch.
    pub value: String,
}

impl CompilerOption {
    /// Creates an option.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        CompilerOption { name: name.into(), value: value.into() }
    }
}

/// A parsed option string, with the original order and repetitions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct OptionString(pub Vec<CompilerOption>);

/// The reason why a text is not an option string.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// The text is too long, or has too many options.
    #[error(
        "an option string of {bytes} bytes and {options} options; at most {MAX_BYTES} and {MAX_OPTIONS} are read"
    )]
    TooLong {
        /// Length of the text in bytes.
        bytes: usize,
        /// Number of options that were counted so far.
        options: usize,
    },
    /// A quote is not closed.
    #[error("the quote at byte {at} of the option string does not end")]
    Quote {
        /// Offset of the quote.
        at: usize,
    },
    /// A word is neither an option nor the value of an option.
    #[error("`{word}` at byte {at} of the option string is neither an option nor a value")]
    Stray {
        /// Offset of the word.
        at: usize,
        /// The word, truncated.
        word: String,
    },
    /// The text contains a control character, which could end or hide a text.
    #[error("a control character at byte {at} of the option string")]
    Control {
        /// Offset of the character.
        at: usize,
    },
}

/// A word and its offset.
struct Word {
    at: usize,
    text: String,
    /// Whether the word started with a quote. Such a word is always a value.
    quoted: bool,
}

fn words(text: &str) -> Result<Vec<Word>, OptionsError> {
    let mut words: Vec<Word> = Vec::new();
    let mut characters = text.char_indices().peekable();
    while let Some(&(at, first)) = characters.peek() {
        if first == ' ' {
            characters.next();
            continue;
        }
        let mut word = Word { at, text: String::new(), quoted: first == '"' };
        let mut open: Option<usize> = None;
        while let Some(&(at, character)) = characters.peek() {
            match character {
                ' ' if open.is_none() => break,
                '"' => open = if open.is_some() { None } else { Some(at) },
                '\\' if open.is_some() => {
                    characters.next();
                    match characters.peek() {
                        Some((_, escaped)) => word.text.push(*escaped),
                        None => break,
                    }
                }
                character => word.text.push(character),
            }
            characters.next();
        }
        if let Some(at) = open {
            return Err(OptionsError::Quote { at });
        }
        words.push(word);
        if words.len() > 2 * MAX_OPTIONS {
            return Err(OptionsError::TooLong { bytes: text.len(), options: words.len() });
        }
    }
    Ok(words)
}

/// Returns the option name in a word: hyphens followed by a letter.
fn option_name(word: &Word) -> Option<&str> {
    if word.quoted {
        return None;
    }
    let name = word.text.strip_prefix("--").or_else(|| word.text.strip_prefix('-'))?;
    name.starts_with(|c: char| c.is_ascii_alphabetic()).then_some(name)
}

impl OptionString {
    /// Parses a text.
    ///
    /// # Errors
    ///
    /// For a text that is too long, or that has an unterminated quote, a control character, or a
    /// word that does not belong to an option.
    pub fn parse(text: &str) -> Result<OptionString, OptionsError> {
        if text.len() > MAX_BYTES {
            return Err(OptionsError::TooLong { bytes: text.len(), options: 0 });
        }
        if let Some(at) = text.find(char::is_control) {
            return Err(OptionsError::Control { at });
        }
        let words = words(text)?;
        let mut options: Vec<CompilerOption> = Vec::new();
        let mut words = words.into_iter().peekable();
        while let Some(word) = words.next() {
            let Some(name) = option_name(&word) else {
                let cut = word.text.chars().take(64).collect();
                return Err(OptionsError::Stray { at: word.at, word: cut });
            };
            let option = if let Some((name, value)) = name.split_once('=') {
                CompilerOption::new(name, value)
            } else if let Some(level) = optimisation_level(&word.text) {
                CompilerOption::new("opt", level)
            } else {
                let value = words.next_if(|next| option_name(next).is_none());
                let name = if word.text == "-O" { "opt" } else { name };
                CompilerOption::new(name, value.map_or_else(|| "true".to_owned(), |value| value.text))
            };
            options.push(option);
            if options.len() > MAX_OPTIONS {
                return Err(OptionsError::TooLong { bytes: text.len(), options: options.len() });
            }
        }
        Ok(OptionString(options))
    }

    /// Returns the value of an option. If it is set more than once, returns the last value. It is
    /// unknown which of them a compiler uses.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|option| option.name == name).map(|option| option.value.as_str())
    }

    /// Lists the options that are set more than once with different values.
    pub fn contradictions(&self) -> Vec<&str> {
        let mut found: Vec<&str> = Vec::new();
        for (index, option) in self.0.iter().enumerate() {
            let differs = |other: &CompilerOption| other.name == option.name && other.value != option.value;
            if self.0[..index].iter().any(differs) && !found.contains(&option.name.as_str()) {
                found.push(&option.name);
            }
        }
        found
    }
}

/// Returns the level in a word such as `-O3`.
fn optimisation_level(word: &str) -> Option<&str> {
    let level = word.strip_prefix("-O")?;
    (!level.is_empty() && level.bytes().all(|byte| byte.is_ascii_digit())).then_some(level)
}

/// Writes `--name value`, or only the name for a switch. A value is quoted if it would otherwise be
/// split or read as an option.
impl fmt::Display for OptionString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, CompilerOption { name, value }) in self.0.iter().enumerate() {
            let blank = if index == 0 { "" } else { " " };
            let plain = |c: char| !matches!(c, ' ' | '"' | '\\');
            if value == "true" {
                write!(f, "{blank}--{name}")?;
            } else if !value.is_empty() && value.chars().all(plain) && !value.starts_with('-') {
                write!(f, "{blank}--{name} {value}")?;
            } else {
                let quoted = value.replace('\\', "\\\\").replace('"', "\\\"");
                write!(f, "{blank}--{name} \"{quoted}\"")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<(String, String)> {
        let options = OptionString::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        options.0.into_iter().map(|option| (option.name, option.value)).collect()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn both_spellings_of_a_value_are_one() {
        for text in
            ["--opt 3 --relax-fp32", "--opt=3 --relax-fp32", "  -O3   --relax-fp32 ", "-O 3 --relax-fp32"]
        {
            assert_eq!(parsed(text), pairs(&[("opt", "3"), ("relax-fp32", "true")]), "{text}");
        }
        assert_eq!(parsed(""), pairs(&[]));
        assert_eq!(parsed("--a=b=c --d="), pairs(&[("a", "b=c"), ("d", "")]));
    }

    #[test]
    fn what_the_field_passes_is_read_and_written_again() {
        let text =
            r#"--apusys-config "{ \"high_addr\": true, \"import_forever\": true }" --adapter-disable-map-fd"#;
        let config = r#"{ "high_addr": true, "import_forever": true }"#;
        assert_eq!(parsed(text), pairs(&[("apusys-config", config), ("adapter-disable-map-fd", "true")]));
        assert_eq!(OptionString::parse(text).expect("legal").to_string(), text);
        let published = "--relax-fp32 --show-exec-plan --mdla-flash-attention-mode 0 --opt 3 --gno LTS,Inception --num-mdla 4";
        let options = OptionString::parse(published).expect("legal");
        assert_eq!(options.to_string(), published);
        assert_eq!((options.get("gno"), options.get("opt-size")), (Some("LTS,Inception"), None));
    }

    #[test]
    fn a_negative_number_is_a_value_and_a_quoted_hyphen_too() {
        assert_eq!(parsed("--bias -1 --next"), pairs(&[("bias", "-1"), ("next", "true")]));
        let odd = OptionString(vec![CompilerOption::new("a", "--b"), CompilerOption::new("c", "")]);
        assert_eq!(OptionString::parse(&odd.to_string()), Ok(odd));
    }

    #[test]
    fn contradictions_are_named_once() {
        let options = OptionString::parse("--opt 3 --a --opt 2 --opt 1 --a").expect("legal");
        assert_eq!((options.contradictions(), options.get("opt")), (vec!["opt"], Some("1")));
    }

    #[test]
    fn what_is_no_option_string_is_said() {
        assert_eq!(OptionString::parse("--a \"b"), Err(OptionsError::Quote { at: 4 }));
        assert!(
            matches!(OptionString::parse("a --b"), Err(OptionsError::Stray { at: 0, word }) if word == "a")
        );
        assert_eq!(OptionString::parse("--a \0"), Err(OptionsError::Control { at: 4 }));
        let long = OptionString::parse(&"x".repeat(MAX_BYTES + 1));
        assert!(matches!(long, Err(OptionsError::TooLong { .. })));
        assert!(matches!(
            OptionString::parse(&"-a ".repeat(600)),
            Err(OptionsError::TooLong { options: 513, .. })
        ));
    }
}
