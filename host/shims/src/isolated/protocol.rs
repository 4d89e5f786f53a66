//! What host and worker say to each other: typed messages in frames of a stated, capped length.
//!
//! ```text
//! offset  0  kind of frame              1   1 message, 2 bytes of an artefact, 3 a shim's head
//!         1  length of what follows     4   little-endian
//!         5  a JSON message, or the bytes
//! ```
//!
//! The host asks one thing at a time on a channel and reads frames until the answer; descriptors
//! travel with a request's first byte. Neither side trusts a length: what is buffered is what
//! arrived, and never more than the cap.

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};
use shardwright_graph::{EntryGraph, Weight, WeightData, WeightId};
use shardwright_vocabulary::{Compatibility, Device, ErrorClass, Estimate, FlagSchema, FlagVerdict, Limit};

use crate::chip::Chip;
use crate::compile::Placement;
use crate::error::{Failure, LoadError, ShimError};
use crate::loaded::{ToldEntry, ToldFlag};
use crate::shim::Facts;
use crate::work_order::OrderWeight;

/// Host and worker are of one release; this grows with every change of the messages all the same.
pub(crate) const PROTOCOL: u32 = 3;

/// Longest message to a worker. A check shows a whole entry graph; the largest known has 8 MiB.
pub(crate) const REQUEST_LIMIT: usize = 128 << 20;

/// Longest message from a worker. Verdicts on 100,000 nodes, each refused with a sentence, take
/// less.
pub(crate) const ANSWER_LIMIT: usize = 16 << 20;

/// Longest piece of an artefact in one frame.
pub(crate) const PIECE_LIMIT: usize = 1 << 20;

/// Bytes before a frame's content.
const PREFIX: usize = 5;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Message,
    Bytes,
    Head,
}

impl Kind {
    const fn number(self) -> u8 {
        match self {
            Kind::Message => 1,
            Kind::Bytes => 2,
            Kind::Head => 3,
        }
    }

    fn of(number: u8) -> Option<Kind> {
        [Kind::Message, Kind::Bytes, Kind::Head].into_iter().find(|kind| kind.number() == number)
    }
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) content: Vec<u8>,
}

/// Why what the other side sent is not a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) String);

/// Adds a frame to `out`.
pub(crate) fn put(out: &mut Vec<u8>, kind: Kind, content: &[u8]) -> Result<(), Broken> {
    let length = u32::try_from(content.len())
        .map_err(|_| Broken(format!("a message of {} bytes cannot be sent", content.len())))?;
    out.reserve(PREFIX + content.len());
    out.push(kind.number());
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(content);
    Ok(())
}

/// A message as a frame.
pub(crate) fn encode<T: Serialize>(message: &T, limit: usize) -> Result<Vec<u8>, Broken> {
    let content = serde_json::to_vec(message).map_err(|error| Broken(error.to_string()))?;
    if content.len() > limit {
        return Err(Broken(format!("a message of {} bytes, at most {limit} are read", content.len())));
    }
    let mut out = Vec::new();
    put(&mut out, Kind::Message, &content)?;
    Ok(out)
}

/// The message in a frame.
pub(crate) fn decode<T: for<'de> Deserialize<'de>>(content: &[u8]) -> Result<T, Broken> {
    serde_json::from_slice(content).map_err(|error| Broken(format!("a message that is none: {error}")))
}

/// Cuts what arrives into frames.
#[derive(Debug)]
pub(crate) struct Decoder {
    limit: usize,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were handed out.
    used: usize,
}

