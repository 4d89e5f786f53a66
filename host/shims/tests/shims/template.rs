//! Tests of the examples. The C example, compiled here, runs a decoder layer. The Rust example runs
//! the part of one that it supports.

use std::time::Duration;

use crate::common::example::{Session, earlier, later, order, rows, says_and_runs};
use crate::common::{self, HIDDEN, Shims, decoder, decoder_weights, doubling, f32_values};
use shardwright_graph::{Attention, KeySource, Op};
use shardwright_shims::{
    ArtefactDestination, Bound, Buffer, Heads, RunOptions, ShimError, ShimInstance, Update, WorkOrderBuilder,
};
use shardwright_vocabulary::{Compatibility, EntryKind, ErrorClass};

fn open() -> (Shims, ShimInstance) {
    let shims = Shims::new();
    shims.template();
    let instance = shims.registry().open("template-c", "decoder", &[]).unwrap();
    (shims, instance)
}

#[test]
fn the_c_example_takes_a_decoder_layer_and_runs_it() {
    let (_shims, instance) = open();
    let device = instance.devices(None).unwrap().remove(0);
    assert!(device.memory_kinds.host() && instance.devices(Some("mt6989")).unwrap().is_empty());
    let verdicts = instance.check("cpu", &decoder(EntryKind::Decode, 1, 4), &decoder_weights()).unwrap();
    assert!(verdicts.iter().all(|verdict| verdict.accepted), "{verdicts:?}");
    assert_eq!(instance.limits("cpu").unwrap()[0].name, "ops");
    assert!(instance.flags("cpu").unwrap().is_empty());
    assert_eq!(instance.estimate("cpu", &doubling(), &[]).unwrap(), None);

    let order = order();
    let artefact = instance.compile("cpu", &order, ArtefactDestination::Temporary, &mut ()).unwrap();
    let again = instance.compile("cpu", &order, ArtefactDestination::Temporary, &mut ()).unwrap();
    assert_eq!(artefact.name(), again.name(), "the same order gives the same bytes");
    assert_eq!(instance.compatibility("cpu", &Heads::of(&artefact)).unwrap(), Compatibility::Optimal);

    // At position 0 a query sees only its own key. The result is its value in both heads, plus the
    // residual.
    let mut session = Session::new(&instance, &artefact);
    let k = session.shard.entries()[1].bindings.iter().find(|b| b.port.name == "layer.0.k").unwrap();
    assert_eq!(k.update, Update::InGraph);
    let x = [0.5, -1.0, 2.0, 0.25];
    let mean: f32 = x.iter().map(|x| x * x).sum::<f32>() / 4.0;
    let normed = [1.0, 0.5, 2.0, 1.5].map(|w| w / (mean + 1e-6).sqrt());
    let v = [x[0] * normed[0], x[1] * normed[1]];
    let out = session.run("decode_1@8", 0, &x).unwrap();
    let expected = [v[0] + x[0], v[1] + x[1], v[0] + x[2], v[1] + x[3]];
    for (got, want) in out.iter().zip(expected) {
        assert!((got - want).abs() < 1e-5, "{out:?} {expected:?}");
    }
    assert_eq!(f32_values(&session.states[1].read().unwrap())[..2], v);
    // Invalid rows were never written.
    assert!(f32_values(&session.states[0].read().unwrap())[2..].iter().all(|&value| value == 0.0));

    // Six rows one by one, or four and two, produce exactly the same results and states.
    let hidden = rows(6);
    let mut single = Session::new(&instance, &artefact);
    let one: Vec<f32> = hidden
        .chunks(HIDDEN as usize)
        .enumerate()
        .flat_map(|(position, row)| single.run("decode_1@8", position as i32, row).unwrap())
        .collect();
    let mut chunked = Session::new(&instance, &artefact);
    let mut four = chunked.run("prefill_4@8", 0, &hidden[..16]).unwrap();
    four.extend(chunked.run("prefill_4@8", 4, &hidden[16..]).unwrap());
    assert_eq!(one, four);
    for (a, b) in single.states.iter().zip(&chunked.states) {
        assert_eq!(&a.read().unwrap()[..], &b.read().unwrap()[..]);
    }
}

