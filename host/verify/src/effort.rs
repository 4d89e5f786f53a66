//! Decides how much a verification runs, and reports the rest. It does not choose the rows or
//! tokens.

use serde::Serialize;

use crate::goldens::{Evaluation, Golden};

/// Maximum amount that a verification runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Effort {
    /// Rows of each prompt that shards are run over one by one. Also tokens of each evaluation row,
    /// if not all rows are used.
    pub rows: usize,
    /// Positions of each prompt at which entry points of one row are run.
    pub steps: usize,
    /// Tokens of each prompt that are chosen greedily.
    pub greedy: usize,
    /// Number of evaluation rows. `None` for all of them, whole.
    pub evaluation: Option<usize>,
}

impl Effort {
    pub const USUAL: Effort = Effort { rows: 256, steps: 8, greedy: 64, evaluation: None };
    /// The default if a vendor's simulator runs a shard. Some simulators need seconds per step, so
    /// this needs minutes where everything would need hours.
    pub const SIMULATED: Effort = Effort { rows: 32, steps: 2, greedy: 8, evaluation: Some(4) };
}

/// The parts that the user set. The others depend on the devices that run the shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AskedEffort {
    pub(crate) all: bool,
    pub(crate) rows: Option<usize>,
    pub(crate) steps: Option<usize>,
    pub(crate) greedy: Option<usize>,
    pub(crate) evaluation: Option<usize>,
}

impl AskedEffort {
    /// Returns notices about set options that do not apply to an encoder, which always runs whole
    /// texts.
    pub(crate) fn unused(&self, is_generative: bool) -> Vec<String> {
        let AskedEffort { all, rows, steps, greedy, evaluation } = *self;
        let asked = [
            ("--all", all),
            ("--rows", rows.is_some()),
            ("--steps", steps.is_some()),
            ("--greedy", greedy.is_some()),
            ("--evaluation", evaluation.is_some()),
        ];
        let unused = asked.into_iter().filter(|(_, asked)| *asked && !is_generative);
        let reported =
            |name| format!("`{name}` is ignored: it is for models that generate, and this one embeds");
        unused.map(|(name, _)| reported(name)).collect()
    }

    /// Returns the effort, with the defaults for a simulator or for other devices.
    pub(crate) fn settled(&self, simulated: bool) -> Effort {
        let usual = if simulated && !self.all { Effort::SIMULATED } else { Effort::USUAL };
        Effort {
            rows: self.rows.unwrap_or(usual.rows),
            steps: self.steps.unwrap_or(usual.steps),
            greedy: self.greedy.unwrap_or(usual.greedy),
            evaluation: self.evaluation.or(usual.evaluation),
        }
    }
}

/// How much of the recorded data was run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EffortReport {
    /// Maximum amounts.
    #[serde(flatten)]
    pub most: Effort,
    /// Whether a vendor's simulator runs a shard.
    pub simulated: bool,
    /// Recorded data of which only a part was run.
    pub left_out: Vec<LeftOut>,
    /// How to run more, or `None` if all data was run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_more: Option<String>,
}

/// Recorded data of which only a part was run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Description of the data.
    pub what: String,
    /// Number of items that were run.
    pub taken: u64,
    /// Number of all items.
    pub of: u64,
}

