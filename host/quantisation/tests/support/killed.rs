//! Runs work in a child process that is killed at random moments and restarted until it completes.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use sha2::{Digest, Sha256};
use shardwright_quantisation::{Moments, Store};
use shardwright_test_checkpoints::Random;
use shardwright_vocabulary::{Watch, WeightFormat};

use crate::support::{Synthetic, planned};

/// The outcome of the work.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Number of times the child was killed.
    pub kills: usize,
    /// Largest resident set of any child, in KiB.
    pub peak_kib: u64,
}

/// Starts the child of `command` repeatedly. Kills it `kills` times, whenever it reports to be past
/// a random part of `total` bytes. Then lets it finish.
pub fn until_done(command: impl Fn() -> Command, total: u64, kills: usize, seed: u64) -> Outcome {
    let mut random = Random::new(seed, "kills");
    let mut moments: Vec<u64> = (0..kills).map(|_| random.below(total / 50 * 48)).collect();
    moments.sort_unstable();
    let mut moments = moments.into_iter();
    let mut outcome = Outcome::default();
    loop {
        let moment = moments.next();
        let mut child = command().stdout(Stdio::piped()).spawn().unwrap();
        let mut killed = false;
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let Ok(line) = line else { break };
            let Some(numbers) = line.trim().strip_prefix("made ") else { continue };
            let numbers: Vec<u64> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
            outcome.peak_kib = outcome.peak_kib.max(numbers[1]);
            if !killed && moment.is_some_and(|moment| numbers[0] >= moment) {
                // SIGKILL, which a process cannot catch.
                child.kill().unwrap();
                killed = true;
            }
        }
        let status = child.wait().unwrap();
        if !killed || status.success() {
            assert!(status.success(), "{status}");
            return outcome;
        }
        outcome.kills += 1;
    }
}

/// Does the work of the child: makes every weight in `format` in the store in `directory` and
/// reports its progress.
pub fn make_all(
    sources: &[Synthetic],
    format: WeightFormat,
    moments: Option<&Moments>,
    directory: &Path,
    pause: std::time::Duration,
) {
    let store = Store::open(directory).unwrap();
    let mut voice = Voice { before: 0, bytes: 0, pause, calls: 0 };
    for source in sources {
        voice.bytes = planned(source, format).bytes();
        let made = store.weight(source, format, moments, &mut voice, &mut Vec::new()).unwrap();
        voice.before += made.bytes();
        voice.say(voice.before);
    }
}

struct Voice {
    before: u64,
    /// Bytes of the weight that is being made.
    bytes: u64,
    pause: std::time::Duration,
    calls: u64,
}

impl Voice {
    fn say(&self, done: u64) {
        println!("\nmade {done} {}", peak_kib());
    }
}

impl Watch for Voice {
    fn progress(&mut self, per_mille: u32, _: &str) {
        self.calls += 1;
        if self.calls.is_multiple_of(16) || !self.pause.is_zero() {
            self.say(self.before + self.bytes * u64::from(per_mille) / 1000);
        }
        std::thread::sleep(self.pause);
    }
}

/// Returns the largest resident set of this process so far in KiB, or 0 if the system does not
/// report it.
pub fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|rest| rest.trim().trim_end_matches(" kB").trim().parse().ok()).unwrap_or_default()
}

/// Returns the name and SHA-256 of every file of a directory, by name.
pub fn files_and_hashes(directory: &Path) -> Vec<(String, [u8; 32])> {
    let mut files: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let mut digest = Sha256::new();
            std::io::copy(&mut std::fs::File::open(&path).unwrap(), &mut HashWriter(&mut digest)).unwrap();
            (path.file_name().unwrap().to_string_lossy().into_owned(), digest.finalize().into())
        })
        .collect();
    files.sort();
    files
}

struct HashWriter<'d>(&'d mut Sha256);

impl std::io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
