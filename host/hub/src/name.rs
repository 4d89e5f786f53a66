//! Checks names of files from a server before they become paths.

/// Maximum length of a name in bytes.
const BYTES: usize = 512;

/// Maximum number of folders in a name.
const DEPTH: usize = 16;

/// Checks that a name is a path below a folder, on any system.
pub(crate) fn check(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.len() > BYTES {
        return Err("a name has 1 to 512 bytes");
    }
    if name.chars().any(|c| c.is_control() || "\\:\"<>|".contains(c)) {
        return Err("a name has no control characters and none of \\ : \" < > |");
    }
    let mut parts = name.split('/');
    if parts.clone().count() > DEPTH {
        return Err("the file is too many folders deep");
    }
    // Windows removes dots and blanks at the end of a name.
    match parts.any(|part| part.is_empty() || part.trim_end_matches(['.', ' ']).is_empty()) {
        true => Err("a name leads neither to another folder nor to none"),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_below_their_folder() {
        for name in ["config.json", "1_Pooling/config.json", "a b", "..a", ".gitattributes", "é"] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        let (long, deep) = ("a".repeat(513), "a/".repeat(16) + "a");
        for name in [
            "", "..", ".", "a/..", "../a", "a/../b", "/a", "a/", "a//b", "a/./b", "C:a", "a\\b", "a\0b",
            "a\n", "... ", &long, &deep,
        ] {
            assert!(check(name).is_err(), "{name:?}");
        }
    }
}
