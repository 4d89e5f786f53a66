use super::check::Composer;
use super::configs::Configs;
use super::data::materialise;
use super::node::{NodeParts, blame};
use super::tensor::TensorParts;
use super::{ContextHandle, GraphOptions, Preparation, Profile, RunnableGraph, TensorDescription, checked};
use crate::failure::{QnnError, Result};
use crate::ffi::{self, number};
use crate::graph::{QnnEncoding, QnnGraph, QnnNode, QnnTensor, StaticData, TensorKind};
use crate::log;
use shardwright_shim_abi::ErrorClass;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// Text that finalize logs along with the node if it cannot split an operation into parts that fit
/// the fast memory.
const NO_PLACE: &str = "Fatal Optimize";

/// A graph inside the library, from composing to execution.
#[derive(Debug)]
pub struct ComposedGraph {
    /// Can be run once it is finalized. Its tensors are in the order of the graph's.
    graph: RunnableGraph,
    /// Names of nodes and operations, to find them in the log.
    nodes: Vec<(String, &'static str)>,
}

impl std::ops::Deref for ComposedGraph {
    type Target = RunnableGraph;

    fn deref(&self) -> &RunnableGraph {
        &self.graph
    }
}

impl ComposedGraph {
    /// Compiles the graph. With `profile` the library also estimates its time, if it can for the
    /// chip, without additional cost.
    ///
    /// # Errors
    /// Returns an error if the graph cannot be compiled, with the node at fault if the log names
    /// it.
    pub fn finalize(&mut self, profile: bool) -> Result<Option<Profile>> {
        let preparation = Preparation::on_all_processors();
        let library = self.graph.context.library().clone();
        let handle = match profile {
            true => {
                Some(super::profile::ProfileHandle::new(self.graph.context.device().backend(), &preparation)?)
            }
            false => None,
        };
        let raw = handle.as_ref().map_or(null_mut(), |handle| handle.raw());
        // SAFETY: graph and profile are live. There is no signal.
        let code = unsafe { (library.functions().graph_finalize)(self.graph.handle, raw, null_mut()) };
        let answer = checked(&library, "graphFinalize", code, preparation.mark());
        answer.map_err(|error| self.name_node(error, preparation.mark()))?;
        handle.map(|handle| handle.read(preparation.mark())).transpose()
    }

    /// Adds the node mentioned in the log to an error.
    fn name_node(&self, error: QnnError, mark: log::Mark) -> QnnError {
        let QnnError::Call(mut failure) = error else { return error };
        let lines = log::since(mark);
        let named = lines.iter().filter(|line| line.level <= log::Level::Warning).find_map(|line| {
            let named = self.nodes.iter().filter(|(name, _)| mentions(&line.text, name));
            named.max_by_key(|(name, _)| name.len())
        });
        if let Some((name, op)) = named {
            failure.node = Some(name.clone());
            // An operation that the optimiser cannot place does not fit in a smaller graph either.
            if failure.class == ErrorClass::Unmappable && failure.reason.contains(NO_PLACE) {
                failure.class = ErrorClass::UnsupportedOp;
            }
            failure.op = Some((*op).to_owned());
        }
        QnnError::Call(failure)
    }
}

/// Checks whether a line contains the name as a separate word.
fn mentions(line: &str, name: &str) -> bool {
    let part_of_word = |character: char| character.is_alphanumeric() || matches!(character, '_' | '.' | '/');
    line.match_indices(name).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(part_of_word)
            && !line[at + name.len()..].chars().next().is_some_and(|next| part_of_word(next) && next != '.')
    })
}

/// Returns the bits of a tensor's values if they are fewer than the container's.
fn bits_of(tensor: &QnnTensor<'_>) -> u32 {
    match tensor.encoding {
        QnnEncoding::BitWidth { bits, .. }
        | QnnEncoding::BitWidthPerAxis { bits, .. }
        | QnnEncoding::BitWidthFloatBlock { bits, .. } => bits,
        QnnEncoding::BlockExpansion { .. } => 4,
        _ => 8,
    }
}

