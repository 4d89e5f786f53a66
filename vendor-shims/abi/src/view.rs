//! Safe views over the tables of a work order. The tables are checked as a whole on entry: every
//! pointer, count, index and string. Reading them afterwards cannot fail.

use std::ffi::{CStr, c_char};

use crate::error::{Error, Result};
use crate::options::Options;
use crate::raw;
use crate::shim::Chip;
use crate::sized::{Ref, Struct};

/// Longest string accepted over the contract, in bytes. Names and reasons are short, so anything
/// longer is a mistake.
const TEXT_LIMIT: usize = 1 << 16;

/// Highest rank of a tensor.
const RANK_LIMIT: u32 = 8;

fn broken(what: impl std::fmt::Display) -> Error {
    Error::invalid_argument(format!("invalid table from the host: {what}"))
}

/// Reads a string of at most [`TEXT_LIMIT`] bytes.
///
/// # Safety
///
/// `pointer` is null or a NUL-terminated string valid for `'a`.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(broken(format!("{what} is null")));
    }
    // SAFETY: promised by the caller.
    let text = unsafe { CStr::from_ptr(pointer) };
    if text.count_bytes() > TEXT_LIMIT {
        return Err(broken(format!("{what} is longer than {TEXT_LIMIT} bytes")));
    }
    text.to_str().map_err(|_| broken(format!("{what} is not UTF-8")))
}

/// Checks every struct of an array.
///
/// # Safety
///
/// `pointer` is null or an array of `count` pointers. Each is null or points to a struct that
/// starts with its size and is valid for `'a`.
unsafe fn structs<'a, T: Struct>(
    pointer: *const *const T,
    count: u64,
    what: &str,
) -> Result<&'a [Ref<'a, T>]> {
    if count == 0 {
        return Ok(&[]);
    }
    let count = usize::try_from(count).map_err(|_| broken(format!("invalid {what} count {count}")))?;
    if pointer.is_null() || count > isize::MAX as usize / size_of::<*const T>() {
        return Err(broken(format!("the {what} array is null or too long")));
    }
    // SAFETY: promised by the caller.
    let pointers = unsafe { std::slice::from_raw_parts(pointer, count) };
    for &element in pointers {
        // SAFETY: promised by the caller.
        unsafe { one(element, what) }?;
    }
    // SAFETY: every element was checked, and a `Ref` has the layout of a pointer.
    Ok(unsafe { std::slice::from_raw_parts(pointer.cast::<Ref<'a, T>>(), count) })
}

/// Borrows an array of numbers.
///
/// # Safety
///
/// `pointer` is null or an array of `count` plain numbers valid for `'a`.
unsafe fn numbers<'a, T: Copy>(pointer: *const T, count: u64, what: &str) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    let count = usize::try_from(count).map_err(|_| broken(format!("invalid {what} count {count}")))?;
    if pointer.is_null() || count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(broken(format!("the {what} array is null or too long")));
    }
    // SAFETY: promised by the caller.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Reads key and value pairs.
///
/// # Safety
///
/// `pointer` is an array of `count` options valid for `'a`.
pub(crate) unsafe fn options<'a>(
    pointer: *const *const raw::SwOption,
    count: u64,
    what: &str,
) -> Result<Options<'a>> {
    // SAFETY: promised by the caller.
    let options = unsafe { structs(pointer, count, what) }?;
    let pairs = options
        .iter()
        .map(Ref::get)
        // SAFETY: promised by the caller.
        .map(|option| unsafe { Ok((text(option.key, what)?, text(option.value, what)?)) })
        .collect::<Result<Vec<_>>>()?;
    Ok(Options::new(pairs))
}

/// Reads a chip as its profile describes it.
///
/// # Safety
///
/// `pointer` is null or a chip that is valid for `'a` under the contract.
pub(crate) unsafe fn chip<'a>(pointer: *const raw::SwChip) -> Result<Chip<'a>> {
    // SAFETY: promised by the caller.
    unsafe {
        let chip = value(pointer, "chip")?;
        let aliases = numbers(chip.aliases, chip.alias_count, "alias")?;
        let aliases = aliases.iter().map(|alias| text(*alias, "alias")).collect::<Result<_>>()?;
        let facts = options(chip.facts, chip.fact_count, "fact")?;
        Ok(Chip { name: text(chip.name, "chip")?, aliases, facts })
    }
}

/// Returns the bits, smallest and largest value of a stored integer type that may have scales.
/// Returns `None` for other types.
fn stored_range(dtype: u32) -> Option<(u32, i32, i32)> {
    Some(match dtype {
        raw::SW_DTYPE_I16 => (16, i16::MIN.into(), i16::MAX.into()),
        raw::SW_DTYPE_U16 => (16, 0, u16::MAX.into()),
        raw::SW_DTYPE_I8 => (8, i8::MIN.into(), i8::MAX.into()),
        raw::SW_DTYPE_U8 => (8, 0, u8::MAX.into()),
        raw::SW_DTYPE_I4 => (4, -8, 7),
        raw::SW_DTYPE_I2 => (2, -2, 1),
        _ => return None,
    })
}

