use super::*;

/// Runs every method on some inputs and returns the bits of every result.
#[inline(always)]
fn trace<S: Simd>(s: S, a: &[f32; 16], b: &[f32; 16], c: &[f32; 16], half: &[u16; 16]) -> Vec<u32> {
    let mut out = Vec::new();
    // SAFETY: all arrays have sixteen values.
    let (va, vb, vc) = unsafe { (s.load(a.as_ptr()), s.load(b.as_ptr()), s.load(c.as_ptr())) };
    let mut push = |v: S::V| {
        let mut lanes = [0.0f32; 16];
        // SAFETY: sixteen values.
        unsafe { s.store(lanes.as_mut_ptr(), v) };
        out.extend(lanes.iter().map(|x| if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() }));
    };
    push(s.splat(a[3]));
    push(s.add(va, vb));
    push(s.sub(va, vb));
    push(s.mul(va, vb));
    push(s.div(va, vb));
    push(s.fma(va, vb, vc));
    push(s.max(va, vb));
    push(s.min(va, vb));
    push(s.select_less(va, vb, vc, va));
    push(s.splat(f32::from(u8::from(s.all_less(va, vb)))));
    push(s.splat(f32::from(u8::from(s.all_less(va, s.add(s.abs(va), s.splat(1.0)))))));
    push(s.sqrt(va));
    push(s.round(va));
    push(s.exp2_int(s.round(s.max(s.min(va, s.splat(127.0)), s.splat(-126.0)))));
    push(s.neg(va));
    push(s.abs(va));
    push(s.copy_sign(va, vb));
    // SAFETY: sixteen values.
    unsafe {
        push(s.load_bf16(half.as_ptr()));
        push(s.load_f16(half.as_ptr()));
        push(s.load_i8(half.as_ptr().cast()));
        push(s.load_i4(half.as_ptr().cast()));
        push(s.load_i2(half.as_ptr().cast()));
        let mut bytes = [0i8; 16];
        s.store_i8(bytes.as_mut_ptr(), s.load_i8(half.as_ptr().cast()));
        push(s.load_i8(bytes.as_ptr()));
        let mut narrow = [0u16; 16];
        s.store_f16(narrow.as_mut_ptr(), va);
        push(s.load_f16(narrow.as_ptr()));
    }
    for count in 0..=16 {
        // SAFETY: `count` is at most sixteen.
        unsafe {
            push(s.load_partial(a.as_ptr(), count));
            let mut lanes = [7.0f32; 16];
            s.store_partial(lanes.as_mut_ptr(), count, va);
            push(s.load(lanes.as_ptr()));
        }
    }
    push(s.splat(s.reduce_add(va)));
    push(s.splat(s.reduce_max(va)));
    out
}

dispatch! {
    fn trace_at => trace(a: &[f32; 16], b: &[f32; 16], c: &[f32; 16], half: &[u16; 16]) -> Vec<u32>
}

fn cases() -> Vec<[f32; 16]> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut next = move || random.u32(..) >> 1;
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::MIN_POSITIVE,
        1e-40,
        -1e-40,
        f32::MAX,
        f32::INFINITY,
        0.5,
        1.5,
        2.5,
        -2.5,
    ];
    (0..64)
        .map(|case| {
            std::array::from_fn(|lane| match case % 4 {
                0 => special[(next() as usize + lane) % special.len()],
                1 => (next() as f32 / u32::MAX as f32 - 0.25) * 200.0,
                2 => f32::from_bits(next().wrapping_mul(2654435761)),
                _ => next() as f32 * 1e-9 - 0.5,
            })
        })
        .collect()
}

#[test]
fn every_level_means_the_same() {
    let cases = cases();
    for (index, a) in cases.iter().enumerate() {
        let b = &cases[(index + 7) % cases.len()];
        let c = &cases[(index + 13) % cases.len()];
        let half: [u16; 16] = std::array::from_fn(|lane| (index * 1021 + lane * 4099) as u16);
        let expected = trace_at(Level::Scalar, a, b, c, &half);
        for level in Level::available() {
            assert_eq!(trace_at(level, a, b, c, &half), expected, "{} on case {index}", level.name());
        }
    }
}

