//! Rotary position parameters, in all spellings of the configuration.

use shardwright_graph::Rope;
use shardwright_vocabulary::{Error, Result};

use crate::json::Fields;
use crate::{LayerType, limits};

/// Rotation of a head by positions, before the head's size is known.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rotary {
    pub theta: f32,
    /// Divisor of all frequencies.
    pub factor: f32,
    /// Share of the pairs that are rotated.
    pub partial: f64,
    /// Further divisors, which differ between pairs.
    pub divisors: Divisors,
    /// Number of rotated pairs, if they are the first values of a head and the exponents count only
    /// them (Phi 3). `None` if the exponents count all pairs of a head.
    pub leading: Option<u32>,
    /// Factor on cosines and sines of rotated pairs.
    pub magnitude: f32,
}

/// Divisors of frequencies that differ between pairs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Divisors {
    None,
    Ramp(Ramp),
    /// A divisor for each rotated pair.
    Each(Vec<f32>),
}

/// `llama3`: slow pairs are divided and fast pairs are not. The divisor of pairs in between shrinks
/// with their speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ramp {
    /// Divisor of slow pairs.
    factor: f64,
    /// A pair is slow if it makes at most this many turns within `original` positions.
    low: f64,
    /// A pair is fast if it makes at least this many turns within `original` positions.
    high: f64,
    /// Positions of training before the context was extended.
    original: f64,
}

const SUPPORTED_TYPES: &str = "`default`, `linear`, `llama3`, `proportional`";

