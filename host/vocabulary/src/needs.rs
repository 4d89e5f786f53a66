//! Requirements of a shim on a phone: its vendor's libraries, and the declarations of an app.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The party that installs a library on a phone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BroughtBy {
    /// The application, among its own native libraries.
    App,
    /// The maker of the phone. An application must name the library in its manifest to access it.
    Device,
}

impl BroughtBy {
    /// Returns the kebab-case name, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            BroughtBy::App => "app",
            BroughtBy::Device => "device",
        }
    }
}

/// Range of versions that a shim supports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VersionRange {
    /// The versioned interface, such as `QNN core API`.
    pub of: String,
    /// The oldest supported version.
    pub min: String,
    /// The first version that is too new. `None` if no such version is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<String>,
}

/// A vendor's library that a shim uses, or that such a library loads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NeededLibrary {
    /// File name. `{fact}` is replaced with a fact of the chip's profile, in capitals:
    /// `libQnnHtp{hexagon-arch}Skel.so`.
    pub file: String,
    /// The party that installs the library on the phone.
    pub brought_by: BroughtBy,
    /// Versions that the shim supports. `None` if it has no requirement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<VersionRange>,
    /// Terms of use and redistribution, as far as they are known.
    pub licence: String,
    /// Where to obtain it.
    pub obtained: String,
    /// Why the library is needed, and the evidence for each statement.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl NeededLibrary {
    /// Returns the file name on a chip with these facts. An unknown fact becomes `*`.
    pub fn file_on(&self, facts: &BTreeMap<String, String>) -> String {
        let mut name = String::new();
        let mut rest = self.file.as_str();
        while let Some((before, after)) = rest.split_once('{') {
            let (fact, behind) = after.split_once('}').unwrap_or((after, ""));
            name.push_str(before);
            name.push_str(&facts.get(fact).map_or("*".to_owned(), |value| value.to_uppercase()));
            rest = behind;
        }
        name.push_str(rest);
        name
    }
}

/// Declarations that an Android app needs so that a shim works in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AndroidNeeds {
    /// Whether native libraries must be extracted from the package as separate files. A processor
    /// that loads its part of a library by path does not find libraries inside the package.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub extracted_libraries: bool,
    /// Environment variables to set before the shim is opened. `{libraries}` is replaced with the
    /// folder of the app's native libraries.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, String>,
    /// Folders of the phone in which a program started from a shell, outside any app, looks for its
    /// libraries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_folders: Vec<String>,
    /// Why these declarations are needed, and where the vendor documents them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// The requirements that a shim's manifest declares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShimNeeds {
    /// Name of the shim.
    pub name: String,
    /// Vendor of the chip or the library.
    pub vendor: String,
    /// Name of the shim's own library, without the platform's prefix and suffix.
    pub library: String,
    /// Redistribution terms of the shim itself, if its manifest specifies them.
    pub licence: Option<String>,
    /// Libraries of the vendor.
    pub needs: Vec<NeededLibrary>,
    /// Declarations that an Android app needs.
    pub android: AndroidNeeds,
}

impl AndroidNeeds {
    /// Returns whether no declarations are needed.
    pub fn is_empty(&self) -> bool {
        *self == AndroidNeeds::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(file: &str) -> NeededLibrary {
        NeededLibrary {
            file: file.to_owned(),
            brought_by: BroughtBy::App,
            versions: None,
            licence: "none".to_owned(),
            obtained: "nowhere".to_owned(),
            note: String::new(),
        }
    }

    #[test]
    fn a_name_follows_the_chip() {
        let facts = BTreeMap::from([("arch".to_owned(), "v75".to_owned())]);
        for (file, on) in [
            ("lib.so", "lib.so"),
            ("lib{arch}Skel.so", "libV75Skel.so"),
            ("{arch}{other}", "V75*"),
            ("lib{arch", "libV75"),
            ("lib}.so", "lib}.so"),
        ] {
            assert_eq!(named(file).file_on(&facts), on);
        }
    }
}
