//! The program `shardwright-worker`. It opens one shim in a separate process, and executes the
//! host's requests, which arrive over its standard input.
//!
//! The host is trusted, but the shim is not. So the process limits itself before it opens the
//! library, records its own crash, and ends with the host.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use serde::Serialize;
use shardwright_shim_abi::raw::{SW_LOG_WARNING, SwEntryFunction};
use shardwright_shims::{
    Canceller, Facts, LoadError, Output, Placement, REPORT_LIMIT, Shim, ShimError, ShimFailure, ShimInstance,
    WorkOrder,
};
use shardwright_vocabulary::{FlagVerdict, Shortage};

use crate::board::BoardPage;
use crate::process::{EXIT_NO_THREAD, LINE_LIMIT, SIGNAL_SIZE, Signal};
use crate::protocol::{
    ANSWER_LIMIT, Ask, Decoder, Fault, Kind, Library, PIECE_LIMIT, PROTOCOL, REQUEST_LIMIT, Refusal, Report,
    ReportedVerdict, Request, decode, encode, put,
};
use crate::{lock, os};

mod crash;
mod shard;

/// Exit code for a start without a host.
const EXIT_USAGE: i32 = 64;
/// Exit code if the host is gone, or if the shim closed the worker's socket.
const EXIT_DISCONNECTED: i32 = 70;
/// Exit code for a failed setup, whose reason is printed.
const EXIT_SETUP: i32 = 71;
/// Exit code for a panic, which is printed.
const EXIT_PANIC: i32 = 101;

