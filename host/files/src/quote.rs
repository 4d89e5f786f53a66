//! Paths in commands that a message suggests.

use std::ffi::OsStr;

/// Returns an argument as a POSIX shell reads it, so that a suggested command can be pasted. Quotes
/// it unless it consists of plain characters.
///
/// ```
/// use shardwright_files::shell_quoted;
///
/// assert_eq!(shell_quoted("models/demo.swb"), "models/demo.swb");
/// assert_eq!(shell_quoted("my models/demo's"), r"'my models/demo'\''s'");
/// ```
pub fn shell_quoted(argument: impl AsRef<OsStr>) -> String {
    let text = argument.as_ref().to_string_lossy();
    let is_plain = |character: char| character.is_alphanumeric() || "-_./:,+@%".contains(character);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.into_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_what_was_quoted() {
        for argument in
            ["a", "a b", "it's", "$HOME", "`id`", "a;b", "", "*", "~", "a\nb", "é/ü", "\\", "\"", "#a", "x=y"]
        {
            let command = format!("printf %s {}", shell_quoted(argument));
            let output = std::process::Command::new("sh").arg("-c").arg(&command).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), argument, "{command}");
        }
    }
}
