//! Linear maps with constant weights: of floats, of rows quantised at run time, and of heads whose
//! weights are split.

use std::time::Instant;

use shardwright_shim_abi::raw::SW_ROLE_LOGITS;
use shardwright_shim_abi::{Error, WeightView};

use super::{Operation, Rounding};
use crate::execute::{Stage, Ways, packed, split, tiles};
use crate::kernels::integer::split::{Head, split_linear};
use crate::kernels::integer::{self, Geometry, Map, integer_linear};
use crate::kernels::linear::{self, Finish};
use crate::lower::{
    Constant, Emit, Here, Recognised, Scaling, Site, Tensor, expect, invalid, matrix, unsupported,
};
use crate::pool::PIECES;
use crate::program::{
    Bounds, Checked, DynamicMap, Entry, Extent, MAX_MAPS, Operand, OperandPlace, Step, ensure, product, step,
};
use crate::tuning::Shape;

/// Number of values of a row that share a scale in [`Rounding::Blocks`].
const BLOCK: usize = 32;

/// Returns how the rows of a `dynamic-linear` are quantised. Only version 2 has blocks.
pub fn rounding(here: &Here<'_, '_>) -> Recognised<Rounding> {
    if here.node.op_version() == 1 {
        return Ok(Rounding::Rows);
    }
    match here.node.attribute_usize("block")? {
        0 => Ok(Rounding::Rows),
        BLOCK => Ok(Rounding::Blocks(BLOCK as u32)),
        size => unsupported(format!("rows are quantised in blocks of {size}, only {BLOCK} is supported")),
    }
}

pub fn recognise(here: &Here<'_, '_>, rounding: Rounding) -> Recognised<Operation> {
    here.operands(2, 3)?;
    let x = here.float(0)?;
    let w = match rounding {
        Rounding::None => here.weights(1, true)?.0,
        Rounding::Rows | Rounding::Blocks(_) => here.integers(1)?,
    };
    let [outputs, inputs] = matrix(w, 1)?;
    let Some((&last, leading)) = x.shape.split_last() else { return invalid("input 0 is a scalar") };
    if last != inputs {
        return invalid(format!("input 0 is {:?}, which does not match the weights {:?}", x.shape, w.shape));
    }
    if here.node.optional_input(2).is_some() {
        expect(&here.float(2)?.shape, &[outputs], 2)?;
    }
    here.output_shape(&[leading, &[outputs]].concat())?;
    let rows = match rounding {
        Rounding::None => return Ok(Operation::Linear { rounding }),
        Rounding::Rows => None,
        Rounding::Blocks(size) => Some(size as usize),
    };
    let size = match scaling(w) {
        Some(Scaling::Block { size, .. }) => Some(usize::try_from(size).unwrap_or(usize::MAX)),
        _ => None,
    };
    if Geometry::of(inputs, rows, size).is_none() {
        let size = size.unwrap_or(inputs);
        let reason = match rows {
            Some(rows) => format!("blocks of {size} weights do not align with blocks of {rows} activations"),
            None => format!("sums of {size} products are too long"),
        };
        return Err(here.refused(1, w, &reason));
    }
    Ok(Operation::Linear { rounding })
}

/// Returns which values of a constant share a scale.
fn scaling(tensor: &Tensor<'_>) -> Option<Scaling> {
    Constant::of(tensor.weight()?).ok()?.scaling()
}

/// Operations on the sums of a linear map, and the place of the results.
pub struct Finished {
    pub bias: Option<Operand>,
    pub bounds: Option<[f32; 2]>,
    pub out: Operand,
}

pub fn lower(emit: &mut Emit<'_, '_>, site: &Site<'_>, rounding: Rounding) -> Result<(), Error> {
    let weight = emit.weight(site.node)?;
    let (x, bias) = (emit.input(site.node, 0)?, emit.optional(site.node, 2)?);
    let rows = emit.extent(site.output, site.groups());
    let out = site.out;
    if rounding == Rounding::Rows
        && bias.is_none()
        && is_logits(emit, site.output, out)
        && let Some(weights) = emit.weights.split(weight)?
    {
        emit.steps.push(Step::SplitLinear(step::SplitLinear { x, rows, weights, cap: None, out }));
        return Ok(());
    }
    lower_map(emit, rounding, weight, x, rows, Finished { bias, bounds: None, out })
}

