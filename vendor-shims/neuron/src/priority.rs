//! The priority of compilations, set by the flag `priority`. Executions have no setting of it, and
//! restored networks take none.

use shardwright_neuron_adapter::setting::priority;
use shardwright_shim_abi::FlagOutcome;
use shardwright_shim_npu::Priority;

/// Priority of an order that requests none: the one that every client on phones sets.
pub const UNASKED: Priority = Priority::High;

/// The interface's number.
pub const fn number(asked: Priority) -> i32 {
    match asked {
        Priority::Low => priority::LOW,
        Priority::Normal => priority::MEDIUM,
        Priority::High => priority::HIGH,
    }
}

/// The flag's outcome and evidence, if the library returned no error.
pub fn judged(asked: Priority, is_simulated: bool) -> (FlagOutcome, String) {
    let set = format!("NeuronCompilation_setPriority({}) answered without an error", number(asked));
    match is_simulated {
        true => (FlagOutcome::Inert, format!("{set}; nothing else uses the simulator's processor")),
        false => (
            FlagOutcome::Unknown,
            format!("{set}; nothing tells whether a stored network keeps it, and no phone was tried"),
        ),
    }
}
