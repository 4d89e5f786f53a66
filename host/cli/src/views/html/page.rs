//! A page that is being written. Markup comes from this program, text from any source.

use std::fmt::Display;

use shardwright_bundle::Digest;

#[derive(Default)]
pub struct Page(String);

impl Page {
    /// Writes markup, which only this program's source can contain.
    pub fn markup(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// Writes escaped text from any source, between tags or in an attribute in double quotes.
    pub fn text(&mut self, text: impl Display) -> &mut Self {
        for c in crate::views::printable(&text.to_string()).chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                c => self.0.push(c),
            }
        }
        self
    }

    /// Writes escaped text between tags, in which words in backticks are code.
    pub fn prose(&mut self, text: impl Display) -> &mut Self {
        let text = text.to_string();
        let parts: Vec<&str> = text.split('`').collect();
        for (index, part) in parts.iter().enumerate() {
            match index % 2 {
                0 => self.text(part),
                // A backtick without a second one.
                _ if index + 1 == parts.len() => self.text("`").text(part),
                _ => self.markup("<code>").text(part).markup("</code>"),
            };
        }
        self
    }

    /// Writes a bar filled by `thousandths`, with a text for readers who cannot see it.
    pub fn bar(&mut self, thousandths: u64, label: &str) -> &mut Self {
        let full = thousandths.min(1000);
        let kind = match thousandths {
            0..900 => "bar",
            900..=1000 => "bar near",
            _ => "bar over",
        };
        self.markup("<span class=\"").text(kind).markup("\" role=\"img\" aria-label=\"").text(label);
        self.markup("\"><span style=\"width:").text(format_args!("{}.{}%", full / 10, full % 10));
        self.markup("\"></span></span>")
    }

    /// Returns the page as it was written.
    pub fn finish(self) -> String {
        self.0
    }
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
        let mut page = Page::default();
        page.markup("<p title=\"").text("\"'><script>&\u{1b}\u{202e}").markup("\">");
        assert_eq!(page.finish(), "<p title=\"&quot;&#39;&gt;&lt;script&gt;&amp;\u{fffd}\u{fffd}\">");
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
            let mut page = Page::default();
            page.prose(text);
            assert_eq!(page.finish(), expected);
        }
    }

    #[test]
    fn a_hash_is_written_as_browsers_read_it() {
        // The hashes of `printf '' | openssl dgst -sha256 -binary | base64`, and of `abc`.
        assert_eq!(sha256_base64(""), "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
        assert_eq!(sha256_base64("abc"), "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
    }
}
