use std::collections::{HashMap, HashSet};

use shardwright_shim_abi::{EntryView, Error, WeightView};

use super::constant::{Constant, Scaling};
use super::forms::Form;
use super::narrow::{narrowest, number_form};
use crate::error::limit;
use crate::kernels::integer::split::{self, Split};
use crate::kernels::integer::{Geometry, IntegerType};
use crate::kernels::linear::{PanelType, packed_elements};
use crate::program::{
    MAX_VALUES, NumberForm, Operand, OperandPlace, PackedScales, PackedSplit, PackedTiles, PackedWeights,
    VALUE_BYTES,
};
use crate::simd::LANES;

/// Alignment of packed matrices. Page boundaries allow each matrix to be mapped, locked or dropped
/// separately.
const PAGE: u64 = 4096;
/// Alignment of small values, the size of a cache line.
const LINE: u64 = 64;

/// The weight section. It contains every form of every weight once, in the order of first use.
#[derive(Default)]
pub struct Weights<'a> {
    items: Vec<Item<'a>>,
    known: HashMap<Key, usize>,
    /// Completely checked constants, by identity of the weight.
    complete: HashMap<usize, Constant<'a>>,
    /// Narrowest forms of integers, by identity of the weight.
    narrowed: HashMap<usize, Narrowed>,
    length: u64,
    /// Identities of weights that entries of many rows use.
    many: HashSet<usize>,
}

/// Narrowest form of the integers of a matrix.
#[derive(Clone, Copy)]
struct Narrowed {
    kind: IntegerType,
    /// Weight that a stored zero means.
    base: i32,
    /// Form of the scales and minimums of blocks.
    form: Option<NumberForm>,
}

struct Item<'a> {
    offset: u64,
    length: u64,
    form: Form<'a>,
}

#[derive(PartialEq, Eq, Hash)]
enum Key {
    Panels { weight: usize, by_columns: bool, kind: PanelType },
    Tiles { weight: usize },
    HighParts { weight: usize },
    LowParts { weight: usize },
    Spreads { weight: usize },
    Scales { weight: usize, form: Option<NumberForm> },
    Wide { weight: usize },
    Literal(Vec<u32>),
}

impl<'a> Weights<'a> {
    /// Creates an empty section for the weights of these entries.
    pub fn of(entries: impl Iterator<Item = EntryView<'a>>) -> Self {
        let many = entries.filter(|entry| entry.rows() > split::ROWS as u64);
        let many = many.flat_map(|entry| entry.constants()).map(|(_, weight)| weight.identity()).collect();
        Weights { many, ..Weights::default() }
    }

    /// Returns the bytes of the section.
    pub fn length(&self) -> u64 {
        self.length
    }

