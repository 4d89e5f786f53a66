//! Turns with pictures and sounds through the public crate, on the CPU shim: from pixels and
//! samples to the words that transformers recorded.

use shardwright::tools::ModelTools;
use shardwright::{ChatPart, ErrorKind, GenerationEvent, Model, OpenOptions, Pass, Session};
use shardwright_tests::checkpoints::{Copy, DEMO_MODEL, TEXT_FIXTURES};
use shardwright_tests::program::search_path;
use shardwright_tests::towers::{FIXTURE, Goldens};
use shardwright_tests::tree;

fn options() -> OpenOptions {
    OpenOptions::new().search_path(search_path()).threads(2).context(512)
}

fn opened() -> Model {
    options().open(tree::root().join(FIXTURE)).unwrap_or_else(|error| panic!("{error}"))
}

fn greedy(model: &Model) -> Session {
    let mut session = model.session().expect("a session");
    session.options.sampling.do_sample = false;
    session.options.max_tokens = Some(64);
    session.options.stop = Default::default();
    session
}

/// Returns the recorded picture as pixels.
fn picture(goldens: &Goldens) -> ChatPart {
    let pixels = goldens.integers("p1.image_rgb").into_iter().map(|value| value as u8).collect();
    ChatPart::PictureRgb8 { width: 50, height: 38, stride: 150, pixels }
}

/// Returns the recorded sound as samples.
fn sound(goldens: &Goldens) -> ChatPart {
    ChatPart::SoundSamples { rate: 16_000, samples: goldens.floats("p2.waveform").1 }
}

/// Returns the tokens of a reply.
fn reply(session: &mut Session, parts: impl IntoIterator<Item = ChatPart>) -> Vec<u32> {
    let mut tokens = Vec::new();
    for event in session.chat_parts(parts).unwrap_or_else(|error| panic!("{error}")) {
        if let GenerationEvent::Token { id } = event.unwrap_or_else(|error| panic!("{error}")) {
            tokens.push(id);
        }
    }
    tokens
}

#[test]
fn pixels_and_samples_are_answered_as_transformers_answers() {
    let (model, goldens) = (opened(), Goldens::read());
    let wanted = |prompt: &str| goldens.ids(&format!("{prompt}.greedy"));
    let prompt_of = |session: &Session, prompt: &str| {
        let ids = goldens.ids(&format!("{prompt}.input_ids"));
        assert_eq!(session.tokens()[..ids.len()], ids, "{prompt}");
    };
    let mut session = greedy(&model);
    assert_eq!(reply(&mut session, [picture(&goldens), "What is this?".into()]), wanted("p1"));
    prompt_of(&session, "p1");
    let mut session = greedy(&model);
    assert_eq!(reply(&mut session, ["Listen:".into(), sound(&goldens)]), wanted("p2"));
    prompt_of(&session, "p2");
    let mut session = greedy(&model);
    assert_eq!(reply(&mut session, [picture(&goldens), "and".into(), sound(&goldens)]), wanted("p3"));
    prompt_of(&session, "p3");

    // These inputs as patches and frames, which an app can prepare itself.
    let (shape, values) = goldens.floats("p1.pixel_values");
    let positions = goldens.integers("p1.image_position_ids");
    let positions = positions.chunks_exact(2).map(|pair| [pair[0] as i32, pair[1] as i32]).collect();
    assert_eq!(shape[0], 630);
    let patches = ChatPart::Patches { values, positions };
    let mut session = greedy(&model);
    assert_eq!(reply(&mut session, [patches, "What is this?".into()]), wanted("p1"));
    let valid = goldens.frames();
    let mut session = greedy(&model);
    assert_eq!(reply(&mut session, ["Listen:".into(), ChatPart::Frames(valid.values)]), wanted("p2"));
}

