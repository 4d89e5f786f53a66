use shardwright_graph::{EncodeError, GraphError, Role, StateId, ValidateError, WeightId};
use shardwright_vocabulary::{DType, Encoding};

/// Why the evaluator cannot run a graph, or not with these inputs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceError {
    /// The entry graph is not well formed.
    #[error("entry `{entry}`: {source}")]
    Invalid {
        /// Name of the entry point.
        entry: String,
        /// What is wrong.
        source: ValidateError,
    },
    /// The model has no such entry point.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A constant refers to a weight that does not exist.
    #[error("constant `{tensor}` refers to weight {id:?}, and there are {available}", id = id.0)]
    NoWeight {
        /// The tensor.
        tensor: String,
        /// The weight it refers to.
        id: WeightId,
        /// Number of weights.
        available: usize,
    },
    /// A weight's shape, type or bytes are not what the tensor declares.
    #[error(
        "weight `{weight}` holds {found_dtype} {found:?} in {bytes} bytes, the graph declares {declared_dtype} {declared:?}"
    )]
    WeightShape {
        /// The weight.
        weight: String,
        /// Its shape.
        found: Vec<u64>,
        /// Its type.
        found_dtype: DType,
        /// Its size.
        bytes: u64,
        /// The shape in the graph.
        declared: Vec<u64>,
        /// The type in the graph.
        declared_dtype: DType,
    },
    /// Weights of this type cannot be read: integers without scales, floats with scales, indices.
    #[error("weight `{weight}` is stored as {dtype}, which is not supported")]
    WeightType {
        /// The weight.
        weight: String,
        /// Its type.
        dtype: DType,
    },
    /// A weight's bytes or scales are missing or invalid.
    #[error("weight `{weight}`: {reason}")]
    WeightContents {
        /// The weight.
        weight: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// A stored integer lies outside its encoding.
    #[error("{value} is no stored value of {encoding}")]
    StoredValue {
        /// The integer.
        value: i32,
        /// The encoding.
        encoding: Encoding,
    },
    /// The number of values for a tensor does not match its shape.
    #[error("{count} values do not fill a tensor of {shape:?}")]
    ArrayLength {
        /// The shape.
        shape: Vec<u64>,
        /// Number of values passed.
        count: usize,
    },
    /// Nothing is bound to an input.
    #[error("entry `{entry}`: nothing is bound to {}", describe(role))]
    Unbound {
        /// Name of the entry point.
        entry: String,
        /// The input's role.
        role: Box<Role>,
    },
    /// The array bound to an input has another shape or type.
    #[error(
        "entry `{entry}`: {bound_dtype} {bound:?} is bound to {}, which is {wanted_dtype} {wanted:?}",
        describe(role)
    )]
    BindingShape {
        /// Name of the entry point.
        entry: String,
        /// The input's role.
        role: Box<Role>,
        /// Shape bound.
        bound: Vec<usize>,
        /// Type bound.
        bound_dtype: DType,
        /// Shape of the input.
        wanted: Vec<u64>,
        /// Type of the input.
        wanted_dtype: DType,
    },
    /// A slot number lies outside its state.
    #[error("slot {slot} of row {row} lies outside a state of {capacity} rows")]
    Slot {
        /// The row.
        row: usize,
        /// Its slot.
        slot: i32,
        /// Rows of the state.
        capacity: u64,
    },
    /// A state of a run is missing or has another shape.
    #[error("state {} is {found:?}, the entry needs [{capacity}, {width}]", state.0)]
    State {
        /// The state.
        state: StateId,
        /// Its shape; empty if the state is missing.
        found: Vec<usize>,
        /// Rows needed.
        capacity: u64,
        /// Values per row needed.
        width: u64,
    },
    /// A state of a run has another encoding than the entry declares.
    #[error("state {} is encoded as {found}, the entry needs {wanted}", state.0)]
    StateEncoding {
        /// The state.
        state: StateId,
        /// Its encoding.
        found: Encoding,
        /// The encoding the entry declares.
        wanted: Encoding,
    },
    /// More valid rows than the entry has, or none.
    #[error("{rows} valid rows do not fit an entry of {limit}")]
    Rows {
        /// Valid rows asked for.
        rows: u64,
        /// Rows of the entry.
        limit: u64,
    },
    /// A token id beyond the table.
    #[error("token {token} reads row {row} of `{asset}`, which has {entries}")]
    Token {
        /// The token id.
        token: u32,
        /// The row it reads.
        row: u32,
        /// The table.
        asset: String,
        /// Rows of the table.
        entries: u64,
    },
    /// An input refers to a gathered table that does not exist.
    #[error("asset {asset} is asked for, and there are {available}")]
    NoAsset {
        /// Index asked for.
        asset: u32,
        /// Number of assets.
        available: usize,
    },
    /// A soft row has another width than embedding rows.
    #[error("the soft row at position {position} has {found} values where embedding rows have {width}")]
    SoftRow {
        /// Its position.
        position: u64,
        /// Its values.
        found: usize,
        /// Values of an embedding row.
        width: usize,
    },
    /// The sequence does not fit the context.
    #[error("{wanted} positions do not fit a context of {context}")]
    Context {
        /// Positions needed.
        wanted: u64,
        /// The context capacity.
        context: u64,
    },
    /// The token sequence is empty.
    #[error("no tokens were given")]
    NoTokens,
    /// A cut lies outside the layers, or the cuts do not ascend.
    #[error("cuts {cuts:?} do not ascend strictly between 0 and {layers} layers")]
    Cuts {
        /// The cuts.
        cuts: Vec<u32>,
        /// Number of layers.
        layers: u32,
    },
    /// The graph cannot be encoded as its formats say.
    #[error("entry `{entry}`: {source}")]
    Encode {
        /// Name of the entry point, or of the state.
        entry: String,
        /// Why.
        source: EncodeError,
    },
    /// The graph cannot be brought into a form.
    #[error("entry `{entry}`: {reason}")]
    Form {
        /// Name of the entry point.
        entry: String,
        /// Why.
        reason: String,
    },
}

fn describe(role: &Role) -> String {
    match role {
        Role::Tap { name } => format!("tap `{name}`"),
        Role::Slots { capacity } => format!("slots of {capacity}"),
        Role::Gathered { asset } => format!("gathered rows of asset {}", asset.0),
        Role::State { state } | Role::StateRows { state } => format!("{} {}", role.name(), state.0),
        _ => role.name().to_owned(),
    }
}

impl ReferenceError {
    /// What would help the user.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            ReferenceError::Invalid { source, .. } => source.help(),
            ReferenceError::Graph(source) => source.help(),
            ReferenceError::WeightType { .. } => {
                Some("the evaluator reads f32, f16 and bf16 weights, and integers with scales")
            }
            ReferenceError::WeightContents { .. } => Some("quantise the weight again before evaluating it"),
            ReferenceError::Encode { source, .. } => source.help(),
            ReferenceError::Unbound { .. } => {
                Some("`step::step_input` computes every step input; boundaries come from the entry before")
            }
            ReferenceError::State { .. } | ReferenceError::StateEncoding { .. } => {
                Some("states are made for one context and one largest row count, the same for all entries")
            }
            ReferenceError::Context { .. } => Some("use an arrangement with a larger context"),
            ReferenceError::Rows { .. } => Some("split the rows into chunks of at most the entry's rows"),
            ReferenceError::Token { .. } => Some("the tokenizer and the checkpoint do not belong together"),
            _ => None,
        }
    }
}
