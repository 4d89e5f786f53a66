//! Sessions that `run` saves and restores.

use shardwright::{ErrorKind, Model, Restored, SavedSession, Session};
use shardwright_build::units;

use crate::arguments::RunArguments;
use crate::outcome::Failure;
use crate::views;

/// Returns a new session, or the session of `--restore`. Checks the path of `--save` before the
/// long work of replies.
pub fn opened(model: &Model, arguments: &RunArguments) -> Result<Session, Failure> {
    if let Some(path) = &arguments.save {
        SavedSession::expect_at(path)?;
    }
    let Some(path) = &arguments.restore else { return Ok(model.session()?) };
    let Restored { session, recomputed } = model.restore(path)?;
    let (tokens, shown) = (session.tokens().len() as u64, path.display());
    match recomputed {
        Some(reason) if arguments.target.strict => {
            return Err(Failure::Refused {
                kind: ErrorKind::Strict,
                message: format!("{shown}: the KV cache cannot be used: {reason}"),
                help: "restore with the model, plan and machine of the saved session, or drop --strict"
                    .to_owned(),
            });
        }
        Some(reason) => {
            let tokens = units::count(tokens, "token");
            views::say(&format!("fallback: {shown}: {reason}. Running its {tokens} again."));
        }
        None if arguments.quiet => {}
        None => {
            let turns = units::count(session.turns().len() as u64, "turn");
            views::say(&format!("restored {turns} and {} from {shown}", units::count(tokens, "token")));
        }
    }
    Ok(session)
}

/// Saves the session to the file of `--save`.
pub fn save(session: &mut Session, arguments: &RunArguments) -> Result<(), Failure> {
    let Some(path) = &arguments.save else { return Ok(()) };
    let saved = session.save(path)?;
    let shown = path.display();
    match saved.without_states {
        Some(reason) => views::say(&format!(
            "note: {shown} has no KV cache: {reason}. Restoring it runs its {} again.",
            units::count(saved.tokens as u64, "token")
        )),
        None if arguments.quiet => {}
        None => views::say(&format!(
            "saved {} to {shown} ({})",
            units::count(saved.tokens as u64, "token"),
            units::bytes(saved.bytes)
        )),
    }
    Ok(())
}
