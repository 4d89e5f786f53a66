//! The abi_stable side door of Rust shims: a root module carrying the entry function, and with its
//! type the layout of every struct of the contract. The host never calls through it; it only
//! compares layouts.

use abi_stable::StableAbi;
use abi_stable::library::RootModule;
use abi_stable::sabi_types::VersionStrings;

use crate::raw::{SwAnswer, SwHost, SwTable};

/// Export of a Rust shim besides the C symbol.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = ShimModuleRef, prefix_fields = ShimModulePrefix)))]
#[sabi(missing_field(panic))]
pub struct ShimModule {
    /// The function behind `shardwright_shim_entry`.
    #[sabi(last_prefix_field)]
    pub entry: unsafe extern "C" fn(host: *const SwHost, answer: *mut SwAnswer),
    /// Never set; present only for the layouts reachable from the table.
    pub table: Option<unsafe extern "C" fn() -> *const SwTable>,
}

impl RootModule for ShimModuleRef {
    abi_stable::declare_root_module_statics! {ShimModuleRef}
    const BASE_NAME: &'static str = "shardwright_shim";
    const NAME: &'static str = "shardwright_shim";
    const VERSION_STRINGS: VersionStrings = abi_stable::package_version_strings!();
}
