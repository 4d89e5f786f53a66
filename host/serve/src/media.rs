//! Pictures and sounds in requests: data URIs and base64.

use axum::http::StatusCode;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::fields::shortened;
use crate::refusal::Refusal;

/// The kind of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Media {
    Picture,
    Sound,
}

impl Media {
    const fn noun(self) -> &'static str {
        match self {
            Media::Picture => "picture",
            Media::Sound => "sound",
        }
    }

    /// Returns the main type in data URIs.
    const fn main_type(self) -> &'static str {
        match self {
            Media::Picture => "image/",
            Media::Sound => "audio/",
        }
    }
}

/// Decodes a data URI. The server fetches no other address.
pub(crate) fn from_uri(uri: &str, media: Media, path: &str) -> Result<Vec<u8>, Refusal> {
    let noun = media.noun();
    let help = format!("send the {noun} as `data:{}…;base64,…`", media.main_type());
    let Some(rest) = strip_scheme(uri) else {
        let scheme = uri.split(':').next().unwrap_or_default();
        let what = format!("unsupported address of a {noun}: `{}:`, expected a data URI", shortened(scheme));
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "unsupported_value", what, help).at(path));
    };
    let Some((kind, data)) = rest.split_once(',') else {
        return Err(Refusal::value(path, "a data URI without `,`", help));
    };
    let Some(kind) = kind.strip_suffix(";base64") else {
        return Err(Refusal::value(path, "a data URI that is not base64", help));
    };
    if !kind.to_ascii_lowercase().starts_with(media.main_type()) {
        let what = format!("expected a data URI of a {noun}, got type `{}`", shortened(kind));
        return Err(Refusal::value(path, what, help));
    }
    decode(data, media, path)
}

fn strip_scheme(uri: &str) -> Option<&str> {
    let (scheme, rest) = uri.split_at_checked(5)?;
    scheme.eq_ignore_ascii_case("data:").then_some(rest)
}

/// Decodes base64.
pub(crate) fn decode(data: &str, media: Media, path: &str) -> Result<Vec<u8>, Refusal> {
    let bytes = STANDARD.decode(data.trim()).map_err(|error| {
        let what = format!("the {} is not valid base64: {error}", media.noun());
        Refusal::value(path, what, "encode the file with base64, with padding")
    })?;
    match bytes.is_empty() {
        true => Err(Refusal::value(path, format!("the {} is empty", media.noun()), "send a file")),
        false => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_data_uris_of_the_kind_are_decoded() {
        let picture = |uri| from_uri(uri, Media::Picture, "p");
        assert_eq!(picture("data:image/png;base64,AQID").unwrap(), [1, 2, 3]);
        assert_eq!(picture("DATA:image/x;charset=y;base64,AQID").unwrap(), [1, 2, 3]);
        for (uri, expected) in [
            ("http://example.org/a.png", "`http:`"),
            ("https://example.org/a.png", "`https:`"),
            ("file:///etc/passwd", "`file:`"),
            ("", "expected a data URI"),
            ("data:image/png;base64", "without `,`"),
            ("data:image/png,AQID", "not base64"),
            ("data:audio/wav;base64,AQID", "`audio/wav`"),
            ("data:image/png;base64,A!", "not valid base64"),
            ("data:image/png;base64,", "is empty"),
        ] {
            let document = picture(uri).unwrap_err().json();
            assert_eq!(document["error"]["param"], "p");
            let message = document["error"]["message"].as_str().unwrap();
            assert!(message.contains(expected) && message.contains("help: "), "{uri}: {message}");
        }
    }
}
