//! Loads one chain: every artefact on the shim that compiled it.

use std::sync::Arc;

use shardwright_bundle::{ChainEntry, Model as ModelEntry, ShardEntry};
use shardwright_runtime::{
    Chain, ChainDescription, NextChain, PlacementRecord, SessionError, ShardDescription,
};
use shardwright_selection::{heads_of, know_chip, only_compiled_for, only_compiles};
use shardwright_shims::{Artefact, Heads, LoadedShard, ShimInstance};
use shardwright_vocabulary::{Beforehand, Compatibility, Flag, FlagRecord, FlagSchema, FlagVerdict};

use super::load_attempts::lasting_class;
use super::loader::{Choice, Loader, NotLoaded, Opening};
use super::memory_estimate::{self, MemoryEstimate};
use super::progress::OpeningProgress;
use crate::load_flags;
use crate::{Error, ErrorKind, Result};

impl Loader {
    /// Loads every artefact of a chain on the shim that compiled it and joins them. If no shim of
    /// the first chain supports a flag, this is an error. A later chain runs without the flag,
    /// which its origins record.
    pub(super) fn load(
        &self,
        model: ModelEntry<'_>,
        entry: &ChainEntry,
        choice: &Choice,
        beforehand: &Beforehand,
        is_first: bool,
        opening: &mut Opening<'_>,
    ) -> std::result::Result<Chain, NotLoaded> {
        let ends = |error| NotLoaded { error, class: None, ends: true, elsewhere: false };
        let need = MemoryEstimate::of(model, entry);
        self.budget.expect(need.bytes()).map_err(|_| need.exceeds(&self.budget))?;
        // Artefacts are hashed and then loaded. Tables are hashed and mapped.
        opening.steps.begin(need.artefacts.saturating_mul(2).saturating_add(need.tables), 9);
        let mut schemas: Vec<FlagSchema> = Vec::new();
        let mut executors: Vec<LoadedShard> = Vec::new();
        let mut shards = Vec::new();
        for (shard, device) in entry.shards.iter().zip(&choice.devices) {
            opening.steps.go_on()?;
            let instance = self.instance(shard, opening)?;
            let heads = heads_of(&self.bundle, shard)?;
            know_chip(&instance, &heads)?;
            if let Some(device) = only_compiled_for(&instance, shard)?
                && choice.devices.iter().all(Option::is_none)
            {
                let error = only_compiles(shard, &device);
                return Err(NotLoaded { error, class: None, ends: true, elsewhere: true });
            }
            let device = device.as_deref().unwrap_or(&shard.compiled_by.device);
            let schema = match (self.flags.as_slice(), shard.load_flags.as_slice()) {
                ([], []) => Vec::new(),
                _ => instance.flags(device)?,
            };
            // The session's flags override the plan's.
            let planned = shard.load_flags.iter();
            let planned = planned.filter(|flag| self.flags.iter().all(|own| own.name != flag.name));
            let (mut flags, mut passed_over) = (Vec::new(), Vec::new());
            for flag in planned {
                match flag.is_taken_at_load(&schema) {
                    Ok(true) => flags.push(flag.clone()),
                    Ok(false) | Err(_) => passed_over.push(flag.clone()),
                }
            }
            for flag in &self.flags {
                if load_flags::taken(flag, &schema, shard).map_err(ends)? {
                    flags.push(flag.clone());
                }
            }
            schemas.extend(schema);
            let steps = &mut opening.steps;
            let (mut description, executor, copied) =
                self.load_shard((shard, &heads), device, &instance, &flags, steps)?;
            opening.copied += copied;
            for flag in passed_over {
                let shim = &shard.compiled_by.shim;
                let reason = format!("shim `{shim}` does not support this flag at load time");
                let verdict = FlagVerdict::Unknown;
                description.origin.loaded_with.push(FlagRecord { flag, verdict, reason });
            }
            shards.push(description);
            executors.push(executor);
        }
        for flag in self.flags.iter().filter(|flag| schemas.iter().all(|known| known.name != flag.name)) {
            if is_first {
                return Err(ends(load_flags::unknown(flag, &schemas)));
            }
            for shard in &mut shards {
                let reason = format!("shim `{}` has no such flag", shard.place.shim);
                let verdict = FlagVerdict::Unknown;
                shard.origin.loaded_with.push(FlagRecord { flag: flag.clone(), verdict, reason });
            }
        }
        // Mapped here, so that the next statement finds the tables.
        let tables = memory_estimate::tables(model).map(|table| {
            let map = self
                .bundle
                .map_watched(&table, &mut |bytes| opening.steps.within(bytes, "hashing tables"))?;
            opening.steps.past(table.bytes, "mapping tables");
            Ok(map)
        });
        let _tables = tables.collect::<Result<Vec<_>>>()?;
        let assets = self.bundle.assets_of(model.assets)?;
        let mut description =
            ChainDescription::of_bundle(&self.bundle.manifest().model.name, model, entry, shards)?;
        description.beforehand.clone_from(beforehand);
        Ok(self.within_budget(Chain::new(description, executors, assets)?)?)
    }

