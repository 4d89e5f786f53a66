//! Estimates the time of a graph by the roofline of its chip: the longer of moving its bytes and
//! computing its products, both at their peak rates.
//!
//! The rates are facts of the chip's profile. Without them, there is no estimate. Calls, copies and
//! elementwise operations are not modelled. The profile states for the host how much longer runs
//! need than the estimate.

use shardwright_neuron_adapter::{operand, operation};
use shardwright_shim_abi::{Chip, Error, Fact, FlagKind};
use shardwright_shim_npu::error::wrong_fact;
use shardwright_shim_npu::facts::fact;

use crate::graph::{NeuronGraph, OperandKind, Operation, OperationKind};

/// Names of the facts in a profile.
pub mod facts {
    /// Peak bandwidth of the memory.
    pub const MEMORY: &str = "memory-gigabytes-per-second";
    /// Peak rate of products of 16-bit activations with 8-bit weights.
    pub const FIXED_BY_EIGHT: &str = "tera-operations-16x8";
    /// Peak rate of products of 16-bit activations with 4-bit weights.
    pub const FIXED_BY_FOUR: &str = "tera-operations-16x4";
    /// Peak rate of products of 16-bit activations with each other.
    pub const FIXED_BY_FIXED: &str = "tera-operations-16x16";
    /// Peak rate of products of 16-bit floats.
    pub const FLOATS: &str = "tera-operations-f16";
}

/// Types of a product's operands, as far as they determine the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operands {
    FixedByEight,
    FixedByFour,
    FixedByFixed,
    Floats,
}

impl Operands {
    const ALL: [Operands; 4] =
        [Operands::FixedByEight, Operands::FixedByFour, Operands::FixedByFixed, Operands::Floats];

    /// Returns the name of the fact with the rate.
    const fn fact(self) -> &'static str {
        match self {
            Operands::FixedByEight => facts::FIXED_BY_EIGHT,
            Operands::FixedByFour => facts::FIXED_BY_FOUR,
            Operands::FixedByFixed => facts::FIXED_BY_FIXED,
            Operands::Floats => facts::FLOATS,
        }
    }

    /// Classifies a product by the types of its operands. f32 is computed in 16 bits.
    fn of(first: OperandKind, second: OperandKind) -> Option<Operands> {
        let (OperandKind::Numbered(first), OperandKind::Numbered(second)) = (first, second) else {
            return None;
        };
        match (first, second) {
            (
                operand::TENSOR_QUANT16_SYMM,
                operand::TENSOR_QUANT8_SYMM | operand::TENSOR_QUANT8_SYMM_PER_CHANNEL,
            ) => Some(Operands::FixedByEight),
            (
                operand::TENSOR_QUANT16_SYMM,
                operand::EXT_TENSOR_QUANT4_SYMM | operand::EXT_TENSOR_QUANT4_SYMM_PER_CHANNEL,
            ) => Some(Operands::FixedByFour),
            (operand::TENSOR_QUANT16_SYMM, operand::TENSOR_QUANT16_SYMM) => Some(Operands::FixedByFixed),
            (operand::TENSOR_FLOAT16, operand::TENSOR_FLOAT16)
            | (operand::TENSOR_FLOAT32, operand::TENSOR_FLOAT32) => Some(Operands::Floats),
            _ => None,
        }
    }
}

/// Largest value of a fact. It is far beyond any chip's figures, and small enough that no time
/// becomes zero.
const LARGEST: f64 = 1e6;

/// The speed that a chip's profile declares.
#[derive(Clone, Debug, PartialEq)]
pub struct Roofline {
    /// Bandwidth in gigabytes per second.
    memory: f64,
    /// Rates in tera-operations per second, in the order of [`Operands`]. A multiply-add counts as
    /// two operations.
    rates: [Option<f64>; Operands::ALL.len()],
}

/// Returns the facts that this module reads.
pub fn read_facts() -> Vec<Fact> {
    let figure = |name: &str, description: &str| fact(name, FlagKind::Float, false, description);
    let rate = |operands: Operands, description| figure(operands.fact(), description);
    vec![
        figure(
            facts::MEMORY,
            "peak bandwidth of the chip's memory in 10^9 bytes per second; without it no times are estimated",
        ),
        rate(
            Operands::FixedByEight,
            "peak rate of 16-bit activations with 8-bit weights in 10^12 operations per second (a multiply-add \
             is two); without it, entries with such products have no time",
        ),
        rate(Operands::FixedByFour, "peak rate of 16-bit activations with 4-bit weights"),
        rate(Operands::FixedByFixed, "peak rate of two 16-bit activations, as in attention"),
        rate(Operands::Floats, "peak rate of 16-bit floats, in which f32 is computed too"),
    ]
}

