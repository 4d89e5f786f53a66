//! The scales of the strip's bars for time, bytes and loss.

use minijinja::{Value, context};
use shardwright::{PlanReport, TimeCost};
use shardwright_build::{IntervalText, LayerReport};

use super::{all_layers, main_entry, millinats, part};
use crate::views::bytes;

/// The scales of the bars. Components without layers have their own, because a head may be many
/// times larger than a layer.
pub struct Scales {
    /// Entry point whose times are shown.
    pub entry: Option<String>,
    pub layers: Scale,
    pub components: Scale,
}

/// The values of full bars.
#[derive(Default)]
pub struct Scale {
    time: Option<TimeCost>,
    bytes: u64,
    loss: u64,
    /// Whether a loss is missing.
    is_unmeasured: bool,
}

impl Scales {
    pub fn of(report: &PlanReport) -> Self {
        let entry = main_entry(report);
        let (mut layers, mut components) = (Scale::default(), Scale::default());
        for (_, layer) in all_layers(report) {
            let largest = if layer.layer.is_some() { &mut layers } else { &mut components };
            let times = [largest.time, time(layer, entry.as_deref())].into_iter().flatten();
            largest.time = times.max_by_key(|time| time.microseconds);
            largest.bytes = largest.bytes.max(layer.weight_bytes);
            largest.loss = largest.loss.max(layer.loss.micronats().unwrap_or(0));
            largest.is_unmeasured |= layer.loss.micronats().is_none();
        }
        Scales { entry, layers, components }
    }

    /// Returns the time of the layer in words.
    pub fn time(&self, layer: &LayerReport) -> String {
        shown(time(layer, self.entry.as_deref()))
    }

    /// Returns the percentages of the bars for time, bytes and loss. `None` is an unknown value.
    pub fn tracks(&self, layer: &LayerReport) -> [Option<String>; 3] {
        let scale = if layer.layer.is_some() { &self.layers } else { &self.components };
        let percent = |value: Option<u64>, largest: u64| {
            let part = if largest == 0 { 0.0 } else { 100.0 * value? as f64 / largest as f64 };
            value.map(|_| format!("{part:.1}"))
        };
        let microseconds = |time: Option<TimeCost>| time.map_or(0, |time| time.microseconds);
        let time = microseconds(time(layer, self.entry.as_deref()));
        [
            percent(Some(time), microseconds(scale.time)),
            percent(Some(layer.weight_bytes), scale.bytes),
            percent(layer.loss.micronats(), scale.loss),
        ]
    }
}

impl Scale {
    /// Returns the values of full bars in words.
    pub fn shown(&self) -> Value {
        context! {
            time => shown(self.time),
            bytes => bytes(self.bytes),
            loss => match (self.loss, self.is_unmeasured) {
                (0, false) => "none".to_owned(),
                (0, true) => "not measured".to_owned(),
                (loss, _) => millinats(loss),
            },
        }
    }
}

/// Returns the time of a layer in an entry point, if it has work there.
fn time(layer: &LayerReport, entry: Option<&str>) -> Option<TimeCost> {
    part(layer, entry?).map(|part| part.time)
}

fn shown(time: Option<TimeCost>) -> String {
    time.map_or_else(|| "not used".to_owned(), |time| IntervalText::time(&time).to_string())
}
