//! An interrupt from the terminal during a conversation. The current reply ends and the
//! conversation continues, any number of times. At the prompt, the program ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use shardwright_tests::checkpoints::{Copy, DEMO_MODEL, EMBEDDING_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::{program, tree};

/// Upper bound on any step here, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Exit code that a shell reports for an interrupted program.
const INTERRUPTED: i32 = 130;

fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill");
    assert!(sent.success(), "the program is gone");
}

/// Waits for the exit code.
fn ended(child: &mut Child) -> Option<i32> {
    for _ in 0..PATIENCE.as_millis() / 50 {
        if let Some(status) = child.try_wait().expect("waited for") {
            return status.code();
        }
        thread::sleep(Duration::from_millis(50));
    }
    // It hangs and is not needed any more.
    let _ = child.kill();
    panic!("the program goes on");
}

/// Starts the program, with piped input and messages.
fn started(arguments: &[&str], stdout: Stdio) -> Child {
    let mut command = Command::new(program::executable());
    command.current_dir(tree::root()).args(arguments).stdin(Stdio::piped()).stderr(Stdio::piped());
    command.stdout(stdout).spawn().expect("the program starts")
}

/// Interrupts three replies and the prompt. Returns false if a reply was finished before its
/// interrupt, which then reached the prompt.
fn ends_after_three_interrupted_replies(model: &str) -> bool {
    let chat = ["run", model, "--chat", "--format", "json", "--threads", "1"];
    let limits = ["--max-tokens", "900", "--context", "1024"];
    let mut child = started(&[&chat[..], &limits].concat(), Stdio::piped());
    let mut lines = child.stdin.take().expect("piped");
    let events = BufReader::new(child.stdout.take().expect("piped"));
    let (say, said) = channel();
    thread::spawn(move || events.lines().map_while(Result::ok).try_for_each(|line| say.send(line)));
    let until = |word: &str| {
        let mut events = std::iter::repeat_with(|| said.recv_timeout(PATIENCE).expect("an event"));
        events.find(|line| line.contains(word)).expect("endless")
    };
    for turn in ["one", "two", "three"] {
        writeln!(lines, "{turn}").expect("it listens");
        until("\"token\"");
        interrupt(&child);
        let done = until("\"done\"");
        if done.contains("max-tokens") {
            assert_eq!(ended(&mut child), Some(INTERRUPTED));
            return false;
        }
        assert!(done.contains("cancelled"), "{turn}: {done}");
    }
    // By now it waits for the next line.
    thread::sleep(Duration::from_millis(500));
    interrupt(&child);
    assert_eq!(ended(&mut child), Some(INTERRUPTED));
    true
}

#[test]
fn each_reply_can_be_interrupted_and_the_prompt_ends_the_program() {
    // A reply does not end by itself.
    let model = Copy::of(DEMO_MODEL)
        .json("generation_config.json", |settings| settings["min_new_tokens"] = 900.into());
    let path = model.path().display().to_string();
    assert!((0..10).any(|_| ends_after_three_interrupted_replies(&path)), "no three replies");
}

/// Starts the program with this input and without its output.
fn begun(arguments: &[&str], input: &str) -> Child {
    let mut child = started(arguments, Stdio::null());
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(input.as_bytes()).expect("it listens");
    child
}

/// Interrupts the program. Returns its exit code and its messages.
fn interrupted(mut child: Child) -> (Option<i32>, String) {
    interrupt(&child);
    let code = ended(&mut child);
    let mut stderr = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("text");
    (code, stderr)
}

/// The program ends as interrupted at any moment. It blames no shim, and no reply continues.
#[test]
fn an_interrupt_is_never_lost_and_blames_no_shim() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bundle = folder.path().join("bundle").display().to_string();
    let reply = ["run", TEXT_FIXTURES[0], "--prompt", "a b c", "-n", "1900", "--context", "2048"];
    let commands: [&[&str]; 2] = [
        &[&reply[..], &["--temperature", "2", "--threads", "1"]].concat(),
        &["compile", DEMO_MODEL, "--soc", "mt6989", "--on", "cpu", "-o", &bundle],
    ];
    for milliseconds in (20..=500).step_by(shardwright_test_checkpoints::cases(120, 24)) {
        for arguments in commands {
            let child = begun(arguments, "");
            thread::sleep(Duration::from_millis(milliseconds));
            let (code, stderr) = interrupted(child);
            // Before the handler is installed, the system ends the program. A short reply or a
            // compilation may be finished by then.
            let done = code == Some(0) && (arguments[0] == "compile" || stderr.contains("ended by"));
            assert!(code.is_none() || code == Some(INTERRUPTED) || done, "{arguments:?}: {code:?} {stderr}");
            assert!(!stderr.contains("report this to"), "{arguments:?} after {milliseconds} ms: {stderr}");
        }
    }
}

