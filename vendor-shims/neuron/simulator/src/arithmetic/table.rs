//! Functions of 16-bit integers as interpolated tables of 513 values (256 values for LOGISTIC and
//! TANH), and functions of 8-bit integers as tables of 256 values.
//!
//! The tables restate `LUTPopulate` and `LUTLookup` in `tensorflow/lite/kernels/internal/common.h`.
//! Each value of a 16-bit table is shifted by half the error that linear interpolation makes in the
//! middle of its interval.

/// A function of all 16-bit integers.
pub struct Table16 {
    values: [i16; 513],
}

impl Table16 {
    /// Creates the table of `function` over [`low`, `high`]. Results in [`least`, `greatest`] are
    /// mapped to the 16-bit range.
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

    /// Returns the value at `x`.
    #[inline]
    pub fn at(&self, x: i16) -> i16 {
        let index = (256 + (i32::from(x) >> 7)) as usize;
        let offset = i32::from(x) & 0x7F;
        let base = i32::from(self.values[index]);
        let slope = i32::from(self.values[index + 1]) - base;
        (base + ((slope * offset + 64) >> 7)) as i16
    }
}

/// LOGISTIC and TANH of 16-bit integers with results in steps of 2⁻¹⁵: a table of the sigmoid at
/// 256 positions, each 1/24 apart.
///
/// It restates `reference/integer_ops/{logistic,tanh}.h` and `kernels/activations.cc` of TensorFlow
/// Lite, except for the table. The values here are the nearest ones, and results differ from
/// TensorFlow Lite's by at most one.
pub struct Sigmoid16 {
    values: [u16; 256],
    /// Scales a stored integer to steps of 1/12288, together with `shift`.
    factor: i32,
    shift: u32,
}

impl Sigmoid16 {
    /// Creates the table for inputs of this scale, or returns `None` beyond the range that
    /// TensorFlow Lite supports.
    pub fn new(scale: f32) -> Option<Sigmoid16> {
        let values = std::array::from_fn(|place| {
            let at = place as f64 / 24.0;
            (65_536.0 / (1.0 + (-at).exp())).round().min(65_535.0) as u16
        });
        if scale == 1.0 / 4_096.0 {
            return Some(Sigmoid16 { values, factor: 3, shift: 0 });
        }
        let (mut factor, mut shift) = (f64::from(scale) * 4_096.0 * 3.0, 0);
        while factor <= 32_767.0 / 2.0 && shift <= 30 {
            factor *= 2.0;
            shift += 1;
        }
        (factor <= 32_767.0).then_some(Sigmoid16 { values, factor: factor as i32, shift })
    }

    /// Returns the argument in steps of 1/12288, rounded.
    fn argument(&self, x: i16) -> i64 {
        let half = if self.shift > 0 { 1i64 << (self.shift - 1) } else { 0 };
        (i64::from(x) * i64::from(self.factor) + half) >> self.shift
    }

    /// Interpolates the table at a position with `bits` fractional bits, in steps of 2^-(16 +
    /// bits). From the last value on the result is `end`.
    fn between(&self, place: i64, bits: u32, end: i64) -> i64 {
        let index = (place >> bits) as usize;
        if index >= 255 {
            return end << bits;
        }
        let [from, to] = [index, index + 1].map(|index| i64::from(self.values[index]));
        (from << bits) + (place & ((1 << bits) - 1)) * (to - from)
    }

    /// Computes 1 / (1 + e^-x).
    pub fn logistic(&self, x: i16) -> i32 {
        let argument = self.argument(x);
        // The end is in steps of 2⁻¹⁵, one bit more than the values.
        let found = self.between(argument.abs(), 9, 0x7FFF << 1);
        let found = if argument >= 0 { found + (1 << 9) } else { (1 << 25) - found + (1 << 9) - 1 };
        (found >> 10) as i32
    }

    /// Computes tanh(x), which is twice the sigmoid of 2x minus one.
    pub fn tanh(&self, x: i16) -> i32 {
        let argument = self.argument(x);
        let found = self.between(argument.abs(), 8, 0xFFFF);
        let found =
            if argument >= 0 { found - (1 << 23) + (1 << 7) } else { (1 << 23) - found + (1 << 7) - 1 };
        (found >> 8) as i32
    }
}

/// Tabulates a function of all 8-bit integers, from quantised input to quantised output, exactly
/// rounded.
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
