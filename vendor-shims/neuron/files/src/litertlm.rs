//! A `.litertlm`: models, tokenizer and settings of a language model in one file.
//!
//! The file starts with `LITERTLM` and three u32 of the version. The end of the header is a u64 at
//! 24. A FlatBuffer starts at 32. Its tables, with field numbers:
//!
//! * `LiteRTLMMetaData`: 0 `system_metadata` (0 `entries`), 1 `section_metadata` (0 `objects`)
//! * `SectionObject`: 0 `items`, 1 `begin_offset: u64`, 2 `end_offset: u64`, 3 `data_type: u8`
//! * `KeyValue`: 0 `key`, 1 and 2 `value`
//!
//! Sections start at multiples of 16384. Third-party readers check only the major version, and so
//! does this one.

use serde::Serialize;

use crate::blob::Compilation;
use crate::budget::Budget;
use crate::bytes::Bytes;
use crate::flatbuffer::Table;
use crate::tflite::{self, Tflite, shown};
use crate::{ContainerError, Result};

/// First bytes of a file.
pub const MAGIC: &[u8; 8] = b"LITERTLM";
/// The major version that is read.
const MAJOR: u32 = 1;
/// Offset of the header's FlatBuffer.
const HEADER: usize = 32;
/// Maximum length of a header in bytes. Observed headers have one or two thousand.
const MAX_HEADER: u64 = 16 << 20;
/// Maximum number of sections of a file. Published files have about ten.
const MAX_SECTIONS: usize = 256;
/// Maximum number of keys and values of a section or file.
const MAX_ITEMS: usize = 256;
/// Alignment of sections in bytes.
const ALIGNMENT: u64 = 16 << 10;

/// Names of the kinds of sections, by number.
const KINDS: [&str; 12] = [
    "none",
    "generic-binary",
    "deprecated",
    "tflite-model",
    "sentencepiece-tokenizer",
    "llm-metadata",
    "hugging-face-tokenizer",
    "tflite-weights",
    "embedding-metadata",
    "executor-metadata",
    "tts-metadata",
    "asr-metadata",
];
/// Kind of the sections that are read: models.
const MODEL: u8 = 3;

/// A parsed file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiteRtLm {
    /// Version as major, minor, patch.
    pub version: [u32; 3],
    /// Metadata of the file.
    pub system: Vec<Item>,
    /// Sections in the file's order.
    pub sections: Vec<Section>,
}

/// A key and a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Item {
    pub key: String,
    /// The value as text.
    pub value: String,
}

/// A section of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Number of the section's kind.
    pub kind: u8,
    /// Metadata of the section.
    pub items: Vec<Item>,
    /// Offset of the first byte.
    pub begin: u64,
    /// Offset one past the last byte.
    pub end: u64,
    /// The model, if the section contains one.
    pub model: Option<Tflite>,
}

