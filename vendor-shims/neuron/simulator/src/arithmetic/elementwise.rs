//! Elementwise operations with the broadcasting of NumPy, and functions of one element.
//!
//! Quantised ADD, SUB and MUL restate
//! `tensorflow/lite/kernels/internal/reference/integer_ops/{add,mul}.h` and `kernels/{add,sub}.cc`.
//! Both addends are shifted left (by 20 bits for 8-bit integers, by 15 for 16-bit ones), brought to
//! twice the larger scale, added and brought to the output's scale. Functions of quantised elements
//! use tables ([`super::table`]) where TensorFlow Lite has one. Otherwise elements are decoded and
//! the result is rounded once.

use super::fixed::Multiplier;
use super::table::{Sigmoid16, Table16, table8};
use super::tensor::{Class, Elements, Layout, Tensor, encoded, from_reals, from_stored, fused, fused_range};

/// Operations on two tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    /// a + b
    Add,
    /// a − b
    Subtract,
    /// a·b
    Multiply,
    /// a / b
    Divide,
    /// max(a, b)
    Maximum,
    /// min(a, b)
    Minimum,
    /// aᵇ
    Power,
    /// (a − b)²
    SquaredDifference,
    /// Logical and of truth values.
    And,
    /// Logical or of truth values.
    Or,
    /// a = b
    Equal,
    /// a ≠ b
    NotEqual,
    /// a > b
    Greater,
    /// a ≥ b
    GreaterEqual,
    /// a < b
    Less,
    /// a ≤ b
    LessEqual,
}

/// Functions of one element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unary {
    /// 1 / (1 + e⁻ˣ)
    Logistic,
    /// tanh x
    Tanh,
    /// x·Φ(x), by the tanh formula when approximate.
    Gelu {
        /// x/2·(1 + tanh(√(2/π)(x + 0.044715x³)))
        approximate: bool,
    },
    /// max(x, 0)
    Relu,
    /// clamp(x, −1, 1)
    Relu1,
    /// clamp(x, 0, 6)
    Relu6,
    /// x·clamp(x + 3, 0, 6)/6
    HardSwish,
    /// 1/√x
    ReciprocalRoot,
    /// √x
    Root,
    /// eˣ
    Exponential,
    /// ln x
    Logarithm,
    /// |x|
    Absolute,
    /// −x
    Negative,
    /// sin x
    Sine,
    /// ⌊x⌋
    Floor,
    /// Logical not of a truth value.
    Not,
}

/// Returns the strides of a tensor that is broadcast to the dimensions `whole`. The stride is 0
/// where the tensor is repeated.
fn strides_within(own: &[usize], whole: &[usize]) -> Vec<usize> {
    let mut strides = vec![0; whole.len()];
    let mut stride = 1;
    for (place, length) in own.iter().enumerate().rev() {
        let at = whole.len() - own.len() + place;
        strides[at] = if *length == 1 { 0 } else { stride };
        stride *= length;
    }
    strides
}

/// Calls `each` for every element of `whole` in order, with the indices into both operands.
fn for_pairs(whole: &[usize], a: &[usize], b: &[usize], mut each: impl FnMut(usize, usize)) {
    let rank = whole.len();
    let (a, b) = (strides_within(a, whole), strides_within(b, whole));
    let Some((&inner, outer)) = whole.split_last() else {
        each(0, 0);
        return;
    };
    let (a_inner, b_inner) = (a[rank - 1], b[rank - 1]);
    let mut at = vec![0usize; rank - 1];
    let (mut a_base, mut b_base) = (0usize, 0usize);
    loop {
        for index in 0..inner {
            each(a_base + index * a_inner, b_base + index * b_inner);
        }
        let mut place = rank - 1;
        loop {
            if place == 0 {
                return;
            }
            place -= 1;
            at[place] += 1;
            a_base += a[place];
            b_base += b[place];
            if at[place] < outer[place] {
                break;
            }
            a_base -= a[place] * at[place];
            b_base -= b[place] * at[place];
            at[place] = 0;
        }
    }
}

