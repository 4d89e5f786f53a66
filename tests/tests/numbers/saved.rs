//! Sessions that are saved and restored, forked, rewound, or that find the beginning of their
//! prompt in a cache, say the same as undisturbed ones on the CPU, bit for bit: with sliding
//! windows, with a KV cache in 16-bit floats and in 8 bits, with pictures, and in workers.

use std::path::Path;

use shardwright::tools::ModelTools;
use shardwright::{
    BundleOptions, ChatPart, ErrorKind, GenerationEvent, Isolation, Model, OpenOptions, PrefixCache, Reply,
    RestoreReason, Restored, Role, SavedSession, Session, Turn, TurnPart,
};
use shardwright_runtime::Chain;
use shardwright_tests::bundles::Compiled;
use shardwright_tests::chain::{Bench, Cut, committed, menu, tokens};
use shardwright_tests::checkpoints::{
    Copy, DEMO_MODEL, EMBEDDING_FIXTURE, MULTIMODAL_FIXTURE, TEXT_FIXTURES,
};
use shardwright_tests::program::search_path;
use shardwright_tests::towers::Goldens;
use shardwright_tests::{tree, worker};

const QUESTIONS: [&str; 3] = ["What is politics?", "Define happiness.", "What does bug mean?"];

fn options() -> OpenOptions {
    OpenOptions::new().search_path(search_path()).threads(2).context(512)
}

fn opened(checkpoint: &str, options: &OpenOptions) -> Model {
    options.open(tree::root().join(checkpoint)).unwrap_or_else(|error| panic!("{checkpoint}: {error}"))
}

/// Sets the options of a session. Replies are sampled, so that small differences show.
fn configured(mut session: Session) -> Session {
    session.options.sampling.do_sample = true;
    session.options.sampling.temperature = 0.8;
    session.options.sampling.seed = 7;
    session.options.max_tokens = Some(16);
    session.options.stop = Default::default();
    session
}

fn session(model: &Model) -> Session {
    configured(model.session().expect("a session"))
}

/// Returns the tokens of a reply, and the number of its prompt tokens that were reused.
fn said(mut reply: Reply<'_>) -> (Vec<u32>, usize) {
    let mut said = Vec::new();
    for event in reply.by_ref() {
        if let GenerationEvent::Token { id } = event.unwrap_or_else(|error| panic!("{error}")) {
            said.push(id);
        }
    }
    (said, reply.statistics().reused_tokens)
}

fn ask(session: &mut Session, question: &str) -> (Vec<u32>, usize) {
    said(session.chat(question).expect("a reply"))
}

/// Saves a session, and restores it with its options.
fn restored(model: &Model, session: &mut Session, path: &Path) -> (Session, Option<RestoreReason>) {
    let saved = session.save(path).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(saved.tokens, session.tokens().len());
    assert_eq!(saved.bytes, std::fs::metadata(path).expect("a file").len());
    let Restored { session, recomputed } = model.restore(path).unwrap_or_else(|error| panic!("{error}"));
    (configured(session), recomputed)
}

/// Continues a conversation in the original, a restored session and a fork.
fn continues(model: &Model, what: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut plain = session(model);
    ask(&mut plain, QUESTIONS[0]);
    ask(&mut plain, QUESTIONS[1]);
    let (mut again, reason) = restored(model, &mut plain, &folder.path().join("saved"));
    assert_eq!(reason, None, "{what}");
    let mut fork = plain.fork().expect("a fork");
    let expected = ask(&mut plain, QUESTIONS[2]);
    for (copy, name) in [(&mut again, "restored"), (&mut fork, "forked")] {
        assert_eq!(copy.turns().len(), 4, "{what}, {name}");
        assert_eq!(ask(copy, QUESTIONS[2]), expected, "{what}, {name}");
        assert_eq!(copy.tokens(), plain.tokens(), "{what}, {name}");
        assert_eq!(format!("{:?}", copy.messages()), format!("{:?}", plain.messages()), "{what}, {name}");
    }
}

#[test]
fn with_windows_and_every_format_of_the_kv_cache() {
    // Gemma 3 and 4 have windows of 16 positions, which these conversations exceed.
    for (checkpoint, formats) in [
        (TEXT_FIXTURES[0], None),
        (TEXT_FIXTURES[1], Some("f16/f16/f16")),
        (TEXT_FIXTURES[1], Some("w8-per-channel/a16/a8")),
        (DEMO_MODEL, Some("w8-per-channel/f32/f16")),
    ] {
        let formats = formats.map(|formats| formats.parse().expect("formats"));
        let options = formats.into_iter().fold(options(), OpenOptions::formats);
        let model = opened(checkpoint, &options);
        if model.has_chat_template() {
            continues(&model, checkpoint);
        }
        completes(&model, checkpoint);
    }
}

