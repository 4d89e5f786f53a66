//! Renders the template of the page. Markup comes from the template alone, text from any source.

use std::fmt::Write as _;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, Output, State, UndefinedBehavior, Value};
use shardwright_bundle::Digest;

/// Renders the page with these values.
pub fn rendered(values: Value) -> String {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the usual delimiters"));
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_formatter(format);
    environment.add_filter("prose", |text: &str| Value::from_safe_string(prose(text)));
    environment.add_filter("filled", |thousandths: u64| {
        let full = thousandths.min(1000);
        format!("{}.{}%", full / 10, full % 10)
    });
    let page = environment.render_named_str("page.html", include_str!("page.html"), values);
    // Jinja drops the last newline of a template.
    page.expect("the template names only values that exist") + "\n"
}

/// Writes a value. Text is escaped, unless a filter or a macro of the template made it.
fn format(output: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    let text = value.to_string();
    output.write_str(&if value.is_safe() { text } else { escaped(&text) }).map_err(Error::from)
}

/// Escapes text for a place between tags, or in an attribute in double quotes.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in crate::views::printable(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Escapes text for a place between tags. Words in backticks become code.
fn prose(text: &str) -> String {
    let parts: Vec<&str> = text.split('`').collect();
    let mut out = String::new();
    for (index, part) in parts.iter().enumerate() {
        let part = escaped(part);
        _ = match index % 2 {
            0 => write!(out, "{part}"),
            // A backtick without a second one.
            _ if index + 1 == parts.len() => write!(out, "`{part}"),
            _ => write!(out, "<code>{part}</code>"),
        };
    }
    out
}

/// Returns the hash of a script, as in a content security policy.
pub fn sha256_base64(script: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in Digest::of(script.as_bytes()).bytes().chunks(3) {
        let bits = chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - chunk.len()));
        for digit in 0..=chunk.len() {
            text.push(char::from(DIGITS[(bits >> (18 - 6 * digit)) as usize & 63]));
        }
        text.extend(std::iter::repeat_n('=', 3 - chunk.len()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_leave_its_place() {
        assert_eq!(
            escaped("\"'><script>&\u{1b}\u{202e}"),
            "&quot;&#39;&gt;&lt;script&gt;&amp;\u{fffd}\u{fffd}"
        );
    }

    #[test]
    fn words_in_backticks_are_code() {
        for (text, expected) in [
            ("shim `qnn` and `<b>`", "shim <code>qnn</code> and <code>&lt;b&gt;</code>"),
            ("`--soc`", "<code>--soc</code>"),
            ("a ` alone", "a ` alone"),
            ("`one` and ` another", "<code>one</code> and ` another"),
            ("none", "none"),
        ] {
            assert_eq!(prose(text), expected);
        }
    }

    #[test]
    fn a_hash_is_written_as_browsers_read_it() {
        // The hashes of `printf '' | openssl dgst -sha256 -binary | base64`, and of `abc`.
        assert_eq!(sha256_base64(""), "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
        assert_eq!(sha256_base64("abc"), "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
    }
}
