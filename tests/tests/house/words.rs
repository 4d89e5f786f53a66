//! Comments are written in plain English: patterns that make readers stop are counted for each
//! crate and bounded.
//!
//! The bounds come from counts in rten, jiff, wasmtime, tract and candle: the larger of the highest
//! of these projects and twice their mean.

use std::collections::BTreeMap;
use std::path::PathBuf;

use shardwright_tests::{skipped, tree};

use crate::rules::crate_of;

/// Occurrences of a pattern that any crate may have.
const ALWAYS: usize = 2;

/// A pattern of words and its bound.
struct Pattern {
    name: &'static str,
    /// Largest number of occurrences in 10,000 words.
    most: f64,
    /// Returns whether the pattern begins at the first of these words.
    begins: fn(&[&str]) -> bool,
}

/// The word after the first.
fn next<'w>(words: &[&'w str]) -> &'w str {
    words.get(1).copied().unwrap_or_default()
}

const PATTERNS: [Pattern; 8] = [
    Pattern {
        name: "`what` without a noun",
        most: 3.0,
        begins: |words| {
            let verbs = ["is", "was", "are", "were", "it", "they", "has", "have", "no", "of", "follows"];
            words[0] == "what" && verbs.contains(&next(words))
        },
    },
    Pattern {
        name: "`nothing` or `nobody`",
        most: 2.6,
        begins: |words| ["nothing", "nobody"].contains(&words[0]),
    },
    Pattern {
        name: "`those that` or `those of`",
        most: 0.7,
        begins: |words| words[0] == "those" && ["that", "of", "which", "with", "who"].contains(&next(words)),
    },
    Pattern { name: "`ask`", most: 0.0, begins: |words| ["ask", "asks", "asked"].contains(&words[0]) },
    Pattern {
        name: "`is no` or `are none`",
        most: 5.5,
        begins: |words| {
            // "There is no room" is plain.
            let after = words.get(2).copied().unwrap_or_default();
            words[0] != "there"
                && ["is", "are", "was", "were"].contains(&next(words))
                && ["no", "none"].contains(&after)
        },
    },
    Pattern { name: "`beside`", most: 0.0, begins: |words| words[0] == "beside" },
    Pattern { name: "`lies` or `stands`", most: 1.5, begins: |words| ["lies", "stands"].contains(&words[0]) },
    Pattern {
        name: "`anew`, `goes on`, `rests on` or `in turns`",
        most: 0.0,
        begins: |words| {
            words[0] == "anew"
                || [("goes", "on"), ("rests", "on"), ("in", "turns")].contains(&(words[0], next(words)))
        },
    },
];

/// Largest number of semicolons in 10,000 words of comments.
const SEMICOLONS: f64 = 25.0;

/// Words and patterns of a crate's comments.
#[derive(Default)]
struct Count {
    words: usize,
    semicolons: usize,
    /// Occurrences per pattern.
    found: [usize; PATTERNS.len()],
    /// Documentation that leans on its neighbour.
    leaning: Vec<String>,
}

impl Count {
    /// Adds a comment without its code.
    fn add(&mut self, comment: &str) {
        self.semicolons += comment.matches(';').count();
        let lower = comment.to_lowercase();
        let is_end = |character: char| !(character.is_alphanumeric() || "'-_".contains(character));
        let words: Vec<&str> = lower.split(is_end).filter(|word| !word.is_empty()).collect();
        self.words += words.len();
        for start in 0..words.len() {
            for (count, pattern) in self.found.iter_mut().zip(&PATTERNS) {
                *count += usize::from((pattern.begins)(&words[start..]));
            }
        }
    }

    /// Describes every bound that the comments of `name` exceed.
    fn faults(&self, name: &str) -> Vec<String> {
        let most = |bound: f64| ((bound * self.words as f64 / 1e4).floor() as usize).max(ALWAYS);
        let bounds = PATTERNS.iter().map(|pattern| (pattern.name, pattern.most)).zip(self.found);
        let all = bounds.chain([(("semicolons", SEMICOLONS), self.semicolons)]);
        let over = all.filter(|((_, bound), found)| *found > most(*bound));
        let words = self.words;
        over.map(|((pattern, bound), found)| {
            format!("{name}: {pattern}: {found} in {words} words, expected at most {}", most(bound))
        })
        .collect()
    }
}

/// Returns the comment blocks of a Rust file without code spans and fenced examples, each with the
/// number of its first line.
fn comments(source: &str) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let (mut in_block, mut in_fence) = (false, false);
    for (index, line) in source.lines().enumerate() {
        let Some(text) = line.trim_start().strip_prefix("//") else {
            (in_block, in_fence) = (false, false);
            continue;
        };
        let text = text.trim_start_matches(['/', '!']).trim();
        if !in_block {
            blocks.push((index + 1, String::new()));
            in_block = true;
        }
        if text.starts_with("```") {
            in_fence = !in_fence;
        } else if !in_fence && let Some((_, block)) = blocks.last_mut() {
            block.push_str(text);
            block.push('\n');
        }
    }
    for (_, block) in &mut blocks {
        // Parts between two backticks are code.
        *block = block.split('`').step_by(2).collect::<Vec<_>>().join("code");
    }
    blocks
}

#[test]
fn comments_are_plain_english() {
    let Some(files) = tree::rust_files() else {
        return skipped("words of comments: no git repository to list the project's files");
    };
    let mut crates: BTreeMap<PathBuf, Count> = BTreeMap::new();
    for path in files {
        let count = crates.entry(crate_of(&path)).or_default();
        for (line, comment) in comments(&tree::read(&path)) {
            count.add(&comment);
            if comment.starts_with("The same") {
                count.leaning.push(format!("{}:{line}: begins with \"The same\"", path.display()));
            }
        }
    }
    assert!(crates.len() > 30, "{} crates", crates.len());
    let mut faults = Vec::new();
    for (name, count) in crates {
        faults.extend(count.faults(&name.display().to_string()));
        faults.extend(count.leaning);
    }
    assert!(faults.is_empty(), "comments that are hard to read:\n  {}", faults.join("\n  "));
}

#[test]
fn patterns_are_counted_in_comments_alone() {
    let source = "/// What is left; nobody asks `what is` for it.\n///\n/// ```\n/// nothing;\n/// ```\n\
                  fn nothing() {} // nothing\n// Those that\n// lie beside it is no matter, and it goes\n// on.\n";
    let blocks = comments(source);
    let lines: Vec<usize> = blocks.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [1, 7]);
    let mut count = Count::default();
    blocks.iter().for_each(|(_, block)| count.add(block));
    assert_eq!((count.found, count.semicolons), ([1, 1, 1, 1, 1, 1, 0, 1], 1));
    assert!(count.faults("it").is_empty(), "two of each are allowed");
    blocks.iter().cycle().take(4).for_each(|(_, block)| count.add(block));
    assert_eq!(count.faults("it").len(), 8);
}
