//! Grammars in a program that was built without them.

use std::convert::Infallible;

use shardwright::{ErrorKind, Session, ToolChoice};

use crate::arguments::RunArguments;
use crate::outcome::Failure;

/// Has no effect: [`grammar`] fails for all arguments that need a grammar, so there is none here.
pub fn constrain(_: &mut Session, _: Option<&Infallible>, _: &RunArguments) -> Result<(), Failure> {
    Ok(())
}

/// Fails for arguments that need a grammar, with the hint how to get a program that has grammars.
pub fn grammar(arguments: &RunArguments) -> Result<Option<Infallible>, Failure> {
    let RunArguments { json_schema, regex, grammar, tool_choice, .. } = arguments;
    let (user, instead) = if json_schema.is_some() {
        ("--json-schema needs", "leave --json-schema out")
    } else if regex.is_some() {
        ("--regex needs", "leave --regex out")
    } else if grammar.is_some() {
        ("--grammar needs", "leave --grammar out")
    } else if tool_choice.as_ref().is_some_and(ToolChoice::is_forced) {
        ("enforced calls need", "use --tool-choice auto")
    } else {
        return Ok(None);
    };
    Err(Failure::Refused {
        kind: ErrorKind::Unsupported,
        message: format!("this program was built without grammars, which {user}"),
        help: format!("build it with `cargo xtask build`, or {instead}"),
    })
}
