//! Decides which of several variants may plan and which may compile at a given time.
//!
//! Variants plan the first chain of a pass in the requested order. The measurements of the first
//! one are then available to the next, and the notices do not depend on how many run at the same
//! time. Afterwards they compile together, as far as memory and compilers allow. A waiting variant
//! has nothing reserved that another one waits for, so every wait ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardwright_vocabulary::{Error, ErrorKind, Pass, Result, Watch};

/// Interval for checking for a cancellation.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Lets variants start, plan and compile.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// Maximum of the bytes that all running variants are expected to need together. `None` for no
    /// maximum.
    budget: Option<u64>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Number of variants that started.
    begun: usize,
    /// Exclusive resources of the running variants, by variant.
    alone: BTreeMap<usize, BTreeSet<String>>,
    /// Passes whose first plan was made, by variant.
    planned: BTreeSet<(usize, Pass)>,
    /// Variants that ended.
    ended: BTreeSet<usize>,
    /// Bytes reserved for compiling, by variant.
    held: BTreeMap<usize, u64>,
    /// Variants that wait to compile.
    waiting: BTreeSet<usize>,
}

impl Gate {
    /// Creates a gate for variants that together need at most `budget` bytes. `None` sets no
    /// maximum.
    pub fn within(budget: Option<u64>) -> Self {
        Gate { budget, ..Gate::default() }
    }

    /// Starts a variant, given its place in the order: after all variants before it started, and
    /// after all variants ended that use one of the resources in `alone`.
    ///
    /// # Errors
    ///
    /// Fails if it is cancelled.
    pub fn enter(&self, index: usize, alone: &BTreeSet<String>, watch: &mut dyn Watch) -> Result<Seat<'_>> {
        let mut state = self.wait("waiting for a compiler that runs one job at a time", watch, |state| {
            state.begun == index && state.alone.values().all(|used| used.is_disjoint(alone))
        })?;
        state.begun += 1;
        state.alone.insert(index, alone.clone());
        self.changed.notify_all();
        Ok(Seat { gate: self, index })
    }

    /// Waits until `may` returns true, and returns the locked state.
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

/// The place of a started variant. Dropping it ends the variant.
#[derive(Debug)]
pub(super) struct Seat<'g> {
    gate: &'g Gate,
    index: usize,
}

impl Seat<'_> {
    /// Starts planning a chain of a pass, and releases the bytes reserved for compiling. The first
    /// chain waits until every earlier variant has planned one of that pass, or ended.
    ///
    /// # Errors
    ///
    /// Fails if it is cancelled.
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

    /// Starts compiling the plan, which needs `bytes` bytes. Waits until the running variants leave
    /// enough of the budget, or none is compiling. Waiting variants start in the requested order.
    ///
    /// # Errors
    ///
    /// Fails if it is cancelled.
    pub fn compile(&self, pass: Pass, bytes: u64, watch: &mut dyn Watch) -> Result<()> {
        let &Seat { gate, index } = self;
        {
            let mut state = gate.state();
            state.planned.insert((index, pass));
            state.held.remove(&index);
            state.waiting.insert(index);
        }
        gate.changed.notify_all();
        let waited = gate.wait("waiting for memory used by other chips", watch, |state| {
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

    /// Cancels every call that would have to wait.
    struct Impatient;

    impl Watch for Impatient {
        fn cancelled(&self) -> bool {
            true
        }
    }

    fn seat(gate: &Gate, index: usize) -> Seat<'_> {
        gate.enter(index, &BTreeSet::new(), &mut Impatient).unwrap()
    }

    /// Checks whether a call would have waited.
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
        // A revised plan releases the bytes of the previous one. Planning reserves no bytes.
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
        // Chains after the first of their pass do not wait, and ended variants keep none waiting.
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
