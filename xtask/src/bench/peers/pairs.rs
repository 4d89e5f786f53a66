//! Our program and a peer, alternating: the two runs of a pair are within seconds of each other,
//! between two probes of the memory bandwidth.

use std::fs;

use serde_json::{Value, json};
use shardwright_measure::{Probe, Prober, median, range};

use crate::error::Error;

/// Variable with the bandwidths below and above which a pair counts as slow or fast.
const BOUNDS_VARIABLE: &str = "SHARDWRIGHT_PEER_MEMORY";

/// One measurement, named as in our report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// Name such as `pp512` or `tg128 @ d4096`.
    pub test: String,
    pub prompt: u64,
    pub generated: u64,
    pub depth: u64,
    /// Whether every logit of every step must be computed.
    pub all_logits: bool,
}

impl Work {
    /// Returns the measurements of our report.
    pub fn of(report: &Value) -> Vec<Work> {
        let results = report["results"].as_array().map_or(&[][..], Vec::as_slice);
        let works = results.iter().map(|result| {
            let test = result["test"].as_str().unwrap_or_default().to_owned();
            let (tokens, depth) = (result["tokens"].as_u64(), result["depth"].as_u64());
            let prompt = test.starts_with("pp");
            let of = |kind: bool| if kind { tokens.unwrap_or(0) } else { 0 };
            Work {
                prompt: of(prompt),
                generated: of(!prompt),
                depth: depth.unwrap_or(0),
                all_logits: result["logits"] == "all",
                test,
            }
        });
        works.collect()
    }

    /// Returns the sizes as options of both programs.
    pub fn sizes(&self) -> [(&'static str, u64); 3] {
        [("-p", self.prompt), ("-n", self.generated), ("-d", self.depth)]
    }
}

/// The bandwidths below and above which a pair counts as slow or fast, in GB/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    slow_below: f64,
    fast_above: f64,
}

impl Bounds {
    /// Reads the variable, or returns the default.
    pub fn wanted() -> Result<Bounds, Error> {
        match std::env::var(BOUNDS_VARIABLE) {
            Ok(said) if !said.is_empty() => Bounds::read(&said),
            _ => Ok(Bounds { slow_below: 65.0, fast_above: 80.0 }),
        }
    }

    fn read(said: &str) -> Result<Bounds, Error> {
        let bounds = said.split_once(',').and_then(|(slow, fast)| {
            let (slow_below, fast_above) = (slow.trim().parse().ok()?, fast.trim().parse().ok()?);
            Some(Bounds { slow_below, fast_above })
        });
        let sound = |bounds: &Bounds| {
            bounds.slow_below > 0.0 && bounds.fast_above.is_finite() && bounds.slow_below <= bounds.fast_above
        };
        bounds.filter(sound).ok_or_else(|| Error::Variable {
            name: BOUNDS_VARIABLE,
            value: said.to_owned(),
            expected: "two speeds in GB/s such as 65,80, the first positive and no more than the second",
        })
    }

    /// Returns the class of the memory bandwidth around a pair, from the median pass of each probe.
    /// Pairs between the bounds, or with different classes before and after, are discarded.
    fn class(self, before: Probe, after: Probe) -> &'static str {
        let probes = [before.median, after.median];
        if probes.iter().all(|&probe| probe < self.slow_below) {
            "slow"
        } else if probes.iter().all(|&probe| probe > self.fast_above) {
            "fast"
        } else {
            "discarded"
        }
    }
}

/// One run of our program.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Tokens per second.
    pub speed: f64,
    /// Share of the resident artefacts that is in huge pages, if the program reports it.
    pub huge: Option<f64>,
}

/// One run of each program, between two probes.
#[derive(Clone, Debug)]
struct Pair {
    class: &'static str,
    before: Probe,
    after: Probe,
    /// Average number of programs that ran or waited to run in the minute before (Linux). If
    /// threads are pinned and wait for each other, other load affects the measurement.
    load: Option<f64>,
    ours: Run,
    /// Tokens per second of the peer, for each of its settings.
    peer: Vec<f64>,
}

/// Measures a work once and returns our run, or the peer's tokens per second for each setting.
pub type Turn<'a, T> = &'a mut dyn FnMut(&Work) -> Result<T, Error>;

