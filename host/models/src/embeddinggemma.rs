//! EmbeddingGemma: a stack without causal mask, followed by one vector per text. The stack is that
//! of Gemma 3 or, in the second version, of Gemma 4.
//!
//! The steps after the stack are read from the sentence-transformers files in the same folder:
//! `modules.json` and a folder per module.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;
use shardwright_graph::{ComponentBuilder, ComponentKind, Dim, Op, Role, WeightId};
use shardwright_vocabulary::{DType, Error, Ignored, Result};

use crate::block::{self, KeysOf, Norm};
use crate::dimensions::Dimensions;
use crate::gemma3::Gemma3;
use crate::gemma4::Gemma4;
use crate::json::{self, CONFIG, Fields, MODULES_FILE};
use crate::limits;
use crate::register::Seen;
use crate::store::{self, TensorStore};
use crate::translation::Translation;

/// Settings of the first module, which is the stack.
const STACK_FILE: &str = "sentence_bert_config.json";

const SUPPORTED_ORDER: &str = "Transformer, Pooling, any number of Dense, Normalize, in this order";

/// The value that modules after the pooling read and write.
const VECTOR: &str = "sentence_embedding";

/// Objects with arguments of Python's constructors and calls.
const ARGUMENTS: [&str; 7] = [
    "model_args",
    "tokenizer_args",
    "config_args",
    "model_kwargs",
    "processor_kwargs",
    "config_kwargs",
    "processing_kwargs",
];

/// The steps that turn the rows of a text into one vector: their mean, then these layers.
pub(crate) struct SentenceModel {
    pub dense: Vec<Dense>,
    /// Whether the vector is divided by its length.
    pub normalize: bool,
    /// The settings files that were read, by name, for the fingerprint.
    pub documents: Vec<(String, Vec<u8>)>,
    /// Fields of modules that may matter and were not read.
    pub ignored: Vec<Ignored>,
}

/// A linear layer, stored in its own folder.
pub(crate) struct Dense {
    folder: String,
    directory: PathBuf,
    inputs: u64,
    outputs: u64,
    bias: bool,
}

impl SentenceModel {
    /// Returns a model that only computes the mean of the rows, as sentence-transformers does with
    /// a checkpoint without modules.
    pub fn mean_only() -> Self {
        SentenceModel { dense: Vec::new(), normalize: false, documents: Vec::new(), ignored: Vec::new() }
    }

    /// Returns the note for reports on a model without modules.
    pub fn note(&self) -> Option<String> {
        let text = "no modules.json: vectors are the mean of the rows, not normalised, as sentence-transformers does \
                    with a bare stack";
        (self.dense.is_empty() && !self.normalize).then(|| text.to_owned())
    }

    /// Reads the modules that a GGUF file contains. Their tensors are named after the modules'
    /// folders.
    pub fn of_gguf(fields: Fields<'_>, hidden: u64) -> Result<Self> {
        let mut model = SentenceModel { normalize: true, ..Self::mean_only() };
        let mut width = hidden;
        for folder in ["2_Dense", "3_Dense"] {
            let Some(module) = fields.object(folder)? else { continue };
            let (inputs, outputs) = read_extents(module, width)?;
            let folder = folder.to_owned();
            model.dense.push(Dense { folder, directory: PathBuf::new(), inputs, outputs, bias: false });
            width = outputs;
        }
        Ok(model)
    }

