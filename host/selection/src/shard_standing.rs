//! The result for a shard on a machine.

use serde::Serialize;
use shardwright_vocabulary::{DeviceKind, Error, ErrorKind};

/// Whether a shard runs on a machine, and on which device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "standing")]
pub enum Standing {
    /// It runs on exactly the device it was compiled for.
    Own,
    /// It runs on a device of another chip, which its shim accepts.
    Sibling,
    /// The machine lacks the chip, and its shim only compiles for it here.
    Offline,
    /// It does not run here.
    Absent,
}

/// The result for a shard on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShardStanding {
    /// Whether and where it runs.
    #[serde(flatten)]
    pub standing: Standing,
    /// The device that it runs on, or was compiled for.
    pub device: String,
    /// Kind of that device, if known here.
    #[serde(skip)]
    pub kind: Option<DeviceKind>,
    /// Whether it should run here, but cannot: its shim does not open, or refuses an artefact for
    /// its own device. Otherwise the machine lacks the chip or the shim.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hindered: bool,
    /// Why compiling again would give a better artefact, why it runs on another device, or why it
    /// does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A suggestion, if it does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

impl ShardStanding {
    /// Creates the result for a shard that runs.
    pub(crate) fn runs(
        standing: Standing,
        device: &str,
        kind: DeviceKind,
        reason: Option<String>,
    ) -> ShardStanding {
        ShardStanding {
            standing,
            device: device.to_owned(),
            kind: Some(kind),
            hindered: false,
            reason,
            help: None,
        }
    }

    /// Creates the result for a shard that does not run.
    pub(crate) fn absent(device: &str, reason: impl Into<String>, help: Option<String>) -> ShardStanding {
        ShardStanding {
            standing: Standing::Absent,
            device: device.to_owned(),
            kind: None,
            hindered: false,
            reason: Some(reason.into()),
            help,
        }
    }

    /// Creates the result for an error that prevents the shard from running.
    pub(crate) fn failed(device: &str, error: &Error) -> ShardStanding {
        let absent = ShardStanding::absent(device, error.to_string(), error.help().map(str::to_owned));
        ShardStanding { hindered: error.kind() != ErrorKind::Missing, ..absent }
    }

    /// Creates the result for a device that is here and refuses the artefact.
    pub(crate) fn refused(
        device: &str,
        kind: DeviceKind,
        reason: String,
        help: Option<String>,
    ) -> ShardStanding {
        let hindered = kind != DeviceKind::Offline;
        ShardStanding { kind: Some(kind), hindered, ..ShardStanding::absent(device, reason, help) }
    }

    /// Checks whether the shard runs.
    pub fn is_here(&self) -> bool {
        matches!(self.standing, Standing::Own | Standing::Sibling)
    }
}
