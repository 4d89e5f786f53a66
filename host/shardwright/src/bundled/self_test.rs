//! Self-test of a chain that was not made for exactly this machine: its outputs are compared with
//! the outputs of the model when it was compiled.

use shardwright_bundle::{ChainEntry, Digest};
use shardwright_runtime::{Chain, Compared, Goldens};
use shardwright_selection::devices_for;

use super::loader::{Choice, Loader, Opening};
use super::progress::cancelled;
use crate::{Error, ErrorKind, Result};

impl Loader {
    /// Compares a chain with the bundle's goldens. This is done if its shim would compile it
    /// differently today, or if it runs on another chip than it was compiled for. A passed test on
    /// these devices is remembered with the proofs. Returns the text of a notice.
    ///
    /// # Errors
    ///
    /// Fails if outputs differ, or if the chain is for another chip and there are no goldens for
    /// it. Also fails if cancelled, and then does not remember a result.
    pub(super) fn self_test(
        &self,
        chain: &Chain,
        choice: &Choice,
        entry: &ChainEntry,
        opening: &mut Opening<'_>,
    ) -> Result<Option<String>> {
        let devices = choice.devices.iter().zip(&entry.shards);
        let is_elsewhere = devices
            .filter_map(|(device, shard)| Some((device.as_ref()?, &shard.compiled_by.device)))
            .any(|(device, compiled_for)| device != compiled_for);
        let is_old = chain.description().shards.iter().any(|shard| shard.origin.fallback.is_some());
        if !(is_elsewhere || is_old) {
            return Ok(None);
        }
        let incompatible = |what: String| {
            Error::new(ErrorKind::Incompatible, what)
                .with_help("compile the checkpoint again with this machine's shims, for this chip")
        };
        let untested = || match is_elsewhere {
            true => Err(incompatible(
                "it is for another chip, and the bundle has no goldens to test it with".to_owned(),
            )),
            false => Ok(Some("it was not tested here: the bundle has no goldens".to_owned())),
        };
        let Some(goldens) = self.goldens()? else { return untested() };
        let question = self.question(choice, entry, opening)?;
        let proofs = self.bundle.proofs().filter(|proofs| proofs.refused().is_none());
        if proofs.is_some_and(|proofs| proofs.has_passed(question)) {
            return Ok(None);
        }
        let steps = &mut opening.steps;
        let compared = goldens.compare(choice.pass, chain, &mut || steps.within(0, "testing its output"))?;
        let likeness = match compared {
            Compared::Likeness(likeness) => likeness,
            Compared::NothingRecorded => return untested(),
            Compared::Ended => return Err(cancelled()),
        };
        if !likeness.holds() {
            let bound = likeness.bound();
            return Err(incompatible(format!("its self-test failed on this machine: {likeness}, {bound}")));
        }
        proofs.inspect(|proofs| proofs.pass(question));
        Ok(Some(format!("self-test of chain `{}` on this machine: {likeness}", entry.name)))
    }

    fn goldens(&self) -> Result<Option<Goldens>> {
        let Some(file) = &self.bundle.manifest().goldens else { return Ok(None) };
        let goldens = Goldens::read(&self.bundle.read(file)?).map_err(|reason| {
            let what = format!("{}: invalid goldens: {reason}", self.bundle.path().display());
            Error::new(ErrorKind::Invalid, what).with_help("compile the checkpoint again")
        })?;
        Ok(Some(goldens))
    }

    /// Hashes everything that the result depends on: the bundle, the chain, the devices and the
    /// shims' libraries.
    fn question(&self, choice: &Choice, entry: &ChainEntry, opening: &mut Opening<'_>) -> Result<Digest> {
        let soc = &self.variant(choice.variant).soc;
        let mut text = format!("{} {soc} {}", self.bundle.sha256(), entry.name);
        for (shard, device) in entry.shards.iter().zip(&choice.devices) {
            let instance = self.instance(shard, opening)?;
            let description = instance.shim().description();
            let device = device.as_deref().unwrap_or(&shard.compiled_by.device);
            let mut known = devices_for(&instance, shard)?.into_iter();
            let detail = known.find(|known| known.name == device).and_then(|known| known.detail);
            text.push_str(&format!(
                "\n{device} {} {} {:?} {detail:?}",
                description.name, description.version, description.vendor_library
            ));
        }
        Ok(Digest::of(text.as_bytes()))
    }
}
