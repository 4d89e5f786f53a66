//! An interrupt from the terminal during a conversation. The current reply ends and the
//! conversation continues, any number of times. At the prompt, the program ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use shardwright_tests::checkpoints::{Copy, DEMO_MODEL, EMBEDDING_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::{program, tree};

/// Upper bound on any step here, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Exit code that a shell reports for an interrupted program.
const INTERRUPTED: i32 = 130;

/// A conversation with the program, which receives lines and interrupts.
struct Conversation {
    child: Child,
    lines: ChildStdin,
    /// A message for each piece written to standard output.
    said: Receiver<()>,
    /// Lines of standard error.
    errors: Receiver<String>,
}

impl Conversation {
    fn begin(model: &Path) -> Conversation {
        let mut child = Command::new(program::executable())
            .current_dir(tree::root())
            .arg("run")
            .arg(model)
            .args(["--chat", "--max-tokens", "900", "--context", "1024", "--threads", "1"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let lines = child.stdin.take().expect("piped");
        let mut stdout = child.stdout.take().expect("piped");
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let ((say, said), (error_sender, errors)) = (channel(), channel());
        thread::spawn(move || {
            let mut bytes = [0; 256];
            while stdout.read(&mut bytes).is_ok_and(|read| read > 0) && say.send(()).is_ok() {}
        });
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if error_sender.send(line).is_err() {
                    break;
                }
            }
        });
        Conversation { child, lines, said, errors }
    }

    fn say(&mut self, line: &str) {
        // The end of the previous reply may still be in the pipe. It must not count as the
        // beginning of this one.
        thread::sleep(Duration::from_millis(200));
        while self.said.try_recv().is_ok() {}
        // The program may have ended. That is noticed when no output comes.
        let _ = writeln!(self.lines, "{line}");
    }

    /// Waits for the beginning of a reply. Returns false if the program ended.
    fn hears(&self) -> bool {
        match self.said.recv_timeout(PATIENCE) {
            Ok(()) => true,
            Err(RecvTimeoutError::Disconnected) => false,
            Err(RecvTimeoutError::Timeout) => panic!("no reply begins"),
        }
    }

    /// Returns the summary at the end of a reply, or `None` if the program ended.
    fn summary(&self) -> Option<String> {
        loop {
            match self.errors.recv_timeout(PATIENCE) {
                Ok(line) if line.starts_with('[') => return Some(line),
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => panic!("no reply ends"),
            }
        }
    }
}

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

/// Interrupts three replies one after the other. Returns `None` if a reply was finished before its
/// interrupt, which then reached the prompt.
fn three_interrupted(model: &Path) -> Option<Conversation> {
    let mut conversation = Conversation::begin(model);
    for turn in ["one", "two", "three"] {
        conversation.say(turn);
        if !conversation.hears() {
            return None;
        }
        interrupt(&conversation.child);
        let summary = conversation.summary().filter(|summary| !summary.contains("ended by"))?;
        assert!(summary.contains("cancelled"), "{turn}: {summary}");
        assert!(!summary.contains(", 0 tokens,"), "{turn} was interrupted before it began: {summary}");
    }
    Some(conversation)
}

#[test]
fn each_reply_can_be_interrupted_and_the_prompt_ends_the_program() {
    // A reply does not end by itself.
    let model = Copy::of(DEMO_MODEL)
        .json("generation_config.json", |settings| settings["min_new_tokens"] = 900.into());
    let interrupted = (0..10).find_map(|_| three_interrupted(model.path()));
    let mut conversation = interrupted.expect("three replies are interrupted");
    // By now it waits for the next line.
    thread::sleep(Duration::from_millis(500));
    interrupt(&conversation.child);
    assert_eq!(ended(&mut conversation.child), Some(INTERRUPTED));
}

/// Runs the program and interrupts it after `delay`. Returns its exit code and its messages.
fn interrupted_after(arguments: &[&str], delay: Duration) -> (Option<i32>, String) {
    let mut child = Command::new(program::executable())
        .current_dir(tree::root())
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stderr = child.stderr.take().expect("piped");
    let output = thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).map(|_| text)
    });
    thread::sleep(delay);
    interrupt(&child);
    let code = ended(&mut child);
    (code, output.join().expect("no panic").expect("text"))
}

/// The program ends as interrupted at any moment. It blames no shim, and no reply continues.
#[test]
fn an_interrupt_is_never_lost_and_blames_no_shim() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bundle = folder.path().join("bundle").display().to_string();
    let reply = ["run", TEXT_FIXTURES[0], "--prompt", "a b c", "-n", "1900", "--context", "2048"];
    let commands: [&[&str]; 3] = [
        &[&reply[..], &["--temperature", "2", "--threads", "1"]].concat(),
        &["compile", DEMO_MODEL, "--soc", "mt6989", "--on", "cpu", "-o", &bundle],
        &["bench", DEMO_MODEL, "-r", "500"],
    ];
    for milliseconds in (20..=500).step_by(shardwright_test_checkpoints::cases(120, 24)) {
        for arguments in commands {
            let (code, stderr) = interrupted_after(arguments, Duration::from_millis(milliseconds));
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
    let mut child = Command::new(program::executable())
        .current_dir(tree::root())
        .args(["embed", EMBEDDING_FIXTURE, "--threads", "1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    // Enough text for minutes.
    let texts = "a text of some words that takes a while\n".repeat(100_000);
    child.stdin.take().expect("piped").write_all(texts.as_bytes()).expect("it listens");
    thread::sleep(Duration::from_secs(1));
    interrupt(&child);
    assert_eq!(ended(&mut child), Some(INTERRUPTED));
}

/// Begins a command and interrupts it once it encodes a text of 15 MB, which takes a minute. The
/// tokenizer library cannot be stopped in the middle of a text. The command must end nevertheless.
#[cfg(target_os = "linux")]
fn is_ended_while_it_encodes(arguments: &[&str], input: &str) {
    let mut child = Command::new(program::executable())
        .current_dir(tree::root())
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it listens");
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
    let interrupted = Instant::now();
    interrupt(&child);
    let (code, took) = (ended(&mut child), interrupted.elapsed());
    let mut stderr = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("text");
    assert_eq!(code, Some(INTERRUPTED), "{arguments:?}: {stderr}");
    assert!(stderr.contains("encoding a text of 15") && stderr.contains("help: "), "{stderr}");
    assert!(took < Duration::from_secs(10), "{arguments:?} ended {took:?} after the interrupt");
}

#[cfg(target_os = "linux")]
#[test]
fn the_encoding_of_a_long_text_can_be_interrupted() {
    let words = "a text of some words that takes a while ";
    let text = words.repeat(15_000_000_usize.div_ceil(words.len()));
    is_ended_while_it_encodes(&["embed", EMBEDDING_FIXTURE], &text);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("text");
    std::fs::write(&file, &text).expect("written");
    let file = file.display().to_string();
    is_ended_while_it_encodes(&["perplexity", DEMO_MODEL, "--text", &file], "");
    let output = folder.path().join("drawn").display().to_string();
    let first = shardwright::calibration_prompts()[0];
    std::fs::write(&output, format!("{first}\t{text}\n")).expect("written");
    is_ended_while_it_encodes(&["calibration-text", DEMO_MODEL, "-o", &output], "");
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
