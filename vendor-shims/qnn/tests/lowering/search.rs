//! Trials of a search with the real library: what they find is what this process would, and one
//! that takes too long is left behind.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use crate::chips;
use crate::layers::Layer;
use shardwright_shim_abi::raw::SW_DTYPE_I4;
use shardwright_shim_qnn::estimate::{Within, cost, costs_within};
use shardwright_shim_qnn::library::{LibraryChoice, VARIABLE};
use shardwright_shim_qnn::lower::{Variants, lower};
use shardwright_shim_qnn::session::GraphOptions;
use shardwright_shim_qnn::soc::SocId;
use shardwright_shim_qnn::{Driver, Settings};

const STAND_IN: SocId = SocId(72);

const AMPLE: Duration = Duration::from_secs(600);

/// The library; none, said loudly, where there is none.
fn driver(test: &str) -> Option<Arc<Driver>> {
    let vendored = LibraryChoice::vendored().filter(|path| path.exists());
    if std::env::var_os(VARIABLE).is_none() && vendored.is_none() {
        let _ = writeln!(
            std::io::stdout().lock(),
            "SKIPPED: {test}: there is no libQnnHtp.so; `cargo xtask vendor qnn` fetches it"
        );
        return None;
    }
    let library = if std::env::var_os(VARIABLE).is_some() { None } else { vendored };
    Some(Driver::open(&Settings { library, ..Settings::default() }).expect("the library opens"))
}

fn proceed() -> Result<(), &'static str> {
    Ok(())
}

#[test]
fn a_trial_finds_what_this_process_would_and_is_abandoned_when_it_takes_too_long() {
    let Some(driver) =
        driver("a_trial_finds_what_this_process_would_and_is_abandoned_when_it_takes_too_long")
    else {
        return;
    };
    let soc = &chips::soc("soc-72");
    let options =
        |mode| GraphOptions { vtcm_megabytes: Some(8), finalize_mode: mode, ..GraphOptions::default() };
    let small = Layer::small(5, 2).tables(true);
    let small = lower(small.view(), soc, &Variants::default()).expect("lowered").graph;
    let large = Layer::sliding(64, SW_DTYPE_I4).tables(true);
    let large = lower(large.view(), soc, &Variants::default()).expect("lowered").graph;

    // A layer of this size takes a second and more: not a chance in a hundredth.
    let moment = Duration::from_millis(10);
    let abandoned = costs_within(&driver, STAND_IN, &[&large], &options(None), moment, proceed);
    assert_eq!(abandoned.expect("a child"), Ok(Within::Abandoned));
    // A no is heard while the library is at work.
    let mut asked = 0;
    let told = costs_within(&driver, STAND_IN, &[&large], &options(Some(1)), AMPLE, || {
        asked += 1;
        Err("no")
    });
    assert_eq!(told.expect("a child"), Err("no"));

    // Neither left the library worse: of the small one this process, before and after its own first
    // compilation, hears the same as a child.
    let theirs = costs_within(&driver, STAND_IN, &[&small, &small], &options(None), AMPLE, proceed);
    let theirs = theirs.expect("a child").expect("waited for");
    let own = cost(&driver, STAND_IN, &small, &options(None)).expect("compiled");
    assert!(own.as_ref().is_some_and(|cost| cost.cycles > 0), "{own:?}");
    assert_eq!(theirs, Within::Costs(vec![own.clone(), own]));
    let own = cost(&driver, STAND_IN, &small, &options(Some(3))).expect("compiled");
    let fresh = Driver::open(&Settings { library: driver_library(), ..Settings::default() }).expect("opened");
    let theirs = costs_within(&fresh, STAND_IN, &[&small], &options(Some(3)), AMPLE, proceed);
    assert_eq!(theirs.expect("a child"), Ok(Within::Costs(vec![own])));
}

/// As [`driver`] has it.
fn driver_library() -> Option<std::path::PathBuf> {
    match std::env::var_os(VARIABLE) {
        Some(_) => None,
        None => LibraryChoice::vendored(),
    }
}
