//! Control tokens spelled out in a message remain text.
//!
//! **Job.** If a template writes `<|turn>`, it means the token. If a message contains the same
//! letters, it means the letters. In the rendered text the two look alike, so tokens in messages
//! are marked before rendering. A character is inserted before and after each token that occurs
//! nowhere else, one pair of characters for each token. A template may still trim, split, search,
//! cut and join its inputs: a token next to its own mark belongs to a message. The marks only
//! affect operations that count characters: lengths and slices of a text that spells out tokens.
//!
//! **Not its job.** Text in which no token is spelled out. It is rendered and encoded unchanged,
//! token for token as in Hugging Face.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use minijinja::Value;
use minijinja::value::ValueKind;

use crate::white_space::is_space;

/// The added tokens of a tokenizer that control the model.
#[derive(Debug, Default)]
pub(crate) struct ControlTokens {
    tokens: HashSet<String>,
    firsts: HashSet<char>,
    /// The different lengths of tokens in bytes, longest first.
    lengths: Vec<usize>,
}

impl ControlTokens {
    /// Selects control tokens from the added tokens, which come with their file's `special` flag.
    /// Tokens without the flag are control tokens if the template names them (`<think>`). The rest
    /// are text with a token of its own, such as runs of line breaks and `<table>`.
    pub(crate) fn new<'a>(added: impl Iterator<Item = (&'a str, bool)>, template: &str) -> ControlTokens {
        let named = |token: &str| {
            token.chars().any(|c| !c.is_alphanumeric() && !c.is_whitespace() && c != '▁')
                && template.contains(token)
        };
        let tokens: HashSet<String> = added
            .filter(|(token, special)| !token.trim().is_empty() && (*special || named(token)))
            .map(|(token, _)| token.to_owned())
            .collect();
        let lengths: std::collections::BTreeSet<usize> = tokens.iter().map(String::len).collect();
        ControlTokens {
            firsts: tokens.iter().filter_map(|token| token.chars().next()).collect(),
            lengths: lengths.into_iter().rev().collect(),
            tokens,
        }
    }

    /// Returns the bytes of the longest token that `text` starts with.
    fn at(&self, text: &str) -> Option<usize> {
        if !text.chars().next().is_some_and(|first| self.firsts.contains(&first)) {
            return None;
        }
        self.lengths
            .iter()
            .copied()
            .find(|&length| text.get(..length).is_some_and(|candidate| self.tokens.contains(candidate)))
    }

    /// Checks whether `text` ends with a part of a token that following text could complete.
    fn begun_by(&self, text: &str) -> bool {
        let longest = self.lengths.first().copied().unwrap_or(0);
        let ends = text.char_indices().rev().take_while(|(start, _)| text.len() - start < longest);
        ends.filter(|(_, first)| self.firsts.contains(first)).any(|(start, _)| {
            let end = &text[start..];
            self.tokens.iter().any(|token| token.len() > end.len() && token.starts_with(end))
        })
    }

    /// Checks whether any text in `value` contains a token, or the start of one at its end.
    pub(crate) fn are_in(&self, value: &Value) -> bool {
        let mut found = false;
        visit(value, &mut |text| {
            found = found
                || self.begun_by(text.trim_end())
                || text.char_indices().any(|(start, _)| self.at(&text[start..]).is_some());
        });
        found
    }
}

/// Visits every text in `value`, including names of members.
fn visit(value: &Value, each: &mut dyn FnMut(&str)) {
    if let Some(text) = value.as_str() {
        each(text);
    } else if matches!(value.kind(), ValueKind::Seq | ValueKind::Map) {
        let is_map = value.kind() == ValueKind::Map;
        for item in value.try_iter().into_iter().flatten() {
            visit(&item, each);
            if is_map && let Ok(existing) = value.get_item(&item) {
                visit(&existing, each);
            }
        }
    }
}

/// Characters that do not occur in any input of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    /// The marks before and after each token that the messages spell out.
    of: HashMap<String, (char, char)>,
    /// The mark after the start of a token at a text's end.
    part: char,
    all: HashSet<char>,
}

