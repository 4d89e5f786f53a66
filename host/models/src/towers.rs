//! Towers: what makes rows for a prompt of pictures and sounds.

mod audio;
mod clipped;
mod vision;

use shardwright_graph::{ComponentBuilder, ComponentKind, Graph, Op, Role, ValueId, WeightId};
use shardwright_vocabulary::Pass;

pub(crate) use audio::Audio;
pub(crate) use vision::Vision;

use crate::CheckpointError;
use crate::block::{self, Norm};
use crate::json::Fields;
use crate::store::TensorStore;
use crate::translation::Translation;

/// The passes of towers, and the field of `config.json` that describes each.
pub(crate) const TOWERS: [(Pass, &str); 2] = [(Pass::Picture, "vision_config"), (Pass::Clip, "audio_config")];

/// The towers that are asked for.
#[derive(Clone, Debug)]
pub(crate) struct Towers {
    vision: Option<Vision>,
    audio: Option<Audio>,
    prompt: Prompt,
}

impl Towers {
    /// Checks the settings of the towers of `passes`; those of others are not looked at.
    pub fn read(top: Fields<'_>, passes: &[Pass], hidden: u64) -> Result<Self, CheckpointError> {
        let [vision, audio] = TOWERS.map(|(pass, name)| match passes.contains(&pass) {
            true => top
                .object(name)?
                .ok_or_else(|| top.invalid(name, "is missing, and its tower is asked for"))
                .map(Some),
            false => Ok(None),
        });
        Ok(Towers {
            vision: vision?.map(Vision::read).transpose()?,
            audio: audio?.map(Audio::read).transpose()?,
            prompt: Prompt { hidden, scale: (hidden as f64).sqrt() as f32 },
        })
    }

    /// A graph for each, and the tensors with the record of which were used.
    pub fn translate(
        &self,
        mut store: TensorStore,
        name: &str,
    ) -> Result<(Vec<Graph>, TensorStore), CheckpointError> {
        let mut graphs = Vec::new();
        if let Some(vision) = &self.vision {
            let (graph, rest) = vision.translate(store, name, self.prompt)?.finish();
            graphs.push(graph);
            store = rest;
        }
        if let Some(audio) = &self.audio {
            let (graph, rest) = audio.translate(store, name, self.prompt)?.finish();
            graphs.push(graph);
            store = rest;
        }
        Ok((graphs, store))
    }
}

/// The rows of the prompt that towers make rows for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prompt {
    /// Values per row.
    hidden: u64,
    /// What the embedding component multiplies rows by.
    scale: f32,
}

/// The name of a tower's tensors: as saved within the whole model, or bare.
fn prefix(translation: &Translation, tower: &str, tensor: &str) -> String {
    let whole = format!("model.{tower}.");
    match translation.has(&format!("{tower}.{tensor}")) {
        Some(true) => format!("{tower}."),
        _ => whole,
    }
}

/// A row of the tower as one of the prompt: normalised without a weight, projected, and divided by
/// what the embedding component multiplies embedding rows by.
fn soft_rows(
    builder: &mut ComponentBuilder<'_>,
    x: ValueId,
    norm: Norm,
    width: u64,
    projection: WeightId,
    prompt: Prompt,
) {
    let x = norm.apply(builder, "projection-norm", x, None, width);
    let x = builder.linear("embedding-projection", x, projection);
    let rows = builder.op("embedding-unscale", Op::MulScalar { value: prompt.scale.recip() }, &[x]);
    builder.output(rows, Role::SoftRows);
}

/// Adds a component whose stream is `hidden` wide and that is made by `build`.
fn component(
    translation: &mut Translation,
    kind: ComponentKind,
    build: impl FnOnce(&mut ComponentBuilder<'_>),
) -> Result<(), CheckpointError> {
    let mut builder = ComponentBuilder::new(translation.graph(), kind);
    build(&mut builder);
    let component = builder.finish()?;
    translation.component(component);
    Ok(())
}

/// The stream of a tower as an input.
fn stream(builder: &mut ComponentBuilder<'_>, hidden: u64) -> ValueId {
    block::hidden_input(builder, hidden)
}
