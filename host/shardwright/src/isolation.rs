use shardwright_runtime::shims::{Isolation, RegistryBuilder, ShimRegistry, Shims};

use crate::{Result, SearchPath};

/// The shims in the directories of `search`, opened as `isolation` says.
pub(crate) fn open_shims(search: &SearchPath, isolation: Isolation) -> Result<Shims> {
    Shims::open(with_directories(ShimRegistry::builder(), search), isolation)
}

/// Adds the directories of `search`; with feature `static-cpu` the linked CPU shim is there too.
fn with_directories(builder: RegistryBuilder, search: &SearchPath) -> RegistryBuilder {
    #[cfg(feature = "static-cpu")]
    let builder = builder.linked("cpu", shardwright_shim_cpu::shim_entry());
    let named = |builder: RegistryBuilder, (library, manifest): &(std::path::PathBuf, String)| {
        builder.described(library, manifest)
    };
    let builder = search.libraries.iter().fold(builder, named);
    search.shims.iter().fold(builder, RegistryBuilder::directory)
}
