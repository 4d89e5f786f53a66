use shardwright_trust::SecretKey;

/// The key and release for signing shares of a bundle, which are separate bundles.
#[derive(Debug)]
pub struct Signer {
    /// Name whose releases are counted.
    pub name: String,
    /// Number of the release.
    pub release: u64,
    pub key: SecretKey,
}
