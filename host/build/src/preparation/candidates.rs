//! Second stage of a preparation: the targets of the request with the limits of their profiles, and
//! the formats that each is offered.

use shardwright_graph::Graph;
use shardwright_planning::profile::FoundProfile;
use shardwright_planning::request::TargetSummary;
use shardwright_vocabulary::FormatTuple;

use super::chip_choice::ChipChoice;
use crate::offers::{hedge_limits, merged, offered_formats, override_limits, targets};
use crate::options::{FORMAT_OPTION, PlanOptions};

pub(super) struct Candidates<'c> {
    /// The targets, in order of preference.
    pub(super) each: Vec<Candidate<'c>>,
    /// The formats of the request.
    pub(super) tuples: Vec<FormatTuple>,
    /// The formats that it would have without goals.
    usual: Vec<FormatTuple>,
}

/// A target whose shim was not queried yet.
pub(super) struct Candidate<'c> {
    pub(super) role: Role,
    pub(super) summary: TargetSummary,
    /// Its profile. For the CPU next to a chip, the chip's profile.
    pub(super) found: &'c FoundProfile,
    /// The formats that its profile offers. `None` for the CPU next to a chip, which is offered the
    /// formats of all targets.
    pub(super) formats: Option<Vec<FormatTuple>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The chip that the plan is for.
    Chip,
    /// A fallback that the chip's profile names.
    Fallback,
    /// The CPU next to the chip.
    Cpu,
}

impl<'c> Candidates<'c> {
    pub(super) fn of(graph: &Graph, chosen: &'c ChipChoice) -> Candidates<'c> {
        let ChipChoice { options, chip, further, .. } = chosen;
        let asked = options.recorded.planner_options.iter().any(|(name, _)| name == FORMAT_OPTION);
        let offered = |options: &PlanOptions| -> Vec<Vec<FormatTuple>> {
            let all = std::iter::once(chip).chain(further);
            all.map(|found| offered_formats(graph, &found.profile, options, asked)).collect()
        };
        let own_formats = offered(options);
        let tuples = merged(graph, &own_formats);
        let usual = merged(graph, &offered(&options.without_goals()));
        let mut targets = targets(chip, further, options);
        override_limits(&mut targets, &options.recorded.limits);
        hedge_limits(&mut targets, &options.within);
        let formats = own_formats.into_iter().map(Some).chain([None]);
        let each =
            targets.into_iter().zip(formats).enumerate().map(|(index, ((summary, found), formats))| {
                let role = match (index, &formats) {
                    (0, _) => Role::Chip,
                    (_, Some(_)) => Role::Fallback,
                    (_, None) => Role::Cpu,
                };
                Candidate { role, summary, found, formats }
            });
        Candidates { each: each.collect(), tuples, usual }
    }

    /// Returns the indices, in the formats of a request, of those that it would have without goals.
    /// Returns an empty list if these are all of them in the same order.
    pub(super) fn usual_formats(&self, formats: &[FormatTuple]) -> Vec<u32> {
        let index = |tuple: &FormatTuple| formats.iter().position(|own| own == tuple);
        let usual: Vec<usize> = self.usual.iter().filter_map(index).collect();
        match usual.iter().copied().eq(0..formats.len()) {
            true => Vec::new(),
            false => usual.into_iter().map(|index| index as u32).collect(),
        }
    }
}
