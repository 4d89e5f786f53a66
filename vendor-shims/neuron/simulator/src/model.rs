//! Models under construction, and the properties of finished ones.

use shardwright_neuron_adapter::operand as kind;
use shardwright_neuron_adapter::result::{BAD_DATA, BAD_STATE};
use shardwright_neuron_adapter::setting::COPIED_AT_ONCE;

use crate::arithmetic::tensor::{Channels, Class, Layout};
use crate::call::{Refused, refuse};
use crate::network::{
    Lent, MOST_DIMENSIONS, MOST_ELEMENTS, MOST_OPERANDS, Network, Operand, Operation, Value,
};
use crate::step::{Refusal, Step, prepare};
use crate::target::{self, Target};

#[derive(Debug, Default)]
pub struct Model {
    pub network: Network,
    /// The order in which the operations run, once the model is finished.
    pub order: Option<Vec<usize>>,
    identified: bool,
    /// Name for messages.
    pub name: String,
}

/// Maximum number of inputs, and of outputs, of one operation.
pub const MOST_OF_AN_OPERATION: usize = 1 << 12;

impl Model {
    fn open(&self) -> Result<(), Refused> {
        if self.order.is_some() {
            return refuse(BAD_STATE, "the model is finished");
        }
        Ok(())
    }

    fn operand(&mut self, index: i32) -> Result<&mut Operand, Refused> {
        let count = self.network.operands.len();
        match usize::try_from(index).ok().and_then(|index| self.network.operands.get_mut(index)) {
            Some(operand) => Ok(operand),
            None => refuse(BAD_DATA, format!("operand {index} of {count}")),
        }
    }

    /// Adds an operand and returns its index.
    pub fn add_operand(
        &mut self,
        of: i32,
        dimensions: &[u32],
        scale: f32,
        zero_point: i32,
        target: &Target,
    ) -> Result<usize, Refused> {
        self.open()?;
        if self.network.operands.len() >= MOST_OPERANDS {
            return refuse(BAD_DATA, format!("more than {MOST_OPERANDS} operands"));
        }
        if let Some(why) = target::refused_type(of, target) {
            return refuse(BAD_DATA, why);
        }
        if dimensions.len() > MOST_DIMENSIONS as usize || kind::is_scalar(of) && !dimensions.is_empty() {
            return refuse(BAD_DATA, format!("{} dimensions of an operand of type {of}", dimensions.len()));
        }
        if let Some(length) = dimensions.iter().find(|length| **length == 0 || **length == u32::MAX) {
            return refuse(BAD_DATA, format!("a dimension of {length}: shapes must be fixed and not empty"));
        }
        let elements = dimensions.iter().try_fold(1usize, |product, length| {
            product.checked_mul(*length as usize).filter(|product| *product <= MOST_ELEMENTS)
        });
        if elements.is_none() {
            return refuse(BAD_DATA, format!("{dimensions:?} has too many elements"));
        }
        if !scale.is_finite() || scale < 0.0 {
            return refuse(BAD_DATA, format!("a scale of {scale}"));
        }
        let layout = Layout {
            kind: of,
            dimensions: dimensions.iter().map(|length| *length as usize).collect(),
            scale,
            zero_point,
            channels: None,
        };
        let symmetric = matches!(
            of,
            kind::TENSOR_QUANT8_SYMM
                | kind::TENSOR_QUANT16_SYMM
                | kind::EXT_TENSOR_QUANT4_SYMM
                | kind::EXT_TENSOR_QUANT2_SYMM
        ) || kind::is_per_channel(of);
        let (least, greatest) = layout.range();
        if zero_point != 0
            && (symmetric || layout.class() == Class::Quantised && !(least..=greatest).contains(&zero_point))
        {
            return refuse(BAD_DATA, format!("a zero point of {zero_point} with type {of}"));
        }
        self.network.operands.push(Operand { layout, value: Value::Absent });
        Ok(self.network.operands.len() - 1)
    }

    /// Makes an operand constant.
    ///
    /// # Safety
    /// `length` bytes are readable at `value`. If there are more than [`COPIED_AT_ONCE`], they stay
    /// readable until compilations are finished.
    pub unsafe fn set_value(
        &mut self,
        index: i32,
        value: *const u8,
        length: usize,
        strict: bool,
    ) -> Result<(), Refused> {
        self.open()?;
        let operand = self.operand(index)?;
        if !matches!(operand.value, Value::Absent) {
            return refuse(BAD_DATA, format!("operand {index} is constant already"));
        }
        let needed = operand.layout.bytes();
        if length != needed {
            return refuse(BAD_DATA, format!("operand {index} has {needed} bytes, not {length}"));
        }
        operand.value = if length <= COPIED_AT_ONCE {
            // SAFETY: guaranteed by the caller.
            Value::Owned(unsafe { std::slice::from_raw_parts(value, length) }.to_vec())
        } else {
            // SAFETY: guaranteed by the caller.
            Value::Lent(unsafe { Lent::new(value, length, strict) })
        };
        Ok(())
    }

