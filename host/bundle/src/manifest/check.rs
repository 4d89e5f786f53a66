//! Checks that a manifest is consistent: limits on everything that has a length, unique and
//! printable names, and sizes that match the described content.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde_json::Value;
use shardwright_graph::ComponentKind;
use shardwright_vocabulary::{
    ChosenSpeculation, DType, EntryKind, EntryName, FlagVerdict, FormatTuple, Pass, Result, Segment,
    SegmentFormats, Segments, ShardFormats,
};

use super::{
    AssetEntry, ChainEntry, FileReference, Manifest, Model, ShardEntry, Structure, TextFile, Variant,
};
use crate::Digest;
use crate::error::{inconsistent, too_large};

/// Maximum length of a name in bytes.
pub const NAME_BYTES_MAX: u64 = 1 << 10;

/// Maximum length of a sentence in bytes: a shim's evidence, a reason, a notice.
pub const TEXT_BYTES_MAX: u64 = 1 << 16;

/// Maximum size of a file in bytes: far beyond any device, far below overflow.
pub(crate) const FILE_BYTES: u64 = 1 << 42;

/// Maximum size of a file for text processing in bytes. Tokenizers of 262,144 tokens have 33 MB.
pub(crate) const TEXT_FILE_BYTES: u64 = 256 << 20;

/// Maximum size of an artefact's heads in bytes: 32 MiB of JSON, and 64 KiB for the shim as in its
/// contract.
const HEAD_BYTES: u64 = (32 << 20) + (64 << 10);

/// Maximum number of chains, the primary one and its fallbacks. Plans name two or three targets.
const CHAINS: u64 = 16;

/// Maximum number of variants. There are some hundred chips.
const VARIANTS: u64 = 256;

/// Maximum number of towers. There are fewer passes.
const TOWERS: u64 = 8;

/// Maximum number of shards in a chain, as in the runtime.
const SHARDS: u64 = 1024;

/// Maximum number of entry points in a shard. Plans name a handful.
const ENTRIES: u64 = 64;

/// Maximum number of states. A layer has two.
const STATES: u64 = 4096;

/// Maximum number of gathered tables. Models have one or two.
const ASSETS: u64 = 64;

/// Maximum number of components. There are fewer kinds.
const COMPONENTS: u64 = 16;

/// Maximum number of tokens that read another row: placeholders of images and audio.
const REDIRECTS: u64 = 1 << 16;

/// Maximum number of flags or options.
const PAIRS: u64 = 1 << 12;

/// Maximum number of nodes in a shard's report, as in an entry graph.
const NODES: u64 = 1 << 20;

/// Maximum number of notices, or of verification results.
const REPORTS: u64 = 1 << 12;

/// A problem with a field.
struct Fault {
    field: String,
    reason: String,
}

type Checked = Result<(), Fault>;

fn invalid(field: impl Into<String>, reason: impl Into<String>) -> Fault {
    Fault { field: field.into(), reason: reason.into() }
}

fn cap(field: &str, value: usize, limit: u64) -> Checked {
    cap_bytes(field, value as u64, limit)
}

fn cap_bytes(field: &str, value: u64, limit: u64) -> Checked {
    if value <= limit { Ok(()) } else { Err(invalid(field, too_large(value, limit))) }
}

/// Checks runs of layers, and components without layers, that have their own formats. They must
/// cover all of the shard's segments, with each layer once and in order. Neighbouring runs of
/// layers must differ, and activations and states must be equal in all runs.
fn mixture(runs: &[SegmentFormats], segments: &Segments) -> Result<(), &'static str> {
    let mut joined: Vec<Segment> = Vec::new();
    for (place, run) in runs.iter().enumerate() {
        match joined.last_mut() {
            Some(last) if last.component == run.segment.component => {
                let (first, end) = run.segment.layers;
                let alike = place > 0 && runs[place - 1].formats == run.formats;
                if first != last.layers.1 || end <= first || alike {
                    return Err("do not cover every layer once and in order, in as few runs as possible");
                }
                last.layers.1 = end;
            }
            _ => joined.push(run.segment),
        }
    }
    if joined != segments.0 {
        return Err("do not cover every segment");
    }
    let first = runs.first().map(|run| &run.formats);
    if runs.iter().all(|run| Some(&run.formats) == first) {
        return Err("are listed separately, but are all equal");
    }
    let values = FormatTuple::values;
    if !runs.iter().all(|run| Some(values(&run.formats)) == first.map(values)) {
        return Err("differ in activations, states or attention, which a shard has only once");
    }
    Ok(())
}

