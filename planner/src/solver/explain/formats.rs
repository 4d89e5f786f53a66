//! Why a shard is in its formats.

use super::super::bounds::TargetBounds;
use super::super::{Placement, Solution, Trade, is_admitted};
use crate::table::{CostTable, Prefix, call_of, runtime_of, units_of};
use crate::{Cause, Provenance, Request};

const LEAST_LOSS: &str = "nothing within the goals loses less";

/// The goal that decides between formats.
fn goal_in_losses(request: &Request) -> Cause {
    let goals = &request.goals;
    let name = match goals.least_loss {
        false => "quality",
        true if goals.size_bytes.is_some() => "size",
        true if goals.memory_bytes.is_some() => "memory-bytes",
        true => "time",
    };
    Cause::Goal(name.to_owned())
}

impl Solution {
    /// The formats of a shard, the reason with times where they are known, and its cause.
    pub(super) fn explain_formats(
        &self,
        request: &Request,
        placement: &Placement,
    ) -> (String, String, Cause) {
        match placement.uniform_formats() {
            Some(formats) => {
                let (because, cause) = self.explain_uniform(request, placement, formats);
                (request.formats_name(formats), because, cause)
            }
            None => self.explain_mixture(request, placement),
        }
    }

    /// Layers in different formats: which, and how good the mixture is.
    fn explain_mixture(&self, request: &Request, placement: &Placement) -> (String, String, Cause) {
        let mut counts: std::collections::BTreeMap<u32, usize> = std::collections::BTreeMap::new();
        placement.formats().for_each(|formats| *counts.entry(formats).or_default() += 1);
        let parts = counts.iter().map(|(formats, count)| {
            // A component without layers counts as one.
            let layers = if *count == 1 { "layer" } else { "layers" };
            format!("{count} {layers} in {}", request.formats_name(*formats))
        });
        let choice = parts.collect::<Vec<_>>().join(", ");
        if !request.weighs_losses() {
            return (
                choice,
                "some of the layers want other formats".to_owned(),
                Cause::Preference("wanted".to_owned()),
            );
        }
        let because = match self.mixed {
            Some(bound)
                if bound.trade == Trade::LossForTime && !self.timed[placement.target as usize] =>
            {
                "the layers that lose least for the bytes they save are in the narrower formats: no times are known \
                 here, and decode reads every weight"
                    .to_owned()
            }
            Some(bound) if bound.trade == Trade::LossForTime && self.settings.gain_within_goal > 0 => format!(
                "the layers that lose least for the time they save are in the faster formats; those not named first \
                 have to save {} %",
                self.settings.gain_within_goal
            ),
            Some(bound) if bound.trade == Trade::LossForTime && bound.value <= bound.least.saturating_add(1) => {
                "the layers that lose least for the time they save are in the faster formats; no mixture is faster \
                 within the quality goal"
                    .to_owned()
            }
            Some(bound) if bound.trade == Trade::LossForTime => format!(
                "the layers that lose least for the time they save are in the faster formats; {} µs, and no mixture \
                 of these shards takes less than {} within the quality goal",
                bound.value, bound.least
            ),
            Some(bound) if bound.value <= bound.least.saturating_add(1) => {
                format!("the layers that gain most have the finer formats; {LEAST_LOSS}")
            }
            Some(bound) => format!(
                "the layers that gain most have the finer formats; {} millionths are lost, and no mixture of these \
                 shards loses less than {} within the goals",
                bound.value, bound.least
            ),
            None if request.goals.least_loss => LEAST_LOSS.to_owned(),
            None => "the layers share what the quality goal allows".to_owned(),
        };
        (choice, because, goal_in_losses(request))
    }

    /// Why all layers of a shard have one format tuple.
    fn explain_uniform(&self, request: &Request, placement: &Placement, formats: u32) -> (String, Cause) {
        let order = || Cause::Preference("formats-order".to_owned());
        if self.settings.formats == Some(formats) {
            return ("asked for".to_owned(), Cause::Preference("format".to_owned()));
        }
        if self.settings.wanted.iter().any(|wanted| wanted.touches(placement)) {
            return ("some of its layers want them".to_owned(), Cause::Preference("wanted".to_owned()));
        }
        if request.formats.len() == 1 {
            return ("the only formats offered".to_owned(), order());
        }
        if request.goals.least_loss {
            return (LEAST_LOSS.to_owned(), goal_in_losses(request));
        }
        let others = self.others(request, placement);
        match placement.cost.time.filter(|_| self.timed.contains(&true)) {
            Some(own) if formats == 0 => self.explain_first(request, placement, own, &others),
            Some(own) => explain_later(request, own, &others),
            None if formats == 0 => ("the formats named first".to_owned(), order()),
            None => {
                let goals = &request.goals;
                let cause = match (goals.memory_bytes, goals.quality_micronats) {
                    (Some(_), _) => Cause::Goal("memory-bytes".to_owned()),
                    (None, Some(_)) => Cause::Goal("quality".to_owned()),
                    (None, None) => Cause::Cost("shards".to_owned()),
                };
                ("formats named earlier are illegal here, or cost more".to_owned(), cause)
            }
        }
    }

