//! Structured output of published models: whether replies match their schemas, and the cost and the
//! gain of a grammar.
//!
//! Run `cargo xtask bench structured`, which also installs the validator, or
//! `cargo bench -p shardwright-tests --bench structured [-- ARGUMENTS…]`. The arguments are:
//!
//! * `schemas`, `refused`, `permissive`, `keys`: only these parts
//! * `schemas=COUNT`: number of generated schemas, 300 by default
//! * `pairs=COUNT`: pairs of each comparison, 5 by default
//! * `rows=LIST`: rows of the entry points that run forced tokens, 4 and 16 by default
//!
//! The parts:
//!
//! * **schemas**: SmolLM2 replies at temperature 1, one reply for each schema of
//!   [`shardwright_tests::schemas`]. The replies are written as JSON lines next to the release
//!   folder. The Python package `jsonschema` validates each finished one
//!   (`benches/validate_schemas.py`).
//! * **refused**: a schema with an unsupported keyword is refused with the name of the keyword.
//! * **permissive**: tokens per second with a grammar that admits any text, and without one, with
//!   the 262,144 tokens of Gemma 3. Greedy replies are the same.
//! * **keys**: tokens per second with long fixed keys, by a plan whose steps run several forced
//!   tokens at once, and by one without such steps. Greedy replies are the same.
//!
//! `SHARDWRIGHT_MODELS` names the folder of the models. The bench checks replies but no times.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use shardwright::{
    DoneReason, ErrorKind, GenerationEvent, GenerationStatistics, Grammar, Model, OpenOptions, Reply, Result,
    SamplingParameters,
};
use shardwright_tests::measure::{COMPARED, alternately, compared, markdown, row, shown};
use shardwright_tests::schemas::{KEYWORDS, Rejected, accepted, keywords_in, rejected};
use shardwright_tests::{program, published, skipped, tree};

/// Variable with a Python interpreter that has the package `jsonschema`.
const PYTHON_VARIABLE: &str = "SHARDWRIGHT_JSONSCHEMA_PYTHON";

const SCRIPT: &str = "tests/benches/validate_schemas.py";

/// Threads of the engine. Most small machines have two cores.
const THREADS: u32 = 2;

/// Context of the published models, which fits a schema, its prompt and a reply.
const CONTEXT: u32 = 2048;

/// Seed of the schemas. The seed of a reply is the number of its schema.
const SEED: u64 = 54;

/// Longest reply to a schema, in tokens. Longer ones count as unfinished.
const REPLY_MAX: usize = 320;

/// Tokens of a reply under a permissive grammar.
const GENERATED: usize = 96;

/// Beginnings that Gemma continues.
const BEGINNINGS: [&str; 3] = [
    "The history of the lighthouse begins with",
    "To bake bread at home, you need",
    "The most important rivers of Europe are",
];

const PARTS: [&str; 4] = ["schemas", "refused", "permissive", "keys"];

struct Settings {
    /// The parts to measure. Empty for all.
    parts: Vec<String>,
    schemas: usize,
    pairs: usize,
    rows: Vec<u32>,
}

impl Settings {
    fn read(arguments: impl Iterator<Item = String>) -> Settings {
        let mut settings = Settings { parts: Vec::new(), schemas: 300, pairs: 5, rows: vec![4, 16] };
        let count = |text: &str| text.parse::<usize>().ok().filter(|count| *count > 0).expect("a count");
        for argument in arguments.filter(|argument| !argument.starts_with("--")) {
            match argument.split_once('=') {
                Some(("schemas", text)) => settings.schemas = count(text),
                Some(("pairs", text)) => settings.pairs = count(text),
                Some(("rows", list)) => {
                    settings.rows = list.split(',').map(|rows| rows.parse().expect("rows")).collect();
                }
                None if PARTS.contains(&argument.as_str()) => settings.parts.push(argument),
                _ => panic!("unknown argument `{argument}`; the first lines of this file list them"),
            }
        }
        settings
    }

    fn wants(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|wanted| wanted == part)
    }
}

