//! Finds planners, loads them under the sandbox's rules, and opens the session, with the built-in
//! planner as fallback.

use std::path::{Path, PathBuf};

use shardwright_planning::builtin;
use shardwright_planning::error::{PlannerError, PlannerErrorKind};
use shardwright_planning::registry::{PlannerEntry, PlannerRegistry};
use shardwright_planning::sandbox::Planner;
#[cfg(feature = "compiler")]
use shardwright_planning::sandbox::{CompiledCache, EngineKind, Sandbox};
use shardwright_planning::session::PlanningSession;
use shardwright_trust::{SecretKey, Trust};
use shardwright_vocabulary::{At, Error, ErrorKind, Watch};

use crate::{PlanOptions, Result};

/// Refuses a setting that the planner does not list.
fn check_settings(planner: &Planner, asked: &[(String, String)]) -> Result<()> {
    let described = planner.description();
    let Some((name, _)) =
        asked.iter().find(|(name, _)| !described.options.iter().any(|known| is_setting(&known.name, name)))
    else {
        return Ok(());
    };
    let known: Vec<&str> = described.options.iter().map(|known| known.name.as_str()).collect();
    let help = match known.as_slice() {
        [] => "this planner has no options".to_owned(),
        known => format!("available options: {}", known.join(", ")),
    };
    let what = format!("planner `{}` has no option `{name}`", described.name);
    Err(Error::new(ErrorKind::Argument, what).with_help(help))
}

/// Checks whether a planner's setting `known` covers `asked`. A part of `known` in capitals matches
/// any text (`place.COMPONENT`).
fn is_setting(known: &str, asked: &str) -> bool {
    let stands_for_any = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_uppercase());
    match known.rsplit_once('.') {
        Some((head, last)) if stands_for_any(last) => asked
            .strip_prefix(head)
            .and_then(|rest| rest.strip_prefix('.'))
            .is_some_and(|rest| !rest.is_empty()),
        _ => known == asked,
    }
}

/// Opens a session with the requested planner, and the built-in planner as fallback.
///
/// # Errors
///
/// Also an error of the kind [`ErrorKind::Cancelled`] if `watch` is cancelled while a planner is
/// compiled.
pub(crate) fn planning_session(
    options: &PlanOptions,
    trust: &Trust,
    watch: &dyn Watch,
) -> Result<PlanningSession> {
    let tools = PlannerTools::new(options.cache.as_deref(), trust)?;
    let cancelled = || watch.cancelled();
    let directories = &options.planners;
    let find = if options.planner_by_name { planner_named } else { find_planner };
    // The name of the built-in planner overrides the planner of a profile. A file of that name in a
    // directory does not replace it, and runs only if its path is named.
    let named = options.planner.as_deref().filter(|named| *named != builtin::NAME);
    let named = named.map(|named| (named, find(named, directories)));
    let session = match named {
        None => {
            match tools.built_in_until(&cancelled) {
                Ok(planner) => {
                    check_settings(&planner, &options.recorded.planner_options)?;
                    PlanningSession::new(planner)
                }
                Err(error) if error.is_cancelled() => return Err(crate::compile::cancelled()),
                // The session reports the error. Unless it is strict, it plans without a planner.
                Err(error) => PlanningSession::with_planner(Err(error), None),
            }
        }
        Some((named, found)) => {
            let asked = match found {
                Ok(entry) => match tools.load_until(&entry, &cancelled) {
                    Err(error) if error.is_cancelled() => return Err(crate::compile::cancelled()),
                    // The user named a file, so another planner must not replace it.
                    Err(error) if !options.planner_by_name && is_not_a_planner(&error.kind) => {
                        return Err(error.into());
                    }
                    loaded => loaded,
                },
                // A profile names a planner, and a bundle the one that it was compiled with. Both
                // may be missing here. A planner that the user names must be present.
                Err(error) if !options.planner_by_name => return Err(error),
                Err(error) if options.strict => return Err(missing(named, error).into()),
                Err(error) => Err(missing(named, error)),
            };
            if let Ok(planner) = &asked {
                check_settings(planner, &options.recorded.planner_options)?;
            }
            let built_in = match tools.built_in_until(&cancelled) {
                Err(error) if error.is_cancelled() => return Err(crate::compile::cancelled()),
                built_in => built_in,
            };
            PlanningSession::with_planner(asked, Some(built_in))
        }
    };
    Ok(session.strict(options.strict))
}

