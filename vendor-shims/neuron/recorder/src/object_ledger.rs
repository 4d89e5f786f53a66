//! Bookkeeping of objects: which exist, on which objects each depends, and which calls were made on
//! it. This module does not dereference pointers.

use shardwright_neuron_adapter::setting::{LARGEST_BOOST, preference, priority};
use shardwright_neuron_adapter::{operand, operation};

use crate::Rule;

/// A rule that a client broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    /// Description of the action that broke the rule.
    pub what: String,
}

impl Violation {
    pub(crate) fn new(rule: Rule, what: impl Into<String>) -> Violation {
        Violation { rule, what: what.into() }
    }
}

type Kept<T> = Result<T, Violation>;

fn keep(holds: bool, rule: Rule, what: impl FnOnce() -> String) -> Kept<()> {
    if holds { Ok(()) } else { Err(Violation::new(rule, what())) }
}

/// An input or output of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Io {
    /// Size in bytes, including padding.
    pub bytes: usize,
    /// Dimensions, outermost first.
    pub dimensions: Vec<u32>,
}

impl Io {
    /// Returns the dimensions as four entries. Lower ranks are filled up with ones at the end.
    pub fn padded(&self) -> [u32; 4] {
        let mut padded = [1; 4];
        for (entry, dimension) in padded.iter_mut().zip(&self.dimensions) {
            *entry = *dimension;
        }
        padded
    }
}

/// Source of an input or destination of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoMemory {
    /// Memory of the client.
    Host {
        address: usize,
        /// Length in bytes.
        length: usize,
    },
    /// Memory created from a descriptor.
    Memory {
        /// Handle of the memory.
        memory: usize,
        /// Offset of the first byte.
        offset: usize,
        /// Length in bytes.
        length: usize,
    },
}

/// An operand of a model.
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    pub(crate) kind: i32,
    pub(crate) dimensions: Vec<u32>,
}

impl Operand {
    fn io(&self, padding: u32) -> Io {
        let mut dimensions = self.dimensions.clone();
        if let Some(last) = dimensions.last_mut() {
            *last = last.next_multiple_of(padding.max(1));
        }
        let elements: usize = dimensions.iter().map(|dimension| *dimension as usize).product();
        Io { bytes: elements * operand::element_bytes(self.kind).unwrap_or(1), dimensions }
    }
}

#[derive(Debug, Default)]
struct Model {
    operands: Vec<Operand>,
    operations: Vec<i32>,
    inputs: Vec<u32>,
    outputs: Vec<u32>,
    finished: bool,
}

#[derive(Debug)]
struct Compilation {
    model: usize,
    inputs: Vec<Io>,
    outputs: Vec<Io>,
    options: String,
    finished: bool,
    restored: bool,
    has_run: bool,
}

#[derive(Debug)]
struct Execution {
    compilation: usize,
    inputs: Vec<Option<IoMemory>>,
    outputs: Vec<Option<IoMemory>>,
}

#[derive(Debug)]
struct Memory {
    length: usize,
}

#[derive(Debug)]
enum Object {
    Model(Model),
    Compilation(Compilation),
    Execution(Execution),
    Memory(Memory),
}

impl Object {
    const fn name(&self) -> &'static str {
        match self {
            Object::Model(_) => "model",
            Object::Compilation(_) => "compilation",
            Object::Execution(_) => "execution",
            Object::Memory(_) => "memory",
        }
    }
}

/// All created objects. Handles count from 1 and are never reused.
#[derive(Debug)]
pub struct ObjectLedger {
    objects: Vec<(Object, bool)>,
    /// The last dimension of inputs and outputs is padded to a multiple of this number of elements.
    padding: u32,
}

macro_rules! looks {
    ($($function:ident $case:ident $type:ty;)*) => {
        $(fn $function(&mut self, handle: usize) -> Kept<&mut $type> {
            match self.live(handle)? {
                Object::$case(found) => Ok(found),
                other => {
                    let what = format!("{} {handle} is not a {}", other.name(), stringify!($function));
                    Err(Violation::new(Rule::UnknownHandle, what))
                }
            }
        })*
    };
}

impl ObjectLedger {
    /// Creates empty books. The last dimension of inputs and outputs is padded to a multiple of
    /// `padding`.
    pub fn new(padding: u32) -> ObjectLedger {
        ObjectLedger { objects: Vec::new(), padding }
    }