impl EffortReport {
    /// Counts the data that is left out of these prompts and evaluation rows. Texts of an encoder
    /// are always run whole.
    pub(crate) fn of(
        most: Effort,
        simulated: bool,
        is_generative: bool,
        prompts: &[&Golden],
        evaluation: Option<&Evaluation>,
    ) -> Self {
        let mut left_out = Vec::new();
        let mut count = |what: &str, pairs: &mut dyn Iterator<Item = (usize, usize)>| {
            let (taken, of) = pairs.fold((0, 0), |sum, pair| (sum.0 + pair.0 as u64, sum.1 + pair.1 as u64));
            if taken < of {
                left_out.push(LeftOut { what: what.to_owned(), taken, of });
            }
        };
        if is_generative {
            let lengths = || prompts.iter().map(|golden| golden.ids.len());
            count(
                "rows of recorded prompts, through every shard alone",
                &mut lengths().map(|all| (all.min(most.rows), all)),
            );
            count(
                "positions of recorded prompts, through entry points of one row",
                &mut lengths().map(|all| (all.min(most.rows).min(most.steps), all)),
            );
            count(
                "recorded tokens, chosen greedily",
                &mut prompts.iter().map(|golden| (golden.greedy.len().min(most.greedy), golden.greedy.len())),
            );
            match evaluation {
                None => count(
                    "tokens of recorded prompts, for their likelihood",
                    &mut lengths().map(|all| (all.min(most.rows), all)),
                ),
                Some(evaluation) => {
                    let rows = &evaluation.rows;
                    let few = most.evaluation.filter(|&few| few < rows.len());
                    count("evaluation rows", &mut std::iter::once((few.unwrap_or(rows.len()), rows.len())));
                    let taken = |(index, row): (usize, &Vec<u32>)| match few {
                        Some(few) if index >= few => 0,
                        Some(_) => row.len().min(most.rows),
                        None => row.len(),
                    };
                    count(
                        "tokens of evaluation rows",
                        &mut rows.iter().enumerate().map(|pair| (taken(pair), pair.1.len())),
                    );
                }
            }
        }
        let usual = Effort::USUAL;
        let by_name = "`--rows`, `--steps`, `--greedy` and `--evaluation` set how much of each is run";
        let for_more = (!left_out.is_empty()).then(|| match simulated && most != usual {
            true => format!(
                "`--all` runs as much as without a simulator (rows {}, steps {}, greedy {}, all evaluation rows), which may take hours; {by_name}",
                usual.rows, usual.steps, usual.greedy
            ),
            false => by_name.to_owned(),
        });
        EffortReport { most, simulated, left_out, for_more }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden(tokens: usize, greedy: usize) -> Golden {
        Golden { ids: vec![1; tokens], greedy: vec![1; greedy], ..Golden::default() }
    }

    fn counts(report: &EffortReport) -> Vec<(u64, u64)> {
        report.left_out.iter().map(|left| (left.taken, left.of)).collect()
    }

    #[test]
    fn a_simulator_gets_less_unless_more_is_asked_for() {
        let nothing = AskedEffort::default();
        assert_eq!(nothing.settled(false), Effort::USUAL);
        assert_eq!(nothing.settled(true), Effort::SIMULATED);
        let all = AskedEffort { all: true, ..nothing };
        assert_eq!(all.settled(true), Effort::USUAL);
        let some = AskedEffort { greedy: Some(3), evaluation: Some(1000), ..nothing };
        let wanted = Effort { greedy: 3, evaluation: Some(1000), ..Effort::SIMULATED };
        assert_eq!(some.settled(true), wanted);
        let fewer = AskedEffort { all: true, evaluation: Some(7), ..nothing };
        assert_eq!(fewer.settled(true), Effort { evaluation: Some(7), ..Effort::USUAL });
    }

    #[test]
    fn an_encoder_takes_all_of_a_text_or_nothing() {
        let nothing = AskedEffort::default();
        assert!(nothing.unused(true).is_empty() && nothing.unused(false).is_empty());
        for (asked, name) in [
            (AskedEffort { all: true, ..nothing }, "--all"),
            (AskedEffort { rows: Some(1), ..nothing }, "--rows"),
            (AskedEffort { steps: Some(1), ..nothing }, "--steps"),
            (AskedEffort { greedy: Some(1), ..nothing }, "--greedy"),
            (AskedEffort { evaluation: Some(1), ..nothing }, "--evaluation"),
        ] {
            assert!(asked.unused(true).is_empty());
            let reported = asked.unused(false);
            assert!(reported.len() == 1 && reported[0].contains(name), "{reported:?}");
        }
    }

    #[test]
    fn what_is_left_out_is_counted_and_nothing_is_said_of_nothing() {
        let prompts = [golden(40, 10), golden(5, 4)];
        let prompts: Vec<&Golden> = prompts.iter().collect();
        let rows = vec![vec![1; 50], vec![1; 20], vec![1; 9], vec![1; 9], vec![1; 70]];
        let evaluation = Evaluation { rows, nll: 1.0 };
        let of = |most, evaluation| EffortReport::of(most, true, true, &prompts, evaluation);

        let report = of(Effort::SIMULATED, Some(&evaluation));
        let wanted = [(32 + 5, 45), (2 + 2, 45), (8 + 4, 14), (4, 5), (32 + 20 + 9 + 9, 158)];
        assert_eq!(counts(&report), wanted, "{report:?}");
        assert!(report.for_more.is_some_and(|text| text.contains("--all")));
        let report = of(Effort::SIMULATED, None);
        assert_eq!(counts(&report), [(37, 45), (4, 45), (12, 14), (37, 45)], "{report:?}");

        // All rows count as run whole, even if only few tokens of some are run.
        let most = Effort { rows: 45, steps: 45, greedy: 45, evaluation: Some(5) };
        let report = of(most, Some(&evaluation));
        assert_eq!((counts(&report), report.for_more), (vec![], None));
        // An encoder runs all of its texts.
        let report = EffortReport::of(Effort::SIMULATED, true, false, &prompts, None);
        assert_eq!(counts(&report), []);
    }
}