fn main() {
    let settings = Settings::read(std::env::args().skip(1));
    println!("structured output ({THREADS} threads)");
    if settings.wants("refused") {
        refused();
    }
    if settings.wants("schemas")
        && let Some(path) = published::gguf("smollm2-135m", "replies to schemas")
    {
        schemas(&path, settings.schemas);
    }
    if settings.wants("permissive")
        && let Some(path) = published::gguf("gemma3-270m", "the cost of a permissive grammar")
    {
        permissive(&path, settings.pairs);
    }
    if settings.wants("keys")
        && let Some(path) = published::gguf("smollm2-135m", "the gain of forced tokens")
    {
        keys(&path, settings.pairs, &settings.rows);
    }
}

/// Opens a file. `speculation` is the planner's option for steps of several tokens: `auto`, `none`
/// or a number of rows.
fn open(path: &Path, speculation: &str) -> Model {
    OpenOptions::new()
        .search_path(program::search_path())
        .threads(THREADS)
        .context(CONTEXT)
        .planner_option("speculation", speculation)
        .open(path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A whole reply.
struct Heard {
    ids: Vec<u32>,
    text: String,
    reason: DoneReason,
    statistics: GenerationStatistics,
}

fn hear(reply: Reply<'_>) -> Result<Heard> {
    let (mut ids, mut text, mut end) = (Vec::new(), String::new(), None);
    for event in reply {
        match event? {
            GenerationEvent::Token { id } => ids.push(id),
            GenerationEvent::TextDelta { text: more } => text += &more,
            GenerationEvent::Done { reason, statistics } => end = Some((reason, statistics)),
            GenerationEvent::ThoughtDelta { .. }
            | GenerationEvent::ToolCallBegin { .. }
            | GenerationEvent::ToolCallArguments { .. }
            | GenerationEvent::ToolCall { .. }
            | GenerationEvent::ToolCallDropped { .. }
            | GenerationEvent::DraftDropped { .. } => {}
        }
    }
    let (reason, statistics) = end.expect("a reply ends with its statistics");
    Ok(Heard { ids, text, reason, statistics })
}

/// Tokens and time of several replies.
#[derive(Default)]
struct Speed {
    tokens: usize,
    time: Duration,
}

impl Speed {
    /// Adds the tokens after the first one.
    fn add(&mut self, statistics: &GenerationStatistics) {
        self.tokens += statistics.generated_tokens.saturating_sub(1);
        self.time += statistics.decode_time;
    }

    fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.time.as_secs_f64()
    }
}

/// Checks that each schema with an unsupported keyword is refused with its name and place.
fn refused() {
    let options = OpenOptions::new().search_path(program::search_path()).threads(THREADS);
    let model = options.open(tree::root().join("demo-model")).expect("the demo model opens");
    let mut session = model.session().expect("a session");
    let rejected = rejected();
    for Rejected { schema, keyword, pointer } in &rejected {
        let refusal = session.constrain(Some(&Grammar::json_schema(schema))).expect_err("unsupported");
        assert_eq!(refusal.kind(), ErrorKind::Unsupported, "{schema}: {refusal}");
        let named = format!("`{keyword}` at `{pointer}`");
        assert!(refusal.message().contains(&named), "{schema}: {refusal}");
        assert!(refusal.help().is_some(), "{schema}: {refusal}");
    }
    row("schemas with an unsupported keyword, refused by its name", rejected.len());
}

/// Generates a reply for each schema, and validates the finished ones.
fn schemas(path: &Path, count: usize) {
    let model = open(path, "auto");
    let generated = accepted(SEED, count);
    let mut uses: BTreeMap<&str, usize> = KEYWORDS.iter().map(|keyword| (*keyword, 0)).collect();
    for keyword in generated.iter().flat_map(keywords_in) {
        *uses.entry(keyword).or_default() += 1;
    }
    let written = replies_file();
    let mut file = fs::File::create(&written).expect("a file of replies");
    let (mut finished, mut tokens, mut forced) = (0, 0, 0);
    let start = Instant::now();
    for (index, schema) in generated.iter().enumerate() {
        let heard = reply_to(&model, schema, index as u64);
        let is_finished = heard.as_ref().is_ok_and(|heard| !heard.statistics.incomplete);
        finished += usize::from(is_finished);
        let (text, end) = match heard {
            Ok(heard) => {
                tokens += heard.statistics.generated_tokens;
                forced += heard.statistics.forced_tokens;
                (heard.text, format!("{:?}", heard.reason))
            }
            Err(error) => (String::new(), error.to_string()),
        };
        let line = json!({ "schema": schema, "reply": text, "finished": is_finished, "end": end });
        writeln!(file, "{line}").expect("written");
    }
    drop(file);
    let time = start.elapsed();
    row("replies to schemas", format_args!("{count} in {}, {tokens} tokens, {forced} forced", shown(time)));
    row("replies are written to", written.display());
    let rows: Vec<Vec<String>> =
        uses.iter().map(|(keyword, uses)| vec![(*keyword).to_owned(), uses.to_string()]).collect();
    markdown(&["keyword", "schemas"], &rows);
    let verdict = validated(&written);
    let said = |name: &str| verdict.as_ref().map_or("not validated".to_owned(), |all| all[name].to_string());
    let figures = [count.to_string(), finished.to_string(), said("valid"), said("valid_formats")];
    let head = ["model", "schemas", "finished", "valid", "valid with formats"];
    markdown(&head, &[[vec!["SmolLM2 135M, Q4_1".to_owned()], figures.to_vec()].concat()]);
    if let Some(verdict) = verdict {
        row("validator", format_args!("jsonschema {}", verdict["jsonschema"]));
        assert_eq!(verdict["valid"], json!(finished), "finished replies that do not match: {verdict:#}");
    }
    assert!(uses.values().all(|uses| *uses > 0) || count < 100, "keywords without a schema: {uses:?}");
    assert!(10 * finished >= 9 * count, "{finished} of {count} replies are finished");
}

/// Returns the reply to a schema at temperature 1.
fn reply_to(model: &Model, schema: &Value, seed: u64) -> Result<Heard> {
    let mut session = model.session().expect("a session");
    let constrained = session.constrain(Some(&Grammar::json_schema(schema)));
    constrained.unwrap_or_else(|error| panic!("{schema}: {error}"));
    session.options.sampling = SamplingParameters::at_temperature(1.0, seed);
    session.options.max_tokens = Some(REPLY_MAX);
    hear(session.chat(format!("Write an example of JSON that matches this JSON schema: {schema}"))?)
}

/// Returns the file for replies, in the target folder.
fn replies_file() -> PathBuf {
    let folder = program::folder();
    folder.parent().unwrap_or(folder).join("structured-replies.jsonl")
}

/// Validates the finished replies of a file, if there is a Python with the package.
fn validated(replies: &Path) -> Option<Value> {
    let Some(python) = python() else {
        skipped("validation of replies: there is no Python package `jsonschema` (pip install jsonschema)");
        return None;
    };
    let mut command = Command::new(python);
    command.arg(tree::root().join(SCRIPT)).arg(replies).stderr(Stdio::inherit());
    let output = command.output().expect("Python starts");
    assert!(output.status.success(), "{SCRIPT} failed: {}", output.status);
    Some(serde_json::from_slice(&output.stdout).expect("JSON"))
}

/// Returns an interpreter with the package.
fn python() -> Option<OsString> {
    if let Some(named) = std::env::var_os(PYTHON_VARIABLE).filter(|named| !named.is_empty()) {
        return Some(named);
    }
    let mut command = Command::new("python3");
    command.args(["-c", "import jsonschema"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success()).then(|| "python3".into())
}

/// Compares replies with a grammar that admits any text, and without a grammar.
fn permissive(path: &Path, pairs: usize) {
    let model = open(path, "none");
    let vocabulary = model.tokenizer().expect("a tokenizer").vocabulary_size();
    let grammar = Grammar::regex("(?s:.+)");
    let mut rows = Vec::new();
    for (name, sampling) in [
        ("greedy", SamplingParameters::greedy()),
        ("temperature 1", SamplingParameters::at_temperature(1.0, SEED)),
    ] {
        let measured = alternately(
            pairs,
            || continuations(&model, Some(&grammar), sampling),
            || continuations(&model, None, sampling),
        );
        if sampling.is_greedy() {
            // Sampled replies may differ: the grammar excludes special tokens.
            measured.iter().for_each(|(with, without)| assert_eq!(with.0, without.0, "{name}"));
        }
        let speeds: Vec<(f64, f64)> = measured.iter().map(|(with, without)| (with.1, without.1)).collect();
        rows.push(compared(name, &speeds, |speed| format!("{speed:.1}")));
    }
    row("permissive grammar, tokens of the vocabulary", vocabulary);
    let head = ["Gemma 3 270M, Q4_K_M", "with, tok/s", "without, tok/s"];
    markdown(&[&head[..], &COMPARED].concat(), &rows);
}

/// Returns the tokens of all continuations, and the tokens per second.
fn continuations(
    model: &Model,
    grammar: Option<&Grammar>,
    sampling: SamplingParameters,
) -> (Vec<Vec<u32>>, f64) {
    let (mut tokens, mut speed) = (Vec::new(), Speed::default());
    for beginning in BEGINNINGS {
        let mut session = model.session().expect("a session");
        session.constrain(grammar).expect("the grammar compiles");
        session.set_speculation(None).expect("no drafts");
        session.options.sampling = sampling;
        session.options.max_tokens = Some(GENERATED);
        let heard = session.complete(beginning).and_then(hear).expect("a good reply");
        speed.add(&heard.statistics);
        tokens.push(heard.ids);
    }
    (tokens, speed.tokens_per_second())
}

/// Returns a schema with long names of members and short values. `is_compact` excludes white space
/// between tokens, so that the grammar forces everything around the values.
fn long_keys(is_compact: bool) -> Value {
    let names = [
        "is_the_customer_older_than_eighteen_years",
        "has_the_customer_accepted_the_terms_of_service",
        "number_of_orders_in_the_last_calendar_year",
        "preferred_language_of_the_correspondence",
        "has_the_customer_subscribed_to_the_newsletter",
        "number_of_days_since_the_most_recent_login",
    ];
    let value = |name: &str| match name.split('_').next() {
        Some("number") => json!({ "type": "integer", "minimum": 0, "maximum": 99 }),
        Some("preferred") => json!({ "enum": ["en", "de", "fr"] }),
        _ => json!({ "type": "boolean" }),
    };
    let members: serde_json::Map<String, Value> =
        names.iter().map(|name| ((*name).to_owned(), value(name))).collect();
    let mut schema = json!({
        "type": "object", "properties": members, "required": names, "additionalProperties": false,
    });
    if is_compact {
        schema["x-guidance"] = json!({ "whitespace_flexible": false });
    }
    schema
}

/// Compares plans whose steps run several forced tokens with a plan without such steps.
fn keys(path: &Path, pairs: usize, all_rows: &[u32]) {
    let single = open(path, "none");
    let mut rows = Vec::new();
    for count in all_rows {
        let several = open(path, &count.to_string());
        for (name, is_compact) in [("compact", true), ("free white space", false)] {
            let schema = long_keys(is_compact);
            let measured = alternately(pairs, || filled(&several, &schema), || filled(&single, &schema));
            for (with, without) in &measured {
                assert_eq!(with.ids, without.ids, "{name}: the same tokens in steps of {count} rows");
                assert!(!with.statistics.incomplete, "{name}: {}", with.text);
                serde_json::from_str::<Value>(&with.text).expect("JSON");
            }
            let speed = |heard: &Heard| heard.statistics.decode_tokens_per_second();
            let speeds: Vec<(f64, f64)> =
                measured.iter().map(|(with, without)| (speed(with), speed(without))).collect();
            let Some((with, without)) = measured.first() else { continue };
            let counts = with.statistics;
            assert!(counts.speculation.steps < without.statistics.speculation.steps, "{name}: {counts:?}");
            row(
                &format!("decode_{count}, {name}"),
                format_args!(
                    "{} tokens, {} forced, {} steps; alone {} steps",
                    counts.generated_tokens,
                    counts.forced_tokens,
                    counts.speculation.steps,
                    without.statistics.speculation.steps
                ),
            );
            rows.push(compared(&format!("`decode_{count}`, {name}"), &speeds, |speed| format!("{speed:.1}")));
        }
    }
    let head = ["SmolLM2 135M, Q4_1, long fixed keys", "with, tok/s", "without, tok/s"];
    markdown(&[&head[..], &COMPARED].concat(), &rows);
}

/// Returns the greedy reply to a schema, without drafts.
fn filled(model: &Model, schema: &Value) -> Heard {
    let mut session = model.session().expect("a session");
    session.constrain(Some(&Grammar::json_schema(schema))).expect("the schema compiles");
    session.set_speculation(None).expect("no drafts");
    session.options.sampling = SamplingParameters::greedy();
    session.options.max_tokens = Some(REPLY_MAX);
    let reply = session.chat("Describe a customer of a bookshop as JSON.");
    reply.and_then(hear).expect("a good reply")
}