    looks! {
        model Model Model;
        compilation Compilation Compilation;
        execution Execution Execution;
        memory Memory Memory;
    }

    fn add(&mut self, object: Object) -> usize {
        self.objects.push((object, true));
        self.objects.len()
    }

    fn live(&mut self, handle: usize) -> Kept<&mut Object> {
        keep(handle != 0, Rule::Null, || "a null handle".to_owned())?;
        match self.objects.get_mut(handle - 1) {
            None => Err(Violation::new(Rule::UnknownHandle, format!("{handle:#x} was never created"))),
            Some((object, true)) => Ok(object),
            Some((object, false)) => {
                Err(Violation::new(Rule::UseAfterFree, format!("{} {handle}", object.name())))
            }
        }
    }

    fn lives(&self) -> impl Iterator<Item = (usize, &Object)> {
        let numbered = (1..).zip(&self.objects);
        numbered.filter(|(_, (_, live))| *live).map(|(handle, (object, _))| (handle, object))
    }

    /// Lists the objects that were created but not freed, by name.
    pub fn left(&self) -> Vec<String> {
        self.lives().map(|(handle, object)| format!("{} {handle}", object.name())).collect()
    }

    fn free(&mut self, handle: usize, kind: &str) -> Kept<()> {
        keep(handle != 0, Rule::Null, || format!("a null {kind} is freed"))?;
        let existing = self.objects.get(handle - 1);
        let (object, live) = existing
            .ok_or_else(|| Violation::new(Rule::UnknownHandle, format!("{handle:#x} was never created")))?;
        keep(object.name() == kind, Rule::UnknownHandle, || {
            format!("{} {handle} is not a {kind}", object.name())
        })?;
        keep(*live, Rule::FreedTwice, || format!("{kind} {handle}"))?;
        let user = self.lives().find(|(_, other)| match other {
            Object::Compilation(compilation) => compilation.model == handle,
            Object::Execution(execution) => {
                let mut bound = execution.inputs.iter().chain(&execution.outputs).flatten();
                execution.compilation == handle
                    || bound
                        .any(|place| matches!(place, IoMemory::Memory { memory, .. } if *memory == handle))
            }
            Object::Model(_) | Object::Memory(_) => false,
        });
        if let Some((other, object)) = user {
            let what = format!("{kind} {handle} is freed before {} {other}", object.name());
            return Err(Violation::new(Rule::FreedTooEarly, what));
        }
        self.objects[handle - 1].1 = false;
        Ok(())
    }

    // ---- models ----

    pub(crate) fn create_model(&mut self) -> usize {
        self.add(Object::Model(Model::default()))
    }

    pub fn free_model(&mut self, model: usize) -> Kept<()> {
        self.free(model, "model")
    }

    /// Returns a model that may still be changed.
    fn open(&mut self, model: usize) -> Kept<&mut Model> {
        let found = self.model(model)?;
        keep(!found.finished, Rule::ModelFinished, || format!("model {model} is finished"))?;
        Ok(found)
    }

    pub(crate) fn touch_model(&mut self, model: usize) -> Kept<()> {
        self.model(model).map(drop)
    }

    pub(crate) fn touch_open_model(&mut self, model: usize) -> Kept<()> {
        self.open(model).map(drop)
    }

    pub(crate) fn add_operand(&mut self, model: usize, operand: Operand) -> Kept<usize> {
        let model = self.open(model)?;
        model.operands.push(operand);
        Ok(model.operands.len() - 1)
    }

    pub(crate) fn has_operand(&mut self, model: usize, index: i32) -> Kept<()> {
        let count = self.open(model)?.operands.len();
        let known = usize::try_from(index).is_ok_and(|index| index < count);
        keep(known, Rule::Index, || format!("operand {index} of {count}"))
    }

    pub(crate) fn add_operation(&mut self, model: usize, kind: i32, operands: &[u32]) -> Kept<()> {
        let found = self.open(model)?;
        let count = found.operands.len();
        for index in operands {
            keep((*index as usize) < count, Rule::Index, || format!("operand {index} of {count}"))?;
        }
        found.operations.push(kind);
        Ok(())
    }

    pub(crate) fn identify(&mut self, model: usize, inputs: &[u32], outputs: &[u32]) -> Kept<()> {
        let found = self.open(model)?;
        let count = found.operands.len();
        for index in inputs.iter().chain(outputs) {
            keep((*index as usize) < count, Rule::Index, || format!("operand {index} of {count}"))?;
        }
        (found.inputs, found.outputs) = (inputs.to_vec(), outputs.to_vec());
        Ok(())
    }