#[test]
fn embedding_of_texts_is_abandoned() {
    // Enough text for minutes.
    let texts = "a text of some words that takes a while\n".repeat(100_000);
    let child = begun(&["embed", EMBEDDING_FIXTURE, "--threads", "1"], &texts);
    thread::sleep(Duration::from_secs(1));
    assert_eq!(interrupted(child).0, Some(INTERRUPTED));
}

/// Begins a command and interrupts it once it encodes a long text, whose size begins with `bytes`.
/// The tokenizer library cannot be stopped in the middle of a text. The command must end
/// nevertheless.
#[cfg(target_os = "linux")]
fn is_ended_while_it_encodes(arguments: &[&str], input: &str, bytes: &str) {
    let child = begun(arguments, input);
    let threads = format!("/proc/{}/task", child.id());
    let is_encoding = || {
        let threads = std::fs::read_dir(&threads).into_iter().flatten().flatten();
        let mut names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
        names.any(|name| name.trim_end() == "encoding")
    };
    let begun = Instant::now();
    while !is_encoding() {
        assert!(begun.elapsed() < PATIENCE, "{arguments:?}: no text is encoded");
        thread::sleep(Duration::from_millis(20));
    }
    let begun = Instant::now();
    let (code, stderr) = interrupted(child);
    let took = begun.elapsed();
    assert_eq!(code, Some(INTERRUPTED), "{arguments:?}: {stderr}");
    let says = format!("encoding a text of {bytes}");
    assert!(stderr.contains(&says) && stderr.contains("help: "), "{arguments:?}: {stderr}");
    assert!(took < Duration::from_secs(10), "{arguments:?} ended {took:?} after the interrupt");
}

#[cfg(target_os = "linux")]
#[test]
fn the_encoding_of_a_long_text_can_be_interrupted() {
    let words = "a text of some words that takes a while ";
    // This takes a minute.
    let text = words.repeat(15_000_000_usize.div_ceil(words.len()));
    is_ended_while_it_encodes(&["embed", EMBEDDING_FIXTURE], &text, "15");
    is_ended_while_it_encodes(&["run", DEMO_MODEL, "--raw"], &text, "15");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("text");
    std::fs::write(&file, &text).expect("written");
    let file = file.display().to_string();
    is_ended_while_it_encodes(&["perplexity", DEMO_MODEL, "--text", &file], "", "15");
    let output = folder.path().join("drawn").display().to_string();
    let first = shardwright::calibration_prompts()[0];
    std::fs::write(&output, format!("{first}\t{text}\n")).expect("written");
    is_ended_while_it_encodes(&["calibration-text", DEMO_MODEL, "-o", &output], "", "15");

    // Texts of this size may be calibrated on. A conversation is one line.
    let text = &text[..4_000_000];
    let plan = ["plan", DEMO_MODEL, "--soc", "mt6989", "--quality", "100"];
    std::fs::write(&file, format!("What?\t{text}\n")).expect("written");
    is_ended_while_it_encodes(&[&plan[..], &["--usual-text", &file]].concat(), "", "40");
    std::fs::write(&file, text).expect("written");
    is_ended_while_it_encodes(&[&plan[..], &["--calibration-text", &file]].concat(), "", "40");
    is_ended_while_it_encodes(&["sensitivity", DEMO_MODEL, "--soc", "mt6989", "--text", &file], "", "40");
}

/// A worker was interrupted before it answered. Its answer is unknown, so no shim counts as
/// missing.
#[cfg(unix)]
#[test]
fn a_worker_interrupted_while_it_is_asked_is_no_missing_shim() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let worker = folder.path().join("worker");
    std::fs::write(&worker, "#!/bin/sh\nkill -INT $$\n").expect("written");
    std::fs::set_permissions(&worker, std::fs::Permissions::from_mode(0o700)).expect("executable");
    let run = program::shardwright(["run", DEMO_MODEL, "--prompt", "a", "--isolation", "process"]);
    let (code, stderr) = run.environment("SHARDWRIGHT_WORKER", &worker).refuses();
    assert_eq!(code, INTERRUPTED, "{stderr}");
    assert!(stderr.contains("interrupted") && !stderr.contains("no shim"), "{stderr}");
}
