//! Numbers through the whole project, on the CPU shim's own library. The bits are the same wherever
//! a model is cut, however a prompt is chunked, and for any number of threads. They also agree with
//! the oracle.
//!
//! Contexts here are long enough for every ring to wrap several times, and every prompt is longer
//! than the window.

use std::ops::Range;
use std::time::{Duration, Instant};

use shardwright_graph::{Graph, StateKind};
use shardwright_reference::{Arrangement, Form, ReferenceModel};
use shardwright_runtime::{Chain, PlacementRecord, Session, SessionError, Truncation};
use shardwright_test_checkpoints::{Random, Spec, Spelling};
use shardwright_tests::chain::{Bench, Cut, Opened, committed, encode_menu, made, menu, shims, tokens};
use shardwright_tests::checkpoints::{DEMO_MODEL, EMBEDDING_FIXTURES, text_fixtures};
use shardwright_tests::shapes::random_spec;
use shardwright_tests::skipped;
use shardwright_vocabulary::{ErrorKind, FormatTuple};

/// Largest allowed [`distance`] from the oracle. The oracle computes in f64 and rounds once per
/// operation. The bound covers the f32 arithmetic of the shim.
const BOUND: f64 = 3e-4;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn floats(bits: &[u32]) -> Vec<f32> {
    bits.iter().map(|&bits| f32::from_bits(bits)).collect()
}

fn logits(session: &Session) -> Vec<u32> {
    bits(session.logits().expect("logits follow an append"))
}

fn session(chain: &Chain) -> Session {
    chain.session().expect("a session")
}

fn append(session: &mut Session, ids: &[u32]) -> Vec<u32> {
    session.append(ids).unwrap_or_else(|error| panic!("{error}"));
    logits(session)
}

/// Returns the logits after `ids` in a fresh session.
fn fresh(chain: &Chain, ids: &[u32]) -> Vec<u32> {
    append(&mut session(chain), ids)
}

/// Returns the logits after each of `ids`.
fn scores(session: &mut Session, ids: &[u32]) -> Vec<Vec<f32>> {
    let mut rows = Vec::new();
    session
        .score(ids, &mut |step| {
            rows.extend((0..step.rows()).map(|row| step.logits(row).expect("a scored row").to_vec()));
        })
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(rows.len(), ids.len());
    rows
}

/// Runs every kind of step: prefill in whole chunks and a remainder, single tokens, and many rows
/// with logits for each.
fn walk(chain: &Chain, ids: &[u32]) -> Vec<Vec<u32>> {
    let (prompt, rest) = ids.split_at(ids.len() / 2);
    let (single, scored) = rest.split_at(5);
    let mut session = session(chain);
    let mut seen = vec![append(&mut session, prompt)];
    seen.extend(single.iter().map(|id| append(&mut session, &[*id])));
    seen.extend(scores(&mut session, scored).iter().map(|row| bits(row)));
    seen
}

/// Reports the first row that differs, because all bits would fill screens.
fn assert_same(actual: &[Vec<u32>], expected: &[Vec<u32>], what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (row, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        let differ = actual.iter().zip(expected).filter(|(actual, expected)| actual != expected).count();
        assert!(
            differ == 0 && actual.len() == expected.len(),
            "{what}: row {row} differs in {differ} logits"
        );
    }
}

/// Returns the largest difference in a row, relative to the row's largest value or to 1 if that is
/// larger.
fn distance(actual: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let scale = expected.iter().fold(1.0_f64, |scale, value| scale.max(f64::from(value.abs())));
    let differences = actual.iter().zip(expected).map(|(actual, expected)| {
        let difference = (f64::from(*actual) - f64::from(*expected)).abs();
        // A comparison with NaN must not count as small.
        if difference.is_nan() { f64::INFINITY } else { difference / scale }
    });
    differences.fold(0.0, f64::max)
}

/// Returns the largest window of a ring state in positions, or 1 without rings.
fn window(graph: &Graph) -> usize {
    let windows = graph.states.iter().filter_map(|state| match state.kind {
        StateKind::Ring { window } => Some(window as usize),
        StateKind::Linear => None,
    });
    windows.max().unwrap_or(1)
}

/// Checks whether a layer after the cut reads the state of a layer before it.
fn shares_across(graph: &Graph, cut: u32) -> bool {
    (cut..graph.layers()).any(|layer| graph.donor_of(layer).is_some_and(|donor| donor < cut))
}