#[test]
fn the_c_example_refuses_with_reasons() {
    let (_shims, instance) = open();
    let mut entry = decoder(EntryKind::Decode, 1, 4);
    entry.nodes[0].op = Op::L2Normalize;
    let attention = entry.nodes.iter().position(|node| node.name == "attention").unwrap();
    if let Op::Attention(found) = entry.nodes[attention].op.clone() {
        entry.nodes[attention].op = Op::Attention(Attention { keys: KeySource::Rows, ..found });
    }
    let verdicts = instance.check("cpu", &entry, &decoder_weights()).unwrap();
    assert_eq!(verdicts[0].reason, "this shim does not support operation 10");
    assert_eq!(verdicts[attention].reason, "this shim only supports attention over states");
    assert_eq!(verdicts.iter().filter(|verdict| !verdict.accepted).count(), 2);

    let mut entry = decoder(EntryKind::Decode, 1, 4);
    let residual = entry.nodes.last_mut().unwrap();
    residual.op = Op::Sub;
    let weights = decoder_weights();
    let order = WorkOrderBuilder::new(&weights).entry(&entry).unwrap().temporary().unwrap();
    let error = instance.compile("cpu", &order, ArtefactDestination::Temporary, &mut ()).unwrap_err();
    assert_eq!(error.class(), Some(ErrorClass::UnsupportedOp));
    assert_eq!(error.details(), [("layer".to_owned(), "0".to_owned())]);
    assert!(
        error.to_string().contains("node `residual`: this shim does not support operation 65"),
        "{error}"
    );

    let device = instance.check("npu", &entry, &weights).unwrap_err();
    assert_eq!(device.class(), Some(ErrorClass::InvalidArgument));
    let option = instance.shim().open("x", &[("fast".to_owned(), "1".to_owned())]).unwrap_err();
    assert!(option.to_string().contains("unknown option `fast`"), "{option}");
    let artefact = instance.compile("cpu", &self::order(), ArtefactDestination::Temporary, &mut ()).unwrap();
    let load = |key: &str| instance.load("cpu", &artefact, &[(key.to_owned(), "2".to_owned())]);
    assert!(load("threads").is_ok());
    assert!(load("speed").unwrap_err().to_string().contains("unknown option `speed`"));
}

#[test]
fn shims_of_an_earlier_and_of_a_later_header_run_like_todays() {
    let (_shims, today) = open();
    let expected = says_and_runs(&today);
    assert_eq!(today.limits("cpu").unwrap()[0].note, "size of this shim's tables");
    assert_eq!(today.check("npu", &doubling(), &[]).unwrap_err().details().len(), 1);
    for (age, change) in [("earlier", earlier as fn(&str, String) -> String), ("later", later)] {
        let shims = Shims::new();
        shims.changed_template(change);
        let registry = shims.registry();
        let instance = registry.open("template-c", age, &[]).unwrap();
        assert_eq!(says_and_runs(&instance), expected, "{age}");
        let (note, details) = if age == "earlier" { ("", 0) } else { ("size of this shim's tables", 1) };
        assert_eq!(instance.limits("cpu").unwrap()[0].note, note);
        assert_eq!(instance.check("npu", &doubling(), &[]).unwrap_err().details().len(), details);
    }
}

#[test]
fn a_deadline_ends_a_run() {
    let (_shims, instance) = open();
    let artefact = instance.compile("cpu", &order(), ArtefactDestination::Temporary, &mut ()).unwrap();
    let mut session = Session::new(&instance, &artefact);
    assert_eq!(session.shard.entries()[1].bindings.len(), 6);
    let (input, out) = (Buffer::host(64, 64).unwrap(), Buffer::host(64, 64).unwrap());
    let names: Vec<String> =
        session.shard.entries()[1].bindings.iter().map(|binding| binding.port.name.clone()).collect();
    let states = session.states.clone();
    let mut bound: Vec<Bound<'_>> = names
        .iter()
        .map(|name| match name.as_str() {
            "layer.0.k" => Bound::Buffer(&states[0]),
            "layer.0.v" => Bound::Buffer(&states[1]),
            "residual.out" => Bound::Buffer(&out),
            _ => Bound::Buffer(&input),
        })
        .collect();
    let within = |deadline| RunOptions { deadline: Some(deadline), ..RunOptions::default() };
    let error = session.shard.run(1, 1, &mut bound, within(Duration::ZERO)).unwrap_err();
    assert_eq!(error.class(), Some(ErrorClass::Deadline));
    session.shard.run(1, 1, &mut bound, within(Duration::from_secs(60))).unwrap();
}

#[test]
fn a_damaged_artefact_of_the_c_example_is_refused_by_it() {
    let (_shims, instance) = open();
    let artefact = instance.compile("cpu", &order(), ArtefactDestination::Temporary, &mut ()).unwrap();
    let original = artefact.payload().to_vec();
    let head = artefact.shim_head().to_vec();
    let mut refused = 0;
    // The host's hash would detect all of these, so here only the shim checks.
    for position in (0..original.len().min(4096)).step_by(11) {
        for value in [0xff, original[position] ^ 0x04] {
            let mut damaged = original.clone();
            damaged[position] = value;
            let damaged = common::reseal(&artefact, &damaged, &head);
            match instance.load("cpu", &damaged, &[]) {
                Ok(mut shard) => {
                    // The artefact is still consistent. Then it must also run without harm, or the
                    // host sees another interface.
                    let entry = shard.entries()[1].clone();
                    let buffers: Vec<Buffer> = entry
                        .bindings
                        .iter()
                        .map(|binding| Buffer::host(binding.bytes, binding.alignment).unwrap())
                        .collect();
                    let mut bound: Vec<Bound<'_>> = buffers.iter().map(Bound::Buffer).collect();
                    shard.run(1, 1, &mut bound, RunOptions::default()).unwrap();
                }
                Err(error) => {
                    let known = matches!(error, ShimError::Contract { .. } | ShimError::Failed(_));
                    assert!(known, "{error:?}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 50, "{refused}");
}
