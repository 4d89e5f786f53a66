//! A caller that reads only the largest logits gets the same ones, and chooses the same tokens, as
//! one that reads all.

use std::num::NonZeroUsize;

use shardwright::tools::ModelTools;
use shardwright::{Isolation, Model, OpenOptions};
use shardwright_test_checkpoints::{Spec, write_real};
use shardwright_tests::bundles::some_tokens;
use shardwright_tests::program::search_path;
use shardwright_tests::worker;

/// Describes a model whose head has more rows than one task of the engine, and a width that is
/// split.
fn checkpoint() -> Spec {
    Spec { vocabulary: 5000, hidden: 256, ..Spec::gemma3() }
}

fn open(folder: &std::path::Path, format: &str, isolation: Isolation) -> Model {
    let options = OpenOptions::new().search_path(search_path()).threads(2).isolation(isolation);
    let options = options.planner_option("format", format);
    options.open(folder).unwrap_or_else(|error| panic!("{format}: {error}"))
}

/// Returns the indices of the largest logits, best first, ties by lower index.
fn order(logits: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].partial_cmp(&logits[*a]).expect("numbers").then(a.cmp(b)));
    order
}

/// Returns how many logits of some steps were omitted, and the number of all logits.
fn left_out(model: &Model, wanted: usize) -> (usize, usize) {
    let [mut whole, mut part] = [(); 2].map(|()| model.chain().session().expect("a session"));
    part.set_largest_logits(NonZeroUsize::new(wanted));
    let prompt = some_tokens(model, 9);
    for session in [&mut whole, &mut part] {
        session.append(&prompt).expect("a prompt");
    }
    let (mut left_out, mut count) = (0, 0);
    for _ in 0..12 {
        let [all, some] = [&whole, &part].map(|session| session.logits().expect("logits").to_vec());
        let (order, right) = (order(&all), part.exact_top_k().map_or(all.len(), NonZeroUsize::get));
        for place in &order[..right] {
            assert_eq!(some[*place].to_bits(), all[*place].to_bits(), "logit {place}");
        }
        assert!(some.iter().zip(&all).all(|(some, all)| some <= all));
        left_out += some.iter().filter(|logit| **logit == f32::MIN).count();
        count += all.len();
        for session in [&mut whole, &mut part] {
            session.append(&[order[0] as u32]).expect("a step");
        }
    }
    (left_out, count)
}

#[test]
fn the_largest_logits_are_those_of_all() {
    if !worker::is_here("largest::the_largest_logits_are_those_of_all") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    // With a tokenizer, because weights of 4 bits are chosen by their losses on a text.
    write_real(&checkpoint(), folder.path()).expect("written");
    for isolation in [Isolation::Off, Isolation::Process] {
        let model = open(folder.path(), "w8-per-channel/a8-dynamic", isolation);
        for wanted in [1, 40] {
            let (left_out, count) = left_out(&model, wanted);
            assert_eq!(left_out, count - 12 * wanted, "all others are left out");
        }
        assert_eq!(left_out(&model, 5000).0, 0);
    }
    // Heads with other weight formats are not split.
    let model = open(folder.path(), "w4-block32/a8-dynamic", Isolation::Off);
    assert_eq!(left_out(&model, 1).0, 0);
}
