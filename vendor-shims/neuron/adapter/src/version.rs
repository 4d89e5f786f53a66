//! The adapter's version, and features that depend on it.

/// The three bytes that `Neuron_getVersion` writes. (R)
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RuntimeVersion {
    /// Major version. Different major versions refuse each other's blobs. (reported)
    pub major: u8,
    pub minor: u8,
    pub patch: u8,
}

impl RuntimeVersion {
    /// Creates a version from its three parts.
    pub const fn new(major: u8, minor: u8, patch: u8) -> RuntimeVersion {
        RuntimeVersion { major, minor, patch }
    }

    /// Parses a version such as `8.2.28`. Returns `None` if the text is not three numbers of at
    /// most 255 with dots between them.
    pub fn parse(text: &str) -> Option<RuntimeVersion> {
        let mut parts = text.split('.').map(|part| {
            let is_plain = part.bytes().all(|byte| byte.is_ascii_digit());
            part.parse::<u8>().ok().filter(|_| is_plain)
        });
        let version = RuntimeVersion::new(parts.next()??, parts.next()??, parts.next()??);
        parts.next().is_none().then_some(version)
    }
}

impl std::fmt::Display for RuntimeVersion {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// First version for which Google's plugin calls `NeuronCompilation_getSupportedOperations` before
/// it compiles: not for 8.2.23, but for 8.2.24. (R)
pub const ASKED_FOR_SUPPORTED_OPERATIONS: RuntimeVersion = RuntimeVersion::new(8, 2, 24);
/// First version for which Google's plugin sends 4-bit weights per channel with their scales, and a
/// bias per channel with its own type. For earlier versions, the scales of 4-bit weights are lost.
/// (R)
pub const FOUR_BITS_PER_CHANNEL: RuntimeVersion = RuntimeVersion::new(8, 2, 28);
/// First major version in which the blob operand of `com.mediatek.compiled_network` has another
/// code. (L)
pub const COMPILED_NETWORK_CODE_MAJOR: u8 = 8;
