//! The rules of a host: the keys it trusts, and the policy for files without a good signature.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use shardwright_vocabulary::{Error, ErrorKind, Notice, Result};

use crate::detached_signature::unreadable;
use crate::envelope::AGAIN;
use crate::memory::Memory;
use crate::{Envelope, Kind, PublicKey, REVOCATIONS_BYTES, Revocations, Statement, revocations};

/// Policy for files without a good signature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// The file is used, and signatures are not checked.
    #[default]
    Off,
    /// The file is used, with a warning.
    Warn,
    /// The file is refused before parsing.
    Require,
}

/// Keys, lists of revocations and the policy. Clones share their warnings.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    policy: Policy,
    keys: Vec<PublicKey>,
    lists: Vec<Revocations>,
    /// The name that bundles must be signed as.
    expected: Option<String>,
    warnings: Arc<Mutex<Vec<Error>>>,
}

impl Trust {
    /// Returns rules without keys that check no signature.
    pub fn off() -> Trust {
        Trust::default()
    }

    /// Trusts the owners of these keys.
    pub fn new(policy: Policy, keys: impl IntoIterator<Item = PublicKey>) -> Trust {
        Trust { policy, keys: keys.into_iter().collect(), ..Trust::default() }
    }

    /// Accepts only bundles that a trusted key signed as `name`, whatever the policy for other
    /// files. Without this, any bundle signed with a trusted key could replace another. `None`
    /// accepts every name.
    #[must_use]
    pub fn expecting(self, name: Option<String>) -> Trust {
        Trust { expected: name, ..self }
    }

    /// Applies lists of revocations, each signed with one of the keys. `memory` is a folder of this
    /// user that stores the highest number of each key's list, so that an older list is refused
    /// later. Without it there is a warning.
    ///
    /// If there is a list, every list in `memory` whose key is trusted and not revoked must be
    /// given too. Otherwise one key's list could replace another's and bring withdrawn releases
    /// back. A missing list is refused under [`Policy::Require`], and a warning otherwise.
    ///
    /// # Errors
    ///
    /// If a list cannot be used, under every policy. Ignoring it would allow revoked keys and
    /// releases.
    pub fn with_lists(mut self, paths: &[impl AsRef<Path>], memory: Option<&Path>) -> Result<Trust> {
        for path in paths {
            let list = self.read(path.as_ref())?;
            self.lists.push(list);
        }
        let lists = || paths.iter().map(AsRef::as_ref).zip(&self.lists[self.lists.len() - paths.len()..]);
        match memory {
            Some(memory) if !paths.is_empty() => {
                // Before the numbers are stored: a refused list must not be required later.
                self.expect_remembered(memory)?;
                for (path, list) in lists() {
                    Memory::of(memory, list).advance(path, list, |error| self.unless_required(error))?;
                }
            }
            Some(_) => {}
            None => lists().for_each(|(path, _)| {
                let what = "no folder to store the number of the list, so an older list is not recognised";
                let help = "check the path and its permissions";
                self.warn(Error::missing(what).at(path.display()).with_help(help));
            }),
        }
        Ok(self)
    }

    /// Reads a list that these rules accept together with the lists so far.
    fn read(&self, path: &Path) -> Result<Revocations> {
        let read = shardwright_files::read(path, REVOCATIONS_BYTES);
        let bytes = read.map_err(|error| unreadable(path, error))?;
        let list =
            Revocations::parse(path, &bytes, |envelope| self.admits(path, Kind::Revocations, envelope))?;
        match self.lists.iter().find(|other| list.keys.contains(&other.key)) {
            None => Ok(list),
            Some(other) => {
                let reason = format!("it revokes {}, which signed list `{}`", other.key, other.name);
                Err(revocations::invalid(path, reason))
            }
        }
    }

