//! The functions with the interface's names. Each dereferences its pointers, checks the books,
//! writes its line and returns. A broken rule ends the process.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Write;
use std::sync::{Mutex, OnceLock, PoisonError};

use shardwright_neuron_adapter::functions::Bool;
use shardwright_neuron_adapter::operand::{Compilation, Execution, Memory, Model};
use shardwright_neuron_adapter::setting::MEMORY_ALIGNMENT;
use shardwright_neuron_adapter::{
    OperandType, PerChannelQuantParams, RuntimeVersion, SymmPerChannelQuantParams, result,
};

use crate::object_ledger::{IoMemory, ObjectLedger, Operand, Violation};
use crate::{Rule, blob, record};

/// First number for operand types of extensions.
const EXTENSION_OPERANDS: i32 = 30_000;

/// State shared by the functions: the books, and the mapped memory.
struct State {
    books: ObjectLedger,
    /// Mappings by handle of the memory.
    memories: Vec<(usize, Mapped)>,
}

/// A mapping of a client's descriptor.
#[derive(Clone, Copy)]
struct Mapped {
    descriptor: c_int,
    /// Device and inode, to detect that the descriptor was reused for another file.
    file: (u64, u64),
    base: usize,
    /// Offset of the memory in its first page.
    skip: usize,
    length: usize,
}

fn state<T>(body: impl FnOnce(&mut State) -> T) -> T {
    static STATE: OnceLock<Mutex<State>> = OnceLock::new();
    let state = STATE.get_or_init(|| {
        let padding = variable("SHARDWRIGHT_NEURON_RECORDER_PADDING").unwrap_or(1);
        Mutex::new(State { books: ObjectLedger::new(padding), memories: Vec::new() })
    });
    body(&mut state.lock().unwrap_or_else(PoisonError::into_inner))
}

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

fn version() -> RuntimeVersion {
    let text = std::env::var("SHARDWRIGHT_NEURON_RECORDER_VERSION").unwrap_or_default();
    RuntimeVersion::parse(&text).unwrap_or(RuntimeVersion::new(8, 2, 28))
}

type Kept<T> = Result<T, Violation>;

/// Runs one call: checks it against the books and writes its line. A broken rule ends the process
/// after the line is written.
fn call(name: &str, body: impl FnOnce(&mut State, &mut String) -> Kept<c_int>) -> c_int {
    let mut line = name.to_owned();
    match state(|state| body(state, &mut line)) {
        Ok(code) => {
            record::line(&format!("{line} -> {code}"));
            code
        }
        Err(Violation { rule, what }) => {
            let text = format!("VIOLATION {} in {line}: {what}", rule.name());
            record::line(&text);
            eprintln!("neuron recorder: {text}");
            std::process::abort()
        }
    }
}

/// Converts a handle to a number. Only its use by the client matters.
fn handle<T>(pointer: *const T) -> usize {
    pointer.addr()
}

/// Writes a handle to a client's variable.
///
/// # Safety
/// `out` is null or points to a variable of that type.
unsafe fn give<T>(out: *mut *mut T, handle: usize) {
    // SAFETY: guaranteed by the caller, who also checked that `out` is not null.
    unsafe { out.write(std::ptr::without_provenance_mut(handle)) }
}

fn not_null<T>(pointer: *const T, what: &str) -> Kept<()> {
    match pointer.is_null() {
        true => Err(Violation { rule: Rule::Null, what: what.to_owned() }),
        false => Ok(()),
    }
}

/// Copies a client's list.
///
/// # Safety
/// `pointer` points to `count` readable values, or `count` is 0.
unsafe fn list<T: Copy>(pointer: *const T, count: usize, what: &str) -> Kept<Vec<T>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    not_null(pointer, what)?;
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) }.to_vec())
}

/// Copies a client's text. Returns an empty text for null.
///
/// # Safety
/// `pointer` is null or a string that ends with a zero byte.
unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: guaranteed by the caller.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

macro_rules! say {
    ($line:ident, $($argument:tt)*) => {
        // Writing to a string cannot fail.
        let _ = write!($line, $($argument)*);
    };
}

macro_rules! exports {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) |$state:pat_param, $line:ident| $body:block)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// Pointers are as the interface requires of this function's callers. A null pointer
            /// is detected.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
                call(stringify!($name), |$state, $line| $body)
            }
        )*
    };
}