/// Continues a text in a restored session and in one with a prefix cache.
fn completes(model: &Model, what: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let ids: Vec<u32> = (0..60).map(|id| 100 + id * 7 % 300).collect();
    let complete =
        |session: &mut Session, ids: &[u32]| said(session.complete_ids(ids.to_vec()).expect("a reply"));
    let mut plain = session(model);
    let (first, _) = complete(&mut plain, &ids[..40]);
    let (mut again, reason) = restored(model, &mut plain, &folder.path().join("saved"));
    assert_eq!(reason, None, "{what}");
    let longer = [&ids[..40], &first[..], &ids[40..]].concat();
    let (expected, reused) = complete(&mut plain, &longer);
    assert_eq!(complete(&mut again, &longer), (expected, reused), "{what}");
    assert!(reused >= 40, "{what}");

    let cache = PrefixCache::new(64 << 20);
    let cached = |ids: &[u32]| {
        let mut session = session(model);
        session.set_prefix_cache(Some(cache.clone()));
        complete(&mut session, ids)
    };
    assert_eq!(cached(&ids[..40]).0, first, "{what}");
    for common in [39, 25, 3] {
        let prompt = [&ids[..common], &ids[common + 1..]].concat();
        let (expected, _) = complete(&mut session(model), &prompt);
        assert_eq!(cached(&prompt), (expected, common), "{what}, {common} common tokens");
    }
}

/// Logits are compared, not only tokens: on chains that are cut by hand, and of every length around
/// the window.
#[test]
fn logits_have_the_same_bits() {
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    for folder in TEXT_FIXTURES {
        let graph = committed(folder);
        let ids = tokens(&graph, 90);
        let bench = Bench::cpu(&graph, &menu(96, &[16, 4], &[1, 16]), 1);
        let chain: Chain = bench.chain(&Cut::before(&[graph.layers() / 2]));
        let fresh = |ids: &[u32]| {
            let mut session = chain.session().expect("a session");
            session.append(ids).unwrap_or_else(|error| panic!("{error}"));
            bits(session.logits().expect("logits"))
        };
        let cache = PrefixCache::new(64 << 20);
        for length in [1, 15, 33, 60] {
            let mut session = chain.session().expect("a session");
            session.append(&ids[..length]).unwrap_or_else(|error| panic!("{error}"));
            let mut rows = Vec::new();
            session.write_states(&mut rows).expect("written");
            let mut restored = chain.session().expect("a session");
            restored.remember(&session.history()).expect("a history");
            restored.read_states(&session.state_rows(), &mut &rows[..]).expect("read");
            let expected = fresh(&ids[..length + 20]);
            for mut copy in [restored, session.fork().expect("a fork")] {
                copy.append(&ids[length..length + 20]).unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(copy.recomputed(), 0);
                assert!(bits(copy.logits().expect("logits")) == expected, "{folder}, {length} tokens");
            }
            let mut rewound = chain.session().expect("a session");
            let others: Vec<u32> = ids[length..length + 9].iter().rev().copied().collect();
            for tokens in [&ids[..length], &others] {
                rewound.append(tokens).unwrap_or_else(|error| panic!("{error}"));
            }
            rewound.truncate(length).unwrap_or_else(|error| panic!("{error}"));
            rewound.append(&ids[length..length + 20]).unwrap_or_else(|error| panic!("{error}"));
            assert!(bits(rewound.logits().expect("logits")) == expected, "{folder}, {length} tokens rewound");
            let mut cached = chain.session().expect("a session");
            cached.set_prefix_cache(Some(cache.clone()));
            let prompted = cached.prompt(&ids[..length + 20]).unwrap_or_else(|error| panic!("{error}"));
            let longest = if length == 1 { 0 } else { cache_length(length) };
            assert_eq!(prompted.reused, longest, "{folder}, {length} tokens");
            assert!(bits(cached.logits().expect("logits")) == expected, "{folder}, {length} tokens");
        }
        let identity = chain.identity().expect("artefacts have hashes");
        assert_eq!(bench.chain(&Cut::before(&[graph.layers() / 2])).identity(), Some(identity));
        assert_ne!(bench.chain(&Cut::default()).identity(), Some(identity));
    }
}

/// Returns the length of the prompt before the one with `length` + 20 tokens.
fn cache_length(length: usize) -> usize {
    match length {
        15 => 21,
        33 => 35,
        _ => 53,
    }
}

