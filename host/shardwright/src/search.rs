use std::path::PathBuf;

use shardwright_shims::{RegistryBuilder, ShimRegistry};

/// Directories of shims, planners and profiles, in search order. Shims listed individually come
/// first.
///
/// Built-in profiles and the built-in planner are always available.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchPath {
    /// Directories of shims: shared libraries with their manifests. Loading a shim runs its code,
    /// so use only directories whose owner you trust.
    pub shims: Vec<PathBuf>,
    /// Single shims, each a library and the text of its manifest. For places that can only store
    /// libraries, such as an Android package.
    pub libraries: Vec<(PathBuf, String)>,
    /// Directories of planners: `.wasm` components and packs. They run in a sandbox.
    pub planners: Vec<PathBuf>,
    /// Directories of SoC profiles.
    pub profiles: Vec<PathBuf>,
}

impl SearchPath {
    /// Returns the standard path: the directories in the variables `SHARDWRIGHT_SHIM_PATH`,
    /// `SHARDWRIGHT_PLANNER_PATH` and `SHARDWRIGHT_PROFILE_PATH`, then `shims`, `planners` and
    /// `profiles` next to the running program if they exist.
    pub fn standard() -> Self {
        let beside = std::env::current_exe().ok().and_then(|program| program.parent().map(PathBuf::from));
        let list = |variable: &str, folder: &str| {
            let named = std::env::var_os(variable).unwrap_or_default();
            let mut found: Vec<PathBuf> =
                std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()).collect();
            found.extend(beside.as_ref().map(|program| program.join(folder)).filter(|path| path.is_dir()));
            found
        };
        SearchPath {
            shims: list("SHARDWRIGHT_SHIM_PATH", "shims"),
            libraries: Vec::new(),
            planners: list("SHARDWRIGHT_PLANNER_PATH", "planners"),
            profiles: list("SHARDWRIGHT_PROFILE_PATH", "profiles"),
        }
    }

    /// Returns a registry builder for the shims of these directories. With feature `static-cpu` it
    /// includes the linked CPU shim.
    pub fn registry(&self) -> RegistryBuilder {
        let builder = ShimRegistry::builder();
        #[cfg(feature = "static-cpu")]
        let builder = builder.linked("cpu", shardwright_shim_cpu::shim_entry());
        let named = |builder: RegistryBuilder, (library, manifest): &(PathBuf, String)| {
            builder.described(library, manifest)
        };
        let builder = self.libraries.iter().fold(builder, named);
        self.shims.iter().fold(builder, RegistryBuilder::directory)
    }
}

/// Returns this user's cache directory: `$XDG_CACHE_HOME/shardwright`, otherwise
/// `~/.cache/shardwright`.
pub fn user_cache_directory() -> Option<PathBuf> {
    let absolute = |path: PathBuf| path.is_absolute().then_some(path);
    let configured = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).and_then(absolute);
    let home =
        || std::env::var_os("HOME").map(PathBuf::from).and_then(absolute).map(|home| home.join(".cache"));
    configured.or_else(home).map(|directory| directory.join("shardwright"))
}
