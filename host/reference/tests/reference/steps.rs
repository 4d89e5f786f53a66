//! Compares step inputs with their definitions.

use shardwright_graph::{Asset, AssetId, INVISIBLE, Keys, Mask, Role, Rope, Weight, WeightData};
use shardwright_reference::step::{self, Step};
use shardwright_vocabulary::{DType, ErrorKind};

const STEP: Step = Step { first: 5, rows: 3, of: 4 };

fn seen(mask: &[f32], keys: usize) -> Vec<String> {
    let sign = |value: &f32| match *value {
        0.0 => '#',
        INVISIBLE => '.',
        other => panic!("{other} is no mask value"),
    };
    mask.chunks(keys).map(|row| row.iter().map(sign).collect()).collect()
}

#[test]
fn rows_count_on_and_slots_end() {
    assert_eq!(step::positions(STEP), [5, 6, 7, 8]);
    for (capacity, wanted) in [(100, [5, 6, 7, -1]), (6, [5, 0, 1, -1]), (4, [1, 2, 3, -1])] {
        assert_eq!(step::slots(STEP, capacity), wanted);
    }
    assert_eq!(step::pooling(STEP), [1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0, 0.0]);
}

#[test]
fn masks_show_what_is_visible() {
    let mask = |keys, window, causal| {
        let values = step::mask(STEP, &Mask { keys, window, causal });
        let width = values.len() / 4;
        seen(&values, width)
    };
    // Linear: everything up to the row itself.
    let state = Keys::State { capacity: 9 };
    assert_eq!(mask(state, 0, true), ["######...", "#######..", "########.", "#########"]);
    assert_eq!(mask(state, 3, true), ["...###...", "....###..", ".....###.", "......###"]);
    // A ring of 6: position 5 is in slot 5, 6 in 0, 7 in 1.
    assert_eq!(mask(Keys::State { capacity: 6 }, 2, true)[..3], ["....##", "#....#", "##...."]);
    // Before the run the state contains positions up to 4. The new rows follow.
    let joined = Keys::StateAndRows { capacity: 9 };
    assert_eq!(mask(joined, 0, true)[..3], ["#####....#...", "#####....##..", "#####....###."]);
    assert_eq!(mask(joined, 3, true)[..3], ["...##....#...", "....#....##..", ".........###."]);
    // A ring of 3 contains, before the run, positions 3, 4, 2 in slots 0, 1, 2.
    let ring = Keys::StateAndRows { capacity: 3 };
    assert_eq!(mask(ring, 3, true)[..3], ["##.#...", ".#.##..", "...###."]);
    // Rows of an encoder: three are valid.
    assert_eq!(mask(Keys::Rows, 0, false)[..3], ["###.", "###.", "###."]);
    assert_eq!(mask(Keys::Rows, 2, false)[..3], ["##..", "###.", ".##."]);
    assert_eq!(mask(Keys::Rows, 0, true)[..3], ["#...", "##..", "###."]);
}

#[test]
fn nothing_is_visible_before_anything_was_written() {
    let first = Step { first: 0, rows: 2, of: 2 };
    let mask = |keys| seen(&step::mask(first, &Mask { keys, window: 0, causal: true }), 5);
    assert_eq!(mask(Keys::State { capacity: 5 }), ["#....", "##..."]);
    assert_eq!(mask(Keys::StateAndRows { capacity: 3 }), ["...#.", "...##"]);
}

#[test]
fn both_numberings_see_the_same_positions() {
    for (window, chunk) in [(1_u32, 3_u64), (4, 1), (4, 5), (7, 2)] {
        let capacity = u64::from(window) + chunk;
        for first in 0..4 * capacity {
            for row in 0..chunk {
                let position = first + row;
                let after =
                    |slot| step::slot_is_visible(position as i32, slot as usize, capacity as usize, window);
                let before = |slot| {
                    step::earlier_slot_is_visible(position as i64, slot, capacity, window, first as i64)
                };
                let own = (0..=row).filter(|key| position - (first + key) < u64::from(window));
                let mut visible: Vec<u64> = (0..capacity).filter(|&slot| before(slot)).collect();
                visible.extend(own.map(|key| (first + key) % capacity));
                visible.sort_unstable();
                let wanted: Vec<u64> = (0..capacity).filter(|&slot| after(slot)).collect();
                assert_eq!(visible, wanted, "window {window}, chunk {chunk}, position {position}");
                assert_eq!(wanted.len() as u64, u64::from(window).min(position + 1));
            }
        }
    }
}

