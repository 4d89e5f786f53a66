//! Legalisation against a shim that accepts as little as a real chip might: only primitives, 16-bit
//! activations, states it only reads, positions as tensors. Everything else is refused by name.
//! Accepted graphs give the oracle's numbers.

use std::collections::BTreeSet;

use shardwright_build::EntryMenu;
use shardwright_graph::{
    ComponentKind, Encodings, EntryGraph, Graph, Keys, LegaliseError, NodeVerdict, Op, PortSide, Range,
    Ranges, Role,
};
use shardwright_quantisation::{Recipe, TableFormats, quantise};
use shardwright_reference::{Arrangement, Form, ReferenceModel};
use shardwright_runtime::Chain;
use shardwright_shims::ShimError;
use shardwright_test_checkpoints::Random;
use shardwright_test_checkpoints::cases;
use shardwright_tests::chain::{committed, encode_menu, made, menu, shims, tokens};
use shardwright_tests::checkpoints::{
    DEMO_MODEL, EMBEDDING_FIXTURES, FURTHER_FIXTURES, TEXT_FIXTURES, text_fixtures,
};
use shardwright_tests::picky::{self, Formatted, as_inside};
use shardwright_tests::shapes::random_spec;
use shardwright_vocabulary::{
    ActivationFormat, DType, Encoding, EntryKind, ErrorClass, FormatTuple, StateFormat, WeightFormat,
};

/// The formats the picky shim accepts.
const A16W8: FormatTuple =
    FormatTuple::uniform(WeightFormat::W8PerChannel, ActivationFormat::A16, StateFormat::A16);

fn models() -> impl Iterator<Item = (&'static str, Graph)> {
    text_fixtures().chain([DEMO_MODEL]).map(|folder| (folder, committed(folder)))
}

/// Returns the names of the results that a graph computes by a semantic operation.
fn semantic(graph: &EntryGraph) -> BTreeSet<&str> {
    let nodes = graph.nodes.iter().filter(|node| node.op.is_semantic() && node.op != Op::StateUpdate);
    nodes.map(|node| node.name.as_str()).collect()
}

