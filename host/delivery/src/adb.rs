//! A folder with a script that pushes a bundle to a phone connected for development, and runs it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::Path;

use serde::Serialize;
use shardwright_bundle::{Bundle, FileProgress};
use shardwright_vocabulary::{BroughtBy, Error, Result, ShimNeeds};

use crate::folder::{Folder, Part};
use crate::needs::shims_of;

/// Folder on the phone for all files. It is the only one from which a shell may run programs.
const THERE: &str = "/data/local/tmp/shardwright";

/// Name of the bundle in the folder, and on the phone.
const BUNDLE: &str = "bundle.swb";

const SCRIPT: &str = "push.sh";

/// The written files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AdbReport {
    /// Path of the folder.
    pub path: String,
    /// Path of the script in it.
    pub script: String,
    /// Chips of the variants in it.
    pub variants: Vec<String>,
    /// Hash of the bundle to push.
    pub bundle: String,
    /// Size of the bundle in bytes.
    pub bytes: u64,
    /// Shims to push with the bundle.
    pub shims: Vec<String>,
    /// Files of vendors to push with the shims, from a folder that the user names.
    pub libraries: Vec<String>,
    /// Target folder on the phone.
    pub there: String,
}

/// Writes a folder with a bundle or the variant for one chip, and a script for a POSIX shell. `to`
/// must be missing or empty.
///
/// # Errors
///
/// If the manifest of a shim is not in `shims`, or if a file cannot be read or written.
pub fn adb_folder(
    bundle: &Bundle,
    soc: Option<&str>,
    shims: &[ShimNeeds],
    facts: &BTreeMap<String, BTreeMap<String, String>>,
    to: &Path,
    progress: impl FnMut(FileProgress) -> ControlFlow<()>,
) -> Result<AdbReport> {
    let all: Vec<&str> = bundle.manifest().variants.iter().map(|variant| variant.soc.as_str()).collect();
    let share = bundle.share(&soc.map_or(all, |soc| vec![soc]))?;
    let variants = &share.manifest().variants;
    let mut pushed = Pushed::default();
    for variant in variants {
        let nothing = BTreeMap::new();
        let facts = facts.get(variant.soc.as_str()).unwrap_or(&nothing);
        for (_, shim) in shims_of(variant, shims)? {
            pushed.add(shim, facts)?;
        }
    }
    let folder = Folder::create(to)?;
    let packed = share.pack(&share.volume(), &folder.path(&[Part::Ours(BUNDLE)])?, progress)?;
    folder.write(&[Part::Ours(SCRIPT)], &script(&pushed))?;
    folder.keep()?;
    Ok(AdbReport {
        path: to.display().to_string(),
        script: SCRIPT.to_owned(),
        variants: variants.iter().map(|variant| variant.soc.to_string()).collect(),
        bundle: packed.bundle.to_string(),
        bytes: packed.bytes,
        shims: pushed.shims,
        libraries: pushed.libraries,
        there: THERE.to_owned(),
    })
}

/// Files that the script pushes, and variables that it sets.
#[derive(Default)]
struct Pushed {
    /// Stems of the shims' libraries.
    shims: Vec<String>,
    libraries: Vec<String>,
    folders: Vec<String>,
    variables: BTreeMap<String, String>,
}

impl Pushed {
    fn add(&mut self, shim: &ShimNeeds, facts: &BTreeMap<String, String>) -> Result<()> {
        let add = |to: &mut Vec<String>, what: String| {
            if !to.contains(&what) {
                to.push(what);
            }
        };
        add(&mut self.shims, word("a shim's library", shim.library.clone())?);
        for library in shim.needs.iter().filter(|library| library.brought_by == BroughtBy::App) {
            add(&mut self.libraries, word("a vendor's library", library.file_on(facts))?);
        }
        shim.android.device_folders.iter().for_each(|folder| add(&mut self.folders, folder.clone()));
        self.variables.extend(shim.android.variables.clone());
        Ok(())
    }
}

/// Checks a name that is inserted into the script unchanged. A manifest may give a shim's library
/// any name, and facts of a profile, which are parts of names, are any text. Neither may become a
/// command.
fn word(of: &str, name: String) -> Result<String> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+*".contains(&byte);
    if !name.is_empty() && !name.starts_with('-') && name.bytes().all(legal) {
        return Ok(name);
    }
    let name: String = name.chars().take(64).collect();
    let what = format!(
        "`{name}` cannot be the name of {of} in a script: expected letters, digits and `-_.+*`, \
         and no `-` at the beginning"
    );
    Err(Error::invalid(what).with_help("correct the shim's manifest, or the facts of the chip's profile"))
}