/// Measures a number of pairs of every work and summarises them. `weight_bytes` is the number of
/// bytes read to generate a token with all logits.
pub fn pairs(
    works: &[Work],
    count: usize,
    bounds: Bounds,
    prober: &Prober,
    weight_bytes: Option<u64>,
    ours: Turn<'_, Run>,
    theirs: Turn<'_, Vec<f64>>,
) -> Result<Value, Error> {
    let mut measured: Vec<Vec<Pair>> = vec![Vec::new(); works.len()];
    for turn in 0..count {
        for (work, pairs) in works.iter().zip(&mut measured) {
            let load = load();
            let before = prober.probe();
            // The order alternates from pair to pair, so that a drift favours neither.
            let (ours, peer) = if turn % 2 == 0 {
                let ours = ours(work)?;
                (ours, theirs(work)?)
            } else {
                let peer = theirs(work)?;
                (ours(work)?, peer)
            };
            let after = prober.probe();
            pairs.push(Pair { class: bounds.class(before, after), before, after, load, ours, peer });
        }
    }
    let works = works.iter().zip(&measured).map(|(work, pairs)| {
        let read = weight_bytes.filter(|_| work.generated > 0 && work.all_logits);
        summed_up(&work.test, pairs, read)
    });
    let works = works.collect::<Vec<_>>();
    Ok(json!({ "slow_below": bounds.slow_below, "fast_above": bounds.fast_above, "works": works }))
}

/// Summarises the pairs of a work. `read` is the number of bytes read per token.
fn summed_up(test: &str, pairs: &[Pair], read: Option<u64>) -> Value {
    let setting = better(pairs);
    let share = |class: &str| {
        let of_class: Vec<&Pair> = pairs.iter().filter(|pair| pair.class == class).collect();
        if of_class.is_empty() {
            return Value::Null;
        }
        let of = |value: fn(&Pair) -> f64| of_class.iter().map(|pair| value(pair)).collect::<Vec<f64>>();
        let peer: Vec<f64> = of_class.iter().map(|pair| pair.peer[setting]).collect();
        let ratios = of_class.iter().zip(&peer).map(|(pair, peer)| pair.ours.speed / peer);
        let ratios: Vec<f64> = ratios.collect();
        let probe = median(&[of(|pair| pair.before.median), of(|pair| pair.after.median)].concat());
        let (least_ratio, largest_ratio) = range(&ratios);
        let (ours, peer) = (median(&of(|pair| pair.ours.speed)), median(&peer));
        let known = |value: fn(&Pair) -> Option<f64>| {
            let values: Vec<f64> = of_class.iter().filter_map(|pair| value(pair)).collect();
            (!values.is_empty()).then(|| median(&values))
        };
        json!({
            "pairs": of_class.len(),
            "ours": ours,
            "peer": peer,
            "ratio": ours / peer,
            "least_ratio": least_ratio,
            "largest_ratio": largest_ratio,
            "probe": probe,
            "of_probe": read.map(|bytes| bytes as f64 * ours / 1e9 / probe),
            "load": known(|pair| pair.load),
            "huge": known(|pair| pair.ours.huge),
        })
    };
    let shown = |probe: Probe| json!({ "best": probe.best, "median": probe.median });
    let all = pairs.iter().map(|pair| {
        json!({
            "class": pair.class,
            "before": shown(pair.before),
            "after": shown(pair.after),
            "load": pair.load,
            "ours": pair.ours.speed,
            "huge": pair.ours.huge,
            "peer": pair.peer,
        })
    });
    json!({
        "test": test,
        // The peer's other setting, if it has one.
        "flash_attention": pairs.iter().all(|pair| pair.peer.len() == 2).then_some(setting == 1),
        "slow": share("slow"),
        "fast": share("fast"),
        "discarded": pairs.iter().filter(|pair| pair.class == "discarded").count(),
        "pairs": all.collect::<Vec<_>>(),
    })
}

/// Returns the peer's better setting, over all pairs, including discarded ones.
fn better(pairs: &[Pair]) -> usize {
    let settings = 0..pairs.iter().map(|pair| pair.peer.len()).min().unwrap_or(0);
    let speed = |setting: usize| median(&pairs.iter().map(|pair| pair.peer[setting]).collect::<Vec<_>>());
    settings.max_by(|&one, &other| speed(one).total_cmp(&speed(other))).unwrap_or(0)
}

