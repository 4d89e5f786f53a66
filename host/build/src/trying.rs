//! What a planning loop begins with, and what else decides whether a plan is accepted.

use std::collections::BTreeMap;

use shardwright_bundle::{Bundle, ChainEntry, FileReference};
use shardwright_planning::feedback::Attempt;
use shardwright_planning::plan::Plan;
use shardwright_planning::request::Request;
use shardwright_vocabulary::{Error, ErrorKind, Pass};

use crate::{Proving, Result};

/// What a planning loop begins with, and what else decides whether a plan is accepted.
#[derive(Default)]
pub struct Trying<'p> {
    /// How a plan that was compiled is proved; one that is not is revised like one that is refused.
    pub proving: Option<Proving<'p>>,
    /// Plans that did not work, oldest first; none of them is tried again.
    pub before: Vec<Attempt>,
    /// The plan to begin with.
    pub first: Option<RecordedPlan>,
}

/// The same for each model of a bundle.
#[derive(Default)]
pub struct BundleTrying<'p> {
    /// The text.
    pub text: Trying<'p>,
    /// Towers; one that is not among them begins with nothing.
    pub towers: BTreeMap<Pass, Trying<'p>>,
}

/// A plan with the request that it answers.
#[derive(Clone, Debug)]
pub struct RecordedPlan {
    plan: Plan,
    request: Request,
}

impl RecordedPlan {
    /// That of a bundle's chain.
    ///
    /// # Errors
    ///
    /// That the bundle's files cannot be read.
    pub fn of(bundle: &Bundle, chain: &ChainEntry) -> Result<Self> {
        let plan = read(bundle, &chain.plan, "the recorded plan")?;
        let request = read(bundle, &chain.request, "the recorded request")?;
        Ok(RecordedPlan { plan, request })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The plan for another request, if its targets and formats mean the same and it offers the
    /// tables in the formats that the plan has them in. It may offer more formats.
    pub(crate) fn for_request(self, request: &Request) -> Option<Plan> {
        let RecordedPlan { mut plan, request: own } = self;
        let targets = |request: &Request| -> Vec<_> {
            request.targets.iter().map(|target| target.target.clone()).collect()
        };
        let same = targets(&own) == targets(request)
            && request.formats.starts_with(&own.formats)
            && own.tables.len() == request.tables.len();
        if !same {
            return None;
        }
        for (chosen, (own, other)) in plan.tables.iter_mut().zip(own.tables.iter().zip(&request.tables)) {
            let format = own.formats.get(*chosen as usize)?.format;
            *chosen = other.formats.iter().position(|choice| choice.format == format)? as u32;
        }
        Some(plan)
    }
}

/// Reads a JSON file of a bundle.
pub(crate) fn read<T: serde::de::DeserializeOwned>(
    bundle: &Bundle,
    file: &FileReference,
    what: &str,
) -> Result<T> {
    let bytes = bundle.read(file)?;
    serde_json::from_slice(&bytes).map_err(|error| {
        Error::new(ErrorKind::Invalid, format!("{}: {what}: {error}", bundle.path().display()))
            .with_help("compile the checkpoint again")
    })
}