impl Roofline {
    /// Reads the figures of a profile. Returns `None` if the profile has no such facts.
    ///
    /// # Errors
    /// `ErrorClass::InvalidArgument` for a value that is not a number in range, and for rates
    /// without a bandwidth.
    pub fn read(chip: &Chip<'_>) -> Result<Option<Roofline>, Error> {
        let wrong = |fact: &'static str, reason: String| wrong_fact(chip.name, fact, &reason);
        let number = |fact: &'static str| -> Result<Option<f64>, Error> {
            let Some(text) = chip.facts.get(fact) else { return Ok(None) };
            match text.parse::<f64>() {
                Ok(value) if value > 0.0 && value <= LARGEST => Ok(Some(value)),
                _ => Err(wrong(fact, format!("`{text}` is not a number above 0 and at most {LARGEST}"))),
            }
        };
        let memory = number(facts::MEMORY)?;
        let mut rates = [None; Operands::ALL.len()];
        for (rate, operands) in rates.iter_mut().zip(Operands::ALL) {
            *rate = number(operands.fact())?;
        }
        match memory {
            Some(memory) => Ok(Some(Roofline { memory, rates })),
            None if rates.iter().all(Option::is_none) => Ok(None),
            None => Err(wrong(facts::MEMORY, "it is missing, but rates are set, which need it".to_owned())),
        }
    }

    fn rate(&self, operands: Operands) -> Option<f64> {
        Operands::ALL.into_iter().zip(self.rates).find(|(known, _)| *known == operands)?.1
    }

    /// Estimates the microseconds of one run, rounded up. Returns `None` if the graph has a product
    /// of types without a rate.
    pub fn microseconds(&self, graph: &NeuronGraph<'_>) -> Option<u64> {
        // 10^9 bytes per second are 10^3 per microsecond, and 10^12 operations per second are 10^6
        // per microsecond.
        let moving = graph.moved_bytes() as f64 / (self.memory * 1e3);
        let mut computing = 0.0;
        for operation in graph.operations.iter().filter(|operation| is_product(operation)) {
            let (operands, multiply_adds) = product(graph, operation)?;
            computing += 2.0 * multiply_adds as f64 / (self.rate(operands)? * 1e6);
        }
        Some(moving.max(computing).ceil() as u64)
    }
}

fn is_product(operation: &Operation) -> bool {
    matches!(operation.kind, OperationKind::Numbered(operation::FULLY_CONNECTED | operation::BATCH_MATMUL))
}