/// Returns the error of a planner that a profile or a bundle names and that was not found.
fn missing(named: &str, error: Error) -> PlannerError {
    let generic = "`--planner generic` uses the built-in planner";
    let help = error.help().map_or_else(|| generic.to_owned(), |help| format!("{help}; {generic}"));
    PlannerError {
        planner: named.to_owned(),
        version: None,
        kind: PlannerErrorKind::MissingFile(error.with_help(help)),
    }
}

/// Returns whether a file is missing, damaged or something else than a planner for this host, as
/// opposed to a planner that fails.
fn is_not_a_planner(kind: &PlannerErrorKind) -> bool {
    match kind {
        PlannerErrorKind::MissingFile(_) => true,
        PlannerErrorKind::Other(error) => {
            matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Incompatible)
        }
        _ => false,
    }
}

/// Finds a planner by path, or by name in one of the directories.
pub fn find_planner(named: &str, directories: &[PathBuf]) -> Result<PlannerEntry> {
    let path = Path::new(named);
    if path.exists() || named.contains(std::path::MAIN_SEPARATOR) || path.extension().is_some() {
        return Ok(PlannerEntry::from_path(path));
    }
    planner_named(named, directories).at(format_args!("planner `{named}`"))
}

/// Finds a planner by name in one of the directories, never by path. An error does not name the
/// planner.
pub fn planner_named(named: &str, directories: &[PathBuf]) -> Result<PlannerEntry> {
    let registry =
        directories.iter().fold(PlannerRegistry::new(), |registry, dir| registry.with_directory(dir));
    registry.find(named)
}

pub struct PlannerTools {
    #[cfg(feature = "compiler")]
    sandbox: Sandbox,
    #[cfg(feature = "compiler")]
    cache: Option<CompiledCache>,
    trust: Trust,
}

impl PlannerTools {
    /// Creates tools with `cache` as the directory of compiled planners. Planners run only if they
    /// are signed as the rules require. Packs run only if one of the rules' keys signed them.
    #[cfg_attr(not(feature = "compiler"), expect(unused_variables, reason = "nothing is compiled"))]
    pub fn new(cache: Option<&Path>, trust: &Trust) -> Result<Self> {
        Ok(PlannerTools {
            #[cfg(feature = "compiler")]
            sandbox: Sandbox::new(EngineKind::Native)?,
            #[cfg(feature = "compiler")]
            cache: cache.map(|directory| CompiledCache::new(directory.join("planners"))),
            trust: trust.clone(),
        })
    }

    /// Like [`new`](Self::new), but planners run under the portable interpreter.
    pub fn portable(cache: Option<&Path>, trust: &Trust) -> Result<Self> {
        let tools = Self::new(cache, trust)?;
        #[cfg(feature = "compiler")]
        let tools = Self { sandbox: Sandbox::new(EngineKind::Pulley)?, ..tools };
        Ok(tools)
    }

    /// Compiles the planner in the file `planner` for the portable interpreter, and returns it with
    /// its signed pack.
    ///
    /// # Errors
    ///
    /// Fails if the file is missing or is not a planner, or if this program has no compiler.
    pub fn pack(&self, planner: &Path, key: &SecretKey) -> Result<(Planner, Vec<u8>)> {
        let loaded = self.load(&PlannerEntry::from_path(planner))?;
        #[cfg(feature = "compiler")]
        {
            let wasm = shardwright_files::read_named(planner, self.sandbox.bounds().wasm_bytes)?;
            let packed = shardwright_planning::pack::write(&planner.display().to_string(), &wasm, key)?;
            Ok((loaded, packed))
        }
        #[cfg(not(feature = "compiler"))]
        {
            let _ = (loaded, key);
            let error = PlannerError {
                planner: planner.display().to_string(),
                version: None,
                kind: PlannerErrorKind::NoCompiler,
            };
            Err(error.into())
        }
    }

    /// Returns the built-in planner. It is compiled if the machine code can be cached for later
    /// commands, and interpreted otherwise.
    pub fn built_in(&self) -> std::result::Result<Planner, PlannerError> {
        self.built_in_until(&|| false)
    }

    /// Like [`built_in`](Self::built_in), but stops compiling once `cancelled` returns true.
    #[cfg_attr(not(feature = "compiler"), expect(unused_variables, reason = "nothing is compiled"))]
    pub(crate) fn built_in_until(
        &self,
        cancelled: &dyn Fn() -> bool,
    ) -> std::result::Result<Planner, PlannerError> {
        #[cfg(feature = "compiler")]
        if let (EngineKind::Native, Some(cache)) = (self.sandbox.kind(), &self.cache) {
            return builtin::load_until(&self.sandbox, Some(cache), cancelled).or_else(|error| {
                if error.is_cancelled() {
                    return Err(error);
                }
                let notice = format!("{error}; the planner is interpreted, which only takes longer");
                Ok(builtin::open()?.loaded_with(notice))
            });
        }
        builtin::open()
    }

