//! The vendor's library, if it is available.

use std::sync::{Arc, OnceLock};

use shardwright_shim_qnn::graph::QnnGraph;
use shardwright_shim_qnn::session::{CodeFor, Context, ContextOptions, Device, GraphOptions, Result, SocId};
use shardwright_shim_qnn::{Driver, Settings};

use crate::found::library_file;

/// Returns the test program's common driver. Reports a missing library and returns `None`.
pub fn driver() -> Option<Arc<Driver>> {
    static DRIVER: OnceLock<Arc<Driver>> = OnceLock::new();
    let settings = Settings { library: Some(library_file()?), ..Settings::default() };
    Some(DRIVER.get_or_init(|| Driver::open(&settings).expect("the library opens")).clone())
}

/// Returns a device of a chip.
pub fn device(soc: u32) -> Option<Arc<Device>> {
    Some(driver()?.device(CodeFor::Chip(SocId(soc))).expect("a device"))
}

/// Compiles a graph and, if there are inputs, runs it. Returns the outputs in the order of the
/// graph's tensors.
pub fn run(device: &Arc<Device>, graph: &QnnGraph<'_>, inputs: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
    let mut context = Context::new(device.clone(), ContextOptions::default())?;
    let options = GraphOptions { vtcm_megabytes: Some(8), ..GraphOptions::default() };
    let mut composed = context.compose(graph, &options)?;
    composed.finalize(false)?;
    let mut outputs: Vec<Vec<u8>> =
        composed.outputs().iter().map(|output| vec![0; output.bytes().expect("a size") as usize]).collect();
    let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    composed.execute(&inputs, &mut outputs.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>())?;
    Ok(outputs)
}