/// Returns the library's number for a tensor's role.
fn kind_number(kind: &TensorKind<'_>) -> u32 {
    match kind {
        TensorKind::Input => number::APP_WRITE,
        TensorKind::Output => number::APP_READ,
        TensorKind::Native => number::NATIVE,
        TensorKind::Static(_) => number::STATIC,
    }
}

pub(crate) fn compose(
    context: &Arc<ContextHandle>,
    graph: &QnnGraph<'_>,
    options: &GraphOptions,
) -> Result<ComposedGraph> {
    let composer = Composer { graph };
    composer.check()?;
    let name = composer.text("the graph", &graph.name)?;
    let configs = Configs::new(&composer, options)?;
    let generic: Vec<ffi::GraphConfig> = configs
        .customs
        .iter()
        .map(|custom| ffi::GraphConfig {
            option: number::CONFIG_CUSTOM,
            value: (custom as *const ffi::GraphCustomConfig).cast(),
        })
        .collect();
    let list: Vec<*const ffi::GraphConfig> =
        generic.iter().map(|config| config as *const _).chain([null()]).collect();

    let preparation = Preparation::begin();
    let library = context.library().clone();
    let functions = library.functions();
    let mut handle = null_mut();
    let configs = if generic.is_empty() { null() } else { list.as_ptr() };
    // SAFETY: the context is live. Name and list outlive the call, as do the values the list points
    // to. The list ends with null.
    let code = unsafe { (functions.graph_create)(context.handle(), name.as_ptr(), configs, &mut handle) };
    checked(&library, "graphCreate", code, preparation.mark())?;

    // Validation reads constants. If converted bytes are already freed, it sees zeros in pages that
    // are never written.
    let zeros = vec![0u8; most_converted_bytes(graph)];
    let mut buffer = Vec::new();
    let mut parts: Vec<TensorParts> = Vec::with_capacity(graph.tensors.len());
    for tensor in &graph.tensors {
        let mark = log::mark();
        let place = format!("tensor `{}`", tensor.name);
        let mut converted = false;
        let mut one = TensorParts::new(
            0,
            composer.text(&place, &tensor.name)?,
            kind_number(&tensor.kind),
            tensor.dtype as u32,
            &tensor.dims,
            &tensor.encoding,
        );
        if let TensorKind::Static(data) = &tensor.kind {
            let bytes = materialise(tensor, data, bits_of(tensor), &mut buffer);
            let buffer =
                ffi::RawBuffer { data: bytes.as_ptr().cast_mut().cast::<c_void>(), size: bytes.len() as u32 };
            one.tensor.v1.memory = ffi::MemoryHandleOrBuffer { buffer };
            converted = !matches!(data, StaticData::Bytes(_));
        }
        // SAFETY: the graph is live. The tensor and all it points to outlive the call. The library
        // only reads the data, which it copies.
        let code = unsafe { (functions.tensor_create_graph_tensor)(handle, &mut one.tensor) };
        checked(&library, "tensorCreateGraphTensor", code, mark)
            .map_err(|error| name_tensor(error, graph, tensor))?;
        if converted {
            let data = zeros.as_ptr().cast_mut().cast::<c_void>();
            // There are as many zeros as there were bytes.
            one.tensor.v1.memory.buffer.data = data;
        }
        parts.push(one);
    }
    drop(buffer);

    for node in &graph.nodes {
        let mark = log::mark();
        let node_parts = NodeParts::new(
            &composer,
            node,
            |index| parts[index.0 as usize].tensor,
            |list| {
                // SAFETY: as for the tensors above.
                let code = unsafe { (functions.tensor_create_graph_tensor)(handle, list) };
                checked(&library, "tensorCreateGraphTensor", code, mark)
            },
        )
        .map_err(|error| blame(error, node))?;
        if !options.unvalidated {
            let backend = context.device().backend().handle();
            // SAFETY: the backend is live. Everything the config points to outlives the call.
            let code = unsafe { (functions.backend_validate_op_config)(backend, node_parts.config()) };
            checked(&library, "backendValidateOpConfig", code, mark).map_err(|error| blame(error, node))?;
        }
        // SAFETY: the graph is live. Everything the config points to outlives the call.
        let code = unsafe { (functions.graph_add_node)(handle, node_parts.config()) };
        checked(&library, "graphAddNode", code, mark).map_err(|error| blame(error, node))?;
    }

    let described = |wanted: u32| {
        let ids = graph.tensors.iter().zip(&parts);
        ids.filter(|(tensor, _)| kind_number(&tensor.kind) == wanted)
            .map(|(tensor, parts)| TensorDescription::of(tensor, parts.tensor.v1.id))
            .collect()
    };
    let runnable = RunnableGraph {
        context: context.clone(),
        handle,
        name: graph.name.clone(),
        inputs: described(number::APP_WRITE),
        outputs: described(number::APP_READ),
    };
    Ok(ComposedGraph {
        graph: runnable,
        nodes: graph.nodes.iter().map(|node| (node.name.clone(), node.op)).collect(),
    })
}

