//! compressed-tensors: the formats `pack-quantized` and `int-quantized`.
//!
//! Layout, as the library of that name writes it, for N outputs, K inputs, G groups of inputs, B
//! bits:
//!
//! * `weight_packed [N, ⌈K·B/32⌉]`: rows of words that pack integers plus 2^(B−1), low bits first.
//!   Or `weight [N, K]` of signed bytes.
//! * `weight_shape [2]`.
//! * `weight_scale [N, G]`, or `[1]` for a tensor with a single scale.
//! * `weight_zero_point`, absent if it is 0: packed down the columns, `[⌈N·B/32⌉, G]`, or signed
//!   bytes in the shape of the scales.
//!
//! A weight is `(q − z) · scale`.

use shardwright_graph::WeightData;
use shardwright_vocabulary::{DType, Result};

use super::Module;
use super::layout::{Group, Layout, Whole, scales};
use super::module::{FLOATS, Found, word};
use crate::json::Fields;
use crate::limits;

/// Last parts of the names of tensors that quantise activations, keys and values.
const OF_ACTIVATIONS: [&str; 10] = [
    "input_scale",
    "input_zero_point",
    "output_scale",
    "output_zero_point",
    "q_scale",
    "q_zero_point",
    "k_scale",
    "k_zero_point",
    "v_scale",
    "v_zero_point",
];

#[derive(Clone, Debug)]
pub(crate) struct Compressed {
    packed: bool,
    bits: u32,
    group: Group,
    /// Whether the settings also require quantised activations, or quantised keys and values.
    activations: bool,
}

impl Compressed {
    pub fn read(fields: Fields<'_>) -> Result<Self> {
        fields.must_be_off("transform_config")?;
        if let Some(sparsity) = fields.object("sparsity_config")?
            && sparsity.text("format")?.is_some_and(|format| format != "dense")
        {
            return Err(sparsity.unsupported("format", "`dense`"));
        }
        if fields.text("quantization_status")?.is_some_and(|status| status != "compressed") {
            return Err(fields.unsupported("quantization_status", "`compressed`"));
        }
        let groups = fields.object("config_groups")?;
        let groups = groups.ok_or_else(|| fields.invalid("config_groups", "is missing"))?;
        let mut found = None;
        for name in groups.names() {
            let Some(group) = groups.object(name)? else { continue };
            if let Some(weights) = group.object("weights")?
                && found.replace((group, weights)).is_some()
            {
                return Err(fields.unsupported("config_groups", "one group that quantises weights"));
            }
        }
        let Some((group, weights)) = found else {
            return Err(fields.unsupported("config_groups", "one group that quantises weights"));
        };
        let (fields_of_format, format) = match group.text("format")? {
            Some(format) => (group, Some(format)),
            None => (fields, fields.text("format")?),
        };
        let packed = match format {
            Some("pack-quantized") => true,
            Some("int-quantized") => false,
            _ => return Err(fields_of_format.unsupported("format", "`pack-quantized`, `int-quantized`")),
        };
        if weights.text("type")?.is_some_and(|kind| kind != "int") {
            return Err(weights.unsupported("type", "`int`"));
        }
        weights.must_be_off("dynamic")?;
        let bits = match weights.whole("num_bits", &(1..=32))?.unwrap_or(8) {
            4 if packed => 4,
            8 => 8,
            _ => return Err(weights.unsupported("num_bits", "8, and 4 in `pack-quantized`")),
        };
        Ok(Compressed {
            packed,
            bits,
            group: read_strategy(weights)?,
            activations: group.get("input_activations").is_some()
                || group.get("output_activations").is_some()
                || fields.get("kv_cache_scheme").is_some(),
        })
    }

    pub fn bits(&self) -> u32 {
        self.bits
    }

    pub fn group(&self) -> Group {
        self.group
    }

