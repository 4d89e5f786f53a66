//! Refuses components before compilation: with imports that planners may not have, or so complex
//! that compiling them would need gigabytes.
//!
//! A compiler's memory grows with the content of a function, not only with the length of the file.
//! A call of two bytes moves as many values as its type has. Every access to memory is preceded by
//! a check, which ends a block. A variable needs space in every block of its function. All of them
//! are therefore counted.
//!
//! An optimising compiler also moves computations to their use and shares equal ones, so any value
//! may live in any block. A component with a function that is too large for this is compiled
//! without optimisation. Then a value lives from its instruction to its use, as written.
//!
//! The caps are above the output of `componentize-py` for a planner in Python, interpreter included
//! (numbers below), and far above planners in Rust.

use shardwright_vocabulary::Error;
use wasmparser::{
    BlockType, ContType, FrameKind, FuncType, FunctionBody, ModuleArity, Operator, Parser, Payload, RefType,
    SubType, TypeRef,
};

use super::{check_exports, forbidden, garbage, is_ours, too_large};

/// Maximum functions of all modules. Python: 13,478.
pub const FUNCTIONS: u64 = 50_000;
/// Maximum bytes of one function. Python: 426,843.
pub const FUNCTION_BYTES: u64 = 512 << 10;
/// Maximum values that the instructions of one function create and move. Costly instructions count
/// as several. Python: 467,321. The compiler needs up to 1.1 kB for each, so at most 0.8 GB.
pub const FUNCTION_VALUES: u64 = 640 << 10;
/// Maximum values of all functions. Python: 9,677,954. The compiler keeps the code of all functions
/// until the last one is done, with 27 to 65 bytes for a value, so at most 1 GB.
pub const VALUES: u64 = 14 << 20;
/// Maximum of variables times blocks of one function. Variables are its parameters and local
/// variables, the results of its blocks, and the operands that wait on the stack. Python:
/// 1,110,618. The compiler needs 4 to 13 bytes for each.
pub const FUNCTION_PLACES: u64 = 4 << 20;
/// Maximum of variables times blocks, summed over all functions. Python: 19,261,436.
pub const PLACES: u64 = 64 << 20;
/// Maximum of instructions times blocks of a function that is optimised. The optimising compiler
/// needs up to 0.5 bytes for each. Rust: 71,751,750. QuickJS: 263,551,816. Python: 8,356,098,605.
const FUNCTION_OPTIMISED: u64 = 320 << 20;
/// Maximum of instructions times blocks, summed over all functions that are optimised. It bounds
/// the compiler's time. Rust: 426,197,644. QuickJS: 953,286,997. Python: 12,343,068,652.
const OPTIMISED: u64 = 1536 << 20;
/// Maximum bytes of all functions. Python: 6.5 MB.
pub const CODE_BYTES: u64 = 16 << 20;
/// Maximum types of functions in all modules. Python: 1,324.
pub const TYPES: u64 = 10_000;
/// Maximum parameters and results of a function.
pub const TYPE_VALUES: u64 = 64;
/// Maximum modules and components within the component. Python: 40.
pub const MODULES: u64 = 100;

/// Values that a check is counted as. The code for its failure calls the host twice.
const CHECK: u64 = 12;
/// Values that a call is counted as, besides the moved ones.
const CALL: u64 = 6;
/// Values that a branch is counted as, besides the moved ones. The compiler's time
/// grows with the square of the branches to one block.
const BRANCH: u64 = 7;
/// Values that a loop is counted as, since it checks the fuel.
const LOOP: u64 = 11;
/// Values that an operation of floats is counted as, since the sign of its NaN is replaced.
const FLOAT: u64 = 5;

/// The optimisation that an admitted component may be compiled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    Optimised,
    Plain,
}

