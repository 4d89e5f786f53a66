//! Verifies who signed a file, and whether the rules accept that.
//!
//! **Job.** Keys ([`PublicKey`], [`SecretKey`]), the [`Envelope`] that signs a bundle, a shim, a
//! planner or a profile, and the signed list of [revocations](Revocations). Also the rules of a
//! host ([`Trust`]): which keys it trusts, and whether a file without a good signature is used,
//! used with a warning, or refused.
//!
//! **Not its job.** It parses only envelopes and lists. Signed files are bytes to it, and the
//! reader of a file knows where its signature is. It keeps no secret, and does not encrypt.
//!
//! ```
//! use shardwright_trust::{Envelope, Kind, Policy, SecretKey, Statement, Trust};
//!
//! let key = SecretKey::from_seed([7; 32]);
//! let statement = Statement::of(Kind::Profile, "mt6989", 3, b"{}").unwrap();
//! let envelope = Envelope::sign(&statement, &key).to_bytes();
//!
//! let trust = Trust::new(Policy::Require, [key.public()]);
//! let path = "mt6989.json".as_ref();
//! let signed = trust.expect(path, Kind::Profile, Some(&envelope), b"{}").unwrap();
//! assert_eq!(signed.unwrap().release, 3);
//! assert!(trust.expect(path, Kind::Profile, Some(&envelope), b"{ }").is_err());
//! assert!(trust.expect(path, Kind::Profile, None, b"{}").is_err());
//! ```

mod detached_signature;
mod envelope;
mod keys;
mod memory;
mod options;
mod revocations;
mod rules;

pub use detached_signature::{path_of_signature, signature_beside};
pub use envelope::{ENVELOPE_BYTES, Envelope, Kind, SUFFIX, Statement};
pub use keys::{PublicKey, SecretKey};
pub use options::TrustOptions;
pub use revocations::{LeastRelease, REVOCATIONS_BYTES, Revocations};
pub use rules::{Policy, Trust, unbound, unsigned};
