//! A shim for tests that accepts as little as a real chip might, so that the host has to do
//! everything else.
//!
//! **Job.** Accepts only primitives, activations in unsigned 16-bit integers, matrices in signed
//! 8-bit integers with one scale per output channel, states that it only reads, and all values that
//! depend on positions as tensors. It refuses the rest with a reason. It computes with the plain
//! evaluator of `vendor-shims/abi/testing`, which is written only from the definitions of the
//! operations. Options restrict it further (see `judge.rs`).
//!
//! **Not its job.** It is not fast, it is never shipped, and it depends on neither the reference
//! evaluator nor the CPU shim.
//!
//! Reading order: [`Picky`], `judge.rs`, `step.rs`, `program.rs`.

#![deny(unsafe_code)]

mod judge;
mod program;
mod step;

use judge::Options as Pickiness;
use program::Program;
use shardwright_shim_abi::{
    Artefact, Compatibility, CompileOutput, Description, Device, DeviceKind, EntryView, Error, FlagOutcome,
    Limit, LoadedEntry, LoadedShard, MemoryKinds, Options, Provenance, Result, Run, Shim, Verdict,
    WorkOrderView,
};

/// First bytes of every head, with the version of the artefact format.
const HEAD: &[u8] = b"picky 1";

/// Name of the only device.
const DEVICE: &str = "picky";

/// An instance with its options.
pub struct Picky {
    pickiness: Pickiness,
}

fn check_device(device: &str) -> Result<()> {
    if device == DEVICE {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("unknown device `{device}`")).detail("device", device))
}

impl Shim for Picky {
    fn describe() -> Description {
        Description {
            name: "picky".to_owned(),
            vendor: "Shardwright".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Description::default()
        }
    }

    fn open(options: &Options<'_>) -> Result<Self> {
        Ok(Picky { pickiness: Pickiness::read(options)? })
    }

    fn devices(&self, soc: Option<&str>) -> Result<Vec<Device>> {
        if soc.is_some() {
            return Ok(Vec::new());
        }
        Ok(vec![Device {
            name: DEVICE.to_owned(),
            soc: None,
            detail: Some("primitives in 16-bit integers".to_owned()),
            kind: DeviceKind::Present,
            memory_kinds: MemoryKinds::HOST.and(MemoryKinds::SHIM),
            memory_bytes: 0,
        }])
    }

    fn limits(&self, device: &str) -> Result<Vec<Limit>> {
        check_device(device)?;
        let ops = self.pickiness.ops_limit.map(|value| Limit::new("ops", value, Provenance::Declared));
        Ok(ops.into_iter().collect())
    }

    fn check(&self, device: &str, entry: EntryView<'_>) -> Result<Vec<Verdict>> {
        check_device(device)?;
        let judge = self.pickiness.judge(entry);
        Ok(entry.nodes().map(|node| judge.node(node).map_or(Verdict::Taken, Verdict::Refused)).collect())
    }

    fn compile(&self, device: &str, order: WorkOrderView<'_>, output: &mut CompileOutput<'_>) -> Result<()> {
        check_device(device)?;
        for entry in order.entries() {
            let judge = self.pickiness.judge(entry);
            for node in entry.nodes() {
                if let Some(reason) = judge.node(node) {
                    let layer = node.layer().map_or("none".to_owned(), |layer| layer.to_string());
                    return Err(Error::unsupported_op(format!("node `{}`: {reason}", node.name()))
                        .detail("node", node.name())
                        .detail("layer", layer));
                }
            }
            judge.ports()?;
            let ops = entry.nodes().len() as u64;
            if let Some(limit) = self.pickiness.ops_limit.filter(|&limit| ops > limit) {
                return Err(Error::resource_limit("ops", ops, limit).detail("entry", entry.name()));
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
        } else if head.starts_with(b"picky ") {
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
        options.only(&["threads"])?;
        Ok(Box::new(Loaded { program: Program::read(artefact.bytes())? }))
    }
}

/// A program that was read.
struct Loaded {
    program: Program,
}

impl LoadedShard for Loaded {
    fn entries(&self) -> Result<Vec<LoadedEntry>> {
        self.program.entries()
    }

    fn run(&mut self, run: Run<'_>) -> Result<()> {
        self.program.run(run)
    }
}

shardwright_shim_abi::export_shim!(Picky);
