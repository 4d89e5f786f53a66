//! Instructions whose meaning in Python differs from the engine's, and the functions called
//! instead.
//!
//! The names contain spaces, so no template can call or replace the functions. `operators.rs`
//! contains them.

use minijinja::Value;
use minijinja::machinery::Instruction;
use minijinja::value::ValueKind;

pub(crate) const CONCATENATE: &str = "python's concatenation";
pub(crate) const CONTAINS: &str = "python's in";
pub(crate) const EXPECT_ITERABLE: &str = "python's iteration";
pub(crate) const LISTED: &str = "python's list";
pub(crate) const REMAINDER: &str = "python's remainder";
pub(crate) const SLICE: &str = "python's slice";
pub(crate) const SUM: &str = "python's sum";
pub(crate) const ATTRIBUTE: &str = "python's attribute";
pub(crate) const LESS: &str = "python's less";
pub(crate) const LESS_OR_EQUAL: &str = "python's less or equal";
pub(crate) const GREATER: &str = "python's greater";
pub(crate) const GREATER_OR_EQUAL: &str = "python's greater or equal";

/// Methods of a Python `dict` that do not change it.
pub(crate) const DICT_METHODS: [&str; 6] = ["copy", "fromkeys", "get", "items", "keys", "values"];

/// Methods that change a `dict`, which the sandbox of Jinja hides together with items of the same
/// name.
pub(crate) const HIDDEN_DICT_METHODS: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];

/// Returns instructions with Python's result of `instruction`, or `None` if the engine's is the
/// same.
pub(crate) fn substitute<'source>(instruction: &Instruction<'source>) -> Option<Vec<Instruction<'source>>> {
    let call = |name, arguments| Instruction::CallFunction(name, Some(arguments));
    let instructions = match instruction {
        Instruction::Slice => vec![call(SLICE, 4)],
        Instruction::StringConcat => vec![call(CONCATENATE, 2)],
        Instruction::Rem => vec![call(REMAINDER, 2)],
        Instruction::In => vec![call(CONTAINS, 2)],
        Instruction::Lt => vec![call(LESS, 2)],
        Instruction::Lte => vec![call(LESS_OR_EQUAL, 2)],
        Instruction::Gt => vec![call(GREATER, 2)],
        Instruction::Gte => vec![call(GREATER_OR_EQUAL, 2)],
        Instruction::Add => vec![call(SUM, 2)],
        Instruction::Mul => vec![instruction.clone(), call(LISTED, 1)],
        // A sum of constant lists that the compiler folded.
        Instruction::LoadConst(value) if value.kind() == ValueKind::Iterable => {
            vec![Instruction::LoadConst(value.clone()), call(LISTED, 1)]
        }
        Instruction::PushLoop(_) => vec![call(EXPECT_ITERABLE, 1), instruction.clone()],
        Instruction::GetAttr(name) if DICT_METHODS.contains(name) || HIDDEN_DICT_METHODS.contains(name) => {
            vec![Instruction::LoadConst(Value::from(*name)), call(ATTRIBUTE, 2)]
        }
        _ => return None,
    };
    Some(instructions)
}
