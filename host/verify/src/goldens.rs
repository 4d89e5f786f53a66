//! Recorded outputs: `goldens.safetensors` and the text goldens next to it.
//!
//! For prompt number k the tensors are `pK.input_ids` i64 [T], `pK.hidden` f32 [layers + 1, T, H]
//! (0 is the input of layer 0), `pK.final_norm` f32 [T, H], `pK.per_layer` f32 [T, layers, P],
//! `pK.logits` f32 [T − s, V] from position `pK.logits_start` on, `pK.greedy` i64 [N],
//! `pK.step_top_ids` i64 [N, 5], `pK.step_top_logits` f32 [N, 5], `pK.last_logits` f32 [V], and for
//! encoders `pK.pooled`, `pK.embedding`. All except the ids are optional. Rows of pictures and
//! sounds are described in `recorded_rows`.

use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use serde::Deserialize as _;

use shardwright_checkpoints::unseen_text;
use shardwright_files::read_named;
use shardwright_models::Checkpoint;
use shardwright_vocabulary::{Error, ErrorKind, Pass, Result, UniqueKeys};

use crate::recorded_rows::{KINDS, Kind, PlacedRows, Placing, RecordedFeatures, RecordedPart};
use crate::trace::Given;

/// Largest file of recorded outputs, in bytes: a few prompts of a full-size model's logits. It
/// prevents reading a wrong file whole.
const GOLDEN_BYTES_MAX: u64 = 4 << 30;

/// Largest JSON file next to them, in bytes: lists of texts with their ids.
const LIST_BYTES_MAX: u64 = 256 << 20;

/// Bytes of the length before the header of a safetensors file.
const HEADER_LENGTH_BYTES: usize = 8;

/// A dense f32 array, row-major.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Floats {
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

impl Floats {
    /// Returns the `index`-th part along the first axis.
    pub(crate) fn part(&self, index: usize) -> &[f32] {
        let length: usize = self.shape[1..].iter().product();
        &self.values[index * length..(index + 1) * length]
    }

    /// Returns some of the parts along the first axis.
    pub(crate) fn rows(&self, rows: impl IntoIterator<Item = usize>) -> Floats {
        let mut shape = self.shape.clone();
        let mut values = Vec::new();
        shape[0] = 0;
        for row in rows {
            values.extend_from_slice(self.part(row));
            shape[0] += 1;
        }
        Floats { shape, values }
    }
}

/// The recorded data that a model is compared with.
pub(crate) struct Goldens {
    /// Directory of the recorded outputs, or `None` without them.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) prompts: Vec<Golden>,
    pub(crate) evaluation: Option<Evaluation>,
}

/// Tokens of the built-in text for prompts without recorded outputs: enough to fill entry points of
/// some rows. The plain evaluator needs a fifth of a second for each.
const OWN_TOKENS: usize = 96;
/// Largest number of tokens of such a prompt.
const OWN_LONGEST: usize = 48;

impl Goldens {
    /// Reads the recorded outputs in `directory`. Without a directory, returns prompts of the
    /// built-in text without recorded outputs.
    pub(crate) fn of(directory: Option<&Path>, checkpoint: &Checkpoint) -> Result<Self> {
        match directory {
            Some(directory) => Ok(Goldens {
                directory: Some(directory.to_owned()),
                prompts: read_goldens(directory, &Placing::of(checkpoint)?)?,
                evaluation: read_evaluation(directory)?,
            }),
            None => {
                let text = unseen_text(checkpoint, OWN_TOKENS)?;
                let pieces = text.iter().flat_map(|ids| ids.chunks(OWN_LONGEST));
                let prompts = pieces.map(|ids| Golden { ids: ids.to_vec(), ..Golden::default() }).collect();
                Ok(Goldens { directory: None, prompts, evaluation: None })
            }
        }
    }

    /// Returns the prompts that can be run, with their names.
    pub(crate) fn usable(&self) -> impl Iterator<Item = (String, &Golden)> {
        let named = self.prompts.iter().enumerate().map(|(index, golden)| (format!("p{index}"), golden));
        named.filter(|(_, golden)| golden.lacks.is_none())
    }

    /// Returns the other prompts, each with the reason.
    pub(crate) fn skipped(&self) -> impl Iterator<Item = String> {
        let named = self.prompts.iter().enumerate();
        named.filter_map(|(index, golden)| Some(format!("p{index}: {}", golden.lacks.as_ref()?)))
    }

    /// Returns the recorded inputs and outputs of a tower, with the prompt's name.
    pub(crate) fn parts_of(&self, pass: Pass) -> impl Iterator<Item = (String, &RecordedPart)> {
        let kind = KINDS.iter().position(|kind| kind.pass == pass);
        let named = self.prompts.iter().enumerate();
        named.filter_map(move |(index, golden)| Some((format!("p{index}"), golden.parts[kind?].as_ref()?)))
    }
}

