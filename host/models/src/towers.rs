//! Towers: the parts of a model that turn pictures and sounds into rows of a prompt.

mod audio;
mod clipped;
mod vision;

use shardwright_graph::{ComponentBuilder, ComponentKind, Graph, Op, Role, ValueId, WeightId};
use shardwright_vocabulary::{Pass, Result};

pub(crate) use audio::Audio;
pub(crate) use vision::Vision;

use crate::block::{self, Norm};
use crate::json::Fields;
use crate::register::TOWERS;
use crate::store::TensorStore;
use crate::translation::Translation;

/// The requested towers.
#[derive(Clone, Debug)]
pub(crate) struct Towers {
    vision: Option<Vision>,
    audio: Option<Audio>,
    prompt: Prompt,
}

impl Towers {
    /// Reads and checks the settings of the towers of `passes`. Other towers are ignored.
    pub fn read(top: Fields<'_>, passes: &[Pass], hidden: u64) -> Result<Self> {
        let [vision, audio] = TOWERS.map(|(pass, name)| match passes.contains(&pass) {
            true => top
                .object(name)?
                .ok_or_else(|| top.invalid(name, "is missing, but its tower is requested"))
                .map(Some),
            false => Ok(None),
        });
        Ok(Towers {
            vision: vision?.map(Vision::read).transpose()?,
            audio: audio?.map(Audio::read).transpose()?,
            prompt: Prompt { hidden, scale: (hidden as f64).sqrt() as f32 },
        })
    }

    /// Translates each tower into a graph. Also returns the tensors, with the record of the used
    /// ones.
    pub fn translate(&self, mut store: TensorStore, name: &str) -> Result<(Vec<Graph>, TensorStore)> {
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

/// The properties of the prompt rows that towers produce.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prompt {
    hidden: u64,
    /// The embedding component's factor on its rows.
    scale: f32,
}

/// Returns the prefix of a tower's tensor names. Checkpoints save them either with the prefix of
/// the whole model or with that of the tower alone.
fn prefix(translation: &Translation, tower: &str, tensor: &str) -> String {
    let whole = format!("model.{tower}.");
    match translation.has(&format!("{tower}.{tensor}")) {
        Some(true) => format!("{tower}."),
        _ => whole,
    }
}

/// Turns a row of the tower into a row of the prompt. The row is normalised without a weight and
/// projected. It is also divided by the factor that the embedding component later applies to it.
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

/// Adds a component that `build` builds.
fn component(
    translation: &mut Translation,
    kind: ComponentKind,
    build: impl FnOnce(&mut ComponentBuilder<'_>),
) -> Result<()> {
    let mut builder = ComponentBuilder::new(translation.graph(), kind);
    build(&mut builder);
    let component = builder.finish()?;
    translation.component(component);
    Ok(())
}

/// Declares the stream of a tower as an input.
fn stream(builder: &mut ComponentBuilder<'_>, hidden: u64) -> ValueId {
    block::hidden_input(builder, hidden)
}