#[test]
fn what_is_left_are_primitives_tables_and_states_that_are_only_read() {
    let shim = picky::open(&[]);
    for (folder, graph) in models() {
        let planned = graph.planned(&A16W8).expect("counted");
        let model = Formatted { graph: &planned, encodings: Encodings::counting(&A16W8) };
        let middle = graph.layers() / 2;
        let menu = menu(64, &[8], &[1, 8]);
        let shards = model
            .legalise(&menu, &[middle], &shim, &as_inside)
            .unwrap_or_else(|error| panic!("{folder}: {error}"));
        let mut written = BTreeSet::new();
        for shard in &shards {
            for legal in &shard.entries {
                let entry = &legal.graph;
                let what =
                    format!("{folder}: {:?} {:?} {}", shard.component, shard.layers, entry.point.name());
                entry.validate().unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(entry.nodes.iter().all(|node| !node.op.is_semantic()), "{what}");
                assert!(entry.nodes.iter().all(|node| node.op != Op::Convert), "{what}");
                assert!(entry.tensors.iter().all(|tensor| !tensor.is_index()), "{what}");

                // The record contains every operation of the model with a reason, and otherwise
                // only the operations they were decomposed into.
                let plain = graph
                    .entry(shard.component, shard.layers.0..shard.layers.1, entry.point, Default::default())
                    .expect("a graph")
                    .expect("a part in it");
                let whole = semantic(&plain);
                let is_part = |name: &str| {
                    let (parent, step) = name.rsplit_once('.').expect("a name of steps");
                    let parts = ["rotate-", "softmax-", "softcap-"];
                    whole.contains(parent) && parts.iter().any(|part| step.starts_with(part))
                };
                let (parts, recorded): (BTreeSet<&str>, BTreeSet<&str>) =
                    legal.decomposed.keys().map(String::as_str).partition(|name| !whole.contains(name));
                assert_eq!(recorded, whole, "{what}");
                assert!(parts.iter().all(|name| is_part(name)), "{what}: {parts:?}");
                assert!(legal.decomposed.values().all(|reason| !reason.is_empty()), "{what}");

                // Every update became outputs of new rows. States written by another shard are only
                // read.
                for port in &entry.states {
                    let role = Role::StateRows { state: port.id };
                    assert_eq!(entry.output(&role).is_some(), port.written, "{what}");
                    assert_eq!(legal.by_runtime.contains_key(&port.id), port.written, "{what}");
                    assert!(entry.output(&Role::State { state: port.id }).is_none(), "{what}");
                    if port.written && entry.point.kind == EntryKind::Decode {
                        written.insert(port.id);
                    }
                }

                // Tables replace positions, exactly of the kinds that the operations require.
                let has = |wanted: &dyn Fn(&Op) -> bool| plain.nodes.iter().any(|node| wanted(&node.op));
                let bound =
                    |wanted: &dyn Fn(&Role) -> bool| entry.inputs.iter().any(|(_, role)| wanted(role));
                let ropes = plain.nodes.iter().filter_map(|node| match &node.op {
                    Op::Rope(rope) => Some(rope),
                    _ => None,
                });
                for rope in ropes {
                    assert!(bound(&|role| *role == Role::RotaryCos(rope.clone())), "{what}: {rope:?}");
                    assert!(bound(&|role| *role == Role::RotarySin(rope.clone())), "{what}: {rope:?}");
                }
                let has_attention = has(&|op| matches!(op, Op::Attention(_)));
                assert_eq!(bound(&|role| matches!(role, Role::Mask(_))), has_attention, "{what}");
                for (tensor, role) in &entry.inputs {
                    let Role::Mask(mask) = role else { continue };
                    let width = match mask.keys {
                        Keys::State { capacity } => capacity,
                        Keys::StateAndRows { capacity } => capacity + entry.point.rows,
                        Keys::Rows => entry.point.rows,
                    };
                    assert_eq!(entry.tensor(*tensor).shape, [entry.point.rows, width], "{what}");
                }
            }
        }
        assert_eq!(written.len(), graph.states.len(), "{folder}: every state has a writer");
    }
}

/// Each query covers a whole entry point: nodes accepted before are shown again together with the
/// new ones.
#[test]
fn every_question_is_about_a_whole_entry_point() {
    let shim = picky::open(&[]);
    let graph = committed(TEXT_FIXTURES[1]);
    let planned = graph.planned(&A16W8).expect("counted");
    let model = Formatted { graph: &planned, encodings: Encodings::counting(&A16W8) };
    let mut shown: Vec<EntryGraph> = Vec::new();
    let check = |entry: &EntryGraph| {
        shown.push(entry.clone());
        shim.check("picky", entry, &planned.weights)
    };
    model.legalise_with(&menu(64, &[], &[1]), &[], &as_inside, check).expect("it is taken");
    let decoder: Vec<&EntryGraph> =
        shown.iter().filter(|entry| entry.segments.has(ComponentKind::Decoder)).collect();
    let whole = graph.entry(ComponentKind::Decoder, 0..graph.layers(), decoder[0].point, Default::default());
    let names = |entry: &EntryGraph| entry.nodes.iter().map(|node| node.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(decoder[0]), names(&whole.expect("a graph").expect("a part in it")));
    assert!(decoder.len() <= 4, "{} questions", decoder.len());
    for (before, after) in decoder.iter().zip(&decoder[1..]) {
        // Every round has all outputs of the entry, encoded, and fewer semantic operations.
        assert!(after.outputs.len() == before.outputs.len());
        let left = |entry: &EntryGraph| entry.nodes.iter().filter(|node| node.op.is_semantic()).count();
        assert!(left(after) < left(before));
        let encoded = |tensor: &shardwright_graph::Tensor| {
            tensor.weight.is_some() || tensor.is_index() || tensor.dtype == DType::U16
        };
        assert!(after.tensors.iter().all(encoded));
    }
}