#[test]
fn binary16_is_widened_exactly() {
    for bits in 0..=u16::MAX {
        let value = scalar::widen_f16(bits);
        let exponent = i32::from(bits >> 10) & 0x1f;
        let fraction = f64::from(bits & 0x3ff);
        let magnitude = match exponent {
            0 => fraction * 2f64.powi(-24),
            0x1f if fraction == 0.0 => f64::INFINITY,
            0x1f => f64::NAN,
            _ => (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
        };
        let expected = if bits & 0x8000 == 0 { magnitude } else { -magnitude };
        assert!(f64::from(value) == expected || (value.is_nan() && expected.is_nan()), "{bits:#06x}");
        assert_eq!(value.is_sign_negative(), bits & 0x8000 != 0, "{bits:#06x}");
    }
}

#[test]
fn binary16_is_rounded_to_the_nearest() {
    // A widened binary16 narrows back to itself. The middle between two neighbours rounds to the
    // even neighbour.
    for bits in 0..0x7c00u16 {
        let (value, next) = (scalar::widen_f16(bits), scalar::widen_f16(bits + 1));
        for sign in [0, 0x8000] {
            let signed = |value: f32| if sign == 0 { value } else { -value };
            assert_eq!(scalar::narrow_f16(signed(value)), bits | sign, "{bits:#06x}");
            // Beyond the largest value, the step stays the same.
            let next = if next.is_infinite() { 65536.0 } else { next };
            let middle = (value + next) / 2.0;
            let even = bits + (bits & 1);
            assert_eq!(scalar::narrow_f16(signed(middle)), even | sign, "above {bits:#06x}");
            let below = f32::from_bits(middle.to_bits() - 1);
            assert_eq!(scalar::narrow_f16(signed(below)), bits | sign, "below the middle above {bits:#06x}");
            let above = f32::from_bits(middle.to_bits() + 1);
            assert_eq!(
                scalar::narrow_f16(signed(above)),
                (bits + 1) | sign,
                "past the middle above {bits:#06x}"
            );
        }
    }
    assert_eq!(scalar::narrow_f16(f32::INFINITY), 0x7c00);
    assert_eq!(scalar::narrow_f16(-1e30), 0xfc00);
    assert!(scalar::widen_f16(scalar::narrow_f16(f32::NAN)).is_nan());
}

#[test]
fn packed_integers_come_in_their_lanes() {
    let bytes: [u8; 8] = [0x80, 0x71, 0xf2, 0x13, 0x04, 0x95, 0xe6, 0xc7];
    let low = [0, 1, 2, 3, 4, 5, 6, 7].map(|value| value as f32);
    let high = [-8, 7, -1, 1, 0, -7, -2, -4].map(|value| value as f32);
    // SAFETY: sixteen values of four bits have eight bytes, and sixteen values of two bits have
    // four.
    let (four, two) =
        unsafe { (Scalar.load_i4(bytes.as_ptr()), Scalar.load_i2([0b11_10_01_00u8; 4].as_ptr())) };
    assert_eq!(four, [low, high].concat()[..]);
    assert_eq!(two, [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, -2.0, -2.0, -2.0, -2.0, -1.0, -1.0, -1.0, -1.0]);
}

#[test]
fn sums_of_sixteen_vectors_are_those_of_each() {
    dispatch! { fn sums_at => sums(values: &[[f32; LANES]; LANES], each: &mut [f32; LANES]) }

    #[inline(always)]
    fn sums<S: Simd>(s: S, values: &[[f32; LANES]; LANES], each: &mut [f32; LANES]) {
        let mut vectors = [s.splat(0.0); LANES];
        for (vector, values) in vectors.iter_mut().zip(values) {
            // SAFETY: sixteen values.
            *vector = unsafe { s.load(values.as_ptr()) };
        }
        // SAFETY: as above.
        unsafe { s.store(each.as_mut_ptr(), s.reduce_add_each(vectors)) };
    }

    // The sizes differ so much that another order of addition would change the bits.
    let value = |vector: usize, lane: usize| {
        ((vector * 37 + lane * 101) % 89 + 1) as f32 * 3f32.powi((vector * 7 + lane * 5) as i32 % 17 - 8)
    };
    let values = std::array::from_fn(|vector| std::array::from_fn(|lane| value(vector, lane)));
    let expected = values.map(|vector| Scalar.reduce_add(vector).to_bits());
    for level in Level::available() {
        let mut each = [f32::NAN; LANES];
        sums_at(level, &values, &mut each);
        assert_eq!(each.map(f32::to_bits), expected, "{}", level.name());
    }
}