/// Recorded outputs of one prompt.
#[derive(Clone, Debug, Default)]
pub(crate) struct Golden {
    pub(crate) ids: Vec<u32>,
    /// Soft rows in the place of tokens, by position.
    pub(crate) soft: PlacedRows,
    /// Why the prompt cannot be run, if it cannot.
    pub(crate) lacks: Option<String>,
    /// The prompt's own picture and sound, as recorded.
    pub(crate) parts: [Option<RecordedPart>; 2],
    pub(crate) hidden: Option<Floats>,
    pub(crate) final_norm: Option<Floats>,
    pub(crate) per_layer: Option<Floats>,
    pub(crate) logits: Option<Floats>,
    pub(crate) logits_start: usize,
    pub(crate) greedy: Vec<u32>,
    pub(crate) step_top_logits: Option<Floats>,
    pub(crate) last_logits: Option<Floats>,
    pub(crate) pooled: Option<Floats>,
    pub(crate) embedding: Option<Floats>,
}

impl Golden {
    /// Returns the input of the model.
    pub(crate) fn given(&self) -> Given<'_> {
        Given::Tokens { ids: &self.ids, soft: &self.soft }
    }
}

/// Held-out rows with their recorded negative log-likelihood.
#[derive(Clone, Debug)]
pub(crate) struct Evaluation {
    /// Token ids of each row, without padding.
    pub(crate) rows: Vec<Vec<u32>>,
    /// Recorded nats per predicted token over all rows.
    pub(crate) nll: f64,
}

struct File {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl File {
    fn read(path: PathBuf) -> Result<Self> {
        let bytes = read_named(&path, GOLDEN_BYTES_MAX)
            .map_err(|error| error.with_help("pass the directory with goldens.safetensors to --golden"))?;
        Ok(File { path, bytes })
    }

    fn tensors(&self) -> Result<SafeTensors<'_>> {
        let invalid = |error: &dyn std::fmt::Display| invalid(&self.path, error);
        let tensors = SafeTensors::deserialize(&self.bytes).map_err(|error| invalid(&error))?;
        // This reader keeps the last of two tensors with one name. Its header follows the length.
        let header = self.bytes.get(HEADER_LENGTH_BYTES..).unwrap_or_default();
        UniqueKeys::deserialize(&mut serde_json::Deserializer::from_slice(header))
            .map_err(|error| invalid(&error).with_help(UniqueKeys::HELP))?;
        Ok(tensors)
    }

    fn fault(&self, tensor: &str, what: &str) -> Error {
        Error::new(ErrorKind::Invalid, format!("{}: tensor `{tensor}` {what}", self.path.display()))
    }

    fn floats(&self, tensors: &SafeTensors<'_>, name: &str) -> Result<Option<Floats>> {
        let Ok(view) = tensors.tensor(name) else { return Ok(None) };
        if view.dtype() != Dtype::F32 || view.shape().is_empty() {
            return Err(self.fault(name, "is not an array of f32"));
        }
        let values =
            view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        Ok(Some(Floats { shape: view.shape().to_vec(), values }))
    }

    fn integers(&self, tensors: &SafeTensors<'_>, name: &str) -> Result<Option<(Vec<usize>, Vec<i64>)>> {
        let Ok(view) = tensors.tensor(name) else { return Ok(None) };
        if view.dtype() != Dtype::I64 {
            return Err(self.fault(name, "is not an array of i64"));
        }
        let number = |b: &[u8]| i64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]);
        Ok(Some((view.shape().to_vec(), view.data().chunks_exact(8).map(number).collect())))
    }

    fn ids(&self, tensors: &SafeTensors<'_>, name: &str) -> Result<Option<Vec<u32>>> {
        let Some((_, values)) = self.integers(tensors, name)? else { return Ok(None) };
        let ids = values.into_iter().map(u32::try_from).collect::<Result<_, _>>();
        ids.map(Some).map_err(|_| self.fault(name, "contains a number that is not a token id"))
    }

    /// Reads numbers of one byte, or of eight.
    fn flags(&self, tensors: &SafeTensors<'_>, name: &str) -> Result<Option<Vec<i64>>> {
        let Ok(view) = tensors.tensor(name) else { return Ok(None) };
        match view.dtype() {
            Dtype::U8 => Ok(Some(view.data().iter().map(|&byte| byte.into()).collect())),
            _ => Ok(self.integers(tensors, name)?.map(|(_, values)| values)),
        }
    }

    /// Reads the rows of a picture or a sound, and the inputs of its tower if they are recorded.
    fn part(
        &self,
        tensors: &SafeTensors<'_>,
        prompt: usize,
        kind: &Kind,
        placing: &Placing<'_>,
    ) -> Result<Option<RecordedPart>> {
        let name = |what: &str| format!("p{prompt}.{what}");
        let soft = name(&format!("{}.soft", kind.name));
        let Some(mut rows) = self.floats(tensors, &soft)? else { return Ok(None) };
        if rows.shape.len() != 2 {
            return Err(self.fault(&soft, "is not [rows, width]"));
        }
        let mask = name(&format!("{}.mask", kind.name));
        if let Some(valid) = self.flags(tensors, &mask)? {
            if valid.len() != rows.shape[0] {
                return Err(self.fault(&mask, "does not have one number per row"));
            }
            rows = rows.rows((0..valid.len()).filter(|&row| valid[row] != 0));
        }
        let (values, places) = (name(kind.values), name(kind.places.0));
        let given = (self.floats(tensors, &values)?, self.flags(tensors, &places)?);
        let features = match given {
            (Some(values), Some(given)) if given.len() == kind.places.1 * values.shape[0] => {
                Some(RecordedFeatures { values, places: given })
            }
            (Some(_), Some(_)) => {
                return Err(self.fault(&places, "does not have a position for each feature"));
            }
            _ => None,
        };
        Ok(Some(RecordedPart { rows: placing.unscaled(rows), features }))
    }
}