#[test]
fn every_cut_into_two_changes_no_bit() {
    for folder in text_fixtures() {
        let graph = committed(folder);
        let ids = tokens(&graph, 90);
        assert!(ids.len() / 2 > window(&graph), "{folder}: the prompt must be longer than the window");
        let bench = Bench::cpu(&graph, &menu(96, &[16, 4], &[1, 16]), 1);
        let whole = walk(&bench.chain(&Cut::default()), &ids);
        for cut in bench.cuts() {
            let chain = bench.chain(&Cut::before(&[cut]));
            assert_same(&walk(&chain, &ids), &whole, &format!("{folder} cut before {cut}"));
        }
    }
}

#[test]
fn three_four_and_all_shards_change_no_bit() {
    for folder in text_fixtures() {
        let graph = committed(folder);
        let ids = tokens(&graph, 90);
        let bench = Bench::cpu(&graph, &menu(96, &[16, 4], &[1, 16]), 1);
        let whole = walk(&bench.chain(&Cut::default()), &ids);
        let last = graph.layers() - 1;
        let mut cuts = vec![vec![1, last], vec![1, 2], vec![last - 1, last], vec![2, 4], vec![1, 3, 5]];
        cuts.extend([vec![last / 2, last], vec![1, last / 2, last], vec![2, last - 1, last]]);
        cuts.push(bench.cuts().collect());
        cuts.retain(|cut| cut.is_sorted_by(|one, next| one < next) && cut.iter().all(|&cut| cut <= last));
        for cut in cuts {
            let chain = bench.chain(&Cut::before(&cut));
            assert_same(&walk(&chain, &ids), &whole, &format!("{folder} cut before {cut:?}"));
        }
    }
}

/// Layers of one shard in different formats compute the same as each layer in a shard of its own.
#[test]
fn a_mixture_of_formats_in_one_shard_is_that_of_several_shards() {
    let tuples: Vec<FormatTuple> =
        ["w8-per-channel", "w4-block32", "w4-per-channel[mlp-output=w8-per-channel]", "f32"]
            .into_iter()
            .map(|name| name.parse().expect("formats"))
            .collect();
    for folder in text_fixtures() {
        let graph = committed(folder);
        let ids = tokens(&graph, 12);
        let bench = Bench::in_formats(&graph, &menu(32, &[4], &[1]), &tuples);
        let layers = graph.layers();
        // Neighbours differ, and the formats do not follow the pattern of the layer kinds.
        let formats: Vec<u32> = (0..layers).map(|layer| layer * layer % 4).collect();
        let mixed = bench.chain(&Cut { formats: formats.clone(), ..Cut::default() });
        let expected = walk(&mixed, &ids);
        let every: Vec<u32> = bench.cuts().collect();
        for before in [every.clone(), every.into_iter().step_by(2).collect()] {
            let cut = Cut { before, formats: formats.clone(), ..Cut::default() };
            assert_same(&walk(&bench.chain(&cut), &ids), &expected, &format!("{folder} {cut:?}"));
        }
        // The test is only meaningful if the mixture differs from uniform formats.
        for uniform in 0..4 {
            let cut = Cut { formats: vec![uniform; layers as usize], ..Cut::default() };
            assert_ne!(walk(&bench.chain(&cut), &ids), expected, "{folder}: all in tuple {uniform}");
        }
    }
}

/// Returns the encoder fixture and variants of it.
fn encoders() -> Vec<(String, Graph)> {
    let base = Spec::embeddinggemma;
    let specs = [
        Spec { layers: "SFS".to_owned(), window: 1, heads: 1, kv_heads: 1, dtype: "F32", ..base() },
        Spec { layers: "FF".to_owned(), head_dim: 18, hidden: 20, dense: vec![], seed: 2, ..base() },
        Spec { window: 200, heads: 6, kv_heads: 3, dense: vec![7, 33, 12], dtype: "F16", seed: 3, ..base() },
        Spec { window: 13, intermediate: 7, spelling: Spelling::Older, files: 3, seed: 4, ..base() },
    ];
    let mut all = Vec::from(EMBEDDING_FIXTURES.map(|folder| (folder.to_owned(), committed(folder))));
    all.extend(specs.iter().map(|spec| (format!("{spec:?}"), made(spec))));
    all
}

