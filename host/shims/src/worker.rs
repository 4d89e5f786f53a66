//! The program `shardwright-worker`: opens one shim and does in a process of its own what the host
//! asks over its standard input.
//!
//! The host is trusted; the shim is not. So the process limits itself before it opens the library,
//! tells what it knows of its own crash, and ends with the host.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use shardwright_shim_abi::raw::{SW_LOG_WARNING, SwEntryFunction};
use shardwright_vocabulary::FlagVerdict;

use crate::artefact::Artefact;
use crate::board::BoardPage;
use crate::compile::{Output, Placement, REPORT_LIMIT};
use crate::error::{Failure, LoadError, ShimError};
use crate::instance::Answers;
use crate::isolated::protocol::{
    ANSWER_LIMIT, Answer, Ask, Decoder, Fault, Kind, Library, Message, PIECE_LIMIT, PROTOCOL, REQUEST_LIMIT,
    Request, decode, encode, planned_weights, put,
};
use crate::isolated::{LINE_LIMIT, Origin, SIGNAL_SIZE, Signal};
use crate::layout::LayoutCheck;
use crate::local::{Local, LocalCanceller};
use crate::shim::{Shim, lock};
use crate::work_order::WorkOrder;
use crate::{library, os};

mod crash;
mod shard;

/// Started by hand.
const EXIT_USAGE: i32 = 64;
/// The host is gone, or its socket was closed under the worker.
const EXIT_DISCONNECTED: i32 = 70;
/// It could not set itself up; the reason is printed.
const EXIT_SETUP: i32 = 71;
/// It panicked; the panic is printed.
const EXIT_PANIC: i32 = 101;

/// Different words for the part of a weight that are kept; checkpoints have a few dozen.
const PART_LIMIT: usize = 1 << 10;

/// Runs the worker; what the program `shardwright-worker` is. `linked` are shims that are part of
/// the program, by the name they have in the host's registry.
pub fn worker_main(linked: &[(&'static str, SwEntryFunction)]) -> ! {
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("shardwright-worker: {panic}");
        leave(EXIT_PANIC);
    }));
    let control = io::stdin().as_fd().try_clone_to_owned().map(os::move_high);
    let control = control.unwrap_or_else(|error| fail(&format!("no standard input: {error}")));
    let mut line = Line::new(UnixStream::from(control), REQUEST_LIMIT);
    let (first, descriptors) = match line.request() {
        Ok(first) => first,
        Err(error) => {
            eprintln!(
                "shardwright-worker is started by Shardwright, with a socket as its standard input ({error}); \
                 there is nothing to be done with it by hand"
            );
            leave(EXIT_USAGE);
        }
    };
    let Ask::Hello { protocol, release, library, memory_bytes } = first.ask else {
        fail("the host did not say hello");
    };
    let own = env!("CARGO_PKG_VERSION");
    if (protocol, release.as_str()) != (PROTOCOL, own) {
        let message = format!(
            "this worker is of release {own}, protocol {PROTOCOL}; the host of {release}, {protocol}"
        );
        line.answer(Err(Fault::Load { reason: "too-old".to_owned(), message }));
        leave(0);
    }
    set_up(descriptors, memory_bytes).unwrap_or_else(|error| fail(&format!("setting up: {error}")));
    let shim = match open(&library, linked) {
        Ok(shim) => shim,
        Err(error) => {
            line.answer(Err(Fault::of_load(&error)));
            leave(0);
        }
    };
    line.answer(Ok(Answer::Facts(shim.facts().clone())));
    serve(line, &shim);
    // The instance is closed; handlers of the vendor's have no business after that.
    leave(0)
}

/// Ends the process and what it started, without handlers.
fn leave(code: i32) -> ! {
    // SAFETY: no code of this process runs after it.
    unsafe { libc::_exit(code) }
}

fn fail(reason: &str) -> ! {
    eprintln!("shardwright-worker: {reason}");
    leave(EXIT_SETUP)
}

/// What all threads of the worker know.
struct Shared {
    /// Number of the last compilation that was asked to stop.
    stopped_compilation: AtomicU64,
    shards: Mutex<HashMap<u64, ShardState>>,
    buffers: Mutex<HashMap<u64, Arc<shard::Mapped>>>,
}

/// What a request to stop needs to know of a shard.
struct ShardState {
    canceller: LocalCanceller,
    /// Number of the run in progress.
    running: u64,
    /// Number of the last run that was asked to stop.
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

/// The way of log lines to the host.
struct Lines {
    stream: UnixStream,
    /// What did not fit when it was last tried; lines are not cut.
    rest: Vec<u8>,
    dropped: u64,
}

static LINES: OnceLock<Mutex<Lines>> = OnceLock::new();

impl Lines {
    /// Whether all that was put so far is sent.
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

