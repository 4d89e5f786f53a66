//! Writes compiled shards as the entries of a bundle.

use std::collections::BTreeMap;
use std::path::PathBuf;

use shardwright_bundle::{Bundle, ChainEntry, Digest, FileReference, ShardEntry};
use shardwright_planning::check::CheckedPlan;
use shardwright_planning::request::Request;
use shardwright_shims::{Artefact, ArtefactDestination, Heads, WorkOrder};
use shardwright_vocabulary::{Error, ErrorKind, ShimIdentity};

use crate::shared_writer::Claim;
use crate::{ArtefactStore, BuiltShard, PlanReport, Result, SharedWriter, TargetExecutor};

/// Writes artefacts into a bundle as they are compiled, and reuses artefacts of an earlier,
/// interrupted run.
pub struct BundleStore<'w> {
    writer: &'w SharedWriter,
    /// Claim on the artefact that is being compiled. Other stores of the same writer wait for it.
    making: Option<Claim<'w>>,
    staging: PathBuf,
    /// Files in the bundle, by name of the artefact.
    kept: BTreeMap<String, FileReference>,
    recalled: usize,
    /// Another bundle, whose artefacts are copied instead of compiled again.
    earlier: Option<&'w Bundle>,
}

impl<'w> BundleStore<'w> {
    /// Creates a store that writes to this bundle.
    pub fn new(writer: &'w SharedWriter) -> Result<Self> {
        let staging = writer.lock().staging()?;
        Ok(BundleStore { writer, making: None, staging, kept: BTreeMap::new(), recalled: 0, earlier: None })
    }

    /// Copies artefacts from `earlier` instead of compiling them again, if the work order, the
    /// shim, its version and the device are the same.
    #[must_use]
    pub fn reusing(self, earlier: &'w Bundle) -> Self {
        BundleStore { earlier: Some(earlier), ..self }
    }

    fn copied(&mut self, order: &WorkOrder, executor: &TargetExecutor) -> Result<Option<FileReference>> {
        let Some(earlier) = self.earlier else { return Ok(None) };
        let by = executor.instance.shim().description();
        let shards = earlier.manifest().all_chains().flat_map(|chain| &chain.shards);
        let same = |shard: &&ShardEntry| {
            let compiled_by = &shard.compiled_by;
            shard.work_order.to_string() == order.name()
                && (&compiled_by.shim, &compiled_by.version) == (&by.name, &by.version)
                && compiled_by.device == executor.device
        };
        let Some(shard) = shards.into_iter().find(same) else { return Ok(None) };
        let section = earlier.proved(&shard.artefact)?;
        let reference = self.writer.lock().add_reader(section.reader())?;
        Ok(Some(reference))
    }

    fn add(&self, bytes: &[u8]) -> Result<FileReference> {
        self.writer.lock().add_bytes(bytes)
    }

    /// Returns the number of artefacts that were reused instead of compiled.
    pub fn recalled(&self) -> usize {
        self.recalled
    }

    /// Writes the request, the plan and its report into the bundle and returns the chain entry that
    /// refers to them. `within` are the limits of a hedge. `shards` must have been built with this
    /// store.
    pub fn chain(
        &mut self,
        (name, within): (&str, &[(String, u64)]),
        request: &Request,
        plan: &CheckedPlan,
        shards: &[BuiltShard],
        report: &PlanReport,
    ) -> Result<ChainEntry> {
        let mut entries = Vec::with_capacity(shards.len());
        for (shard, planned) in shards.iter().zip(&plan.plan().shards) {
            entries.push(self.shard(request, shard, planned)?);
        }
        Ok(ChainEntry {
            name: name.to_owned(),
            emulated_on: report.emulated_on.clone(),
            within: within.to_vec(),
            planner: Some(report.planner.clone()),
            request: self.add(&request.canonical_bytes())?,
            plan: self.add(&json(plan.plan())?)?,
            report: Some(self.add(&json(report)?)?),
            speculation: plan.speculation().cloned(),
            shards: entries,
        })
    }

