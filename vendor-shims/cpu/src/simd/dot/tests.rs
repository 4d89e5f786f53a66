use proptest::prelude::*;

use super::*;
use crate::simd::Scalar;

/// Runs every method on some bytes and returns the bits of every result, without the parts that
/// depend on [`Dot::OFFSET`].
#[inline(always)]
fn trace<D: Dot>(d: D, bytes: &[u8; VECTOR], q: &[i8; 4], start: i32, out: &mut Vec<u32>) {
    // SAFETY: sixty-four bytes, four bytes.
    let (w, quad) = unsafe { (d.load(bytes.as_ptr()), d.quad(q.as_ptr())) };
    let mut copy = [0u8; VECTOR];
    // SAFETY: sixty-four places.
    unsafe { d.store(copy.as_mut_ptr(), w) };
    out.extend(copy.map(u32::from));
    let all: i32 = q.iter().map(|q| i32::from(*q)).sum();
    let sums = d.dot(d.splat(start.wrapping_sub(D::OFFSET * all)), d.signed(w), quad);
    out.extend(d.lanes(sums).map(|sum| sum as u32));
    out.extend(d.lanes(d.add(sums, d.splat(-77))).map(|sum| sum as u32));
    out.push(d.total(sums) as u32);
    for (bits, parts) in [(4, 2), (2, 4)] {
        for part in 0..parts {
            let small = d.dot_small(d.splat(start), d.field(w, bits, part), quad);
            out.extend(d.lanes(small).map(|sum| sum as u32));
        }
    }
    let mut each = [0i8; VECTOR];
    each.iter_mut().enumerate().for_each(|(at, value)| *value = q[(at / 4 + at) % 4]);
    // SAFETY: sixty-four bytes.
    let each = unsafe { d.load(each.as_ptr().cast()) };
    for part in 0..2 {
        let small = d.dot_each(d.splat(start), d.field(w, 4, part), each);
        out.extend(d.lanes(small).map(|sum| sum as u32));
    }
    // SAFETY: `THIRDS` of sixty-four bytes.
    for third in unsafe { d.thirds(bytes.as_ptr()) } {
        out.extend(d.lanes(d.dot_each(d.splat(start), third, each)).map(|sum| sum as u32));
        // SAFETY: sixty-four places.
        unsafe { d.store(copy.as_mut_ptr(), third) };
        out.extend(copy.map(u32::from));
    }
    for part in 0..8 {
        let raised = d.raise(d.field(w, 4, part % 2), w, part);
        out.extend(d.lanes(d.dot_small(d.splat(start), raised, quad)).map(|sum| sum as u32));
        out.extend(d.lanes(d.dot_each(d.splat(start), raised, each)).map(|sum| sum as u32));
    }
    for part in 0..4 {
        let deep = d.deepen(d.field(w, 4, part % 2), w, part);
        out.extend(d.lanes(d.dot_small(d.splat(start), deep, quad)).map(|sum| sum as u32));
        // SAFETY: sixty-four places.
        unsafe { d.store(copy.as_mut_ptr(), deep) };
        out.extend(copy.map(u32::from));
    }
    let mut values = [0.0f32; 16];
    // SAFETY: sixteen places.
    unsafe { d.values().store(values.as_mut_ptr(), d.widen(sums)) };
    out.extend(values.map(f32::to_bits));
    let lanes = std::array::from_fn(|lane| start.wrapping_add(lane as i32));
    out.extend(d.lanes(d.sums(&lanes)).map(|sum| sum as u32));
    let sixteen: [i8; 16] = std::array::from_fn(|at| q[(at / 4 + at) % 4]);
    for index in 0..4 {
        // SAFETY: the sixteen bytes outlive the step.
        unsafe {
            let step = d.step(sixteen.as_ptr());
            let all: i32 = sixteen[4 * index..][..4].iter().map(|q| i32::from(*q)).sum();
            let from = d.splat(start.wrapping_sub(D::OFFSET * all));
            out.extend(d.lanes(d.dot(from, d.signed(w), d.quad_at(step, index))).map(|sum| sum as u32));
            out.extend(d.lanes(d.dot_at(from, d.signed(w), step, index)).map(|sum| sum as u32));
            let small = d.dot_small_at(d.splat(start), d.field(w, 4, index % 2), step, index);
            out.extend(d.lanes(small).map(|sum| sum as u32));
        }
    }
    let four = [0, 1, 2, 3].map(|part| d.raise(d.field(w, 4, part % 2), w, part));
    // SAFETY: the sixteen bytes outlive the step.
    let four = unsafe { d.dot_four_small(d.splat(start), four, d.step(sixteen.as_ptr())) };
    out.extend(d.lanes(four).map(|sum| sum as u32));
    for first in [0, 2] {
        let two = [first, first + 1].map(|part| d.deepen(d.field(w, 4, part % 2), w, part));
        // SAFETY: the sixteen bytes outlive the step.
        let two = unsafe { d.dot_two_small(d.splat(start), two, d.step(sixteen.as_ptr()), first) };
        out.extend(d.lanes(two).map(|sum| sum as u32));
    }
    let scales = std::array::from_fn(|lane| f64::from(bytes[lane]) * 1e-3 - 0.1);
    let bias = std::array::from_fn(|lane| f64::from(bytes[lane + 16]));
    // SAFETY: sixteen places.
    unsafe { d.values().store(values.as_mut_ptr(), d.exact(sums, 0.7, &scales, &bias)) };
    out.extend(values.map(f32::to_bits));
    let unsigned: [i8; 4] = q.map(|q| q ^ -128);
    let raised = match D::RAISES {
        // SAFETY: four bytes.
        true => d.lanes(d.dot_raised(d.splat(start), w, unsafe { d.quad(unsigned.as_ptr()) })),
        false => Scalar.dot_raised([start; 16], *bytes, unsigned),
    };
    out.extend(raised.map(|sum| sum as u32));
}

