//! Between the contract's numbers and the graph's types. A test holds the two against each other.

use shardwright_graph::target::{ElementType, ErrorClass, Provenance};
use shardwright_graph::{DType, EntryKind};
use shardwright_shim_abi::raw;

/// The graph's element type of a contract number.
pub(crate) fn dtype(number: u32) -> Option<DType> {
    DType::ALL.into_iter().find(|dtype| dtype.number() == number)
}

pub(crate) fn element_number(element: ElementType) -> u32 {
    match element {
        ElementType::F32 => raw::SW_DTYPE_F32,
        ElementType::F16 => raw::SW_DTYPE_F16,
        ElementType::Bf16 => raw::SW_DTYPE_BF16,
        ElementType::U16 => raw::SW_DTYPE_U16,
        ElementType::I16 => raw::SW_DTYPE_I16,
        ElementType::U8 => raw::SW_DTYPE_U8,
        ElementType::I8 => raw::SW_DTYPE_I8,
    }
}

pub(crate) fn entry_kind_number(kind: EntryKind) -> u32 {
    match kind {
        EntryKind::Prefill => raw::SW_ENTRY_PREFILL,
        EntryKind::Decode => raw::SW_ENTRY_DECODE,
        EntryKind::Encode => raw::SW_ENTRY_ENCODE,
    }
}

/// None for [`raw::SW_ERROR_CANCELLED`], which is not a failure; a class this host does not know counts as internal.
pub(crate) fn error_class(number: u32) -> Option<ErrorClass> {
    Some(match number {
        raw::SW_ERROR_UNSUPPORTED_OP => ErrorClass::UnsupportedOp,
        raw::SW_ERROR_UNMAPPABLE => ErrorClass::Unmappable,
        raw::SW_ERROR_RESOURCE_LIMIT => ErrorClass::ResourceLimit,
        raw::SW_ERROR_INCOMPATIBLE_ARTEFACT => ErrorClass::IncompatibleArtefact,
        raw::SW_ERROR_CORRUPT_ARTEFACT => ErrorClass::CorruptArtefact,
        raw::SW_ERROR_DEVICE_LOST => ErrorClass::DeviceLost,
        raw::SW_ERROR_DEADLINE => ErrorClass::Deadline,
        raw::SW_ERROR_STATE_LOST => ErrorClass::StateLost,
        raw::SW_ERROR_INVALID_ARGUMENT => ErrorClass::InvalidArgument,
        raw::SW_ERROR_CANCELLED => return None,
        _ => ErrorClass::Internal,
    })
}

pub(crate) fn provenance(number: u32) -> Option<Provenance> {
    Some(match number {
        raw::SW_PROVENANCE_DECLARED => Provenance::Declared,
        raw::SW_PROVENANCE_REPORTED => Provenance::Reported,
        raw::SW_PROVENANCE_PROBED => Provenance::Probed,
        raw::SW_PROVENANCE_LEARNED => Provenance::Learned,
        raw::SW_PROVENANCE_USER => Provenance::User,
        raw::SW_PROVENANCE_MEASURED => Provenance::Measured,
        raw::SW_PROVENANCE_SIMULATED => Provenance::Simulated,
        raw::SW_PROVENANCE_MODELLED => Provenance::Modelled,
        _ => return None,
    })
}
