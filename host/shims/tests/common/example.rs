//! The C example, unchanged or as written against other headers, and a decoder layer that runs on
//! it.

use shardwright_shims::{
    Artefact, ArtefactDestination, Bound, Buffer, Direction, Heads, LoadedShard, RunOptions, ShimError,
    ShimInstance, WorkOrder, WorkOrderBuilder,
};
use shardwright_vocabulary::{Compatibility, EntryKind, ErrorClass};

use super::{CONTEXT, HIDDEN, KEY, decoder, decoder_weights, f32_bytes, f32_values, i32_bytes};

pub fn order() -> WorkOrder {
    let weights = decoder_weights();
    WorkOrderBuilder::new(&weights)
        .entry(&decoder(EntryKind::Prefill, 4, 4))
        .unwrap()
        .entry(&decoder(EntryKind::Decode, 1, 4))
        .unwrap()
        .temporary()
        .unwrap()
}

/// A shard with its states.
pub struct Session {
    pub shard: LoadedShard,
    pub states: [Buffer; 2],
}

impl Session {
    pub fn new(instance: &ShimInstance, artefact: &Artefact) -> Session {
        let state = || instance.allocate("cpu", CONTEXT * KEY * 4, 64).unwrap();
        Session { shard: instance.load("cpu", artefact, &[]).unwrap(), states: [state(), state()] }
    }

    /// Runs rows at consecutive positions.
    pub fn run(&mut self, entry: &str, position: i32, hidden: &[f32]) -> Result<Vec<f32>, ShimError> {
        let entry = self.shard.entry(entry).unwrap();
        let loaded = self.shard.entries()[entry].clone();
        let capacity = loaded.interface.point.rows as usize;
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
        let mut bound: Vec<Bound<'_>> = loaded
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

pub fn rows(count: usize) -> Vec<f32> {
    (0..count * HIDDEN as usize).map(|index| (index * 5 % 13) as f32 / 4.0 - 1.5).collect()
}

/// Replaces a text, which must exist.
fn replaced(text: String, from: &str, to: &str) -> String {
    assert!(text.contains(from), "`{from}` is gone");
    text.replacen(from, to, 1)
}

/// The smallest structs a shim may pass, each with the first member that its header does not have.
const LEAST: [(&str, &str); 7] = [
    ("sw_error", "const char *log_tail;"),
    ("sw_description", "const char *vendor_library;"),
    ("sw_device", "uint64_t memory_bytes;"),
    ("sw_limit", "const char *note;"),
    ("sw_estimate", "uint64_t operations;"),
    ("sw_placement", "const char *reason;"),
    ("sw_table", "void (*cancel)"),
];

/// Changes a file of the C example as if it was written against a header with only the smallest
/// structs.
pub fn earlier(file: &str, text: String) -> String {
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

/// Changes a file of the C example as if it was written against a later minor version: every struct
/// has two more words, which it sets.
pub fn later(file: &str, text: String) -> String {
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

/// Returns the C example's report about itself and its computed results.
pub fn says_and_runs(instance: &ShimInstance) -> (Vec<f32>, Vec<f32>) {
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
    assert!(refused.to_string().contains("unknown device `npu`"), "{refused}");

    let artefact = instance.compile("cpu", &order(), ArtefactDestination::Temporary, &mut ()).unwrap();
    assert_eq!(instance.compatibility("cpu", &Heads::of(&artefact)).unwrap(), Compatibility::Optimal);
    let mut session = Session::new(instance, &artefact);
    let result = session.run("prefill_4@8", 0, &rows(4)).unwrap();
    let state = f32_values(&session.states[0].read().unwrap());
    (result, state)
}
