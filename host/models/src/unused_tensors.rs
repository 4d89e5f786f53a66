//! Classifies every tensor that the model does not read: unable to change a result, refused, or
//! reported.
//!
//! Refused are layers beyond the configured number. The libraries that define the supported
//! families have no such layers, for instance for predicting several tokens. So the configuration
//! and the weights contradict each other.

use std::collections::BTreeMap;

use shardwright_graph::Graph;
use shardwright_vocabulary::{Error, Ignored, Pass, Result, units};

use crate::family::Family;
use crate::json::Fields;
use crate::quantised::{self, Scheme};
use crate::settings::{self, Settings};
use crate::store::{Known, TensorStore};
use crate::tensor_names::HEADS;

/// Field with the number of layers, of a text model and of a tower.
const LAYERS: &str = "num_hidden_layers";

/// Beginning of the names of tensors of layers in a GGUF file, if the family has no such tensor.
const BLOCKS: &str = "blk.";

/// Lines of a report on one store. The last line counts all further groups of tensors.
const LINES: usize = 8;

/// Most bytes of a bias whose values are looked at.
const BIAS_BYTES: u64 = 16 << 20;

/// The tensors of a tower.
struct TowerNames {
    pass: Pass,
    /// The field that describes the tower.
    field: &'static str,
    /// First parts of the names.
    parts: &'static [&'static str],
    /// Beginning of the names of the tower's layers.
    layers: &'static str,
}

const TOWERS: [TowerNames; 2] = [
    TowerNames {
        pass: Pass::Picture,
        field: "vision_config",
        parts: &["vision_tower", "embed_vision", "multi_modal_projector"],
        layers: "vision_tower.encoder.layers.",
    },
    TowerNames {
        pass: Pass::Clip,
        field: "audio_config",
        parts: &["audio_tower", "embed_audio"],
        layers: "audio_tower.layers.",
    },
];

/// The properties of a model that decide whether an unused tensor matters.
pub(crate) struct Reader<'r> {
    pub settings: &'r Settings,
    pub scheme: Option<&'r Scheme>,
    pub graph: &'r Graph,
    /// The graphs of the requested towers.
    pub towers: &'r [Graph],
    /// Prefix of the text model's tensor names.
    pub prefix: &'r str,
}

