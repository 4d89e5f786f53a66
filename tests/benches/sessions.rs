//! Saved sessions and the prefix cache on Gemma 3 270M: the time to the first token of a restored
//! session compared with reading its text again, and of a prompt with a cached beginning compared
//! with a prompt of its last tokens alone, and with the same prompt in a session that has the
//! beginning itself. The last comparison shows the cost of copying the states.
//!
//! Run `cargo xtask bench sessions`, or
//! `cargo bench -p shardwright-tests --bench sessions [-- pairs=COUNT]`, 5 pairs by default.
//! `SHARDWRIGHT_MODELS` names the folder of the model.
//!
//! A time begins before the session exists, and ends with the first token. The file of a session is
//! in the page cache. The bench checks that replies are the same to the bits of the likelihoods of
//! their tokens, and that the expected number of tokens is reused. It checks no times.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use shardwright::{
    GenerationEvent, Model, OpenOptions, PrefixCache, Restored, SamplingParameters, Session, StopRules,
    TokenLikelihood,
};
use shardwright_tests::measure::{COMPARED, alternately, compared, markdown, row, shown};
use shardwright_tests::{program, published, tree};

/// Threads of the engine. Most small machines have two cores.
const THREADS: u32 = 2;

/// Tokens of the saved text.
const SAVED: usize = 4096;

/// Tokens of the known beginning of a prompt.
const BEGINNING: usize = 2000;

/// Tokens of a prompt after the known beginning.
const FURTHER: [usize; 2] = [1, 16];

/// Tokens of a reply. Only the first one is timed.
const GENERATED: usize = 8;

/// Positions beyond the saved text.
const ROOM: u32 = 256;

/// Likeliest tokens to compare at each position.
const LIKELIEST: usize = 8;

/// Bytes of the prefix cache, enough for all prompts.
const CACHE_BYTES: u64 = 1 << 30;

/// A text with enough different tokens.
const TEXT: &str = "docs/using.md";

fn main() {
    let mut pairs = 5;
    for argument in std::env::args().skip(1).filter(|argument| !argument.starts_with("--")) {
        let count = argument.strip_prefix("pairs=").and_then(|count| count.parse::<usize>().ok());
        pairs = count.filter(|count| *count > 0).expect("the argument `pairs=COUNT`");
    }
    println!("sessions (Gemma 3 270M, Q4_K_M, {THREADS} threads)");
    let Some(path) = published::gguf("gemma3-270m", "saved sessions and the prefix cache") else { return };
    let model = OpenOptions::new()
        .search_path(program::search_path())
        .threads(THREADS)
        .context(SAVED as u32 + ROOM)
        .planner_option("speculation", "none")
        .open(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let text = tree::read(Path::new(TEXT));
    let ids = model.tokenizer().expect("a tokenizer").encode(&text, true).expect("tokens");
    assert!(ids.len() > 2 * SAVED, "{TEXT} has {} tokens", ids.len());
    let mut rows = vec![restored(&model, &ids, pairs)];
    rows.extend(FURTHER.iter().flat_map(|further| known_beginning(&model, &ids, pairs, *further)));
    let head = ["time to the first token", "with known states", "compared with"];
    markdown(&[&head[..], &COMPARED].concat(), &rows);
}

/// A reply of a session.
struct Answer {
    /// Time to the first token.
    first: Duration,
    /// Tokens of the prompt whose states were known.
    reused: usize,
    likelihoods: Vec<TokenLikelihood>,
}

impl Answer {
    /// Returns the tokens of the reply, and the bits of all log-probabilities.
    fn bits(&self) -> Vec<(u32, u32)> {
        let chosen = self.likelihoods.iter().map(|token| (token.id, token.log_probability));
        let others = self.likelihoods.iter().flat_map(|token| token.likeliest.iter().copied());
        chosen.chain(others).map(|(id, log)| (id, log.to_bits())).collect()
    }
}

/// Continues a prompt greedily by `most` tokens, timed from `start` on.
fn answer(session: &mut Session, ids: &[u32], most: usize, start: Instant) -> Answer {
    session.options.sampling = SamplingParameters::greedy();
    session.options.stop = StopRules::default();
    session.options.max_tokens = Some(most);
    session.options.likelihoods = Some(LIKELIEST);
    let mut reply = session.complete_ids(ids.to_vec()).expect("a reply");
    let mut first = None;
    for event in reply.by_ref() {
        if let GenerationEvent::Token { .. } = event.expect("a good reply") {
            first.get_or_insert_with(|| start.elapsed());
        }
    }
    let likelihoods = reply.take_likelihoods();
    assert_eq!(likelihoods.len(), most, "a token has a likelihood");
    Answer { first: first.expect("a token"), reused: reply.statistics().reused_tokens, likelihoods }
}

/// Formats seconds.
fn seconds(seconds: f64) -> String {
    shown(Duration::from_secs_f64(seconds))
}

/// Summarises pairs of times.
fn summary(what: &str, pairs: &[(Answer, Answer)]) -> Vec<String> {
    let first = |answer: &Answer| answer.first.as_secs_f64();
    let times: Vec<(f64, f64)> = pairs.iter().map(|(one, other)| (first(one), first(other))).collect();
    compared(what, &times, seconds)
}

/// Compares restoring a session of [`SAVED`] tokens with reading them again. Both then run one more
/// token.
fn restored(model: &Model, ids: &[u32], pairs: usize) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("saved");
    let mut session = model.session().expect("a session");
    let begun = answer(&mut session, &ids[..SAVED], 1, Instant::now());
    let start = Instant::now();
    let saved = session.save(&path).expect("saved");
    row(
        &format!("saving {} tokens", saved.tokens),
        format_args!("{}, {:.1} MB", shown(start.elapsed()), saved.bytes as f64 / 1e6),
    );
    assert_eq!((saved.tokens, saved.without_states), (SAVED, None));
    drop(session);
    let prompt = [&ids[..SAVED], &[begun.likelihoods[0].id]].concat();
    let measured = alternately(
        pairs,
        || {
            let start = Instant::now();
            let Restored { mut session, recomputed } = model.restore(&path).expect("restored");
            assert_eq!(recomputed, None);
            answer(&mut session, &prompt, GENERATED, start)
        },
        || {
            let start = Instant::now();
            let mut session = model.session().expect("a session");
            answer(&mut session, &prompt, GENERATED, start)
        },
    );
    for (restored, again) in &measured {
        assert_eq!((restored.reused, again.reused), (SAVED, 0));
        assert!(restored.bits() == again.bits(), "a restored session continues with other bits");
    }
    summary(&format!("{SAVED} tokens restored, compared with read again"), &measured)
}

