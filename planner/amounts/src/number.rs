//! Decimal numbers of integers.

/// How a number is rounded.
#[derive(Clone, Copy)]
pub(crate) enum Rounding {
    /// To the nearest, halves up. Halves of bytes are rounded to even digits.
    Nearest,
    Up,
}

/// Formats `value / unit` with a number of significant digits, without trailing zeros after the
/// point. `unit` must not be 0.
pub fn significant(value: u128, unit: u128, digits: u32) -> String {
    rounded(value, unit, digits, Rounding::Nearest)
}

/// Formats like [`significant`], with this rounding.
pub(crate) fn rounded(value: u128, unit: u128, digits: u32, rounding: Rounding) -> String {
    let before = (value / unit).checked_ilog10().map_or(1, |power| power + 1);
    if before > digits {
        let step = 10_u128.pow(before - digits);
        return (divided(value, unit * step, rounding) * step).to_string();
    }
    let decimals = digits - before;
    let number = with_point(divided(value * 10_u128.pow(decimals), unit, rounding), decimals);
    match decimals {
        0 => number,
        _ => number.trim_end_matches('0').trim_end_matches('.').to_owned(),
    }
}

/// Formats an integer with its last digits after a point.
pub(crate) fn with_point(number: u128, decimals: u32) -> String {
    let scale = 10_u128.pow(decimals);
    match decimals {
        0 => number.to_string(),
        _ => format!("{}.{:0width$}", number / scale, number % scale, width = decimals as usize),
    }
}

pub(crate) fn divided(value: u128, by: u128, rounding: Rounding) -> u128 {
    match rounding {
        Rounding::Nearest => (value + by / 2) / by,
        Rounding::Up => value.div_ceil(by),
    }
}
