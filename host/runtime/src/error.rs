//! Errors of a chain, and errors of a session.

use shardwright_text::TextError;

use crate::memory::BudgetError;
use crate::storage::Storage;
use shardwright_graph::{ComponentKind, Role};
use shardwright_shims::{Direction, ShimError};
use shardwright_vocabulary::{ErrorClass, ErrorKind, Place};

/// An error in assembling shards to a chain.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// More items than any model has, which usually indicates a damaged description.
    #[error("the chain has {count} {what}, at most {max} are accepted")]
    TooMany { what: &'static str, count: u64, max: u64 },
    /// The number of executors differs from the number of shards.
    #[error("{shards} shards are described and {executors} are loaded")]
    ExecutorCount { shards: usize, executors: usize },
    /// Two shards have the same name.
    #[error("two shards are called `{shard}`")]
    ShardRepeated { shard: String },
    /// A shard was loaded on another place than described.
    #[error("shard `{shard}` is described for {described} and loaded on {actual}")]
    PlaceMismatch {
        shard: String,
        /// Described place.
        described: Box<Place>,
        /// Place where the shard was loaded.
        actual: Box<Place>,
    },
    /// A soft-cap is invalid, or its shard does not return logits.
    #[error("shard `{shard}`: no soft-cap of {cap} can be applied to its logits")]
    Softcap { shard: String, cap: f32 },
    /// A shard has no segments.
    #[error("shard `{shard}` has no segments")]
    SegmentsMissing { shard: String },
    /// No shard has a component of the model.
    #[error("no shard holds the component `{0}`")]
    ComponentMissing(ComponentKind),
    /// A shard has a component that the model lacks or that an earlier shard already covers.
    #[error("shard `{shard}`: `{component}` is already provided, or is not part of this model")]
    ComponentUnexpected { shard: String, component: ComponentKind },
    /// A shard comes after another shard that needs its results.
    #[error("shard `{shard}` (`{component}`) comes after `{before}`")]
    ComponentOrder {
        shard: String,
        component: ComponentKind,
        /// Component of the shard before it.
        before: ComponentKind,
    },
    /// Layers are missing, repeated, or beyond the model.
    #[error(
        "shard `{shard}` holds layers {start}..{end} where layers from {expected} of {layers} should follow"
    )]
    Layers {
        shard: String,
        start: u32,
        /// One past the last layer of the shard.
        end: u32,
        /// Layer at which the shard should start.
        expected: u32,
        layers: u32,
    },
    /// No shard has the last layers.
    #[error("layers from {from} on are on no shard; the model has {layers}")]
    LayersMissing {
        /// First missing layer.
        from: u32,
        layers: u32,
    },
    /// An entry point has invalid properties, or properties that differ from the other entries.
    #[error("shard `{shard}`, {entry}: {what} is {actual}, {expected} was expected")]
    EntryPoint {
        shard: String,
        entry: String,
        /// Name of the property.
        what: &'static str,
        expected: String,
        actual: String,
    },
    /// A shard has the same entry point twice.
    #[error("shard `{shard}` has {entry} twice")]
    EntryRepeated { shard: String, entry: String },
    /// A shard lacks an entry point that other shards have and that does not end before this shard.
    #[error("shard `{shard}` has no {entry}, which {because}")]
    EntryMissing {
        shard: String,
        entry: String,
        /// Reason why the entry is needed.
        because: String,
    },
    /// The chain has no entry point that could return a result.
    #[error("the chain has no {0} entry point")]
    NoEntry(shardwright_vocabulary::EntryKind),
    /// A loaded shard lacks a described entry.
    #[error("shard `{shard}`: the loaded artefact has no {entry}; it has {available}")]
    EntryNotLoaded {
        shard: String,
        entry: String,
        /// Entries of the loaded shard.
        available: String,
    },
    /// A loaded shard binds other ports than described.
    #[error("shard `{shard}`, {entry}: the loaded artefact {fault} `{binding}`")]
    BindingSet {
        shard: String,
        entry: String,
        binding: String,
        /// `does not bind`, `also binds`
        fault: &'static str,
    },
    /// A loaded shard binds a port in another way than described.
    #[error(
        "shard `{shard}`, {entry}: `{binding}` has {what} {actual} in the loaded artefact, {expected} was described"
    )]
    Binding {
        shard: String,
        entry: String,
        binding: Box<str>,
        what: &'static str,
        expected: Box<str>,
        actual: Box<str>,
    },
    /// A port has a role that is invalid for its direction or its component.
    #[error("shard `{shard}`, {entry}: `{port}` cannot be {direction:?} with the role `{}`", role.name())]
    PortRole { shard: String, entry: String, port: String, direction: Direction, role: Box<Role> },
    /// Two ports have the same name or the same role.
    #[error("shard `{shard}`, {entry}: `{port}` is there twice")]
    PortRepeated {
        shard: String,
        entry: String,
        /// Name of the second port.
        port: String,
    },
    /// A port has another shape than its role requires in this chain.
    #[error("shard `{shard}`, {entry}: `{port}` has the shape {actual:?}, {expected:?} was expected")]
    PortShape {
        shard: String,
        entry: String,
        port: String,
        /// Shape that the role requires.
        expected: Vec<u64>,
        actual: Vec<u64>,
    },
    /// The storage of a port cannot represent its values.
    #[error("shard `{shard}`, {entry}: `{port}` cannot be stored as {actual}")]
    PortStorage { shard: String, entry: String, port: String, actual: Box<Storage> },
    /// An entry refers to a gathered table that the description lacks.
    #[error("shard `{shard}`, {entry}: there is no asset {asset}; the chain has {available}")]
    AssetUnknown {
        shard: String,
        entry: String,
        /// Requested index.
        asset: u32,
        available: usize,
    },
    /// A gathered table is missing or differs from its description.
    #[error("asset `{asset}`: {what} is {actual}, {expected} was expected")]
    Asset { asset: String, what: &'static str, expected: String, actual: String },
    /// The description lacks a state or declares it in another way.
    #[error("shard `{shard}`, {entry}: state {state} {reason}")]
    StateUndeclared { shard: String, entry: String, state: u32, reason: &'static str },
    /// No shard writes a state in this entry.
    #[error("no shard writes the state `{state}` in {entry}")]
    StateUnwritten { state: String, entry: String },
    /// A state is read before the shard that writes it has run.
    #[error("the state `{state}` is read by `{reader}`, which runs before its writer `{writer}`")]
    StateBeforeWriter {
        state: String,
        /// Shard that writes the state.
        writer: String,
        /// Shard that reads the state.
        reader: String,
    },
    /// Writer and reader of a state are on different shims or devices.
    #[error(
        "state-not-shareable: `{state}` is written by `{writer}` on {writer_place} and read by `{reader}` on {reader_place}"
    )]
    StateNotShareable {
        state: String,
        /// Shard that writes the state.
        writer: String,
        writer_place: Box<Place>,
        /// Shard that reads the state.
        reader: String,
        reader_place: Box<Place>,
    },
    /// No earlier shard produces an input.
    #[error("shard `{shard}`, {entry}: no shard before it gives `{port}`")]
    InputUnfed { shard: String, entry: String, port: String },
    /// Two entries store a state in different ways.
    #[error("the state `{state}` is {first_storage} for `{first}` and {second_storage} for `{second}`")]
    StateStorage {
        state: String,
        first: String,
        first_storage: Box<Storage>,
        second: String,
        second_storage: Box<Storage>,
    },
    /// A loaded shard differs from the manifest of the bundle, or lacks data that a bundle has for
    /// every shard.
    #[error("shard `{shard}`: {what} is {actual}, {expected} was expected by the bundle")]
    Bundled {
        shard: String,
        what: &'static str,
        /// Value in the bundle.
        expected: String,
        actual: String,
    },
    /// The last shard of an entry point does not return a result of the entry's kind.
    #[error("{entry} gives no {what}")]
    ResultMissing {
        entry: String,
        /// `logits` or `embedding`.
        what: &'static str,
    },
}

