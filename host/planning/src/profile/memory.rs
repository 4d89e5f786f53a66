//! Memory of the devices that have a chip.

use serde::{Deserialize, Serialize};
use shardwright_vocabulary::Provenance;

/// Memory of the devices with a chip, and the part of it that an app can use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DeviceMemory {
    /// Memory of the variants that are sold, in GiB, the smallest first.
    pub gibibytes: Vec<u32>,
    /// Part of a device's memory that an app can use, in percent.
    pub app_share_percent: u32,
    /// Source of the numbers.
    pub provenance: Provenance,
    /// The observation behind the numbers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// Maximum memory of a device in GiB.
const MOST: u32 = 1 << 12;

impl DeviceMemory {
    /// Returns the bytes that an app can use on a device with this much memory. `None` is the
    /// smallest variant.
    pub fn app_bytes(&self, device_bytes: Option<u64>) -> u64 {
        let smallest = || u64::from(self.gibibytes.first().copied().unwrap_or(0)) << 30;
        let bytes = u128::from(device_bytes.unwrap_or_else(smallest));
        u64::try_from(bytes * u128::from(self.app_share_percent) / 100).unwrap_or(u64::MAX)
    }

    /// Returns the first fault.
    pub(super) fn fault(&self) -> Option<String> {
        let is_size = |size: &u32| (1..=MOST).contains(size);
        if self.gibibytes.is_empty() || !self.gibibytes.iter().all(is_size) {
            return Some(format!("memory: expected sizes of 1 to {MOST} GiB, got {:?}", self.gibibytes));
        }
        if self.gibibytes.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Some("memory: expected sizes in rising order, each once".to_owned());
        }
        match self.app_share_percent {
            1..=100 => None,
            share => Some(format!("memory: expected a share of 1 to 100 percent, got {share}")),
        }
    }
}
