//! What a shim needs beside itself on a phone: its vendor's libraries, and what an app declares.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Who brings a library to a phone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BroughtBy {
    /// The application, among its own native libraries.
    App,
    /// The maker of the phone. An application names it in its manifest to see it.
    Device,
}

impl BroughtBy {
    /// Kebab-case name, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            BroughtBy::App => "app",
            BroughtBy::Device => "device",
        }
    }
}

/// Versions that a shim takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VersionRange {
    /// What is counted: `QNN core API`.
    pub of: String,
    /// The oldest.
    pub min: String,
    /// The first that is too new; `None` if none is known to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<String>,
}

/// A library of a vendor's that a shim drives, or that such a library loads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NeededLibrary {
    /// Its file name. `{fact}` stands for a fact of the chip's profile, in capitals:
    /// `libQnnHtp{hexagon-arch}Skel.so`.
    pub file: String,
    /// Who brings it.
    pub brought_by: BroughtBy,
    /// Versions that the shim takes; `None` if it asks for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<VersionRange>,
    /// Under which terms it may be had and passed on, as far as is known.
    pub licence: String,
    /// Where to get it.
    pub obtained: String,
    /// Why it is needed, and what rests on what evidence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl NeededLibrary {
    /// Its file name on a chip whose facts are these; an unknown fact becomes `*`.
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

/// What an Android app declares so that a shim works in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AndroidNeeds {
    /// Whether native libraries must be files of their own, not within the package: a processor
    /// that loads its half of a library by path finds no other.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub extracted_libraries: bool,
    /// Variables that are set before the shim is opened. `{libraries}` stands for the folder of
    /// the app's native libraries.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, String>,
    /// Folders of the phone in which a program that is started from a shell, outside of any app,
    /// looks for its libraries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_folders: Vec<String>,
    /// Why, and where that is said.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// What a shim's manifest says of its needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShimNeeds {
    /// The shim.
    pub name: String,
    /// Who makes the chip or the library.
    pub vendor: String,
    /// Name of the shim's own library, without the platform's prefix and suffix.
    pub library: String,
    /// Under which terms the shim itself may be passed on, if its manifest says so.
    pub licence: Option<String>,
    /// Its vendor's libraries.
    pub needs: Vec<NeededLibrary>,
    /// What an Android app declares.
    pub android: AndroidNeeds,
}

impl AndroidNeeds {
    /// Whether nothing is declared.
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