impl ChainError {
    /// Returns a suggestion for a `help:` line, if there is one.
    pub fn help(&self) -> Option<&'static str> {
        Some(match self {
            ChainError::StateNotShareable { .. } => {
                "layers that share keys and values must lie on the same instance and device; move the cut or the target"
            }
            ChainError::EntryNotLoaded { .. }
            | ChainError::BindingSet { .. }
            | ChainError::Binding { .. }
            | ChainError::PlaceMismatch { .. } => {
                "the artefact was compiled from another work order than the description; compile again"
            }
            ChainError::EntryMissing { .. } | ChainError::EntryPoint { .. } => {
                "every shard needs the same entry points; a prefill may only end where no later shard has states"
            }
            ChainError::Softcap { .. } => "a soft-cap is a positive number, and only a head gives logits",
            ChainError::Bundled { .. } => {
                "the artefacts come from another build than the manifest; compile again"
            }
            ChainError::Asset { .. } => "the tables come from another checkpoint than the description",
            ChainError::NoEntry(_) => {
                "a plan needs decode_1 for a generating model and encode_N for an encoder"
            }
            _ => return None,
        })
    }
}

/// An error of a session. After any error the session remains valid at its last complete position.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The context is too small for the tokens.
    #[error("{tokens} tokens at position {position} exceed the context of {context}")]
    PromptTooLong {
        tokens: usize,
        /// Used positions that are kept.
        position: usize,
        /// Positions of the context.
        context: u64,
    },
    /// There are more tokens than rows of the largest encode entry.
    #[error("{tokens} tokens exceed the {rows} rows of the largest encode entry")]
    InputTooLong {
        tokens: usize,
        /// Rows of the largest encode entry.
        rows: u64,
    },
    /// There are no tokens to run.
    #[error("no tokens were passed")]
    NoTokens,
    /// A token id is beyond the end of a gathered table.
    #[error("token {token} reads row {row} of `{asset}`, which has {entries}")]
    Token {
        token: u32,
        /// Row that the token reads.
        row: u32,
        asset: String,
        /// Rows of the table.
        entries: u64,
    },
    /// A row of a gathered table cannot be decoded.
    #[error("token {token} reads row {row} of `{asset}`, which cannot be decoded")]
    TableRow {
        token: u32,
        /// Row that the token reads.
        row: u32,
        asset: String,
    },
    /// A sentence vector contains a NaN or infinity.
    #[error(
        "value {index} of the embedding is {value}; shard `{shard}` (layers {}..{}) on {place}, {entry}, is the first to give such values",
        layers.0,
        layers.1
    )]
    EmbeddingNotFinite {
        /// Index in the vector.
        index: usize,
        value: f32,
        /// The first shard whose result contains such a value.
        shard: String,
        /// First layer of the shard and one past its last layer, both 0 if it has no layers.
        layers: (u32, u32),
        place: Box<Place>,
        entry: String,
    },
    /// A tower does not support these features.
    #[error("{count} patches or frames, where one run takes up to {most}: {reason}")]
    Features {
        /// Number of patches or frames.
        count: usize,
        /// Most patches or frames of one run.
        most: usize,
        reason: &'static str,
    },
    /// The number of values is not a multiple of the row width.
    #[error("{values} values are no rows of {width}")]
    SoftRowsShape {
        /// Number of values.
        values: usize,
        width: usize,
    },
    /// The soft rows have another width than the model's embedding.
    #[error("rows of {found} values do not stand for embedding rows of {width}")]
    SoftRowsWidth {
        /// Width of the soft rows.
        found: usize,
        /// Width of the embedding.
        width: usize,
    },
    /// A soft row contains a NaN or infinity.
    #[error("soft row {row} has the value {value}")]
    SoftRowsNotFinite { row: usize, value: f32 },
    /// The chain is not a tower and does not return soft rows.
    #[error("the model is no tower: it makes no rows for a prompt")]
    NotATower,
    /// The model is an encoder and does not generate.
    #[error("the model is an encoder: it does not generate")]
    NotGenerative,
    /// The model generates and does not return an embedding.
    #[error("the model generates: it gives no embedding")]
    NotAnEncoder,
    /// The requested truncation is beyond the current length.
    #[error("cannot truncate to {length} tokens: there are {tokens}")]
    TruncateBeyond {
        /// Requested length.
        length: usize,
        tokens: usize,
    },
    /// The operation was cancelled with a [`CancelHandle`](crate::CancelHandle).
    #[error("cancelled at position {position}")]
    Cancelled {
        /// Number of complete positions.
        position: usize,
    },
    /// The session's deadline has passed.
    #[error("the deadline passed at position {position}")]
    Deadline {
        /// Number of complete positions.
        position: usize,
    },
    /// Memory for states or boundaries could not be allocated.
    #[error("shard `{shard}`: cannot allocate {bytes} bytes on {place}: {source}")]
    Allocate {
        /// Shard that needs the memory, or the first shard that shares it.
        shard: String,
        bytes: u64,
        place: Box<Place>,
        source: Box<ShimError>,
    },
    /// The memory budget of the chain is too small for another session.
    #[error("no memory for a session: {0}")]
    Budget(#[from] BudgetError),
    /// A shard failed.
    #[error("shard `{shard}` on {place}, {entry} at position {position}: {source}")]
    Run {
        shard: String,
        place: Box<Place>,
        entry: String,
        /// First position of the run.
        position: usize,
        source: Box<ShimError>,
    },
    /// The session's chain was lost, and no other chain could replace it.
    #[error("{lost}; no fallback chain is left{}", list(passed_over))]
    Stranded {
        lost: Box<SessionError>,
        /// Unusable chains with the reasons.
        passed_over: Vec<String>,
    },
    /// An error occurred in the conversion of tokens to text or of logits to tokens.
    #[error(transparent)]
    Text(#[from] TextError),
}

/// Formats reasons as ` (one; another)`, or as an empty string.
fn list(reasons: &[String]) -> String {
    if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) }
}