    /// Requires all lists that were used here, except those of keys that do not count any more.
    fn expect_remembered(&self, memory: &Path) -> Result<()> {
        let remembered = match Memory::all(memory) {
            Ok(remembered) => remembered,
            Err(error) => return self.unless_required(error),
        };
        for (key, name, path) in remembered {
            let counts = self.keys.contains(&key) && !self.lists.iter().any(|list| list.keys.contains(&key));
            if counts && !self.lists.iter().any(|list| list.key == key && list.name == name) {
                let what = format!(
                    "list of revocations `{name}` of {key} was used here and is not given; \
                     its number is in `{}`",
                    path.display()
                );
                let help = "give the latest list of this key too; if its owner has given it up, remove the \
                            file with its number";
                self.unless_required(Error::new(ErrorKind::Untrusted, what).with_help(help))?;
            }
        }
        Ok(())
    }

    /// Turns an error about remembered numbers into a warning, unless signatures are required: an
    /// unreadable cache must not stop other commands.
    fn unless_required(&self, error: Error) -> Result<()> {
        if self.policy == Policy::Require {
            return Err(error);
        }
        self.warn(error);
        Ok(())
    }

    /// Returns the policy for files without a good signature.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Returns the policy for files of a kind without a good signature.
    fn policy_for(&self, kind: Kind) -> Policy {
        match (kind, &self.expected) {
            (Kind::Bundle, Some(_)) => Policy::Require,
            _ => self.policy,
        }
    }

    /// Checks whether signatures of this kind are checked at all.
    pub fn is_on(&self, kind: Kind) -> bool {
        self.policy_for(kind) != Policy::Off
    }

    /// Returns the trusted keys, including revoked ones.
    pub fn keys(&self) -> &[PublicKey] {
        &self.keys
    }

    /// Checks whether `envelope` signs `payload`, which was found at `path`, and the rules allow
    /// it. Returns the statement, or `None` if signatures are not checked or a warning was
    /// recorded.
    ///
    /// # Errors
    ///
    /// If the signature is not accepted, under [`Policy::Require`].
    pub fn expect(
        &self,
        path: &Path,
        kind: Kind,
        envelope: Option<&[u8]>,
        payload: &[u8],
    ) -> Result<Option<Statement>> {
        self.judge(kind, || {
            let envelope = self.admitted(path, kind, envelope)?;
            envelope.expect_about(path, payload)?;
            Ok(envelope.statement().clone())
        })
    }

    /// Like [`expect`](Self::expect), for a file with its envelope in a file next to it.
    ///
    /// # Errors
    ///
    /// The errors of [`expect`](Self::expect). Also if the envelope cannot be read.
    pub fn expect_beside(&self, path: &Path, kind: Kind, payload: &[u8]) -> Result<Option<Statement>> {
        if !self.is_on(kind) {
            return Ok(None);
        }
        let read = self.judge(kind, || crate::signature_beside(path))?;
        match read {
            Some(envelope) => self.expect(path, kind, envelope.as_deref(), payload),
            None => Ok(None),
        }
    }

    /// Checks the envelope alone. If it is good, the caller can read as many bytes as its statement
    /// specifies.
    ///
    /// # Errors
    ///
    /// As [`expect`](Self::expect).
    pub fn expect_envelope(
        &self,
        path: &Path,
        kind: Kind,
        envelope: Option<&[u8]>,
    ) -> Result<Option<Statement>> {
        self.judge(kind, || Ok(self.admitted(path, kind, envelope)?.statement().clone()))
    }

    /// Checks that a key is not revoked, for signatures in another form such as a planner pack's.
    /// Revoked keys are refused under every policy.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Untrusted`] if it is revoked.
    pub fn expect_not_revoked(&self, path: &Path, key: PublicKey) -> Result<()> {
        let Some(list) = self.lists.iter().find(|list| list.keys.contains(&key)) else { return Ok(()) };
        let what = format!("signed by {key}, which was revoked (list {})", list.sequence);
        Err(untrusted(path, what, "get it signed by another key of its maker"))
    }

