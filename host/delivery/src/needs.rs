//! Libraries and declarations that a bundle needs on a phone.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use shardwright_bundle::{Bundle, Variant};
use shardwright_vocabulary::{BroughtBy, Error, NeededLibrary, Result, ShimNeeds, VersionRange};

/// Needs of the variants of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NeedsReport {
    /// Path of the bundle.
    pub path: String,
    /// Hash of the bundle.
    pub bundle: String,
    /// Needs of each variant.
    pub variants: Vec<VariantNeeds>,
    /// Declarations of an app that contains all of them.
    pub android: Declaration,
    /// Manifests of shims that could not be read, with reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
}

/// Needs of a variant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VariantNeeds {
    /// Chip of the variant.
    pub soc: String,
    /// Shims that compiled its chains, and that load them.
    pub shims: Vec<ShimNeed>,
}

/// A shim with its needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShimNeed {
    /// Name of the shim.
    pub name: String,
    /// File name of its library, without the platform's prefix and suffix.
    pub library: String,
    /// Versions that compiled the variant.
    pub compiled_by: Vec<String>,
    /// Vendor of the chip or the library.
    pub vendor: String,
    /// Licence of the shim itself. `None` if its manifest has none.
    pub licence: Option<String>,
    /// Libraries of the vendor that it needs.
    pub libraries: Vec<LibraryNeed>,
}

/// A vendor's library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LibraryNeed {
    /// File name on this chip, with `*` for unknown facts of the chip.
    pub file: String,
    /// Whether the device or the app provides it.
    pub brought_by: BroughtBy,
    /// Versions that the shim supports.
    pub versions: Option<VersionRange>,
    /// Licence of the library.
    pub licence: String,
    /// Where to get it.
    pub obtained: String,
    /// Why it is needed.
    pub note: String,
}

/// Declarations of an Android app.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Declaration {
    /// Lines within `<application>` of `AndroidManifest.xml`.
    pub manifest: Vec<String>,
    /// Whether native libraries must be separate files (`jniLibs.useLegacyPackaging = true`).
    pub extracted_libraries: bool,
    /// Environment variables to set before opening a shim. `{libraries}` is the folder of the app's
    /// native libraries.
    pub variables: BTreeMap<String, String>,
    /// Reasons, by shim.
    pub notes: Vec<String>,
}

/// Lists the needs of a bundle, or of one variant. `shims` are the shims whose manifests are known,
/// and `facts` the facts in profiles about the chips of variants.
///
/// # Errors
///
/// If the manifest of a shim is not in `shims`, or if the bundle has no variant for the chip.
pub fn needs(
    bundle: &Bundle,
    soc: Option<&str>,
    shims: &[ShimNeeds],
    facts: &BTreeMap<String, BTreeMap<String, String>>,
) -> Result<NeedsReport> {
    let share;
    let manifest = match soc {
        None => bundle.manifest(),
        Some(soc) => {
            share = bundle.share(&[soc])?;
            share.manifest()
        }
    };
    let mut variants = Vec::with_capacity(manifest.variants.len());
    let mut android = Declaration::default();
    for variant in &manifest.variants {
        let nothing = BTreeMap::new();
        let facts = facts.get(variant.soc.as_str()).unwrap_or(&nothing);
        let mut found = Vec::new();
        for (shim, needs) in shims_of(variant, shims)? {
            let libraries: Vec<LibraryNeed> = needs.needs.iter().map(|library| on(library, facts)).collect();
            declare(&mut android, needs, &libraries);
            found.push(ShimNeed {
                name: needs.name.clone(),
                library: needs.library.clone(),
                compiled_by: shim.into_iter().collect(),
                vendor: needs.vendor.clone(),
                licence: needs.licence.clone(),
                libraries,
            });
        }
        variants.push(VariantNeeds { soc: variant.soc.to_string(), shims: found });
    }
    let path = bundle.path().display().to_string();
    Ok(NeedsReport { path, bundle: bundle.sha256().to_string(), variants, android, skipped: Vec::new() })
}

/// Returns the shims of a variant, by name, each with the versions that compiled it.
pub(crate) fn shims_of<'s>(
    variant: &Variant,
    shims: &'s [ShimNeeds],
) -> Result<Vec<(BTreeSet<String>, &'s ShimNeeds)>> {
    let mut versions: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for shard in variant.all_chains().flat_map(|chain| &chain.shards) {
        versions.entry(&shard.compiled_by.shim).or_default().insert(shard.compiled_by.version.clone());
    }
    let known = |(name, versions): (&str, BTreeSet<String>)| {
        let found = shims.iter().find(|shim| shim.name == name);
        let missing = || {
            let what = format!("`{}` needs the shim `{name}`, whose manifest was not found", variant.soc);
            Error::missing(what).with_help("name the folder of the shim's manifest with `--shims`")
        };
        Ok((versions, found.ok_or_else(missing)?))
    };
    versions.into_iter().map(known).collect()
}

fn on(library: &NeededLibrary, facts: &BTreeMap<String, String>) -> LibraryNeed {
    LibraryNeed {
        file: library.file_on(facts),
        brought_by: library.brought_by,
        versions: library.versions.clone(),
        licence: library.licence.clone(),
        obtained: library.obtained.clone(),
        note: library.note.clone(),
    }
}

/// Adds the declarations for a shim's libraries.
///
/// "The libraries are accessible only when they are explicitly requested using the
/// `<uses-native-library>` tag", from API level 31 on. With `required="false"`, the app can also be
/// installed on devices without them. Page:
/// <https://developer.android.com/guide/topics/manifest/uses-native-library-element>, read 27
/// November 2026.
fn declare(android: &mut Declaration, shim: &ShimNeeds, libraries: &[LibraryNeed]) {
    let of_device = libraries.iter().filter(|library| library.brought_by == BroughtBy::Device);
    for library in of_device {
        let line =
            format!("<uses-native-library android:name=\"{}\" android:required=\"false\" />", library.file);
        if !android.manifest.contains(&line) {
            android.manifest.push(line);
        }
    }
    android.extracted_libraries |= shim.android.extracted_libraries;
    android.variables.extend(shim.android.variables.clone());
    let note = format!("{}: {}", shim.name, shim.android.note);
    if !shim.android.note.is_empty() && !android.notes.contains(&note) {
        android.notes.push(note);
    }
}
