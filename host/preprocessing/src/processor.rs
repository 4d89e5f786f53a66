//! A checkpoint's settings, in the files of Hugging Face's processors.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};
use shardwright_vocabulary::{Error, Ignored, Result, UniqueKeys};

use crate::{PictureSettings, SoundSettings, file, limits};

/// A checkpoint's settings for pictures and sounds.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessorSettings {
    /// Settings for pictures. `None` if the checkpoint has none.
    pub picture: Option<PictureSettings>,
    /// Settings for sounds. `None` if the checkpoint has none.
    pub sound: Option<SoundSettings>,
    /// Unknown fields of `processor_config.json` outside of the objects for pictures and sounds.
    pub ignored: Vec<Ignored>,
}

/// The current file: one object for pictures, one for sounds.
const NESTED: &str = "processor_config.json";
/// The older file: the fields of both at the top level.
const FLAT: &str = "preprocessor_config.json";

/// Milliseconds of sound per soft token. Towers support no other number.
const TOKEN_MILLISECONDS: f64 = 40.0;

/// Objects of the current file. The one for films is unused: films are not read.
const OBJECTS: &[&str] = &["image_processor", "feature_extractor", "video_processor"];

/// Fields that cannot change patches or frames: names of Python's classes and files, and a number
/// of soft tokens that the processors of Gemma 4 do not use.
const NAMES: &[&str] = &["processor_class", "image_seq_length", "auto_map", "_name_or_path"];
/// Further fields that cannot change patches, except for the first two, which are checked. The
/// budget of soft tokens decides the size of a picture, not `size`. Pictures are not cropped. The
/// last four fields concern arrays and devices of Python.
const PICTURE_NAMES: &[&str] = &[
    "image_processor_type",
    "data_format",
    "size",
    "default_to_square",
    "crop_size",
    "input_data_format",
    "device",
    "return_tensors",
    "disable_grouping",
];
/// Further fields that cannot change frames, except for the first, which is checked. Frames are not
/// masked, since only valid ones are computed. Emphasis is refused.
const SOUND_NAMES: &[&str] =
    &["feature_extractor_type", "return_attention_mask", "preemphasis_htk_flavor", "return_tensors"];

impl ProcessorSettings {
    /// Reads `processor_config.json` of a checkpoint's directory, and for pictures or sounds that
    /// it does not describe the older `preprocessor_config.json`. Missing fields have the library's
    /// defaults. A field of pictures or sounds that is unknown or requires an unsupported feature
    /// is refused. Other unknown fields are listed in [`ProcessorSettings::ignored`]. `None` if
    /// both files are missing.
    ///
    /// # Errors
    ///
    /// If a file cannot be read or is not JSON, or a field is invalid or unsupported. The error
    /// names the file and the field.
    pub fn read(directory: impl AsRef<Path>) -> Result<Option<Self>> {
        let directory = directory.as_ref();
        Self::from_files(directory, |name| match file::read(&directory.join(name), limits::SETTINGS_BYTES) {
            Err(error) if error.is_not_found() => Ok(None),
            bytes => bytes.map(Some),
        })
    }

    /// Like [`ProcessorSettings::read`], but gets the bytes of files from `read`, which returns
    /// `None` for a missing file. Errors name the files as files of `directory`.
    ///
    /// # Errors
    ///
    /// The errors of [`ProcessorSettings::read`] and of `read`.
    pub fn from_files(
        directory: &Path,
        read: impl Fn(&str) -> Result<Option<Vec<u8>>>,
    ) -> Result<Option<Self>> {
        let open = |name: &str| {
            let origin = directory.join(name).display().to_string();
            read(name)?.map(|bytes| Object::parse(origin, &bytes)).transpose()
        };
        let nested = open(NESTED)?;
        let whole = nested.as_ref().map(|(origin, map)| Object { origin, path: "", map });
        let mut settings = ProcessorSettings { picture: None, sound: None, ignored: Vec::new() };
        if let Some(top) = &whole {
            let (picture, sound) = (top.object("image_processor")?, top.object("feature_extractor")?);
            settings.picture = picture.map(|fields| picture_settings(&fields, &[])).transpose()?;
            settings.sound = sound.map(|fields| sound_settings(&fields, &[])).transpose()?;
            settings.ignored = top.ignored(&[OBJECTS, PROCESSOR_FIELDS, NAMES]);
        }
        if settings.picture.is_none() || settings.sound.is_none() {
            match (open(FLAT)?, &whole) {
                (Some((origin, map)), _) => {
                    settings.complete(&Object { origin: &origin, path: "", map: &map })?
                }
                (None, Some(_)) => {}
                (None, None) => return Ok(None),
            }
        }
        if let Some(top) = &whole {
            settings.sound = settings.sound.map(|sound| limited(top, sound)).transpose()?;
        }
        Ok(Some(settings))
    }

