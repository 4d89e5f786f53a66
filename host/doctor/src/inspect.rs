//! Recognises a file or directory and describes it. Supports the project's own formats, and formats
//! of vendors whose shim is available.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use shardwright_bundle::{
    Bundle, BundleInspection, Examine, FileProgress, FileState, Kind, ShardEntry, identify,
    inspect as inspect_bundle,
};
use shardwright_shims::{Artefact, ArtefactHead, ArtefactInspection, ShimInstance, WorkOrder};
use shardwright_trust::Trust;
use shardwright_vocabulary::{ErrorClass, Flag, Ignored, Notice, NoticeKind, Segments};
use shardwright_worker::Shims;

use crate::ShowReport;
use crate::fault::Fault;
use crate::flag_advice::{Advisers, FlagAdvice};
use crate::show::expect_effects;
use shardwright::SearchPath;
use shardwright::tools::{IgnoredFields, stray_notices};
use shardwright_vocabulary::{Error, ErrorKind, Result};

/// A directory with this file counts as a bundle.
const MANIFEST_FILE: &str = "bundle.json";

/// A recognised file or directory.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Inspected {
    /// A bundle, possibly damaged.
    Bundle(Box<BundleReport>),
    /// A compiled artefact whose hash was checked.
    Artefact(ArtefactReport),
    /// A work order whose hash was checked.
    WorkOrder(WorkOrderReport),
    Checkpoint(ShowReport),
    /// A file of a vendor's tools.
    Foreign(ForeignReport),
}

/// Help for a damaged artefact.
const COPY_AGAIN: &str = "copy it again from its source, or compile the checkpoint again";

impl Inspected {
    /// Returns the error of the first part that is damaged, as far as it was checked.
    ///
    /// # Errors
    ///
    /// With `strict`, also a field or file without effect, and a fallback that a bundle records.
    pub fn verdict(&self, strict: bool) -> Result<()> {
        match self {
            Inspected::Bundle(report) => report.verdict(strict),
            Inspected::Artefact(report) => report.told.as_ref().map_or(Ok(()), ShimAnswer::verdict),
            Inspected::Checkpoint(report) => report.verdict(strict),
            Inspected::WorkOrder(_) | Inspected::Foreign(_) => Ok(()),
        }
    }
}

/// A bundle, with shims' descriptions of its artefacts.
#[derive(Clone, Debug, Serialize)]
pub struct BundleReport {
    /// The bundle as it is on disk.
    #[serde(flatten)]
    pub inspection: BundleInspection,
    /// Descriptions of the artefacts whose shim is available and supports inspection.
    pub artefacts: Vec<ShardInspection>,
    /// Comparison of flags with the recommended ones, for shards compiled by the chip's compiler.
    pub advice: Vec<ShardAdvice>,
    /// Fields of its text files that have no effect.
    pub ignored: Vec<Ignored>,
    /// The fault of a text file that could not be read, so that the model cannot be run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unread: Option<Fault>,
    /// The reason why the bundle cannot be opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unopened: Option<Fault>,
    /// Foreign files in its folder, and other notices that `strict` turns into errors.
    #[serde(skip)]
    fallbacks: Vec<Notice>,
}

impl BundleReport {
    fn verdict(&self, strict: bool) -> Result<()> {
        let damaged = self.inspection.files.iter().filter_map(|file| match &file.state {
            FileState::Damaged { reason, help } => Some((reason, help)),
            FileState::Present | FileState::Verified => None,
        });
        let damaged: Vec<_> = damaged.collect();
        if let Some((reason, help)) = damaged.first() {
            let error = Error::invalid(reason.as_str());
            let error = match damaged.len() - 1 {
                0 => error,
                more => error.with_more(format!("{more} more files are damaged")),
            };
            return Err(help.iter().fold(error, Error::with_help).or_help(COPY_AGAIN));
        }
        self.unopened.as_ref().map_or(Ok(()), |fault| Err(fault.to_error()))?;
        self.artefacts.iter().try_for_each(|artefact| artefact.told.verdict())?;
        self.unread.as_ref().map_or(Ok(()), |fault| Err(fault.to_error()))?;
        if !strict {
            return Ok(());
        }
        expect_effects(self.ignored.first())?;
        let fallback = self.fallbacks.iter().find(|notice| notice.kind == NoticeKind::Fallback);
        fallback.map_or(Ok(()), |notice| Err(Error::new(ErrorKind::Strict, notice.text.clone())))
    }
}