/// Refuses components that must not be compiled.
pub(super) fn examine(wasm: &[u8]) -> Result<Effort, Error> {
    let mut totals = Totals::default();
    // The module or component being read, and the ones that enclose it.
    let mut around: Vec<Module> = Vec::new();
    let mut module = Module::default();
    let mut exports = Vec::new();
    for payload in Parser::new(0).parse_all(wasm) {
        match payload.map_err(garbage)? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => {
                count("modules", &mut totals.modules, 1, MODULES)?;
                around.push(std::mem::take(&mut module));
            }
            Payload::End(_) => module = around.pop().unwrap_or_default(),
            Payload::ComponentImportSection(section) if around.is_empty() => {
                for import in section {
                    let import = import.map_err(garbage)?.name.name;
                    // Whether an import of our interfaces has only types is checked later, on the
                    // compiled component.
                    if !is_ours(import) {
                        return Err(forbidden(import));
                    }
                }
            }
            Payload::ComponentExportSection(section) if around.is_empty() => {
                for export in section {
                    exports.push(export.map_err(garbage)?.name.name);
                }
            }
            Payload::TypeSection(section) => {
                count("types of functions", &mut totals.types, section.count().into(), TYPES)?;
                for existing in section.into_iter_err_on_gc_types() {
                    let existing = existing.map_err(garbage)?;
                    let values = (existing.params().len() + existing.results().len()) as u64;
                    count("parameters and results of a function", &mut 0, values, TYPE_VALUES)?;
                    module.types.push(SubType::func(existing, false));
                }
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    if let TypeRef::Func(of) = import.map_err(garbage)?.ty {
                        count("functions", &mut totals.functions, 1, FUNCTIONS)?;
                        module.functions.push(of);
                        module.next += 1;
                    }
                }
            }
            Payload::FunctionSection(section) => {
                count("functions", &mut totals.functions, section.count().into(), FUNCTIONS)?;
                for of in section {
                    module.functions.push(of.map_err(garbage)?);
                }
            }
            Payload::CodeSectionEntry(body) => {
                let bytes = body.as_bytes().len() as u64;
                count("bytes of one function", &mut 0, bytes, FUNCTION_BYTES)?;
                count("bytes of functions", &mut totals.code, bytes, CODE_BYTES)?;
                let of = module.functions.get(module.next).copied();
                module.next += 1;
                module.body(of, &body, &mut totals)?;
            }
            _ => {}
        }
    }
    check_exports(exports)?;
    let plain = totals.largest > FUNCTION_OPTIMISED || totals.products > OPTIMISED;
    Ok(if plain { Effort::Plain } else { Effort::Optimised })
}

/// Counts over the whole component.
#[derive(Default)]
struct Totals {
    modules: u64,
    types: u64,
    functions: u64,
    code: u64,
    values: u64,
    places: u64,
    /// Most instructions times blocks of a function.
    largest: u64,
    /// Instructions times blocks, summed over all functions.
    products: u64,
}

/// Types of a module that its functions refer to.
#[derive(Default)]
struct Module {
    types: Vec<SubType>,
    /// The type of each function, imported ones first.
    functions: Vec<u32>,
    /// Index of the function whose body is read next.
    next: usize,
}

impl Module {
    /// Returns the number of parameters and results of a type. Unknown types are refused by the
    /// compiler.
    fn arity(&self, of: BlockType) -> (u64, u64) {
        let (parameters, results) = self.block_type_arity(of).unwrap_or((0, 0));
        (parameters.into(), results.into())
    }

    /// Returns the number of values of a type.
    fn values(&self, of: u32) -> u64 {
        let (parameters, results) = self.arity(BlockType::FuncType(of));
        parameters + results
    }

    /// Counts the body of a function of type `of`.
    fn body(&self, of: Option<u32>, body: &FunctionBody<'_>, totals: &mut Totals) -> Result<(), Error> {
        let (mut variables, results) = of.map_or((0, 0), |of| self.arity(BlockType::FuncType(of)));
        for group in body.get_locals_reader().map_err(garbage)? {
            variables += u64::from(group.map_err(garbage)?.0);
        }
        let (mut instructions, mut values, mut blocks, mut places) = (0_u64, 0, 1_u64, 0_u64);
        let (mut stack, mut widest) = (Stack::default(), results.max(1));
        let start = body.range().start;
        for operator in body.get_operators_reader().map_err(garbage)?.into_iter_with_offsets() {
            let (operator, offset) = operator.map_err(garbage)?;
            let opcode = body.as_bytes().get(offset - start).copied().unwrap_or_default();
            let cost = self.cost(&operator, opcode, &mut widest);
            count("values in one function", &mut values, 1 + cost.values, FUNCTION_VALUES)?;
            instructions += 1;
            variables += cost.variables;
            blocks = blocks.saturating_add(cost.blocks);
            places = places.saturating_add(cost.blocks.saturating_mul(stack.height));
            stack.follow(self, &operator);
        }
        let places = places.saturating_add(variables.saturating_mul(blocks));
        count("variables times blocks in one function", &mut 0, places, FUNCTION_PLACES)?;
        count("variables times blocks in all functions", &mut totals.places, places, PLACES)?;
        let product = instructions.saturating_mul(blocks);
        totals.largest = totals.largest.max(product);
        totals.products = totals.products.saturating_add(product);
        count("values in all functions", &mut totals.values, values, VALUES)
    }

