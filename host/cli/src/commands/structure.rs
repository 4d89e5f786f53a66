//! The grammar that answers must match.

use shardwright::{ErrorKind, Grammar, Session};

use super::text_of;
use crate::arguments::RunArguments;
use crate::outcome::Failure;
use crate::views;

/// Sets the grammar for all replies. Reports keywords of a schema without effect.
pub fn constrain(
    session: &mut Session,
    grammar: Option<&Grammar>,
    arguments: &RunArguments,
) -> Result<(), Failure> {
    session.constrain(grammar)?;
    let ignored = session.options.constraint.as_ref().map_or(&[][..], |constraint| constraint.ignored());
    if ignored.is_empty() {
        return Ok(());
    }
    let message = format!("unknown keywords of the JSON schema have no effect: {}", ignored.join(", "));
    if arguments.target.strict {
        let help = "remove the keywords, or leave --strict out".to_owned();
        return Err(Failure::Refused { kind: ErrorKind::Strict, message, help });
    }
    if !arguments.quiet {
        views::say(&format!("note: {message}"));
    }
    Ok(())
}

/// Reads the grammar of the arguments, if they name one.
pub fn grammar(arguments: &RunArguments) -> Result<Option<Grammar>, Failure> {
    let RunArguments { json_schema, regex, grammar, .. } = arguments;
    Ok(match (json_schema, regex, grammar) {
        (Some(path), ..) => {
            let schema = Grammar::json_schema_text(&text_of(path)?);
            Some(schema.map_err(|error| error.at(path.display()))?)
        }
        (_, Some(pattern), _) => Some(Grammar::regex(pattern)),
        (.., Some(path)) => Some(Grammar::lark(&text_of(path)?)),
        (None, None, None) => None,
    })
}