    /// Loads a planner that was found. Without a compiler, it must be a pack.
    pub fn load(&self, entry: &PlannerEntry) -> std::result::Result<Planner, PlannerError> {
        self.load_until(entry, &|| false)
    }

    /// Like [`load`](Self::load), but stops compiling once `cancelled` returns true.
    #[cfg_attr(not(feature = "compiler"), expect(unused_variables, reason = "nothing is compiled"))]
    fn load_until(
        &self,
        entry: &PlannerEntry,
        cancelled: &dyn Fn() -> bool,
    ) -> std::result::Result<Planner, PlannerError> {
        #[cfg(feature = "compiler")]
        let loaded = entry.load_until(&self.sandbox, self.cache.as_ref(), &self.trust, cancelled);
        #[cfg(not(feature = "compiler"))]
        let loaded = entry.open(&self.trust);
        loaded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "compiler")]
    #[test]
    fn a_built_in_planner_that_does_not_load_as_machine_code_is_interpreted() {
        use shardwright_planning::conformance::requests::recorded;
        use shardwright_planning::sandbox::Bounds;

        let folder = tempfile::tempdir().unwrap();
        let tools = PlannerTools::new(Some(folder.path()), &Trust::off()).unwrap();
        let compiled = tools.built_in().unwrap();
        assert_eq!((compiled.engine(), compiled.load_notice()), (EngineKind::Native, None));
        // With this little fuel, the planner cannot even describe itself.
        let bounds = Bounds { fuel: 1, ..Bounds::default() };
        let sandbox = Sandbox::with_bounds(EngineKind::Native, bounds).unwrap();
        let interpreted = PlannerTools { sandbox, ..tools }.built_in().unwrap();
        assert_eq!(interpreted.engine(), EngineKind::Pulley);
        let notice = interpreted.load_notice().unwrap();
        assert!(notice.contains("units of fuel") && notice.contains("is interpreted"), "{notice}");
        let request = recorded().unwrap();
        let [one, other] = [compiled, interpreted].map(|planner| planner.make_plan(&request).plan.unwrap());
        assert_eq!(one, other);
    }

    #[test]
    fn the_built_in_planner_can_be_named_and_a_missing_one_of_a_profile_is_replaced() {
        let named = |name: &str| PlanOptions { planner: Some(name.to_owned()), ..PlanOptions::default() };
        let session = |options: &PlanOptions| planning_session(options, &Trust::off(), &());
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("generic.wasm"), b"").unwrap();
        let beside = PlanOptions { planners: vec![folder.path().to_owned()], ..named("generic") };
        assert!(session(&named("generic")).unwrap().is_built_in());
        assert!(session(&beside).unwrap().is_built_in(), "a file does not replace the built-in planner");
        let error = session(&named("nowhere")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Missing);
        assert_eq!(error.to_string(), "planner `nowhere`: not found in the planner directories");
        let of_profile = PlanOptions { planner_by_name: true, planner_of_profile: true, ..named("nowhere") };
        let replaced = session(&of_profile).unwrap();
        assert!(!replaced.is_built_in());
        assert!(replaced.options().any(|option| option.name == "usual-quality"), "of the built-in planner");
        let strict = PlanOptions { strict: true, ..of_profile };
        let error = session(&strict).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Missing);
        assert_eq!(error.to_string(), "planner `nowhere`: not found in the planner directories");
        assert!(error.help().unwrap().ends_with("`--planner generic` uses the built-in planner"), "{error}");
    }

    /// The planner name in a bundle must not choose a file.
    #[test]
    fn a_planner_by_name_is_never_a_path() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("odd.wasm");
        std::fs::write(&file, b"").unwrap();
        let shown = file.display().to_string();
        assert_eq!(find_planner(&shown, &[]).unwrap().path, file);
        let directories = &[folder.path().to_owned()];
        assert_eq!(planner_named("odd", directories).unwrap().path, file);
        // `Cargo.toml` exists in the directory where this test runs.
        for named in [shown.as_str(), "odd.wasm", "./odd", "../odd", "Cargo.toml"] {
            assert!(find_planner(named, directories).is_ok());
            let error = planner_named(named, directories).unwrap_err();
            assert_eq!(error.message(), "not found in the planner directories", "{error}");
        }
    }
}
