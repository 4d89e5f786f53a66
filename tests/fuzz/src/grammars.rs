//! The target for grammars: JSON schemas, regular expressions and Lark.

use std::sync::OnceLock;

use shardwright_constraint::{Constraint, ConstraintState, Grammar, Vocabulary};
use shardwright_text::Tokenizer;
use shardwright_vocabulary::{Error, ErrorKind, Result};

/// A tokenizer of bytes and short words, with special tokens.
const TOKENIZER: &[u8] = include_bytes!("../../fixtures/phi4mini/tokenizer.json");

/// Most tokens of a reply.
const TOKENS: usize = 12;

/// Allowed tokens that are checked at each position of a reply, about.
const CHECKED: usize = 4;

/// Compiles a grammar after the byte of its kind, and follows a reply of allowed tokens. The
/// grammar counts as accepted if it allows a token.
///
/// Each token of a mask must be allowed, and must be accepted. Only the limits of the parser may
/// end a reply early.
pub fn grammar(bytes: &[u8]) -> bool {
    let Some((kind, text)) = bytes.split_first() else { return false };
    let Ok(text) = std::str::from_utf8(text) else { return false };
    let Some((size, vocabulary)) = vocabulary() else { return false };
    let grammar = match kind % 3 {
        0 => Grammar::json_schema_text(text),
        1 => Ok(Grammar::regex(text)),
        _ => Ok(Grammar::lark(text)),
    };
    let constraint = match grammar.and_then(|grammar| Constraint::new(vocabulary, &grammar)) {
        Ok(constraint) => constraint,
        Err(error) => {
            expect_refusal(&error);
            return false;
        }
    };
    assert!(constraint.ignored().iter().all(|pointer| pointer.starts_with('/')), "{constraint:?}");
    match constraint.start().and_then(|mut state| follow(&mut state, *size, text.len())) {
        Ok(tokens) => tokens > 0,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.help().is_some(), "{error}");
            false
        }
    }
}

/// Returns the number of ids and the vocabulary of [`TOKENIZER`].
fn vocabulary() -> Option<&'static (u32, Vocabulary)> {
    static VOCABULARY: OnceLock<Option<(u32, Vocabulary)>> = OnceLock::new();
    let prepared = VOCABULARY.get_or_init(|| {
        let tokenizer = Tokenizer::from_bytes(TOKENIZER, "tokenizer.json").ok()?;
        let size = u32::try_from(tokenizer.vocabulary_size()).ok()?;
        Some((size, Vocabulary::new(&tokenizer).ok()?))
    });
    prepared.as_ref()
}

/// Checks that an error is about the grammar, or is a fault of the library that compiles it.
fn expect_refusal(error: &Error) {
    let is_expected = match error.kind() {
        ErrorKind::Argument | ErrorKind::Invalid | ErrorKind::Unsupported => true,
        ErrorKind::Internal => error.message().starts_with("cannot compile the "),
        _ => false,
    };
    assert!(is_expected && error.help().is_some(), "{:?}: {error}", error.kind());
}

/// Accepts tokens of each mask, and returns their number.
fn follow(state: &mut ConstraintState, size: u32, seed: usize) -> Result<usize> {
    let mut choice = seed;
    while state.tokens().len() < TOKENS {
        // The worker has the stack that deep grammars need.
        state.begin_mask();
        let mask = state.mask()?;
        let allowed: Vec<u32> = (0..size).filter(|id| mask.allows(*id)).collect();
        if allowed.is_empty() {
            assert!(state.must_stop()? && state.is_complete()?, "no token may follow: {state:?}");
            break;
        }
        for id in allowed.iter().step_by(allowed.len().div_ceil(CHECKED)) {
            assert_eq!(state.allowed(&[*id])?, 1, "token {id} of the mask: {state:?}");
        }
        choice = choice.wrapping_mul(31).wrapping_add(17);
        state.accept(allowed[choice % allowed.len()])?;
    }
    Ok(state.tokens().len())
}
