//! This program and its peer in turns: each pair within seconds, between two probes of the memory.

use serde::Serialize;

use super::peer::{Peer, PeerFacts, Side};
use super::probe::{Probe, Prober};
use super::statistics::{median, range};
use super::work::{Kind, Work};
use crate::outcome::Failure;

/// From which bandwidth on a pair counts as slow or fast, in GB/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    slow_below: f64,
    fast_above: f64,
}

/// How fast memory was around a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Both probes below the lower bound.
    Slow,
    /// Both above the upper one.
    Fast,
    /// Between, or it changed: it counts for nothing.
    Discarded,
}

impl Thresholds {
    /// Errors where one is no number, or they contradict each other.
    pub fn new(slow_below: f64, fast_above: f64) -> Result<Self, Failure> {
        let sound = slow_below > 0.0 && fast_above.is_finite() && slow_below <= fast_above;
        match sound {
            true => Ok(Thresholds { slow_below, fast_above }),
            false => Err(Failure::Arguments(format!(
                "--slow-below {slow_below} and --fast-above {fast_above}: the first must be positive and no more than the second"
            ))),
        }
    }

    /// By the middle pass of each probe.
    fn class(&self, before: Probe, after: Probe) -> Class {
        let probes = [before.median, after.median];
        if probes.iter().all(|&probe| probe < self.slow_below) {
            Class::Slow
        } else if probes.iter().all(|&probe| probe > self.fast_above) {
            Class::Fast
        } else {
            Class::Discarded
        }
    }
}

/// All pairs.
#[derive(Debug, Serialize)]
pub struct Pairs {
    pub slow_below: f64,
    pub fast_above: f64,
    pub peer: PeerFacts,
    /// One for each size asked for.
    pub works: Vec<PairedWork>,
}

/// The pairs of one work.
#[derive(Debug, Serialize)]
pub struct PairedWork {
    /// As `llama-bench` names it.
    pub test: String,
    /// The peer's setting of flash attention that counts: the one with the better median over all
    /// pairs.
    pub flash_attention: Option<bool>,
    pub slow: Option<Share>,
    pub fast: Option<Share>,
    /// Pairs that count for nothing.
    pub discarded: usize,
    /// Every pair, in order.
    pub pairs: Vec<Pair>,
}

/// Pairs of one class, in tokens a second; ratios are ours to the peer's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    pub pairs: usize,
    pub ours: f64,
    pub peer: f64,
    /// Of the medians.
    pub ratio: f64,
    /// Of single pairs: the least and the largest.
    pub least_ratio: f64,
    pub largest_ratio: f64,
    /// Median of the probes beside, GB/s.
    pub probe: f64,
    /// Of generation with all logits, where the bytes of weights are known: what reading them for
    /// every token is of what the probes read.
    pub of_probe: Option<f64>,
    /// Median of the machine's load.
    pub load: Option<f64>,
}

/// One of each, between two probes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pair {
    pub class: Class,
    pub before: Probe,
    pub after: Probe,
    /// Programs that ran or waited to, over the minute before (Linux): beside others, pinned
    /// threads that wait for each other measure the others.
    pub load: Option<f64>,
    /// Tokens a second.
    pub ours: f64,
    /// The peer's, one for each of its settings.
    pub peer: Vec<Side>,
}

/// So many pairs of every work. `ours` measures the work of that index once and gives tokens a
/// second.
pub fn pairs(
    peer: &Peer,
    works: &[Work],
    repetitions: u32,
    thresholds: Thresholds,
    prober: &Prober,
    weight_bytes: Option<u64>,
    ours: &mut dyn FnMut(usize) -> Result<f64, Failure>,
) -> Result<Pairs, Failure> {
    let mut held: Vec<Vec<Pair>> = vec![Vec::new(); works.len()];
    let mut facts = None;
    for repetition in 0..repetitions {
        for (index, work) in works.iter().enumerate() {
            let load = load();
            let before = prober.probe();
            // Who is first changes from pair to pair, so that a drift favours neither.
            let (ours, theirs) = if repetition % 2 == 0 {
                let ours = ours(index)?;
                (ours, peer.measure(work)?)
            } else {
                let theirs = peer.measure(work)?;
                (ours(index)?, theirs)
            };
            let after = prober.probe();
            let class = thresholds.class(before, after);
            held[index].push(Pair { class, before, after, load, ours, peer: theirs.sides });
            facts.get_or_insert(theirs.facts);
        }
    }
    let works = works.iter().zip(held).map(|(work, pairs)| {
        let read = weight_bytes.filter(|_| work.kind == Kind::Generation);
        summed_up(work.to_string(), pairs, read)
    });
    let works = works.collect();
    let Thresholds { slow_below, fast_above } = thresholds;
    Ok(Pairs { slow_below, fast_above, peer: facts.unwrap_or_default(), works })
}