#[test]
fn with_a_picture_and_forgotten_turns() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("saved");
    let (model, goldens) = (opened(MULTIMODAL_FIXTURE, &options()), Goldens::read());
    let pixels: Vec<u8> = goldens.integers("p1.image_rgb").into_iter().map(|value| value as u8).collect();
    let picture = || ChatPart::PictureRgb8 { width: 50, height: 38, stride: 150, pixels: pixels.clone() };
    let mut plain = session(&model);
    said(plain.chat_parts([picture(), "What is this?".into()]).expect("a reply"));
    let (mut again, reason) = restored(&model, &mut plain, &path);
    assert_eq!(reason, None);
    let mut fork = plain.fork().expect("a fork");
    let expected = ask(&mut plain, "And now?");
    assert_eq!(ask(&mut again, "And now?"), expected);
    assert_eq!(ask(&mut fork, "And now?"), expected);
    // The restored picture can be shown again, also in other turns, without its content.
    let shown = again.turns()[0].parts[0].clone();
    assert!(matches!(&shown, TurnPart::Picture(ChatPart::Restored(_))), "{shown:?}");
    let turns = |shown: TurnPart| vec![Turn::new(Role::User, [shown, "Which one?".into()])];
    let expected = said(plain.reply_to(turns(TurnPart::from(picture()))).expect("a reply"));
    assert_eq!(said(again.reply_to(turns(shown)).expect("a reply")).0, expected.0);
    // The picture of a forgotten turn is in the history, but in no turn.
    assert!(fork.forget_oldest_turn());
    let (mut again, reason) = restored(&model, &mut fork, &path);
    assert_eq!(reason, None);
    assert_eq!(again.tokens(), fork.tokens());
    assert_eq!(ask(&mut again, "Still?"), ask(&mut fork, "Still?"));
}

#[test]
fn a_rewound_conversation_continues_from_there() {
    let model = opened(DEMO_MODEL, &options());
    let (mut plain, mut rewound) = (session(&model), session(&model));
    ask(&mut plain, QUESTIONS[0]);
    let expected = ask(&mut plain, QUESTIONS[2]).0;
    ask(&mut rewound, QUESTIONS[0]);
    ask(&mut rewound, QUESTIONS[1]);
    rewound.rewind(2).expect("two turns");
    assert_eq!(rewound.turns().len(), 2);
    assert_eq!(ask(&mut rewound, QUESTIONS[2]).0, expected);
    assert_eq!(rewound.tokens(), plain.tokens());
    rewound.rewind(0).expect("no turns");
    assert_eq!(ask(&mut rewound, QUESTIONS[0]).0, ask(&mut session(&model), QUESTIONS[0]).0);
    let error = rewound.rewind(3).expect_err("two turns");
    assert!(error.kind() == ErrorKind::Argument && error.help().is_some(), "{error}");
}

#[test]
fn sessions_of_a_model_share_a_cache() {
    let model = opened(DEMO_MODEL, &options());
    let cache = PrefixCache::new(256 << 20);
    let cached = || {
        let mut session = session(&model);
        session.set_prefix_cache(Some(cache.clone()));
        session
    };
    let mut first = cached();
    let (answer, reused) = ask(&mut first, QUESTIONS[0]);
    assert_eq!(reused, 0);
    let turns = first.turns().to_vec();
    drop(first);
    // Another session with the same conversation, as a server has it.
    let mut second = cached();
    let next = [turns, vec![Turn::user(QUESTIONS[1])]].concat();
    let (found, reused) = said(second.reply_to(next.clone()).expect("a reply"));
    // At least the first question is equal.
    assert!(reused > 8, "{reused} tokens were reused");
    let (expected, _) = said(session(&model).reply_to(next).expect("a reply"));
    assert_eq!(found, expected);
    assert_eq!(ask(&mut session(&model), QUESTIONS[0]).0, answer);
    let statistics = second.prefix_cache().expect("a cache").statistics();
    assert!(statistics.hits == 1 && statistics.bytes > 0, "{statistics:?}");
}

#[test]
fn states_in_a_worker_are_saved_and_restored() {
    if !worker::is_here("saved::states_in_a_worker_are_saved_and_restored") {
        return;
    }
    let options = options().isolation(Isolation::Process);
    let model = opened(DEMO_MODEL, &options);
    continues(&model, "in a worker");
}