exports! {
    /// Reports the version.
    fn Neuron_getVersion(out: *mut RuntimeVersion) |_, line| {
        not_null(out, "version")?;
        // SAFETY: not null, and the client's variable.
        unsafe { out.write(version()) };
        say!(line, " {}", version());
        Ok(result::NO_ERROR)
    }

    /// Reports seven megabytes.
    fn Neuron_getL1MemorySizeKb(out: *mut u32) |_, _line| {
        not_null(out, "kilobytes")?;
        // SAFETY: not null, and the client's variable.
        unsafe { out.write(7168) };
        Ok(result::NO_ERROR)
    }

    /// Creates an empty model.
    fn NeuronModel_create(out: *mut *mut Model) |state, line| {
        not_null(out, "model")?;
        let model = state.books.create_model();
        say!(line, " model={model}");
        // SAFETY: not null, and the client's variable.
        unsafe { give(out, model) };
        Ok(result::NO_ERROR)
    }

    /// Accepts a name and ignores it.
    fn NeuronModel_setName(model: *mut Model, name: *const c_char) |state, line| {
        say!(line, " model={}", handle(model));
        not_null(name, "name")?;
        state.books.touch_model(handle(model))?;
        Ok(result::NO_ERROR)
    }

    /// Adds an operand.
    fn NeuronModel_addOperand(model: *mut Model, kind: *const OperandType) |state, line| {
        say!(line, " model={}", handle(model));
        not_null(kind, "operand type")?;
        // SAFETY: not null, and the client's struct.
        let kind = unsafe { kind.read() };
        // SAFETY: the struct states the count.
        let dimensions = unsafe { list(kind.dimensions, kind.dimension_count as usize, "dimensions")? };
        say!(line, " kind={} dimensions={dimensions:?}", kind.kind);
        let index = state.books.add_operand(handle(model), Operand { kind: kind.kind, dimensions })?;
        say!(line, " index={index}");
        Ok(result::NO_ERROR)
    }

    /// Sets the value of a constant.
    fn NeuronModel_setOperandValue(model: *mut Model, index: i32, value: *const c_void, length: usize) |state, line| {
        say!(line, " model={} index={index} length={length}", handle(model));
        state.books.has_operand(handle(model), index)?;
        if length > 0 {
            not_null(value, "value")?;
        }
        Ok(result::NO_ERROR)
    }

    /// Sets scales per channel.
    fn NeuronModel_setOperandSymmPerChannelQuantParams(model: *mut Model, index: i32, parameters: *const SymmPerChannelQuantParams) |state, line| {
        say!(line, " model={} index={index}", handle(model));
        not_null(parameters, "parameters")?;
        state.books.has_operand(handle(model), index)?;
        Ok(result::NO_ERROR)
    }

    /// Sets scales and zero points per channel.
    fn NeuronModel_setOperandPerChannelQuantParams(model: *mut Model, index: i32, parameters: *const PerChannelQuantParams) |state, line| {
        say!(line, " model={} index={index}", handle(model));
        not_null(parameters, "parameters")?;
        state.books.has_operand(handle(model), index)?;
        Ok(result::NO_ERROR)
    }

    /// Adds an operation.
    fn NeuronModel_addOperation(model: *mut Model, kind: c_int, input_count: u32, inputs: *const u32, output_count: u32, outputs: *const u32) |state, line| {
        say!(line, " model={} kind={kind}", handle(model));
        // SAFETY: the counts state the lengths.
        let (inputs, outputs) = unsafe { (list(inputs, input_count as usize, "inputs")?, list(outputs, output_count as usize, "outputs")?) };
        state.books.add_operation(handle(model), kind, &[inputs, outputs].concat())?;
        Ok(result::NO_ERROR)
    }

    /// Sets inputs and outputs.
    fn NeuronModel_identifyInputsAndOutputs(model: *mut Model, input_count: u32, inputs: *const u32, output_count: u32, outputs: *const u32) |state, line| {
        say!(line, " model={}", handle(model));
        // SAFETY: the counts state the lengths.
        let (inputs, outputs) = unsafe { (list(inputs, input_count as usize, "inputs")?, list(outputs, output_count as usize, "outputs")?) };
        say!(line, " inputs={inputs:?} outputs={outputs:?}");
        state.books.identify(handle(model), &inputs, &outputs)?;
        Ok(result::NO_ERROR)
    }

    /// Finishes a model.
    fn NeuronModel_finish(model: *mut Model) |state, line| {
        say!(line, " model={}", handle(model));
        state.books.finish_model(handle(model))?;
        Ok(result::NO_ERROR)
    }

    /// Allows computing f32 in f16. Accepted before and after a model is finished, because Google's
    /// client calls it afterwards.
    fn NeuronModel_relaxComputationFloat32toFloat16(model: *mut Model, allowed: Bool) |state, line| {
        say!(line, " model={} allowed={allowed}", handle(model));
        state.books.touch_model(handle(model))?;
        Ok(result::NO_ERROR)
    }

    /// Returns a distinct number for every code.
    fn NeuronModel_getExtensionOperandType(model: *mut Model, extension: *const c_char, code: u16, kind: *mut i32) |state, line| {
        // SAFETY: null or a string.
        say!(line, " model={} extension={} code={code}", handle(model), unsafe { text(extension) });
        not_null(extension, "extension")?;
        not_null(kind, "type")?;
        state.books.touch_open_model(handle(model))?;
        // SAFETY: not null, and the client's variable.
        unsafe { kind.write(EXTENSION_OPERANDS + i32::from(code)) };
        Ok(result::NO_ERROR)
    }

    /// Returns a distinct number for every code.
    fn NeuronModel_getExtensionOperationType(model: *mut Model, extension: *const c_char, code: u16, kind: *mut i32) |state, line| {
        // SAFETY: null or a string.
        say!(line, " model={} extension={} code={code}", handle(model), unsafe { text(extension) });
        not_null(extension, "extension")?;
        not_null(kind, "type")?;
        state.books.touch_open_model(handle(model))?;
        // SAFETY: not null, and the client's variable.
        unsafe { kind.write(20_000 + i32::from(code)) };
        Ok(result::NO_ERROR)
    }

    /// Restores a model and a finished compilation from this library's output. Returns `BAD_DATA`
    /// for any other bytes, and for another major version.
    fn NeuronModel_restoreFromCompiledNetwork(model: *mut *mut Model, compilation: *mut *mut Compilation, stored: *const c_void, length: usize) |state, line| {
        say!(line, " length={length}");
        not_null(model, "model")?;
        not_null(compilation, "compilation")?;
        // SAFETY: the client passes the number of bytes.
        let bytes = unsafe { list(stored.cast::<u8>(), length, "stored network")? };
        let Some((inputs, outputs, stored)) = blob::read(&bytes) else { return Ok(result::BAD_DATA) };
        if stored.major != version().major {
            return Ok(result::BAD_DATA);
        }
        let (restored, compiled) = state.books.restore(inputs, outputs);
        say!(line, " model={restored} compilation={compiled}");
        // SAFETY: not null, and the client's variables.
        unsafe {
            give(model, restored);
            give(compilation, compiled);
        }
        Ok(result::NO_ERROR)
    }

    /// Creates a compilation.
    fn NeuronCompilation_create(model: *mut Model, out: *mut *mut Compilation) |state, line| {
        say!(line, " model={}", handle(model));
        not_null(out, "compilation")?;
        let compilation = state.books.create_compilation(handle(model), "")?;
        say!(line, " compilation={compilation}");
        // SAFETY: not null, and the client's variable.
        unsafe { give(out, compilation) };
        Ok(result::NO_ERROR)
    }

    /// Creates a compilation with options.
    fn NeuronCompilation_createWithOptions(model: *mut Model, out: *mut *mut Compilation, options: *const c_char) |state, line| {
        // SAFETY: null or a string.
        let options = unsafe { text(options) };
        say!(line, " model={} options={options:?}", handle(model));
        not_null(out, "compilation")?;
        let compilation = state.books.create_compilation(handle(model), &options)?;
        say!(line, " compilation={compilation}");
        // SAFETY: not null, and the client's variable.
        unsafe { give(out, compilation) };
        Ok(result::NO_ERROR)
    }

    /// Finishes a compilation, once.
    fn NeuronCompilation_finish(compilation: *mut Compilation) |state, line| {
        say!(line, " compilation={}", handle(compilation));
        state.books.finish_compilation(handle(compilation))?;
        Ok(result::NO_ERROR)
    }

    /// Writes true for every operation except operations sent as unknown.
    fn NeuronCompilation_getSupportedOperations(compilation: *mut Compilation, count: u32, supported: *mut Bool) |state, line| {
        say!(line, " compilation={} count={count}", handle(compilation));
        let answers = state.books.supported(handle(compilation), count)?;
        if count > 0 {
            not_null(supported, "answers")?;
        }
        for (index, answer) in answers.iter().enumerate() {
            // SAFETY: the client has room for `count` answers, and there are exactly that many.
            unsafe { supported.add(index).write(Bool::from(*answer)) };
        }
        Ok(result::NO_ERROR)
    }

    /// Sets the execution preference.
    fn NeuronCompilation_setPreference(compilation: *mut Compilation, preference: i32) |state, line| {
        say!(line, " compilation={} preference={preference}", handle(compilation));
        state.books.set_preference(handle(compilation), preference)?;
        Ok(result::NO_ERROR)
    }

    /// Sets the priority.
    fn NeuronCompilation_setPriority(compilation: *mut Compilation, priority: c_int) |state, line| {
        say!(line, " compilation={} priority={priority}", handle(compilation));
        state.books.set_priority(handle(compilation), priority)?;
        Ok(result::NO_ERROR)
    }

    /// Sets how much of the closest memory to use.
    fn NeuronCompilation_setL1MemorySizeKb(compilation: *mut Compilation, kilobytes: u32) |state, line| {
        say!(line, " compilation={} kilobytes={kilobytes}", handle(compilation));
        state.books.touch_setting_up(handle(compilation))?;
        Ok(result::NO_ERROR)
    }

    /// Sets hints.
    fn NeuronCompilation_setOptimizationHint(compilation: *mut Compilation, bits: u32) |state, line| {
        say!(line, " compilation={} bits={bits}", handle(compilation));
        state.books.touch_setting_up(handle(compilation))?;
        Ok(result::NO_ERROR)
    }

    /// Replaces the options.
    fn NeuronCompilation_setOptimizationString(compilation: *mut Compilation, options: *const c_char) |state, line| {
        // SAFETY: null or a string.
        let passed = unsafe { text(options) };
        say!(line, " compilation={} options={passed:?}", handle(compilation));
        not_null(options, "options")?;
        state.books.set_options(handle(compilation), &passed)?;
        Ok(result::NO_ERROR)
    }

    /// Writes four entries, regardless of the rank.
    fn NeuronCompilation_getInputPaddedDimensions(compilation: *mut Compilation, index: i32, dimensions: *mut u32) |state, line| {
        // SAFETY: the client has room for four entries.
        unsafe { dimensions_of(state, line, compilation, index, dimensions, false) }
    }

    /// Writes four entries, regardless of the rank.
    fn NeuronCompilation_getOutputPaddedDimensions(compilation: *mut Compilation, index: i32, dimensions: *mut u32) |state, line| {
        // SAFETY: the client has room for four entries.
        unsafe { dimensions_of(state, line, compilation, index, dimensions, true) }
    }

    /// Reports the bytes of an input.
    fn NeuronCompilation_getInputPaddedSize(compilation: *mut Compilation, index: i32, bytes: *mut usize) |state, line| {
        // SAFETY: the client's variable, or null.
        unsafe { size_of(state, line, compilation, index, bytes, false) }
    }

    /// Reports the bytes of an output.
    fn NeuronCompilation_getOutputPaddedSize(compilation: *mut Compilation, index: i32, bytes: *mut usize) |state, line| {
        // SAFETY: the client's variable, or null.
        unsafe { size_of(state, line, compilation, index, bytes, true) }
    }

    /// Reports the size of the output of `storeCompiledNetwork`.
    fn NeuronCompilation_getCompiledNetworkSize(compilation: *mut Compilation, bytes: *mut usize) |state, line| {
        say!(line, " compilation={}", handle(compilation));
        not_null(bytes, "bytes")?;
        let (inputs, outputs, options) = state.books.stored(handle(compilation))?;
        let length = blob::write(&inputs, &outputs, version(), &options).len();
        say!(line, " bytes={length}");
        // SAFETY: not null, and the client's variable.
        unsafe { bytes.write(length) };
        Ok(result::NO_ERROR)
    }

    /// Writes the inputs and outputs as bytes.
    fn NeuronCompilation_storeCompiledNetwork(compilation: *mut Compilation, out: *mut c_void, length: usize) |state, line| {
        say!(line, " compilation={} length={length}", handle(compilation));
        not_null(out, "room for the network")?;
        let (inputs, outputs, options) = state.books.stored(handle(compilation))?;
        let bytes = blob::write(&inputs, &outputs, version(), &options);
        if length < bytes.len() {
            let what = format!("room for {length} of {} bytes", bytes.len());
            return Err(Violation { rule: Rule::Length, what });
        }
        // SAFETY: the client has room for `length` bytes, and not more bytes are written.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.cast(), bytes.len()) };
        Ok(result::NO_ERROR)
    }

    /// Creates an execution.
    fn NeuronExecution_create(compilation: *mut Compilation, out: *mut *mut Execution) |state, line| {
        say!(line, " compilation={}", handle(compilation));
        not_null(out, "execution")?;
        let execution = state.books.create_execution(handle(compilation))?;
        say!(line, " execution={execution}");
        // SAFETY: not null, and the client's variable.
        unsafe { give(out, execution) };
        Ok(result::NO_ERROR)
    }

    /// Sets the performance level of the hardware.
    fn NeuronExecution_setBoostHint(execution: *mut Execution, boost: u8) |state, line| {
        say!(line, " execution={} boost={boost}", handle(execution));
        state.books.set_boost(handle(execution), boost)?;
        Ok(result::NO_ERROR)
    }

    /// Binds an input to the client's memory, with a signed index.
    fn NeuronExecution_setInput(execution: *mut Execution, index: i32, _kind: *const OperandType, buffer: *const c_void, length: usize) |state, line| {
        let place = IoMemory::Host { address: buffer.addr(), length };
        bind(state, line, execution, index.into(), place, false)
    }

    /// Binds an output to the client's memory, with a signed index.
    fn NeuronExecution_setOutput(execution: *mut Execution, index: i32, _kind: *const OperandType, buffer: *mut c_void, length: usize) |state, line| {
        let place = IoMemory::Host { address: buffer.addr(), length };
        bind(state, line, execution, index.into(), place, true)
    }

    /// Binds an input to shared memory, with an unsigned index.
    fn NeuronExecution_setInputFromMemory(execution: *mut Execution, index: u32, _kind: *const OperandType, memory: *const Memory, offset: usize, length: usize) |state, line| {
        let place = IoMemory::Memory { memory: handle(memory), offset, length };
        bind(state, line, execution, index.into(), place, false)
    }

    /// Binds an output to shared memory, with an unsigned index.
    fn NeuronExecution_setOutputFromMemory(execution: *mut Execution, index: u32, _kind: *const OperandType, memory: *const Memory, offset: usize, length: usize) |state, line| {
        let place = IoMemory::Memory { memory: handle(memory), offset, length };
        bind(state, line, execution, index.into(), place, true)
    }

    /// Reads every input and fills the outputs with zeros.
    fn NeuronExecution_compute(execution: *mut Execution) |state, line| {
        say!(line, " execution={}", handle(execution));
        let [inputs, outputs] = state.books.run(handle(execution))?;
        for (place, bytes) in inputs {
            let address = present(state, place)?;
            read_through(address, bytes)?;
        }
        for (place, bytes) in outputs {
            let address = present(state, place)?;
            write_through(address, bytes)?;
        }
        Ok(result::NO_ERROR)
    }

    /// Creates memory from a descriptor that can be mapped for reading and writing.
    fn NeuronMemory_createFromFd(length: usize, protection: c_int, descriptor: c_int, offset: usize, out: *mut *mut Memory) |state, line| {
        say!(line, " length={length} protection={protection} offset={offset}");
        not_null(out, "memory")?;
        let mapped = map(length, protection, descriptor, offset)?;
        let memory = state.books.create_memory(length)?;
        state.memories.push((memory, mapped));
        say!(line, " memory={memory}");
        // SAFETY: not null, and the client's variable.
        unsafe { give(out, memory) };
        Ok(result::NO_ERROR)
    }
}

