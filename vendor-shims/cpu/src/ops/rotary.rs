//! Rotary embeddings, and the tables of cosines and sines that they share.

use shardwright_shim_abi::Error;

use super::Operation;
use crate::execute::Stage;
use crate::kernels::axial::{Tables, axial_rope};
use crate::kernels::rotary::{inverse_frequencies, rope, rotary_table};
use crate::lower::{Emit, Here, Recognised, Site, TableKey, expect, invalid, matrix};
use crate::program::{Bounds, Checked, Extent, Operand, Step, ensure, product, step};

pub fn recognise_rope(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(2, 2)?;
    let x = here.float(0)?;
    let [rows, width] = matrix(x, 0)?;
    let head_dim = here.positive("head_dim")?;
    let pairs = here.node.attribute_usize("rotated_pairs")?;
    let (theta, factor) = (here.finite("theta")?, here.finite("factor")?);
    if head_dim % 2 != 0 || width % head_dim != 0 || pairs > head_dim / 2 {
        return invalid(format!("{pairs} pairs do not fit heads of {head_dim} in rows of {width}"));
    }
    if theta <= 0.0 || factor <= 0.0 {
        return invalid(format!("invalid theta {theta} or factor {factor}"));
    }
    here.index_vector(1, rows)?;
    here.output_shape(&x.shape)?;
    Ok(Operation::Rope { head_dim, theta, pairs, factor })
}

pub fn recognise_rotate(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(3, 3)?;
    let x = here.float(0)?;
    let [rows, width] = matrix(x, 0)?;
    let head_dim = here.positive("head_dim")?;
    if head_dim % 2 != 0 || width % head_dim != 0 {
        return invalid(format!("heads of {head_dim} do not fit rows of {width}"));
    }
    for table in 1..3 {
        expect(&here.float(table)?.shape, &[rows, head_dim / 2], table)?;
    }
    here.output_shape(&x.shape)?;
    Ok(Operation::Rotate { head_dim })
}

pub fn recognise_axial(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(3, 3)?;
    let x = here.float(0)?;
    let [rows, width] = matrix(x, 0)?;
    let head_dim = here.positive("head_dim")?;
    let theta = here.finite("theta")?;
    if !head_dim.is_multiple_of(4) || width % head_dim != 0 || theta <= 0.0 {
        return invalid(format!("invalid heads of {head_dim} in rows of {width}, or theta {theta}"));
    }
    for coordinate in 1..3 {
        here.index_vector(coordinate, rows)?;
    }
    here.output_shape(&x.shape)?;
    Ok(Operation::AxialRope { head_dim, theta })
}

/// Emits a table that is read by one or several of the following steps.
pub fn lower_table(emit: &mut Emit<'_, '_>, key: TableKey) -> Result<(), Error> {
    let TableKey { head_dim, theta, pairs, factor, .. } = key;
    let values = inverse_frequencies(head_dim, f32::from_bits(theta), pairs, f32::from_bits(factor));
    let inverse = emit.weights.literal(values)?;
    let positions = emit.operand(key.positions)?;
    let [cos, sin] = emit.storage.tables[&key].map(|root| emit.storage.whole(root));
    let rows = match key.follows {
        true => emit.following(key.positions, positions.elements as usize),
        false => Extent::Fixed(positions.elements),
    };
    emit.steps.push(Step::RotaryTable(step::RotaryTable { positions, inverse, rows, cos, sin }));
    Ok(())
}

/// Returns the cosines and sines of a rotary node, by operand with positions.
fn tables<const COUNT: usize>(
    emit: &Emit<'_, '_>,
    node: usize,
    operation: &Operation,
) -> Result<[[Operand; 2]; COUNT], Error> {
    let keys = TableKey::of(emit.graph, node, operation, emit.rows);
    let roots = keys.iter().filter_map(|key| emit.storage.tables.get(key));
    let tables = roots.map(|roots| roots.map(|root| emit.storage.whole(root))).collect::<Vec<_>>();
    let name = emit.graph.nodes[node].name();
    tables.try_into().map_err(|_| emit.missing(format!("node `{name}` has no rotary table")))
}

pub fn lower_rope(
    emit: &mut Emit<'_, '_>,
    site: &Site<'_>,
    operation: &Operation,
    head_dim: usize,
    pairs: usize,
) -> Result<Step, Error> {
    let [[cos, sin]] = tables(emit, site.node, operation)?;
    Ok(Step::Rope(step::Rope {
        x: emit.input(site.node, 0)?,
        cos,
        sin,
        sizes: [head_dim as u64, (site.last() / head_dim) as u64, pairs as u64],
        rows: emit.extent(site.output, site.x_shape[0]),
        out: site.out,
    }))
}

