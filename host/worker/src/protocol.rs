//! The messages between host and worker. They are typed, in frames with a stated and limited
//! length.
//!
//! ```text
//! offset  0  kind of frame              1   see `Kind`
//!         1  length of what follows     4   little-endian
//!         5  JSON, or bytes of an artefact or of a shim's head
//! ```
//!
//! The host sends one request at a time on a channel and reads frames until the answer. Descriptors
//! are attached to a request's first byte. Neither side trusts a length: only bytes that have
//! arrived are buffered, never more than the limit.

use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use shardwright_shims::{Chip, Placement, ShimError, ShimFailure, ShownEntry};
use shardwright_vocabulary::FlagVerdict;

/// Version of the messages, incremented with every change, although host and worker have one
/// release.
pub(crate) const PROTOCOL: u32 = 4;

/// Maximum length of a message to a worker in bytes. A check includes a whole entry graph. The
/// largest known one has 8 MiB.
pub(crate) const REQUEST_LIMIT: usize = 128 << 20;

/// Maximum length of a message from a worker in bytes. It fits verdicts on 100,000 nodes, each
/// refused with a sentence.
pub(crate) const ANSWER_LIMIT: usize = 16 << 20;

/// Maximum number of an artefact's bytes in one frame.
pub(crate) const PIECE_LIMIT: usize = 1 << 20;

/// Number of bytes before a frame's content.
const PREFIX: usize = 5;

/// Type of a frame's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A request, a report, or a line of a log.
    Message = 1,
    /// Bytes of an artefact.
    Bytes = 2,
    /// The head of a shim.
    Head = 3,
    /// The answer to a request.
    Answer = 4,
    /// The error instead of an answer.
    Fault = 5,
}

impl Kind {
    fn of(number: u8) -> Option<Kind> {
        let all = [Kind::Message, Kind::Bytes, Kind::Head, Kind::Answer, Kind::Fault];
        all.into_iter().find(|kind| *kind as u8 == number)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) content: Vec<u8>,
}

/// The reason why received bytes are not a valid message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) String);

/// Appends a frame to `out`.
pub(crate) fn put(out: &mut Vec<u8>, kind: Kind, content: &[u8]) -> Result<(), Broken> {
    let length = u32::try_from(content.len())
        .map_err(|_| Broken(format!("a message of {} bytes cannot be sent", content.len())))?;
    out.reserve(PREFIX + content.len());
    out.push(kind as u8);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(content);
    Ok(())
}

/// Encodes a message as a frame.
pub(crate) fn encode<T: Serialize>(kind: Kind, message: &T, limit: usize) -> Result<Vec<u8>, Broken> {
    let content = serde_json::to_vec(message).map_err(|error| Broken(error.to_string()))?;
    if content.len() > limit {
        return Err(Broken(format!("a message of {} bytes, expected at most {limit}", content.len())));
    }
    let mut out = Vec::new();
    put(&mut out, kind, &content)?;
    Ok(out)
}

/// Decodes the message in a frame.
pub(crate) fn decode<T: for<'de> Deserialize<'de>>(content: &[u8]) -> Result<T, Broken> {
    serde_json::from_slice(content).map_err(|error| Broken(format!("invalid message: {error}")))
}

/// Splits received bytes into frames.
#[derive(Debug)]
pub(crate) struct Decoder {
    limit: usize,
    buffer: Vec<u8>,
    /// Number of consumed bytes in the buffer.
    used: usize,
}

impl Decoder {
    /// Creates a decoder for messages of at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Decoder {
        Decoder { limit, buffer: Vec::new(), used: 0 }
    }

    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        if self.used > 0 {
            self.buffer.drain(..self.used);
            self.used = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next complete frame, or `None` if more bytes are needed. After an error the
    /// stream is unusable.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, Broken> {
        let rest = &self.buffer[self.used..];
        let Some((&[kind, a, b, c, d], rest)) = rest.split_first_chunk::<PREFIX>() else { return Ok(None) };
        let kind = Kind::of(kind).ok_or_else(|| Broken(format!("unknown frame kind {kind}")))?;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        let limit = match kind {
            Kind::Message | Kind::Answer | Kind::Fault => self.limit,
            Kind::Bytes => PIECE_LIMIT,
            Kind::Head => shardwright_shim_abi::raw::SW_HEAD_LIMIT as usize,
        };
        if length > limit {
            return Err(Broken(format!("a frame of {length} bytes, expected at most {limit}")));
        }
        let Some(content) = rest.get(..length) else { return Ok(None) };
        let frame = Frame { kind, content: content.to_vec() };
        self.used += PREFIX + length;
        if self.used == self.buffer.len() {
            self.buffer.clear();
            self.used = 0;
            // Long messages are rare, so release their memory.
            self.buffer.shrink_to(1 << 16);
        }
        Ok(Some(frame))
    }
}