/// Computes how many scales and minimums a quantisation of a tensor of that shape has.
fn scales_of(quantisation: &raw::SwQuantisation, shape: &[u64]) -> Result<u64> {
    let axis = quantisation.axis as usize;
    if quantisation.kind == raw::SW_QUANTISATION_PER_TENSOR {
        return Ok(1);
    }
    let Some(&extent) = shape.get(axis) else {
        return Err(broken(format!("scales along axis {axis} of a tensor of rank {}", shape.len())));
    };
    if quantisation.kind == raw::SW_QUANTISATION_PER_CHANNEL {
        return Ok(extent);
    }
    if quantisation.block == 0 {
        return Err(broken("scales for blocks of 0 elements"));
    }
    let mut numbers = extent.div_ceil(quantisation.block);
    if quantisation.kind == raw::SW_QUANTISATION_PER_BLOCK_WITH_MINIMUM {
        if axis + 1 != shape.len() {
            return Err(broken(format!("minimums along axis {axis} of a tensor of rank {}", shape.len())));
        }
        numbers = numbers.checked_mul(2).ok_or_else(|| broken("too many minimums"))?;
    }
    let mut others = shape.iter().enumerate().filter(|(index, _)| *index != axis);
    others
        .try_fold(numbers, |count, (_, extent)| count.checked_mul(*extent))
        .ok_or_else(|| broken(format!("too many scales for {shape:?}")))
}

/// Checks that kind, bits, axis and counts fit the tensor. A single scale, if present, must be
/// finite. Zero points must be within the range of the stored type. Several scales are only checked
/// when they are read, see [`QuantisationView::scale_values`].
///
/// # Safety
///
/// The quantisation is null or valid for the call.
unsafe fn check_quantisation(pointer: *const raw::SwQuantisation, dtype: u32, shape: &[u64]) -> Result<()> {
    if pointer.is_null() {
        return Ok(());
    }
    // SAFETY: promised by the caller.
    let view = QuantisationView(unsafe { one(pointer, "quantisation") }?);
    let quantisation = view.0.get();
    if !(raw::SW_QUANTISATION_PER_TENSOR..=raw::SW_QUANTISATION_PER_BLOCK_WITH_MINIMUM)
        .contains(&quantisation.kind)
    {
        return Err(broken(format!("unknown quantisation kind {}", quantisation.kind)));
    }
    let Some((bits, low, high)) = stored_range(dtype) else {
        return Err(broken(format!("element type {dtype} has no scales")));
    };
    if quantisation.bits != bits {
        return Err(broken(format!("{} bits for element type {dtype}, expected {bits}", quantisation.bits)));
    }
    let count = scales_of(&quantisation, shape)?;
    if quantisation.scale_count != count {
        return Err(broken(format!("{} scales for {shape:?}, expected {count}", quantisation.scale_count)));
    }
    if count == 1 && !quantisation.scales.is_null() {
        view.scale_values()?;
    }
    let zero_points = view.zero_points()?;
    if !(zero_points.len() <= 1 || zero_points.len() as u64 == count) {
        return Err(broken(format!("{} zero points for {count} scales", zero_points.len())));
    }
    match zero_points.iter().find(|zero| !(low..=high).contains(*zero)) {
        Some(zero) => Err(broken(format!("zero point {zero} is not one of the values {low} to {high}"))),
        None => Ok(()),
    }
}

/// # Safety
///
/// The weight is valid for the call.
unsafe fn check_weight(weight: &raw::SwWeight) -> Result<()> {
    // SAFETY: promised by the caller.
    unsafe {
        text(weight.name, "weight name")?;
        text(weight.part, "weight part")?;
        let shape = check_shape(weight.rank, weight.shape, "weight")?;
        check_quantisation(weight.quantisation, weight.dtype, shape)?;
    }
    if weight.length > isize::MAX as u64 {
        return Err(broken(format!("a weight cannot have {} bytes", weight.length)));
    }
    Ok(())
}

/// Checks the rank and returns the extents.
///
/// # Safety
///
/// `shape` is null or `rank` numbers.
unsafe fn check_shape<'a>(rank: u32, shape: *const u64, what: &str) -> Result<&'a [u64]> {
    if rank > RANK_LIMIT {
        return Err(broken(format!("a {what} of rank {rank}, at most {RANK_LIMIT} is supported")));
    }
    // SAFETY: promised by the caller.
    unsafe { numbers(shape, u64::from(rank), what) }
}

