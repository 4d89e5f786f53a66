//! Every way to pass the evaluator an input that it cannot run.

use std::collections::BTreeSet;

use crate::support::{self, Recipe, point, toy};
use shardwright_graph::{ComponentKind, Encodings, EntryGraph, EntryOptions, Graph, Ranges, Role, StateId};
use shardwright_reference::step::{Step, step_input};
use shardwright_reference::{
    Arrangement, Array, Bindings, Evaluator, Form, ReferenceModel, States, Weights, widen,
};
use shardwright_vocabulary::{
    ActivationFormat, AttentionFormat, DType, EntryKind, Error, ErrorKind, FormatTuple, StateFormat,
    WeightFormat,
};

/// Checks the kind of an error and that it begins with `text`.
#[track_caller]
fn assert_is(error: &Error, kind: ErrorKind, text: &str) {
    assert!(error.kind() == kind && error.to_string().starts_with(text), "{error:?}");
}

const NO_TOKENS: &str = "no tokens were given";

fn decoder(graph: &Graph) -> EntryGraph {
    let options = EntryOptions::default();
    graph.entry(ComponentKind::Decoder, 0..4, point(EntryKind::Decode, 4, 32), options).unwrap().unwrap()
}

/// Returns everything that a run of the decoder needs.
fn bound(entry: &EntryGraph) -> Bindings {
    let mut bindings = Bindings::new();
    for (tensor, role) in &entry.inputs {
        let step = Step { first: 0, rows: 4, of: 4 };
        let array = match step_input(role, step, &[0; 4], &[]).unwrap() {
            Some(array) => array,
            None => {
                let tensor = entry.tensor(*tensor);
                Array::floats_of(&tensor.shape, vec![0.5; tensor.elements() as usize]).unwrap()
            }
        };
        if !matches!(role, Role::State { .. }) {
            bindings.bind(role.clone(), array);
        }
    }
    bindings
}

#[test]
fn what_is_bound_is_checked() {
    let graph = toy(&Recipe::sharing());
    let entry = decoder(&graph);
    let states = || States::new(&graph, &entry.point);
    let good = bound(&entry);
    let evaluator = Evaluator::new(entry.clone(), Weights::new(&graph.weights)).unwrap();
    let run = |bindings: &Bindings, states: &mut States, rows| evaluator.run(bindings, states, rows);
    run(&good, &mut states(), 4).unwrap();

    for rows in [0, 5, u64::MAX] {
        let error = run(&good, &mut states(), rows).unwrap_err();
        assert_is(&error, ErrorKind::Argument, &format!("expected 1 to 4 valid rows, got {rows}"));
        assert!(error.help().is_some());
    }
    let mut messages = BTreeSet::new();
    for (role, _) in good.iter() {
        let mut without = good.clone();
        without.take(role);
        let error = run(&without, &mut states(), 4).unwrap_err();
        assert_is(&error, ErrorKind::Argument, "entry `decode_4@32`: no tensor is bound to ");
        assert!(error.message().contains(role.name()), "{error}");
        assert!(messages.insert(error.message().to_owned()), "{error}");
        assert!(error.help().is_some());
    }
    let mut narrow = good.clone();
    narrow.bind(Role::Hidden, Array::floats_of(&[4, 7], vec![0.0; 28]).unwrap());
    let error = run(&narrow, &mut states(), 4).unwrap_err();
    let text = "entry `decode_4@32`: expected f32 [4, 8] for hidden, got f32 [4, 7]";
    assert_is(&error, ErrorKind::Argument, text);
    let mut float = good.clone();
    float.bind(Role::Positions, Array::floats_of(&[4], vec![0.0; 4]).unwrap());
    let error = run(&float, &mut states(), 4).unwrap_err();
    let text = "entry `decode_4@32`: expected i32 [4] for positions, got f32 [4]";
    assert_is(&error, ErrorKind::Argument, text);
    for slot in [-2, 9, i32::MAX, i32::MIN] {
        let mut astray = good.clone();
        let slots = Array::integers_of(&[4], vec![0, 1, slot, -1]).unwrap();
        astray.bind(Role::Slots { capacity: 9 }, slots);
        let error = run(&astray, &mut states(), 4).unwrap_err();
        let text = format!("slot {slot} of row 2 is outside a state of 9 rows");
        assert_is(&error, ErrorKind::Argument, &text);
    }

    let error = run(&good, &mut States::none(), 4).unwrap_err();
    assert_is(&error, ErrorKind::Argument, "state ");
    assert!(error.message().ends_with(", got no state") && error.help().is_some(), "{error}");
    let mut other = states();
    other.set(StateId(1), Array::floats_of(&[8, 4], vec![0.0; 32]).unwrap());
    let error = run(&good, &mut other, 4).unwrap_err();
    assert_is(&error, ErrorKind::Argument, "state 1: expected [9, ");
    assert!(error.message().ends_with(", got [8, 4]"), "{error}");
}