macro_rules! frees {
    ($($(#[$doc:meta])* $name:ident $type:ty, $kind:literal, $function:ident;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// No requirements, because the handle is only a number here.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(object: *mut $type) {
                call(stringify!($name), |state, line| {
                    say!(line, concat!(" ", $kind, "={}"), handle(object));
                    state.books.$function(handle(object))?;
                    forget(state, handle(object));
                    Ok(result::NO_ERROR)
                });
            }
        )*
    };
}

frees! {
    /// Frees a model after its compilations.
    NeuronModel_free Model, "model", free_model;
    /// Frees a compilation after its executions.
    NeuronCompilation_free Compilation, "compilation", free_compilation;
    /// Frees an execution, once.
    NeuronExecution_free Execution, "execution", free_execution;
    /// Frees memory after the executions to which it is bound.
    NeuronMemory_free Memory, "memory", free_memory;
}

/// Returns how many objects were created but not freed. Writes a line for each.
#[unsafe(no_mangle)]
pub extern "C" fn ShardwrightNeuronRecorder_left() -> usize {
    let left = state(|state| state.books.left());
    for object in &left {
        record::line(&format!("LEFT {object}"));
    }
    left.len()
}

/// Describes this library in JSON, which shows that it is not a vendor's library.
#[unsafe(no_mangle)]
pub extern "C" fn ShardwrightNeuronSimulator_describe() -> *const c_char {
    static TEXT: OnceLock<std::ffi::CString> = OnceLock::new();
    let text = TEXT.get_or_init(|| {
        let text = format!(
            r#"{{"name": "shardwright call recorder: computes nothing", "version": "{}", "soc": ""}}"#,
            version()
        );
        std::ffi::CString::new(text).unwrap_or_default()
    });
    text.as_ptr()
}

