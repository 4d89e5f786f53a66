//! The rules of a host: the keys it trusts, and the policy for files without a good signature.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use shardwright_vocabulary::Notice;

use crate::memory::Memory;
use crate::{Envelope, Kind, PublicKey, REVOCATIONS_BYTES, Revocations, Statement, TrustError};

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
    warnings: Arc<Mutex<Vec<TrustError>>>,
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
    pub fn with_lists(
        mut self,
        paths: &[impl AsRef<Path>],
        memory: Option<&Path>,
    ) -> Result<Trust, TrustError> {
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
                    self.or_warning(Memory::of(memory, list).advance(path, list))?;
                }
            }
            Some(_) => {}
            None => lists().for_each(|(path, _)| {
                let reason =
                    "there is no folder to remember its number in, so that an older one is not recognised";
                self.warn(TrustError::Io { path: path.to_owned(), reason: reason.to_owned() });
            }),
        }
        Ok(self)
    }

    /// Reads a list that these rules accept together with the lists so far.
    fn read(&self, path: &Path) -> Result<Revocations, TrustError> {
        let read = shardwright_files::open(path, shardwright_files::Links::Followed)
            .and_then(|(file, _)| shardwright_files::read_from(file, REVOCATIONS_BYTES));
        let bytes =
            read.map_err(|error| TrustError::Io { path: path.to_owned(), reason: error.to_string() })?;
        let list =
            Revocations::parse(path, &bytes, |envelope| self.admits(path, Kind::Revocations, envelope))?;
        match self.lists.iter().find(|other| list.keys.contains(&other.key)) {
            None => Ok(list),
            Some(other) => {
                let reason = format!("it revokes {}, which signed list `{}`", other.key, other.name);
                Err(TrustError::List { path: path.to_owned(), reason })
            }
        }
    }

    /// Requires all lists that were used here, except those of keys that do not count any more.
    fn expect_remembered(&self, memory: &Path) -> Result<(), TrustError> {
        let remembered = match Memory::all(memory) {
            Ok(remembered) => remembered,
            Err(error) => return self.or_warning(Err(error)),
        };
        for (key, name, path) in remembered {
            let counts = self.keys.contains(&key) && !self.lists.iter().any(|list| list.keys.contains(&key));
            if counts && !self.lists.iter().any(|list| list.key == key && list.name == name) {
                self.or_warning(Err(TrustError::ListNotGiven { name, key, path }))?;
            }
        }
        Ok(())
    }

    /// Turns errors about remembered numbers into warnings, unless signatures are required: an
    /// unreadable cache must not stop other commands.
    fn or_warning(&self, result: Result<(), TrustError>) -> Result<(), TrustError> {
        match result {
            Err(error @ (TrustError::Memory { .. } | TrustError::ListNotGiven { .. }))
                if self.policy != Policy::Require =>
            {
                self.warn(error);
                Ok(())
            }
            other => other,
        }
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
    ) -> Result<Option<Statement>, TrustError> {
        self.judge(kind, || {
            let unsigned = || TrustError::Unsigned { path: path.to_owned() };
            let envelope = Envelope::parse(path, envelope.ok_or_else(unsigned)?)?;
            self.admits(path, kind, &envelope)?;
            if !envelope.statement().is_about(payload) {
                return Err(TrustError::Altered { path: path.to_owned(), key: envelope.key() });
            }
            Ok(envelope.statement().clone())
        })
    }

    /// Like [`expect`](Self::expect), for a file with its envelope in a file next to it.
    ///
    /// # Errors
    ///
    /// The errors of [`expect`](Self::expect). Also if the envelope cannot be read.
    pub fn expect_beside(
        &self,
        path: &Path,
        kind: Kind,
        payload: &[u8],
    ) -> Result<Option<Statement>, TrustError> {
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
    ) -> Result<Option<Statement>, TrustError> {
        self.judge(kind, || {
            let unsigned = || TrustError::Unsigned { path: path.to_owned() };
            let envelope = Envelope::parse(path, envelope.ok_or_else(unsigned)?)?;
            self.admits(path, kind, &envelope)?;
            Ok(envelope.statement().clone())
        })
    }

    /// Checks that a key is not revoked, for signatures in another form such as a planner pack's.
    /// Revoked keys are refused under every policy.
    ///
    /// # Errors
    ///
    /// [`TrustError::RevokedKey`] if it is revoked.
    pub fn expect_not_revoked(&self, path: &Path, key: PublicKey) -> Result<(), TrustError> {
        match self.lists.iter().find(|list| list.keys.contains(&key)) {
            Some(list) => Err(TrustError::RevokedKey { path: path.to_owned(), key, sequence: list.sequence }),
            None => Ok(()),
        }
    }

    /// Checks that the signed file has the name in its signature.
    ///
    /// # Errors
    ///
    /// [`TrustError::OtherName`], under [`Policy::Require`].
    pub fn expect_name(&self, path: &Path, signed: &Statement, name: &str) -> Result<(), TrustError> {
        let (found, expected) = (signed.name.clone(), name.to_owned());
        self.judge(signed.kind, || match found == expected {
            true => Ok(()),
            false => Err(TrustError::OtherName { path: path.to_owned(), found, expected }),
        })
        .map(drop)
    }

    /// Checks a further requirement on a signed file.
    ///
    /// # Errors
    ///
    /// The error of `otherwise`, under [`Policy::Require`].
    pub fn expect_that(
        &self,
        kind: Kind,
        holds: bool,
        otherwise: impl FnOnce() -> TrustError,
    ) -> Result<(), TrustError> {
        self.judge(kind, || if holds { Ok(()) } else { Err(otherwise()) }).map(drop)
    }

    /// Returns the warnings about used files since the last call, without duplicates.
    pub fn take_warnings(&self) -> Vec<TrustError> {
        std::mem::take(&mut *self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Like [`take_warnings`](Self::take_warnings), as notices for users with suggestions.
    pub fn take_notices(&self) -> Vec<Notice> {
        let warnings = self.take_warnings().into_iter();
        warnings.map(|warning| Notice::warning(format!("{warning}; {}", warning.help()))).collect()
    }

    fn judge<T>(
        &self,
        kind: Kind,
        check: impl FnOnce() -> Result<T, TrustError>,
    ) -> Result<Option<T>, TrustError> {
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

    fn warn(&self, warning: TrustError) {
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }

    /// Checks that the key of an envelope made it, is trusted and not revoked, and that its release
    /// is not withdrawn.
    fn admits(&self, path: &Path, kind: Kind, envelope: &Envelope) -> Result<(), TrustError> {
        let (statement, key) = (envelope.statement(), envelope.key());
        let path = || -> PathBuf { path.to_owned() };
        if !envelope.is_signed() {
            return Err(TrustError::Forged { path: path(), key });
        }
        if !self.keys.contains(&key) {
            return Err(TrustError::UntrustedKey { path: path(), key });
        }
        self.expect_not_revoked(&path(), key)?;
        if statement.kind != kind {
            return Err(TrustError::OtherKind { path: path(), found: statement.kind, expected: kind });
        }
        if let (Kind::Bundle, Some(expected)) = (kind, &self.expected)
            && *expected != statement.name
        {
            let (found, expected) = (statement.name.clone(), expected.clone());
            return Err(TrustError::Unexpected { path: path(), found, expected });
        }
        for list in &self.lists {
            if let Some(least) = list.least(statement).filter(|least| statement.release < *least) {
                let (name, release, sequence) = (statement.name.clone(), statement.release, list.sequence);
                return Err(TrustError::Withdrawn { path: path(), kind, name, release, least, sequence });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{LeastRelease, SecretKey};

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
        type Case<'c> = (Option<&'c [u8]>, Kind, &'c [u8], fn(&TrustError) -> bool);
        let cases: [Case<'_>; 6] = [
            (None, Kind::Bundle, b"payload", |error| matches!(error, TrustError::Unsigned { .. })),
            (Some(b"short"), Kind::Bundle, b"payload", |error| matches!(error, TrustError::Damaged { .. })),
            (Some(&forged), Kind::Bundle, b"payload", |error| matches!(error, TrustError::Forged { .. })),
            (Some(&good), Kind::Bundle, b"payloaf", |error| matches!(error, TrustError::Altered { .. })),
            (Some(&good), Kind::Shim, b"payload", |error| matches!(error, TrustError::OtherKind { .. })),
            (Some(&signed(Kind::Bundle, "gemma", 3, 9)), Kind::Bundle, b"payload", |error| {
                matches!(error, TrustError::UntrustedKey { .. })
            }),
        ];
        let path = Path::new("some.bundle");
        for (envelope, kind, payload, is) in cases {
            let error = trust(Policy::Require).expect(path, kind, envelope, payload).unwrap_err();
            assert!(is(&error) && error.to_string().contains("some.bundle"), "{error}");
            assert!(!error.help().is_empty() && error.kind() != shardwright_vocabulary::ErrorKind::Internal);
            let warned = trust(Policy::Warn);
            for _ in 0..2 {
                assert_eq!(warned.expect(path, kind, envelope, payload), Ok(None));
            }
            assert_eq!(warned.take_warnings(), [error]);
            assert!(warned.take_warnings().is_empty());
            let off = trust(Policy::Off);
            assert_eq!(off.expect(path, kind, envelope, payload), Ok(None));
            assert!(off.take_warnings().is_empty());
        }
        for policy in [Policy::Warn, Policy::Require] {
            let trust = trust(policy);
            let statement = trust.expect(path, Kind::Bundle, Some(&good), b"payload").unwrap().unwrap();
            assert_eq!((statement.name.as_str(), statement.release), ("gemma", 3));
            assert_eq!(trust.expect_envelope(path, Kind::Bundle, Some(&good)), Ok(Some(statement.clone())));
            assert_eq!(trust.expect_name(path, &statement, "gemma"), Ok(()));
            assert!(trust.take_warnings().is_empty());
            let other = trust.expect_name(path, &statement, "qwen");
            let unbound = || TrustError::Unbound { path: path.to_owned() };
            let that = trust.expect_that(Kind::Shim, false, unbound);
            match policy {
                Policy::Require => {
                    assert!(matches!(other, Err(TrustError::OtherName { .. })), "{other:?}");
                    assert_eq!(that, Err(unbound()));
                }
                _ => assert_eq!((other, that, trust.take_warnings().len()), (Ok(()), Ok(()), 2)),
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
                let error = other.unwrap_err();
                assert!(matches!(&error, TrustError::Unexpected { found, .. } if found == "qwen"), "{error}");
                assert!(!error.help().is_empty());
            }
            assert!(matches!(asked(None), Err(TrustError::Unsigned { .. })));
            let foreign = signed(Kind::Bundle, "gemma", 3, 9);
            assert!(matches!(asked(Some(&foreign)), Err(TrustError::UntrustedKey { .. })));
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
        assert!(matches!(asks(Policy::Require), Err(TrustError::Unsigned { .. })));
        fs::write(&beside, signed(Kind::Profile, "x", 1, 2)).unwrap();
        assert_eq!(asks(Policy::Require).unwrap().unwrap().name, "x");
        assert_eq!(asks(Policy::Off), Ok(None));
        fs::write(&beside, vec![0; 1 << 20]).unwrap();
        assert!(matches!(asks(Policy::Require), Err(TrustError::Damaged { .. })));
        fs::remove_file(&beside).unwrap();
        fs::create_dir(&beside).unwrap();
        assert!(matches!(asks(Policy::Require), Err(TrustError::Io { .. })));
        assert_eq!(asks(Policy::Warn), Ok(None));
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
        assert!(matches!(
            asked(Kind::Bundle, "gemma", 9, 2),
            Err(TrustError::RevokedKey { sequence: 5, .. })
        ));
        let withdrawn = asked(Kind::Bundle, "gemma", 3, 1);
        assert!(
            matches!(withdrawn, Err(TrustError::Withdrawn { release: 3, least: 4, .. })),
            "{withdrawn:?}"
        );
        for (kind, name, release) in
            [(Kind::Bundle, "gemma", 4), (Kind::Bundle, "qwen", 0), (Kind::Shim, "gemma", 3)]
        {
            assert!(asked(kind, name, release, 1).unwrap().is_some(), "{kind} {name} {release}");
        }
        let revoked = rules.expect_not_revoked("pack".as_ref(), key(2).public());
        assert!(matches!(revoked, Err(TrustError::RevokedKey { .. })));
        assert_eq!(rules.expect_not_revoked("pack".as_ref(), key(1).public()), Ok(()));

        // This list again, then an older one, which allows a file that the later one does not.
        applied(Policy::Warn).unwrap();
        writes(4, &[], 1);
        for policy in [Policy::Off, Policy::Warn, Policy::Require] {
            let old = applied(policy);
            assert!(matches!(old, Err(TrustError::OldList { sequence: 4, seen: 5, .. })), "{old:?}");
        }
        // Without a memory the number cannot be checked, which is reported.
        let forgetful = trust(Policy::Require).with_lists(&[&path], None).unwrap();
        assert!(matches!(forgetful.take_warnings().as_slice(), [TrustError::Io { .. }]));
        writes(6, &[], 1);
        applied(Policy::Require).unwrap();
        // A damaged memory must not restart at zero. It must not stop commands that do not require
        // signatures.
        let number = memory.join(format!("revocations-{}-acme", key(1).public()));
        for damage in ["x", ""] {
            fs::write(&number, damage).unwrap();
            let refused = applied(Policy::Require).unwrap_err();
            assert!(matches!(refused, TrustError::Memory { .. }) && !refused.help().is_empty(), "{refused}");
            for policy in [Policy::Off, Policy::Warn] {
                let warned = applied(policy).unwrap().take_warnings();
                assert!(matches!(warned.as_slice(), [TrustError::Memory { .. }]), "{warned:?}");
            }
        }
        fs::write(&number, "6").unwrap();
        // A place that is not writable gives a warning, or is refused if signatures are required.
        let blocked = folder.path().join("file");
        fs::write(&blocked, "").unwrap();
        let at = |policy| trust(policy).with_lists(&[&path], Some(&blocked.join("x")));
        assert!(matches!(at(Policy::Require), Err(TrustError::Memory { .. })));
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
            let refused = applies(u64::MAX, &[], by).unwrap_err();
            assert!(matches!(refused, TrustError::Jump { sequence: u64::MAX, .. }), "{refused}");
            assert!(!refused.help().is_empty());
        };
        jumps(1);
        jumps(2);
        // A list of the other key with that name and a higher number, and a list that revokes the
        // first key.
        applies(900, &[], 2).unwrap();
        applies(901, &[key(1).public()], 2).unwrap();
        applies(6, &[key(2).public()], 1).unwrap();
        assert!(matches!(applies(4, &[], 1), Err(TrustError::OldList { seen: 6, .. })));
        assert!(matches!(applies(900, &[], 2), Err(TrustError::OldList { seen: 901, .. })));
        applies(6 + (1 << 40), &[], 1).unwrap();
        assert!(matches!(applies(8 + (2 << 40), &[], 1), Err(TrustError::Jump { .. })));
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
        assert!(matches!(release(&rules), Err(TrustError::Withdrawn { .. })));
        // Other files in the folder are not numbers of lists.
        for name in ["revocations-zz-acme", "revocations-", "x"] {
            fs::write(memory.join(name), "1").unwrap();
        }
        let number = |by| memory.join(format!("revocations-{}-acme", key(by).public()));
        let path = number(1);
        let missing = TrustError::ListNotGiven { name: "acme".to_owned(), key: key(1).public(), path };
        let message = missing.to_string();
        let file = number(1).display().to_string();
        assert!(message.contains("`acme`") && message.contains(&file) && !missing.help().is_empty());
        for paths in [&[&second][..], &[&renamed], &[&second, &renamed]] {
            assert_eq!(with(Policy::Require, paths).unwrap_err(), missing);
        }
        assert!(!number(2).exists(), "a refused list is not remembered");
        for policy in [Policy::Off, Policy::Warn] {
            let rules = with(policy, &[&second]).unwrap();
            assert_eq!(rules.take_warnings(), std::slice::from_ref(&missing), "{policy:?}");
        }
        // Now the second list was used too.
        let refused = with(Policy::Require, &[&first]).unwrap_err();
        assert!(matches!(refused, TrustError::ListNotGiven { key: of, .. } if of == key(2).public()));
        for paths in [[&first, &second], [&second, &first]] {
            let rules = with(Policy::Require, &paths).unwrap();
            assert!(matches!(release(&rules), Err(TrustError::Withdrawn { .. })));
            assert!(rules.take_warnings().is_empty());
        }
        // Lists of revoked keys and of keys that are not trusted are not required. Neither is any
        // list if none is given.
        let alone = Trust::new(Policy::Require, [key(2).public()]).with_lists(&[&second], Some(&memory));
        assert!(alone.unwrap().take_warnings().is_empty());
        let rules = with(Policy::Require, &[&second, &revoking]).unwrap();
        assert!(matches!(release(&rules), Err(TrustError::RevokedKey { .. })));
        assert!(release(&with(Policy::Require, &[]).unwrap()).unwrap().is_some());
        // A folder that cannot be read does not prove that no list was used.
        #[cfg(unix)]
        {
            let circle = folder.path().join("circle");
            std::os::unix::fs::symlink("circle", &circle).unwrap();
            let with = |policy| trust(policy).with_lists(&[&first], Some(&circle));
            assert!(matches!(with(Policy::Require), Err(TrustError::Memory { path, .. }) if path == circle));
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
        assert!(matches!(applies((1 << 53) + 1), Err(TrustError::Jump { seen: 0, .. })));
        applies(20_261_129_023_000).unwrap();
        applies(20_261_231_000_000).unwrap();
        assert!(matches!(applies(20_261_129_023_001), Err(TrustError::OldList { .. })));
    }

    #[test]
    fn a_number_that_another_process_writes_meanwhile_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let (memory, path) = (folder.path().join("memory"), folder.path().join("list"));
        fs::write(&path, Revocations::sign("acme", 2, &[], &[], &key(1)).unwrap()).unwrap();
        let lock = shardwright_files::own::lock(&memory.join("lock")).unwrap();
        let (path, asked) = (&path, &memory);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| trust(Policy::Require).with_lists(&[path], Some(asked)).map(drop));
            std::thread::sleep(std::time::Duration::from_millis(200));
            assert!(!waits.is_finished(), "it waits");
            let number = asked.join(format!("revocations-{}-acme", key(1).public()));
            shardwright_files::own::write_durably(&number, b"6").unwrap();
            drop(lock);
            let refused = waits.join().unwrap();
            assert!(matches!(refused, Err(TrustError::OldList { seen: 6, .. })), "{refused:?}");
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
        assert_eq!(with(&sound), Ok(()));
        for cut in 0..sound.len() {
            assert!(with(&sound[..cut]).is_err(), "{cut}");
        }
        let foreign = Revocations::sign("acme", 1, &[], &[], &key(9)).unwrap();
        assert!(matches!(with(&foreign), Err(TrustError::UntrustedKey { .. })));
        let own = Revocations::sign("acme", 1, &[key(1).public()], &[], &key(1)).unwrap();
        assert!(matches!(with(&own), Err(TrustError::List { .. })));
        for payload in [
            "{}",
            "",
            r#"{"revocations":2,"keys":[],"least":[]}"#,
            r#"{"revocations":1,"keys":["00"],"least":[]}"#,
        ] {
            let statement = Statement::of(Kind::Revocations, "acme", 1, payload.as_bytes()).unwrap();
            let mut bytes = Envelope::sign(&statement, &key(1)).to_bytes().to_vec();
            bytes.extend_from_slice(payload.as_bytes());
            assert!(matches!(with(&bytes), Err(TrustError::List { .. })), "{payload}");
        }
        fs::write(&path, vec![0; REVOCATIONS_BYTES as usize + 1]).unwrap();
        let long = trust(Policy::Off).with_lists(&[&path], None);
        assert!(matches!(long, Err(TrustError::Io { .. })), "{long:?}");

        // A list that revokes the key of another list.
        let first = folder.path().join("first");
        fs::write(&first, Revocations::sign("one", 1, &[], &[], &key(1)).unwrap()).unwrap();
        fs::write(&path, Revocations::sign("two", 1, &[key(1).public()], &[], &key(2)).unwrap()).unwrap();
        let both = trust(Policy::Off).with_lists(&[&first, &path], None);
        assert!(matches!(both, Err(TrustError::List { .. })), "{both:?}");
        // In the other order, the key is already revoked.
        let both = trust(Policy::Off).with_lists(&[&path, &first], None);
        assert!(matches!(both, Err(TrustError::RevokedKey { .. })), "{both:?}");
    }
}
