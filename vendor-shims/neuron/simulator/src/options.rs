//! Option strings: `--name value`, `--name=value`, `--name`, `-O3`, with quotes and backslashes as
//! in a shell.

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// The name without dashes.
    pub name: String,
    /// The value, empty for a switch.
    pub value: String,
}

/// Maximum number of options. A text with more is not an option string.
const MOST: usize = 1024;
/// Maximum length of an option string in bytes.
pub const LONGEST: usize = 64 << 10;

/// Parses the options of a text, in order.
///
/// # Errors
///
/// The first problem of the text.
pub fn parse(text: &str) -> Result<Vec<Flag>, String> {
    let mut flags: Vec<Flag> = Vec::new();
    for word in words(text)? {
        if let Some(name) = word.text.strip_prefix("--").filter(|_| !word.quoted) {
            let (name, value) = name.split_once('=').unwrap_or((name, ""));
            if name.is_empty() {
                return Err("`--` without a name".to_owned());
            }
            flags.push(Flag { name: name.to_owned(), value: value.to_owned() });
        } else if let Some(level) = word.text.strip_prefix("-O").filter(|_| !word.quoted) {
            flags.push(Flag { name: "opt".to_owned(), value: level.to_owned() });
        } else {
            match flags.last_mut() {
                Some(flag) if flag.value.is_empty() => flag.value = word.text,
                _ => return Err(format!("`{}` belongs to no option", word.text)),
            }
        }
        if flags.len() > MOST {
            return Err(format!("more than {MOST} options"));
        }
    }
    Ok(flags)
}

struct Word {
    text: String,
    quoted: bool,
}

fn words(text: &str) -> Result<Vec<Word>, String> {
    if text.len() > LONGEST {
        return Err(format!("{} bytes of options", text.len()));
    }
    let mut words = Vec::new();
    let mut current: Option<Word> = None;
    let mut quote = None;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match (quote, character) {
            (Some(open), close) if close == open => quote = None,
            (Some('\''), other) => {
                current.get_or_insert_with(|| Word { text: String::new(), quoted: true }).text.push(other)
            }
            (_, '\\') => {
                let Some(next) = characters.next() else { return Err("a backslash at the end".to_owned()) };
                current.get_or_insert_with(|| Word { text: String::new(), quoted: false }).text.push(next);
            }
            (Some(_), other) => {
                current.get_or_insert_with(|| Word { text: String::new(), quoted: true }).text.push(other)
            }
            (None, '"' | '\'') => {
                quote = Some(character);
                current.get_or_insert_with(|| Word { text: String::new(), quoted: true });
            }
            (None, space) if space.is_whitespace() => words.extend(current.take()),
            (None, other) => {
                current.get_or_insert_with(|| Word { text: String::new(), quoted: false }).text.push(other)
            }
        }
    }
    if quote.is_some() {
        return Err("a quote is not closed".to_owned());
    }
    words.extend(current);
    Ok(words)
}

/// Options that public sources name. A library is assumed to know them unless its configuration
/// specifies otherwise.
pub const KNOWN: &[&str] = &[
    "adapter-disable-map-fd",
    "apusys-config",
    "arch",
    "avoid-reorder",
    "broadcast-act-wgt",
    "broadcast-flow-distance",
    "disable-apusys",
    "disallow-bridge",
    "dla-file",
    "dla-opt",
    "extract-static-data",
    "fc-to-conv",
    "gen-debug-info",
    "gno",
    "gno-exp",
    "gno-non-4d-tiling",
    "l1-size-kb",
    "l2-size-kb",
    "mdla-broadcast-act-wgt",
    "mdla-bw",
    "mdla-conv-exp",
    "mdla-flash-attention-mode",
    "mdla-freq",
    "mdla-int16-lut",
    "mdla-mlo",
    "mdla-mlo-match-info",
    "mdla-set-conv-xy-split-ic-threshold",
    "mdla-wt-to-l1",
    "mem-opt",
    "mlo",
    "num-mdla",
    "num-mvpu",
    "opt",
    "opt-accuracy",
    "opt-aggressive",
    "opt-bw",
    "opt-footprint",
    "opt-size",
    "option-bundle",
    "platform-config",
    "prefer-large-acc",
    "relax-fp32",
    "req-per-ch-conv",
    "reshape-to-4d",
    "rewrite-pattern",
    "show-exec-plan",
    "show-memory-summary",
    "split-16a4w-conv-oc",
    "split-large-conv-ic",
    "stable-linearize",
    "subsys",
    "suppress-input",
    "suppress-output",
    "trim-io-alignment",
    "use-sw-deconv",
    "use-sw-dilated-conv",
];

/// Options that only select file locations, printed output or the driver. They are accepted and do
/// not change code.
pub const WITHOUT_EFFECT_ON_CODE: &[&str] =
    &["dla-file", "gen-debug-info", "mdla-mlo-match-info", "show-exec-plan", "show-memory-summary"];

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        parse(text).expect("well formed").into_iter().map(|flag| (flag.name, flag.value)).collect()
    }

    #[test]
    fn options_are_read_in_every_spelling() {
        let found = pairs(
            r#" --opt-accuracy --opt 3 --gno=LTS,Inception -O2 --apusys-config "{ \"high_addr\": true }" --x='a b'"#,
        );
        let expected = [
            ("opt-accuracy", ""),
            ("opt", "3"),
            ("gno", "LTS,Inception"),
            ("opt", "2"),
            ("apusys-config", "{ \"high_addr\": true }"),
            ("x", "a b"),
        ];
        assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert!(pairs("").is_empty());
    }

    #[test]
    fn what_is_no_option_string_is_refused() {
        for text in ["stray", "--a b c", "--", "--a \"open", "--a \\", &"-".repeat(LONGEST + 1)] {
            assert!(parse(text).is_err(), "{text:.20}");
        }
    }
}