/// Checks a name. Names are printed on terminals and used in paths of reports.
fn name(field: &str, text: &str) -> Checked {
    cap(field, text.len(), NAME_BYTES_MAX)?;
    if text.is_empty() {
        return Err(invalid(field, "is empty"));
    }
    match text.chars().find(|character| character.is_control()) {
        Some(control) => Err(invalid(field, format!("contains the control character {control:?}"))),
        None => Ok(()),
    }
}

/// Checks the name of a chip by the rules of profiles. It becomes part of file names and of
/// commands to copy.
fn chip(field: &str, text: &str) -> Checked {
    name(field, text)?;
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    match text.bytes().all(legal) {
        true => Ok(()),
        false => Err(invalid(field, "has characters other than lower-case letters, digits and hyphens")),
    }
}

/// Checks a sentence of a shim. Sentences are stored unchanged, and printing code escapes them.
fn text(field: &str, text: &str) -> Checked {
    cap(field, text.len(), TEXT_BYTES_MAX)
}

/// Checks that names are unique.
fn unique<'a>(field: &str, names: impl Iterator<Item = &'a str>) -> Checked {
    let mut seen = HashSet::new();
    for (index, text) in names.enumerate() {
        name(&format!("{field}[{index}].name"), text)?;
        if !seen.insert(text) {
            return Err(invalid(format!("{field}[{index}].name"), format!("`{text}` occurs twice")));
        }
    }
    Ok(())
}

impl Manifest {
    /// Checks everything in the manifest beyond its JSON form. `path` is for messages.
    pub(crate) fn check(&self, path: &Path) -> Result<()> {
        self.faults().map_err(|Fault { field, reason }| inconsistent(path, field, reason))
    }

    fn faults(&self) -> Checked {
        name("program", &self.program)?;
        name("model.name", &self.model.name)?;
        name("model.family", &self.model.family)?;
        for (file, reference) in &self.texts {
            cap_bytes(&format!("texts.{file}"), reference.bytes, TEXT_FILE_BYTES)?;
        }
        if self.tokenizer_index.is_some() && !self.texts.contains_key(&TextFile::Tokenizer) {
            return Err(invalid("tokenizer_index", "is set, but `texts` has no tokenizer"));
        }

        cap("variants", self.variants.len(), VARIANTS)?;
        if self.variants.is_empty() {
            return Err(invalid("variants", "is empty"));
        }
        let mut names = HashSet::new();
        for (index, entry) in self.variants.iter().enumerate() {
            let at = |Fault { field, reason }| invalid(format!("variants[{index}].{field}"), reason);
            variant(entry).map_err(at)?;
            if !names.insert(&entry.soc) {
                return Err(at(invalid("soc", format!("`{}` occurs twice", entry.soc))));
            }
        }
        references(&self.references())
    }
}

fn variant(variant: &Variant) -> Checked {
    chip("soc", &variant.soc)?;
    cap("aliases", variant.aliases.len(), PAIRS)?;
    for (index, alias) in variant.aliases.iter().enumerate() {
        name(&format!("aliases[{index}]"), alias)?;
    }
    name("planner.name", &variant.planner.name)?;
    name("planner.version", &variant.planner.version)?;
    cap("options", variant.options.len(), PAIRS)?;
    for (key, value) in &variant.options {
        name("options", key)?;
        option(&format!("options.{key}"), value)?;
    }
    cap("towers", variant.towers.len(), TOWERS)?;
    // In the order of passes, which also excludes repetition.
    if !variant.towers.is_sorted_by(|one, next| one.pass < next.pass) {
        return Err(invalid("towers", "are not in the order of passes, each once"));
    }
    for (index, entry) in variant.towers.iter().enumerate() {
        if entry.pass == Pass::Step {
            let reason = "expected the pass of a tower, got the text model's";
            return Err(invalid(format!("towers[{index}].pass"), reason));
        }
        if entry.structure.is_generative() {
            return Err(invalid(format!("towers[{index}].structure.states"), "must be empty for a tower"));
        }
    }
    let places = std::iter::once(String::new())
        .chain((0..variant.towers.len()).map(|index| format!("towers[{index}].")));
    let mut names = HashSet::new();
    for (at, part) in places.zip(variant.models()) {
        model(&at, part, &mut names)?;
    }

    cap("verifications", variant.verifications.len(), REPORTS)?;
    unique("verifications", variant.verifications.iter().map(|entry| entry.name.as_str()))?;
    for (index, entry) in variant.verifications.iter().enumerate() {
        text(&format!("verifications[{index}].summary"), &entry.summary)?;
        if variant.chain(&entry.chain).is_none() {
            return Err(invalid(format!("verifications[{index}].chain"), "is not a chain of this variant"));
        }
        if let Some(twin) = &entry.twin {
            name(&format!("verifications[{index}].twin.device"), &twin.device)?;
            text(&format!("verifications[{index}].twin.differs"), &twin.differs)?;
            let shards = variant.chain(&entry.chain).map_or(0, |chain| chain.shards.len());
            if twin.artefacts.len() != shards {
                let reason = format!("has {} artefacts for {shards} shards", twin.artefacts.len());
                return Err(invalid(format!("verifications[{index}].twin"), reason));
            }
        }
    }
    cap("notices", variant.notices.len(), REPORTS)?;
    for (index, notice) in variant.notices.iter().enumerate() {
        text(&format!("notices[{index}].text"), &notice.text)?;
    }
    Ok(())
}