/// Returns whether the bytes start with [`MAGIC`].
pub fn is(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Reads a file.
///
/// # Errors
///
/// For another major version, for sections outside the file or that overlap, and for damaged
/// models.
pub fn read(bytes: Bytes<'_>, budget: &mut Budget) -> Result<LiteRtLm> {
    let version = [8, 12, 16].map(|at| bytes.u32(at, "version"));
    let [major, minor, patch] = version;
    let version = [major?, minor?, patch?];
    if version[0] != MAJOR {
        return Err(ContainerError::UnknownVersion {
            what: "LiteRT-LM file",
            offset: bytes.offset(8),
            version: format!("{}.{}.{}", version[0], version[1], version[2]),
            supported: "1",
        });
    }
    let end = bytes.u64(24, "end of the header")?;
    let Some(length) = end.checked_sub(HEADER as u64).filter(|length| *length <= MAX_HEADER) else {
        return Err(bytes.malformed(24, "end of the header", format!("{end} is not a valid offset")));
    };
    let header = bytes.slice_u64(HEADER as u64, length, "header")?;
    let root = Table::root(header)?;
    let system = match root.table(0)? {
        Some(table) => items(&table, budget)?,
        None => Vec::new(),
    };
    let mut file = LiteRtLm { version, system, sections: Vec::new() };
    if let Some(objects) = root.table(1)?.map(|table| table.tables(0)).transpose()?.flatten() {
        for object in objects.all("sections", MAX_SECTIONS)? {
            let object = object?;
            budget.entries(1, object.offset())?;
            let section = Section {
                kind: object.u8(3)?.unwrap_or(0),
                items: items(&object, budget)?,
                begin: object.u64(1)?.unwrap_or(0),
                end: object.u64(2)?.unwrap_or(0),
                model: None,
            };
            let refused = |reason: &str| ContainerError::Malformed {
                what: "section",
                offset: object.offset(),
                reason: format!("it extends from {} to {}, {reason}", section.begin, section.end),
            };
            if section.end < section.begin || section.begin < end {
                return Err(refused("which is backwards or within the header"));
            }
            bytes.slice_u64(section.begin, section.end - section.begin, "section")?;
            let overlaps = |other: &Section| other.begin < section.end && section.begin < other.end;
            if file.sections.iter().any(overlaps) {
                return Err(refused("which overlaps another section"));
            }
            file.sections.push(section);
        }
    }
    for section in file.sections.iter_mut().filter(|section| section.kind == MODEL) {
        let part = bytes.slice_u64(section.begin, section.end - section.begin, "section")?;
        if part.is_empty() {
            return Err(ContainerError::Empty { what: "model", offset: part.offset(0) });
        }
        if !tflite::is(part.get()) {
            return Err(part.malformed(4, "model", "its first bytes are not those of a model"));
        }
        section.model = Some(tflite::read(part, budget)?);
    }
    Ok(file)
}

/// Reads keys and values. They are the first field of both kinds of tables that have them.
fn items(table: &Table<'_>, budget: &mut Budget) -> Result<Vec<Item>> {
    let Some(entries) = table.tables(0)? else { return Ok(Vec::new()) };
    let mut items = Vec::new();
    for entry in entries.all("keys and values", MAX_ITEMS)? {
        let entry = entry?;
        budget.entries(1, entry.offset())?;
        let key = entry.text(0)?.map(shown).unwrap_or_default();
        let kind = entry.u8(1)?.unwrap_or(0);
        let value = match entry.table(2)? {
            Some(table) => value(&table, kind)?,
            None => String::new(),
        };
        items.push(Item { key, value });
    }
    Ok(items)
}

/// Reads a value by the number of its kind. An absent number is zero.
fn value(table: &Table<'_>, kind: u8) -> Result<String> {
    Ok(match kind {
        1 => table.u8(0)?.unwrap_or(0).to_string(),
        2 => table.i8(0)?.unwrap_or(0).to_string(),
        3 => table.u16(0)?.unwrap_or(0).to_string(),
        4 => table.i16(0)?.unwrap_or(0).to_string(),
        5 => table.u32(0)?.unwrap_or(0).to_string(),
        6 => table.i32(0)?.unwrap_or(0).to_string(),
        7 => table.f32(0)?.unwrap_or(0.0).to_string(),
        8 => (table.u8(0)?.unwrap_or(0) != 0).to_string(),
        9 => table.text(0)?.map(shown).unwrap_or_default(),
        10 => table.u64(0)?.unwrap_or(0).to_string(),
        11 => table.i64(0)?.unwrap_or(0).to_string(),
        12 => table.f64(0)?.unwrap_or(0.0).to_string(),
        other => format!("a value of kind {other}"),
    })
}

/// Report on a file.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    version: String,
    system: Vec<Item>,
    sections: Vec<SectionDocument>,
}

#[derive(Clone, Debug, Serialize)]
struct SectionDocument {
    kind: String,
    offset: u64,
    bytes: u64,
    items: Vec<Item>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<tflite::Document>,
}

impl Section {
    /// Returns the name of the section's kind.
    pub fn kind_name(&self) -> String {
        KINDS
            .get(usize::from(self.kind))
            .map_or_else(|| format!("kind {}", self.kind), |name| (*name).to_owned())
    }

    /// Returns the section's name: its `model_type`, otherwise its kind.
    pub fn name(&self) -> String {
        let said = self.items.iter().find(|item| item.key == "model_type");
        said.map_or_else(|| self.kind_name(), |item| item.value.clone())
    }
}

impl LiteRtLm {
    /// Creates the report on the file.
    pub fn document(&self) -> Document {
        let section = |section: &Section| SectionDocument {
            kind: section.kind_name(),
            offset: section.begin,
            bytes: section.end - section.begin,
            items: section.items.clone(),
            model: section.model.as_ref().map(Tflite::document),
        };
        let [major, minor, patch] = self.version;
        Document {
            version: format!("{major}.{minor}.{patch}"),
            system: self.system.clone(),
            sections: self.sections.iter().map(section).collect(),
        }
    }

    /// Lists the compiler, chip and options of each model.
    pub fn compilations(&self) -> Vec<Compilation> {
        let mut found = Vec::new();
        for section in &self.sections {
            for mut compilation in section.model.iter().flat_map(Tflite::compilations) {
                compilation.name = format!("{} {}", section.name(), compilation.name);
                found.push(compilation);
            }
        }
        found
    }

    /// Lists anomalies, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut found = Vec::new();
        for section in &self.sections {
            let name = section.name();
            if section.begin % ALIGNMENT != 0 {
                found.push(format!(
                    "{name}: it begins at {}, which is not a multiple of {ALIGNMENT}",
                    section.begin
                ));
            }
            // Embedders and similar models are intended to stay outside. Sections that request an
            // NPU are not.
            let wants_npu = section
                .items
                .iter()
                .any(|item| item.key == "backend_constraint" && item.value.eq_ignore_ascii_case("npu"));
            if let Some(model) = &section.model {
                let dispatched = !model.dispatches.is_empty();
                if dispatched || wants_npu || model.stamp.is_some() {
                    found.extend(model.warnings().into_iter().map(|warning| format!("{name}: {warning}")));
                }
            }
        }
        let models = self.sections.iter().filter_map(|section| section.model.as_ref());
        if !models.clone().any(|model| !model.dispatches.is_empty()) {
            found.push("none of its models was compiled for an accelerator".to_owned());
        }
        found
    }
}
