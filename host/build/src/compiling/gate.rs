//! Which of several variants may plan, and which may compile, at a moment.
//!
//! Variants plan the first chain of a pass in the order they were asked for: what the first one
//! measures of the checkpoint is found by the next, and the same is said whatever number runs at
//! once. After that they compile together, as far as memory and compilers allow it. What waits here
//! holds nothing that another waits for, so that it always ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardwright_shims::Watch;
use shardwright_vocabulary::{Error, ErrorKind, Pass};

use crate::Result;

/// Interval for checking whether to stop.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Lets variants begin, plan and compile.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// Bytes that all running variants together are expected to hold at most; `None` for any.
    budget: Option<u64>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Number of variants that began.
    begun: usize,
    /// What those that run use alone, by variant.
    alone: BTreeMap<usize, BTreeSet<String>>,
    /// Passes whose first plan was made, by variant.
    planned: BTreeSet<(usize, Pass)>,
    /// Variants that ended.
    ended: BTreeSet<usize>,
    /// Bytes that variants hold while they compile.
    held: BTreeMap<usize, u64>,
    /// Variants that wait to compile.
    waiting: BTreeSet<usize>,
}

impl Gate {
    /// A gate for variants that hold at most so many bytes together; `None` for any number.
    pub fn within(budget: Option<u64>) -> Self {
        Gate { budget, ..Gate::default() }
    }

    /// Begins a variant, by its place in the order: after all before it began, and once none runs
    /// that uses one of `alone`.
    ///
    /// # Errors
    ///
    /// That of a cancellation.
    pub fn enter(&self, index: usize, alone: &BTreeSet<String>, watch: &mut dyn Watch) -> Result<Seat<'_>> {
        let mut state = self.wait("waiting for a compiler that runs once", watch, |state| {
            state.begun == index && state.alone.values().all(|used| used.is_disjoint(alone))
        })?;
        state.begun += 1;
        state.alone.insert(index, alone.clone());
        self.changed.notify_all();
        Ok(Seat { gate: self, index })
    }

    /// Waits until `may`, and gives the state in which it is so.
    fn wait(
        &self,
        stage: &str,
        watch: &mut dyn Watch,
        mut may: impl FnMut(&State) -> bool,
    ) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        let mut is_said = false;
        while !may(&state) {
            if watch.cancelled() {
                return Err(Error::new(ErrorKind::Cancelled, "compiling was cancelled"));
            }
            if !is_said {
                watch.progress(0, stage);
                is_said = true;
            }
            let waited = self.changed.wait_timeout(state, LOOK_AGAIN);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(state)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a variant that began; ended when dropped.
#[derive(Debug)]
pub(super) struct Seat<'g> {
    gate: &'g Gate,
    index: usize,
}

