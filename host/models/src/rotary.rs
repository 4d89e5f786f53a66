//! Rotary position parameters, in whatever way a configuration spells them.

use shardwright_graph::Rope;

use crate::json::Fields;
use crate::{CheckpointError, LayerType};

/// How positions turn a head, before the head's size is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rotary {
    pub theta: f32,
    /// Divisor of every frequency.
    pub factor: f32,
    /// Share of the pairs that turn.
    pub partial: f64,
}

const SUPPORTED_TYPES: &str = "`default`, `linear`, `proportional`";

impl Rotary {
    /// All pairs turn, undivided.
    pub fn plain(theta: f32) -> Self {
        Rotary { theta, factor: 1.0, partial: 1.0 }
    }

    /// Reads one set of parameters; `theta` and `partial` stand for those the set leaves out.
    ///
    /// `rope_type` (older: `type`) decides which of the other fields count; a field that the type
    /// would ignore is refused rather than ignored.
    pub fn read(fields: Fields<'_>, theta: f32, partial: f64) -> Result<Self, CheckpointError> {
        let name = if fields.get("rope_type").is_some() { "rope_type" } else { "type" };
        let kind = fields.text(name)?.unwrap_or("default");
        let theta = fields.positive("rope_theta")?.unwrap_or(theta);
        let factor = fields.positive("factor")?.unwrap_or(1.0);
        let own_partial = read_partial(fields)?;
        match kind {
            "default" | "linear" => {
                if own_partial.is_some_and(|partial| partial != 1.0) {
                    return Err(fields.unsupported("partial_rotary_factor", "1, or rope_type `proportional`"));
                }
                if kind == "default" && factor != 1.0 {
                    return Err(fields.unsupported("factor", "1, or rope_type `linear`"));
                }
                Ok(Rotary { theta, factor, partial: 1.0 })
            }
            "proportional" => Ok(Rotary { theta, factor, partial: own_partial.unwrap_or(partial) }),
            _ => Err(fields.unsupported(name, SUPPORTED_TYPES)),
        }
    }

    /// The operation for heads of `head_dim` values.
    ///
    /// The number of turning pairs is rounded down as the defining library does: ⌊partial ·
    /// head_dim / 2⌋ in f64.
    pub fn rope(&self, head_dim: u32) -> Rope {
        let rotated_pairs = (self.partial * f64::from(head_dim) / 2.0).floor() as u32;
        Rope { head_dim, theta: self.theta, rotated_pairs, factor: self.factor }
    }
}

/// `partial_rotary_factor`, within 0 to 1.
pub(crate) fn read_partial(fields: Fields<'_>) -> Result<Option<f64>, CheckpointError> {
    let name = "partial_rotary_factor";
    let Some(value) = fields.get(name) else { return Ok(None) };
    match value.as_f64() {
        Some(partial) if (0.0..=1.0).contains(&partial) => Ok(Some(partial)),
        _ => Err(fields.invalid(name, format!("is {value}, not a share between 0 and 1"))),
    }
}

/// Parameters of full and of sliding layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PerType {
    pub full: Rotary,
    pub sliding: Rotary,
}

impl PerType {
    /// The parameters of one type of layer.
    pub fn of(&self, layer: LayerType) -> Rotary {
        match layer {
            LayerType::Full => self.full,
            LayerType::Sliding => self.sliding,
        }
    }

    /// Reads `rope_parameters`, if the file has it; a family reads its own older spelling
    /// otherwise.
    ///
    /// `defaults` stand for a type that is left out, and their thetas for a theta that is;
    /// `partial` for a share that is.
    pub fn read(
        fields: Fields<'_>,
        defaults: PerType,
        partial: f64,
    ) -> Result<Option<Self>, CheckpointError> {
        let Some(parameters) = fields.object("rope_parameters")? else { return Ok(None) };
        let flat = ["rope_theta", "rope_type", "type"].into_iter().find(|name| parameters.mentions(name));
        if let Some(name) = flat {
            return Err(
                parameters.invalid(name, "stands outside of `full_attention` and `sliding_attention`")
            );
        }
        let read = |name, default: Rotary| match parameters.object(name)? {
            Some(fields) => Rotary::read(fields, default.theta, partial),
            None => Ok(default),
        };
        Ok(Some(PerType {
            full: read("full_attention", defaults.full)?,
            sliding: read("sliding_attention", defaults.sliding)?,
        }))
    }
}
