//! Pictures and sounds through the whole project, on the CPU shim's own library: towers give the
//! results of transformers, cuts, thread counts and padding do not change a bit, and sessions
//! accept prompts with soft rows.

use std::sync::Arc;

use shardwright_graph::Pass;
use shardwright_models::Checkpoint;
use shardwright_runtime::{Chain, Prompt, Session, SessionError, SoftRows, Truncation};
use shardwright_tests::chain::{Bench, Cut, encode_menu, menu};
use shardwright_tests::towers::{Goldens, checkpoint, prompt};
use shardwright_vocabulary::ErrorKind;

/// Largest allowed differences from transformers, of towers and of logits.
const TOWER: f32 = 5e-4;
const LOGITS: f32 = 1e-2;

/// Returns the rows of the entry points to test: the number of valid rows, and more.
fn entry_rows(pass: Pass) -> [u32; 2] {
    match pass {
        Pass::Picture => [567, 630],
        _ => [28, 40],
    }
}

fn tower_chain(checkpoint: &Checkpoint, pass: Pass, rows: u32, threads: u32, before: &[u32]) -> Chain {
    let graph = checkpoint.graph_of(pass).expect("a tower");
    Bench::cpu(graph, &encode_menu(rows), threads).chain(&Cut::before(before))
}