/// Checks the value of an option. Names of members are printed like names of options.
fn option(field: &str, value: &Value) -> Checked {
    match value {
        Value::String(value) => text(field, value),
        Value::Array(items) => {
            cap(field, items.len(), PAIRS)?;
            items.iter().try_for_each(|item| option(field, item))
        }
        Value::Object(members) => {
            cap(field, members.len(), PAIRS)?;
            members.iter().try_for_each(|(key, value)| {
                name(field, key)?;
                option(&format!("{field}.{key}"), value)
            })
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

/// Checks the text model or a tower. `names` are the names of earlier chains.
fn model<'m>(at: &str, model: Model<'m>, names: &mut HashSet<&'m str>) -> Checked {
    structure(&format!("{at}structure"), model.structure, model.pass)?;
    let field = format!("{at}assets");
    cap(&field, model.assets.len(), ASSETS)?;
    unique(&field, model.assets.iter().map(|asset| asset.name.as_str()))?;
    for (index, entry) in model.assets.iter().enumerate() {
        asset(&format!("{field}[{index}]"), entry)?;
    }
    let field = format!("{at}chains");
    cap(&field, model.chains.len(), CHAINS)?;
    if model.chains.is_empty() {
        return Err(invalid(field, "is empty"));
    }
    unique(&field, model.chains.iter().map(|chain| chain.name.as_str()))?;
    for (index, entry) in model.chains.iter().enumerate() {
        if !names.insert(&entry.name) {
            let reason = format!("`{}` is the name of another chain of the variant", entry.name);
            return Err(invalid(format!("{field}[{index}].name"), reason));
        }
        chain(&format!("{field}[{index}]"), entry, model.structure)?;
    }
    Ok(())
}

fn structure(at: &str, structure: &Structure, pass: Pass) -> Checked {
    let states = format!("{at}.states");
    cap(&states, structure.states.len(), STATES)?;
    unique(&states, structure.states.iter().map(|state| state.name.as_str()))?;
    for (index, state) in structure.states.iter().enumerate() {
        if state.layer >= structure.layers {
            return Err(invalid(
                format!("{states}[{index}].layer"),
                format!("is {}, but there are {} layers", state.layer, structure.layers),
            ));
        }
        if state.width == 0 {
            return Err(invalid(format!("{states}[{index}].width"), "is 0"));
        }
    }
    let components = format!("{at}.components");
    cap(&components, structure.components.len(), COMPONENTS)?;
    // In the order of a step, which also excludes repetition.
    if !structure.components.is_sorted_by(|one, next| one < next) {
        return Err(invalid(components, "are not in the order of a step, each once"));
    }
    if let Some(other) = structure.components.iter().find(|kind| kind.pass() != pass) {
        return Err(invalid(components, format!("include `{other}`, which runs in a {}", other.pass())));
    }
    Ok(())
}

fn asset(at: &str, asset: &AssetEntry) -> Checked {
    let shape = [asset.entries, asset.width];
    if shape.contains(&0) {
        return Err(invalid(at, format!("{shape:?} has no values")));
    }
    holds(&format!("{at}.table"), asset.table, asset.dtype.packed_bytes(&shape))?;
    match &asset.quantisation {
        None if asset.dtype.is_float() => {}
        None => return Err(invalid(format!("{at}.dtype"), format!("is {} without scales", asset.dtype))),
        Some(quantisation) => {
            let Some((low, high)) = asset.dtype.raw_range() else {
                return Err(invalid(format!("{at}.dtype"), format!("is {} with scales", asset.dtype)));
            };
            if !(low..=high).contains(&quantisation.zero_point) {
                let field = format!("{at}.quantisation.zero_point");
                let reason = format!("{} is not a value of {}", quantisation.zero_point, asset.dtype);
                return Err(invalid(field, reason));
            }
            if !matches!(quantisation.scale_dtype, DType::F32 | DType::F16) {
                let field = format!("{at}.quantisation.scale_dtype");
                let reason = format!("expected f32 or f16, got {}", quantisation.scale_dtype);
                return Err(invalid(field, reason));
            }
            let bytes = quantisation.scale_bytes(&shape);
            holds(&format!("{at}.quantisation.scales"), quantisation.scales, bytes)?;
        }
    }
    cap(&format!("{at}.redirect"), asset.redirect.len(), REDIRECTS)?;
    if !asset.redirect.is_sorted_by(|one, next| one.0 < next.0) {
        return Err(invalid(format!("{at}.redirect"), "is not sorted, each token once"));
    }
    match asset.redirect.iter().find(|(_, row)| u64::from(*row) >= asset.entries) {
        Some((token, row)) => Err(invalid(
            format!("{at}.redirect"),
            format!("token {token} reads row {row} of {}", asset.entries),
        )),
        None => Ok(()),
    }
}

/// Checks that a file has the length of its content.
fn holds(field: &str, file: FileReference, bytes: Option<u64>) -> Checked {
    match bytes {
        Some(bytes) if bytes == file.bytes => Ok(()),
        Some(bytes) => Err(invalid(field, format!("has {} bytes, but its shape needs {bytes}", file.bytes))),
        None => Err(invalid(field, "its shape is too large for a file")),
    }
}

fn chain(at: &str, chain: &ChainEntry, structure: &Structure) -> Checked {
    if let Some(executor) = &chain.emulated_on {
        name(&format!("{at}.emulated_on"), executor)?;
    }
    cap(&format!("{at}.within"), chain.within.len(), PAIRS)?;
    for (index, (limit, _)) in chain.within.iter().enumerate() {
        name(&format!("{at}.within[{index}]"), limit)?;
    }
    if let Some(planner) = &chain.planner {
        name(&format!("{at}.planner.name"), &planner.name)?;
        name(&format!("{at}.planner.version"), &planner.version)?;
    }
    let field = format!("{at}.shards");
    cap(&field, chain.shards.len(), SHARDS)?;
    if chain.shards.is_empty() {
        return Err(invalid(field, "is empty"));
    }
    unique(&field, chain.shards.iter().map(|shard| shard.name.as_str()))?;
    for (index, entry) in chain.shards.iter().enumerate() {
        shard(&format!("{field}[{index}]"), entry, structure)?;
    }
    match &chain.speculation {
        Some(own) => speculation(&format!("{at}.speculation"), own, chain),
        None => Ok(()),
    }
}

/// Checks the draft, and that every shard of the chain has its entry point of more than one row.
fn speculation(at: &str, speculation: &ChosenSpeculation, chain: &ChainEntry) -> Checked {
    name(&format!("{at}.draft"), &speculation.draft)?;
    let accepted = speculation.accepted_steps.len();
    cap(&format!("{at}.accepted_steps"), accepted, ChosenSpeculation::ACCEPTED_MAX as u64)?;
    let rows = speculation.rows;
    let verifies = |entry: &EntryName| entry.kind == EntryKind::Decode && entry.rows == rows;
    let field = || format!("{at}.rows");
    if rows < 2 {
        return Err(invalid(field(), format!("expected at least 2, got {rows}")));
    }
    match chain.shards.iter().find(|shard| !shard.entries.iter().any(verifies)) {
        Some(shard) => Err(invalid(field(), format!("is {rows}, and `{}` has no decode_{rows}", shard.name))),
        None => Ok(()),
    }
}

fn shard(at: &str, shard: &ShardEntry, structure: &Structure) -> Checked {
    let field = || format!("{at}.segments");
    cap(&field(), shard.segments.0.len(), COMPONENTS)?;
    if let Some(other) = shard.segments.iter().find(|own| !structure.components.contains(&own.component)) {
        return Err(invalid(field(), format!("the model has no component `{}`", other.component)));
    }
    if !shard.segments.is_consistent() {
        let reason = format!("`{}` is not in the order of a step, each component once", shard.segments);
        return Err(invalid(field(), reason));
    }
    let (_, end) = shard.segments.layers();
    if end > structure.layers {
        return Err(invalid(field(), format!("{} of {} layers", shard.segments, structure.layers)));
    }
    for (field, text) in [
        ("target.name", &shard.target.name),
        ("target.shim", &shard.target.shim),
        ("target.device", &shard.target.device),
        ("compiled_by.shim", &shard.compiled_by.shim),
        ("compiled_by.version", &shard.compiled_by.version),
        ("compiled_by.device", &shard.compiled_by.device),
    ] {
        name(&format!("{at}.{field}"), text)?;
    }
    let sorted = |tuple: &FormatTuple| tuple.roles.is_sorted_by(|one, next| one.role < next.role);
    if !shard.formats.tuples().all(sorted) {
        return Err(invalid(format!("{at}.formats.roles"), "are not sorted, each once"));
    }
    if let ShardFormats::Mixed(runs) = &shard.formats {
        mixture(runs, &shard.segments).map_err(|reason| invalid(format!("{at}.formats"), reason))?;
    }
    cap(&format!("{at}.entries"), shard.entries.len(), ENTRIES)?;
    let mut entries = HashSet::new();
    if let Some(twice) = shard.entries.iter().find(|entry| !entries.insert(**entry)) {
        return Err(invalid(format!("{at}.entries"), format!("{twice} occurs twice")));
    }
    if shard.artefact.bytes == 0 {
        return Err(invalid(format!("{at}.artefact"), "is empty"));
    }
    cap_bytes(&format!("{at}.head"), shard.head.bytes, HEAD_BYTES)?;
    cap(&format!("{at}.flags"), shard.flags.len(), PAIRS)?;
    cap(&format!("{at}.load_flags"), shard.load_flags.len(), PAIRS)?;
    for (index, flag) in shard.load_flags.iter().enumerate() {
        name(&format!("{at}.load_flags[{index}].name"), &flag.name)?;
        text(&format!("{at}.load_flags[{index}].value"), &flag.value)?;
    }
    for (index, entry) in shard.flags.iter().enumerate() {
        name(&format!("{at}.flags[{index}].flag.name"), &entry.flag.name)?;
        text(&format!("{at}.flags[{index}].flag.value"), &entry.flag.value)?;
        text(&format!("{at}.flags[{index}].reason"), &entry.reason)?;
        if let FlagVerdict::Applied { evidence } = &entry.verdict {
            text(&format!("{at}.flags[{index}].verdict.evidence"), evidence)?;
        }
    }
    cap(&format!("{at}.rewritten"), shard.rewritten.len(), NODES)?;
    for (index, entry) in shard.rewritten.iter().enumerate() {
        name(&format!("{at}.rewritten[{index}].name"), &entry.name)?;
        text(&format!("{at}.rewritten[{index}].reason"), &entry.reason)?;
    }
    if let Some(value) = shard.logits_softcap {
        let field = format!("{at}.logits_softcap");
        if !shard.segments.has(ComponentKind::Head) {
            return Err(invalid(field, format!("is set, but `{}` does not return logits", shard.segments)));
        }
        if !(value.is_finite() && value > 0.0) {
            return Err(invalid(field, format!("expected a positive number, got {value}")));
        }
    }
    cap(&format!("{at}.placements"), shard.placements.len(), NODES)?;
    for (index, entry) in shard.placements.iter().enumerate() {
        name(&format!("{at}.placements[{index}].node"), &entry.node)?;
        name(&format!("{at}.placements[{index}].place"), &entry.place)?;
        text(&format!("{at}.placements[{index}].reason"), &entry.reason)?;
    }
    Ok(())
}

/// Checks that no file is absurdly long, and that one content has one length.
fn references(references: &[(String, FileReference)]) -> Checked {
    let mut lengths: BTreeMap<Digest, u64> = BTreeMap::new();
    for (field, file) in references {
        cap_bytes(field, file.bytes, FILE_BYTES)?;
        let length = *lengths.entry(file.sha256).or_insert(file.bytes);
        if length != file.bytes {
            let reason = format!("{} has {} bytes here and {length} elsewhere", file.sha256, file.bytes);
            return Err(invalid(field.clone(), reason));
        }
    }
    Ok(())
}
