//! Preferences that a policy can state in one line: formats of some layers, the maximum number of
//! shards of a component, and the order of goals.

use super::search::Sums;
use crate::{Refusal, RefusalKind, Request};

/// A weight format that some layers must have. Layers of one shard may differ in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedFormat {
    /// Index of the component.
    pub component: u32,
    /// First layer. Ignored for a component without layers.
    pub first: u32,
    /// One past the last layer.
    pub end: u32,
    /// Role of the weights that must have it, one of [`names::ROLES`](crate::names::ROLES). `None`:
    /// all weights of these layers. Exceptions of a tuple for other components, such as `head` for
    /// decoder layers, are ignored.
    pub role: Option<String>,
    /// Name of the format. A tuple of the request must have it.
    pub format: String,
}

impl WantedFormat {
    fn is_of(&self, component: u32, unit: usize, layered: bool) -> bool {
        let unit = u32::try_from(unit).unwrap_or(u32::MAX);
        self.component == component && (!layered || (self.first..self.end).contains(&unit))
    }

    /// Returns whether a unit of the component has the format in a tuple.
    fn is_met_by(&self, request: &Request, unit: u32, formats: u32) -> bool {
        let named = |index: u32| {
            request.weight_formats.get(index as usize).is_some_and(|format| format.name == self.format)
        };
        let Some(tuple) = request.formats.get(formats as usize) else { return false };
        match &self.role {
            Some(role) => named(tuple.weight(role)),
            None => {
                let others = tuple.roles.iter().filter(|entry| !named(entry.format));
                named(tuple.weights)
                    && others.map(|entry| &entry.role).all(|role| !self.has_role(request, unit, role))
            }
        }
    }

    /// Returns whether a unit has weights of a role. This depends on its sensitivities, or without
    /// any on whether another component has the role's name.
    fn has_role(&self, request: &Request, unit: u32, role: &str) -> bool {
        let own = request.sensitivities.iter();
        let mut own = own.filter(|row| (row.component, row.layer) == (self.component, unit)).peekable();
        match own.peek() {
            Some(_) => own.any(|row| row.role == role),
            None => request.component_named(role).is_none_or(|component| component == self.component),
        }
    }

    /// Returns the weight formats that some tuple of the request has for all these layers, in
    /// order.
    pub fn possible<'r>(&self, request: &'r Request) -> Vec<&'r str> {
        let names = request.weight_formats.iter().map(|format| format.name.as_str());
        let of =
            |name: &&str| WantedFormat { format: (*name).to_owned(), ..self.clone() }.is_offered(request);
        names.filter(of).collect()
    }

    /// Returns whether each of these layers has the format in some tuple of the request.
    fn is_offered(&self, request: &Request) -> bool {
        let tuples = 0..u32::try_from(request.formats.len()).unwrap_or(u32::MAX);
        let layers = if self.end > self.first { self.first..self.end } else { 0..1 };
        layers.into_iter().all(|unit| tuples.clone().any(|tuple| self.is_met_by(request, unit, tuple)))
    }
}

/// A format tuple that a unit must not have on a target, because the target computes it wrongly
/// there. Other layers of the same kind may have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Barred {
    /// Index of the component.
    pub component: u32,
    /// Index of the layer. 0 for a component without layers.
    pub unit: u32,
    /// Index of the target.
    pub target: u32,
    /// Index of the format tuple.
    pub formats: u32,
}

/// Constraints on the formats of units on one target.
#[derive(Clone, Copy)]
pub(super) struct Demands<'a> {
    pub(super) request: &'a Request,
    pub(super) wanted: &'a [WantedFormat],
    pub(super) barred: &'a [Barred],
    pub(super) target: u32,
}

impl Demands<'_> {
    /// Returns whether a unit may have a tuple. The unit is (component, unit, whether it is a
    /// layer).
    pub(super) fn allow(&self, (component, unit, layered): (u32, usize, bool), formats: u32) -> bool {
        let place =
            Barred { component, unit: u32::try_from(unit).unwrap_or(u32::MAX), target: self.target, formats };
        let mut wanted = self.wanted.iter();
        !self.barred.contains(&place)
            && wanted.all(|wanted| {
                !wanted.is_of(component, unit, layered) || wanted.is_met_by(self.request, place.unit, formats)
            })
    }

    /// Returns the cumulative number of units of a component that must not have their tuples.
    pub(super) fn violations(&self, component: u32, layered: bool, formats: &[u32]) -> Vec<u32> {
        let mut counts = vec![0_u32];
        for (unit, &formats) in formats.iter().enumerate() {
            let met = self.allow((component, unit, layered), formats);
            counts.push(counts[unit] + u32::from(!met));
        }
        counts
    }
}

/// Refuses formats that no tuple of the request has for these layers.
pub(super) fn check(request: &Request, wanted: &[WantedFormat]) -> Result<(), Refusal> {
    let Some(missing) = wanted.iter().find(|wanted| !wanted.is_offered(request)) else { return Ok(()) };
    let component = request.model.components.get(missing.component as usize);
    let component = component.map_or("an unknown component", |component| &component.name);
    let of = missing.role.as_ref().map_or_else(String::new, |role| format!(" for {role}"));
    let message = format!(
        "no offered formats store the weights of {component}{of} as {}; {}",
        missing.format,
        offered(&missing.possible(request))
    );
    Err(Refusal::new(RefusalKind::Unsupported, message).with("format", &missing.format))
}

/// Describes the offered formats, for an error message.
pub fn offered(formats: &[&str]) -> String {
    match formats {
        [] => "no format is offered there; use `--formats` to offer others".to_owned(),
        _ => format!("offered there: {}; use `--formats` to offer others", formats.join(", ")),
    }
}

/// A part of the objective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Goal {
    /// Layers on the targets of the first rank. Targets whose times are equally certain share one.
    Targets,
    /// Least loss, if the request or the policy has this goal.
    Loss,
    /// Least likely time per generated token.
    Time,
    /// Fewest shards.
    Shards,
    /// The formats that the request lists first.
    Formats,
}

impl Goal {
    /// All goals, the most important first, in the default order of the solver.
    pub const ALL: [Goal; 5] = [Goal::Targets, Goal::Loss, Goal::Time, Goal::Shards, Goal::Formats];

    /// Returns the name in options and reasons.
    pub const fn name(self) -> &'static str {
        match self {
            Goal::Targets => "targets",
            Goal::Loss => "loss",
            Goal::Time => "time",
            Goal::Shards => "shards",
            Goal::Formats => "formats",
        }
    }
}

/// Returns sums in the order of importance: first the goals in `order`, then the others in their
/// default order.
pub(super) fn in_order(sums: Sums, order: &[Goal]) -> Sums {
    if order.is_empty() {
        return sums;
    }
    let mut places = order.iter().copied().chain(Goal::ALL).collect::<Vec<_>>();
    let mut seen = [false; Goal::ALL.len()];
    places.retain(|goal| !std::mem::replace(&mut seen[*goal as usize], true));
    let mut ordered = sums;
    for (to, goal) in ordered.iter_mut().zip(places) {
        *to = sums[goal as usize];
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_that_are_named_come_first() {
        let sums = [0, 1, 2, 3, 4];
        assert_eq!(in_order(sums, &[]), sums);
        assert_eq!(in_order(sums, &[Goal::Formats, Goal::Time]), [4, 2, 0, 1, 3]);
        assert_eq!(in_order(sums, &[Goal::Shards, Goal::Shards]), [3, 0, 1, 2, 4]);
    }
}