/// Emits a linear map. A map of quantised rows is merged with the previous step if that maps the
/// same rows.
pub fn lower_map<'a>(
    emit: &mut Emit<'_, 'a>,
    rounding: Rounding,
    weight: WeightView<'a>,
    x: Operand,
    rows: Extent,
    Finished { bias, bounds, out }: Finished,
) -> Result<(), Error> {
    let block = match rounding {
        Rounding::None => {
            let weights = emit.weights.panels(weight, false)?;
            emit.steps.push(Step::Linear(step::Linear { x, rows, weights, bias, bounds, out }));
            return Ok(());
        }
        Rounding::Rows => None,
        Rounding::Blocks(size) => Some(size),
    };
    let map = DynamicMap { weights: emit.weights.tiles(weight)?, bias, bounds, out };
    if let Some(Step::DynamicLinear(before)) = emit.steps.last_mut()
        && (before.x, before.rows, before.block) == (x, rows, block)
        && before.maps.len() < MAX_MAPS
        && before.maps[0].weights.rows(block) == map.weights.rows(block)
    {
        before.maps.push(map);
    } else {
        emit.steps.push(Step::DynamicLinear(step::DynamicLinear { x, rows, block, maps: vec![map] }));
    }
    Ok(())
}

/// Checks whether a tensor is only used as logits: not encoded, and not read by any other node. A
/// run may then omit results.
pub fn is_logits(emit: &Emit<'_, '_>, tensor: u32, out: Operand) -> bool {
    let (graph, ports) = (emit.graph, &emit.storage.ports);
    let leaves =
        matches!(out.place, OperandPlace::Bound(port) if ports[port as usize].role == SW_ROLE_LOGITS);
    let read = graph.nodes.iter().any(|node| node.inputs().flatten().any(|input| input == tensor));
    leaves && !read && graph.entry.outputs().filter(|port| port.tensor() == tensor).count() == 1
}

/// Checks the operands that linear maps have in common.
fn check_map(
    bounds: &Bounds<'_>,
    x: Operand,
    rows: Extent,
    [inputs, outputs]: [u64; 2],
    bias: Option<Operand>,
    out: Operand,
) -> Checked {
    let rows = bounds.most(rows)?;
    bounds.reads(x, product(&[rows, inputs])?)?;
    if let Some(bias) = bias {
        bounds.reads(bias, outputs)?;
    }
    bounds.writes(out, product(&[rows, outputs])?, &[&[x], bias.as_slice()].concat())
}

/// Offset and length in bytes, within the weight section, of data that is read once from front to
/// back.
pub type Pieces = [(u64, u64); PIECES];

const _: () = assert!(PIECES == MAX_MAPS);

/// Returns a single piece.
fn one_piece(piece: (u64, u64)) -> Pieces {
    let mut pieces = [(0, 0); PIECES];
    pieces[0] = piece;
    pieces
}

impl step::Linear {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        let step::Linear { x, rows, weights, bias, out, .. } = self;
        bounds.packed(weights)?;
        check_map(bounds, *x, *rows, [weights.inputs, weights.outputs], *bias, *out)
    }

    pub fn streamed(&self) -> Option<Pieces> {
        Some(one_piece((self.weights.offset, self.weights.bytes()?[0])))
    }

    #[inline]
    pub fn execute(&self, stage: &Stage<'_, '_>) -> Result<(), Error> {
        let Stage { memory, level, pool, rows, .. } = *stage;
        let panels = packed(stage.weights, &self.weights)?;
        let finish = Finish { bias: self.bias.map(|bias| memory.read(bias)), bounds: self.bounds };
        let (x, rows) = (memory.read(self.x), self.rows.at(rows));
        linear::linear(level, pool, x, panels, finish, rows, memory.write(self.out));
        Ok(())
    }
}

