//! Limits learned from compiler refusals, stored for the next request.
//!
//! There is one file per chip and compiler, `CHIP-HASH.json`. Remove it to forget its limits. A
//! limit is stored in the cost table's units, with the refusal it was learned from. Another chip,
//! shim, library or shim setting has its own file, because a refusal by one compiler does not apply
//! to another.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use shardwright_bundle::Digest;
use shardwright_files::own;
use shardwright_planning::check::{CheckedPlan, CheckedShard, check};
use shardwright_planning::cost::ShardCost;
use shardwright_planning::feedback::{Attempt, Feedback};
use shardwright_planning::request::{Request, TargetSummary};
use shardwright_shims::ShimInstance;
use shardwright_vocabulary::{Device, ErrorClass, Flag, Limit, Provenance, Relief, limit_names};

/// Version of the files. A file of another version is ignored with a notice.
const VERSION: u32 = 2;
/// Largest file read, in bytes. A file contains a handful of limits.
const FILE_BYTES: u64 = 64 << 10;
/// Largest number of bytes of a refusal that are stored.
const EVIDENCE_BYTES: usize = 512;
/// Largest number of files listed.
const FILES: usize = 1024;

/// Identifies the compiler that a learned limit applies to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compiler {
    /// Name of the chip in the profile, which is also the target's name in a plan.
    pub chip: String,
    /// Name of the shim.
    pub shim: String,
    pub shim_version: String,
    /// The vendor's library, as the shim describes it.
    pub library: Option<String>,
    /// The shim's description of the chip's device: the library version that it found and how it
    /// lowers graphs.
    pub device: Option<String>,
    /// Settings of the shim.
    pub settings: Vec<(String, String)>,
    /// Facts of the chip's profile that the shim read.
    pub facts: Vec<(String, String)>,
}

impl Compiler {
    /// Returns the compiler of an open shim and its device for the chip named `chip`.
    pub fn of(instance: &ShimInstance, device: &Device, chip: &str) -> Compiler {
        let shim = instance.shim();
        let description = shim.description();
        let settings = shim.manifest().map(|manifest| manifest.options.clone().into_iter().collect());
        Compiler {
            chip: chip.to_owned(),
            shim: description.name.clone(),
            shim_version: description.version.clone(),
            library: description.vendor_library.clone(),
            device: device.detail.clone(),
            settings: settings.unwrap_or_default(),
            facts: instance
                .chip_of(&device.name)
                .map(|chip| chip.facts.into_iter().collect())
                .unwrap_or_default(),
        }
    }

    fn file_name(&self) -> String {
        let hash = Digest::of(&serde_json::to_vec(&(VERSION, self)).unwrap_or_default()).to_string();
        let plain = |character: char| character.is_ascii_alphanumeric() || character == '-';
        let chip: String = self.chip.chars().filter(|character| plain(*character)).take(64).collect();
        format!("{chip}-{}.json", &hash[..16])
    }
}

/// A limit with the refusal it was learned from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnedLimit {
    /// Name of a limit that a cost table counts.
    pub name: String,
    /// The maximum accepted, in the cost table's units: as reported by the compiler, or the most it
    /// accepted after refusing more without reporting a maximum.
    pub value: u64,
    /// The value that was refused, in the same units.
    pub refused: u64,
    /// Whether the compiler reported the maximum.
    pub told: bool,
    /// Flags of the shard that was refused.
    pub flags: Vec<Flag>,
    /// The refusal in the compiler's words.
    pub evidence: String,
}

impl LearnedLimit {
    fn note(&self) -> String {
        let how = match self.told {
            true => format!("{} was refused, with this as the maximum", self.refused),
            false => format!("{} was refused and this was accepted", self.refused),
        };
        format!("{how}: {}", self.evidence)
    }
}

/// Contents of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    version: u32,
    learned_of: Compiler,
    limits: Vec<LearnedLimit>,
}

/// A file of limits in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LearnedFile {
    /// Path of the file. Remove the file to forget its limits.
    pub path: String,
    /// The compiler that the limits belong to, or `None` if the file cannot be read.
    pub learned_of: Option<Compiler>,
    pub limits: Vec<LearnedLimit>,
    /// Why the file is ignored, if it is.
    pub fault: Option<String>,
}

/// Learned limits, stored in a directory or not at all.
#[derive(Clone, Debug, Default)]
pub struct Learned {
    directory: Option<PathBuf>,
}