#[test]
fn every_cut_of_an_encoder_changes_no_bit() {
    for (name, graph) in encoders() {
        let bench = Bench::cpu(&graph, &encode_menu(48), 1);
        let arrangement = Arrangement { rows: 48, ..Arrangement::whole(48) };
        let oracle = ReferenceModel::new(&graph, arrangement).expect("a reference");
        let inputs = [1, 2, 17, 48].map(|length| tokens(&graph, length));
        let encode = |chain: &Chain| {
            let mut session = session(chain);
            inputs.each_ref().map(|ids| session.encode(ids).unwrap_or_else(|error| panic!("{error}")))
        };
        let whole = encode(&bench.chain(&Cut::default()));
        for (ids, vector) in inputs.iter().zip(&whole) {
            let expected = oracle.embedding(ids).expect("a reference");
            let distance = distance(vector, &expected);
            assert!(distance <= 1e-5, "{} tokens: {distance:e}: {name}", ids.len());
        }
        let mut cuts: Vec<Vec<u32>> = bench.cuts().map(|cut| vec![cut]).collect();
        cuts.push(bench.cuts().collect());
        for cut in cuts {
            for (actual, whole) in encode(&bench.chain(&Cut::before(&cut))).iter().zip(&whole) {
                assert_eq!(bits(actual), bits(whole), "before {cut:?}: {name}");
            }
        }
    }
}

/// Returns two openings of one shim: the decoder runs on the second, all else on the first.
fn two_instances() -> [Opened; 2] {
    [Opened::cpu("first"), Opened::cpu("second")]
}

#[test]
fn the_decoder_on_a_second_instance_changes_no_bit() {
    for folder in text_fixtures() {
        let graph = committed(folder);
        let ids = tokens(&graph, 90);
        let bench = Bench::new(&graph, &menu(96, &[16, 4], &[1, 16]), &two_instances());
        let whole = walk(&bench.chain(&Cut::default()), &ids);
        for before in [vec![], vec![1], vec![graph.layers() / 2, graph.layers() - 1]] {
            let cut = Cut { before, around: 0, decoders: vec![1], ..Cut::default() };
            let chain = bench.chain(&cut);
            let instances: Vec<&str> =
                chain.description().shards.iter().map(|shard| shard.place.instance.as_str()).collect();
            assert_eq!(instances.first(), Some(&"first"));
            assert_eq!(instances[instances.len() - 2..], ["second", "first"]);
            assert_same(&walk(&chain, &ids), &whole, &format!("{folder} {cut:?}"));
        }
    }
}

#[test]
fn a_reader_is_never_parted_from_its_donor() {
    let mut refused = 0;
    for folder in text_fixtures() {
        let graph = committed(folder);
        let ids = tokens(&graph, 90);
        let bench = Bench::new(&graph, &menu(96, &[16, 4], &[1, 16]), &two_instances());
        let whole = walk(&bench.chain(&Cut::default()), &ids);
        for layer in bench.cuts() {
            let apart = Cut { before: vec![layer], around: 0, decoders: vec![0, 1], ..Cut::default() };
            if !shares_across(&graph, layer) {
                assert_same(&walk(&bench.chain(&apart), &ids), &whole, &format!("{folder} {apart:?}"));
                continue;
            }
            refused += 1;
            let fault = bench.check(&apart).expect_err("a reader without its donor");
            assert_eq!(fault.kind(), ErrorKind::Planning, "{fault}");
            assert!(fault.message().ends_with("(state-not-shareable)"), "{fault}");
            assert!(fault.help().is_some());
            // Shards that were built together but loaded separately cannot form a chain either.
            let built = bench.build(&Cut { decoders: vec![0, 0], ..apart });
            let places: Vec<usize> =
                built.iter().map(|shard| usize::from(shard.segments.layers().0 == layer)).collect();
            let error = bench.assemble(&built, &places).expect_err("a reader without its donor");
            assert_eq!(error.kind(), ErrorKind::Incompatible);
            assert!(error.to_string().starts_with("state-not-shareable: "), "{error}");
            assert!(error.help().is_some());
        }
    }
    assert!(refused > 0, "no fixture shares a state across a cut");
}

