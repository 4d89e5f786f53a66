//! Turns of a conversation as plain data.

use std::path::PathBuf;

use serde_json::{Value, json};
use shardwright::{ChatPart, TurnPart};

use crate::{Error, Result};

/// The author of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Instructions.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// The application, with results of calls.
    Tool,
}

impl From<Role> for shardwright::Role {
    fn from(role: Role) -> Self {
        match role {
            Role::System => shardwright::Role::System,
            Role::User => shardwright::Role::User,
            Role::Assistant => shardwright::Role::Assistant,
            Role::Tool => shardwright::Role::Tool,
        }
    }
}

impl From<shardwright::Role> for Role {
    fn from(role: shardwright::Role) -> Self {
        match role {
            shardwright::Role::System => Role::System,
            shardwright::Role::User => Role::User,
            shardwright::Role::Assistant => Role::Assistant,
            shardwright::Role::Tool => Role::Tool,
        }
    }
}

/// A turn of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// The author.
    pub role: Role,
    /// The content in order.
    pub parts: Vec<Part>,
}

/// A part of a turn.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// A thought of the model.
    Thought {
        /// The text.
        text: String,
    },
    /// A call of a tool by the model.
    ToolCall {
        /// Id of the call.
        id: String,
        /// Name of the tool.
        name: String,
        /// The arguments as JSON text.
        arguments: String,
    },
    /// The result of a call.
    ToolResult {
        /// Id of the call.
        id: String,
        /// The result, often JSON text.
        content: String,
    },
    /// A picture file: PNG, JPEG, WebP, GIF, BMP or TIFF.
    PictureFile {
        /// Path of the file.
        path: PathBuf,
    },
    /// The bytes of a picture file.
    PictureBytes {
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Rows of pixels, three bytes each (red, green, blue).
    PicturePixels {
        /// Pixels of a row.
        width: u32,
        /// Number of rows.
        height: u32,
        /// Bytes from one row to the next.
        stride: u64,
        /// Pixels of all rows.
        pixels: Vec<u8>,
    },
    /// Patches that the app computed itself, as the processor of the model does.
    PicturePatches {
        /// Values of the patches.
        values: Vec<f32>,
        /// Column and row of each patch, one after the other. −1 for padding.
        positions: Vec<i32>,
    },
    /// A WAV or FLAC file.
    SoundFile {
        /// Path of the file.
        path: PathBuf,
    },
    /// The bytes of a sound file.
    SoundBytes {
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Samples of one channel, −1 to 1.
    SoundSamples {
        /// Samples per second.
        rate: u32,
        /// The samples.
        samples: Vec<f32>,
    },
    /// Mel frames that the app computed itself, as the processor of the model does.
    SoundFrames {
        /// Values of the frames.
        values: Vec<f32>,
    },
    /// A picture of a restored session, whose content is unknown.
    RestoredPicture,
    /// A sound of a restored session, whose content is unknown.
    RestoredSound,
}

impl From<&str> for Part {
    fn from(text: &str) -> Self {
        Part::Text { text: text.to_owned() }
    }
}

impl From<String> for Part {
    fn from(text: String) -> Self {
        Part::Text { text }
    }
}

impl Turn {
    /// Creates a turn of these parts.
    pub fn new(role: Role, parts: impl IntoIterator<Item = Part>) -> Turn {
        Turn { role, parts: parts.into_iter().collect() }
    }

    /// Converts to a turn of the host.
    pub(crate) fn into_host(self) -> Result<shardwright::Turn> {
        let parts = self.parts.into_iter().map(Part::into_host).collect::<Result<_>>()?;
        Ok(shardwright::Turn { role: self.role.into(), parts })
    }

    pub(crate) fn of_host(turn: &shardwright::Turn) -> Turn {
        Turn { role: turn.role.into(), parts: turn.parts.iter().map(Part::of_host).collect() }
    }

    /// Returns the turn as JSON: `{"role": …, "parts": [{"type": "text", "text": …}, …]}`. Pictures
    /// and sounds have no content there.
    pub fn to_json(&self) -> Value {
        let role = shardwright::Role::from(self.role).name();
        json!({ "role": role, "parts": self.parts.iter().map(Part::to_json).collect::<Vec<_>>() })
    }
}

impl Part {
    fn to_json(&self) -> Value {
        match self {
            Part::Text { text } => json!({ "type": "text", "text": text }),
            Part::Thought { text } => json!({ "type": "thought", "text": text }),
            Part::ToolCall { id, name, arguments } => {
                json!({ "type": "tool-call", "id": id, "name": name, "arguments": arguments })
            }
            Part::ToolResult { id, content } => {
                json!({ "type": "tool-result", "id": id, "content": content })
            }
            Part::PictureFile { .. }
            | Part::PictureBytes { .. }
            | Part::PicturePixels { .. }
            | Part::PicturePatches { .. }
            | Part::RestoredPicture => json!({ "type": "picture" }),
            Part::SoundFile { .. }
            | Part::SoundBytes { .. }
            | Part::SoundSamples { .. }
            | Part::SoundFrames { .. }
            | Part::RestoredSound => json!({ "type": "sound" }),
        }
    }

    /// Converts to a part of a turn of the user.
    pub(crate) fn into_chat_part(self) -> Result<ChatPart> {
        let misplaced = |noun: &str| {
            let what = format!("a turn of the user cannot have {noun}");
            Err(Error::argument(what, "pass text, pictures and sounds"))
        };
        match self.into_host()? {
            TurnPart::Text(text) => Ok(ChatPart::Text(text)),
            TurnPart::Picture(part) | TurnPart::Sound(part) => Ok(part),
            TurnPart::Thought(_) => misplaced("a thought"),
            TurnPart::ToolCall(_) => misplaced("a tool call"),
            _ => misplaced("a tool result"),
        }
    }

    fn into_host(self) -> Result<TurnPart> {
        Ok(match self {
            Part::Text { text } => TurnPart::Text(text),
            Part::Thought { text } => TurnPart::Thought(text),
            Part::ToolCall { id, name, arguments } => {
                let arguments = serde_json::from_str(&arguments).map_err(|error| {
                    let what = format!("the arguments of a tool call: {error}");
                    Error::argument(what, "pass valid JSON text")
                })?;
                TurnPart::ToolCall(shardwright::ToolCall { id, name, arguments })
            }
            Part::ToolResult { id, content } => TurnPart::ToolResult { id, name: String::new(), content },
            Part::PictureFile { path } => ChatPart::PictureFile(path).into(),
            Part::PictureBytes { bytes } => ChatPart::PictureBytes(bytes).into(),
            Part::PicturePixels { width, height, stride, pixels } => {
                let stride = usize::try_from(stride).map_err(|_| {
                    Error::argument(
                        format!("the stride of {stride} bytes is too large"),
                        "pass the bytes from one row of pixels to the next",
                    )
                })?;
                ChatPart::PictureRgb8 { width, height, stride, pixels }.into()
            }
            Part::PicturePatches { values, positions } => {
                let (pairs, rest) = positions.as_chunks::<2>();
                if !rest.is_empty() {
                    let what = format!("{} positions of patches are not pairs", positions.len());
                    return Err(Error::argument(what, "pass a column and a row for each patch"));
                }
                ChatPart::Patches { values, positions: pairs.to_vec() }.into()
            }
            Part::SoundFile { path } => ChatPart::SoundFile(path).into(),
            Part::SoundBytes { bytes } => ChatPart::SoundBytes(bytes).into(),
            Part::SoundSamples { rate, samples } => ChatPart::SoundSamples { rate, samples }.into(),
            Part::SoundFrames { values } => ChatPart::Frames(values).into(),
            Part::RestoredPicture | Part::RestoredSound => {
                return Err(Error::argument(
                    "the content of a restored picture or sound is unknown",
                    "continue the restored session, or pass the picture or sound again",
                ));
            }
        })
    }

    fn of_host(part: &TurnPart) -> Part {
        match part.clone() {
            TurnPart::Text(text) => Part::Text { text },
            TurnPart::Thought(text) => Part::Thought { text },
            TurnPart::ToolCall(call) => {
                Part::ToolCall { id: call.id, name: call.name, arguments: call.arguments.to_string() }
            }
            TurnPart::ToolResult { id, content, .. } => Part::ToolResult { id, content },
            TurnPart::Sound(part) => Part::of_chat_part(part, Part::RestoredSound),
            TurnPart::Picture(part) => Part::of_chat_part(part, Part::RestoredPicture),
            _ => Part::RestoredPicture,
        }
    }

    /// Converts a picture or a sound. `restored` stands for one without known content.
    fn of_chat_part(part: ChatPart, restored: Part) -> Part {
        match part {
            ChatPart::Text(text) => Part::Text { text },
            ChatPart::PictureFile(path) => Part::PictureFile { path },
            ChatPart::PictureBytes(bytes) => Part::PictureBytes { bytes },
            ChatPart::PictureRgb8 { width, height, stride, pixels } => {
                Part::PicturePixels { width, height, stride: stride as u64, pixels }
            }
            ChatPart::Patches { values, positions } => {
                Part::PicturePatches { values, positions: positions.concat() }
            }
            ChatPart::SoundFile(path) => Part::SoundFile { path },
            ChatPart::SoundBytes(bytes) => Part::SoundBytes { bytes },
            ChatPart::SoundSamples { rate, samples } => Part::SoundSamples { rate, samples },
            ChatPart::Frames(values) => Part::SoundFrames { values },
            _ => restored,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn turns_survive_the_way_to_the_host_and_back() {
        let turns = [
            Turn::new(Role::System, ["Be brief.".into()]),
            Turn::new(
                Role::User,
                [
                    "look".into(),
                    Part::PictureFile { path: "a.png".into() },
                    Part::PictureBytes { bytes: vec![1] },
                    Part::PicturePixels { width: 1, height: 1, stride: 3, pixels: vec![0; 3] },
                    Part::PicturePatches { values: vec![0.5], positions: vec![0, 1, -1, -1] },
                    Part::SoundFile { path: "a.wav".into() },
                    Part::SoundBytes { bytes: vec![2] },
                    Part::SoundSamples { rate: 16_000, samples: vec![0.0] },
                    Part::SoundFrames { values: vec![1.0] },
                ],
            ),
            Turn::new(
                Role::Assistant,
                [
                    Part::Thought { text: "hm".into() },
                    Part::ToolCall { id: "1".into(), name: "f".into(), arguments: r#"{"a":1}"#.into() },
                ],
            ),
            Turn::new(Role::Tool, [Part::ToolResult { id: "1".into(), content: "2".into() }]),
        ];
        for turn in turns {
            let host = turn.clone().into_host().unwrap();
            assert_eq!(Turn::of_host(&host), turn);
        }
    }

    #[test]
    fn json_has_no_content_of_pictures() {
        let turn = Turn::new(Role::User, ["a".into(), Part::PictureBytes { bytes: vec![0; 9] }]);
        let expected = r#"{"parts":[{"text":"a","type":"text"},{"type":"picture"}],"role":"user"}"#;
        let found: Value = turn.to_json();
        assert_eq!(found, serde_json::from_str::<Value>(expected).unwrap());
    }

    #[test]
    fn parts_that_cannot_be_sent_are_refused() {
        let call = |arguments: &str| Part::ToolCall {
            id: "1".into(),
            name: "f".into(),
            arguments: arguments.into(),
        };
        for (part, expected) in [
            (call("{"), "the arguments of a tool call"),
            (call("{}"), "cannot have a tool call"),
            (Part::Thought { text: String::new() }, "cannot have a thought"),
            (Part::ToolResult { id: "1".into(), content: String::new() }, "cannot have a tool result"),
            (Part::PicturePatches { values: Vec::new(), positions: vec![1] }, "are not pairs"),
            (Part::RestoredSound, "restored picture or sound"),
        ] {
            let error = part.into_chat_part().unwrap_err();
            assert_eq!(error.kind, ErrorKind::Argument);
            assert!(error.message.contains(expected) && error.help.is_some(), "{error:?}");
        }
    }
}