impl SessionError {
    /// Returns the error class if a shim or the caller caused the failure, or `None` for
    /// cancellation and text.
    pub fn class(&self) -> Option<ErrorClass> {
        match self {
            SessionError::PromptTooLong { .. }
            | SessionError::InputTooLong { .. }
            | SessionError::Budget(_) => Some(ErrorClass::ResourceLimit),
            SessionError::NoTokens
            | SessionError::Token { .. }
            | SessionError::Features { .. }
            | SessionError::SoftRowsShape { .. }
            | SessionError::SoftRowsWidth { .. }
            | SessionError::NotATower
            | SessionError::NotGenerative
            | SessionError::NotAnEncoder
            | SessionError::TruncateBeyond { .. } => Some(ErrorClass::InvalidArgument),
            SessionError::Deadline { .. } => Some(ErrorClass::Deadline),
            SessionError::TableRow { .. }
            | SessionError::EmbeddingNotFinite { .. }
            | SessionError::SoftRowsNotFinite { .. } => Some(ErrorClass::Internal),
            SessionError::Allocate { source, .. } | SessionError::Run { source, .. } => source.class(),
            SessionError::Stranded { lost, .. } => lost.class(),
            SessionError::Cancelled { .. } | SessionError::Text(_) => None,
        }
    }