    pub(crate) fn finish_model(&mut self, model: usize) -> Kept<()> {
        self.open(model)?.finished = true;
        Ok(())
    }

    // ---- compilations ----

    pub(crate) fn create_compilation(&mut self, model: usize, options: &str) -> Kept<usize> {
        let padding = self.padding;
        let found = self.model(model)?;
        keep(found.finished, Rule::ModelNotFinished, || format!("model {model} is not finished"))?;
        let ios =
            |list: &[u32]| list.iter().map(|index| found.operands[*index as usize].io(padding)).collect();
        let (inputs, outputs) = (ios(&found.inputs), ios(&found.outputs));
        let (finished, restored, has_run) = (false, false, false);
        let options = options.to_owned();
        Ok(self.add(Object::Compilation(Compilation {
            model,
            inputs,
            outputs,
            options,
            finished,
            restored,
            has_run,
        })))
    }

    /// Creates a model and a finished compilation of it, as a restore does.
    pub fn restore(&mut self, inputs: Vec<Io>, outputs: Vec<Io>) -> (usize, usize) {
        let model = self.add(Object::Model(Model { finished: true, ..Model::default() }));
        let compilation = self.add(Object::Compilation(Compilation {
            model,
            inputs,
            outputs,
            options: String::new(),
            finished: true,
            restored: true,
            has_run: false,
        }));
        (model, compilation)
    }

    pub fn free_compilation(&mut self, compilation: usize) -> Kept<()> {
        self.free(compilation, "compilation")
    }

    /// Returns a compilation that may still be set up.
    fn setting_up(&mut self, compilation: usize) -> Kept<&mut Compilation> {
        let found = self.compilation(compilation)?;
        keep(!found.finished, Rule::CompilationFinished, || {
            format!("compilation {compilation} is finished")
        })?;
        Ok(found)
    }

    pub(crate) fn touch_setting_up(&mut self, compilation: usize) -> Kept<()> {
        self.setting_up(compilation).map(drop)
    }

    pub(crate) fn set_preference(&mut self, compilation: usize, value: i32) -> Kept<()> {
        self.setting_up(compilation)?;
        let known = (preference::LOW_POWER..=preference::TURBO_BOOST).contains(&value);
        keep(known, Rule::Range, || format!("preference {value}"))
    }

    pub(crate) fn set_priority(&mut self, compilation: usize, value: i32) -> Kept<()> {
        self.setting_up(compilation)?;
        let known = [priority::LOW, priority::MEDIUM, priority::HIGH].contains(&value);
        keep(known, Rule::Range, || format!("priority {value}"))
    }

    pub(crate) fn set_options(&mut self, compilation: usize, options: &str) -> Kept<()> {
        options.clone_into(&mut self.setting_up(compilation)?.options);
        Ok(())
    }

    /// Returns which operations of the model are supported: all except operations sent as unknown.
    pub(crate) fn supported(&mut self, compilation: usize, count: u32) -> Kept<Vec<bool>> {
        let model = self.setting_up(compilation)?.model;
        let operations = &self.model(model)?.operations;
        let (asked, has) = (count as usize, operations.len());
        keep(asked == has, Rule::Length, || format!("{asked} answers for {has} operations"))?;
        Ok(operations.iter().map(|kind| *kind != operation::UNKNOWN).collect())
    }

    pub(crate) fn finish_compilation(&mut self, compilation: usize) -> Kept<()> {
        self.setting_up(compilation)?.finished = true;
        Ok(())
    }

    /// Returns a finished compilation.
    fn finished(&mut self, compilation: usize) -> Kept<&mut Compilation> {
        let found = self.compilation(compilation)?;
        keep(found.finished, Rule::CompilationNotFinished, || {
            format!("compilation {compilation} is not finished")
        })?;
        Ok(found)
    }

    /// Returns the inputs, outputs and options of a compilation that may be stored.
    pub(crate) fn stored(&mut self, compilation: usize) -> Kept<(Vec<Io>, Vec<Io>, String)> {
        let found = self.finished(compilation)?;
        keep(!found.restored, Rule::Stored, || format!("compilation {compilation} was restored"))?;
        keep(!found.has_run, Rule::Stored, || format!("compilation {compilation} has run"))?;
        Ok((found.inputs.clone(), found.outputs.clone(), found.options.clone()))
    }

