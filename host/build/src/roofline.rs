//! Times of the cost table's rows as intervals, from the estimates of a shim or from the rates of a
//! device.
//!
//! A roofline is the longer of moving the bytes of a run at the memory's bandwidth and computing
//! its products at the device's rate. Real runs need longer, by factors that profiles state.

use shardwright_graph::{EntryGraph, Role};
use shardwright_planning::profile::{Decimal, Profile, Roofline, TimeFactors};
use shardwright_vocabulary::{Overhead, Provenance, TargetKind, TimeCost, overhead_names};

/// Longest time of a row, in microseconds: a thousand hours, which is also the largest that a
/// request may contain.
const LONGEST: u64 = 3_600_000_000_000;

/// Factors for estimates that were measured or probed on the device: a quarter more or less. The
/// sustained power mode of one chip was reported to need 5 % more than the fastest (GenieX pull
/// request 1447), and other work on the device can need more.
const OF_MEASUREMENTS: [u64; 3] = [800, 1000, 1250];

/// Factors for the estimates of a shim whose error no profile states. The estimate itself is the
/// likely time, because the sign of its error is unknown. The ratio of both bounds is 10. A ratio
/// of 4 covers most reports about the chips of known vendors (`docs/benchmarks/predictions.md`).
const OF_ESTIMATES: [u64; 3] = [320, 1000, 3200];

/// Rates of an accelerator without rates in a profile, in thousandths of 10⁹ bytes and of 10¹²
/// multiply-adds per second. They are in the middle of the shipped profiles, which state 26 to 135
/// and 0.8 to 25.
const ACCELERATOR: [u64; 2] = [50_000, 3_000];

/// Rates of CPU cores without rates in a profile: half of the rates that shipped profiles state for
/// phones.
const CPU: [u64; 2] = [20_000, 250];

/// Factors for rates that no profile states: a ratio of 10 around the middle of the shipped
/// factors.
const OF_RATES: [u64; 3] = [720, 2_300, 7_200];

/// Microseconds of a call of an accelerator whose profile states none: the fewest, the likely, and
/// the most of a published log (see the profiles of Qualcomm's chips).
const CALL: [u64; 3] = [100, 300, 4100];

fn factors([low, likely, high]: [u64; 3], provenance: Provenance) -> TimeFactors {
    let [low, likely, high] = [low, likely, high].map(Decimal::of_thousandths);
    TimeFactors { low, likely, high, provenance, note: String::new() }
}

/// Returns the rates of a device of this kind that has no profile.
fn usual(kind: TargetKind) -> Roofline {
    let rates = if kind == TargetKind::Cpu { CPU } else { ACCELERATOR };
    let [gigabytes_per_second, tera_operations] = rates.map(Decimal::of_thousandths);
    let TimeFactors { low, likely, high, provenance, note } = factors(OF_RATES, Provenance::Modelled);
    Roofline { gigabytes_per_second, tera_operations, low, likely, high, provenance, note }
}

/// Returns the overheads of a profile's chip. If the profile of an accelerator does not state the
/// cost of a call, the usual cost is added, because no call of one is free.
pub(crate) fn overheads(profile: &Profile) -> Vec<Overhead> {
    let mut overheads = profile.overheads.clone();
    let is_stated = overheads.iter().any(|overhead| overhead.name == overhead_names::CALL);
    if profile.kind != TargetKind::Cpu && !is_stated {
        let [low, value, high] = CALL;
        overheads.push(Overhead {
            name: overhead_names::CALL.to_owned(),
            low: Some(low),
            value,
            high: Some(high),
            provenance: Provenance::Modelled,
            note: "not stated by the profile; the range was reported for Qualcomm's chips".to_owned(),
        });
    }
    overheads
}

/// The work of one run of an entry graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Bytes moved from and to main memory.
    pub bytes: u64,
    pub multiply_adds: u64,
}

impl Work {
    /// Counts the work of an entry graph whose weights have `weight_bytes` bytes with their scales.
    /// Weights move once, and states at their capacity.
    pub fn of(entry: &EntryGraph, weight_bytes: u64) -> Work {
        // A written state is an input and an output in one buffer.
        let outputs = entry.outputs.iter().filter(|(_, role)| !matches!(role, Role::State { .. }));
        let ports = entry.inputs.iter().chain(outputs).map(|(tensor, _)| entry.tensor(*tensor).bytes());
        Work { bytes: ports.fold(weight_bytes, u64::saturating_add), multiply_adds: entry.multiply_adds() }
    }
}

