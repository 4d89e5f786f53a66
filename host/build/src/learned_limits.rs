//! Limits that planners derived from compiler refusals, stored for the next request.
//!
//! There is one file per chip and compiler, `CHIP-HASH.json`. Remove it to forget its limits. A
//! limit is stored in the cost table's units, with the refusal behind it. Another chip, shim,
//! library or shim setting has its own file, because a refusal by one compiler does not apply to
//! another.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use shardwright_bundle::Digest;
use shardwright_files::private_files;
use shardwright_planning::feedback::{Attempt, Feedback};
use shardwright_planning::request::{Request, TargetSummary};
use shardwright_shims::ShimInstance;
use shardwright_vocabulary::{Device, Flag, Lesson, Limit, Provenance, Relief, units};

/// Version of the files. A file of another version is ignored with a notice.
const VERSION: u32 = 3;
/// Largest file read, in bytes. A file contains a handful of limits.
const FILE_BYTES: u64 = 64 << 10;
/// Largest number of bytes that are stored of a limit's reason.
const REASON_BYTES: usize = 512;
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

/// A limit that a planner derived from a refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnedLimit {
    /// Name of the limit.
    pub name: String,
    /// Largest value that later plans use, in the cost table's units.
    pub value: u64,
    /// Flags of the shard that was refused.
    pub flags: Vec<Flag>,
    /// The refusal, as the planner describes it.
    pub because: String,
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
            limit.note.clone_from(&learned.because);
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

    /// Stores the lessons of a planner from a history of refusals, after its plan was carried out.
    /// `compilers` has one entry per target of the request, `None` where another device replaced
    /// the target. Returns messages about the stored limits, or that the planner returned none.
    pub fn keep(
        &self,
        request: &Request,
        history: &[Attempt],
        lessons: &[Lesson],
        compilers: &[Option<Compiler>],
    ) -> Vec<String> {
        let mut said = Vec::new();
        let (mut refusals, mut kept) = (0, 0);
        for ((index, target), compiler) in (0..).zip(&request.targets).zip(compilers) {
            let Some(compiler) = compiler else { continue };
            let Some(path) = self.path(compiler) else { continue };
            refusals += refused_on(history, index).count();
            let own = lessons.iter().filter(|lesson| lesson.target == index && lesson.value > 0);
            let learned: Vec<LearnedLimit> = own.map(|lesson| learned(lesson, history)).collect();
            kept += learned.len();
            if learned.is_empty() {
                continue;
            }
            let words = learned
                .iter()
                .map(|limit| format!("{} ≤ {}", limit.name, units::quantity(&limit.name, limit.value)));
            let words: Vec<String> = words.collect();
            said.push(match write(&path, compiler.clone(), learned) {
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
        if kept == 0 && refusals > 0 {
            said.push(
                "the planner returned no usable limits for the refused plans, so later plans may be refused too"
                    .to_owned(),
            );
        }
        said
    }

    /// Lists the files in the directory, sorted by name.
    pub fn list(&self) -> std::io::Result<Vec<LearnedFile>> {
        let Some(directory) = &self.directory else { return Ok(Vec::new()) };
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
        Ok(private_files::json_files(directory)?.into_iter().filter_map(file).take(FILES).collect())
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

/// Returns the refusals by a target's compiler, each with the flags of the refused shard.
fn refused_on(history: &[Attempt], target: u32) -> impl Iterator<Item = (&Feedback, &[Flag])> {
    history.iter().flat_map(move |attempt| {
        attempt.feedback.iter().filter(|feedback| feedback.class.is_some()).filter_map(move |feedback| {
            let shard = attempt.plan.shards.get(feedback.shard? as usize)?;
            (shard.target == target).then_some((feedback, shard.flags.as_slice()))
        })
    })
}

/// Returns a lesson as it is stored, with the flags of the last refused shard that it may be about.
fn learned(lesson: &Lesson, history: &[Attempt]) -> LearnedLimit {
    let names_another = |feedback: &Feedback| {
        let named = feedback.details.iter().find(|detail| detail.name == "limit");
        named.is_some_and(|detail| detail.value.trim() != lesson.limit)
    };
    let refused = refused_on(history, lesson.target).filter(|(feedback, _)| !names_another(feedback));
    let because = &lesson.because;
    LearnedLimit {
        name: lesson.limit.clone(),
        value: lesson.value,
        flags: refused.last().map_or_else(Vec::new, |(_, flags)| flags.to_vec()),
        because: because[..because.floor_char_boundary(REASON_BYTES)].to_owned(),
    }
}

/// Reads a file. Returns `None` if it does not exist.
fn read(path: &Path) -> Result<Option<Kept>, String> {
    let Some(bytes) = private_files::read(path, FILE_BYTES).map_err(|error| error.to_string())? else {
        return Ok(None);
    };
    let kept: Kept =
        serde_json::from_slice(&bytes).map_err(|error| format!("not a file of learned limits: {error}"))?;
    if kept.version != VERSION {
        return Err(format!("expected version {VERSION}, got {}", kept.version));
    }
    match kept.limits.iter().find(|limit| limit.value == 0) {
        Some(limit) => Err(format!("{} ≤ 0 does not allow any shard", limit.name)),
        None => Ok(Some(kept)),
    }
}

/// Writes atomically. New limits replace earlier ones of the same name.
fn write(path: &Path, compiler: Compiler, mut limits: Vec<LearnedLimit>) -> crate::Result<()> {
    let before = read(path).ok().flatten().filter(|kept| kept.learned_of == compiler);
    let before = before.map_or_else(Vec::new, |kept| kept.limits);
    let is_replaced = |earlier: &LearnedLimit| limits.iter().any(|limit| limit.name == earlier.name);
    let earlier: Vec<LearnedLimit> = before.into_iter().filter(|earlier| !is_replaced(earlier)).collect();
    limits.extend(earlier);
    limits.sort_by(|left, right| (&left.name, left.value).cmp(&(&right.name, right.value)));
    // Of several limits with a name, the smallest counts.
    limits.dedup_by(|next, kept| next.name == kept.name);
    let kept = Kept { version: VERSION, learned_of: compiler, limits };
    private_files::write(path, &serde_json::to_vec_pretty(&kept).map_err(std::io::Error::from)?)
}

#[cfg(test)]
mod tests {
    use shardwright_planning::feedback::Detail;
    use shardwright_vocabulary::ErrorClass;

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

    fn limit(value: u64) -> LearnedLimit {
        LearnedLimit {
            name: "ops".to_owned(),
            value,
            flags: vec![Flag { name: "cores".to_owned(), value: "4".to_owned() }],
            because: "4800 were too many".to_owned(),
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
        write(&path, compiler("8.2.28"), vec![limit(2600)]).unwrap();

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
        assert!(same.limits[1].note.contains("4800 were too many"), "{:?}", same.limits[1]);
        // The flag was set on the refused shard, so it does not help.
        assert_eq!(same.limits[1].relief.len(), 1);
        assert_eq!(same.limits[1].under(&limit(1).flags), 2600);

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
        assert_eq!((listed.len(), listed[0].limits.clone()), (1, vec![limit(2600)]));
        assert_eq!((listed[0].learned_of.clone(), &listed[0].fault), (Some(compiler("8.2.28")), &None));
        // Removing the file forgets its limits.
        std::fs::remove_file(&listed[0].path).unwrap();
        assert!(learned.offer(&compiler("8.2.28"), &mut untouched, &[]).is_empty());
    }

    #[test]
    fn later_limits_replace_earlier_ones_of_the_same_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("limits.json");
        let holds = || read(&path).unwrap().unwrap().limits;
        write(&path, compiler("8"), vec![limit(2000)]).unwrap();
        write(&path, compiler("8"), vec![limit(3500), limit(3000), limit(3200)]).unwrap();
        assert_eq!(holds(), [limit(3000)]);
        let bytes = LearnedLimit { name: "weight-bytes".to_owned(), ..limit(1) };
        write(&path, compiler("8"), vec![bytes.clone()]).unwrap();
        assert_eq!(holds(), [limit(3000), bytes.clone()]);
        // Limits of another compiler are not kept.
        write(&path, compiler("9"), vec![bytes.clone()]).unwrap();
        assert_eq!(holds(), [bytes]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    /// Returns an attempt with shards on both targets, of which the given ones were refused.
    fn attempt(refused: &[(u32, &str, Option<&str>)]) -> Attempt {
        let shard = |target: u32, flag: &str| {
            serde_json::json!({
                "segments": [], "target": target, "context": 0, "entries": [], "inputs": [], "outputs": [],
                "flags": [{ "name": flag, "value": "on" }], "build": "ahead",
            })
        };
        let shards: Vec<_> = refused.iter().map(|(target, flag, _)| shard(*target, flag)).collect();
        let plan = serde_json::json!({ "shards": shards, "fallback": [], "reasons": [] });
        let feedback = (0..).zip(refused).map(|(index, (.., limit))| {
            let details = limit.map(|limit| Detail::new("limit", limit)).into_iter().collect();
            Feedback::refused(index, ErrorClass::ResourceLimit, "no", details)
        });
        Attempt { plan: serde_json::from_value(plan).unwrap(), feedback: feedback.collect() }
    }

    #[test]
    fn the_lessons_of_a_planner_are_stored_with_the_flags_of_the_refused_shard() {
        let lesson = |target, limit: &str, value| Lesson {
            target,
            limit: limit.to_owned(),
            value,
            because: format!("a{}", "é".repeat(300)),
        };
        let first = attempt(&[(0, "first", Some("ops")), (1, "other", None)]);
        let history = [first, attempt(&[(0, "last", Some("shards"))])];
        let lessons = [lesson(0, "ops", 7), lesson(1, "ops", 9), lesson(0, "shards", 0), lesson(2, "ops", 1)];
        let kept = learned(&lessons[0], &history);
        assert_eq!((kept.name.as_str(), kept.value), ("ops", 7));
        assert_eq!(kept.flags, [Flag { name: "first".to_owned(), value: "on".to_owned() }]);
        assert_eq!(kept.because, format!("a{}", "é".repeat(255)), "cut between characters");
        // The refusal does not name a limit, so it may be about any.
        let other = Flag { name: "other".to_owned(), value: "on".to_owned() };
        assert_eq!(learned(&lessons[1], &history).flags, [other]);
        assert!(learned(&lessons[3], &history).flags.is_empty());

        let folder = tempfile::tempdir().unwrap();
        let store = Learned::kept_in(folder.path().to_owned());
        let request = request(vec![summary(vec![]), summary(vec![])]);
        let compilers = [Some(compiler("8")), None];
        let said = store.keep(&request, &history, &lessons, &compilers);
        assert!(said.len() == 1 && said[0].contains("ops ≤ 7 was learned"), "{said:?}");
        let listed = store.list().unwrap();
        assert_eq!((listed.len(), listed[0].limits.len()), (1, 1));

        // A planner that returns none is reported, unless no compiler of a target refused anything.
        let said = store.keep(&request, &history, &[], &compilers);
        assert!(said.len() == 1 && said[0].contains("the planner returned no usable limits"), "{said:?}");
        assert!(store.keep(&request, &history, &[], &[None, None]).is_empty());
        assert!(store.keep(&request, &[], &[], &compilers).is_empty());
        assert!(Learned::unkept().keep(&request, &history, &lessons, &compilers).is_empty());
    }

    /// Returns a request with these targets and nothing else.
    fn request(targets: Vec<TargetSummary>) -> Request {
        let model = serde_json::json!({
            "name": "m", "family": "f", "hidden": 1, "max_context": 1, "components": [],
        });
        let request = serde_json::json!({
            "model": model, "kinds": [], "targets": targets, "formats": [], "entries": [], "costs": [],
            "sensitivities": [], "goals": { "context": 1, "max_prefill_rows": 1 }, "options": [],
        });
        serde_json::from_value(request).unwrap()
    }

    #[cfg(unix)]
    #[test]
    fn what_others_may_have_written_is_said_and_ignored() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let learned = Learned::kept_in(folder.path().join("limits"));
        let path = learned.path(&compiler("8")).unwrap();
        write(&path, compiler("8"), vec![limit(2600)]).unwrap();
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
        write(&path, compiler("8"), vec![limit(2600)]).unwrap();
        let whole = std::fs::read_to_string(&path).unwrap();
        let damaged = [
            whole[..whole.len() / 2].to_owned(),
            whole.replace("\"version\": 3", "\"version\": 4"),
            whole.replace("\"value\": 2600", "\"value\": 0"),
            whole.replace("\"because\"", "\"becuase\""),
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
            write(&path, compiler("8"), vec![limit(2600)]).unwrap();
            assert_eq!(learned.offer(&compiler("8"), &mut target, &[]).len(), 1);
            assert_eq!(target.limits.len(), 1);
        }
    }
}