impl Learned {
    /// Uses files in `directory`, which is created when the first limit is stored.
    pub fn kept_in(directory: PathBuf) -> Learned {
        Learned { directory: Some(directory) }
    }

    /// Stores no limits and returns none.
    pub fn unkept() -> Learned {
        Learned::default()
    }

    /// Adds the limits learned about the compiler to a target's limits. Returns messages about them
    /// and about files that cannot be used.
    ///
    /// `decided` names limits set by the user, which override learned ones. A learned limit
    /// replaces a reported or modelled one. With a declared limit, the tighter of the two applies.
    pub fn offer(&self, compiler: &Compiler, summary: &mut TargetSummary, decided: &[&str]) -> Vec<String> {
        let Some(path) = self.path(compiler) else { return Vec::new() };
        let limits = match read(&path) {
            Ok(None) => return Vec::new(),
            Ok(Some(kept)) if kept.learned_of == *compiler => kept.limits,
            Ok(Some(_)) => {
                return vec![ignored(&path, "the limits belong to another compiler")];
            }
            Err(fault) => return vec![ignored(&path, &fault)],
        };
        let mut said = Vec::new();
        for learned in limits {
            let target = &summary.target.name;
            if decided.contains(&learned.name.as_str()) {
                said.push(format!(
                    "target {target}: the learned limit {} ≤ {} is ignored, because you set another",
                    learned.name, learned.value
                ));
                continue;
            }
            let mut limit = Limit::new(&learned.name, learned.value, Provenance::Learned);
            limit.note = learned.note();
            let existing: Vec<Limit> =
                summary.limits.iter().filter(|existing| existing.name == learned.name).cloned().collect();
            for existing in &existing {
                limit.relief.extend(relief_after(existing, &learned.flags));
                if matches!(existing.provenance, Provenance::Reported | Provenance::Modelled) {
                    limit.note =
                        format!("instead of {} ({}): {}", existing.value, existing.provenance, limit.note);
                    summary.limits.retain(|other| other != existing);
                }
            }
            said.push(format!(
                "target {target}: {limit} from an earlier refusal; remove {} to forget it",
                path.display()
            ));
            summary.limits.push(limit);
        }
        said
    }

    /// Stores limits learned from a history of refusals, after `accepted` was carried out.
    /// `compilers` has one entry per target of the request, `None` where another device replaced
    /// the target. Returns messages about the stored limits.
    pub fn keep(
        &self,
        request: &Request,
        history: &[Attempt],
        accepted: &CheckedPlan,
        compilers: &[Option<Compiler>],
    ) -> Vec<String> {
        let mut said = Vec::new();
        for (index, (target, compiler)) in request.targets.iter().zip(compilers).enumerate() {
            let Some(compiler) = compiler else { continue };
            let lessons = lessons(request, history, accepted, index as u32);
            let (Some(path), false) = (self.path(compiler), lessons.is_empty()) else { continue };
            let words: Vec<String> =
                lessons.iter().map(|limit| format!("{} ≤ {}", limit.name, limit.value)).collect();
            said.push(match write(&path, compiler.clone(), lessons) {
                Ok(()) => format!(
                    "target {}: {} was learned for the next plan; remove {} to forget it",
                    target.target.name,
                    words.join(", "),
                    path.display()
                ),
                Err(error) => format!(
                    "target {}: {} was learned, but could not be stored: {}: {error}",
                    target.target.name,
                    words.join(", "),
                    path.display()
                ),
            });
        }
        said
    }

    /// Lists every file in the directory, sorted by name.
    pub fn list(&self) -> std::io::Result<Vec<LearnedFile>> {
        let Some(directory) = &self.directory else { return Ok(Vec::new()) };
        let entries = match std::fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut paths = Vec::new();
        for entry in entries.take(FILES) {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                paths.push(path);
            }
        }
        paths.sort();
        let file = |path: PathBuf| match read(&path) {
            Ok(Some(kept)) => {
                let fault = (path.file_name() != Some(kept.learned_of.file_name().as_ref()))
                    .then(|| "the name of the file does not match its compiler".to_owned());
                let path = path.display().to_string();
                Some(LearnedFile { path, learned_of: Some(kept.learned_of), limits: kept.limits, fault })
            }
            Ok(None) => None,
            Err(fault) => {
                let path = path.display().to_string();
                Some(LearnedFile { path, learned_of: None, limits: Vec::new(), fault: Some(fault) })
            }
        };
        Ok(paths.into_iter().filter_map(file).collect())
    }

    fn path(&self, compiler: &Compiler) -> Option<PathBuf> {
        Some(self.directory.as_ref()?.join(compiler.file_name()))
    }
}

