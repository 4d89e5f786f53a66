//! Limits the resources of a hostile template.
//!
//! The engine counts instructions, but one instruction can double a string, repeat a list or search
//! through both. So compiled templates are rewritten before they run: every instruction that
//! creates a value is followed by a check of its size, text goes through the counting formatter,
//! and each loop iteration checks the clock. Constant folding at compile time is bounded
//! beforehand, from the tokens.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use minijinja::machinery::{Instruction, Instructions, Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::objects::inside;
use super::python::VALUE_NESTING_MAX;
use super::substitute::substitute;

/// Largest text that a template may write, and largest value that it may build, in bytes: more than
/// a million tokens.
pub const RENDERED_BYTES_MAX: usize = 8 << 20;

/// Total size of all values that one rendering may build, in bytes.
const BUILT_BYTES_MAX: u64 = 256 << 20;

/// Longest list or map, in items. The engine's own `range` ends at 100,000.
const ITEMS_MAX: usize = 1 << 20;

/// Longest rendering. Real templates need milliseconds. This limit only matters if the others fail.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(10);

/// Most tokens between `{{` and `}}`, or `{%` and `%}`. The parser and compiler recurse on them.
const TAG_TOKENS_MAX: usize = 1024;

/// Deepest nesting of blocks. Each `elif` counts as a level, as in the compiler.
const BLOCK_NESTING_MAX: usize = 100;

/// Most bytes to which the constant expressions of a template may be folded.
const FOLDED_BYTES_MAX: u64 = 16 << 20;

/// The reason why a rendering was stopped.
#[derive(Debug, Clone)]
pub(crate) enum Halt {
    Raised(String),
    TooLarge { max: u64, unit: &'static str },
    TooSlow,
    Unsupported(String),
}

/// The resource usage of one rendering.
#[derive(Debug)]
pub(crate) struct Meter {
    built_bytes: AtomicU64,
    deadline: Instant,
    halt: Mutex<Option<Halt>>,
}

impl Meter {
    /// Creates a meter with a time limit.
    pub(crate) fn new(time: Duration) -> Meter {
        Meter { built_bytes: AtomicU64::new(0), deadline: Instant::now() + time, halt: Mutex::new(None) }
    }

    /// Records the reason why the rendering ends. The first reason is kept. The returned error only
    /// ends the engine's run.
    pub(crate) fn halt(&self, halt: Halt) -> Error {
        let words = format!("{halt:?}");
        self.halt.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(halt);
        Error::new(ErrorKind::InvalidOperation, words)
    }

    pub(crate) fn take_halt(&self) -> Option<Halt> {
        self.halt.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take()
    }

    /// Checks the time limit.
    pub(crate) fn tick(&self) -> Result<(), Error> {
        if Instant::now() > self.deadline { Err(self.halt(Halt::TooSlow)) } else { Ok(()) }
    }

    /// Counts `bytes` that were built.
    pub(crate) fn charge(&self, bytes: usize) -> Result<(), Error> {
        let before = self.built_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if before.saturating_add(bytes as u64) > BUILT_BYTES_MAX {
            return Err(self.halt(Halt::TooLarge { max: BUILT_BYTES_MAX, unit: "bytes of values" }));
        }
        Ok(())
    }

    /// Refuses a result of `count` times `bytes` before it is built.
    pub(crate) fn foresee(&self, count: usize, bytes: usize) -> Result<(), Error> {
        match count.checked_mul(bytes) {
            Some(total) if total <= RENDERED_BYTES_MAX => Ok(()),
            _ => Err(self.too_large()),
        }
    }

    pub(crate) fn too_large(&self) -> Error {
        self.halt(Halt::TooLarge { max: RENDERED_BYTES_MAX as u64, unit: "bytes" })
    }

    /// Checks a new value: its text (every string in it, as often as it occurs), depth and items.
    /// Printing, joining or comparing it later is then bounded too.
    pub(crate) fn check(&self, value: Value) -> Result<Value, Error> {
        let mut left = RENDERED_BYTES_MAX;
        let shallow = self.weigh(&value, 0, &mut left)?;
        self.charge(shallow)?;
        self.tick()?;
        Ok(value)
    }

