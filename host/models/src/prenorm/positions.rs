//! The rotation of queries and keys by positions, and the layers that have it.

use serde_json::Value;
use shardwright_vocabulary::Result;

use crate::dimensions::Dimensions;
use crate::family::Family;
use crate::json::{Fields, shortened};
use crate::limits;
use crate::longrope::LongRope;
use crate::rotary::{self, Divisors, Rotary};
use crate::yarn::{self, Yarn};

/// Default number of positions that Phi 3 was trained with.
const PHI_ORIGINAL: u64 = 4096;

/// Returns the rotation. If it matches the library's only up to a number of positions below the
/// context, also returns that number.
///
/// Parameters are in `rope_parameters`, or in the older `rope_theta` with `rope_scaling`. If a file
/// has both, the older ones apply.
pub(super) fn read(
    fields: Fields<'_>,
    family: Family,
    dimensions: &Dimensions,
) -> Result<(Rotary, Option<u64>)> {
    let usual = if family == Family::SmolLM3 { 2e6 } else { 1e4 };
    let theta = fields.positive("rope_theta")?.unwrap_or(usual);
    let phi = family == Family::Phi3;
    // The library moves these two into the set of parameters, and they override the fields of the
    // set.
    let mut partial = rotary::read_partial(fields)?;
    let mut original = fields.whole("original_max_position_embeddings", &limits::CONTEXT)?;
    if phi {
        original = original.or(Some(PHI_ORIGINAL));
    } else if partial.is_some_and(|partial| partial != 1.0) {
        return Err(fields.unsupported("partial_rotary_factor", "1"));
    } else {
        fields.must_be_off("original_max_position_embeddings")?;
    }
    let newer = fields.object("rope_parameters")?;
    let older = fields.object("rope_scaling")?.filter(|older| older.names().next().is_some());
    if let (Some(newer), Some(_)) = (newer, older)
        && newer.positive("rope_theta")?.is_some_and(|own| own != theta)
    {
        // The library replaces the newer set by the older one, and loses the newer base.
        return Err(newer.unsupported("rope_theta", "the `rope_theta` next to `rope_scaling`"));
    }
    let parameters = older.or(newer);
    if let (true, Some(parameters)) = (phi, parameters) {
        partial = rotary::read_partial(parameters)?.or(partial);
    }
    let turning = rotary::turning(fields, partial.unwrap_or(1.0), dimensions.head_dim)?;
    let leading = |rotary| Rotary { leading: Some(turning).filter(|_| phi), ..rotary };
    let Some(parameters) = parameters else { return Ok((leading(Rotary::plain(theta)), None)) };
    let (type_name, kind) = rotary::read_type(parameters)?;
    match kind {
        "longrope" => {}
        "yarn" if !phi => {
            rotary::refuse_others(parameters, &yarn::FIELDS)?;
            if rotary::read_partial(parameters)?.is_some_and(|partial| partial != 1.0) {
                return Err(parameters.unsupported("partial_rotary_factor", "1"));
            }
            let theta = parameters.positive("rope_theta")?.unwrap_or(theta);
            let yarn = Yarn::read(parameters, turning as usize, theta, dimensions.context)?;
            let divisors = Divisors::Each(yarn.divisors);
            return Ok((Rotary { divisors, magnitude: yarn.magnitude, ..Rotary::plain(theta) }, None));
        }
        // Files of Phi 3 contain these older names of `longrope`.
        "su" | "yarn" if phi => {}
        "default" if phi => {
            rotary::refuse_others(parameters, &[])?;
            let theta = parameters.positive("rope_theta")?.unwrap_or(theta);
            return Ok((leading(Rotary::plain(theta)), None));
        }
        _ if phi => return Err(parameters.unsupported(type_name, "`default`, `longrope`")),
        _ => return Ok((Rotary::read(parameters, theta, 1.0)?, None)),
    }
    rotary::refuse_others(parameters, &["short_factor", "long_factor", "factor", "attention_factor"])?;
    if !phi && rotary::read_partial(parameters)?.is_some_and(|partial| partial != 1.0) {
        return Err(parameters.unsupported("partial_rotary_factor", "1"));
    }
    let long = LongRope::read(parameters, turning as usize, original, dimensions.context)?;
    let theta = parameters.positive("rope_theta")?.unwrap_or(theta);
    let rotary = Rotary {
        divisors: Divisors::Each(long.divisors),
        magnitude: long.magnitude,
        ..leading(Rotary::plain(theta))
    };
    Ok((rotary, long.limit))
}

/// Returns for each layer whether queries and keys are rotated.
pub(super) fn read_turning(fields: Fields<'_>, family: Family, layers: u32) -> Result<Vec<bool>> {
    match family {
        Family::SmolLM3 => read_intervals(fields, layers),
        Family::Granite if super::is_hybrid(fields)? => {
            let turns = match fields.text("position_embedding_type")? {
                Some("rope") => true,
                None => false,
                Some(_) => return Err(fields.unsupported("position_embedding_type", "`rope`, or none")),
            };
            Ok(vec![turns; layers as usize])
        }
        _ => Ok(vec![true; layers as usize]),
    }
}

/// Reads `no_rope_layers`. Despite its name, its zeros mark the layers without rotation. Without
/// it, every `no_rope_layer_interval`-th layer has none.
fn read_intervals(fields: Fields<'_>, layers: u32) -> Result<Vec<bool>> {
    let name = "no_rope_layers";
    let Some(list) = fields.list(name)? else {
        let every = fields.whole("no_rope_layer_interval", &(1..=u64::from(u32::MAX)))?.unwrap_or(4);
        return Ok((1..=u64::from(layers)).map(|layer| !layer.is_multiple_of(every)).collect());
    };
    fields.superseded("no_rope_layer_interval");
    if list.len() < layers as usize {
        return Err(fields.invalid(name, format!("has {} entries for {layers} layers", list.len())));
    }
    let turns = |value: &Value| match value.as_u64().or(value.as_bool().map(u64::from)) {
        Some(number @ 0..=1) => Ok(number == 1),
        _ => Err(fields.invalid(name, format!("has {}, neither 0 nor 1", shortened(value)))),
    };
    // The library ignores further entries.
    list.iter().take(layers as usize).map(turns).collect()
}
