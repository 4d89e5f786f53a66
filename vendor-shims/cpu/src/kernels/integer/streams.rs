use std::fmt;

use crate::simd::dot::DotLevel;

/// Panels that are read side by side for one row, which is bound by memory: an Intel Xeon reads
/// fastest with eight streams, an AMD EPYC (Zen 5) with one, by a tenth to a third. No bit of a
/// result depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    /// One after the other, each with several sums.
    One,
    /// Four; where registers are few, two of blocks with scales.
    Four,
    /// Eight, where their sums fit into registers.
    Eight,
}

impl Streams {
    /// All, fewest first.
    pub const ALL: [Streams; 3] = [Streams::One, Streams::Four, Streams::Eight];

    /// How many.
    pub const fn count(self) -> usize {
        match self {
            Streams::One => 1,
            Streams::Four => 4,
            Streams::Eight => 8,
        }
    }

    /// Those that kernels of this level have, of which the last is the one to begin with.
    pub fn of(level: DotLevel) -> &'static [Streams] {
        match level {
            DotLevel::Scalar => &Streams::ALL[..1],
            #[cfg(target_arch = "x86_64")]
            DotLevel::Avx512Vnni | DotLevel::Amx => &Streams::ALL,
            _ => &Streams::ALL[..2],
        }
    }

    /// This one, or the nearest that the level has.
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
        for level in DotLevel::available() {
            let ways = Streams::of(level);
            for wanted in Streams::ALL {
                let expected = if ways.contains(&wanted) { wanted } else { ways[ways.len() - 1] };
                assert_eq!(wanted.within(level), expected);
            }
        }
    }
}
