//! What the flag `power` sets: the boost hint of executions. Preferences belong to a compilation,
//! and a restored one takes none.

use shardwright_neuron_adapter::setting::LARGEST_BOOST;
use shardwright_shim_abi::{FlagOutcome, FlagReport};
use shardwright_shim_npu::Power;

/// What a session gets that asks for nothing: what every client on phones sets.
pub const UNASKED: Power = Power::Burst;

/// The boost hint, 0 to 100. 100 alone was ever seen in use; the interface does not say what the
/// numbers below it do, and these are ours.
pub const fn boost(power: Power) -> u8 {
    match power {
        Power::Burst => LARGEST_BOOST,
        Power::Sustained => 80,
        Power::Balanced => 50,
        Power::Saver => 20,
    }
}

/// What became of it, where the library answered without an error.
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
