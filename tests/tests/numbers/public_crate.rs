//! The public crate as an application uses it: open, session, stream, on the CPU shim.

use shardwright::{
    CancelHandle, DoneReason, EmbedOptions, Error, ErrorKind, Executor, GenerationEvent, Model, OpenOptions,
    Reply, Session,
};
use shardwright_tests::checkpoints::{Copy, DEMO_MODEL, EMBEDDING_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::program::search_path;
use shardwright_tests::tree;

fn options() -> OpenOptions {
    OpenOptions::new().search_path(search_path()).threads(2)
}

fn open(checkpoint: &str, options: &OpenOptions) -> Model {
    options.open(tree::root().join(checkpoint)).unwrap_or_else(|error| panic!("{checkpoint}: {error}"))
}

fn greedy(model: &Model) -> Session {
    let mut session = model.session().expect("a session");
    session.options.sampling.do_sample = false;
    session
}

fn ended(reply: Reply<'_>) -> (String, DoneReason) {
    let mut said = String::new();
    for event in reply {
        match event.expect("an event") {
            GenerationEvent::TextDelta { text } => said += &text,
            GenerationEvent::Done { reason, .. } => return (said, reason),
            GenerationEvent::Token { .. }
            | GenerationEvent::ThoughtDelta { .. }
            | GenerationEvent::ToolCallBegin { .. }
            | GenerationEvent::ToolCallArguments { .. }
            | GenerationEvent::ToolCall { .. }
            | GenerationEvent::ToolCallDropped { .. }
            | GenerationEvent::DraftDropped { .. } => {}
        }
    }
    panic!("a reply without an end: {said}");
}

fn kind<T>(result: Result<T, Error>) -> (ErrorKind, String) {
    match result {
        Ok(_) => panic!("expected an error"),
        Err(error) => (error.kind(), error.to_string()),
    }
}

#[test]
fn everything_can_move_between_threads() {
    fn is_send<T: Send>() {}
    is_send::<Model>();
    is_send::<Session>();
    is_send::<Reply<'_>>();
    is_send::<Error>();
    is_send::<OpenOptions>();
}

#[test]
fn a_conversation_runs_every_token_once() {
    let model = open(DEMO_MODEL, &options());
    let mut session = greedy(&model);
    let answer = session.chat("What is politics?").expect("a reply").text().expect("text");
    assert!(answer.starts_with("A strife of interests"), "{answer}");
    let length = session.tokens().len();
    let mut reply = session.chat("Define happiness.").expect("a reply");
    for event in reply.by_ref() {
        event.expect("an event");
    }
    let statistics = reply.statistics();
    drop(reply);
    assert!(statistics.reused_tokens >= length - 1, "{statistics:?} of {length}");
    assert_eq!(statistics.reused_tokens + statistics.run_tokens, statistics.prompt_tokens);
    let roles: Vec<&str> = session.messages().iter().map(|message| message.role.as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
    session.clear();
    assert!(session.tokens().is_empty() && session.messages().is_empty());
}

fn roles(session: &Session) -> Vec<String> {
    session.messages().iter().map(|message| message.role.clone()).collect()
}

#[test]
fn a_reply_that_failed_or_never_began_leaves_no_turn() {
    // The logits are not numbers: the first token cannot be chosen.
    let broken = Copy::of(TEXT_FIXTURES[3]).overflowing();
    let model = options().open(broken.path()).expect("it opens");
    let mut session = greedy(&model);
    let error = session.chat("What is politics?").expect("a reply").text().expect_err("no token");
    assert!(error.to_string().contains("NaN"), "{error}");
    assert!(session.messages().is_empty(), "{:?}", session.messages());

    let model = open(DEMO_MODEL, &options());
    let mut session = greedy(&model);
    session.cancel_handle().cancel();
    let (said, reason) = ended(session.chat("What is politics?").expect("a reply"));
    assert_eq!((said.as_str(), reason), ("", DoneReason::Cancelled));
    drop(session.chat("What is politics?").expect("a reply"));
    assert!(session.messages().is_empty(), "{:?}", session.messages());
    // A partial reply is a turn, and so is a reply that ends without text.
    session.options.max_tokens = Some(3);
    ended(session.chat("What is politics?").expect("a reply"));
    session.options.max_tokens = Some(0);
    ended(session.chat("Define happiness.").expect("a reply"));
    assert_eq!(roles(&session), ["user", "assistant", "user", "assistant"]);
}

#[test]
fn the_oldest_turns_are_forgotten_and_the_system_s_stays() {
    let model = open(DEMO_MODEL, &options().context(48));
    let mut session = greedy(&model);
    session.options.max_tokens = Some(4);
    session.system("Be brief.");
    // Continue until the context is full, as in a conversation.
    let full = loop {
        match session.chat("What is politics, and what is it not?") {
            Ok(reply) => drop(ended(reply)),
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::Context, "{full}");
    assert!(full.help().is_some_and(|help| help.contains("forget the oldest turn")), "{full}");
    let turns = session.messages().len();
    assert!(turns >= 3 && turns % 2 == 1, "{:?}", roles(&session));
    assert!(session.forget_oldest_turn());
    assert_eq!(session.messages().len(), turns - 2);
    assert_eq!(roles(&session)[0], "system");
    let (said, _) = ended(session.chat("What is politics, and what is it not?").expect("there is room"));
    assert!(!said.is_empty());
    while session.forget_oldest_turn() {}
    assert_eq!(roles(&session), ["system"]);
}

#[test]
fn a_reply_ends_at_a_limit_or_stop_string() {
    let model = open(DEMO_MODEL, &options());
    let mut session = greedy(&model);
    session.options.max_tokens = Some(3);
    assert_eq!(ended(session.chat("What is politics?").expect("a reply")).1, DoneReason::MaxTokens);

    let mut session = greedy(&model);
    session.add_stop_strings(&[" contest"]).expect("a stop string");
    let (said, reason) = ended(session.chat("What is politics?").expect("a reply"));
    assert_eq!(reason, DoneReason::StopText { text: " contest".to_owned() });
    assert_eq!(said, "A strife of interests masquerading as a");

    let mut session = greedy(&model);
    session.cancel_handle().cancel();
    assert_eq!(ended(session.chat("What is politics?").expect("a reply")).1, DoneReason::Cancelled);
    session.clear();
    let (said, _) = ended(session.chat("What is politics?").expect("a reply"));
    assert!(said.ends_with("for private advantage."), "{said}");
}

#[test]
fn two_targets_in_one_chain_say_the_same_and_count_what_crosses() {
    let plain =
        greedy(&open(DEMO_MODEL, &options())).complete("And it came to pass").map(short).expect("a reply");
    let apart = options()
        .soc("mt6989")
        .on(Executor::Cpu)
        .limit("ops", 400)
        .planner_option("place.embed", "cpu")
        .planner_option("place.per-layer-input", "cpu")
        .planner_option("place.head", "cpu");
    let model = open(DEMO_MODEL, &apart);
    assert_eq!(model.plan().unwrap().emulated_on.as_deref(), Some("cpu"));
    let mut session = greedy(&model);
    let text = session.complete("And it came to pass").map(short).expect("a reply");
    assert_eq!(text, plain);
    let placement = session.placement();
    let mut instances: Vec<&str> =
        placement.shards.iter().map(|shard| shard.place.instance.as_str()).collect();
    instances.dedup();
    assert_eq!(instances, ["cpu", "mt6989", "cpu"]);
    let copied = |from: &str, to: &str| {
        let crossing =
            placement.boundaries.iter().filter(|b| b.from.starts_with(from) && b.to.starts_with(to));
        crossing.map(|boundary| boundary.bytes_copied).sum::<u64>()
    };
    assert!(copied("embed", "decoder") > 0 && copied("decoder", "head") > 0, "{placement:?}");
    assert_eq!(copied("decoder", "decoder"), 0, "neighbours on one device share their buffers");
}

/// Returns the first tokens of a continuation as text.
fn short(reply: Reply<'_>) -> String {
    let text = reply.take(40).filter_map(|event| match event.expect("an event") {
        GenerationEvent::TextDelta { text } => Some(text),
        _ => None,
    });
    text.collect()
}

#[test]
fn sentence_vectors_have_unit_length_and_prefixes() {
    let model = open(EMBEDDING_FIXTURE, &options());
    let norm = |vector: &[f32]| vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    let whole = model.embed("a text", &EmbedOptions::default()).expect("a vector");
    let named = EmbedOptions { prompt_name: Some("query".to_owned()), dimensions: Some(16) };
    let part = model.embed("a text", &named).expect("a vector");
    assert_eq!((whole.len(), part.len()), (64, 16));
    assert!((norm(&whole) - 1.0).abs() < 1e-5 && (norm(&part) - 1.0).abs() < 1e-5);

    let unnamed = EmbedOptions { prompt_name: Some("poem".to_owned()), dimensions: None };
    let (kind_of, message) = kind(model.embed("a text", &unnamed));
    assert!(kind_of == ErrorKind::Argument && message.contains("poem"), "{message}");
    let none = EmbedOptions { prompt_name: None, dimensions: Some(0) };
    assert_eq!(kind(model.embed("a text", &none)).0, ErrorKind::Argument);
    assert_eq!(
        kind(model.session().and_then(|mut session| session.chat("x").map(|_| ()))).0,
        ErrorKind::Unsupported
    );
}

/// A cancellation stops the encoding of a long text, or else the run. Then it is no longer pending.
#[test]
fn long_texts_are_encoded_until_they_are_cancelled() {
    let model = open(EMBEDDING_FIXTURE, &options());
    let long = "some words ".repeat(100_000);
    let cancel = CancelHandle::default();
    let embed = |text: &str| model.embed_until(text, &EmbedOptions::default(), &cancel);
    for (text, words) in [(long.as_str(), "encoding a text"), ("a text", "cancelled")] {
        cancel.cancel();
        let (found, message) = kind(embed(text));
        assert!(found == ErrorKind::Cancelled && message.contains(words), "{message}");
        assert!(!cancel.is_requested(), "{message}");
    }
    assert_eq!(embed("a text").expect("a vector"), model.embed("a text", &EmbedOptions::default()).unwrap());

    let (found, message) = kind(model.encode_until(&long, false, || true));
    assert!(found == ErrorKind::Cancelled && message.contains("encoding a text"), "{message}");
    let tokenizer = model.tokenizer().expect("a tokenizer");
    for add_special in [false, true] {
        let ids = model.encode_until("some words", add_special, || true).expect("a short text");
        assert_eq!(ids, tokenizer.encode("some words", add_special).expect("ids"));
    }

    let model = open(DEMO_MODEL, &options());
    let mut session = greedy(&model);
    session.cancel_handle().cancel();
    assert_eq!(kind(session.chat(long.as_str()).map(|_| ())).0, ErrorKind::Cancelled);
    assert!(session.messages().is_empty());
    let answer = session.chat("What is politics?").expect("a reply").text().expect("text");
    assert!(answer.starts_with("A strife of interests"), "{answer}");
}

/// Like in sentence-transformers, the default prompt applies if none is named.
#[test]
fn the_default_prompt_of_a_checkpoint_precedes_a_text() {
    let file = "config_sentence_transformers.json";
    let named = |name: &str| EmbedOptions { prompt_name: Some(name.to_owned()), dimensions: None };
    let usual = open(EMBEDDING_FIXTURE, &options());
    let plain = usual.embed("a text", &EmbedOptions::default()).expect("a vector");
    let query = usual.embed("a text", &named("query")).expect("a vector");
    assert_ne!(plain, query);

    let copy =
        Copy::of(EMBEDDING_FIXTURE).json(file, |config| config["default_prompt_name"] = "query".into());
    let changed = options().open(copy.path()).expect("it opens");
    assert_eq!(changed.embed("a text", &EmbedOptions::default()).expect("a vector"), query);
    assert_eq!(changed.embed("a text", &named("")).expect("a vector"), plain);
    let folder = tempfile::tempdir().expect("a folder");
    options().compile(copy.path(), folder.path().join("b"), &mut ()).expect("compiled");
    let bundle = shardwright::BundleOptions::new().search_path(search_path()).open(folder.path().join("b"));
    let bundle = bundle.expect("a bundle");
    assert_eq!(bundle.embed("a text", &EmbedOptions::default()).expect("a vector"), query);

    let copy = copy.json(file, |config| config["default_prompt_name"] = "poem".into());
    let (found, message) = kind(options().open(copy.path()));
    assert!(found == ErrorKind::Invalid && message.contains("`default_prompt_name`"), "{message}");
    let bare = copy.without(file);
    let model = options().open(bare.path()).expect("it opens");
    assert_eq!(model.embed("a text", &EmbedOptions::default()).expect("a vector"), plain);
    let (found, message) = kind(model.embed("a text", &named("query")));
    assert!(found == ErrorKind::Missing && message.contains("no such file"), "{message}");
}

#[test]
fn what_cannot_be_is_refused_by_kind() {
    let demo = tree::root().join(DEMO_MODEL);
    let cases: Vec<(&str, ErrorKind, Result<Model, Error>)> = vec![
        ("no directory", ErrorKind::Missing, options().open("no/such/checkpoint")),
        ("a context beyond the model", ErrorKind::Argument, options().context(1 << 20).open(&demo)),
        ("no context", ErrorKind::Argument, options().context(0).open(&demo)),
        ("no such chip", ErrorKind::Missing, options().soc("abacus").open(&demo)),
        ("a chip that is not here", ErrorKind::Missing, options().soc("mt6989").open(&demo)),
        ("a limit nothing meets", ErrorKind::Planning, options().limit("ops", 1).open(&demo)),
        ("no such planner", ErrorKind::Missing, options().planner("oracle").open(&demo)),
        ("a key that is none", ErrorKind::Argument, options().trust_key("xyz").open(&demo)),
        (
            "no shims",
            ErrorKind::Missing,
            OpenOptions::new().search_path(shardwright::SearchPath::default()).open(&demo),
        ),
    ];
    for (what, wanted, result) in cases {
        let error = result.err().unwrap_or_else(|| panic!("{what}"));
        assert_eq!(error.kind(), wanted, "{what}: {error}");
        assert!(error.help().is_some(), "{what}: {error}");
    }
    let bundle = shardwright::BundleOptions::new().search_path(search_path()).open("no/such/bundle");
    let error = bundle.err().expect("no such bundle");
    assert_eq!((error.kind(), error.help()), (ErrorKind::Missing, Some("check the path")), "{error}");
    let model = open(DEMO_MODEL, &options().context(16));
    let mut session = greedy(&model);
    let (found, message) = kind(session.complete(&"word ".repeat(64)).map(|_| ()));
    assert!(found == ErrorKind::Context && message.contains("16"), "{message}");
    assert_eq!(kind(model.embed("a text", &EmbedOptions::default())).0, ErrorKind::Unsupported);
    assert_eq!(ended(session.complete("And").expect("a reply")).1, DoneReason::ContextFull);
}