/// Iterates over characters without a meaning, or with a private one. The first ones are reserved
/// by Unicode for internal use by programs.
fn candidates() -> impl Iterator<Item = char> {
    ('\u{fdd0}'..='\u{fdef}').chain('\u{f0000}'..='\u{ffffd}').chain('\u{100000}'..='\u{10fffd}')
}

impl Marks {
    /// Returns marks for the tokens that `messages` spell out. The marks do not occur in
    /// `messages`, `others` or `source`. `None` if there are not enough.
    pub(crate) fn unused_in<'v>(
        messages: &[&Value],
        others: impl Iterator<Item = &'v Value>,
        source: &str,
        control: &ControlTokens,
    ) -> Option<Marks> {
        let (mut used, mut spelled) = (HashSet::new(), HashSet::new());
        let mut note = |text: &str| {
            used.extend(text.chars().filter(|c| *c >= '\u{fdd0}'));
            for (start, _) in text.char_indices() {
                if let Some(length) = control.at(&text[start..]) {
                    spelled.insert(text[start..start + length].to_owned());
                }
            }
        };
        messages.iter().for_each(|value| visit(value, &mut note));
        let mut note = |text: &str| used.extend(text.chars().filter(|c| *c >= '\u{fdd0}'));
        others.for_each(|value| visit(value, &mut note));
        note(source);
        let mut free = candidates().filter(|candidate| !used.contains(candidate));
        let part = free.next()?;
        let mut spelled: Vec<String> = spelled.into_iter().collect();
        spelled.sort_unstable();
        let of = spelled.into_iter().map(|token| Some((token, (free.next()?, free.next()?))));
        Some(Marks::new(of.collect::<Option<_>>()?, part))
    }

    fn new(of: HashMap<String, (char, char)>, part: char) -> Marks {
        let all = of.values().flat_map(|(open, close)| [*open, *close]).chain([part]).collect();
        Marks { of, part, all }
    }

    /// Checks whether `c` is a mark.
    pub(crate) fn has(&self, c: char) -> bool {
        self.all.contains(&c)
    }

    /// Returns `value` with a mark before and after each control token in its texts. Also marks the
    /// start of a token at a text's end, which another text could complete.
    pub(crate) fn mark(&self, value: &Value, control: &ControlTokens) -> Value {
        if let Some(text) = value.as_str() {
            return Value::from(self.mark_text(text, control));
        }
        let items = || value.try_iter().into_iter().flatten();
        match value.kind() {
            ValueKind::Seq => items().map(|item| self.mark(&item, control)).collect(),
            ValueKind::Map => Value::from_pairs(items().map(|name| {
                let existing = value.get_item(&name).unwrap_or_default();
                let name =
                    name.as_str().map_or_else(|| name.to_string(), |name| self.mark_text(name, control));
                (name, self.mark(&existing, control))
            })),
            _ => value.clone(),
        }
    }

    fn mark_text(&self, text: &str, control: &ControlTokens) -> String {
        let mut marked = String::with_capacity(text.len() + 16);
        let end = text.trim_end().len();
        let mut place = 0;
        while let Some(next) = text[place..].chars().next() {
            let token = control.at(&text[place..]).map(|length| &text[place..place + length]);
            let known = token.and_then(|token| Some((token, self.of.get(token)?)));
            if let Some((token, (open, close))) = known {
                marked.push(*open);
                marked.push_str(token);
                marked.push(*close);
                place += token.len();
            } else {
                marked.push(next);
                place += next.len_utf8();
                if place == end && control.begun_by(&text[..end]) {
                    marked.push(self.part);
                }
            }
        }
        marked
    }

    /// Distinguishes the tokens of messages and template in the rendered conversation.
    pub(crate) fn separate<'m>(&'m self, rendered: &str, control: &ControlTokens) -> SeparatedText<'m> {
        let mut broken = String::with_capacity(rendered.len());
        let mut rest = rendered;
        while let Some(next) = rest.chars().next() {
            // The token's mark may be before it, after it, or on both sides. One of them may have
            // been cut off.
            let (before, letters) = match self.has(next) {
                true => (Some(next), &rest[next.len_utf8()..]),
                false => (None, rest),
            };
            let token = control.at(letters).map(|length| &letters[..length]);
            let spelled = token.and_then(|token| {
                let (open, close) = *self.of.get(token)?;
                let behind = letters[token.len()..].starts_with(close);
                let beside = before.map_or(behind, |before| before == open);
                beside.then_some((token, open, if behind { close.len_utf8() } else { 0 }))
            });
            match spelled {
                Some((token, mark, behind)) => {
                    let inside = token.chars().next().map_or(0, char::len_utf8);
                    broken.push_str(&token[..inside]);
                    broken.push(mark);
                    broken.push_str(&token[inside..]);
                    rest = &letters[token.len() + behind..];
                }
                // If the template removed the token between two marks, its mark still separates
                // both sides.
                None => {
                    broken.push(next);
                    rest = &rest[next.len_utf8()..];
                }
            }
        }
        SeparatedText { broken, marks: self }
    }

    /// Checks whether `text` has marks.
    pub(crate) fn are_in(&self, text: &str) -> bool {
        text.contains(|c| self.has(c))
    }

    /// Returns `text` without marks.
    pub(crate) fn without(&self, text: &str) -> String {
        text.chars().filter(|c| !self.has(*c)).collect()
    }

    /// Returns `text` without white space, or the characters `of`, at its ends. Marks do not stop
    /// the stripping. Marks next to the remaining text are kept.
    pub(crate) fn strip<'t>(&self, text: &'t str, of: Option<&str>, start: bool, end: bool) -> &'t str {
        let goes = |c: char| of.map_or_else(|| is_space(c), |of| of.contains(c));
        let stays = |c: char| !self.has(c) && !goes(c);
        let (Some(first), Some(last)) = (text.find(stays), text.rfind(stays)) else { return "" };
        let behind = last + text[last..].chars().next().map_or(0, char::len_utf8);
        let beside_first = text[..first].trim_end_matches(|c| self.has(c)).len();
        let beside_last = text.len() - text[behind..].trim_start_matches(|c| self.has(c)).len();
        &text[if start { beside_first } else { 0 }..if end { beside_last } else { text.len() }]
    }
}