#[test]
fn boundaries_on_one_instance_are_shared_and_between_two_copied_and_counted() {
    let graph = committed("tests/fixtures/gemma4_text");
    let bench = Bench::new(&graph, &menu(96, &[16, 4], &[1, 16]), &two_instances());
    let ids = tokens(&graph, 38);
    let record = |cut: &Cut| {
        let mut session = session(&bench.chain(cut));
        append(&mut session, &ids);
        session.placement()
    };
    // Layers 0 to 5 write states. The other layers read the states of 4 and 5.
    let shared = record(&Cut::before(&[3, 7]));
    assert!(!shared.boundaries.is_empty());
    for boundary in &shared.boundaries {
        assert_eq!((boundary.bytes_copied, boundary.copied_because), (0, None), "{boundary:?}");
    }
    let steps: Vec<_> = shared
        .entries
        .iter()
        .filter(|entry| entry.steps > 0)
        .map(|entry| (entry.entry.as_str(), entry.rows))
        .collect();
    assert_eq!(
        steps,
        [("prefill_4@96", 5), ("prefill_16@96", 32), ("decode_1@96", 1)],
        "{:?}",
        shared.entries
    );

    let apart = record(&Cut { before: vec![3, 7], around: 0, decoders: vec![1], ..Cut::default() });
    let copied = |record: &PlacementRecord, from: &str, to: &str, what: &str| {
        let found = record.boundaries.iter().find(|it| (&*it.from, &*it.to, it.what) == (from, to, what));
        let found = found.unwrap_or_else(|| panic!("{from} → {to} {what}: {:#?}", record.boundaries));
        (found.bytes_copied, found.copied_because.is_some())
    };
    // 37 rows are prefilled and one is decoded. A prefill ends with the last state, in the shard of
    // layers 3 to 6.
    let (row, slice) = (graph.hidden * 4, graph.per_layer_width * 4);
    assert_eq!(copied(&apart, "embed", "decoder.0-3", "hidden"), (38 * row, true));
    assert_eq!(copied(&apart, "embed", "per-layer-input", "hidden"), (0, false));
    assert_eq!(copied(&apart, "per-layer-input", "decoder.0-3", "per-layer"), (38 * 3 * slice, true));
    assert_eq!(copied(&apart, "per-layer-input", "decoder.7-10", "per-layer"), (3 * slice, true));
    assert_eq!(copied(&apart, "decoder.0-3", "decoder.3-7", "hidden"), (0, false));
    assert_eq!(copied(&apart, "decoder.3-7", "decoder.7-10", "hidden"), (0, false));
    assert_eq!(copied(&apart, "decoder.7-10", "head", "hidden"), (row, true));
    let places: Vec<_> = apart.shards.iter().map(|shard| (&*shard.shard, &*shard.place.instance)).collect();
    assert_eq!(
        places,
        [
            ("embed", "first"),
            ("per-layer-input", "first"),
            ("decoder.0-3", "second"),
            ("decoder.3-7", "second"),
            ("decoder.7-10", "second"),
            ("head", "first"),
        ]
    );
    for state in &apart.states {
        assert_eq!(state.update, "in-graph");
    }
}

/// Returns instances with the decoder on the C example and all else on the CPU shim, or `None` if
/// the C example was not built.
fn beside_the_c_example() -> Option<[Opened; 2]> {
    if shims().get("template-c").is_none() {
        skipped("the C example shim was not built, so no shard ran on it");
        return None;
    }
    Some([Opened::cpu("cpu"), Opened { shim: "template-c", name: "example", threads: 0 }])
}

#[test]
fn a_decoder_on_the_c_example_agrees_with_the_oracle() {
    let Some(instances) = beside_the_c_example() else { return };
    // The example has no operation for tables of positions, which Llama 3 and Phi 4 mini need.
    let has_tables = |folder: &str| folder.ends_with("llama3") || folder.ends_with("phi4mini");
    for folder in text_fixtures().filter(|folder| !has_tables(folder)) {
        let graph = committed(folder);
        let ids = tokens(&graph, 90);
        let bench = Bench::new(&graph, &menu(96, &[16, 4], &[1, 16]), &instances);
        let oracle = ReferenceModel::new(&graph, Arrangement::whole(96)).expect("a reference");
        let expected = oracle.logits(&ids).expect("a reference");
        // The whole decoder, all of it in pieces, and the first layers on the CPU shim if no state
        // is shared across that cut.
        let middle = graph.layers() / 2;
        let mut cuts = vec![
            Cut { before: vec![], around: 0, decoders: vec![1], ..Cut::default() },
            Cut { before: vec![1, middle.max(2)], around: 0, decoders: vec![1], ..Cut::default() },
        ];
        let parting = bench.cuts().find(|&layer| !shares_across(&graph, layer));
        cuts.extend(parting.map(|layer| Cut {
            before: vec![layer],
            around: 0,
            decoders: vec![0, 1],
            ..Cut::default()
        }));
        let mut whole = None;
        for cut in cuts {
            let chain = bench.chain(&cut);
            let shards = &chain.description().shards;
            assert!(shards.iter().any(|shard| shard.place.shim == "template-c"));
            let mut scored = session(&chain);
            let rows = scores(&mut scored, &ids);
            let mut worst = 0.0_f64;
            for (row, actual) in rows.iter().enumerate() {
                worst = worst.max(distance(actual, &expected.row(row)));
            }
            println!("{folder} {cut:?}: logits {worst:.1e}");
            assert!(worst <= BOUND, "{folder} {cut:?}: {worst:e}");
            // Prefill on that shim writes the same states.
            let prompted = distance(&floats(&fresh(&chain, &ids)), &expected.row(ids.len() - 1));
            assert!(prompted <= BOUND, "{folder} {cut:?}: {prompted:e}");
            // Plain loops in a fixed order preserve every bit across cuts as well.
            if cut.decoders == [1] {
                let rows: Vec<_> = rows.iter().map(|row| bits(row)).collect();
                let whole = whole.get_or_insert_with(|| rows.clone());
                assert_same(&rows, whole, &format!("{folder} {cut:?}"));
            }
            let record = scored.placement();
            let crossing = record.boundaries.iter().filter(|boundary| boundary.copied_because.is_some());
            assert!(crossing.map(|boundary| boundary.bytes_copied).sum::<u64>() > 0, "{record:?}");
        }
    }
}