    /// Sends what is left, and how many lines were lost. False when there is no room still.
    fn settle(&mut self) -> bool {
        let flushed = self.flush();
        if flushed && self.dropped > 0 {
            let dropped = std::mem::take(&mut self.dropped);
            self.put(SW_LOG_WARNING, &format!("{dropped} lines were logged too fast and are lost"));
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

/// Sends a line of the shim's log to the host. One that there is no room for is dropped, and that
/// is said when there is: a log must not stop a shim.
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
        .map_err(|given| io::Error::other(format!("{} descriptors", given.len())))?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    let board = BoardPage::of(board)?;
    let signals = UnixStream::from(os::move_high(signals));
    let stream = UnixStream::from(os::move_high(lines));
    stream.set_nonblocking(true)?;
    let _ = LINES.set(Mutex::new(Lines { stream, rest: Vec::new(), dropped: 0 }));
    library::send_log_to(send_line);
    // Before the limits: an alternative stack for signals is made with every thread.
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || listen(signals))?;
    crash::install(board, memory_bytes)?;
    os::limit_self(memory_bytes)
}

/// Takes requests to stop. When the host is gone this process and all it started are killed,
/// whatever the shim is doing: unlike the parent-death signal, which follows the thread that
/// started a process, this follows the host.
fn listen(mut signals: UnixStream) {
    let mut bytes = [0; SIGNAL_SIZE];
    loop {
        match signals.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            // The shim closed what is not its own.
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
            let path = PathBuf::from(OsString::from_vec(path.clone()));
            let (table, layout) = library::open(&path, sha256.as_deref())?;
            Shim::new(path, None, table, layout, Origin::Library)
        }
        Library::Linked(name) => {
            let path = PathBuf::from(format!("<linked {name}>"));
            let Some((name, entry)) = linked.iter().find(|(known, _)| known == name) else {
                return Err(LoadError::NotFound { path });
            };
            let table = library::enter(&path, *entry)?;
            Shim::new(path, None, table, LayoutCheck::Linked, Origin::Linked(name))
        }
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

    /// The next request and its descriptors. What was to be forgotten is.
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

    /// The next request; none when the host hung up. A socket that fails otherwise is the shim's
    /// doing, and the end.
    fn next(&mut self) -> Option<(Request, Vec<OwnedFd>)> {
        match self.request() {
            Ok(request) => Some(request),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
            Err(error) => {
                eprintln!("shardwright-worker: the connection is lost: {error}");
                leave(EXIT_DISCONNECTED)
            }
        }
    }

    /// Sends all of it. A worker that cannot answer has nothing left to do.
    fn send(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match os::send(self.stream.as_fd(), bytes, &[]) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    eprintln!("shardwright-worker: the connection is lost: {error}");
                    leave(EXIT_DISCONNECTED);
                }
            }
        }
    }

    fn message(&mut self, message: &Message) {
        let bytes = encode(message, ANSWER_LIMIT).or_else(|broken| {
            let reason = format!("the answer cannot be sent: {}", broken.0);
            encode(&Message::Fault(Fault::Contract { function: String::new(), reason }), ANSWER_LIMIT)
        });
        match bytes {
            Ok(bytes) => self.send(&bytes),
            Err(broken) => fail(&broken.0),
        }
    }

    fn answer(&mut self, result: Result<Answer, Fault>) {
        if let Some(lines) = LINES.get() {
            lock(lines).settle();
        }
        self.message(&match result {
            Ok(answer) => Message::Answer(answer),
            Err(fault) => Message::Fault(fault),
        });
    }
}

/// Answers on the control channel until the host hangs up.
fn serve(mut line: Line, shim: &Shim) {
    let mut instance: Option<Arc<Local>> = None;
    let mut parts = BTreeSet::new();
    while let Some((request, descriptors)) = line.next() {
        let result = answer(&mut line, shim, &mut instance, &mut parts, request.ask, descriptors);
        line.answer(result.map_err(Fault::of));
    }
}

