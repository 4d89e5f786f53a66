//! Reads structs of the contract from the other side, whatever their length. Members beyond the
//! writer's struct are zero.
//!
//! Host and shim may be compiled from headers of different minor versions. Rule 2 of `shim.h` lets
//! structs grow at their end. So either side may receive a struct that is shorter or longer than
//! its own. Both sides read structs through this module.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use crate::raw::*;

/// Sizes are whole multiples of this, so that a size never ends inside a member.
const STEP: u64 = 8;

/// A struct of the contract.
///
/// # Safety
///
/// The type is `repr(C)`, its first member is `size: u64`, no member is aligned to more than eight
/// bytes, and all-zero bytes are a valid value.
pub unsafe trait Struct: Sized {
    /// Name of the struct in the header.
    const NAME: &'static str;
    /// Minimum size that a writer may pass. Members beyond the passed size read as 0.
    const MINIMUM: u32;
}

macro_rules! structs {
    ($($rust:ident = $c:literal, $minimum:ident;)*) => { $(
        const _: () = assert!($minimum as usize <= size_of::<$rust>());
        const _: () = assert!(align_of::<$rust>() == STEP as usize && ($minimum as u64).is_multiple_of(STEP));

        // SAFETY: `raw` contains only `repr(C)` structs of numbers, pointers and optional
        // functions, each with its size as first member.
        unsafe impl Struct for $rust {
            const NAME: &'static str = $c;
            const MINIMUM: u32 = $minimum;
        }
    )* };
}

structs! {
    SwDetail = "sw_detail", SW_MINIMUM_DETAIL;
    SwError = "sw_error", SW_MINIMUM_ERROR;
    SwHost = "sw_host", SW_MINIMUM_HOST;
    SwAnswer = "sw_answer", SW_MINIMUM_ANSWER;
    SwOption = "sw_option", SW_MINIMUM_OPTION;
    SwDescription = "sw_description", SW_MINIMUM_DESCRIPTION;
    SwDevice = "sw_device", SW_MINIMUM_DEVICE;
    SwLimit = "sw_limit", SW_MINIMUM_LIMIT;
    SwFlag = "sw_flag", SW_MINIMUM_FLAG;
    SwVerdict = "sw_verdict", SW_MINIMUM_VERDICT;
    SwEstimate = "sw_estimate", SW_MINIMUM_ESTIMATE;
    SwFlagVerdict = "sw_flag_verdict", SW_MINIMUM_FLAG_VERDICT;
    SwPlacement = "sw_placement", SW_MINIMUM_PLACEMENT;
    SwCompatibility = "sw_compatibility", SW_MINIMUM_COMPATIBILITY;
    SwInspection = "sw_inspection", SW_MINIMUM_INSPECTION;
    SwLoadedEntry = "sw_loaded_entry", SW_MINIMUM_LOADED_ENTRY;
    SwBinding = "sw_binding", SW_MINIMUM_BINDING;
    SwFact = "sw_fact", SW_MINIMUM_FACT;
    SwDescriptionSink = "sw_description_sink", SW_MINIMUM_DESCRIPTION_SINK;
    SwDeviceSink = "sw_device_sink", SW_MINIMUM_DEVICE_SINK;
    SwLimitSink = "sw_limit_sink", SW_MINIMUM_LIMIT_SINK;
    SwFlagSink = "sw_flag_sink", SW_MINIMUM_FLAG_SINK;
    SwFlagVerdictSink = "sw_flag_verdict_sink", SW_MINIMUM_FLAG_VERDICT_SINK;
    SwVerdictSink = "sw_verdict_sink", SW_MINIMUM_VERDICT_SINK;
    SwEstimateSink = "sw_estimate_sink", SW_MINIMUM_ESTIMATE_SINK;
    SwCompatibilitySink = "sw_compatibility_sink", SW_MINIMUM_COMPATIBILITY_SINK;
    SwInspectionSink = "sw_inspection_sink", SW_MINIMUM_INSPECTION_SINK;
    SwLoadedEntrySink = "sw_loaded_entry_sink", SW_MINIMUM_LOADED_ENTRY_SINK;
    SwBindingSink = "sw_binding_sink", SW_MINIMUM_BINDING_SINK;
    SwFactSink = "sw_fact_sink", SW_MINIMUM_FACT_SINK;
    SwChip = "sw_chip", SW_MINIMUM_CHIP;
    SwQuantisation = "sw_quantisation", SW_MINIMUM_QUANTISATION;
    SwWeight = "sw_weight", SW_MINIMUM_WEIGHT;
    SwTensor = "sw_tensor", SW_MINIMUM_TENSOR;
    SwAttribute = "sw_attribute", SW_MINIMUM_ATTRIBUTE;
    SwNode = "sw_node", SW_MINIMUM_NODE;
    SwPort = "sw_port", SW_MINIMUM_PORT;
    SwConstant = "sw_constant", SW_MINIMUM_CONSTANT;
    SwEntry = "sw_entry", SW_MINIMUM_ENTRY;
    SwWorkOrder = "sw_work_order", SW_MINIMUM_WORK_ORDER;
    SwCompileOutput = "sw_compile_output", SW_MINIMUM_COMPILE_OUTPUT;
    SwArtefact = "sw_artefact", SW_MINIMUM_ARTEFACT;
    SwImport = "sw_import", SW_MINIMUM_IMPORT;
    SwBound = "sw_bound", SW_MINIMUM_BOUND;
    SwRun = "sw_run", SW_MINIMUM_RUN;
    SwTable = "sw_table", SW_MINIMUM_TABLE;
}

