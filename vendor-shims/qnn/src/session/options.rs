/// Options of a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextOptions {
    /// Weights that are equal in two of its graphs are kept once. The x86-64 library makes such a
    /// binary and cannot load it.
    pub weight_sharing: bool,
}

/// Options of a graph.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GraphOptions {
    /// Fast memory; the library takes 4 when nothing is said.
    pub vtcm_megabytes: Option<u32>,
    /// How hard finalize tries, 1 to 3.
    pub finalize_mode: Option<u32>,
    /// Floats are computed at half precision, which they are anyway.
    pub precision_f16: bool,
    /// Vector threads.
    pub hvx_threads: Option<u64>,
    /// Further optimisations by number and strength.
    pub optimisations: Vec<(u32, f32)>,
    /// Further options that take a number or a switch, by their number.
    pub numbers: Vec<(u32, u32)>,
    /// Nodes that the library's own validation refuses are added all the same. Some of them work;
    /// others compute wrongly, write beyond their result, or end the process, so this is for trying
    /// out what a library does.
    pub unvalidated: bool,
    /// Keys for finalize. A key that the library does not know is taken without a word, and so is a
    /// value of a wrong type.
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