fn refusal(
    formats: &FormatTuple,
    options: &[(&str, &str)],
    ports: picky::PortEncodings<'_>,
) -> (String, &'static str, Option<u32>, String) {
    let shim = picky::open(options);
    let graph = committed(TEXT_FIXTURES[1]).planned(formats).expect("counted");
    let model = Formatted { graph: &graph, encodings: Encodings::counting(formats) };
    let error = match model.legalise(&menu(64, &[8], &[1]), &[2, 4], &shim, ports) {
        Ok(_) => panic!("{formats} {options:?}: taken"),
        Err(error) => error,
    };
    assert!(error.help().is_some(), "{error}");
    let words = error.to_string();
    let LegaliseError::Refused { node, op, layer, reason, .. } = error else { panic!("{words}") };
    for part in [node.as_str(), op, reason.as_str()] {
        assert!(words.contains(part), "{words}");
    }
    assert!(layer.is_none_or(|layer| words.contains(&format!("layer {layer}"))), "{words}");
    println!("{formats} {options:?}: {words}");
    (node, op, layer, reason)
}

#[test]
fn a_refused_primitive_is_reported_with_its_layer_and_reason() {
    let w8 = WeightFormat::W8PerChannel;
    let a16 = |weights| FormatTuple::uniform(weights, ActivationFormat::A16, StateFormat::A16);
    let with = |activations, states| FormatTuple::uniform(w8, activations, states);
    let f32 = FormatTuple::F32;
    type Case<'a> = (FormatTuple, &'a [(&'a str, &'a str)], &'a str, &'a str);
    let table: [Case<'_>; 12] = [
        (A16W8, &[("no-op", "exp")], "exp", "this chip has no exp"),
        (A16W8, &[("no-op", "rsqrt")], "rsqrt", "this chip has no rsqrt"),
        (A16W8, &[("rank-limit", "3")], "reshape", "has 4 axes, at most 3 are supported"),
        (a16(WeightFormat::W4PerChannel), &[], "mat-mul", "is i4, not i8"),
        (a16(WeightFormat::W2PerChannel), &[], "mat-mul", "is i2, not i8"),
        (a16(WeightFormat::W8PerTensor), &[], "mat-mul", "must have one f32 scale per output channel"),
        (a16(WeightFormat::F16), &[], "mat-mul", "is f16, not i8"),
        (with(ActivationFormat::F32, StateFormat::F32), &[], "mul-scalar", "is f32, not u16"),
        (with(ActivationFormat::F16, StateFormat::F16), &[], "mul-scalar", "is f16, not u16"),
        (with(ActivationFormat::A16Symmetric, StateFormat::A16), &[], "mul-scalar", "is i16, not u16"),
        (with(ActivationFormat::A16, StateFormat::A8), &[], "concat", "`state.layer.0.k` is u8, not u16"),
        (f32, &[], "mul-scalar", "is f32, not u16"),
    ];
    for (formats, options, op, reason) in table {
        let (node, found, layer, message) = refusal(&formats, options, &as_inside);
        assert_eq!(found, op, "{formats} {options:?}: `{node}` {message}");
        assert!(message.contains(reason), "{formats} {options:?}: {message}");
        // Components before the decoder have no layers.
        let before = ["mul-scalar", "rsqrt", "mat-mul"].contains(&op);
        assert_eq!(layer.is_none(), before, "{formats} {options:?}: `{node}`");
    }
}

/// A conversion at a port is an operation like any other. Here it converts to a float, and the
/// refusal names the port.
#[test]
fn a_port_in_another_type_is_refused_by_its_name() {
    for wanted in [PortSide::Input, PortSide::Output] {
        let ports = |entry: &EntryGraph, side: PortSide, role: &Role| {
            let is_it = entry.segments.has(ComponentKind::Decoder) && side == wanted && *role == Role::Hidden;
            is_it.then_some(Encoding::F32)
        };
        let (node, op, layer, reason) = refusal(&A16W8, &[], &ports);
        assert_eq!(op, "convert", "{node}: {reason}");
        assert!(node.ends_with(".converted") && reason.contains("is f32, not u16"), "{node}: {reason}");
        match wanted {
            PortSide::Input => {
                assert_eq!((layer, node.as_str()), (Some(0), "hidden.converted"));
                assert!(reason.contains("`hidden`"), "{reason}");
            }
            PortSide::Output => assert_eq!(layer, Some(1)),
        }
    }
}