fn pairs<T: Copy, R>(
    whole: &[usize],
    (a, a_dimensions): (&[T], &[usize]),
    (b, b_dimensions): (&[T], &[usize]),
    one: impl Fn(T, T) -> R,
) -> Vec<R> {
    let mut out = Vec::with_capacity(whole.iter().product());
    for_pairs(whole, a_dimensions, b_dimensions, |x, y| out.push(one(a[x], b[y])));
    out
}

fn in_reals(operation: Binary) -> fn(f64, f64) -> f64 {
    match operation {
        Binary::Add => |a, b| a + b,
        Binary::Subtract => |a, b| a - b,
        Binary::Multiply => |a, b| a * b,
        Binary::Divide => |a, b| a / b,
        Binary::Maximum => f64::max,
        Binary::Minimum => f64::min,
        Binary::Power => f64::powf,
        Binary::SquaredDifference => |a, b| (a - b) * (a - b),
        Binary::And => |a, b| f64::from(a != 0.0 && b != 0.0),
        Binary::Or => |a, b| f64::from(a != 0.0 || b != 0.0),
        Binary::Equal => |a, b| f64::from(a == b),
        Binary::NotEqual => |a, b| f64::from(a != b),
        Binary::Greater => |a, b| f64::from(a > b),
        Binary::GreaterEqual => |a, b| f64::from(a >= b),
        Binary::Less => |a, b| f64::from(a < b),
        Binary::LessEqual => |a, b| f64::from(a <= b),
    }
}

/// Computes an operation on a and b. The dimensions of `out` are the broadcast dimensions of both.
pub fn binary(
    operation: Binary,
    a: &Tensor<'_>,
    b: &Tensor<'_>,
    fuse: i32,
    out: &Layout,
    relaxed: bool,
) -> Elements<'static> {
    let (a_dimensions, b_dimensions) = (&a.layout.dimensions[..], &b.layout.dimensions[..]);
    let whole = &out.dimensions[..];
    if a.layout.class() == Class::Quantised && out.class() == Class::Quantised {
        let (low, high) = fused_range(out, fuse);
        let (x, y) = (a.stored(), b.stored());
        let both = ((&x[..], a_dimensions), (&y[..], b_dimensions));
        match operation {
            Binary::Add | Binary::Subtract => {
                let sum = Sum::new(a.layout, b.layout, out, operation == Binary::Subtract);
                let stored = pairs(whole, both.0, both.1, |x, y| sum.of(x, y).clamp(low, high));
                return from_stored(out, stored.into_iter());
            }
            Binary::Multiply => {
                // In 32 bits, as in `mul.cc`.
                let multiplier = Multiplier::new(f64::from(a.layout.scale * b.layout.scale / out.scale));
                let (a_zero, b_zero) = (a.layout.zero_point, b.layout.zero_point);
                let stored = pairs(whole, both.0, both.1, |x, y| {
                    let product = i64::from(x - a_zero) * i64::from(y - b_zero);
                    // A product of 2³¹ or more does not fit, and only types with a zero point reach
                    // it.
                    let product = product.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32;
                    multiplier.apply(product).saturating_add(out.zero_point).clamp(low, high)
                });
                return from_stored(out, stored.into_iter());
            }
            Binary::Maximum | Binary::Minimum
                if a.layout.means_the_same(out) && b.layout.means_the_same(out) =>
            {
                let larger = operation == Binary::Maximum;
                let stored = pairs(whole, both.0, both.1, |x, y| if larger { x.max(y) } else { x.min(y) });
                return from_stored(out, stored.into_iter());
            }
            _ => {}
        }
    }
    if let (Class::Integer, Class::Integer) = (a.layout.class(), out.class()) {
        let (x, y) = (a.stored(), b.stored());
        let one = |x: i32, y: i32| match operation {
            Binary::Add => x.wrapping_add(y),
            Binary::Subtract => x.wrapping_sub(y),
            Binary::Multiply => x.wrapping_mul(y),
            Binary::Divide => x.checked_div(y).unwrap_or(0),
            Binary::Maximum => x.max(y),
            Binary::Minimum => x.min(y),
            other => in_reals(other)(f64::from(x), f64::from(y)) as i32,
        };
        return from_stored(out, pairs(whole, (&x, a_dimensions), (&y, b_dimensions), one).into_iter());
    }
    if a.layout.class() == Class::Real && out.class() == Class::Real {
        let (x, y) = (a.reals(relaxed), b.reals(relaxed));
        let (low, high) = fused(fuse);
        let (low, high) = (low as f32, high as f32);
        // In 32 bits, the most that the hardware uses. Comparing 64-bit results would hide a
        // rounding.
        let one = |x: f32, y: f32| {
            match operation {
                Binary::Add => x + y,
                Binary::Subtract => x - y,
                Binary::Multiply => x * y,
                Binary::Divide => x / y,
                Binary::Maximum => x.max(y),
                Binary::Minimum => x.min(y),
                Binary::SquaredDifference => (x - y) * (x - y),
                other => in_reals(other)(f64::from(x), f64::from(y)) as f32,
            }
            .clamp(low, high)
        };
        return from_reals(
            out,
            pairs(whole, (&x, a_dimensions), (&y, b_dimensions), one).into_iter(),
            relaxed,
        );
    }
    let (x, y) = (a.decoded(relaxed), b.decoded(relaxed));
    let (low, high) = fused(fuse);
    let one = in_reals(operation);
    let reals = pairs(whole, (&x, a_dimensions), (&y, b_dimensions), |x, y| one(x, y).clamp(low, high));
    encoded(out, reals.into_iter(), relaxed)
}

