//! Where the operands of steps are in memory during one run.

use crate::kernels::encoding::{ElementEncoding, Stored, StoredMut};
use crate::program::{Operand, OperandPlace};

/// Address, number of elements, and encoding of a bound tensor.
#[derive(Clone, Copy)]
pub struct Base {
    pub pointer: *mut u8,
    pub elements: usize,
    pub encoding: ElementEncoding,
}

/// Addresses of operands during one run of a checked program.
#[derive(Clone, Copy)]
pub struct Memory<'r> {
    bases: &'r [Base],
    constants: &'r [f32],
    arena: *mut f32,
    arena_values: usize,
}

impl<'r> Memory<'r> {
    /// Returns the memory that the steps of a checked program access.
    ///
    /// # Safety
    /// `bases` and the `arena_values` values of `arena` must be initialised memory that outlives
    /// the run and that only this run writes. A step may access only its own operands, and
    /// [`Program::check`](crate::program::Program::check) must have accepted it: it proves that a
    /// step writes only writable memory that is disjoint from the memory it reads.
    pub unsafe fn new(
        bases: &'r [Base],
        constants: &'r [f32],
        arena: *mut f32,
        arena_values: usize,
    ) -> Memory<'r> {
        Memory { bases, constants, arena, arena_values }
    }

    /// Returns the address, number of elements, and encoding of an operand.
    fn locate(&self, operand: Operand) -> (*mut u8, usize, ElementEncoding) {
        let (pointer, available, encoding) = match operand.place {
            OperandPlace::Arena => (self.arena.cast(), self.arena_values, ElementEncoding::F32),
            OperandPlace::Constant => {
                (self.constants.as_ptr().cast_mut().cast(), self.constants.len(), ElementEncoding::F32)
            }
            OperandPlace::Bound(port) => {
                let Base { pointer, elements, encoding } = self.bases[port as usize];
                (pointer, elements, encoding)
            }
        };
        let (offset, elements) = (operand.offset as usize, operand.elements as usize);
        assert!(offset <= available && elements <= available - offset, "the program was checked");
        // SAFETY: the range is inside the place, by the assertion above.
        (unsafe { pointer.add(offset * encoding.element.bytes()) }, elements, encoding)
    }

    /// Returns the address and number of elements of an unencoded operand.
    fn direct(&self, operand: Operand) -> (*mut f32, usize) {
        let (pointer, elements, encoding) = self.locate(operand);
        assert!(encoding.is_direct(), "the program was checked");
        (pointer.cast(), elements)
    }

    pub fn stored(&self, operand: Operand) -> Stored<'r> {
        let (pointer, elements, encoding) = self.locate(operand);
        // SAFETY: as `read`.
        let bytes = unsafe { std::slice::from_raw_parts(pointer, elements * encoding.element.bytes()) };
        Stored::new(encoding, bytes).expect("checked and aligned when it was bound")
    }

    pub fn stored_mut(&self, operand: Operand) -> StoredMut<'r> {
        let (pointer, elements, encoding) = self.locate(operand);
        // SAFETY: as `write`.
        let bytes = unsafe { std::slice::from_raw_parts_mut(pointer, elements * encoding.element.bytes()) };
        StoredMut::new(encoding, bytes).expect("checked and aligned when it was bound")
    }

    pub fn read(&self, operand: Operand) -> &'r [f32] {
        let (pointer, elements) = self.direct(operand);
        // SAFETY: the memory is initialised and outlives the run. The check of the program proved
        // that no step writes memory that it reads, and by the contract a written binding overlaps
        // no other.
        unsafe { std::slice::from_raw_parts(pointer, elements) }
    }

    pub fn read_i32(&self, operand: Operand) -> &'r [i32] {
        let (pointer, elements) = self.direct(operand);
        // SAFETY: as `read`, and every bit pattern is a valid i32.
        unsafe { std::slice::from_raw_parts(pointer.cast(), elements) }
    }

    pub fn write(&self, operand: Operand) -> &'r mut [f32] {
        let (pointer, elements) = self.direct(operand);
        // SAFETY: as `read`. `Program::check` proved for every step that it writes only writable
        // memory that is disjoint from the memory it reads.
        unsafe { std::slice::from_raw_parts_mut(pointer, elements) }
    }
}
