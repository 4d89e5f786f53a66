//! Errors of the rooms that build, told as this crate's own.

use shardwright_build::models::{CheckpointError, ErrorKind as CheckpointKind};
use shardwright_build::planning::error::{PlannerError, PlannerErrorKind};
use shardwright_build::planning::profile::ProfileError;
use shardwright_build::planning::registry::RegistryError;
use shardwright_build::planning::session::LoopError;
use shardwright_build::quantisation::QuantiseError;
use shardwright_build::{BuildError, graph::GraphError};

use crate::{Error, ErrorKind};

impl From<CheckpointError> for Error {
    fn from(error: CheckpointError) -> Self {
        let kind = match error.kind() {
            CheckpointKind::Missing | CheckpointKind::Unreadable => ErrorKind::Missing,
            CheckpointKind::Unsupported => ErrorKind::Unsupported,
            _ => ErrorKind::Invalid,
        };
        let help = error.help();
        Error::from_room(kind, error, help)
    }
}

impl From<GraphError> for Error {
    fn from(error: GraphError) -> Self {
        let kind = match error {
            GraphError::EntryPoint { .. } | GraphError::LayerRange { .. } => ErrorKind::Argument,
            GraphError::WeightRange { .. } => ErrorKind::Invalid,
            _ => ErrorKind::Internal,
        };
        let help = error.help().map(str::to_owned);
        Error::from_room(kind, error, help)
    }
}

impl From<ProfileError> for Error {
    fn from(error: ProfileError) -> Self {
        let help = error.help();
        Error::from_room(ErrorKind::Missing, error, help)
    }
}

impl From<RegistryError> for Error {
    fn from(error: RegistryError) -> Self {
        let help = error.help();
        let kind = match &error {
            RegistryError::Unknown { .. } => ErrorKind::Argument,
            _ => ErrorKind::Missing,
        };
        Error::from_room(kind, error, help)
    }
}

impl From<PlannerError> for Error {
    fn from(error: PlannerError) -> Self {
        let kind = match &error.kind {
            PlannerErrorKind::MissingFile { .. } => ErrorKind::Missing,
            PlannerErrorKind::WrongVersion { .. } => ErrorKind::Incompatible,
            PlannerErrorKind::Garbage { .. }
            | PlannerErrorKind::CoreModule
            | PlannerErrorKind::WrongWorld { .. }
            | PlannerErrorKind::ForbiddenImport { .. }
            | PlannerErrorKind::TooBig { .. } => ErrorKind::Invalid,
            PlannerErrorKind::Sandbox { .. } => ErrorKind::Internal,
            _ => ErrorKind::Planning,
        };
        let help = error.help();
        Error::from_room(kind, error, help)
    }
}

impl From<BuildError> for Error {
    fn from(error: BuildError) -> Self {
        let kind = match &error {
            BuildError::Refused(_) => ErrorKind::Planning,
            BuildError::Cancelled => ErrorKind::Cancelled,
            BuildError::Quantise(QuantiseError::Cancelled { .. }) => ErrorKind::Cancelled,
            BuildError::Bundle(_) | BuildError::Artefact(_) | BuildError::Quantise(_) => ErrorKind::Invalid,
            BuildError::Promise { .. } => ErrorKind::Internal,
            _ => ErrorKind::Shim,
        };
        let help = error.help();
        Error::from_room(kind, error, help)
    }
}

impl From<LoopError<Error>> for Error {
    fn from(error: LoopError<Error>) -> Self {
        match error {
            LoopError::Trial(error) => error,
            LoopError::Planner { error, history } if history.is_empty() => (*error).into(),
            error => {
                let help = error.help();
                Error::from_room(ErrorKind::Planning, error, help)
            }
        }
    }
}