impl Decoder {
    /// Messages have at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Decoder {
        Decoder { limit, buffer: Vec::new(), used: 0 }
    }

    /// Takes what arrived.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        if self.used > 0 {
            self.buffer.drain(..self.used);
            self.used = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame; none when more must arrive. After an error the stream is of no use.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, Broken> {
        let rest = &self.buffer[self.used..];
        let Some((&[kind, a, b, c, d], rest)) = rest.split_first_chunk::<PREFIX>() else { return Ok(None) };
        let kind = Kind::of(kind).ok_or_else(|| Broken(format!("a frame of kind {kind}")))?;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        let limit = match kind {
            Kind::Message => self.limit,
            Kind::Bytes => PIECE_LIMIT,
            Kind::Head => shardwright_shim_abi::raw::SW_HEAD_LIMIT as usize,
        };
        if length > limit {
            return Err(Broken(format!("a frame of {length} bytes, at most {limit} are read")));
        }
        let Some(content) = rest.get(..length) else { return Ok(None) };
        let frame = Frame { kind, content: content.to_vec() };
        self.used += PREFIX + length;
        if self.used == self.buffer.len() {
            self.buffer.clear();
            self.used = 0;
            // A long message is the exception; its memory is not kept.
            self.buffer.shrink_to(1 << 16);
        }
        Ok(Some(frame))
    }
}

/// What a worker is to open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Library {
    /// A file, or a bare name for the system's search.
    File {
        /// Bytes of the path.
        path: Vec<u8>,
        /// Of the file, where its manifest states one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sha256: Option<String>,
    },
    /// A shim that is part of the worker program.
    Linked(String),
}

/// What the host asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    /// Shared memories that are gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) forget: Vec<u64>,
    pub(crate) ask: Ask,
}

/// One thing to ask.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Ask {
    /// First, with the descriptors of board, signals and log: sets limits, opens the library,
    /// answers [`Answer::Facts`].
    Hello {
        protocol: u32,
        release: String,
        library: Library,
        memory_bytes: u64,
    },
    /// Opens the instance; everything below needs one.
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
        entry: Box<EntryGraph>,
        weights: Vec<OrderWeight>,
    },
    Estimate {
        device: String,
        entry: Box<EntryGraph>,
        weights: Vec<OrderWeight>,
    },
    /// With the descriptor of the work order. `number` is what a cancel names.
    Compile {
        device: String,
        number: u64,
    },
    Compatibility {
        device: String,
        head: Vec<u8>,
    },
    /// With the descriptors of the artefact and of the shard's own channel. Runs of it are asked
    /// there.
    Load {
        shard: u64,
        device: String,
        options: Vec<(String, String)>,
    },
    /// With the descriptor of a shared memory: `length` bytes at `offset` of it are the buffer.
    Map {
        buffer: u64,
        offset: u64,
        length: u64,
        alignment: u64,
    },
    /// Does nothing but what every request does.
    Nothing,
    Recover {
        device: String,
    },
    /// With the descriptor of the file.
    Inspect {
        offset: u64,
        length: u64,
    },
    /// On a shard's channel. `number` is what a cancel names.
    Run {
        number: u64,
        entry: u64,
        rows: u64,
        bounds: Vec<Shown>,
        deadline_nanoseconds: Option<u64>,
        largest_logits: Option<NonZeroUsize>,
    },
    /// On a shard's channel, last.
    Unload,
}

/// What is bound: a mapped buffer from an offset, with the number of times the host changed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shown(pub(crate) u64, pub(crate) u64, pub(crate) u64);

/// What a worker sends: any number of reports, then an answer or a fault.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Message {
    Progress { per_mille: u32, stage: String },
    Flag { name: String, verdict: FlagVerdict, evidence: String },
    Placement(Placement),
    MadeFor { fact: String, value: String },
    Answer(Answer),
    Fault(Fault),
}

/// How a question is answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Answer {
    Facts(Facts),
    Devices(Vec<Device>),
    Limits(Vec<Limit>),
    Flags(Vec<FlagSchema>),
    /// Node, whether it is taken, why not.
    Verdicts(Vec<(u64, bool, String)>),
    Estimates(Vec<Estimate>),
    Compatibilities(Vec<Compatibility>),
    /// Format and document.
    Inspections(Vec<(String, String)>),
    Loaded {
        entries: Vec<ToldEntry>,
        flags: Vec<ToldFlag>,
        cancels: bool,
    },
    /// Where the memory lies in the worker.
    Mapped {
        address: u64,
    },
    Done,
}