/// Returns ways to pass the same tokens to a session piece by piece.
fn pieces(length: usize) -> Vec<Vec<usize>> {
    let mut random = Random::new(7, "pieces");
    let mut ways = vec![vec![1; length], vec![length - 1, 1], vec![1, length - 1]];
    for most in [2, 5, 17, 18, 40] {
        let mut way = Vec::new();
        let mut left = length;
        while left > 0 {
            let piece = (1 + random.below(most) as usize).min(left);
            way.push(piece);
            left -= piece;
        }
        ways.push(way);
    }
    ways
}

#[test]
fn chunks_and_pieces_change_no_bit() {
    for folder in ["tests/fixtures/gemma4_text", "tests/fixtures/gemma3_text"] {
        let graph = committed(folder);
        let ids = tokens(&graph, 150);
        let (prompt, after) = ids.split_at(140);
        // A ring's capacity depends on the largest entry of the plan. The scoring entry of 64 rows
        // keeps it equal.
        let chain = |prefill: &[u32], decode: &[u32]| {
            let largest = [decode, &[64]].concat();
            Bench::cpu(&graph, &menu(160, prefill, &largest), 1).chain(&Cut::before(&[graph.layers() / 2]))
        };
        let end = |session: &mut Session| after.iter().map(|id| append(session, &[*id])).collect::<Vec<_>>();
        let once = chain(&[64], &[1]);
        let mut first = session(&once);
        let whole = append(&mut first, prompt);
        let whole_end = end(&mut first);
        for (prefill, decode) in [
            (vec![16], vec![1]),
            (vec![4], vec![1]),
            (vec![1], vec![1]),
            (vec![3, 5, 31], vec![1]),
            (vec![64, 16, 4], vec![1, 7]),
        ] {
            let what = format!("{folder}, prefill {prefill:?}, decode {decode:?}");
            let chain = chain(&prefill, &decode);
            let mut session = session(&chain);
            assert_eq!(append(&mut session, prompt), whole, "{what}");
            assert_same(&end(&mut session), &whole_end, &what);
        }
        let mixed = chain(&[16, 4], &[1]);
        for way in pieces(prompt.len()) {
            let what = format!("{folder} in pieces {way:?}");
            let mut session = session(&mixed);
            let mut appended = 0;
            for piece in &way {
                append(&mut session, &prompt[appended..appended + piece]);
                appended += piece;
            }
            assert_eq!(logits(&session), whole, "{what}");
            assert_same(&end(&mut session), &whole_end, &what);
        }
        // Rows are scored 64 at a time. Every row equals the logits after a prompt that ends there.
        let mut scored = session(&mixed);
        let rows = scores(&mut scored, prompt);
        assert_eq!(bits(&rows[139]), whole, "{folder}");
        for length in [1, 2, 16, 17, 18, 63, 64, 65, 81, 139] {
            assert_eq!(bits(&rows[length - 1]), fresh(&mixed, &prompt[..length]), "{folder} after {length}");
        }
        assert_same(&end(&mut scored), &whole_end, folder);
    }
}

