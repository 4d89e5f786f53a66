//! llama.cpp, built for this machine from the source package of `llama-cpp-python`, which contains
//! its whole source.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::{process, workspace};

/// Variable with an existing `llama-bench`. The other programs must be in its folder.
const PROGRAM_VARIABLE: &str = "SHARDWRIGHT_LLAMA_BENCH";

/// The source package.
pub const SOURCE: &str = "llama-cpp-python==0.3.36";

/// Tools for building it in addition to a compiler, if the machine has none.
const TOOLS: [&str; 2] = ["cmake==4.4.4", "ninja"];

/// Fix for GCC before 14. It declares that the instruction which configures AMX tiles reads eight
/// bytes, although it reads 64. It therefore drops the writes of the others as dead, and the first
/// product ends in an illegal instruction. This header, included before everything, declares the
/// right size.
const TILE_FIX: &str =
    "#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 14
#include <immintrin.h>
#undef _tile_loadconfig
#define _tile_loadconfig(tiles) __asm__ volatile(\"ldtilecfg %0\" : : \"m\"(*(const char(*)[64])(tiles)))
#endif
";

/// CMake options: for exactly this processor, without parts that need a network or other libraries.
const OPTIONS: [&str; 8] = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
];

/// Programs to build.
const TARGETS: [&str; 4] = ["llama-bench", "llama-quantize", "llama-perplexity", "llama-imatrix"];

/// The server, which only one comparison needs.
const SERVER: &str = "llama-server";

