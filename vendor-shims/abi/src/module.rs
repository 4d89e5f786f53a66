//! The abi_stable root module of Rust shims. It contains the entry function, and its type contains
//! the layout of every struct of the contract. The host only compares the layouts and never calls
//! through the module.

use abi_stable::StableAbi;
use abi_stable::library::RootModule;
use abi_stable::sabi_types::VersionStrings;

use crate::raw::{SwAnswer, SwHost, SwTable};

/// Export of a Rust shim in addition to the C symbol.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = ShimModuleRef, prefix_fields = ShimModulePrefix)))]
#[sabi(missing_field(panic))]
pub struct ShimModule {
    /// The function behind the C symbol `shardwright_shim_entry`.
    #[sabi(last_prefix_field)]
    pub entry: unsafe extern "C" fn(host: *const SwHost, answer: *mut SwAnswer),
    /// Never set. Present only for the layouts that are reachable from the table.
    pub table: Option<unsafe extern "C" fn() -> *const SwTable>,
}

impl RootModule for ShimModuleRef {
    abi_stable::declare_root_module_statics! {ShimModuleRef}
    const BASE_NAME: &'static str = "shardwright_shim";
    const NAME: &'static str = "shardwright_shim";
    const VERSION_STRINGS: VersionStrings = abi_stable::package_version_strings!();
}
