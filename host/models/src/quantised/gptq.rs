//! GPTQ: `qweight`, `qzeros`, `scales`, `g_idx`.
//!
//! Layout, as AutoGPTQ and GPTQModel write it, B bits, K inputs, N outputs, G groups of inputs:
//!
//! * `qweight [K·B/32, N]`: each word packs 32/B consecutive inputs of an output, low bits first.
//! * `scales [G, N]`.
//! * `qzeros [G, N·B/32]`: each word packs 32/B consecutive outputs.
//! * `g_idx [K]`: the group of each input.
//!
//! A weight is `(q − z) · scale`, where `z` is the stored zero point, plus one in the first version
//! of the format. For the highest stored zero point the sum needs one more bit, which some kernels
//! drop and others keep.

use shardwright_vocabulary::{DType, Result};

use super::Module;
use super::layout::{Group, Layout, Whole, scales};
use super::module::{FLOATS, word};
use crate::json::Fields;
use crate::limits;

#[derive(Clone, Debug)]
pub(crate) struct Gptq {
    pub bits: u32,
    pub group: Group,
    /// The number to add to a stored zero point.
    added: u32,
}

impl Gptq {
    pub fn read(fields: Fields<'_>) -> Result<Self> {
        for name in ["dynamic", "is_marlin_format", "rotation"] {
            fields.must_be_off(name)?;
        }
        if fields.text("pack_dtype")?.is_some_and(|name| name != "int32") {
            return Err(fields.unsupported("pack_dtype", "`int32`"));
        }
        let mut added = 1;
        for name in ["checkpoint_format", "format"] {
            added = match fields.text(name)? {
                None => continue,
                Some("gptq") => 1,
                Some("gptq_v2") => 0,
                Some(_) => return Err(fields.unsupported(name, "`gptq`, `gptq_v2`")),
            };
        }
        let bits = match fields.whole("bits", &(1..=32))? {
            Some(4) => 4,
            Some(8) => 8,
            _ => return Err(fields.unsupported("bits", "4, 8")),
        };
        Ok(Gptq { bits, group: read_group(fields, &["group_size"])?, added })
    }

    pub fn take(&self, module: &mut Module<'_>, shape: [u64; 2]) -> Result<Whole> {
        let [outputs, inputs] = shape;
        let name = module.weight_name();
        let mut layout = Layout::of(self.bits, self.group, shape);
        let groups = layout.groups(shape);
        let per_word = 32 / self.bits;
        let words = |extent: u64| extent.div_ceil(u64::from(per_word));
        let packed = module.take("qweight", &["I32"], &[words(inputs), outputs])?;
        let zeros = module.take("qzeros", &["I32"], &[groups, words(outputs)])?;
        let found = module.take("scales", FLOATS, &[groups, outputs])?;
        let group = self.group.size(inputs);
        if let Some(order) = module.find("g_idx") {
            order.check_order(inputs, group)?;
        }
        let (bits, added, count) = (self.bits, self.added, outputs as usize);
        let (per_word, zero_words) = (per_word as usize, words(outputs) as usize);
        let mask = u32::MAX >> (32 - bits);
        let field = move |word: u32, place: usize| (word >> (bits as usize * place)) & mask;
        let zero = move |bytes: &[u8], group: usize, output: usize| {
            field(word(bytes, group * zero_words + output / per_word), output % per_word) + added
        };
        if let Some(stored) = zeros.bytes() {
            for (group, output) in
                (0..groups as usize).flat_map(|group| (0..count).map(move |output| (group, output)))
            {
                match zero(stored.bytes(), group, output) {
                    zero if zero == 1 << (bits - 1) => {}
                    zero if zero > mask => {
                        return Err(zeros.unheld(
                            format!("stores the zero point {mask} for output {output}, which libraries read as 0 or as {zero}"),
                            "zero points below it",
                        ));
                    }
                    _ if bits == 4 => layout.dtype = DType::I8,
                    zero => {
                        return Err(zeros.unheld(
                            format!("has the zero point {zero} for output {output}"),
                            "8 bits with the zero point 128, 4 bits with any",
                        ));
                    }
                }
            }
        }
        let scales = scales(layout, &name, shape, &found, move |output, group| group * count + output)?;
        let data =
            layout.integers(&name, shape, [packed, zeros], move |[packed, zeros], output, input| {
                let code = field(word(packed, input / per_word * count + output), input % per_word);
                (code as i32 - zero(zeros, input / group as usize, output) as i32) as i8
            })?;
        Ok(layout.with(data, scales))
    }
}

/// Reads a group size under one of its names: a number of inputs, or −1 for all.
pub(super) fn read_group(fields: Fields<'_>, names: &[&str]) -> Result<Group> {
    let Some(name) = names.iter().find(|name| fields.get(name).is_some()) else {
        return Err(fields.invalid(names[0], "is missing"));
    };
    if fields.get(name).and_then(serde_json::Value::as_i64) == Some(-1) {
        return Ok(Group::Channel);
    }
    let size = fields.whole(name, &limits::GROUP)?;
    Ok(size.map_or(Group::Channel, |size| Group::Of(size as u32)))
}