/// Checks every table, string and tensor index of an entry.
///
/// # Safety
///
/// The entry is valid for the call under the contract.
unsafe fn check_entry(entry: &raw::SwEntry) -> Result<()> {
    // SAFETY: promised by the caller.
    unsafe {
        text(entry.name, "entry name")?;
        let tensors = structs(entry.tensors, entry.tensor_count, "tensor")?;
        for tensor in tensors.iter().map(Ref::get) {
            text(tensor.name, "tensor name")?;
            let shape = check_shape(tensor.rank, tensor.shape, "tensor")?;
            check_quantisation(tensor.quantisation, tensor.dtype, shape)?;
        }
        let known = |index: u32, what: &str| {
            if (index as usize) < tensors.len() {
                Ok(())
            } else {
                Err(broken(format!("{what} refers to tensor {index}, there are only {}", tensors.len())))
            }
        };
        for node in structs(entry.nodes, entry.node_count, "node")?.iter().map(Ref::get) {
            text(node.name, "node name")?;
            for &input in numbers(node.inputs, node.input_count, "node input")? {
                if input != raw::SW_NO_TENSOR {
                    known(input, "a node input")?;
                }
            }
            for &output in numbers(node.outputs, node.output_count, "node output")? {
                known(output, "a node output")?;
            }
            let attributes = structs(node.attributes, node.attribute_count, "attribute")?;
            for attribute in attributes.iter().map(Ref::get) {
                text(attribute.name, "attribute name")?;
                match attribute.kind {
                    raw::SW_ATTRIBUTE_TEXT => {
                        text(attribute.text, "attribute text")?;
                    }
                    raw::SW_ATTRIBUTE_INTEGERS => {
                        numbers(attribute.integers, attribute.integer_count, "attribute")?;
                    }
                    _ => {}
                }
            }
        }
        for (ports, count, what) in
            [(entry.inputs, entry.input_count, "input"), (entry.outputs, entry.output_count, "output")]
        {
            for port in structs(ports, count, what)?.iter().map(Ref::get) {
                known(port.tensor, what)?;
                text(port.name, what)?;
            }
        }
        for constant in structs(entry.constants, entry.constant_count, "constant")?.iter().map(Ref::get) {
            known(constant.tensor, "a constant")?;
            check_weight(&one(constant.weight, "weight")?.get())?;
        }
    }
    Ok(())
}

/// Returns the struct behind a pointer if it is not null and has at least its minimum size.
///
/// # Safety
///
/// `pointer` is null or points to a struct that starts with its size and has that many bytes, valid
/// for `'a`.
unsafe fn one<'a, T: Struct>(pointer: *const T, what: &str) -> Result<Ref<'a, T>> {
    // SAFETY: promised by the caller.
    unsafe { Ref::new(pointer) }.map_err(|reason| broken(format!("{what}: {reason}")))
}

/// Copies the struct behind a pointer. Members that its writer does not know are zero.
///
/// # Safety
///
/// Like [`one`], but the struct only needs to be valid for the call.
pub(crate) unsafe fn value<T: Struct>(pointer: *const T, what: &str) -> Result<T> {
    // SAFETY: promised by the caller.
    Ok(unsafe { one(pointer, what) }?.get())
}

/// Borrows an array that `structs` checked on entry.
///
/// # Safety
///
/// [`structs`] accepted the array before.
unsafe fn checked<'a, T: Struct>(pointer: *const *const T, count: u64) -> &'a [Ref<'a, T>] {
    if count == 0 {
        return &[];
    }
    // SAFETY: promised by the caller.
    unsafe { std::slice::from_raw_parts(pointer.cast::<Ref<'a, T>>(), count as usize) }
}

/// Borrows an array that `numbers` checked on entry.
///
/// # Safety
///
/// [`numbers`] accepted the array before.
unsafe fn checked_numbers<'a, T>(pointer: *const T, count: u64) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: promised by the caller.
    unsafe { std::slice::from_raw_parts(pointer, count as usize) }
}

/// Borrows a string that `text` checked on entry.
///
/// # Safety
///
/// [`text`] accepted the string before.
unsafe fn checked_text<'a>(pointer: *const c_char) -> &'a str {
    // SAFETY: promised by the caller. UTF-8 was checked on entry.
    unsafe { std::str::from_utf8_unchecked(CStr::from_ptr(pointer).to_bytes()) }
}

/// Wraps a quantisation that was checked on entry, or null.
///
/// # Safety
///
/// The pointer is null, or [`one`] accepted the quantisation before.
unsafe fn checked_quantisation<'a>(pointer: *const raw::SwQuantisation) -> Option<QuantisationView<'a>> {
    // SAFETY: promised by the caller.
    (!pointer.is_null()).then(|| QuantisationView(unsafe { Ref::trusted(pointer) }))
}

/// One compilation: entries that share weights and states, flags and options.
#[derive(Clone, Copy)]
pub struct WorkOrderView<'a>(Ref<'a, raw::SwWorkOrder>);

impl<'a> WorkOrderView<'a> {
    /// Checks a whole work order.
    ///
    /// # Safety
    ///
    /// `pointer` is null or a work order that is valid for `'a` under the contract.
    pub(crate) unsafe fn new(pointer: *const raw::SwWorkOrder) -> Result<Self> {
        // SAFETY: promised by the caller.
        unsafe {
            let shown = one(pointer, "work order")?;
            let order = shown.get();
            text(order.name, "work order name")?;
            for entry in structs(order.entries, order.entry_count, "entry")? {
                check_entry(&entry.get())?;
            }
            for weight in structs(order.weights, order.weight_count, "weight")? {
                check_weight(&weight.get())?;
            }
            options(order.flags, order.flag_count, "flag")?;
            options(order.options, order.option_count, "option")?;
            Ok(WorkOrderView(shown))
        }
    }

