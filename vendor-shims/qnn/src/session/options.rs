/// Options of a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextOptions {
    /// Weights that are equal in two of its graphs are stored once. The x86-64 library can make
    /// such a binary but cannot load it.
    pub weight_sharing: bool,
}

/// Options of a graph.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GraphOptions {
    /// Fast memory; the library's default is 4.
    pub vtcm_megabytes: Option<u32>,
    /// Effort of finalize, 1 to 3.
    pub finalize_mode: Option<u32>,
    /// Floats are computed at half precision, which is also the default.
    pub precision_f16: bool,
    /// Vector threads.
    pub hvx_threads: Option<u64>,
    /// Further optimisations by number and strength.
    pub optimisations: Vec<(u32, f32)>,
    /// Further options that take a number or a switch, by their number.
    pub numbers: Vec<(u32, u32)>,
    /// Adds nodes that the library's own validation refuses. Some of them work; others compute
    /// wrongly, write out of bounds, or crash the process, so this is for testing a library.
    pub unvalidated: bool,
    /// Keys for finalize. The library silently accepts unknown keys and values of a wrong type.
    pub keys: Vec<(String, FinalizeValue)>,
}

/// A value of a key for finalize.
#[derive(Clone, Debug, PartialEq)]
pub enum FinalizeValue {
    /// Unsigned.
    U32(u32),
    /// Signed.
    I32(i32),
    /// Float.
    F32(f32),
    /// A switch.
    Bool(bool),
    /// Text.
    Text(String),
}
