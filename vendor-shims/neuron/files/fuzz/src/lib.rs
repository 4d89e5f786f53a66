//! Fuzz targets that pass untrusted bytes to the readers of MediaTek's containers.
//!
//! **Job.** One function per reader, which must return for any bytes.
//! `RUSTC_BOOTSTRAP=1 cargo fuzz run TARGET` runs them from `vendor-shims/neuron/files`. The
//! crate's ordinary tests run them over the corpus and over damaged copies of it.
//!
//! **Not its job.** Checking that valid files are read correctly, which the readers' own tests do.

use shardwright_neuron_files::budget::Budget;
use shardwright_neuron_files::bytes::Bytes;
use shardwright_neuron_files::options::OptionString;
use shardwright_neuron_files::{blob as blobs, executorch as payloads, flexbuffer as maps};
use shardwright_neuron_files::{inspect as door, litertlm as bundles, neuron_schema as containers};
use shardwright_neuron_files::{record, tflite as models};

/// A target's name and function.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: &[Target] = &[
    ("inspect", inspect),
    ("tflite", tflite),
    ("litertlm", litertlm),
    ("neuron_schema", neuron_schema),
    ("blob", blob),
    ("executorch", executorch),
    ("flexbuffer", flexbuffer),
    ("options", options),
];

fn parts(bytes: &[u8]) -> (Bytes<'_>, Budget) {
    (Bytes::new(bytes), Budget::of(bytes.len()))
}

/// Fuzzes the entry point, which identifies a file.
pub fn inspect(bytes: &[u8]) {
    if let Ok(Some(inspected)) = door::inspect(bytes) {
        assert!(inspected.document.is_object());
    }
}

/// Fuzzes the reader of models.
pub fn tflite(bytes: &[u8]) {
    let (file, mut budget) = parts(bytes);
    if let Ok(read) = models::read(file, &mut budget) {
        let _ = (read.document(), read.compilations(), read.warnings());
    }
}

/// Fuzzes the reader of `.litertlm` files.
pub fn litertlm(bytes: &[u8]) {
    let (file, mut budget) = parts(bytes);
    if let Ok(read) = bundles::read(file, &mut budget) {
        let _ = (read.document(), read.compilations(), read.warnings());
    }
}

/// Fuzzes the reader of bytecode containers.
pub fn neuron_schema(bytes: &[u8]) {
    let (file, mut budget) = parts(bytes);
    if let Ok(read) = containers::read(file, &mut budget) {
        let _ = (read.document(), read.compilations(None), read.warnings());
    }
}

/// Fuzzes the reader of compiled code.
pub fn blob(bytes: &[u8]) {
    let (file, mut budget) = parts(bytes);
    if let Ok(read) = blobs::read(file, &mut budget) {
        assert!(read.code.end <= bytes.len());
        let _ = (read.document(), read.compilation("code", None), read.warnings("code"));
    }
    let _ = blobs::code_of(bytes);
}

/// Fuzzes the reader of ExecuTorch's payload.
pub fn executorch(bytes: &[u8]) {
    let (file, mut budget) = parts(bytes);
    if let Ok(Some(read)) = payloads::read(file, &mut budget) {
        let _ = read.document();
    }
}

/// Fuzzes the reader of a dispatch operation's options.
pub fn flexbuffer(bytes: &[u8]) {
    let _ = maps::map(Bytes::new(bytes));
}

/// Fuzzes option strings: a string that was parsed and written again must parse to the same
/// options.
pub fn options(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(options) = OptionString::parse(text)
    {
        let _ = (options.contradictions(), record::paths(&options));
        let written = options.to_string();
        // Quotes add bytes, so the written string may be too long. Names may contain characters
        // that only quotes protect.
        if let Ok(again) = OptionString::parse(&written) {
            let sound = |options: &OptionString| {
                options.0.iter().all(|option| {
                    option.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
                })
            };
            assert!(!sound(&options) || again == options, "{text:?} became {written:?}");
        }
    }
}