/// Writes the dimensions of an input or output.
///
/// # Safety
/// `dimensions` is null or has room for four entries.
unsafe fn dimensions_of(
    state: &mut State,
    line: &mut String,
    compilation: *mut Compilation,
    index: i32,
    dimensions: *mut u32,
    output: bool,
) -> Kept<c_int> {
    say!(line, " compilation={} index={index}", handle(compilation));
    not_null(dimensions, "dimensions")?;
    let padded = state.books.io(handle(compilation), index.into(), output)?.padded();
    say!(line, " dimensions={padded:?}");
    // SAFETY: guaranteed by the caller.
    unsafe { dimensions.cast::<[u32; 4]>().write_unaligned(padded) };
    Ok(result::NO_ERROR)
}

/// Writes the bytes of an input or output.
///
/// # Safety
/// `bytes` is null or points to a variable.
unsafe fn size_of(
    state: &mut State,
    line: &mut String,
    compilation: *mut Compilation,
    index: i32,
    bytes: *mut usize,
    output: bool,
) -> Kept<c_int> {
    say!(line, " compilation={} index={index}", handle(compilation));
    not_null(bytes, "bytes")?;
    let io = state.books.io(handle(compilation), index.into(), output)?;
    say!(line, " bytes={}", io.bytes);
    // SAFETY: guaranteed by the caller.
    unsafe { bytes.write(io.bytes) };
    Ok(result::NO_ERROR)
}

