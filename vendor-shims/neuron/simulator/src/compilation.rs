//! Compilations: their settings, their limits and the resulting code.

use std::sync::Arc;

use shardwright_neuron_adapter::result::{BAD_DATA, BAD_STATE, OUT_OF_MEMORY, UNMAPPABLE};
use shardwright_neuron_adapter::setting::{hint, preference, priority};
use shardwright_neuron_files::options::{CompilerOption, OptionString};

use crate::arithmetic::tensor::Layout;
use crate::blob::{self, Compiled, Plan};
use crate::call::{Refused, refuse};
use crate::configuration::Configuration;
use crate::handles::{Dependence, Shared};
use crate::memory;
use crate::model::{Model, steps};
use crate::network::Network;
use crate::step::Step;
use crate::target::COMPILED_NETWORK_OPERATION;

/// Code that is ready to run.
#[derive(Debug)]
pub struct Code {
    /// The blob and the network in it.
    pub compiled: Compiled,
    /// Steps in the order of execution, each with the index of its operation.
    pub steps: Vec<(usize, Step)>,
    /// The part of the device address space that the code uses.
    _space: Option<memory::Space>,
}

impl Code {
    pub fn network(&self) -> &Network {
        &self.compiled.network
    }

    /// Returns the layout of an input or output.
    pub fn end(&self, input: bool, index: usize) -> Option<&Layout> {
        let network = self.network();
        let list = if input { &network.inputs } else { &network.outputs };
        list.get(index).map(|operand| &network.operands[*operand as usize].layout)
    }
}

pub struct Compilation {
    model: Shared<Model>,
    _model: Dependence,
    options: String,
    replaced: Option<String>,
    preference: i32,
    priority: i32,
    hint: u32,
    l1_kilobytes: Option<u32>,
    tried: bool,
    restored: bool,
    /// Whether the code was executed at least once.
    pub executed: bool,
    /// The code, once the compilation is finished.
    pub code: Option<Arc<Code>>,
}

fn read_options(text: &str) -> Result<Vec<CompilerOption>, Refused> {
    let options = OptionString::parse(text).or_else(|why| refuse(BAD_DATA, format!("options: {why}")))?;
    Ok(options.0)
}

fn check_options(text: &str, configuration: &Configuration) -> Result<(), Refused> {
    match read_options(text)?.iter().find(|flag| configuration.refused_options.contains(&flag.name)) {
        Some(flag) => refuse(BAD_DATA, format!("options: `--{}` is refused", flag.name)),
        None => Ok(()),
    }
}

impl Compilation {
    /// Creates a compilation of a finished model.
    pub fn new(
        model: &Shared<Model>,
        options: &str,
        configuration: &Configuration,
    ) -> Result<Compilation, Refused> {
        if model.lock().order.is_none() {
            return refuse(BAD_STATE, "the model is not finished");
        }
        check_options(options, configuration)?;
        Ok(Compilation {
            _model: model.dependence(),
            model: model.clone(),
            options: options.to_owned(),
            replaced: None,
            preference: preference::SUSTAINED_SPEED,
            priority: priority::MEDIUM,
            hint: hint::NORMAL,
            l1_kilobytes: None,
            tried: false,
            restored: false,
            executed: false,
            code: None,
        })
    }

    /// Creates a finished compilation from a blob.
    pub fn restored(
        model: &Shared<Model>,
        bytes: &[u8],
        configuration: &Configuration,
    ) -> Result<Compilation, Refused> {
        let code = load(bytes, configuration, &[])?;
        {
            let mut model = model.lock();
            model.network = code.network().clone();
            model.order = Some(code.steps.iter().map(|(index, _)| *index).collect());
        }
        let mut compilation = Compilation::new(model, "", configuration)?;
        compilation.restored = true;
        compilation.tried = true;
        compilation.code = Some(Arc::new(code));
        Ok(compilation)
    }