    fn shard(
        &mut self,
        request: &Request,
        shard: &BuiltShard,
        planned: &shardwright_planning::plan::Shard,
    ) -> Result<ShardEntry> {
        let head = shard.artefact.head();
        let lost = |what: &str| {
            Error::new(ErrorKind::Shim, what)
                .at(format!("shard {}", shard.name))
                .with_help("report this: the shim's artefact lacks required metadata")
        };
        let artefact =
            *self.kept.get(&shard.artefact.name()).ok_or_else(|| lost("the artefact was not stored"))?;
        let heads = Heads::of(&shard.artefact).to_bytes().map_err(|error| lost(&error.to_string()))?;
        Ok(ShardEntry {
            name: shard.name.clone(),
            segments: shard.segments.clone(),
            target: request.targets[shard.target].target.clone(),
            compiled_by: ShimIdentity {
                shim: head.shim.clone(),
                version: head.shim_version.clone(),
                device: head.device.clone(),
                simulated: shard.simulated,
            },
            formats: shard.formats.clone(),
            entries: planned.entries.clone(),
            artefact,
            head: self.add(&heads)?,
            work_order: head.work_order.parse().map_err(|_| lost("the work order has no hash"))?,
            flags: head.flags.clone(),
            load_flags: shard.load_flags.clone(),
            rewritten: shard.rewritten.clone(),
            logits_softcap: shard.logits_softcap,
            placements: head.placements.clone(),
        })
    }
}

/// Returns the key of an artefact: its work order, the shim and device that compile it, and a hash
/// of everything else that determines the output (the vendor's library, the device description and
/// the shim's settings).
pub fn artefact_key(order: &WorkOrder, executor: &TargetExecutor) -> Result<String> {
    let shim = executor.instance.shim();
    let description = shim.description();
    let settings = shim.manifest().map(|manifest| &manifest.options);
    let chip = executor.instance.chip_of(&executor.device);
    let by = Digest::of(&json(&(&description.vendor_library, &executor.detail, settings, chip))?).to_string();
    Ok(format!(
        "artefact of {} by {} {} ({}) for {}",
        order.name(),
        description.name,
        description.version,
        &by[..16],
        executor.device
    ))
}

impl ArtefactStore for BundleStore<'_> {
    fn place(&self) -> Result<ArtefactDestination<'_>> {
        Ok(ArtefactDestination::Directory(&self.staging))
    }

    fn recall(&mut self, order: &WorkOrder, executor: &TargetExecutor) -> Result<Option<Artefact>> {
        let key = artefact_key(order, executor)?;
        let claim = self.writer.claim(&key);
        let recalled = self.writer.lock().recall(&key);
        let reference = match recalled {
            Some(reference) => Some(reference),
            None => self.copied(order, executor)?,
        };
        let Some(reference) = reference else {
            self.making = Some(claim);
            return Ok(None);
        };
        let artefact = Artefact::open(&self.writer.lock().path(&reference))?;
        self.kept.insert(artefact.name(), reference);
        self.recalled += 1;
        Ok(Some(artefact))
    }

    fn keep(&mut self, order: &WorkOrder, executor: &TargetExecutor, made: Artefact) -> Result<Artefact> {
        let claim = self.making.take();
        let key = artefact_key(order, executor)?;
        let mut writer = self.writer.lock();
        let reference = writer.adopt(made.path())?;
        writer.remember(&key, reference)?;
        let kept = Artefact::open(&writer.path(&reference))?;
        drop((writer, claim));
        self.kept.insert(kept.name(), reference);
        Ok(kept)
    }

    fn not_made(&mut self) {
        self.making = None;
    }
}

fn json(value: &impl serde::Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value)
        .map_err(|error| Error::internal(format!("cannot serialise the plan as JSON: {error}")))
}