impl Reader<'_> {
    /// Returns the unused tensors of the model's files that may matter, without tensors of towers.
    /// `top` has the settings.
    ///
    /// # Errors
    ///
    /// If the files have more layers than configured.
    pub fn ignored(&self, store: &TensorStore, top: Fields<'_>) -> Result<Vec<Ignored>> {
        let unused: Vec<Known<'_>> = self.unused(store).collect();
        if !unused.is_empty() {
            for stack in self.stacks(top)? {
                stack.check(store, &unused)?;
            }
        }
        Ok(reported(unused.into_iter().filter(|tensor| tower_of(tensor.name).is_none())))
    }

    /// Returns the unused tensors of a requested tower that may matter. Empty for other towers.
    pub fn ignored_of_tower(&self, store: &TensorStore, pass: Pass) -> Vec<Ignored> {
        reported(self.unused(store).filter(|tensor| tower_of(tensor.name) == Some(pass)))
    }

    /// Returns the unused tensors of a module's files that may matter.
    pub fn ignored_of_module(&self, store: &TensorStore) -> Vec<Ignored> {
        reported(self.unused(store))
    }

    /// Returns the changes of adapters to tensors that may matter and that no graph reads.
    pub fn unread_changes(&self, store: &TensorStore) -> Vec<Ignored> {
        let cannot_matter = |name: &str| {
            self.is_of_unused_tower(name) || self.is_of_shared_keys(name) || self.is_head_of_encoder(name)
        };
        let unread = store.unread_changes().filter(|name| !cannot_matter(name));
        unread.flat_map(|name| store.changes().unread(name)).collect()
    }

    fn unused<'s>(&self, store: &'s TensorStore) -> impl Iterator<Item = Known<'s>> {
        store.known().filter(move |tensor| !tensor.is_used && !self.cannot_matter(tensor))
    }

    /// Checks whether an unused tensor cannot change a result.
    fn cannot_matter(&self, tensor: &Known<'_>) -> bool {
        let name = tensor.name;
        tensor.is_of_projector()
            || self.is_of_unused_tower(name)
            || self.is_of_shared_keys(name)
            || self.is_head_of_encoder(name)
            || self.is_rotary(name)
            || quantised::is_unused_scale(name)
            || self.scheme.is_some_and(|scheme| scheme.leaves_out(name))
            || self.is_zero_bias(tensor)
    }

    /// Checks for a tower whose pass was not requested. Its values are not used in steps of text.
    fn is_of_unused_tower(&self, name: &str) -> bool {
        tower_of(name).is_some_and(|pass| self.towers.iter().all(|graph| graph.pass != pass))
    }

    /// Checks for keys and values of a layer that uses a donor's. Published files store them.
    fn is_of_shared_keys(&self, name: &str) -> bool {
        let Settings::Gemma4 { stack, .. } = self.settings else { return false };
        let layers = format!("{}layers.", self.prefix);
        let Some((layer, part)) = split_layer(name, &layers) else { return false };
        let shares = stack.layers.get(layer as usize).is_some_and(|layer| layer.donor.is_some());
        let module = part.strip_prefix("self_attn.").and_then(|part| part.split('.').next());
        shares && matches!(module, Some("k_proj" | "v_proj" | "k_norm" | "v_norm"))
    }

    /// Checks for an output matrix of a model that has no logits.
    fn is_head_of_encoder(&self, name: &str) -> bool {
        !self.graph.is_generative() && (HEADS.contains(&name) || name == "output.weight")
    }

    /// Checks for frequencies of rotary positions. Old files store them for each layer. In GGUF
    /// files they are a part of the configuration, which is read from them or replaces them.
    fn is_rotary(&self, name: &str) -> bool {
        match name {
            "rope_freqs.weight" => true,
            "rope_factors_short.weight" | "rope_factors_long.weight" => {
                self.settings.family() == Family::Phi3
            }
            _ => name.contains("rotary_emb") && name.ends_with(".inv_freq"),
        }
    }

    /// Checks for a bias that adds zero. Files of AutoGPTQ have one for every matrix, so without
    /// values it counts as zero there.
    fn is_zero_bias(&self, tensor: &Known<'_>) -> bool {
        let is_small = tensor.bytes().is_some_and(|bytes| bytes <= BIAS_BYTES);
        let is_usual = || matches!(self.scheme, Some(Scheme::Gptq(_)));
        tensor.name.ends_with(".bias") && is_small && tensor.is_zero().unwrap_or_else(is_usual)
    }

    /// Returns the stacks of layers that are read.
    fn stacks<'f>(&self, top: Fields<'f>) -> Result<Vec<Stack<'f>>> {
        let model_type = top.text("model_type")?.unwrap_or_default();
        let mut stacks = vec![Stack {
            fields: settings::text_fields(top, model_type)?,
            layers: self.graph.layers(),
            beginnings: [format!("{}layers.", self.prefix), BLOCKS.to_owned()],
        }];
        for graph in self.towers {
            let Some(names) = TOWERS.iter().find(|names| names.pass == graph.pass) else { continue };
            stacks.push(Stack {
                fields: top.object(names.field)?.unwrap_or(top),
                layers: graph.layers(),
                beginnings: ["", "model."].map(|prefix| format!("{prefix}{}", names.layers)),
            });
        }
        Ok(stacks)
    }
}

/// Returns the pass of the tower that a tensor belongs to.
fn tower_of(name: &str) -> Option<Pass> {
    let name = name.strip_prefix("model.").unwrap_or(name);
    let first = name.split('.').next().unwrap_or_default();
    Some(TOWERS.iter().find(|tower| tower.parts.contains(&first))?.pass)
}

/// A stack of layers.
struct Stack<'f> {
    /// The object that specifies the number of layers.
    fields: Fields<'f>,
    layers: u32,
    /// Beginnings of the names of its tensors. The number of the layer follows.
    beginnings: [String; 2],
}

