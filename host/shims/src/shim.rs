//! A shim that was found, and its facts about itself.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};
use shardwright_shim_abi::raw::SwEntryFunction;
use shardwright_vocabulary::{Description, Error, ErrorClass, ErrorKind, FlagSchema, FlagStage};

use crate::call::{self, Table, value_type};
use crate::chip::{FACTS_LIMIT, FactSchema};
use crate::error::{LoadError, ShimError};
use crate::layout::LayoutCheck;
use crate::library;
use crate::manifest::Manifest;

/// A shim whose library was opened, here or in a worker, and whose table was checked. Cloning
/// shares it.
#[derive(Clone)]
pub struct Shim(Arc<ShimInner>);

struct ShimInner {
    path: PathBuf,
    manifest: Option<Manifest>,
    /// Set at once if the library is opened in this process, otherwise when the first instance is
    /// opened in this process.
    table: OnceLock<Table>,
    facts: Facts,
    /// The shim's name, if it is linked into this program.
    linked: Option<&'static str>,
    open: Mutex<u64>,
}

/// A shim's report about itself when it is opened.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    pub description: Description,
    pub(crate) layout: LayoutCheck,
    pub(crate) version: u32,
    pub(crate) compiles: bool,
    pub(crate) runs: bool,
    pub(crate) inspects: bool,
    /// Facts of a chip's profile that the shim reads.
    pub(crate) chip_facts: Vec<FactSchema>,
}

/// Identification of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct ArtefactInspection {
    /// Format name in kebab-case, such as `qnn-context-binary`.
    pub format: String,
    /// A JSON object defined by the shim. Its members are sorted by name.
    pub document: serde_json::Value,
}

impl std::fmt::Debug for Shim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shim")
            .field("name", &self.name())
            .field("path", &self.0.path)
            .field("layout", &self.0.facts.layout)
            .finish_non_exhaustive()
    }
}

impl Shim {
    /// Opens a library in this process and reads its description. `sha256` is the hash in its
    /// manifest.
    pub fn of_library(path: &Path, sha256: Option<&str>) -> Result<Shim, LoadError> {
        let (table, layout) = library::open(path, sha256)?;
        Shim::described(path.to_owned(), None, facts(path, table, layout)?, Some(table))
    }

    /// Opens a library with its manifest in this process and reads its description.
    pub(crate) fn of_manifest(path: PathBuf, manifest: Manifest) -> Result<Shim, LoadError> {
        let (table, layout) = library::open(&path, manifest.sha256.as_deref())?;
        let facts = facts(&path, table, layout)?;
        Shim::described(path, Some(manifest), facts, Some(table))
    }

    /// Creates a shim that is linked into this program. `entry` is the result of its crate's
    /// `shim_entry()`.
    pub fn linked(name: &'static str, entry: SwEntryFunction) -> Result<Shim, LoadError> {
        let path = PathBuf::from(format!("<linked {name}>"));
        let table = library::enter(&path, entry)?;
        let facts = facts(&path, table, LayoutCheck::Linked)?;
        let (table, open) = (OnceLock::from(table), Mutex::new(0));
        Ok(Shim(Arc::new(ShimInner { path, manifest: None, table, facts, linked: Some(name), open })))
    }

    /// Creates a shim from a library that was opened here (then with its table) or elsewhere.
    pub(crate) fn described(
        path: PathBuf,
        manifest: Option<Manifest>,
        facts: Facts,
        table: Option<Table>,
    ) -> Result<Shim, LoadError> {
        if let Some(manifest) = &manifest
            && manifest.name != facts.description.name
        {
            let (found, expected) = (&facts.description.name, &manifest.name);
            let message = format!("the shim has the name `{found}`, but its manifest has `{expected}`");
            return Err(LoadError::new("answer-invalid", &path, message));
        }
        let table = table.map_or_else(OnceLock::new, OnceLock::from);
        let open = Mutex::new(0);
        Ok(Shim(Arc::new(ShimInner { path, manifest, table, facts, linked: None, open })))
    }