/// Formats the script. Its names were checked by [`word`], and variables and folders were checked
/// with the manifest.
fn script(pushed: &Pushed) -> String {
    let mut text = format!(
        "#!/bin/sh
# Pushes a bundle with what runs it to a phone, and runs it there:
#
#   SHARDWRIGHT_ANDROID=FOLDER [VENDOR_LIBRARIES=FOLDER] sh push.sh [OPTION …]
#
# SHARDWRIGHT_ANDROID is the folder of the program built for the phone: `shardwright`,
# `shardwright-worker` and `shims`. VENDOR_LIBRARIES is a folder with the libraries of
# `shardwright needs` that an app brings. Options are passed to `shardwright run`. Without options
# the program is not run. ADB names another adb, and ANDROID_SERIAL
# one of several phones.
set -eu
here=$(cd \"$(dirname \"$0\")\" && pwd)
there={THERE}
adb=${{ADB:-adb}}
program=${{SHARDWRIGHT_ANDROID:?name the folder of the program that was built for Android}}
",
    );
    if !pushed.libraries.is_empty() {
        text.push_str(
            "libraries=${VENDOR_LIBRARIES:?name the folder of the libraries that `shardwright needs` lists}\n",
        );
    }
    text.push_str("\n\"$adb\" shell mkdir -p \"$there/shims\" \"$there/libraries\"\n");
    text.push_str("\"$adb\" push \"$here/bundle.swb\" \"$there/bundle.swb\"\n");
    text.push_str(
        "for name in shardwright shardwright-worker; do\n    \"$adb\" push \"$program/$name\" \"$there/$name\"\ndone\n",
    );
    let _ = write!(
        text,
        "for name in {}; do\n    for file in \"lib$name.so\" \"lib$name.shim.json\" \"lib$name.shim.json.sig\"; do\n        \
         # Only a signed shim has the last one.\n        case $file in *.sig) [ -e \"$program/shims/$file\" ] || continue;; esac\n        \
         \"$adb\" push \"$program/shims/$file\" \"$there/shims/$file\"\n    done\ndone\n",
        pushed.shims.join(" ")
    );
    if !pushed.libraries.is_empty() {
        // An unknown part of a name is a pattern: the shell finds the files, or the push fails.
        let each: Vec<String> =
            pushed.libraries.iter().map(|library| format!("\"$libraries\"/{library}")).collect();
        let _ = write!(
            text,
            "for file in {}; do\n    \"$adb\" push \"$file\" \"$there/libraries/$(basename \"$file\")\"\ndone\n",
            each.join(" ")
        );
    }
    text.push_str("\"$adb\" shell chmod 755 \"$there/shardwright\" \"$there/shardwright-worker\"\n");
    text.push_str(
        "\n[ $# -gt 0 ] || exit 0\nquoted=\nfor argument in \"$@\"; do\n    quoted=\"$quoted \
         '$(printf %s \"$argument\" | sed \"s/'/'\\\\\\\\''/g\")'\"\ndone\n",
    );
    let mut folders = vec!["$there/libraries".to_owned()];
    folders.extend(pushed.folders.iter().cloned());
    let mut set = format!("LD_LIBRARY_PATH='{}'", folders.join(":"));
    for (name, value) in &pushed.variables {
        let _ = write!(set, " {name}='{}'", value.replace("{libraries}", "$there/libraries"));
    }
    let _ = writeln!(
        text,
        "\"$adb\" shell \"cd '$there' && {set} ./shardwright run bundle.swb --shims shims$quoted\""
    );
    text
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::{AndroidNeeds, ErrorKind, NeededLibrary};

    use super::*;

    #[test]
    fn no_name_becomes_a_command() {
        for name in ["shardwright_shim_qnn", "libQnnHtpV79Stub.so", "libQnnHtpV*Skel.so", "a+b-c"] {
            assert_eq!(word("x", name.to_owned()).unwrap(), name);
        }
        for name in ["", "a b", "a;b", "$(b)", "`b`", "a\nb", "../b", "a'b", "a\"b", "-rf", "é", "a&b", "a|b"]
        {
            let error = word("x", name.to_owned()).unwrap_err();
            assert!(error.kind() == ErrorKind::Invalid && error.help().is_some(), "{name}: {error:?}");
            let message = format!("`{name}` cannot be the name of x in a script");
            assert!(error.message().starts_with(&message), "{error}");
        }
        let facts = BTreeMap::from([("arch".to_owned(), "v79; reboot".to_owned())]);
        let shim = ShimNeeds {
            name: "qnn".to_owned(),
            vendor: "Qualcomm".to_owned(),
            library: "shim".to_owned(),
            licence: None,
            needs: vec![NeededLibrary {
                file: "libQnnHtp{arch}.so".to_owned(),
                brought_by: BroughtBy::App,
                versions: None,
                licence: "its own".to_owned(),
                obtained: "from its maker".to_owned(),
                note: String::new(),
            }],
            android: AndroidNeeds::default(),
        };
        let refused = Pushed::default().add(&shim, &facts).unwrap_err();
        assert!(refused.message().contains("cannot be the name of a vendor's library"), "{refused}");
    }
}
