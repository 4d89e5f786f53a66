//! Inputs and outputs of a compiled entry: their form in an artefact, their bindings in a run, and
//! the copies of rows that a run needs.

use serde::{Deserialize, Serialize};
use shardwright_shim_abi::raw::{
    SW_DTYPE_F16, SW_DTYPE_F32, SW_DTYPE_I8, SW_DTYPE_I16, SW_DTYPE_I32, SW_DTYPE_U8, SW_DTYPE_U16,
    SW_ROLE_STATE, SW_ROLE_STATE_ROWS, SW_UPDATE_BY_RUNTIME, SW_UPDATE_NONE,
};
use shardwright_shim_abi::{Binding, Direction, EntryView, Error, MemoryKinds, PortView};

use crate::artefact::check_name;

/// Maximum rank of a port.
pub const MAX_RANK: usize = 8;

/// Purpose of a port in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortKind {
    /// Read by a run.
    Input,
    /// A state that is read. If the entry produces new rows for it, these are outputs.
    State,
    /// Written as a whole.
    Output,
}

impl PortKind {
    /// Returns the kind for a side and a role `SW_ROLE_…`.
    pub fn of(is_output: bool, role: u32) -> PortKind {
        match (is_output, role) {
            (true, _) => PortKind::Output,
            (false, SW_ROLE_STATE) => PortKind::State,
            (false, _) => PortKind::Input,
        }
    }
}

/// An input or output of an entry, dense row-major.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port<P> {
    /// Name in the work order.
    pub name: String,
    pub kind: PortKind,
    /// `SW_ROLE_…`
    pub role: u32,
    /// Detail of the role, see `sw_port`.
    pub index: u64,
    /// `SW_DTYPE_…`
    pub dtype: u32,
    /// Extents in the work order.
    pub shape: Vec<u64>,
    /// Bits of the scale as an f64, because decimal text would not round-trip every number.
    pub scale_bits: u64,
    /// Zero point, 0 for floats.
    pub zero_point: i64,
    /// Place in the compiled graph, in the vendor's terms.
    pub place: P,
}

/// Returns the bytes per element of a port.
pub fn element_bytes(dtype: u32) -> Option<u64> {
    Some(match dtype {
        SW_DTYPE_I8 | SW_DTYPE_U8 => 1,
        SW_DTYPE_F16 | SW_DTYPE_I16 | SW_DTYPE_U16 => 2,
        SW_DTYPE_F32 | SW_DTYPE_I32 => 4,
        _ => return None,
    })
}

impl<P> Port<P> {
    /// Creates a port from an entry's port, with the given shape, scale and zero point.
    pub fn of(
        view: &PortView<'_>,
        is_output: bool,
        shape: &[u64],
        (scale, zero_point): (f64, i64),
        place: P,
    ) -> Port<P> {
        Port {
            name: view.name().to_owned(),
            kind: PortKind::of(is_output, view.role()),
            role: view.role(),
            index: view.index(),
            dtype: view.dtype(),
            shape: shape.to_vec(),
            scale_bits: scale.to_bits(),
            zero_point,
            place,
        }
    }

    /// Copies the port to another place.
    pub fn placed<Q>(&self, place: Q) -> Port<Q> {
        Port {
            name: self.name.clone(),
            kind: self.kind,
            role: self.role,
            index: self.index,
            dtype: self.dtype,
            shape: self.shape.clone(),
            scale_bits: self.scale_bits,
            zero_point: self.zero_point,
            place,
        }
    }

    /// Returns the scale: `value = (stored − zero point) · scale`. 1 for floats.
    pub fn scale(&self) -> f64 {
        f64::from_bits(self.scale_bits)
    }

    /// Returns the size in bytes. Returns `None` for an element type that ports cannot have, and
    /// for a size that cannot be addressed.
    pub fn bytes(&self) -> Option<u64> {
        let element = element_bytes(self.dtype)?;
        let bytes = self.shape.iter().try_fold(element, |bytes, extent| bytes.checked_mul(*extent))?;
        (bytes <= isize::MAX as u64).then_some(bytes)
    }

    /// Returns the product of the extents before the rows, and the bytes per row. Returns `None` if
    /// neither of the first two axes has `rows` elements.
    fn row_axis(&self, rows: u64) -> Option<(u64, u64)> {
        let axis = self.shape.iter().take(2).position(|extent| *extent == rows)?;
        let before = self.shape[..axis].iter().product();
        Some((before, self.bytes()? / before / rows))
    }

