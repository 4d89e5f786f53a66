//! Unusual entries. Anything valid in the contract is judged and, if supported, lowered to a sound
//! graph, without panics.

use std::sync::LazyLock;

use proptest::prelude::*;
use shardwright_shim_abi::Verdict;
use shardwright_shim_abi::raw::*;
use shardwright_shim_qnn::lower::{
    Heads, KeyRows, Leaving, Product, Rotary, SharedMask, Variants, check, lower,
};
use shardwright_shim_qnn::soc::Soc;
use shardwright_shim_testing::Port;

use super::shapes::{soc, sound};
use super::tables::{Attribute, Random, Scales, TableEncoding, Tables, Weight, bits_of, random_matrix};

/// The chips are read once, because reading a profile leaks it.
static SM8750: LazyLock<Soc> = LazyLock::new(|| soc("sm8750"));
static SM8850: LazyLock<Soc> = LazyLock::new(|| soc("sm8850"));

const EXTENTS: [u64; 6] = [1, 1, 2, 4, 32, 64];
const STORES: [TableEncoding; 6] = [
    TableEncoding::integers(SW_DTYPE_U16, 0.001, 30_000),
    TableEncoding::integers(SW_DTYPE_U16, 0.001, 30_000),
    TableEncoding::integers(SW_DTYPE_U8, 0.1, 128),
    TableEncoding::integers(SW_DTYPE_U8, 0.1, 3),
    TableEncoding::F16,
    TableEncoding::F32,
];
/// Most inputs of a matrix with values. A reshape can give an operation up to 2³⁰ inputs.
const MOST_INPUTS: u64 = 1 << 16;

fn shape(random: &mut Random) -> Vec<u64> {
    let rank = random.integer(1, 5);
    (0..rank).map(|_| EXTENTS[random.integer(0, 5) as usize]).collect()
}

fn attributes(random: &mut Random, shape: &[u64]) -> Vec<Attribute> {
    let mut integer = |name, high| Attribute::Integer(name, i64::from(random.integer(-1, high)));
    let mut all = vec![
        integer("width", 64),
        integer("head_dim", 64),
        integer("transpose_b", 2),
        integer("axis", 4),
        integer("start", 8),
        integer("end", 64),
        Attribute::Float("eps", 1e-6),
        Attribute::Float("weight_offset", 1.0),
        Attribute::Float("value", 0.5),
        Attribute::Float("cap", 30.0),
        Attribute::Integers("shape", shape.iter().map(|extent| *extent as i64).collect()),
    ];
    let mut perm: Vec<i64> = (0..shape.len() as i64).collect();
    for place in (1..perm.len()).rev() {
        perm.swap(place, random.integer(0, place as i32) as usize);
    }
    all.push(Attribute::Integers("perm", perm));
    all
}