impl step::DynamicLinear {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        let step::DynamicLinear { x, rows, block, maps } = self;
        ensure((1..=MAX_MAPS).contains(&maps.len()), || format!("{} maps of the same rows", maps.len()))?;
        for (index, DynamicMap { weights, bias, out, .. }) in maps.iter().enumerate() {
            bounds.tiles(weights)?;
            let cut = weights.rows(*block);
            ensure(cut.is_some() && cut == maps[0].weights.rows(*block), || {
                format!("{weights:?} cut rows otherwise than {:?}", maps[0].weights)
            })?;
            check_map(bounds, *x, *rows, [weights.inputs, weights.outputs], *bias, *out)?;
            // Maps run concurrently, so no map may access memory that another map writes.
            for other in maps[index + 1..].iter().chain(&maps[..index]) {
                bounds.writes(*out, 0, &[&[other.out], other.bias.as_slice()].concat())?;
            }
        }
        Ok(())
    }

    pub fn scratch(&self, entry: &Entry, threads: usize) -> Option<usize> {
        let rows = usize::try_from(self.rows.most(entry.rows)?).ok()?;
        integer::scratch_values(self.maps.first()?.weights.rows(self.block)?, rows, threads)
    }

    pub fn streamed(&self) -> Pieces {
        let mut pieces = [(0, 0); PIECES];
        for (piece, DynamicMap { weights, .. }) in pieces.iter_mut().zip(&self.maps) {
            *piece = (weights.offset, weights.bytes().unwrap_or_default()[0]);
        }
        pieces
    }

    pub fn execute(&self, stage: &mut Stage<'_, '_>) -> Result<(), Error> {
        let Stage { memory, level, dot, streams, pool, rows: valid, .. } = *stage;
        let block = self.block.map(|block| block as usize);
        let mut all = [const { None }; MAX_MAPS];
        for (slot, map) in all.iter_mut().zip(&self.maps) {
            *slot = Some(Map {
                weights: tiles(stage.weights, &map.weights)?,
                bias: map.bias.map(|bias| memory.read(bias)),
                bounds: map.bounds,
                out: memory.write(map.out),
            });
        }
        let rows = self.rows.at(valid);
        let bytes = |map: &DynamicMap| map.weights.bytes().unwrap_or_default().iter().sum::<u64>();
        let shape = Shape {
            rows,
            inputs: self.maps.first().map_or(0, |map| map.weights.inputs),
            outputs: self.maps.iter().map(|map| map.weights.outputs).sum(),
            bytes: self.maps.iter().map(bytes).sum(),
        };
        let Ways { tuning, products, .. } = stage.ways;
        let many = rows >= integer::many(dot);
        let dot = match many {
            true => products.unwrap_or_else(|| tuning.products(shape)),
            false => dot,
        };
        let begun = Instant::now();
        integer_linear(level, dot, streams, pool, memory.read(self.x), block, all, rows, stage.scratch);
        if rows == 1 {
            stage.streamed.0 += shape.bytes;
            stage.streamed.1 += begun.elapsed();
        } else if many && products.is_none() {
            tuning.multiplied(shape, dot, begun.elapsed());
        }
        Ok(())
    }
}

impl step::SplitLinear {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        let step::SplitLinear { x, rows, weights, cap, out } = self;
        bounds.split(weights)?;
        ensure(cap.is_none_or(|cap| cap > 0.0 && cap.is_finite()), || format!("results capped at {cap:?}"))?;
        check_map(bounds, *x, *rows, [weights.inputs, weights.outputs], None, *out)
    }

    pub fn scratch(&self, entry: &Entry, threads: usize) -> Option<usize> {
        let rows = usize::try_from(self.rows.most(entry.rows)?).ok()?;
        integer::split::scratch_values(usize::try_from(self.weights.inputs).ok()?, rows, threads)
    }

    pub fn streamed(&self) -> Pieces {
        one_piece(self.weights.parts()[0])
    }

    #[inline]
    pub fn execute(&self, stage: &mut Stage<'_, '_>) -> Result<(), Error> {
        let Stage { memory, level, dot, streams, pool, largest, ways, .. } = *stage;
        let (weights, rows) = (split(stage.weights, &self.weights)?, self.rows.at(stage.rows));
        // Without a request for the largest results, both ways compute all of them.
        let measured = weights.wanted(largest).filter(|_| ways.head.is_none());
        let head = match measured {
            Some(wanted) => ways.heads.now(rows, wanted),
            None => ways.head.unwrap_or(Head::All),
        };
        let begun = Instant::now();
        split_linear(
            level,
            dot,
            streams,
            head,
            pool,
            memory.read(self.x),
            weights,
            self.cap,
            largest,
            rows,
            stage.scratch,
            memory.write(self.out),
        );
        if let Some(wanted) = measured {
            ways.heads.took(rows, wanted, head, begun.elapsed());
        }
        Ok(())
    }
}
