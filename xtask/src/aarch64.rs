//! `cargo xtask aarch64`: the kernels' tests of the CPU shim, and a plan by a host without a
//! compiler, as programs for 64-bit ARM.
//!
//! On such a machine they run natively, elsewhere under qemu's user-mode emulation with every
//! instruction set it supports. Times are not measured: emulation checks correctness, not speed.
//! `--instructions`, which needs the emulator, counts the instructions of integer products instead.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::build::{self, Scope};
use crate::error::Error;
use crate::process;
use crate::setup;
use crate::testing::suites;
use crate::workspace::{Profile, Workspace};

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Linker for the target on a machine of another kind.
const LINKER: &str = "aarch64-linux-gnu-gcc";
/// Runs programs for the target on such a machine.
const EMULATOR: &str = "qemu-aarch64";

/// Folder of the C library for emulated programs, as in Debian's cross compilers.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// Variable that makes the tests require every instruction set that the kernels support.
const EVERY_LEVEL: &str = "SHARDWRIGHT_EVERY_LEVEL";

/// Package with a host that plans with a pack and without a compiler.
const HOST: &str = "shardwright-planning-runtime-only";

/// Builds and runs the tests. With `ci`, the kernels and the plans are suites that may be left out.
pub fn test(workspace: &Workspace, ci: bool) -> Result<(), Error> {
    setup::target(workspace, TARGET, "the kernels' tests are")?;
    if !ci || suites::runs(workspace, &suites::KERNELS)? {
        kernels(workspace)?;
    }
    if !ci || suites::runs(workspace, &suites::ARM_PLANS)? {
        plans(workspace)?;
    }
    Ok(())
}

/// Checks that the linker and the emulator are installed.
fn expect_emulator() -> Result<(), Error> {
    for program in [LINKER, EMULATOR] {
        if !process::succeeds(Command::new(program).arg("--version")) {
            return Err(process::not_started(&Command::new(program), std::io::ErrorKind::NotFound.into()));
        }
    }
    Ok(())
}

/// Counts the instructions of products, for the engine and for plain loops, as the difference
/// between one product and two.
pub fn instructions(workspace: &Workspace) -> Result<(), Error> {
    setup::target(workspace, TARGET, "the products are")?;
    expect_emulator()?;
    // The option was renamed in 8.1, and later releases do not accept the old name.
    let help = process::output(Command::new(EMULATOR).arg("--help"))?;
    let single = if help.contains("-one-insn-per-tb") { "-one-insn-per-tb" } else { "-singlestep" };
    let trace = format!("{single} -d exec,nochain -D /dev/stdout");
    let bench = |emulator: &str, words: &[&str]| {
        let mut command = workspace.cargo();
        command.args(["bench", "--package", "shardwright-shim-cpu", "--bench", "instructions"]);
        command.args(["--target", TARGET, "--quiet", "--"]).args(words);
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
        let runner = format!("{EMULATOR} -cpu max -L {LIBRARIES} {emulator}");
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
        command
    };
    // Log one line for every instruction.
    let counted = |case: &str, who: &str| -> Result<u64, Error> {
        let mut counts = [0u64; 2];
        for (count, times) in counts.iter_mut().zip(["1", "2"]) {
            *count = lines(&mut bench(&trace, &[case, who, times]))?;
        }
        match counts[1].checked_sub(counts[0]) {
            Some(count) if count > 0 => Ok(count),
            _ => Err(Error::Answer {
                command: process::shown(&bench(&trace, &[case, who, "2"])),
                problem: format!("{} lines of instructions, and {} for one product", counts[1], counts[0]),
            }),
        }
    };
    let cases = process::output(&mut bench("", &[]))?;
    println!("| product | multiply-adds | engine | plain loop | plain / engine |");
    println!("|---|---:|---:|---:|---:|");
    for line in cases.lines() {
        let Some((case, products)) = line.split_once(' ') else { continue };
        let (engine, plain) = (counted(case, "engine")?, counted(case, "plain")?);
        println!("| {case} | {products} | {engine} | {plain} | {:.2} |", plain as f64 / engine as f64);
    }
    Ok(())
}

