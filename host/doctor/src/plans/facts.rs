//! The content of a plan as named facts that can be compared one by one.

use serde_json::Value;
use shardwright_build::{
    EntryReport, GoalReport, LayerReport, LimitUse, LossReport, PlanReport, Predicted, ReasonReport,
    ShardReport, TargetLimit,
};
use shardwright_vocabulary::TimeCost;

use super::difference::{PlanUnit, PlanValue};

/// One fact about an item.
#[derive(Clone, Debug)]
pub struct Fact {
    pub what: String,
    pub value: PlanValue,
    pub unit: PlanUnit,
}

/// A list of facts about one item.
#[derive(Default)]
pub struct Facts(pub Vec<Fact>);

impl Facts {
    fn text(&mut self, what: impl Into<String>, value: impl ToString) {
        let value = PlanValue::Text(value.to_string());
        self.0.push(Fact { what: what.into(), value, unit: PlanUnit::None });
    }

    fn number(&mut self, what: impl Into<String>, value: u64, unit: PlanUnit) {
        self.0.push(Fact { what: what.into(), value: PlanValue::Number(value), unit });
    }

    fn count(&mut self, what: impl Into<String>, value: u64) {
        self.number(what, value, PlanUnit::None);
    }

    fn bytes(&mut self, what: impl Into<String>, value: u64) {
        self.number(what, value, PlanUnit::Bytes);
    }

    fn time(&mut self, what: impl Into<String>, value: TimeCost) {
        let value = PlanValue::Time(value);
        self.0.push(Fact { what: what.into(), value, unit: PlanUnit::Microseconds });
    }

    /// Adds the time of an entry point, and the number of operations that are estimated in it.
    fn time_of(&mut self, entry: &str, time: TimeCost, uncosted: u64) {
        self.time(format!("time of {entry}"), time);
        if uncosted > 0 {
            self.count(format!("operations estimated in the time of {entry}"), uncosted);
        }
    }

    fn entries(&mut self, entries: &[EntryReport]) {
        for entry in entries {
            self.count(format!("operations of {}", entry.entry), entry.ops);
            self.time_of(&entry.entry.to_string(), entry.time, entry.uncosted_ops);
        }
    }

    fn loss(&mut self, loss: &LossReport) {
        match loss {
            LossReport::None => self.text("loss", "none"),
            LossReport::Measured { micronats } | LossReport::Expected { micronats, .. } => {
                self.number("loss", *micronats, PlanUnit::Micronats);
                self.text(
                    "provenance of the loss",
                    if matches!(loss, LossReport::Measured { .. }) { "measured" } else { "expected" },
                );
            }
            LossReport::NotMeasured { places } => {
                self.text("loss", format!("not measured in {places} places"))
            }
        }
    }

    /// Adds all leaves of a value by their paths. Items of lists use their name, if they have one.
    fn leaves(&mut self, path: &str, key: &str, value: &Value) {
        let at = if key.is_empty() { path.to_owned() } else { format!("{path}, {}", key.replace('_', " ")) };
        if let Ok(time) = serde_json::from_value::<Predicted>(value.clone()) {
            self.time(at.as_str(), time.time());
            self.count(format!("{at}, uncosted ops"), time.uncosted_ops);
            return;
        }
        match value {
            Value::Object(members) => members.iter().for_each(|(key, value)| self.leaves(&at, key, value)),
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    let name = ["phase", "name"].iter().find_map(|member| item[member].as_str());
                    let name = name.map_or_else(|| (index + 1).to_string(), str::to_owned);
                    self.leaves(&at, &name, item);
                }
            }
            Value::Number(number) => {
                let unit = match key {
                    _ if key.ends_with("bytes") => PlanUnit::Bytes,
                    "per_1000_seconds" => PlanUnit::TokensPer1000Seconds,
                    _ => PlanUnit::None,
                };
                let at = match unit {
                    PlanUnit::TokensPer1000Seconds => format!("{path}, rate"),
                    _ => at,
                };
                self.number(at, number.as_u64().unwrap_or(u64::MAX), unit);
            }
            Value::String(text) => self.text(at, text),
            Value::Bool(holds) => self.text(at, holds),
            Value::Null => {}
        }
    }

    fn limit(&mut self, used: &LimitUse) {
        let unit = unit_of(&used.name);
        self.number(format!("use of the limit on {}", used.name), used.used, unit);
        self.number(format!("limit on {}", used.name), used.limit, unit);
        self.text(format!("provenance of the limit on {}", used.name), used.provenance);
    }
}

