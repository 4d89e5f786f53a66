//! Which variant of a signed bundle runs after a change of any byte.

use std::fs;

use shardwright::tools::ModelTools;
use shardwright::{BundleOptions, Error, ErrorKind, Isolation, Policy};
use shardwright_tests::bundles::Compiled;
use shardwright_tests::checkpoints::TEXT_FIXTURES;
use shardwright_tests::chip::{CHIP, TestChip};
use shardwright_tests::program::shardwright;

/// A signed bundle for the chip and for any machine, and the signed shims that run it.
struct Signed {
    chip: TestChip,
    /// Contains the CPU shim and the key.
    bench: super::Bench,
    bundle: Compiled,
}

impl Signed {
    fn new() -> Self {
        let (chip, bench) = (TestChip::new(), super::Bench::new());
        let compile = shardwright(["compile", TEXT_FIXTURES[3], "--context", "64"]);
        let socs = format!("{CHIP},generic");
        let bundle = Compiled::by(chip.found_by(compile.arguments(["--soc", &socs])));
        for manifest in [bench.manifest(), chip.shims().join("chip.shim.json")] {
            shardwright(["shim", "hash"]).argument(&manifest).succeeds();
            bench.signs(&manifest).succeeds();
        }
        bench.signs(&bundle.path()).arguments(["--name", "demo", "--release", "1"]).succeeds();
        Signed { chip, bench, bundle }
    }

    /// Opens the bundle and returns the chip of the variant that runs, and its chain.
    fn runs(&self) -> Result<(String, String), Error> {
        let mut path = self.chip.search_path();
        path.shims = vec![self.chip.shims(), self.bench.path("shims")];
        let model = BundleOptions::new()
            .search_path(path)
            .isolation(Isolation::Off)
            .trust_key(&self.bench.public)
            .signatures(Policy::Require)
            .open(self.bundle.path())?;
        let soc = model.bundle().expect("a bundle").variant().soc.to_string();
        Ok((soc, model.report().bundle_chain.expect("a chain").to_owned()))
    }
}

/// Returns the first byte, the last, one in the middle, and two near the end, where artefacts have
/// heads.
fn places(bytes: u64) -> Vec<u64> {
    let mut places = vec![0, bytes / 2, bytes.saturating_sub(2000), bytes.saturating_sub(20), bytes - 1];
    places.dedup();
    places
}

#[test]
fn no_changed_byte_makes_another_variant_run() {
    let signed = Signed::new();
    let expected = (CHIP.to_owned(), "primary".to_owned());
    assert_eq!(signed.runs().unwrap_or_else(|error| panic!("{error}")), expected);
    let (mut refused, mut heads) = (0, 0);
    for (used_as, path, file) in signed.bundle.references() {
        let whole = fs::read(&path).expect("read");
        for place in places(file.bytes) {
            let mut changed = whole.clone();
            changed[place as usize] ^= 1;
            fs::write(&path, &changed).expect("written");
            match signed.runs() {
                // The changed byte is not used by the variant that runs.
                Ok(runs) => assert_eq!(runs, expected, "{used_as}, byte {place}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Invalid, "{used_as}, byte {place}: {error}");
                    let name = file.sha256.to_string();
                    assert!(error.to_string().contains(&name), "{used_as}, byte {place}: {error}");
                    refused += 1;
                    heads += usize::from(used_as.ends_with(".head"));
                }
            }
        }
        fs::write(&path, whole).expect("written");
    }
    assert!(refused > 30 && heads > 3, "{refused} refused, {heads} of them in heads");
    assert_eq!(signed.runs().unwrap_or_else(|error| panic!("{error}")), expected);
}
