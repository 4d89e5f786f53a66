//! AWQ in its GEMM layout: `qweight`, `qzeros`, `scales`.
//!
//! Layout, as AutoAWQ writes it, for K inputs, N outputs, G groups of inputs, 4 bits:
//!
//! * `qweight [K, N/8]`: each word packs eight consecutive outputs of an input, in the order of
//!   [`ORDER`], low bits first.
//! * `qzeros [G, N/8]`: packed in the same order.
//! * `scales [G, N]`.
//!
//! A weight is `(q − z) · scale`.

use shardwright_vocabulary::{DType, Result};

use super::Module;
use super::gptq::read_group;
use super::layout::{Group, Layout, Whole, scales};
use super::module::{FLOATS, word};
use crate::json::Fields;

/// Bits of an integer. The layout supports no other number.
pub(super) const BITS: u32 = 4;

/// Outputs per word.
const PER_WORD: usize = 8;

/// The output that each field of a word contains, lowest field first.
const ORDER: [usize; PER_WORD] = [0, 2, 4, 6, 1, 3, 5, 7];

/// The field that contains each output.
const FIELD: [usize; PER_WORD] = {
    let mut fields = [0; PER_WORD];
    let mut field = 0;
    while field < PER_WORD {
        fields[ORDER[field]] = field;
        field += 1;
    }
    fields
};

/// The zero point in the middle of the range.
const MIDDLE: u32 = 8;

#[derive(Clone, Debug)]
pub(crate) struct Awq {
    pub group: Group,
}

impl Awq {
    pub fn read(fields: Fields<'_>) -> Result<Self> {
        for name in ["version", "format"] {
            if fields.text(name)?.is_some_and(|version| !version.eq_ignore_ascii_case("gemm")) {
                return Err(fields.unsupported(name, "`gemm`"));
            }
        }
        let name = if fields.get("w_bit").is_some() { "w_bit" } else { "bits" };
        if fields.whole(name, &(1..=32))? != Some(u64::from(BITS)) {
            return Err(fields.unsupported(name, "4"));
        }
        Ok(Awq { group: read_group(fields, &["group_size", "q_group_size"])? })
    }

    pub fn take(&self, module: &mut Module<'_>, shape: [u64; 2]) -> Result<Whole> {
        let [outputs, inputs] = shape;
        let name = module.weight_name();
        let mut layout = Layout::of(BITS, self.group, shape);
        let (groups, words) = (layout.groups(shape), outputs.div_ceil(PER_WORD as u64));
        let packed = module.take("qweight", &["I32"], &[inputs, words])?;
        let zeros = module.take("qzeros", &["I32"], &[groups, words])?;
        let found = module.take("scales", FLOATS, &[groups, outputs])?;
        let (count, words) = (outputs as usize, words as usize);
        let group = self.group.size(inputs) as usize;
        let code = move |bytes: &[u8], row: usize, output: usize| {
            word(bytes, row * words + output / PER_WORD) >> (4 * FIELD[output % PER_WORD]) & 0xf
        };
        // Fields beyond the last output are unused.
        if let Some(stored) = zeros.bytes() {
            let middle = |row| (0..count).all(|output| code(stored.bytes(), row, output) == MIDDLE);
            if !(0..groups as usize).all(middle) {
                layout.dtype = DType::I8;
            }
        }
        let scales = scales(layout, &name, shape, &found, move |output, group| group * count + output)?;
        let data =
            layout.integers(&name, shape, [packed, zeros], move |[packed, zeros], output, input| {
                (code(packed, input, output) as i32 - code(zeros, input / group, output) as i32) as i8
            })?;
        Ok(layout.with(data, scales))
    }
}
