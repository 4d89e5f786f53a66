//! A network: operands, operations, inputs and outputs, and their encoding in a blob.

use std::ops::Range;
use std::sync::Arc;

use shardwright_neuron_adapter::setting::COPIED_AT_ONCE;
use shardwright_neuron_files::sequence::{Reader, Writer};

use crate::arithmetic::tensor::{Channels, Layout};
use crate::checksum::sum;

/// Maximum number of operands of a network. An index is an i32 at the interface, and real networks
/// are far smaller.
pub const MOST_OPERANDS: usize = 1 << 22;
/// Maximum rank of an operand.
pub const MOST_DIMENSIONS: u32 = 8;
/// Maximum number of elements of an operand. A tensor of 2⁴⁰ bytes would be a mistake.
pub const MOST_ELEMENTS: usize = 1 << 38;

/// Contiguous bytes, aligned for every element type: a blob and the weights in it.
#[derive(Debug)]
pub struct Image {
    words: Vec<u64>,
    length: usize,
}

impl Image {
    /// Creates an image of zeros.
    pub fn new(length: usize) -> Image {
        Image { words: vec![0; length.div_ceil(8)], length }
    }

    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.length]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.length]
    }
}

/// A client's memory, which the client has to keep unchanged until its compilations are finished.
#[derive(Debug, Clone, Copy)]
pub struct Lent {
    address: usize,
    length: usize,
    /// Checksum of the bytes when they were lent, in strict mode.
    sum: Option<u64>,
}

impl Lent {
    /// Records the memory and, in strict mode, the checksum of its content.
    ///
    /// # Safety
    /// `length` bytes are readable at `address` until the model's compilations are finished or the
    /// model is freed.
    pub unsafe fn new(address: *const u8, length: usize, strict: bool) -> Lent {
        let mut lent = Lent { address: address as usize, length, sum: None };
        if strict {
            // SAFETY: guaranteed by the caller, also for this call.
            lent.sum = Some(sum(unsafe { lent.bytes() }));
        }
        lent
    }

    /// Returns the lent bytes.
    ///
    /// # Safety
    /// The conditions of [`Lent::new`] are still met.
    unsafe fn bytes<'a>(&self) -> &'a [u8] {
        // SAFETY: guaranteed by the caller.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.length) }
    }
}

/// The content of an operand, if it is constant.
#[derive(Debug, Clone)]
pub enum Value {
    /// The operand is not constant.
    Absent,
    /// A copy of the client's bytes.
    Owned(Vec<u8>),
    /// The client's own memory.
    Lent(Lent),
    /// A range of the network's image.
    Within(Range<usize>),
}

#[derive(Debug, Clone)]
pub struct Operand {
    pub layout: Layout,
    pub value: Value,
}

/// An operation, identified by a built-in number or a number assigned by an extension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// Number of the operation.
    pub code: i32,
    /// Indices of the input operands.
    pub inputs: Vec<u32>,
    /// Indices of the output operands.
    pub outputs: Vec<u32>,
}

#[derive(Debug, Clone, Default)]
pub struct Network {
    /// Operands by index.
    pub operands: Vec<Operand>,
    /// Operations in the order in which they were added, which may differ from the order of
    /// execution.
    pub operations: Vec<Operation>,
    /// Indices of the network's input operands.
    pub inputs: Vec<u32>,
    /// Indices of the network's output operands.
    pub outputs: Vec<u32>,
    /// Whether real numbers may be computed in 16 bits.
    pub relaxed: bool,
    /// The image that [`Value::Within`] refers to.
    pub image: Option<Arc<Image>>,
}

impl Network {
    /// Returns the bytes of an operand if it is constant.
    pub fn constant(&self, index: u32) -> Option<&[u8]> {
        match &self.operands.get(index as usize)?.value {
            Value::Absent => None,
            Value::Owned(bytes) => Some(bytes),
            // SAFETY: memory is lent until a compilation is finished. From then on the value is a
            // range of the image.
            Value::Lent(lent) => Some(unsafe { lent.bytes() }),
            Value::Within(range) => self.image.as_ref()?.bytes().get(range.clone()),
        }
    }

