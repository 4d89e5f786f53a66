//! A grammar compiled for a vocabulary.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use llguidance::earley::CGrammar;
use llguidance::{Matcher, TokenParser};
use shardwright_vocabulary::{Error, ErrorKind, Result, Shortage};

use crate::compiled::{endless_rule, has_temperature};
use crate::faults;
use crate::grammar::Grammar;
use crate::schema::Keywords;
use crate::state::ConstraintState;
use crate::vocabulary::Vocabulary;

/// Stack of the threads that compile and run grammars. Their parsers are recursive: they descend
/// once for each rule or reference that refers to the next. Only used pages need memory.
pub(crate) const STACK_BYTES: usize = 512 << 20;

/// A grammar compiled for the tokens of a model. Clones are cheap and share it.
#[derive(Clone)]
pub struct Constraint {
    vocabulary: Vocabulary,
    grammar: Arc<Grammar>,
    /// The parser before the first token.
    parser: Arc<Mutex<Matcher>>,
    ignored: Arc<[String]>,
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Constraint").field("grammar", &self.grammar).finish_non_exhaustive()
    }
}

impl Constraint {
    /// Checks and compiles `grammar` for the tokens of `vocabulary`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Argument`] if the grammar is malformed or too large, if no reply can match it,
    /// or if each matching reply would be infinite. [`ErrorKind::Unsupported`] if it uses a keyword
    /// or a format that is not implemented, which the error names.
    pub fn new(vocabulary: &Vocabulary, grammar: &Grammar) -> Result<Constraint> {
        grammar.check()?;
        let noun = grammar.noun();
        let keywords = grammar.schema().map(Keywords::of).transpose()?.unwrap_or_default();
        if let Some(first) = keywords.unsupported.first() {
            let name = first.rsplit('/').next().unwrap_or_default();
            return Err(faults::unsupported(noun, &format!("the unsupported keyword `{name}` at `{first}`")));
        }
        let work = || compile(vocabulary, grammar);
        let compiled = thread::scope(|scope| {
            let builder = thread::Builder::new().name("grammar".to_owned()).stack_size(STACK_BYTES);
            let thread = builder.spawn_scoped(scope, work).map_err(|error| not_started(&error))?;
            thread.join().unwrap_or_else(|_| Err(faults::of_library("cannot compile the grammar", "panic")))
        });
        Ok(Constraint {
            vocabulary: vocabulary.clone(),
            grammar: Arc::new(grammar.clone()),
            parser: Arc::new(Mutex::new(compiled?)),
            ignored: keywords.ignored.into(),
        })
    }

    /// Returns the grammar.
    pub fn grammar(&self) -> &Grammar {
        &self.grammar
    }

    /// Returns the unknown keywords of a JSON schema as JSON pointers. As the JSON Schema
    /// specification requires, they have no effect.
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// Starts a reply.
    ///
    /// # Errors
    ///
    /// If the parser of grammars fails.
    pub fn start(&self) -> Result<ConstraintState> {
        // The caches of a parser grow with each reply, so each reply gets its own.
        let parser = self.parser.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
        Ok(ConstraintState::new(self.vocabulary.clone(), parser))
    }
}

/// Compiles a grammar up to its first mask.
fn compile(vocabulary: &Vocabulary, grammar: &Grammar) -> Result<Matcher> {
    let noun = grammar.noun();
    let parser = vocabulary.factory().create_parser(grammar.top_level());
    let mut parser = parser.map_err(|error| faults::of_compiler(noun, &format!("{error:#}")))?;
    if let Some(warning) = parser.grammar_warnings().first() {
        return Err(faults::unsupported(noun, &format!("a part that could not be enforced: {warning}")));
    }
    let compiled: &CGrammar = parser.parser.grammar();
    if let Some(rule) = endless_rule(compiled) {
        let why = format!("`{rule}` requires itself, so a matching text never ends");
        return Err(faults::unsatisfiable(noun, &why).with_help("let the recursion end, for example by null"));
    }
    if has_temperature(compiled) {
        let what = "the attribute `temperature`";
        return Err(faults::unsupported(noun, what).with_help("set the temperature of the whole reply"));
    }
    first_mask(noun, parser)
}

/// Computes the first mask, which shows whether any token can begin a reply.
fn first_mask(noun: &str, parser: TokenParser) -> Result<Matcher> {
    let mut matcher = Matcher::new(Ok(parser));
    match matcher.compute_mask() {
        Ok(mask) if !mask.is_zero() => Ok(matcher),
        Ok(_) => Err(faults::unsatisfiable(noun, "no token can begin the reply")),
        Err(error) => {
            let message = format!("{error:#}");
            Err(match message.contains("NoExtension") {
                true => faults::unsatisfiable(noun, "no token can begin the reply"),
                false => faults::of_compiler(noun, &message),
            })
        }
    }
}

fn not_started(error: &std::io::Error) -> Error {
    let shortage = Shortage::of_start(error);
    let kind = shortage.map_or(ErrorKind::Internal, Shortage::kind);
    let help = shortage.map_or("try again, or generate without a grammar", Shortage::help);
    Error::new(kind, format!("cannot compile the grammar on a separate thread: {error}")).with_help(help)
}