/// The constants of a quantised ADD or SUB.
struct Sum {
    zeros: (i32, i32, i32),
    shift: u32,
    a: Multiplier,
    b: Multiplier,
    out: Multiplier,
    negative: bool,
}

impl Sum {
    fn new(a: &Layout, b: &Layout, out: &Layout, negative: bool) -> Sum {
        let shift = if out.element_bytes() == 2 { 15 } else { 20 };
        let twice = 2.0 * f64::from(a.scale).max(f64::from(b.scale));
        Sum {
            zeros: (a.zero_point, b.zero_point, out.zero_point),
            shift,
            a: Multiplier::new(f64::from(a.scale) / twice),
            b: Multiplier::new(f64::from(b.scale) / twice),
            out: Multiplier::new(twice / (f64::from(1u32 << shift) * f64::from(out.scale))),
            negative,
        }
    }

    #[inline]
    fn of(&self, x: i32, y: i32) -> i32 {
        // A 16-bit value minus its zero point fits into 32 bits after a shift by 15. A u16 value
        // with a zero point may need one bit more and saturates.
        let shifted = |value: i32| {
            (i64::from(value) << self.shift).clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32
        };
        let x = self.a.apply(shifted(x - self.zeros.0));
        let y = self.b.apply(shifted(y - self.zeros.1));
        let sum = if self.negative { x.saturating_sub(y) } else { x.saturating_add(y) };
        self.out.apply(sum).saturating_add(self.zeros.2)
    }
}

/// Selects a where `condition` is true, otherwise b. All three are broadcast to the dimensions of
/// `out`.
pub fn select(condition: &Tensor<'_>, a: &Tensor<'_>, b: &Tensor<'_>, out: &Layout) -> Elements<'static> {
    let whole = &out.dimensions[..];
    let (chosen, x, y) = (condition.stored(), a.decoded(false), b.decoded(false));
    let mut places = Vec::with_capacity(out.elements());
    for_pairs(whole, &a.layout.dimensions, &b.layout.dimensions, |x, y| places.push((x, y)));
    let mut conditions = Vec::with_capacity(out.elements());
    for_pairs(whole, &condition.layout.dimensions, &condition.layout.dimensions, |at, _| {
        conditions.push(chosen[at] != 0)
    });
    let reals =
        places.into_iter().zip(conditions).map(|((at_x, at_y), holds)| if holds { x[at_x] } else { y[at_y] });
    encoded(out, reals, false)
}

/// Returns the function in 64-bit floating point.
pub fn function(unary: Unary) -> fn(f64) -> f64 {
    match unary {
        Unary::Logistic => |x| 1.0 / (1.0 + (-x).exp()),
        Unary::Tanh => f64::tanh,
        Unary::Gelu { approximate: true } => {
            |x| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x)).tanh())
        }
        Unary::Gelu { approximate: false } => {
            |x| 0.5 * x * (1.0 + error_function(x / std::f64::consts::SQRT_2))
        }
        Unary::Relu => |x| x.max(0.0),
        Unary::Relu1 => |x| x.clamp(-1.0, 1.0),
        Unary::Relu6 => |x| x.clamp(0.0, 6.0),
        Unary::HardSwish => |x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
        Unary::ReciprocalRoot => |x| 1.0 / x.sqrt(),
        Unary::Root => f64::sqrt,
        Unary::Exponential => f64::exp,
        Unary::Logarithm => f64::ln,
        Unary::Absolute => f64::abs,
        Unary::Negative => |x| -x,
        Unary::Sine => f64::sin,
        Unary::Floor => f64::floor,
        Unary::Not => |x| f64::from(x == 0.0),
    }
}

