//! White space as defined by Python's strings.

/// Checks whether Python's `str.isspace` is true for a character: white space of Unicode, and the
/// four separators of ASCII.
pub(crate) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}