    /// Returns the table. Opens the library in this process if it is not open yet.
    pub(crate) fn table(&self) -> Result<Table, LoadError> {
        if let Some(table) = self.0.table.get() {
            return Ok(*table);
        }
        let (table, _) = library::open(&self.0.path, self.sha256())?;
        Ok(*self.0.table.get_or_init(|| table))
    }

    /// Returns the SHA-256 of its library, if its manifest contains one.
    pub fn sha256(&self) -> Option<&str> {
        self.0.manifest.as_ref()?.sha256.as_deref()
    }

    /// Returns the SHA-256 of its library in lower-case hex: from its manifest, otherwise computed
    /// from the file.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or if the shim is linked into this program.
    pub fn library_hash(&self) -> Result<String, LoadError> {
        if let Some(stated) = self.sha256() {
            return Ok(stated.to_owned());
        }
        let hash = match self.0.linked {
            Some(_) => Err(io::Error::other("the shim is linked into this program")),
            None => File::open(&self.0.path).and_then(|file| library::hash(&file)),
        };
        hash.map_err(|error| LoadError::unreadable(&self.0.path, error))
    }

    /// Returns its report about itself.
    pub fn facts(&self) -> &Facts {
        &self.0.facts
    }

    /// Returns its name, if it is linked into this program.
    pub fn linked_name(&self) -> Option<&'static str> {
        self.0.linked
    }

    /// Returns the name under which it is opened.
    pub fn name(&self) -> &str {
        &self.0.facts.description.name
    }

    /// Returns its description of itself.
    pub fn description(&self) -> &Description {
        &self.0.facts.description
    }

    /// Returns the path of its library, or `<linked …>` if it is linked into the program.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Returns its manifest, which was read before the library was opened, or `None` if it is
    /// linked.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.0.manifest.as_ref()
    }

    /// Returns the result of comparing its struct layouts.
    pub fn layout(&self) -> &LayoutCheck {
        &self.0.facts.layout
    }

    /// Returns the agreed contract version, `major.minor`.
    pub fn abi_version(&self) -> String {
        shardwright_shim_abi::version_text(self.0.facts.version)
    }

    /// Returns whether it can compile here. If not, it only runs artefacts compiled elsewhere.
    pub fn compiles(&self) -> bool {
        self.0.facts.compiles
    }

    /// Returns whether it can identify files.
    pub fn inspects(&self) -> bool {
        self.0.facts.inspects
    }

    /// Returns the facts of a chip's profile that it reads.
    pub fn chip_facts(&self) -> &[FactSchema] {
        &self.0.facts.chip_facts
    }

    /// Returns whether it can run. If not, it only compiles.
    pub fn runs(&self) -> bool {
        self.0.facts.runs
    }
}

/// Reads a library's description.
fn facts(path: &Path, table: Table, layout: LayoutCheck) -> Result<Facts, LoadError> {
    let undescribed = |error: ShimError| {
        LoadError::new("describe-failed", path, format!("the shim cannot describe itself: {error}"))
    };
    Ok(Facts {
        description: describe(path, table).map_err(undescribed)?,
        layout,
        version: table.0.version,
        compiles: table.0.compile.is_some(),
        runs: table.0.load.is_some(),
        inspects: table.0.inspect.is_some(),
        chip_facts: chip_facts(path, table).map_err(undescribed)?,
    })
}

fn describe(path: &Path, table: Table) -> Result<Description, ShimError> {
    let name = path.display().to_string();
    let function = table.0.describe.ok_or_else(|| ShimError::missing(&name, "describe"))?;
    let (error, reported) = call::descriptions(
        |item| {
            // SAFETY: the contract specifies that they are strings.
            unsafe {
                Ok(Description {
                    name: call::text(item.name)?,
                    vendor: call::text(item.vendor)?,
                    version: call::text(item.version)?,
                    vendor_library: call::optional_text(item.vendor_library),
                    instance_limit: item.instance_limit,
                })
            }
        },
        // SAFETY: the sink is as the contract specifies.
        |sink| unsafe { function(sink) },
    );
    // SAFETY: the error came from this table.
    unsafe { call::take_error(table, &name, "describe", error) }?;
    let mut reported = reported.finish().map_err(|reason| ShimError::contract(&name, "describe", reason))?;
    match (reported.pop(), reported.is_empty()) {
        (Some(description), true) if !description.name.is_empty() => Ok(description),
        _ => Err(ShimError::contract(&name, "describe", "expected exactly one description with a name")),
    }
}

