//! The boost hint of executions, set by the flag `power`. Preferences belong to a compilation, and
//! a restored one has none.

use shardwright_neuron_adapter::setting::LARGEST_BOOST;
use shardwright_shim_abi::{FlagOutcome, FlagReport};
use shardwright_shim_npu::Power;

/// Power mode of a session that requests none: the one that every client on phones sets.
pub const UNASKED: Power = Power::Burst;

/// The boost hint, 0 to 100. Only 100 was ever seen in use; the interface does not define the
/// effect of smaller numbers, so these are our choice.
pub const fn boost(power: Power) -> u8 {
    match power {
        Power::Burst => LARGEST_BOOST,
        Power::Sustained => 80,
        Power::Balanced => 50,
        Power::Saver => 20,
    }
}

/// The flag's outcome, if the library returned no error.
pub fn report(power: Power, is_simulated: bool) -> FlagReport {
    let set = format!("NeuronExecution_setBoostHint({}) answered without an error", boost(power));
    match is_simulated {
        true => Power::report(FlagOutcome::Inert, format!("{set}; the simulator takes as long with any")),
        false => Power::report(
            FlagOutcome::Unknown,
            format!("{set}; nothing tells what the hardware makes of it, and no phone was tried"),
        ),
    }
}
