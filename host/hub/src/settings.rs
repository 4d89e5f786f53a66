//! Environment variables shared by all programs with a cache of this layout.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use shardwright_vocabulary::{Error, Result};

use crate::Cache;

/// The default hub.
const HUB: &str = "https://huggingface.co";

/// Maximum size in bytes of a file with a token.
const TOKEN_BYTES: u64 = 4096;

/// A secret that identifies a user. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Parses a token from `source`. Returns `None` if it is empty.
    ///
    /// # Errors
    /// For characters that are invalid in tokens. The error does not contain the token.
    pub fn parse(text: &str, source: &str) -> Result<Option<Token>> {
        let text = text.trim();
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(unusable(source, "expected only visible ASCII characters"));
        }
        Ok((!text.is_empty()).then(|| Token(text.to_owned())))
    }

    /// Returns the secret, for the header of a request.
    #[cfg(feature = "pull")]
    pub(crate) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The source and the storage of models.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address of the hub, such as `https://huggingface.co`.
    pub endpoint: String,
    pub cache: Cache,
    /// Sent only to the hub.
    pub token: Option<Token>,
    /// Whether contacting servers is forbidden.
    pub offline: bool,
    /// The wait before the first retry. It doubles each time.
    pub backoff: Duration,
    /// Maximum time without data from a server.
    pub patience: Duration,
}

impl Settings {
    /// Reads `HF_ENDPOINT`, `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`, `HF_TOKEN`,
    /// `HF_TOKEN_PATH` and `HF_HUB_OFFLINE`.
    ///
    /// # Errors
    /// If a token cannot be read, or if there is no place for a cache.
    pub fn from_environment() -> Result<Settings> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    /// Like [`Settings::from_environment`], with other variables.
    ///
    /// # Errors
    /// The errors of [`Settings::from_environment`].
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Settings> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let text = |name: &str| set(name).map(|value| value.to_string_lossy().into_owned());
        let home = home(&set);
        let token = match text("HF_TOKEN") {
            Some(token) => Token::parse(&token, "HF_TOKEN")?,
            None => match set("HF_TOKEN_PATH") {
                Some(path) => token_of(path.as_ref())?,
                None => home.as_ref().map_or(Ok(None), |home| token_of(&home.join("token")))?,
            },
        };
        Ok(Settings {
            endpoint: text("HF_ENDPOINT").unwrap_or_else(|| HUB.to_owned()),
            cache: cache(&set, home)?,
            token,
            offline: is_offline(text("HF_HUB_OFFLINE")),
            backoff: Duration::from_secs(1),
            patience: Duration::from_secs(30),
        })
    }
}

impl Cache {
    /// Returns the cache specified by the environment.
    ///
    /// # Errors
    /// If there is no place for one.
    pub fn from_environment() -> Result<Cache> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        cache(&set, home(&set))
    }
}

fn cache(set: &impl Fn(&str) -> Option<OsString>, home: Option<PathBuf>) -> Result<Cache> {
    let named = set("HF_HUB_CACHE").map(PathBuf::from);
    let folder = named.or_else(|| home.map(|home| home.join("hub")));
    folder.map(Cache::new).ok_or_else(|| {
        Error::missing("no folder is known for the cache of the hub")
            .with_help("set HF_HUB_CACHE, or pass `--cache DIR`")
    })
}

/// Returns the folder of Hugging Face's programs.
fn home(set: &impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let caches = || {
        let user = || set("HOME").map(|home| PathBuf::from(home).join(".cache"));
        set("XDG_CACHE_HOME").map(PathBuf::from).or_else(user)
    };
    set("HF_HOME").map(PathBuf::from).or_else(|| caches().map(|caches| caches.join("huggingface")))
}

/// Reads the token in a file. Returns `None` if there is no such file.
fn token_of(path: &Path) -> Result<Option<Token>> {
    let name = path.display().to_string();
    match shardwright_files::read(path, TOKEN_BYTES) {
        Ok(bytes) => Token::parse(&String::from_utf8_lossy(&bytes), &name),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(unusable(&name, error.to_string())),
    }
}

/// Returns the error for a token that cannot be read or used. `reason` must not contain it.
fn unusable(source: &str, reason: impl Into<String>) -> Error {
    Error::argument(reason)
        .at(format_args!("the token in {source}"))
        .with_help("set HF_TOKEN, or log in again with `hf auth login`")
}

fn is_offline(value: Option<String>) -> bool {
    value.is_some_and(|value| ["1", "on", "yes", "true"].contains(&value.to_ascii_lowercase().as_str()))
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<Settings> {
        Settings::from_variables(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn places_follow_the_variables_of_the_hub() {
        let cache =
            |variables: &[(&str, &str)]| settings(variables).expect("settings").cache.folder().to_owned();
        let home = ("HOME", "/nowhere");
        assert_eq!(cache(&[home]), Path::new("/nowhere/.cache/huggingface/hub"));
        assert_eq!(cache(&[home, ("XDG_CACHE_HOME", "/c")]), Path::new("/c/huggingface/hub"));
        assert_eq!(cache(&[home, ("XDG_CACHE_HOME", "/c"), ("HF_HOME", "/h")]), Path::new("/h/hub"));
        assert_eq!(cache(&[home, ("HF_HOME", "/h"), ("HF_HUB_CACHE", "/d")]), Path::new("/d"));
        let error = settings(&[]).expect_err("no place");
        assert_eq!(error.kind(), ErrorKind::Missing);
        assert!(error.message().contains("no folder is known for the cache"), "{error}");
        let named = settings(&[home, ("HF_ENDPOINT", "https://mirror"), ("HF_HUB_OFFLINE", "True")]);
        let named = named.expect("settings");
        assert_eq!((named.endpoint.as_str(), named.offline), ("https://mirror", true));
        let usual = settings(&[home, ("HF_ENDPOINT", ""), ("HF_HUB_OFFLINE", "0")]).expect("settings");
        assert_eq!((usual.endpoint.as_str(), usual.offline), (HUB, false));
    }

    #[test]
    fn a_token_is_read_from_its_places_and_not_shown() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        let home = folder.path().to_str().expect("UTF-8");
        std::fs::write(&path, "hf_file\n").expect("written");
        let token = |variables: &[(&str, &str)]| settings(variables).map(|settings| settings.token);
        let of = |text: &str| Some(Token(text.to_owned()));
        assert_eq!(token(&[("HF_HOME", home)]).expect("a token"), of("hf_file"));
        assert_eq!(token(&[("HF_HOME", home), ("HF_TOKEN", "hf_set")]).expect("a token"), of("hf_set"));
        let named = [("HOME", "/nowhere"), ("HF_TOKEN_PATH", path.to_str().expect("UTF-8"))];
        assert_eq!(token(&named).expect("a token"), of("hf_file"));
        assert_eq!(token(&[("HOME", "/nowhere")]).expect("none"), None);
        let shown = format!("{:?}", settings(&[("HF_HOME", home)]).expect("settings"));
        assert!(!shown.contains("hf_file"), "{shown}");
        for wrong in ["two words", "a\u{7}", "é"] {
            let error = token(&[("HF_HOME", home), ("HF_TOKEN", wrong)]).expect_err(wrong);
            assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
            assert_eq!(error.place(), Some("the token in HF_TOKEN"));
            assert!(!format!("{error:#?}").contains(wrong), "{error}");
        }
        let folder_as_file = [("HOME", "/nowhere"), ("HF_TOKEN_PATH", home)];
        let error = token(&folder_as_file).expect_err("a folder");
        assert_eq!(error.place(), Some(format!("the token in {home}").as_str()));
    }
}
