//! Tests that a reply with drafts equals the reply without drafts, for any proposals, any number of
//! verified rows and any end of the reply.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::{self, Form, Plan, Trouble, bits, fixture};
use shardwright_graph::Graph;
use shardwright_models::Checkpoint;
use shardwright_runtime::{
    Chain, DoneReason, Draft, FallbackChains, Generation, GenerationEvent, GenerationOptions,
    GenerationStatistics, ModelDraft, Proposal, Session, Speculation,
};
use shardwright_text::{Distribution, SamplingParameters, StopRules, Tokenizer};
use shardwright_vocabulary::{Error, ErrorKind, Result};

struct Model {
    graph: Graph,
    tokenizer: Tokenizer,
}

fn model(name: &str) -> Model {
    let directory = fixture(name);
    Model {
        graph: Checkpoint::open(&directory).unwrap().into_graph(),
        tokenizer: Tokenizer::from_file(directory.join("tokenizer.json")).unwrap(),
    }
}

fn plan(decode: &[u64]) -> Plan {
    let largest = 16;
    Plan { context: 128, largest, prefill: vec![16], decode: decode.to_vec(), around: "b", ..Plan::default() }
}

#[derive(Debug, Default)]
struct Heard {
    ids: Vec<u32>,
    text: String,
    dropped: Vec<String>,
    done: Option<(DoneReason, GenerationStatistics)>,
}

impl Heard {
    fn reason(&self) -> &DoneReason {
        &self.done.as_ref().expect("an end").0
    }

    fn statistics(&self) -> GenerationStatistics {
        self.done.as_ref().expect("an end").1
    }
}

fn hear(model: &Model, session: &mut Session, prompt: &[u32], options: &GenerationOptions) -> Heard {
    let mut generation = Generation::new(&model.tokenizer, prompt.to_vec(), options).unwrap();
    let mut heard = Heard::default();
    while let Some(event) = generation.next(session) {
        match event.unwrap() {
            GenerationEvent::Token { id } => heard.ids.push(id),
            GenerationEvent::TextDelta { text } | GenerationEvent::ThoughtDelta { text } => {
                heard.text += &text
            }
            GenerationEvent::DraftDropped { draft } => heard.dropped.push(draft.because),
            event @ (GenerationEvent::ToolCallBegin { .. }
            | GenerationEvent::ToolCallArguments { .. }
            | GenerationEvent::ToolCall { .. }
            | GenerationEvent::ToolCallDropped { .. }) => panic!("{event:?}"),
            GenerationEvent::Done { reason, statistics } => heard.done = Some((reason, statistics)),
        }
    }
    heard
}

fn options(tokens: usize) -> GenerationOptions {
    GenerationOptions { max_tokens: Some(tokens), ..GenerationOptions::default() }
}

fn prompt(model: &Model) -> Vec<u32> {
    model.tokenizer.encode("And it came to pass in those days", true).unwrap()
}

/// A draft that knows the text, but proposes a wrong token at regular positions.
struct Knows {
    text: Vec<u32>,
    wrong_each: usize,
}

impl Draft for Knows {
    fn name(&self) -> String {
        "knows".to_owned()
    }

    fn propose(&mut self, history: &[u32], most: usize) -> Result<Proposal> {
        let rest = self.text.get(history.len()..).unwrap_or(&[]);
        let at = history.len();
        let said =
            rest.iter().take(most).enumerate().map(|(index, &id)| match (at + index) % self.wrong_each {
                0 => (id + 1) % 100,
                _ => id,
            });
        Ok(Proposal { tokens: said.collect(), ..Proposal::default() })
    }
}

/// A draft that gives the prepared answers in order, then empty ones.
struct Told(VecDeque<Answer>);

type Answer = Box<dyn FnMut(usize) -> Result<Proposal> + Send>;

impl Told {
    fn once(answer: impl FnMut(usize) -> Result<Proposal> + Send + 'static) -> Box<Self> {
        Box::new(Told(VecDeque::from([Box::new(answer) as _])))
    }
}

impl Draft for Told {
    fn name(&self) -> String {
        "told".to_owned()
    }