#[test]
fn a_continued_session_equals_a_fresh_one() {
    for folder in text_fixtures() {
        let graph = committed(folder);
        let bench = Bench::cpu(&graph, &menu(256, &[16, 4], &[1, 16]), 1);
        let chain = bench.chain(&Cut::before(&[1, 2.max(graph.layers() / 2)]));
        let ids = tokens(&graph, 256);
        let mut continued = session(&chain);
        let mut end = 0;
        for turn in [1, 40, 1, 1, 17, 33, 2, 90, 16, 55] {
            let actual = append(&mut continued, &ids[end..end + turn]);
            end += turn;
            assert_eq!(continued.tokens(), &ids[..end]);
            assert_eq!(actual, fresh(&chain, &ids[..end]), "{folder} at {end}");
        }
        assert_eq!((end, continued.remaining()), (256, 0));
        let error = continued.append(&ids[..1]).expect_err("a full context");
        assert_eq!(error.kind(), ErrorKind::Context, "{error}");
        // A refused call keeps the history.
        assert_eq!(continued.tokens().len(), 256);
    }
}

#[test]
fn a_truncated_session_equals_a_fresh_one() {
    let mut lost = 0;
    for folder in text_fixtures() {
        let graph = committed(folder);
        let bench = Bench::cpu(&graph, &menu(256, &[16, 4], &[1, 16]), 1);
        let chain = bench.chain(&Cut::before(&[graph.layers() / 2]));
        let ids = tokens(&graph, 200);
        let other: Vec<u32> = ids.iter().rev().copied().collect();
        // Back by one, by the largest entry, by one more than rings keep, further, and to an empty
        // history.
        for back in [1, 16, 17, 50, 119, 120] {
            let mut session = session(&chain);
            append(&mut session, &ids[..120]);
            let kept = 120 - back;
            match session.truncate(kept).expect("within the history") {
                Truncation::Free => {}
                Truncation::StateLost { recompute } => {
                    assert_eq!(recompute, kept);
                    lost += 1;
                }
            }
            assert!(session.logits().is_none());
            let history = [&ids[..kept], &other[..60]].concat();
            assert_eq!(
                append(&mut session, &other[..60]),
                fresh(&chain, &history),
                "{folder} back by {back}"
            );
            // And in the other direction: from the new history back to the old one.
            let prompted = session.prompt(&ids).expect("a prompt");
            assert_eq!(prompted.reused + prompted.run, ids.len());
            assert_eq!(logits(&session), fresh(&chain, &ids), "{folder} back by {back} and again");
        }
    }
    assert!(lost > 0, "no truncation reached beyond a ring");
}

#[test]
fn a_run_that_ends_early_leaves_no_trace() {
    for folder in ["tests/fixtures/gemma4_text", "tests/fixtures/gemma3_text"] {
        let graph = committed(folder);
        let bench = Bench::cpu(&graph, &menu(256, &[16], &[1, 16]), 1);
        let chain = bench.chain(&Cut::before(&[2]));
        let ids = tokens(&graph, 120);
        let mut session = session(&chain);
        append(&mut session, &ids[..50]);
        // One deadline has already expired. The others may expire after any number of steps.
        let limits =
            [Duration::ZERO, Duration::from_micros(200), Duration::from_millis(1), Duration::from_millis(3)];
        for limit in limits {
            session.set_deadline(Some(Instant::now() + limit));
            let rest = session.tokens().len();
            let late = session.append(&ids[rest..]);
            assert!(matches!(late, Ok(_) | Err(SessionError::Deadline { .. })), "{late:?}");
            assert!(!(limit.is_zero() && late.is_ok()));
            assert!(ids.starts_with(session.tokens()));
            if late.is_ok() {
                break;
            }
        }
        session.set_deadline(None);
        let cancel = session.cancel_handle();
        let rest = session.tokens().len();
        if rest < ids.len() {
            cancel.cancel();
            let error = session.append(&ids[rest..]).expect_err("cancelled");
            assert!(matches!(error, SessionError::Cancelled { .. }), "{error}");
            let rest = session.tokens().len();
            append(&mut session, &ids[rest..]);
        }
        assert_eq!(logits(&session), fresh(&chain, &ids), "{folder}");
    }
}

