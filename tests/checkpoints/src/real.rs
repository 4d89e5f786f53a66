use std::io;
use std::path::Path;

use crate::file::{StoredTensor, header};
use crate::pool::Pool;
use crate::tokenizer::Vocabulary;
use crate::{Spec, gguf, resumable};

/// Names of the supported published shapes.
pub const REAL_SHAPES: [&str; 5] = ["gemma3-270m", "gemma3-1b", "gemma4-e2b", "gemma4-e4b", "qwen3-0.6b"];

/// Returns a published shape by its name.
pub fn real_shape(name: &str) -> Option<Spec> {
    Some(match name {
        "gemma3-270m" => Spec::gemma3_270m(),
        "gemma3-1b" => Spec::gemma3_1b(),
        "gemma4-e2b" => Spec::e2b(),
        "gemma4-e4b" => Spec::e4b(),
        "qwen3-0.6b" => Spec::qwen3_0_6b(),
        _ => return None,
    })
}

/// Writes a checkpoint of a real shape with random weights and a tokenizer of its size into an
/// existing directory, one tensor after the other. If an interrupted call is repeated, it continues
/// where it stopped. A call on a complete checkpoint changes no file.
pub fn write_real(spec: &Spec, directory: &Path) -> io::Result<()> {
    let tensors = spec.tensors();
    let stored: Vec<StoredTensor> = tensors
        .iter()
        .map(|tensor| StoredTensor {
            name: tensor.name.clone(),
            dtype: spec.dtype.to_owned(),
            shape: tensor.shape.clone(),
        })
        .collect();
    let (head, lengths) = header(&stored);
    let mut pool = Pool::new();
    resumable::write(&directory.join("model.safetensors"), &head, &lengths, |index, to| {
        pool.write(spec, &tensors[index], spec.dtype, to)
    })?;
    let tokenizer = Vocabulary::new(spec.vocabulary as usize).json();
    resumable::write(&directory.join("tokenizer.json"), tokenizer.as_bytes(), &[], |_, _| Ok(()))?;
    // Written last: a directory with settings is a complete checkpoint.
    let config = serde_json::to_vec_pretty(&spec.config())?;
    resumable::write(&directory.join("config.json"), &config, &[], |_, _| Ok(()))
}

/// Writes the same weights as a GGUF file in 16-bit floats, with a tokenizer of the same tokens.
/// Like [`write_real`], it continues an interrupted call.
///
/// # Panics
/// For an embedding model.
pub fn write_gguf(spec: &Spec, name: &str, path: &Path) -> io::Result<()> {
    gguf::write(spec, name, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_shapes_have_the_published_numbers_of_parameters() {
        let parameters = |name: &str| -> u64 {
            let tensors = real_shape(name).unwrap().tensors();
            tensors.iter().map(|tensor| tensor.shape.iter().product::<u64>()).sum()
        };
        assert_eq!(parameters("gemma3-270m"), 268_098_176);
        assert_eq!(parameters("gemma3-1b"), 999_885_952);
        assert_eq!(parameters("qwen3-0.6b"), 596_049_920);
        assert!(real_shape("gemma9").is_none());
        assert!(REAL_SHAPES.iter().all(|name| real_shape(name).is_some()));
    }

    #[test]
    fn what_is_pooled_is_the_whole_file_again_after_an_interruption() {
        let spec = Spec { vocabulary: 400, ..Spec::gemma4() };
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write_real(&spec, one.path()).unwrap();
        let whole = std::fs::read(one.path().join("model.safetensors")).unwrap();
        std::fs::write(other.path().join("model.safetensors.partial"), &whole[..whole.len() / 2]).unwrap();
        write_real(&spec, other.path()).unwrap();
        assert!(whole == std::fs::read(other.path().join("model.safetensors")).unwrap());
        assert!(other.path().join("tokenizer.json").is_file() && other.path().join("config.json").is_file());
    }
}
