use super::*;
use crate::kernels::encoding::{Element, ElementEncoding, StoredMut, decode, encode};
use crate::simd::Level;
use proptest::prelude::*;
use shardwright_shim_testing::bits;

fn values(count: usize, seed: u64) -> Vec<f32> {
    shardwright_shim_testing::values(count, seed, 1.0)
}

/// Returns the stored elements of the values in an encoding, and the values they decode to.
fn encoded(encoding: ElementEncoding, values: &[f32]) -> (Vec<u32>, Vec<f32>) {
    let mut stored = vec![0u32; values.len()];
    let pool = Pool::eager(1);
    // SAFETY: plain bytes.
    let room = unsafe {
        let length = values.len() * encoding.element.bytes();
        std::slice::from_raw_parts_mut(stored.as_mut_ptr().cast::<u8>(), length)
    };
    encode(Level::detect(), &pool, values, values.len(), StoredMut::new(encoding, room).unwrap());
    let mut near = vec![0.0; values.len()];
    decode(Level::detect(), &pool, Stored::new(encoding, room).unwrap(), values.len(), &mut near);
    (stored, near)
}

/// Wraps the elements that [`encoded`] returned.
fn bytes(encoding: ElementEncoding, stored: &[u32]) -> Stored<'_> {
    let length = stored.len() * encoding.element.bytes();
    // SAFETY: plain bytes, four for each element.
    Stored::new(encoding, unsafe { std::slice::from_raw_parts(stored.as_ptr().cast(), length) }).unwrap()
}

fn run(level: Level, threads: usize, heads: Heads, operands: Operands<'_>, visible: &[Visible]) -> Vec<f32> {
    let pool = Pool::eager(threads);
    let encoded = operands.k.direct().is_none() || operands.v.direct().is_none();
    let mut scratch = vec![f32::NAN; scratch_values(heads, operands.capacity, threads, encoded).unwrap()];
    let mut out = vec![f32::NAN; visible.len() * heads.heads * heads.head_dim];
    attention(level, &pool, heads, operands, visible, &mut Vec::new(), &mut scratch, &mut out);
    out
}