/// Positions of the context, and rows of the largest entry point.
const CONTEXT: u32 = 64;
const ROWS: u32 = 8;

fn numbers_menu() -> EntryMenu {
    menu(CONTEXT, &[ROWS], &[1, ROWS])
}

/// Number of tokens for calibration. The model runs on the tokens after them.
const CALIBRATION: usize = 96;

/// A model in the picky shim's formats, calibrated on different text than it runs on.
struct Calibrated {
    name: String,
    float: Graph,
    graph: Graph,
    ranges: Ranges,
    ids: Vec<u32>,
}

impl Calibrated {
    fn new(folder: &str) -> Self {
        Calibrated::of(folder.to_owned(), committed(folder))
    }

    fn of(name: String, float: Graph) -> Self {
        let ids = tokens(&float, CALIBRATION + 47);
        let mut ranges = Ranges::new();
        let (calibration, ids) = ids.split_at(CALIBRATION);
        let arrangement = Arrangement::whole(CALIBRATION as u64);
        let reference = ReferenceModel::new(&float, arrangement).expect("a reference");
        let mut see = |key: &str, values: &[f32]| {
            let seen = values.iter().filter(|value| !Range::is_masked(**value));
            let start = Range { low: f32::INFINITY, high: f32::NEG_INFINITY, masked: false };
            let range = seen.fold(start, |range, &value| Range {
                low: range.low.min(value),
                high: range.high.max(value),
                masked: range.masked,
            });
            let range = Range { masked: values.iter().any(|value| Range::is_masked(*value)), ..range };
            let known = ranges.get(key).copied().unwrap_or(range);
            ranges.insert(key.to_owned(), known.union(range));
        };
        // A mean over a short text can be larger than one over a long text.
        let texts = match float.is_generative() {
            true => vec![calibration],
            false => [1, 5, CALIBRATION].map(|length| &calibration[..length]).to_vec(),
        };
        for text in texts {
            reference.observe(text, &mut see).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let recipe = Recipe::new(&float, &A16W8, TableFormats::default());
        let graph = quantise(&float, &recipe, &mut (), &mut Vec::new());
        let graph = graph.unwrap_or_else(|error| panic!("{name}: {error}"));
        Calibrated { name, float, graph, ranges, ids: ids.to_vec() }
    }

    fn all() -> impl Iterator<Item = Calibrated> {
        let further = cases(0, FURTHER_FIXTURES.len());
        let fixtures = TEXT_FIXTURES.into_iter().chain(FURTHER_FIXTURES.into_iter().take(further));
        fixtures.chain([DEMO_MODEL]).map(Calibrated::new)
    }

    fn formatted(&self) -> Formatted<'_> {
        Formatted { graph: &self.graph, encodings: Encodings::of(&A16W8, &self.ranges) }
    }

    /// Builds the chain on the picky shim, cut before these layers.
    fn chain(&self, before: &[u32], ports: picky::PortEncodings<'_>) -> Chain {
        let (shim, model) = (picky::open(&[]), self.formatted());
        let shards = model.legalise(&numbers_menu(), before, &shim, ports);
        let shards = shards.unwrap_or_else(|error| panic!("{} before {before:?}: {error}", self.name));
        model.chain(&shards, &shim).unwrap_or_else(|error| panic!("{} before {before:?}: {error}", self.name))
    }

    fn arrangement(&self, before: &[u32], form: Form) -> Arrangement {
        Arrangement { context: CONTEXT.into(), rows: ROWS.into(), cuts: before.to_vec(), form }
    }

    /// Returns the oracle of the quantised model, cut and chunked in the same way.
    fn oracle(&self, before: &[u32], ports: Vec<(PortSide, Role, Encoding)>) -> ReferenceModel<'_> {
        let encodings = Encodings { ports, ..Encodings::of(&A16W8, &self.ranges) };
        ReferenceModel::new_encoded(&self.graph, self.arrangement(before, Form::ByRuntime), encodings)
            .unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }
}

