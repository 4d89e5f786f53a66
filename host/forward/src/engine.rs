//! Compiles and loads parts of a model.

use shardwright_graph::{
    Encodings, EntryGraph, Graph, LegaliseError, Role, TensorId, gradients, legalise, legalise_encoded,
    range_key,
};
use shardwright_shims::{ArtefactDestination, ShimInstance, WorkOrderBuilder};
use shardwright_vocabulary::{Error, ErrorKind, Result, Watch};

use crate::part::LoadedPart;

/// A device of a shim.
#[derive(Clone)]
pub struct Engine {
    instance: ShimInstance,
    device: String,
}

/// Function that selects tensors of a graph to show.
pub(crate) type Look<'l> = dyn Fn(&EntryGraph, TensorId) -> bool + 'l;

impl Engine {
    /// Creates an engine for a device of an open shim.
    pub fn new(instance: ShimInstance, device: impl Into<String>) -> Self {
        Engine { instance, device: device.into() }
    }

    /// Compiles and loads an entry graph, in f32 or with values in other encodings. The selected
    /// tensors become further outputs. The artefact is a temporary file that is deleted with the
    /// loaded part.
    ///
    /// # Errors
    /// If the shim refuses or fails. [`ErrorKind::Cancelled`] if the watch cancels it.
    pub(crate) fn load(
        &self,
        mut entry: EntryGraph,
        graph: &Graph,
        encodings: Option<&Encodings<'_>>,
        look: &Look<'_>,
        watch: &mut dyn Watch,
    ) -> Result<LoadedPart> {
        // The caller already has the residual stream on both sides.
        let key_of = |ports: &[(TensorId, Role)]| {
            let mut stream =
                ports.iter().filter(|(tensor, role)| *role == Role::Hidden && look(&entry, *tensor));
            stream.next().map(|(tensor, _)| range_key(&entry, *tensor))
        };
        let (entering, leaving) = (key_of(&entry.inputs), key_of(&entry.outputs));
        let leaves = |tensor: TensorId| entry.outputs.iter().any(|(output, _)| *output == tensor);
        let made = entry.nodes.iter().map(|node| node.output);
        let made = made.filter(|tensor| !entry.tensor(*tensor).is_index() && !leaves(*tensor));
        let looked: Vec<(TensorId, Role)> = made
            .filter(|tensor| look(&entry, *tensor))
            .map(|tensor| (tensor, Role::Tap { name: range_key(&entry, tensor) }))
            .collect();
        entry.outputs.extend(looked);
        let mut loaded = self.compile(&entry, graph, encodings, watch)?;
        (loaded.entering, loaded.leaving) = (entering, leaving);
        Ok(loaded)
    }

    /// Compiles and loads the graph that computes the derivatives by `wanted` tensors, see
    /// [`gradients`]. The values of `shown` tensors become further outputs, as taps with the name
    /// of the tensor.
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub(crate) fn load_gradients(
        &self,
        mut entry: EntryGraph,
        graph: &Graph,
        (shown, wanted): (&Look<'_>, &Look<'_>),
        watch: &mut dyn Watch,
    ) -> Result<LoadedPart> {
        let is_input = |tensor: TensorId| entry.inputs.iter().any(|(input, _)| *input == tensor);
        let leaves = |tensor: TensorId| entry.outputs.iter().any(|(output, _)| *output == tensor);
        let shown: Vec<(TensorId, Role)> = (0..entry.tensors.len() as u32)
            .map(TensorId)
            .filter(|&tensor| shown(&entry, tensor) && !is_input(tensor) && !leaves(tensor))
            .map(|tensor| (tensor, Role::Tap { name: entry.tensor(tensor).name.clone() }))
            .collect();
        entry.outputs.extend(shown);
        let back = gradients(&entry, &|tensor| wanted(&entry, tensor))?;
        self.compile(&back, graph, None, watch)
    }

    fn compile(
        &self,
        entry: &EntryGraph,
        graph: &Graph,
        encodings: Option<&Encodings<'_>>,
        watch: &mut dyn Watch,
    ) -> Result<LoadedPart> {
        let name = entry.segments.to_string();
        let check = |shown: &EntryGraph| self.instance.check(&self.device, shown, &graph.weights);
        let legal = match encodings {
            Some(encodings) => legalise_encoded(entry, encodings, check),
            None => legalise(entry, check),
        };
        let legal = legal.map_err(|error| match error {
            LegaliseError::Check(error) => Error::from(error),
            refused => Error::new(ErrorKind::Shim, refused.to_string()).at(&name),
        })?;
        let order = WorkOrderBuilder::new(&graph.weights)
            .entry(&legal.graph)
            .map_err(|error| error.with_kind(ErrorKind::Internal))?
            .temporary()?;
        let artefact = self.instance.compile(&self.device, &order, ArtefactDestination::Temporary, watch)?;
        let shard = self.instance.load(&self.device, &artefact, &[])?;
        LoadedPart::new(name, shard)
    }
}
