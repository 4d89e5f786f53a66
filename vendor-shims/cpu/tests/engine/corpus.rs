//! Checks that the committed corpus of the fuzz targets equals the generated one.
//! `SHARDWRIGHT_WRITE_CORPUS=1` rewrites it. Inputs that the targets once found are stored next to
//! it, in files named `found-…`. Every target runs on the whole corpus, on truncated files, and on
//! damaged copies.

use std::path::{Path, PathBuf};

use crate::support::samples;
use crate::targets::{TARGETS, program_of};
use shardwright_shim_cpu::artefact::Artefact;
use shardwright_shim_cpu::kernels::attention::Products;
use shardwright_shim_cpu::kernels::integer::IntegerType;
use shardwright_shim_cpu::program::{NumberForm, PackedScales, Step};

/// Largest file size of the corpus, because a fuzzer that starts from large files is slow.
const LARGEST: usize = 20_000;
/// File name prefix of inputs that no sample generates.
const FOUND: &str = "found-";
/// Number of damaged copies of each file.
const DAMAGED: u64 = 300;

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target)
}

#[test]
fn the_corpus_is_what_this_test_generates() {
    let writes = std::env::var_os("SHARDWRIGHT_WRITE_CORPUS").is_some();
    let mut expected = Vec::new();
    for (name, artefact) in samples::artefacts() {
        let program = program_of(artefact.bytes()).expect("a program");
        for (target, bytes) in [("artefact", artefact.bytes()), ("program", program)] {
            let path = corpus(target).join(format!("{name}.bin"));
            if writes {
                std::fs::create_dir_all(corpus(target)).expect("a folder");
                std::fs::write(&path, bytes).expect("written");
            }
            let stored = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(stored == bytes, "{}: differs from what is compiled now", path.display());
            assert!(stored.len() <= LARGEST, "{}: {} bytes", path.display(), stored.len());
            expected.push(path);
        }
    }
    for (target, _) in TARGETS {
        for file in std::fs::read_dir(corpus(target)).expect("a folder").flatten() {
            let known =
                expected.contains(&file.path()) || file.file_name().to_string_lossy().starts_with(FOUND);
            assert!(known, "{}: no sample generates it", file.path().display());
        }
    }
}

/// The corpus contains the kernels it is meant to cover.
#[test]
fn the_samples_reach_the_kernels_they_are_named_after() {
    let samples = samples::artefacts();
    let has = |name: &str, is: fn(&Step) -> bool| {
        let (_, artefact) = samples.iter().find(|(sample, _)| *sample == name).expect("a sample");
        let program = Artefact::read(artefact.bytes()).expect("readable").program;
        assert!(program.entries.iter().flat_map(|entry| &entry.steps).any(is), "{name}");
    };
    has("f32", |step| matches!(step, Step::Linear(_)));
    has("w8-dynamic", |step| matches!(step, Step::DynamicLinear(step) if step.maps.len() == 2));
    has("w4-block32", |step| match step {
        Step::DynamicLinear(step) => {
            matches!(step.maps[0].weights.scales, PackedScales::Blocks { size: 32, minimum: false, .. })
        }
        _ => false,
    });
    has("q4k", |step| has_small_numbers(step, IntegerType::I4, true));
    has("q5k", |step| has_small_numbers(step, IntegerType::I5, true));
    has("q6k", |step| has_small_numbers(step, IntegerType::I6, false));
    has("q6k", |step| match step {
        Step::DynamicLinear(step) => {
            let geometry = step.maps[0].weights.rows(step.block);
            geometry.is_some_and(|geometry| (geometry.unit, geometry.per_row_scale) == (16, 2))
        }
        _ => false,
    });
    has("w8-dynamic-block32", |step| matches!(step, Step::DynamicLinear(step) if step.block == Some(32)));
    has("split-head", |step| matches!(step, Step::SplitLinear(step) if step.cap.is_none()));
    has("capped-head", |step| matches!(step, Step::SplitLinear(step) if step.cap.is_some()));
    has("attention-state", |step| matches!(step, Step::Attention(step) if step.products == Products::F32));
    has("attention-bf16", |step| matches!(step, Step::Attention(step) if step.products == Products::Bf16));
    has("attention-state", |step| matches!(step, Step::StateUpdate(_)));
    has("encoded", |step| matches!(step, Step::Decode(_)));
    has("tower", |step| matches!(step, Step::Convolution(_)));
    has("tower", |step| matches!(step, Step::LayerNorm(_)));
    has("tower", |step| matches!(step, Step::AxialRope(_)));
    has("tower", |step| matches!(step, Step::RelativeAttention(_)));
    has("tower", |step| matches!(step, Step::Depthwise(_)));
    has("tower", |step| matches!(step, Step::Glu(_)));
    has("tower", |step| matches!(step, Step::MeanRows(_)));
}

/// Checks whether a step multiplies weights of a type whose numbers share factors.
fn has_small_numbers(step: &Step, kind: IntegerType, with_minimums: bool) -> bool {
    let Step::DynamicLinear(step) = step else { return false };
    let weights = step.maps[0].weights;
    match weights.scales {
        PackedScales::Blocks { minimum, form: NumberForm::Small { .. }, .. } => {
            (weights.kind, minimum) == (kind, with_minimums)
        }
        _ => false,
    }
}

/// Returns the next number of a sequence that is the same in every run.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn no_target_fails_on_damage() {
    let mut state = 0x9e37_79b9_7f4a_7c15;
    for (name, target) in TARGETS {
        let mut paths: Vec<_> =
            std::fs::read_dir(corpus(name)).expect("a folder").flatten().map(|file| file.path()).collect();
        paths.sort();
        for file in paths.iter().map(|path| std::fs::read(path).expect("a file")) {
            target(&file);
            // Damage to the weights, or to the padding of the last page before them, has little
            // effect.
            let end =
                if *name == "artefact" { program_of(&file).map_or(0, <[u8]>::len) + 64 } else { file.len() };
            let end = end.min(file.len());
            let step = (file.len() / 256).max(1);
            for length in (0..end.min(256)).chain((256..file.len()).step_by(step)) {
                target(&file[..length]);
            }
            for _ in 0..DAMAGED {
                let mut damaged = file.clone();
                for _ in 0..=next(&mut state) % 3 {
                    if end == 0 {
                        continue;
                    }
                    let at = (next(&mut state) % end as u64) as usize;
                    match next(&mut state) % 4 {
                        0 => damaged[at] ^= 1 << (next(&mut state) % 8),
                        1 => damaged[at] = [0, 1, 0x7f, 0x80, 0xff][(next(&mut state) % 5) as usize],
                        2 => damaged[at] = damaged[at].wrapping_add(1),
                        _ => {
                            let from = (next(&mut state) % end as u64) as usize;
                            let length = (end - at.max(from)).min(8);
                            damaged.copy_within(from..from + length, at);
                        }
                    }
                }
                target(&damaged);
            }
        }
    }
}
