//! Compares the struct layouts of a Rust shim with the host's.

use std::path::Path;

use abi_stable::StableAbi;
use abi_stable::abi_stability::abi_checking::{
    AbiInstability, AbiInstabilityErrors, check_layout_compatibility,
};
use abi_stable::library::{LibraryError, RootModule, abi_header_from_path};
use abi_stable::sabi_types::VersionNumber;
use abi_stable::type_layout::TLFieldOrFunction;
use serde::{Deserialize, Serialize};
use shardwright_shim_abi::ShimModuleRef;

use crate::LoadError;

/// Maximum length of a reason from a comparison. The full text has tens of kilobytes.
const REASON_LIMIT: usize = 400;

/// Result of the comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayoutCheck {
    /// A Rust shim with the same layouts as the host.
    Same,
    /// A Rust shim whose layouts cannot be compared. The reason was logged.
    Skipped(String),
    /// Not a Rust shim, so it has no layouts.
    NotRust,
    /// Linked into the host, so the compiler saw both sides.
    Linked,
}

impl LayoutCheck {
    /// Returns a stable word, as used in JSON reports.
    pub const fn name(&self) -> &'static str {
        match self {
            LayoutCheck::Same => "same",
            LayoutCheck::Skipped(_) => "skipped",
            LayoutCheck::NotRust => "not-rust",
            LayoutCheck::Linked => "linked",
        }
    }
}

/// Compares the layouts if the library contains them and both sides have the same minor version.
/// The library stays open permanently. `path` is for messages. `place` is the path by which it was
/// opened.
pub(crate) fn compare(path: &Path, place: &Path) -> Result<LayoutCheck, LoadError> {
    // `RootModule::load_from_file` would cache one library per type and return the first shim's.
    let header = match abi_header_from_path(place) {
        Ok(header) => header,
        Err(LibraryError::GetSymbolError { .. }) => return Ok(LayoutCheck::NotRust),
        Err(other) => {
            let message = format!("cannot be opened as a library: {}", cut(&other.to_string()));
            return Err(LoadError::new("not-a-library", path, message));
        }
    };
    let header = match header.upgrade() {
        Ok(header) => header,
        Err(_) => return Ok(skip(path, "the shim was built with another release of abi_stable".to_owned())),
    };
    let versions = (
        VersionNumber::new(header.version_strings()),
        VersionNumber::new(<ShimModuleRef as RootModule>::VERSION_STRINGS),
    );
    match versions {
        (Ok(shim), Ok(host)) if (shim.major, shim.minor) == (host.major, host.minor) => {}
        (Ok(shim), Ok(host)) => {
            return Ok(skip(path, format!("the shim was built against {shim}, the host against {host}")));
        }
        _ => return Ok(skip(path, "the shim does not state its version".to_owned())),
    }
    let Some(found) = header.layout() else {
        return Ok(skip(path, "the shim was built without layouts".to_owned()));
    };
    match check_layout_compatibility(<ShimModuleRef as StableAbi>::LAYOUT, found) {
        Ok(()) => Ok(LayoutCheck::Same),
        Err(errors) => {
            let (type_name, reason) = first_difference(&errors);
            let message = format!("built against another layout of `{type_name}`: {reason}");
            Err(LoadError::new("layout-differs", path, message))
        }
    }
}

fn skip(path: &Path, reason: String) -> LayoutCheck {
    tracing::info!(shim = %path.display(), reason, "struct layouts not compared");
    LayoutCheck::Skipped(reason)
}

fn cut(text: &str) -> String {
    let mut cut: String = text.chars().take(REASON_LIMIT).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    cut
}

/// Returns the first differing type and the difference. The full report lists every path to it and
/// has tens of kilobytes.
fn first_difference(errors: &AbiInstabilityErrors) -> (String, String) {
    // Types that only contain a difference are listed without their own error.
    let Some(first) = errors.errors.iter().find(|error| !error.errs.is_empty()) else {
        return ("ShimModule".to_owned(), "the layouts differ".to_owned());
    };
    // The innermost struct of the contract on the path to the difference.
    let layouts = first.stack_trace.iter().rev().filter_map(|place| match place.expected {
        TLFieldOrFunction::Field(field) => Some(field.layout().name()),
        TLFieldOrFunction::Function(_) => None,
    });
    let mut names = layouts.clone().filter(|name| name.starts_with("Sw")).chain(layouts.clone());
    let type_name = names.next().unwrap_or("ShimModule").to_owned();
    let reason = match first.errs.first() {
        Some(AbiInstability::UnexpectedField(fields)) => {
            format!("expected member `{}`, got `{}`", fields.expected.name(), fields.found.name())
        }
        Some(AbiInstability::FieldCountMismatch(count)) => {
            format!("expected {} members, got {}", count.expected, count.found)
        }
        Some(AbiInstability::Size(size)) => format!("expected {} bytes, got {}", size.expected, size.found),
        Some(AbiInstability::Name(name)) => {
            format!("expected type `{}`, got `{}`", name.expected, name.found)
        }
        _ => cut(first.to_string().split("Error:").nth(1).unwrap_or("the layouts differ").trim()),
    };
    (type_name, reason)
}
