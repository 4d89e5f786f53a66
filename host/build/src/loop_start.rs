//! The start of a planning loop, and further conditions for accepting a plan.

use std::collections::BTreeMap;

use shardwright_bundle::{Bundle, ChainEntry, FileReference};
use shardwright_planning::feedback::Attempt;
use shardwright_planning::plan::Plan;
use shardwright_planning::request::Request;
use shardwright_vocabulary::{Error, Pass};

use crate::{Proving, Result};

/// The start of a planning loop, and further conditions for accepting a plan.
#[derive(Default)]
pub struct LoopStart<'p> {
    /// How a compiled plan is proved. A plan that is not proved is revised like a refused one.
    pub proving: Option<Proving<'p>>,
    /// Plans that did not work, oldest first. They are not tried again.
    pub before: Vec<Attempt>,
    /// The first plan to try.
    pub first: Option<RecordedPlan>,
}

/// The start and conditions of the planning loop for each model of a bundle.
#[derive(Default)]
pub struct BundleLoopStart<'p> {
    pub text: LoopStart<'p>,
    /// Towers by pass. A tower that is missing here starts with the defaults.
    pub towers: BTreeMap<Pass, LoopStart<'p>>,
}

/// A plan with the request that it answers.
#[derive(Clone, Debug)]
pub struct RecordedPlan {
    plan: Plan,
    request: Request,
}

impl RecordedPlan {
    /// Reads the plan and request of a bundle's chain.
    ///
    /// # Errors
    ///
    /// Fails if the bundle's files cannot be read.
    pub fn of(bundle: &Bundle, chain: &ChainEntry) -> Result<Self> {
        let plan = read(bundle, &chain.plan, "the recorded plan")?;
        let request = read(bundle, &chain.request, "the recorded request")?;
        Ok(RecordedPlan { plan, request })
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the request that the plan answers.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// Converts the plan for another request. Returns `None` unless the targets are the same, the
    /// first formats are the plan's, and the tables are offered in the plan's formats. The request
    /// may offer more formats.
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
fn read<T: serde::de::DeserializeOwned>(bundle: &Bundle, file: &FileReference, what: &str) -> Result<T> {
    let bytes = bundle.read(file)?;
    serde_json::from_slice(&bytes).map_err(|error| {
        let error = Error::invalid(error.to_string()).at(what).at(bundle.path().display());
        error.with_help("compile the checkpoint again")
    })
}
