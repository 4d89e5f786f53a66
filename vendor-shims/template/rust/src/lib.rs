//! A small vendor shim to copy: a few operations on the CPU, one thread, plain loops.
//!
//! **Job.** Shows every step of a shim: describe itself, check nodes, compile to its own artefact,
//! load that from its mapping, run. It supports the operations of the embed and head components and
//! refuses the rest with a reason. The host then decomposes a refused node or places the shard
//! elsewhere.
//!
//! **Not its job.** It is neither complete nor fast. The CPU shim in `vendor-shims/cpu` is both.
//!
//! Reading order: [`Template`], `program.rs`.

#![deny(unsafe_code)]

mod program;

use program::{Program, Step};
use shardwright_shim_abi::raw::{
    SW_DTYPE_BF16, SW_DTYPE_F32, SW_OP_ADD, SW_OP_LINEAR, SW_ROLE_STATE, SW_UPDATE_NONE,
};
use shardwright_shim_abi::{
    Artefact, Binding, Compatibility, CompileOutput, Description, Device, DeviceKind, Direction, EntryView,
    Error, FlagOutcome, LoadedEntry, LoadedShard, MemoryKinds, NodeView, Options, Result, Run, Shim, Verdict,
    WorkOrderView,
};

/// First bytes of every head, with the version of the artefact format.
const HEAD: &[u8] = b"template-rust 1";

/// Name of the only device.
const DEVICE: &str = "cpu";

/// Name of the chip's profile, if the shim is for a chip.
const SOC: Option<&str> = None;

/// An instance. A vendor's shim would keep device and context handles in it.
pub struct Template;

fn check_device(device: &str) -> Result<()> {
    if device == DEVICE {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("unknown device `{device}`")).detail("device", device))
}

/// Returns why a node is not supported, or `None` if it is.
fn refusal(entry: EntryView<'_>, node: NodeView<'_>) -> Option<String> {
    if let Err(error) = Step::of(node) {
        return Some(error.message);
    }
    for (place, index) in node.inputs().enumerate() {
        let Some(index) = index else { continue };
        let tensor = entry.tensor(index);
        if tensor.quantisation().is_some() {
            return Some(format!("`{}` is quantised; this shim supports only plain numbers", tensor.name()));
        }
        let weight = entry.constants().any(|(constant, _)| constant == index);
        let taken = tensor.dtype() == SW_DTYPE_F32 || (weight && tensor.dtype() == SW_DTYPE_BF16);
        if !taken {
            return Some(format!("`{}` is neither f32 nor a bf16 weight", tensor.name()));
        }
        if node.op() == SW_OP_LINEAR && place == 1 && !weight {
            return Some("the second operand must be a weight".to_owned());
        }
        let first = node.optional_input(0).map(|first| entry.tensor(first).shape());
        if node.op() == SW_OP_ADD && first != Some(tensor.shape()) {
            return Some("this shim only adds equal shapes".to_owned());
        }
    }
    let result = node.outputs().iter().map(|&output| entry.tensor(output));
    result
        .filter(|tensor| tensor.dtype() != SW_DTYPE_F32 || tensor.quantisation().is_some())
        .map(|tensor| format!("`{}` is encoded; this shim returns plain f32", tensor.name()))
        .next()
}

impl Shim for Template {
    fn describe() -> Description {
        Description {
            name: "template-rust".to_owned(),
            vendor: "Shardwright".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Description::default()
        }
    }

    fn open(options: &Options<'_>) -> Result<Self> {
        options.only(&[])?;
        Ok(Template)
    }

    fn devices(&self, soc: Option<&str>) -> Result<Vec<Device>> {
        // This shim cannot compile for a chip that is not in this machine.
        if soc.is_some() && soc != SOC {
            return Ok(Vec::new());
        }
        Ok(vec![Device {
            name: DEVICE.to_owned(),
            soc: SOC.map(str::to_owned),
            detail: Some("one thread, plain loops".to_owned()),
            kind: DeviceKind::Present,
            memory_kinds: MemoryKinds::HOST.and(MemoryKinds::SHIM),
            memory_bytes: 0,
        }])
    }

    fn check(&self, device: &str, entry: EntryView<'_>) -> Result<Vec<Verdict>> {
        check_device(device)?;
        Ok(entry.nodes().map(|node| refusal(entry, node).map_or(Verdict::Taken, Verdict::Refused)).collect())
    }

    fn compile(&self, device: &str, order: WorkOrderView<'_>, output: &mut CompileOutput<'_>) -> Result<()> {
        check_device(device)?;
        for entry in order.entries() {
            for node in entry.nodes() {
                if let Some(reason) = refusal(entry, node) {
                    let layer = node.layer().map_or("none".to_owned(), |layer| layer.to_string());
                    return Err(Error::unsupported_op(format!("node `{}`: {reason}", node.name()))
                        .detail("node", node.name())
                        .detail("layer", layer));
                }
            }
        }
        program::write(order, output)?;
        for (flag, _) in order.flags().iter() {
            output.flag(flag, FlagOutcome::Unknown, "this shim has no flags");
        }
        output.head(HEAD)
    }

    fn compatibility(&self, device: &str, head: &[u8]) -> Result<Compatibility> {
        check_device(device)?;
        Ok(if head == HEAD {
            Compatibility::Optimal
        } else if head.starts_with(b"template-rust ") {
            Compatibility::Unsupported("the artefact has another version of this shim's format".to_owned())
        } else {
            Compatibility::NotMine("the head was not written by this shim".to_owned())
        })
    }

    fn load<'m>(
        &'m self,
        device: &str,
        artefact: Artefact<'m>,
        options: &Options<'_>,
    ) -> Result<Box<dyn LoadedShard + 'm>> {
        check_device(device)?;
        // The host allows at most that many threads. Using one is always allowed.
        options.only(&["threads"])?;
        Ok(Box::new(Loaded { program: Program::read(artefact.bytes())? }))
    }
}

/// A program whose weights are in the mapping.
struct Loaded<'m> {
    program: Program<'m>,
}

impl LoadedShard for Loaded<'_> {
    fn entries(&self) -> Result<Vec<LoadedEntry>> {
        let entries = self.program.entries.iter().map(|entry| LoadedEntry {
            name: entry.name.clone(),
            rows: entry.rows,
            context: entry.context,
            bindings: entry
                .ports
                .iter()
                .map(|port| {
                    let tensor = &entry.tensors[port.tensor];
                    Binding {
                        name: port.name.clone(),
                        direction: match (port.written, port.role) {
                            (true, _) => Direction::Output,
                            (false, SW_ROLE_STATE) => Direction::StateRead,
                            (false, _) => Direction::Input,
                        },
                        role: port.role,
                        dtype: tensor.dtype,
                        update: SW_UPDATE_NONE,
                        shape: tensor.shape.iter().map(|&extent| extent as u64).collect(),
                        strides: None,
                        bytes: tensor.elements as u64 * 4,
                        alignment: 4,
                        memory_kinds: MemoryKinds::HOST.and(MemoryKinds::SHIM),
                        scale: 1.0,
                        zero_point: 0,
                    }
                })
                .collect(),
        });
        Ok(entries.collect())
    }

    fn run(&mut self, run: Run<'_>) -> Result<()> {
        self.program.run(run)
    }
}

shardwright_shim_abi::export_shim!(Template);