/// Derives the unit from the name of a limit or a goal.
fn unit_of(name: &str) -> PlanUnit {
    match name {
        "quality" => PlanUnit::Micronats,
        "memory" | "size" => PlanUnit::Bytes,
        "token" | "first-token" => PlanUnit::Microseconds,
        name if name.ends_with("-bytes") => PlanUnit::Bytes,
        name if name.ends_with("-microseconds") => PlanUnit::Microseconds,
        _ => PlanUnit::None,
    }
}

/// Returns the facts of the plan as a whole.
pub fn of_plan(report: &PlanReport) -> Facts {
    let mut facts = Facts::default();
    facts.text("model", &report.model);
    facts.text("family", &report.family);
    facts.text("profile", &report.soc);
    facts.text("planner", &report.planner);
    if let Some(executor) = &report.emulated_on {
        facts.text("emulated on", executor);
    }
    facts.count("rejected plans", report.refused_plans as u64);
    if !report.fallback.is_empty() {
        let chains: Vec<String> = report.fallback.iter().map(ToString::to_string).collect();
        facts.text("fallback", chains.join(", then "));
    }
    if let Some(speculation) = &report.speculation {
        facts.text("draft that proposes tokens", &speculation.draft);
        facts.count("rows that verify them", speculation.rows.into());
        if let Some(gain) = speculation.gain_thousandths {
            facts.count("expected gain in thousandths", gain.into());
        }
        facts.text("provenance of the gain", speculation.provenance);
    }
    facts.text("cut", report.shards.iter().map(shard_name).collect::<Vec<_>>().join(" | "));
    facts
}

/// Returns the totals of all shards.
pub fn of_totals(report: &PlanReport) -> Facts {
    let totals = &report.totals;
    let mut facts = Facts::default();
    facts.bytes("weights", totals.weight_bytes);
    facts.bytes("artefacts", totals.artefacts.bytes);
    facts.text("provenance of the artefacts", totals.artefacts.provenance);
    facts.bytes("KV cache", totals.state_bytes);
    for table in &report.tables {
        facts.text(format!("table {}", table.name), table.format);
        facts.bytes(format!("bytes of table {}", table.name), table.bytes);
    }
    // Add all data about the requirements of a device, so that no difference is missed.
    facts.leaves("forecast", "", &serde_json::to_value(&report.forecast).unwrap_or_default());
    for time in &totals.times {
        let entry = time.entry.to_string();
        facts.time_of(&entry, time.time, time.uncosted_ops);
        facts.time(format!("time of calls in {entry}"), time.calls);
        let hand_off = format!("hand-off between shards in {entry}");
        facts.number(hand_off, time.hand_off_nanoseconds, PlanUnit::Nanoseconds);
        for share in &time.shares {
            let of = format!("parts of {entry} whose time is {}", share.provenance);
            facts.count(of.as_str(), share.places);
            facts.number(format!("time of the {of}"), share.microseconds, PlanUnit::Microseconds);
        }
    }
    facts.loss(&totals.loss);
    facts
}

