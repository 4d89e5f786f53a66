//! One worker process from the host's side. Starts it, sends requests, and monitors it. When it
//! ends, kills the process group, reaps it and keeps the last part of its output.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use serde::de::DeserializeOwned;
use shardwright_shims::{Claim, Facts, Output, ShimError};
use shardwright_vocabulary::Shortage;

use crate::board::BoardPage;
use crate::end::{ExitReport, Touched, WorkerEnd, WorkerFailure};
use crate::launcher::{Caps, Launcher};
use crate::protocol::{
    ANSWER_LIMIT, Ask, Broken, Decoder, Fault, Frame, Kind, Library, PROTOCOL, REQUEST_LIMIT, Refusal,
    Report, Request, decode, encode,
};
use crate::{lock, os};

/// Interval for checking whether the caller cancelled.
const TICK: Duration = Duration::from_millis(20);

/// Number of bytes kept from the end of a worker's output.
const TAIL_LIMIT: usize = 16 << 10;

/// Maximum number of output bytes to read at a time, so that a process that prints forever cannot
/// block the host.
const DRAIN_LIMIT: usize = 4 << 20;

/// Maximum length of a shim's log line in bytes.
pub(crate) const LINE_LIMIT: usize = 8 << 10;

/// Number of bytes per read.
const READ_SIZE: usize = 64 << 10;

/// Exit code of a worker to which the system refuses a thread. The host reports the limit.
pub(crate) const EXIT_NO_THREAD: i32 = 72;

/// A request to stop, sent outside the channels. A dedicated thread of the worker always waits for
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    Compile { number: u64 },
    Run { shard: u64, number: u64 },
}

/// Encoded size of a signal in bytes.
pub(crate) const SIGNAL_SIZE: usize = 24;

impl Signal {
    pub(crate) fn bytes(self) -> [u8; SIGNAL_SIZE] {
        let numbers = match self {
            Signal::Compile { number } => [1, 0, number],
            Signal::Run { shard, number } => [2, shard, number],
        };
        let mut bytes = [0; SIGNAL_SIZE];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn of(bytes: [u8; SIGNAL_SIZE]) -> Option<Signal> {
        let mut numbers = [0_u64; 3];
        for (number, place) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
            *number = place.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        }
        match numbers {
            [1, 0, number] => Some(Signal::Compile { number }),
            [2, shard, number] => Some(Signal::Run { shard, number }),
            _ => None,
        }
    }
}

/// One socket to the worker, with one open request at a time.
pub(crate) struct Channel {
    stream: UnixStream,
    decoder: Decoder,
    scratch: Box<[u8]>,
}

/// Result of a read.
enum Arrived {
    Something,
    Nothing,
    End,
}

impl Channel {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Channel> {
        stream.set_nonblocking(true)?;
        let scratch = vec![0; READ_SIZE].into_boxed_slice();
        Ok(Channel { stream, decoder: Decoder::new(ANSWER_LIMIT), scratch })
    }

    fn receive(&mut self) -> Arrived {
        loop {
            return match self.stream.read(&mut self.scratch) {
                Ok(0) => Arrived::End,
                Ok(count) => {
                    self.decoder.feed(&self.scratch[..count]);
                    Arrived::Something
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Arrived::Nothing,
                Err(_) => Arrived::End,
            };
        }
    }
}

/// A request and its limits.
pub(crate) struct Call<'a> {
    pub(crate) function: &'static str,
    /// Time limit, after which the worker is killed.
    pub(crate) time: Duration,
    pub(crate) descriptors: Vec<OwnedFd>,
    /// Polled often. Once true, the worker receives a request to stop. If it does not stop within
    /// its grace time, it is killed.
    pub(crate) cancelled: Option<&'a dyn Fn() -> bool>,
    /// Receives the output of a compilation, and reports whether to stop.
    pub(crate) output: Option<&'a mut dyn Output>,
    pub(crate) cancel: Option<Signal>,
    /// Finds the bound buffer at or next to an address of the worker.
    pub(crate) touched: &'a dyn Fn(u64) -> Option<Touched>,
}

/// Finds no buffer, for calls without bound buffers.
pub(crate) const UNTOUCHED: &dyn Fn(u64) -> Option<Touched> = &|_| None;