/// The shim that a worker opens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Library {
    /// A file, or a bare name for the system's search.
    File {
        /// Bytes of the path.
        path: Vec<u8>,
        /// Hash of the file, if its manifest states one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sha256: Option<String>,
    },
    /// A shim that is linked into the worker program.
    Linked(String),
}

impl Library {
    pub(crate) fn file(path: &Path, sha256: Option<&str>) -> Library {
        let path = path.as_os_str().as_bytes().to_owned();
        Library::File { path, sha256: sha256.map(str::to_owned) }
    }
}

/// The reason why a worker rejected a library.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Refusal {
    /// A value of `LoadError::reason`.
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// A request of the host.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    /// Freed shared memory to unmap.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) forget: Vec<u64>,
    pub(crate) ask: Ask,
}

/// The kinds of request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Ask {
    /// The first request, with the descriptors of board, signals and log. The worker sets limits,
    /// opens the library, and answers with `Facts`, or a [`Refusal`].
    Hello {
        protocol: u32,
        release: String,
        library: Library,
        memory_bytes: u64,
    },
    /// Opens the instance, which all requests below need.
    Open {
        name: String,
        options: Vec<(String, String)>,
    },
    Chip {
        chip: Chip,
    },
    Devices {
        soc: Option<String>,
    },
    Limits {
        device: String,
    },
    Flags {
        device: String,
    },
    Check {
        device: String,
        entry: ShownEntry,
    },
    Estimate {
        device: String,
        entry: ShownEntry,
    },
    /// With the descriptor of the work order. `number` identifies the compilation in a
    /// cancellation.
    Compile {
        device: String,
        number: u64,
    },
    Compatibility {
        device: String,
        head: Vec<u8>,
    },
    /// With the descriptors of the artefact's file and of the shard's own channel for run requests.
    /// The artefact is `length` bytes at `offset` of the file.
    Load {
        shard: u64,
        device: String,
        options: Vec<(String, String)>,
        offset: u64,
        length: u64,
    },
    /// With the descriptor of shared memory. The buffer is `length` bytes at `offset` of it.
    Map {
        buffer: u64,
        offset: u64,
        length: u64,
        alignment: u64,
    },
    /// Only does what every request does, such as unmapping freed memory.
    Nothing,
    Recover {
        device: String,
    },
    /// With the descriptor of the file.
    Inspect {
        offset: u64,
        length: u64,
    },
    /// On a shard's channel. `number` identifies the run in a cancellation.
    Run {
        number: u64,
        entry: u64,
        rows: u64,
        bounds: Vec<Shown>,
        deadline_nanoseconds: Option<u64>,
        largest_logits: Option<NonZeroUsize>,
    },
    /// The last request on a shard's channel.
    Unload,
}

/// A bound buffer: the id of a mapped buffer, an offset, and the number of changes by the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shown(pub(crate) u64, pub(crate) u64, pub(crate) u64);

/// A report on a compilation, sent before the answer or fault.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Report {
    Progress { per_mille: u32, stage: String },
    Flag { name: String, verdict: FlagVerdict, evidence: String },
    Placement(Placement),
    MadeFor { fact: String, value: String },
}

/// Number of the node, whether it is accepted, and the reason if not.
pub(crate) type ReportedVerdict = (u64, bool, String);

/// The failure of a request while the worker stayed alive.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Fault {
    /// The shim reported a failure.
    Failed(ShimFailure),
    Missing {
        function: String,
    },
    /// The function is missing if the worker cannot answer.
    Contract {
        function: Option<String>,
        reason: String,
    },
    Argument(String),
}