    /// The formats named first, beside the fastest others.
    fn explain_first(
        &self,
        request: &Request,
        placement: &Placement,
        own: u64,
        others: &[(u32, Option<u64>)],
    ) -> (String, Cause) {
        let order = || Cause::Preference("formats-order".to_owned());
        let timed = others.iter().filter_map(|&(formats, time)| Some((time?, formats)));
        let Some((time, formats)) = timed.min() else {
            return (
                format!("the formats named first, {own} µs; no others with a known time are taken here"),
                order(),
            );
        };
        let name = request.formats_name(formats);
        if time >= own {
            let because =
                format!("the formats named first, and no others are faster: {own} µs, {name} takes {time}");
            return (because, Cause::Cost("time".to_owned()));
        }
        let faster = format!("the formats named first, {own} µs; {name} takes {time}");
        if request.goals.quality_micronats.is_some() && self.settings.gain_within_goal == 0 {
            return (
                format!("{faster}, and is no gain within the quality goal"),
                Cause::Goal("quality".to_owned()),
            );
        }
        if request.goals.quality_micronats.is_none() && is_modelled(request, placement.target) {
            return (format!("{faster} by a formula, which is no ground to leave them"), order());
        }
        let rest = u128::from(100_u32.saturating_sub(self.settings.gain));
        match u128::from(time) * 100 >= u128::from(own) * rest {
            true => (format!("{faster}, which saves less than {} %", self.settings.gain), order()),
            false => (format!("{faster}, and costs more in the whole chain"), Cause::Cost("time".to_owned())),
        }
    }

    /// Other formats that the target supports for the same layers, with their time where it is
    /// known.
    fn others(&self, request: &Request, placement: &Placement) -> Vec<(u32, Option<u64>)> {
        let table = CostTable::new(request);
        let kinds = units_of(request, &placement.segments, placement.softcap);
        let kinds: Vec<u32> = kinds.into_iter().map(|(kind, _)| kind).collect();
        let more = self.relieving_flags(placement.target);
        let limits = TargetBounds::new(&request.targets[placement.target as usize], &more);
        let runtime = runtime_of(request, &placement.segments, placement.softcap);
        let count = u32::try_from(request.formats.len()).unwrap_or(u32::MAX);
        (0..count)
            .filter(|&formats| placement.uniform_formats() != Some(formats) && is_admitted(request, formats))
            .filter_map(|formats| {
                let place = (placement.target, formats);
                let prefix = Prefix::of_kinds(request, &table, &kinds, place, &self.entries);
                let cost = prefix.range(0, kinds.len())?;
                let fits = limits.exceeded(&cost).is_none();
                let cost = cost.called(call_of(request, placement.target));
                fits.then_some((formats, cost.time.map(|time| time.saturating_add(runtime))))
            })
            .collect()
    }
}

/// Formats that are not named first.
fn explain_later(request: &Request, own: u64, others: &[(u32, Option<u64>)]) -> (String, Cause) {
    let first = request.formats_name(0);
    let cause = match request.goals.quality_micronats {
        Some(_) => Cause::Goal("quality".to_owned()),
        None => Cause::Cost("time".to_owned()),
    };
    let because = match others.iter().find(|(formats, _)| *formats == 0) {
        None => format!("{own} µs; {first}, named first, is illegal here"),
        Some((_, None)) => format!("{own} µs; the time of {first}, named first, is not known"),
        Some((_, Some(time))) => format!("{own} µs instead of {time} in {first}, named first"),
    };
    (because, cause)
}

/// Whether a time of the target is a formula's.
fn is_modelled(request: &Request, target: u32) -> bool {
    let modelled = |cost: &&crate::Cost| {
        cost.target == target && cost.time.is_some_and(|time| time.provenance == Provenance::Modelled)
    };
    request.costs.iter().find(modelled).is_some()
}
