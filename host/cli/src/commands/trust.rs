//! `trust`: keys, signatures and lists of revocations.

use std::path::{Path, PathBuf};

use serde::Serialize;
use shardwright_trust::{Policy, Trust, TrustOptions};

use super::print;
use crate::arguments::{ExpectedArgument, Format, Signatures, TrustArguments, TrustCommand};
use crate::outcome::{Failure, Outcome};
use crate::views;

#[derive(Serialize)]
struct KeyMade {
    file: PathBuf,
    public: String,
}

/// Runs the command. An invalid signature is a separate outcome.
pub fn trust(command: &TrustCommand, format: Format) -> Result<Outcome, Failure> {
    match command {
        TrustCommand::Key { file } => key(file, format),
        TrustCommand::Sign { path, key, name, release } => {
            let mut watch = views::ProgressLine::new("signing", path);
            let report = shardwright_doctor::sign(path, (name.as_deref(), *release), key, &mut watch)?;
            drop(watch);
            print(format, &report, views::signature)
        }
        TrustCommand::Revoke { key, list, sequence, keys, least, output } => {
            let report = shardwright_doctor::revoke(list, *sequence, keys, least, key, output)?;
            print(format, &report, views::signature)
        }
        TrustCommand::Show { path } => {
            let report = shardwright_doctor::show_signature(path)?;
            print(format, &report, views::signature)?;
            Ok(if report.holds { Outcome::Done } else { Outcome::Different })
        }
    }
}

fn key(file: &Path, format: Format) -> Result<Outcome, Failure> {
    let public = shardwright_doctor::make_key(file)?;
    print(format, &KeyMade { file: file.to_owned(), public }, |made| {
        format!("{}\npublic key, for `--trust`: {}\n", made.file.display(), made.public)
    })
}

/// Returns the rules by which bundles, shims and profiles are trusted.
pub fn rules(trust: &TrustArguments) -> Result<Trust, Failure> {
    Ok(options(trust).rules(shardwright::user_cache_directory().as_deref())?)
}

/// Returns the rules for a command that opens one bundle, which may have to be signed as
/// `expected`.
pub fn rules_for_bundle(trust: &TrustArguments, expected: &ExpectedArgument) -> Result<Trust, Failure> {
    Ok(rules(trust)?.expecting(expected.expect.clone()))
}

/// Returns the rules as options.
pub fn options(trust: &TrustArguments) -> TrustOptions {
    TrustOptions {
        policy: policy(trust),
        keys: trust.trusted_keys.clone(),
        lists: trust.revocations.clone(),
        expected: None,
    }
}

/// Returns the policy for files without a good signature. By default, naming a key or a list means
/// `warn`.
pub fn policy(trust: &TrustArguments) -> Policy {
    match trust.signatures {
        Some(Signatures::Off) => Policy::Off,
        Some(Signatures::Warn) => Policy::Warn,
        Some(Signatures::Require) => Policy::Require,
        None if trust.trusted_keys.is_empty() && trust.revocations.is_empty() => Policy::Off,
        None => Policy::Warn,
    }
}