    /// Checks that the signed file has the name in its signature.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Untrusted`] for another name, under [`Policy::Require`].
    pub fn expect_name(&self, path: &Path, signed: &Statement, name: &str) -> Result<()> {
        let other = || {
            let what = format!("the signature is for `{}`, not for `{name}`", signed.name);
            untrusted(path, what, OTHER)
        };
        self.expect_that(signed.kind, signed.name == name, other)
    }

    /// Checks a further requirement on a signed file.
    ///
    /// # Errors
    ///
    /// The error of `otherwise`, under [`Policy::Require`].
    pub fn expect_that(&self, kind: Kind, holds: bool, otherwise: impl FnOnce() -> Error) -> Result<()> {
        self.judge(kind, || if holds { Ok(()) } else { Err(otherwise()) }).map(drop)
    }

    /// Returns the warnings about used files since the last call, without duplicates.
    pub fn take_warnings(&self) -> Vec<Error> {
        std::mem::take(&mut *self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Like [`take_warnings`](Self::take_warnings), as notices for users with suggestions.
    pub fn take_notices(&self) -> Vec<Notice> {
        let text = |warning: Error| match warning.help() {
            Some(help) => format!("{warning}; {help}"),
            None => warning.to_string(),
        };
        self.take_warnings().into_iter().map(|warning| Notice::warning(text(warning))).collect()
    }

    fn judge<T>(&self, kind: Kind, check: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        match (self.policy_for(kind), self.is_on(kind).then(check)) {
            (_, None) => Ok(None),
            (_, Some(Ok(good))) => Ok(Some(good)),
            (Policy::Require, Some(Err(error))) => Err(error),
            (_, Some(Err(error))) => {
                self.warn(error);
                Ok(None)
            }
        }
    }

    fn warn(&self, warning: Error) {
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        let text = warning.to_string();
        if warnings.iter().all(|other| other.to_string() != text) {
            warnings.push(warning);
        }
    }

    /// Parses an envelope that the rules accept.
    fn admitted(&self, path: &Path, kind: Kind, envelope: Option<&[u8]>) -> Result<Envelope> {
        let envelope = Envelope::parse(path, envelope.ok_or_else(|| unsigned(path))?)?;
        self.admits(path, kind, &envelope)?;
        Ok(envelope)
    }

    /// Checks that the key of an envelope made it, is trusted and not revoked, and that its release
    /// is not withdrawn.
    fn admits(&self, path: &Path, kind: Kind, envelope: &Envelope) -> Result<()> {
        let (statement, key) = (envelope.statement(), envelope.key());
        let (name, release) = (&statement.name, statement.release);
        if !envelope.is_signed() {
            let what = format!("the signature was not made by {key}, the key that it names");
            return Err(untrusted(path, what, AGAIN));
        }
        if !self.keys.contains(&key) {
            let what = format!("signed by {key}, which is not a trusted key");
            return Err(untrusted(path, what, "trust the key if you know its owner"));
        }
        self.expect_not_revoked(path, key)?;
        if statement.kind != kind {
            let what = format!("the signature is for {}, not for {kind}", statement.kind);
            return Err(untrusted(path, what, OTHER));
        }
        if let (Kind::Bundle, Some(expected)) = (kind, &self.expected)
            && expected != name
        {
            let what = format!("signed as `{name}`, expected `{expected}`");
            let help = "check which bundle this is, or expect the name it is signed as";
            return Err(untrusted(path, what, help));
        }
        for list in &self.lists {
            if let Some(least) = list.least(statement).filter(|least| release < *least) {
                let (kind, sequence) = (kind.name(), list.sequence);
                let what = format!(
                    "release {release} of {kind} `{name}` was withdrawn, expected release {least} or later \
                     (list {sequence})"
                );
                return Err(untrusted(path, what, "get a later release"));
            }
        }
        Ok(())
    }
}

/// Help for a signature of another kind or name.
const OTHER: &str = "the file was renamed or given another's signature: get both again from their source";

fn untrusted(path: &Path, what: String, help: &str) -> Error {
    Error::new(ErrorKind::Untrusted, what).at(path.display()).with_help(help)
}

/// Returns the error for a file without a signature.
pub fn unsigned(path: &Path) -> Error {
    let help = "sign it with `shardwright trust sign`, or get a signed one from its source";
    untrusted(path, "not signed".to_owned(), help)
}

/// Returns the error for the manifest of a shim that has no hash of its library, which a signature
/// would therefore not cover.
pub fn unbound(path: &Path) -> Error {
    let help = "`shardwright shim hash MANIFEST` writes the hash; sign the manifest again then";
    untrusted(path, "the manifest does not have the hash of its library".to_owned(), help)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::{LeastRelease, SecretKey};

    /// Checks the kind and the text of an error, and that it has help.
    fn refused<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind, words: &str) {
        is(&result.unwrap_err(), kind, words);
    }

    fn is(error: &Error, kind: ErrorKind, words: &str) {
        assert!(error.kind() == kind && error.to_string().contains(words), "{words}: {error:?}");
        assert!(error.help().is_some(), "{error:?}");
    }

    fn key(seed: u8) -> SecretKey {
        SecretKey::from_seed([seed; 32])
    }

    fn signed(kind: Kind, name: &str, release: u64, by: u8) -> [u8; crate::ENVELOPE_BYTES] {
        let statement = Statement::of(kind, name, release, b"payload").unwrap();
        Envelope::sign(&statement, &key(by)).to_bytes()
    }

    fn trust(policy: Policy) -> Trust {
        Trust::new(policy, [key(1).public(), key(2).public()])
    }

    #[test]
    fn each_fault_is_refused_warned_of_or_not_looked_at() {
        let good = signed(Kind::Bundle, "gemma", 3, 1);
        let mut forged = good;
        forged[200] ^= 1;
        let stranger = signed(Kind::Bundle, "gemma", 3, 9);
        type Case<'c> = (Option<&'c [u8]>, Kind, &'c [u8], ErrorKind, &'c str);
        let cases: [Case<'_>; 6] = [
            (None, Kind::Bundle, b"payload", ErrorKind::Untrusted, "not signed"),
            (Some(b"short"), Kind::Bundle, b"payload", ErrorKind::Invalid, "damaged at offset 5"),
            (Some(&forged), Kind::Bundle, b"payload", ErrorKind::Untrusted, "was not made by"),
            (Some(&good), Kind::Bundle, b"payloaf", ErrorKind::Untrusted, "changed after"),
            (Some(&good), Kind::Shim, b"payload", ErrorKind::Untrusted, "is for a bundle, not for a shim"),
            (Some(&stranger), Kind::Bundle, b"payload", ErrorKind::Untrusted, "not a trusted key"),
        ];
        let path = Path::new("some.bundle");
        for (envelope, kind, payload, expected, words) in cases {
            let error = trust(Policy::Require).expect(path, kind, envelope, payload).unwrap_err();
            is(&error, expected, words);
            assert_eq!(error.place(), Some("some.bundle"));
            let warned = trust(Policy::Warn);
            for _ in 0..2 {
                assert_eq!(warned.expect(path, kind, envelope, payload).unwrap(), None);
            }
            let warnings = warned.take_warnings();
            assert_eq!((warnings.len(), warnings[0].to_string()), (1, error.to_string()));
            assert!(warned.take_warnings().is_empty());
            let off = trust(Policy::Off);
            assert_eq!(off.expect(path, kind, envelope, payload).unwrap(), None);
            assert!(off.take_warnings().is_empty());
        }
        for policy in [Policy::Warn, Policy::Require] {
            let trust = trust(policy);
            let statement = trust.expect(path, Kind::Bundle, Some(&good), b"payload").unwrap().unwrap();
            assert_eq!((statement.name.as_str(), statement.release), ("gemma", 3));
            let read = trust.expect_envelope(path, Kind::Bundle, Some(&good)).unwrap();
            assert_eq!(read.as_ref(), Some(&statement));
            trust.expect_name(path, &statement, "gemma").unwrap();
            assert!(trust.take_warnings().is_empty());
            let other = trust.expect_name(path, &statement, "qwen");
            let that = trust.expect_that(Kind::Shim, false, || unbound(path));
            match policy {
                Policy::Require => {
                    refused(other, ErrorKind::Untrusted, "is for `gemma`, not for `qwen`");
                    refused(that, ErrorKind::Untrusted, "hash of its library");
                }
                _ => assert!(other.is_ok() && that.is_ok() && trust.take_warnings().len() == 2),
            }
        }
    }

