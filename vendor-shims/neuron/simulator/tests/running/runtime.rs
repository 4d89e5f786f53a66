//! The runtime of LiteRT, formerly TensorFlow Lite, through its C interface. It runs models with
//! the reference kernels, which are third-party code.
//!
//! The functions are declared in `litert/c` (Apache-2.0). They belong to version 2.3 of the wheel
//! `ai-edge-litert`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use libloading::Library;

use crate::wheel;

/// The runtime's file in the wheel.
const FILE: &str = "libLiteRt.so";
/// LiteRT's number of the CPU as an accelerator.
const CPU: c_int = 1;
/// Lock modes for reading and for writing.
const READ: c_int = 0;
const WRITE: c_int = 1;
/// Selects the plain kernels without optimised variants.
const KERNELS: &CStr = c"kernel_mode = \"reference\"\n";
/// The name under which the runtime looks for these options.
const CPU_OPTIONS: &CStr = c"xnnpack";

/// An object of the runtime.
type Handle = *mut c_void;

/// Space for a tensor's type and shape, which is only passed on.
#[repr(C, align(16))]
struct TensorType([u8; 256]);

macro_rules! interface {
    ($($name:ident = $symbol:literal ($($argument:ty),*) $(-> $result:ty)?;)*) => {
        struct Interface {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Interface {
            fn of(library: &Library) -> Interface {
                Interface {
                    // SAFETY: functions of the published interface, with its types.
                    $($name: *unsafe { library.get($symbol) }.expect("a function of LiteRT 2.3"),)*
                }
            }
        }
    };
}

interface! {
    create_environment = b"LiteRtCreateEnvironment\0" (c_int, *const c_void, *mut Handle) -> c_int;
    create_model = b"LiteRtCreateModelFromBuffer\0" (Handle, *const c_void, usize, *mut Handle) -> c_int;
    destroy_model = b"LiteRtDestroyModel\0" (Handle);
    create_options = b"LiteRtCreateOptions\0" (*mut Handle) -> c_int;
    destroy_options = b"LiteRtDestroyOptions\0" (Handle);
    set_accelerators = b"LiteRtSetOptionsHardwareAccelerators\0" (Handle, c_int) -> c_int;
    create_opaque_options = b"LiteRtCreateOpaqueOptions\0" (*const c_char, Handle, extern "C" fn(Handle), *mut Handle) -> c_int;
    add_opaque_options = b"LiteRtAddOpaqueOptions\0" (Handle, Handle) -> c_int;
    create_compiled = b"LiteRtCreateCompiledModel\0" (Handle, Handle, Handle, *mut Handle) -> c_int;
    destroy_compiled = b"LiteRtDestroyCompiledModel\0" (Handle);
    signature = b"LiteRtGetModelSignature\0" (Handle, usize, *mut Handle) -> c_int;
    input_tensor = b"LiteRtGetSignatureInputTensorByIndex\0" (Handle, usize, *mut Handle) -> c_int;
    output_tensor = b"LiteRtGetSignatureOutputTensorByIndex\0" (Handle, usize, *mut Handle) -> c_int;
    tensor_type = b"LiteRtGetRankedTensorType\0" (Handle, *mut TensorType) -> c_int;
    input_needs = b"LiteRtGetCompiledModelInputBufferRequirements\0" (Handle, usize, usize, *mut Handle) -> c_int;
    output_needs = b"LiteRtGetCompiledModelOutputBufferRequirements\0" (Handle, usize, usize, *mut Handle) -> c_int;
    create_buffer = b"LiteRtCreateManagedTensorBufferFromRequirements\0" (Handle, *const TensorType, Handle, *mut Handle) -> c_int;
    destroy_buffer = b"LiteRtDestroyTensorBuffer\0" (Handle);
    lock = b"LiteRtLockTensorBuffer\0" (Handle, *mut *mut u8, c_int) -> c_int;
    unlock = b"LiteRtUnlockTensorBuffer\0" (Handle) -> c_int;
    run = b"LiteRtRunCompiledModel\0" (Handle, usize, usize, *mut Handle, usize, *mut Handle) -> c_int;
}

/// Keeps the options' text instead of freeing it, because the text is static.
extern "C" fn keep(_: Handle) {}

/// The runtime, opened once.
pub struct Runtime {
    interface: Interface,
    environment: Handle,
}

// SAFETY: threads share only the functions and the environment. Every run creates all other objects
// itself.
unsafe impl Send for Runtime {}
// SAFETY: as above.
unsafe impl Sync for Runtime {}

/// Opens the runtime of the wheel, if it is available.
pub fn open(test: &str) -> Option<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let file = wheel::with(FILE, test)?.join(FILE);
    Some(RUNTIME.get_or_init(|| Runtime::new(&file)))
}

fn fine(code: c_int, what: &str) -> Result<(), String> {
    match code {
        0 => Ok(()),
        code => Err(format!("{what} answers {code}")),
    }
}

impl Runtime {
    fn new(file: &std::path::Path) -> Runtime {
        // SAFETY: a published library, whose constructors may run at any time.
        let library = unsafe { Library::new(file) }.unwrap_or_else(|error| panic!("{error}"));
        let interface = Interface::of(&library);
        // Its threads may outlive every test.
        std::mem::forget(library);
        let mut environment = null_mut();
        // SAFETY: no options are passed, and the result outlives the call.
        let code = unsafe { (interface.create_environment)(0, null(), &mut environment) };
        fine(code, "LiteRtCreateEnvironment").expect("an environment");
        Runtime { interface, environment }
    }