/// Splits the tokens for every kind of step: a prompt in whole chunks and a remainder, single
/// tokens, and many rows with logits for each.
fn split(ids: &[u32]) -> (&[u32], &[u32], &[u32]) {
    let (rest, scored) = ids.split_at(ids.len() - 2 * ROWS as usize);
    let (prompt, single) = rest.split_at(rest.len() - 4);
    assert!(!(prompt.len() - 1).is_multiple_of(ROWS as usize));
    (prompt, single, scored)
}

fn walk(chain: &Chain, ids: &[u32]) -> Vec<Vec<f32>> {
    let (prompt, single, scored) = split(ids);
    let mut session = chain.session().expect("a session");
    let mut seen = Vec::new();
    for ids in std::iter::once(prompt).chain(single.chunks(1)) {
        session.append(ids).unwrap_or_else(|error| panic!("{error}"));
        seen.push(session.logits().expect("logits follow an append").to_vec());
    }
    let mut visit = |step: &mut shardwright_runtime::StepView<'_>| {
        seen.extend((0..step.rows()).map(|row| step.logits(row).expect("a scored row").to_vec()));
    };
    session.score(scored, &mut visit).unwrap_or_else(|error| panic!("{error}"));
    seen
}

fn walk_oracle(oracle: &ReferenceModel<'_>, ids: &[u32]) -> Vec<Vec<f32>> {
    let (prompt, single, scored) = split(ids);
    let (&last, before) = prompt.split_last().expect("a prompt");
    let mut sequence = oracle.start();
    oracle.prefill(&mut sequence, before).expect("a reference");
    let mut seen = Vec::new();
    for ids in [last].iter().chain(single).map(std::slice::from_ref).chain([scored]) {
        let trace = oracle.decode(&mut sequence, ids, false).expect("a reference");
        let logits = trace.logits.expect("logits");
        seen.extend((0..ids.len()).map(|row| logits.row(row)));
    }
    seen
}

