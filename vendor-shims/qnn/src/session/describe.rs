//! Reads a context binary's description of itself with the vendor's system library.

use crate::failure::{QnnError, Result};
use crate::ffi::{self, number};
use crate::graph::{DataType, QnnEncoding, QnnTensor, ScaleOffset};
use crate::library::System;
use shardwright_shim_npu::library::text;
use std::ptr::{null, null_mut};

/// Sanity limit on the number of graphs.
const MOST_GRAPHS: u32 = 1 << 12;
/// Sanity limit on the inputs or outputs of a graph.
const MOST_TENSORS: u32 = 1 << 14;
/// Sanity limit on the number of axes.
const MOST_AXES: u32 = 8;

/// A version as text, such as `2.40.0`.
pub type VersionText = String;

#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct BinaryDescription {
    /// The compiler's build.
    pub build_id: String,
    /// Version of the compiler's common interface.
    pub core: VersionText,
    /// Version of HTP's own interface.
    pub backend: VersionText,
    /// Version of the binary's format.
    pub blob_version: VersionText,
    /// The chip it was compiled for, by number. 0 if the binary does not specify it.
    pub soc_model: u32,
    /// Architecture of its processor, such as 81 for v81.
    pub arch: Option<u32>,
    /// Its graphs, sorted by name.
    pub graphs: Vec<GraphDescription>,
}

/// A graph of a binary.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct GraphDescription {
    pub name: String,
    /// Tensors that the application writes.
    pub inputs: Vec<TensorDescription>,
    /// Tensors that the application reads.
    pub outputs: Vec<TensorDescription>,
    /// Sizes, if the binary reports them.
    pub sizes: Option<GraphSizes>,
}

/// Sizes of a compiled graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct GraphSizes {
    /// Spill space for data that does not fit the fast memory.
    pub spill_bytes: u64,
    /// Fast memory it was compiled for.
    pub vtcm_bytes: u64,
    /// Effort of finalize. 0 if not reported.
    pub level: u32,
    /// Number of vector threads. 0 if not reported.
    pub hvx_threads: u64,
    /// Size of inputs and outputs.
    pub io_bytes: u64,
    /// Size of constants that only this graph uses.
    pub constant_bytes: u64,
    /// Size of constants shared with other graphs of the binary.
    pub shared_bytes: u64,
}

/// An input or output.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct TensorDescription {
    /// Identifies it in a run. Valid only for this binary, because another compilation assigns new
    /// numbers.
    pub id: u32,
    pub name: String,
    /// Element type, in the library's numbers.
    pub data_type: u32,
    /// Name of the element type. `None` for an unknown number.
    pub type_name: Option<String>,
    pub dims: Vec<u32>,
    /// Encoding of its integers.
    pub encoding: EncodingDescription,
}

#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum EncodingDescription {
    /// No encoding: plain integers or floats.
    None,
    /// Encoding `(stored + offset) · scale`.
    PerTensor {
        /// Must be positive.
        scale: f32,
        /// Added to the stored integer.
        offset: i32,
    },
    /// Another kind, by the library's number.
    Other { number: u32 },
}

impl TensorDescription {
    pub(crate) fn of(tensor: &QnnTensor<'_>, id: u32) -> TensorDescription {
        let other = |number| EncodingDescription::Other { number };
        TensorDescription {
            id,
            name: tensor.name.clone(),
            data_type: tensor.dtype as u32,
            type_name: Some(tensor.dtype.name().to_owned()),
            dims: tensor.dims.clone(),
            encoding: match &tensor.encoding {
                QnnEncoding::None => EncodingDescription::None,
                QnnEncoding::PerTensor(one) => {
                    EncodingDescription::PerTensor { scale: one.scale, offset: one.offset }
                }
                QnnEncoding::PerAxis { .. } => other(number::ENCODING_AXIS),
                QnnEncoding::BitWidth { .. } => other(number::ENCODING_BIT_WIDTH),
                QnnEncoding::BitWidthPerAxis { .. } => other(number::ENCODING_BIT_WIDTH_AXIS),
                QnnEncoding::BlockExpansion { .. } => other(number::ENCODING_BLOCK_EXPANSION),
                QnnEncoding::Block { .. } => other(number::ENCODING_BLOCK),
                QnnEncoding::FloatBlock { .. } => other(number::ENCODING_FLOAT_BLOCK),
                QnnEncoding::BitWidthFloatBlock { .. } => other(number::ENCODING_BIT_WIDTH_FLOAT_BLOCK),
            },
        }
    }

    /// Returns its element type, if the number is known.
    pub fn dtype(&self) -> Option<DataType> {
        DataType::from_raw(self.data_type)
    }

    /// Returns its length in bytes, if the element type is known.
    pub fn bytes(&self) -> Option<u64> {
        super::data::declared_bytes(self.dtype()?, &self.dims)
    }