/// Reads every prompt of `goldens.safetensors`.
fn read_goldens(directory: &Path, placing: &Placing<'_>) -> Result<Vec<Golden>> {
    let file = File::read(directory.join("goldens.safetensors"))?;
    let tensors = file.tensors()?;
    let mut goldens = Vec::new();
    let mut last = [None, None];
    while let Some(ids) = file.ids(&tensors, &format!("p{}.input_ids", goldens.len()))? {
        let name = |what: &str| format!("p{}.{what}", goldens.len());
        let floats = |what: &str| file.floats(&tensors, &name(what));
        let logits_start =
            file.integers(&tensors, &name("logits_start"))?.and_then(|(_, v)| v.first().copied());
        let part = |kind| file.part(&tensors, goldens.len(), kind, placing);
        let parts = [part(&KINDS[0])?, part(&KINDS[1])?];
        for (last, part) in last.iter_mut().zip(&parts) {
            if part.is_some() {
                last.clone_from(part);
            }
        }
        let (soft, lacks) = match placing.rows(&ids, &last) {
            Ok(soft) => (soft, None),
            Err(lacks) => (PlacedRows::new(), Some(lacks)),
        };
        let golden = Golden {
            soft,
            lacks,
            parts,
            hidden: floats("hidden")?,
            final_norm: floats("final_norm")?,
            per_layer: floats("per_layer")?,
            logits: floats("logits")?,
            logits_start: logits_start.and_then(|start| usize::try_from(start).ok()).unwrap_or(0),
            greedy: file.ids(&tensors, &name("greedy"))?.unwrap_or_default(),
            step_top_logits: floats("step_top_logits")?,
            last_logits: floats("last_logits")?,
            pooled: floats("pooled")?,
            embedding: floats("embedding")?,
            ids,
        };
        let tokens = golden.ids.len();
        let rows = [(&golden.final_norm, 0), (&golden.per_layer, 0), (&golden.hidden, 1)];
        let misfit = |(array, axis): &(&Option<Floats>, usize)| {
            array.as_ref().is_some_and(|array| array.shape.get(*axis) != Some(&tokens))
        };
        if rows.iter().any(misfit) {
            return Err(file.fault(&name("input_ids"), "and the arrays of its prompt differ in length"));
        }
        if golden
            .logits
            .as_ref()
            .is_some_and(|l| l.shape.len() != 2 || l.shape[0] + golden.logits_start != tokens)
        {
            return Err(
                file.fault(&name("logits"), "does not reach from logits_start to the end of the prompt")
            );
        }
        goldens.push(golden);
    }
    if goldens.is_empty() {
        return Err(file.fault("p0.input_ids", "is missing"));
    }
    Ok(goldens)
}