    /// Returns index and length of the first operand whose lent memory has changed, in strict mode.
    pub fn changed_constant(&self) -> Option<(usize, usize)> {
        self.operands.iter().enumerate().find_map(|(index, operand)| match &operand.value {
            Value::Lent(lent) => {
                // SAFETY: called while a compilation is being finished.
                let bytes = unsafe { lent.bytes() };
                lent.sum.filter(|before| *before != sum(bytes)).map(|_| (index, lent.length))
            }
            _ => None,
        })
    }

    /// Returns an order in which operations can run, each after its inputs are computed.
    ///
    /// # Errors
    ///
    /// An operand that is read without a source or that has two, or operations that depend on each
    /// other in a cycle.
    pub fn order(&self) -> Result<Vec<usize>, String> {
        const OUTSIDE: usize = usize::MAX;
        let mut source: Vec<Option<usize>> = self
            .operands
            .iter()
            .map(|operand| (!matches!(operand.value, Value::Absent)).then_some(OUTSIDE))
            .collect();
        for input in &self.inputs {
            if source[*input as usize].replace(OUTSIDE).is_some() {
                return Err(format!("operand {input} is an input and constant, or an input twice"));
            }
        }
        for (index, operation) in self.operations.iter().enumerate() {
            for output in &operation.outputs {
                if source[*output as usize].replace(index).is_some() {
                    return Err(format!("operand {output} has two sources, one of them operation {index}"));
                }
            }
        }
        let mut waiting: Vec<usize> = vec![0; self.operations.len()];
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); self.operations.len()];
        for (index, operation) in self.operations.iter().enumerate() {
            for input in &operation.inputs {
                match source[*input as usize] {
                    None => {
                        return Err(format!("operation {index} reads operand {input}, which has no source"));
                    }
                    Some(OUTSIDE) => {}
                    Some(from) => {
                        waiting[index] += 1;
                        readers[from].push(index);
                    }
                }
            }
        }
        for output in &self.outputs {
            if source[*output as usize].is_none() {
                return Err(format!("operand {output} is an output without a source"));
            }
        }
        let mut ready: std::collections::VecDeque<usize> =
            (0..waiting.len()).filter(|index| waiting[*index] == 0).collect();
        let mut order = Vec::with_capacity(waiting.len());
        while let Some(index) = ready.pop_front() {
            order.push(index);
            for reader in &readers[index] {
                waiting[*reader] -= 1;
                if waiting[*reader] == 0 {
                    ready.push_back(*reader);
                }
            }
        }
        if order.len() < waiting.len() {
            return Err("operations read each other in a circle".to_owned());
        }
        Ok(order)
    }

    /// Encodes everything except the bytes of long constants. Their positions count from the start
    /// of the data section, which follows. Returns the length of the data section.
    pub fn encode(&self, out: &mut Writer) -> usize {
        let mut data = 0usize;
        out.u8(u8::from(self.relaxed));
        out.count(self.operands.len());
        for (index, operand) in self.operands.iter().enumerate() {
            write_layout(out, &operand.layout);
            match self.constant(index as u32) {
                None => out.u8(0),
                Some(bytes) if bytes.len() <= COPIED_AT_ONCE => {
                    out.u8(1);
                    out.count(bytes.len());
                    out.bytes(bytes);
                }
                Some(bytes) => {
                    out.u8(2);
                    out.u64(data as u64);
                    out.u64(bytes.len() as u64);
                    data += bytes.len().next_multiple_of(64);
                }
            }
        }
        out.count(self.operations.len());
        for operation in &self.operations {
            out.u32(operation.code as u32);
            out.list(&operation.inputs);
            out.list(&operation.outputs);
        }
        out.list(&self.inputs);
        out.list(&self.outputs);
        data
    }

    /// Copies the long constants to their positions in the data section.
    pub fn write_data(&self, data: &mut [u8]) {
        let mut at = 0;
        for index in 0..self.operands.len() {
            let Some(bytes) = self.constant(index as u32).filter(|bytes| bytes.len() > COPIED_AT_ONCE) else {
                continue;
            };
            let place = &mut data[at..at + bytes.len()];
            place.copy_from_slice(bytes);
            at += bytes.len().next_multiple_of(64);
        }
    }

    /// Reads the output of [`Network::encode`]. `data` is the range of the data section in the
    /// image.
    pub fn decode(from: &mut Reader<'_>, image: Arc<Image>, data: Range<usize>) -> Option<Network> {
        let relaxed = from.u8()? != 0;
        let operands = from.count(MOST_OPERANDS)?;
        let mut network = Network { relaxed, ..Network::default() };
        for _ in 0..operands {
            let layout = read_layout(from)?;
            let value = match from.u8()? {
                0 => Value::Absent,
                1 => {
                    let length = from.count(COPIED_AT_ONCE)?;
                    Value::Owned(from.bytes(length)?.to_vec())
                }
                2 => {
                    let start = data.start.checked_add(usize::try_from(from.u64()?).ok()?)?;
                    let end = start.checked_add(usize::try_from(from.u64()?).ok()?)?;
                    (end <= data.end).then_some(Value::Within(start..end))?
                }
                _ => return None,
            };
            if let Some(length) = match &value {
                Value::Owned(bytes) => Some(bytes.len()),
                Value::Within(range) => Some(range.len()),
                _ => None,
            } {
                (length == layout.bytes()).then_some(())?;
            }
            network.operands.push(Operand { layout, value });
        }
        let within = |list: Vec<u32>| list.iter().all(|index| (*index as usize) < operands).then_some(list);
        for _ in 0..from.count(MOST_OPERANDS)? {
            let code = from.u32()? as i32;
            let inputs = within(from.list(MOST_OPERANDS)?)?;
            let outputs = within(from.list(MOST_OPERANDS)?)?;
            network.operations.push(Operation { code, inputs, outputs });
        }
        network.inputs = within(from.list(MOST_OPERANDS)?)?;
        network.outputs = within(from.list(MOST_OPERANDS)?)?;
        network.image = Some(image);
        Some(network)
    }
}

