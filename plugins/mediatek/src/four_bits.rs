//! 4-bit weights with a scale per channel are used only on chips and adapters that support them.
//!
//! Sources: Dimensity 9300 refuses such weights at any size and with any flags (Genio community
//! 2379). Google's plugin passes their scales to adapters from 8.2.28 on, and loses them with older
//! ones. Weights with one scale per tensor have types of their own and are not affected.

use shardwright_planner::{Cause, Format, Granularity, Reason, Request, Support, Target};

/// Fact: `refused`, or `by-version` if the adapter decides.
const FACT: &str = "four-bits-per-channel";
/// Fact: version of the adapter that is planned for.
const ADAPTER: &str = "simulated-adapter";
/// First version of the adapter with a type for them.
const FIRST: [u32; 3] = [8, 2, 28];

/// Makes the rows of the cost table illegal in which a target has such weights and does not support
/// them. Returns a reason for each target.
pub(crate) fn refuse(request: &mut Request) -> Vec<Reason> {
    let tuples = 0..u32::try_from(request.formats.len()).unwrap_or(u32::MAX);
    let has_them = |tuple: &u32| request.weight_formats_of(*tuple).any(is_four_bits_per_channel);
    let tuples: Vec<u32> = tuples.filter(has_them).collect();
    let mut reasons = Vec::new();
    for (target, index) in request.targets.iter().zip(0_u32..).filter(|(target, _)| super::is_own(target)) {
        let Some(why) = why_not(target) else { continue };
        let mut is_offered = false;
        let rows = request.costs.iter_mut().filter(|cost| cost.target == index);
        for cost in rows.filter(|cost| tuples.contains(&cost.formats) && cost.illegal().is_none()) {
            cost.support = Support::Illegal(why.clone());
            is_offered = true;
        }
        if is_offered {
            reasons.push(Reason {
                shard: None,
                choice: format!("no 4-bit weights with a scale per channel on `{}`", target.name),
                because: why,
                cause: Cause::Preference(FACT.to_owned()),
            });
        }
    }
    reasons
}

fn is_four_bits_per_channel(format: &Format) -> bool {
    let scales = format.quantisation.as_ref();
    let is_per_channel = scales.is_some_and(|own| own.granularity == Granularity::Channel);
    is_per_channel && !format.is_float() && format.bits == 4
}

/// Returns why a target does not support them, or `None` if it does or if that is unknown.
fn why_not(target: &Target) -> Option<String> {
    if target.fact(FACT) == Some("refused") {
        return Some(format!("the chip refuses them at any size, according to the fact `{FACT}`"));
    }
    let adapter = target.fact(ADAPTER)?;
    let [major, minor, patch] = FIRST;
    (version(adapter)? < FIRST).then(|| {
        format!(
            "adapter {adapter} would lose their scales, which adapters from {major}.{minor}.{patch} on keep"
        )
    })
}

/// Parses a version of three numbers.
fn version(text: &str) -> Option<[u32; 3]> {
    let parts: Option<Vec<u32>> = text.split('.').map(|part| part.parse().ok()).collect();
    parts?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use shardwright_planner::testing::{RequestBuilder, set_time};
    use shardwright_planner::{Plan, Planner, Shard};

    use super::*;
    use crate::MediaTek;
    use crate::tests::chip;

    /// Returns a request in which `weights` are much faster than the first formats.
    fn fast(builder: RequestBuilder, weights: &str) -> Request {
        let mut request = builder.times(0, 1000).formats(weights, 1, 8).build();
        for cost in request.costs.iter_mut().filter(|cost| cost.formats == 1) {
            set_time(cost, 100);
        }
        request
    }

    fn has_four_bits(request: &Request) -> (bool, Plan) {
        let plan = MediaTek::make_plan(request).unwrap();
        let is_used = plan.shards.iter().flat_map(Shard::formats).all(|formats| formats == 1);
        (is_used, plan)
    }

    #[test]
    fn a_chip_that_refuses_them_does_not_get_them() {
        let refused = || chip(4).fact("npu", FACT, "refused");
        let (is_used, plan) = has_four_bits(&fast(refused(), "w4-per-channel"));
        assert!(!is_used);
        let said = plan.reasons.iter().find(|reason| reason.cause == Cause::Preference(FACT.to_owned()));
        assert_eq!(said.unwrap().choice, "no 4-bit weights with a scale per channel on `npu`");
        for weights in ["w4-per-tensor", "w4-block32", "w8-per-channel"] {
            let (is_used, plan) = has_four_bits(&fast(refused(), weights));
            assert!(is_used, "{weights}: {:?}", plan.reasons);
        }
        let by_version = chip(4).fact("npu", FACT, "by-version");
        assert!(has_four_bits(&fast(by_version, "w4-per-channel")).0);
        let of_another = RequestBuilder::decoder(4).fact("npu", FACT, "refused");
        assert!(has_four_bits(&fast(of_another, "w4-per-channel")).0);
    }

    #[test]
    fn the_version_of_the_adapter_decides() {
        for (adapter, is_kept) in [("8.2.27", false), ("8.2.28", true), ("9.0.0", true), ("new", true)] {
            let request = fast(chip(4).fact("npu", ADAPTER, adapter), "w4-per-channel");
            assert_eq!(has_four_bits(&request).0, is_kept, "{adapter}");
        }
    }
}