    /// Returns the content hash of the order, for logs and caches.
    pub fn name(&self) -> &'a str {
        // SAFETY: checked in `new`.
        unsafe { checked_text(self.0.get().name) }
    }

    /// Returns the entry points.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = EntryView<'a>> + use<'a> {
        // SAFETY: checked in `new`.
        unsafe { checked(self.0.get().entries, self.0.get().entry_count) }
            .iter()
            .map(|entry| EntryView(*entry))
    }

    /// Returns every weight of the order once, even if several entries use it.
    pub fn weights(&self) -> impl ExactSizeIterator<Item = WeightView<'a>> + use<'a> {
        // SAFETY: checked in `new`.
        unsafe { checked(self.0.get().weights, self.0.get().weight_count) }
            .iter()
            .map(|weight| WeightView(*weight))
    }

    /// Returns the compiler flags. Each needs a verdict.
    pub fn flags(&self) -> Options<'a> {
        // SAFETY: checked in `new`, so it cannot fail.
        unsafe { options(self.0.get().flags, self.0.get().flag_count, "flag") }.unwrap_or_default()
    }

    /// Returns the options for the shim, as opposed to flags for its compiler.
    pub fn options(&self) -> Options<'a> {
        // SAFETY: checked in `new`, so it cannot fail.
        unsafe { options(self.0.get().options, self.0.get().option_count, "option") }.unwrap_or_default()
    }
}

/// Index of a tensor within its entry.
pub type TensorIndex = u32;

/// One entry point: static shapes, and nodes in an order in which they can run.
#[derive(Clone, Copy)]
pub struct EntryView<'a>(Ref<'a, raw::SwEntry>);

impl<'a> EntryView<'a> {
    /// Checks an entry's table and returns a view of it. The host passes tables to a shim. A shim's
    /// tests build their own.
    ///
    /// # Safety
    ///
    /// `pointer` is null or an entry that is valid for `'a` under the contract.
    pub unsafe fn new(pointer: *const raw::SwEntry) -> Result<Self> {
        // SAFETY: promised by the caller.
        unsafe {
            let entry = one(pointer, "entry")?;
            check_entry(&entry.get())?;
            Ok(EntryView(entry))
        }
    }

    /// Returns the name, for example `prefill_128@4096`.
    pub fn name(&self) -> &'a str {
        // SAFETY: checked on entry.
        unsafe { checked_text(self.0.get().name) }
    }

    /// Returns the kind of entry, `SW_ENTRY_…`.
    pub fn kind(&self) -> u32 {
        self.0.get().kind
    }

    /// Returns the static row count.
    pub fn rows(&self) -> u64 {
        self.0.get().rows
    }

    /// Returns how many positions the linear states have. For an encoder this equals the rows.
    pub fn context(&self) -> u64 {
        self.0.get().context
    }

    /// Returns all tensors, by index.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorView<'a>> + use<'a> {
        // SAFETY: checked on entry.
        unsafe { checked(self.0.get().tensors, self.0.get().tensor_count) }
            .iter()
            .map(|tensor| TensorView(*tensor))
    }

    /// Returns the tensor at an index.
    ///
    /// # Panics
    ///
    /// If the entry has no tensor at that index.
    pub fn tensor(&self, index: TensorIndex) -> TensorView<'a> {
        // SAFETY: checked on entry.
        TensorView(unsafe { checked(self.0.get().tensors, self.0.get().tensor_count) }[index as usize])
    }

    /// Returns the operations, in an order in which they can run.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = NodeView<'a>> + use<'a> {
        // SAFETY: checked on entry.
        unsafe { checked(self.0.get().nodes, self.0.get().node_count) }.iter().map(|node| NodeView(*node))
    }

    /// Returns the inputs, which are bound before a run.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = PortView<'a>> + use<'a> {
        // SAFETY: checked on entry.
        unsafe { checked(self.0.get().inputs, self.0.get().input_count) }.iter().map(|port| PortView(*port))
    }

    /// Returns the outputs of a run. A written state is input and output under one name.
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = PortView<'a>> + use<'a> {
        // SAFETY: checked on entry.
        unsafe { checked(self.0.get().outputs, self.0.get().output_count) }.iter().map(|port| PortView(*port))
    }

    /// Returns the tensors whose values are weights.
    pub fn constants(&self) -> impl ExactSizeIterator<Item = (TensorIndex, WeightView<'a>)> + use<'a> {
        // SAFETY: checked on entry.
        unsafe { checked(self.0.get().constants, self.0.get().constant_count) }.iter().map(|constant| {
            let constant = constant.get();
            // SAFETY: checked on entry.
            (constant.tensor, WeightView(unsafe { Ref::trusted(constant.weight) }))
        })
    }
}

/// A tensor with a static shape, dense row-major.
#[derive(Clone, Copy)]
pub struct TensorView<'a>(Ref<'a, raw::SwTensor>);