/// The reason why a worker is killed or was found dead.
enum Cause {
    /// The worker ended by itself.
    Found,
    /// The worker is killed for this reason.
    Killed(WorkerEnd),
}

/// The output of a worker. Waiters share the descriptors, which keeps them open.
struct Captured {
    pipe: Option<Arc<OwnedFd>>,
    lines: Option<(Arc<OwnedFd>, Decoder)>,
    tail: VecDeque<u8>,
    /// Number of bytes printed so far.
    total: u64,
}

impl Captured {
    /// Reads available output without waiting.
    fn drain(&mut self, name: &str) {
        let mut buffer = [0; 8 << 10];
        let mut taken = 0;
        while let Some(pipe) = &self.pipe {
            match rustix::io::read(pipe, &mut buffer) {
                Ok(0) => self.pipe = None,
                Ok(count) => {
                    self.total += count as u64;
                    self.tail.extend(&buffer[..count]);
                    let excess = self.tail.len().saturating_sub(TAIL_LIMIT);
                    self.tail.drain(..excess);
                    taken += count;
                    if taken >= DRAIN_LIMIT {
                        break;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => self.pipe = None,
            }
        }
        taken = 0;
        while let Some((stream, decoder)) = &mut self.lines {
            match rustix::io::read(&*stream, &mut buffer) {
                Ok(0) => self.lines = None,
                Ok(count) => {
                    decoder.feed(&buffer[..count]);
                    loop {
                        match decoder.next() {
                            Ok(Some(frame)) => {
                                if let Some((level, text)) = frame.content.split_first() {
                                    let text = String::from_utf8_lossy(text);
                                    shardwright_shims::log_line(u32::from(*level), name, &text);
                                }
                            }
                            Ok(None) => break,
                            Err(broken) => {
                                tracing::warn!("the log of worker `{name}` is no longer read: {}", broken.0);
                                self.lines = None;
                                break;
                            }
                        }
                    }
                    taken += count;
                    if taken >= DRAIN_LIMIT {
                        break;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => self.lines = None,
            }
        }
    }

    /// Returns the kept part of the output after the first `mark` bytes.
    fn since(&self, mark: u64) -> Option<String> {
        let kept =
            usize::try_from(self.total - mark.min(self.total)).unwrap_or(usize::MAX).min(self.tail.len());
        let bytes: Vec<u8> = self.tail.iter().skip(self.tail.len() - kept).copied().collect();
        let text = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        (!text.is_empty()).then_some(text)
    }

    fn descriptors(&self) -> Vec<Arc<OwnedFd>> {
        self.pipe.iter().chain(self.lines.iter().map(|(stream, _)| stream)).cloned().collect()
    }
}

pub(crate) fn start_failure(
    name: &str,
    function: &'static str,
    reason: String,
    shortage: Option<Shortage>,
) -> ShimError {
    let end = WorkerEnd::Start { reason, shortage };
    let exit_report = ExitReport { end, pid: 0, peak_memory_bytes: 0, log_tail: None };
    WorkerFailure::new(name, function, &exit_report, false).into()
}

/// A running worker. Dropping it closes the worker, or kills it if it does not close within its
/// grace time.
pub(crate) struct Worker {
    name: String,
    pid: u32,
    process: OwnedFd,
    caps: Caps,
    control: Mutex<Channel>,
    signals: Mutex<UnixStream>,
    captured: Mutex<Captured>,
    board: BoardPage,
    /// Buffers mapped in the worker, with their addresses.
    mapped: Mutex<BTreeMap<u64, u64>>,
    /// Buffers to unmap in the worker with the next request.
    forgotten: Mutex<Vec<u64>>,
    end: Mutex<Option<Arc<ExitReport>>>,
    shards: std::sync::atomic::AtomicU64,
    _claim: Option<Arc<Claim>>,
}

impl Worker {
    /// Starts the program and lets it open the library, which it may refuse.
    pub(crate) fn start(
        name: &str,
        launcher: &Launcher,
        library: Library,
        claim: Option<Arc<Claim>>,
    ) -> Result<Result<(Worker, Facts), Refusal>, ShimError> {
        let (worker, descriptors) = Worker::spawn(name, launcher, claim).map_err(|error| {
            let reason = format!("`{}`: {error}", launcher.worker.display());
            start_failure(name, "open", reason, Shortage::of_start(&error))
        })?;
        let ask = Ask::Hello {
            protocol: PROTOCOL,
            release: env!("CARGO_PKG_VERSION").to_owned(),
            library,
            memory_bytes: launcher.caps.memory_bytes,
        };
        let call = Call { descriptors, ..Call::plain("open", launcher.caps.probe_time) };
        let answer: Result<Facts, Refusal> = worker.ask_with(call, ask)?;
        Ok(answer.map(|facts| (worker, facts)))
    }

    fn spawn(
        name: &str,
        launcher: &Launcher,
        claim: Option<Arc<Claim>>,
    ) -> io::Result<(Worker, Vec<OwnedFd>)> {
        let (control, their_control) = UnixStream::pair()?;
        let (signals, their_signals) = UnixStream::pair()?;
        let (lines, their_lines) = UnixStream::pair()?;
        let (pipe, their_pipe) = io::pipe()?;
        let (board, their_board) = BoardPage::new()?;
        rustix::io::ioctl_fionbio(&pipe, true)?;
        signals.set_nonblocking(true)?;
        lines.set_nonblocking(true)?;
        let control = Channel::new(control)?;
        let child = Command::new(&launcher.worker)
            .stdin(Stdio::from(OwnedFd::from(their_control)))
            .stdout(Stdio::from(OwnedFd::from(their_pipe.try_clone()?)))
            .stderr(Stdio::from(OwnedFd::from(their_pipe)))
            // A separate group, so that its children can be killed with it, and the host handles a
            // terminal's interrupt.
            .process_group(0)
            .spawn()?;
        let pid = child.id();
        let process = os::process_descriptor(pid).inspect_err(|_| {
            os::kill_group(pid);
            let _ = os::wait_for(pid);
        })?;
        let lines = (Arc::new(OwnedFd::from(lines)), Decoder::new(LINE_LIMIT + 1));
        let pipe = Arc::new(OwnedFd::from(pipe));
        let captured = Captured { pipe: Some(pipe), lines: Some(lines), tail: VecDeque::new(), total: 0 };
        let worker = Worker {
            name: name.to_owned(),
            pid,
            process,
            caps: launcher.caps,
            control: Mutex::new(control),
            signals: Mutex::new(signals),
            captured: Mutex::new(captured),
            board,
            mapped: Mutex::new(BTreeMap::new()),
            forgotten: Mutex::new(Vec::new()),
            end: Mutex::new(None),
            shards: std::sync::atomic::AtomicU64::new(0),
            _claim: claim,
        };
        Ok((worker, vec![their_board, their_signals.into(), their_lines.into()]))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn caps(&self) -> &Caps {
        &self.caps
    }

    pub(crate) fn next_shard(&self) -> u64 {
        self.shards.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the buffers mapped in the worker. Keep the lock while mapping one.
    pub(crate) fn mapped(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        lock(&self.mapped)
    }

    /// Returns the peak resident memory in bytes.
    pub(crate) fn peak_memory_bytes(&self) -> Option<u64> {
        if let Some(exit_report) = &*lock(&self.end) {
            return Some(exit_report.peak_memory_bytes);
        }
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    }

    /// Checks the process, and returns the way in which it ended, if it did.
    pub(crate) fn ended(&self) -> Option<WorkerEnd> {
        if lock(&self.end).is_none() && self.has_ended(Duration::ZERO) {
            self.bury(Cause::Found, UNTOUCHED);
        }
        lock(&self.end).as_ref().map(|exit_report| exit_report.end.clone())
    }

    fn has_ended(&self, time: Duration) -> bool {
        let mut waiting = [os::readable(&self.process)];
        os::poll(&mut waiting, time).is_ok() && os::is_readable(&waiting[0])
    }

    /// Returns the error for a call that needs this worker, if it has already ended.
    pub(crate) fn gone(&self, function: &'static str) -> Option<ShimError> {
        let end = lock(&self.end);
        let exit_report = end.as_ref()?;
        Some(WorkerFailure::new(&self.name, function, exit_report, true).into())
    }

    /// Creates the error for a failure of the host before a request was sent.
    pub(crate) fn host_failure(&self, function: &'static str, error: &io::Error) -> ShimError {
        start_failure(&self.name, function, error.to_string(), Shortage::of(error))
    }

    /// Sends a request on the control channel and waits for the answer.
    pub(crate) fn ask<T: DeserializeOwned>(
        &self,
        function: &'static str,
        time: Duration,
        ask: Ask,
    ) -> Result<T, ShimError> {
        self.ask_with(Call::plain(function, time), ask)
    }

    /// Like [`ask`](Worker::ask), with all options of a call.
    pub(crate) fn ask_with<T: DeserializeOwned>(&self, call: Call<'_>, ask: Ask) -> Result<T, ShimError> {
        self.exchange(&mut lock(&self.control), call, ask)
    }

    /// Sends a request on `channel` and reads until the answer.
    pub(crate) fn exchange<T: DeserializeOwned>(
        &self,
        channel: &mut Channel,
        mut call: Call<'_>,
        ask: Ask,
    ) -> Result<T, ShimError> {
        let answer = self.answer(channel, &mut call, ask)?;
        decode(&answer).map_err(|broken| {
            self.broke(&call, format!("not an answer of `{}`: {}", call.function, broken.0))
        })
    }

    /// Returns the encoded answer.
    fn answer(&self, channel: &mut Channel, call: &mut Call<'_>, ask: Ask) -> Result<Vec<u8>, ShimError> {
        if let Some(gone) = self.gone(call.function) {
            return Err(gone);
        }
        let forget = std::mem::take(&mut *lock(&self.forgotten));
        let bytes = encode(Kind::Message, &Request { forget, ask }, REQUEST_LIMIT)
            .map_err(|broken| ShimError::Argument(broken.0))?;
        let printed_before = lock(&self.captured).total;
        let start = Instant::now();
        let mut sent = 0;
        let mut stop_by: Option<Instant> = None;
        let mut signalled: Option<Instant> = None;
        // Set if the other end is closed. Then only the reason has to be found.
        let mut closed = false;
        let mut open = OpenCall { worker: self, answered: false };
        loop {
            while let Some(frame) = match channel.decoder.next() {
                Ok(frame) => frame,
                Err(broken) => return Err(self.broke(call, broken.0)),
            } {
                match frame.kind {
                    Kind::Answer => {
                        open.answered = true;
                        return Ok(frame.content);
                    }
                    Kind::Fault => {
                        let fault: Fault =
                            decode(&frame.content).map_err(|broken| self.broke(call, broken.0))?;
                        let printed = || {
                            let mut captured = lock(&self.captured);
                            captured.drain(&self.name);
                            captured.since(printed_before)
                        };
                        open.answered = true;
                        return Err(fault.into_error(&self.name, call.function, printed));
                    }
                    _ => call.report(frame).map_err(|broken| self.broke(call, broken.0))?,
                }
            }
            if closed {
                // A process that closed its sockets is usually about to end.
                let cause = match self.has_ended(self.caps.grace) {
                    true => Cause::Found,
                    false => {
                        Cause::Killed(WorkerEnd::Protocol { reason: "it closed its connection".to_owned() })
                    }
                };
                return Err(self.end_call(call, cause));
            }
            let now = Instant::now();
            let Some(left) = call.time.checked_sub(now - start).filter(|left| !left.is_zero()) else {
                let limit_ms = u64::try_from(call.time.as_millis()).unwrap_or(u64::MAX);
                return Err(self.end_call(call, Cause::Killed(WorkerEnd::OverTime { limit_ms })));
            };
            if sent < bytes.len() {
                let with: Vec<_> = call.descriptors.iter().filter(|_| sent == 0).map(AsFd::as_fd).collect();
                match os::send(channel.stream.as_fd(), &bytes[sent..], &with) {
                    Ok(count) => {
                        sent += count;
                        if sent == bytes.len() {
                            // The worker has its own copies now.
                            call.descriptors.clear();
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    // Bytes that the worker sent earlier can still be read.
                    Err(_) => sent = bytes.len(),
                }
            }
            let mut wait = left;
            if let Some(cancelled) = call.is_cancelled() {
                if stop_by.is_some() || cancelled {
                    let far = now + Duration::from_secs(1 << 20);
                    let by = *stop_by.get_or_insert(now.checked_add(self.caps.grace).unwrap_or(far));
                    if now >= by {
                        return Err(self.end_call(call, Cause::Killed(WorkerEnd::Cancelled)));
                    }
                    // Send it repeatedly: a signal that arrives before the shim was entered has no
                    // effect on the shim.
                    if let Some(signal) = call.cancel
                        && signalled.is_none_or(|last| now - last >= TICK)
                    {
                        signalled = Some(now);
                        let _ = lock(&self.signals).write(&signal.bytes());
                    }
                }
                wait = wait.min(TICK);
            }
            let printing = lock(&self.captured).descriptors();
            let write = if sent < bytes.len() { PollFlags::OUT } else { PollFlags::empty() };
            let stream = PollFd::new(&channel.stream, PollFlags::IN | write);
            let mut waiting = vec![stream, os::readable(&self.process)];
            waiting.extend(printing.iter().map(os::readable));
            if let Err(error) = os::poll(&mut waiting, wait) {
                let reason = format!("waiting for an answer failed: {error}");
                return Err(self.end_call(call, Cause::Killed(WorkerEnd::Protocol { reason })));
            }
            if waiting[2..].iter().any(os::is_readable) {
                lock(&self.captured).drain(&self.name);
            }
            let ended = os::is_readable(&waiting[1]);
            if os::is_readable(&waiting[0]) || ended {
                match channel.receive() {
                    Arrived::Something => {}
                    Arrived::End => closed = true,
                    // Another process may keep its end of the socket open, but the worker itself
                    // has certainly ended.
                    Arrived::Nothing => closed = ended,
                }
            }
        }
    }

    fn broke(&self, call: &Call<'_>, reason: String) -> ShimError {
        self.end_call(call, Cause::Killed(WorkerEnd::Protocol { reason }))
    }

    /// Ends the worker because of a call.
    fn end_call(&self, call: &Call<'_>, cause: Cause) -> ShimError {
        let exit_report = self.bury(cause, call.touched);
        tracing::info!(instance = %self.name, pid = self.pid, function = call.function, "worker {}", exit_report.end);
        WorkerFailure::new(&self.name, call.function, &exit_report, false).into()
    }

    /// Kills the worker because it wrote outside a buffer.
    pub(crate) fn overran(&self, function: &'static str, touched: Touched) -> ShimError {
        let call = Call::plain(function, Duration::ZERO);
        self.end_call(&call, Cause::Killed(WorkerEnd::Overrun(touched)))
    }

    /// Kills the process group, reaps the worker and records the way it ended, with the cause of
    /// the first caller.
    fn bury(&self, cause: Cause, touched: &dyn Fn(u64) -> Option<Touched>) -> Arc<ExitReport> {
        let mut end = lock(&self.end);
        if let Some(exit_report) = &*end {
            return exit_report.clone();
        }
        os::kill_group(self.pid);
        let status = os::wait_for(self.pid);
        let mut captured = lock(&self.captured);
        captured.drain(&self.name);
        let peak_memory_bytes = status.as_ref().map_or(0, |status| status.peak_memory_bytes);
        let end_found = match (cause, status) {
            (Cause::Killed(end), _) => end,
            (Cause::Found, Err(error)) => {
                WorkerEnd::Protocol { reason: format!("waiting for its end failed: {error}") }
            }
            (Cause::Found, Ok(status)) => self.found(status, touched),
        };
        let exit_report = Arc::new(ExitReport {
            end: end_found,
            pid: self.pid,
            peak_memory_bytes,
            log_tail: captured.since(0),
        });
        captured.pipe = None;
        captured.lines = None;
        captured.tail = VecDeque::new();
        *end = Some(exit_report.clone());
        exit_report
    }

    fn found(&self, status: os::Ended, touched: &dyn Fn(u64) -> Option<Touched>) -> WorkerEnd {
        let board = self.board.board();
        let limit_bytes = self.caps.memory_bytes;
        let exhausted = board.exhausted.load(Ordering::Relaxed) != 0;
        match (status.signal, status.code) {
            (_, Some(0)) => WorkerEnd::NoAnswer,
            _ if exhausted => WorkerEnd::OverMemory { limit_bytes },
            (_, Some(EXIT_NO_THREAD)) => WorkerEnd::Start {
                reason: "the system refused to start a thread".to_owned(),
                shortage: Some(Shortage::Processes),
            },
            (_, Some(code)) => WorkerEnd::Exited { code },
            (Some(libc::SIGINT), None) => WorkerEnd::Interrupted,
            (signal, None) => {
                let signal = signal.unwrap_or(0);
                let written = board.signal.load(Ordering::Relaxed) == signal.unsigned_abs();
                let has_address = written && board.has_address.load(Ordering::Relaxed) != 0;
                let address = has_address.then(|| board.address.load(Ordering::Relaxed));
                WorkerEnd::Signal { signal, address, touched: address.and_then(touched) }
            }
        }
    }

    /// Unmaps a buffer in the worker, at the latest with the next request.
    pub(crate) fn forget(&self, buffer: u64) {
        let was_mapped = lock(&self.mapped).remove(&buffer).is_some();
        if !was_mapped || lock(&self.end).is_some() {
            return;
        }
        lock(&self.forgotten).push(buffer);
        // Do it immediately if no request is open, so that memory freed here does not stay mapped
        // there.
        if let Ok(mut control) = self.control.try_lock() {
            let call = Call::plain("buffer", self.caps.probe_time);
            if let Err(error) = self.exchange::<()>(&mut control, call, Ask::Nothing) {
                tracing::debug!(instance = %self.name, "buffer not unmapped: {error}");
            }
        }
    }
}

/// A request without an answer. If a panic of the caller left it open, the next request would read
/// the wrong answer.
struct OpenCall<'a> {
    worker: &'a Worker,
    answered: bool,
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        if !self.answered {
            let reason = "the host abandoned a request".to_owned();
            self.worker.bury(Cause::Killed(WorkerEnd::Protocol { reason }), UNTOUCHED);
        }
    }
}

impl<'a> Call<'a> {
    /// Creates a call without descriptors, cancellation or buffers.
    pub(crate) fn plain(function: &'static str, time: Duration) -> Call<'a> {
        let (descriptors, touched) = (Vec::new(), UNTOUCHED);
        Call { function, time, descriptors, cancelled: None, output: None, cancel: None, touched }
    }

    /// Returns whether the caller cancelled, or `None` if the call cannot be cancelled.
    fn is_cancelled(&mut self) -> Option<bool> {
        match &mut self.output {
            Some(output) => Some(output.cancelled()),
            None => self.cancelled.map(|cancelled| cancelled()),
        }
    }

    /// Forwards a frame before the answer of a compilation.
    fn report(&mut self, frame: Frame) -> Result<(), Broken> {
        let Some(output) = &mut self.output else {
            return Err(Broken(format!("not an answer of `{}`", self.function)));
        };
        match frame.kind {
            // A host that cannot write cancels. Later output is read and dropped.
            Kind::Bytes => drop(output.write(&frame.content)),
            Kind::Head => output.head(&frame.content),
            _ => match decode(&frame.content)? {
                Report::Progress { per_mille, stage } => output.progress(per_mille, &stage),
                Report::Flag { name, verdict, evidence } => output.flag(name, verdict, evidence),
                Report::Placement(placement) => output.placement(placement),
                Report::MadeFor { fact, value } => output.made_for(fact, value),
            },
        }
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if lock(&self.end).is_some() {
            return;
        }
        // The worker closes its instance and exits when the host closes the connection.
        let _ = lock(&self.control).stream.shutdown(std::net::Shutdown::Both);
        let start = Instant::now();
        while let Some(left) = self.caps.grace.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
            let printing = lock(&self.captured).descriptors();
            let mut waiting = vec![os::readable(&self.process)];
            waiting.extend(printing.iter().map(os::readable));
            if os::poll(&mut waiting, left).is_err() || os::is_readable(&waiting[0]) {
                break;
            }
            lock(&self.captured).drain(&self.name);
        }
        self.bury(Cause::Found, UNTOUCHED);
    }
}
