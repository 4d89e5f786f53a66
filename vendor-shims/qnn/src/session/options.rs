/// Options of a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextOptions {
    /// Whether weights that are equal in two graphs are stored once. The x86-64 library can write
    /// such a binary but cannot load it.
    pub weight_sharing: bool,
}

/// Options of a graph.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GraphOptions {
    /// Fast memory in megabytes. The library's default is 4.
    pub vtcm_megabytes: Option<u32>,
    /// Effort of finalize, 1 to 3.
    pub finalize_mode: Option<u32>,
    /// Whether floats are computed at half precision, which is also the default.
    pub precision_f16: bool,
    /// Number of vector threads.
    pub hvx_threads: Option<u64>,
    /// Further optimisations by number and strength.
    pub optimisations: Vec<(u32, f32)>,
    /// Further options with a number or a switch, by their number.
    pub numbers: Vec<(u32, u32)>,
    /// Adds nodes that the library's own validation refuses. Some of them work. Others compute
    /// wrongly, write out of bounds, or crash the process, so this is for testing a library.
    pub unvalidated: bool,
    /// Keys for finalize. The library silently accepts unknown keys and values of a wrong type.
    pub keys: Vec<(String, FinalizeValue)>,
}

/// A value of a key for finalize.
#[derive(Clone, Debug, PartialEq)]
pub enum FinalizeValue {
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Text(String),
}