/// Writes type, shape and quantisation of an operand.
pub fn write_layout(out: &mut Writer, layout: &Layout) {
    out.u32(layout.kind as u32);
    out.count(layout.dimensions.len());
    for length in &layout.dimensions {
        out.u64(*length as u64);
    }
    out.u32(layout.scale.to_bits());
    out.u32(layout.zero_point as u32);
    match &layout.channels {
        None => out.u8(0),
        Some(channels) => {
            out.u8(1);
            out.count(channels.axis);
            out.count(channels.scales.len());
            for (scale, zero) in channels.scales.iter().zip(&channels.zero_points) {
                out.u32(scale.to_bits());
                out.u32(*zero as u32);
            }
        }
    }
}

fn read_layout(from: &mut Reader<'_>) -> Option<Layout> {
    let kind = from.u32()? as i32;
    let rank = from.count(MOST_DIMENSIONS as usize)?;
    let mut dimensions = Vec::with_capacity(rank);
    for _ in 0..rank {
        dimensions.push(usize::try_from(from.u64()?).ok()?);
    }
    dimensions.iter().try_fold(1usize, |product, length| {
        product.checked_mul(*length).filter(|product| *product <= MOST_ELEMENTS)
    })?;
    let scale = f32::from_bits(from.u32()?);
    let zero_point = from.u32()? as i32;
    let channels = match from.u8()? {
        0 => None,
        _ => {
            let axis = from.count(MOST_DIMENSIONS as usize)?;
            let count = from.count(MOST_OPERANDS)?;
            (dimensions.get(axis) == Some(&count)).then_some(())?;
            let mut channels = Channels { axis, scales: Vec::new(), zero_points: Vec::new() };
            for _ in 0..count {
                channels.scales.push(f32::from_bits(from.u32()?));
                channels.zero_points.push(from.u32()? as i32);
            }
            Some(channels)
        }
    };
    Some(Layout { kind, dimensions, scale, zero_point, channels })
}
