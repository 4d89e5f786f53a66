//! Turns as they are saved.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use shardwright_runtime::SoftRows;
use shardwright_text::ToolCall;

use super::format::damaged;
use crate::ChatPart;
use crate::Result;
use crate::parts::{RestoredPart, Sense};
use crate::turns::{Role, Turn, TurnPart};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedTurn {
    role: SavedRole,
    parts: Vec<SavedPart>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SavedRole {
    System,
    User,
    Assistant,
    Tool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum SavedPart {
    Text(String),
    Thought(String),
    ToolCall {
        id: String,
        name: String,
        arguments: Value,
    },
    ToolResult {
        id: String,
        name: String,
        content: String,
    },
    /// Index of a picture or sound in the head.
    Seen(usize),
}

/// Converts a turn. `indexes` yields the index of its next picture or sound.
pub(super) fn saved_turn(turn: &Turn, indexes: &mut impl Iterator<Item = usize>) -> SavedTurn {
    let role = match turn.role {
        Role::System => SavedRole::System,
        Role::User => SavedRole::User,
        Role::Assistant => SavedRole::Assistant,
        Role::Tool => SavedRole::Tool,
    };
    let part = |part: &TurnPart| match part.clone() {
        TurnPart::Text(text) => SavedPart::Text(text),
        TurnPart::Thought(text) => SavedPart::Thought(text),
        TurnPart::ToolCall(ToolCall { id, name, arguments }) => SavedPart::ToolCall { id, name, arguments },
        TurnPart::ToolResult { id, name, content } => SavedPart::ToolResult { id, name, content },
        // There are rows for each picture and sound of a conversation.
        TurnPart::Picture(_) | TurnPart::Sound(_) => SavedPart::Seen(indexes.next().unwrap_or(usize::MAX)),
    };
    SavedTurn { role, parts: turn.parts.iter().map(part).collect() }
}

/// Converts a turn back. `parts` are the pictures and sounds of the file. Those of the turn are
/// appended to `soft`.
pub(super) fn restored_turn(
    turn: SavedTurn,
    parts: &[(Sense, Arc<SoftRows>)],
    soft: &mut Vec<(Sense, Arc<SoftRows>)>,
) -> Result<Turn> {
    let role = match turn.role {
        SavedRole::System => Role::System,
        SavedRole::User => Role::User,
        SavedRole::Assistant => Role::Assistant,
        SavedRole::Tool => Role::Tool,
    };
    let mut part = |part| {
        Ok(match part {
            SavedPart::Text(text) => TurnPart::Text(text),
            SavedPart::Thought(text) => TurnPart::Thought(text),
            SavedPart::ToolCall { id, name, arguments } => {
                TurnPart::ToolCall(ToolCall { id, name, arguments })
            }
            SavedPart::ToolResult { id, name, content } => TurnPart::ToolResult { id, name, content },
            SavedPart::Seen(index) => {
                let missing =
                    || damaged(format!("a turn has the part {index}, but the file has {}", parts.len()));
                let (sense, rows) = parts.get(index).cloned().ok_or_else(missing)?;
                soft.push((sense, Arc::clone(&rows)));
                let part = ChatPart::Restored(RestoredPart::new(sense, rows));
                match sense {
                    Sense::Picture => TurnPart::Picture(part),
                    Sense::Sound => TurnPart::Sound(part),
                }
            }
        })
    };
    let parts = turn.parts.into_iter().map(&mut part).collect::<Result<Vec<TurnPart>>>()?;
    Ok(Turn { role, parts })
}