#[test]
fn a_failed_run_changes_no_state() {
    let graph = toy(&Recipe::sharing());
    let entry = decoder(&graph);
    let evaluator = Evaluator::new(entry.clone(), Weights::new(&graph.weights)).unwrap();
    let mut states = States::new(&graph, &entry.point);
    evaluator.run(&bound(&entry), &mut states, 4).unwrap();
    let before: Vec<Vec<f32>> =
        (0..4).map(|id| states.get(StateId(id)).unwrap().floats().into_owned()).collect();
    assert!(before.iter().all(|state| state.iter().any(|value| *value != 0.0)));
    let mut without = bound(&entry);
    without.take(&Role::Positions);
    evaluator.run(&without, &mut states, 4).unwrap_err();
    for (id, before) in before.iter().enumerate() {
        assert_eq!(states.get(StateId(id as u32)).unwrap().floats().as_ref(), before);
    }
}

#[test]
fn rows_beyond_the_valid_ones_change_nothing() {
    let graph = toy(&Recipe::sharing());
    let entry = decoder(&graph);
    let evaluator = Evaluator::new(entry.clone(), Weights::new(&graph.weights)).unwrap();
    let run = |beyond: f32| {
        let mut bindings = Bindings::new();
        let step = Step { first: 0, rows: 2, of: 4 };
        for (role, array) in bound(&entry).iter() {
            let array = step_input(role, step, &[0; 2], &[]).unwrap().unwrap_or_else(|| array.clone());
            bindings.bind(role.clone(), array);
        }
        let mut x = vec![0.25; 32];
        x[16..].fill(beyond);
        bindings.bind(Role::Hidden, Array::floats_of(&[4, 8], x).unwrap());
        let mut states = States::new(&graph, &entry.point);
        let outputs = evaluator.run(&bindings, &mut states, 2).unwrap();
        let hidden = outputs.get(&Role::Hidden).unwrap().first_rows(0, 2).into_floats();
        (hidden, (0..4).map(|id| states.get(StateId(id)).unwrap().floats().into_owned()).collect::<Vec<_>>())
    };
    assert_eq!(run(0.0), run(1e3));
}

#[test]
fn weights_are_checked_against_the_graph() {
    let mut graph = toy(&Recipe::sharing());
    let entry = decoder(&graph);
    let fails =
        |weights: &[shardwright_graph::Weight]| match Evaluator::new(entry.clone(), Weights::new(weights)) {
            Err(error) => error,
            Ok(_) => panic!("it was taken"),
        };
    let error = fails(&graph.weights[..3]);
    assert_is(&error, ErrorKind::Invalid, "constant `");
    assert!(error.message().starts_with("expected one of 3 weights, got weight "), "{error}");
    let used = entry.constants().next().unwrap().1.0 as usize;
    let good = graph.weights[used].clone();

    graph.weights[used].shape.reverse();
    graph.weights[used].shape.push(1);
    let error = fails(&graph.weights);
    assert_is(&error, ErrorKind::Invalid, &format!("weight `{}`: expected f32 ", good.name));

    graph.weights[used] = good.clone();
    graph.weights[used].dtype = DType::F16;
    let error = fails(&graph.weights);
    assert!(error.kind() == ErrorKind::Invalid && error.message().contains(", got f16 ["), "{error}");

    graph.weights[used] = good.clone();
    graph.weights[used].data = shardwright_graph::WeightData::from_vec(vec![0; 4]);
    let error = fails(&graph.weights);
    assert!(error.kind() == ErrorKind::Invalid && error.message().ends_with(" in 4 bytes"), "{error}");

    graph.weights[used].dtype = DType::I8;
    for error in [fails(&graph.weights), widen(&graph.weights[used]).unwrap_err()] {
        assert_eq!(
            (error.kind(), error.message()),
            (ErrorKind::Unsupported, "stored as i8, which is not supported")
        );
    }
}