    pub fn mark(&self) -> &'static str {
        if self.packed { "weight_packed" } else { "weight_scale" }
    }

    pub fn note(&self) -> Option<String> {
        let text = "quantization_config also quantises activations or keys and values: a plan decides about those here";
        self.activations.then(|| text.to_owned())
    }

    /// Checks whether the tensor quantises activations, keys or values, and the settings require
    /// that too.
    pub fn leaves_out(&self, name: &str) -> bool {
        let last = name.rsplit('.').next().unwrap_or_default();
        self.activations && OF_ACTIVATIONS.contains(&last)
    }

    pub fn take(&self, module: &mut Module<'_>, shape: [u64; 2]) -> Result<Whole> {
        let [outputs, inputs] = shape;
        let name = module.weight_name();
        let mut layout = Layout::of(self.bits, self.group, shape);
        let groups = layout.groups(shape);
        if let Some(order) = module.find("weight_g_idx") {
            order.check_order(inputs, self.group.size(inputs))?;
        }
        let found = module.take_shaped("weight_scale", FLOATS, &scale_shapes(self.group, outputs, groups))?;
        let per_word = u64::from(32 / self.bits);
        let stored = match self.packed {
            true => module.take("weight_packed", &["I32"], &[outputs, inputs.div_ceil(per_word)])?,
            false => module.take("weight", &["I8"], &[outputs, inputs])?,
        };
        if let Some(written) = self.packed.then(|| module.find("weight_shape")).flatten() {
            written.check(&["I64", "I32"], &[2])?;
            let says = written.integers();
            if says.is_some_and(|says| says != shape.map(|extent| extent as i64)) {
                return Err(written.invalid(format!("is not the shape {shape:?} that config.json implies")));
            }
        }
        let zeros = self.zero_points(module, shape, groups)?;
        if zeros.is_some() {
            layout.dtype = DType::I8;
        }
        let count = groups as usize;
        let scales = scales(layout, &name, shape, &found, move |output, group| output * count + group)?;
        let data = match (self.packed, zeros) {
            // The graph uses the same layout: signed bytes by rows.
            (false, _) => match stored.bytes() {
                Some(bytes) => bytes.in_place()?,
                None => WeightData::planned(layout.sizes(&name, shape)?.0),
            },
            (true, zeros) => self.unpacked(layout, &name, shape, stored, zeros)?,
        };
        Ok(layout.with(data, scales))
    }

    /// Returns the zero points if any of them is not 0. Refuses them if differences from them
    /// cannot be represented.
    fn zero_points<'s>(
        &self,
        module: &mut Module<'s>,
        [outputs, _]: [u64; 2],
        groups: u64,
    ) -> Result<Option<Found<'s>>> {
        let Some(zeros) = module.find("weight_zero_point") else { return Ok(None) };
        let unheld = |zero: i32| {
            zeros.unheld(
                format!("has the zero point {zero}"),
                "8 bits with the zero point 0, 4 bits in groups or channels with any",
            )
        };
        let packed = self.packed && self.group != Group::Tensor;
        if !packed {
            let shapes = scale_shapes(self.group, outputs, groups);
            zeros.check_shaped(&["I8"], &shapes)?;
            let bytes = zeros.bytes();
            let moved = bytes.iter().flat_map(|bytes| bytes.bytes()).find(|zero| **zero != 0);
            return moved.map_or(Ok(None), |zero| Err(unheld(i32::from(*zero as i8))));
        }
        let per_word = u64::from(32 / self.bits);
        zeros.check(&["I32"], &[outputs.div_ceil(per_word), groups])?;
        let Some(stored) = zeros.bytes() else { return Ok(None) };
        let middle = 1 << (self.bits - 1);
        let all =
            (0..outputs as usize).flat_map(|output| (0..groups as usize).map(move |group| (output, group)));
        let mut codes = all.map(|(output, group)| {
            zero_code(stored.bytes(), self.bits, groups as usize, output, group) as i32 - middle
        });
        match codes.find(|zero| *zero != 0) {
            None => Ok(None),
            Some(zero) if self.bits == 8 => Err(unheld(zero)),
            Some(_) => Ok(Some(zeros)),
        }
    }

    /// Unpacks integers from rows of words.
    fn unpacked(
        &self,
        layout: Layout,
        name: &str,
        shape: [u64; 2],
        packed: Found<'_>,
        zeros: Option<Found<'_>>,
    ) -> Result<WeightData> {
        let (bits, inputs) = (self.bits, shape[1] as usize);
        let per_word = 32 / bits as usize;
        let words = inputs.div_ceil(per_word);
        let mask = u32::MAX >> (32 - bits);
        let code = move |bytes: &[u8], output: usize, input: usize| {
            word(bytes, output * words + input / per_word) >> (bits as usize * (input % per_word)) & mask
        };
        let middle = 1 << (bits - 1);
        let Some(zeros) = zeros else {
            return layout.integers(name, shape, [packed], move |[packed], output, input| {
                (code(packed, output, input) as i32 - middle) as i8
            });
        };
        let (groups, size) = (layout.groups(shape) as usize, self.group.size(shape[1]) as usize);
        layout.integers(name, shape, [packed, zeros], move |[packed, zeros], output, input| {
            let zero = zero_code(zeros, bits, groups, output, input / size);
            (code(packed, output, input) as i32 - zero as i32) as i8
        })
    }
}

/// Returns the packed integer that represents zero.
fn zero_code(bytes: &[u8], bits: u32, groups: usize, output: usize, group: usize) -> u32 {
    let per_word = 32 / bits as usize;
    let place = bits as usize * (output % per_word);
    word(bytes, output / per_word * groups + group) >> place & (u32::MAX >> (32 - bits))
}

/// Returns the supported shapes of scales and unpacked zero points.
fn scale_shapes(group: Group, outputs: u64, groups: u64) -> Vec<Vec<u64>> {
    match group {
        Group::Tensor => vec![vec![1], vec![], vec![1, 1]],
        Group::Channel => vec![vec![outputs, 1], vec![outputs]],
        Group::Of(_) => vec![vec![outputs, groups]],
    }
}

/// Reads which weights share a scale. If the strategy is missing, the group size implies it, as in
/// the library.
fn read_strategy(weights: Fields<'_>) -> Result<Group> {
    let size = match weights.get("group_size").and_then(serde_json::Value::as_i64) {
        Some(-1) => None,
        _ => weights.whole("group_size", &limits::GROUP)?,
    };
    match (weights.text("strategy")?, size) {
        (Some("tensor"), _) => Ok(Group::Tensor),
        (Some("channel"), _) => Ok(Group::Channel),
        (Some("group") | None, Some(size)) => Ok(Group::Of(size as u32)),
        (Some("group"), None) => Err(weights.invalid("group_size", "is missing")),
        (None, None) if weights.get("group_size").is_some() => Ok(Group::Channel),
        (None, None) => Ok(Group::Tensor),
        (Some(_), _) => Err(weights.unsupported("strategy", "`tensor`, `channel`, `group`")),
    }
}