/// Reads `eval.safetensors` and `eval.json`, if they exist.
fn read_evaluation(directory: &Path) -> Result<Option<Evaluation>> {
    let path = directory.join("eval.safetensors");
    if !path.exists() {
        return Ok(None);
    }
    let file = File::read(path)?;
    let tensors = file.tensors()?;
    let ids = file.integers(&tensors, "input_ids")?.ok_or_else(|| file.fault("input_ids", "is missing"))?;
    let lengths = file.ids(&tensors, "lengths")?.ok_or_else(|| file.fault("lengths", "is missing"))?;
    let [count, width] = ids.0[..] else { return Err(file.fault("input_ids", "is not [rows, tokens]")) };
    if lengths.len() != count || lengths.iter().any(|&length| length as usize > width) {
        return Err(file.fault("lengths", "does not fit `input_ids`"));
    }
    let rows = ids
        .1
        .chunks_exact(width.max(1))
        .zip(&lengths)
        .map(|(row, &length)| row[..length as usize].iter().map(|&id| u32::try_from(id)).collect())
        .collect::<Result<_, _>>()
        .map_err(|_| file.fault("input_ids", "contains a number that is not a token id"))?;

    let path = directory.join("eval.json");
    let json: serde_json::Value = read_json(&path)?;
    let nll = json
        .pointer("/results/all/nll")
        .and_then(serde_json::Value::as_f64)
        .ok_or_else(|| invalid(&path, &"results.all.nll is missing"))?;
    Ok(Some(Evaluation { rows, nll }))
}

/// One text with its ids.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct TokenizerGolden {
    pub(crate) text: String,
    pub(crate) ids: Vec<u32>,
    pub(crate) ids_no_special: Vec<u32>,
    pub(crate) decoded: String,
}

/// One conversation with its rendered prompt.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct ChatGolden {
    pub(crate) messages: serde_json::Value,
    #[serde(default)]
    pub(crate) kw: serde_json::Map<String, serde_json::Value>,
    pub(crate) rendered: String,
    pub(crate) ids: Vec<u32>,
}

/// Reads a JSON list of goldens. A missing file is an empty list.
pub(crate) fn read_list<T: serde::de::DeserializeOwned>(directory: &Path, name: &str) -> Result<Vec<T>> {
    let path = directory.join(name);
    if !path.exists() {
        return Ok(Vec::new());
    }
    read_json(&path)
}

/// Reads a JSON file in which no object has a key twice.
fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text = read_named(path, LIST_BYTES_MAX)?;
    let UniqueKeys = serde_json::from_slice(&text).map_err(|error: serde_json::Error| {
        let is_twice = error.is_data();
        let error = invalid(path, &error);
        if is_twice { error.with_help(UniqueKeys::HELP) } else { error }
    })?;
    serde_json::from_slice(&text).map_err(|error| invalid(path, &error))
}

/// Returns the error of a file with another content than recorded outputs.
fn invalid(path: &Path, what: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Invalid, format!("{}: {what}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_key_is_named_with_its_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let refused = |error: Error, name: &str, key: &str| {
            let text = error.to_string();
            assert!(text.contains(name) && text.contains(&format!("a second key `{key}`")), "{text}");
            assert_eq!((error.kind(), error.help()), (ErrorKind::Invalid, Some(UniqueKeys::HELP)));
        };
        let chat = r#"{"messages": [], "kw": {"a": 1}, "rendered": "", "ids": []}"#;
        let read = |text: &str| {
            std::fs::write(path("chat_goldens.json"), format!("[{text}]")).expect("written");
            read_list::<ChatGolden>(folder.path(), "chat_goldens.json")
        };
        assert_eq!(read(chat).expect("a list").len(), 1);
        for (once, twice, key) in [
            ("{\"a\": 1}", "{\"a\": 1, \"a\": 2}", "a"),
            ("[]", "[{\"role\": \"user\", \"role\": \"tool\"}]", "role"),
            ("\"ids\"", "\"more\": 1, \"more\": 2, \"ids\"", "more"),
        ] {
            refused(read(&chat.replacen(once, twice, 1)).expect_err(key), "chat_goldens.json", key);
        }
        std::fs::write(path("eval.json"), r#"{"results": {"all": {"nll": 1.0, "nll": 2.0}}}"#)
            .expect("written");
        let error = read_json::<serde_json::Value>(&path("eval.json")).expect_err("two");
        refused(error, "eval.json", "nll");
    }

    #[test]
    fn a_second_tensor_is_named_with_its_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("goldens.safetensors");
        let tensor = r#"{"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}"#;
        let read = |header: &str| {
            let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
            bytes.extend_from_slice(header.as_bytes());
            bytes.push(7);
            std::fs::write(&path, bytes).expect("written");
            let file = File::read(path.clone())?;
            file.tensors().map(|tensors| tensors.len())
        };
        assert_eq!(read(&format!(r#"{{"a": {tensor}}}"#)).expect("one"), 1);
        let error = read(&format!(r#"{{"a": {tensor}, "a": {tensor}}}"#)).expect_err("two");
        let text = error.to_string();
        assert!(text.contains("goldens.safetensors") && text.contains("a second key `a`"), "{text}");
        assert_eq!((error.kind(), error.help()), (ErrorKind::Invalid, Some(UniqueKeys::HELP)));
    }
}