#[test]
fn a_conversation_keeps_its_pictures() {
    let (model, goldens) = (opened(), Goldens::read());
    let mut session = greedy(&model);
    session.options.max_tokens = Some(4);
    reply(&mut session, [picture(&goldens), "What is this?".into()]);
    let length = session.tokens().len();
    let mut second = session.chat_parts([sound(&goldens), "and this?".into()]).expect("a reply");
    for event in second.by_ref() {
        event.expect("an event");
    }
    let statistics = second.statistics();
    drop(second);
    assert!(statistics.reused_tokens + 1 >= length, "{statistics:?} of {length}");
    assert!(session.tokens().contains(&19) && session.tokens().contains(&22));
    // A third turn with text only.
    session.chat("So?").expect("a reply").text().expect("text");
    let logits = session.tokens().to_vec();
    assert_eq!(session.messages().len(), 6);
    // Forgetting the oldest turn removes its picture too.
    assert!(session.forget_oldest_turn());
    session.chat("And now?").expect("a reply").text().expect("text");
    assert!(!session.tokens().contains(&19) && session.tokens().contains(&22), "{:?}", session.tokens());
    assert_ne!(session.tokens(), logits);
    session.clear();
    assert!(session.messages().is_empty() && session.tokens().is_empty());
    session.chat("Hello").expect("a reply").text().expect("text");
    assert!(!session.tokens().contains(&22));
}

fn kind(result: Result<shardwright::Reply<'_>, shardwright::Error>) -> (ErrorKind, String) {
    match result {
        Ok(_) => panic!("expected an error"),
        Err(error) => {
            assert!(
                error.help().is_some() || matches!(error.kind(), ErrorKind::Context | ErrorKind::Cancelled),
                "{error}"
            );
            (error.kind(), error.to_string())
        }
    }
}