/// Returns the first of Linux's load averages.
fn load() -> Option<f64> {
    let averages = fs::read_to_string("/proc/loadavg").ok()?;
    averages.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { slow_below: 65.0, fast_above: 80.0 };

    fn pair(before: f64, after: f64, ours: f64, peer: [f64; 2]) -> Pair {
        let probe = |median: f64| Probe { best: median + 1.0, median };
        let (before, after) = (probe(before), probe(after));
        let (class, load) = (BOUNDS.class(before, after), Some(before.median / 100.0));
        // Each pair has another share.
        let ours = Run { speed: ours, huge: Some(ours / 1000.0) };
        Pair { class, before, after, load, ours, peer: peer.to_vec() }
    }

    #[test]
    fn a_pair_counts_where_both_probes_say_the_same() {
        for (before, after, class) in [
            (50.0, 64.9, "slow"),
            (81.0, 120.0, "fast"),
            (50.0, 100.0, "discarded"),
            (100.0, 50.0, "discarded"),
            (70.0, 70.0, "discarded"),
            (64.0, 70.0, "discarded"),
        ] {
            assert_eq!(pair(before, after, 1.0, [1.0; 2]).class, class, "{before} {after}");
        }
    }

    #[test]
    fn bounds_that_contradict_each_other_are_refused() {
        for wrong in ["80,65", "0,65", "NaN,80", "65,inf", "-1,1", "65", "slow,fast"] {
            let error = Bounds::read(wrong).unwrap_err();
            assert!(matches!(&error, Error::Variable { name: BOUNDS_VARIABLE, .. }), "{wrong}: {error}");
        }
        assert_eq!(Bounds::read("65, 80").unwrap(), BOUNDS);
        assert!(Bounds::read("65,65").is_ok());
    }

    #[test]
    fn ratios_are_of_medians_of_the_peers_better_setting() {
        let pairs = [
            pair(50.0, 50.0, 150.0, [90.0, 100.0]),
            pair(52.0, 54.0, 130.0, [95.0, 100.0]),
            pair(50.0, 50.0, 140.0, [120.0, 50.0]),
            pair(100.0, 100.0, 300.0, [100.0, 150.0]),
            pair(50.0, 100.0, 900.0, [1.0, 300.0]),
        ];
        let work = summed_up("tg128", &pairs, Some(100_000_000));
        assert_eq!((&work["flash_attention"], &work["discarded"]), (&json!(true), &json!(1)));
        let slow = json!({
            "pairs": 3, "ours": 140.0, "peer": 100.0, "ratio": 1.4, "least_ratio": 1.3, "largest_ratio": 2.8,
            "probe": 50.0, "of_probe": 0.28, "load": 0.5, "huge": 0.14
        });
        assert_eq!(work["slow"], slow);
        assert_eq!((&work["fast"]["pairs"], &work["fast"]["ratio"]), (&json!(1), &json!(2.0)));
        assert_eq!(work["pairs"][0]["before"], json!({ "best": 51.0, "median": 50.0 }));
    }

    #[test]
    fn a_class_without_pairs_has_no_ratio() {
        let work = summed_up("pp512", &[pair(70.0, 70.0, 1.0, [1.0, 1.0])], None);
        assert_eq!(
            (&work["slow"], &work["fast"], &work["discarded"]),
            (&Value::Null, &Value::Null, &json!(1))
        );
    }

    #[test]
    fn two_programs_take_turns_and_change_who_is_first() {
        let report = json!({ "results": [
            { "test": "pp8", "tokens": 8, "depth": 0, "logits": "all" },
            { "test": "tg4 @ d3", "tokens": 4, "depth": 3, "logits": "all" },
        ] });
        let works = Work::of(&report);
        let sizes: Vec<_> = works.iter().map(|work| (work.prompt, work.generated, work.depth)).collect();
        assert_eq!(sizes, [(8, 0, 0), (0, 4, 3)]);
        let order = std::cell::RefCell::new(Vec::new());
        let said = |who: &str, work: &Work| order.borrow_mut().push(format!("{who} {}", work.test));
        // No memory bandwidth is between these bounds.
        let sure = Bounds { slow_below: 1e9, fast_above: 1e9 };
        let pairs = pairs(
            &works,
            2,
            sure,
            &Prober::new(1).expect("a mebibyte"),
            Some(1_000_000_000),
            &mut |work| {
                said("ours", work);
                Ok(Run { speed: 6.0, huge: None })
            },
            &mut |work| {
                said("theirs", work);
                Ok(if work.prompt > 0 { vec![3.0, 2.0] } else { vec![1.0, 4.0] })
            },
        )
        .unwrap();
        let turns = ["ours pp8", "theirs pp8", "ours tg4 @ d3", "theirs tg4 @ d3"];
        let back = ["theirs pp8", "ours pp8", "theirs tg4 @ d3", "ours tg4 @ d3"];
        assert_eq!(*order.borrow(), [turns, back].concat());
        for (index, (flash, ratio)) in [(false, 2.0), (true, 1.5)].into_iter().enumerate() {
            let work = &pairs["works"][index];
            assert_eq!((&work["flash_attention"], &work["slow"]["ratio"]), (&json!(flash), &json!(ratio)));
            assert!(work["slow"]["huge"].is_null());
            // A prompt reads weights once for many tokens.
            assert_eq!(work["slow"]["of_probe"].is_f64(), index == 1);
        }
    }
}
