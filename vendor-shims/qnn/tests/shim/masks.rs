//! Tests of a mask that is too large to be repeated for its heads: phones were reported to add such
//! a mask to wrong rows.

#[path = "../lowering/layers.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod layers;
#[path = "../lowering/tables.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod tables;

use shardwright_shim_abi::raw::*;

use crate::host;
use layers::Layer;

#[test]
fn a_mask_beyond_a_mebibyte_is_broadcast_and_a_flag_against_that_is_refused() {
    let Some(host) = host("sm8850") else { return };
    // 64 rows of 8 heads have 1,024 bytes per slot. The slots are the state's and 64 new ones.
    for (context, value, outcome, part) in [
        (960, "repeated", SW_FLAG_INERT, "lowered in the same way"),
        (960, "broadcast", SW_FLAG_APPLIED, "nodes in its graph"),
        (992, "repeated", SW_FLAG_REFUSED, "`decode` has one of 1081344 bytes"),
        (992, "broadcast", SW_FLAG_INERT, "lowered in the same way"),
    ] {
        let entry = Layer { context, heads: 8, ..Layer::small(64, 1) }.tables(false).build();
        let compiled = host.compile(&[entry], &[("mask", value)]).expect("compiled");
        let (found, evidence) = compiled.flag("mask");
        assert_eq!(found, outcome, "mask={value} with {context}: {evidence}");
        assert!(evidence.contains(part), "mask={value} with {context}: {evidence}");
    }
    let (_, limits) = host.told().expect("answered");
    assert!(limits.contains(&("repeated-mask-bytes".to_owned(), 1 << 20)), "{limits:?}");
}
