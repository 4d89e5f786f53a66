use std::fmt;

/// How the largest results are found. Bounds save time only if most of them are far below the
/// largest results, which depends on the weights. No bit of a result depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// Computes a result only if its bound, from the first part alone, reaches the largest results
    /// found so far.
    Bounds,
    /// Computes all results and keeps the largest.
    All,
}

impl Head {
    /// All variants. The last one is used first.
    pub const ALL: [Head; 2] = [Head::Bounds, Head::All];
}

impl fmt::Display for Head {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Head::Bounds => "bounds",
            Head::All => "all",
        })
    }
}
