//! Ten thousand changed bundles, each with hashes corrected as a forger would do. Each must open,
//! or be rejected with the name of the file, without a panic.

use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};
use shardwright_bundle::{Bundle, Kind, identify};
use shardwright_trust::{Policy, SecretKey, Trust};

use crate::support::{RECIPE, place, write};

/// Total number of changes.
const CHANGES: u64 = 10_000;

/// Range of the hash in a manifest.
const HASH: std::ops::Range<usize> = 34..98;

/// A small separate generator, so that a failure identifies its change.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound.max(1)
    }
}

/// Corrects the SHA-256 in a manifest.
fn mended(manifest: &[u8]) -> Vec<u8> {
    let mut bytes = manifest.to_vec();
    if bytes.len() > HASH.end {
        let mut hasher = Sha256::new();
        hasher.update(&bytes[..HASH.start]);
        hasher.update(&bytes[HASH.end..]);
        let digits: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        bytes[HASH].copy_from_slice(digits.as_bytes());
    }
    bytes
}

/// Makes one change: a flipped bit, a byte inserted or removed, a run copied elsewhere, a number
/// made large, the end cut off.
fn changed(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let from = HASH.end;
    let at = from + random.below(bytes.len() - from);
    match random.below(6) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes.insert(at, b"\"{}[],:0-9.e\\"[random.below(13)]),
        2 => drop(bytes.remove(at)),
        3 => {
            let run: Vec<u8> = bytes[at..(at + 1 + random.below(200)).min(bytes.len())].to_vec();
            let to = from + random.below(bytes.len() - from);
            bytes.splice(to..to, run);
        }
        4 => {
            let digit = (at..bytes.len()).find(|at| bytes[*at].is_ascii_digit()).unwrap_or(at);
            bytes.splice(digit..digit, b"18446744073709551615"[random.below(10)..].iter().copied());
        }
        _ => bytes.truncate(at),
    }
    bytes
}

#[test]
fn ten_thousand_changes_under_right_hashes_are_refused_by_name_or_mean_what_they_say() {
    let (_parent, directory) = place();
    write(&directory, RECIPE).unwrap();
    let path = directory.join("bundle.json");
    let whole = fs::read(&path).unwrap();
    assert_eq!(mended(&whole), whole, "the place of the hash");
    let trust = Trust::new(Policy::Require, [SecretKey::from_seed([1; 32]).public()]);
    let mut random = Random(7);
    let (mut opened, mut refused) = (0, 0);
    for change in 0..CHANGES {
        let mut bytes = whole.clone();
        for _ in 0..=random.below(3) {
            bytes = changed(&bytes, &mut random);
            if bytes.len() <= HASH.end + 1 {
                break;
            }
        }
        let bytes = mended(&bytes);
        if bytes == whole {
            continue;
        }
        fs::write(&path, &bytes).unwrap();
        match Bundle::open(&directory) {
            // An accepted manifest is canonical and its files exist: only a name was changed.
            Ok(bundle) => {
                assert!(bundle.verify_all(|_| ()).is_ok(), "change {change}");
                opened += 1;
            }
            Err(error) => {
                let said = error.to_string();
                let named = said.contains(&shown(&directory));
                assert!(named && error.help().is_some(), "change {change}: {said}");
                refused += 1;
            }
        }
        assert!(identify(&directory).is_ok_and(|kind| kind == Kind::Bundle), "change {change}");
        // Rules that require a signature reject any of them.
        if change % 50 == 0 {
            assert!(Bundle::open_trusting(&directory, &trust).is_err(), "change {change}");
        }
    }
    assert!(refused > CHANGES * 3 / 4 && opened > 0, "{refused} refused, {opened} opened");
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
