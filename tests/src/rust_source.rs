//! Simple scans of Rust source. They read text, not syntax. They recognise comments and literals,
//! and otherwise rely on rustfmt, which the whole tree passes.

/// Returns the source with comments, strings and character literals blanked out, so that only code
/// remains. Line breaks are kept.
pub fn code_only(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let length = if rest.starts_with(b"//") {
            rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len())
        } else if rest.starts_with(b"/*") {
            block_comment(rest)
        } else if let Some(length) = raw_string(bytes, at) {
            length
        } else if rest[0] == b'"' {
            quoted(rest, b'"')
        } else if rest[0] == b'\'' && is_character(rest) {
            quoted(rest, b'\'')
        } else {
            at += 1;
            continue;
        };
        for byte in &mut code[at..at + length] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at += length;
    }
    // Whole literals and comments were blanked, so no character was cut in two.
    String::from_utf8(code).expect("blanking keeps UTF-8")
}

/// Returns the part of a source file that is compiled for tests only: from its first `#[cfg(test)]`
/// that opens a module. Empty if there is none.
pub fn test_part(source: &str) -> &str {
    source
        .match_indices("#[cfg(test)]")
        .find(|(at, _)| source[*at..].lines().nth(1).is_some_and(|line| line.contains("mod ")))
        .map_or("", |(at, _)| &source[at..])
}

/// One enum of a source file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enum {
    pub name: String,
    pub variants: Vec<String>,
}

/// Returns the public enums of a source file whose name ends with `suffix`.
pub fn public_enums(source: &str, suffix: &str) -> Vec<Enum> {
    let code = code_only(source);
    let mut enums = Vec::new();
    for (at, marker) in code.match_indices("pub enum ") {
        let rest = &code[at + marker.len()..];
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if !name.ends_with(suffix) {
            continue;
        }
        let Some(body) = rest.split_once('{').map(|(_, body)| body) else { continue };
        enums.push(Enum { name, variants: variants(body) });
    }
    enums
}

/// Returns the words at depth 0 of an enum's body that begin a variant: the first word, and the
/// first after each comma.
fn variants(body: &str) -> Vec<String> {
    let mut variants = Vec::new();
    let (mut depth, mut expecting) = (0_usize, true);
    let mut characters = body.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '}' if depth == 0 => break,
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => depth -= 1,
            ',' if depth == 0 => expecting = true,
            c if depth == 0 && expecting && (c.is_alphabetic() || c == '_') => {
                let name: String =
                    body[at..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                for _ in 1..name.chars().count() {
                    characters.next();
                }
                variants.push(name);
                expecting = false;
            }
            _ => {}
        }
    }
    variants
}

/// Checks whether `word` occurs in `text` as a whole word.
pub fn has_word(text: &str, word: &str) -> bool {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(in_word) && !text[at + word.len()..].starts_with(in_word))
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// Returns the length of a raw string that starts at `at`, if there is one.
fn raw_string(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = &bytes[at..];
    let after_word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
    // `br"…"` is found at its `b`, `r"…"` at its `r`.
    let prefix = if rest.starts_with(b"br") { 2 } else { usize::from(rest.starts_with(b"r")) };
    if prefix == 0 || after_word {
        return None;
    }
    let hashes = rest[prefix..].iter().take_while(|&&byte| byte == b'#').count();
    let open = prefix + hashes;
    if rest.get(open) != Some(&b'"') {
        return None;
    }
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let body = &rest[open + 1..];
    let end = body.windows(close.len()).position(|window| window == close)?;
    Some(open + 1 + end + close.len())
}

/// Checks for a character literal, not a lifetime: a quote closes it after one character or an
/// escape.
fn is_character(rest: &[u8]) -> bool {
    match rest.get(1) {
        Some(b'\\') => true,
        Some(&first) => {
            let width = match first {
                0xf0.. => 4,
                0xe0.. => 3,
                0xc0.. => 2,
                _ => 1,
            };
            rest.get(1 + width) == Some(&b'\'')
        }
        None => false,
    }
}

fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_no_code() {
        for (source, code) in [
            ("a // unsafe\nb", "a          \nb"),
            ("a /* x /* y */ z */ b", "a                   b"),
            (r#"let a = "un\"safe"; b"#, r#"let a =           ; b"#),
            ("r\"x\" r#\"a\"b\"# br\"y\" c", "                       c"),
            ("'a' '\\'' 'é' &'a str", "             &'a str"),
            ("for\"x\"", "for   "),
        ] {
            let blanked = code_only(source);
            assert_eq!(
                blanked.split_whitespace().collect::<Vec<_>>(),
                code.split_whitespace().collect::<Vec<_>>()
            );
            assert_eq!(blanked.len(), source.len());
        }
    }

    #[test]
    fn enums_are_read_with_attributes_fields_and_discriminants() {
        let source = r#"
            /// Text with { braces and Words, in it.
            pub enum ReadError {
                #[error("a, {b}")]
                Missing { path: PathBuf, names: Vec<(u8, u8)> },
                /// Wrong, Very.
                Wrong(u8, String),
                Last = 3,
            }
            pub enum Other { A }
            enum PrivateError { B }
        "#;
        let expected = Enum {
            name: "ReadError".to_owned(),
            variants: ["Missing", "Wrong", "Last"].map(str::to_owned).to_vec(),
        };
        assert_eq!(public_enums(source, "Error"), [expected]);
    }

    #[test]
    fn words_and_test_parts() {
        assert!(has_word("E::Missing { .. }", "Missing"));
        assert!(!has_word("E::MissingFile", "Missing") && !has_word("NotMissing", "Missing"));
        assert_eq!(test_part("fn a() {}\n#[cfg(test)]\nmod tests {}"), "#[cfg(test)]\nmod tests {}");
        assert_eq!(test_part("#[cfg(test)]\nuse x;\nfn a() {}"), "");
    }
}
