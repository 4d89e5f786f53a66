//! Compiles a bundle with a variant for each of several chips, some of them at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use shardwright_build::{BundleLoopStart, PlanOptions};
use shardwright_planning::profile::GENERIC;
use shardwright_vocabulary::{Error, ErrorKind, Result, Watch};

use super::bundle::{Compiling, Made, Others};
use super::gate::Gate;
use super::jobs::{Jobs, look_at};
use super::{CompileReport, FailedVariant};

/// Interval for checking for a cancellation.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Compiles a checkpoint into a bundle with a variant for each of several chips, with up to `jobs`
/// at the same time. The bundle does not depend on that number. If compiling for a chip fails, the
/// bundle contains the other variants.
///
/// # Errors
///
/// Fails with the first failure if no variant could be compiled. Fails immediately if it is
/// cancelled, if a chip is named twice, or if the number of jobs is 0.
pub fn compile_variants(
    directory: &Path,
    into: &Path,
    variants: &[PlanOptions],
    jobs: Jobs,
    watch: &mut dyn Watch,
) -> Result<CompileReport> {
    if jobs.most == 0 {
        let error = Error::new(ErrorKind::Argument, "expected at least 1 job, got 0");
        return Err(error.with_help("use `--jobs 1` or more"));
    }
    let compiling = Compiling::begin(directory, into)?;
    let asked = look_at(variants, jobs)?;
    asked.said.iter().for_each(|said| watch.note(said));
    let (mut compiled, mut failed) = (Vec::new(), Vec::new());
    let mut first_error = None;
    let results = side_by_side(&compiling, variants, &asked.alone, jobs, watch);
    for (options, result) in variants.iter().zip(results) {
        match result {
            Ok(made) => compiled.push(made),
            Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error),
            Err(error) => {
                failed.push(FailedVariant::of(soc_of(options), &error));
                first_error.get_or_insert(error);
            }
        }
    }
    match first_error.filter(|_| compiled.is_empty()) {
        Some(error) => Err(error),
        None => compiling.finish(compiled, Others::default(), failed),
    }
}

fn soc_of(options: &PlanOptions) -> String {
    options.soc.clone().unwrap_or_else(|| GENERIC.to_owned())
}

/// Compiles all variants and returns their results in the requested order. Ends early if it is
/// cancelled.
fn side_by_side(
    compiling: &Compiling<'_>,
    variants: &[PlanOptions],
    alone: &[BTreeSet<String>],
    jobs: Jobs,
    watch: &mut dyn Watch,
) -> Vec<Result<Made>> {
    let gate = Gate::within(if jobs.most > 1 { jobs.budget() } else { None });
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let results: Mutex<Vec<Option<Result<Made>>>> = Mutex::new(variants.iter().map(|_| None).collect());
    let nothing = BTreeSet::new();
    let work = |sender: Sender<(usize, Event)>| {
        while !stop.load(Ordering::Relaxed)
            && let index = next.fetch_add(1, Ordering::Relaxed)
            && let Some(options) = variants.get(index)
        {
            let mut watch = Reporter { index, sender: sender.clone(), stop: &stop };
            let alone = alone.get(index).unwrap_or(&nothing);
            let result = gate.enter(index, alone, &mut watch).and_then(|seat| {
                let trying = BundleLoopStart::default();
                compiling.variant(options, None, trying, Some(&seat), &mut watch)
            });
            if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Cancelled) {
                stop.store(true, Ordering::Relaxed);
            }
            watch.send(Event::Ended);
            if let Some(place) = results.lock().unwrap_or_else(PoisonError::into_inner).get_mut(index) {
                *place = Some(result);
            }
        }
    };
    let worked = std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let begin = || {
            let (sender, work) = (sender.clone(), &work);
            std::thread::Builder::new().spawn_scoped(scope, move || work(sender))
        };
        // With fewer threads than jobs it only runs longer.
        let begun = (0..jobs.most.min(variants.len())).map_while(|_| begin().ok()).count();
        drop(sender);
        if begun == 0 {
            return false;
        }
        let mut view = View::of(variants);
        loop {
            match receiver.recv_timeout(LOOK_AGAIN) {
                Ok((index, event)) => view.show(index, event, watch),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if watch.cancelled() {
                stop.store(true, Ordering::Relaxed);
            }
        }
        true
    });
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    let not_begun = || {
        Err(match worked {
            true => Error::new(ErrorKind::Cancelled, "compiling was cancelled"),
            false => Error::new(ErrorKind::Memory, "cannot start a thread")
                .with_help("raise the limit on processes (`ulimit -u`), or compile with `--jobs 1`"),
        })
    };
    results.into_iter().map(|result| result.unwrap_or_else(not_begun)).collect()
}