#[test]
fn another_plan_or_model_runs_the_tokens_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("saved");
    let model = opened(DEMO_MODEL, &options());
    let mut plain = session(&model);
    ask(&mut plain, QUESTIONS[0]);
    ask(&mut plain, QUESTIONS[1]);
    let history = plain.tokens().len();
    assert!(history > 48);
    plain.save(&path).expect("saved");

    // Another plan of the same model.
    let other = opened(DEMO_MODEL, &options().formats("w8-per-channel".parse().expect("formats")));
    let Restored { session: mut again, recomputed } = other.restore(&path).expect("restored");
    assert!(matches!(recomputed, Some(RestoreReason::Plan { .. })), "{recomputed:?}");
    assert_eq!((again.tokens().len(), again.turns().len()), (history, 4));
    assert_eq!(again.resume().expect("resumed"), history);

    // A model that is opened again has an equal identity.
    let same = opened(DEMO_MODEL, &options());
    assert_eq!(same.restore(&path).expect("restored").recomputed, None);

    // Other weights of the same model.
    let copy = Copy::of(DEMO_MODEL).stored("model.norm.weight", |bytes| bytes[0] ^= 4);
    let other = options().open(copy.path()).expect("a model");
    let Restored { session: mut again, recomputed } = other.restore(&path).expect("restored");
    assert!(recomputed.is_some(), "states of other weights");
    assert_eq!(again.resume().expect("resumed"), history);

    // A released session has no states.
    plain.release();
    let saved: SavedSession = plain.save(&path).expect("saved");
    assert!(saved.without_states.is_some_and(|reason| reason.contains("no complete states")));
    let restored = model.restore(&path).expect("restored");
    assert!(matches!(restored.recomputed, Some(RestoreReason::NotSaved(_))));
    let mut again = configured(restored.session);
    assert_eq!(ask(&mut again, QUESTIONS[2]).0, ask(&mut plain, QUESTIONS[2]).0);

    // Too short a context, and another vocabulary.
    let short = opened(DEMO_MODEL, &options().context(48));
    let error = short.restore(&path).err().expect("too short");
    assert!(error.kind() == ErrorKind::Context && error.to_string().contains("context of 48"), "{error}");
    for fixture in [TEXT_FIXTURES[1], EMBEDDING_FIXTURE] {
        let error = opened(fixture, &options()).restore(&path).err().expect("another vocabulary");
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
        assert!(error.to_string().contains("another vocabulary") && error.help().is_some(), "{error}");
    }
}

#[test]
fn a_bundle_restores_sessions_and_damaged_files_are_rejected() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("saved");
    let compiled = Compiled::from(DEMO_MODEL, ["--context", "256"]);
    let open = || {
        let options = BundleOptions::new().search_path(search_path()).threads(2).remember_no_proofs();
        options.open(compiled.path()).expect("a bundle")
    };
    let model = open();
    continues(&model, "a bundle");
    let mut plain = session(&model);
    ask(&mut plain, QUESTIONS[0]);
    plain.save(&path).expect("saved");
    assert_eq!(open().restore(&path).expect("restored").recomputed, None);
    let whole = std::fs::read(&path).expect("a file");
    for (change, kind) in [
        (
            Box::new(|file: &mut Vec<u8>| file.truncate(file.len() / 2)) as Box<dyn Fn(&mut Vec<u8>)>,
            ErrorKind::Invalid,
        ),
        (Box::new(|file| file.clear()), ErrorKind::Invalid),
        (Box::new(|file| file[8] += 1), ErrorKind::Incompatible),
        (Box::new(|file| *file.last_mut().expect("a byte") ^= 1), ErrorKind::Invalid),
        (
            Box::new(|file| {
                let at = file.len() - 200;
                file[at] ^= 1;
            }),
            ErrorKind::Invalid,
        ),
    ] {
        let mut file = whole.clone();
        change(&mut file);
        std::fs::write(&path, file).expect("written");
        let error = model.restore(&path).err().expect("damaged");
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.help().is_some() && error.to_string().contains("saved"), "{error}");
    }
    let missing = model.restore(folder.path().join("missing")).err().expect("no file");
    assert_eq!(missing.kind(), ErrorKind::Missing, "{missing}");
    // A thesis is not replaced.
    std::fs::write(&path, "my thesis").expect("written");
    assert_eq!(plain.save(&path).expect_err("another file").kind(), ErrorKind::Argument);
    assert_eq!(SavedSession::expect_at(&path).expect_err("another file").kind(), ErrorKind::Argument);
    assert_eq!(std::fs::read(&path).expect("a file"), b"my thesis");
    assert!(model.chain().budget().is_some(), "a bundle counts its memory");
}