impl<'a> TensorView<'a> {
    /// Returns the name, which is unique within the entry.
    pub fn name(&self) -> &'a str {
        // SAFETY: checked on entry.
        unsafe { checked_text(self.0.get().name) }
    }

    /// Returns the element type, `SW_DTYPE_…`.
    pub fn dtype(&self) -> u32 {
        self.0.get().dtype
    }

    /// Returns the extents, outermost first.
    pub fn shape(&self) -> &'a [u64] {
        // SAFETY: checked on entry.
        unsafe { checked_numbers(self.0.get().shape, u64::from(self.0.get().rank)) }
    }

    /// Returns the number of elements, saturating at `u64::MAX`.
    pub fn elements(&self) -> u64 {
        self.shape().iter().fold(1_u64, |product, &extent| product.saturating_mul(extent))
    }

    /// Returns how the values are stored. `None` means plain numbers.
    pub fn quantisation(&self) -> Option<QuantisationView<'a>> {
        // SAFETY: null or checked on entry.
        unsafe { checked_quantisation(self.0.get().quantisation) }
    }
}

/// A constant tensor of a work order.
#[derive(Clone, Copy)]
pub struct WeightView<'a>(Ref<'a, raw::SwWeight>);

impl<'a> WeightView<'a> {
    /// Returns the name in the checkpoint.
    pub fn name(&self) -> &'a str {
        // SAFETY: checked on entry.
        unsafe { checked_text(self.0.get().name) }
    }

    /// Returns the weight's part in the network: `q`, `down`, `norm`, …
    pub fn part(&self) -> &'a str {
        // SAFETY: checked on entry.
        unsafe { checked_text(self.0.get().part) }
    }

    /// Returns the element type, `SW_DTYPE_…`.
    pub fn dtype(&self) -> u32 {
        self.0.get().dtype
    }

    /// Returns the extents, outermost first.
    pub fn shape(&self) -> &'a [u64] {
        // SAFETY: checked on entry.
        unsafe { checked_numbers(self.0.get().shape, u64::from(self.0.get().rank)) }
    }

    /// Returns the stored length in bytes, even if the bytes themselves are missing.
    pub fn length(&self) -> u64 {
        self.0.get().length
    }

    /// Returns the stored bytes, page-aligned.
    ///
    /// # Errors
    ///
    /// If the bytes are missing, as they may be during check and estimate.
    pub fn bytes(&self) -> Result<&'a [u8]> {
        if self.0.get().length == 0 {
            return Ok(&[]);
        }
        if self.0.get().data.is_null() {
            return Err(broken(format!("weight `{}` has no bytes in this call", self.name())));
        }
        // SAFETY: the contract promises `length` bytes until the call returns, and the length fits
        // `isize`.
        Ok(unsafe { std::slice::from_raw_parts(self.0.get().data.cast(), self.0.get().length as usize) })
    }

    /// Returns how the values are stored. `None` means plain numbers.
    pub fn quantisation(&self) -> Option<QuantisationView<'a>> {
        // SAFETY: null or checked on entry.
        unsafe { checked_quantisation(self.0.get().quantisation) }
    }

    /// Returns a value that is equal for the same weight across the entries of a work order.
    pub fn identity(&self) -> usize {
        self.0.address()
    }
}

/// Converts a binary16 to f32 exactly.
fn widen_f16(bits: u16) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 10) & 0x1f, f32::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => fraction * 2f32.powi(-24),
        0x1f if fraction == 0.0 => f32::INFINITY,
        0x1f => f32::NAN,
        _ => (1024.0 + fraction) * 2f32.powi(exponent - 25),
    };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

/// How stored integers encode real values: `real = (stored − zero point) · scale`, minus a minimum
/// if blocks have one.
#[derive(Clone, Copy)]
pub struct QuantisationView<'a>(Ref<'a, raw::SwQuantisation>);

impl<'a> QuantisationView<'a> {
    /// Returns the kind, `SW_QUANTISATION_…`.
    pub fn kind(&self) -> u32 {
        self.0.get().kind
    }

    /// Returns the axis along which scales change.
    pub fn axis(&self) -> u32 {
        self.0.get().axis
    }

    /// Returns the elements per scale, for blocks.
    pub fn block(&self) -> u64 {
        self.0.get().block
    }

    /// Returns the stored bits per value.
    pub fn bits(&self) -> u32 {
        self.0.get().bits
    }

    /// Returns the type of the scales, `SW_DTYPE_…`.
    pub fn scale_dtype(&self) -> u32 {
        self.0.get().scale_dtype
    }

    /// Returns the number of scales and minimums, even if their bytes are missing.
    pub fn scale_count(&self) -> u64 {
        self.0.get().scale_count
    }

