//! Convolutions: over a plane, and along rows channel by channel.

use shardwright_shim_abi::Error;

use super::Operation;
use crate::execute::{Stage, packed};
use crate::kernels::convolution::{self, Plane};
use crate::kernels::depthwise;
use crate::lower::{Emit, Following, Here, Recognised, Site, expect, invalid, matrix, unsupported};
use crate::program::{Bounds, Checked, Extent, Step, ensure, product, step};

pub fn recognise_plane(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(2, 2)?;
    let x = here.float(0)?;
    let [outputs, inputs] = matrix(here.weights(1, true)?.0, 1)?;
    let [height, width, channels] = x.shape[..] else {
        return invalid(format!("input 0 `{}` is {:?}, expected a plane", x.name, x.shape));
    };
    let (kernel, stride) = (here.positive("kernel")?, here.positive("stride")?);
    let padding = here.node.attribute_usize("padding")?;
    let plane = Plane { width, channels, kernel, stride, padding };
    if !plane.is_possible() {
        let reason = format!("invalid: a kernel of {kernel} with stride {stride} and padding {padding}");
        return unsupported(reason);
    }
    match (plane.results(height), plane.results(width)) {
        (Some(rows), Some(columns)) if plane.inputs() == Some(inputs) => {
            here.output_shape(&[rows, columns, outputs])?;
        }
        _ => {
            let over = format!("{plane:?} over {:?}", x.shape);
            return invalid(format!("{over} does not match the weights {outputs} by {inputs}"));
        }
    }
    Ok(Operation::Convolution(plane))
}

pub fn recognise_depthwise(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(2, 2)?;
    let x = here.float(0)?;
    let [_, channels] = matrix(x, 0)?;
    let [of, kernel] = matrix(here.float(1)?, 1)?;
    expect(&[of, kernel], &[channels, kernel], 1)?;
    here.output_shape(&x.shape)?;
    Ok(Operation::Depthwise { kernel })
}

/// The kernel over a plane reads rows beyond the valid ones as zeros.
pub fn plane_follows_rows(node: &mut Following<'_, '_>, plane: Plane) -> bool {
    let even = node.extent(node.x()) == plane.stride.saturating_mul(node.extent(node.output));
    node.or_cross(node.follows(node.x()) && even && node.by_rows(node.output))
}

pub fn lower_plane(emit: &mut Emit<'_, '_>, site: &Site<'_>, plane: Plane) -> Result<Step, Error> {
    Ok(Step::Convolution(step::Convolution {
        plane,
        x: emit.input(site.node, 0)?,
        weights: emit.weights.panels(emit.weight(site.node)?, false)?,
        height: match emit.rows.follows[site.output as usize] {
            true => emit.extent(site.x, site.x_shape[0]),
            false => Extent::Fixed(site.x_shape[0] as u64),
        },
        rows: emit.extent(site.output, site.out_shape[0]),
        out: site.out,
    }))
}

pub fn lower_depthwise(emit: &mut Emit<'_, '_>, site: &Site<'_>, kernel: usize) -> Result<Step, Error> {
    Ok(Step::Depthwise(step::Depthwise {
        x: emit.input(site.node, 0)?,
        weight: emit.input(site.node, 1)?,
        sizes: [site.last() as u64, kernel as u64],
        rows: emit.extent(site.output, site.x_shape[0]),
        out: site.out,
    }))
}

impl step::Convolution {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        let step::Convolution { plane, x, weights, height, rows, out } = self;
        bounds.packed(weights)?;
        let Plane { width, channels, .. } = *plane;
        let full = channels > 0 && weights.outputs > 0;
        let columns = plane.results(width).filter(|_| full);
        let columns = columns.ok_or_else(|| format!("broken {plane:?}"))?;
        let inputs = plane.inputs().map(|inputs| inputs as u64);
        ensure(inputs == Some(weights.inputs), || format!("{plane:?} with {weights:?}"))?;
        bounds.reads(*x, product(&[bounds.most(*height)?, width as u64, channels as u64])?)?;
        let count = product(&[bounds.most(*rows)?, columns as u64, weights.outputs])?;
        bounds.writes(*out, count, &[*x])
    }

    pub fn scratch(&self, threads: usize) -> Option<usize> {
        convolution::scratch_values(self.plane, threads)
    }

    #[inline]
    pub fn execute(&self, stage: &mut Stage<'_, '_>) -> Result<(), Error> {
        let Stage { memory, level, pool, rows, .. } = *stage;
        let panels = packed(stage.weights, &self.weights)?;
        let [height, rows] = [self.height.at(rows), self.rows.at(rows)];
        let (x, out) = (memory.read(self.x), memory.write(self.out));
        convolution::convolution(level, pool, self.plane, x, panels, height, rows, stage.scratch, out);
        Ok(())
    }
}

impl step::Depthwise {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        let step::Depthwise { x, weight, sizes: [channels, kernel], rows, out } = self;
        ensure(*kernel > 0, || "a kernel of no rows".into())?;
        let count = product(&[bounds.most(*rows)?, *channels])?;
        bounds.reads(*x, count)?;
        bounds.reads(*weight, product(&[*channels, *kernel])?)?;
        bounds.writes(*out, count, &[*x, *weight])
    }

    pub fn scratch(&self) -> Option<usize> {
        let [channels, kernel] = self.sizes;
        depthwise::scratch_values(usize::try_from(channels).ok()?, usize::try_from(kernel).ok()?)
    }

    #[inline]
    pub fn execute(&self, stage: &mut Stage<'_, '_>) {
        let Stage { memory, level, pool, rows, .. } = *stage;
        let [channels, kernel] = self.sizes.map(|size| size as usize);
        let (x, weight, rows) = (memory.read(self.x), memory.read(self.weight), self.rows.at(rows));
        let out = memory.write(self.out);
        depthwise::depthwise(level, pool, x, weight, channels, kernel, rows, stage.scratch, out);
    }
}