    fn open(&self) -> Result<(), Refused> {
        if self.tried {
            return refuse(BAD_STATE, "the compilation is finished");
        }
        Ok(())
    }

    /// Sets the options that `setOptimizationString` passes.
    pub fn set_options(&mut self, text: &str, configuration: &Configuration) -> Result<(), Refused> {
        self.open()?;
        check_options(text, configuration)?;
        self.replaced = Some(text.to_owned());
        Ok(())
    }

    /// Sets the preference that `setPreference` passes.
    pub fn set_preference(&mut self, value: i32) -> Result<(), Refused> {
        self.open()?;
        if !(preference::LOW_POWER..=preference::TURBO_BOOST).contains(&value) {
            return refuse(BAD_DATA, format!("preference {value}"));
        }
        self.preference = value;
        Ok(())
    }

    /// Sets the priority that `setPriority` passes.
    pub fn set_priority(&mut self, value: i32) -> Result<(), Refused> {
        self.open()?;
        if ![priority::LOW, priority::MEDIUM, priority::HIGH].contains(&value) {
            return refuse(BAD_DATA, format!("priority {value}"));
        }
        self.priority = value;
        Ok(())
    }

    /// Sets the hint that `setOptimizationHint` passes.
    pub fn set_hint(&mut self, bits: u32) -> Result<(), Refused> {
        self.open()?;
        if bits & !(hint::LOW_LATENCY | hint::DEEP_FUSION | hint::BATCH_PROCESSING) != 0 {
            return refuse(BAD_DATA, format!("hint {bits:#x}"));
        }
        self.hint = bits;
        Ok(())
    }

    /// Sets the memory size that `setL1MemorySizeKb` passes.
    pub fn set_l1(&mut self, kilobytes: u32, configuration: &Configuration) -> Result<(), Refused> {
        self.open()?;
        if kilobytes > configuration.l1_kilobytes {
            return refuse(BAD_DATA, format!("{kilobytes} KB of {}", configuration.l1_kilobytes));
        }
        self.l1_kilobytes = Some(kilobytes);
        Ok(())
    }

    /// Returns both option strings, or one of them if they are equal.
    fn all_options(&self) -> String {
        match &self.replaced {
            Some(replaced) if *replaced != self.options && !self.options.is_empty() => {
                format!("{} {replaced}", self.options)
            }
            Some(replaced) => replaced.clone(),
            None => self.options.clone(),
        }
    }

    /// Reports for each operation whether it can run. The compilation must not be finished.
    pub fn supported(&self, configuration: &Configuration) -> Result<Vec<bool>, Refused> {
        self.open()?;
        Ok(self.model.lock().supported(&configuration.target()))
    }

