//! Sessions that are released under memory pressure and resumed generate the same tokens as
//! undisturbed ones: in a conversation, between tokens, after turns were forgotten, with pictures,
//! and after a chip was lost.

use shardwright::{
    BundleOptions, CancelHandle, ChatPart, ErrorKind, GenerationEvent, GenerationStatistics, Isolation,
    Model, OpenOptions, Reply, Session,
};
use shardwright_tests::bundles::Compiled;
use shardwright_tests::checkpoints::{DEMO_MODEL, EMBEDDING_FIXTURE, MULTIMODAL_FIXTURE};
use shardwright_tests::chip::{CHIP, TestChip};
use shardwright_tests::program::search_path;
use shardwright_tests::towers::Goldens;
use shardwright_tests::tree;

const QUESTIONS: [&str; 3] = ["What is politics?", "Define happiness.", "What does bug mean?"];

fn opened(checkpoint: &str) -> Model {
    let options = OpenOptions::new().search_path(search_path()).threads(2).context(512);
    options.open(tree::root().join(checkpoint)).unwrap_or_else(|error| panic!("{checkpoint}: {error}"))
}

fn session(model: &Model) -> Session {
    let mut session = model.session().expect("a session");
    // Sampled, so that the sampler's state matters too.
    session.options.sampling.do_sample = true;
    session.options.sampling.temperature = 0.8;
    session.options.sampling.seed = 7;
    session.options.max_tokens = Some(24);
    session
}

/// Returns the tokens of a reply that is released after each token for which `when` is true, with
/// its statistics.
fn tokens(mut reply: Reply<'_>, when: impl Fn(usize) -> bool) -> (Vec<u32>, GenerationStatistics) {
    let mut said = Vec::new();
    while let Some(event) = reply.next() {
        if let GenerationEvent::Token { id } = event.unwrap_or_else(|error| panic!("{error}")) {
            said.push(id);
            if when(said.len()) {
                reply.release();
            }
        }
    }
    (said, reply.statistics())
}

fn never(_: usize) -> bool {
    false
}

#[test]
fn between_turns() {
    let model = opened(DEMO_MODEL);
    let (mut plain, mut disturbed) = (session(&model), session(&model));
    for (turn, question) in QUESTIONS.into_iter().enumerate() {
        let (wanted, _) = tokens(plain.chat(question).expect("a reply"), never);
        // Released once, released twice, and resumed by hand.
        for _ in 0..turn {
            disturbed.release();
        }
        let history = disturbed.tokens().len();
        assert_eq!(disturbed.is_released(), turn > 0);
        let resumed = if turn == 2 { disturbed.resume().expect("resumed") } else { 0 };
        assert_eq!(resumed, if turn == 2 { history } else { 0 });
        let (found, statistics) = tokens(disturbed.chat(question).expect("a reply"), never);
        assert_eq!(found, wanted, "{question}");
        assert_eq!(disturbed.tokens(), plain.tokens());
        assert_eq!(statistics.recomputed_tokens, if turn == 1 { history } else { 0 }, "{statistics:?}");
        assert!(turn != 1 || statistics.reused_tokens == 0, "{statistics:?}");
    }
    let said = |session: &Session| format!("{:?}", session.messages());
    assert_eq!(said(&disturbed), said(&plain));
    // Forgotten turns are not run again.
    for session in [&mut plain, &mut disturbed] {
        assert!(session.forget_oldest_turn());
    }
    disturbed.release();
    let (wanted, _) = tokens(plain.chat("And a shard?").expect("a reply"), never);
    let (found, _) = tokens(disturbed.chat("And a shard?").expect("a reply"), never);
    assert_eq!(found, wanted);
}

#[test]
fn between_tokens() {
    let model = opened(DEMO_MODEL);
    let (wanted, undisturbed) = tokens(session(&model).chat(QUESTIONS[0]).expect("a reply"), never);
    assert!(wanted.len() > 12 && undisturbed.recomputed_tokens == 0);
    for when in [|count| count == 1, |count| count % 5 == 0, |_| true] {
        let mut session = session(&model);
        let (found, statistics) = tokens(session.chat(QUESTIONS[0]).expect("a reply"), when);
        assert_eq!(found, wanted);
        assert!(statistics.recomputed_tokens >= undisturbed.prompt_tokens, "{statistics:?}");
    }
}