    /// Reads `modules.json` and the modules that it lists. Returns `None` if neither the file nor
    /// the folder of a module exists.
    pub fn read(directory: &Path, hidden: u64) -> Result<Option<Self>> {
        let path = directory.join(MODULES_FILE);
        let bytes = match json::read_capped(&path, limits::CONFIG_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.is_not_found() && !has_module(directory) => return Ok(None),
            Err(error) => return Err(error),
        };
        let value = json::parse(&path, &bytes)?;
        let Value::Array(modules) = &value else {
            return Err(Error::invalid("not a JSON list").at(path.display()));
        };
        limits::expect_at_most(limits::MODULES, "modules", modules.len(), &path)?;
        let mut model =
            SentenceModel { documents: vec![(MODULES_FILE.to_owned(), bytes)], ..Self::mean_only() };
        let mut width = hidden;
        let mut names = BTreeSet::new();
        for (index, module) in modules.iter().enumerate() {
            let seen = Seen::default();
            let fields = Fields::new(&path, module)?.recorded(&seen);
            // Modules run in the order of the list. A call of the library may pass arguments of
            // these names.
            ["idx", "kwargs"].into_iter().for_each(|name| fields.superseded(name));
            if fields.text("name")?.is_some_and(|name| !names.insert(name.to_owned())) {
                return Err(fields.invalid("name", "is that of an earlier module, which it would replace"));
            }
            let full_type = fields.text("type")?.unwrap_or_default();
            let kind = full_type.rsplit('.').next().unwrap_or_default();
            let folder = fields.text("path")?.unwrap_or_default();
            match (kind, index) {
                ("Transformer", 0) if folder.is_empty() => model.read_stack(directory)?,
                ("Transformer", 0) => {
                    return Err(fields.unsupported("path", "a Transformer in the directory itself"));
                }
                ("Pooling", 1) => model.read_pooling(directory, store::file_name(&path, folder)?, hidden)?,
                ("Dense", 2..) if !model.normalize => {
                    width = model.read_dense(directory, store::file_name(&path, folder)?, width)?;
                }
                ("Normalize", 2..) if index + 1 == modules.len() => {
                    model.read_normalize(directory, store::file_name(&path, folder)?)?;
                }
                _ => return Err(fields.unsupported("type", SUPPORTED_ORDER)),
            }
            model.report(&seen, &path, module, &format!("[{index}]."));
        }
        if modules.len() < 2 {
            let message = format!("lists {} modules, but no pooling", modules.len());
            return Err(Error::invalid(message).at(path.display()));
        }
        Ok(Some(model))
    }

    /// Reads a settings file of a module, keeping its bytes for the fingerprint.
    fn document(&mut self, path: &Path, folder: &str) -> Result<Value> {
        let bytes = json::read_capped(path, limits::CONFIG_BYTES)?;
        let value = json::parse(path, &bytes)?;
        self.documents.push((format!("{folder}/config.json"), bytes));
        Ok(value)
    }

    /// Adds the fields of a module's file that were not read. `within` precedes their names.
    fn report(&mut self, seen: &Seen, path: &Path, value: &Value, within: &str) {
        let unread = seen.ignored(path, value).into_iter().filter_map(|found| found.field);
        let ignored = unread.map(|field| {
            Ignored::field(path, format!("{within}{field}"), "the module does not use this field")
        });
        self.ignored.extend(ignored);
    }

    /// Checks the settings of the stack, which may be missing.
    fn read_stack(&mut self, directory: &Path) -> Result<()> {
        let path = directory.join(STACK_FILE);
        let bytes = match json::read_capped(&path, limits::CONFIG_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
        };
        let value = json::parse(&path, &bytes)?;
        let seen = Seen::default();
        let fields = Fields::new(&path, &value)?.recorded(&seen);
        fields.must_be_off("do_lower_case")?;
        expect_word(fields, "transformer_task", "feature-extraction")?;
        expect_word(fields, "module_output_name", "token_embeddings")?;
        if let Some(inputs) = fields.object("modality_config")? {
            // Other inputs than texts are not read.
            inputs.names().filter(|name| *name != "text").for_each(|name| inputs.superseded(name));
            if let Some(text) = inputs.object("text")? {
                expect_word(text, "method", "forward")?;
                expect_word(text, "method_output_name", "last_hidden_state")?;
            }
        }
        // Texts are not truncated, and padding changes no vector.
        ["max_seq_length", "unpad_inputs"].into_iter().for_each(|name| fields.superseded(name));
        // Empty objects have no effect.
        for name in ARGUMENTS {
            fields.object(name)?;
        }
        self.report(&seen, &path, &value, "");
        Ok(())
    }

    fn read_pooling(&mut self, directory: &Path, folder: &str, hidden: u64) -> Result<()> {
        let path = directory.join(folder).join(CONFIG);
        let value = self.document(&path, folder)?;
        let seen = Seen::default();
        let fields = Fields::new(&path, &value)?.recorded(&seen);
        for name in fields.names().filter(|name| name.starts_with("pooling_mode_")) {
            if fields.flag(name)? == Some(true) && name != "pooling_mode_mean_tokens" {
                return Err(fields.unsupported(name, "pooling_mode_mean_tokens alone"));
            }
        }
        let mean = match fields.text("pooling_mode")? {
            Some("mean") => true,
            Some(_) => return Err(fields.unsupported("pooling_mode", "`mean`")),
            None => fields.flag("pooling_mode_mean_tokens")?.unwrap_or(false),
        };
        if !mean {
            return Err(fields.unsupported("pooling_mode_mean_tokens", "true"));
        }
        if fields.flag("include_prompt")? == Some(false) {
            return Err(fields.unsupported("include_prompt", "true"));
        }
        for name in ["word_embedding_dimension", "embedding_dimension"] {
            let width_field = fields.whole(name, &limits::HIDDEN)?;
            if width_field.is_some_and(|width| width != hidden) {
                return Err(fields.invalid(name, format!("is not the hidden size, {hidden}")));
            }
        }
        self.report(&seen, &path, &value, "");
        Ok(())
    }

