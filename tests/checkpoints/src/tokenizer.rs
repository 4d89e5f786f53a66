use std::fmt::Write;

/// The contents of a tokenizer of a requested size, by id.
pub(crate) struct Vocabulary {
    /// `<pad>`, `<eos>`, `<bos>`, `<unk>`, then one token for each byte, then symbols and their
    /// merged unions.
    pub tokens: Vec<String>,
    /// Pairs to merge, in order of priority.
    pub merges: Vec<(String, String)>,
}

/// Tokens before the byte tokens.
pub(crate) const SPECIAL: [&str; 4] = ["<pad>", "<eos>", "<bos>", "<unk>"];

impl Vocabulary {
    /// Creates a byte-fallback BPE with `count` tokens and about twice as many merges, like
    /// published ones: every token of three or more symbols can be formed in two ways.
    pub fn new(count: usize) -> Self {
        let mut tokens: Vec<String> = SPECIAL.map(String::from).to_vec();
        tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
        let symbols: Vec<String> = ('a'..='z').chain('A'..='Z').chain(['▁']).map(String::from).collect();
        let first = tokens.len();
        tokens.extend(symbols.iter().cloned());
        let (mut merges, mut others) = (Vec::new(), Vec::new());
        // Left halves are used in order, right halves have one symbol. Every union is new, and
        // lengths stay near those of real words.
        for at in 0..count.saturating_sub(tokens.len()) {
            let (left, right) =
                (tokens[first + at / symbols.len()].clone(), symbols[at % symbols.len()].clone());
            let union = format!("{left}{right}");
            let mut rest = left.chars();
            if let (Some(head), true) = (rest.next(), left.chars().count() > 1) {
                others.push((head.to_string(), format!("{}{right}", rest.as_str())));
            }
            merges.push((left, right));
            tokens.push(union);
        }
        tokens.truncate(count);
        merges.extend(others);
        Vocabulary { tokens, merges }
    }

    /// Returns the contents of `tokenizer.json`.
    pub fn json(&self) -> String {
        let mut vocabulary = String::new();
        for (id, token) in self.tokens.iter().enumerate() {
            let _ = write!(vocabulary, "{}\"{token}\":{id}", if id == 0 { "" } else { "," });
        }
        let mut merges = String::new();
        for (index, (left, right)) in self.merges.iter().enumerate() {
            let _ = write!(merges, "{}[\"{left}\",\"{right}\"]", if index == 0 { "" } else { "," });
        }
        let special = |(id, token): (usize, &&str)| {
            format!(
                r#"{{"id":{id},"content":"{token}","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}}"#
            )
        };
        let added: Vec<String> = SPECIAL.iter().enumerate().map(special).collect();
        let (added, bos) = (added.join(","), r#"{"SpecialToken":{"id":"<bos>","type_id":0}}"#);
        format!(
            r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{added}],"normalizer":{{"type":"Replace","pattern":{{"String":" "}},"content":"▁"}},"pre_tokenizer":null,"post_processor":{{"type":"TemplateProcessing","single":[{bos},{{"Sequence":{{"id":"A","type_id":0}}}}],"pair":[{bos},{{"Sequence":{{"id":"A","type_id":0}}}},{{"Sequence":{{"id":"B","type_id":1}}}}],"special_tokens":{{"<bos>":{{"id":"<bos>","ids":[2],"tokens":["<bos>"]}}}}}},"decoder":{{"type":"Sequence","decoders":[{{"type":"Replace","pattern":{{"String":"▁"}},"content":" "}},{{"type":"ByteFallback"}},{{"type":"Fuse"}}]}},"model":{{"type":"BPE","dropout":null,"unk_token":"<unk>","continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":true,"byte_fallback":true,"ignore_merges":false,"vocab":{{{vocabulary}}},"merges":[{merges}]}}}}"#
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn tokens_are_different_and_merges_make_them() {
        let vocabulary = Vocabulary::new(5000);
        let tokens: HashSet<&str> = vocabulary.tokens.iter().map(String::as_str).collect();
        assert_eq!(tokens.len(), 5000);
        let merges = &vocabulary.merges;
        assert!(merges.len() > 5000 && merges.len() < 10_000, "{}", merges.len());
        assert_eq!(merges.iter().collect::<HashSet<_>>().len(), merges.len());
        for (left, right) in merges {
            assert!(tokens.contains(left.as_str()) && tokens.contains(right.as_str()), "{left} {right}");
            assert!(tokens.contains(format!("{left}{right}").as_str()), "{left} {right}");
        }
        let json: serde_json::Value = serde_json::from_str(&vocabulary.json()).unwrap();
        assert_eq!(json["model"]["vocab"].as_object().unwrap().len(), 5000);
    }
}
