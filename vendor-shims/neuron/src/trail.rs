//! The last library calls of this thread and their return codes. The shim cannot read the vendor's
//! log, so errors contain these calls instead.

use std::cell::RefCell;
use std::collections::VecDeque;

/// Number of calls that are kept. Equal consecutive calls count as one.
const KEPT: usize = 24;

thread_local! {
    static CALLS: RefCell<VecDeque<(&'static str, i32, u64)>> = const { RefCell::new(VecDeque::new()) };
}

/// Records a call and its return code.
pub(crate) fn note(function: &'static str, code: i32) {
    CALLS.with_borrow_mut(|calls| match calls.back_mut() {
        Some((last, answered, count)) if (*last, *answered) == (function, code) => *count += 1,
        _ => {
            if calls.len() == KEPT {
                calls.pop_front();
            }
            calls.push_back((function, code, 1));
        }
    });
}

/// Lists the calls, one per line, with the last call at the end.
pub(crate) fn tail() -> String {
    CALLS.with_borrow(|calls| {
        let line = |(function, code, count): &(&'static str, i32, u64)| match count {
            1 => format!("{function}: {code}"),
            count => format!("{function}: {code} ({count} times)"),
        };
        calls.iter().map(line).collect::<Vec<_>>().join("\n")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_calls_are_kept_and_equal_ones_counted() {
        for _ in 0..100 {
            note("NeuronModel_addOperand", 0);
        }
        note("NeuronModel_addOperation", 4);
        assert_eq!(tail(), "NeuronModel_addOperand: 0 (100 times)\nNeuronModel_addOperation: 4");
        for code in 0..100 {
            note("NeuronModel_finish", code);
        }
        assert_eq!(tail().lines().count(), KEPT);
    }
}