    /// Compiles the model.
    pub fn finish(&mut self, configuration: &Configuration) -> Result<(), Refused> {
        self.open()?;
        self.tried = true;
        let mut model = self.model.lock();
        let target = configuration.target();
        let network = &model.network;
        let flags = read_options(&self.all_options())?;
        if let [operation] = &network.operations[..]
            && operation.code == COMPILED_NETWORK_OPERATION
        {
            let blob = operation.inputs.last().and_then(|index| network.constant(*index));
            let Some(blob) = blob else { return refuse(BAD_DATA, "the compiled network is not constant") };
            let code = load(blob, configuration, &flags)?;
            let (inputs, outputs) = (network.inputs.len(), network.outputs.len());
            if code.network().inputs.len() != inputs || code.network().outputs.len() != outputs {
                return refuse(
                    BAD_DATA,
                    format!("the compiled network does not have {inputs} inputs and {outputs} outputs"),
                );
            }
            self.code = Some(Arc::new(code));
            self.restored = true;
            return Ok(());
        }
        if let Some((index, length)) = network.changed_constant() {
            return refuse(
                BAD_DATA,
                format!("the {length} bytes of operand {index} changed after they were set"),
            );
        }
        let operations = network.operations.len() as u64;
        if let Some(most) = configuration.most_operations.filter(|most| operations > *most) {
            return refuse(UNMAPPABLE, format!("no execution plan: operations={operations} most={most}"));
        }
        let order = model.order.as_deref().unwrap_or_default();
        let steps = match steps(network, order, &target) {
            Ok(steps) => steps,
            Err((index, refusal)) => {
                let (crate::step::Refusal::Invalid(why) | crate::step::Refusal::Unsupported(why)) = refusal;
                let code = network.operations[index].code;
                return refuse(
                    UNMAPPABLE,
                    format!("no execution plan: operation {index} (type {code}): {why}"),
                );
            }
        };
        let honoured: Vec<CompilerOption> =
            flags.iter().filter(|flag| configuration.honoured.has(&flag.name)).cloned().collect();
        let mut network = network.clone();
        network.relaxed |= honoured.iter().any(|flag| flag.name == "relax-fp32");
        let plan =
            Plan { honoured, hint: self.hint, preference: self.preference, l1_kilobytes: self.l1_kilobytes };
        let compiled = blob::compile(network, &plan, target.version, &target.soc, &self.all_options());
        // From here on the client may free its memory. The model now refers to the constants in the
        // blob, in case it is compiled again.
        model.network.operands.clone_from(&compiled.network.operands);
        model.network.image.clone_from(&compiled.network.image);
        let space = space(&compiled, configuration, &flags)?;
        self.code = Some(Arc::new(Code { compiled, steps, _space: space }));
        Ok(())
    }

    /// Returns the code of a finished compilation.
    pub fn finished(&self) -> Result<&Arc<Code>, Refused> {
        match &self.code {
            Some(code) => Ok(code),
            None => refuse(BAD_STATE, "the compilation is not finished"),
        }
    }

    /// Returns the blob. Restored compilations refuse, and so do executed ones in strict mode.
    pub fn stored(&self, configuration: &Configuration) -> Result<&[u8], Refused> {
        let code = self.finished()?;
        if self.restored {
            return refuse(BAD_STATE, "a restored network cannot be stored again");
        }
        if configuration.strict && self.executed {
            return refuse(BAD_STATE, "something was executed already");
        }
        Ok(code.compiled.image.bytes())
    }
}

/// Reserves the address space of code that is imported permanently.
fn space(
    compiled: &Compiled,
    configuration: &Configuration,
    flags: &[CompilerOption],
) -> Result<Option<memory::Space>, Refused> {
    let forever =
        flags.iter().any(|flag| flag.name == "apusys-config" && flag.value.contains("import_forever"));
    if !forever {
        return Ok(None);
    }
    memory::Space::take(compiled.image.bytes().len() as u64, configuration).map(Some)
}

fn load(bytes: &[u8], configuration: &Configuration, flags: &[CompilerOption]) -> Result<Code, Refused> {
    if bytes.is_empty() {
        return refuse(BAD_DATA, "the compiled network is empty");
    }
    let target = configuration.target();
    let compiled = blob::restore(bytes, target.version, &target.soc)?;
    let damaged =
        |why: String| Refused { code: BAD_DATA, message: format!("the compiled network is damaged: {why}") };
    let order = compiled.network.order().map_err(damaged)?;
    let steps = match steps(&compiled.network, &order, &target) {
        Ok(steps) => steps,
        Err((index, refusal)) => return Err(damaged(format!("operation {index}: {refusal:?}"))),
    };
    let space = space(&compiled, configuration, flags)?;
    Ok(Code { compiled, steps, _space: space })
}

/// Returns the refusal for a lack of device address space.
pub fn no_space(wanted: u64, left: u64) -> Refused {
    Refused {
        code: OUT_OF_MEMORY,
        message: format!("memMapDeviceVa: Out of memory: {wanted} bytes, {left} left"),
    }
}
