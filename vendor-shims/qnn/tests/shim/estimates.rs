//! Tests of simulated time before anything is run and before weights exist.

use shardwright_shim_abi::raw::*;

use crate::{Builder, Host, Layer, TableEncoding, Weight, a16, host, library, on, values};

#[test]
fn cycles_follow_the_work_and_say_where_they_are_from() {
    let Some(library) = library() else { return };
    let host = on(&library, "sm8850");
    let (wide, narrow) = (Layer::new(512, 4096, 8).without_bytes(), Layer::new(512, 4096, 4).without_bytes());
    let reported = |host: &Host, layer: &Layer, rows| {
        host.estimate(layer.entry("decode@8", rows).build()).expect("estimated").expect("costed")
    };
    let (eight, four, many) =
        (reported(&host, &wide, 1), reported(&host, &narrow, 1), reported(&host, &wide, 64));
    assert_eq!(eight.provenance, SW_PROVENANCE_SIMULATED);
    assert!(eight.microseconds > 0 && many.microseconds >= eight.microseconds, "{eight:?} {many:?}");
    // The time of one row is bound by the bytes of weights: 4 MiB and half of it.
    assert!((4_000_000..6_000_000).contains(&eight.bytes), "{eight:?}");
    assert!(four.bytes < eight.bytes * 2 / 3 && four.microseconds < eight.microseconds, "{eight:?} {four:?}");
    assert_eq!(reported(&host, &wide, 1), eight, "an estimate is the same every time");
    // Existing weights cost the same as missing ones.
    let there = reported(&host, &Layer::new(512, 4096, 8), 1);
    assert_eq!(there.microseconds, eight.microseconds);
    let other = on(&library, "sm8650.simulated");
    assert_eq!(reported(&other, &wide, 1).provenance, SW_PROVENANCE_MODELLED);
}

#[test]
fn a_conversion_at_the_end_is_left_out_and_said() {
    let Some(host) = host("sm8850") else { return };
    let weight = Weight::matrix("w", [1024, 512], &values(1024 * 512, 1, 0.1), 8).without_bytes();
    let entry = |is_float: bool| {
        let mut b = Builder::new("decode_1@8", SW_ENTRY_DECODE, 1, 8);
        let x = b.input_as("hidden", SW_ROLE_HIDDEN, &[1, 512], a16(8.0));
        b.encoding = a16(8.0);
        let mut y = b.linear(x, &weight);
        if is_float {
            b.encoding = TableEncoding::F32;
            y = b.unary(SW_OP_CONVERT, y, vec![]);
        }
        b.output("logits", SW_ROLE_LOGITS, y);
        host.estimate(b.build()).expect("estimated").expect("costed")
    };
    let (plain, converted) = (entry(false), entry(true));
    assert_eq!(plain.microseconds, converted.microseconds);
    assert_eq!((plain.uncosted, converted.uncosted), (vec![], vec![1]));
}

#[test]
fn what_has_no_cost_is_named() {
    let Some(host) = host("sm8850") else { return };
    let weight = Weight::matrix("w", [1024, 512], &values(1024 * 512, 1, 0.1), 8).without_bytes();
    let mut b = Builder::new("decode_1@8", SW_ENTRY_DECODE, 1, 8);
    let x = b.input_as("hidden", SW_ROLE_HIDDEN, &[1, 512], TableEncoding::F16);
    b.encoding = TableEncoding::F16;
    let y = b.linear(x, &weight);
    let y = b.unary(SW_OP_GELU, y, vec![]);
    b.output("tap", SW_ROLE_TAP, y);
    let entry = b.build();
    assert_eq!(host.refusals(entry).expect("checked"), []);
    // The library has no cost for float activations.
    let reported = host.estimate(entry).expect("estimated").expect("costed");
    assert!(reported.microseconds > 0 && reported.uncosted == [1], "{reported:?}");
}