    /// Adds the settings of the older file for pictures and sounds that have none so far.
    fn complete(&mut self, fields: &Object) -> Result<()> {
        let others =
            [PICTURE_FIELDS, PICTURE_NAMES, SOUND_FIELDS, SOUND_NAMES, PROCESSOR_FIELDS, NAMES].concat();
        fields.expect_known(&[others.as_slice()])?;
        let any = |names: &[&str]| names.iter().any(|name| fields.get(name).is_some());
        if self.picture.is_none() && (any(&["image_processor_type"]) || any(PICTURE_FIELDS)) {
            self.picture = Some(picture_settings(fields, &others)?);
        }
        if self.sound.is_none() && (any(&["feature_extractor_type"]) || any(SOUND_FIELDS)) {
            self.sound = Some(limited(fields, sound_settings(fields, &others)?)?);
        }
        Ok(())
    }
}

/// The fields of the processor as a whole that are used.
const PROCESSOR_FIELDS: &[&str] = &["audio_seq_length", "audio_ms_per_token"];

/// The fields of pictures that are used.
const PICTURE_FIELDS: &[&str] = &[
    "do_resize",
    "do_rescale",
    "do_normalize",
    "do_convert_rgb",
    "do_center_crop",
    "do_pad",
    "resample",
    "rescale_factor",
    "image_mean",
    "image_std",
    "patch_size",
    "pooling_kernel_size",
    "max_soft_tokens",
];

fn picture_settings(fields: &Object, others: &[&str]) -> Result<PictureSettings> {
    fields.expect_known(&[PICTURE_FIELDS, PICTURE_NAMES, NAMES, others])?;
    const TYPES: [&str; 3] = ["Gemma4ImageProcessor", "Gemma4ImageProcessorFast", "Gemma4ImageProcessorPil"];
    fields.expect_text("image_processor_type", &TYPES)?;
    fields.expect_text("data_format", &["channels_first"])?;
    for (name, needed) in [
        ("do_resize", true),
        ("do_rescale", true),
        ("do_convert_rgb", true),
        ("do_center_crop", false),
        ("do_pad", false),
    ] {
        fields.expect_flag(name, needed)?;
    }
    fields.expect_number("resample", 3.0, "3, bicubic")?;
    fields.expect_number("rescale_factor", 1.0 / 255.0, "1/255")?;
    if fields.flag("do_normalize")?.unwrap_or(false) {
        fields.expect_all("image_mean", 0.0)?;
        fields.expect_all("image_std", 1.0)?;
    }
    let usual = PictureSettings::default();
    let budget = "max_soft_tokens";
    let soft_tokens = fields.count(budget, limits::SOFT_TOKENS)?.unwrap_or(usual.soft_tokens);
    if !PictureSettings::BUDGETS.contains(&soft_tokens) {
        let budgets = PictureSettings::BUDGETS.map(|budget| budget.to_string());
        return Err(fields.invalid(budget, &format!("one of {}", budgets.join(", "))));
    }
    Ok(PictureSettings {
        patch: fields.count("patch_size", limits::PATCH)?.unwrap_or(usual.patch),
        pool: fields.count("pooling_kernel_size", limits::POOL)?.unwrap_or(usual.pool),
        soft_tokens,
    })
}

/// The fields of sounds that are used.
const SOUND_FIELDS: &[&str] = &[
    "feature_size",
    "sampling_rate",
    "frame_length",
    "frame_length_ms",
    "hop_length",
    "hop_length_ms",
    "fft_length",
    "fft_overdrive",
    "min_frequency",
    "max_frequency",
    "mel_floor",
    "preemphasis",
    "dither",
    "input_scale_factor",
    "padding_side",
    "padding_value",
    "per_bin_mean",
    "per_bin_stddev",
];