/// Comparison of a shard's flags with the recommended ones.
#[derive(Clone, Debug, Serialize)]
pub struct ShardAdvice {
    /// The chip of the variant.
    pub soc: String,
    pub chain: String,
    #[serde(flatten)]
    pub advice: FlagAdvice,
}

/// A shim's description of an artefact in a bundle.
#[derive(Clone, Debug, Serialize)]
pub struct ShardInspection {
    /// The chip of the variant.
    pub soc: String,
    pub chain: String,
    pub shard: String,
    #[serde(flatten)]
    pub told: ShimAnswer,
}

/// A shim's description of a file.
#[derive(Clone, Debug, Serialize)]
pub struct ShimAnswer {
    pub shim: String,
    /// Name of the format, such as `qnn-context-binary`. `None` if the shim could not inspect the
    /// file.
    pub format: Option<String>,
    pub document: serde_json::Value,
    /// Comparison of the file's compiler flags with the recommended ones, if the document lists
    /// flags.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<FlagAdvice>,
    /// The reason why the file could not be inspected.
    pub error: Option<String>,
    /// Whether that reason is damage of the file.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub damaged: bool,
}

impl ShimAnswer {
    fn failed(shim: String, error: String) -> ShimAnswer {
        let document = serde_json::Value::Null;
        ShimAnswer { shim, format: None, document, advice: Vec::new(), error: Some(error), damaged: false }
    }

    fn damaged(shim: String, error: String) -> ShimAnswer {
        ShimAnswer { damaged: true, ..ShimAnswer::failed(shim, error) }
    }

    fn verdict(&self) -> Result<()> {
        let error = self.error.as_deref().filter(|_| self.damaged);
        error.map_or(Ok(()), |error| Err(Error::invalid(error).with_help(COPY_AGAIN)))
    }
}

/// A file of a vendor's tools, as described by the shim that recognises it.
#[derive(Clone, Debug, Serialize)]
pub struct ForeignReport {
    /// Length of the file.
    pub bytes: u64,
    pub shim: String,
    /// Name of the format, such as `qnn-context-binary`.
    pub format: String,
    pub document: serde_json::Value,
    /// Comparison of the file's compiler flags with the recommended ones, if the document lists
    /// flags.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<FlagAdvice>,
}

/// An artefact's header.
#[derive(Clone, Debug, Serialize)]
pub struct ArtefactReport {
    /// SHA-256 of the artefact's content.
    pub sha256: String,
    /// The compiler, target, interface and flags of the artefact.
    #[serde(flatten)]
    pub head: ArtefactHead,
    /// The description by the shim that compiled the artefact, if that shim is available.
    pub told: Option<ShimAnswer>,
}

/// The content of a work order.
#[derive(Clone, Debug, Serialize)]
pub struct WorkOrderReport {
    /// SHA-256 of the work order's content.
    pub sha256: String,
    pub entries: Vec<WorkOrderEntry>,
    pub weights: usize,
    /// Size of the weights in bytes, without scales.
    pub weight_bytes: u64,
    /// Flags for the vendor's compiler.
    pub flags: Vec<Flag>,
}

/// One entry point of a work order.
#[derive(Clone, Debug, Serialize)]
pub struct WorkOrderEntry {
    /// Name of the entry point, such as `decode_1@512`.
    pub name: String,
    /// The included parts of the model.
    pub segments: Segments,
    /// Number of operations.
    pub operations: usize,
}

