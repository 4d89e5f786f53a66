//! The ways in which families of models write calls, recognised by their chat template.

use crate::tokenizer::Tokenizer;

/// A way of writing calls, with the tokens of a vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallFormat {
    family: CallFamily,
    /// Ids of the marks, in the order of [`Mark`]. A mark without an id is spelled out in the text.
    ids: [Option<u32>; 4],
}

/// The families of formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallFamily {
    /// `<|tool_call>call:NAME{town:<|"|>Bern<|"|>,days:3}<tool_call|>`
    Gemma4,
    /// `<start_function_call>call:NAME{town:<escape>Bern<escape>}<end_function_call>`
    FunctionGemma,
    /// `<tool_call>\n{"name": "NAME", "arguments": {…}}\n</tool_call>`, of Hermes, Qwen and
    /// SmolLM3.
    Hermes,
    /// `{"name": "NAME", "parameters": {…}}` at the start of the reply, of Llama 3.
    Llama,
}

/// A token, or a text, with a meaning in calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Begins a call.
    Open,
    /// Ends a call.
    Close,
    /// Encloses a string.
    Quote,
    /// Begins the result, which the application writes, so it ends the reply.
    Respond,
}

impl Mark {
    pub(crate) const ALL: [Mark; 4] = [Mark::Open, Mark::Close, Mark::Quote, Mark::Respond];
}

impl CallFamily {
    /// All families.
    pub const ALL: [CallFamily; 4] =
        [CallFamily::Gemma4, CallFamily::FunctionGemma, CallFamily::Hermes, CallFamily::Llama];

    /// Returns the name for messages.
    pub const fn name(self) -> &'static str {
        match self {
            CallFamily::Gemma4 => "Gemma 4",
            CallFamily::FunctionGemma => "FunctionGemma",
            CallFamily::Hermes => "Hermes",
            CallFamily::Llama => "Llama 3",
        }
    }

    /// Returns the spelling of a mark. `None` if the family does not have it.
    pub(crate) const fn spelling(self, mark: Mark) -> Option<&'static str> {
        let [open, close, quote, respond] = match self {
            CallFamily::Gemma4 => ["<|tool_call>", "<tool_call|>", "<|\"|>", "<|tool_response>"],
            CallFamily::FunctionGemma => {
                ["<start_function_call>", "<end_function_call>", "<escape>", "<start_function_response>"]
            }
            CallFamily::Hermes => ["<tool_call>", "</tool_call>", "", ""],
            CallFamily::Llama => ["<|python_tag|>", "", "", ""],
        };
        let spelling = match mark {
            Mark::Open => open,
            Mark::Close => close,
            Mark::Quote => quote,
            Mark::Respond => respond,
        };
        if spelling.is_empty() { None } else { Some(spelling) }
    }

    /// Recognises the family by the source of a chat template. `None` for templates without calls,
    /// and for other formats, even if they share a mark with a known one.
    pub fn of_template(source: &str) -> Option<CallFamily> {
        let has = |text: &str| source.contains(text);
        if has("<|tool_call>") && has("<tool_call|>") && has("<|\"|>") {
            return Some(CallFamily::Gemma4);
        }
        if has("<start_function_declaration>") && has("<escape>") {
            return Some(CallFamily::FunctionGemma);
        }
        let writes_objects = ["{\"name\"", "{\\\"name\\\""].into_iter().any(has);
        // Qwen 3 Coder and GLM write each argument between tags of its own, Apriel a list of calls.
        let is_other = ["<function=", "<arg_key>", "<tool_calls>"].into_iter().any(has);
        if has("<tool_call>") && has("</tool_call>") && writes_objects && !is_other {
            return Some(CallFamily::Hermes);
        }
        has("{\"name\": function name, \"parameters\":").then_some(CallFamily::Llama)
    }
}

impl CallFormat {
    /// Returns the format of a chat template's calls. Marks that `tokenizer` has as added tokens
    /// are recognised as those tokens only, others by their spelling. `None` if the format is not
    /// known.
    pub fn of(source: &str, tokenizer: &Tokenizer) -> Option<CallFormat> {
        let family = CallFamily::of_template(source)?;
        let added = tokenizer.added_tokens();
        Some(CallFormat::with_ids(family, |spelling| added.get(spelling).map(|(id, _)| *id)))
    }

    /// Returns a format of `family` in which `id` returns the token of a mark by its spelling.
    pub fn with_ids(family: CallFamily, id: impl Fn(&str) -> Option<u32>) -> CallFormat {
        let ids = Mark::ALL.map(|mark| family.spelling(mark).and_then(&id));
        CallFormat { family, ids }
    }

    /// Returns the family of the format.
    pub const fn family(&self) -> CallFamily {
        self.family
    }

    /// Returns the mark that a token is.
    pub(crate) fn mark(&self, id: u32) -> Option<Mark> {
        Mark::ALL.into_iter().find(|mark| self.ids[*mark as usize] == Some(id))
    }

    /// Returns the id of a mark. `None` if it is spelled out in the text.
    pub(crate) fn id(&self, mark: Mark) -> Option<u32> {
        self.ids[mark as usize]
    }

    /// Returns the marks that are spelled out in the text.
    pub(crate) fn spelled(&self) -> Vec<(Mark, &'static str)> {
        let without_id = Mark::ALL.into_iter().filter(|mark| self.id(*mark).is_none());
        without_id.filter_map(|mark| Some((mark, self.family.spelling(mark)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_recognised_by_how_they_write_calls() {
        for (source, expected) in [
            ("'<|tool_call>call:' + name ~ '<|\"|>' ~ x ~ '}<tool_call|>'", Some(CallFamily::Gemma4)),
            ("<start_function_declaration> <escape>", Some(CallFamily::FunctionGemma)),
            ("'<tool_call>\\n{\"name\": \"' ... '</tool_call>'", Some(CallFamily::Hermes)),
            (
                "Respond in the format {\"name\": function name, \"parameters\": dict}",
                Some(CallFamily::Llama),
            ),
            ("<tool_call>\\n{\\\"name\\\": <function-name>}\\n</tool_call>", Some(CallFamily::Hermes)),
            ("<tool_call>\\n<function=NAME>\\n</function>\\n</tool_call>", None),
            ("'<tool_call>' '<invoke name=\"' '</tool_call>'", None),
            ("<tool_call></tool_call> <tool_calls>[{\"name\": \"f\"}]</tool_calls>", None),
            ("<tool_call>NAME\\n<arg_key>k</arg_key></tool_call>", None),
            ("<|tool_call|>[{\"name\"", None),
            ("[TOOL_CALLS]", None),
            ("{{ messages }}", None),
        ] {
            assert_eq!(CallFamily::of_template(source), expected, "{source}");
        }
    }

    #[test]
    fn marks_are_tokens_if_the_vocabulary_has_them() {
        let format = CallFormat::with_ids(CallFamily::Hermes, |text| (text == "<tool_call>").then_some(7));
        assert_eq!((format.mark(7), format.mark(8)), (Some(Mark::Open), None));
        assert_eq!(format.spelled(), [(Mark::Close, "</tool_call>")]);
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures");
        let gemma = Tokenizer::from_checkpoint(format!("{fixtures}/gemma4_text")).unwrap();
        let format = CallFormat::of("<|tool_call> <tool_call|> <|\"|>", &gemma).unwrap();
        assert_eq!(Mark::ALL.map(|mark| format.id(mark)), [Some(7), Some(8), Some(11), Some(9)]);
        assert!(format.spelled().is_empty());
        assert_eq!(CallFormat::of("{{ messages }}", &gemma), None);
    }
}