/// Compares a prompt with a beginning of [`BEGINNING`] cached tokens and `further` other ones with
/// a prompt of these others alone, and with the same prompt in a session that has the beginning.
fn known_beginning(model: &Model, ids: &[u32], pairs: usize, further: usize) -> [Vec<String>; 2] {
    let (beginning, rest) = ids.split_at(BEGINNING);
    let cache = PrefixCache::new(CACHE_BYTES);
    let uncached = || model.session().expect("a session");
    let cached = || {
        let mut session = uncached();
        session.set_prefix_cache(Some(cache.clone()));
        session
    };
    let store_beginning = || {
        cache.clear();
        // A single token is chosen and not run, so that the cache has the beginning alone.
        answer(&mut cached(), beginning, 1, Instant::now());
    };
    // The first token of each prompt differs, so that none is a beginning of another.
    let mut seen = BTreeSet::new();
    let ends: Vec<&[u32]> = rest.windows(further).filter(|end| seen.insert(end[0])).take(pairs + 1).collect();
    assert_eq!(ends.len(), pairs + 1, "{TEXT} has too few different tokens");
    let prompt = |end: &[u32]| [beginning, end].concat();
    let hit = |end: &[u32]| {
        let start = Instant::now();
        answer(&mut cached(), &prompt(end), GENERATED, start)
    };
    store_beginning();
    let (mut hits, mut others) = (ends.iter(), ends.iter());
    let compared_with_alone = alternately(
        pairs,
        || hit(hits.next().expect("an end for each pair")),
        || {
            let end = *others.next().expect("an end for each pair");
            let start = Instant::now();
            answer(&mut uncached(), end, GENERATED, start)
        },
    );
    for (hit, alone) in &compared_with_alone {
        assert_eq!((hit.reused, alone.reused), (BEGINNING, 0));
    }
    store_beginning();
    let (mut hits, mut others) = (ends.iter(), ends.iter());
    let compared_with_own = alternately(
        pairs,
        || hit(hits.next().expect("an end for each pair")),
        || {
            let end = *others.next().expect("an end for each pair");
            let mut session = uncached();
            answer(&mut session, beginning, 1, Instant::now());
            answer(&mut session, &prompt(end), GENERATED, Instant::now())
        },
    );
    for (hit, own) in &compared_with_own {
        assert_eq!((hit.reused, own.reused), (BEGINNING, BEGINNING));
        assert!(hit.bits() == own.bits(), "cached states give other bits");
    }
    let of_cached = format!("{further} after {BEGINNING} cached tokens, compared with");
    [
        summary(&format!("{of_cached} {further} alone"), &compared_with_alone),
        summary(&format!("{of_cached} the same in a session that has them"), &compared_with_own),
    ]
}