/// Returns result extents that fit in most cases.
fn fitting(op: u32, inputs: &[Vec<u64>], attributes: &[Attribute], random: &mut Random) -> Vec<u64> {
    let mut first = inputs[0].clone();
    let integer = |wanted: &str| {
        attributes.iter().find_map(|attribute| match attribute {
            Attribute::Integer(name, value) if *name == wanted => Some(*value),
            _ => None,
        })
    };
    match op {
        SW_OP_LINEAR | SW_OP_MAT_MUL => {
            let second = inputs.get(1).cloned().unwrap_or_default();
            let back = if op == SW_OP_LINEAR || integer("transpose_b") == Some(1) { 2 } else { 1 };
            if let (Some(last), Some(columns)) =
                (first.last_mut(), second.len().checked_sub(back).map(|at| second[at]))
            {
                *last = columns;
            }
            first
        }
        SW_OP_REDUCE_SUM | SW_OP_REDUCE_MEAN | SW_OP_REDUCE_MAX => {
            first.last_mut().into_iter().for_each(|last| *last = 1);
            first
        }
        SW_OP_RESHAPE => {
            let elements: u64 = first.iter().product();
            if random.integer(0, 1) == 0 { vec![elements] } else { vec![1, elements, 1] }
        }
        SW_OP_TRANSPOSE => attributes
            .iter()
            .find_map(|attribute| match attribute {
                Attribute::Integers("perm", perm) => {
                    Some(perm.iter().map(|axis| first[*axis as usize]).collect())
                }
                _ => None,
            })
            .unwrap_or(first),
        SW_OP_SLICE => {
            if let (Some(axis), Some(start), Some(end)) = (integer("axis"), integer("start"), integer("end"))
                && let Some(extent) = usize::try_from(axis).ok().and_then(|axis| first.get_mut(axis))
            {
                *extent = (end - start).max(1) as u64;
            }
            first
        }
        SW_OP_CONCAT => {
            if let Some(extent) = integer("axis").and_then(|axis| first.get_mut(usize::try_from(axis).ok()?))
            {
                *extent *= inputs.len() as u64;
            }
            first
        }
        SW_OP_ADD | SW_OP_SUB | SW_OP_MUL | SW_OP_DIV => {
            inputs.iter().max_by_key(|shape| shape.iter().product::<u64>()).cloned().unwrap_or(first)
        }
        _ => first,
    }
}

/// Creates a matrix of eight outputs. It only has values if they fit a few megabytes.
fn matrix(name: &str, inputs: u64, dtype: u32, random: &mut Random) -> Weight {
    if inputs <= MOST_INPUTS {
        return random_matrix(name, [8, inputs], dtype, random);
    }
    let length = 8 * (inputs * u64::from(bits_of(dtype))).div_ceil(8);
    let scales = Scales::per_channel(vec![0.01; 8]);
    Weight::planned(name, &[8, inputs], dtype, length, Some(scales))
}

fn entry(seed: u64) -> Tables {
    let mut random = Random(seed);
    let mut tables = Tables::new("odd", 4);
    let mut values = Vec::new();
    let family = STORES[random.integer(0, 5) as usize];
    for index in 0..random.integer(1, 4) {
        let store = if random.integer(0, 9) == 0 { STORES[random.integer(0, 5) as usize] } else { family };
        let shape = shape(&mut random);
        values.push(tables.input(&format!("in{index}"), SW_ROLE_HIDDEN, &shape, store));
    }
    for index in 0..random.integer(0, 8) {
        let ops: Vec<u32> = (1..=12).chain(64..=86).collect();
        let op = ops[random.integer(0, ops.len() as i32 - 1) as usize];
        let pick =
            |random: &mut Random, values: &[u32]| values[random.integer(0, values.len() as i32 - 1) as usize];
        let mut inputs = vec![pick(&mut random, &values)];
        let first = tables.shape(inputs[0]);
        match op {
            SW_OP_LINEAR | SW_OP_MAT_MUL if random.integer(0, 1) == 0 => {
                let dtype = [SW_DTYPE_I8, SW_DTYPE_I4, SW_DTYPE_I2][random.integer(0, 2) as usize];
                let last = *first.last().expect("an axis");
                let weight = matrix(&format!("w{index}"), last, dtype, &mut random);
                inputs.push(tables.constant(weight));
            }
            SW_OP_LINEAR | SW_OP_MAT_MUL | SW_OP_ADD | SW_OP_SUB | SW_OP_MUL | SW_OP_DIV | SW_OP_CONCAT => {
                let other = if random.integer(0, 1) == 0 { inputs[0] } else { pick(&mut random, &values) };
                inputs.push(other);
            }
            SW_OP_ROTATE => inputs.extend([pick(&mut random, &values), pick(&mut random, &values)]),
            _ => {}
        }
        let attributes = attributes(&mut random, &first);
        let shapes: Vec<Vec<u64>> = inputs.iter().map(|input| tables.shape(*input)).collect();
        let shape = fitting(op, &shapes, &attributes, &mut random);
        let store = tables.encoding_of(inputs[0]);
        values.push(tables.node(&format!("node{index}"), op, &inputs, (&shape, store), attributes));
    }
    for index in 0..random.integer(1, 3) {
        let value = values[random.integer(0, values.len() as i32 - 1) as usize];
        tables.output(&format!("out{index}"), SW_ROLE_HIDDEN, value);
    }
    tables
}

