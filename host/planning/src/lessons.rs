//! Lessons: limits that a planner derived from refusals. The host stores them and applies them to
//! later requests, so each must be about a target that refused a shard. The host does not judge
//! their values.

use shardwright_vocabulary::{Lesson, Limit, Provenance, limit_names};

use crate::feedback::{Attempt, Feedback};
use crate::request::Request;

/// Maximum lessons of one answer: more than one for each limit of each target.
const LESSONS: usize = 256;
/// Maximum bytes of the reason of a lesson.
const TEXT_BYTES: usize = 4096;

/// Returns the first fault of lessons, if there is one.
pub(crate) fn fault(lessons: &[Lesson], request: &Request) -> Option<String> {
    if lessons.len() > LESSONS {
        return Some(format!("{} lessons, expected at most {LESSONS}", lessons.len()));
    }
    lessons.iter().find_map(|lesson| {
        let bytes = lesson.because.len();
        if lesson.target as usize >= request.targets.len() {
            Some(format!("a lesson is about target {}, which the request does not have", lesson.target))
        } else if !limit_names::ALL.contains(&lesson.limit.as_str()) {
            let name: String = lesson.limit.chars().take(64).collect();
            let known = limit_names::ALL.join(", ");
            Some(format!("a lesson is about limit `{name}`, expected one of {known}"))
        } else if bytes > TEXT_BYTES {
            Some(format!("the reason of a lesson has {bytes} bytes, expected at most {TEXT_BYTES}"))
        } else {
            None
        }
    })
}

/// Returns the first fault of lessons in the answer to this history, if there is one. A lesson must
/// be about a target that refused a shard.
pub(crate) fn fault_after(lessons: &[Lesson], request: &Request, history: &[Attempt]) -> Option<String> {
    let refused = |target: u32| refused_shards(history).any(|(refusing, _)| refusing == target);
    let unfounded = || {
        let lesson = lessons.iter().find(|lesson| !refused(lesson.target))?;
        let name = &request.targets.get(lesson.target as usize)?.target.name;
        Some(format!("a lesson is about `{name}`, which refused no shard"))
    };
    fault(lessons, request).or_else(unfounded)
}

/// Returns the lessons for a plan without a planner: the lessons of the last plan, and the maxima
/// that compilers reported. Only the tightest of each limit of a target is kept.
pub(crate) fn without_planner(history: &[Attempt]) -> Vec<Lesson> {
    let of_plan = history.last().into_iter().flat_map(|attempt| attempt.plan.lessons.iter().cloned());
    let mut tightest: Vec<Lesson> = Vec::new();
    for lesson in of_plan.chain(refused_shards(history).filter_map(reported)) {
        let is_same = |own: &&mut Lesson| own.target == lesson.target && own.limit == lesson.limit;
        match tightest.iter_mut().find(is_same) {
            Some(own) if own.value <= lesson.value => {}
            Some(own) => *own = lesson,
            None => tightest.push(lesson),
        }
    }
    tightest
}

/// Returns the maximum that a compiler reported, if it did.
fn reported((target, feedback): (u32, &Feedback)) -> Option<Lesson> {
    let detail = |name: &str| {
        let detail = feedback.details.iter().find(|detail| detail.name == name);
        detail.map(|detail| detail.value.trim())
    };
    let limit = detail("limit").filter(|limit| limit_names::ALL.contains(limit))?.to_owned();
    let value = detail("max")?.parse().ok()?;
    // A character has at most four bytes.
    let because = feedback.message.chars().take(TEXT_BYTES / 4).collect();
    Some(Lesson { target, limit, value, because })
}

/// Adds lessons to the limits of their targets.
pub(crate) fn taught(request: &Request, lessons: &[Lesson]) -> Request {
    let mut request = request.clone();
    for lesson in lessons {
        if let Some(target) = request.targets.get_mut(lesson.target as usize) {
            let limit = Limit::new(&lesson.limit, lesson.value, Provenance::Learned);
            target.limits.push(limit.with_note(&lesson.because));
        }
    }
    request
}

/// Iterates over the refusals of shards, each with the target.
fn refused_shards(history: &[Attempt]) -> impl Iterator<Item = (u32, &Feedback)> {
    history.iter().flat_map(|attempt| {
        let refusals = attempt.feedback.iter().filter(|feedback| feedback.class.is_some());
        refusals.filter_map(move |feedback| {
            let shard = attempt.plan.shards.get(feedback.shard? as usize)?;
            Some((shard.target, feedback))
        })
    })
}
