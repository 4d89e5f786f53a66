//! What a bundle needs beside itself on a phone.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use shardwright_bundle::{Bundle, Variant};
use shardwright_vocabulary::{BroughtBy, NeededLibrary, ShimNeeds, VersionRange};

use crate::DeliveryError;

/// What the variants of a bundle need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NeedsReport {
    /// Path of the bundle.
    pub path: String,
    /// Its identity.
    pub bundle: String,
    /// What each variant needs.
    pub variants: Vec<VariantNeeds>,
    /// What an app that carries all of them declares.
    pub android: Declaration,
    /// Manifests of shims that could not be read, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
}

/// What a variant needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VariantNeeds {
    /// Its chip.
    pub soc: String,
    /// The shims that its chains were compiled by, and are loaded by.
    pub shims: Vec<ShimNeed>,
}

/// A shim with what it needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShimNeed {
    /// Its name.
    pub name: String,
    /// File name of its library, without the platform's prefix and suffix.
    pub library: String,
    /// The versions that compiled the variant.
    pub compiled_by: Vec<String>,
    /// Who makes the chip or the library.
    pub vendor: String,
    /// Terms of the shim itself; `None` if its manifest says nothing.
    pub licence: Option<String>,
    /// Its vendor's libraries.
    pub libraries: Vec<LibraryNeed>,
}

/// A library of a vendor's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LibraryNeed {
    /// Its file on this chip; `*` where the chip's facts are not known.
    pub file: String,
    /// Who brings it.
    pub brought_by: BroughtBy,
    /// Versions that the shim takes.
    pub versions: Option<VersionRange>,
    /// Its terms.
    pub licence: String,
    /// Where to get it.
    pub obtained: String,
    /// Why it is needed.
    pub note: String,
}

/// What an Android app declares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Declaration {
    /// Lines within `<application>` of `AndroidManifest.xml`.
    pub manifest: Vec<String>,
    /// Whether native libraries must be files of their own (`jniLibs.useLegacyPackaging = true`).
    pub extracted_libraries: bool,
    /// Variables to set before a shim is opened; `{libraries}` is the folder of the app's native
    /// libraries.
    pub variables: BTreeMap<String, String>,
    /// Why, by shim.
    pub notes: Vec<String>,
}

/// Lists what a bundle needs, or one variant of it. `shims` are those whose manifests are known,
/// `facts` what profiles say of the chips of variants.
///
/// # Errors
///
/// [`DeliveryError::NoShim`] if a manifest is not among them, and a chip that the bundle has no
/// variant for.
pub fn needs(
    bundle: &Bundle,
    soc: Option<&str>,
    shims: &[ShimNeeds],
    facts: &BTreeMap<String, BTreeMap<String, String>>,
) -> Result<NeedsReport, DeliveryError> {
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
        let facts = facts.get(&variant.soc).unwrap_or(&nothing);
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
        variants.push(VariantNeeds { soc: variant.soc.clone(), shims: found });
    }
    let path = bundle.path().display().to_string();
    Ok(NeedsReport { path, bundle: bundle.sha256().to_string(), variants, android, skipped: Vec::new() })
}

/// The shims of a variant, by name, each with the versions that compiled it.
pub(crate) fn shims_of<'s>(
    variant: &Variant,
    shims: &'s [ShimNeeds],
) -> Result<Vec<(BTreeSet<String>, &'s ShimNeeds)>, DeliveryError> {
    let mut versions: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for shard in variant.all_chains().flat_map(|chain| &chain.shards) {
        versions.entry(&shard.compiled_by.shim).or_default().insert(shard.compiled_by.version.clone());
    }
    let known = |(name, versions): (&str, BTreeSet<String>)| {
        let found = shims.iter().find(|shim| shim.name == name);
        let missing = || DeliveryError::NoShim { soc: variant.soc.clone(), shim: name.to_owned() };
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

/// "The libraries are accessible only when they are explicitly requested using the
/// `<uses-native-library>` tag", from API level 31 on; with `required="false"` the app also
/// installs where they are not. Page:
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