    /// Reads a dense layer over `width` values and returns its output width.
    fn read_dense(&mut self, directory: &Path, folder: &str, width: u64) -> Result<u64> {
        let path = directory.join(folder).join(CONFIG);
        let value = self.document(&path, folder)?;
        let seen = Seen::default();
        let fields = Fields::new(&path, &value)?.recorded(&seen);
        let (inputs, outputs) = read_extents(fields, width)?;
        // sentence-transformers uses Tanh if no activation is named.
        let activation = fields.text("activation_function")?.unwrap_or("torch.nn.modules.activation.Tanh");
        // It uses functions of other packages only if the caller trusts them.
        if !(activation.starts_with("torch.") && activation.ends_with(".Identity")) {
            return Err(fields.unsupported("activation_function", "`torch.nn.modules.linear.Identity`"));
        }
        fields.must_be_off("use_residual")?;
        expect_word(fields, "module_input_name", VECTOR)?;
        expect_word(fields, "module_output_name", VECTOR)?;
        self.dense.push(Dense {
            folder: folder.to_owned(),
            directory: directory.join(folder),
            inputs,
            outputs,
            bias: fields.flag("bias")?.unwrap_or(true),
        });
        self.report(&seen, &path, &value, "");
        Ok(outputs)
    }

    /// Reads a division by the length, whose settings may be missing.
    fn read_normalize(&mut self, directory: &Path, folder: &str) -> Result<()> {
        self.normalize = true;
        let path = directory.join(folder).join(CONFIG);
        let value = match self.document(&path, folder) {
            Err(error) if error.is_not_found() => return Ok(()),
            read => read?,
        };
        let seen = Seen::default();
        let fields = Fields::new(&path, &value)?.recorded(&seen);
        expect_word(fields, "module_input_name", VECTOR)?;
        expect_word(fields, "module_output_name", VECTOR)?;
        self.report(&seen, &path, &value, "");
        Ok(())
    }
}

/// Refuses a field with another word than the supported one.
fn expect_word(fields: Fields<'_>, name: &str, supported: &'static str) -> Result<()> {
    match fields.text(name)? {
        Some(word) if word != supported => Err(fields.unsupported(name, supported)),
        _ => Ok(()),
    }
}

/// Checks whether the folder contains the folder of a module, such as `2_Dense`.
fn has_module(directory: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(directory) else { return false };
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        let parts = name.to_str().and_then(|name| name.split_once('_'));
        let is_module = parts.is_some_and(|(number, kind)| {
            let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            is_number && kind.starts_with(|first: char| first.is_ascii_uppercase())
        });
        is_module && entry.path().join(CONFIG).is_file()
    })
}

/// Reads and checks the input and output widths of a dense layer over `width` values.
fn read_extents(fields: Fields<'_>, width: u64) -> Result<(u64, u64)> {
    let extent = |name| {
        let value = fields.whole(name, &limits::HIDDEN)?;
        value.ok_or_else(|| fields.invalid(name, "is missing"))
    };
    let (inputs, outputs) = (extent("in_features")?, extent("out_features")?);
    if inputs != width {
        return Err(fields.invalid("in_features", format!("is {inputs}, but {width} values arrive")));
    }
    Ok((inputs, outputs))
}

/// The layers before the mean.
#[derive(Clone, Copy)]
pub(crate) enum Stack<'s> {
    First(&'s Gemma3),
    /// The stack of Gemma 4, and the ids of placeholder tokens for pictures or sound.
    Second(&'s Gemma4, &'s [u32]),
}

