//! Refuses components before compilation: with imports that planners may not have, or so complex
//! that compiling them would need gigabytes.
//!
//! A compiler's memory grows with the content of a function, not only with the length of the file.
//! A call of two bytes moves as many values as its type has, and a local variable needs space in
//! every block of its function. Both are therefore counted. The caps are above the output of
//! `componentize-py` for a planner in Python, interpreter included (numbers below), and far above
//! planners in Rust.

use wasmparser::{BinaryReaderError, BlockType, FunctionBody, Operator, Parser, Payload, TypeRef};

use super::{check_exports, forbidden, is_ours};
use crate::error::PlannerErrorKind;

/// Maximum functions of all modules. Python: 13,478.
pub const FUNCTIONS: u64 = 50_000;
/// Maximum bytes of one function. Python: 426,843.
pub const FUNCTION_BYTES: u64 = 512 << 10;
/// Maximum values that the instructions of one function create and move. Python: 166,865.
pub const FUNCTION_VALUES: u64 = 192 << 10;
/// Maximum values of all functions. Python: 3,462,222. The compiler keeps the code of all functions
/// until the last one is done: 50 bytes for a value that a call moves, 170 for one of ordinary
/// code, so at most 1.4 GB.
pub const VALUES: u64 = 8 << 20;
/// Maximum of local variables times blocks of one function. Python: 238,275.
pub const FUNCTION_PLACES: u64 = 1 << 20;
/// Maximum of local variables times blocks, summed over all functions. Python: 5,481,111.
pub const PLACES: u64 = 16 << 20;
/// Maximum bytes of all functions. Python: 6.5 MB.
pub const CODE_BYTES: u64 = 16 << 20;
/// Maximum types of functions in all modules. Python: 1,324.
pub const TYPES: u64 = 10_000;
/// Maximum parameters and results of a function.
pub const TYPE_VALUES: u64 = 64;
/// Maximum modules and components within the component. Python: 40.
pub const MODULES: u64 = 100;

/// Refuses components that must not be compiled.
pub(super) fn examine(wasm: &[u8]) -> Result<(), PlannerErrorKind> {
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
                    module.types.push(values);
                }
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    if let TypeRef::Func(of) = import.map_err(garbage)?.ty {
                        count("functions", &mut totals.functions, 1, FUNCTIONS)?;
                        module.functions.push(of);
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
                module.body(&body, &mut totals)?;
            }
            _ => {}
        }
    }
    check_exports(exports)
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
}

/// Types of a module that its functions refer to.
#[derive(Default)]
struct Module {
    /// Number of parameters and results of each type.
    types: Vec<u64>,
    /// The type of each function, imported ones first.
    functions: Vec<u32>,
}

impl Module {
    /// Returns the number of values of a type. Unknown types are refused by the compiler.
    fn values(&self, of: u32) -> u64 {
        self.types.get(of as usize).copied().unwrap_or(0)
    }

    fn body(&self, body: &FunctionBody<'_>, totals: &mut Totals) -> Result<(), PlannerErrorKind> {
        let mut locals = 0_u64;
        for group in body.get_locals_reader().map_err(garbage)? {
            locals += u64::from(group.map_err(garbage)?.0);
        }
        let (mut values, mut blocks, mut widest) = (0, 1_u64, 1);
        for operator in body.get_operators_reader().map_err(garbage)? {
            let (more, opened) = match operator.map_err(garbage)? {
                Operator::Call { function_index } | Operator::ReturnCall { function_index } => {
                    (self.functions.get(function_index as usize).map_or(0, |&of| self.values(of)), 0)
                }
                Operator::CallIndirect { type_index, .. }
                | Operator::ReturnCallIndirect { type_index, .. } => (self.values(type_index), 0),
                Operator::Block { blockty } | Operator::Loop { blockty } | Operator::If { blockty } => {
                    let width = match blockty {
                        BlockType::FuncType(of) => self.values(of),
                        BlockType::Empty | BlockType::Type(_) => 1,
                    };
                    widest = widest.max(width);
                    (width, 2)
                }
                // Branches pass on as many values as their target accepts.
                Operator::Br { .. } | Operator::BrIf { .. } | Operator::Else => (widest, 1),
                Operator::BrTable { targets } => {
                    let targets = u64::from(targets.len()) + 1;
                    (targets.saturating_mul(widest), targets)
                }
                _ => (0, 0),
            };
            count("values in one function", &mut values, 1 + more, FUNCTION_VALUES)?;
            blocks = blocks.saturating_add(opened);
        }
        let places = locals.saturating_mul(blocks);
        count("local variables times blocks in one function", &mut 0, places, FUNCTION_PLACES)?;
        count("local variables times blocks in all functions", &mut totals.places, places, PLACES)?;
        count("values in all functions", &mut totals.values, values, VALUES)
    }
}

fn count(what: &'static str, total: &mut u64, more: u64, cap: u64) -> Result<(), PlannerErrorKind> {
    *total = total.saturating_add(more);
    if *total > cap { Err(PlannerErrorKind::TooComplex { what, cap }) } else { Ok(()) }
}

fn garbage(error: BinaryReaderError) -> PlannerErrorKind {
    PlannerErrorKind::Garbage { reason: error.to_string() }
}