#[test]
fn with_a_picture() {
    let (model, goldens) = (opened(MULTIMODAL_FIXTURE), Goldens::read());
    let pixels: Vec<u8> = goldens.integers("p1.image_rgb").into_iter().map(|value| value as u8).collect();
    let picture = || ChatPart::PictureRgb8 { width: 50, height: 38, stride: 150, pixels: pixels.clone() };
    let run = |releases: bool| {
        let mut session = session(&model);
        let when = |count| releases && count == 3;
        let first = session.chat_parts([picture(), "What is this?".into()]).expect("a reply");
        let first = tokens(first, when).0;
        if releases {
            session.release();
        }
        (first, tokens(session.chat("And now?").expect("a reply"), when).0)
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn after_a_chip_was_lost() {
    let chip = TestChip::new();
    let options = OpenOptions::new().search_path(chip.search_path()).soc(CHIP).isolation(Isolation::Off);
    let open = || options.open(tree::root().join(DEMO_MODEL)).unwrap_or_else(|error| panic!("{error}"));
    let ask = |model: &Model, when: fn(usize) -> bool| {
        let mut session = session(model);
        let mut said = Vec::new();
        for question in QUESTIONS {
            said.push(tokens(session.chat(question).expect("a reply"), when).0);
            if when(1) {
                session.release();
            }
        }
        (said, session.placement().moves.len())
    };
    let (wanted, moves) = ask(&open(), never);
    assert_eq!(moves, 0);
    for run in [1, 40] {
        chip.fails_in("lost", run);
        assert_eq!(ask(&open(), |count| count % 7 == 1), (wanted.clone(), 1), "lost in run {run}");
    }
}

fn bundle_options() -> BundleOptions {
    BundleOptions::new().search_path(search_path()).threads(2).remember_no_proofs()
}

#[test]
fn a_budget_counts_what_is_loaded_and_not_what_is_released() {
    let compiled = Compiled::from(DEMO_MODEL, ["--context", "256"]);
    let open = |bytes: Option<u64>| {
        let options = bundle_options();
        let options = bytes.into_iter().fold(options, BundleOptions::memory_budget);
        options.open(compiled.path())
    };
    let memory = open(None).expect("opened").memory();
    assert_eq!((memory.used, memory.budget), (memory.weights, None));
    assert!(memory.weights > 0 && memory.tables > 0, "{memory:?}");
    // The manifest gives the memory of the chain before anything is loaded.
    let counted = memory.weights + memory.session.states + memory.session.logits;
    let error = open(Some(counted - 1)).err().expect("too little by one byte");
    assert_eq!(error.kind(), ErrorKind::Memory, "{error}");
    let said = error.to_string();
    assert!(said.contains(&format!("needs {counted} bytes")) && said.contains("KV cache"), "{said}");
    assert!(error.help().is_some_and(|help| help.contains("--context")), "{:?}", error.help());
    // The size of the buffers between shards is known only after loading them.
    let error = open(Some(counted)).expect("opened").session().err().expect("no room for buffers");
    assert_eq!(error.kind(), ErrorKind::Memory, "{error}");

    let whole = memory.weights + memory.session.bytes();
    let model = open(Some(whole)).expect("opened");
    model.prewarm(&CancelHandle::default()).expect("it fits");
    assert_eq!((model.memory().used, model.memory().budget), (memory.weights, Some(whole)));
    let mut one = session(&model);
    let (wanted, _) = tokens(one.chat(QUESTIONS[0]).expect("a reply"), never);
    let error = model.session().err().expect("one fills it");
    assert_eq!(error.kind(), ErrorKind::Memory, "{error}");
    assert!(error.help().is_some_and(|help| help.contains("release")), "{:?}", error.help());
    one.release();
    assert_eq!(model.memory().used, memory.weights);
    let mut two = session(&model);
    assert_eq!(tokens(two.chat(QUESTIONS[0]).expect("a reply"), never).0, wanted);
    let error = one.resume().expect_err("the other has it");
    assert_eq!(error.kind(), ErrorKind::Memory, "{error}");
    drop(two);
    assert!(one.resume().expect("resumed") > 0);
    drop((one, model));
}

#[test]
fn warming_up_changes_no_token_and_is_cancelled() {
    let model = opened(DEMO_MODEL);
    let (wanted, _) = tokens(session(&model).chat(QUESTIONS[1]).expect("a reply"), never);
    let model = opened(DEMO_MODEL);
    let cancel = CancelHandle::default();
    let warm = {
        let (model, cancel) = (model.clone(), cancel.clone());
        std::thread::spawn(move || model.prewarm(&cancel))
    };
    assert!(!warm.join().expect("joined").expect("warm").is_zero());
    assert_eq!(tokens(session(&model).chat(QUESTIONS[1]).expect("a reply"), never).0, wanted);
    cancel.cancel();
    assert_eq!(model.prewarm(&cancel).expect_err("cancelled").kind(), ErrorKind::Cancelled);
    let embeds = opened(EMBEDDING_FIXTURE);
    embeds.prewarm(&CancelHandle::default()).expect("warm");
}