/// What the pairs of a work come to. `read` is what every token reads of weights.
fn summed_up(test: String, pairs: Vec<Pair>, read: Option<u64>) -> PairedWork {
    let flash_attention = better(&pairs);
    let share = |class: Class| {
        let of_class: Vec<&Pair> = pairs.iter().filter(|pair| pair.class == class).collect();
        if of_class.is_empty() {
            return None;
        }
        let ours: Vec<f64> = of_class.iter().map(|pair| pair.ours).collect();
        let peer: Vec<f64> = of_class.iter().map(|pair| theirs(pair, flash_attention)).collect();
        let ratios: Vec<f64> = ours.iter().zip(&peer).map(|(ours, peer)| ours / peer).collect();
        let probes: Vec<f64> =
            of_class.iter().flat_map(|pair| [pair.before.median, pair.after.median]).collect();
        let (least_ratio, largest_ratio) = range(&ratios);
        let (ours, peer) = (median(&ours), median(&peer));
        let (pairs, probe) = (of_class.len(), median(&probes));
        let of_probe = read.map(|bytes| bytes as f64 * ours / 1e9 / probe);
        let loads: Vec<f64> = of_class.iter().filter_map(|pair| pair.load).collect();
        let load = (!loads.is_empty()).then(|| median(&loads));
        let ratio = ours / peer;
        Some(Share { pairs, ours, peer, ratio, least_ratio, largest_ratio, probe, of_probe, load })
    };
    PairedWork {
        test,
        flash_attention,
        slow: share(Class::Slow),
        fast: share(Class::Fast),
        discarded: pairs.iter().filter(|pair| pair.class == Class::Discarded).count(),
        pairs,
    }
}

/// The first of Linux's averages.
fn load() -> Option<f64> {
    let averages = std::fs::read_to_string("/proc/loadavg").ok()?;
    averages.split_whitespace().next()?.parse().ok()
}

/// The setting with which the peer is at its best, over all pairs, the discarded ones too.
fn better(pairs: &[Pair]) -> Option<bool> {
    let settings = [false, true].into_iter().filter_map(|setting| {
        let speeds: Vec<f64> = pairs
            .iter()
            .flat_map(|pair| &pair.peer)
            .filter(|side| side.flash_attention == setting)
            .map(|side| side.tokens_per_second)
            .collect();
        (!speeds.is_empty()).then(|| (setting, median(&speeds)))
    });
    settings.max_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(setting, _)| setting)
}

/// The peer's speed in a pair at that setting, or at its best where it has none of that.
fn theirs(pair: &Pair, setting: Option<bool>) -> f64 {
    let at = pair.peer.iter().find(|side| Some(side.flash_attention) == setting);
    at.map_or_else(
        || pair.peer.iter().map(|side| side.tokens_per_second).fold(0.0, f64::max),
        |side| side.tokens_per_second,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(median: f64) -> Probe {
        Probe { best: median + 1.0, median }
    }

    fn thresholds() -> Thresholds {
        Thresholds { slow_below: 65.0, fast_above: 80.0 }
    }

    fn pair(before: f64, after: f64, ours: f64, peer: [f64; 2]) -> Pair {
        let side = |flash_attention, tokens_per_second| Side { flash_attention, tokens_per_second };
        Pair {
            class: thresholds().class(probe(before), probe(after)),
            before: probe(before),
            after: probe(after),
            load: Some(before / 100.0),
            ours,
            peer: vec![side(false, peer[0]), side(true, peer[1])],
        }
    }

    #[test]
    fn a_pair_counts_where_both_probes_say_the_same() {
        for (before, after, class) in [
            (50.0, 64.9, Class::Slow),
            (81.0, 120.0, Class::Fast),
            (50.0, 100.0, Class::Discarded),
            (100.0, 50.0, Class::Discarded),
            (70.0, 70.0, Class::Discarded),
            (64.0, 70.0, Class::Discarded),
        ] {
            assert_eq!(thresholds().class(probe(before), probe(after)), class, "{before} {after}");
        }
    }

    #[test]
    fn bounds_that_contradict_each_other_are_refused() {
        for (slow, fast) in [(80.0, 65.0), (0.0, 65.0), (f64::NAN, 80.0), (65.0, f64::INFINITY), (-1.0, 1.0)]
        {
            assert!(matches!(Thresholds::new(slow, fast), Err(Failure::Arguments(_))), "{slow} {fast}");
        }
        assert!(Thresholds::new(65.0, 65.0).is_ok());
    }

    #[test]
    fn ratios_are_of_medians_of_the_peers_better_setting() {
        let pairs = vec![
            pair(50.0, 50.0, 150.0, [90.0, 100.0]),
            pair(52.0, 54.0, 130.0, [95.0, 100.0]),
            pair(50.0, 50.0, 140.0, [120.0, 50.0]),
            pair(100.0, 100.0, 300.0, [100.0, 150.0]),
            pair(50.0, 100.0, 900.0, [1.0, 300.0]),
        ];
        let work = summed_up("tg128".to_owned(), pairs, Some(100_000_000));
        assert_eq!(work.flash_attention, Some(true));
        assert_eq!(work.discarded, 1);
        let slow = work.slow.unwrap();
        assert_eq!((slow.pairs, slow.ours, slow.peer, slow.ratio), (3, 140.0, 100.0, 1.4));
        assert_eq!((slow.least_ratio, slow.largest_ratio, slow.probe), (1.3, 2.8, 50.0));
        assert_eq!((slow.of_probe, slow.load), (Some(0.28), Some(0.5)));
        let fast = work.fast.unwrap();
        assert_eq!((fast.pairs, fast.ratio), (1, 2.0));
    }

    #[test]
    fn a_class_without_pairs_has_no_ratio() {
        let work = summed_up("pp512".to_owned(), vec![pair(70.0, 70.0, 1.0, [1.0, 1.0])], None);
        assert_eq!((work.slow, work.fast, work.discarded), (None, None, 1));
    }
}