    fn propose(&mut self, _: &[u32], most: usize) -> Result<Proposal> {
        self.0.pop_front().map_or(Ok(Proposal::default()), |mut answer| answer(most))
    }
}

fn tokens(tokens: impl Into<Vec<u32>>) -> Proposal {
    Proposal { tokens: tokens.into(), ..Proposal::default() }
}

fn knows(text: &[u32], wrong_each: usize, length: usize) -> Speculation {
    let draft = Knows { text: text.to_vec(), wrong_each };
    Speculation::new().draft(Box::new(draft)).fixed_length(Some(length))
}

fn logits(session: &Session) -> Vec<u32> {
    bits(session.logits().unwrap())
}

/// Returns samplings that use every rule.
fn samplings() -> [SamplingParameters; 6] {
    let drawn = SamplingParameters::at_temperature(1.3, 11);
    let greedy = SamplingParameters::greedy();
    [
        greedy,
        SamplingParameters { repetition_penalty: 1.4, ..greedy },
        drawn,
        SamplingParameters { top_k: 7, ..drawn },
        SamplingParameters { top_p: 0.8, min_p: 0.02, ..drawn },
        SamplingParameters { repetition_penalty: 1.2, top_k: 20, top_p: 0.9, ..drawn },
    ]
}

#[test]
fn a_reply_is_the_same_with_any_draft_any_rows_and_any_cut() {
    for (name, cuts, form) in [
        ("gemma3_text", vec![], Form::Semantic),
        ("gemma4_text", vec![2], Form::Semantic),
        ("qwen3", vec![1], Form::ByRuntime),
    ] {
        let model = model(name);
        let prompt = prompt(&model);
        let of =
            |decode: &[u64]| support::chain(&model.graph, &Plan { cuts: cuts.clone(), form, ..plan(decode) });
        let mut alone = of(&[1]).session().unwrap();
        let expected = hear(&model, &mut alone, &prompt, &options(24));
        let text = [prompt.as_slice(), &expected.ids].concat();
        for decode in [&[1_u64, 16][..], &[1, 4], &[2], &[1, 3, 7]] {
            let chain = of(decode);
            let rows = *decode.last().unwrap() as usize;
            for length in [2, 15] {
                for wrong_each in [1, 5, 1000] {
                    let mut session = chain.session().unwrap();
                    session.set_speculation(Some(knows(&text, wrong_each, length)));
                    let heard = hear(&model, &mut session, &prompt, &options(24));
                    let what = format!("{name} {decode:?} {length} {wrong_each}");
                    assert_eq!(heard.ids, expected.ids, "{what}");
                    assert_eq!((&heard.text, heard.reason()), (&expected.text, expected.reason()), "{what}");
                    assert_eq!(session.tokens(), alone.tokens(), "{what}");
                    assert_eq!(logits(&session), logits(&alone), "{what}");
                    let counted = heard.statistics().speculation;
                    assert_eq!(counted.accepted + counted.steps + 1, 24, "{what}: {counted:?}");
                    match wrong_each {
                        1 => assert_eq!((counted.accepted, counted.by_accepted[0] > 0), (0, true)),
                        1000 => {
                            assert_eq!(counted.accepted, counted.drafted, "{what}");
                            let most = length.min(rows - 1) + 1;
                            assert_eq!(counted.steps as usize, 23_usize.div_ceil(most), "{what}");
                        }
                        _ => {}
                    }
                    if (length, wrong_each) != (15, 5) {
                        continue;
                    }
                    // This is another turn, with the remaining states.
                    let next = [text.as_slice(), &prompt[1..]].concat();
                    let mut fresh = of(&[1]).session().unwrap();
                    let anew = hear(&model, &mut fresh, &next, &options(8));
                    session.set_speculation(Some(Speculation::new().lookup()));
                    let continued = hear(&model, &mut session, &next, &options(8));
                    assert_eq!(continued.ids, anew.ids, "{what}");
                    assert_eq!(continued.statistics().reused_tokens, text.len() - 1, "{what}");
                    assert_eq!(logits(&session), logits(&fresh), "{what}");
                }
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_text_with_a_draft_that_draws_nothing() {
    let model = model("gemma4_text");
    let prompt = prompt(&model);
    let chain = support::chain(&model.graph, &plan(&[1, 8]));
    for sampling in samplings() {
        let options = GenerationOptions { sampling, ..options(40) };
        let expected = hear(&model, &mut chain.session().unwrap(), &prompt, &options);
        let text = [prompt.as_slice(), &expected.ids].concat();
        let drafts = [
            knows(&text, 3, 7),
            knows(&text, 1000, 7),
            Speculation::new().lookup().fixed_length(Some(7)),
            Speculation::new().lookup(),
        ];
        for speculation in drafts {
            let mut session = chain.session().unwrap();
            session.set_speculation(Some(speculation));
            let heard = hear(&model, &mut session, &prompt, &options);
            assert_eq!(heard.ids, expected.ids, "{sampling:?} {:?}", session.speculation());
        }
    }
}

#[test]
fn a_model_drafts_for_itself_and_for_another() {
    let model = model("gemma3_text");
    let prompt = prompt(&model);
    let chain = support::chain(&model.graph, &plan(&[1, 8]));
    // Another cut on another place rounds values, so its predictions sometimes differ.
    let other = Plan { storages: support::hidden(shardwright_vocabulary::Encoding::F16), ..plan(&[1]) };
    let other = support::chain(&model.graph, &other);
    let expected = hear(&model, &mut chain.session().unwrap(), &prompt, &options(30));
    for (draft, itself) in [(&chain, true), (&other, false)] {
        let draft = ModelDraft::new("small", draft.session().unwrap()).unwrap();
        assert!(draft.memory_bytes() > 0);
        let mut session = chain.session().unwrap();
        let speculation = Speculation::new().draft(Box::new(draft)).fixed_length(Some(5));
        session.set_speculation(Some(speculation));
        let heard = hear(&model, &mut session, &prompt, &options(30));
        assert_eq!((heard.ids, heard.dropped), (expected.ids.clone(), vec![]));
        let counted = heard.done.unwrap().1.speculation;
        assert!(counted.accepted > 0 && counted.draft_time > Duration::ZERO, "{counted:?}");
        assert!(!itself || counted.accepted == counted.drafted, "{counted:?}");

        // The draft's tokens are verified against the distributions that they were drawn from. If
        // model and draft are equal, no token is replaced.
        let sampling = SamplingParameters { top_k: 30, ..SamplingParameters::at_temperature(0.8, 5) };
        let drawn = hear(&model, &mut session, &prompt, &GenerationOptions { sampling, ..options(30) });
        assert!(drawn.dropped.is_empty(), "{:?}", drawn.dropped);
        let counted = drawn.statistics().speculation;
        assert!(counted.drafted > 0 && (!itself || counted.accepted == counted.drafted), "{counted:?}");

        // A released session's draft only keeps its weights, and continues with the reply.
        let held = |session: &Session| session.speculation().unwrap().memory_bytes();
        let before = held(&session);
        session.release();
        assert!(held(&session) < before);
        session.clear();
        assert_eq!(hear(&model, &mut session, &prompt, &options(30)).ids, expected.ids);
        assert_eq!(held(&session), before);
    }
}

#[test]
fn a_callback_runs_once_before_each_step_of_a_reply() {
    let model = model("gemma3_text");
    let prompt = prompt(&model);
    let (chain, troubles) = support::disturbed(&model.graph, &plan(&[1, 4]));
    let expected = hear(&model, &mut chain.session().unwrap(), &prompt, &options(12));
    let text = [prompt.as_slice(), &expected.ids].concat();
    let runs_before = troubles[1].runs.load(Ordering::SeqCst);
    let mut session = chain.session().unwrap();
    session.set_speculation(Some(knows(&text, 5, 3)));
    // For each call, the number of earlier runs of the decoder.
    let calls = Arc::new(Mutex::new(Vec::new()));
    let (called, decoder) = (calls.clone(), troubles[1].clone());
    session.set_before_step(Some(Arc::new(move || {
        called.lock().unwrap().push(decoder.runs.load(Ordering::SeqCst));
    })));
    let heard = hear(&model, &mut session, &prompt, &options(12));
    assert_eq!(heard.ids, expected.ids);
    assert!(heard.statistics().speculation.accepted > 0, "{:?}", heard.statistics());
    let runs = troubles[1].runs.load(Ordering::SeqCst);
    assert_eq!(*calls.lock().unwrap(), (runs_before..runs).collect::<Vec<_>>());
}

#[test]
fn a_reply_ends_within_a_draft_where_it_would_without() {
    let model = model("gemma3_text");
    let prompt = prompt(&model);
    let chain = support::chain(&model.graph, &plan(&[1, 16]));
    let free = hear(&model, &mut chain.session().unwrap(), &prompt, &options(30));
    let text = [prompt.as_slice(), &free.ids].concat();
    let first_at = |at: usize| !free.ids[..at].contains(&free.ids[at]);
    let at = (8..30).find(|at| first_at(*at)).unwrap();
    let words: String = free.text.chars().skip(20).take(6).collect();
    let stops = [
        StopRules::new([free.ids[at]]),
        StopRules::default().with_strings([words.as_str()]).unwrap(),
        StopRules::default(),
    ];
    for stop in stops {
        for limit in [3, 17, 30] {
            for length in [4, 15] {
                let options = GenerationOptions { stop: stop.clone(), ..options(limit) };
                let mut alone = chain.session().unwrap();
                let expected = hear(&model, &mut alone, &prompt, &options);
                let mut session = chain.session().unwrap();
                session.set_speculation(Some(knows(&text, 1000, length)));
                let heard = hear(&model, &mut session, &prompt, &options);
                assert_eq!((&heard.ids, heard.reason()), (&expected.ids, expected.reason()));
                assert_eq!(heard.text, expected.text);
                assert_eq!(session.tokens(), alone.tokens());
                assert_eq!(logits(&session), logits(&alone));
            }
        }
    }
}

#[test]
fn the_context_ends_within_a_draft() {
    let model = model("gemma3_text");
    let prompt = prompt(&model);
    let of = |context| support::chain(&model.graph, &Plan { context, ..plan(&[1, 16]) });
    let free = hear(&model, &mut of(128).session().unwrap(), &prompt, &options(60));
    let text = [prompt.as_slice(), &free.ids].concat();
    for room in [1, 2, 9, 16, 17, 30] {
        let context = (prompt.len() + room) as u64;
        let mut session = of(context).session().unwrap();
        session.set_speculation(Some(knows(&text, 1000, 15)));
        let heard = hear(&model, &mut session, &prompt, &GenerationOptions::default());
        assert_eq!(heard.reason(), &DoneReason::ContextFull, "{room}");
        assert_eq!(heard.ids, free.ids[..=room], "{room}");
        assert_eq!(session.tokens().len() as u64, context);
    }
}

#[test]
fn a_draft_with_a_fault_is_dropped_and_the_reply_goes_on() {
    let model = model("gemma3_text");
    let prompt = prompt(&model);
    let chain = support::chain(&model.graph, &plan(&[1, 8]));
    let expected = hear(&model, &mut chain.session().unwrap(), &prompt, &options(20));
    let vocabulary = chain.description().structure.vocabulary as u32;
    let one_of = |ids: &[u32]| Distribution::new(ids.iter().map(|id| (*id, 1.0))).unwrap();
    let (of_another, two) = (one_of(&[9]), vec![one_of(&[5]); 2]);
    let faults: [(&str, Answer); 7] = [
        ("the model's vocabulary has", Box::new(move |_| Ok(tokens([5, vocabulary])))),
        ("the model's vocabulary has", Box::new(move |_| Ok(tokens([u32::MAX])))),
        ("at most", Box::new(|most| Ok(tokens(vec![5; most + 1])))),
        (
            "gives no distribution that token 0",
            Box::new(move |_| Ok(Proposal { drawn_from: vec![of_another.clone()], ..tokens([5]) })),
        ),
        (
            "gives no distribution that token 1",
            Box::new(move |_| Ok(Proposal { drawn_from: two.clone(), ..tokens([5]) })),
        ),
        ("the disk is full", Box::new(|_| Err(Error::new(ErrorKind::Shim, "the disk is full")))),
        ("died: on purpose", Box::new(|_| panic!("on purpose"))),
    ];
    for (words, answer) in faults {
        let mut session = chain.session().unwrap();
        // The draft's answer for the prompt may be late, but its answers in a step are awaited.
        let reads: Answer = Box::new(|_| Ok(Proposal::default()));
        let draft = Box::new(Told(VecDeque::from([reads, answer])));
        session.set_speculation(Some(Speculation::new().draft(draft).fixed_length(Some(4))));
        let heard = hear(&model, &mut session, &prompt, &options(20));
        assert_eq!(heard.ids, expected.ids, "{words}");
        let [because] = &heard.dropped[..] else { panic!("{words}: {:?}", heard.dropped) };
        assert!(because.contains(words) && because.contains("`told`"), "{because}");
        let speculation = session.speculation().unwrap();
        assert!(speculation.is_empty() && !speculation.dropped()[0].help.is_empty());
        // The next reply does not report the drop again.
        assert!(hear(&model, &mut session, &prompt, &options(20)).dropped.is_empty());
    }
}

#[test]
fn a_draft_that_never_answers_is_waited_for_so_long() {
    let model = model("gemma3_text");
    let prompt = prompt(&model);
    let chain = support::chain(&model.graph, &plan(&[1, 8]));
    let expected = hear(&model, &mut chain.session().unwrap(), &prompt, &options(20));
    let hangs = |_| -> Result<Proposal> {
        loop {
            std::thread::park();
        }
    };
    let reads = |_| Ok(Proposal::default());
    for (answers, dropped) in [(1, 1), (0, 0)] {
        let all = (0..answers).map(|_| Box::new(reads) as Answer).chain([Box::new(hangs) as _]);
        let draft = Box::new(Told(all.collect()));
        let mut session = chain.session().unwrap();
        let speculation = Speculation::new().patience(Duration::from_millis(50)).draft(draft).lookup();
        session.set_speculation(Some(speculation.fixed_length(Some(4))));
        let heard = hear(&model, &mut session, &prompt, &options(20));
        assert_eq!(heard.ids, expected.ids);
        assert_eq!(heard.dropped.len(), dropped, "{:?}", heard.dropped);
        if dropped == 0 {
            // The draft may still be reading the prompt, and the reply did not wait for it.
            assert_eq!(session.speculation().unwrap().drafts(), ["told", "lookup"]);
            continue;
        }
        assert!(heard.dropped[0].contains("gave no answer within 50 ms"), "{:?}", heard.dropped);
        // The other draft continues.
        assert_eq!(session.speculation().unwrap().drafts(), ["lookup"]);
    }
}

#[test]
fn a_cancellation_between_draft_and_verification_ends_the_reply() {
    let model = model("gemma3_text");
    let prompt = prompt(&model);
    let chain = support::chain(&model.graph, &plan(&[1, 8]));
    let expected = hear(&model, &mut chain.session().unwrap(), &prompt, &options(20));
    for (answers_late, by_deadline) in [(false, false), (true, false), (false, true)] {
        let mut session = chain.session().unwrap();
        let (handle, first) = (session.cancel_handle(), expected.ids[1]);
        let draft = Told::once(move |_| {
            match by_deadline {
                true => std::thread::sleep(Duration::from_millis(120)),
                false => handle.cancel(),
            }
            if answers_late {
                std::thread::sleep(Duration::from_millis(100));
            }
            Ok(tokens([first]))
        });
        session.set_speculation(Some(Speculation::new().draft(draft).fixed_length(Some(4))));
        if by_deadline {
            session.append(&prompt).unwrap();
            session.set_deadline(Some(Instant::now() + Duration::from_millis(60)));
        }
        let heard = hear(&model, &mut session, &prompt, &options(20));
        let reason = if by_deadline { DoneReason::Deadline } else { DoneReason::Cancelled };
        assert_eq!((heard.reason(), heard.ids.len()), (&reason, 1));
        assert_eq!(session.tokens(), prompt);
        // The session continues as if there were no drafted tokens.
        session.set_deadline(None);
        let again = hear(&model, &mut session, &prompt, &options(20));
        assert_eq!(again.ids, expected.ids);
    }
}

#[test]
fn a_chain_lost_in_a_step_costs_no_token() {
    let model = model("gemma4_text");
    let prompt = prompt(&model);
    let expected = hear(
        &model,
        &mut support::chain(&model.graph, &plan(&[1])).session().unwrap(),
        &prompt,
        &options(24),
    );
    let text = [prompt.as_slice(), &expected.ids].concat();
    // The next chain verifies fewer rows, or none.
    for decode in [&[1_u64][..], &[1, 4], &[1, 8]] {
        for after in [3, 4, 6] {
            let (first, troubles) = support::disturbed(&model.graph, &plan(&[1, 8]));
            let elsewhere = Plan { around: "c", decoders: vec!["c"], ..plan(decode) };
            let second = support::chain(&model.graph, &elsewhere);
            let next = FallbackChains::new([second]);
            let mut session = first.session_with(Box::new(next)).unwrap();
            session.set_speculation(Some(knows(&text, 4, 7)));
            dies(&troubles[1], after);
            let heard = hear(&model, &mut session, &prompt, &options(24));
            assert_eq!(heard.ids, expected.ids, "{decode:?} after {after}");
            assert_eq!(session.placement().moves.len(), 1, "{decode:?} after {after}");
            assert!(heard.statistics().recomputed_tokens > 0 || session.placement().moves[0].tokens == 0);
        }
    }
}

fn dies(trouble: &Arc<Trouble>, after: usize) {
    *trouble.dies_after.lock().unwrap() = Some(after);
}

#[test]
fn what_is_asked_for_fits_the_reply() {
    let model = model("gemma3_text");
    let prompt = prompt(&model);
    let chain: Chain = support::chain(&model.graph, &plan(&[1, 16]));
    let asked = Arc::new(Mutex::new(Vec::new()));
    struct Asked(Arc<Mutex<Vec<usize>>>);
    impl Draft for Asked {
        fn name(&self) -> String {
            "asked".to_owned()
        }
        fn propose(&mut self, _: &[u32], most: usize) -> Result<Proposal> {
            self.0.lock().unwrap().push(most);
            Ok(Proposal::default())
        }
    }
    let mut session = chain.session().unwrap();
    let speculation = Speculation::new().draft(Box::new(Asked(asked.clone()))).fixed_length(Some(15));
    session.set_speculation(Some(speculation));
    hear(&model, &mut session, &prompt, &options(6));
    // The last token needs no step after it, and the token before it needs no draft.
    assert_eq!(*asked.lock().unwrap(), [4, 3, 2, 1]);
}

#[test]
fn a_given_text_is_chosen_whatever_the_model_says() {
    let model = model("gemma3_text");
    let prompt = prompt(&model);
    let chain = support::chain(&model.graph, &plan(&[1, 8]));
    let given: Vec<u32> = (20..60).chain(20..50).collect();
    for speculation in [None, Some(Speculation::new().lookup().fixed_length(Some(7)))] {
        let mut session = chain.session().unwrap();
        let drafts = speculation.is_some();
        session.set_speculation(speculation);
        let stop = StopRules::new([25]);
        let options = GenerationOptions { stop, ..GenerationOptions::default() };
        let mut generation =
            Generation::new(&model.tokenizer, prompt.clone(), &options).unwrap().given(given.clone());
        let mut ids = Vec::new();
        while let Some(event) = generation.next(&mut session) {
            if let GenerationEvent::Token { id } = event.unwrap() {
                ids.push(id);
            }
        }
        assert_eq!(ids, given);
        let counted = generation.statistics().speculation;
        assert_eq!(counted.accepted > 20, drafts, "{counted:?}");
        assert_eq!(session.tokens(), [&prompt[..], &given[..given.len() - 1]].concat());
    }
}
