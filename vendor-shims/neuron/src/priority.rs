//! The priority of compilations, which the flag `priority` sets. Executions and restored networks
//! do not have a setting for it.

use shardwright_neuron_adapter::setting::priority;
use shardwright_shim_abi::FlagOutcome;
use shardwright_shim_npu::Priority;

/// Priority of an order that does not request one. Every client on phones sets this priority.
pub const UNASKED: Priority = Priority::High;

/// Returns the interface's number of a priority.
pub const fn number(asked: Priority) -> i32 {
    match asked {
        Priority::Low => priority::LOW,
        Priority::Normal => priority::MEDIUM,
        Priority::High => priority::HIGH,
    }
}

/// Returns the flag's outcome and evidence after the library returned no error.
pub fn judged(asked: Priority, is_simulated: bool) -> (FlagOutcome, String) {
    let set = format!("NeuronCompilation_setPriority({}) succeeded", number(asked));
    match is_simulated {
        true => (FlagOutcome::Inert, format!("{set}; no other program uses the simulator's processor")),
        false => (
            FlagOutcome::Unknown,
            format!("{set}; whether a stored network keeps it is unknown and was not tested on a phone"),
        ),
    }
}