/// Computes erf to about 1e-12: by its Taylor series below 3 and by its continued fraction above.
fn error_function(x: f64) -> f64 {
    let square = x * x;
    if x.abs() < 3.0 {
        let (mut term, mut sum) = (x, x);
        for n in 1..80 {
            term *= -square / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return sum * 2.0 / std::f64::consts::PI.sqrt();
    }
    let mut fraction = 0.0;
    for n in (1..60).rev() {
        fraction = f64::from(n) / 2.0 / (x.abs() + fraction);
    }
    let complement = (-square).exp() / (std::f64::consts::PI.sqrt() * (x.abs() + fraction));
    x.signum() * (1.0 - complement)
}

/// Applies a function to every element.
pub fn unary(operation: Unary, x: &Tensor<'_>, out: &Layout, relaxed: bool) -> Elements<'static> {
    let function = function(operation);
    let tabled = matches!(operation, Unary::Logistic | Unary::Tanh | Unary::Gelu { .. } | Unary::Exponential);
    match (&x.elements, x.layout.class(), out.class()) {
        (Elements::I16(elements), Class::Quantised, Class::Quantised)
            if tabled && out.element_bytes() == 2 && out.zero_point == 0 =>
        {
            if let (Unary::Logistic | Unary::Tanh, true) = (operation, out.scale == 1.0 / 32_768.0)
                && let Some(sigmoid) = Sigmoid16::new(x.layout.scale)
            {
                let one = |x: &i16| match operation {
                    Unary::Logistic => sigmoid.logistic(*x),
                    _ => sigmoid.tanh(*x),
                };
                return from_stored(out, elements.iter().map(one));
            }
            // The ends of the range belong to the stored integers on either side, as in
            // `LUTPopulate`.
            let [low, high] = [-32_768, 32_767].map(|q| x.layout.decode(q));
            let [least, greatest] = [-32_768, 32_767].map(|q| out.decode(q));
            let table = Table16::new(function, low, high, least, greatest);
            from_stored(out, elements.iter().map(|x| i32::from(table.at(*x))))
        }
        (_, Class::Quantised, Class::Quantised) if x.layout.element_bytes() == 1 => {
            let lowest = if x.layout.range().0 < 0 { -128 } else { 0 };
            let table = table8(function, |q| x.layout.decode(q), |real| out.encode(real), lowest);
            from_stored(out, x.stored().into_iter().map(|q| table[(q - lowest) as usize]))
        }
        (_, Class::Real, Class::Real) => {
            from_reals(out, x.reals(relaxed).iter().map(|x| function(f64::from(*x)) as f32), relaxed)
        }
        _ => encoded(out, x.decoded(relaxed).into_iter().map(function), relaxed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_function_is_the_known_one() {
        for (x, known) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_8),
            (1.0, 0.842_700_792_9),
            (2.9, 0.999_958_902_1),
            (3.5, 0.999_999_256_9),
            (-1.0, -0.842_700_792_9),
        ] {
            assert!((error_function(x) - known).abs() < 1e-9, "erf({x}) = {}", error_function(x));
        }
    }

    #[test]
    fn pairs_follow_broadcasting() {
        let a = [1, 2, 3];
        let b = [10, 20];
        assert_eq!(pairs(&[2, 3], (&a, &[3]), (&b, &[2, 1]), |a, b| a + b), [11, 12, 13, 21, 22, 23]);
        assert_eq!(pairs(&[], (&a[..1], &[]), (&b[..1], &[]), |a, b| a + b), [11]);
        assert_eq!(pairs(&[2, 2, 1], (&b, &[2, 1, 1]), (&b, &[2, 1]), |a, b| a + b), [20, 30, 30, 40]);
    }
}