    /// Returns the scales, widened to f32. If blocks have minimums, each row's minimums follow its
    /// scales.
    ///
    /// # Errors
    ///
    /// If the bytes are missing or a value is not finite.
    pub fn scale_values(&self) -> Result<Vec<f32>> {
        let bytes = self.scales()?;
        let values: Vec<f32> = match self.0.get().scale_dtype {
            raw::SW_DTYPE_F32 => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            raw::SW_DTYPE_F16 => {
                bytes.as_chunks::<2>().0.iter().map(|b| widen_f16(u16::from_le_bytes(*b))).collect()
            }
            _ => bytes
                .as_chunks::<2>()
                .0
                .iter()
                .map(|b| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16))
                .collect(),
        };
        match values.iter().position(|scale| !scale.is_finite()) {
            Some(index) => Err(broken(format!("scale {index} is {}", values[index]))),
            None => Ok(values),
        }
    }

    /// Returns the bytes of the scales and minimums.
    ///
    /// # Errors
    ///
    /// If the bytes are missing, or the scales are not of a float type.
    pub fn scales(&self) -> Result<&'a [u8]> {
        let width: u64 = match self.0.get().scale_dtype {
            raw::SW_DTYPE_F32 => 4,
            raw::SW_DTYPE_F16 | raw::SW_DTYPE_BF16 => 2,
            other => return Err(broken(format!("unsupported scales of element type {other}"))),
        };
        let length = self.0.get().scale_count.checked_mul(width).ok_or_else(|| broken("too many scales"))?;
        if self.0.get().scales.is_null() && length > 0 {
            return Err(broken("the scales have no bytes in this call"));
        }
        // SAFETY: the contract promises that many scales.
        unsafe { numbers(self.0.get().scales.cast(), length, "scale") }
    }

    /// Returns the zero points. Empty means that all are 0.
    pub fn zero_points(&self) -> Result<&'a [i32]> {
        if self.0.get().zero_points.is_null() {
            return Ok(&[]);
        }
        // SAFETY: the contract promises that many zero points.
        unsafe { numbers(self.0.get().zero_points, self.0.get().zero_point_count, "zero point") }
    }
}

/// An operation of an entry.
#[derive(Clone, Copy)]
pub struct NodeView<'a>(Ref<'a, raw::SwNode>);

impl<'a> NodeView<'a> {
    /// Returns the operation, `SW_OP_…`.
    pub fn op(&self) -> u32 {
        self.0.get().op
    }

    /// Returns the version of the operation's meaning.
    pub fn op_version(&self) -> u32 {
        self.0.get().op_version
    }

    /// Returns the name, which is unique within the entry.
    pub fn name(&self) -> &'a str {
        // SAFETY: checked on entry.
        unsafe { checked_text(self.0.get().name) }
    }

    /// Returns the decoder layer of the node, if it belongs to one.
    pub fn layer(&self) -> Option<u32> {
        u32::try_from(self.0.get().layer).ok()
    }

    /// Returns the operands. `None` is an absent optional operand.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = Option<TensorIndex>> + use<'a> {
        // SAFETY: checked on entry.
        unsafe { checked_numbers(self.0.get().inputs, self.0.get().input_count) }
            .iter()
            .map(|&index| (index != raw::SW_NO_TENSOR).then_some(index))
    }

    /// Returns the operand at a place.
    ///
    /// # Errors
    ///
    /// If the operand is absent.
    pub fn input(&self, place: usize) -> Result<TensorIndex> {
        self.optional_input(place).ok_or_else(|| {
            Error::invalid_argument(format!("node `{}` has no input {place}", self.name()))
                .detail("node", self.name())
        })
    }

    /// Returns the operand at a place, if present.
    pub fn optional_input(&self, place: usize) -> Option<TensorIndex> {
        self.inputs().nth(place).flatten()
    }

    /// Returns the tensors that the operation computes.
    pub fn outputs(&self) -> &'a [TensorIndex] {
        // SAFETY: checked on entry.
        unsafe { checked_numbers(self.0.get().outputs, self.0.get().output_count) }
    }

    /// Returns the only result.
    ///
    /// # Errors
    ///
    /// If the node does not have exactly one result.
    pub fn output(&self) -> Result<TensorIndex> {
        match self.outputs() {
            [output] => Ok(*output),
            outputs => Err(Error::invalid_argument(format!(
                "node `{}` has {} outputs, expected one",
                self.name(),
                outputs.len()
            ))),
        }
    }

    fn attribute(&self, name: &str, kind: u32) -> Result<raw::SwAttribute> {
        // SAFETY: checked on entry.
        unsafe { checked(self.0.get().attributes, self.0.get().attribute_count) }
            .iter()
            .map(Ref::get)
            // SAFETY: checked on entry.
            .find(|attribute| attribute.kind == kind && unsafe { checked_text(attribute.name) } == name)
            .ok_or_else(|| {
                Error::invalid_argument(format!(
                    "node `{}` lacks the attribute `{name}` of the expected kind",
                    self.name()
                ))
                .detail("node", self.name())
                .detail("attribute", name)
            })
    }

    /// Returns an integer attribute.
    pub fn attribute_i64(&self, name: &str) -> Result<i64> {
        Ok(self.attribute(name, raw::SW_ATTRIBUTE_INTEGER)?.integer)
    }

    /// Returns an integer attribute that is a count or a size. A negative value is an error.
    pub fn attribute_usize(&self, name: &str) -> Result<usize> {
        let value = self.attribute_i64(name)?;
        usize::try_from(value).map_err(|_| {
            Error::invalid_argument(format!("node `{}`: attribute `{name}` is {value}, below 0", self.name()))
        })
    }

    /// Returns a float attribute.
    pub fn attribute_f32(&self, name: &str) -> Result<f32> {
        Ok(self.attribute(name, raw::SW_ATTRIBUTE_FLOAT)?.number as f32)
    }

    /// Returns a text attribute.
    pub fn attribute_text(&self, name: &str) -> Result<&'a str> {
        // SAFETY: checked on entry.
        Ok(unsafe { checked_text(self.attribute(name, raw::SW_ATTRIBUTE_TEXT)?.text) })
    }

    /// Returns an attribute that is a list of integers.
    pub fn attribute_list(&self, name: &str) -> Result<&'a [i64]> {
        let attribute = self.attribute(name, raw::SW_ATTRIBUTE_INTEGERS)?;
        // SAFETY: checked on entry.
        Ok(unsafe { checked_numbers(attribute.integers, attribute.integer_count) })
    }
}

