//! The boost hint of executions, which the flag `power` sets. The interface's preferences are not
//! used for this, because they belong to a compilation and do not exist for a restored one.

use shardwright_neuron_adapter::setting::LARGEST_BOOST;
use shardwright_shim_abi::{FlagOutcome, FlagReport};
use shardwright_shim_npu::{Choice as _, Power};

/// Power mode of a session that does not request one. Every client on phones sets this mode.
pub const UNASKED: Power = Power::Burst;

/// Returns the boost hint, 0 to 100. Only 100 has been observed in use. The interface does not
/// define the effect of smaller numbers, so they are this shim's choice.
pub const fn boost(power: Power) -> u8 {
    match power {
        Power::Burst => LARGEST_BOOST,
        Power::Sustained => 80,
        Power::Balanced => 50,
        Power::Saver => 20,
    }
}

/// Reports the flag's outcome after the library returned no error.
pub fn report(power: Power, is_simulated: bool) -> FlagReport {
    let set = format!("NeuronExecution_setBoostHint({}) succeeded", boost(power));
    match is_simulated {
        true => Power::report(FlagOutcome::Inert, format!("{set}; it has no effect in the simulator")),
        false => Power::report(
            FlagOutcome::Unknown,
            format!("{set}; its effect on the hardware is unknown and was not tested on a phone"),
        ),
    }
}
