//! Tests with graphs that pass the shim's own check but that the real compiler refuses. They cover
//! the error classes and nodes from which a planner learns, and the rules that avoid the refusals.

use crate::chips;
use crate::layers::Layer;
use crate::tables::{TableEncoding, Tables, over};
use crate::vendor::driver;
use shardwright_shim_abi::raw::{SW_DTYPE_I8, SW_DTYPE_U8, SW_ROLE_HIDDEN, SW_ROLE_STATE, SW_ROLE_TAP};
use shardwright_shim_abi::{EntryView, Error, ErrorClass, Verdict};
use shardwright_shim_qnn::lower::{KeyRows, Variants, check, lower};
use shardwright_shim_qnn::session::{Context, ContextOptions, GraphOptions};
use shardwright_shim_qnn::soc::{CodeFor, Soc};
use shardwright_shim_qnn::{Driver, rules};

fn options(soc: &Soc, vtcm: u32) -> GraphOptions {
    GraphOptions { vtcm_megabytes: Some(vtcm), finalize_mode: soc.finalize_mode, ..GraphOptions::default() }
}

/// Compiles an entry whose operations all pass the check.
fn compiled(
    driver: &Driver,
    soc: &str,
    vtcm: u32,
    entry: EntryView<'_>,
    variants: &Variants,
) -> Result<(), Error> {
    let soc = &match soc {
        "sm8450" => chips::numbered(36, 69),
        name => chips::soc(name),
    };
    assert!(check(entry, soc).iter().all(|verdict| *verdict == Verdict::Taken));
    let lowered = lower(entry, soc, variants).expect("lowered");
    let mut context = Context::new(
        driver.device(CodeFor::Chip(soc.id.expect("a number"))).expect("a device"),
        ContextOptions::default(),
    )
    .expect("a context");
    let mut composed = context.compose(&lowered.graph, &options(soc, vtcm))?;
    composed.finalize(false)?;
    Ok(())
}

fn detail<'e>(error: &'e Error, name: &str) -> Option<&'e str> {
    error.details.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// Creates a layer that is narrow except for its heads: 8,208 keys of 256 values.
fn many_keys() -> Tables {
    let layer = Layer {
        context: 8192,
        hidden: 64,
        heads: 4,
        feed_forward: 96,
        per_layer: 32,
        ..Layer::sliding(16, SW_DTYPE_I8)
    };
    layer.tables(true)
}

#[test]
fn an_operation_that_fits_no_fast_memory_is_refused_by_finalize_with_its_node() {
    let Some(driver) = driver() else { return };
    let tables = many_keys();
    let joined = Variants { keys: KeyRows::Joined, ..Variants::rules(tables.view()) };
    let error = compiled(&driver, "sm8850", 1, tables.view(), &joined).expect_err("2.1 MB in one");
    assert_eq!(
        (error.class, detail(&error, "function")),
        (ErrorClass::UnsupportedOp, Some("graphFinalize")),
        "{error:?}"
    );
    assert!(detail(&error, "node").is_some() && detail(&error, "op").is_some(), "{error:?}");
    assert!(error.log_tail.as_ref().is_some_and(|log| log.contains("unable to tile")), "{error:?}");
    // With enough memory it compiles.
    compiled(&driver, "sm8850", 4, tables.view(), &joined).expect("2.1 MB in four");
}

#[test]
fn an_operation_that_older_processors_lack_is_refused_with_its_node() {
    let Some(driver) = driver() else { return };
    let product = |state| {
        let store = over(-8.0, 8.0);
        let mut t = Tables::new("decode", 4);
        let x = t.input("hidden", SW_ROLE_HIDDEN, &[4, 64], store);
        let keys = t.input("state.k", SW_ROLE_STATE, &[32, 64], state);
        let y = t.mat_mul("scores", x, keys, true, store);
        t.output("tap", SW_ROLE_TAP, y);
        t
    };
    let (wide, narrow) =
        (product(over(-5.0, 5.0)), product(TableEncoding::integers(SW_DTYPE_U8, 5.0 / 127.0, 128)));
    let rule = Variants::default();
    let error = compiled(&driver, "sm8450", 8, wide.view(), &rule).expect_err("16 by 16 bits before v73");
    assert_eq!(error.class, ErrorClass::UnsupportedOp, "{error:?}");
    // The library has two messages for it.
    let said = ["expected >= 73", "does not support A16W16 for dsp arch"];
    let said = said.iter().any(|words| error.message.contains(words));
    assert!(said && detail(&error, "node").is_some(), "{error:?}");
    // At 8 bits it is supported, and newer chips support both.
    compiled(&driver, "sm8450", 8, narrow.view(), &rule).expect("16 by 8 bits");
    compiled(&driver, "sm8550", 8, wide.view(), &rule).expect("16 by 16 bits");
}

#[test]
fn keys_that_do_not_fit_joined_stay_apart_by_rule() {
    let tables = many_keys();
    let soc = &chips::soc("sm8850");
    let keys = |vtcm| rules::of(tables.view(), &options(soc, vtcm)).keys;
    assert_eq!((keys(1), keys(2), keys(8)), (KeyRows::Split, KeyRows::Joined, KeyRows::Joined));
    // An entry that only reads a state does not concatenate.
    let reading = Layer { context: 32_768, own_keys: false, ..Layer::full(1, SW_DTYPE_I8) };
    let reading = Layer { hidden: 64, feed_forward: 96, per_layer: 32, ..reading }.tables(true);
    assert_eq!(rules::of(reading.view(), &options(soc, 8)), Variants::rules(reading.view()));
    // A layer with 512 values per head and 32,768 keys. It is the layer of Gemma 4 that sm8850
    // supports at that context.
    let owning = Layer { context: 32_768, own_keys: true, ..Layer::full(1, SW_DTYPE_I8) };
    let owning = Layer { hidden: 64, feed_forward: 96, per_layer: 32, ..owning }.tables(true);
    let rule = rules::of(owning.view(), &options(soc, 8));
    assert_eq!(rule.keys, KeyRows::Split);
    let Some(driver) = driver() else { return };
    let joined = Variants { keys: KeyRows::Joined, ..rule };
    assert!(
        compiled(&driver, "sm8850", 8, owning.view(), &joined).is_err(),
        "the rule is not needed any more"
    );
    compiled(&driver, "sm8850", 8, owning.view(), &rule).expect("apart they compile");
}
