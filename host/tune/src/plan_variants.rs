//! The plans to try, each defined by different input to the planner.

use std::collections::BTreeMap;
use std::sync::Arc;

use shardwright_build::{FormatChoice, MeasuredTimes, PlanOptions, Unmeasured};
use shardwright_bundle::Digest;
use shardwright_vocabulary::{FormatTuple, TimeCost};

/// The way a plan is requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanVariant {
    /// Without measured times, as without tuning.
    Default,
    /// With the times measured so far, like later plans.
    Measured,
    /// With the times measured so far, and optimistic bounds for unmeasured rows.
    Hopeful,
    /// The plan in a bundle, without a request.
    Bundled,
    /// Without measured times, with a setting of the planner.
    Setting(String, String),
    /// Without measured times, with one of the offered tuples for all layers.
    Formats {
        /// Index of the tuple.
        index: usize,
        /// All offered tuples, in the order of the request.
        offered: Arc<[FormatTuple]>,
    },
}

/// The planner's setting for a tuple.
const FORMAT: &str = "format";

impl PlanVariant {
    /// Returns a description for reports.
    pub fn words(&self) -> String {
        match self {
            PlanVariant::Default => "the default plan".to_owned(),
            PlanVariant::Measured => "with the measured times".to_owned(),
            PlanVariant::Hopeful => "with the best case for unmeasured rows".to_owned(),
            PlanVariant::Bundled => "the bundle's plan".to_owned(),
            PlanVariant::Setting(name, value) => format!("--planner-option {name}={value}"),
            PlanVariant::Formats { index, offered } => {
                format!("--formats {}", offered.get(*index).map(FormatTuple::to_string).unwrap_or_default())
            }
        }
    }

    /// Returns the options for planning, based on the user's options.
    pub fn options(&self, asked: &PlanOptions, times: &BTreeMap<Digest, TimeCost>) -> PlanOptions {
        let with = |rest| MeasuredTimes::These(Arc::new(times.clone()), rest);
        let mut options = PlanOptions { times: MeasuredTimes::Ignored, ..asked.clone() };
        match self {
            PlanVariant::Default | PlanVariant::Bundled => {}
            PlanVariant::Measured => options.times = with(Unmeasured::Likely),
            PlanVariant::Hopeful => options.times = with(Unmeasured::Best),
            PlanVariant::Setting(name, value) => {
                options.recorded.planner_options.push((name.clone(), value.clone()));
            }
            PlanVariant::Formats { index, offered } => {
                // Still offer all of them, so that rows of the request keep their positions.
                options.formats = offered.iter().cloned().map(FormatChoice::Tuple).collect();
                let name = offered.get(*index).map(FormatTuple::to_string).unwrap_or_default();
                options.recorded.planner_options.push((FORMAT.to_owned(), name));
            }
        }
        options
    }
}

/// Returns every setting of a planner with a closed list of words, with each of its values.
/// Settings of the user are excluded.
pub fn settings(described: &[(String, String)], asked: &PlanOptions) -> Vec<PlanVariant> {
    let is_word = |value: &str| {
        !value.is_empty() && value.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-')
    };
    let mut found = Vec::new();
    for (name, values) in described {
        let values: Vec<&str> = values.split('|').collect();
        let is_set = asked.recorded.planner_options.iter().any(|(set, _)| set == name);
        if !is_set && values.len() > 1 && values.iter().all(|value| is_word(value)) {
            found.extend(values.iter().map(|value| PlanVariant::Setting(name.clone(), (*value).to_owned())));
        }
    }
    found
}

/// Returns each offered tuple for all layers, if there are several and the planner supports the
/// setting. Empty if the user set it. Leaves out tuples that the setting cannot select: it selects
/// the first name that begins with it, so `f32/f32/f16` cannot follow `f32/f32/f16/attention-bf16`.
pub fn formats(
    described: &[(String, String)],
    asked: &PlanOptions,
    offered: &[FormatTuple],
) -> Vec<PlanVariant> {
    let is_known = described.iter().any(|(name, _)| name == FORMAT);
    let is_set = asked.recorded.planner_options.iter().any(|(name, _)| name == FORMAT);
    if !is_known || is_set || offered.len() < 2 {
        return Vec::new();
    }
    let offered: Arc<[FormatTuple]> = offered.into();
    let names: Vec<String> = offered.iter().map(FormatTuple::to_string).collect();
    let is_selected = |index: &usize| {
        let longer = format!("{}/", names[*index]);
        !names[..*index].iter().any(|name| name.starts_with(&longer))
    };
    let selected = (0..offered.len()).filter(is_selected);
    selected.map(|index| PlanVariant::Formats { index, offered: Arc::clone(&offered) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_with_a_closed_list_of_words_are_tried() {
        let described = [
            ("join", "on|off"),
            ("format", "WEIGHTS[/ACTIVATIONS[/STATES]]"),
            ("format-gain", "0..99"),
            ("order", "time|loss, …"),
            ("build", "ahead|just-in-time"),
            ("alone", "word"),
        ]
        .map(|(name, values)| (name.to_owned(), values.to_owned()));
        let mut asked = PlanOptions::default();
        asked.recorded.planner_options = vec![("join".into(), "on".into())];
        let words: Vec<String> = settings(&described, &asked).iter().map(PlanVariant::words).collect();
        assert_eq!(words, ["--planner-option build=ahead", "--planner-option build=just-in-time"]);
    }

    #[test]
    fn offered_formats_are_tried_where_there_is_a_choice() {
        let described = [("format".to_owned(), "WEIGHTS".to_owned())];
        let asked = PlanOptions::default();
        let offered: Vec<FormatTuple> =
            ["f32", "w8-per-channel/a8-dynamic"].map(|name| name.parse().expect("a tuple")).into();
        let named = formats(&described, &asked, &offered);
        let words: Vec<String> = named.iter().map(PlanVariant::words).collect();
        assert_eq!(words, ["--formats f32/f32/f32", "--formats w8-per-channel/a8-dynamic/f32"]);
        let options = named[1].options(&asked, &BTreeMap::new());
        assert_eq!(
            options.recorded.planner_options,
            [("format".to_owned(), "w8-per-channel/a8-dynamic/f32".to_owned())]
        );
        assert_eq!(options.formats.len(), 2, "rows stay where they are");
        for (names, selected) in [(["f32/attention-f16", "f32"], 1), (["f32", "f32/attention-f16"], 2)] {
            let offered: [FormatTuple; 2] = names.map(|name| name.parse().expect("a tuple"));
            assert_eq!(formats(&described, &asked, &offered).len(), selected, "{names:?}");
        }

        assert_eq!(formats(&described, &asked, &offered[..1]), []);
        assert_eq!(formats(&[], &asked, &offered), []);
        let mut set = asked;
        set.recorded.planner_options = vec![("format".into(), "f32".into())];
        assert_eq!(formats(&described, &set, &offered), []);
    }
}