/// Returns the facts of a goal.
pub fn of_goal(goal: &GoalReport) -> Facts {
    let unit = unit_of(goal.goal.name());
    let mut facts = Facts::default();
    facts.number("requested", goal.asked, unit);
    let likely = goal.predicted.filter(|_| unit == PlanUnit::Microseconds);
    match (goal.low, likely, goal.high, goal.provenance) {
        (Some(low), Some(likely), Some(high), Some(provenance)) => {
            facts.time("predicted", TimeCost::within(low, likely, high, provenance));
        }
        (low, _, high, provenance) => {
            let bounds = [("lowest", low), ("highest", high)];
            // The bounds of an exact number are the number.
            let bounds = bounds.into_iter().filter(|(_, bound)| *bound != goal.predicted);
            for (name, value) in [("predicted", goal.predicted)].into_iter().chain(bounds) {
                if let Some(value) = value {
                    facts.number(name, value, unit);
                }
            }
            if let Some(provenance) = provenance {
                facts.text("provenance of the prediction", provenance);
            }
        }
    }
    if let Some(verdict) = goal.verdict {
        facts.text("outcome", verdict);
    }
    facts
}

/// Returns the facts of a target's limit.
pub fn of_limit(entry: &TargetLimit) -> Facts {
    let limit = &entry.limit;
    let unit = unit_of(&limit.name);
    let mut facts = Facts::default();
    facts.number("value", limit.value, unit);
    facts.text("provenance", limit.provenance);
    facts.text("note", &limit.note);
    for relief in &limit.relief {
        let with = format!("with {}", relief.flag);
        match relief.value {
            Some(value) => facts.number(&with, value, unit),
            None => facts.text(&with, "no effect"),
        }
        facts.text(format!("note {with}"), &relief.note);
    }
    facts
}

/// Returns the facts about the use of a limit by all shards of a target.
pub fn of_use(used: &LimitUse) -> Facts {
    let mut facts = Facts::default();
    facts.limit(used);
    facts
}

/// Returns the facts of a shard, without its layers and reasons.
pub fn of_shard(shard: &ShardReport) -> Facts {
    let mut facts = Facts::default();
    facts.text("target", &shard.target);
    facts.text("formats", shard.shown_formats());
    facts.text("build", &shard.build);
    facts.count("context", shard.context.into());
    if let Some(place) = shard.softcap {
        facts.text("soft-cap", place);
    }
    for flag in &shard.flags {
        facts.text(format!("flag {}", flag.name), &flag.value);
    }
    for (direction, boundaries) in [("input", &shard.inputs), ("output", &shard.outputs)] {
        for boundary in boundaries {
            let encoding =
                boundary.encoding.map_or_else(|| "as its activations".to_owned(), |it| it.to_string());
            facts.text(format!("{direction} {}", boundary.name), encoding);
        }
    }
    facts.count("operations", shard.ops);
    facts.bytes("weights", shard.weight_bytes);
    facts.bytes("artefact", shard.artefact_bytes);
    facts.bytes("KV cache", shard.state_bytes);
    facts.entries(&shard.entries);
    for used in &shard.limits {
        facts.limit(used);
    }
    facts
}

/// Returns the facts of a layer of a shard on this target.
pub fn of_layer(layer: &LayerReport, target: &str) -> Facts {
    let mut facts = Facts::default();
    facts.text("target", target);
    facts.text("formats", layer.shown_formats());
    facts.text("kind", &layer.kind);
    facts.count("operations", layer.ops);
    facts.bytes("weights", layer.weight_bytes);
    facts.bytes("artefact", layer.artefact_bytes);
    facts.bytes("KV cache", layer.state_bytes);
    facts.loss(&layer.loss);
    facts.entries(&layer.entries);
    facts
}

/// Returns the facts of a reason.
pub fn of_reason(reason: &ReasonReport) -> Facts {
    let mut facts = Facts::default();
    facts.text("reason", &reason.because);
    facts.text("cause", &reason.cause);
    facts
}

/// Returns a shard's name as in reports of runs, such as `embed` or `decoder.0-6+head`.
pub fn shard_name(shard: &ShardReport) -> String {
    shard.segments.to_string()
}