    /// Returns the cost of an instruction. `widest` is the largest number of values that the
    /// function or a block so far passes on. Branches pass on as many values as their target
    /// accepts.
    fn cost(&self, operator: &Operator<'_>, opcode: u8, widest: &mut u64) -> Cost {
        match operator {
            Operator::Call { function_index } | Operator::ReturnCall { function_index } => {
                let of = self.functions.get(*function_index as usize);
                Cost::values(CALL + of.map_or(0, |&of| self.values(of)))
            }
            Operator::CallIndirect { type_index, .. } | Operator::ReturnCallIndirect { type_index, .. } => {
                let checks = Cost::checks(4);
                Cost { values: checks.values + self.values(*type_index), ..checks }
            }
            Operator::Block { blockty } | Operator::If { blockty } | Operator::Loop { blockty } => {
                let (parameters, results) = self.arity(*blockty);
                let (variables, looped) = (parameters + results, matches!(operator, Operator::Loop { .. }));
                *widest = variables.max(*widest);
                let (more, blocks) = if looped { (LOOP, 4) } else { (0, 2) };
                Cost { values: variables.max(1) + more, blocks, variables }
            }
            Operator::Else => Cost { values: *widest, blocks: 1, variables: 0 },
            Operator::Br { .. } | Operator::BrIf { .. } => {
                Cost { values: *widest + BRANCH, blocks: 1, variables: 0 }
            }
            Operator::BrTable { targets } => {
                let targets = u64::from(targets.len()) + 1;
                Cost { values: targets.saturating_mul(*widest) + BRANCH, blocks: targets, variables: 0 }
            }
            Operator::TableCopy { .. } | Operator::TableInit { .. } => Cost::checks(9),
            _ => Cost::of_opcode(opcode),
        }
    }
}

impl ModuleArity for Module {
    fn sub_type_at(&self, index: u32) -> Option<&SubType> {
        self.types.get(index as usize)
    }

    fn type_index_of_function(&self, index: u32) -> Option<u32> {
        self.functions.get(index as usize).copied()
    }

    // `Stack` follows blocks and branches itself. The engine refuses tags, continuations and typed
    // references.
    fn tag_type_arity(&self, _: u32) -> Option<(u32, u32)> {
        None
    }

    fn func_type_of_cont_type(&self, _: &ContType) -> Option<&FuncType> {
        None
    }

    fn sub_type_of_ref_type(&self, _: &RefType) -> Option<&SubType> {
        None
    }

    fn control_stack_height(&self) -> u32 {
        0
    }

    fn label_block(&self, _: u32) -> Option<(BlockType, FrameKind)> {
        None
    }
}

/// What an instruction adds to its function, in addition to the one value that every instruction is
/// counted as. Measured for machine code without optimisation.
struct Cost {
    values: u64,
    blocks: u64,
    variables: u64,
}

impl Cost {
    const fn values(values: u64) -> Cost {
        Cost { values, blocks: 0, variables: 0 }
    }

    /// Each check has a block for its failure, and one that continues.
    const fn checks(checks: u64) -> Cost {
        Cost { values: checks * CHECK, blocks: checks * 2, variables: 0 }
    }

    /// Returns the cost of an instruction that is not a call, a block or a branch, by its first
    /// byte.
    fn of_opcode(opcode: u8) -> Cost {
        match opcode {
            // `unreachable` calls the host.
            0x00 => Cost::values(CALL),
            // Elements of tables.
            0x25 | 0x26 => Cost::checks(2),
            // Loads, stores, `memory.size` and `memory.grow`.
            0x28..=0x40 => Cost::checks(1),
            // Signed divisions, which fail for zero and for results that are too large.
            0x6d | 0x7f => Cost::checks(2),
            // Other divisions and remainders.
            0x6e..=0x70 | 0x80..=0x82 => Cost::checks(1),
            // Floats to integers, which fail for NaN and on both sides.
            0xa8..=0xab | 0xae..=0xb1 => Cost::checks(3),
            // Arithmetic and conversions of floats.
            0x8b..=0xa6 | 0xb2..=0xbb => Cost::values(FLOAT),
            // `ref.func`, and vectors.
            0xd2 | 0xfd => Cost::checks(1),
            // Ranges of memories and tables, and what the engine refuses.
            0xfb | 0xfc | 0xfe => Cost::checks(3),
            _ => Cost::values(0),
        }
    }
}

/// The number of operands on the stack of a function.
#[derive(Default)]
struct Stack {
    height: u64,
    /// The open blocks: the height below their parameters, the parameters, the results.
    open: Vec<(u64, u64, u64)>,
}

