//! Arguments of `serve`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use shardwright_hub::HubId;

use super::{ExecutionArguments, ExpectedArgument, TargetArguments, size, time};

#[derive(Args, Debug)]
#[cfg_attr(not(feature = "serve"), allow(dead_code, reason = "only the server reads them"))]
pub struct ServeArguments {
    /// Models to serve: checkpoints, GGUF files, bundles, or ids of pulled models (OWNER/NAME).
    ///
    /// Requests name a model by its id, or by the name of its folder or file. `NAME=MODEL` sets
    /// another name.
    #[arg(required = true, value_name = "MODEL", value_parser = served)]
    pub models: Vec<ServedArgument>,
    /// Address to listen on. Only this machine can reach the default. Any other address needs
    /// `--api-key` or `--no-auth`.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", help_heading = "Clients")]
    pub address: IpAddr,
    /// Port to listen on. 0 is any free port.
    #[arg(long, value_name = "NUMBER", default_value_t = 8080, help_heading = "Clients")]
    pub port: u16,
    /// File of API keys, one in each line, or `env:NAME` for an environment variable. Each request
    /// must have one of them as `Authorization: Bearer KEY`.
    #[arg(long, value_name = "FILE|env:NAME", value_parser = key_source, help_heading = "Clients")]
    pub api_key: Option<KeySource>,
    /// Answer any client that reaches the address, without a key.
    #[arg(long, conflicts_with = "api_key", help_heading = "Clients")]
    pub no_auth: bool,
    /// Name by which clients may call the server, such as `box.local` (may be repeated). Default:
    /// `localhost` and addresses.
    #[arg(long, value_name = "NAME", help_heading = "Clients")]
    pub host_name: Vec<String>,
    /// Most requests that generate or embed at once. Further ones get status 429. Default: 64.
    #[arg(
        long,
        value_name = "NUMBER",
        value_parser = clap::value_parser!(u32).range(1..=4096),
        help_heading = "Limits"
    )]
    pub open_requests: Option<u32>,
    /// Largest memory of all models and their sessions together, such as `6GB`. The least recently
    /// used model is released and reopened on demand. Default: no limit.
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Limits")]
    pub memory_budget: Option<u64>,
    /// Largest memory of the prefix cache of each model, such as `1GB`. Keys share it equally.
    /// Default: 512 MiB.
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Limits")]
    pub prefix_cache: Option<u64>,
    /// Longest time that a stopping server waits for open requests, such as `60s`. Default: 20 s.
    #[arg(long, value_name = "TIME", value_parser = time, help_heading = "Limits")]
    pub drain: Option<Duration>,
    #[command(flatten)]
    pub target: TargetArguments,
    #[command(flatten)]
    pub execution: ExecutionArguments,
    #[command(flatten)]
    pub expected: ExpectedArgument,
}

/// A model, and its id in requests.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "serve"), allow(dead_code, reason = "only the server reads the id"))]
pub struct ServedArgument {
    pub id: String,
    pub path: PathBuf,
}

/// Source of API keys.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "serve"), allow(dead_code, reason = "only the server reads keys"))]
pub enum KeySource {
    File(PathBuf),
    Variable(String),
}

/// Parses a model. A path that exists takes precedence over `NAME=MODEL`.
fn served(text: &str) -> Result<ServedArgument, String> {
    let whole = Path::new(text);
    match text.split_once('=') {
        Some((id, path)) if whole.symlink_metadata().is_err() => match id.is_empty() || path.is_empty() {
            true => Err("expected a name and a model, such as `small=path/to/model`".to_owned()),
            false => Ok(ServedArgument { id: id.to_owned(), path: path.into() }),
        },
        _ => Ok(ServedArgument { id: id_of(text)?, path: whole.to_owned() }),
    }
}

/// Returns the id of a model without a name: that of the hub, or the name of its folder or file.
fn id_of(text: &str) -> Result<String, String> {
    let path = Path::new(text);
    if path.symlink_metadata().is_err() && text.parse::<HubId>().is_ok() {
        return Ok(text.to_owned());
    }
    let name = |path: &Path| {
        // A folder may have a dot in its name.
        let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
        name.and_then(|name| name.to_str()).map(str::to_owned)
    };
    name(path)
        .or_else(|| name(&path.canonicalize().ok()?))
        .ok_or_else(|| "expected a model whose name is UTF-8, or `NAME=MODEL`".to_owned())
}

fn key_source(text: &str) -> Result<KeySource, String> {
    match text.strip_prefix("env:") {
        _ if text.is_empty() => Err("expected a file, or `env:NAME`".to_owned()),
        Some("") => Err("expected the name of an environment variable after `env:`".to_owned()),
        Some(name) => Ok(KeySource::Variable(name.to_owned())),
        None => Ok(KeySource::File(text.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_have_the_names_of_their_folders_files_or_ids() {
        let id = |text: &str| served(text).map(|served| served.id);
        assert_eq!(id("src"), Ok("src".to_owned()));
        assert_eq!(id("src/"), Ok("src".to_owned()));
        assert_eq!(id("."), Ok("cli".to_owned()));
        assert_eq!(id("Cargo.toml"), Ok("Cargo".to_owned()));
        assert_eq!(id("google/gemma-3-270m"), Ok("google/gemma-3-270m".to_owned()));
        assert_eq!(served("small=src"), Ok(ServedArgument { id: "small".to_owned(), path: "src".into() }));
        for wrong in ["=src", "small=", "/"] {
            assert!(served(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn keys_are_in_a_file_or_a_variable() {
        assert_eq!(key_source("keys.txt"), Ok(KeySource::File("keys.txt".into())));
        assert_eq!(key_source("env:KEY"), Ok(KeySource::Variable("KEY".to_owned())));
        assert!(key_source("").is_err() && key_source("env:").is_err());
    }
}