/// A report of a variant's thread.
enum Event {
    /// Progress of the variant in thousandths, and its stage.
    Progress(u32, String),
    Note(String),
    Ended,
}

/// The watch of one variant, which reports to the thread with the watch of all.
struct Reporter<'s> {
    index: usize,
    sender: Sender<(usize, Event)>,
    stop: &'s AtomicBool,
}

impl Reporter<'_> {
    fn send(&self, event: Event) {
        // The receiver is gone only if the other thread failed, and then that thread's error
        // counts.
        let _ = self.sender.send((self.index, event));
    }
}

impl Watch for Reporter<'_> {
    fn progress(&mut self, per_mille: u32, stage: &str) {
        self.send(Event::Progress(per_mille, stage.to_owned()));
    }

    fn note(&mut self, text: &str) {
        self.send(Event::Note(text.to_owned()));
    }

    fn cancelled(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Combines the progress of all variants.
struct View {
    /// The chip and the progress in thousandths, by variant.
    variants: Vec<(String, u32)>,
    /// Stages of running variants.
    running: BTreeMap<usize, String>,
}

impl View {
    fn of(variants: &[PlanOptions]) -> Self {
        View { variants: variants.iter().map(|one| (soc_of(one), 0)).collect(), running: BTreeMap::new() }
    }

    fn show(&mut self, index: usize, event: Event, watch: &mut dyn Watch) {
        let Some((soc, done)) = self.variants.get_mut(index) else { return };
        match event {
            Event::Note(text) => return watch.note(&format!("for {soc}: {text}")),
            Event::Progress(per_mille, stage) => {
                *done = (*done).max(per_mille.min(1000));
                self.running.insert(index, format!("for {soc}: {stage}"));
            }
            Event::Ended => {
                *done = 1000;
                self.running.remove(&index);
            }
        }
        let sum: u64 = self.variants.iter().map(|(_, done)| u64::from(*done)).sum();
        let all = sum / (self.variants.len() as u64).max(1);
        let stages: Vec<&str> = self.running.values().map(String::as_str).collect();
        if !stages.is_empty() {
            watch.progress(all as u32, &stages.join("; "));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Recorded(Vec<(u32, String)>);

    impl Watch for Recorded {
        fn progress(&mut self, per_mille: u32, stage: &str) {
            self.0.push((per_mille, stage.to_owned()));
        }
    }

    #[test]
    fn the_progress_of_all_is_their_mean_and_names_those_that_run() {
        let chips = ["a", "b", "c", "d"].map(|soc| PlanOptions::default().for_chip(soc));
        let (mut view, mut seen) = (View::of(&chips), Recorded::default());
        let progress = |per_mille, stage: &str| Event::Progress(per_mille, stage.to_owned());
        for (index, event) in [
            (0, progress(400, "planning")),
            (1, progress(200, "compiling")),
            (0, progress(100, "again")),
            (0, Event::Ended),
            (1, progress(2000, "too far")),
            (1, Event::Ended),
            (7, progress(5, "nobody")),
        ] {
            view.show(index, event, &mut seen);
        }
        let expected = [
            (100, "for a: planning"),
            (150, "for a: planning; for b: compiling"),
            (150, "for a: again; for b: compiling"),
            (300, "for b: compiling"),
            (500, "for b: too far"),
        ];
        let seen: Vec<(u32, &str)> = seen.0.iter().map(|(all, stage)| (*all, stage.as_str())).collect();
        assert_eq!(seen, expected);
    }
}
