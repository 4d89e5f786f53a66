//! Errors of grammars, by kind.

use shardwright_vocabulary::{Error, ErrorKind};

/// Largest part of a message of the library that is shown.
const SHOWN_BYTES: usize = 400;

/// Returns the error of a grammar that exceeds a limit.
pub(crate) fn too_large(what: &str) -> Error {
    Error::argument(what).with_help("use a smaller or simpler grammar")
}

/// Returns the error of a grammar that no reply can match.
pub(crate) fn unsatisfiable(noun: &str, why: &str) -> Error {
    Error::argument(format!("no reply can match the {noun}: {why}"))
        .with_help("remove the contradiction, or allow one more alternative")
}

/// Returns the error of a part of a grammar that exists but is not implemented.
pub(crate) fn unsupported(noun: &str, what: &str) -> Error {
    Error::unsupported(format!("the {noun} uses {what}"))
        .with_help("remove it, and check replies for it afterwards")
}

/// Converts an error of the compiler of grammars.
pub(crate) fn of_compiler(noun: &str, message: &str) -> Error {
    let shown = shown(message);
    let has = |words: &str| message.contains(words);
    if let Some((_, why)) = shown.split_once("Unsatisfiable schema: ") {
        return unsatisfiable(noun, why);
    }
    if has("circular references with sibling keys") {
        return unsupported(noun, &format!("a loop of references: {shown}"));
    }
    if has("Only absolute $ref's") || (has("Reference segment") && shown.contains(['~', '%'])) {
        return unsupported(noun, &format!("a reference that is not a plain path in the schema: {shown}"));
    }
    if let Some((_, keys)) = shown.split_once("Unimplemented keys: ") {
        return unsupported(noun, &format!("unsupported keywords: {keys}"));
    }
    if let Some((_, format)) = shown.split_once("Unknown format: ") {
        return unsupported(noun, &format!("the unsupported format `{format}`"));
    }
    if has("oneOf constraints are not supported") {
        return unsupported(noun, "`oneOf` with alternatives that may overlap")
            .with_help("use `anyOf`, or give each alternative a constant property of its own");
    }
    if has("only supported when all keys") {
        return unsupported(noun, "`minProperties` or `maxProperties` with optional properties");
    }
    // Symbols are numbered with 16 bits.
    let too_many_symbols = has("CSymIdx out of range") || has("symbols.len() < u16::MAX");
    if too_many_symbols || has("too big") || has("too large") || has("too many") || has("fuel") {
        return too_large(&format!("the {noun} is too large: {shown}"));
    }
    if message.starts_with("panic: ") {
        return of_library(&format!("cannot compile the {noun}"), message);
    }
    Error::argument(format!("the {noun} is invalid: {shown}"))
        .with_help("correct it: the page `docs/using.md` names the supported syntax")
}

/// Converts an error of the parser within a reply.
pub(crate) fn of_parser(message: &str) -> Error {
    let shown = shown(message);
    Error::new(ErrorKind::Unsupported, format!("cannot follow the grammar: {shown}"))
        .with_help("use a simpler grammar, with fewer alternatives that begin alike")
}

/// Converts an unexpected failure of the library.
pub(crate) fn of_library(what: &str, message: &str) -> Error {
    Error::internal(format!("{what}: {}", shown(message)))
        .with_help("generate without a grammar, and report the grammar")
}

/// Returns the first line of a message, which may continue with states and traces.
fn shown(message: &str) -> &str {
    let line = message.lines().next().unwrap_or_default().trim();
    let line = line.strip_suffix("<non-verbose/>").unwrap_or(line).trim();
    match line.char_indices().map(|(start, _)| start).take_while(|start| *start <= SHOWN_BYTES).last() {
        Some(end) if line.len() > SHOWN_BYTES => &line[..end],
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_line_of_limited_length() {
        assert_eq!(shown("parser stopped\n<state>\nlong"), "parser stopped");
        assert_eq!(shown(""), "");
        let long = "é".repeat(SHOWN_BYTES);
        assert!(shown(&long).len() <= SHOWN_BYTES && long.starts_with(shown(&long)));
    }

    #[test]
    fn failures_of_the_library_are_not_blamed_on_the_grammar() {
        let panic = of_compiler("grammar", "panic: index out of bounds\n<backtrace>");
        assert_eq!(panic.kind(), ErrorKind::Internal);
        assert_eq!(panic.message(), "cannot compile the grammar: panic: index out of bounds");
        let large = of_compiler("grammar", "panic: CSymIdx out of range\n<backtrace>");
        assert_eq!(large.kind(), ErrorKind::Argument);
        let symbols = "panic: assertion failed: grammar.symbols.len() < u16::MAX as usize - 10";
        assert_eq!(of_compiler("grammar", symbols).kind(), ErrorKind::Argument);
        let parser = of_parser("too many items\n<non-verbose/>");
        assert_eq!(
            (parser.kind(), parser.message()),
            (ErrorKind::Unsupported, "cannot follow the grammar: too many items")
        );
        assert!([panic, large, parser].iter().all(|error| error.help().is_some()));
    }
}