    /// Returns an input or output of a finished compilation.
    pub fn io(&mut self, compilation: usize, index: i64, output: bool) -> Kept<Io> {
        let found = self.finished(compilation)?;
        let list = if output { &found.outputs } else { &found.inputs };
        let what = if output { "output" } else { "input" };
        let io = usize::try_from(index).ok().and_then(|index| list.get(index));
        io.cloned().ok_or_else(|| Violation::new(Rule::Index, format!("{what} {index} of {}", list.len())))
    }

    // ---- memory ----

    /// Creates memory from a descriptor that was checked before.
    pub fn create_memory(&mut self, length: usize) -> Kept<usize> {
        keep(length > 0, Rule::Length, || "memory of no bytes".to_owned())?;
        Ok(self.add(Object::Memory(Memory { length })))
    }

    pub fn free_memory(&mut self, memory: usize) -> Kept<()> {
        self.free(memory, "memory")
    }

    // ---- executions ----

    /// Creates an execution of a finished compilation.
    pub fn create_execution(&mut self, compilation: usize) -> Kept<usize> {
        let found = self.finished(compilation)?;
        let (inputs, outputs) = (vec![None; found.inputs.len()], vec![None; found.outputs.len()]);
        Ok(self.add(Object::Execution(Execution { compilation, inputs, outputs })))
    }

    pub fn free_execution(&mut self, execution: usize) -> Kept<()> {
        self.free(execution, "execution")
    }

    /// Checks a boost of the hardware.
    pub fn set_boost(&mut self, execution: usize, boost: u8) -> Kept<()> {
        self.execution(execution)?;
        keep(boost <= LARGEST_BOOST, Rule::Range, || format!("boost {boost} of at most {LARGEST_BOOST}"))
    }

    /// Binds an input or output. The index comes from the call: it is signed for a client's own
    /// memory and unsigned for shared memory.
    pub fn bind(&mut self, execution: usize, index: i64, place: IoMemory, output: bool) -> Kept<()> {
        let compilation = self.execution(execution)?.compilation;
        let io = self.io(compilation, index, output)?;
        let length = match place {
            IoMemory::Host { address, length } => {
                keep(address != 0, Rule::Null, || "a null buffer".to_owned())?;
                length
            }
            IoMemory::Memory { memory, offset, length } => {
                let has = self.memory(memory)?.length;
                let fits = offset.checked_add(length).is_some_and(|end| end <= has);
                keep(fits, Rule::Length, || {
                    format!("{length} bytes from {offset} of memory {memory} with {has}")
                })?;
                keep(offset.is_multiple_of(MEMORY_ALIGNMENT), Rule::Alignment, || {
                    format!("offset {offset} in memory {memory} is not a multiple of {MEMORY_ALIGNMENT}")
                })?;
                length
            }
        };
        keep(length >= io.bytes, Rule::Length, || format!("{length} bytes for an operand of {}", io.bytes))?;
        let found = self.execution(execution)?;
        let list = if output { &mut found.outputs } else { &mut found.inputs };
        // `io` checked that the index is in range.
        if let Some(slot) = usize::try_from(index).ok().and_then(|index| list.get_mut(index)) {
            *slot = Some(place);
        }
        Ok(())
    }

    /// Returns the locations of a run's inputs and outputs, each with its bytes.
    pub fn run(&mut self, execution: usize) -> Kept<[Vec<(IoMemory, usize)>; 2]> {
        let found = self.execution(execution)?;
        let (compilation, inputs, outputs) = (found.compilation, found.inputs.clone(), found.outputs.clone());
        let compiled = self.finished(compilation)?;
        compiled.has_run = true;
        let places = |list: &[Option<IoMemory>], ios: &[Io], what: &str| -> Kept<Vec<(IoMemory, usize)>> {
            let mut found = Vec::new();
            for (index, (place, io)) in list.iter().zip(ios).enumerate() {
                let unbound = || Violation::new(Rule::Unbound, format!("{what} {index}"));
                found.push((place.ok_or_else(unbound)?, io.bytes));
            }
            Ok(found)
        };
        let inputs = places(&inputs, &compiled.inputs, "input")?;
        let outputs = places(&outputs, &compiled.outputs, "output")?;
        for (place, _) in inputs.iter().chain(&outputs) {
            if let IoMemory::Memory { memory, .. } = place {
                self.memory(*memory)?;
            }
        }
        Ok([inputs, outputs])
    }
}

