use std::path::PathBuf;

use shardwright_shims::{RegistryBuilder, ShimRegistry};

/// Directories in which shims, planners and profiles are looked for, in this order; shims listed
/// individually come first.
///
/// Built-in profiles and the built-in planner are always available, whatever the directories
/// contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchPath {
    /// Shims: dylibs with their manifests. Loading one runs its code: name only directories whose
    /// owner you trust.
    pub shims: Vec<PathBuf>,
    /// Single shims, each a library with the text of its manifest, for places where only libraries
    /// can be stored, such as an Android package.
    pub libraries: Vec<(PathBuf, String)>,
    /// Planners: `.wasm` components and packs. They run in a sandbox.
    pub planners: Vec<PathBuf>,
    /// SoC profiles.
    pub profiles: Vec<PathBuf>,
}

impl SearchPath {
    /// What the variables `SHARDWRIGHT_SHIM_PATH`, `SHARDWRIGHT_PLANNER_PATH` and
    /// `SHARDWRIGHT_PROFILE_PATH` list, then `shims`, `planners` and `profiles` beside the running
    /// program where they exist.
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

    /// The shims of these directories; with feature `static-cpu` the linked CPU shim is there too.
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

/// This user's cache directory: `$XDG_CACHE_HOME/shardwright`, else `~/.cache/shardwright`.
pub fn user_cache_directory() -> Option<PathBuf> {
    let absolute = |path: PathBuf| path.is_absolute().then_some(path);
    let configured = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).and_then(absolute);
    let home =
        || std::env::var_os("HOME").map(PathBuf::from).and_then(absolute).map(|home| home.join(".cache"));
    configured.or_else(home).map(|directory| directory.join("shardwright"))
}