    #[test]
    fn a_bundle_of_another_name_than_expected_is_refused_under_every_policy() {
        let path = Path::new("some.bundle");
        let signed_as = |name| signed(Kind::Bundle, name, 3, 1);
        for policy in [Policy::Off, Policy::Warn, Policy::Require] {
            let trust = trust(policy).expecting(Some("gemma".to_owned()));
            let asked = |envelope: Option<&[u8]>| trust.expect(path, Kind::Bundle, envelope, b"payload");
            assert_eq!(asked(Some(&signed_as("gemma"))).unwrap().unwrap().name, "gemma");
            for other in [asked(Some(&signed_as("qwen"))), {
                trust.expect_envelope(path, Kind::Bundle, Some(&signed_as("qwen")))
            }] {
                refused(other, ErrorKind::Untrusted, "signed as `qwen`, expected `gemma`");
            }
            refused(asked(None), ErrorKind::Untrusted, "not signed");
            let foreign = signed(Kind::Bundle, "gemma", 3, 9);
            refused(asked(Some(&foreign)), ErrorKind::Untrusted, "not a trusted key");
            // The expected name does not apply to other kinds of files.
            let shim = signed(Kind::Shim, "cpu", 3, 1);
            assert!(trust.expect(path, Kind::Shim, Some(&shim), b"payload").is_ok());
            assert!(trust.take_warnings().is_empty());
        }
    }