fn soft(checkpoint: &Checkpoint, goldens: &Goldens, pass: Pass) -> Arc<SoftRows> {
    let mut tower = tower_chain(checkpoint, pass, entry_rows(pass)[0], 2, &[]).tower().expect("a tower");
    Arc::new(goldens.given(pass).encoded(&mut tower).unwrap_or_else(|error| panic!("{error}")))
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn difference(found: &[f32], wanted: &[f32]) -> f32 {
    assert_eq!(found.len(), wanted.len());
    let each = found.iter().zip(wanted).map(|(a, b)| (a - b).abs());
    each.fold(0.0, |worst: f32, d| if d.is_nan() { f32::INFINITY } else { worst.max(d) })
}

/// Eight-bit weights, and activations quantised per row at run time.
#[test]
fn towers_in_eight_bits_are_near() {
    let (checkpoint, goldens) = (checkpoint(), Goldens::read());
    for pass in [Pass::Clip, Pass::Picture] {
        let (graph, rows) = (checkpoint.graph_of(pass).expect("a tower"), entry_rows(pass)[0]);
        let formats = "w8-per-channel/a8-dynamic/f32".parse().expect("formats");
        let bench = Bench::cpu_in_formats(graph, &encode_menu(rows), 2, &[formats]);
        let mut tower = bench.chain(&Cut::default()).tower().expect("a tower");
        let found = goldens.given(pass).encoded(&mut tower).expect("it runs");
        let wanted = soft(&checkpoint, &goldens, pass);
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
        let (a, b) = (found.values(), wanted.values());
        let cosine = dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
        assert!(cosine > 0.99 && cosine < 1.0 - 1e-7, "{pass}: cosine {cosine}");
    }
}

#[test]
fn towers_are_those_of_transformers_however_they_are_cut() {
    let (checkpoint, goldens) = (checkpoint(), Goldens::read());
    let scale = (checkpoint.graph().hidden as f64).sqrt() as f32;
    for (pass, golden) in [(Pass::Clip, "p2.audio.soft"), (Pass::Picture, "p1.image.soft")] {
        let given = goldens.given(pass);
        let mut first: Option<Vec<u32>> = None;
        for (rows, threads, before) in [
            (entry_rows(pass)[0], 1, &[][..]),
            (entry_rows(pass)[0], 2, &[1, 2]),
            (entry_rows(pass)[1], 2, &[]),
            (entry_rows(pass)[1], 1, &[2]),
        ] {
            let what = format!("{pass} in {rows} rows on {threads} threads, cut before {before:?}");
            let mut tower = tower_chain(&checkpoint, pass, rows, threads, before).tower().expect("a tower");
            let soft = given.encoded(&mut tower).unwrap_or_else(|error| panic!("{what}: {error}"));
            let (shape, wanted) = goldens.floats(golden);
            let scaled: Vec<f32> = soft.values().iter().map(|value| value * scale).collect();
            assert!(soft.rows() == shape[0] || soft.rows() + 1 == shape[0], "{what}: {} rows", soft.rows());
            let worst = difference(&scaled, &wanted[..scaled.len()]);
            assert!(worst <= TOWER, "{what}: {worst:e}");
            println!("{what}: {worst:.1e}");
            // Values left in its memory by the previous run have no effect.
            let again = given.encoded(&mut tower).expect("again");
            assert_eq!(bits(again.values()), bits(soft.values()), "{what}");
            match &first {
                None => first = Some(bits(soft.values())),
                Some(first) => assert_eq!(&bits(soft.values()), first, "{what}"),
            }
            let copied: u64 = tower.placement().boundaries.iter().map(|boundary| boundary.bytes_copied).sum();
            assert_eq!(copied, 0, "{what}: boundaries are shared");
        }
    }
}

/// The picture and the sound of the three recorded prompts, as soft rows.
struct Prompts {
    rows: Vec<(Pass, Arc<SoftRows>)>,
    goldens: Goldens,
}

impl Prompts {
    fn new(checkpoint: &Checkpoint) -> Self {
        let goldens = Goldens::read();
        let rows = [Pass::Picture, Pass::Clip].map(|pass| (pass, soft(checkpoint, &goldens, pass)));
        Prompts { rows: rows.into(), goldens }
    }

    fn ids(&self, prompt: &str) -> Vec<u32> {
        self.goldens.ids(&format!("{prompt}.input_ids"))
    }

    fn prompted(&self, session: &mut Session, name: &str) -> Vec<u32> {
        let ids = self.ids(name);
        session.prompt_parts(&prompt(&ids, &self.rows)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(session.tokens(), ids, "{name}");
        bits(session.logits().expect("logits"))
    }
}

fn greedy(session: &mut Session, count: usize) -> Vec<u32> {
    let mut chosen = Vec::new();
    for _ in 0..count {
        let logits = session.logits().expect("logits");
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
        chosen.push(best.expect("a token") as u32);
        session.append(&chosen[chosen.len() - 1..]).unwrap_or_else(|error| panic!("{error}"));
    }
    chosen
}

#[test]
fn prompts_with_pictures_and_sounds_go_on_as_in_transformers() {
    let checkpoint = checkpoint();
    let prompts = Prompts::new(&checkpoint);
    let mut seen: Vec<Vec<u32>> = Vec::new();
    for (prefill, cut, threads) in [(&[128_u32, 16][..], &[][..], 2), (&[7], &[2, 4], 1)] {
        let bench = Bench::cpu(checkpoint.graph(), &menu(256, prefill, &[1, 4]), threads);
        let chain = bench.chain(&Cut::before(cut));
        let mut logits = Vec::new();
        for prompt in ["p1", "p2", "p3"] {
            let mut session = chain.session().expect("a session");
            logits.push(prompts.prompted(&mut session, prompt));
            let (shape, golden) = prompts.goldens.floats(&format!("{prompt}.logits"));
            let worst = difference(session.logits().expect("logits"), &golden[(shape[0] - 1) * shape[1]..]);
            assert!(worst <= LOGITS, "{prompt}: {worst:e}");
            let wanted = prompts.goldens.ids(&format!("{prompt}.greedy"));
            assert_eq!(greedy(&mut session, wanted.len()), wanted, "{prompt} in chunks of {prefill:?}");
        }
        match seen.is_empty() {
            true => seen = logits,
            false => assert_eq!(logits, seen, "chunks of {prefill:?}, cut before {cut:?}"),
        }
    }
}

#[test]
fn sessions_keep_soft_rows_cut_them_whole_and_run_them_again() {
    let checkpoint = checkpoint();
    let prompts = Prompts::new(&checkpoint);
    let bench = Bench::cpu(checkpoint.graph(), &menu(256, &[16], &[1]), 1);
    let chain = bench.chain(&Cut::before(&[3]));
    let fresh = |prompt: &str| prompts.prompted(&mut chain.session().expect("a session"), prompt);
    let ids = prompts.ids("p3");
    let places: Vec<usize> = (0..ids.len()).filter(|&place| ids[place] == 19).collect();
    let (begin, end) = (places[0], places[places.len() - 1] + 1);

    // Repeating the prompt runs no token. With another picture, all from the picture on is run.
    let mut session = chain.session().expect("a session");
    let logits = prompts.prompted(&mut session, "p3");
    assert_eq!(logits, fresh("p3"));
    let same = session.prompt_parts(&prompt(&ids, &prompts.rows)).expect("again");
    assert_eq!((same.reused, same.run), (ids.len(), 0));
    let longer = [&ids[..], &[5]].concat();
    let more = session.prompt_parts(&prompt(&longer, &prompts.rows)).expect("one more token");
    assert_eq!((more.reused, more.run), (ids.len(), 1));
    let picture = &prompts.rows[0].1;
    let values: Vec<f32> = picture.values().iter().map(|value| value * 0.5).collect();
    let darker = Arc::new(SoftRows::new(picture.width(), values, [7; 32]).expect("rows"));
    let other = [(Pass::Picture, darker), prompts.rows[1].clone()];
    let ran = session.prompt_parts(&prompt(&ids, &other)).expect("another picture");
    // Positions that sliding layers overwrote are run again.
    assert!([0, begin].contains(&ran.reused) && ran.reused + ran.run == ids.len(), "{ran:?}");
    let darker = bits(session.logits().expect("logits"));
    assert_ne!(darker, logits, "the model looks at it");
    let mut alone = chain.session().expect("a session");
    alone.prompt_parts(&prompt(&ids, &other)).expect("another picture");
    assert_eq!(bits(alone.logits().expect("logits")), darker);

    // A cut within a picture moves to its beginning. It may lose states of sliding layers.
    let cut = session.truncate(end - 2).expect("cut");
    assert!(matches!(cut, Truncation::Free | Truncation::StateLost { .. }));
    assert_eq!(session.tokens().len(), begin);
    session.append_parts(&prompt(&ids[begin..], &prompts.rows)).expect("the first picture again");
    assert_eq!(bits(session.logits().expect("logits")), logits);

    // The history with its soft rows continues on another chain, and after its states were lost.
    let mut moved = session.resume_on(&bench.chain(&Cut::default())).expect("another chain");
    let (next, after) = ([5_u32], |session: &mut Session| {
        session.append(&[5]).expect("a token");
        bits(session.logits().expect("logits"))
    });
    let elsewhere = after(&mut moved);
    assert_eq!(after(&mut session), elsewhere);
    let mut longer = ids.clone();
    longer.extend(next);
    let mut alone = chain.session().expect("a session");
    alone.prompt_parts(&prompt(&longer, &prompts.rows)).expect("in one prompt");
    assert_eq!(bits(alone.logits().expect("logits")), elsewhere);

    // A cancelled call continues where it stopped.
    let mut session = chain.session().expect("a session");
    session.cancel_handle().cancel();
    let error = session.prompt_parts(&prompt(&ids, &prompts.rows)).expect_err("cancelled");
    assert!(matches!(error, SessionError::Cancelled { .. }), "{error}");
    assert_eq!(prompts.prompted(&mut session, "p3"), logits);
    session.clear();
    assert_eq!(prompts.prompted(&mut session, "p1"), fresh("p1"));
}

#[test]
fn what_towers_and_sessions_cannot_run_is_refused() {
    let (checkpoint, goldens) = (checkpoint(), Goldens::read());
    let mut pictures = tower_chain(&checkpoint, Pass::Picture, 576, 1, &[]).tower().expect("a tower");
    assert_eq!((pictures.feature_width(), pictures.most_features()), (48, 576));
    let mut sounds = tower_chain(&checkpoint, Pass::Clip, 16, 1, &[]).tower().expect("a tower");
    assert_eq!((sounds.feature_width(), sounds.most_features()), (128, 64));
    let given = goldens.patches();
    let mut cases = [given.clone(), given.clone(), given.clone(), given.clone()];
    cases[0].count = 0;
    cases[1].columns.pop();
    cases[2].rows[5] = 256;
    cases[3].columns[5] = -1;
    let reasons = ["no features were given", "a column and a row", "beyond", "beyond"];
    for (case, says) in cases.iter().zip(reasons) {
        let error = case.encoded(&mut pictures).expect_err(says);
        assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
        assert!(error.to_string().contains("at most 576 per run: "), "{error}");
        assert!(error.to_string().contains(says) && error.help().is_some(), "{error}");
    }
    let error = goldens.frames().encoded(&mut sounds).expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
    assert!(error.to_string().contains("at most 64 per run: "), "{error}");
    let mut broken = given.clone();
    broken.values[7] = f32::NAN;
    let error = broken.encoded(&mut pictures).expect_err("no number");
    assert!(matches!(error, SessionError::NotFinite(_)), "{error}");
    // The next picture is not affected.
    let rows = given.encoded(&mut pictures).expect("rows");
    let mut alone = tower_chain(&checkpoint, Pass::Picture, 576, 1, &[]).tower().expect("a tower");
    assert_eq!(bits(rows.values()), bits(given.encoded(&mut alone).expect("rows").values()));
    pictures.cancel_handle().cancel();
    let error = given.encoded(&mut pictures).expect_err("cancelled");
    assert!(matches!(error, SessionError::Cancelled { .. }), "{error}");

    let chain = Bench::cpu(checkpoint.graph(), &menu(64, &[16], &[1]), 1).chain(&Cut::default());
    let error = chain.tower().expect_err("no tower");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("is not a tower"), "{error}");
    let mut session = chain.session().expect("a session");
    let narrow = Arc::new(SoftRows::new(32, vec![0.5; 64], [0; 32]).expect("rows"));
    let before_text = |rows: &Arc<SoftRows>| {
        let mut prompt = Prompt::new();
        prompt.push_soft(19, rows);
        prompt.push_tokens(&[5]);
        prompt
    };
    let part = before_text(&narrow);
    for error in [session.prompt_parts(&part).map(drop), session.append_parts(&part).map(drop)] {
        let error = error.expect_err("too narrow");
        assert_eq!(error.to_string(), "expected soft rows of 64 values, got 32");
    }
    let long = Arc::new(SoftRows::new(64, vec![0.5; 64 * 80], [0; 32]).expect("rows"));
    let error = session.prompt_parts(&before_text(&long)).expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::Context);
    assert_eq!(error.to_string(), "81 tokens at position 0 exceed the context of 64");
    assert!(session.tokens().is_empty());
}
