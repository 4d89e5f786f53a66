//! Damaged templates and configurations: each returns a result or a typed error quickly.
//!
//! `SHARDWRIGHT_ROUNDS` makes the run longer. A failure prints the seed of its round.

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use shardwright_text::{
    ChatTemplate, GenerationConfig, Message, Random, RenderOptions, TemplateValue, messages_from_json,
};

fn corpus(extension: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

fn rounds(default: u64) -> u64 {
    std::env::var("SHARDWRIGHT_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

const FRAGMENTS: &[&str] = &[
    "{%",
    "%}",
    "{{",
    "}}",
    "{#",
    "#}",
    "-",
    "+",
    "|",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ":",
    ",",
    "'",
    "\"",
    "\\",
    "\n",
    "%",
    "for x in messages",
    "endfor",
    "if",
    "else",
    "elif",
    "endif",
    "set x = x",
    "macro m(x)",
    "endmacro",
    "loop(x)",
    "in",
    "is defined",
    "not",
    "and",
    "~",
    "*",
    "**",
    "//",
    "99999999999",
    "-1",
    "1e308",
    "range(99999)",
    "messages",
    "tools",
    "|join",
    "|list",
    "|tojson",
    "|replace('', 'xx')",
    ".split()",
    ".format(1)",
    "namespace(a=1)",
    "raw",
    "endraw",
    "recursive",
    "é",
    "\u{feff}",
    "🙂",
    "[::-1]",
    "[1:]",
    "self",
    "caller()",
    "super()",
    "null",
    "true",
    "{}",
    "[]",
];

fn damage(bytes: &[u8], others: &[(PathBuf, Vec<u8>)], random: &mut Random) -> Vec<u8> {
    let mut below = |bound: usize| (random.next_u64() % bound.max(1) as u64) as usize;
    let mut damaged = bytes.to_vec();
    for _ in 0..1 + below(5) {
        let place = below(damaged.len() + 1);
        let end = (place + below(40)).min(damaged.len());
        match below(6) {
            0 => drop(damaged.drain(place..end)),
            1 => {
                let piece = damaged[place..end].to_vec();
                let target = below(damaged.len() + 1);
                damaged.splice(target..target, piece);
            }
            2 => {
                let other = &others[below(others.len())].1;
                let from = below(other.len());
                let to = (from + below(200)).min(other.len());
                damaged.splice(place..end, other[from..to].iter().copied());
            }
            3 => {
                if place < damaged.len() {
                    damaged[place] = below(256) as u8;
                }
            }
            _ => {
                let fragment = FRAGMENTS[below(FRAGMENTS.len())];
                damaged.splice(place..place, fragment.bytes());
            }
        }
    }
    damaged
}

fn conversation() -> Vec<Message> {
    messages_from_json(
        r#"[{"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]},
            {"role": "assistant", "content": "<think>\nhm\n</think>\n\nThat.", "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, null]}}}]},
            {"role": "user", "content": "Why?"}]"#,
        "conversation",
    )
    .unwrap()
}

fn options() -> RenderOptions {
    let tools =
        r#"[{"name": "f", "parameters": {"type": "object", "required": ["a"], "n": 1.5, "b": true}}]"#;
    RenderOptions {
        tools: Some(TemplateValue::from_json(tools, "tools").unwrap()),
        now_unix_seconds: Some(0),
        ..RenderOptions::default()
    }
}

#[test]
fn the_seeds_render_as_jinja_renders_them() {
    for (path, bytes) in corpus("jinja") {
        let template =
            ChatTemplate::from_source(std::str::from_utf8(&bytes).unwrap(), &path, &[("bos_token", "<bos>")]);
        let text = template.unwrap().render(&conversation(), &options()).unwrap();
        let expected = std::fs::read_to_string(path.with_extension("rendered")).unwrap();
        assert_eq!(text, expected, "{}", path.display());
    }
}

#[test]
fn damaged_templates_end_well() {
    let seeds = corpus("jinja");
    let (conversation, options) = (conversation(), options());
    let mut rendered = 0;
    for seed in 0..rounds(600) {
        let mut random = Random::new(seed);
        let (path, bytes) = &seeds[(random.next_u64() % seeds.len() as u64) as usize];
        let damaged = damage(bytes, &seeds, &mut random);
        let source = String::from_utf8_lossy(&damaged);
        let start = Instant::now();
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| {
            ChatTemplate::from_source(&source, path, &[("bos_token", "<bos>")])
                .and_then(|template| template.render(&conversation, &options))
        }));
        let outcome = outcome.unwrap_or_else(|_| panic!("round {seed} panics on:\n{source}"));
        assert!(start.elapsed() < Duration::from_secs(12), "round {seed} takes too long on:\n{source}");
        match outcome {
            Ok(_) => rendered += 1,
            Err(error) => assert!(error.to_string().contains("jinja"), "round {seed}: {error}"),
        }
    }
    assert!(rendered > 0);
}

#[test]
fn damaged_configurations_end_well() {
    let seeds = corpus("json");
    let (conversation, options) = (conversation(), options());
    let folder = tempfile::tempdir().unwrap();
    let mut read = 0;
    for seed in 0..rounds(600) {
        let mut random = Random::new(seed);
        for (path, bytes) in &seeds {
            let damaged = damage(bytes, &seeds, &mut random);
            std::fs::write(folder.path().join(path.file_name().unwrap()), damaged).unwrap();
        }
        if let Ok(Some(template)) = ChatTemplate::from_directory(folder.path()) {
            read += 1;
            let _ = template.render(&conversation, &options);
        }
        match GenerationConfig::from_directory(folder.path()) {
            Ok(_) => read += 1,
            Err(error) => {
                assert!(error.to_string().contains("generation_config.json"), "round {seed}: {error}")
            }
        }
    }
    assert!(read > 0);
}
