//! Prompt lookup compared with llama.cpp's own, on the same checkpoint, texts and ids.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::cases::{INT4, INT8, SMALLEST};
use super::{Workshop, folder, llama};
use crate::build::Scope;
use crate::error::Error;
use crate::workspace::{Profile, Workspace};
use crate::{build, process, setup};

/// The program that makes llama.cpp draft, and the libraries in llama.cpp's build folder that it is
/// linked with.
const PROGRAM: &str = "tests/benches/peers/lookup.cpp";
const LIBRARIES: [&str; 6] = [
    "common/libllama-common.a",
    "common/libllama-common-base.a",
    "src/libllama.a",
    "ggml/src/libggml.a",
    "ggml/src/libggml-cpu.a",
    "ggml/src/libggml-base.a",
];
/// Folders of headers in llama.cpp's source.
const HEADERS: [&str; 3] = ["include", "ggml/include", "common"];

/// Variable with a C++ compiler.
const COMPILER_VARIABLE: &str = "CXX";

/// Largest number of drafted tokens for a step, which a step of sixteen rows can verify.
const DRAFTED: &str = "15";
const ROWS: &str = "16";

/// Measures the smallest model in eight and in four bits, and prints the output of the bench.
pub fn compare(workspace: &Workspace) -> Result<(), Error> {
    let folder = folder()?;
    let llama = llama::provide(&folder)?;
    let program = program(workspace, &folder, &llama)?;
    let workshop = Workshop::new(workspace, folder)?;
    setup::prepare(workspace)?;
    build::build(workspace, Profile::Release, Scope::Workspace)?;
    for (formats, kind) in [(INT8, "Q8_0"), (INT4, "Q4_0")] {
        bench(workspace, &workshop, (formats, kind), &program, &llama)?;
    }
    Ok(())
}

fn bench(
    workspace: &Workspace,
    workshop: &Workshop<'_>,
    (formats, kind): (&str, &str),
    program: &Path,
    llama: &llama::Llama,
) -> Result<(), Error> {
    let gguf = workshop.random(SMALLEST, kind, llama)?;
    let checkpoint = workshop.checkpoint(SMALLEST, None)?;
    let mut command = workspace.cargo();
    command
        .args(["bench", "--quiet", "--bench", "speculation"])
        .args(build::WORKSPACE)
        .args(["--", ROWS])
        .arg(format!("{formats}/f32"))
        .arg(format!("model={}", checkpoint.display()))
        .arg(format!("peer={},{},{DRAFTED}", program.display(), gguf.display()))
        .env("SHARDWRIGHT_BIN_DIR", workspace.output(Profile::Release));
    process::run(&mut command)
}

/// Compiles the program, which needs seconds.
fn program(workspace: &Workspace, folder: &Path, llama: &llama::Llama) -> Result<PathBuf, Error> {
    let Some(home) = &llama.home else {
        let what = "`bench lookup` is linked with llama.cpp's libraries: leave its variable unset, so that it is built";
        return Err(Error::Usage(what.to_owned()));
    };
    let compiler = std::env::var_os(COMPILER_VARIABLE).filter(|said| !said.is_empty());
    let mut compile = Command::new(compiler.unwrap_or_else(|| "c++".into()));
    compile.args(["-std=c++17", "-O2", "-fopenmp"]).arg(workspace.root.join(PROGRAM));
    for headers in HEADERS {
        compile.arg("-I").arg(home.source.join(headers));
    }
    for library in LIBRARIES {
        let path = home.build.join(library);
        fs::metadata(&path).map_err(|source| Error::File { path: path.clone(), source })?;
        compile.arg(path);
    }
    let program = folder.join("lookup");
    process::run(compile.arg("-o").arg(&program))?;
    Ok(program)
}