impl Stack {
    /// Follows an instruction. The height is an upper bound if the code is invalid.
    fn follow(&mut self, module: &Module, operator: &Operator<'_>) {
        let (base, parameters, _) = self.open.last().copied().unwrap_or_default();
        match operator {
            Operator::Block { blockty } | Operator::Loop { blockty } | Operator::If { blockty } => {
                let (parameters, results) = module.arity(*blockty);
                let taken = parameters + u64::from(matches!(operator, Operator::If { .. }));
                let below = self.height.saturating_sub(taken).max(base);
                self.open.push((below, parameters, results));
                self.height = below + parameters;
            }
            Operator::Else => self.height = base + parameters,
            Operator::End => {
                let (base, _, results) = self.open.pop().unwrap_or_default();
                self.height = base + results;
            }
            // The code up to the end of the block is not compiled.
            Operator::Unreachable
            | Operator::Br { .. }
            | Operator::BrTable { .. }
            | Operator::Return
            | Operator::ReturnCall { .. }
            | Operator::ReturnCallIndirect { .. } => self.height = base,
            Operator::BrIf { .. } => self.height = self.height.saturating_sub(1).max(base),
            _ => {
                let (taken, given) = operator.operator_arity(module).unwrap_or((0, 0));
                let left = self.height.saturating_sub(taken.into()).max(base);
                self.height = left + u64::from(given);
            }
        }
    }
}

fn count(what: &str, total: &mut u64, more: u64, cap: u64) -> Result<(), Error> {
    *total = total.saturating_add(more);
    if *total > cap { Err(too_large(format!("too complex: more than {cap} {what}"))) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin;
    use crate::sandbox::INTERFACE;

    fn loads(functions: usize, count: usize) -> Vec<u8> {
        let loads = "(i64.load (local.get 0)) i64.add ".repeat(count);
        let functions = format!("(func (param i32) (result i64) i64.const 0 {loads})").repeat(functions);
        let export = format!(r#"(instance $none) (export "{INTERFACE}" (instance $none))"#);
        wat::parse_str(format!("(component (core module (memory 1) {functions}) {export})")).unwrap()
    }

    #[test]
    fn only_functions_of_a_usual_size_are_optimised() {
        assert_eq!(examine(builtin::component().unwrap()).unwrap(), Effort::Optimised);
        assert_eq!(examine(&loads(1, 7_000)).unwrap(), Effort::Optimised);
        assert_eq!(examine(&loads(1, 8_000)).unwrap(), Effort::Plain);
        assert_eq!(examine(&loads(6, 7_000)).unwrap(), Effort::Plain);
    }

    /// Returns the largest height of the stack in a function with this body.
    fn height(body: &str) -> u64 {
        let text = format!("(module (func $f (result i64 i64) unreachable) (func (param i32) {body}))");
        let wasm = wat::parse_str(text).unwrap();
        let (mut module, mut stack, mut highest) = (Module::default(), Stack::default(), 0);
        for payload in Parser::new(0).parse_all(&wasm) {
            match payload.unwrap() {
                Payload::TypeSection(types) => {
                    module.types.extend(
                        types.into_iter_err_on_gc_types().map(|of| SubType::func(of.unwrap(), false)),
                    );
                }
                Payload::FunctionSection(section) => {
                    module.functions.extend(section.into_iter().map(Result::unwrap))
                }
                Payload::CodeSectionEntry(body) => {
                    stack = Stack::default();
                    for operator in body.get_operators_reader().unwrap() {
                        stack.follow(&module, &operator.unwrap());
                        highest = highest.max(stack.height);
                    }
                }
                _ => {}
            }
        }
        assert_eq!(stack.height, 0, "{body}");
        highest
    }

    #[test]
    fn the_operands_on_the_stack_are_counted() {
        for (body, highest) in [
            ("", 0),
            ("(drop (i32.add (local.get 0) (i32.const 1)))", 2),
            ("call $f drop drop", 2),
            ("i32.const 1 (block (param i32) drop call $f drop drop)", 2),
            ("i32.const 1 (block i32.const 2 i32.const 3 br 0) drop", 3),
            ("(if (result i32) (local.get 0) (then (i32.const 1)) (else (i32.const 2))) drop", 1),
            ("i32.const 1 (loop (param i32) i32.const 2 local.get 0 br_if 1 drop drop)", 3),
            ("(block (result i32) i32.const 1 i32.const 2 (local.get 0) br_table 0 0) drop", 3),
            ("(select (i32.const 1) (i32.const 2) (local.get 0)) drop", 3),
        ] {
            assert_eq!(height(body), highest, "{body}");
        }
    }
}