    /// Adds the chain's weights and sessions to the memory budget.
    pub(super) fn within_budget(&self, chain: Chain) -> Result<Chain> {
        let bytes = chain.weight_bytes();
        chain.within(self.budget.clone()).map_err(|_| {
            MemoryEstimate { artefacts: bytes, ..MemoryEstimate::default() }.exceeds(&self.budget)
        })
    }

    fn load_shard(
        &self,
        (shard, heads): (&ShardEntry, &Heads),
        device: &str,
        instance: &ShimInstance,
        flags: &[Flag],
        steps: &mut OpeningProgress<'_>,
    ) -> std::result::Result<(ShardDescription, LoadedShard, u64), NotLoaded> {
        let stage = format!("hashing {}", shard.name);
        let section =
            self.bundle.proved_watched(&shard.artefact, &mut |bytes| steps.within(bytes, &stage))?;
        let stage = format!("loading {}", shard.name);
        steps.past(shard.artefact.bytes, &stage);
        steps.go_on()?;
        let artefact = Artefact::of_section(section)?;
        let refused = |reason: String| {
            Error::new(ErrorKind::Incompatible, format!("shard {}: {reason}", shard.name))
                .with_help("compile the checkpoint again with this machine's shims")
        };
        if Heads::of(&artefact) != *heads {
            let reason = "the heads in the manifest differ from its artefact's heads";
            return Err(refused(reason.to_owned()).into());
        }
        if artefact.head().work_order != shard.work_order.to_string() {
            let reason = "its artefact is from a different work order than the manifest specifies";
            return Err(refused(reason.to_owned()).into());
        }
        let (head, compiled_by) = (artefact.head(), &shard.compiled_by);
        if (&head.shim, &head.shim_version, &head.device)
            != (&compiled_by.shim, &compiled_by.version, &compiled_by.device)
        {
            return Err(refused(format!(
                "its artefact was compiled by {} {} for {}, not by {} {} for {} as the manifest specifies",
                head.shim,
                head.shim_version,
                head.device,
                compiled_by.shim,
                compiled_by.version,
                compiled_by.device
            ))
            .into());
        }
        let mut fallback = None;
        match instance.compatibility(device, heads)? {
            Compatibility::Optimal => {}
            Compatibility::Recompile(reason) => {
                fallback = Some(format!("the shim would compile it differently today: {reason}"));
            }
            Compatibility::NotMine(reason) | Compatibility::Unsupported(reason) => {
                return Err(refused(reason).into());
            }
        }
        let options = self.options(instance.shim().name());
        let loaded = instance.load_with(device, &artefact, &options, flags).map_err(|error| {
            let class = lasting_class(&error);
            NotLoaded { class, ..NotLoaded::from(error) }
        })?;
        steps.past(shard.artefact.bytes, &stage);
        let nothing = || refused("its artefact has no entry point".to_owned());
        let mut description = ShardDescription::of(&shard.name, &loaded).ok_or_else(nothing)?;
        description.origin.fallback = fallback;
        Ok((description, loaded, artefact.copied_bytes()))
    }

    pub(super) fn options(&self, shim: &str) -> Vec<(String, String)> {
        match self.run.threads {
            Some(threads) if shim == "cpu" => vec![("threads".to_owned(), threads.to_string())],
            _ => Vec::new(),
        }
    }
}

/// The chains of a bundle after the running one, loaded on demand.
struct LaterChains {
    loader: Arc<Loader>,
    rest: std::vec::IntoIter<Choice>,
}

impl Loader {
    /// Returns the chains of `rest` that the policy allows.
    pub(super) fn later(self: &Arc<Self>, rest: Vec<Choice>) -> Box<dyn NextChain> {
        let allowed = |choice: &Choice| {
            choice.refused.is_none()
                && self.model(choice).is_ok_and(|(_, entry)| self.policy.opens(&entry.name))
        };
        let rest: Vec<Choice> = rest.into_iter().filter(allowed).collect();
        Box::new(LaterChains { loader: Arc::clone(self), rest: rest.into_iter() })
    }
}

impl NextChain for LaterChains {
    fn next(&mut self, _lost: &SessionError, _so_far: &PlacementRecord) -> Option<Result<Chain>> {
        let choice = self.rest.next()?;
        let (model, entry) = self.loader.model(&choice).ok()?;
        // A lost device may have invalidated its instance, so open new ones.
        let mut nothing = ();
        let opening = &mut Opening::new(&mut nothing);
        let loaded = self.loader.load(model, entry, &choice, &Beforehand::default(), false, opening);
        Some(loaded.map_err(|NotLoaded { error, .. }| error.at(format_args!("chain `{}`", entry.name))))
    }
}
