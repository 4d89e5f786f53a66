//! The C example, compiled here, runs a decoder layer; the Rust example what it takes of one.

use std::time::Duration;

use crate::common::{
    self, CONTEXT, HIDDEN, KEY, Shims, decoder, decoder_weights, doubling, f32_bytes, f32_values, i32_bytes,
};
use shardwright_graph::{Attention, KeySource, Op};
use shardwright_shims::{
    Artefact, Bound, Buffer, Direction, LoadedShard, Place, RunOptions, ShimError, ShimInstance, Update,
    WorkOrder, WorkOrderBuilder,
};
use shardwright_vocabulary::{Compatibility, EntryKind, ErrorClass};

fn order() -> WorkOrder {
    let weights = decoder_weights();
    WorkOrderBuilder::new(&weights)
        .entry(&decoder(EntryKind::Prefill, 4, 4))
        .unwrap()
        .entry(&decoder(EntryKind::Decode, 1, 4))
        .unwrap()
        .temporary()
        .unwrap()
}

fn open() -> (Shims, ShimInstance) {
    let shims = Shims::new();
    shims.template();
    let instance = shims.registry().open("template-c", "decoder", &[]).unwrap();
    (shims, instance)
}

/// A shard with its states.
struct Session {
    shard: LoadedShard,
    states: [Buffer; 2],
}

impl Session {
    fn new(instance: &ShimInstance, artefact: &Artefact) -> Session {
        let state = || instance.allocate("cpu", CONTEXT * KEY * 4, 64).unwrap();
        Session { shard: instance.load("cpu", artefact, &[]).unwrap(), states: [state(), state()] }
    }

    /// Runs rows at consecutive positions.
    fn run(&mut self, entry: &str, position: i32, hidden: &[f32]) -> Result<Vec<f32>, ShimError> {
        let entry = self.shard.entry(entry).unwrap();
        let told = self.shard.entries()[entry].clone();
        let capacity = told.interface.point.rows as usize;
        let rows = hidden.len() / HIDDEN as usize;
        let mut padded = hidden.to_vec();
        padded.resize(capacity * HIDDEN as usize, 1e6);
        let padded = f32_bytes(&padded);
        let positions: Vec<i32> = (position..).take(capacity).collect();
        let slots: Vec<i32> = (0..capacity)
            .map(|row| if row < rows { (position + row as i32) % CONTEXT as i32 } else { -1 })
            .collect();
        let (positions, slots) = (i32_bytes(&positions), i32_bytes(&slots));
        let mut output = vec![0_u8; padded.len()];
        let mut result = Some(&mut output[..]);
        let mut bound: Vec<Bound<'_>> = told
            .bindings
            .iter()
            .map(|binding| match (binding.port.name.as_str(), binding.port.direction) {
                ("hidden", _) => Bound::Read(&padded),
                ("positions", _) => Bound::Read(&positions),
                ("slots", _) => Bound::Read(&slots),
                ("layer.0.k", Direction::State) => Bound::Buffer(&self.states[0]),
                ("layer.0.v", Direction::State) => Bound::Buffer(&self.states[1]),
                (_, Direction::Output) => Bound::Write(result.take().unwrap()),
                other => panic!("{other:?}"),
            })
            .collect();
        self.shard.run(entry, rows as u64, &mut bound, RunOptions::default())?;
        drop(bound);
        Ok(f32_values(&output)[..hidden.len()].to_vec())
    }
}