fn ignored(path: &Path, fault: &str) -> String {
    format!("{}: {fault}; the file is ignored, and the next learned limits replace it", path.display())
}

/// Returns a limit's relief by flags after a shard with `flags` was refused. These flags did not
/// help.
fn relief_after(limit: &Limit, flags: &[Flag]) -> Vec<Relief> {
    let after = |relief: &Relief| match flags.contains(&relief.flag) {
        true => Relief { value: None, note: "the refused shard had it set".to_owned(), ..relief.clone() },
        false => relief.clone(),
    };
    limit.relief.iter().map(after).collect()
}

/// Returns the tightest limit of each name learned from refusals of shards on that target.
fn lessons(request: &Request, history: &[Attempt], accepted: &CheckedPlan, target: u32) -> Vec<LearnedLimit> {
    let mut found: Vec<LearnedLimit> = Vec::new();
    for attempt in history {
        // Plans of the history were checked before. Checking again recovers their costs.
        let Ok(refused) = check(attempt.plan.clone(), request) else { continue };
        for feedback in &attempt.feedback {
            let Some(lesson) = lesson(&refused, feedback, accepted, target) else { continue };
            match found.iter_mut().find(|existing| existing.name == lesson.name) {
                Some(existing) if existing.value <= lesson.value => {}
                Some(existing) => *existing = lesson,
                None => found.push(lesson),
            }
        }
    }
    found
}

fn lesson(
    refused: &CheckedPlan,
    feedback: &Feedback,
    accepted: &CheckedPlan,
    target: u32,
) -> Option<LearnedLimit> {
    let CheckedShard { planned: shard, cost, .. } = refused.shards().get(feedback.shard? as usize)?;
    let detail = |name: &str| {
        feedback.details.iter().find(|detail| detail.name == name).map(|detail| detail.value.as_str())
    };
    let number = |name: &str| detail(name)?.trim().parse::<u64>().ok();
    let name = match (detail("limit"), feedback.class?) {
        (Some(name), _) => name,
        // The shard was refused as a whole. A planner then reduces the number of operations.
        (None, ErrorClass::Unmappable) => limit_names::OPS,
        (None, _) => return None,
    };
    if shard.target != target {
        return None;
    }
    // Count the operations of the refused entry point, if the refusal names it.
    let refused_at = cost.entries.iter().find(|known| detail("entry") == Some(&known.entry.to_string()));
    let planned = match refused_at {
        Some(entry) if name == limit_names::OPS => entry.ops,
        _ => counted(name, cost)?,
    };
    let reported = number("max").and_then(|max| {
        let scale = u128::from(number("value").unwrap_or(planned).max(1));
        let scaled = u64::try_from(u128::from(planned) * u128::from(max) / scale).unwrap_or(u64::MAX);
        Some(scaled.min(planned.checked_sub(1)?))
    });
    let taken = || {
        let here = accepted.shards().iter().filter(|shard| shard.planned.target == target);
        let most = here.filter_map(|shard| counted(name, &shard.cost)).max()?;
        (most < planned).then_some(most)
    };
    let value = reported.or_else(taken).filter(|value| *value > 0)?;
    let end = (0..=EVIDENCE_BYTES.min(feedback.message.len()))
        .rev()
        .find(|end| feedback.message.is_char_boundary(*end))?;
    Some(LearnedLimit {
        name: name.to_owned(),
        value,
        refused: planned,
        told: reported.is_some(),
        flags: shard.flags.clone(),
        evidence: feedback.message[..end].to_owned(),
    })
}

fn counted(name: &str, cost: &ShardCost) -> Option<u64> {
    match name {
        limit_names::OPS => Some(cost.ops),
        limit_names::WEIGHT_BYTES => Some(cost.weight_bytes),
        limit_names::ARTEFACT_BYTES => Some(cost.artefact_bytes),
        limit_names::CONTEXT_BYTES => Some(cost.context_bytes()),
        limit_names::CALL_MICROSECONDS => Some(cost.call_microseconds()),
        _ => None,
    }
}