    /// Subtracts the weight of `value` from `left`. Returns the bytes of its own top level.
    fn weigh(&self, value: &Value, depth: usize, left: &mut usize) -> Result<usize, Error> {
        const NODE_BYTES: usize = 24;
        if depth > VALUE_NESTING_MAX {
            return Err(
                self.halt(Halt::TooLarge { max: VALUE_NESTING_MAX as u64, unit: "levels of a value" })
            );
        }
        if let Some(items) = inside(value) {
            for item in items {
                self.weigh(item, depth + 1, left)?;
            }
        }
        let own = match value.kind() {
            ValueKind::String => value.as_str().map_or(0, str::len),
            ValueKind::Bytes => value.as_bytes().map_or(0, <[u8]>::len),
            ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
                if depth > 0 && is_namespace(value) {
                    return Err(self.halt(Halt::Unsupported("a namespace inside another value".to_owned())));
                }
                // Only iterables without a known length, which cannot be read twice, are not
                // checked.
                let Some(items) = value.len() else { return Ok(NODE_BYTES) };
                if items > ITEMS_MAX {
                    return Err(self.halt(Halt::TooLarge { max: ITEMS_MAX as u64, unit: "items in a list" }));
                }
                for item in value.try_iter()? {
                    if value.kind() == ValueKind::Map {
                        self.weigh(&value.get_item(&item)?, depth + 1, left)?;
                    }
                    self.weigh(&item, depth + 1, left)?;
                }
                items * NODE_BYTES
            }
            _ => NODE_BYTES,
        };
        *left = left.checked_sub(own).ok_or_else(|| self.too_large())?;
        Ok(own)
    }

    /// Checks a value about to be stored in a namespace. Namespaces are the only mutable values. A
    /// namespace that contained another could contain itself, and would never end when printed.
    pub(crate) fn check_kept(&self, value: Value) -> Result<Value, Error> {
        if is_namespace(&value) {
            return Err(self.halt(Halt::Unsupported("a namespace inside another value".to_owned())));
        }
        Ok(value)
    }
}

fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

/// Checks whether a value is a map and not one of the engine's own objects, which also have
/// attributes.
pub(crate) fn is_dict(value: &Value) -> bool {
    const OBJECTS: [&str; 4] = ["::Namespace", "::Macro", "::Loop", "::Module"];
    value.kind() == ValueKind::Map
        && value.as_object().is_some_and(|object| {
            let name = object.type_name();
            !OBJECTS.iter().any(|end| name.ends_with(end))
        })
}

/// Names of the functions that rewritten templates call. They contain spaces, so no template can
/// call or replace them.
pub(crate) const CHECK: &str = "check a value";
pub(crate) const CHECK_KEPT: &str = "check a kept value";
pub(crate) const TICK: &str = "look at the clock";

/// Rewrites compiled instructions so that they respect the meter.
pub(crate) fn metered<'source>(instructions: &Instructions<'source>) -> Instructions<'source> {
    let old: Vec<&Instruction<'source>> = (0..).map_while(|index| instructions.get(index)).collect();
    let rewritten: Vec<Vec<Instruction<'source>>> =
        old.iter().map(|instruction| metered_instruction(instruction)).collect();

    // New start of each old instruction. Jump targets may point one past the end.
    let mut starts = Vec::with_capacity(old.len() + 1);
    let mut length = 0u32;
    for group in &rewritten {
        starts.push(length);
        length += group.len() as u32;
    }
    starts.push(length);

    let mut new = Instructions::new(instructions.name(), instructions.source());
    for (index, group) in rewritten.into_iter().enumerate() {
        let index = index as u32;
        for mut instruction in group {
            if let Some(target) = jump_target(&mut instruction)
                && let Some(start) = starts.get(*target as usize)
            {
                *target = *start;
            }
            match (instructions.get_span(index), instructions.get_line(index)) {
                (Some(span), _) => new.add_with_span(instruction, span),
                (None, Some(line)) => new.add_with_line(instruction, u16::try_from(line).unwrap_or(u16::MAX)),
                (None, None) => new.add(instruction),
            };
        }
    }
    new
}

fn jump_target<'instruction>(
    instruction: &'instruction mut Instruction<'_>,
) -> Option<&'instruction mut u32> {
    match instruction {
        Instruction::Jump(target)
        | Instruction::JumpIfFalse(target)
        | Instruction::JumpIfFalseOrPop(target)
        | Instruction::JumpIfTrueOrPop(target)
        | Instruction::Iterate(target)
        | Instruction::BuildMacro(_, target, _) => Some(target),
        _ => None,
    }
}

fn metered_instruction<'source>(instruction: &Instruction<'source>) -> Vec<Instruction<'source>> {
    let same = instruction.clone();
    let check = Instruction::CallFunction(CHECK, Some(1));
    if let Some(mut instructions) = substitute(instruction) {
        if matches!(
            instruction,
            Instruction::Add | Instruction::Mul | Instruction::StringConcat | Instruction::Slice
        ) {
            instructions.push(check);
        }
        return instructions;
    }
    match instruction {
        Instruction::EmitRaw(text) => vec![Instruction::LoadConst(Value::from(*text)), Instruction::Emit],
        Instruction::Iterate(_) => {
            vec![Instruction::CallFunction(TICK, Some(0)), Instruction::DiscardTop, same]
        }
        Instruction::SetAttr(_) => {
            vec![Instruction::Swap, Instruction::CallFunction(CHECK_KEPT, Some(1)), Instruction::Swap, same]
        }
        Instruction::EndCapture
        | Instruction::ApplyFilter(..)
        | Instruction::CallFunction(..)
        | Instruction::CallMethod(..)
        | Instruction::CallObject(..)
        | Instruction::BuildList(_)
        | Instruction::BuildTuple(_)
        | Instruction::BuildMap(_) => vec![same, check],
        _ => vec![same],
    }
}