    pub(crate) fn encoding(&self) -> QnnEncoding {
        match self.encoding {
            EncodingDescription::PerTensor { scale, offset } => {
                QnnEncoding::PerTensor(ScaleOffset { scale, offset })
            }
            EncodingDescription::None | EncodingDescription::Other { .. } => QnnEncoding::None,
        }
    }
}

pub(super) fn invalid(reason: impl Into<String>) -> QnnError {
    QnnError::BinaryInvalid { reason: reason.into() }
}

/// Frees the system library's memory of one description.
struct SystemContext<'s> {
    system: &'s System,
    handle: ffi::Handle,
}

impl Drop for SystemContext<'_> {
    fn drop(&mut self) {
        // SAFETY: created by the library and not yet freed.
        unsafe { (self.system.functions().context_free)(self.handle) };
    }
}

/// Reads the description of a context binary. The bytes may come from elsewhere, be damaged, or not
/// be a binary at all. So the system library reads them in a child process.
///
/// # Errors
/// [`QnnError::BinaryInvalid`] if the bytes are not a binary or are damaged.
pub fn describe_binary(system: &System, bytes: &[u8]) -> Result<BinaryDescription> {
    super::guarded::describe(system, bytes)
}

/// Like [`describe_binary`], but within this process. Only for bytes that come unchanged from a
/// compiler, because damaged ones may crash the process.
pub(super) fn describe_known(system: &System, bytes: &[u8]) -> Result<BinaryDescription> {
    let _alone = super::guarded::alone();
    describe_trusted(system, bytes)
}

/// Reads the description. The caller must prevent concurrent descriptions.
pub(super) fn describe_trusted(system: &System, bytes: &[u8]) -> Result<BinaryDescription> {
    let mut handle = null_mut();
    // SAFETY: the place outlives the call.
    let code = unsafe { (system.functions().context_create)(&mut handle) };
    if code != 0 {
        return Err(invalid(format!("the system library cannot create a context: {code}")));
    }
    let context = SystemContext { system, handle };
    let mut info = null();
    // SAFETY: the context is live. The bytes have that length and are only read. The place outlives
    // the call.
    let code = unsafe {
        (system.functions().context_get_metadata)(
            handle,
            bytes.as_ptr().cast(),
            bytes.len() as u64,
            &mut info,
        )
    };
    if code != 0 || info.is_null() {
        return Err(invalid(format!("the system library failed with {code}")));
    }
    // SAFETY: a description of the live context.
    let description = unsafe { read_info(info) };
    drop(context);
    description
}

/// # Safety
/// `info` is a description that the system library created and keeps until its context is freed.
unsafe fn read_info(info: *const ffi::BinaryInfo) -> Result<BinaryDescription> {
    // SAFETY: every version of the struct begins with its number.
    let version = unsafe { (&raw const (*info).version).read() };
    if version != 3 {
        return Err(invalid(format!("its description has version {version} of the struct, expected 3")));
    }
    // SAFETY: the number specifies that it is of this version.
    let info = unsafe { (&raw const (*info).v3).read() };
    let count = capped("graphs", info.graph_count, info.graphs.is_null(), MOST_GRAPHS)?;
    // SAFETY: the library keeps that many graphs.
    let stride = unsafe { graph_stride(info.graphs, count) };
    // SAFETY: the library keeps that many graphs at that distance.
    let graphs = (0..count).map(|index| unsafe { read_graph(info.graphs.byte_add(index * stride)) });
    let mut graphs = graphs.collect::<Result<Vec<_>>>()?;
    // The library's order varies between processes.
    graphs.sort_by(|a, b| a.name.cmp(&b.name));
    let metadata = info.metadata;
    let known = info.metadata_bytes as usize >= size_of::<ffi::ContextMetadata>() && !metadata.is_null();
    // SAFETY: not null and long enough.
    let arch = known.then(|| unsafe { metadata.read() }.dsp_arch);
    Ok(BinaryDescription {
        // SAFETY: null, or text that the library keeps.
        build_id: unsafe { text(info.build_id) }.unwrap_or_default(),
        core: info.core.to_string(),
        backend: info.backend.to_string(),
        blob_version: info.blob_version.to_string(),
        soc_model: info.soc_model,
        arch,
        graphs,
    })
}

/// Returns the bytes from one graph's description to the next. The struct's third version grew by a
/// word between 2.43, whose published layout has 80 bytes, and 2.51, but kept its number. If
/// another description begins after 80 bytes, the layout is the older one.
///
/// # Safety
/// `graphs` points to `count` descriptions of either layout.
unsafe fn graph_stride(graphs: *const ffi::GraphInfo, count: usize) -> usize {
    const OLDER: usize = size_of::<ffi::GraphInfo>();
    const NEWER: usize = OLDER + 8;
    if count < 2 {
        return NEWER;
    }
    // SAFETY: in both layouts the first 88 bytes of two descriptions exist, and these are aligned
    // words of them.
    let (version, name) = unsafe {
        let next = graphs.byte_add(OLDER);
        (next.cast::<u32>().read(), next.byte_add(8).cast::<usize>().read())
    };
    match (1..=3).contains(&version) && name > usize::from(u16::MAX) {
        true => OLDER,
        false => NEWER,
    }
}