    /// Runs a model once.
    ///
    /// # Errors
    ///
    /// The name of the function that failed and its code, for example if LiteRT does not support an
    /// operation or a type.
    pub fn run(&self, model: &[u8], inputs: &[Vec<u8>], outputs: &[usize]) -> Result<Vec<Vec<u8>>, String> {
        let all = &self.interface;
        let mut made =
            Made { all, model: null_mut(), options: null_mut(), compiled: null_mut(), buffers: Vec::new() };
        let mut signature = null_mut();
        // SAFETY: objects are created in the order of their dependencies. `Made` frees them after
        // use. Results and bytes outlive the calls, and the model's bytes outlive the model.
        unsafe {
            let bytes = model.as_ptr().cast();
            let code = (all.create_model)(self.environment, bytes, model.len(), &mut made.model);
            fine(code, "LiteRtCreateModelFromBuffer")?;
            fine((all.create_options)(&mut made.options), "LiteRtCreateOptions")?;
            let code = (all.set_accelerators)(made.options, CPU);
            fine(code, "LiteRtSetOptionsHardwareAccelerators")?;
            let mut kernels = null_mut();
            let text = KERNELS.as_ptr().cast_mut().cast();
            let code = (all.create_opaque_options)(CPU_OPTIONS.as_ptr(), text, keep, &mut kernels);
            fine(code, "LiteRtCreateOpaqueOptions")?;
            fine((all.add_opaque_options)(made.options, kernels), "LiteRtAddOpaqueOptions")?;
            let code = (all.create_compiled)(self.environment, made.model, made.options, &mut made.compiled);
            fine(code, "LiteRtCreateCompiledModel")?;
            fine((all.signature)(made.model, 0, &mut signature), "LiteRtGetModelSignature")?;
        }
        for (is_output, count) in [(false, inputs.len()), (true, outputs.len())] {
            for index in 0..count {
                let (tensor, needs) = match is_output {
                    false => (all.input_tensor, all.input_needs),
                    true => (all.output_tensor, all.output_needs),
                };
                let (mut existing, mut needed, mut buffer) = (null_mut(), null_mut(), null_mut());
                let mut shape = TensorType([0; 256]);
                // SAFETY: as above. There is room for any type.
                unsafe {
                    fine(tensor(signature, index, &mut existing), "LiteRtGetSignatureTensor")?;
                    fine((all.tensor_type)(existing, &mut shape), "LiteRtGetRankedTensorType")?;
                    fine(needs(made.compiled, 0, index, &mut needed), "LiteRtGetBufferRequirements")?;
                    let code = (all.create_buffer)(self.environment, &shape, needed, &mut buffer);
                    fine(code, "LiteRtCreateManagedTensorBufferFromRequirements")?;
                }
                made.buffers.push(buffer);
            }
        }
        let (ins, outs) = made.buffers.split_at(inputs.len());
        let (mut ins, mut outs) = (ins.to_vec(), outs.to_vec());
        for (buffer, bytes) in ins.iter().zip(inputs) {
            self.locked(*buffer, WRITE, |start| {
                // SAFETY: the buffer was made for this tensor, which has that many bytes.
                unsafe { start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
            })?;
        }
        let (count, results) = (ins.len(), outs.len());
        // SAFETY: there are as many buffers as the model has inputs and outputs, all unlocked.
        let code =
            unsafe { (all.run)(made.compiled, 0, count, ins.as_mut_ptr(), results, outs.as_mut_ptr()) };
        fine(code, "LiteRtRunCompiledModel")?;
        let read = |(buffer, length): (&Handle, &usize)| {
            let mut found = vec![0; *length];
            self.locked(*buffer, READ, |start| {
                // SAFETY: as above.
                unsafe { start.copy_to_nonoverlapping(found.as_mut_ptr(), *length) }
            })?;
            Ok(found)
        };
        outs.iter().zip(outputs).map(read).collect()
    }

    fn locked(&self, buffer: Handle, how: c_int, use_it: impl FnOnce(*mut u8)) -> Result<(), String> {
        let mut start = null_mut();
        // SAFETY: the buffer is alive, and the result outlives the call.
        fine(unsafe { (self.interface.lock)(buffer, &mut start, how) }, "LiteRtLockTensorBuffer")?;
        use_it(start);
        // SAFETY: locked above.
        fine(unsafe { (self.interface.unlock)(buffer) }, "LiteRtUnlockTensorBuffer")
    }
}

struct Made<'r> {
    all: &'r Interface,
    model: Handle,
    options: Handle,
    compiled: Handle,
    buffers: Vec<Handle>,
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        // SAFETY: each object was created once. They are freed in reverse order, and null means
        // that an object was not created.
        unsafe {
            for buffer in self.buffers.drain(..) {
                (self.all.destroy_buffer)(buffer);
            }
            for (handle, destroy) in [
                (self.compiled, self.all.destroy_compiled),
                (self.options, self.all.destroy_options),
                (self.model, self.all.destroy_model),
            ] {
                if !handle.is_null() {
                    destroy(handle);
                }
            }
        }
    }
}