impl Seat<'_> {
    /// Begins to plan a chain of a pass: the first one once every variant before has planned one of
    /// that pass, or ended. What it held for compiling is free.
    ///
    /// # Errors
    ///
    /// That of a cancellation.
    pub fn plan(&self, pass: Pass, watch: &mut dyn Watch) -> Result<()> {
        self.gate.state().held.remove(&self.index);
        self.gate.changed.notify_all();
        let is_done = |state: &State, index: usize| {
            state.ended.contains(&index) || state.planned.contains(&(index, pass))
        };
        self.gate
            .wait("waiting for the plan of another chip", watch, |state| {
                is_done(state, self.index) || (0..self.index).all(|index| is_done(state, index))
            })
            .map(drop)
    }

    /// Begins to compile what was planned, which holds so many bytes: once those that run leave it
    /// as many, or none runs. Of several that wait, the first one asked for begins first.
    ///
    /// # Errors
    ///
    /// That of a cancellation.
    pub fn compile(&self, pass: Pass, bytes: u64, watch: &mut dyn Watch) -> Result<()> {
        let &Seat { gate, index } = self;
        {
            let mut state = gate.state();
            state.planned.insert((index, pass));
            state.held.remove(&index);
            state.waiting.insert(index);
        }
        gate.changed.notify_all();
        let waited = gate.wait("waiting for memory that other chips take", watch, |state| {
            let held = state.held.values().copied().fold(bytes, u64::saturating_add);
            let fits = state.held.is_empty() || gate.budget.is_none_or(|budget| held <= budget);
            fits && state.waiting.first() == Some(&index)
        });
        let (mut state, begins) = match waited {
            Ok(state) => (state, Ok(())),
            Err(error) => (gate.state(), Err(error)),
        };
        state.waiting.remove(&index);
        if begins.is_ok() {
            state.held.insert(index, bytes);
        }
        gate.changed.notify_all();
        begins
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.state();
        state.ended.insert(self.index);
        state.alone.remove(&self.index);
        state.held.remove(&self.index);
        state.waiting.remove(&self.index);
        self.gate.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stops whoever would have to wait.
    struct Impatient;

    impl Watch for Impatient {
        fn cancelled(&self) -> bool {
            true
        }
    }

    fn seat(gate: &Gate, index: usize) -> Seat<'_> {
        gate.enter(index, &BTreeSet::new(), &mut Impatient).unwrap()
    }

    /// Whether it would wait.
    fn waits(result: Result<()>) -> bool {
        result.is_err_and(|error| error.kind() == ErrorKind::Cancelled)
    }

    #[test]
    fn variants_compile_together_within_the_budget_and_one_alone_always() {
        let gate = Gate::within(Some(100));
        let seats = [seat(&gate, 0), seat(&gate, 1), seat(&gate, 2)];
        let compile = |seat: &Seat<'_>, bytes| seat.compile(Pass::Step, bytes, &mut Impatient);
        assert!(compile(&seats[0], 60).is_ok() && compile(&seats[1], 40).is_ok());
        assert!(waits(compile(&seats[2], 1)));
        // A plan that is revised frees what the one before held; planning holds nothing.
        assert!(compile(&seats[0], 59).is_ok() && compile(&seats[2], 1).is_ok());
        assert!(seats[1].plan(Pass::Step, &mut Impatient).is_ok() && compile(&seats[0], 99).is_ok());
        let [first, second, third] = seats;
        drop((first, third));
        assert!(compile(&second, 1000).is_ok(), "more than the budget, alone");
        assert!(waits(compile(&seat(&gate, 3), 1)));
        drop(second);
        assert!(Gate::within(None).enter(0, &BTreeSet::new(), &mut Impatient).is_ok());
    }

    #[test]
    fn the_first_plans_of_a_pass_are_made_in_order() {
        let gate = Gate::within(None);
        let (first, second) = (seat(&gate, 0), seat(&gate, 1));
        let plan = |seat: &Seat<'_>, pass| seat.plan(pass, &mut Impatient);
        assert!(waits(plan(&second, Pass::Step)) && plan(&first, Pass::Step).is_ok());
        first.compile(Pass::Step, 1, &mut Impatient).unwrap();
        assert!(plan(&second, Pass::Step).is_ok() && waits(plan(&second, Pass::Picture)));
        second.compile(Pass::Step, 1, &mut Impatient).unwrap();
        // Chains after the first of their pass wait for nothing, and what ended keeps none waiting.
        assert!(plan(&second, Pass::Step).is_ok());
        drop(first);
        assert!(plan(&second, Pass::Picture).is_ok());
    }

    #[test]
    fn what_runs_once_is_used_by_one_variant_at_a_time() {
        let gate = Gate::within(None);
        let uses = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let enter = |index, names: &[&str]| gate.enter(index, &uses(names), &mut Impatient);
        let first = enter(0, &["dsp"]).unwrap();
        assert!(enter(2, &[]).is_err(), "not before the second");
        assert!(enter(1, &["apu", "dsp"]).is_err());
        drop(first);
        let _second = enter(1, &["apu", "dsp"]).unwrap();
        assert!(enter(2, &["gpu"]).is_ok());
    }
}