/// Computes the definition in f64.
fn exact(heads: Heads, operands: Operands<'_>, visible: &[Visible]) -> Vec<f64> {
    let d = heads.head_dim;
    let group = heads.heads / heads.kv_heads;
    let (k, v) = (operands.k.direct().unwrap(), operands.v.direct().unwrap());
    let mut out = Vec::new();
    for (row, seen) in visible.iter().enumerate() {
        for head in 0..heads.heads {
            let q = &operands.q[(row * heads.heads + head) * d..][..d];
            let at = |p: u64| ((p % operands.capacity as u64) as usize * heads.kv_heads + head / group) * d;
            let positions: Vec<u64> = (seen.start..seen.start + seen.count as u64).collect();
            let scores: Vec<f64> = positions
                .iter()
                .map(|&p| {
                    let dot: f64 =
                        q.iter().zip(&k[at(p)..]).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                    let score = dot * f64::from(heads.scale);
                    let cap = f64::from(heads.softcap);
                    if cap == 0.0 { score } else { cap * (score / cap).tanh() }
                })
                .collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for index in 0..d {
                let total: f64 = positions
                    .iter()
                    .zip(&weights)
                    .map(|(&p, weight)| weight * f64::from(v[at(p) + index]))
                    .sum();
                out.push(if seen.count == 0 { 0.0 } else { total / sum });
            }
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn agrees_with_the_definition_and_with_itself(
        kv_heads in 1usize..4, group in 1usize..5, head_dim in 1usize..90, capacity in 1usize..150, rows in 1usize..40,
        window in 0usize..60, first in 0u64..500, capped: bool, seed: u64,
    ) {
        let heads = Heads { heads: kv_heads * group, kv_heads, head_dim, scale: 0.3, softcap: if capped { 2.0 } else { 0.0 } };
        let q = values(rows * heads.heads * head_dim, seed);
        let mut k = values(capacity * kv_heads * head_dim, seed ^ 1);
        let mut v = values(capacity * kv_heads * head_dim, seed ^ 2);
        let limit = if window == 0 { capacity } else { window.min(capacity) };
        let visible: Vec<Visible> = (0..rows as u64)
            .map(|row| {
                let position = first + row;
                let count = (position + 1).min(limit as u64);
                Visible { start: position + 1 - count, count: count as usize }
            })
            .collect();
        // Keys that no row sees must not affect the result.
        for slot in 0..capacity as u64 {
            let seen = visible.iter().any(|row| (row.start..row.start + row.count as u64).any(|p| p % capacity as u64 == slot));
            if !seen {
                let range = slot as usize * kv_heads * head_dim..(slot as usize + 1) * kv_heads * head_dim;
                k[range.clone()].fill(f32::NAN);
                v[range].fill(f32::NAN);
            }
        }
        let operands = Operands { q: &q, k: Stored::values(&k), v: Stored::values(&v), capacity, stride: kv_heads * head_dim };
        let expected = run(Level::Scalar, 1, heads, operands, &visible);
        for (got, exact) in expected.iter().zip(exact(heads, operands, &visible)) {
            prop_assert!((f64::from(*got) - exact).abs() < 2e-5, "{} instead of {}", got, exact);
        }
        for level in Level::available() {
            for threads in [1, 2, 5] {
                prop_assert_eq!(bits(&run(level, threads, heads, operands, &visible)), bits(&expected));
            }
        }
        // Encoded keys and values give the same bits as the f32 values they decode to.
        for (element, scale, zero_point) in [
            (Element::U16, 1e-4, 31_000), (Element::U8, 0.01, 120), (Element::F16, 1.0, 0), (Element::I16, 1e-4, 0),
            (Element::Bf16, 1.0, 0), (Element::I8, 0.01, 5),
        ] {
            let encoding = ElementEncoding { element, scale, zero_point };
            let (stored_k, near_k) = encoded(encoding, &k);
            let (stored_v, near_v) = encoded(encoding, &v);
            let near = Operands { q: &q, k: Stored::values(&near_k), v: Stored::values(&near_v), ..operands };
            let expected = run(Level::detect(), 1, heads, near, &visible);
            let operands = Operands { k: bytes(encoding, &stored_k), v: bytes(encoding, &stored_v), ..near };
            for (level, threads) in [(Level::Scalar, 1), (Level::detect(), 1), (Level::detect(), 3)] {
                prop_assert_eq!(bits(&run(level, threads, heads, operands, &visible)), bits(&expected));
            }
        }
        // A row alone has the same bits as among other rows.
        let width = heads.heads * head_dim;
        for row in [0, rows / 2, rows - 1] {
            let operands = Operands { q: &q[row * width..], ..operands };
            let one = run(Level::detect(), 3, heads, operands, &visible[row..=row]);
            prop_assert_eq!(bits(&one), bits(&expected[row * width..(row + 1) * width]));
        }
    }
}

fn run_rounded(
    (level, threads): (Level, usize),
    heads: Heads,
    products: Products,
    operands: Operands<'_>,
    visible: &[Visible],
) -> Vec<f32> {
    let pool = Pool::eager(threads);
    let mut scratch = vec![f32::NAN; scratch_rounded(heads, threads).unwrap()];
    let mut out = vec![f32::NAN; visible.len() * heads.heads * heads.head_dim];
    let (blocks, scratch, results) = (&mut Vec::new(), &mut scratch, &mut out);
    attention_rounded(level, &pool, heads, products, operands, visible, blocks, scratch, results);
    out
}

/// Returns the encoding of operands, and the largest relative error of a rounded weight.
fn rounding(products: Products) -> (ElementEncoding, f64) {
    match products {
        Products::F32 => (ElementEncoding::F32, 0.0),
        Products::Bf16 => (ElementEncoding::plain(Element::Bf16), 1.0 / 256.0),
        Products::F16 => (ElementEncoding::plain(Element::F16), 1.0 / 2048.0),
    }
}

fn nearest_values(encoding: ElementEncoding, values: &[f32]) -> Vec<f32> {
    let mut near = values.to_vec();
    crate::kernels::encoding::nearest(Level::Scalar, &Pool::eager(1), encoding, values.len(), &mut near);
    near
}

/// Computes the definition in f64, from operands that are already rounded.
fn exact_rounded(
    heads: Heads,
    encoding: ElementEncoding,
    operands: Operands<'_>,
    visible: &[Visible],
) -> Vec<f64> {
    let (d, group) = (heads.head_dim, heads.heads / heads.kv_heads);
    let (k, v) = (operands.k.direct().unwrap(), operands.v.direct().unwrap());
    let mut out = Vec::new();
    for (row, seen) in visible.iter().enumerate() {
        for head in 0..heads.heads {
            let q = &operands.q[(row * heads.heads + head) * d..][..d];
            let at = |p: u64| ((p % operands.capacity as u64) as usize * heads.kv_heads + head / group) * d;
            let score = |p: u64| {
                let dot: f64 = q.iter().zip(&k[at(p)..]).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                let (score, cap) = (dot * f64::from(heads.scale), f64::from(heads.softcap));
                if cap == 0.0 { score } else { cap * (score / cap).tanh() }
            };
            let (mut all, mut sum, mut mixed) = (f64::NEG_INFINITY, 0.0, vec![0.0; d]);
            let mut first = seen.start;
            let end = seen.start + seen.count as u64;
            while first < end {
                let last = end.min((first / 64 + 1) * 64);
                let scores: Vec<f64> = (first..last).map(score).collect();
                let own = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f32> = scores.iter().map(|score| (score - own).exp() as f32).collect();
                let largest = f64::max(all, own);
                let (before, here) = ((all - largest).exp(), (own - largest).exp());
                (all, sum) = (largest, sum * before);
                mixed.iter_mut().for_each(|value| *value *= before);
                for (p, weight) in (first..last).zip(nearest_values(encoding, &weights)) {
                    sum += f64::from(weight) * here;
                    for (value, v) in mixed.iter_mut().zip(&v[at(p)..]) {
                        *value += f64::from(weight) * here * f64::from(*v);
                    }
                }
                first = last;
            }
            out.extend(mixed.iter().map(|value| if seen.count == 0 { 0.0 } else { value / sum }));
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn rounded_products_agree_with_their_definition_and_with_themselves(
        kv_heads in 1usize..4, group in 1usize..5, head_dim in 1usize..70, capacity in 1usize..300, rows in 1usize..90,
        window in 0usize..200, first in 0u64..500, capped: bool, is_bf16: bool, seed: u64,
    ) {
        let softcap = if capped { 2.0 } else { 0.0 };
        let heads = Heads { heads: kv_heads * group, kv_heads, head_dim, scale: 0.3, softcap };
        let products = if is_bf16 { Products::Bf16 } else { Products::F16 };
        let (encoding, step) = rounding(products);
        let (width, stride) = (heads.heads * head_dim, kv_heads * head_dim);
        let q = values(rows * width, seed);
        let mut k = values(capacity * stride, seed ^ 1);
        let mut v = values(capacity * stride, seed ^ 2);
        let limit = if window == 0 { capacity } else { window.min(capacity) };
        let visible: Vec<Visible> = (0..rows as u64)
            .map(|row| {
                let count = (first + row + 1).min(limit as u64);
                Visible { start: first + row + 1 - count, count: count as usize }
            })
            .collect();
        // Keys that no row sees must not affect the result.
        let is_seen = |slot: u64| {
            visible.iter().any(|row| (row.start..row.start + row.count as u64).any(|p| p % capacity as u64 == slot))
        };
        for slot in (0..capacity).filter(|slot| !is_seen(*slot as u64)) {
            k[slot * stride..][..stride].fill(f32::NAN);
            v[slot * stride..][..stride].fill(f32::INFINITY);
        }
        let operands = Operands { q: &q, k: Stored::values(&k), v: Stored::values(&v), capacity, stride };
        let expected = run_rounded((Level::Scalar, 1), heads, products, operands, &visible);
        let [near_q, near_k, near_v] = [&q, &k, &v].map(|values| nearest_values(encoding, values));
        let near = Operands { q: &near_q, k: Stored::values(&near_k), v: Stored::values(&near_v), ..operands };
        // A score near the middle of two weights may be rounded to the other one.
        let mut apart = 0;
        for (got, exact) in expected.iter().zip(exact_rounded(heads, encoding, near, &visible)) {
            let difference = (f64::from(*got) - exact).abs();
            prop_assert!(difference < step, "{} instead of {}", got, exact);
            apart += usize::from(difference > 2e-5);
        }
        prop_assert!(apart <= expected.len() / 20 + width, "{apart} of {} are apart", expected.len());
        for level in Level::available() {
            for threads in [1, 2, 5] {
                let got = run_rounded((level, threads), heads, products, operands, &visible);
                prop_assert_eq!(bits(&got), bits(&expected));
            }
        }
        // Operands that are already rounded give the same bits, and so do states that store them.
        let got = run_rounded((Level::detect(), 2), heads, products, near, &visible);
        prop_assert_eq!(bits(&got), bits(&expected));
        for element in [Element::F16, Element::Bf16, Element::I8] {
            let scale = if element == Element::I8 { 0.01 } else { 1.0 };
            let state = ElementEncoding { element, scale, zero_point: 0 };
            let (stored_k, decoded_k) = encoded(state, &k);
            let (stored_v, decoded_v) = encoded(state, &v);
            let decoded = Operands { k: Stored::values(&decoded_k), v: Stored::values(&decoded_v), ..operands };
            let expected = run_rounded((Level::Scalar, 1), heads, products, decoded, &visible);
            let stored = Operands { k: bytes(state, &stored_k), v: bytes(state, &stored_v), ..operands };
            for (level, threads) in [(Level::Scalar, 1), (Level::detect(), 1), (Level::detect(), 3)] {
                let got = run_rounded((level, threads), heads, products, stored, &visible);
                prop_assert_eq!(bits(&got), bits(&expected));
            }
        }
        // A row alone has the same bits as among other rows.
        for row in [0, rows / 2, rows - 1] {
            let operands = Operands { q: &q[row * width..], ..operands };
            let one = run_rounded((Level::detect(), 3), heads, products, operands, &visible[row..=row]);
            prop_assert_eq!(bits(&one), bits(&expected[row * width..(row + 1) * width]));
        }
    }
}

/// More blocks than a wave has, with few rows, are spread over threads.
#[test]
fn a_long_text_is_spread_over_threads_without_changing_a_bit() {
    let heads = Heads { heads: 4, kv_heads: 2, head_dim: 20, scale: 0.5, softcap: 0.0 };
    let (capacity, stride) = (9_000, 40);
    let (q, k, v) = (values(2 * 80, 1), values(capacity * stride, 2), values(capacity * stride, 3));
    let operands = Operands { q: &q, k: Stored::values(&k), v: Stored::values(&v), capacity, stride };
    let visible = [Visible { start: 17, count: 8_900 }, Visible { start: 60, count: 5 }];
    for products in [Products::Bf16, Products::F16] {
        let expected = run_rounded((Level::Scalar, 1), heads, products, operands, &visible);
        for threads in [2, 7] {
            let got = run_rounded((Level::detect(), threads), heads, products, operands, &visible);
            assert_eq!(bits(&got), bits(&expected), "{products:?} with {threads} threads");
        }
    }
}

/// The memory for a prompt does not grow with its length.
#[test]
fn scratch_memory_of_rounded_products_is_bounded() {
    let heads = Heads { heads: 4, kv_heads: 1, head_dim: 256, scale: 1.0, softcap: 0.0 };
    let bytes = |threads: usize| scratch_rounded(heads, threads).unwrap() * size_of::<f32>();
    assert!(bytes(1) <= 512 << 10 && bytes(9) - bytes(8) <= 224 << 10, "{} and {}", bytes(1), bytes(9));
    // Scores in f32 are bounded by 2 MiB for each thread.
    let scores = |keys: usize| scratch_values(heads, keys, 1, true).unwrap() * size_of::<f32>();
    assert!(scores(8192) <= (2 << 20) + (32 << 10) && scores(100_000) <= (2 << 20) + (32 << 10));
    assert_eq!(scratch_rounded(Heads { head_dim: usize::MAX / 8, ..heads }, 4), None);
}

#[test]
fn a_ring_gives_the_bits_of_a_linear_state() {
    let heads = Heads { heads: 4, kv_heads: 2, head_dim: 24, scale: 1.0, softcap: 0.0 };
    let (width, positions, window) = (2 * 24, 300usize, 50usize);
    let (k, v, q) =
        (values(positions * width, 5), values(positions * width, 6), values(positions * 2 * width, 7));
    let visible: Vec<Visible> = (0..positions)
        .map(|p| Visible { start: (p + 1).saturating_sub(window) as u64, count: window.min(p + 1) })
        .collect();
    let linear = run(
        Level::detect(),
        1,
        heads,
        Operands { q: &q, k: Stored::values(&k), v: Stored::values(&v), capacity: positions, stride: width },
        &visible,
    );
    for capacity in [window + 16, window + 64] {
        let (mut ring_k, mut ring_v) = (vec![0.0; capacity * width], vec![0.0; capacity * width]);
        let mut position = 0;
        while position < positions {
            let rows = 16.min(positions - position);
            for p in position..position + rows {
                let slot = p % capacity;
                ring_k[slot * width..(slot + 1) * width].copy_from_slice(&k[p * width..(p + 1) * width]);
                ring_v[slot * width..(slot + 1) * width].copy_from_slice(&v[p * width..(p + 1) * width]);
            }
            let (k, v) = (Stored::values(&ring_k), Stored::values(&ring_v));
            let operands = Operands { q: &q[position * 2 * width..], k, v, capacity, stride: width };
            let out = run(Level::detect(), 2, heads, operands, &visible[position..position + rows]);
            assert_eq!(
                bits(&out),
                bits(&linear[position * 2 * width..(position + rows) * 2 * width]),
                "at {position}"
            );
            position += rows;
        }
    }
}

#[test]
fn scattered_positions_and_a_blind_row() {
    let heads = Heads { heads: 2, kv_heads: 1, head_dim: 16, scale: 1.0, softcap: 0.0 };
    let (k, v, q) = (values(20 * 16, 1), values(20 * 16, 2), values(3 * 32, 3));
    let visible = [
        Visible { start: 2_000_000_000, count: 20 },
        Visible { start: 0, count: 1 },
        Visible { start: 7, count: 0 },
    ];
    let operands = Operands { q: &q, k: Stored::values(&k), v: Stored::values(&v), capacity: 20, stride: 16 };
    let out = run(Level::detect(), 2, heads, operands, &visible);
    for (got, exact) in out.iter().zip(exact(heads, operands, &visible)) {
        assert!((f64::from(*got) - exact).abs() < 1e-5);
    }
}