    /// Returns the failed shard and its place, if a shard failed.
    pub fn at(&self) -> Option<(&str, &Place)> {
        match self {
            SessionError::Allocate { shard, place, .. }
            | SessionError::Run { shard, place, .. }
            | SessionError::EmbeddingNotFinite { shard, place, .. } => Some((shard, place)),
            SessionError::Stranded { lost, .. } => lost.at(),
            _ => None,
        }
    }

    /// Returns a suggestion for a `help:` line, if there is one.
    pub fn help(&self) -> Option<String> {
        Some(match self {
            SessionError::PromptTooLong { .. } => {
                "shorten the prompt, or plan with a larger context".to_owned()
            }
            SessionError::InputTooLong { .. } => {
                "split the text, or plan an encode entry of more rows".to_owned()
            }
            SessionError::Token { .. } => {
                "the tokenizer and the checkpoint do not belong together".to_owned()
            }
            SessionError::TableRow { .. } => {
                "the table is truncated or lacks its scales: compile the bundle again, or repair the checkpoint".to_owned()
            }
            SessionError::EmbeddingNotFinite { .. } => {
                "the checkpoint holds such values, or a format overflows (f16 ends at 65504): verify the model, \
                 and plan other formats or run it on the CPU"
                    .to_owned()
            }
            SessionError::SoftRowsNotFinite { .. } => {
                "the picture or sound holds such values, or a format of the tower overflows (f16 ends at \
                 65504): run the tower in wider formats"
                    .to_owned()
            }
            SessionError::Features { .. } => {
                "take a smaller budget of soft tokens or a shorter clip, or plan a larger entry point".to_owned()
            }
            SessionError::SoftRowsWidth { .. } => "run the tower of the same checkpoint".to_owned(),
            SessionError::NotGenerative => "ask it for an embedding instead".to_owned(),
            SessionError::Run { source, .. } | SessionError::Allocate { source, .. } => return source.help(),
            SessionError::Budget(error) => return error.help().map(str::to_owned),
            SessionError::Stranded { .. } => {
                "open the model again; a plan with a fallback target recovers by itself".to_owned()
            }
            SessionError::Text(error) => return error.help(),
            _ => return None,
        })
    }
}

/// Maps errors to kinds that an application can act on.
impl From<SessionError> for shardwright_vocabulary::Error {
    fn from(error: SessionError) -> Self {
        let kind = match &error {
            SessionError::PromptTooLong { .. } | SessionError::InputTooLong { .. } => ErrorKind::Context,
            SessionError::NoTokens
            | SessionError::TruncateBeyond { .. }
            | SessionError::Features { .. }
            | SessionError::SoftRowsShape { .. } => ErrorKind::Argument,
            SessionError::NotGenerative | SessionError::NotAnEncoder | SessionError::NotATower => {
                ErrorKind::Unsupported
            }
            SessionError::Token { .. }
            | SessionError::TableRow { .. }
            | SessionError::SoftRowsWidth { .. }
            | SessionError::SoftRowsNotFinite { .. }
            | SessionError::EmbeddingNotFinite { .. } => ErrorKind::Invalid,
            SessionError::Cancelled { .. } | SessionError::Deadline { .. } => ErrorKind::Cancelled,
            SessionError::Budget(_) => ErrorKind::Memory,
            SessionError::Text(_) => ErrorKind::Invalid,
            _ => ErrorKind::Shim,
        };
        let help = error.help();
        shardwright_vocabulary::Error::caused_by(kind, error, help)
    }
}

/// Maps errors to kinds that an application can act on.
impl From<ChainError> for shardwright_vocabulary::Error {
    fn from(error: ChainError) -> Self {
        let help = error.help().map(str::to_owned);
        shardwright_vocabulary::Error::caused_by(ErrorKind::Incompatible, error, help)
    }
}
