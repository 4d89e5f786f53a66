use shardwright_trust::SecretKey;

/// Who signs the shares of a bundle, which are bundles of their own.
#[derive(Debug)]
pub struct Signer {
    /// Name under which releases are counted.
    pub name: String,
    /// Number of the release.
    pub release: u64,
    /// The key.
    pub key: SecretKey,
}