fn bind(
    state: &mut State,
    line: &mut String,
    execution: *mut Execution,
    index: i64,
    place: IoMemory,
    output: bool,
) -> Kept<c_int> {
    say!(line, " execution={} index={index}", handle(execution));
    match place {
        IoMemory::Host { length, .. } => {
            say!(line, " length={length}");
        }
        IoMemory::Memory { memory, offset, length } => {
            say!(line, " memory={memory} offset={offset} length={length}");
        }
    }
    state.books.bind(handle(execution), index, place, output)?;
    Ok(result::NO_ERROR)
}

fn broken(rule: Rule, what: impl Into<String>) -> Violation {
    Violation { rule, what: what.into() }
}

/// Returns the file behind a descriptor, and its length.
fn file_of(descriptor: c_int) -> Option<((u64, u64), i64)> {
    // SAFETY: all zeros is a valid value of a struct of numbers.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: fstat accepts any number, and the struct outlives the call.
    let code = unsafe { libc::fstat(descriptor, &mut about) };
    (code == 0).then_some(((about.st_dev, about.st_ino), about.st_size))
}

/// Maps a client's descriptor as hardware would.
fn map(length: usize, protection: c_int, descriptor: c_int, offset: usize) -> Kept<Mapped> {
    if protection != libc::PROT_READ | libc::PROT_WRITE {
        return Err(broken(Rule::Range, format!("protection {protection} is not reading and writing")));
    }
    let (file, has) = file_of(descriptor)
        .ok_or_else(|| broken(Rule::Descriptor, format!("descriptor {descriptor} is not open")))?;
    let end = offset.checked_add(length).and_then(|end| i64::try_from(end).ok());
    if end.is_none_or(|end| end > has) {
        return Err(broken(Rule::Length, format!("{length} bytes from {offset} of a file with {has}")));
    }
    if !offset.is_multiple_of(MEMORY_ALIGNMENT) {
        let what = format!("offset {offset} is not a multiple of {MEMORY_ALIGNMENT}");
        return Err(broken(Rule::Alignment, what));
    }
    // Only whole pages can be mapped.
    let skip = offset % PIECE;
    let start = libc::off_t::try_from(offset - skip).unwrap_or(libc::off_t::MAX);
    // SAFETY: a new mapping at an address that the system chooses, so it overlaps no other memory.
    let base = unsafe {
        libc::mmap(std::ptr::null_mut(), skip + length, protection, libc::MAP_SHARED, descriptor, start)
    };
    if base == libc::MAP_FAILED {
        let error = std::io::Error::last_os_error();
        let what = format!("{length} bytes from {offset} cannot be mapped: {error}");
        return Err(broken(Rule::Descriptor, what));
    }
    Ok(Mapped { descriptor, file, base: base.expose_provenance(), skip, length })
}

