//! Prefill and decode speed of the demo model on the CPU shim, and the time from starting the
//! program to its first output.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use shardwright::tools::ModelTools;
use shardwright::{Executor, GenerationEvent, GenerationStatistics, OpenOptions};
use shardwright_tests::measure::{row, shown};
use shardwright_tests::{program, tree};

/// Tokens generated per repetition.
const GENERATED: usize = 256;

/// Repetitions, of which the best and the median are shown.
const REPETITIONS: usize = 5;

/// Longest acceptable time to the first word.
const FIRST_OUTPUT_MAX: Duration = Duration::from_secs(1);

fn main() {
    println!("generation (demo model: 8 layers, 7.4 M parameters; CPU shim)");
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let mut threads = vec![1];
    threads.extend((cores > 1).then_some(cores));
    let mut texts = Vec::new();
    for &threads in &threads {
        texts.push(speeds(threads, "whole decoder", "generic", &[]));
        texts.push(speeds(threads, "decoder cut by ops=400", "mt6989", &[("ops", 400)]));
    }
    assert!(texts.windows(2).all(|pair| pair[0] == pair[1]), "cuts and threads must not change the text");

    let mut times: Vec<_> = (0..REPETITIONS).map(|_| first_output()).collect();
    times.sort_unstable();
    let median = times[times.len() / 2];
    row("program start to first output", format_args!("{} (best {})", shown(median), shown(times[0])));
    assert!(times[0] < FIRST_OUTPUT_MAX, "the first output must come within {FIRST_OUTPUT_MAX:?}");
}

/// Prints the throughput of one way to run the model and returns its text.
fn speeds(threads: u32, name: &str, soc: &str, limits: &[(&str, u64)]) -> String {
    let mut options =
        OpenOptions::new().soc(soc).on(Executor::Cpu).threads(threads).search_path(program::search_path());
    for (limit, value) in limits {
        options = options.limit(*limit, *value);
    }
    let model = options.open(tree::root().join("demo-model")).expect("the demo model opens");
    let shards = model.chain().description().shards.len();
    let prompt = prompt();
    let (mut prefill, mut decode, mut text) = (Vec::new(), Vec::new(), String::new());
    for _ in 0..REPETITIONS {
        let mut session = model.session().expect("a session");
        session.options.sampling.do_sample = false;
        session.options.max_tokens = Some(GENERATED);
        session.set_speculation(None).expect("no drafts");
        text.clear();
        let mut statistics: Option<GenerationStatistics> = None;
        for event in session.complete(&prompt).expect("a reply") {
            match event.expect("a good reply") {
                GenerationEvent::TextDelta { text: delta } => text.push_str(&delta),
                GenerationEvent::Done { statistics: done, .. } => statistics = Some(done),
                GenerationEvent::Token { .. }
                | GenerationEvent::ThoughtDelta { .. }
                | GenerationEvent::ToolCallBegin { .. }
                | GenerationEvent::ToolCallArguments { .. }
                | GenerationEvent::ToolCall { .. }
                | GenerationEvent::ToolCallDropped { .. }
                | GenerationEvent::DraftDropped { .. } => {}
            }
        }
        let statistics = statistics.expect("a reply ends with its statistics");
        prefill.push(statistics.prefill_tokens_per_second());
        decode.push(statistics.decode_tokens_per_second());
    }
    let way = format!("threads {threads}, {shards} shards ({name})");
    row(&format!("prefill, {way}"), rates(&mut prefill));
    row(&format!("decode, {way}"), rates(&mut decode));
    text
}

/// Returns a prompt of about half the model's context, in its own kind of prose.
fn prompt() -> String {
    "And it came to pass in those days, that there went out a decree. ".repeat(24)
}

fn rates(rates: &mut [f64]) -> String {
    rates.sort_unstable_by(f64::total_cmp);
    let (median, best) = (rates[rates.len() / 2], rates[rates.len() - 1]);
    format!("{median:.0} tok/s (best {best:.0} of {})", rates.len())
}

/// Measures the time from starting the program to the first byte of its answer.
fn first_output() -> Duration {
    let start = Instant::now();
    let mut child = Command::new(program::executable())
        .current_dir(tree::root())
        .args(["run", "demo-model", "--chat", "--greedy", "--prompt", "What does bug mean?"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let mut stdout = child.stdout.take().expect("piped");
    let mut first = [0];
    stdout.read_exact(&mut first).expect("an answer");
    let time = start.elapsed();
    stdout.read_to_end(&mut Vec::new()).expect("the rest of the answer");
    assert!(child.wait().expect("it ends").success());
    time
}