/// Options that add the server to a build, without its web page, which would need a network.
const SERVER_OPTIONS: [&str; 3] =
    ["-DLLAMA_BUILD_SERVER=ON", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"];

/// The built programs.
pub struct Llama {
    pub bench: PathBuf,
    pub quantize: PathBuf,
    pub perplexity: PathBuf,
    /// Writes an importance matrix, which `llama-quantize` can use for rounding.
    pub imatrix: PathBuf,
    /// The build settings, in a line.
    pub built: String,
    /// The build folder. `None` if a variable names the programs.
    pub home: Option<Home>,
}

/// Folders of source and build.
pub struct Home {
    pub source: PathBuf,
    pub build: PathBuf,
}

impl Llama {
    fn in_folder(folder: &Path, built: String, home: Option<Home>) -> Llama {
        let [bench, quantize, perplexity, imatrix] = TARGETS.map(|target| folder.join(target));
        Llama { bench, quantize, perplexity, imatrix, built, home }
    }

    /// Makes a file of another type from a file, unless it exists.
    pub fn quantise(&self, from: &Path, to: &Path, options: &[&str], kind: &str) -> Result<(), Error> {
        if to.is_file() {
            return Ok(());
        }
        let partial = to.with_extension("partial");
        process::run(Command::new(&self.quantize).args(options).arg(from).arg(&partial).arg(kind))?;
        fs::rename(&partial, to).map_err(|source| Error::File { path: to.to_owned(), source })
    }
}

/// Finds or builds the programs.
pub fn provide(folder: &Path) -> Result<Llama, Error> {
    if let Some(bench) = std::env::var_os(PROGRAM_VARIABLE).filter(|said| !said.is_empty()).map(PathBuf::from)
    {
        let folder = bench.parent().unwrap_or(Path::new(""));
        for path in [&bench].into_iter().cloned().chain(TARGETS.map(|target| folder.join(target))) {
            fs::metadata(&path).map_err(|source| Error::File { path: path.clone(), source })?;
        }
        let llama = Llama::in_folder(folder, format!("as {PROGRAM_VARIABLE} names it"), None);
        return Ok(Llama { bench, ..llama });
    }
    let home = folder.join("llama.cpp");
    let programs = home.join("build/bin");
    let built = format!(
        "Release, GGML_NATIVE, OpenMP{}",
        if cfg!(target_arch = "x86_64") {
            ", tile configuration of AMX read whole under GCC before 14"
        } else {
            ""
        }
    );
    let found = || {
        let folders = Home { source: source_of(&home), build: home.join("build") };
        Llama::in_folder(&programs, built.clone(), Some(folders))
    };
    // Written last, so that an incomplete build is repeated.
    let done = home.join("built.txt");
    let what = format!("{SOURCE} {}", TARGETS.join(" "));
    if fs::read_to_string(&done).is_ok_and(|built| built == what) {
        return Ok(found());
    }
    configure(&home, &OPTIONS)?;
    let (cmake, _) = tools(&home)?;
    process::run(Command::new(&cmake).arg("--build").arg(home.join("build")).arg("--target").args(TARGETS))?;
    workspace::replace(&done, what.as_bytes())?;
    Ok(found())
}

/// Returns the server. It is built next to the other programs, or is in their folder if a variable
/// names them.
pub fn server(llama: &Llama, folder: &Path) -> Result<PathBuf, Error> {
    let program = llama.bench.with_file_name(SERVER);
    if llama.home.is_none() {
        fs::metadata(&program).map_err(|source| Error::File { path: program.clone(), source })?;
        return Ok(program);
    }
    let home = folder.join("llama.cpp");
    let done = home.join("server-built.txt");
    if program.is_file() && fs::read_to_string(&done).is_ok_and(|built| built == SOURCE) {
        return Ok(program);
    }
    configure(&home, &[&OPTIONS[..], &SERVER_OPTIONS].concat())?;
    let (cmake, _) = tools(&home)?;
    process::run(Command::new(&cmake).arg("--build").arg(home.join("build")).args(["--target", SERVER]))?;
    workspace::replace(&done, SOURCE.as_bytes())?;
    Ok(program)
}

/// Configures the build. Of an option that occurs twice, CMake uses the last value.
fn configure(home: &Path, options: &[&str]) -> Result<(), Error> {
    fs::create_dir_all(home).map_err(|source| Error::File { path: home.to_owned(), source })?;
    let source = fetch(home)?;
    let (cmake, ninja) = tools(home)?;
    let fix = home.join("tile-configuration.h");
    workspace::replace(&fix, TILE_FIX.as_bytes())?;
    let flags = format!("-include {}", fix.display());
    process::run(
        Command::new(&cmake)
            .args(["-G", "Ninja"])
            .arg(format!("-DCMAKE_MAKE_PROGRAM={}", ninja.display()))
            .arg(format!("-DCMAKE_CXX_FLAGS={flags}"))
            .args(options)
            .arg("-S")
            .arg(&source)
            .arg("-B")
            .arg(home.join("build")),
    )
}

/// Folder of fetched files.
const DOWNLOAD: &str = "download";

/// Returns the name of the archive without its ending, which is also the folder in it.
fn archive_name() -> String {
    SOURCE.replace('-', "_").replace("==", "-")
}

/// Returns the folder of llama.cpp in the unpacked source.
fn source_of(home: &Path) -> PathBuf {
    home.join(DOWNLOAD).join(archive_name()).join("vendor/llama.cpp")
}

/// Fetches and unpacks the source. Returns the folder of llama.cpp in it.
fn fetch(home: &Path) -> Result<PathBuf, Error> {
    let (download, name) = (home.join(DOWNLOAD), archive_name());
    let source = source_of(home);
    if source.join("CMakeLists.txt").is_file() {
        return Ok(source);
    }
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"])
        .args(["--no-binary", "llama-cpp-python", SOURCE, "--dest"])
        .arg(&download);
    process::announce(&pip);
    let status = pip.status().map_err(|source| process::not_started(&pip, source))?;
    if !status.success() {
        let what = format!("the source package {SOURCE}");
        return Err(Error::NotFetched { what, with: "pip", status: status.to_string() });
    }
    let archive = download.join(format!("{name}.tar.gz"));
    process::run(Command::new("python3").args(["-m", "tarfile", "-e"]).arg(&archive).arg(&download))?;
    match source.join("CMakeLists.txt").is_file() {
        true => Ok(source),
        false => {
            Err(Error::Unexpected { path: archive, problem: "it holds no source of llama.cpp".to_owned() })
        }
    }
}

/// Returns CMake and Ninja, installed in an environment of their own if needed.
fn tools(home: &Path) -> Result<(PathBuf, PathBuf), Error> {
    let environment = home.join("tools");
    let programs = environment.join("bin");
    let found = (programs.join("cmake"), programs.join("ninja"));
    if !found.0.is_file() || !found.1.is_file() {
        process::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment))?;
        process::run(
            Command::new(programs.join("python"))
                .args(["-m", "pip", "--disable-pip-version-check", "install", "--quiet"])
                .args(TOOLS),
        )?;
    }
    Ok(found)
}