fn rows(count: usize) -> Vec<f32> {
    (0..count * HIDDEN as usize).map(|index| (index * 5 % 13) as f32 / 4.0 - 1.5).collect()
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
    let artefact = instance.compile("cpu", &order, Place::Temporary, &mut ()).unwrap();
    let again = instance.compile("cpu", &order, Place::Temporary, &mut ()).unwrap();
    assert_eq!(artefact.name(), again.name(), "the same order gives the same bytes");
    assert_eq!(instance.compatibility("cpu", &artefact).unwrap(), Compatibility::Optimal);

    // At position 0 a query sees its own key alone: the result is its value in both heads, plus the
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
    // Rows that are not valid were never written.
    assert!(f32_values(&session.states[0].read().unwrap())[2..].iter().all(|&value| value == 0.0));

    // Six rows one by one, or four and two: bit for bit the same, in the results and in the states.
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
    assert_eq!(verdicts[0].reason, "this shim does not have operation 10");
    assert_eq!(verdicts[attention].reason, "this shim attends to states only");
    assert_eq!(verdicts.iter().filter(|verdict| !verdict.accepted).count(), 2);

    let mut entry = decoder(EntryKind::Decode, 1, 4);
    let residual = entry.nodes.last_mut().unwrap();
    residual.op = Op::Sub;
    let weights = decoder_weights();
    let order = WorkOrderBuilder::new(&weights).entry(&entry).unwrap().temporary().unwrap();
    let error = instance.compile("cpu", &order, Place::Temporary, &mut ()).unwrap_err();
    assert_eq!(error.class(), Some(ErrorClass::UnsupportedOp));
    assert_eq!(error.details(), [("layer".to_owned(), "0".to_owned())]);
    assert!(error.to_string().contains("node `residual`: this shim does not have operation 65"), "{error}");

    let device = instance.check("npu", &entry, &weights).unwrap_err();
    assert_eq!(device.class(), Some(ErrorClass::InvalidArgument));
    let option = instance.shim().open("x", &[("fast".to_owned(), "1".to_owned())]).unwrap_err();
    assert!(option.to_string().contains("unknown option `fast`"), "{option}");
    let artefact = instance.compile("cpu", &self::order(), Place::Temporary, &mut ()).unwrap();
    let load = |key: &str| instance.load("cpu", &artefact, &[(key.to_owned(), "2".to_owned())]);
    assert!(load("threads").is_ok());
    assert!(load("speed").unwrap_err().to_string().contains("unknown option `speed`"));
}

/// Replaces a text that must be there.
fn replaced(text: String, from: &str, to: &str) -> String {
    assert!(text.contains(from), "`{from}` is gone");
    text.replacen(from, to, 1)
}

/// Structs as the least a shim may give, each with the first member that its header does not have.
const LEAST: [(&str, &str); 7] = [
    ("sw_error", "const char *log_tail;"),
    ("sw_description", "const char *vendor_library;"),
    ("sw_device", "uint64_t memory_bytes;"),
    ("sw_limit", "const char *note;"),
    ("sw_estimate", "uint64_t operations;"),
    ("sw_placement", "const char *reason;"),
    ("sw_table", "void (*cancel)"),
];

/// A file of the C example as it was written against a header that knows nothing beyond the least
/// sizes.
fn earlier(file: &str, text: String) -> String {
    match file {
        "shim.h" => {
            let mut text = text;
            let mut proof = String::new();
            for (name, first) in LEAST {
                let start = text.find(&format!("struct {name} {{")).unwrap();
                let from = start + text[start..].find(first).unwrap();
                let to = from + text[from..].find("\n}").unwrap();
                text.replace_range(from..to, "");
                let least = format!("SW_MINIMUM_{}", name["sw_".len()..].to_uppercase());
                proof += &format!("SW_STATIC_ASSERT(sizeof(struct {name}) == {least}, \"{name}\");\n");
            }
            replaced(text, "\nSW_EXPORT void", &format!("\n{proof}SW_EXPORT void"))
        }
        "shim.c" => {
            let text = replaced(text, "        .note = \"size of this shim's tables\",\n", "");
            let text = replaced(text, "    .cancel = cancel,\n", "");
            replaced(text, "static void cancel(", "void cancel(sw_shard *shard);\nvoid cancel(")
        }
        "error.c" => {
            let start = "static void add_detail(sw_error *error, const char *key, const char *value) {\n";
            let text = replaced(
                text,
                start,
                &format!("{start}    (void)error, (void)key, (void)value;\n}}\n#if 0\n"),
            );
            replaced(text, "sw_error *fail(uint32_t", "#endif\nsw_error *fail(uint32_t")
        }
        _ => text,
    }
}

