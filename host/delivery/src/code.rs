//! Recognises executable code by its first bytes.

use shardwright_bundle::{Bundle, Manifest};
use shardwright_vocabulary::{Error, Result};

/// First bytes of code for a processor, a virtual machine or a sandbox, and of planners packed for
/// one. Compiled graphs are not among them: an artefact begins with our own header, followed by the
/// vendor compiler's output.
const CODE: &[(&[u8], &str)] = &[
    (b"\x7fELF", "a native library or program"),
    (b"\0asm", "a WebAssembly module, such as a planner"),
    (b"SWPACK\0", "a planner pack"),
    (b"dex\n", "code for Android's virtual machine"),
    (b"oat\n", "code for Android's virtual machine"),
    (b"\xca\xfe\xba\xbe", "a Java class or a native program"),
    (b"\xcf\xfa\xed\xfe", "a native library or program"),
    (b"MZ", "a native library or program"),
    (b"PK\x03\x04", "an archive, in which anything may be"),
    (b"#!", "a script"),
];

/// Returns the kind of code that begins with these bytes, if any.
pub(crate) fn code(begin: &[u8]) -> Option<&'static str> {
    CODE.iter().find(|(magic, _)| begin.starts_with(magic)).map(|(_, what)| *what)
}

/// Refuses a manifest that names a file of code.
pub(crate) fn expect_none(bundle: &Bundle, manifest: &Manifest) -> Result<()> {
    for (used_as, file) in manifest.references() {
        if let Some(what) = code(&bundle.begin_of(&file)?) {
            let what = format!("{used_as} is {what}, and only models may be delivered this way");
            let help = "libraries and planners belong into the app's own modules; compile the bundle again";
            return Err(Error::unsupported(what).with_help(help));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_known_by_its_first_bytes() {
        for bytes in [&b"\x7fELF\x02\x01"[..], b"\0asm\x01\0\0\0", b"SWPACK\0x", b"PK\x03\x04", b"#!/bin/sh"]
        {
            assert!(code(bytes).is_some(), "{bytes:?}");
        }
        for bytes in [&b"SWARTEF\0"[..], b"{\"model\":1}", b"", b"\x7fEL", b"\0\0\0\0"] {
            assert_eq!(code(bytes), None, "{bytes:?}");
        }
        assert!(CODE.iter().all(|(magic, _)| magic.len() <= shardwright_bundle::BEGIN_BYTES));
    }
}
