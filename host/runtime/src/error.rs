//! Errors of a chain, and errors of a session.

use shardwright_text::TextError;

use crate::memory::BudgetError;
use crate::storage::Storage;
use shardwright_graph::{ComponentKind, Role};
use shardwright_shims::{Direction, ShimError};
use shardwright_vocabulary::{ErrorClass, ErrorKind, Place};

/// Shards that do not form a chain.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// More items than any model has; usually a damaged description.
    #[error("the chain has {count} {what}, at most {max} are accepted")]
    TooMany {
        /// Which items.
        what: &'static str,
        /// Their number.
        count: u64,
        /// The cap.
        max: u64,
    },
    /// Not one executor for each shard.
    #[error("{shards} shards are described and {executors} are loaded")]
    ExecutorCount {
        /// Shards described.
        shards: usize,
        /// Executors loaded.
        executors: usize,
    },
    /// Two shards of one name.
    #[error("two shards are called `{shard}`")]
    ShardRepeated {
        /// The name.
        shard: String,
    },
    /// A shard was loaded elsewhere than described.
    #[error("shard `{shard}` is described for {described} and loaded on {actual}")]
    PlaceMismatch {
        /// The shard.
        shard: String,
        /// Where it should be.
        described: Box<Place>,
        /// Where it is.
        actual: Box<Place>,
    },
    /// A soft-cap for logits that a shard does not return, or with an invalid cap.
    #[error("shard `{shard}`: no soft-cap of {cap} can be applied to its logits")]
    Softcap {
        /// The shard.
        shard: String,
        /// The cap.
        cap: f32,
    },
    /// A shard that computes nothing.
    #[error("shard `{shard}` has no segments")]
    SegmentsMissing {
        /// The shard.
        shard: String,
    },
    /// No shard has a component of the model.
    #[error("no shard holds the component `{0}`")]
    ComponentMissing(ComponentKind),
    /// A shard of a component that the model lacks or that an earlier shard already covers.
    #[error("shard `{shard}`: `{component}` is already provided, or is not part of this model")]
    ComponentUnexpected {
        /// The shard.
        shard: String,
        /// Its component.
        component: ComponentKind,
    },
    /// A shard comes after one that needs its results.
    #[error("shard `{shard}` (`{component}`) comes after `{before}`")]
    ComponentOrder {
        /// The shard.
        shard: String,
        /// Its component.
        component: ComponentKind,
        /// The component before it.
        before: ComponentKind,
    },
    /// Layers are left out, repeated, or beyond the model.
    #[error(
        "shard `{shard}` holds layers {start}..{end} where layers from {expected} of {layers} should follow"
    )]
    Layers {
        /// The shard.
        shard: String,
        /// Its first layer.
        start: u32,
        /// One past its last.
        end: u32,
        /// Where the shard before ended.
        expected: u32,
        /// Layers of the model.
        layers: u32,
    },
    /// No shard has the last layers.
    #[error("layers from {from} on are on no shard; the model has {layers}")]
    LayersMissing {
        /// First layer that is missing.
        from: u32,
        /// Layers of the model.
        layers: u32,
    },
    /// An entry point whose numbers are impossible, or differ from those of the other entries.
    #[error("shard `{shard}`, {entry}: {what} is {actual}, {expected} was expected")]
    EntryPoint {
        /// The shard.
        shard: String,
        /// The entry.
        entry: String,
        /// Which number.
        what: &'static str,
        /// Its expected value.
        expected: String,
        /// Its actual value.
        actual: String,
    },
    /// A shard has an entry point twice.
    #[error("shard `{shard}` has {entry} twice")]
    EntryRepeated {
        /// The shard.
        shard: String,
        /// The entry.
        entry: String,
    },
    /// A shard lacks an entry point that others have and that does not end before it.
    #[error("shard `{shard}` has no {entry}, which {because}")]
    EntryMissing {
        /// The shard.
        shard: String,
        /// The entry.
        entry: String,
        /// Why it is needed.
        because: String,
    },
    /// No entry point from which a result could come.
    #[error("the chain has no {0} entry point")]
    NoEntry(shardwright_vocabulary::EntryKind),
    /// An entry that was described is not in the loaded shard.
    #[error("shard `{shard}`: the loaded artefact has no {entry}; it has {available}")]
    EntryNotLoaded {
        /// The shard.
        shard: String,
        /// The entry.
        entry: String,
        /// What it has.
        available: String,
    },
    /// A loaded shard binds another set of ports than described.
    #[error("shard `{shard}`, {entry}: the loaded artefact {fault} `{binding}`")]
    BindingSet {
        /// The shard.
        shard: String,
        /// The entry.
        entry: String,
        /// The port.
        binding: String,
        /// `does not bind`, `also binds`
        fault: &'static str,
    },
    /// A loaded shard binds a port differently than described.
    #[error(
        "shard `{shard}`, {entry}: `{binding}` has {what} {actual} in the loaded artefact, {expected} was described"
    )]
    Binding {
        /// The shard.
        shard: String,
        /// The entry.
        entry: String,
        /// The port.
        binding: Box<str>,
        /// What differs.
        what: &'static str,
        /// As described.
        expected: Box<str>,
        /// As loaded.
        actual: Box<str>,
    },
    /// A role that cannot be used in that direction, or not in that component.
    #[error("shard `{shard}`, {entry}: `{port}` cannot be {direction:?} with the role `{}`", role.name())]
    PortRole {
        /// The shard.
        shard: String,
        /// The entry.
        entry: String,
        /// The port.
        port: String,
        /// How it is used.
        direction: Direction,
        /// Its role.
        role: Box<Role>,
    },
    /// Two ports of one name or one role.
    #[error("shard `{shard}`, {entry}: `{port}` is there twice")]
    PortRepeated {
        /// The shard.
        shard: String,
        /// The entry.
        entry: String,
        /// Name of the second.
        port: String,
    },
    /// A port of another shape than its role has in this chain.
    #[error("shard `{shard}`, {entry}: `{port}` has the shape {actual:?}, {expected:?} was expected")]
    PortShape {
        /// The shard.
        shard: String,
        /// The entry.
        entry: String,
        /// The port.
        port: String,
        /// The shape its role has.
        expected: Vec<u64>,
        /// Its shape.
        actual: Vec<u64>,
    },
    /// A port whose storage cannot hold its values.
    #[error("shard `{shard}`, {entry}: `{port}` cannot be stored as {actual}")]
    PortStorage {
        /// The shard.
        shard: String,
        /// The entry.
        entry: String,
        /// The port.
        port: String,
        /// Its storage.
        actual: Box<Storage>,
    },
    /// A gathered table that the description does not have.
    #[error("shard `{shard}`, {entry}: there is no asset {asset}; the chain has {available}")]
    AssetUnknown {
        /// The shard.
        shard: String,
        /// The entry.
        entry: String,
        /// Index asked for.
        asset: u32,
        /// Number of assets.
        available: usize,
    },
    /// A gathered table that is missing or differs from its description.
    #[error("asset `{asset}`: {what} is {actual}, {expected} was expected")]
    Asset {
        /// Its name.
        asset: String,
        /// What differs.
        what: &'static str,
        /// As described.
        expected: String,
        /// As passed.
        actual: String,
    },
    /// A state that the description lacks, or declares differently.
    #[error("shard `{shard}`, {entry}: state {state} {reason}")]
    StateUndeclared {
        /// The shard.
        shard: String,
        /// The entry.
        entry: String,
        /// Index of the state.
        state: u32,
        /// The mismatch.
        reason: &'static str,
    },
    /// A state that no run of this kind writes.
    #[error("no shard writes the state `{state}` in {entry}")]
    StateUnwritten {
        /// The state.
        state: String,
        /// The entry.
        entry: String,
    },
    /// A state is read before the shard that writes it has run.
    #[error("the state `{state}` is read by `{reader}`, which runs before its writer `{writer}`")]
    StateBeforeWriter {
        /// The state.
        state: String,
        /// The shard that writes it.
        writer: String,
        /// The shard that reads it.
        reader: String,
    },
    /// Writer and reader of a state are on different shims or devices.
    #[error(
        "state-not-shareable: `{state}` is written by `{writer}` on {writer_place} and read by `{reader}` on {reader_place}"
    )]
    StateNotShareable {
        /// The state.
        state: String,
        /// The shard that writes it.
        writer: String,
        /// Where.
        writer_place: Box<Place>,
        /// The shard that reads it.
        reader: String,
        /// Where.
        reader_place: Box<Place>,
    },
    /// An input that no earlier shard produces.
    #[error("shard `{shard}`, {entry}: no shard before it gives `{port}`")]
    InputUnfed {
        /// The shard.
        shard: String,
        /// The entry.
        entry: String,
        /// The port.
        port: String,
    },
    /// A state that two entries store in different ways.
    #[error("the state `{state}` is {first_storage} for `{first}` and {second_storage} for `{second}`")]
    StateStorage {
        /// The state.
        state: String,
        /// One shard.
        first: String,
        /// How that stores it.
        first_storage: Box<Storage>,
        /// The other.
        second: String,
        /// How that stores it.
        second_storage: Box<Storage>,
    },
    /// A loaded shard is not the one that the bundle names, or lacks data that a bundle has for
    /// every shard.
    #[error("shard `{shard}`: {what} is {actual}, {expected} was expected by the bundle")]
    Bundled {
        /// The shard.
        shard: String,
        /// What differs.
        what: &'static str,
        /// According to the bundle.
        expected: String,
        /// As loaded.
        actual: String,
    },
    /// An entry point whose last shard does not return the result of its kind.
    #[error("{entry} gives no {what}")]
    ResultMissing {
        /// The entry.
        entry: String,
        /// `logits` or `embedding`.
        what: &'static str,
    },
}