/// A file of the C example as it will be written against a later minor version: two more words in
/// every struct, which it sets.
fn later(file: &str, text: String) -> String {
    match file {
        "shim.h" => {
            let mut found = 0;
            let lines = text.lines().map(|line| {
                let closes = line == "};" || (line.starts_with("} sw_") && line.ends_with(';'));
                found += u32::from(closes);
                if closes { format!("    uint64_t later[2];\n{line}\n") } else { format!("{line}\n") }
            });
            let text = lines.collect();
            assert!(found > 40, "{found} structs");
            text
        }
        "shim.c" => {
            let set = ".later = {~0ull, ~0ull},";
            let text = text.replace(".size = sizeof told,", &format!(".size = sizeof told, {set}"));
            let text = ["description", "device", "limit", "verdict"].iter().fold(text, |text, name| {
                let size = format!(".size = sizeof {name},");
                replaced(text, &size, &format!("{size} {set}"))
            });
            replaced(text, ".size = sizeof(sw_table),", &format!(".size = sizeof(sw_table), {set}"))
        }
        _ => text,
    }
}

/// What the C example says of itself, and what it computes.
fn says_and_runs(instance: &ShimInstance) -> (Vec<f32>, Vec<f32>) {
    let verdicts = instance.check("cpu", &decoder(EntryKind::Decode, 1, 4), &decoder_weights()).unwrap();
    assert!(verdicts.iter().all(|verdict| verdict.accepted), "{verdicts:?}");
    let limit = instance.limits("cpu").unwrap().remove(0);
    assert_eq!((limit.name.as_str(), limit.value), ("ops", 65_536));
    let device = instance.devices(None).unwrap().remove(0);
    assert_eq!((device.name.as_str(), device.memory_bytes), ("cpu", 0));
    assert!(device.memory_kinds.host() && !device.memory_kinds.shim());
    assert!(!instance.shim().inspects() && instance.shim().compiles() && instance.shim().runs());
    assert_eq!(instance.shim().description().vendor_library, None);
    assert_eq!(instance.shim().description().instance_limit, 0);
    let refused = instance.check("npu", &decoder(EntryKind::Decode, 1, 4), &decoder_weights());
    let refused = refused.unwrap_err();
    assert_eq!(refused.class(), Some(ErrorClass::InvalidArgument));
    assert!(refused.to_string().contains("there is no device `npu`"), "{refused}");

    let artefact = instance.compile("cpu", &order(), Place::Temporary, &mut ()).unwrap();
    assert_eq!(instance.compatibility("cpu", &artefact).unwrap(), Compatibility::Optimal);
    let mut session = Session::new(instance, &artefact);
    let result = session.run("prefill_4@8", 0, &rows(4)).unwrap();
    let state = f32_values(&session.states[0].read().unwrap());
    (result, state)
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
        let isolated = registry.open_isolated("template-c", age, &[], &common::isolation()).unwrap();
        assert_eq!(says_and_runs(&isolated), expected, "{age}, in a worker");
        let (note, details) = if age == "earlier" { ("", 0) } else { ("size of this shim's tables", 1) };
        assert_eq!(instance.limits("cpu").unwrap()[0].note, note);
        assert_eq!(instance.check("npu", &doubling(), &[]).unwrap_err().details().len(), details);
    }
}

#[test]
fn a_deadline_ends_a_run() {
    let (_shims, instance) = open();
    let artefact = instance.compile("cpu", &order(), Place::Temporary, &mut ()).unwrap();
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
    let artefact = instance.compile("cpu", &order(), Place::Temporary, &mut ()).unwrap();
    let original = artefact.payload().to_vec();
    let head = artefact.shim_head().to_vec();
    let mut refused = 0;
    // The host's hash would stop all of these; here the shim stands alone.
    for position in (0..original.len().min(4096)).step_by(11) {
        for value in [0xff, original[position] ^ 0x04] {
            let mut damaged = original.clone();
            damaged[position] = value;
            let damaged = common::reseal(&artefact, &damaged, &head);
            match instance.load("cpu", &damaged, &[]) {
                Ok(mut shard) => {
                    // It still fits together: then it must also run without harm, or the host sees
                    // another interface.
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