impl Stack<'_> {
    fn dimensions(&self) -> &Dimensions {
        match self {
            Stack::First(stack) => &stack.dimensions,
            Stack::Second(stack, _) => &stack.dimensions,
        }
    }

    fn norm(&self) -> Norm {
        match self {
            Stack::First(stack) => stack.norm(),
            Stack::Second(stack, _) => stack.norm(),
        }
    }

    fn translate(&self, translation: &mut Translation) -> Result<()> {
        match self {
            Stack::First(stack) => stack.stack(translation, KeysOf::Rows, Vec::new()),
            Stack::Second(stack, placeholders) => stack.stack(translation, placeholders),
        }
    }

    /// Reads the stack's linear layer after its last norm. The library applies it to every row.
    /// Applying it to their mean gives the same vector.
    fn projection(&self, translation: &mut Translation) -> Result<Option<(WeightId, u64)>> {
        let Stack::Second(Gemma4 { projection: Some(width), dimensions, .. }, _) = self else {
            return Ok(None);
        };
        let shape = [*width, dimensions.hidden];
        let matrix = translation.weight("embedding_projection.weight", "dense", &shape)?;
        Ok(Some((matrix, *width)))
    }
}

/// Translates the encoder. Also returns the tensor files of its dense layers.
pub(crate) fn translate(
    stack: Stack<'_>,
    sentence: &SentenceModel,
    store: TensorStore,
    name: String,
) -> Result<(Translation, Vec<(String, TensorStore)>)> {
    let Dimensions { hidden, context, .. } = *stack.dimensions();
    let mut translation = Translation::new(store, name, hidden, context)?;
    stack.translate(&mut translation)?;
    let norm_weight = translation.weight("norm.weight", "norm", &[hidden])?;
    let projection = stack.projection(&mut translation)?;
    let mut stores = Vec::new();
    let mut layers = Vec::with_capacity(sentence.dense.len());
    for dense in &sentence.dense {
        // A GGUF file also contains the layers of modules, without a bias.
        let within = format!("{}/linear.weight", dense.folder);
        if translation.has(&within) == Some(true) {
            let matrix = translation.whole_name(&within, "dense", &[dense.outputs, dense.inputs])?;
            if dense.bias {
                return Err(translation.missing(&format!("{}/linear.bias", dense.folder)));
            }
            layers.push((matrix, None, dense.outputs));
            continue;
        }
        let mut store = translation.store_beside(&dense.directory.join("model.safetensors"))?;
        let mut take = |tensor: &str, shape: &[u64]| -> Result<WeightId> {
            let mut weight = store.weight(tensor, "dense", shape)?;
            // Every folder uses the same tensor names, but names in a graph are unique.
            weight.name = format!("{}/{tensor}", dense.folder);
            Ok(translation.push(weight))
        };
        let matrix = take("linear.weight", &[dense.outputs, dense.inputs])?;
        let bias = if dense.bias { Some(take("linear.bias", &[dense.outputs])?) } else { None };
        layers.push((matrix, bias, dense.outputs));
        stores.push((dense.folder.clone(), store));
    }

    let mut builder = ComponentBuilder::new(translation.graph(), ComponentKind::Pooling);
    let stream = block::hidden_input(&mut builder, hidden);
    let normed = stack.norm().apply(&mut builder, "final-norm", stream, Some(norm_weight), hidden);
    builder.tap("final-norm", normed);
    let share = builder.input(Role::Pooling, vec![Dim::Fixed(1), Dim::Rows], DType::F32);
    let one_row = |width| vec![Dim::Fixed(1), Dim::Fixed(width)];
    let mean = Op::MatMul { transpose_b: false };
    let mut vector = builder.op_shaped("pooled", mean, &[share, normed], one_row(hidden));
    builder.tap("pooled", vector);
    let mut width = hidden;
    if let Some((matrix, outputs)) = projection {
        let inputs = [vector, builder.constant(matrix)];
        vector = builder.op_shaped("projected", Op::Linear, &inputs, one_row(outputs));
        builder.tap("projected", vector);
        width = outputs;
    }
    for (index, (matrix, bias, outputs)) in layers.into_iter().enumerate() {
        let name = format!("dense.{}", index + 1);
        let mut inputs = vec![vector, builder.constant(matrix)];
        if let Some(bias) = bias {
            inputs.push(builder.constant(bias));
        }
        vector = builder.op_shaped(&name, Op::Linear, &inputs, one_row(outputs));
        builder.tap(&name, vector);
        width = outputs;
    }
    if sentence.normalize {
        vector = builder.op("normalized", Op::L2Normalize, &[vector]);
    }
    let vector = builder.reshape("embedding", vector, vec![Dim::Fixed(width)]);
    builder.output(vector, Role::Embedding);
    let component = builder.finish()?;
    translation.component(component);
    Ok((translation, stores))
}