/// Returns the size in bytes of the largest constant that is converted for the library.
fn most_converted_bytes(graph: &QnnGraph<'_>) -> usize {
    let converted = graph.tensors.iter().filter(|tensor| match &tensor.kind {
        TensorKind::Static(data) => !matches!(data, StaticData::Bytes(_)),
        _ => false,
    });
    let bytes = converted.filter_map(|tensor| super::data::declared_bytes(tensor.dtype, &tensor.dims));
    bytes.max().unwrap_or(0) as usize
}

/// Adds the tensor and the first node that uses it to an error.
fn name_tensor(error: QnnError, graph: &QnnGraph<'_>, tensor: &QnnTensor<'_>) -> QnnError {
    let QnnError::Call(mut failure) = error else { return error };
    failure.reason = format!("tensor `{}`: {}", tensor.name, failure.reason);
    let user = graph.nodes.iter().find(|node| {
        node.inputs
            .iter()
            .chain(&node.outputs)
            .any(|index| std::ptr::eq(&graph.tensors[index.0 as usize], tensor))
    });
    match user {
        Some(node) => blame(QnnError::Call(failure), node),
        None => QnnError::Call(failure),
    }
}

pub(crate) fn validate(context: &Arc<ContextHandle>, graph: &QnnGraph<'_>, node: &QnnNode) -> Result<()> {
    let composer = Composer { graph };
    let mut data = Vec::new();
    let mut parts = Vec::new();
    for index in node.inputs.iter().chain(&node.outputs) {
        let Some(tensor) = graph.tensors.get(index.0 as usize) else {
            return Err(
                composer.invalid(format!("node `{}`", node.name), format!("there is no tensor {}", index.0))
            );
        };
        composer
            .check_tensor(tensor)
            .map_err(|problem| composer.invalid(format!("tensor `{}`", tensor.name), problem))?;
        let mut one = TensorParts::new(
            index.0 + 1,
            composer.text("a tensor", &tensor.name)?,
            kind_number(&tensor.kind),
            tensor.dtype as u32,
            &tensor.dims,
            &tensor.encoding,
        );
        if let TensorKind::Static(constant) = &tensor.kind {
            let mut buffer = Vec::new();
            let bytes = materialise(tensor, constant, bits_of(tensor), &mut buffer).to_vec();
            let raw =
                ffi::RawBuffer { data: bytes.as_ptr().cast_mut().cast::<c_void>(), size: bytes.len() as u32 };
            one.tensor.v1.memory = ffi::MemoryHandleOrBuffer { buffer: raw };
            data.push(bytes);
        }
        parts.push((*index, one));
    }
    let tensor_of = |index| parts.iter().find(|(one, _)| *one == index).map(|(_, parts)| parts.tensor);
    let Some(any) = parts.first().map(|(_, parts)| parts.tensor) else {
        return Err(composer.invalid(format!("node `{}`", node.name), "it has no tensors"));
    };
    let node_parts = NodeParts::new(&composer, node, |index| tensor_of(index).unwrap_or(any), |_| Ok(()))?;
    let preparation = Preparation::begin();
    let library = context.library();
    let backend = context.device().backend().handle();
    // SAFETY: the backend is live. Everything the config points to outlives the call.
    let code = unsafe { (library.functions().backend_validate_op_config)(backend, node_parts.config()) };
    checked(library, "backendValidateOpConfig", code, preparation.mark()).map_err(|error| blame(error, node))
}
