//! The vendor's library, if it is available.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use shardwright_shim_qnn::graph::QnnGraph;
use shardwright_shim_qnn::session::{
    Backend, CodeFor, Context, ContextOptions, Device, GraphOptions, Library, LibraryChoice, Result, SocId,
};

fn backend() -> Option<Arc<Backend>> {
    static BACKEND: OnceLock<Option<Arc<Backend>>> = OnceLock::new();
    BACKEND
        .get_or_init(|| {
            let choice = LibraryChoice::new(None);
            let choice = match choice.variable {
                Some(_) => choice,
                None => LibraryChoice::new(LibraryChoice::vendored().filter(|path| path.exists())),
            };
            if choice.variable.is_none() && choice.option.is_none() {
                return None;
            }
            let library = Library::open(&choice).expect("the library opens");
            Some(Backend::new(library).expect("a backend"))
        })
        .clone()
}

/// Creates a device of a chip. Reports a missing library conspicuously and returns `None`.
pub fn device(test: &str, soc: u32) -> Option<Arc<Device>> {
    static DEVICES: Mutex<Option<HashMap<u32, Arc<Device>>>> = Mutex::new(None);
    let Some(backend) = backend() else {
        // Bypasses the harness's capture, which would hide the line if the test passes.
        let _ = writeln!(
            std::io::stdout().lock(),
            "SKIPPED: {test}: there is no libQnnHtp.so; `cargo xtask vendor qnn` fetches it"
        );
        return None;
    };
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let devices = devices.get_or_insert_default();
    let device = devices
        .entry(soc)
        .or_insert_with(|| Device::new(backend, CodeFor::Chip(SocId(soc))).expect("a device"));
    Some(device.clone())
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