impl Stack<'_> {
    fn layer_of(&self, name: &str) -> Option<u32> {
        self.beginnings.iter().find_map(|beginning| Some(split_layer(name, beginning)?.0))
    }

    /// Refuses unused tensors of layers beyond the last one.
    fn check(&self, store: &TensorStore, unused: &[Known<'_>]) -> Result<()> {
        let layers = unused.iter().filter_map(|tensor| Some((self.layer_of(tensor.name)?, tensor)));
        let beyond = layers.filter(|(layer, _)| *layer >= self.layers);
        let Some((_, first)) = beyond.min_by_key(|(layer, tensor)| (*layer, tensor.name)) else {
            return Ok(());
        };
        let last = store.known().filter_map(|tensor| self.layer_of(tensor.name)).max().unwrap_or(0);
        let (field, configured, stored) = (self.fields.full_name(LAYERS), self.layers, u64::from(last) + 1);
        let (tensor, weights) = (first.stored_name(), first.path().display());
        Err(Error::invalid(format!(
            "`{field}` is {configured}, but the weights have {stored} layers: tensor `{tensor}` of {weights} would be ignored"
        ))
        .at(self.fields.path().display())
        .with_help(format!(
            "set `{field}` to {stored} if the model has these layers; otherwise fetch settings and weight files of the same model"
        )))
    }
}

/// Splits the name of a layer's tensor into the number of the layer and the rest. Only the
/// canonical spelling of the number is accepted.
fn split_layer<'n>(name: &'n str, beginning: &str) -> Option<(u32, &'n str)> {
    let (number, rest) = name.strip_prefix(beginning)?.split_once('.')?;
    let layer: u32 = number.parse().ok()?;
    (layer.to_string() == number).then_some((layer, rest))
}

/// Tensors whose names differ only in numbers.
struct Group<'s> {
    first: Known<'s>,
    count: u64,
    /// Bytes of all. `None` if a header is missing.
    bytes: Option<u64>,
}

impl<'s> Group<'s> {
    fn of(first: Known<'s>) -> Self {
        Group { first, count: 1, bytes: first.bytes() }
    }

    fn add(&mut self, other: &Group<'_>) {
        self.count += other.count;
        self.bytes = self.bytes.zip(other.bytes).map(|(one, other)| one.saturating_add(other));
    }

    /// Returns the line of the report. `like` states what the tensors have in common.
    fn line(&self, like: &str) -> Ignored {
        let more = match self.count {
            1 => String::new(),
            count => format!(", nor {}{like}", units::count(count - 1, "more tensor")),
        };
        let bytes = match (self.bytes, self.count) {
            (None, _) => String::new(),
            (Some(bytes), 1) => format!(" ({})", units::bytes(bytes)),
            (Some(bytes), _) => format!(" ({} in all)", units::bytes(bytes)),
        };
        let reason = format!("the model does not read it{more}{bytes}");
        Ignored::tensor(self.first.path(), self.first.stored_name(), reason)
    }
}

/// Returns a line for each group of tensors, and one for all groups beyond the limit.
fn reported<'s>(tensors: impl IntoIterator<Item = Known<'s>>) -> Vec<Ignored> {
    let mut groups: BTreeMap<String, Group<'s>> = BTreeMap::new();
    for tensor in tensors {
        let own = Group::of(tensor);
        groups.entry(pattern(tensor.name)).and_modify(|group| group.add(&own)).or_insert(own);
    }
    let own_lines = if groups.len() > LINES { LINES - 1 } else { LINES };
    let mut groups = groups.into_values();
    let mut lines: Vec<Ignored> =
        groups.by_ref().take(own_lines).map(|group| group.line(" like it")).collect();
    let rest = groups.reduce(|mut all, group| {
        all.add(&group);
        all
    });
    lines.extend(rest.map(|all| all.line("")));
    lines
}

/// Returns a name with `*` in place of its numbers.
fn pattern(name: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts = name.split('.').map(|part| if is_number(part) { "*" } else { part });
    parts.collect::<Vec<_>>().join(".")
}