/// Checks, before compilation, that parsing and constant folding of a template stay within limits.
/// A template that the lexer rejects is left to the parser, which reports the error with its
/// position.
pub(crate) fn check_source(source: &str, syntax: SyntaxConfig) -> Result<(), (usize, Halt)> {
    let mut tag = Tag::default();
    let mut blocks: Vec<usize> = Vec::new();
    let mut folded = 0u64;
    for token in tokenize(source, false, syntax) {
        let Ok((token, span)) = token else {
            return Ok(());
        };
        let line = usize::from(span.start_line);
        let too_large = |max, unit| Err((line, Halt::TooLarge { max, unit }));
        match token {
            Token::TemplateData(_) => {}
            Token::VariableStart | Token::BlockStart => {
                tag = Tag { is_block: matches!(token, Token::BlockStart), ..Tag::default() };
            }
            Token::VariableEnd | Token::BlockEnd => {
                tag.track_nesting(&mut blocks);
                if blocks.iter().sum::<usize>() > BLOCK_NESTING_MAX {
                    return too_large(BLOCK_NESTING_MAX as u64, "levels of blocks");
                }
                folded = folded.saturating_add(tag.folded_bytes());
                if folded > FOLDED_BYTES_MAX {
                    return too_large(FOLDED_BYTES_MAX, "bytes of constants");
                }
            }
            other => {
                tag.take(&other);
                if tag.tokens > TAG_TOKENS_MAX {
                    return too_large(TAG_TOKENS_MAX as u64, "tokens in one tag");
                }
            }
        }
    }
    Ok(())
}

/// State of the tag being read.
#[derive(Default)]
struct Tag {
    is_block: bool,
    word: Option<String>,
    assigns: bool,
    tokens: usize,
    bytes: u64,
    repeats: bool,
    powers: bool,
    /// Whether the tag contains a value that `*` can lengthen: a string, list or tuple.
    sequences: bool,
    factor: u64,
}

impl Tag {
    fn take(&mut self, token: &Token<'_>) {
        if self.tokens == 0
            && let Token::Ident(word) = token
        {
            self.word = Some((*word).to_owned());
        }
        self.tokens += 1;
        self.bytes += 24;
        match token {
            Token::Str(text) => self.sequence(text.len()),
            Token::String(text) => self.sequence(text.len()),
            Token::BracketOpen | Token::Comma => self.sequences = true,
            Token::Int(value) => self.number(*value),
            Token::Int128(value) => self.number(u64::try_from(**value).unwrap_or(u64::MAX)),
            // Casts saturate: a huge float counts as the largest number.
            Token::Float(value) => self.number(*value as u64),
            Token::Mul => self.repeats = true,
            Token::Pow => self.powers = true,
            Token::Assign => self.assigns = true,
            _ => {}
        }
    }

    fn sequence(&mut self, bytes: usize) {
        self.sequences = true;
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }

    fn number(&mut self, value: u64) {
        self.factor = self.factor.max(1).saturating_mul(value.max(1));
    }

    fn track_nesting(&self, blocks: &mut Vec<usize>) {
        let Some(word) = self.word.as_deref().filter(|_| self.is_block) else {
            return;
        };
        match word {
            "for" | "if" | "macro" | "call" | "filter" | "with" | "block" | "autoescape" => blocks.push(1),
            "set" if !self.assigns => blocks.push(1),
            "elif" => {
                if let Some(levels) = blocks.last_mut() {
                    *levels += 1;
                }
            }
            word if word.starts_with("end") => {
                blocks.pop();
            }
            _ => {}
        }
    }

    /// Returns an upper bound on the bytes produced by folding the tag's constants. Without `*`
    /// they only add up. With `*`, every number may multiply every string, and there are at most as
    /// many sums of numbers as tokens.
    fn folded_bytes(&self) -> u64 {
        if !self.repeats || !self.sequences {
            return self.bytes;
        }
        if self.powers {
            return u64::MAX;
        }
        self.bytes.saturating_mul(self.tokens as u64).saturating_mul(self.factor.max(1))
    }
}
