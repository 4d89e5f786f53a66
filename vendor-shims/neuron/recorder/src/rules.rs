//! The rules, each with where it is from.

/// Rules for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A pointer that has to be something is null.
    Null,
    /// A handle is not one that this library returned for that kind of object.
    UnknownHandle,
    /// An object is used after it was freed.
    UseAfterFree,
    /// An object is freed a second time.
    FreedTwice,
    /// An object is freed while another that depends on it is not: a model before its compilation,
    /// a compilation before its execution, memory before an execution that it is bound to.
    FreedTooEarly,
    /// A finished model is changed.
    ModelFinished,
    /// A compilation of a model that is not finished.
    ModelNotFinished,
    /// A compilation is finished twice, or set up after it was.
    CompilationFinished,
    /// An unfinished compilation is run, asked for sizes or stored.
    CompilationNotFinished,
    /// An index beyond the last, or below zero.
    Index,
    /// A value outside its range: a boost above 100, an unknown priority or preference.
    Range,
    /// Fewer bytes than the operand needs, or more than the memory has.
    Length,
    /// Memory or an offset in it is not at a multiple of 64 bytes.
    Alignment,
    /// A descriptor that cannot be mapped for reading and writing, or was closed while its memory
    /// is in use.
    Descriptor,
    /// A run with an unbound input or output.
    Unbound,
    /// A buffer that cannot be read or written while a run uses it.
    BufferGone,
    /// A compiled network is stored after a run, or from a restored compilation.
    Stored,
    /// An out-pointer does not point to an empty handle; objects are left when the library is asked
    /// what remains.
    Left,
}

impl Rule {
    /// The name in the record.
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