/// Returns the types and the multiply-adds of a product. Every value of the result is a sum over
/// the last axis of the first operand.
fn product(graph: &NeuronGraph<'_>, operation: &Operation) -> Option<(Operands, u64)> {
    let operand = |indices: &[u32], place: usize| graph.operands.get(*indices.get(place)? as usize);
    let (first, second) = (operand(&operation.inputs, 0)?, operand(&operation.inputs, 1)?);
    let terms = u64::from(*first.dims.last()?);
    let results = operand(&operation.outputs, 0)?.elements();
    Some((Operands::of(first.kind, second.kind)?, results.saturating_mul(terms)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Channels, Operand, Value};

    fn read(facts: &[(&str, &str)]) -> Result<Option<Roofline>, Error> {
        let facts = facts.iter().copied().collect();
        Roofline::read(&Chip { name: "chip", aliases: Vec::new(), facts })
    }

    fn operand(kind: i32, dims: &[u32], value: Option<Value<'static>>) -> Operand<'static> {
        let kind = OperandKind::Numbered(kind);
        Operand { name: String::new(), kind, dims: dims.to_vec(), scale: 0.0, channels: None, value }
    }

    /// Builds a product of `rows` rows of 1024 values and a matrix with 2048 outputs.
    fn layer(rows: u32, activations: i32, weights: i32, bytes: u64) -> NeuronGraph<'static> {
        let value = Some(Value::Absent { length: bytes });
        NeuronGraph {
            operands: vec![
                operand(activations, &[rows, 1024], None),
                operand(weights, &[2048, 1024], value),
                operand(activations, &[rows, 2048], None),
            ],
            operations: vec![Operation {
                name: String::new(),
                kind: OperationKind::Numbered(operation::FULLY_CONNECTED),
                inputs: vec![0, 1],
                outputs: vec![2],
                origin: Some(0),
            }],
            inputs: vec![0],
            outputs: vec![2],
            ..NeuronGraph::default()
        }
    }

    const FIXED: i32 = operand::TENSOR_QUANT16_SYMM;
    const EIGHT: i32 = operand::TENSOR_QUANT8_SYMM_PER_CHANNEL;
    const FOUR: i32 = operand::EXT_TENSOR_QUANT4_SYMM;
    const MATRIX: u64 = 2048 * 1024;

    #[test]
    fn the_longer_of_moving_and_computing_decides() {
        // 1 GB/s moves 1,000 bytes per microsecond. 1 TOPS computes a million operations per
        // microsecond.
        let slow_memory = read(&[("memory-gigabytes-per-second", "1"), ("tera-operations-16x8", "1000")]);
        let slow_memory = slow_memory.expect("read").expect("declared");
        let eight = layer(1, FIXED, EIGHT, MATRIX);
        let bytes = MATRIX + 2 * (1024 + 2048);
        assert_eq!(eight.moved_bytes(), bytes);
        assert_eq!(slow_memory.microseconds(&eight), Some(bytes.div_ceil(1000)));

        let slow_products = read(&[("memory-gigabytes-per-second", "1000"), ("tera-operations-16x8", "1")]);
        let slow_products = slow_products.expect("read").expect("declared");
        let many = layer(64, FIXED, EIGHT, MATRIX);
        assert_eq!(slow_products.microseconds(&many), Some((2 * 64 * MATRIX).div_ceil(1_000_000)));
    }

    #[test]
    fn four_bits_move_half_the_bytes_and_scales_count() {
        let known = [("memory-gigabytes-per-second", "1"), ("tera-operations-16x4", "1000")];
        let known = read(&known).expect("read").expect("declared");
        // The library receives one byte per value.
        let mut four = layer(1, FIXED, FOUR, MATRIX);
        let values = MATRIX / 2 + 2 * (1024 + 2048);
        assert_eq!((four.constant_bytes(), four.moved_bytes()), (MATRIX, values));
        four.operands[1].channels = Some(Channels { dimension: 0, scales: vec![1.0; 2048] });
        assert_eq!(four.moved_bytes(), values + 4 * 2048);
        assert_eq!(known.microseconds(&four), Some((values + 4 * 2048).div_ceil(1000)));
    }

    /// Two reported speeds of shipped chips are within the factors that the profiles state for
    /// these estimates.
    #[test]
    fn shipped_rates_and_factors_cover_reported_times() {
        let profiles = crate::soc::tests::profiles();
        for (name, weights, bytes, milliseconds) in
            [("mt6989", FOUR, 6_607_000_000, 50.0), ("mt6993", EIGHT, 596_000_000, 19.0)]
        {
            let declared = crate::soc::tests::of_profile(name).roofline.expect("declared");
            let time = declared.microseconds(&layer(1, FIXED, weights, bytes)).expect("a time");
            let factors = &profiles[name]["times"]["estimates"];
            let bound = |factor: &str| time as f64 / 1e3 * factors[factor].as_f64().expect("a factor");
            let (low, high) = (bound("low"), bound("high"));
            assert!((low..high).contains(&milliseconds), "{name}: {milliseconds} ms, {low} to {high}");
        }
    }

    #[test]
    fn a_product_without_a_rate_has_no_time() {
        let known = [("memory-gigabytes-per-second", "50"), ("tera-operations-16x8", "10")];
        let known = read(&known).expect("read").expect("declared");
        let time = |activations, weights| known.microseconds(&layer(1, activations, weights, MATRIX));
        assert!(time(FIXED, EIGHT).is_some());
        for (activations, weights) in [
            (FIXED, FOUR),
            (FIXED, FIXED),
            (operand::TENSOR_FLOAT16, operand::TENSOR_FLOAT16),
            (operand::TENSOR_FLOAT32, operand::TENSOR_FLOAT32),
            (operand::TENSOR_INT32, operand::TENSOR_INT32),
        ] {
            assert_eq!(time(activations, weights), None, "{activations} with {weights}");
        }
        // Without products, the bytes alone determine the time.
        let mut moved = layer(1, FIXED, FOUR, MATRIX);
        moved.operations.clear();
        assert!(known.microseconds(&moved).is_some_and(|time| time > 0));
    }

    #[test]
    fn facts_out_of_range_are_refused_by_name() {
        assert_eq!(read(&[]).expect("read"), None);
        let memory = ("memory-gigabytes-per-second", "76.8");
        for (given, fact) in [
            (&[("memory-gigabytes-per-second", "fast")][..], facts::MEMORY),
            (&[("memory-gigabytes-per-second", "0")], facts::MEMORY),
            (&[("memory-gigabytes-per-second", "nan")], facts::MEMORY),
            (&[("memory-gigabytes-per-second", "1e300")], facts::MEMORY),
            (&[("tera-operations-f16", "5")], facts::MEMORY),
            (&[memory, ("tera-operations-16x8", "-1")], facts::FIXED_BY_EIGHT),
            (&[memory, ("tera-operations-16x16", "inf")], facts::FIXED_BY_FIXED),
        ] {
            let error = read(given).expect_err(fact);
            assert_eq!(error.detail_of("fact"), Some(fact), "{given:?}: {error}");
        }
    }
}