#[test]
fn sessions_of_one_chain_do_not_disturb_each_other() {
    let graph = committed("tests/fixtures/gemma4_text");
    let bench = Bench::cpu(&graph, &menu(128, &[16, 4], &[1, 16]), 2);
    let chain = bench.chain(&Cut::before(&[3, 6]));
    let ids = tokens(&graph, 400);
    let prompts: Vec<&[u32]> = ids.chunks(100).collect();
    let expected: Vec<_> = prompts.iter().map(|prompt| fresh(&chain, prompt)).collect();
    // Alternately …
    let mut sessions: Vec<_> = prompts.iter().map(|_| session(&chain)).collect();
    for piece in 0..10 {
        for (session, prompt) in sessions.iter_mut().zip(&prompts) {
            append(session, &prompt[piece * 10..][..10]);
        }
    }
    let actual: Vec<_> = sessions.iter().map(logits).collect();
    assert_same(&actual, &expected, "in turns");
    // … and concurrently.
    let actual: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = prompts.iter().map(|&prompt| scope.spawn(|| fresh(&chain, prompt))).collect();
        running.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_same(&actual, &expected, "at once");
}

#[test]
fn threads_change_no_bit() {
    // The demo model's layers are large enough to be split among threads. The layers of the
    // fixtures are not.
    for folder in [DEMO_MODEL, "tests/fixtures/gemma4_text", "tests/fixtures/gemma3_text"] {
        let graph = committed(folder);
        let ids = tokens(&graph, 260);
        let menu = menu(320, &[64, 16, 4], &[1, 64]);
        let mut first = None;
        for threads in [1, 2, 4] {
            let bench = Bench::cpu(&graph, &menu, threads);
            let chain = bench.chain(&Cut::before(&[graph.layers() / 2]));
            let walked = walk(&chain, &ids);
            // In one call, in pieces, and continued.
            let once = fresh(&chain, &ids);
            let mut session = session(&chain);
            for piece in ids.chunks(37) {
                append(&mut session, piece);
            }
            assert_eq!(logits(&session), once, "{folder} in pieces on {threads} threads");
            assert_eq!(walked.last(), Some(&once), "{folder} scored on {threads} threads");
            let uncut = walk(&bench.chain(&Cut::default()), &ids);
            assert_same(&uncut, &walked, &format!("{folder} uncut on {threads} threads"));
            let first = first.get_or_insert_with(|| walked.clone());
            assert_same(&walked, first, &format!("{folder} on {threads} threads"));
        }
    }
}

/// Returns the largest [`distance`]s from the oracle over all of `ids`: for the residual stream
/// after every layer, and for the logits.
///
/// The oracle runs everything at once over linear states, so it uses neither rings nor chunks.
fn distances(graph: &Graph, bench: &Bench<'_>, ids: &[u32]) -> (f64, f64) {
    let oracle = ReferenceModel::new(graph, Arrangement::whole(ids.len() as u64)).expect("a reference");
    let trace = oracle.trace(ids).expect("a reference");
    let expected = trace.logits.as_ref().expect("logits");
    // Cut before every layer, so that each layer outputs its result.
    let chain = bench.chain(&Cut::before(&bench.cuts().collect::<Vec<_>>()));
    let width = graph.hidden as usize;
    let (mut hidden, mut logits) = (0.0_f64, 0.0_f64);
    let mut seen = 0;
    session(&chain)
        .score(ids, &mut |step| {
            assert!(step.tensor("no such tap").is_none());
            for (index, array) in trace.hidden.iter().enumerate() {
                let name = index.checked_sub(1).map_or("embed".to_owned(), |layer| format!("layer.{layer}"));
                let stream =
                    step.tensor(&name).unwrap_or_else(|| panic!("no `{name}` in {:?}", step.names()));
                for row in 0..step.rows() {
                    let actual = &stream.values[row * width..][..width];
                    hidden = hidden.max(distance(actual, &array.row(step.position() + row)));
                    seen += 1;
                }
            }
            for row in 0..step.rows() {
                let actual = step.logits(row).expect("a scored row");
                logits = logits.max(distance(actual, &expected.row(step.position() + row)));
            }
        })
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(seen, ids.len() * (graph.layers() as usize + 1));
    // Prefill gives the same results as scoring, so the checks above apply to prompts too.
    let mut prompted = session(&chain);
    append(&mut prompted, ids);
    let last = distance(prompted.logits().expect("logits"), &expected.row(ids.len() - 1));
    (hidden, logits.max(last))
}

#[test]
fn prompts_longer_than_the_window_are_right() {
    for folder in text_fixtures() {
        let graph = committed(folder);
        let bench = Bench::cpu(&graph, &menu(256, &[16, 4], &[1, 16]), 1);
        let ids = tokens(&graph, 256);
        let (hidden, logits) = distances(&graph, &bench, &ids);
        println!("{folder}: 256 tokens, window {}, hidden {hidden:.1e}, logits {logits:.1e}", window(&graph));
        assert!(hidden <= BOUND && logits <= BOUND, "{folder}: hidden {hidden:e}, logits {logits:e}");
    }
}

