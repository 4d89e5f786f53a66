//! Losses of formats and file types on published models, as `bench quality` stored them.

use std::fs;
use std::io;

use serde_json::Value;

use super::results;
use crate::error::Error;
use crate::workspace::Workspace;

/// Subcommand that measures losses, and name of the file with its figures.
pub const NAME: &str = "quality";

/// Programs of the figures.
pub const BY_PEER: &str = "llama.cpp";
pub const BY_US: &str = "shardwright";

/// Figures of `bench quality`, in thousandths of a nat of KL divergence per token.
pub struct Losses(Value);

impl Losses {
    /// Reads the stored figures. Without a file, no loss is known.
    pub fn read(workspace: &Workspace) -> Result<Losses, Error> {
        let path = results(workspace).join(format!("{NAME}.json"));
        match fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(figures) => Ok(Losses(figures)),
                Err(error) => Err(Error::Unexpected { path, problem: error.to_string() }),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                eprintln!("no losses are known: `cargo xtask bench quality` measures them");
                Ok(Losses(Value::Null))
            }
            Err(source) => Err(Error::File { path, source }),
        }
    }

    #[cfg(test)]
    pub fn of(figures: Value) -> Losses {
        Losses(figures)
    }

    /// Returns the loss of a file in llama.cpp.
    pub fn peer(&self, model: &str, file: &str) -> Option<f64> {
        self.find(|row| row["by"] == BY_PEER && row["model"] == model && row["format"] == file)
    }

    /// Returns the loss of our formats. With a file, its weights are used as stored, whatever their
    /// formats are called.
    pub fn ours(&self, model: &str, file: Option<&str>, formats: &str) -> Option<f64> {
        // The formats of activations and states.
        let values = |formats: &str| formats.split_once('/').map(|(_, values)| values.to_owned());
        self.find(|row| {
            let own = row["format"].as_str().unwrap_or_default();
            let is_same = match file {
                Some(_) => values(own) == values(formats),
                None => own == formats,
            };
            row["by"] == BY_US && row["model"] == model && row["file"].as_str() == file && is_same
        })
    }

    fn find(&self, is_it: impl Fn(&Value) -> bool) -> Option<f64> {
        let mut rows = self.0["rows"].as_array()?.iter();
        rows.find(|row| is_it(row))?["millinats"].as_f64()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_loss_is_of_the_model_the_file_and_the_formats() {
        let losses = Losses::of(json!({ "rows": [
            { "model": "m", "by": "llama.cpp", "format": "Q8_0", "millinats": 2.5 },
            { "model": "m", "by": "shardwright", "format": "w8-block32/f32/f32", "millinats": 0.5 },
            {
                "model": "m", "by": "shardwright", "file": "Q8_0", "format": "as-stored/f32/f32",
                "millinats": 0.25,
            },
        ] }));
        assert_eq!((losses.peer("m", "Q8_0"), losses.peer("m", "Q4_0")), (Some(2.5), None));
        assert_eq!((losses.peer("other", "Q8_0"), losses.peer("m", "w8-block32/f32/f32")), (None, None));
        assert_eq!(losses.ours("m", None, "w8-block32/f32/f32"), Some(0.5));
        assert_eq!(losses.ours("m", Some("Q8_0"), "w8-block32/f32/f32"), Some(0.25));
        assert_eq!(losses.ours("m", Some("Q8_0"), "w8-block32/a8-dynamic/f32"), None);
        assert_eq!(losses.ours("m", Some("Q4_0"), "as-stored/f32/f32"), None);
        assert_eq!(Losses::of(Value::Null).peer("m", "Q8_0"), None);
    }
}
