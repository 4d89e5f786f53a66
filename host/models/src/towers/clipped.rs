//! Linear layers whose operand and result are clamped to trained bounds.

use shardwright_graph::{ComponentBuilder, Op, ValueId, WeightId};
use shardwright_vocabulary::Result;

use crate::translation::Translation;

/// `clamp(W · clamp(x))`. Without bounds if the checkpoint has none.
pub(super) struct ClippedLinear {
    weight: WeightId,
    /// Low and high bound of the operand, then of the result.
    bounds: Option<[(WeightId, WeightId); 2]>,
}

impl ClippedLinear {
    /// Reads `NAME.linear.weight` and, if there are bounds, `NAME.input_min` and the like.
    pub fn take(
        translation: &mut Translation,
        name: &str,
        part: &'static str,
        shape: &[u64; 2],
        clipped: bool,
    ) -> Result<Self> {
        let weight = translation.whole_name(&format!("{name}.linear.weight"), part, shape)?;
        let mut bound = |which: &str| translation.whole_name(&format!("{name}.{which}"), "bound", &[1]);
        let bounds = match clipped {
            true => Some([
                (bound("input_min")?, bound("input_max")?),
                (bound("output_min")?, bound("output_max")?),
            ]),
            false => None,
        };
        Ok(ClippedLinear { weight, bounds })
    }

    /// Builds the layer, with that name.
    pub fn apply(&self, builder: &mut ComponentBuilder<'_>, name: &str, x: ValueId) -> ValueId {
        let Some([before, after]) = self.bounds else { return builder.linear(name, x, self.weight) };
        let x = clamp(builder, &format!("{name}-input"), x, before);
        let y = builder.linear(name, x, self.weight);
        clamp(builder, &format!("{name}-clamped"), y, after)
    }
}

fn clamp(
    builder: &mut ComponentBuilder<'_>,
    name: &str,
    x: ValueId,
    (low, high): (WeightId, WeightId),
) -> ValueId {
    let (low, high) = (builder.constant(low), builder.constant(high));
    builder.op(name, Op::Clamp, &[x, low, high])
}