/// A rendered conversation in which a mark separates the letters of control tokens, but only of
/// tokens from messages.
pub(crate) struct SeparatedText<'m> {
    broken: String,
    marks: &'m Marks,
}

impl SeparatedText<'_> {
    /// Returns the text to search for tokens.
    pub(crate) fn broken(&self) -> &str {
        &self.broken
    }

    /// Returns the text without marks, and the ranges of `found` in it. `found` has ranges in
    /// [`broken`](SeparatedText::broken), which ascend and do not overlap.
    pub(crate) fn text(&self, found: Vec<(Range<usize>, u32)>) -> (String, Vec<(Range<usize>, u32)>) {
        let mut text = String::with_capacity(self.broken.len());
        let mut bounds = found.iter().flat_map(|(range, _)| [range.start, range.end]).peekable();
        let mut places = Vec::with_capacity(found.len() * 2);
        for (place, c) in self.broken.char_indices() {
            while bounds.next_if(|bound| *bound <= place).is_some() {
                places.push(text.len());
            }
            if !self.marks.has(c) {
                text.push(c);
            }
        }
        places.extend(bounds.map(|_| text.len()));
        let moved = found.iter().zip(places.as_chunks::<2>().0);
        let moved = moved.map(|((_, id), [start, end])| (*start..*end, *id)).collect();
        (text, moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks() -> Marks {
        let of = [
            ("<|turn>", ('[', ')')),
            ("<turn|>", ('{', '}')),
            ("<|turn>x", ('(', '^')),
            ("<think>", ('~', '-')),
        ];
        Marks::new(of.map(|(token, mark)| (token.to_owned(), mark)).into(), ']')
    }

    fn control() -> ControlTokens {
        let added = [
            ("<|turn>", true),
            ("<turn|>", true),
            ("<|turn>x", true),
            ("<think>", false),
            ("<table>", false),
            ("\n\n", false),
        ];
        ControlTokens::new(added.into_iter(), "a\n\nb <think> <|turn>")
    }

    #[test]
    fn tokens_that_mean_more_than_their_letters_are_marked() {
        let control = control();
        assert_eq!(control.tokens.len(), 4, "{control:?}");
        for (text, marked) in [
            ("plain < text > and <table>\n\n<b>", "plain < text > and <table>\n\n<b>"),
            ("a<|turn>user\nb", "a[<|turn>)user\nb"),
            ("<|turn>x<|turn><turn|>", "(<|turn>x^[<|turn>){<turn|>}"),
            ("<think>é", "~<think>-é"),
            ("half <|tu", "half <|tu]"),
            ("half <  \n", "half <]  \n"),
            ("<|tu rn>", "<|tu rn>"),
            ("<|turn>", "[<|turn>)"),
            ("é", "é"),
            ("", ""),
        ] {
            assert_eq!(marks().mark_text(text, &control), marked);
            assert_eq!(control.are_in(&Value::from(text)), text != marked, "{text}");
        }
        let value = Value::from_pairs([
            ("role", Value::from("user")),
            ("content", Value::from(vec![Value::from("<turn|>"), Value::from(3)])),
            ("<think>", Value::from(())),
        ]);
        let marked = marks().mark(&value, &control);
        assert_eq!(marked.get_attr("role").unwrap().as_str(), Some("user"));
        assert_eq!(
            marked.get_attr("content").unwrap(),
            Value::from(vec![Value::from("{<turn|>}"), Value::from(3)])
        );
        assert!(marked.get_attr("~<think>-").unwrap().is_none());
        assert!(control.are_in(&value) && !control.are_in(&Value::from(vec!["a", "b"])));
    }

    #[test]
    fn a_token_with_marks_is_a_messages_and_any_other_the_templates() {
        for (rendered, broken, text) in [
            ("<|turn>[<|turn>)<turn|>", "<|turn><[|turn><turn|>", "<|turn><|turn><turn|>"),
            // Cut before or after the token.
            ("a[<|turn>", "a<[|turn>", "a<|turn>"),
            ("<|turn>)b", "<[|turn>b", "<|turn>b"),
            // Removed by the template, whose own token is not separated.
            ("a[<turn|>}<|turn>", "a[<{turn|><|turn>", "a<turn|><|turn>"),
            ("a~<turn|>", "a~<turn|>", "a<turn|>"),
            ("<|tu]rn>", "<|tu]rn>", "<|turn>"),
            ("[]é", "[]é", "é"),
        ] {
            let marks = marks();
            let reported = marks.separate(rendered, &control());
            assert_eq!(reported.broken(), broken);
            assert_eq!(reported.text(Vec::new()).0, text);
        }
        let marks = marks();
        let reported = marks.separate("é[<|turn>)<turn|>]b", &control());
        assert_eq!(reported.broken(), "é<[|turn><turn|>]b");
        let (text, found) = reported.text(vec![(10..17, 5), (18..19, 6)]);
        assert_eq!((text.as_str(), found), ("é<|turn><turn|>b", vec![(9..16, 5), (16..17, 6)]));
    }

    #[test]
    fn stripping_ignores_marks() {
        for (text, of, stripped) in [
            ("  a ", None, "a"),
            ("\n[<turn|>} \n", None, "[<turn|>}"),
            ("reason\n[", None, "reason"),
            ("] \nshown", None, "shown"),
            ("][ ]", None, ""),
            ("xa]x[", Some("x"), "a]"),
        ] {
            assert_eq!(marks().strip(text, of, true, true), stripped, "{text}");
        }
        assert_eq!(marks().strip(" a ", None, true, false), "a ");
        assert_eq!(marks().strip(" a ", None, false, true), " a");
    }

    #[test]
    fn marks_are_unused_characters() {
        let all: String = candidates().collect();
        let first = Value::from("\u{fdd0}<turn|><think>");
        let found = Marks::unused_in(&[&first], [].into_iter(), "\u{fdd2}", &control()).unwrap();
        let of = [("<think>", ('\u{fdd3}', '\u{fdd4}')), ("<turn|>", ('\u{fdd5}', '\u{fdd6}'))];
        let of = of.map(|(token, mark)| (token.to_owned(), mark)).into();
        assert_eq!(found, Marks::new(of, '\u{fdd1}'));
        assert_eq!(Marks::unused_in(&[&Value::from(all)], [].into_iter(), "", &control()), None);
    }
}
