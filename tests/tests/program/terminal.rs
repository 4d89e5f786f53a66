//! Interactive use. The program runs in a terminal that `script` (of util-linux) provides, 80
//! columns wide, and receives keys.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use shardwright_test_checkpoints::cases;
use shardwright_tests::checkpoints::{DEMO_MODEL, TEXT_FIXTURES};
use shardwright_tests::{program, tree};

/// Upper bound on any step here, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);
const INTERRUPT: &str = "\u{3}";
const END_OF_INPUT: &str = "\u{4}";
/// The shell of the terminal prints this before it starts the program.
const MARK: &str = "begun--";
/// Exit code of an interrupted program.
const INTERRUPTED: i32 = 130;

/// The program in a terminal.
pub struct Terminal {
    child: Child,
    keys: ChildStdin,
    /// All output so far.
    shown: Arc<Mutex<String>>,
}

impl Terminal {
    fn begin(arguments: &[&str]) -> Terminal {
        Terminal::begin_with(&[], arguments)
    }

    /// Starts the program with these variables.
    pub fn begin_with(variables: &[(&str, &str)], arguments: &[&str]) -> Terminal {
        let program = program::executable();
        let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
        let words: Vec<String> = arguments.iter().map(|word| quoted(word)).collect();
        // A shell that runs tests in the background makes them ignore interrupts. Programs in a
        // terminal do not ignore them. From the mark on, an interrupt ends whatever runs.
        let inner = format!(
            "stty cols 80 rows 24; printf {MARK}; exec {} {}",
            quoted(&program.to_string_lossy()),
            words.join(" ")
        );
        let command = format!("exec env --default-signal=INT sh -c {}", quoted(&inner));
        let mut child = Command::new("script")
            .current_dir(tree::root())
            .args(["-qefc", &command, "/dev/null"])
            .env("TERM", "xterm")
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("`script`, of util-linux");
        let keys = child.stdin.take().expect("piped");
        let mut screen = child.stdout.take().expect("piped");
        let shown = Arc::new(Mutex::new(String::new()));
        let written = Arc::clone(&shown);
        let (begun, begins) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let mut piece = [0; 4096];
            while let Ok(read @ 1..) = screen.read(&mut piece) {
                bytes.extend_from_slice(&piece[..read]);
                let text = String::from_utf8_lossy(&bytes);
                if let Some((_, own)) = text.split_once(MARK) {
                    *written.lock().unwrap_or_else(PoisonError::into_inner) = own.to_owned();
                    let _ = begun.send(());
                }
            }
        });
        begins.recv_timeout(PATIENCE).expect("the shell in the terminal");
        Terminal { child, keys, shown }
    }

    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).and_then(|()| self.keys.flush()).expect("it listens");
    }

    fn shown(&self) -> String {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until this text is shown after the first `after` bytes. Returns the length of the
    /// output then.
    pub fn until(&mut self, text: &str, after: usize) -> usize {
        let begun = Instant::now();
        loop {
            let shown = self.shown();
            if let Some(place) = shown.get(after..).and_then(|rest| rest.find(text)) {
                return after + place + text.len();
            }
            assert!(begun.elapsed() < PATIENCE, "no `{text}` in {:?}", shown.get(after..));
            let ended = self.child.try_wait().expect("waited for");
            assert!(ended.is_none(), "ended before `{text}`: {ended:?} {shown:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until that many bytes were shown.
    fn reaches(&self, to: usize) {
        let begun = Instant::now();
        while self.shown().len() < to {
            assert!(begun.elapsed() < PATIENCE, "nothing more in {:?}", self.shown());
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until no more output comes for a while. Returns the length of the output then.
    fn rests(&self) -> usize {
        let mut before = self.shown().len();
        loop {
            thread::sleep(Duration::from_millis(300));
            let now = self.shown().len();
            if now == before {
                return now;
            }
            before = now;
        }
    }

    /// Returns the exit code, and all output.
    pub fn ended(mut self) -> (Option<i32>, String) {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().expect("waited for") {
                // The reader may not have read the last piece yet.
                thread::sleep(Duration::from_millis(50));
                return (status.code(), self.shown());
            }
            thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        panic!("it goes on: {:?}", self.shown());
    }
}

#[test]
fn a_chat_greets_is_interrupted_reply_by_reply_and_is_left() {
    let random = ["--temperature", "6", "--top-k", "0", "--top-p", "1"];
    let long = ["-n", "900", "--context", "1024", "--threads", "1"];
    let mut terminal = Terminal::begin(&[&["run", DEMO_MODEL, "--chat"][..], &random, &long].concat());
    let mut seen = terminal.until("/bye quits", 0);
    seen = terminal.until("> ", seen);
    for turn in ["one", "two"] {
        // A random model may finish before it is interrupted.
        let mut cancelled = false;
        for _ in 0..10 {
            terminal.press(&format!("{turn}\r"));
            seen = terminal.until(turn, seen);
            // The reply has begun. It will end in less than a second.
            terminal.reaches(seen + 20);
            terminal.press(INTERRUPT);
            seen = terminal.until("tokens/s", seen);
            seen = terminal.until("]", seen);
            cancelled = terminal.shown()[..seen].ends_with("cancelled]");
            terminal.until("> ", seen);
            seen = terminal.rests();
            if cancelled {
                break;
            }
        }
        assert!(cancelled, "{turn}: {:?}", terminal.shown());
    }
    terminal.press("/clear\r");
    seen = terminal.until("the conversation is forgotten", seen);
    terminal.press("/nothing\r");
    seen = terminal.until("unknown command `/nothing`", seen);
    seen = terminal.until("> ", seen);
    // At the prompt, the first interrupt clears the line, and the second one exits.
    terminal.press("half a sen");
    seen = terminal.until("half a sen", seen);
    terminal.press(INTERRUPT);
    seen = terminal.until("press Ctrl-C again to quit", seen);
    terminal.until("> ", seen);
    terminal.press(INTERRUPT);
    let (code, shown) = terminal.ended();
    assert_eq!(code, Some(INTERRUPTED), "{shown:?}");
}

#[test]
fn a_chat_ends_with_the_input_and_a_prompt_is_announced() {
    // Without a prompt, a model with a chat template holds a conversation.
    let model = TEXT_FIXTURES[0];
    for arguments in [&["run", model, "--chat"][..], &["run", model], &["chat", model]] {
        for leave in [END_OF_INPUT, "/bye\r"] {
            let mut terminal = Terminal::begin(arguments);
            let seen = terminal.until("/bye quits", 0);
            terminal.until("> ", seen);
            terminal.press(leave);
            let (code, shown) = terminal.ended();
            assert_eq!(code, Some(0), "{arguments:?} {leave:?}: {shown:?}");
        }
    }
    let mut terminal = Terminal::begin(&["run", model, "--raw"]);
    terminal.until("end it with Ctrl-D", 0);
    terminal.press(INTERRUPT);
    terminal.ended();
}

/// Returns the percentages that a bar showed, in their order.
fn percentages(shown: &str) -> Vec<u32> {
    let number = |before: &str| {
        let digits: String = before.chars().rev().take_while(char::is_ascii_digit).collect();
        digits.chars().rev().collect::<String>().parse().ok()
    };
    let pieces: Vec<&str> = shown.split('%').collect();
    pieces[..pieces.len() - 1].iter().filter_map(|before| number(before)).collect()
}

#[test]
fn a_bar_says_what_it_is_about_and_only_grows() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bundle = folder.path().join("bundle").display().to_string();
    let compile = ["compile", TEXT_FIXTURES[1], "-o", &bundle];
    let target = ["--soc", "mt6989", "--on", "cpu", "--limit", "ops=400", "--formats", "w4-block32"];
    let mut terminal = Terminal::begin(&[&compile[..], &target].concat());
    terminal.until("compiling gemma4_text", 0);
    let (code, shown) = terminal.ended();
    assert_eq!(code, Some(0), "{shown:?}");
    let found = percentages(&shown);
    assert!(found.len() > 3 && found.is_sorted(), "{found:?}");
    // No transient line is wider than the terminal. Otherwise it would leave a line behind.
    let bar = shown.split(['\r', '\n']).filter(|line| line.contains('%'));
    for line in bar {
        let plain = console(line);
        assert!(plain.chars().count() <= 80, "{plain:?}");
    }
}

/// Returns the visible text of a line.
fn console(line: &str) -> String {
    let mut seen = String::new();
    let mut pieces = line.split('\u{1b}');
    seen.extend(pieces.next());
    for piece in pieces {
        // An escape sequence ends with its first letter.
        seen.extend(piece.find(|c: char| c.is_ascii_alphabetic()).map(|end| &piece[end + 1..]));
    }
    seen
}

/// If Ctrl-C is pressed at any moment, the program ends as interrupted and blames no shim.
#[test]
fn ctrl_c_ends_every_command_at_every_moment() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bundle = folder.path().join("bundle").display().to_string();
    let commands: [&[&str]; 4] = [
        &["run", DEMO_MODEL, "--prompt", "What is faith?", "-n", "900", "--threads", "1"],
        &["compile", DEMO_MODEL, "--soc", "mt6989", "--on", "cpu", "-o", &bundle],
        &["bench", DEMO_MODEL, "-r", "500"],
        &["verify", DEMO_MODEL],
    ];
    let moments = cases(3, 15);
    for moment in 0..moments {
        for arguments in commands {
            let mut terminal = Terminal::begin(arguments);
            thread::sleep(Duration::from_millis(600 * moment as u64 / moments as u64));
            // The program may have ended.
            let _ = terminal.keys.write_all(INTERRUPT.as_bytes()).and_then(|()| terminal.keys.flush());
            let (code, shown) = terminal.ended();
            let done = code == Some(0) && ["run", "compile"].contains(&arguments[0]);
            assert!(code == Some(INTERRUPTED) || done, "{arguments:?}: {code:?} {shown:?}");
            assert!(!shown.contains("report this to"), "{arguments:?}: {shown:?}");
        }
    }
}

#[test]
fn replies_and_notes_are_broken_between_words() {
    let question = ["run", DEMO_MODEL, "--prompt", "What does bug mean?"];
    let piped = program::shardwright(question).argument("--quiet").succeeds();
    assert!(piped.lines().any(|line| line.len() > 160), "{piped}");
    let (code, shown) =
        Terminal::begin(&[&question[..], &["--context", "256", "--soc", "mt6989", "--on", "cpu"]].concat())
            .ended();
    assert_eq!(code, Some(0), "{shown:?}");
    // The bar overwrites its line.
    let lines: Vec<String> = shown.split(['\r', '\n']).map(console).collect();
    for line in &lines {
        assert!(line.chars().count() <= 80, "{line:?}");
    }
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (shown, wanted) = (words(&lines.join("\n")), words(&piped));
    assert!(shown.windows(wanted.len()).any(|part| part == wanted), "{piped} in {lines:#?}");
    let note = words("note: ");
    assert!(shown.windows(1).any(|part| part == note), "{lines:#?}");
}