    fn complete(&mut self, weight: WeightView<'a>) -> Result<Constant<'a>, Error> {
        if let Some(constant) = self.complete.get(&weight.identity()) {
            return Ok(*constant);
        }
        let constant = Constant::complete(weight)?;
        self.complete.insert(weight.identity(), constant);
        Ok(constant)
    }

    fn place(
        &mut self,
        key: Key,
        length: u64,
        alignment: u64,
        form: impl FnOnce() -> Form<'a>,
    ) -> Result<u64, Error> {
        if let Some(&index) = self.known.get(&key) {
            return Ok(self.items[index].offset);
        }
        let offset = self.length.next_multiple_of(alignment);
        let end = offset.checked_add(length).filter(|end| *end <= MAX_VALUES * VALUE_BYTES);
        self.length = end.ok_or_else(|| limit("weight-bytes", u64::MAX, MAX_VALUES * VALUE_BYTES))?;
        self.known.insert(key, self.items.len());
        self.items.push(Item { offset, length, form: form() });
        Ok(offset)
    }

    /// Adds a matrix in panels, in its own type if panels support it, otherwise as f32. The matrix
    /// is stored as `[outputs, inputs]`, or as `[inputs, outputs]` with `by_columns`.
    pub fn panels(&mut self, weight: WeightView<'a>, by_columns: bool) -> Result<PackedWeights, Error> {
        let constant = self.complete(weight)?;
        let kind =
            constant.matrix(!by_columns).map_err(|reason| Error::invalid_weight(weight.name(), reason))?;
        let &[rows, columns] = weight.shape() else {
            let reason = format!("{:?} is not a matrix", weight.shape());
            return Err(Error::invalid_weight(weight.name(), reason));
        };
        let (outputs, inputs) = if by_columns { (columns, rows) } else { (rows, columns) };
        let identity = weight.identity();
        // The length is limited: at most fifteen more rows than the weight has, each of the same
        // length.
        let length = packed_elements(inputs as usize, outputs as usize) as u64 / LANES as u64
            * kind.step_bytes() as u64;
        let key = Key::Panels { weight: identity, by_columns, kind };
        let offset = self.place(key, length, PAGE, || Form::Panels {
            constant,
            kind,
            inputs: inputs as usize,
            outputs: outputs as usize,
            by_columns,
        })?;
        let (scales, zero) = match kind.is_integer() {
            true => (self.scales(identity, constant, None, [inputs, outputs])?, constant.zero_point()),
            false => (PackedScales::None, 0),
        };
        Ok(PackedWeights { offset, kind, scales, zero, inputs, outputs })
    }

    /// Adds a matrix `[outputs, inputs]` of integers in tiles.
    pub fn tiles(&mut self, weight: WeightView<'a>) -> Result<PackedTiles, Error> {
        let constant = self.complete(weight)?;
        let invalid = |reason: String| Error::invalid_weight(weight.name(), reason);
        let kind = constant.integers().map_err(invalid)?;
        let &[outputs, inputs] = weight.shape() else {
            return Err(invalid(format!("{:?} is not a matrix", weight.shape())));
        };
        let identity = weight.identity();
        let size = match constant.scaling() {
            Some(Scaling::Block { size, .. }) => Some(size.min(inputs.max(1))),
            _ => None,
        };
        let geometry = Geometry::of(inputs as usize, None, size.map(|size| size as usize))
            .ok_or_else(|| invalid(format!("blocks in rows of {inputs} inputs are too long")))?;
        let Narrowed { kind, base, form } = match self.narrowed.get(&identity) {
            Some(known) => *known,
            None => {
                let (kind, base) = narrowest(&constant, kind, inputs)?;
                let form = size.map(|size| number_form(&constant, inputs, size)).transpose()?;
                *self.narrowed.entry(identity).or_insert(Narrowed { kind, base, form })
            }
        };
        // The length is limited: at most sixteen times the rows of the weight, each at most sixteen
        // times as long.
        let length = outputs.div_ceil(LANES as u64) * geometry.panel_bytes(kind) as u64;
        let (low, outputs_here) = (base + constant.zero_point(), outputs as usize);
        let offset = self.place(Key::Tiles { weight: identity }, length, PAGE, || Form::Tiles {
            constant,
            kind,
            low,
            geometry,
            outputs: outputs_here,
        })?;
        let scales = self.scales(identity, constant, form, [inputs, outputs])?;
        Ok(PackedTiles { offset, kind, base, scales, inputs, outputs })
    }

    /// Checks whether a matrix `[outputs, inputs]` of signed bytes can be split. Entries of many
    /// rows need whole bytes, and no weight is stored twice.
    pub fn splits(&mut self, weight: WeightView<'a>) -> Result<bool, Error> {
        let constant = self.complete(weight)?;
        let &[_, inputs] = weight.shape() else { return Ok(false) };
        let whole = !matches!(constant.scaling(), Some(Scaling::Block { .. }));
        let few = !self.many.contains(&weight.identity());
        Ok(constant.integers() == Ok(IntegerType::I8) && whole && few && Split::takes(inputs))
    }

    /// Adds a matrix `[outputs, inputs]` of signed bytes in two parts. Returns `None` if it [cannot
    /// be split](Weights::splits).
    pub fn split(&mut self, weight: WeightView<'a>) -> Result<Option<PackedSplit>, Error> {
        let &[outputs, inputs] = weight.shape() else { return Ok(None) };
        if !self.splits(weight)? {
            return Ok(None);
        }
        let constant = self.complete(weight)?;
        let weight = weight.identity();
        let scales = self.scales(weight, constant, None, [inputs, outputs])?;
        let PackedScales::PerOutput { offset: scales } = scales else { return Ok(None) };
        // The dimensions alone determine the lengths of the parts.
        let lengths = PackedSplit { high: 0, low: 0, spread: 0, scales: 0, inputs, outputs }.parts();
        let [high, low, spread, _] = lengths.map(|(_, length)| length);
        let [inputs_here, outputs_here] = [inputs, outputs].map(|extent| extent as usize);
        let high = self.place(Key::HighParts { weight }, high, PAGE, || Form::HighParts {
            constant,
            inputs: inputs_here,
            outputs: outputs_here,
        })?;
        let low = self.place(Key::LowParts { weight }, low, PAGE, || Form::LowParts {
            constant,
            inputs: inputs_here,
            outputs: outputs_here,
        })?;
        let spread = self.place(Key::Spreads { weight }, spread, LINE, || Form::Spreads {
            constant,
            inputs: inputs_here,
            outputs: outputs_here,
        })?;
        Ok(Some(PackedSplit { high, low, spread, scales, inputs, outputs }))
    }

    /// Adds the scales of integers, per output or per block. Numbers of blocks are stored in
    /// `form`, by default as binary16 or binary32.
    fn scales(
        &mut self,
        weight: usize,
        constant: Constant<'a>,
        form: Option<NumberForm>,
        [inputs, outputs]: [u64; 2],
    ) -> Result<PackedScales, Error> {
        if let Some(Scaling::Block { size, minimum }) = constant.scaling() {
            // A block that is longer than a row covers the whole row.
            let size = size.min(inputs.max(1));
            let form = form.unwrap_or_else(|| constant.number_form());
            let packed = PackedScales::Blocks { offset: 0, size, minimum, form };
            let length = packed.bytes(inputs, outputs);
            let length = length.ok_or_else(|| constant.invalid(format!("{size} inputs in a block")))?;
            let key = Key::Scales { weight, form: Some(form) };
            let offset = self.place(key, length, LINE, || Form::Blocks {
                constant,
                form,
                blocks: inputs.div_ceil(size) as usize,
                kinds: if minimum { 2 } else { 1 },
                outputs: outputs as usize,
            })?;
            return Ok(PackedScales::Blocks { offset, size, minimum, form });
        }
        let key = Key::Scales { weight, form: None };
        let offset = self.place(key, outputs * VALUE_BYTES, LINE, || Form::OutputScales {
            constant,
            outputs: outputs as usize,
        })?;
        Ok(PackedScales::PerOutput { offset })
    }

    /// Adds any weight as dense f32.
    pub fn wide(&mut self, weight: WeightView<'a>) -> Result<Operand, Error> {
        let constant = self.complete(weight)?;
        constant.values().map_err(|reason| Error::invalid_weight(weight.name(), reason))?;
        let elements = constant.elements();
        let key = Key::Wide { weight: weight.identity() };
        let offset = self.place(key, elements * VALUE_BYTES, LINE, || Form::Wide { constant })?;
        Ok(Operand { place: OperandPlace::Constant, offset: offset / VALUE_BYTES, elements })
    }

    /// Returns the first value of a weight, which becomes part of a step.
    pub fn scalar(&mut self, weight: WeightView<'a>) -> Result<f32, Error> {
        let mut value = [0.0];
        self.complete(weight)?.read(0, &mut value)?;
        Ok(value[0])
    }

    /// Adds values that are computed from attributes.
    pub fn literal(&mut self, values: Vec<f32>) -> Result<Operand, Error> {
        let elements = values.len() as u64;
        let key = Key::Literal(values.iter().map(|value| value.to_bits()).collect());
        let offset = self.place(key, elements * VALUE_BYTES, LINE, || Form::Literal(values))?;
        Ok(Operand { place: OperandPlace::Constant, offset: offset / VALUE_BYTES, elements })
    }

    /// Writes the section from its first byte to its last. `sink` receives pieces of at most a few
    /// panels.
    pub fn write<E: From<Error>>(&self, mut sink: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut at = 0u64;
        for item in &self.items {
            let gap = vec![0u8; (item.offset - at) as usize];
            sink(&gap)?;
            let mut written = 0u64;
            let mut give = |bytes: &[u8]| {
                written += bytes.len() as u64;
                sink(bytes)
            };
            item.form.write(&mut give)?;
            debug_assert_eq!(written, item.length, "the layout foresaw what was written");
            at = item.offset + written;
        }
        Ok(())
    }
}