#[test]
fn a_graph_that_is_not_well_formed_is_refused() {
    let graph = toy(&Recipe::sharing());
    let mut entry = decoder(&graph);
    entry.nodes.swap(0, 1);
    let Err(error) = Evaluator::new(entry, Weights::new(&graph.weights)) else { panic!("it was taken") };
    assert_is(&error, ErrorKind::Invalid, "entry `decode_4@32`: tensor `");
    assert_eq!(error.message(), "used before it is produced");
    assert!(error.help().is_some());
}

#[test]
fn arrays_hold_what_their_shape_says() {
    for (shape, count) in [(&[2_u64, 3][..], 5), (&[u64::MAX, 2], 0), (&[0, 7], 1)] {
        let error = Array::floats_of(shape, vec![0.0; count]).unwrap_err();
        let text = format!("{count} values do not fill a tensor of {shape:?}");
        assert_is(&error, ErrorKind::Argument, &text);
        assert!(Array::integers_of(shape, vec![0; count]).is_err());
    }
    let array = Array::floats_of(&[2, 2], vec![1.0, 2.0, 3.0, 4.0]).unwrap();
    assert_eq!((array.row(1), array.first_rows(0, 1).into_floats()), (vec![3.0, 4.0], vec![1.0, 2.0]));
    assert_eq!(array.first_rows(1, 1).into_floats(), [1.0, 3.0]);
    assert!(array.integers().is_empty());
}

#[test]
fn rows_for_the_runtime_are_placed_where_they_belong() {
    let graph = toy(&Recipe::sharing());
    let mut states = States::new(&graph, &point(EntryKind::Decode, 4, 32));
    let rows = Array::floats_of(&[2, 4], vec![1.0; 8]).unwrap();
    states.place(StateId(0), &rows, &[8, -1]).unwrap();
    assert_eq!(states.get(StateId(0)).unwrap().row(8), [1.0; 4]);
    assert_eq!(states.get(StateId(0)).unwrap().floats().iter().sum::<f32>(), 4.0);
    let error = states.place(StateId(0), &rows, &[9, 0]).unwrap_err();
    assert_is(&error, ErrorKind::Argument, "slot 9 of row 0 is outside a state of 9 rows");
    for (state, slots) in [(StateId(0), &[0][..]), (StateId(77), &[0, 1])] {
        let error = states.place(state, &rows, slots).unwrap_err();
        assert_is(&error, ErrorKind::Argument, &format!("state {}: expected [", state.0));
    }
}

#[test]
fn a_model_says_what_it_cannot_run() {
    let graph = toy(&Recipe::sharing());
    let encoder = toy(&Recipe::encoder());
    let small = Arrangement { rows: 4, ..Arrangement::whole(8) };
    for cuts in [vec![0], vec![4], vec![5], vec![2, 2], vec![3, 1]] {
        let arrangement = Arrangement { cuts, ..small.clone() };
        let Err(error) = ReferenceModel::new(&graph, arrangement) else { panic!("it was taken") };
        assert_is(&error, ErrorKind::Argument, "cuts [");
        assert!(error.message().ends_with("between 0 and 4 layers"), "{error}");
    }
    let model = ReferenceModel::new(&graph, small.clone()).unwrap();
    let error = model.logits(&[0; 9]).unwrap_err();
    assert_is(&error, ErrorKind::Context, "9 positions do not fit a context of 8");
    assert!(error.help().is_some());
    assert_is(&model.logits(&[]).unwrap_err(), ErrorKind::Argument, NO_TOKENS);
    assert_is(&model.greedy(&[], 1).unwrap_err(), ErrorKind::Argument, NO_TOKENS);
    assert_is(&model.negative_log_likelihoods(&[]).unwrap_err(), ErrorKind::Argument, NO_TOKENS);
    assert!(model.negative_log_likelihoods(&[1]).unwrap().is_empty());
    assert_is(&model.logits(&[99]).unwrap_err(), ErrorKind::Invalid, "token 99 needs row 99 of ");
    let error = model.embedding(&[1]).unwrap_err();
    assert!(error.kind() == ErrorKind::Internal && error.message().contains(" entry point: "), "{error}");
    let mut sequence = model.start();
    sequence.soft.insert(1, vec![0.5; 3]);
    let error = model.decode(&mut sequence, &[1, 1], false).unwrap_err();
    assert_is(&error, ErrorKind::Argument, "expected a soft row of ");
    assert!(error.message().ends_with(" values at position 1, got 3"), "{error}");

    let model = ReferenceModel::new(&encoder, small).unwrap();
    assert_is(&model.encode(&[], false).unwrap_err(), ErrorKind::Argument, NO_TOKENS);
    let error = model.encode(&[1; 5], false).unwrap_err();
    assert_is(&error, ErrorKind::Argument, "expected 1 to 4 valid rows, got 5");
    let error = model.logits(&[1]).unwrap_err();
    assert!(error.kind() == ErrorKind::Internal && error.message().contains(" entry point: "), "{error}");
    assert_eq!(model.embedding(&[1, 2]).unwrap().len(), 6);
}