/// How the times of a target's rows are estimated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeModel {
    /// Error of the shim's estimates. `None` if no profile states it.
    estimates: Option<TimeFactors>,
    /// Rates of the target, for rows without a credible estimate.
    roofline: Roofline,
}

impl TimeModel {
    /// Returns the model of a target of this kind in a machine with the chip of `profile`. The CPU
    /// next to a chip has the rates of the profile's CPU.
    pub fn of(kind: TargetKind, profile: &Profile) -> TimeModel {
        let times = &profile.times;
        let is_own = (kind == TargetKind::Cpu) == (profile.kind == TargetKind::Cpu);
        let roofline = times.roofline.as_ref().filter(|_| is_own);
        let cpu = times.cpu.as_ref().filter(|_| kind == TargetKind::Cpu);
        TimeModel {
            estimates: times.estimates.clone().filter(|_| is_own),
            roofline: roofline.or(cpu).cloned().unwrap_or_else(|| usual(kind)),
        }
    }

    /// Returns the model of a target of this kind without a profile.
    pub fn usual(kind: TargetKind) -> TimeModel {
        TimeModel { estimates: None, roofline: usual(kind) }
    }

    /// Returns the time of a row with some work and `nodes` operations, `uncosted` of which the
    /// estimate leaves out. Also returns how many operations are estimated by their share.
    ///
    /// The operations that are left out need no time at best. Otherwise they need as much as the
    /// others. Without an estimate of any operation, the rates decide.
    pub fn time(&self, estimate: Option<TimeCost>, work: Work, nodes: u64, uncosted: u64) -> (TimeCost, u64) {
        let costed = nodes.saturating_sub(uncosted);
        let Some(estimate) = estimate.filter(|_| costed > 0) else {
            return (within_reason(self.roofline.time(work.bytes, work.multiply_adds)), 0);
        };
        let factors = match (estimate.provenance, &self.estimates) {
            // A profile states the error of models and simulators, not of the device itself.
            (Provenance::Measured | Provenance::Probed, _) => factors(OF_MEASUREMENTS, estimate.provenance),
            (_, Some(stated)) => stated.clone(),
            (provenance, None) => factors(OF_ESTIMATES, provenance),
        };
        let around = |microseconds: u64| factors.around(microseconds, estimate.provenance);
        let with_the_rest = |microseconds: u64| {
            let all = u128::from(microseconds) * u128::from(nodes);
            u64::try_from(all.div_ceil(u128::from(costed))).unwrap_or(u64::MAX)
        };
        let time = TimeCost {
            low: around(estimate.low).low,
            microseconds: with_the_rest(around(estimate.microseconds).microseconds),
            high: with_the_rest(around(estimate.high).high),
            provenance: around(0).provenance,
        };
        (within_reason(time), uncosted)
    }
}

/// Limits a time to the longest that a request may contain.
fn within_reason(time: TimeCost) -> TimeCost {
    let TimeCost { low, microseconds, high, provenance } = time;
    let [low, microseconds, high] = [low, microseconds, high].map(|bound| bound.min(LONGEST));
    TimeCost::within(low, microseconds, high, provenance)
}

#[cfg(test)]
mod tests {
    use shardwright_planning::profile::{GENERIC, ProfileRegistry};

    use super::*;

    const WORK: Work = Work { bytes: 10_000_000, multiply_adds: 1_000_000 };

    fn profile(name: &str) -> Profile {
        ProfileRegistry::new().find(name).unwrap().profile
    }

    fn model(estimates: [u64; 3], roofline: [u64; 5]) -> TimeModel {
        let [gigabytes_per_second, tera_operations, low, likely, high] =
            roofline.map(Decimal::of_thousandths);
        let (provenance, note) = (Provenance::Declared, String::new());
        TimeModel {
            estimates: Some(factors(estimates, Provenance::Reported)),
            roofline: Roofline { gigabytes_per_second, tera_operations, low, likely, high, provenance, note },
        }
    }