/// Checks a count against its sanity limit.
fn capped(what: &str, count: u32, is_null: bool, most: u32) -> Result<usize> {
    match count {
        0 => Ok(0),
        _ if is_null => Err(invalid(format!("{count} {what}, but the list is null"))),
        count if count > most => Err(invalid(format!("{count} {what}, at most {most} are supported"))),
        count => Ok(count as usize),
    }
}

/// # Safety
/// `graph` points to a graph of a live description.
unsafe fn read_graph(graph: *const ffi::GraphInfo) -> Result<GraphDescription> {
    // SAFETY: as the caller promises.
    let version = unsafe { (&raw const (*graph).version).read() };
    if !(1..=3).contains(&version) {
        return Err(invalid(format!(
            "the description of a graph has version {version} of the struct, expected 1 to 3"
        )));
    }
    // SAFETY: as the caller promises. Name and tensors have the same offset in all three versions.
    let common = unsafe { (&raw const (*graph).v3.common).read() };
    // SAFETY: null, or text that the library keeps.
    let name = unsafe { text(common.name) }.ok_or_else(|| invalid("a graph has no name"))?;
    let mut sizes = None;
    if version == 3 {
        // SAFETY: the number specifies that it is of this version.
        let v3 = unsafe { (&raw const (*graph).v3).read() };
        if v3.blob_info_bytes as usize >= size_of::<ffi::GraphBlobInfo>() && !v3.blob_info.is_null() {
            // SAFETY: not null and long enough.
            sizes = Some(read_sizes(unsafe { &*v3.blob_info }));
        }
    }
    // SAFETY: the library keeps that many.
    let (inputs, outputs) = unsafe {
        (
            read_tensors(&name, "inputs", common.inputs, common.input_count)?,
            read_tensors(&name, "outputs", common.outputs, common.output_count)?,
        )
    };
    Ok(GraphDescription { name, inputs, outputs, sizes })
}

fn read_sizes(info: &ffi::GraphBlobInfo) -> GraphSizes {
    let second = info.second_version >= 2;
    GraphSizes {
        spill_bytes: info.spill_bytes,
        vtcm_bytes: u64::from(info.vtcm_bytes),
        level: info.level,
        hvx_threads: info.hvx_threads,
        io_bytes: if second { info.io_bytes } else { 0 },
        constant_bytes: if second { info.constant_bytes } else { 0 },
        shared_bytes: if second { info.shared_bytes } else { 0 },
    }
}

/// # Safety
/// `tensors` points to `count` tensors of a live description, or is null.
unsafe fn read_tensors(
    graph: &str,
    what: &str,
    tensors: *const ffi::Tensor,
    count: u32,
) -> Result<Vec<TensorDescription>> {
    let count = capped(&format!("{what} of graph `{graph}`"), count, tensors.is_null(), MOST_TENSORS)?;
    let read = |index| {
        // SAFETY: as the caller promises.
        let (version, tensor) =
            unsafe { ((*tensors.add(index)).version, (&raw const (*tensors.add(index)).v1).read()) };
        if !matches!(version, 1 | 2) {
            return Err(invalid(format!("the description of a tensor has unknown version {version}")));
        }
        let rank = capped("axes of a tensor", tensor.rank, tensor.dims.is_null(), MOST_AXES)?;
        Ok(TensorDescription {
            id: tensor.id,
            // SAFETY: null, or text that the library keeps.
            name: unsafe { text(tensor.name) }.unwrap_or_default(),
            data_type: tensor.data_type,
            type_name: DataType::from_raw(tensor.data_type).map(|dtype| dtype.name().to_owned()),
            // SAFETY: the library keeps that many extents.
            dims: (0..rank).map(|axis| unsafe { tensor.dims.add(axis).read() }).collect(),
            encoding: match (tensor.quantise.definition, tensor.quantise.encoding) {
                (number::DEFINED, number::ENCODING_SCALE_OFFSET) => {
                    // SAFETY: the member used by that kind.
                    let one = unsafe { tensor.quantise.value.scale_offset };
                    EncodingDescription::PerTensor { scale: one.scale, offset: one.offset }
                }
                (number::DEFINED, number) if number != number::UNDEFINED => {
                    EncodingDescription::Other { number }
                }
                _ => EncodingDescription::None,
            },
        })
    };
    (0..count).map(read).collect()
}
