//! Contract numbers of the vocabulary's types.

use shardwright_vocabulary::{DeviceKind, FlagStage, Provenance};

use crate::raw;

/// Returns the contract's number of a device kind, `SW_DEVICE_…`.
pub const fn device_kind(kind: DeviceKind) -> u32 {
    match kind {
        DeviceKind::Present => raw::SW_DEVICE_PRESENT,
        DeviceKind::Offline => raw::SW_DEVICE_OFFLINE,
        DeviceKind::Simulated => raw::SW_DEVICE_SIMULATED,
    }
}

/// Returns the contract's number of a flag stage, `SW_FLAG_STAGE_…`.
pub const fn flag_stage(stage: FlagStage) -> u32 {
    match stage {
        FlagStage::Compile => raw::SW_FLAG_STAGE_COMPILE,
        FlagStage::Load => raw::SW_FLAG_STAGE_LOAD,
    }
}

/// Returns the contract's number of a provenance, `SW_PROVENANCE_…`.
pub const fn provenance(provenance: Provenance) -> u32 {
    match provenance {
        Provenance::Declared => raw::SW_PROVENANCE_DECLARED,
        Provenance::Reported => raw::SW_PROVENANCE_REPORTED,
        Provenance::Probed => raw::SW_PROVENANCE_PROBED,
        Provenance::Learned => raw::SW_PROVENANCE_LEARNED,
        Provenance::User => raw::SW_PROVENANCE_USER,
        Provenance::Measured => raw::SW_PROVENANCE_MEASURED,
        Provenance::Simulated => raw::SW_PROVENANCE_SIMULATED,
        Provenance::Modelled => raw::SW_PROVENANCE_MODELLED,
    }
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::MemoryKinds;

    use super::*;

    #[test]
    fn memory_kinds_are_the_contracts_bits() {
        let kinds = [
            (MemoryKinds::HOST, raw::SW_MEMORY_HOST),
            (MemoryKinds::SHIM, raw::SW_MEMORY_SHIM),
            (MemoryKinds::DMA_BUF, raw::SW_MEMORY_DMA_BUF),
            (MemoryKinds::HARDWARE_BUFFER, raw::SW_MEMORY_HARDWARE_BUFFER),
        ];
        for (kind, bits) in kinds {
            assert_eq!(kind.0, bits);
        }
    }
}
