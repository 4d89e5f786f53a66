use shardwright_graph::{EncodeError, GraphError, Role, StateId, ValidateError, WeightId};
use shardwright_vocabulary::{DType, Encoding};

/// The reason why the evaluator cannot run a graph, or cannot run it with these inputs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceError {
    /// The entry graph is not well formed.
    #[error("entry `{entry}`: {source}")]
    Invalid {
        /// Name of the entry point.
        entry: String,
        source: ValidateError,
    },
    /// The model has no such entry point.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A constant refers to a weight that does not exist.
    #[error("constant `{tensor}` refers to weight {id:?}, and there are {available}", id = id.0)]
    NoWeight {
        tensor: String,
        /// The weight that the constant refers to.
        id: WeightId,
        available: usize,
    },
    /// A weight's shape, type or bytes differ from the tensor's declaration.
    #[error(
        "weight `{weight}` holds {found_dtype} {found:?} in {bytes} bytes, the graph declares {declared_dtype} {declared:?}"
    )]
    WeightShape {
        weight: String,
        /// The weight's shape.
        found: Vec<u64>,
        /// The weight's type.
        found_dtype: DType,
        bytes: u64,
        /// The shape in the graph.
        declared: Vec<u64>,
        /// The type in the graph.
        declared_dtype: DType,
    },
    /// Weights of this type cannot be read: integers without scales, floats with scales, indices.
    #[error("weight `{weight}` is stored as {dtype}, which is not supported")]
    WeightType { weight: String, dtype: DType },
    /// A weight's bytes or scales are missing or invalid.
    #[error("weight `{weight}`: {reason}")]
    WeightContents { weight: String, reason: &'static str },
    /// A stored integer is out of the range of its encoding.
    #[error("{value} is no stored value of {encoding}")]
    StoredValue { value: i32, encoding: Encoding },
    /// The number of values for a tensor does not match its shape.
    #[error("{count} values do not fill a tensor of {shape:?}")]
    ArrayLength {
        shape: Vec<u64>,
        /// Number of values passed.
        count: usize,
    },
    /// An input is not bound.
    #[error("entry `{entry}`: nothing is bound to {}", describe(role))]
    Unbound {
        /// Name of the entry point.
        entry: String,
        role: Box<Role>,
    },
    /// The array bound to an input has a different shape or type.
    #[error(
        "entry `{entry}`: {bound_dtype} {bound:?} is bound to {}, which is {wanted_dtype} {wanted:?}",
        describe(role)
    )]
    BindingShape {
        /// Name of the entry point.
        entry: String,
        role: Box<Role>,
        bound: Vec<usize>,
        bound_dtype: DType,
        /// Shape of the input.
        wanted: Vec<u64>,
        /// Type of the input.
        wanted_dtype: DType,
    },
    /// A slot number is outside of its state.
    #[error("slot {slot} of row {row} lies outside a state of {capacity} rows")]
    Slot {
        row: usize,
        slot: i32,
        /// Number of rows in the state.
        capacity: u64,
    },
    /// A state of a run is missing or has a different shape.
    #[error("state {} is {found:?}, the entry needs [{capacity}, {width}]", state.0)]
    State {
        state: StateId,
        /// The state's shape. Empty if the state is missing.
        found: Vec<usize>,
        /// Required number of rows.
        capacity: u64,
        /// Required number of values per row.
        width: u64,
    },
    /// The encoding of a run's state differs from the entry's declaration.
    #[error("state {} is encoded as {found}, the entry needs {wanted}", state.0)]
    StateEncoding {
        state: StateId,
        found: Encoding,
        /// The encoding that the entry declares.
        wanted: Encoding,
    },
    /// The number of valid rows is 0 or more than the entry has.
    #[error("{rows} valid rows do not fit an entry of {limit}")]
    Rows {
        /// Requested number of valid rows.
        rows: u64,
        /// Number of rows in the entry.
        limit: u64,
    },
    /// A token id is beyond the table.
    #[error("token {token} reads row {row} of `{asset}`, which has {entries}")]
    Token {
        token: u32,
        /// The row that the token reads.
        row: u32,
        asset: String,
        /// Number of rows in the table.
        entries: u64,
    },
    /// An input refers to a gathered table that does not exist.
    #[error("asset {asset} is asked for, and there are {available}")]
    NoAsset {
        /// The index in the input.
        asset: u32,
        available: usize,
    },
    /// The width of a soft row differs from that of embedding rows.
    #[error("the soft row at position {position} has {found} values where embedding rows have {width}")]
    SoftRow {
        position: u64,
        /// Number of values in the soft row.
        found: usize,
        /// Number of values in an embedding row.
        width: usize,
    },
    /// The sequence does not fit the context.
    #[error("{wanted} positions do not fit a context of {context}")]
    Context {
        /// Required number of positions.
        wanted: u64,
        context: u64,
    },
    /// The token sequence is empty.
    #[error("no tokens were given")]
    NoTokens,
    /// A cut is outside of the layers, or the cuts do not ascend.
    #[error("cuts {cuts:?} do not ascend strictly between 0 and {layers} layers")]
    Cuts { cuts: Vec<u32>, layers: u32 },
    /// The graph cannot be encoded in its formats.
    #[error("entry `{entry}`: {source}")]
    Encode {
        /// Name of the entry point, or of the state.
        entry: String,
        source: EncodeError,
    },
    /// The graph cannot be converted to a form.
    #[error("entry `{entry}`: {reason}")]
    Form {
        /// Name of the entry point.
        entry: String,
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
    /// Returns advice for the user, if there is any.
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