/// Required alignment of shared memory and of offsets bound in it.
const MEMORY_ALIGNMENT: usize = shardwright_neuron_adapter::setting::MEMORY_ALIGNMENT;

#[cfg(test)]
mod tests {
    use super::*;

    fn io(bytes: usize) -> Io {
        Io { bytes, dimensions: vec![bytes as u32] }
    }

    fn restored() -> (ObjectLedger, usize, usize) {
        let mut books = ObjectLedger::new(1);
        let (model, compilation) = books.restore(vec![io(128), io(4)], vec![io(64)]);
        (books, model, compilation)
    }

    fn rule<T: std::fmt::Debug>(result: Kept<T>) -> Rule {
        result.unwrap_err().rule
    }

    fn host(length: usize) -> IoMemory {
        IoMemory::Host { address: 4096, length }
    }

    #[test]
    fn a_run_as_the_known_clients_do_it_breaks_nothing() {
        let (mut books, model, compilation) = restored();
        let execution = books.create_execution(compilation).unwrap();
        books.set_boost(execution, 100).unwrap();
        assert_eq!(books.io(compilation, 0, false).unwrap().padded(), [128, 1, 1, 1]);
        let memory = books.create_memory(4096).unwrap();
        for (index, offset, length, output) in [(0, 0, 128, false), (1, 128, 4, false), (0, 192, 64, true)] {
            books.bind(execution, index, IoMemory::Memory { memory, offset, length }, output).unwrap();
        }
        let [inputs, outputs] = books.run(execution).unwrap();
        assert_eq!((inputs.len(), outputs.len()), (2, 1));
        books.run(execution).unwrap();
        books.free_execution(execution).unwrap();
        books.free_memory(memory).unwrap();
        books.free_compilation(compilation).unwrap();
        books.free_model(model).unwrap();
        assert!(books.left().is_empty());
    }

    #[test]
    fn lifetimes_are_held() {
        let (mut books, model, compilation) = restored();
        assert_eq!(rule(books.free_model(model)), Rule::FreedTooEarly);
        let execution = books.create_execution(compilation).unwrap();
        assert_eq!(rule(books.free_compilation(compilation)), Rule::FreedTooEarly);
        let memory = books.create_memory(256).unwrap();
        books.bind(execution, 0, IoMemory::Memory { memory, offset: 0, length: 128 }, false).unwrap();
        assert_eq!(rule(books.free_memory(memory)), Rule::FreedTooEarly);
        books.bind(execution, 0, host(128), false).unwrap();
        books.free_memory(memory).unwrap();
        assert_eq!(rule(books.free_memory(memory)), Rule::FreedTwice);
        let gone = IoMemory::Memory { memory, offset: 0, length: 128 };
        assert_eq!(rule(books.bind(execution, 0, gone, false)), Rule::UseAfterFree);
        assert_eq!(books.left(), ["model 1", "compilation 2", "execution 3"]);
        books.free_execution(execution).unwrap();
        assert_eq!(rule(books.run(execution)), Rule::UseAfterFree);
        assert_eq!(rule(books.set_boost(execution, 1)), Rule::UseAfterFree);
        books.free_compilation(compilation).unwrap();
        assert_eq!(rule(books.create_execution(compilation)), Rule::UseAfterFree);
        assert_eq!(rule(books.free_compilation(model)), Rule::UnknownHandle);
        assert_eq!(rule(books.free_compilation(0)), Rule::Null);
        assert_eq!(rule(books.free_model(99)), Rule::UnknownHandle);
        assert_eq!(rule(books.create_execution(model)), Rule::UnknownHandle);
        assert_eq!(rule(books.create_execution(0)), Rule::Null);
        assert_eq!(rule(books.create_execution(99)), Rule::UnknownHandle);
    }

