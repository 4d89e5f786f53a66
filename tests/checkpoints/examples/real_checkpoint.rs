//! Writes a checkpoint of a published shape with random weights, and the same weights in
//! llama.cpp's format.
//!
//! ```text
//! cargo run --release -p shardwright-test-checkpoints --example real_checkpoint -- NAME DIRECTORY [GGUF]
//! ```

use std::path::Path;
use std::process::ExitCode;

use shardwright_test_checkpoints::{REAL_SHAPES, real_shape, write_gguf, write_real};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ([name, directory] | [name, directory, _]) = arguments.as_slice() else {
        eprintln!("real_checkpoint NAME DIRECTORY [GGUF]; names: {}", REAL_SHAPES.join(", "));
        return ExitCode::from(2);
    };
    let Some(spec) = real_shape(name) else {
        eprintln!("there is no shape {name}; there are {}", REAL_SHAPES.join(", "));
        return ExitCode::from(2);
    };
    let directory = Path::new(directory);
    let made =
        std::fs::create_dir_all(directory).and_then(|()| write_real(&spec, directory)).and_then(|()| {
            match arguments.get(2) {
                Some(gguf) => write_gguf(&spec, name, Path::new(gguf)),
                None => Ok(()),
            }
        });
    match made {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", directory.display());
            ExitCode::FAILURE
        }
    }
}
