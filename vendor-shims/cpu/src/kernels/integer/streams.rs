use std::fmt;

use crate::simd::dot::DotLevel;

/// Most panels that are read in parallel for a single row (see [`Streams`]).
pub(super) const STREAMS: usize = 8;
/// Most panels in parallel if the sums of eight panels do not fit into registers.
pub(super) const FEWER_STREAMS: usize = 4;

/// Returns the prefetch distance in bytes for each of `streams` streams, because the hardware
/// prefetches within a page only. Measured on an AMD EPYC (Zen 5) with one thread: one stream of
/// four-bit weights is a tenth faster at 4 to 16 KiB than at 2 KiB, and one stream of bytes is
/// equally fast. Eight streams lose a tenth at larger distances. The cache level of the prefetch
/// (T0, T1, NTA) makes no difference.
pub(super) const fn ahead(streams: usize) -> usize {
    if streams == 1 { 8192 } else { 2048 }
}

/// Number of panels that are read in parallel for one row, which is limited by memory. An Intel
/// Xeon reads fastest with eight streams, an AMD EPYC (Zen 5) with one, by a tenth to a third. No
/// bit of a result depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    /// One panel after the other, each with several sums.
    One,
    /// Four panels. On processors with few registers, two panels if blocks have scales.
    Four,
    /// Eight panels, if their sums fit into registers.
    Eight,
}

impl Streams {
    /// All variants, fewest streams first.
    pub const ALL: [Streams; 3] = [Streams::One, Streams::Four, Streams::Eight];

    /// Returns the number of streams.
    pub const fn count(self) -> usize {
        match self {
            Streams::One => 1,
            Streams::Four => 4,
            Streams::Eight => 8,
        }
    }

    /// Returns the variants that kernels of this level support. The last one is used first.
    pub fn of(level: DotLevel) -> &'static [Streams] {
        match level {
            DotLevel::Scalar => &Streams::ALL[..1],
            #[cfg(target_arch = "x86_64")]
            DotLevel::Avx512Vnni | DotLevel::Amx => &Streams::ALL,
            #[cfg(test)]
            DotLevel::Wide => &Streams::ALL,
            _ => &Streams::ALL[..2],
        }
    }

    /// Returns this variant if the level supports it, otherwise the level's last variant.
    pub fn within(self, level: DotLevel) -> Streams {
        let ways = Streams::of(level);
        *ways.iter().find(|way| **way == self).unwrap_or(&ways[ways.len() - 1])
    }
}

impl fmt::Display for Streams {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_has_the_nearest_to_what_is_wanted() {
        for level in DotLevel::every() {
            let ways = Streams::of(level);
            for wanted in Streams::ALL {
                let expected = if ways.contains(&wanted) { wanted } else { ways[ways.len() - 1] };
                assert_eq!(wanted.within(level), expected);
            }
        }
    }
}