/// An input or output of an entry.
#[derive(Clone, Copy)]
pub struct PortView<'a>(Ref<'a, raw::SwPort>);

impl<'a> PortView<'a> {
    /// Returns the index of the bound tensor.
    pub fn tensor(&self) -> TensorIndex {
        self.0.get().tensor
    }

    /// Returns the role, `SW_ROLE_…`.
    pub fn role(&self) -> u32 {
        self.0.get().role
    }

    /// Returns the name of the binding that the port becomes. A state's input and output share it.
    pub fn name(&self) -> &'a str {
        // SAFETY: checked on entry.
        unsafe { checked_text(self.0.get().name) }
    }

    /// Returns the detail of the role: the capacity of slots, the asset, the first layer or the
    /// state.
    pub fn index(&self) -> u64 {
        self.0.get().index
    }

    /// Returns the type of the boundary encoding, `SW_DTYPE_…`.
    pub fn dtype(&self) -> u32 {
        self.0.get().dtype
    }

    /// Returns the scale of the boundary encoding, 1 for floats.
    pub fn scale(&self) -> f64 {
        self.0.get().scale
    }

    /// Returns the zero point of the boundary encoding, 0 for floats.
    pub fn zero_point(&self) -> i64 {
        self.0.get().zero_point
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::null;

    use super::*;

    fn quantisation(kind: u32, axis: u32, block: u64, bits: u32, scales: &[f32]) -> raw::SwQuantisation {
        raw::SwQuantisation {
            size: size_of::<raw::SwQuantisation>() as u64,
            kind,
            axis,
            block,
            scale_dtype: raw::SW_DTYPE_F32,
            bits,
            scales: scales.as_ptr().cast(),
            scale_count: scales.len() as u64,
            zero_points: null(),
            zero_point_count: 0,
        }
    }

    fn view(stored: &raw::SwQuantisation) -> QuantisationView<'_> {
        // SAFETY: a whole struct.
        QuantisationView(unsafe { one(stored, "quantisation") }.unwrap())
    }

    fn checked(stored: &raw::SwQuantisation, dtype: u32, shape: &[u64]) -> Result<()> {
        // SAFETY: a whole struct whose arrays outlive the call.
        unsafe { check_quantisation(stored, dtype, shape) }
    }

    #[test]
    fn quantisation_tables_fit_their_tensors() {
        const TENSOR: u32 = raw::SW_QUANTISATION_PER_TENSOR;
        const CHANNEL: u32 = raw::SW_QUANTISATION_PER_CHANNEL;
        const BLOCK: u32 = raw::SW_QUANTISATION_PER_BLOCK;
        const MINIMUM: u32 = raw::SW_QUANTISATION_PER_BLOCK_WITH_MINIMUM;
        let (i8, i4, u16) = (raw::SW_DTYPE_I8, raw::SW_DTYPE_I4, raw::SW_DTYPE_U16);
        let scales = [0.5f32; 12];
        type Case = ((u32, u32, u64, u32, usize), u32, &'static [u64], Option<&'static str>);
        let cases: &[Case] = &[
            ((TENSOR, 0, 0, 8, 1), i8, &[3, 70], None),
            ((CHANNEL, 0, 0, 8, 3), i8, &[3, 70], None),
            ((CHANNEL, 1, 0, 4, 2), i4, &[3, 2], None),
            ((BLOCK, 1, 32, 4, 9), i4, &[3, 70], None),
            ((BLOCK, 0, 2, 4, 4), i4, &[3, 2], None),
            ((TENSOR, 0, 0, 16, 1), u16, &[], None),
            ((0, 0, 0, 8, 1), i8, &[3], Some("quantisation kind 0")),
            ((5, 0, 0, 8, 1), i8, &[3], Some("quantisation kind 5")),
            ((MINIMUM, 1, 32, 4, 12), i4, &[2, 70], None),
            ((MINIMUM, 1, 32, 4, 9), i4, &[3, 70], Some("9 scales for [3, 70], expected 18")),
            ((MINIMUM, 0, 1, 4, 12), i4, &[3, 2], Some("minimums along axis 0 of a tensor of rank 2")),
            ((MINIMUM, 0, 1, 4, 9), i4, &[u64::MAX], Some("too many minimums")),
            ((TENSOR, 0, 0, 4, 1), i8, &[3], Some("4 bits for element type 7, expected 8")),
            ((TENSOR, 0, 0, 32, 1), raw::SW_DTYPE_F32, &[3], Some("element type 1 has no scales")),
            ((TENSOR, 0, 0, 8, 2), i8, &[3], Some("2 scales for [3], expected 1")),
            ((TENSOR, 0, 0, 8, 0), i8, &[3], Some("0 scales")),
            ((CHANNEL, 0, 0, 8, 4), i8, &[3, 70], Some("4 scales for [3, 70], expected 3")),
            ((CHANNEL, 2, 0, 8, 3), i8, &[3, 70], Some("axis 2 of a tensor of rank 2")),
            ((CHANNEL, u32::MAX, 0, 8, 3), i8, &[3, 70], Some("of a tensor of rank 2")),
            ((BLOCK, 1, 32, 4, 6), i4, &[3, 70], Some("6 scales for [3, 70], expected 9")),
            ((BLOCK, 1, 0, 4, 9), i4, &[3, 70], Some("blocks of 0 elements")),
            ((BLOCK, 0, 1, 4, 9), i4, &[u64::MAX, u64::MAX], Some("too many")),
        ];
        for ((kind, axis, block, bits, count), dtype, shape, expected) in cases {
            let stored = quantisation(*kind, *axis, *block, *bits, &scales[..*count]);
            match (checked(&stored, *dtype, shape), expected) {
                (Ok(()), None) => {}
                (Err(error), Some(part)) => assert!(error.message.contains(part), "{}", error.message),
                (got, expected) => panic!("{kind} {axis} {block} {bits} {count}: {got:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn zero_points_are_stored_values() {
        let scales = [0.5f32; 3];
        for (zeros, dtype, bits, expected) in [
            (&[0][..], raw::SW_DTYPE_U16, 16, None),
            (&[65_535], raw::SW_DTYPE_U16, 16, None),
            (&[1, 2, 3], raw::SW_DTYPE_I4, 4, None),
            (&[65_536], raw::SW_DTYPE_U16, 16, Some("zero point 65536")),
            (&[-1], raw::SW_DTYPE_U8, 8, Some("zero point -1")),
            (&[1, 8, 3], raw::SW_DTYPE_I4, 4, Some("zero point 8")),
            (&[1, 1], raw::SW_DTYPE_I4, 4, Some("2 zero points for 3 scales")),
        ] {
            let mut stored = quantisation(raw::SW_QUANTISATION_PER_CHANNEL, 0, 0, bits, &scales);
            (stored.zero_points, stored.zero_point_count) = (zeros.as_ptr(), zeros.len() as u64);
            let got = checked(&stored, dtype, &[3, 5]).map_err(|error| error.message);
            match expected {
                None => assert_eq!(got, Ok(())),
                Some(part) => assert!(got.as_ref().is_err_and(|got| got.contains(part)), "{got:?}"),
            }
        }
    }

    #[test]
    fn scales_are_finite_and_there_when_they_are_read() {
        let mut stored = quantisation(raw::SW_QUANTISATION_PER_TENSOR, 0, 0, 8, &[f32::NAN]);
        let refused = checked(&stored, raw::SW_DTYPE_I8, &[3]).unwrap_err();
        assert!(refused.message.contains("scale 0 is NaN"), "{}", refused.message);
        stored.scales = null();
        assert!(checked(&stored, raw::SW_DTYPE_I8, &[3]).is_ok(), "check and estimate may lack them");
        assert!(view(&stored).scale_values().unwrap_err().message.contains("no bytes in this call"));
        let halves = [0x3800u16, 0x0001, 0xc000, 0x3f80];
        stored.scales = halves.as_ptr().cast();
        stored.scale_count = 4;
        stored.scale_dtype = raw::SW_DTYPE_F16;
        let values = view(&stored).scale_values().unwrap();
        assert_eq!(values, [0.5, 2f32.powi(-24), -2.0, 1.875]);
        stored.scale_dtype = raw::SW_DTYPE_BF16;
        assert_eq!(view(&stored).scale_values().unwrap()[3], 1.0);
        let halves = [0x3800u16, 0x7c00];
        (stored.scales, stored.scale_count, stored.scale_dtype) =
            (halves.as_ptr().cast(), 2, raw::SW_DTYPE_F16);
        assert!(view(&stored).scale_values().unwrap_err().message.contains("scale 1 is inf"));
        stored.scale_dtype = raw::SW_DTYPE_I32;
        assert!(view(&stored).scale_values().unwrap_err().message.contains("element type 4"));
    }
}
