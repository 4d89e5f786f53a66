//! Estimates have times by the roofline of a chip's profile, and no times without a roofline.

use serde_json::json;
use shardwright_shim_abi::raw::*;
use shardwright_shim_testing::{Builder, EstimateInfo, TableEncoding, Weight, values};

use crate::chips::make_known;
use crate::support::{DEVICE, Simulator};

const OUTPUTS: u64 = 1024;
const INPUTS: u64 = 512;

/// Builds a product of 16-bit integers with a matrix of 8 or 4 bits.
fn product(rows: u64, weight: &Weight) -> Builder {
    let mut entry = Builder::new(&format!("decode_{rows}@{rows}"), SW_ENTRY_DECODE, rows, rows);
    entry.encoding = TableEncoding::integers(SW_DTYPE_I16, 0.001, 0);
    let x = entry.input_as("x", SW_ROLE_HIDDEN, &[rows, INPUTS], entry.encoding);
    let out = entry.linear(x, weight);
    entry.output("out", SW_ROLE_TAP, out);
    entry
}

fn eight() -> Weight {
    Weight::matrix("w8", [OUTPUTS, INPUTS], &values((OUTPUTS * INPUTS) as usize, 7, 0.3), 8)
}

fn four() -> Weight {
    let stored: Vec<i32> = (0..OUTPUTS * INPUTS).map(|at| (at * 5 % 15) as i32 - 7).collect();
    let kind = (SW_QUANTISATION_PER_TENSOR, 0);
    shardwright_shim_testing::integers("w4", &[OUTPUTS, INPUTS], &stored, SW_DTYPE_I4, kind, &[0.1], 0)
}

fn estimate(simulator: &Simulator, device: &str, entry: &Builder) -> EstimateInfo {
    let host = simulator.host(device, "lean");
    make_known(&host, "mt6985");
    host.estimate(entry.build()).expect("estimated").expect("an estimate")
}

#[test]
fn a_chip_with_a_roofline_has_times_that_follow_its_bytes() {
    let simulator = Simulator::with(json!({}));
    let [wide, narrow] = [eight(), four()].map(|weight| estimate(&simulator, DEVICE, &product(1, &weight)));
    for estimate in [&wide, &narrow] {
        assert_eq!((&estimate.uncosted[..], estimate.provenance), (&[][..], SW_PROVENANCE_MODELLED));
    }
    // 524,288 bytes at 76.8 GB/s.
    assert!((7..=8).contains(&wide.microseconds), "{wide:?}");
    assert!((4..=5).contains(&narrow.microseconds), "{narrow:?}");
    let matrix = OUTPUTS * INPUTS;
    assert!((matrix..matrix + 16_384).contains(&wide.bytes), "{wide:?}");
    assert!((matrix / 2..matrix / 2 + 16_384).contains(&narrow.bytes), "{narrow:?}");

    // With many rows, products determine the time. Twice as many rows have twice as many products.
    let [some, more] = [2048, 4096].map(|rows| estimate(&simulator, DEVICE, &product(rows, &eight())));
    assert!(some.microseconds > 10 * wide.microseconds, "{some:?}");
    assert!(more.microseconds.abs_diff(2 * some.microseconds) <= 1, "{some:?} {more:?}");
}

#[test]
fn a_chip_without_one_has_bytes_and_no_time() {
    let simulator = Simulator::with(json!({}));
    let known = estimate(&simulator, DEVICE, &product(1, &eight()));
    let unknown = estimate(&simulator, "mt6985.simulated", &product(1, &eight()));
    assert_eq!((unknown.microseconds, &unknown.uncosted[..]), (0, &[0][..]));
    assert_eq!(unknown.bytes, known.bytes);
}