impl Fault {
    /// Extracts the part of an error in the worker that is sent.
    pub(crate) fn of(error: ShimError) -> Fault {
        match error {
            ShimError::Failed(failure) => Fault::Failed(*failure),
            ShimError::Missing { function, .. } => Fault::Missing { function: function.into() },
            ShimError::Contract { function, reason, .. } => {
                Fault::Contract { function: Some(function.into()), reason }
            }
            other => Fault::Argument(other.to_string()),
        }
    }

    /// Converts back to an error. Output printed meanwhile becomes the log of a failure without
    /// one.
    pub(crate) fn into_error(
        self,
        shim: &str,
        asked: &'static str,
        printed: impl FnOnce() -> Option<String>,
    ) -> ShimError {
        let shim = shim.to_owned();
        match self {
            Fault::Failed(failure) => {
                let log_tail = failure.log_tail.or_else(printed);
                ShimError::failed(ShimFailure { shim, log_tail, ..failure })
            }
            Fault::Missing { function } => ShimError::Missing { shim, function: function.into() },
            Fault::Contract { function, reason } => {
                let function = function.map_or(asked.into(), Into::into);
                ShimError::Contract { shim, function, reason }
            }
            Fault::Argument(reason) => ShimError::Argument(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};
    use shardwright_shims::LoadReport;
    use shardwright_test_checkpoints::cases;
    use shardwright_vocabulary::ErrorClass;

    use super::*;

    fn messages() -> Vec<Vec<u8>> {
        let request = |ask| Request { forget: vec![7], ask };
        let requests = [
            Ask::Nothing,
            Ask::Chip {
                chip: Chip {
                    name: "mt6989".to_owned(),
                    aliases: vec!["Dimensity 9300".to_owned()],
                    facts: [("platform".to_owned(), "mt6989".to_owned())].into(),
                    shim: None,
                },
            },
            Ask::Devices { soc: Some("mt6989".to_owned()) },
            Ask::Compatibility { device: "npu".to_owned(), head: vec![0, 255] },
            Ask::Run {
                number: 3,
                entry: 0,
                rows: 4,
                bounds: vec![Shown(1, 0, 9)],
                deadline_nanoseconds: Some(u64::MAX),
                largest_logits: NonZeroUsize::new(40),
            },
        ];
        let report: LoadReport = serde_json::from_value(serde_json::json!({
            "entries": [{"index": 0, "name": "encode_4", "rows": 4, "count": 1, "bindings": [{
                "index": 0, "name": "x", "direction": 1, "role": 16, "dtype": 1, "update": 0,
                "shape": [4, 1], "strides": [1, 1], "bytes": 16, "alignment": 16, "memory_kinds": 3,
                "scale_bits": f64::to_bits(0.1), "zero_point": -1,
            }]}],
            "flags": [["power", FlagVerdict::Inert, "ten bits"]],
            "cancels": true,
        }))
        .unwrap();
        let verdicts: [ReportedVerdict; 2] = [(0, true, String::new()), (1, false, "no".to_owned())];
        let fault = Fault::Failed(ShimFailure {
            shim: "npu".to_owned(),
            function: "compile".into(),
            class: Some(ErrorClass::Unmappable),
            message: "no \u{0} plan".to_owned(),
            details: vec![("limit".to_owned(), "ops".to_owned())],
            vendor_code: -3,
            log_tail: None,
        });
        let reports = [
            Report::Progress { per_mille: 500, stage: "half".to_owned() },
            Report::MadeFor { fact: "platform".to_owned(), value: "mt6991".to_owned() },
        ];
        let requests =
            requests.into_iter().map(|ask| encode(Kind::Message, &request(ask), REQUEST_LIMIT).unwrap());
        let reports = reports.iter().map(|report| encode(Kind::Message, report, ANSWER_LIMIT).unwrap());
        let answers = [
            encode(Kind::Answer, &verdicts, ANSWER_LIMIT).unwrap(),
            encode(Kind::Answer, &report, ANSWER_LIMIT).unwrap(),
            encode(Kind::Fault, &fault, ANSWER_LIMIT).unwrap(),
        ];
        requests.chain(reports).chain(answers).collect()
    }

    /// Returns the number of frames a stream yields before it ends or breaks. Reading must be safe
    /// for any bytes.
    fn read_all(stream: &[u8], piece: usize, limit: usize) -> (usize, Option<Broken>) {
        let mut decoder = Decoder::new(limit);
        let mut frames = 0;
        for bytes in stream.chunks(piece.max(1)) {
            decoder.feed(bytes);
            assert!(decoder.buffer.len() <= stream.len());
            loop {
                match decoder.next() {
                    Ok(Some(frame)) => {
                        frames += 1;
                        assert!(frame.content.len() <= limit.max(PIECE_LIMIT));
                        let _ = decode::<Request>(&frame.content);
                        let _ = decode::<Report>(&frame.content);
                        let _ = decode::<LoadReport>(&frame.content);
                        let _ = decode::<Fault>(&frame.content);
                    }
                    Ok(None) => break,
                    Err(broken) => return (frames, Some(broken)),
                }
            }
        }
        (frames, None)
    }

    #[test]
    fn messages_arrive_as_they_were_sent_however_they_are_cut() {
        let messages = messages();
        let stream = messages.concat();
        for piece in [1, 2, 5, 17, stream.len()] {
            assert_eq!(read_all(&stream, piece, ANSWER_LIMIT), (messages.len(), None));
        }
        fn again<T: Serialize + for<'de> Deserialize<'de>>(kind: u8, content: &[u8]) -> Option<Vec<u8>> {
            encode(Kind::of(kind)?, &decode::<T>(content).ok()?, REQUEST_LIMIT).ok()
        }
        for message in &messages {
            let (kind, content) = (message[0], &message[PREFIX..]);
            let reported = again::<Request>(kind, content).or_else(|| again::<Report>(kind, content));
            let reported = reported.or_else(|| again::<LoadReport>(kind, content));
            let reported = reported.or_else(|| again::<Vec<ReportedVerdict>>(kind, content));
            let reported = reported.or_else(|| again::<Fault>(kind, content));
            assert_eq!(&reported.unwrap(), message);
        }
    }

    #[test]
    fn a_length_beyond_the_cap_is_refused_before_anything_arrives() {
        for (kind, length, words) in [
            (1, 17_u32, "a frame of 17 bytes, expected at most 16"),
            (2, u32::MAX, "a frame of 4294967295 bytes"),
            (3, 65_537, "at most 65536"),
            (0, 0, "unknown frame kind 0"),
            (9, 0, "unknown frame kind 9"),
        ] {
            let mut stream = vec![kind];
            stream.extend(length.to_le_bytes());
            let (_, broken) = read_all(&stream, 1, 16);
            let broken = broken.expect(words);
            assert!(broken.0.contains(words), "{broken:?}");
        }
        assert!(encode(Kind::Answer, &"longer", 3).is_err());
    }

    #[test]
    fn whatever_arrives_neither_panics_nor_grows() {
        let messages = messages();
        let mutated = (
            0..messages.len(),
            prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4_u8), 1..6),
            1..64_usize,
        );
        let mut runner = TestRunner::new(Config {
            cases: cases(400, 4000),
            failure_persistence: None,
            ..Config::default()
        });
        runner
            .run(&mutated, |(which, changes, piece)| {
                let mut bytes = messages[which].clone();
                for (place, value, how) in changes {
                    let place = place.index(bytes.len());
                    match how {
                        0 => bytes[place] = value,
                        1 => bytes[place] ^= 1 << (value % 8),
                        2 => bytes.insert(place, value),
                        _ => bytes.truncate(place.max(1)),
                    }
                }
                read_all(&bytes, piece, ANSWER_LIMIT);
                Ok(())
            })
            .unwrap();
        runner
            .run(&(prop::collection::vec(any::<u8>(), 0..512), 1..64_usize), |(bytes, piece)| {
                read_all(&bytes, piece, 64);
                Ok(())
            })
            .unwrap();
        // The parser limits nesting, so it cannot overflow the stack.
        let mut deep = Vec::new();
        put(&mut deep, Kind::Message, &[b'['; 1 << 16]).unwrap();
        assert_eq!(read_all(&deep, 999, ANSWER_LIMIT), (1, None));
    }
}