/// Returns the largest distance in steps of the logits' encoding, and the number of logits that
/// differ at all.
fn apart(actual: &[Vec<f32>], expected: &[Vec<f32>], step: f32) -> (f32, usize) {
    assert_eq!(actual.len(), expected.len());
    let pairs = actual.iter().flatten().zip(expected.iter().flatten());
    let steps = pairs.map(|(actual, expected)| ((actual - expected) / step).abs().round());
    let (mut most, mut differ) = (0.0_f32, 0);
    for steps in steps {
        assert!(!steps.is_nan());
        most = most.max(steps);
        differ += usize::from(steps > 0.0);
    }
    (most, differ)
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Returns the step of the logits' encoding.
fn logits_step(chain: &Chain) -> f32 {
    let head = chain.description().shards.last().expect("a head");
    let port = head.entries[0].ports.iter().find(|port| port.role == Role::Logits).expect("logits");
    port.encoding.expect("encoded logits").scale.get()
}

/// Computes the cosines between rows of logits, in ascending order.
fn cosines(actual: &[Vec<f32>], expected: &[Vec<f32>]) -> Vec<f64> {
    let mut cosines: Vec<f64> = actual.iter().zip(expected).map(|(a, b)| cosine(a, b)).collect();
    cosines.sort_by(f64::total_cmp);
    cosines
}

/// Two implementations that share only the definition agree in every bit of every logit. The
/// formats cause the distance between the quantised model and the model in floats. Generated
/// weights and tokens amplify it a lot.
#[test]
fn the_picky_shim_gives_what_the_oracle_says_the_quantised_model_gives() {
    for model in Calibrated::all() {
        let chain = model.chain(&[], &as_inside);
        let actual = walk(&chain, &model.ids);
        let expected = walk_oracle(&model.oracle(&[], Vec::new()), &model.ids);
        let (steps, differ) = apart(&actual, &expected, logits_step(&chain));
        assert_eq!(differ, 0, "{}: logits differ, by up to {steps} steps", model.name);

        let float = ReferenceModel::new(&model.float, model.arrangement(&[], Form::Semantic));
        let cosines = cosines(&actual, &walk_oracle(&float.expect("a reference"), &model.ids));
        let (least, median) = (cosines[0], cosines[cosines.len() / 2]);
        println!("{}: no logit differs; cosine to floats {median:.4}, at least {least:.4}", model.name);
        let bound = if model.name == DEMO_MODEL { 0.99 } else { 0.8 };
        assert!(median > bound, "{}: cosine {median} to the model in floats", model.name);
    }
}

/// The results are the same whether the graph writes the states, on the CPU shim, or the runtime
/// does.
#[test]
fn both_kinds_of_update_give_the_same_numbers() {
    for model in Calibrated::all() {
        let by_runtime = walk_oracle(&model.oracle(&[], Vec::new()), &model.ids);
        let encodings = Encodings::of(&A16W8, &model.ranges);
        let arrangement = model.arrangement(&[], Form::Decomposed);
        let in_graph =
            ReferenceModel::new_encoded(&model.graph, arrangement, encodings).expect("a reference");
        let in_graph = walk_oracle(&in_graph, &model.ids);
        let chain = model.chain(&[], &as_inside);
        let step = logits_step(&chain);
        assert_eq!(apart(&in_graph, &by_runtime, step).1, 0, "{}: the oracle, in either form", model.name);

        // The CPU shim supports more. Here it is shown primitives and state updates, as another
        // chip would need them.
        let cpu = shims().open("cpu", "cpu", &[("threads".to_owned(), "1".to_owned())]).expect("a CPU shim");
        let device = cpu.devices(None).expect("devices")[0].name.clone();
        let check = |shown: &EntryGraph| {
            let mut verdicts = cpu.check(&device, shown, &model.graph.weights)?;
            for (node, verdict) in shown.nodes.iter().zip(&mut verdicts) {
                if node.op.is_semantic() && node.op != Op::StateUpdate {
                    *verdict = NodeVerdict::refused("compared in primitives");
                }
            }
            Ok::<_, ShimError>(verdicts)
        };
        let formatted = model.formatted();
        let shards = formatted.legalise_with(&numbers_menu(), &[], &as_inside, check);
        let shards = shards.unwrap_or_else(|error| panic!("{}: {error}", model.name));
        assert!(shards.iter().flat_map(|shard| &shard.entries).all(|legal| legal.by_runtime.is_empty()));
        let chain = formatted.chain(&shards, &cpu).unwrap_or_else(|error| panic!("{}: {error}", model.name));
        let actual = walk(&chain, &model.ids);
        let (steps, differ) = apart(&actual, &in_graph, step);
        let least = cosines(&actual, &in_graph)[0];
        println!(
            "{}: {differ} logits of the CPU shim differ, by up to {steps} steps; cosine {least:.7}",
            model.name
        );
        assert!(
            least > 0.9999,
            "{}: cosine {least}, {differ} logits differ, by up to {steps} steps",
            model.name
        );
    }
}

/// Returns the layers before which each model is cut, into two and into three.
fn cuts(graph: &Graph) -> [Vec<u32>; 3] {
    let layers = graph.layers();
    [vec![1], vec![layers / 2], vec![1, layers - 1]]
}

/// Both sides of a cut have the encoding of one range, so there are no conversions, neither within
/// a shard nor between two.
#[test]
fn cuts_convert_nothing_and_change_no_bit() {
    for model in Calibrated::all() {
        let whole = walk(&model.chain(&[], &as_inside), &model.ids);
        // The last cuts include the first. The evaluators are slow, above all for the demo model.
        let few = if model.name == DEMO_MODEL { 2 } else { 1 };
        for before in cuts(&model.graph).into_iter().skip(cases(few, 0)) {
            let chain = model.chain(&before, &as_inside);
            let actual = walk(&chain, &model.ids);
            let (_, differ) = apart(&actual, &whole, logits_step(&chain));
            assert_eq!(differ, 0, "{} before {before:?}", model.name);
            let (_, differ) = apart(
                &actual,
                &walk_oracle(&model.oracle(&before, Vec::new()), &model.ids),
                logits_step(&chain),
            );
            assert_eq!(differ, 0, "{} before {before:?}: against the oracle cut alike", model.name);

            let boundaries = chain.session().expect("a session").placement().boundaries;
            assert!(boundaries.len() > before.len(), "{}", model.name);
            for boundary in boundaries {
                assert_eq!(boundary.copied_because, None, "{} before {before:?}: {boundary:?}", model.name);
            }
        }
    }
}

/// A boundary in 16-bit integers with a different step than the inside: each side has a conversion,
/// which the shim accepts.
#[test]
fn a_port_in_other_steps_is_converted_on_both_sides() {
    let model = Calibrated::new(TEXT_FIXTURES[1]);
    let wide = Encoding::affine_over(-200.0, 100.0, 16);
    let ports = |entry: &EntryGraph, _: PortSide, role: &Role| {
        (entry.segments.has(ComponentKind::Decoder) && *role == Role::Hidden).then_some(wide)
    };
    let chain = model.chain(&[2], &ports);
    let actual = walk(&chain, &model.ids);
    // The oracle encodes the ports of every component that way. The residual stream passes through
    // all of them anyway.
    let everywhere = [PortSide::Input, PortSide::Output].map(|side| (side, Role::Hidden, wide)).to_vec();
    let all = |_: &EntryGraph, _: PortSide, role: &Role| (*role == Role::Hidden).then_some(wide);
    let alike = walk(&model.chain(&[2], &all), &model.ids);
    let expected = walk_oracle(&model.oracle(&[2], everywhere), &model.ids);
    let (_, differ) = apart(&alike, &expected, logits_step(&chain));
    assert_eq!(differ, 0);
    let whole = walk(&model.chain(&[], &as_inside), &model.ids);
    let (steps, differ) = apart(&actual, &whole, logits_step(&chain));
    assert!(steps > 0.0 && differ > 0, "coarser steps are seen");

    let shim = picky::open(&[]);
    let shards = model.formatted().legalise(&numbers_menu(), &[2], &shim, &ports).expect("it is taken");
    let conversions = |shard: &picky::LegalShard| {
        let decode = shard.entries.last().expect("entries");
        decode.graph.nodes.iter().filter(|node| node.op == Op::Convert).count()
    };
    let counts: Vec<usize> =
        shards.iter().filter(|shard| shard.component == ComponentKind::Decoder).map(conversions).collect();
    assert_eq!(counts, [2, 2]);
}

/// The new rows of a state are outputs, the state itself is bound for reading, and no run gets a
/// position or a slot.
#[test]
fn what_a_picky_shard_binds() {
    let model = Calibrated::new(TEXT_FIXTURES[1]);
    let chain = model.chain(&[2], &as_inside);
    let mut by_runtime = 0;
    for shard in &chain.description().shards {
        for entry in &shard.entries {
            for port in &entry.ports {
                let encoding = port.encoding.unwrap_or_else(|| panic!("{}", port.name));
                assert_eq!(encoding.element, DType::U16, "{}", port.name);
                assert!(!matches!(port.role, Role::Positions | Role::Slots { .. }), "{}", port.name);
                assert!(port.direction != shardwright_shims::Direction::State, "{}", port.name);
                by_runtime += usize::from(matches!(port.role, Role::StateRows { .. }));
            }
        }
    }
    // Entry points for prefill, for decoding one row, and for decoding several.
    assert_eq!(by_runtime, 3 * model.graph.states.len());
}

/// A limit on the number of operations is not a verdict on a node. Compiling fails instead, with
/// the numbers a planner needs.
#[test]
fn a_limit_on_operations_is_reported_when_compiling() {
    let model = Calibrated::new(TEXT_FIXTURES[3]);
    let shim = picky::open(&[("ops-limit", "300")]);
    let limits = shim.limits("picky").expect("limits");
    assert_eq!(
        limits.iter().map(|limit| (limit.name.as_str(), limit.value)).collect::<Vec<_>>(),
        [("ops", 300)]
    );
    let (formatted, menu) = (model.formatted(), numbers_menu());
    let shards = formatted.legalise(&menu, &[], &shim, &as_inside).expect("every node is taken");
    let error = formatted.chain(&shards, &shim).expect_err("too many operations");
    assert_eq!(error.class(), Some(ErrorClass::ResourceLimit), "{error}");
    let detail = |key: &str| {
        let details = error.details();
        details.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone()).unwrap_or_default()
    };
    assert_eq!((detail("limit").as_str(), detail("max").as_str()), ("ops", "300"));
    let largest = shards.iter().flat_map(|shard| &shard.entries).map(|legal| legal.graph.nodes.len());
    assert!(largest.map(|ops| ops.to_string()).any(|ops| ops == detail("value")));
    let shards = formatted.legalise(&menu, &[1, 2, 3], &shim, &as_inside).expect("every node is taken");
    formatted.chain(&shards, &shim).expect("a layer has fewer operations");
}