/// How a question failed without the worker dying of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Fault {
    /// The shim said so.
    Failed {
        function: String,
        class: Option<ErrorClass>,
        message: String,
        details: Vec<(String, String)>,
        vendor_code: i64,
        log_tail: Option<String>,
    },
    Missing {
        function: String,
    },
    Contract {
        function: String,
        reason: String,
    },
    Argument {
        reason: String,
    },
    /// The library was not let in; a word of [`LoadError::reason`].
    Load {
        reason: String,
        message: String,
    },
}

/// Functions of the contract, as errors name them.
const FUNCTIONS: [&str; 24] = [
    "describe",
    "open",
    "devices",
    "limits",
    "flags",
    "check",
    "estimate",
    "compile",
    "compatibility",
    "load",
    "unload",
    "entries",
    "bindings",
    "run",
    "cancel",
    "buffer_allocate",
    "buffer_import",
    "buffer_map",
    "buffer_sync",
    "recover",
    "inspect",
    "facts",
    "chip",
    "flag_verdicts",
];

impl Fault {
    /// What crosses of an error in the worker.
    pub(crate) fn of(error: ShimError) -> Fault {
        match error {
            ShimError::Failed(failure) => Fault::Failed {
                function: failure.function.to_owned(),
                class: failure.class,
                message: failure.message,
                details: failure.details,
                vendor_code: failure.vendor_code,
                log_tail: failure.log_tail,
            },
            ShimError::Missing { function, .. } => Fault::Missing { function: function.to_owned() },
            ShimError::Contract { function, reason, .. } => {
                Fault::Contract { function: function.to_owned(), reason }
            }
            ShimError::Load(error) => Fault::of_load(&error),
            other => Fault::Argument { reason: other.to_string() },
        }
    }

    pub(crate) fn of_load(error: &LoadError) -> Fault {
        Fault::Load { reason: error.reason().to_owned(), message: error.to_string() }
    }

    /// The error it stands for. `asked` is named where the worker named a function there is not;
    /// what was printed meanwhile is the log of a shim that gave none.
    pub(crate) fn into_error(
        self,
        shim: &str,
        asked: &'static str,
        printed: impl FnOnce() -> Option<String>,
    ) -> ShimError {
        let shim = shim.to_owned();
        let known = |name: &str| FUNCTIONS.into_iter().find(|known| *known == name).unwrap_or(asked);
        match self {
            Fault::Failed { function, class, message, details, vendor_code, log_tail } => {
                let function = known(&function);
                let log_tail = log_tail.or_else(printed);
                ShimError::failed(Failure { shim, function, class, message, details, vendor_code, log_tail })
            }
            Fault::Missing { function } => ShimError::Missing { shim, function: known(&function) },
            Fault::Contract { function, reason } => {
                ShimError::Contract { shim, function: known(&function), reason }
            }
            Fault::Argument { reason } => ShimError::Argument(reason),
            Fault::Load { reason, message } => {
                ShimError::Argument(format!("its library is refused ({reason}): {message}"))
            }
        }
    }
}

/// An entry and the weights it uses, renumbered, without their bytes: what a check looks at.
pub(crate) fn shown_entry(entry: &EntryGraph, weights: &[Weight]) -> (Box<EntryGraph>, Vec<OrderWeight>) {
    let mut entry = Box::new(entry.clone());
    let mut renumbered = std::collections::BTreeMap::new();
    let mut shown = Vec::new();
    for tensor in &mut entry.tensors {
        let Some(id) = tensor.weight else { continue };
        // One that is not there stays not there, and is refused where the tables are made.
        let Some(weight) = weights.get(id.0 as usize) else {
            tensor.weight = Some(WeightId(u32::MAX));
            continue;
        };
        let next = WeightId(shown.len() as u32);
        let number = *renumbered.entry(id).or_insert(next);
        if number == next {
            shown.push(OrderWeight::of(weight));
        }
        tensor.weight = Some(number);
    }
    (entry, shown)
}

/// The bytes of an entry graph and the weights it uses, without theirs: equal where a shim is shown
/// the same by a check or an estimate.
pub fn entry_identity(entry: &EntryGraph, weights: &[Weight]) -> Result<Vec<u8>, ShimError> {
    let shown = shown_entry(entry, weights);
    serde_json::to_vec(&shown).map_err(|error| ShimError::Argument(format!("the entry as JSON: {error}")))
}