#[test]
fn a_form_that_cannot_be_made_says_why() {
    // Layer 1 reads values of layer 0, which another shard wrote, and also keys that the driver
    // would have to place.
    let layers = vec![support::LayerRecipe::plain(); 2];
    let mut graph = toy(&Recipe { layers, ..Recipe::sharing() });
    let decoder =
        graph.components.iter_mut().find(|component| component.kind == ComponentKind::Decoder).unwrap();
    let output = |name: &str| decoder.nodes.iter().find(|node| node.name == name).unwrap().output;
    let values = output("layer.0.v-write");
    decoder.nodes.iter_mut().find(|node| node.name == "layer.1.attention").unwrap().inputs[2] = values;
    let arrangement = Arrangement { rows: 1, cuts: vec![1], ..Arrangement::whole(8) };
    for (form, possible) in [(Form::Semantic, true), (Form::Decomposed, true), (Form::ByRuntime, false)] {
        let model = ReferenceModel::new(&graph, Arrangement { form, ..arrangement.clone() }).unwrap();
        match model.logits(&[1]) {
            Ok(_) => assert!(possible),
            Err(error) => {
                assert!(!possible, "{error}");
                assert_is(&error, ErrorKind::Unsupported, "entry `");
                assert!(error.message().contains("`layer.1.k-write`"), "{error}");
            }
        }
    }
}

#[test]
fn attention_in_16_bits_has_no_other_form() {
    let graph = toy(&Recipe::sharing());
    let none = Ranges::new();
    let formats = FormatTuple { attention: AttentionFormat::Bf16, ..FormatTuple::F32 };
    let run = |form: Form| {
        let arrangement = Arrangement { rows: 3, form, ..Arrangement::whole(16) };
        ReferenceModel::new_encoded(&graph, arrangement, Encodings::of(&formats, &none))?.logits(&[1, 2])
    };
    run(Form::Semantic).unwrap();
    for form in [Form::Decomposed, Form::HalfWay, Form::ByRuntime] {
        let error = run(form).unwrap_err();
        assert_is(&error, ErrorKind::Unsupported, "entry `");
        assert!(error.message().contains(".attention`"), "{error}");
        assert!(error.message().contains("has no decomposition"), "{error}");
    }
}

#[test]
fn likelihoods_are_those_of_the_logits() {
    let graph = toy(&Recipe::sharing());
    let model = ReferenceModel::new(&graph, Arrangement { rows: 3, ..Arrangement::whole(16) }).unwrap();
    let ids = [1, 7, 3, 12, 5];
    let nats = model.negative_log_likelihoods(&ids).unwrap();
    let logits = model.logits(&ids).unwrap();
    for (row, (nats, &target)) in nats.iter().zip(&ids[1..]).enumerate() {
        let row = logits.row(row);
        let sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
        assert!((nats - (sum.ln() - f64::from(row[target as usize]))).abs() < 1e-9);
    }
    assert_eq!(nats.len(), 4);
    let greedy = model.greedy(&ids, 3).unwrap();
    let best = |row: Vec<f32>| (0..20).max_by(|&a, &b| row[a as usize].total_cmp(&row[b as usize])).unwrap();
    assert_eq!(greedy[0], best(logits.row(4)));
    assert_eq!(model.arrangement().form, Form::Semantic);
}