#[test]
fn rotary_tables_round_as_the_models_were_trained() {
    let rope =
        Rope { head_dim: 8, theta: 1e6, rotated_pairs: 3, factor: 1.0, divisors: Vec::new(), magnitude: 1.0 };
    let (cos, sin) = step::rotary(STEP, &rope);
    assert_eq!((cos.len(), sin.len()), (16, 16));
    for (row, position) in [5.0_f32, 6.0, 7.0, 8.0].into_iter().enumerate() {
        for pair in 0..4 {
            let (cos, sin) = (cos[row * 4 + pair], sin[row * 4 + pair]);
            if pair == 3 {
                assert_eq!((cos, sin), (1.0, 0.0), "pairs beyond the rotated ones stay");
                continue;
            }
            let angle = position * (1.0 / 1e6_f32.powf(pair as f32 / 4.0));
            assert!((cos - angle.cos()).abs() < 1e-6 && (sin - angle.sin()).abs() < 1e-6);
        }
    }
    // The angle is a product of two f32. At a late position, it differs from the exact angle by
    // more than any rounding of the cosine.
    let late = step::rotary_angles(&Rope { theta: 1e4, ..rope.clone() }, 100_003)[1];
    let rounded = 100_003.0_f32 * (1.0 / 10.0_f32);
    assert_eq!(late, (f64::from(rounded).cos() as f32, f64::from(rounded).sin() as f32));
    let halved = step::rotary_angles(&Rope { factor: 2.0, ..rope.clone() }, 4)[0];
    assert_eq!(halved, (2.0_f64.cos() as f32, 2.0_f64.sin() as f32));
}

fn table(dtype: DType) -> Asset {
    let bytes = (0..8_u8).flat_map(|value| f32::from(value).to_le_bytes()).collect();
    Asset {
        name: "embedding".to_owned(),
        table: Weight {
            name: "embedding.weight".to_owned(),
            part: "embedding",
            shape: vec![4, 2],
            dtype,
            data: WeightData::from_vec(bytes),
            quantisation: None,
        },
        redirect: vec![(3, 1), (900, 2)],
    }
}

#[test]
fn rows_are_gathered_by_token() {
    let asset = table(DType::F32);
    let rows = step::gathered(STEP, &asset, &[2, 3, 900]).unwrap();
    assert_eq!(rows, [4.0, 5.0, 2.0, 3.0, 4.0, 5.0, 0.0, 0.0]);

    let error = step::gathered(STEP, &asset, &[0, 1, 4]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().starts_with("token 4 needs row 4 of "), "{error}");
    assert!(error.message().ends_with("which has 4 rows"), "{error}");
    assert!(error.help().is_some());
    let error = step::gathered(STEP, &asset, &[0, 1]).unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Argument, "expected 1 to 4 valid rows, got 2"));
    let error = step::gathered(STEP, &table(DType::I32), &[0, 1, 2]).unwrap_err();
    assert_eq!(
        (error.kind(), error.message()),
        (ErrorKind::Unsupported, "stored as i32, which is not supported")
    );
    assert!(error.help().is_some());
}

#[test]
fn every_step_input_has_its_shape() {
    let rope =
        Rope { head_dim: 8, theta: 1e6, rotated_pairs: 3, factor: 1.0, divisors: Vec::new(), magnitude: 1.0 };
    let mask = |keys| Role::Mask(Mask { keys, window: 0, causal: true });
    let asset = AssetId(0);
    let cases: [(Role, &[usize], DType); 9] = [
        (Role::Positions, &[4], DType::I32),
        (Role::Slots { capacity: 9 }, &[4], DType::I32),
        (Role::RotaryCos(rope.clone()), &[4, 4], DType::F32),
        (Role::RotarySin(rope), &[4, 4], DType::F32),
        (mask(Keys::State { capacity: 9 }), &[4, 9], DType::F32),
        (mask(Keys::StateAndRows { capacity: 9 }), &[4, 13], DType::F32),
        (mask(Keys::Rows), &[4, 4], DType::F32),
        (Role::Pooling, &[1, 4], DType::F32),
        (Role::Gathered { asset }, &[4, 2], DType::F32),
    ];
    let assets = [table(DType::F32)];
    for (role, shape, dtype) in cases {
        let array = step::step_input(&role, STEP, &[0, 1, 2], &assets).unwrap().unwrap();
        assert_eq!((array.shape(), array.dtype()), (shape, dtype), "{role:?}");
    }
    for role in [Role::Hidden, Role::Logits, Role::Embedding] {
        assert!(step::step_input(&role, STEP, &[], &[]).unwrap().is_none());
    }
    let error =
        step::step_input(&Role::Gathered { asset: AssetId(1) }, STEP, &[0, 1, 2], &assets).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(error.message(), "expected one of 1 gathered tables, got table 1");
}