    #[test]
    fn an_estimate_is_widened_by_the_factors_of_its_profile() {
        let model = model([1100, 1900, 4000], [10_000, 1_000, 1000, 2000, 4000]);
        let estimate = Some(TimeCost::exact(1000, Provenance::Simulated));
        let (time, shared) = model.time(estimate, WORK, 8, 0);
        assert_eq!((time, shared), (TimeCost::within(1100, 1900, 4000, Provenance::Reported), 0));
        // Two of eight operations are left out. At best they need no time.
        let (time, shared) = model.time(estimate, WORK, 8, 2);
        assert_eq!((time, shared), (TimeCost::within(1100, 2534, 5334, Provenance::Reported), 2));
        // A time that was probed on the device has the error of measurements.
        let probed = Some(TimeCost::exact(1000, Provenance::Probed));
        assert_eq!(model.time(probed, WORK, 8, 0).0, TimeCost::within(800, 1000, 1250, Provenance::Probed));
        // A shim may state an interval itself.
        let own = Some(TimeCost::within(500, 1000, 2000, Provenance::Modelled));
        let (time, _) = model.time(own, WORK, 8, 0);
        assert_eq!(time, TimeCost::within(550, 1900, 8000, Provenance::Modelled));
    }

    #[test]
    fn rates_decide_if_no_operation_is_estimated() {
        let model = model([1100, 1900, 4000], [10_000, 1_000, 1000, 2000, 4000]);
        // 10 MB at 10 GB/s are 1 ms.
        let moved = (TimeCost::within(1000, 2000, 4000, Provenance::Declared), 0);
        assert_eq!(model.time(None, WORK, 8, 0), moved);
        assert_eq!(model.time(Some(TimeCost::exact(5, Provenance::Simulated)), WORK, 8, 8), moved);
        assert_eq!(model.time(Some(TimeCost::exact(5, Provenance::Simulated)), WORK, 0, 0), moved);
        // 10^10 multiply-adds at 10^12 per second are 10 ms.
        let many = Work { multiply_adds: 10_000_000_000, ..WORK };
        assert_eq!(model.time(None, many, 8, 0).0.microseconds, 20_000);
    }

    #[test]
    fn without_factors_an_estimate_is_as_uncertain_as_its_source() {
        let model = TimeModel::usual(TargetKind::Npu);
        let time = |provenance| model.time(Some(TimeCost::exact(1000, provenance)), WORK, 1, 0).0;
        for provenance in Provenance::ALL {
            let time = time(*provenance);
            assert!(time.is_ordered() && time.low < 1000 && time.high > 1000, "{time:?}");
            assert_eq!((time.microseconds, time.provenance), (1000, *provenance));
        }
        assert!(time(Provenance::Measured).width() < time(Provenance::Simulated).width());
        assert_eq!(time(Provenance::Modelled).width(), 10_000);
        let (rates, _) = model.time(None, WORK, 1, 0);
        assert!(rates.is_ordered() && rates.width() <= 10_100, "{rates:?}");
        let (slower, _) = TimeModel::usual(TargetKind::Cpu).time(None, WORK, 1, 0);
        assert!(slower.microseconds > rates.microseconds, "{slower:?} {rates:?}");
    }

    #[test]
    fn no_time_is_longer_than_a_request_may_contain() {
        let model = model([1000, 1000, 1_000_000], [1, 1, 1000, 1000, 1_000_000]);
        let estimate = Some(TimeCost::exact(3_600_000_000, Provenance::Modelled));
        let work = Work { bytes: u64::MAX, multiply_adds: u64::MAX };
        for (time, _) in [model.time(estimate, work, 1000, 999), model.time(None, work, 1, 0)] {
            assert!(time.is_ordered() && time.high == LONGEST, "{time:?}");
        }
    }

    #[test]
    fn the_cpu_next_to_a_chip_has_rates_of_its_own() {
        let chip = profile("sm8850");
        let (own, cpu) = (TimeModel::of(TargetKind::Npu, &chip), TimeModel::of(TargetKind::Cpu, &chip));
        assert_eq!((own.estimates, Some(own.roofline)), (chip.times.estimates, chip.times.roofline));
        assert_eq!((cpu.estimates, Some(cpu.roofline)), (None, chip.times.cpu));
        let generic = profile(GENERIC);
        let any = TimeModel::of(TargetKind::Cpu, &generic);
        assert_eq!((any.estimates, Some(any.roofline)), (None, generic.times.cpu));
    }

    #[test]
    fn every_call_of_an_accelerator_has_a_cost() {
        for found in ProfileRegistry::new().list().unwrap().found {
            let profile = found.profile;
            let own = overheads(&profile);
            let calls: Vec<_> = own.iter().filter(|own| own.name == overhead_names::CALL).collect();
            match profile.kind {
                TargetKind::Cpu => assert!(calls.is_empty(), "{}", profile.name),
                _ => assert!(calls.len() == 1 && calls[0].value > 0, "{}: {calls:?}", profile.name),
            }
        }
    }
}
