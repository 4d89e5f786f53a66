//! How a shard stands on a machine.

use serde::Serialize;
use shardwright_vocabulary::{DeviceKind, Error, ErrorKind};

/// Whether a shard runs on a machine, and on which device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "standing")]
pub enum Standing {
    /// On the very device it was compiled for.
    Own,
    /// On a device of another chip, which its shim accepts.
    Sibling,
    /// The machine lacks the chip, and its shim only compiles for it here.
    Offline,
    /// Not here.
    Absent,
}

/// How a shard stands on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShardStanding {
    /// Whether it runs.
    #[serde(flatten)]
    pub standing: Standing,
    /// The device that it runs on, or was compiled for.
    pub device: String,
    /// What that device is, if it is known here.
    #[serde(skip)]
    pub kind: Option<DeviceKind>,
    /// Whether it could run here, and something keeps it from it: a shim that does not open, or
    /// that refuses what was compiled for its own device. Else the machine lacks the chip or the
    /// shim.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hindered: bool,
    /// Why compiling it again would give something better, why it is not its own device, or why it
    /// does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What would help where it does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

impl ShardStanding {
    /// It runs.
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

    /// It does not run.
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

    /// An error that keeps it from running.
    pub(crate) fn failed(device: &str, error: &Error) -> ShardStanding {
        let absent = ShardStanding::absent(device, error.to_string(), error.help().map(str::to_owned));
        ShardStanding { hindered: error.kind() != ErrorKind::Missing, ..absent }
    }

    /// The device is here and refuses what was compiled.
    pub(crate) fn refused(
        device: &str,
        kind: DeviceKind,
        reason: String,
        help: Option<String>,
    ) -> ShardStanding {
        let hindered = kind != DeviceKind::Offline;
        ShardStanding { kind: Some(kind), hindered, ..ShardStanding::absent(device, reason, help) }
    }

    /// Whether it runs.
    pub fn is_here(&self) -> bool {
        matches!(self.standing, Standing::Own | Standing::Sibling)
    }
}