#[test]
fn ranges_that_are_missing_are_named() {
    let graph = toy(&Recipe::sharing());
    let arrangement = Arrangement { rows: 3, ..Arrangement::whole(16) };
    let none = Ranges::new();
    let made = |states, activations| {
        let formats = FormatTuple::uniform(WeightFormat::F32, activations, states);
        ReferenceModel::new_encoded(&graph, arrangement.clone(), Encodings::of(&formats, &none))
    };
    let is_key = |error: &Error, wanted: &str| {
        assert!(error.kind() == ErrorKind::Invalid && error.help().is_some(), "{error}");
        error.message().starts_with(&format!("no range of `{wanted}` is known"))
    };
    let Err(error) = made(StateFormat::A8, ActivationFormat::F32) else { panic!("it was taken") };
    assert!(is_key(&error, "decoder/state.layer.0.k"));
    let error = made(StateFormat::F16, ActivationFormat::A16).unwrap().logits(&[1]).unwrap_err();
    assert!(is_key(&error, "gathered@0"));
    made(StateFormat::F16, ActivationFormat::A8Dynamic).unwrap().logits(&[1]).unwrap();

    let formats = FormatTuple::uniform(WeightFormat::F32, ActivationFormat::F32, StateFormat::A8);
    let point = point(EntryKind::Decode, 4, 32);
    let error = States::encoded(&graph, &point, &Encodings::of(&formats, &none)).unwrap_err();
    assert!(is_key(&error, "decoder/state.layer.0.k"));
    let states = States::encoded(&graph, &point, &Encodings::counting(&formats)).unwrap();
    let existing = states.get(StateId(1)).unwrap();
    assert!(existing.dtype() == DType::U8 && existing.floats().iter().all(|&value| value == 0.0));
}

#[test]
fn observation_shows_every_tensor_once() {
    for recipe in [Recipe::sharing(), Recipe::encoder()] {
        let graph = toy(&recipe);
        let model = ReferenceModel::new(&graph, Arrangement { rows: 1, ..Arrangement::whole(1) }).unwrap();
        let mut seen: std::collections::BTreeMap<String, Vec<f32>> = Default::default();
        let text = [1, 5, 2, 7, 7, 3];
        model
            .observe(&text, &mut |key, values| {
                assert!(seen.insert(key.to_owned(), values.to_vec()).is_none(), "{key} twice");
            })
            .unwrap();
        let layers = graph.layers();
        for layer in 0..=layers {
            assert_eq!(seen[&format!("hidden@{layer}")].len(), text.len() * graph.hidden as usize);
        }
        assert_eq!(seen["hidden@2"], seen["decoder/layer.1.layer-scalar"]);
        assert_eq!(seen[&format!("hidden@{layers}")], seen["hidden@last"]);
        for state in &graph.states {
            // Six rows, and a ring buffer with more rows.
            assert_eq!(
                seen[&format!("decoder/state.{}", state.name)].len(),
                text.len() * state.width as usize
            );
        }
        let whole = Arrangement { rows: 6, ..Arrangement::whole(6) };
        let trace = ReferenceModel::new(&graph, Arrangement { form: Form::Decomposed, ..whole }).unwrap();
        let trace = trace.trace(&text).unwrap();
        for (layer, hidden) in trace.hidden.iter().enumerate() {
            assert_eq!(seen[&format!("hidden@{layer}")], hidden.floats().as_ref());
        }
        if recipe.encoder {
            assert!(seen.contains_key("pooling/embedding") && seen.contains_key("pooling/pooled"));
        } else {
            assert_eq!(seen["head/softcap"], trace.logits.unwrap().floats().as_ref());
            assert_eq!(seen["per-layer"], trace.per_layer.unwrap().floats().as_ref());
        }
        let error = model.observe(&[], &mut |_, _| ()).unwrap_err();
        assert_is(&error, ErrorKind::Argument, NO_TOKENS);
        let error = model.observe(&[99], &mut |_, _| ()).unwrap_err();
        assert_is(&error, ErrorKind::Invalid, "token 99 needs row ");
    }
}
