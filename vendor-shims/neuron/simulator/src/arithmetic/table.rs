//! Functions of 16-bit integers as tables of 513 values between which is interpolated, and of 8-bit integers as tables of 256.
//!
//! After `LUTPopulate` and `LUTLookup` in `tensorflow/lite/kernels/internal/common.h`, restated: each value of a 16-bit table is shifted by half the error that
//! linear interpolation makes in the middle of its interval.

/// A function over all 16-bit integers.
pub struct Table16 {
    values: [i16; 513],
}

impl Table16 {
    /// The table of `function` over [`low`, `high`], with results in [`least`, `greatest`] mapped to the 16-bit range.
    pub fn new(function: impl Fn(f64) -> f64, low: f64, high: f64, least: f64, greatest: f64) -> Table16 {
        let step = (high - low) / 512.0;
        let inverse = 65_536.0 / (greatest - least);
        let clamp = |value: f64| value.clamp(-32_768.0, 32_767.0);
        let mut values = [0i16; 513];
        for (index, value) in values.iter_mut().enumerate() {
            let at = low + index as f64 * step;
            let sample = (function(at) * inverse).round();
            if index == 512 {
                *value = clamp(sample) as i16;
                break;
            }
            let next = function(at + step) * inverse;
            let between = ((next + sample) / 2.0).round();
            let middle = (function(at + step / 2.0) * inverse).round();
            let bias = ((between - middle) / 2.0).round();
            *value = clamp(sample - bias) as i16;
        }
        Table16 { values }
    }

    /// The value at `x`.
    #[inline]
    pub fn at(&self, x: i16) -> i16 {
        let index = (256 + (i32::from(x) >> 7)) as usize;
        let offset = i32::from(x) & 0x7F;
        let base = i32::from(self.values[index]);
        let slope = i32::from(self.values[index + 1]) - base;
        (base + ((slope * offset + 64) >> 7)) as i16
    }
}

/// A function over all 8-bit integers: quantised in, quantised out, exactly rounded.
pub fn table8(
    function: impl Fn(f64) -> f64,
    decode: impl Fn(i32) -> f64,
    encode: impl Fn(f64) -> i32,
    lowest: i32,
) -> [i32; 256] {
    std::array::from_fn(|index| encode(function(decode(lowest + index as i32))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_follow_their_functions() {
        let table = Table16::new(f64::exp, -10.0, 0.0, -1.0, 1.0);
        for x in (i16::MIN..=i16::MAX).step_by(37) {
            let real = (f64::from(x) + 32_768.0) / 65_536.0 * 10.0 - 10.0;
            let found = f64::from(table.at(x)) / 32_768.0;
            assert!((found - real.exp()).abs() < 1e-4, "{x}: {found}");
        }
        let table = table8(|x| x * x, |q| f64::from(q) * 0.1, |x| (x / 0.5).round() as i32, -128);
        assert_eq!((table[0], table[128], table[138]), (328, 0, 2));
    }
}