    /// Returns whether a run with fewer rows needs a copy of this port in which the remaining rows
    /// are zero. This is true for float inputs with rows. Memory beyond the valid rows may contain
    /// NaN, which would affect valid rows even through a mask. Stored integers are always numbers.
    pub fn needs_blank_rows(&self, rows: u64) -> bool {
        let is_float = matches!(self.dtype, SW_DTYPE_F16 | SW_DTYPE_F32);
        self.kind == PortKind::Input && is_float && rows > 1 && self.row_axis(rows).is_some()
    }

    /// Copies the valid rows and sets the other rows to zero.
    pub fn copy_rows(&self, rows: u64, valid: u64, from: &[u8], to: &mut [u8]) {
        let Some((before, row)) = self.row_axis(rows) else { return };
        let (block, kept) = ((rows * row) as usize, (valid * row) as usize);
        for (from, to) in from.chunks_exact(block).zip(to.chunks_exact_mut(block)).take(before as usize) {
            to[..kept].copy_from_slice(&from[..kept]);
            to[kept..].fill(0);
        }
    }
}

/// Checks the ports of an entry from an untrusted source: unique names, possible sizes and valid
/// scales.
///
/// # Errors
///
/// A message about the first invalid port.
pub fn check_ports<P>(entry: &str, ports: &[Port<P>]) -> Result<(), String> {
    let mut names = std::collections::HashSet::new();
    for port in ports {
        check_name("a port", &port.name)?;
        if !names.insert(port.name.as_str()) {
            return Err(format!("port `{}` of `{entry}` appears twice", port.name));
        }
        if port.shape.len() > MAX_RANK || port.bytes().is_none_or(|bytes| bytes == 0) {
            let (name, shape, dtype) = (&port.name, &port.shape, port.dtype);
            return Err(format!("unsupported port `{name}`: {shape:?} of element type {dtype}"));
        }
        if !(port.scale().is_finite() && port.scale() > 0.0) {
            return Err(format!("port `{}` has the scale {}", port.name, port.scale()));
        }
    }
    Ok(())
}

/// Returns the bindings of an entry's ports, in their order. `alignment` returns the alignment of
/// each port.
pub fn bindings<P>(
    ports: &[Port<P>],
    memory_kinds: MemoryKinds,
    alignment: impl Fn(&Port<P>) -> u64,
) -> Vec<Binding> {
    let is_given = |port: &Port<P>| {
        ports.iter().any(|other| other.role == SW_ROLE_STATE_ROWS && other.index == port.index)
    };
    let binding = |port: &Port<P>| Binding {
        name: port.name.clone(),
        direction: match port.kind {
            PortKind::Input => Direction::Input,
            PortKind::State => Direction::StateRead,
            PortKind::Output => Direction::Output,
        },
        role: port.role,
        dtype: port.dtype,
        update: match port.kind == PortKind::State && is_given(port) {
            true => SW_UPDATE_BY_RUNTIME,
            false => SW_UPDATE_NONE,
        },
        shape: port.shape.clone(),
        strides: None,
        bytes: port.bytes().unwrap_or(0),
        alignment: alignment(port),
        memory_kinds,
        scale: port.scale(),
        zero_point: port.zero_point,
    };
    ports.iter().map(binding).collect()
}

/// Checks that a run has as many bindings as the entry has ports, and a valid number of rows.
///
/// # Errors
///
/// `ErrorClass::InvalidArgument` if a number is wrong.
pub fn check_run(
    entry: &str,
    ports: usize,
    bound: usize,
    static_rows: u64,
    rows: usize,
) -> Result<(), Error> {
    if bound != ports {
        return Err(Error::invalid_argument(format!("{bound} bindings for `{entry}`, expected {ports}")));
    }
    if rows == 0 || rows as u64 > static_rows {
        return Err(Error::invalid_argument(format!("{rows} rows, expected 1 to {static_rows}")));
    }
    Ok(())
}

/// Returns the nodes of an entry from which no operation of the compiled graph was lowered.
pub fn vanished(entry: EntryView<'_>, origins: impl Iterator<Item = u32>) -> Vec<u64> {
    let mut is_there = vec![false; entry.nodes().len()];
    for origin in origins {
        if let Some(place) = is_there.get_mut(origin as usize) {
            *place = true;
        }
    }
    is_there.iter().enumerate().filter(|(_, there)| !**there).map(|(node, _)| node as u64).collect()
}

/// Adds the entry to an error of the vendor's library. If the node at fault is known, also adds
/// that node and its layer.
pub fn at_node(error: impl Into<Error>, entry: EntryView<'_>, origin: Option<u32>) -> Error {
    let mut out = error.into().detail("entry", entry.name());
    if let Some(node) = origin.and_then(|origin| entry.nodes().nth(origin as usize)) {
        out = out.detail("origin", node.name());
        if let Some(layer) = node.layer() {
            out = out.detail("layer", layer);
        }
    }
    out
}