/// The word, kept for ever; more different ones than there can be are one.
fn part_word(parts: &mut BTreeSet<&'static str>, word: &str) -> &'static str {
    if let Some(known) = parts.get(word) {
        return known;
    }
    if parts.len() >= PART_LIMIT {
        return "other";
    }
    let kept: &'static str = Box::leak(word.to_owned().into_boxed_str());
    parts.insert(kept);
    kept
}

fn one(descriptors: Vec<OwnedFd>) -> Result<OwnedFd, ShimError> {
    let [fd] = <[OwnedFd; 1]>::try_from(descriptors)
        .map_err(|given| ShimError::Argument(format!("{} descriptors, 1 expected", given.len())))?;
    Ok(fd)
}

fn answer(
    line: &mut Line,
    shim: &Shim,
    instance: &mut Option<Arc<Local>>,
    parts: &mut BTreeSet<&'static str>,
    ask: Ask,
    descriptors: Vec<OwnedFd>,
) -> Result<Answer, ShimError> {
    let local = match (&ask, &*instance) {
        (Ask::Open { name, options }, None) => {
            *instance = Some(Local::open(shim, name, options)?);
            return Ok(Answer::Done);
        }
        (_, Some(local)) => local,
        (_, None) => return Err(ShimError::Argument("no instance is open".to_owned())),
    };
    let parts = std::cell::RefCell::new(parts);
    let word = |word: &str| part_word(&mut parts.borrow_mut(), word);
    Ok(match ask {
        Ask::Nothing => Answer::Done,
        Ask::Chip { chip } => {
            local.chip(&chip)?;
            Answer::Done
        }
        Ask::Devices { soc } => Answer::Devices(local.devices(soc.as_deref())?),
        Ask::Limits { device } => Answer::Limits(local.limits(&device)?),
        Ask::Flags { device } => Answer::Flags(local.flags(&device)?),
        Ask::Check { device, entry, weights } => {
            let told = local.check(&device, &entry, &planned_weights(weights, word))?;
            let told = told.into_iter().map(|(node, verdict)| (node, verdict.accepted, verdict.reason));
            Answer::Verdicts(told.collect())
        }
        Ask::Estimate { device, entry, weights } => {
            let weights = planned_weights(weights, word);
            Answer::Estimates(local.estimate(&device, &entry, &weights, &|| false)?)
        }
        Ask::Compile { device, number } => {
            let order = WorkOrder::received(File::from(one(descriptors)?))?;
            let mut forward = Forward { line, number, reports: 0 };
            local.compile(&device, &order, &mut forward)?;
            Answer::Done
        }
        Ask::Compatibility { device, head } => Answer::Compatibilities(local.compatibility(&device, &head)?),
        Ask::Load { shard, device, options } => {
            let [artefact, channel] = <[OwnedFd; 2]>::try_from(descriptors)
                .map_err(|given| ShimError::Argument(format!("{} descriptors, 2 expected", given.len())))?;
            let artefact = Artefact::received(File::from(artefact))?;
            let channel = os::move_high(channel);
            shard::load(local, shard, &device, &artefact, &options, UnixStream::from(channel))?
        }
        Ask::Map { buffer, offset, length, alignment } => {
            shard::map(buffer, offset, length, alignment, descriptors)?
        }
        Ask::Recover { device } => {
            local.recover(&device)?;
            Answer::Done
        }
        Ask::Inspect { offset, length } => {
            Answer::Inspections(local.inspect(&File::from(one(descriptors)?), offset, length)?)
        }
        Ask::Hello { .. } | Ask::Open { .. } | Ask::Run { .. } | Ask::Unload => {
            return Err(ShimError::Argument("not asked here, or not twice".to_owned()));
        }
    })
}

/// Passes the output of a compilation on.
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
        self.line.message(&Message::Progress { per_mille, stage: stage.to_owned() });
    }

    fn cancelled(&mut self) -> bool {
        shared().stopped_compilation.load(Ordering::SeqCst) >= self.number
    }

    fn flag(&mut self, name: String, verdict: FlagVerdict, evidence: String) {
        self.reports += 1;
        if self.reports <= REPORT_LIMIT {
            self.line.message(&Message::Flag { name, verdict, evidence });
        }
    }

    fn placement(&mut self, placement: Placement) {
        self.reports += 1;
        if self.reports <= REPORT_LIMIT {
            self.line.message(&Message::Placement(placement));
        }
    }

    fn made_for(&mut self, fact: String, value: String) {
        self.reports += 1;
        if self.reports <= REPORT_LIMIT {
            self.line.message(&Message::MadeFor { fact, value });
        }
    }
}

/// A call that was asked to stop before it began.
fn cancelled(local: &Local, function: &'static str) -> ShimError {
    ShimError::Failed(Box::new(Failure {
        shim: local.name().to_owned(),
        function,
        class: None,
        message: "cancelled".to_owned(),
        details: Vec::new(),
        vendor_code: 0,
        log_tail: None,
    }))
}