#[test]
fn options_that_are_not_there_are_refused() {
    for (key, value, words) in
        [("no-op", "sideways", "`sideways`"), ("ops-limit", "many", "`many`"), ("nicer", "1", "`nicer`")]
    {
        let options = [(key.to_owned(), value.to_owned())];
        let error = picky::registry().open("picky", "picky", &options).expect_err(key);
        assert!(error.to_string().contains(words), "{error}");
    }
}

/// An encoder has no states. Its rows see each other through a mask of their own.
#[test]
fn an_encoder_is_taken_and_agrees() {
    // Texts of the second fixture have values beyond the calibrated ranges.
    let least = [0.98, 0.97];
    EMBEDDING_FIXTURES.into_iter().zip(least).for_each(|(folder, least)| encoder_agrees(folder, least));
}

fn encoder_agrees(folder: &str, least: f64) {
    let model = Calibrated::new(folder);
    let (shim, formatted) = (picky::open(&[]), model.formatted());
    let menu = encode_menu(24);
    let shards = formatted.legalise(&menu, &[1], &shim, &as_inside).unwrap_or_else(|error| panic!("{error}"));
    let masks = shards.iter().flat_map(|shard| &shard.entries).flat_map(|legal| &legal.graph.inputs);
    let masks = masks.filter(|(_, role)| matches!(role, Role::Mask(mask) if mask.keys == Keys::Rows));
    assert!(masks.count() > 0);
    let chain = formatted.chain(&shards, &shim).expect("it is taken");
    let arrangement = Arrangement { context: 24, rows: 24, cuts: vec![1], form: Form::ByRuntime };
    let oracle = ReferenceModel::new_encoded(&model.graph, arrangement, formatted.encodings.clone());
    let oracle = oracle.expect("a reference");
    let float = ReferenceModel::new(&model.float, Arrangement::whole(24)).expect("a reference");
    for length in [24, 1, 17] {
        let ids = &model.ids[..length];
        let actual =
            chain.session().expect("a session").encode(ids).unwrap_or_else(|error| panic!("{error}"));
        let expected = oracle.embedding(ids).expect("a reference");
        assert_eq!(actual, expected, "{length} tokens");
        let cosine = cosine(&actual, &float.embedding(ids).expect("a reference"));
        println!("{folder}, {length} tokens: cosine to floats {cosine:.5}");
        assert!(cosine > least, "{folder}, {length} tokens: {cosine}");
    }
}

/// For any shape and any cut, the legalised model agrees with the oracle bit by bit.
#[test]
fn checkpoints_of_other_shapes_agree_wherever_they_are_cut() {
    const SEEDS: std::ops::Range<u64> = 0..16;
    for seed in SEEDS {
        let mut random = Random::new(seed, "legal shape");
        let spec = random_spec(&mut random, seed);
        let model = Calibrated::of(format!("{seed}: {spec:?}"), made(&spec));
        let layers = u64::from(model.graph.layers());
        let mut before: Vec<u32> = (1..layers as u32).filter(|_| random.below(layers) < 2).collect();
        before.truncate(3);
        let chain = model.chain(&before, &as_inside);
        let actual = walk(&chain, &model.ids);
        let expected = walk_oracle(&model.oracle(&before, Vec::new()), &model.ids);
        let (steps, differ) = apart(&actual, &expected, logits_step(&chain));
        assert_eq!(differ, 0, "{steps} steps, before {before:?}: {}", model.name);
    }
}
