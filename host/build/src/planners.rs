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
use shardwright_vocabulary::{Error, ErrorKind};

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
pub(crate) fn planning_session(options: &PlanOptions, trust: &Trust) -> Result<PlanningSession> {
    let tools = PlannerTools::new(options.cache.as_deref(), trust)?;
    let session = match &options.planner {
        None => {
            match tools.built_in() {
                Ok(planner) => {
                    check_settings(&planner, &options.recorded.planner_options)?;
                    PlanningSession::new(planner)
                }
                // The session reports the error. Unless it is strict, it plans without a planner.
                Err(error) => PlanningSession::with_planner(Err(error), None),
            }
        }
        Some(named) => {
            let directories = &options.planners;
            let found = match options.planner_by_name {
                true => planner_named(named, directories),
                false => find_planner(named, directories),
            };
            let asked = match found {
                Ok(entry) => match tools.load(&entry) {
                    // The user named a file, so another planner must not replace it.
                    Err(error)
                        if !options.planner_by_name
                            && matches!(error.kind, PlannerErrorKind::MissingFile(_)) =>
                    {
                        return Err(error.into());
                    }
                    loaded => loaded,
                },
                // A bundle names the planner it was compiled with, which may be missing here. A
                // planner that the user names must be present.
                Err(error) if options.strict || !options.planner_by_name => return Err(error),
                Err(error) => Err(PlannerError {
                    planner: named.clone(),
                    version: None,
                    kind: PlannerErrorKind::MissingFile(error.with_kind(ErrorKind::Missing)),
                }),
            };
            if let Ok(planner) = &asked {
                check_settings(planner, &options.recorded.planner_options)?;
            }
            PlanningSession::with_planner(asked, Some(tools.built_in()))
        }
    };
    Ok(session.strict(options.strict))
}

/// Finds a planner by path, or by name in one of the directories.
pub fn find_planner(named: &str, directories: &[PathBuf]) -> Result<PlannerEntry> {
    let path = Path::new(named);
    if path.exists() || named.contains(std::path::MAIN_SEPARATOR) || path.extension().is_some() {
        return Ok(PlannerEntry::from_path(path));
    }
    planner_named(named, directories)
}

/// Finds a planner by name in one of the directories, never by path.
fn planner_named(named: &str, directories: &[PathBuf]) -> Result<PlannerEntry> {
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
        #[cfg(feature = "compiler")]
        if let (EngineKind::Native, Some(cache)) = (self.sandbox.kind(), &self.cache) {
            return builtin::load(&self.sandbox, Some(cache)).or_else(|error| {
                let notice = format!("{error}; the planner is interpreted, which only takes longer");
                Ok(builtin::open()?.loaded_with(notice))
            });
        }
        builtin::open()
    }

    /// Loads a planner that was found. Without a compiler, it must be a pack.
    pub fn load(&self, entry: &PlannerEntry) -> std::result::Result<Planner, PlannerError> {
        #[cfg(feature = "compiler")]
        let loaded = entry.load(&self.sandbox, self.cache.as_ref(), &self.trust);
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
            assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
        }
    }
}