/// Counts the lines with instructions that a program writes. They are too many to keep.
fn lines(command: &mut Command) -> Result<u64, Error> {
    let spawned = command.stdout(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|source| process::not_started(command, source))?;
    let failed = |problem: String| Error::Answer { command: process::shown(command), problem };
    let stdout = child.stdout.take().ok_or_else(|| failed("no output".to_owned()))?;
    let (mut reader, mut line, mut count) = (BufReader::with_capacity(1 << 20, stdout), Vec::new(), 0);
    while reader.read_until(b'\n', &mut line).map_err(|error| failed(error.to_string()))? > 0 {
        count += u64::from(line.starts_with(b"Trace"));
        line.clear();
    }
    match child.wait() {
        Ok(status) if status.success() => Ok(count),
        status => Err(failed(format!("it ended with {status:?}"))),
    }
}

/// Checks that a request gives the same bytes of a plan in machine code here and in the portable
/// interpreter there.
fn plans(workspace: &Workspace) -> Result<(), Error> {
    build::build(workspace, Profile::Dev, Scope::Program)?;
    let program = workspace.program(Profile::Dev);
    let folder = workspace.target.join("aarch64-plan");
    let made = std::fs::create_dir_all(&folder);
    made.map_err(|source| Error::File { path: folder.clone(), source })?;
    let file = |name: &str| folder.join(name);
    for name in ["key", "generic.pack"] {
        // Remove it, because a key is never replaced.
        let _ = std::fs::remove_file(file(name));
    }
    let mut key = Command::new(&program);
    key.args(["trust", "key", "--format", "json"]).arg(file("key"));
    let answer = process::output(&mut key)?;
    let public = serde_json::from_str(&answer)
        .ok()
        .and_then(|answer: serde_json::Value| answer["public"].as_str().map(str::to_owned));
    let public = public.ok_or_else(|| Error::Answer {
        command: process::shown(&key),
        problem: format!("no public key: {answer}"),
    })?;
    let component = workspace.target.join("planner-components/shardwright-planner-generic.wasm");
    let mut pack = Command::new(&program);
    pack.args(["planner", "pack"]).arg(component).arg("--key").arg(file("key"));
    process::output(pack.arg("--output").arg(file("generic.pack")))?;
    let mut host = workspace.cargo();
    host.args(["build", "--package", HOST, "--target", TARGET]);
    if !cfg!(target_arch = "aarch64") {
        host.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
    }
    process::run(&mut host)?;
    let there = workspace.target.join(TARGET).join("debug").join(HOST);
    for soc in ["mt6989", "sm8850"] {
        let mut plan = Command::new(&program);
        plan.current_dir(&workspace.root).args(["plan", "demo-model", "--soc", soc, "--on", "cpu"]);
        process::output(plan.arg("--write-request").arg(file("request.json")))?;
        let ask = |command: &mut Command| {
            process::output(command.arg(file("generic.pack")).arg(&public).arg(file("request.json")))
        };
        let mut emulated = match cfg!(target_arch = "aarch64") {
            true => Command::new(&there),
            false => {
                let mut command = Command::new(EMULATOR);
                command.args(["-cpu", "max", "-L", LIBRARIES]).arg(&there);
                command
            }
        };
        let plan = ask(&mut emulated)?;
        let mut replay = Command::new(&program);
        replay.args(["planner", "replay", "--planner", "generic", "--format", "json"]);
        replay.arg(file("request.json"));
        let replayed = process::output(&mut replay)?;
        // The report contains the plan in its canonical bytes.
        let plan = plan.trim();
        if plan.len() < 100 || !replayed.contains(plan) {
            let problem = format!("not the plan of {TARGET}: {plan}");
            return Err(Error::Answer { command: process::shown(&replay), problem });
        }
        eprintln!("{soc}: the same {} bytes of a plan here and on {TARGET}", plan.len());
    }
    Ok(())
}

fn kernels(workspace: &Workspace) -> Result<(), Error> {
    let mut command = workspace.cargo();
    // The library's own tests cover code for all processors, with every instruction set of the
    // target.
    command.args(["test", "--package", "shardwright-shim-cpu", "--lib", "--target", TARGET]);
    if !cfg!(target_arch = "aarch64") {
        expect_emulator()?;
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
        command.env(
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
            format!("{EMULATOR} -cpu max -L {LIBRARIES}"),
        );
        // The emulated processor has every instruction set. A test fails unless it finds all of
        // them, so that none is silently untested.
        command.env(EVERY_LEVEL, "1");
    }
    process::run(&mut command)
}