/// Inspects a file or directory. With `content`, verifies every byte of a bundle and calls
/// `progress` for each file.
///
/// Shims of `search` examine artefacts that they compiled, and files in other formats. They use a
/// worker process if that program is found, because the file may come from anyone. The compiler
/// flags of the file are compared with the recommendations of its chip's profile. `soc` is the chip
/// if the file does not name one. Bundle, shims and profiles are used as far as their signatures
/// comply with the rules.
pub fn inspect(
    path: impl AsRef<Path>,
    content: bool,
    soc: Option<&str>,
    search: &SearchPath,
    trust: &Trust,
    progress: impl FnMut(FileProgress),
) -> Result<Inspected> {
    let path = bundle_folder(path.as_ref());
    let advisers = Advisers::of(search, trust)?;
    let asked = || Asked::new(crate::shims::open(search, trust), &advisers, soc);
    let examine = if content { Examine::Content } else { Examine::Presence };
    match identify(path)? {
        Kind::Bundle => {
            let inspection = inspect_bundle(path, examine, trust, progress)?;
            // Problems of a bundle are part of the inspection.
            let (opened, unopened) = match Bundle::open_trusting(path, trust) {
                Ok(bundle) => (Some(Arc::new(bundle)), None),
                Err(error) => (None, Some(Fault::of(&error))),
            };
            let artefacts = opened.as_ref().map(|bundle| shard_inspections(bundle, &mut asked()));
            let ignored = opened.as_ref().map(IgnoredFields::of_bundle).unwrap_or_default();
            let advice = advice_on(&inspection, &advisers);
            let strays = opened.iter().flat_map(|bundle| stray_notices(bundle));
            let made = inspection.manifest.variants.iter().flat_map(|variant| &variant.notices);
            Ok(Inspected::Bundle(Box::new(BundleReport {
                artefacts: artefacts.unwrap_or_default(),
                advice,
                ignored: ignored.fields,
                unread: ignored.unread.as_ref().map(Fault::of),
                unopened,
                fallbacks: strays.chain(made.cloned()).collect(),
                inspection,
            })))
        }
        Kind::Artefact => {
            let artefact = Artefact::open(path)?;
            let answer = asked().inspect(&artefact);
            let (sha256, head) = (artefact.name(), artefact.head().clone());
            Ok(Inspected::Artefact(ArtefactReport { sha256, head, told: answer }))
        }
        Kind::WorkOrder => {
            let order = WorkOrder::open(path)?;
            let head = order.head();
            let entries = head.entries.iter().map(|entry| WorkOrderEntry {
                name: entry.point.name().to_string(),
                segments: entry.segments.clone(),
                operations: entry.nodes.len(),
            });
            Ok(Inspected::WorkOrder(WorkOrderReport {
                sha256: order.name(),
                entries: entries.collect(),
                weights: head.weights.len(),
                weight_bytes: head.weights.iter().map(|weight| weight.length).sum(),
                flags: head.flags.clone(),
            }))
        }
        Kind::Checkpoint => Ok(Inspected::Checkpoint(crate::show(path)?)),
        kind @ (Kind::Planner | Kind::PlannerPack) => {
            Err(Error::new(ErrorKind::Unsupported, format!("{}: a {kind}", path.display()))
                .with_help("run `shardwright planner check` to see a planner's description"))
        }
        Kind::UnfinishedBundle => {
            Err(Error::new(ErrorKind::Invalid, format!("{}: an unfinished bundle", path.display()))
                .with_help("run the same `shardwright compile` again to resume"))
        }
        Kind::Unknown => foreign(path, &mut asked()).map(Inspected::Foreign),
    }
}

/// Compares the flags of a bundle's shards with the recommended ones.
fn advice_on(inspection: &BundleInspection, advisers: &Advisers) -> Vec<ShardAdvice> {
    let manifest = &inspection.manifest;
    let mut found = Vec::new();
    for variant in &manifest.variants {
        for chain in variant.all_chains() {
            let advice = chain.shards.iter().filter_map(|shard| advisers.on_shard(shard));
            let chain = &chain.name;
            found.extend(advice.map(|advice| ShardAdvice {
                soc: variant.soc.to_string(),
                chain: chain.clone(),
                advice,
            }));
        }
    }
    found
}

/// Shims to query, each opened once.
struct Asked<'a> {
    advisers: &'a Advisers,
    /// The chip for files that do not name one.
    soc: Option<&'a str>,
    shims: std::result::Result<Shims, Error>,
    opened: BTreeMap<String, Option<std::result::Result<ShimInstance, String>>>,
}