/// Removes the mapping if the handle is a memory.
fn forget(state: &mut State, memory: usize) {
    let Some(position) = state.memories.iter().position(|(existing, _)| *existing == memory) else { return };
    let (_, mapped) = state.memories.swap_remove(position);
    // SAFETY: mapped by `map`, and used only by this library.
    unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(mapped.base), mapped.skip + mapped.length) };
}

/// Returns the address of a place. The descriptor of a memory must still refer to the file from
/// which the memory was created.
fn present(state: &State, place: IoMemory) -> Kept<usize> {
    match place {
        IoMemory::Host { address, .. } => Ok(address),
        IoMemory::Memory { memory, offset, .. } => {
            let existing = state.memories.iter().find(|(existing, _)| *existing == memory);
            let (_, mapped) =
                existing.ok_or_else(|| broken(Rule::UnknownHandle, format!("memory {memory}")))?;
            if file_of(mapped.descriptor).map(|(file, _)| file) != Some(mapped.file) {
                let what = format!("descriptor {} of memory {memory} was closed", mapped.descriptor);
                return Err(broken(Rule::Descriptor, what));
            }
            Ok(mapped.base + mapped.skip + offset)
        }
    }
}

/// Number of bytes moved at once: a page. Starts of mappings are also rounded to it.
const PIECE: usize = 4096;

