use serde::Serialize;
use shardwright_vocabulary::{Error, ErrorKind};

/// The error of a part of a model that cannot be used. The other parts are reported all the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    pub error: String,
    /// The next step for the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
    /// The kind of the error.
    #[serde(skip)]
    pub kind: ErrorKind,
}

impl Fault {
    pub(crate) fn of(error: &Error) -> Self {
        let help = error.help().map(str::to_owned);
        Fault { error: error.to_string(), help, kind: error.kind() }
    }

    pub(crate) fn to_error(&self) -> Error {
        let error = Error::new(self.kind, self.error.as_str());
        self.help.iter().fold(error, Error::with_help)
    }
}