impl<'a> Asked<'a> {
    fn new(shims: Result<Shims>, advisers: &'a Advisers, soc: Option<&'a str>) -> Asked<'a> {
        Asked { advisers, soc, shims, opened: BTreeMap::new() }
    }

    /// Returns the shim with this name, or `None` if it is not available or does not support
    /// inspection.
    fn instance(&mut self, name: &str) -> Option<std::result::Result<ShimInstance, String>> {
        let Asked { shims, opened, .. } = self;
        let open = || {
            let shims = shims.as_ref().ok()?;
            shims.registry.get(name).filter(|shim| shim.inspects())?;
            Some(shims.open_to_compile(name, "inspection", &[], false).map_err(|error| error.to_string()))
        };
        opened.entry(name.to_owned()).or_insert_with(open).clone()
    }

    /// Returns the description of a bundle's artefact, which is hashed before a shim reads it. The
    /// artefact is not read if no available shim can inspect it.
    fn inspect_shard(&mut self, bundle: &Bundle, shard: &ShardEntry) -> Option<ShimAnswer> {
        let shim = &shard.compiled_by.shim;
        if let Err(error) = self.instance(shim)? {
            return Some(ShimAnswer::failed(shim.clone(), error));
        }
        match bundle.proved(&shard.artefact).and_then(Artefact::of_section) {
            Ok(artefact) => self.inspect(&artefact),
            Err(error) if error.kind() == ErrorKind::Invalid => {
                Some(ShimAnswer::damaged(shim.clone(), error.to_string()))
            }
            Err(error) => Some(ShimAnswer::failed(shim.clone(), error.to_string())),
        }
    }

    /// Returns the description by the shim that compiled an artefact.
    fn inspect(&mut self, artefact: &Artefact) -> Option<ShimAnswer> {
        let shim = artefact.head().shim.clone();
        let failed = |shim, error: String| Some(ShimAnswer::failed(shim, error));
        let instance = match self.instance(&shim)? {
            Ok(instance) => instance,
            Err(error) => return failed(shim, error),
        };
        match instance.inspect_artefact(artefact) {
            Ok(inspection) => inspection.map(|ArtefactInspection { format, document }| ShimAnswer {
                shim,
                format: Some(format),
                advice: self.advisers.on_document(&document, self.soc),
                document,
                error: None,
                damaged: false,
            }),
            Err(error) if error.class() == Some(ErrorClass::CorruptArtefact) => {
                Some(ShimAnswer::damaged(shim, error.to_string()))
            }
            Err(error) => failed(shim, error.to_string()),
        }
    }
}

fn shard_inspections(bundle: &Bundle, asked: &mut Asked<'_>) -> Vec<ShardInspection> {
    let mut found = Vec::new();
    let variants = bundle.manifest().variants.iter();
    for (variant, chain) in
        variants.flat_map(|variant| variant.all_chains().map(move |chain| (variant, chain)))
    {
        for shard in &chain.shards {
            if let Some(answer) = asked.inspect_shard(bundle, shard) {
                found.push(ShardInspection {
                    soc: variant.soc.to_string(),
                    chain: chain.name.clone(),
                    shard: shard.name.clone(),
                    told: answer,
                });
            }
        }
    }
    found
}

/// Passes a file to every shim that supports inspection.
fn foreign(path: &Path, asked: &mut Asked<'_>) -> Result<ForeignReport> {
    let unreadable =
        |error: std::io::Error| Error::new(ErrorKind::Missing, format!("{}: {error}", path.display()));
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    let mut passed = Vec::new();
    if metadata.is_file() {
        let file = std::fs::File::open(path).map_err(unreadable)?;
        let names: Vec<String> = match &asked.shims {
            Ok(shims) => shims.registry.shims().iter().map(|shim| shim.name().to_owned()).collect(),
            Err(error) => {
                passed.push(error.to_string());
                Vec::new()
            }
        };
        for shim in names {
            let instance = match asked.instance(&shim) {
                None => continue,
                Some(Ok(instance)) => instance,
                Some(Err(error)) => {
                    passed.push(format!("cannot query shim `{shim}`: {error}"));
                    continue;
                }
            };
            match instance.inspect(&file, 0..metadata.len()) {
                Ok(None) => {}
                Ok(Some(ArtefactInspection { format, document })) => {
                    let advice = asked.advisers.on_document(&document, asked.soc);
                    return Ok(ForeignReport { bytes: metadata.len(), shim, format, document, advice });
                }
                Err(error) => match error.class() {
                    Some(class @ (ErrorClass::CorruptArtefact | ErrorClass::IncompatibleArtefact)) => {
                        let kind = match class {
                            ErrorClass::CorruptArtefact => ErrorKind::Invalid,
                            _ => ErrorKind::Incompatible,
                        };
                        return Err(Error::new(kind, format!("{}: {error}", path.display())).with_help(
                            "fetch or create the file again: the shim recognises it, but cannot read it",
                        ));
                    }
                    _ => passed.push(format!("shim `{shim}` cannot inspect it: {error}")),
                },
            }
        }
    }
    let mut help =
        "name a bundle, an artefact, a work order, a checkpoint, or a file that a shim here recognises"
            .to_owned();
    for passed in passed {
        help += &format!("; {passed}");
    }
    Err(Error::new(ErrorKind::Unsupported, format!("{}: unrecognised file type", path.display()))
        .with_help(help))
}

/// Returns the folder of a bundle if the path is its manifest.
fn bundle_folder(path: &Path) -> &Path {
    match path.file_name().filter(|name| *name == MANIFEST_FILE).and(path.parent()) {
        Some(folder) if path.is_file() && folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) if path.is_file() => folder,
        _ => path,
    }
}