fn sound_settings(fields: &Object, others: &[&str]) -> Result<SoundSettings> {
    fields.expect_known(&[SOUND_FIELDS, SOUND_NAMES, NAMES, others])?;
    fields.expect_text("feature_extractor_type", &["Gemma4AudioFeatureExtractor"])?;
    fields.expect_text("padding_side", &["right"])?;
    fields.expect_flag("fft_overdrive", false)?;
    for name in ["preemphasis", "dither", "padding_value"] {
        fields.expect_number(name, 0.0, "0")?;
    }
    fields.expect_number("input_scale_factor", 1.0, "1")?;
    for name in ["per_bin_mean", "per_bin_stddev"] {
        if fields.get(name).is_some() {
            return Err(fields.unsupported(name, "null"));
        }
    }
    let usual = SoundSettings::default();
    let rate = fields.count("sampling_rate", limits::FEATURE_RATE)?.unwrap_or(usual.rate);
    let samples = |name: &str, in_milliseconds: &str, milliseconds: f64| {
        if let Some(samples) = fields.count(name, limits::FRAME)? {
            return Ok(samples);
        }
        let milliseconds = fields.number(in_milliseconds)?.unwrap_or(milliseconds);
        let samples = (f64::from(rate) * milliseconds / 1000.0).round_ties_even();
        // The cast saturates, and values out of range are refused.
        let samples = samples as u32;
        if limits::FRAME.contains(&samples) {
            return Ok(samples);
        }
        let (least, most) = (limits::FRAME.start(), limits::FRAME.end());
        Err(fields.invalid(in_milliseconds, &format!("{least} to {most} samples")))
    };
    let frame = samples("frame_length", "frame_length_ms", 20.0)?;
    let sound = SoundSettings {
        rate,
        frame,
        hop: samples("hop_length", "hop_length_ms", 10.0)?,
        transform: fields
            .count("fft_length", limits::TRANSFORM)?
            .unwrap_or_else(|| frame.next_power_of_two()),
        bins: fields.count("feature_size", limits::BINS)?.unwrap_or(usual.bins),
        lowest_hertz: fields.number("min_frequency")?.unwrap_or(usual.lowest_hertz),
        highest_hertz: fields.number("max_frequency")?.unwrap_or(usual.highest_hertz),
        floor: fields.number("mel_floor")?.unwrap_or(usual.floor),
        longest: rate.saturating_mul(30),
    };
    // Checks conditions that concern several fields.
    sound.expect_in_range().map_err(|(name, expected, _)| {
        let field = match name {
            "transform" => "fft_length",
            "lowest_hertz" => "min_frequency",
            "highest_hertz" => "max_frequency",
            "floor" => "mel_floor",
            name => name,
        };
        fields.invalid(field, &expected)
    })?;
    Ok(sound)
}

/// Returns the settings with the longest clip that the processor as a whole allows.
fn limited(top: &Object, sound: SoundSettings) -> Result<SoundSettings> {
    top.expect_number("audio_ms_per_token", TOKEN_MILLISECONDS, "40")?;
    let tokens = top.count("audio_seq_length", 1..=1 << 20)?;
    let frames = tokens.map(|tokens| tokens.saturating_mul(SoundSettings::FRAMES_PER_SOFT_TOKEN as u32));
    let longest = frames.map_or(sound.longest, |frames| frames.saturating_mul(sound.hop).min(sound.longest));
    Ok(SoundSettings { longest, ..sound })
}

/// An object of a settings file.
struct Object<'a> {
    origin: &'a str,
    /// The names of the objects around it, each followed by a dot.
    path: &'static str,
    map: &'a Map<String, Value>,
}

impl<'a> Object<'a> {
    fn parse(origin: String, bytes: &[u8]) -> Result<(String, Map<String, Value>)> {
        if let Err(error) = serde_json::from_slice::<UniqueKeys>(bytes)
            && error.is_data()
        {
            return Err(Error::invalid(error.to_string()).at(origin).with_help(UniqueKeys::HELP));
        }
        match serde_json::from_slice(bytes) {
            Ok(map) => Ok((origin, map)),
            Err(error) => Err(Error::invalid(format!("not valid JSON: {error}")).at(origin).with_help(
                "download the file again; it may be truncated, or a pointer to a file in large-file storage",
            )),
        }
    }

    /// Returns a field that is present and not null.
    fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn field(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    fn found(&self, name: &str) -> String {
        const SHOWN: usize = 60;
        let text = self.map.get(name).map_or_else(|| "missing".to_owned(), Value::to_string);
        match text.char_indices().nth(SHOWN) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text,
        }
    }