/// The weights of [`shown_entry`], planned: they have a length and no bytes.
pub(crate) fn planned_weights(shown: Vec<OrderWeight>, part: impl Fn(&str) -> &'static str) -> Vec<Weight> {
    let planned = |length: u64| WeightData::planned(usize::try_from(length).unwrap_or(usize::MAX));
    shown
        .into_iter()
        .map(|weight| Weight {
            part: part(&weight.part),
            dtype: weight.dtype,
            data: planned(weight.length),
            quantisation: weight
                .quantisation()
                .map(|held| held.with(planned(held.scale_bytes(&weight.shape).unwrap_or(0)))),
            name: weight.name,
            shape: weight.shape,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};
    use shardwright_test_checkpoints::cases;

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
        let binding = crate::loaded::ToldBinding {
            index: 0,
            name: "x".to_owned(),
            direction: 1,
            role: 16,
            dtype: 1,
            update: 0,
            shape: vec![4, 1],
            strides: Some(vec![1, 1]),
            bytes: 16,
            alignment: 16,
            memory_kinds: 3,
            scale_bits: f64::to_bits(0.1),
            zero_point: -1,
        };
        let entry =
            ToldEntry { index: 0, name: "encode_4".to_owned(), rows: 4, count: 1, bindings: vec![binding] };
        let flag = ("power".to_owned(), FlagVerdict::Inert, "ten bits".to_owned());
        let replies = [
            Message::Progress { per_mille: 500, stage: "half".to_owned() },
            Message::MadeFor { fact: "platform".to_owned(), value: "mt6991".to_owned() },
            Message::Answer(Answer::Verdicts(vec![(0, true, String::new()), (1, false, "no".to_owned())])),
            Message::Answer(Answer::Loaded { entries: vec![entry], flags: vec![flag], cancels: true }),
            Message::Fault(Fault::Failed {
                function: "compile".to_owned(),
                class: Some(ErrorClass::Unmappable),
                message: "no \u{0} plan".to_owned(),
                details: vec![("limit".to_owned(), "ops".to_owned())],
                vendor_code: -3,
                log_tail: None,
            }),
        ];
        let requests = requests.into_iter().map(|ask| encode(&request(ask), REQUEST_LIMIT).unwrap());
        requests.chain(replies.iter().map(|reply| encode(reply, ANSWER_LIMIT).unwrap())).collect()
    }

    /// Everything a stream gives before it ends or breaks; reading it must be safe whatever it is.
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
                        let _ = decode::<Message>(&frame.content);
                        let _ = decode::<Request>(&frame.content);
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
        for message in &messages {
            let content = &message[PREFIX..];
            let told = match decode::<Message>(content) {
                Ok(read) => encode(&read, ANSWER_LIMIT),
                Err(_) => encode(&decode::<Request>(content).unwrap(), REQUEST_LIMIT),
            };
            assert_eq!(&told.unwrap(), message);
        }
    }

    #[test]
    fn a_length_beyond_the_cap_is_refused_before_anything_arrives() {
        for (kind, length, words) in [
            (1, 17_u32, "a frame of 17 bytes, at most 16"),
            (2, u32::MAX, "a frame of 4294967295 bytes"),
            (3, 65_537, "at most 65536"),
            (0, 0, "a frame of kind 0"),
            (9, 0, "a frame of kind 9"),
        ] {
            let mut stream = vec![kind];
            stream.extend(length.to_le_bytes());
            let (_, broken) = read_all(&stream, 1, 16);
            let broken = broken.expect(words);
            assert!(broken.0.contains(words), "{broken:?}");
        }
        assert!(encode(&Message::Answer(Answer::Done), 3).is_err());
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
        // Nesting is bounded by the parser, not by the stack.
        let mut deep = Vec::new();
        put(&mut deep, Kind::Message, &[b'['; 1 << 16]).unwrap();
        assert_eq!(read_all(&deep, 999, ANSWER_LIMIT), (1, None));
    }
}