    #[test]
    fn what_is_bound_must_fit() {
        let (mut books, _, compilation) = restored();
        let execution = books.create_execution(compilation).unwrap();
        assert_eq!(rule(books.run(execution)), Rule::Unbound);
        assert_eq!(rule(books.bind(execution, -1, host(128), false)), Rule::Index);
        assert_eq!(rule(books.bind(execution, 2, host(128), false)), Rule::Index);
        assert_eq!(rule(books.bind(execution, 1, host(128), true)), Rule::Index);
        assert_eq!(rule(books.bind(execution, 0, host(127), false)), Rule::Length);
        assert_eq!(
            rule(books.bind(execution, 0, IoMemory::Host { address: 0, length: 128 }, false)),
            Rule::Null
        );
        let memory = books.create_memory(192).unwrap();
        let at = |offset, length| IoMemory::Memory { memory, offset, length };
        assert_eq!(rule(books.bind(execution, 0, at(128, 128), false)), Rule::Length);
        assert_eq!(rule(books.bind(execution, 0, at(usize::MAX, 128), false)), Rule::Length);
        assert_eq!(rule(books.bind(execution, 0, at(32, 128), false)), Rule::Alignment);
        assert_eq!(rule(books.create_memory(0)), Rule::Length);
        assert_eq!(rule(books.set_boost(execution, 101)), Rule::Range);
        assert_eq!(rule(books.io(compilation, 5, true)), Rule::Index);
        books.bind(execution, 0, host(128), false).unwrap();
        books.bind(execution, 1, host(4), false).unwrap();
        assert_eq!(rule(books.run(execution)), Rule::Unbound);
    }

    #[test]
    fn models_and_compilations_are_made_in_order() {
        let mut books = ObjectLedger::new(64);
        let model = books.create_model();
        let operand = |dimensions: &[u32]| Operand {
            kind: operand::TENSOR_QUANT16_SYMM,
            dimensions: dimensions.to_vec(),
        };
        assert_eq!(books.add_operand(model, operand(&[1, 3])), Ok(0));
        assert_eq!(books.add_operand(model, operand(&[1, 40])), Ok(1));
        assert_eq!(rule(books.has_operand(model, 2)), Rule::Index);
        assert_eq!(rule(books.has_operand(model, -1)), Rule::Index);
        assert_eq!(rule(books.identify(model, &[0], &[2])), Rule::Index);
        books.identify(model, &[0], &[1]).unwrap();
        assert_eq!(rule(books.add_operation(model, 0, &[0, 7])), Rule::Index);
        books.add_operation(model, 0, &[0, 1]).unwrap();
        books.add_operation(model, operation::UNKNOWN, &[0, 1]).unwrap();
        assert_eq!(rule(books.create_compilation(model, "")), Rule::ModelNotFinished);
        books.finish_model(model).unwrap();
        assert_eq!(rule(books.finish_model(model)), Rule::ModelFinished);
        assert_eq!(rule(books.add_operand(model, operand(&[1]))), Rule::ModelFinished);
        assert_eq!(rule(books.touch_open_model(model)), Rule::ModelFinished);
        books.touch_model(model).unwrap();

        let compilation = books.create_compilation(model, "--opt 3").unwrap();
        assert_eq!(books.supported(compilation, 2), Ok(vec![true, false]));
        assert_eq!(rule(books.supported(compilation, 3)), Rule::Length);
        assert_eq!(rule(books.set_preference(compilation, 9)), Rule::Range);
        assert_eq!(rule(books.set_priority(compilation, 1)), Rule::Range);
        books.set_priority(compilation, priority::HIGH).unwrap();
        assert_eq!(rule(books.create_execution(compilation)), Rule::CompilationNotFinished);
        assert_eq!(rule(books.stored(compilation)), Rule::CompilationNotFinished);
        books.finish_compilation(compilation).unwrap();
        assert_eq!(rule(books.finish_compilation(compilation)), Rule::CompilationFinished);
        assert_eq!(rule(books.set_options(compilation, "")), Rule::CompilationFinished);
        assert_eq!(rule(books.touch_setting_up(compilation)), Rule::CompilationFinished);
        // Sizes are padded.
        let [input, output] = [false, true].map(|output| books.io(compilation, 0, output).unwrap());
        assert_eq!((input.bytes, input.padded()), (128, [1, 64, 1, 1]));
        assert_eq!((output.bytes, output.padded()), (128, [1, 64, 1, 1]));
        assert_eq!(books.stored(compilation).unwrap().2, "--opt 3");
        let execution = books.create_execution(compilation).unwrap();
        books.bind(execution, 0, host(128), false).unwrap();
        books.bind(execution, 0, host(128), true).unwrap();
        books.run(execution).unwrap();
        assert_eq!(rule(books.stored(compilation)), Rule::Stored);
        let (_, restored) = books.restore(vec![], vec![]);
        assert_eq!(rule(books.stored(restored)), Rule::Stored);
    }
}