dispatch_dot! { fn trace_at => trace(bytes: &[u8; VECTOR], q: &[i8; 4], start: i32, out: &mut Vec<u32>) }

fn same_everywhere(bytes: &[u8; VECTOR], q: &[i8; 4], start: i32) {
    let mut expected = Vec::new();
    trace(Scalar, bytes, q, start, &mut expected);
    for level in DotLevel::every() {
        let mut got = Vec::new();
        trace_at(level, bytes, q, start, &mut got);
        assert_eq!(got, expected, "{} of {bytes:?} and {q:?} from {start}", level.name());
    }
}

proptest! {
    #[test]
    fn every_level_is_the_scalar_form(
        bytes in prop::collection::vec(any::<u8>(), VECTOR), q in prop::array::uniform4(-127i8..=127), start: i32,
    ) {
        same_everywhere(bytes.as_slice().try_into().expect("as many"), &q, start);
    }
}

#[test]
fn the_largest_products_do_not_saturate() {
    for byte in [0, 1, 0x7f, 0x80, 0x81, 0xff] {
        for q in [-127, -1, 0, 1, 127] {
            for start in [0, i32::MAX, i32::MIN, (1 << 24) + 1] {
                same_everywhere(&[byte; VECTOR], &[q; 4], start);
                same_everywhere(&[byte; VECTOR], &[q, -q, q, q], start);
            }
        }
    }
}

#[test]
fn scalar_products_are_what_they_say() {
    let mut bytes = [0u8; VECTOR];
    bytes[4..8].copy_from_slice(&[0x81, 2, 0xff, 0x35]);
    let mut got = Vec::new();
    trace(Scalar, &bytes, &[1, 10, -100, 2], 1000, &mut got);
    let lane = |trace: usize| got[VECTOR + 16 * trace + usize::from(trace > 1) + 1] as i32;
    assert_eq!(lane(0), 1000 - 127 + 20 + 100 + 106);
    // Low halves are 1, 2, 15, 5, high halves are 8, 0, 15, 3, followed by pairs of bits from the
    // lowest on.
    assert_eq!((lane(2), lane(3)), (1000 + 1 + 20 - 1500 + 10, 1000 + 8 - 1500 + 6));
    assert_eq!((lane(4), lane(7)), (1000 + 1 + 20 - 300 + 2, 1000 + 2 - 300));
}

#[test]
fn scalar_fields_of_two_bits_and_groups_of_products_are_what_they_say() {
    let small: [u8; VECTOR] = std::array::from_fn(|at| at as u8 % 16);
    let bits: [u8; VECTOR] = std::array::from_fn(|at| (at * 37 % 256) as u8);
    let deep = [0, 1, 2, 3].map(|part| Scalar.deepen(small, bits, part));
    for (part, deep) in deep.iter().enumerate() {
        for (at, byte) in deep.iter().enumerate() {
            let field = [bits[at] & 3, (bits[at] / 4) & 3, (bits[at] / 16) & 3, bits[at] / 64][part];
            assert_eq!(*byte, at as u8 % 16 + 16 * field);
        }
    }
    let q: [i8; 16] = std::array::from_fn(|at| (at as i8 - 8) * 15);
    let lane = |w: &[[u8; VECTOR]], q: &[i8], lane: usize| -> i32 {
        let term = |at: usize| i32::from(w[at / 4][4 * lane + at % 4]) * i32::from(q[at]);
        (0..4 * w.len()).map(term).sum()
    };
    // SAFETY: the sixteen bytes outlive the step.
    let step = unsafe { Scalar.step(q.as_ptr()) };
    let raised = [4, 5, 6, 7].map(|part| Scalar.raise(small, bits, part));
    // SAFETY: as above.
    let four = unsafe { Scalar.dot_four_small([5; LANES], raised, step) };
    assert_eq!(four, std::array::from_fn(|at| 5 + lane(&raised, &q, at)));
    // SAFETY: as above.
    let two = unsafe { Scalar.dot_two_small([5; LANES], [deep[2], deep[3]], step, 2) };
    assert_eq!(two, std::array::from_fn(|at| 5 + lane(&deep[2..], &q[8..], at)));
}

#[test]
fn a_level_chooses_what_its_registers_hold() {
    assert_eq!(DotLevel::within(Level::Scalar), DotLevel::Scalar);
    for level in Level::available() {
        assert!(DotLevel::available().contains(&DotLevel::within(level)), "{}", level.name());
    }
    #[cfg(target_arch = "x86_64")]
    assert_ne!(DotLevel::within(Level::Avx2), DotLevel::Avx512Vnni);
}

/// `cargo xtask aarch64` sets this variable when it chose the (emulated) processor. A level that is
/// missing there would never be tested.
#[cfg(target_arch = "aarch64")]
#[test]
fn an_emulated_processor_has_every_level() {
    if std::env::var_os("SHARDWRIGHT_EVERY_LEVEL").is_some() {
        let every = [DotLevel::Scalar, DotLevel::Neon, DotLevel::NeonDot, DotLevel::NeonI8mm];
        assert_eq!(DotLevel::available(), every);
        assert_eq!(DotLevel::within(Level::Neon), DotLevel::NeonI8mm);
    }
}
