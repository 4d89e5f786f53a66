//! Products that a chip adds up in 16-bit floats, in chains that hear.
//!
//! Source: huggingface.co/runanywhere/gemma4_e4b_HNPU and gemma4_e2b_HNPU. On v81, the second
//! product of an MLP, `(gelu(gate) * up) @ down_proj`, accumulates in 16-bit floats. Replies to
//! text and pictures were right, and replies to sounds were numbers without sense. The product
//! could not be compiled in other formats alone.
//!
//! So layers have no activations in 16-bit floats if the profile states the fact and the model is
//! planned with a tower for sounds. A residual stream in 16-bit floats is not affected, because the
//! product reads integers.

use std::collections::BTreeSet;

use shardwright_planner::{Body, Cause, Reason, Request, Support};

/// Fact: the role whose products the chip adds up in 16-bit floats.
const FACT: &str = "f16-accumulation";
/// The role with the largest sums.
const ROLE: &str = "mlp-output";
/// Name of the tower for sounds.
const HEARS: &str = "clip";

/// Makes the rows of the cost table illegal in which a layer has such products. Returns a reason
/// for each target.
pub(crate) fn refuse(request: &mut Request) -> Vec<Reason> {
    if !request.model.towers.iter().any(|tower| tower == HEARS) {
        return Vec::new();
    }
    let layers = request.model.components.iter().filter_map(|component| match &component.body {
        Body::Layers(layers) => Some(layers),
        Body::Whole(_) => None,
    });
    let kinds: BTreeSet<u32> = layers.flatten().map(|layer| layer.kind).collect();
    let is_half = |activations: u32| {
        let format = request.activation_formats.get(activations as usize);
        format.is_some_and(|format| format.is_float() && format.bits == 16)
    };
    let tuples: Vec<bool> = request.formats.iter().map(|tuple| is_half(tuple.activations)).collect();
    let mut reasons = Vec::new();
    for (target, index) in request.targets.iter().zip(0_u32..) {
        if !super::is_own(target) || target.fact(FACT) != Some(ROLE) {
            continue;
        }
        let why = format!("the chip adds up products of {ROLE} in 16-bit floats, and drifts after sounds");
        let mut is_offered = false;
        let rows = request.costs.iter_mut().filter(|cost| cost.target == index);
        for cost in rows.filter(|cost| kinds.contains(&cost.kind) && cost.illegal().is_none()) {
            if tuples.get(cost.formats as usize) == Some(&true) {
                cost.support = Support::Illegal(why.clone());
                is_offered = true;
            }
        }
        if is_offered {
            reasons.push(Reason {
                shard: None,
                choice: format!("no layers with activations in 16-bit floats on `{}`", target.name),
                because: why,
                cause: Cause::Preference(FACT.to_owned()),
            });
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use shardwright_planner::Planner;
    use shardwright_planner::testing::{format, set_time};

    use super::*;
    use crate::Qualcomm;
    use crate::tests::{because, chip};

    /// Returns a request in which the second tuple is much faster, with `activations`.
    fn fast(activations: &str, fact: Option<&str>, tower: &str) -> Request {
        let builder = chip(4).times(0, 1000).formats("w8-per-channel", 1, 4);
        let builder = match fact {
            Some(role) => builder.fact("npu", FACT, role),
            None => builder,
        };
        let mut request = builder.build();
        request.activation_formats.push(format(activations));
        request.formats[1].activations = 1;
        request.model.towers = vec![tower.to_owned()];
        for cost in request.costs.iter_mut().filter(|cost| cost.formats == 1) {
            set_time(cost, 100);
        }
        request
    }

    fn is_fast(request: &Request) -> bool {
        let plan = Qualcomm::make_plan(request).unwrap();
        let mut decoder = plan.shards.iter().filter_map(|shard| shard.segment(1));
        decoder.all(|segment| segment.formats.iter().all(|formats| *formats == 1))
    }

    #[test]
    fn chains_that_hear_have_no_layers_in_16_bit_floats() {
        let hears = fast("f16", Some(ROLE), "clip");
        assert!(!is_fast(&hears));
        let said = because(&Qualcomm::make_plan(&hears).unwrap(), "activations in 16-bit floats");
        assert!(said.contains("mlp-output"), "{said}");
        for (activations, fact, tower) in [
            ("f16", Some(ROLE), "picture"),
            ("f16", None, "clip"),
            ("f16", Some("attention-output"), "clip"),
            ("f32", Some(ROLE), "clip"),
        ] {
            assert!(is_fast(&fast(activations, fact, tower)), "{activations} {fact:?} {tower}");
        }
    }
}