pub fn lower_rotate(emit: &mut Emit<'_, '_>, site: &Site<'_>, head_dim: usize) -> Result<Step, Error> {
    Ok(Step::Rope(step::Rope {
        x: emit.input(site.node, 0)?,
        cos: emit.input(site.node, 1)?,
        sin: emit.input(site.node, 2)?,
        sizes: [head_dim as u64, (site.last() / head_dim) as u64, head_dim as u64 / 2],
        rows: emit.extent(site.output, site.x_shape[0]),
        out: site.out,
    }))
}

pub fn lower_axial(
    emit: &mut Emit<'_, '_>,
    site: &Site<'_>,
    operation: &Operation,
    head_dim: usize,
) -> Result<Step, Error> {
    let [first, second] = tables(emit, site.node, operation)?;
    Ok(Step::AxialRope(step::AxialRope {
        x: emit.input(site.node, 0)?,
        cos: [first[0], second[0]],
        sin: [first[1], second[1]],
        sizes: [head_dim as u64, (site.last() / head_dim) as u64],
        rows: emit.extent(site.output, site.x_shape[0]),
        out: site.out,
    }))
}

impl step::RotaryTable {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        let step::RotaryTable { positions, inverse, rows, cos, sin } = self;
        let rows = bounds.most(*rows)?;
        let count = product(&[rows, inverse.elements])?;
        bounds.reads(*positions, rows)?;
        bounds.reads(*inverse, inverse.elements)?;
        bounds.writes(*cos, count, &[*positions, *inverse])?;
        bounds.writes(*sin, count, &[*positions, *inverse, *cos])
    }

    #[inline]
    pub fn execute(&self, stage: &Stage<'_, '_>) {
        let Stage { memory, pool, rows, .. } = *stage;
        let (positions, inverse) = (memory.read_i32(self.positions), memory.read(self.inverse));
        let (cos, sin) = (memory.write(self.cos), memory.write(self.sin));
        rotary_table(pool, positions, inverse, self.rows.at(rows), cos, sin);
    }
}

impl step::Rope {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        let step::Rope { x, cos, sin, sizes: [head_dim, heads, pairs], rows, out } = self;
        let rows = bounds.most(*rows)?;
        let count = product(&[rows, *head_dim, *heads])?;
        ensure(head_dim % 2 == 0 && *pairs <= head_dim / 2, || {
            format!("{pairs} pairs of {head_dim} values")
        })?;
        let table = product(&[rows, *pairs])?;
        bounds.reads(*x, count)?;
        bounds.reads(*cos, table)?;
        bounds.reads(*sin, table)?;
        bounds.writes(*out, count, &[*x, *cos, *sin])
    }

    #[inline]
    pub fn execute(&self, stage: &Stage<'_, '_>) {
        let Stage { memory, level, pool, rows, .. } = *stage;
        let [head_dim, heads, pairs] = self.sizes.map(|size| size as usize);
        let [x, cos, sin] = [self.x, self.cos, self.sin].map(|operand| memory.read(operand));
        let rows = self.rows.at(rows);
        rope(level, pool, x, cos, sin, head_dim, heads, pairs, rows, memory.write(self.out));
    }
}

impl step::AxialRope {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        let step::AxialRope { x, cos, sin, sizes: [head_dim, heads], rows, out } = self;
        let rows = bounds.most(*rows)?;
        ensure(*head_dim > 0 && head_dim % 4 == 0, || format!("halves of pairs of {head_dim}"))?;
        let count = product(&[rows, *head_dim, *heads])?;
        bounds.reads(*x, count)?;
        for table in cos.iter().chain(sin) {
            bounds.reads(*table, product(&[rows, head_dim / 4])?)?;
        }
        bounds.writes(*out, count, &[&[*x], &cos[..], sin].concat())
    }

    #[inline]
    pub fn execute(&self, stage: &Stage<'_, '_>) {
        let Stage { memory, level, pool, rows, .. } = *stage;
        let tables = [0, 1].map(|half| {
            let (cos, sin) = (memory.read(self.cos[half]), memory.read(self.sin[half]));
            Tables { cos, sin }
        });
        let [head_dim, heads] = self.sizes.map(|size| size as usize);
        let (x, rows) = (memory.read(self.x), self.rows.at(rows));
        axial_rope(level, pool, x, tables, head_dim, heads, rows, memory.write(self.out));
    }
}