    #[test]
    fn signatures_lie_beside_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.json");
        let beside = crate::path_of_signature(&path);
        assert_eq!(beside, folder.path().join("x.json.sig"));
        let asks = |policy| trust(policy).expect_beside(&path, Kind::Profile, b"payload");
        refused(asks(Policy::Require), ErrorKind::Untrusted, "not signed");
        fs::write(&beside, signed(Kind::Profile, "x", 1, 2)).unwrap();
        assert_eq!(asks(Policy::Require).unwrap().unwrap().name, "x");
        assert_eq!(asks(Policy::Off).unwrap(), None);
        fs::write(&beside, vec![0; 1 << 20]).unwrap();
        refused(asks(Policy::Require), ErrorKind::Invalid, "damaged at offset 256");
        fs::remove_file(&beside).unwrap();
        fs::create_dir(&beside).unwrap();
        refused(asks(Policy::Require), ErrorKind::Missing, &format!("{}: a directory", beside.display()));
        assert_eq!(asks(Policy::Warn).unwrap(), None);
    }

    #[test]
    fn what_a_list_revokes_is_used_no_more_and_an_older_list_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (memory, path) = (folder.path().join("memory"), folder.path().join("list"));
        let least = [LeastRelease { kind: Kind::Bundle, name: "gemma".to_owned(), release: 4 }];
        let writes = |sequence, keys: &[PublicKey], by: u8| {
            let bytes = Revocations::sign("acme", sequence, keys, &least, &key(by)).unwrap();
            fs::write(&path, bytes).unwrap();
        };
        let applied = |policy| trust(policy).with_lists(&[&path], Some(&memory));

        writes(5, &[key(2).public()], 1);
        let rules = applied(Policy::Require).unwrap();
        assert!(rules.take_warnings().is_empty());
        let asked = |kind, name: &str, release, by| {
            rules.expect("b".as_ref(), kind, Some(&signed(kind, name, release, by)), b"payload")
        };
        refused(asked(Kind::Bundle, "gemma", 9, 2), ErrorKind::Untrusted, "was revoked (list 5)");
        let withdrawn = "release 3 of bundle `gemma` was withdrawn, expected release 4 or later (list 5)";
        refused(asked(Kind::Bundle, "gemma", 3, 1), ErrorKind::Untrusted, withdrawn);
        for (kind, name, release) in
            [(Kind::Bundle, "gemma", 4), (Kind::Bundle, "qwen", 0), (Kind::Shim, "gemma", 3)]
        {
            assert!(asked(kind, name, release, 1).unwrap().is_some(), "{kind} {name} {release}");
        }
        let revoked = rules.expect_not_revoked("pack".as_ref(), key(2).public());
        refused(revoked, ErrorKind::Untrusted, "was revoked");
        rules.expect_not_revoked("pack".as_ref(), key(1).public()).unwrap();

        // This list again, then an older one, which allows a file that the later one does not.
        applied(Policy::Warn).unwrap();
        writes(4, &[], 1);
        for policy in [Policy::Off, Policy::Warn, Policy::Require] {
            refused(applied(policy), ErrorKind::Untrusted, "number 4 is older than number 5");
        }
        // Without a memory the number cannot be checked, which is reported.
        let forgetful = trust(Policy::Require).with_lists(&[&path], None).unwrap();
        let warnings = forgetful.take_warnings();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        is(&warnings[0], ErrorKind::Missing, "no folder to store the number");
        writes(6, &[], 1);
        applied(Policy::Require).unwrap();
        // A damaged memory must not restart at zero. It must not stop commands that do not require
        // signatures.
        let number = memory.join(format!("revocations-{}-acme", key(1).public()));
        for damage in ["x", ""] {
            fs::write(&number, damage).unwrap();
            let damaged = format!("{}: the file is damaged", number.display());
            refused(applied(Policy::Require), ErrorKind::Missing, &damaged);
            for policy in [Policy::Off, Policy::Warn] {
                let warned = applied(policy).unwrap().take_warnings();
                assert_eq!(warned.len(), 1, "{warned:?}");
                is(&warned[0], ErrorKind::Missing, &damaged);
            }
        }
        fs::write(&number, "6").unwrap();
        // A place that is not writable gives a warning, or is refused if signatures are required.
        let blocked = folder.path().join("file");
        fs::write(&blocked, "").unwrap();
        let at = |policy| trust(policy).with_lists(&[&path], Some(&blocked.join("x")));
        let number = format!("x/revocations-{}-acme: ", key(1).public());
        refused(at(Policy::Require), ErrorKind::Missing, &number);
        assert_eq!(at(Policy::Off).unwrap().take_warnings().len(), 1);
    }

    #[test]
    fn a_key_can_neither_use_up_numbers_nor_touch_those_of_another_key() {
        let folder = tempfile::tempdir().unwrap();
        let (memory, path) = (folder.path().join("memory"), folder.path().join("list"));
        let applies = |sequence, keys: &[PublicKey], by: u8| {
            fs::write(&path, Revocations::sign("acme", sequence, keys, &[], &key(by)).unwrap()).unwrap();
            // If both keys were trusted, both lists would be required.
            let trust = Trust::new(Policy::Require, [key(by).public()]);
            trust.with_lists(&[&path], Some(&memory)).map(drop)
        };
        applies(5, &[], 1).unwrap();
        let jumps = |by| {
            let ahead = format!("number {} is more than", u64::MAX);
            refused(applies(u64::MAX, &[], by), ErrorKind::Untrusted, &ahead);
        };
        jumps(1);
        jumps(2);
        // A list of the other key with that name and a higher number, and a list that revokes the
        // first key.
        applies(900, &[], 2).unwrap();
        applies(901, &[key(1).public()], 2).unwrap();
        applies(6, &[key(2).public()], 1).unwrap();
        refused(applies(4, &[], 1), ErrorKind::Untrusted, "older than number 6");
        refused(applies(900, &[], 2), ErrorKind::Untrusted, "older than number 901");
        applies(6 + (1 << 40), &[], 1).unwrap();
        refused(applies(8 + (2 << 40), &[], 1), ErrorKind::Untrusted, "is more than");
    }

    /// Without this rule, one key's list in place of another's would bring withdrawn releases back.
    #[test]
    fn every_list_that_was_used_is_required_with_any_list() {
        let folder = tempfile::tempdir().unwrap();
        let memory = folder.path().join("memory");
        let least = [LeastRelease { kind: Kind::Bundle, name: "gemma".to_owned(), release: 4 }];
        let list = |file: &str, name, sequence, keys: &[PublicKey], least: &[LeastRelease], by| {
            let path = folder.path().join(file);
            fs::write(&path, Revocations::sign(name, sequence, keys, least, &key(by)).unwrap()).unwrap();
            path
        };
        let first = list("first", "acme", 2, &[], &least, 1);
        let second = list("second", "acme", 1, &[], &[], 2);
        let renamed = list("renamed", "other", 1, &[], &[], 1);
        let revoking = list("revoking", "revoking", 1, &[key(1).public()], &[], 2);
        let with = |policy, paths: &[&PathBuf]| trust(policy).with_lists(paths, Some(&memory));
        let release = |rules: &Trust| {
            let envelope = signed(Kind::Bundle, "gemma", 3, 1);
            rules.expect("b".as_ref(), Kind::Bundle, Some(&envelope), b"payload")
        };

        let rules = with(Policy::Require, &[&first]).unwrap();
        refused(release(&rules), ErrorKind::Untrusted, "withdrawn");
        // Other files in the folder are not numbers of lists.
        for name in ["revocations-zz-acme", "revocations-", "x"] {
            fs::write(memory.join(name), "1").unwrap();
        }
        let number = |by| memory.join(format!("revocations-{}-acme", key(by).public()));
        let missing = |by| {
            let (key, file) = (key(by).public(), number(by));
            format!(
                "list of revocations `acme` of {key} was used here and is not given; its number is in `{}`",
                file.display()
            )
        };
        for paths in [&[&second][..], &[&renamed], &[&second, &renamed]] {
            refused(with(Policy::Require, paths), ErrorKind::Untrusted, &missing(1));
        }
        assert!(!number(2).exists(), "a refused list is not remembered");
        for policy in [Policy::Off, Policy::Warn] {
            let rules = with(policy, &[&second]).unwrap();
            let warnings = rules.take_warnings();
            assert_eq!(warnings.len(), 1, "{policy:?}: {warnings:?}");
            is(&warnings[0], ErrorKind::Untrusted, &missing(1));
        }
        // Now the second list was used too.
        refused(with(Policy::Require, &[&first]), ErrorKind::Untrusted, &missing(2));
        for paths in [[&first, &second], [&second, &first]] {
            let rules = with(Policy::Require, &paths).unwrap();
            refused(release(&rules), ErrorKind::Untrusted, "withdrawn");
            assert!(rules.take_warnings().is_empty());
        }
        // Lists of revoked keys and of keys that are not trusted are not required. Neither is any
        // list if none is given.
        let alone = Trust::new(Policy::Require, [key(2).public()]).with_lists(&[&second], Some(&memory));
        assert!(alone.unwrap().take_warnings().is_empty());
        let rules = with(Policy::Require, &[&second, &revoking]).unwrap();
        refused(release(&rules), ErrorKind::Untrusted, "was revoked");
        assert!(release(&with(Policy::Require, &[]).unwrap()).unwrap().is_some());
        // A folder that cannot be read does not prove that no list was used.
        #[cfg(unix)]
        {
            let circle = folder.path().join("circle");
            std::os::unix::fs::symlink("circle", &circle).unwrap();
            let with = |policy| trust(policy).with_lists(&[&first], Some(&circle));
            let unreadable = format!("{}: the numbers of lists cannot be read", circle.display());
            refused(with(Policy::Require), ErrorKind::Missing, &unreadable);
            assert!(!with(Policy::Warn).unwrap().take_warnings().is_empty());
        }
    }

    #[test]
    fn the_first_list_may_have_a_number_made_of_a_date() {
        let folder = tempfile::tempdir().unwrap();
        let (memory, path) = (folder.path().join("memory"), folder.path().join("list"));
        let applies = |sequence| {
            fs::write(&path, Revocations::sign("acme", sequence, &[], &[], &key(1)).unwrap()).unwrap();
            trust(Policy::Require).with_lists(&[&path], Some(&memory)).map(drop)
        };
        refused(applies((1 << 53) + 1), ErrorKind::Untrusted, "after 0");
        applies(20_261_129_023_000).unwrap();
        applies(20_261_231_000_000).unwrap();
        refused(applies(20_261_129_023_001), ErrorKind::Untrusted, "is older than");
    }

    #[test]
    fn a_number_that_another_process_writes_meanwhile_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let (memory, path) = (folder.path().join("memory"), folder.path().join("list"));
        fs::write(&path, Revocations::sign("acme", 2, &[], &[], &key(1)).unwrap()).unwrap();
        let lock = shardwright_files::private_files::lock(&memory.join("lock")).unwrap();
        let (path, asked) = (&path, &memory);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| trust(Policy::Require).with_lists(&[path], Some(asked)).map(drop));
            std::thread::sleep(std::time::Duration::from_millis(200));
            assert!(!waits.is_finished(), "it waits");
            let number = asked.join(format!("revocations-{}-acme", key(1).public()));
            shardwright_files::private_files::write_durably(&number, b"6").unwrap();
            drop(lock);
            refused(waits.join().unwrap(), ErrorKind::Untrusted, "older than number 6");
        });
    }

    #[test]
    fn a_list_must_be_signed_by_a_trusted_key_and_make_sense() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list");
        let with = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            trust(Policy::Off).with_lists(&[&path], None).map(drop)
        };
        let sound = Revocations::sign("acme", 1, &[], &[], &key(1)).unwrap();
        with(&sound).unwrap();
        for cut in 0..sound.len() {
            assert!(with(&sound[..cut]).is_err(), "{cut}");
        }
        let foreign = Revocations::sign("acme", 1, &[], &[], &key(9)).unwrap();
        refused(with(&foreign), ErrorKind::Untrusted, "not a trusted key");
        let own = Revocations::sign("acme", 1, &[key(1).public()], &[], &key(1)).unwrap();
        refused(with(&own), ErrorKind::Invalid, "which signed it");
        for payload in [
            "{}",
            "",
            r#"{"revocations":2,"keys":[],"least":[]}"#,
            r#"{"revocations":1,"keys":["00"],"least":[]}"#,
        ] {
            let statement = Statement::of(Kind::Revocations, "acme", 1, payload.as_bytes()).unwrap();
            let mut bytes = Envelope::sign(&statement, &key(1)).to_bytes().to_vec();
            bytes.extend_from_slice(payload.as_bytes());
            refused(with(&bytes), ErrorKind::Invalid, "invalid list of revocations");
        }
        fs::write(&path, vec![0; REVOCATIONS_BYTES as usize + 1]).unwrap();
        let long = trust(Policy::Off).with_lists(&[&path], None);
        refused(long, ErrorKind::Missing, &REVOCATIONS_BYTES.to_string());

        // A list that revokes the key of another list.
        let first = folder.path().join("first");
        fs::write(&first, Revocations::sign("one", 1, &[], &[], &key(1)).unwrap()).unwrap();
        fs::write(&path, Revocations::sign("two", 1, &[key(1).public()], &[], &key(2)).unwrap()).unwrap();
        let both = trust(Policy::Off).with_lists(&[&first, &path], None);
        refused(both, ErrorKind::Invalid, "which signed list `one`");
        // In the other order, the key is already revoked.
        let both = trust(Policy::Off).with_lists(&[&path, &first], None);
        refused(both, ErrorKind::Untrusted, "was revoked");
    }
}