/// A struct in the other side's memory. It may be shorter or longer than `T`, so it is always
/// copied and never borrowed.
#[repr(transparent)]
pub struct Ref<'a, T>(*const T, PhantomData<&'a T>);

impl<T> Clone for Ref<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ref<'_, T> {}

impl<T: Struct> Ref<'_, T> {
    /// Checks only the size of a struct.
    ///
    /// # Errors
    ///
    /// If the pointer is null, or the size is below the minimum or not a multiple of eight.
    ///
    /// # Safety
    ///
    /// `pointer` is null or points to a struct that starts with its size and has that many bytes,
    /// valid for the lifetime.
    pub unsafe fn new(pointer: *const T) -> Result<Self, String> {
        if pointer.is_null() {
            return Err("a struct is null".to_owned());
        }
        // SAFETY: promised by the caller.
        let size = unsafe { pointer.cast::<u64>().read() };
        if size < u64::from(T::MINIMUM) {
            return Err(format!("`{}` has {size} bytes, expected at least {}", T::NAME, T::MINIMUM));
        }
        if !size.is_multiple_of(STEP) {
            return Err(format!("`{}` has {size} bytes, expected a multiple of {STEP}", T::NAME));
        }
        Ok(Ref(pointer, PhantomData))
    }

    /// Wraps a pointer without a check.
    ///
    /// # Safety
    ///
    /// [`new`](Ref::new) accepted the pointer before.
    pub(crate) unsafe fn trusted(pointer: *const T) -> Self {
        Ref(pointer, PhantomData)
    }

    /// Copies the struct. Members that the writer does not know are 0. Members that `T` does not
    /// have are left out.
    ///
    /// `size` keeps the writer's value, so that a reader can determine which members the writer
    /// knew.
    pub fn get(&self) -> T {
        // SAFETY: `new` checked the size, and the struct has that many bytes.
        let size = unsafe { self.0.cast::<u64>().read() };
        let covered = usize::try_from(size).unwrap_or(usize::MAX).min(size_of::<T>());
        let mut value = MaybeUninit::<T>::zeroed();
        // SAFETY: both sides have that many bytes, and the value is new. An all-zero value is a
        // valid `T`. It stays valid after the copy, because sizes are multiples of eight: every
        // member was copied whole or left zero.
        unsafe {
            std::ptr::copy_nonoverlapping(self.0.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), covered);
            value.assume_init()
        }
    }

    /// Returns the address of the struct.
    pub(crate) fn address(&self) -> usize {
        self.0 as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a device in as many words of memory as its writer knew. Words after the first six
    /// stand for members of a later minor version.
    fn device(words: usize) -> Vec<u64> {
        let mut memory = vec![words as u64 * STEP, 0, 0, 0, 1 | 5 << 32, 1 << 33, 77, 78];
        memory.truncate(words);
        memory
    }

    fn read(memory: &[u64]) -> Result<SwDevice, String> {
        // SAFETY: the memory has as many bytes as its first word states, or is not read beyond that
        // word.
        Ok(unsafe { Ref::new(memory.as_ptr().cast::<SwDevice>()) }?.get())
    }

    #[test]
    fn what_the_writer_did_not_know_is_zero() {
        for (words, bytes) in [(5, 0), (6, 1 << 33), (7, 1 << 33), (8, 1 << 33)] {
            let device = read(&device(words)).unwrap();
            assert_eq!((device.kind, device.memory_kinds, device.memory_bytes), (1, 5, bytes));
            assert_eq!(device.size, words as u64 * STEP);
        }
    }

    #[test]
    fn less_than_the_least_and_odd_sizes_are_refused() {
        assert_eq!(read(&device(4)).err().unwrap(), "`sw_device` has 32 bytes, expected at least 40");
        let mut odd = device(6);
        odd[0] = 44;
        assert_eq!(read(&odd).err().unwrap(), "`sw_device` has 44 bytes, expected a multiple of 8");
        // SAFETY: a null pointer is rejected before it is read.
        let none = unsafe { Ref::new(std::ptr::null::<SwDevice>()) };
        assert_eq!(none.err().unwrap(), "a struct is null");
    }
}