/// Reads a file. Returns `None` if it does not exist.
fn read(path: &Path) -> Result<Option<Kept>, String> {
    let Some(bytes) = own::read(path, FILE_BYTES).map_err(|error| error.to_string())? else {
        return Ok(None);
    };
    let kept: Kept =
        serde_json::from_slice(&bytes).map_err(|error| format!("not a file of learned limits: {error}"))?;
    if kept.version != VERSION {
        return Err(format!("expected version {VERSION}, got {}", kept.version));
    }
    match kept.limits.iter().find(|limit| limit.value == 0 || limit.value >= limit.refused) {
        Some(limit) => {
            let LearnedLimit { name, value, refused, .. } = limit;
            Err(format!("{name} ≤ {value} does not follow from the refused value {refused}"))
        }
        None => Ok(Some(kept)),
    }
}

/// Writes atomically. New lessons replace earlier ones of the same name, unless they would allow a
/// value refused before.
fn write(path: &Path, compiler: Compiler, mut lessons: Vec<LearnedLimit>) -> crate::Result<()> {
    let before = read(path).ok().flatten().filter(|kept| kept.learned_of == compiler);
    for earlier in before.map_or_else(Vec::new, |kept| kept.limits) {
        match lessons.iter_mut().find(|lesson| lesson.name == earlier.name) {
            None => lessons.push(earlier),
            Some(lesson) if lesson.value >= earlier.refused => *lesson = earlier,
            Some(_) => {}
        }
    }
    lessons.sort_by(|left, right| left.name.cmp(&right.name));
    let kept = Kept { version: VERSION, learned_of: compiler, limits: lessons };
    own::write(path, &serde_json::to_vec_pretty(&kept).map_err(std::io::Error::from)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiler(library: &str) -> Compiler {
        Compiler {
            chip: "mt1".to_owned(),
            shim: "neuron".to_owned(),
            shim_version: "0.1.0".to_owned(),
            library: None,
            device: Some(library.to_owned()),
            settings: vec![("lowering".to_owned(), "plain".to_owned())],
            facts: vec![("platform".to_owned(), "mt1".to_owned())],
        }
    }

    fn limit(value: u64, refused: u64) -> LearnedLimit {
        LearnedLimit {
            name: "ops".to_owned(),
            value,
            refused,
            told: true,
            flags: vec![Flag { name: "cores".to_owned(), value: "4".to_owned() }],
            evidence: "too many".to_owned(),
        }
    }

    fn summary(limits: Vec<Limit>) -> TargetSummary {
        let target = serde_json::json!({"name": "mt1", "shim": "neuron", "device": "mt1", "kind": "npu"});
        TargetSummary { limits, ..TargetSummary::of(serde_json::from_value(target).unwrap()) }
    }

    #[test]
    fn what_is_learned_holds_for_that_compiler_alone() {
        let folder = tempfile::tempdir().unwrap();
        let learned = Learned::kept_in(folder.path().join("limits"));
        let mut untouched = summary(vec![]);
        assert!(learned.offer(&compiler("8.2.28"), &mut untouched, &[]).is_empty());
        assert!(learned.list().unwrap().is_empty());
        let path = learned.path(&compiler("8.2.28")).unwrap();
        write(&path, compiler("8.2.28"), vec![limit(2600, 4800)]).unwrap();

        let reported = Limit {
            relief: vec![Relief {
                flag: Flag { name: "cores".to_owned(), value: "4".to_owned() },
                value: Some(9000),
                note: String::new(),
            }],
            ..Limit::new("ops", 3000, Provenance::Reported)
        };
        let declared = Limit::new("ops", 9000, Provenance::Declared);
        let mut same = summary(vec![reported, declared.clone()]);
        let said = learned.offer(&compiler("8.2.28"), &mut same, &[]);
        assert!(said[0].contains("ops ≤ 2600 (learned)") && said[0].contains("remove "), "{said:?}");
        assert_eq!(same.limits[0], declared);
        assert_eq!((same.limits[1].value, same.limits[1].provenance), (2600, Provenance::Learned));
        assert!(same.limits[1].note.contains("instead of 3000 (reported)"), "{:?}", same.limits[1]);
        assert!(same.limits[1].note.contains("4800 was refused"), "{:?}", same.limits[1]);
        // The flag was set on the refused shard, so it does not help.
        assert_eq!(same.limits[1].relief.len(), 1);
        assert_eq!(same.limits[1].under(&limit(1, 2).flags), 2600);

        let mut user = summary(vec![Limit::new("ops", 5000, Provenance::User)]);
        let said = learned.offer(&compiler("8.2.28"), &mut user, &["ops"]);
        assert!(said[0].contains("because you set another"), "{said:?}");
        assert_eq!(user.limits.len(), 1);

        for other in [
            compiler("9.2.0"),
            Compiler { chip: "mt2".to_owned(), ..compiler("8.2.28") },
            Compiler { shim_version: "0.2.0".to_owned(), ..compiler("8.2.28") },
            Compiler { settings: vec![], ..compiler("8.2.28") },
            Compiler { device: None, ..compiler("8.2.28") },
            Compiler { facts: vec![("soc-id".to_owned(), "87".to_owned())], ..compiler("8.2.28") },
        ] {
            assert!(learned.offer(&other, &mut untouched, &[]).is_empty(), "{other:?}");
        }
        assert_eq!(untouched, summary(vec![]));
        let listed = learned.list().unwrap();
        assert_eq!((listed.len(), listed[0].limits.clone()), (1, vec![limit(2600, 4800)]));
        assert_eq!((listed[0].learned_of.clone(), &listed[0].fault), (Some(compiler("8.2.28")), &None));
        // Removing the file forgets its limits.
        std::fs::remove_file(&listed[0].path).unwrap();
        assert!(learned.offer(&compiler("8.2.28"), &mut untouched, &[]).is_empty());
    }

    #[test]
    fn later_lessons_replace_earlier_ones_unless_they_allow_what_was_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("limits.json");
        let holds = || read(&path).unwrap().unwrap().limits;
        write(&path, compiler("8"), vec![limit(2000, 4000)]).unwrap();
        write(&path, compiler("8"), vec![limit(3000, 3500)]).unwrap();
        assert_eq!(holds(), [limit(3000, 3500)]);
        write(&path, compiler("8"), vec![limit(3600, 3700)]).unwrap();
        assert_eq!(holds(), [limit(3000, 3500)]);
        let bytes = LearnedLimit { name: "weight-bytes".to_owned(), ..limit(1, 2) };
        write(&path, compiler("8"), vec![bytes.clone()]).unwrap();
        assert_eq!(holds(), [limit(3000, 3500), bytes]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn what_others_may_have_written_is_said_and_ignored() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let learned = Learned::kept_in(folder.path().join("limits"));
        let path = learned.path(&compiler("8")).unwrap();
        write(&path, compiler("8"), vec![limit(2600, 4800)]).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        let mut target = summary(vec![]);
        let said = learned.offer(&compiler("8"), &mut target, &[]);
        assert!(said.len() == 1 && said[0].contains("may be written by others"), "{said:?}");
        assert_eq!(target, summary(vec![]));
    }

    #[test]
    fn a_damaged_file_is_said_and_ignored_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let learned = Learned::kept_in(folder.path().to_owned());
        let path = learned.path(&compiler("8")).unwrap();
        write(&path, compiler("8"), vec![limit(2600, 4800)]).unwrap();
        let whole = std::fs::read_to_string(&path).unwrap();
        let damaged = [
            whole[..whole.len() / 2].to_owned(),
            whole.replace("\"version\": 2", "\"version\": 3"),
            whole.replace("\"value\": 2600", "\"value\": 4800"),
            whole.replace("\"value\": 2600", "\"value\": 0"),
            whole.replace("\"told\"", "\"tolt\""),
            whole.replace("mt1", "mt2"),
            format!("{whole}{}", " ".repeat(FILE_BYTES as usize)),
            "\u{0}\u{1}".to_owned(),
        ];
        for text in damaged {
            std::fs::write(&path, &text).unwrap();
            let mut target = summary(vec![]);
            let said = learned.offer(&compiler("8"), &mut target, &[]);
            assert!(said.len() == 1 && said[0].contains("ignored"), "{said:?}");
            assert_eq!(target, summary(vec![]));
            assert!(learned.list().unwrap()[0].fault.is_some());
            write(&path, compiler("8"), vec![limit(2600, 4800)]).unwrap();
            assert_eq!(learned.offer(&compiler("8"), &mut target, &[]).len(), 1);
            assert_eq!(target.limits.len(), 1);
        }
    }
}