impl ChainError {
    /// What would help.
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

/// Errors of a session. After any of them the session remains valid at its last complete position.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// More tokens than the context holds.
    #[error("{tokens} tokens at position {position} exceed the context of {context}")]
    PromptTooLong {
        /// Tokens to append.
        tokens: usize,
        /// Positions in use that are kept.
        position: usize,
        /// Positions in the context.
        context: u64,
    },
    /// More tokens than the largest encode entry has rows.
    #[error("{tokens} tokens exceed the {rows} rows of the largest encode entry")]
    InputTooLong {
        /// Tokens passed.
        tokens: usize,
        /// Rows of that entry.
        rows: u64,
    },
    /// No tokens to run.
    #[error("no tokens were passed")]
    NoTokens,
    /// A token id beyond a gathered table.
    #[error("token {token} reads row {row} of `{asset}`, which has {entries}")]
    Token {
        /// The id.
        token: u32,
        /// The row it reads.
        row: u32,
        /// The table.
        asset: String,
        /// Its rows.
        entries: u64,
    },
    /// A row of a gathered table that cannot be decoded.
    #[error("token {token} reads row {row} of `{asset}`, which cannot be decoded")]
    TableRow {
        /// The id.
        token: u32,
        /// The row it reads.
        row: u32,
        /// The table.
        asset: String,
    },
    /// A sentence vector with a NaN or infinity.
    #[error(
        "value {index} of the embedding is {value}; shard `{shard}` (layers {}..{}) on {place}, {entry}, is the first to give such values",
        layers.0,
        layers.1
    )]
    EmbeddingNotFinite {
        /// Index in the vector.
        index: usize,
        /// The value.
        value: f32,
        /// The first shard whose result contains such a value.
        shard: String,
        /// Its first layer and one past its last; both 0 where it has none.
        layers: (u32, u32),
        /// Where it runs.
        place: Box<Place>,
        /// The entry.
        entry: String,
    },
    /// Features that a tower cannot run over.
    #[error("{count} patches or frames, where one run takes up to {most}: {reason}")]
    Features {
        /// How many there are.
        count: usize,
        /// Most of one run.
        most: usize,
        /// Why not.
        reason: &'static str,
    },
    /// Values that are no rows.
    #[error("{values} values are no rows of {width}")]
    SoftRowsShape {
        /// Values there are.
        values: usize,
        /// Values per row.
        width: usize,
    },
    /// Rows for another model.
    #[error("rows of {found} values do not stand for embedding rows of {width}")]
    SoftRowsWidth {
        /// Their width.
        found: usize,
        /// The width of the embedding.
        width: usize,
    },
    /// A row with a NaN or infinity.
    #[error("soft row {row} has the value {value}")]
    SoftRowsNotFinite {
        /// The row.
        row: usize,
        /// The value.
        value: f32,
    },
    /// The chain gives no soft rows.
    #[error("the model is no tower: it makes no rows for a prompt")]
    NotATower,
    /// The model generates nothing.
    #[error("the model is an encoder: it does not generate")]
    NotGenerative,
    /// The model generates; it gives no embedding.
    #[error("the model generates: it gives no embedding")]
    NotAnEncoder,
    /// A truncation beyond the current length.
    #[error("cannot truncate to {length} tokens: there are {tokens}")]
    TruncateBeyond {
        /// Length asked for.
        length: usize,
        /// Current tokens.
        tokens: usize,
    },
    /// The [`CancelHandle`](crate::CancelHandle) was used.
    #[error("cancelled at position {position}")]
    Cancelled {
        /// Complete positions.
        position: usize,
    },
    /// The session's deadline has passed.
    #[error("the deadline passed at position {position}")]
    Deadline {
        /// Complete positions.
        position: usize,
    },
    /// Memory for states or boundaries could not be allocated.
    #[error("shard `{shard}`: cannot allocate {bytes} bytes on {place}: {source}")]
    Allocate {
        /// The shard it is for, or the first of those that share it.
        shard: String,
        /// Bytes requested.
        bytes: u64,
        /// Where.
        place: Box<Place>,
        /// The cause.
        source: Box<ShimError>,
    },
    /// The budget of the chain leaves too little for a session.
    #[error("no memory for a session: {0}")]
    Budget(#[from] BudgetError),
    /// A shard failed.
    #[error("shard `{shard}` on {place}, {entry} at position {position}: {source}")]
    Run {
        /// The shard.
        shard: String,
        /// Where it runs.
        place: Box<Place>,
        /// The entry.
        entry: String,
        /// First position of the run.
        position: usize,
        /// Its error.
        source: Box<ShimError>,
    },
    /// The chain of the session was lost, and no other chain could take over.
    #[error("{lost}; no fallback chain is left{}", list(passed_over))]
    Stranded {
        /// The loss.
        lost: Box<SessionError>,
        /// Chains that could not be used, with the reason.
        passed_over: Vec<String>,
    },
    /// An error in converting tokens to text or logits to tokens.
    #[error(transparent)]
    Text(#[from] TextError),
}

/// ` (one; another)`, or nothing.
fn list(reasons: &[String]) -> String {
    if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) }
}

impl SessionError {
    /// Class of the failure, if a shim or the caller caused it; `None` for cancellation and text.
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

    /// The shard that failed and where it runs, if one did.
    pub fn at(&self) -> Option<(&str, &Place)> {
        match self {
            SessionError::Allocate { shard, place, .. }
            | SessionError::Run { shard, place, .. }
            | SessionError::EmbeddingNotFinite { shard, place, .. } => Some((shard, place)),
            SessionError::Stranded { lost, .. } => lost.at(),
            _ => None,
        }
    }

    /// What would help.
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

/// What an application can do about it.
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

/// What an application can do about it.
impl From<ChainError> for shardwright_vocabulary::Error {
    fn from(error: ChainError) -> Self {
        let help = error.help().map(str::to_owned);
        shardwright_vocabulary::Error::caused_by(ErrorKind::Incompatible, error, help)
    }
}