/// Fields that every type may have. The number of positions of training affects few types and does
/// not contradict the others.
const COMMON_FIELDS: [&str; 5] =
    ["rope_type", "type", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings"];

impl Rotary {
    /// Rotates all pairs, without divisors.
    pub fn plain(theta: f32) -> Self {
        Rotary { theta, factor: 1.0, partial: 1.0, divisors: Divisors::None, leading: None, magnitude: 1.0 }
    }

    /// Reads one set of parameters. `theta` and `partial` are the defaults.
    ///
    /// `rope_type` (older: `type`) determines which of the other fields matter. A field that the
    /// type would ignore is refused.
    pub fn read(fields: Fields<'_>, theta: f32, partial: f64) -> Result<Self> {
        let (name, kind) = read_type(fields)?;
        let own: &[&str] = match kind {
            // A file may specify a divisor of 1 explicitly.
            "default" | "linear" | "proportional" => &["factor"],
            "llama3" => &["factor", "low_freq_factor", "high_freq_factor"],
            _ => return Err(fields.unsupported(name, SUPPORTED_TYPES)),
        };
        refuse_others(fields, own)?;
        let plain = Self::plain(fields.positive("rope_theta")?.unwrap_or(theta));
        let own_partial = read_partial(fields)?;
        if kind != "proportional" && own_partial.is_some_and(|partial| partial != 1.0) {
            return Err(fields.unsupported("partial_rotary_factor", "1, or rope_type `proportional`"));
        }
        let factor = || Ok::<_, Error>(fields.positive("factor")?.unwrap_or(1.0));
        match kind {
            "linear" => Ok(Rotary { factor: factor()?, ..plain }),
            "proportional" => {
                Ok(Rotary { factor: factor()?, partial: own_partial.unwrap_or(partial), ..plain })
            }
            "llama3" => Ok(Rotary { divisors: Divisors::Ramp(Ramp::read(fields)?), ..plain }),
            _ if factor()? != 1.0 => Err(fields.unsupported("factor", "1, or rope_type `linear`")),
            _ => Ok(plain),
        }
    }

    /// Returns the rotation of heads of `head_dim` values.
    ///
    /// The number of rotated pairs is rounded down as in the defining library: ⌊partial · head_dim
    /// / 2⌋ in f64. If the exponents count rotated pairs only, the base is raised so that exponents
    /// over the whole head give the same frequencies.
    pub fn rope(&self, head_dim: u32) -> Rope {
        let half = head_dim / 2;
        let rotated_pairs = self.leading.unwrap_or((self.partial * f64::from(head_dim) / 2.0).floor() as u32);
        let theta = match self.leading {
            Some(pairs) if pairs < half => {
                f64::from(self.theta).powf(f64::from(half) / f64::from(pairs)) as f32
            }
            _ => self.theta,
        };
        let divisors = match &self.divisors {
            Divisors::None => Vec::new(),
            Divisors::Ramp(ramp) => ramp.divisors(self.theta, head_dim),
            Divisors::Each(each) => {
                let still = half as usize - each.len();
                each.iter().copied().chain(std::iter::repeat_n(1.0, still)).collect()
            }
        };
        Rope { head_dim, theta, rotated_pairs, factor: self.factor, divisors, magnitude: self.magnitude }
    }
}

/// Returns the number of rotated pairs of a head, if its first values, a share of `partial`, are
/// rotated.
///
/// # Errors
///
/// If these values are none or an odd number.
pub(crate) fn turning(fields: Fields<'_>, partial: f64, head_dim: u32) -> Result<u32> {
    let values = (partial * f64::from(head_dim)) as u32;
    match values > 0 && values.is_multiple_of(2) {
        true => Ok(values / 2),
        false => {
            let reason = format!("makes {values} of {head_dim} values of a head turn, expected pairs");
            Err(fields.invalid("partial_rotary_factor", reason))
        }
    }
}

impl Ramp {
    fn read(fields: Fields<'_>) -> Result<Self> {
        let number = |name| {
            let number = fields.positive(name)?;
            number.map(f64::from).ok_or_else(|| fields.invalid(name, "is missing for rope_type `llama3`"))
        };
        let (factor, low, high) =
            (number("factor")?, number("low_freq_factor")?, number("high_freq_factor")?);
        if factor < 1.0 {
            return Err(fields.invalid("factor", format!("is {factor}, less than 1")));
        }
        if high <= low {
            let reason = format!("is {high}, expected more than `low_freq_factor`, which is {low}");
            return Err(fields.invalid("high_freq_factor", reason));
        }
        let name = "original_max_position_embeddings";
        let original = fields.whole(name, &limits::CONTEXT)?;
        let original = original.ok_or_else(|| fields.invalid(name, "is missing for rope_type `llama3`"))?;
        Ok(Ramp { factor, low, high, original: original as f64 })
    }

    /// Returns the divisor of each pair. With t turns within the positions of training, it is
    /// `1 / ((1 − s) / factor + s)` for s = (t − low) / (high − low), limited to 0 to 1.
    ///
    /// Source: `_compute_llama3_parameters` of transformers.
    fn divisors(&self, theta: f32, head_dim: u32) -> Vec<f32> {
        let divisor = |pair: u32| {
            let frequency = f64::from(theta).powf(-2.0 * f64::from(pair) / f64::from(head_dim));
            let turns = self.original * frequency / std::f64::consts::TAU;
            let share = ((turns - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
            (1.0 / ((1.0 - share) / self.factor + share)) as f32
        };
        (0..head_dim / 2).map(divisor).collect()
    }
}

/// Returns the name of the field with the type, and the type.
pub(crate) fn read_type(fields: Fields<'_>) -> Result<(&'static str, &str)> {
    let name = if fields.get("rope_type").is_some() { "rope_type" } else { "type" };
    Ok((name, fields.text(name)?.unwrap_or("default")))
}

/// Refuses fields that the type would ignore.
pub(crate) fn refuse_others(fields: Fields<'_>, own: &[&str]) -> Result<()> {
    match fields.names().find(|name| !COMMON_FIELDS.contains(name) && !own.contains(name)) {
        Some(other) => Err(fields.unsupported(other, "fields that belong to the `rope_type`")),
        None => Ok(()),
    }
}

/// Reads `partial_rotary_factor`, which must be within 0 to 1.
pub(crate) fn read_partial(fields: Fields<'_>) -> Result<Option<f64>> {
    let name = "partial_rotary_factor";
    let Some(value) = fields.get(name) else { return Ok(None) };
    match value.as_f64() {
        Some(partial) if (0.0..=1.0).contains(&partial) => Ok(Some(partial)),
        _ => Err(fields.invalid(name, format!("is {value}, not a share between 0 and 1"))),
    }
}

/// Parameters of full layers and of sliding layers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PerType {
    pub full: Rotary,
    pub sliding: Rotary,
}

impl PerType {
    /// Returns the parameters of one type of layer.
    pub fn of(&self, layer: LayerType) -> &Rotary {
        match layer {
            LayerType::Full => &self.full,
            LayerType::Sliding => &self.sliding,
        }
    }

    /// Reads `rope_parameters`. Returns `None` if the file does not have it. The caller then reads
    /// the family's own older spelling.
    ///
    /// `defaults` apply to a missing type. The theta of `defaults` and the share `partial` apply to
    /// missing fields of a type.
    pub fn read(fields: Fields<'_>, defaults: &PerType, partial: f64) -> Result<Option<Self>> {
        let Some(parameters) = fields.object("rope_parameters")? else { return Ok(None) };
        let flat = ["rope_theta", "rope_type", "type"].into_iter().find(|name| parameters.mentions(name));
        if let Some(name) = flat {
            return Err(
                parameters.invalid(name, "stands outside of `full_attention` and `sliding_attention`")
            );
        }
        let read = |name, default: &Rotary| match parameters.object(name)? {
            Some(fields) => Rotary::read(fields, default.theta, partial),
            None => Ok(default.clone()),
        };
        Ok(Some(PerType {
            full: read("full_attention", &defaults.full)?,
            sliding: read("sliding_attention", &defaults.sliding)?,
        }))
    }
}