    fn invalid(&self, name: &str, expected: &str) -> Error {
        let (field, found) = (self.field(name), self.found(name));
        Error::invalid(format!("`{field}` should be {expected}, but is {found}"))
            .at(self.origin)
            .with_help(format!("correct `{field}`, or remove it to use the default"))
    }

    fn unsupported(&self, name: &str, supported: &str) -> Error {
        let (field, found) = (self.field(name), self.found(name));
        Error::unsupported(format!("`{field}` is {found}, which is not supported"))
            .at(self.origin)
            .with_help(format!("supported: {supported}"))
    }

    fn object(&self, name: &'static str) -> Result<Option<Object<'a>>> {
        let path = if name == "image_processor" { "image_processor." } else { "feature_extractor." };
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Object { origin: self.origin, path, map })),
            Some(_) => Err(self.invalid(name, "an object")),
        }
    }

    fn flag(&self, name: &str) -> Result<Option<bool>> {
        self.get(name)
            .map(|value| value.as_bool().ok_or_else(|| self.invalid(name, "true or false")))
            .transpose()
    }

    fn number(&self, name: &str) -> Result<Option<f64>> {
        self.get(name).map(|value| value.as_f64().ok_or_else(|| self.invalid(name, "a number"))).transpose()
    }

    fn count(&self, name: &str, range: std::ops::RangeInclusive<u32>) -> Result<Option<u32>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
        match count.filter(|count| range.contains(count)) {
            Some(count) => Ok(Some(count)),
            None => Err(self.invalid(name, &format!("a whole number, {} to {}", range.start(), range.end()))),
        }
    }

    fn expect_flag(&self, name: &str, needed: bool) -> Result<()> {
        match self.flag(name)? {
            Some(found) if found != needed => Err(self.unsupported(name, &needed.to_string())),
            _ => Ok(()),
        }
    }

    fn expect_number(&self, name: &str, needed: f64, in_words: &str) -> Result<()> {
        match self.number(name)? {
            // Files write decimal fractions with different numbers of digits.
            Some(found) if (found - needed).abs() > 1e-9 => Err(self.unsupported(name, in_words)),
            _ => Ok(()),
        }
    }

    /// Expects one number for all channels, or a list of them.
    fn expect_all(&self, name: &str, needed: f64) -> Result<()> {
        let is = |value: &Value| value.as_f64() == Some(needed);
        let holds = match self.get(name) {
            None => true,
            Some(Value::Array(list)) => list.iter().all(is),
            Some(value) => is(value),
        };
        if holds { Ok(()) } else { Err(self.unsupported(name, &format!("{needed} for every channel"))) }
    }

    fn expect_text(&self, name: &str, known: &[&str]) -> Result<()> {
        match self.get(name) {
            None => Ok(()),
            Some(Value::String(text)) if known.contains(&text.as_str()) => Ok(()),
            Some(Value::String(_)) => Err(self.unsupported(name, &known.join(", "))),
            Some(_) => Err(self.invalid(name, "a text")),
        }
    }

    /// Refuses fields that are in none of the lists, since ignoring unknown fields could change
    /// results.
    fn expect_known(&self, lists: &[&[&str]]) -> Result<()> {
        match self.unknown(lists).next() {
            Some(name) => Err(self.unsupported(name, "only the fields of Gemma 4's processors")),
            None => Ok(()),
        }
    }

    /// Returns a report for each field that is in none of the lists.
    fn ignored(&self, lists: &[&[&str]]) -> Vec<Ignored> {
        let reason = |name: &str| match name {
            "chat_template" => "templates are read from chat_template.jinja and tokenizer_config.json",
            _ => "the field is not known",
        };
        let unknown = self.unknown(lists);
        unknown.map(|name| Ignored::field(self.origin, self.field(name), reason(name))).collect()
    }

    /// Iterates over the fields that are present and in none of the lists, sorted by name.
    fn unknown(&self, lists: &[&[&str]]) -> impl Iterator<Item = &'a str> {
        let present = self.map.iter().filter(|(_, value)| !value.is_null());
        let names = present.map(|(name, _)| name.as_str());
        let unknown: BTreeSet<&str> =
            names.filter(|name| !lists.iter().any(|list| list.contains(name))).collect();
        unknown.into_iter()
    }
}