    /// Sets the scales of an operand's channels. An empty `zero_points` means zero for all
    /// channels.
    pub fn set_channels(
        &mut self,
        index: i32,
        axis: u32,
        scales: &[f32],
        zero_points: &[i32],
    ) -> Result<(), Refused> {
        self.open()?;
        let operand = self.operand(index)?;
        let of = operand.layout.kind;
        if !kind::is_per_channel(of) {
            return refuse(BAD_DATA, format!("operand {index} of type {of} has no channels"));
        }
        let asymmetric = matches!(
            of,
            kind::EXT_TENSOR_QUANT8_ASYMM_SIGNED_PER_CHANNEL
                | kind::TENSOR_QUANT4_ASYMM_SIGNED_PER_CHANNEL
                | kind::EXT_TENSOR_QUANT2_ASYMM_SIGNED_PER_CHANNEL
        );
        if operand.layout.dimensions.get(axis as usize) != Some(&scales.len()) {
            return refuse(
                BAD_DATA,
                format!("{} scales for dimension {axis} of {:?}", scales.len(), operand.layout.dimensions),
            );
        }
        if let Some(scale) = scales.iter().find(|scale| !(scale.is_finite() && **scale > 0.0)) {
            return refuse(BAD_DATA, format!("a channel's scale of {scale}"));
        }
        if !zero_points.is_empty() && zero_points.len() != scales.len() {
            return refuse(
                BAD_DATA,
                format!("{} zero points for {} scales", zero_points.len(), scales.len()),
            );
        }
        if !asymmetric && zero_points.iter().any(|zero| *zero != 0) {
            return refuse(BAD_DATA, format!("zero points with type {of}"));
        }
        let zero_points = if zero_points.is_empty() { vec![0; scales.len()] } else { zero_points.to_vec() };
        operand.layout.channels =
            Some(Channels { axis: axis as usize, scales: scales.to_vec(), zero_points });
        Ok(())
    }

    fn indices(&self, what: &str, list: &[u32]) -> Result<(), Refused> {
        match list.iter().find(|index| **index as usize >= self.network.operands.len()) {
            Some(index) => {
                refuse(BAD_DATA, format!("{what} {index} of {} operands", self.network.operands.len()))
            }
            None => Ok(()),
        }
    }

    pub fn add_operation(&mut self, code: i32, inputs: &[u32], outputs: &[u32]) -> Result<(), Refused> {
        self.open()?;
        if inputs.len() > MOST_OF_AN_OPERATION || outputs.len() > MOST_OF_AN_OPERATION || outputs.is_empty() {
            return refuse(BAD_DATA, format!("{} inputs and {} outputs", inputs.len(), outputs.len()));
        }
        if self.network.operations.len() >= MOST_OPERANDS {
            return refuse(BAD_DATA, format!("more than {MOST_OPERANDS} operations"));
        }
        self.indices("input", inputs)?;
        self.indices("output", outputs)?;
        self.network.operations.push(Operation { code, inputs: inputs.to_vec(), outputs: outputs.to_vec() });
        Ok(())
    }

    /// Sets inputs and outputs. This is allowed once, before or after operations are added.
    pub fn identify(&mut self, inputs: &[u32], outputs: &[u32]) -> Result<(), Refused> {
        self.open()?;
        if self.identified {
            return refuse(BAD_STATE, "inputs and outputs are known already");
        }
        self.indices("input", inputs)?;
        self.indices("output", outputs)?;
        self.network.inputs = inputs.to_vec();
        self.network.outputs = outputs.to_vec();
        self.identified = true;
        Ok(())
    }

    /// Closes the model. Every operand must have exactly one source, and every operation all its
    /// operands in fitting shapes. Unsupported types do not make the model invalid.
    pub fn finish(&mut self, target: &Target) -> Result<(), Refused> {
        self.open()?;
        if !self.identified || self.network.outputs.is_empty() {
            return refuse(BAD_STATE, "inputs and outputs are not identified");
        }
        let order = self.network.order().or_else(|why| refuse(BAD_DATA, why))?;
        for (index, operation) in self.network.operations.iter().enumerate() {
            if let Err(Refusal::Invalid(why)) = prepare(&self.network, operation, target) {
                return refuse(BAD_DATA, format!("operation {index} (type {}): {why}", operation.code));
            }
        }
        self.order = Some(order);
        Ok(())
    }

    /// Reports for each operation whether it can run.
    pub fn supported(&self, target: &Target) -> Vec<bool> {
        self.network
            .operations
            .iter()
            .map(|operation| prepare(&self.network, operation, target).is_ok())
            .collect()
    }
}

/// Returns the steps of a network in order, or the first operation that has no step.
pub fn steps(
    network: &Network,
    order: &[usize],
    target: &Target,
) -> Result<Vec<(usize, Step)>, (usize, Refusal)> {
    order
        .iter()
        .map(|index| {
            let step =
                prepare(network, &network.operations[*index], target).map_err(|refusal| (*index, refusal))?;
            Ok((*index, step))
        })
        .collect()
}