/// Reads the declarations of the facts of a chip's profile that a library reads.
fn chip_facts(path: &Path, table: Table) -> Result<Vec<FactSchema>, ShimError> {
    let Some(function) = table.0.facts else { return Ok(Vec::new()) };
    let name = path.display().to_string();
    let (error, reported) = call::facts(
        |item| {
            let values =
                value_type(item.kind, (item.minimum, item.maximum), (item.choices, item.choice_count))?;
            // SAFETY: the contract specifies that they are strings.
            let (name, description) = unsafe { (call::text(item.name)?, call::text(item.description)?) };
            let fact = FlagSchema { name, values, default: None, description, stage: FlagStage::Compile };
            Ok(FactSchema { fact, required: item.required != 0 })
        },
        // SAFETY: the sink is as the contract specifies.
        |sink| unsafe { function(sink) },
    );
    // SAFETY: the error came from this table.
    unsafe { call::take_error(table, &name, "facts", error) }?;
    let reported = reported.finish().map_err(|reason| ShimError::contract(&name, "facts", reason))?;
    let mut names: Vec<&str> = reported.iter().map(|schema| schema.fact.name.as_str()).collect();
    names.sort_unstable();
    let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
    match twice {
        Some(pair) => {
            Err(ShimError::contract(&name, "facts", format!("fact `{}` is declared twice", pair[0])))
        }
        None if reported.len() > FACTS_LIMIT => Err(ShimError::contract(
            &name,
            "facts",
            format!("{} facts, expected at most {FACTS_LIMIT}", reported.len()),
        )),
        None if table.0.chip.is_none() && !reported.is_empty() => {
            Err(ShimError::contract(&name, "facts", "facts are declared without the function `chip`"))
        }
        None => Ok(reported),
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Exclusive resources of this process, with the name of the instance that owns each.
static RESOURCES: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// An instance's claim on the instance limit and on exclusive resources. Released when dropped.
pub struct Claim {
    shim: Shim,
    resources: Vec<String>,
}

impl Claim {
    pub(crate) fn take(shim: &Shim, instance: &str) -> Result<Claim, ShimError> {
        let limit = shim.0.facts.description.instance_limit;
        let mut open = lock(&shim.0.open);
        if limit != 0 && *open >= limit {
            let what = format!("shim `{}`, which can be opened at most {limit} times,", shim.name());
            return Err(taken(&what, "other instances"));
        }
        let wanted = shim.manifest().map(|manifest| manifest.exclusive.clone()).unwrap_or_default();
        let mut resources = lock(&RESOURCES);
        if let Some((what, holder)) =
            wanted.iter().find_map(|name| resources.get(name).map(|holder| (name, holder)))
        {
            return Err(taken(&format!("resource `{what}`"), &format!("instance `{holder}`")));
        }
        for name in &wanted {
            resources.insert(name.clone(), instance.to_owned());
        }
        *open += 1;
        drop(open);
        Ok(Claim { shim: shim.clone(), resources: wanted })
    }
}

/// Returns the error for an exclusive resource, or the last allowed instance, that is in use.
fn taken(what: &str, holder: &str) -> ShimError {
    let error = Error::new(ErrorKind::Shim, format!("{what} is in use by {holder}"));
    ShimError::Other(ErrorClass::ResourceLimit, error.with_help("close the other instance first"))
}

impl Drop for Claim {
    fn drop(&mut self) {
        *lock(&self.shim.0.open) -= 1;
        let mut resources = lock(&RESOURCES);
        for name in &self.resources {
            resources.remove(name);
        }
    }
}