/// Runs `shardwright-worker`. `linked` are shims that are linked into the program, by their names
/// in the host's registry.
pub fn worker_main(linked: &[(&'static str, SwEntryFunction)]) -> ! {
    std::panic::set_hook(Box::new(|panic| {
        say(&panic.to_string());
        leave(EXIT_PANIC);
    }));
    // The main thread's stack size depends on the user's limits.
    std::thread::scope(|scope| {
        let work = std::thread::Builder::new().name("work".to_owned()).stack_size(STACK_BYTES);
        // The work ends the process. It runs on this thread if another cannot be started.
        if work.spawn_scoped(scope, || work_for_host(linked)).is_err() {
            work_for_host(linked)
        }
    });
    leave(EXIT_PANIC)
}

/// Stack size for the work in bytes, including vendors' libraries.
const STACK_BYTES: usize = 8 << 20;

/// Writes a line to standard error, which may be closed.
fn say(line: &str) {
    let _ = writeln!(io::stderr().lock(), "shardwright-worker: {line}");
}

fn work_for_host(linked: &[(&'static str, SwEntryFunction)]) -> ! {
    let control = io::stdin().as_fd().try_clone_to_owned().map(os::move_high);
    let control = control.unwrap_or_else(|error| fail(&format!("no standard input: {error}")));
    let mut line = Line::new(UnixStream::from(control), REQUEST_LIMIT);
    let (first, descriptors) = match line.request() {
        Ok(first) => first,
        Err(error) => {
            say(&format!(
                "this program is started by Shardwright, with a socket as its standard input ({error}); do \
                 not start it manually"
            ));
            leave(EXIT_USAGE);
        }
    };
    let Ask::Hello { protocol, release, library, memory_bytes } = first.ask else {
        fail("the first request of the host is not a greeting");
    };
    let own = env!("CARGO_PKG_VERSION");
    if (protocol, release.as_str()) != (PROTOCOL, own) {
        let message = format!(
            "the worker has release {own} and protocol {PROTOCOL}, the host has {release} and {protocol}"
        );
        line.refuse("too-old", message);
    }
    set_up(descriptors, memory_bytes).unwrap_or_else(|error| {
        let reason = format!("cannot set up the worker: {error}");
        match Shortage::of_start(&error) {
            Some(Shortage::Processes) => {
                say(&reason);
                leave(EXIT_NO_THREAD)
            }
            _ => fail(&reason),
        }
    });
    let shim = match open(&library, linked) {
        Ok(shim) => shim,
        Err(error) => {
            line.refuse(error.reason(), error.to_string());
        }
    };
    line.answer(Ok(Ok::<&Facts, Refusal>(shim.facts())));
    serve(line, &shim);
    // The instance is closed, so skip the vendor's exit handlers.
    leave(0)
}

/// Ends the process and its children, without exit handlers.
fn leave(code: i32) -> ! {
    // SAFETY: no code of this process runs after it.
    unsafe { libc::_exit(code) }
}

fn fail(reason: &str) -> ! {
    say(reason);
    leave(EXIT_SETUP)
}

/// State shared by all threads of the worker.
struct Shared {
    /// Number of the last compilation with a request to stop.
    stopped_compilation: AtomicU64,
    shards: Mutex<HashMap<u64, ShardState>>,
    buffers: Mutex<HashMap<u64, Arc<shard::Mapped>>>,
}

/// State of a shard that a request to stop needs.
struct ShardState {
    canceller: Canceller,
    /// Number of the run in progress.
    running: u64,
    /// Number of the last run with a request to stop.
    stopped: u64,
}

fn shared() -> &'static Shared {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    SHARED.get_or_init(|| Shared {
        stopped_compilation: AtomicU64::new(0),
        shards: Mutex::new(HashMap::new()),
        buffers: Mutex::new(HashMap::new()),
    })
}

/// The channel of log lines to the host.
struct Lines {
    stream: UnixStream,
    /// Bytes that did not fit at the last attempt. Lines are not split.
    rest: Vec<u8>,
    dropped: u64,
}

static LINES: OnceLock<Mutex<Lines>> = OnceLock::new();

impl Lines {
    /// Sends pending bytes. Returns whether all are sent.
    fn flush(&mut self) -> bool {
        while !self.rest.is_empty() {
            match os::send(self.stream.as_fd(), &self.rest, &[]) {
                Ok(count) => drop(self.rest.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Sends pending bytes and the number of lost lines. Returns false if there is still no room.
    fn settle(&mut self) -> bool {
        let flushed = self.flush();
        if flushed && self.dropped > 0 {
            let dropped = std::mem::take(&mut self.dropped);
            self.put(SW_LOG_WARNING, &format!("{dropped} log lines were dropped: the shim logs too fast"));
            return self.flush();
        }
        flushed
    }

    fn put(&mut self, level: u32, message: &str) {
        let mut length = message.len().min(LINE_LIMIT);
        while !message.is_char_boundary(length) {
            length -= 1;
        }
        let mut content = vec![u8::try_from(level).unwrap_or(u8::MAX)];
        content.extend_from_slice(&message.as_bytes()[..length]);
        let _ = put(&mut self.rest, Kind::Message, &content);
    }
}

/// Sends a line of the shim's log to the host. Without room the line is dropped, and counted in a
/// later one, since a log must not block a shim.
fn send_line(level: u32, message: &str) {
    let Some(lines) = LINES.get() else { return };
    let mut lines = lock(lines);
    if lines.settle() {
        lines.put(level, message);
        lines.flush();
    } else {
        lines.dropped += 1;
    }
}

fn set_up(descriptors: Vec<OwnedFd>, memory_bytes: u64) -> io::Result<()> {
    let [board, signals, lines] = <[OwnedFd; 3]>::try_from(descriptors)
        .map_err(|all| io::Error::other(format!("expected 3 descriptors, got {}", all.len())))?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    let board = BoardPage::of(board)?;
    let signals = UnixStream::from(os::move_high(signals));
    let stream = UnixStream::from(os::move_high(lines));
    stream.set_nonblocking(true)?;
    let _ = LINES.set(Mutex::new(Lines { stream, rest: Vec::new(), dropped: 0 }));
    shardwright_shims::send_log_to(send_line);
    // Before the limits, as every thread allocates an alternative signal stack.
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || listen(signals))?;
    crash::install(board, memory_bytes)?;
    os::limit_self(memory_bytes)
}

/// Handles requests to stop. When the host is gone, kills this process and its children, regardless
/// of the shim's activity. The parent-death signal is not suitable, as it depends on the thread
/// that started the process, not on the host.
fn listen(mut signals: UnixStream) {
    let mut bytes = [0; SIGNAL_SIZE];
    loop {
        match signals.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            // The shim closed a descriptor that it does not own.
            Err(_) => leave(EXIT_DISCONNECTED),
        }
        match Signal::of(bytes) {
            None => {}
            Some(Signal::Compile { number }) => {
                shared().stopped_compilation.fetch_max(number, Ordering::SeqCst);
            }
            Some(Signal::Run { shard, number }) => {
                let canceller = {
                    let mut shards = lock(&shared().shards);
                    shards.get_mut(&shard).and_then(|state| {
                        state.stopped = state.stopped.max(number);
                        (state.running == number).then(|| state.canceller.clone())
                    })
                };
                if let Some(canceller) = canceller {
                    canceller.cancel();
                }
            }
        }
    }
    os::kill_group(std::process::id());
    leave(EXIT_DISCONNECTED)
}

fn open(library: &Library, linked: &[(&'static str, SwEntryFunction)]) -> Result<Shim, LoadError> {
    match library {
        Library::File { path, sha256 } => {
            Shim::of_library(&PathBuf::from(OsString::from_vec(path.clone())), sha256.as_deref())
        }
        Library::Linked(name) => match linked.iter().find(|(known, _)| known == name) {
            Some((name, entry)) => Shim::linked(name, *entry),
            None => Err(LoadError::not_found(Path::new(&format!("<linked {name}>")))),
        },
    }
}

/// One socket to the host.
struct Line {
    stream: UnixStream,
    decoder: Decoder,
    scratch: Box<[u8]>,
    descriptors: Vec<OwnedFd>,
}

impl Line {
    fn new(stream: UnixStream, limit: usize) -> Line {
        let scratch = vec![0; 64 << 10].into_boxed_slice();
        Line { stream, decoder: Decoder::new(limit), scratch, descriptors: Vec::new() }
    }

    /// Reads the next request and its descriptors, and unmaps the buffers to forget.
    fn request(&mut self) -> io::Result<(Request, Vec<OwnedFd>)> {
        let invalid = |reason| io::Error::new(io::ErrorKind::InvalidData, reason);
        loop {
            if let Some(frame) = self.decoder.next().map_err(|broken| invalid(broken.0))? {
                let request: Request = decode(&frame.content).map_err(|broken| invalid(broken.0))?;
                let mut buffers = lock(&shared().buffers);
                for buffer in &request.forget {
                    buffers.remove(buffer);
                }
                return Ok((request, std::mem::take(&mut self.descriptors)));
            }
            match os::receive(self.stream.as_fd(), &mut self.scratch, &mut self.descriptors) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                Ok(count) => self.decoder.feed(&self.scratch[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the next request, or `None` when the host closed the connection. Any other failure
    /// means that the shim broke the socket, and ends the process.
    fn next(&mut self) -> Option<(Request, Vec<OwnedFd>)> {
        match self.request() {
            Ok(request) => Some(request),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
            Err(error) => {
                say(&format!("the connection is lost: {error}"));
                leave(EXIT_DISCONNECTED)
            }
        }
    }

    /// Sends all bytes. A worker that cannot answer ends.
    fn send(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match os::send(self.stream.as_fd(), bytes, &[]) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    say(&format!("the connection is lost: {error}"));
                    leave(EXIT_DISCONNECTED);
                }
            }
        }
    }

    fn message<T: Serialize>(&mut self, kind: Kind, message: &T) {
        let bytes = encode(kind, message, ANSWER_LIMIT).or_else(|broken| {
            let reason = format!("the answer cannot be sent: {}", broken.0);
            encode(Kind::Fault, &Fault::Contract { function: None, reason }, ANSWER_LIMIT)
        });
        match bytes {
            Ok(bytes) => self.send(&bytes),
            Err(broken) => fail(&broken.0),
        }
    }

    fn answer<T: Serialize>(&mut self, result: Result<T, ShimError>) {
        if let Some(lines) = LINES.get() {
            lock(lines).settle();
        }
        match result {
            Ok(answer) => self.message(Kind::Answer, &answer),
            Err(error) => self.message(Kind::Fault, &Fault::of(error)),
        }
    }

    /// Reports the reason for rejecting the library, and ends the process.
    fn refuse(&mut self, reason: &str, message: String) -> ! {
        self.answer(Ok(Err::<(), Refusal>(Refusal { reason: reason.to_owned(), message })));
        leave(0)
    }
}

/// Answers on the control channel until the host closes the connection.
fn serve(mut line: Line, shim: &Shim) {
    let mut open: Option<ShimInstance> = None;
    while let Some((request, descriptors)) = line.next() {
        match (request.ask, &open) {
            (Ask::Open { name, options }, None) => {
                line.answer(shim.open(&name, &options).map(|instance| open = Some(instance)));
            }
            (ask, Some(instance)) => answer(&mut line, instance, ask, descriptors),
            (_, None) => line.answer::<()>(Err(ShimError::Argument("no instance is open".to_owned()))),
        }
    }
}

fn one(descriptors: Vec<OwnedFd>) -> Result<OwnedFd, ShimError> {
    let [fd] = <[OwnedFd; 1]>::try_from(descriptors)
        .map_err(|all| ShimError::Argument(format!("expected 1 descriptor, got {}", all.len())))?;
    Ok(fd)
}

fn answer(line: &mut Line, instance: &ShimInstance, ask: Ask, descriptors: Vec<OwnedFd>) {
    let shim = instance.functions();
    match ask {
        Ask::Nothing => line.answer(Ok(())),
        Ask::Chip { chip } => line.answer(shim.chip(&chip)),
        Ask::Devices { soc } => line.answer(shim.devices(soc.as_deref())),
        Ask::Limits { device } => line.answer(shim.limits(&device)),
        Ask::Flags { device } => line.answer(shim.flags(&device)),
        Ask::Check { device, entry } => line.answer(shim.check(&device, entry).map(|reported| {
            let reported =
                reported.into_iter().map(|(node, verdict)| (node, verdict.accepted, verdict.reason));
            reported.collect::<Vec<ReportedVerdict>>()
        })),
        Ask::Estimate { device, entry } => line.answer(shim.estimate(&device, entry, &|| false)),
        Ask::Compile { device, number } => {
            let order = one(descriptors)
                .and_then(|file| WorkOrder::received(File::from(file)).map_err(ShimError::work_order));
            let result = order.and_then(|order| {
                let mut forward = Forward { line, number, reports: 0 };
                shim.compile(&device, &order, &mut forward)
            });
            line.answer(result);
        }
        Ask::Compatibility { device, head } => line.answer(shim.compatibility(&device, &head)),
        Ask::Load { shard, device, options, offset, length } => {
            line.answer(shard::load(instance, shard, &device, &options, (offset, length), descriptors));
        }
        Ask::Map { buffer, offset, length, alignment } => {
            line.answer(shard::map(buffer, offset, length, alignment, descriptors));
        }
        Ask::Recover { device } => line.answer(shim.recover(&device)),
        Ask::Inspect { offset, length } => {
            line.answer(one(descriptors).and_then(|file| shim.inspect(&File::from(file), offset, length)));
        }
        Ask::Hello { .. } | Ask::Open { .. } | Ask::Run { .. } | Ask::Unload => {
            line.answer::<()>(Err(ShimError::Argument("the request is not valid here".to_owned())));
        }
    }
}

/// Forwards the output of a compilation.
struct Forward<'a> {
    line: &'a mut Line,
    number: u64,
    reports: usize,
}

impl Output for Forward<'_> {
    fn write(&mut self, bytes: &[u8]) -> bool {
        for piece in bytes.chunks(PIECE_LIMIT) {
            let mut frame = Vec::new();
            if put(&mut frame, Kind::Bytes, piece).is_err() {
                return false;
            }
            self.line.send(&frame);
        }
        !self.cancelled()
    }

    fn head(&mut self, bytes: &[u8]) {
        let mut frame = Vec::new();
        if put(&mut frame, Kind::Head, bytes).is_ok() {
            self.line.send(&frame);
        }
    }

    fn progress(&mut self, per_mille: u32, stage: &str) {
        self.line.message(Kind::Message, &Report::Progress { per_mille, stage: stage.to_owned() });
    }

    fn cancelled(&mut self) -> bool {
        shared().stopped_compilation.load(Ordering::SeqCst) >= self.number
    }

    fn flag(&mut self, name: String, verdict: FlagVerdict, evidence: String) {
        self.report(&Report::Flag { name, verdict, evidence });
    }

    fn placement(&mut self, placement: Placement) {
        self.report(&Report::Placement(placement));
    }

    fn made_for(&mut self, fact: String, value: String) {
        self.report(&Report::MadeFor { fact, value });
    }
}

impl Forward<'_> {
    /// Forwards one report, up to a limit.
    fn report(&mut self, report: &Report) {
        self.reports += 1;
        if self.reports <= REPORT_LIMIT {
            self.line.message(Kind::Message, report);
        }
    }
}

/// Creates the error for a call with a request to stop before it began.
fn cancelled(shim: &str, function: &'static str) -> ShimError {
    ShimError::Failed(Box::new(ShimFailure {
        shim: shim.to_owned(),
        function: function.into(),
        class: None,
        message: "cancelled".to_owned(),
        details: Vec::new(),
        vendor_code: 0,
        log_tail: None,
    }))
}