/// Reads memory that may be unmapped, through the system. The system reports an error, whereas a
/// direct read would crash.
fn read_through(address: usize, bytes: usize) -> Kept<()> {
    let mut piece = [0_u8; PIECE];
    move_through(address, bytes, &mut piece, false)
}

/// Fills memory that may be unmapped with zeros.
fn write_through(address: usize, bytes: usize) -> Kept<()> {
    move_through(address, bytes, &mut [0_u8; PIECE], true)
}

fn move_through(address: usize, bytes: usize, piece: &mut [u8; PIECE], write: bool) -> Kept<()> {
    let mut done = 0;
    while done < bytes {
        let length = PIECE.min(bytes - done);
        let here = libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: length };
        let there =
            libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address + done), iov_len: length };
        // SAFETY: this process's own number.
        let own = unsafe { libc::getpid() };
        // SAFETY: `here` belongs to this function. `there` belongs to the client, and the system
        // returns an error if it cannot be used.
        let moved = unsafe {
            match write {
                true => libc::process_vm_writev(own, &here, 1, &there, 1, 0),
                false => libc::process_vm_readv(own, &here, 1, &there, 1, 0),
            }
        };
        if usize::try_from(moved) != Ok(length) {
            let verb = if write { "written" } else { "read" };
            let error = std::io::Error::last_os_error();
            return Err(broken(
                Rule::BufferGone,
                format!("byte {done} of {bytes} cannot be {verb}: {error}"),
            ));
        }
        done += length;
    }
    Ok(())
}