/// Removes the refused operations, so that something is lowered.
fn taken_part(mut tables: Tables) -> Option<Tables> {
    loop {
        let verdicts = check(tables.view(), &SM8750);
        let Some(refused) = verdicts.iter().position(|verdict| *verdict != Verdict::Taken) else {
            return Some(tables);
        };
        let node = tables.nodes.remove(refused);
        // The results of refused operations become inputs.
        for output in node.outputs {
            let name = format!("bound.{output}");
            tables.inputs.push(Port { name, role: SW_ROLE_HIDDEN, tensor: output, index: 0, dtype: None });
        }
    }
}

fn judge_and_lower(seed: u64, form: usize) {
    let tables = entry(seed);
    let _ = check(tables.view(), &SM8850);
    let variants = Variants {
        rotary: [Rotary::Fused, Rotary::Pairs, Rotary::Exchanged, Rotary::Negated][form % 4],
        heads: [Heads::BeforeNorm, Heads::AfterNorm, Heads::AfterRotary, Heads::Never, Heads::Grouped]
            [form % 5],
        product: [Product::FullyConnected, Product::Convolution, Product::MatMul][form / 3 % 3],
        keys: [KeyRows::Joined, KeyRows::Split][form % 2],
        mask: [SharedMask::Broadcast, SharedMask::Repeated][form / 5 % 2],
        leaving: [Leaving::Whole, Leaving::Rows, Leaving::Columns][form / 4 % 3],
        turned: form / 4 % 4 < 2,
        widest: [3, 1 << 15][form / 2 % 2],
        tallest: [2, 1 << 15][form / 7 % 2],
    };
    let _ = lower(tables.view(), &SM8750, &variants);
    let Some(taken) = taken_part(tables) else { return };
    match lower(taken.view(), &SM8750, &variants) {
        Ok(lowered) => {
            sound(&lowered.graph);
            assert_eq!(lowered.ports.len(), taken.inputs.len() + taken.outputs.len());
        }
        Err(error) => {
            let reported = error.to_string();
            // An entry with a tensor beyond the limit is refused as a whole, so none of its nodes
            // is supported.
            let too_large = reported.contains("tensor-values") && taken.nodes.is_empty();
            // `check` counts the parts of the default, which are much larger.
            let Variants { widest, tallest, .. } = Variants::default();
            let default = Variants { widest, tallest, ..variants };
            let too_many = error.detail_of("limit") == Some("product-parts")
                && lower(taken.view(), &SM8750, &default).is_ok();
            assert!(reported.contains("port") || too_large || too_many, "{reported}");
        }
    }
}

#[test]
fn a_tensor_beyond_the_limit_leaves_nothing_taken() {
    judge_and_lower(9_733_810_235_432_795_380, 0);
}

#[test]
fn a_norm_of_one_row_keeps_its_two_axes() {
    judge_and_lower(7_802_187_356_587_866_530, 0);
}

/// The product of 2²⁴ rows would have 25 million parts of two rows and three outputs.
#[test]
fn products_of_few_rows_have_a_limited_number() {
    judge_and_lower(2_635_519_433_631_698_076, 0);
}

/// The product has 2²⁹ inputs.
#[test]
fn a_matrix_of_gigabytes_is_judged_without_values() {
    judge_and_lower(11_315_940_727_241_080_580, 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn odd_entries_are_judged_and_lowered_without_a_panic(seed in any::<u64>(), form in 0usize..60) {
        judge_and_lower(seed, form);
    }
}
