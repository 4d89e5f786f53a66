//! The rules that the recorder checks.

/// A rule for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A required pointer is null.
    Null,
    /// The library did not return this handle for that kind of object.
    UnknownHandle,
    /// An object is used after it was freed.
    UseAfterFree,
    /// An object is freed a second time.
    FreedTwice,
    /// An object is freed before an object that depends on it: a model before its compilation, a
    /// compilation before its execution, memory before an execution to which it is bound.
    FreedTooEarly,
    /// A finished model is changed.
    ModelFinished,
    /// A compilation is created for a model that is not finished.
    ModelNotFinished,
    /// A compilation is finished twice, or set up after it was finished.
    CompilationFinished,
    /// An unfinished compilation is run or stored, or its sizes are queried.
    CompilationNotFinished,
    /// An index is negative or beyond the last one.
    Index,
    /// A value is outside its range: a boost above 100, an unknown priority or preference.
    Range,
    /// There are fewer bytes than the operand needs, or more than the memory has.
    Length,
    /// Memory or an offset in it is not at a multiple of 64 bytes.
    Alignment,
    /// A descriptor cannot be mapped for reading and writing, or was closed while its memory is in
    /// use.
    Descriptor,
    /// An input or output is unbound in a run.
    Unbound,
    /// A buffer cannot be read or written while a run uses it.
    BufferGone,
    /// A compiled network is stored after a run, or from a restored compilation.
    Stored,
    /// An out-pointer does not point to an empty handle, or objects are left when the client
    /// queries the remaining ones.
    Left,
}

impl Rule {
    /// Returns the name in the record.
    pub const fn name(self) -> &'static str {
        match self {
            Rule::Null => "null",
            Rule::UnknownHandle => "unknown-handle",
            Rule::UseAfterFree => "use-after-free",
            Rule::FreedTwice => "freed-twice",
            Rule::FreedTooEarly => "freed-too-early",
            Rule::ModelFinished => "model-finished",
            Rule::ModelNotFinished => "model-not-finished",
            Rule::CompilationFinished => "compilation-finished",
            Rule::CompilationNotFinished => "compilation-not-finished",
            Rule::Index => "index",
            Rule::Range => "range",
            Rule::Length => "length",
            Rule::Alignment => "alignment",
            Rule::Descriptor => "descriptor",
            Rule::Unbound => "unbound",
            Rule::BufferGone => "buffer-gone",
            Rule::Stored => "stored",
            Rule::Left => "left",
        }
    }
}