#[test]
fn what_cannot_be_seen_or_heard_is_said_and_leaves_no_turn() {
    let (model, goldens) = (opened(), Goldens::read());
    let mut session = greedy(&model);
    session.options.max_tokens = Some(2);
    let missing = ChatPart::PictureFile("no/such/picture.png".into());
    let (found, says) = kind(session.chat_parts([missing, "?".into()]));
    assert_eq!(found, ErrorKind::Missing);
    assert!(says.contains("no/such/picture.png"), "{says}");
    let text = ChatPart::SoundBytes(b"RIFF".to_vec());
    let (found, says) = kind(session.chat_parts([text, "?".into()]));
    assert!(found == ErrorKind::Unsupported && says.contains("text, expected one of"), "{says}");
    let cut = ChatPart::SoundBytes(b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x01\0".to_vec());
    let (found, says) = kind(session.chat_parts([cut, "?".into()]));
    assert_eq!(found, ErrorKind::Invalid, "{says}");
    let (found, says) = kind(session.chat_parts([ChatPart::Frames(vec![f32::NAN; 128]), "?".into()]));
    assert_eq!(found, ErrorKind::Argument, "{says}");
    let short = ChatPart::SoundSamples { rate: 16_000, samples: vec![0.0; 12] };
    kind(session.chat_parts([short, "?".into()]));
    // Nine pictures exceed the context. The error comes before a tower is opened.
    let many = (0..9).map(|_| picture(&goldens)).chain(["?".into()]);
    let (found, says) = kind(session.chat_parts(many));
    assert_eq!(found, ErrorKind::Context, "{says}");
    assert!(says.contains("the context of 512"), "{says}");
    session.picture_tokens = Some(4);
    let positions = vec![[0, 0]; 9];
    let (found, says) =
        kind(session.chat_parts([ChatPart::Patches { values: vec![0.0; 9 * 48], positions }, "?".into()]));
    assert_eq!(found, ErrorKind::Argument, "{says}");
    let (shape, values) = goldens.floats("p1.pixel_values");
    let positions = goldens.integers("p1.image_position_ids");
    let positions = positions.chunks_exact(2).map(|pair| [pair[0] as i32, pair[1] as i32]).collect();
    assert_eq!(shape[1], 48);
    let (found, says) = kind(session.chat_parts([ChatPart::Patches { values, positions }, "?".into()]));
    assert!(found == ErrorKind::Argument && says.contains("63 soft tokens"), "{says}");
    session.picture_tokens = None;
    session.cancel_handle().cancel();
    let (found, says) = kind(session.chat_parts([picture(&goldens), "?".into()]));
    assert_eq!(found, ErrorKind::Cancelled, "{says}");
    assert!(session.messages().is_empty(), "{:?}", session.messages());
    assert_eq!(
        reply(&mut session, [picture(&goldens), "What is this?".into()]),
        goldens.ids("p1.greedy")[..2]
    );

    // A chat template without a placeholder for sounds.
    let deaf = Copy::of(FIXTURE).changed("chat_template.jinja", |text| {
        *text = String::from_utf8_lossy(text).replace("'<|audio|>'", "'(a sound)'").into_bytes();
    });
    let model = options().open(deaf.path()).expect("it opens");
    let mut session = greedy(&model);
    let (found, says) = kind(session.chat_parts([sound(&goldens), "?".into()]));
    assert!(found == ErrorKind::Unsupported && says.contains("a placeholder for each"), "{says}");
    assert!(session.messages().is_empty());

    // The settings of another model: patches of another width, or frames with half as many bins.
    for (field, other, part) in [
        ("\"patch_size\": 4", "\"patch_size\": 8", picture(&goldens)),
        ("\"feature_size\": 128", "\"feature_size\": 64", sound(&goldens)),
    ] {
        let mixed = Copy::of(FIXTURE).changed("processor_config.json", |text| {
            let changed = String::from_utf8_lossy(text).replace(field, other);
            assert_ne!(changed.as_bytes(), text.as_slice(), "{field}");
            *text = changed.into_bytes();
        });
        let model = options().open(mixed.path()).expect("it opens");
        let (found, says) = kind(greedy(&model).chat_parts([part, "?".into()]));
        assert!(found == ErrorKind::Incompatible && says.contains("its tower expects"), "{says}");
    }

    // Models and bundles without towers.
    for checkpoint in [DEMO_MODEL, TEXT_FIXTURES[0]] {
        let model = options().open(tree::root().join(checkpoint)).expect("it opens");
        let mut session = greedy(&model);
        let (found, says) = kind(session.chat_parts([picture(&goldens), "?".into()]));
        assert!(found == ErrorKind::Unsupported, "{checkpoint}: {says}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let text = options().towers([]);
    text.compile(tree::root().join(FIXTURE), folder.path().join("b"), &mut ()).expect("compiled");
    let bundle = shardwright::BundleOptions::new().search_path(search_path()).open(folder.path().join("b"));
    let bundle = bundle.expect("a bundle");
    let mut session = greedy(&bundle);
    let (found, says) = kind(session.chat_parts([picture(&goldens), "?".into()]));
    assert!(found == ErrorKind::Unsupported && says.contains("no tower"), "{says}");
    assert!(Model::open(folder.path().join("none")).is_err());
}

#[test]
fn towers_have_formats_of_their_own() {
    let goldens = Goldens::read();
    let cache = tempfile::tempdir().expect("a folder");
    let with = |formats: &str| {
        let choice = formats.parse().expect("formats");
        options()
            .cache_directory(cache.path())
            .tower_formats(choice)
            .open(tree::root().join(FIXTURE))
            .expect("it opens")
    };
    let model = with("w8-per-channel/a8-dynamic/f32");
    let mut session = greedy(&model);
    let tokens = reply(&mut session, [picture(&goldens), "What is this?".into()]);
    assert_eq!(tokens.len(), goldens.ids("p1.greedy").len());
    // Ranges are calibrated on pictures that the project generates.
    let model = with("w8-per-channel/a16/a16");
    let mut session = greedy(&model);
    let tokens = reply(&mut session, [picture(&goldens), "What is this?".into()]);
    assert_eq!(tokens.len(), goldens.ids("p1.greedy").len());
    let said = model.report().notices_of_towers;
    assert!(
        said.iter().any(|notice| notice.text.contains("were calibrated on 8 generated pictures")),
        "{said:?}"
    );
}

/// Fields without effect are reported once a tower is used, for a folder and its bundle, and are
/// refused under `strict`.
#[test]
fn settings_of_towers_without_effect_are_reported() {
    let goldens = Goldens::read();
    let copy = Copy::of(FIXTURE)
        .json("processor_config.json", |fields| fields["wobble"] = 3.into())
        .json("config.json", |fields| fields["vision_config"]["wobble"] = 3.into());
    let folder = tempfile::tempdir().expect("a folder");
    let bundle = folder.path().join("b");
    options().compile(copy.path(), &bundle, &mut ()).expect("compiled");
    let processor = "processor_config.json: `wobble` is ignored: the field is not known";
    let tower = "config.json: `vision_config.wobble` is ignored: the tower does not use this field";
    let count = |model: &Model, text: &str| {
        let plan =
            model.plan().filter(|_| model.bundle().is_none()).into_iter().flat_map(|plan| &plan.notices);
        let report = model.report();
        let of_opening = plan.chain(report.bundle_notices()).cloned();
        of_opening.chain(report.notices_of_towers).filter(|notice| notice.text.ends_with(text)).count()
    };
    let of_bundles = shardwright::BundleOptions::new().search_path(search_path());
    let of_folder = options().open(copy.path()).expect("it opens");
    assert_eq!(count(&of_folder, processor) + count(&of_folder, tower), 0, "text does not read them");
    for model in [of_folder, of_bundles.open(&bundle).expect("a bundle")] {
        let mut session = greedy(&model);
        for _ in 0..2 {
            reply(&mut session, [picture(&goldens), "What is this?".into()]);
        }
        reply(&mut session, ["Listen:".into(), sound(&goldens)]);
        assert_eq!(count(&model, processor), 1, "{:?}", model.report().notices_of_towers);
        assert_eq!(count(&model, tower), 1, "{:?}", model.report().notices_of_towers);
    }

    let strict = options().strict(true);
    let refused = |error: shardwright::Error, text: &str| {
        assert!(error.kind() == ErrorKind::Strict && error.to_string().ends_with(text), "{error}");
    };
    let compiled = strict.compile(copy.path(), folder.path().join("c"), &mut ());
    refused(compiled.expect_err("a refusal"), processor);
    let refuses = |model: &Model, text: &str| {
        let turn = greedy(model).chat_parts([picture(&goldens), "?".into()]).map(drop);
        refused(turn.expect_err("a refusal"), text);
    };
    refuses(&strict.open(copy.path()).expect("it opens"), processor);
    let only_tower = copy.json("processor_config.json", |fields| fields["wobble"] = ().into());
    refuses(&strict.open(only_tower.path()).expect("it opens"), tower);
    let only_processor =
        Copy::of(FIXTURE).json("processor_config.json", |fields| fields["wobble"] = 3.into());
    let bundle = folder.path().join("d");
    options().compile(only_processor.path(), &bundle, &mut ()).expect("compiled");
    let of_bundles = shardwright::BundleOptions::new().search_path(search_path()).strict(true);
    refuses(&of_bundles.open(&bundle).expect("a bundle"), processor);
}

/// One bundle contains the text model and both towers. It answers like the checkpoint and needs
/// only the shim.
#[test]
fn a_bundle_sees_and_hears_as_its_checkpoint_does() {
    let goldens = Goldens::read();
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let compiled = |name: &str, options: OpenOptions| {
        let report = options.compile(tree::root().join(FIXTURE), at(name), &mut ()).expect("compiled");
        let bundle = shardwright::BundleOptions::new().search_path(search_path());
        (report, bundle.open(at(name)).expect("a bundle"))
    };
    let (report, whole) = compiled("whole", options());
    assert_eq!(report.variants[0].chains, ["primary", "picture", "clip"]);
    assert_eq!(
        report.variants[0].plan.towers.iter().map(|plan| plan.pass()).collect::<Vec<_>>(),
        [Pass::Picture, Pass::Clip]
    );
    for (prompt, parts) in [
        ("p1", vec![picture(&goldens), "What is this?".into()]),
        ("p2", vec!["Listen:".into(), sound(&goldens)]),
        ("p3", vec![picture(&goldens), "and".into(), sound(&goldens)]),
    ] {
        let mut session = greedy(&whole);
        assert_eq!(reply(&mut session, parts), goldens.ids(&format!("{prompt}.greedy")), "{prompt}");
    }
    // Compiling again gives the same bundle. A reply to text alone opens no tower.
    assert_eq!(compiled("again", options()).0.bundle, report.bundle);
    let (_, unused) = compiled("unused", options());
    reply(&mut greedy(&unused), ["hello".into()]);
    std::fs::remove_file(
        unused.bundle().expect("a bundle").place(&artefact_of(&unused, Pass::Picture)).expect("there").path,
    )
    .expect("removed");
    let (found, says) = kind(greedy(&unused).chat_parts([picture(&goldens), "?".into()]));
    assert!(found == ErrorKind::Invalid && says.contains("is missing"), "{found:?}: {says}");

    // A single tower, for one size of pictures.
    let (_, seeing) = compiled("seeing", options().towers([Pass::Picture]));
    let (found, says) = kind(greedy(&seeing).chat_parts([sound(&goldens), "?".into()]));
    assert!(found == ErrorKind::Unsupported && says.contains("no tower for a sound"), "{says}");
    let mut larger = greedy(&seeing);
    larger.picture_tokens = Some(280);
    let (found, says) = kind(larger.chat_parts([picture(&goldens), "?".into()]));
    assert!(found == ErrorKind::Argument && says.contains("supports at most 70"), "{says}");
    assert!(larger.messages().is_empty());
    let (_, larger) = compiled("larger", options().towers([Pass::Picture]).picture_sizes([280]));
    let mut session = greedy(&larger);
    session.picture_tokens = Some(280);
    assert!(!reply(&mut session, [picture(&goldens), "?".into()]).is_empty());

    // Without front-end settings the checkpoint is compiled as a text model. The notice must not
    // contain a path, so that it is identical on every machine.
    let blind = Copy::of(FIXTURE).without("processor_config.json");
    options().compile(blind.path(), at("blind"), &mut ()).expect("compiled");
    let bundle = shardwright_bundle::Bundle::open(at("blind")).expect("a bundle");
    let notices = &bundle.variant().notices;
    let said =
        notices.iter().find(|notice| notice.text.contains("towers for pictures and sounds are left out"));
    assert!(said.is_some_and(|notice| !notice.text.contains('/')), "{notices:?}");

    // Sizes and lengths that no tower supports.
    for (options, part) in [
        (options().picture_sizes([71]), "71 soft tokens"),
        (options().clip_lengths([31]), "31 seconds"),
        (options().clip_lengths([0]), "for a clip, got 0"),
    ] {
        let refused = options.compile(tree::root().join(FIXTURE), at("refused"), &mut ());
        let error = refused.expect_err(part);
        assert!(error.kind() == ErrorKind::Argument && error.to_string().contains(part), "{error}");
    }
    let refused =
        options().towers([Pass::Clip]).compile(tree::root().join(TEXT_FIXTURES[0]), at("none"), &mut ());
    assert_eq!(refused.expect_err("no tower").kind(), ErrorKind::Unsupported);
}

/// Returns the artefact of the first shard of a pass.
fn artefact_of(model: &Model, pass: Pass) -> shardwright_bundle::FileReference {
    let variant = model.bundle().expect("a bundle").variant();
    variant.model_of(pass).expect("a tower").chains[0].shards[0].artefact
}
