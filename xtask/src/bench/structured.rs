//! Structured output of published models. The bench target validates replies with a Python package.

use std::process::Command;

use super::python;
use crate::error::Error;
use crate::process;
use crate::workspace::Workspace;

/// Name of the bench target.
pub const NAME: &str = "structured";

/// Variable with the interpreter for the bench target.
const PYTHON_VARIABLE: &str = "SHARDWRIGHT_JSONSCHEMA_PYTHON";

/// Runs `target`, the command of the bench target, with an interpreter that has the package. If it
/// cannot be installed, replies are not validated.
pub fn run(workspace: &Workspace, target: &mut Command) -> Result<(), Error> {
    let requirements = workspace.root.join("tests/benches/validate_schemas.requirements.txt");
    if std::env::var_os(PYTHON_VARIABLE).is_none_or(|named| named.is_empty()) {
        match python::interpreter("validate-schemas", &requirements) {
            Ok(python) => {
                target.env(PYTHON_VARIABLE, python);
            }
            Err(error) => eprintln!("no package validates replies: {error}"),
        }
    }
    process::run(target)
}