#[test]
fn the_demo_model_is_right_over_its_whole_context() {
    let graph = committed(DEMO_MODEL);
    let context = graph.context as u32;
    assert_eq!((context, window(&graph)), (1024, 64));
    let ids = tokens(&graph, 1024);
    let bench = Bench::cpu(&graph, &menu(context, &[16, 4], &[1, 16]), 2);
    let start = Instant::now();
    let (hidden, logits) = distances(&graph, &bench, &ids);
    println!("demo model: 1024 tokens, hidden {hidden:.1e}, logits {logits:.1e}, {:?}", start.elapsed());
    assert!(hidden <= BOUND && logits <= BOUND, "hidden {hidden:e}, logits {logits:e}");

    // Single tokens, one prompt, and scored rows without a prefill give the same bits.
    let chain = bench.chain(&Cut::default());
    let mut single = session(&chain);
    for capacity in single.placement().states.iter().map(|state| state.capacity) {
        assert!(capacity == 80 || capacity == 1024, "{capacity} rows");
    }
    let rings = single.placement().states.iter().filter(|state| state.capacity == 80).count();
    assert!(rings > 0 && 1024 / 80 >= 8, "rings go round at least eight times");
    let mut rows = Vec::new();
    for id in &ids {
        rows.push(append(&mut single, &[*id]));
    }
    let scored: Vec<_> = scores(&mut session(&chain), &ids).iter().map(|row| bits(row)).collect();
    assert_same(&scored, &rows, "scored");
    for length in [1, 64, 65, 80, 81, 161, 639, 1000, 1024] {
        assert_eq!(fresh(&chain, &ids[..length]), rows[length - 1], "a prompt of {length}");
    }
    assert_eq!(single.remaining(), 0);
}

/// Measures the effect on the oracle's logits of rounding between primitives alone: how much a
/// model amplifies the last bit. Wide heads on a narrow stream, unscaled and with random weights,
/// amplify it a lot.
fn rounding(graph: &Graph, ids: &[u32]) -> f64 {
    let logits = |form| {
        let arrangement = Arrangement { form, ..Arrangement::whole(ids.len() as u64) };
        let oracle = ReferenceModel::new(graph, arrangement).expect("a reference");
        oracle.logits(ids).expect("a reference")
    };
    let (whole, rounded) = (logits(Form::Semantic), logits(Form::Decomposed));
    (0..ids.len()).map(|row| distance(&rounded.row(row), &whole.row(row))).fold(0.0, f64::max)
}

#[test]
fn checkpoints_of_other_shapes_are_right_and_cut_without_a_bit_changed() {
    const SEEDS: Range<u64> = 0..48;
    /// A result beyond this bound is wrong, however much a shape amplifies the last bit.
    const CEILING: f64 = 1e-2;
    let (mut worst_hidden, mut worst_logits, mut worst_rounding) = (0.0_f64, 0.0_f64, 0.0_f64);
    for seed in SEEDS {
        let mut random = Random::new(seed, "shape");
        let spec = random_spec(&mut random, seed);
        let graph = made(&spec);
        let prefills = [vec![16, 4], vec![8], vec![5, 1], vec![32]];
        let menu = menu(64, &prefills[random.below(4) as usize], &[1, 1 + random.below(12) as u32 + 1]);
        let bench = Bench::cpu(&graph, &menu, 1 + random.below(3) as u32);
        let ids = tokens(&graph, 60);
        let (hidden, logits) = distances(&graph, &bench, &ids);
        let rounding = rounding(&graph, &ids);
        worst_rounding = worst_rounding.max(rounding);
        let bound = (32.0 * rounding).clamp(5e-5, CEILING);
        assert!(
            hidden <= bound && logits <= bound,
            "hidden {hidden:e}, logits {logits:e} of {bound:e}: {spec:?}"
        );
        worst_hidden = worst_hidden.max(hidden);
        worst_logits = worst_logits.max(logits);
        if graph.layers() > 1 {
            let whole = walk(&bench.chain(&Cut::default()), &ids);
            let before = 1 + random.below(u64::from(graph.layers()) - 1) as u32;
            let cut = walk(&bench.chain(&Cut::before(&[before])), &ids);
            assert_same(&cut, &whole, &format!("before {before}: {spec:?}"));
        }
    }
    println!(
        "{} shapes: hidden {worst_hidden:.1e}, logits {worst_logits:.1e}, rounding {worst_rounding:.1e}",
        SEEDS.end
    );
}
