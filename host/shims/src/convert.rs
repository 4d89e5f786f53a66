//! Converts between the contract's numbers and the graph's types. A test compares the two.

use shardwright_shim_abi::{numbers, raw};
use shardwright_vocabulary::{DType, EntryKind, ErrorClass, Provenance};

/// Returns the graph's element type of a contract number.
pub(crate) fn dtype(number: u32) -> Option<DType> {
    DType::ALL.iter().copied().find(|dtype| dtype.number() == number)
}

pub(crate) fn entry_kind_number(kind: EntryKind) -> u32 {
    match kind {
        EntryKind::Prefill => raw::SW_ENTRY_PREFILL,
        EntryKind::Decode => raw::SW_ENTRY_DECODE,
        EntryKind::Encode => raw::SW_ENTRY_ENCODE,
    }
}

/// Returns the error class of a contract number. [`raw::SW_ERROR_CANCELLED`] is not a failure and
/// returns `None`. A class unknown to this host counts as internal.
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
    Provenance::ALL.iter().copied().find(|&provenance| numbers::provenance(provenance) == number)
}

#[cfg(test)]
mod tests {
    use shardwright_graph::{AssetId, Keys, Mask, Role, Rope, StateId};

    use super::*;

    #[test]
    fn roles_have_the_contracts_numbers() {
        let rotary = Rope {
            head_dim: 2,
            theta: 1.0,
            rotated_pairs: 1,
            factor: 1.0,
            divisors: Vec::new(),
            magnitude: 1.0,
        };
        let mask = Mask { keys: Keys::Rows, window: 0, causal: false };
        let state = StateId(0);
        let cases = [
            (Role::Positions, raw::SW_ROLE_POSITIONS),
            (Role::Slots { capacity: 1 }, raw::SW_ROLE_SLOTS),
            (Role::RotaryCos(rotary.clone()), raw::SW_ROLE_ROTARY_COS),
            (Role::RotarySin(rotary), raw::SW_ROLE_ROTARY_SIN),
            (Role::Mask(mask), raw::SW_ROLE_MASK),
            (Role::Pooling, raw::SW_ROLE_POOLING),
            (Role::Gathered { asset: AssetId(0) }, raw::SW_ROLE_GATHERED),
            (Role::Hidden, raw::SW_ROLE_HIDDEN),
            (Role::PerLayer { first: 0, layers: 1 }, raw::SW_ROLE_PER_LAYER),
            (Role::Logits, raw::SW_ROLE_LOGITS),
            (Role::Embedding, raw::SW_ROLE_EMBEDDING),
            (Role::Tap { name: String::new() }, raw::SW_ROLE_TAP),
            (Role::State { state }, raw::SW_ROLE_STATE),
            (Role::StateRows { state }, raw::SW_ROLE_STATE_ROWS),
        ];
        for (role, number) in cases {
            assert_eq!(role.number(), number, "{}", role.name());
        }
    }

    #[test]
    fn element_types_and_classes_have_the_contracts_numbers() {
        let dtypes = [
            (DType::F32, raw::SW_DTYPE_F32),
            (DType::F16, raw::SW_DTYPE_F16),
            (DType::Bf16, raw::SW_DTYPE_BF16),
            (DType::I32, raw::SW_DTYPE_I32),
            (DType::I16, raw::SW_DTYPE_I16),
            (DType::U16, raw::SW_DTYPE_U16),
            (DType::I8, raw::SW_DTYPE_I8),
            (DType::U8, raw::SW_DTYPE_U8),
            (DType::I64, raw::SW_DTYPE_I64),
            (DType::I4, raw::SW_DTYPE_I4),
            (DType::I2, raw::SW_DTYPE_I2),
        ];
        assert_eq!(dtypes.map(|(found, _)| found), DType::ALL);
        for (found, number) in dtypes {
            assert_eq!((found.number(), dtype(number)), (number, Some(found)));
        }
        assert_eq!(dtype(0), None);
        let classes: Vec<_> = (raw::SW_ERROR_UNSUPPORTED_OP..=raw::SW_ERROR_INTERNAL)
            .map(|number| error_class(number).unwrap())
            .collect();
        assert_eq!(classes, ErrorClass::ALL);
        assert_eq!(error_class(raw::SW_ERROR_CANCELLED), None);
        assert_eq!(error_class(4711), Some(ErrorClass::Internal));
        let provenances: Vec<_> = (0..32).filter_map(provenance).collect();
        assert_eq!(provenances, Provenance::ALL);
        for kind in [EntryKind::Prefill, EntryKind::Decode, EntryKind::Encode] {
            assert!((1..=3).contains(&entry_kind_number(kind)));
        }
    }
}
