//! Attention, to the keys of a state or of the rows of a run.

use shardwright_shim_abi::Error;

use super::Operation;
use crate::execute::Stage;
use crate::kernels::attention::{
    Everyone, Heads, Operands, Products, Visible, attention, attention_of_all, attention_rounded,
    scratch_of_all, scratch_rounded, scratch_values,
};
use crate::lower::{Emit, Following, Here, Recognised, Site, expect, invalid, matrix, unsupported};
use crate::program::{AttentionKeys, Bounds, Checked, Entry, OperandPlace, Step, ensure, product, step};

pub fn recognise(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(4, 4)?;
    let (q, k, v) = (here.float(0)?, here.float(1)?, here.float(2)?);
    let heads = Heads {
        heads: here.positive("heads")?,
        kv_heads: here.positive("kv_heads")?,
        head_dim: here.positive("head_dim")?,
        scale: here.finite("scale")?,
        softcap: here.finite("softcap")?,
    };
    let window = here.node.attribute_usize("window")? as u64;
    let causal = here.truth("causal")?;
    let [rows, width] = matrix(q, 0)?;
    let [keys, kv_width] = matrix(k, 1)?;
    let product = |count: usize| count.checked_mul(heads.head_dim);
    if !heads.heads.is_multiple_of(heads.kv_heads)
        || product(heads.heads) != Some(width)
        || product(heads.kv_heads) != Some(kv_width)
    {
        return invalid(format!("{heads:?} do not match queries {:?} and keys {:?}", q.shape, k.shape));
    }
    if heads.softcap < 0.0 {
        return invalid(format!("attribute `softcap` is {}", heads.softcap));
    }
    expect(&v.shape, &[keys, kv_width], 2)?;
    here.index_vector(3, rows)?;
    here.output_shape(&q.shape)?;
    let state = match here.node.attribute_text("keys")? {
        "state" if causal => true,
        "state" => return invalid("keys of a state are always causal"),
        "rows" if keys == rows => false,
        "rows" => return invalid(format!("{rows} rows of queries, but {keys} of keys")),
        other => return unsupported(format!("unknown source of keys `{other}`")),
    };
    let products = products(here)?;
    Ok(Operation::Attention { heads, window, causal, state, products })
}

/// Returns the type of the products. Version 1 has no attribute for it.
fn products(here: &Here<'_, '_>) -> Recognised<Products> {
    if here.node.op_version() == 1 {
        return Ok(Products::F32);
    }
    match here.node.attribute_text("products")? {
        "bf16" => Ok(Products::Bf16),
        "f16" => Ok(Products::F16),
        other => unsupported(format!("unknown type of products `{other}`, expected bf16 or f16")),
    }
}

/// The result follows the entry's rows, regardless of how its queries were computed. Rows beyond
/// the valid ones are not used as keys either.
pub fn follows_rows(node: &mut Following<'_, '_>) -> bool {
    node.or_cross(node.extent(node.x()) == node.rows())
}

pub fn lower(
    emit: &mut Emit<'_, '_>,
    site: &Site<'_>,
    heads: Heads,
    window: u64,
    causal: bool,
    state: bool,
    products: Products,
) -> Result<Step, Error> {
    Ok(Step::Attention(step::Attention {
        heads,
        window,
        products,
        keys: if state {
            let capacity = emit.graph.input(site.node, 1).map_or(0, |keys| keys.shape[0]) as u64;
            AttentionKeys::State { capacity }
        } else {
            AttentionKeys::Rows { causal }
        },
        q: emit.input(site.node, 0)?,
        k: if state { emit.stored(site.node, 1)? } else { emit.input(site.node, 1)? },
        v: if state { emit.stored(site.node, 2)? } else { emit.input(site.node, 2)? },
        positions: emit.input(site.node, 3)?,
        rows: emit.extent(site.output, site.x_shape[0]),
        out: site.out,
    }))
}

impl step::Attention {
    pub fn check(&self, bounds: &Bounds<'_>) -> Checked {
        let step::Attention { heads, keys, q, k, v, positions, rows, out, .. } = self;
        let rows = bounds.most(*rows)?;
        let even = heads.kv_heads > 0 && heads.heads > 0 && heads.heads % heads.kv_heads == 0;
        ensure(even && heads.head_dim > 0, || format!("broken {heads:?}"))?;
        let count = product(&[rows, heads.heads as u64, heads.head_dim as u64])?;
        let capacity = match keys {
            AttentionKeys::State { capacity } => {
                ensure(*capacity > 0, || "a state of no rows".into())?;
                bounds.reads(*positions, rows)?;
                *capacity
            }
            AttentionKeys::Rows { .. } => {
                // The positions must be in bounds, although the result does not depend on them.
                bounds.reads(*positions, 0)?;
                rows
            }
        };
        let existing = product(&[capacity, heads.kv_heads as u64, heads.head_dim as u64])?;
        product(&[capacity + 1, heads.heads as u64])?;
        bounds.reads(*q, count)?;
        bounds.reads_stored(*k, existing)?;
        bounds.reads_stored(*v, existing)?;
        bounds.writes(*out, count, &[*q, *k, *v, *positions])
    }

    pub fn scratch(&self, entry: &Entry, threads: usize) -> Option<usize> {
        let rows = self.rows.most(entry.rows)?;
        let keys = match self.keys {
            AttentionKeys::State { capacity } if self.window > 0 => capacity.min(self.window),
            AttentionKeys::State { capacity } => capacity,
            AttentionKeys::Rows { .. } => rows,
        };
        if self.products != Products::F32 {
            return scratch_rounded(self.heads, threads);
        }
        let keys = usize::try_from(keys).ok()?;
        match self.sees_all(entry) {
            true => scratch_of_all(self.heads, keys, threads),
            false => scratch_values(self.heads, keys, threads, self.is_encoded(entry)),
        }
    }

    /// Checks whether keys or values are encoded.
    fn is_encoded(&self, entry: &Entry) -> bool {
        [self.k, self.v].iter().any(|operand| match operand.place {
            OperandPlace::Bound(port) => {
                entry.ports.get(port as usize).is_none_or(|port| !port.encoding.is_direct())
            }
            _ => false,
        })
    }

    /// Checks whether all rows see each other, and are multiplied unencoded and unrounded.
    fn sees_all(&self, entry: &Entry) -> bool {
        let all = self.window == 0 && self.keys == AttentionKeys::Rows { causal: false };
        all && self.products == Products::F32 && !self.is_encoded(entry)
    }

    pub fn execute(&self, stage: &mut Stage<'_, '_>) -> Result<(), Error> {
        let Stage { memory, level, pool, rows, .. } = *stage;
        let (q, rows, out) = (memory.read(self.q), self.rows.at(rows), memory.write(self.out));
        if self.sees_all(stage.entry) {
            let operands = Everyone { q, k: memory.read(self.k), v: memory.read(self.v) };
            attention_of_all(level, pool, self.heads, operands, rows, stage.scratch, out);
            return Ok(());
        }
        let capacity = self.see(memory.read_i32(self.positions), rows, stage.visible)?;
        let stride = self.heads.kv_heads * self.heads.head_dim;
        let operands = Operands { q, k: memory.stored(self.k), v: memory.stored(self.v), capacity, stride };
        let (heads, visible, blocks) = (self.heads, &*stage.visible, &mut *stage.blocks);
        match self.products {
            Products::F32 => attention(level, pool, heads, operands, visible, blocks, stage.scratch, out),
            products => {
                attention_rounded(
                    level,
                    pool,
                    heads,
                    products,
                    operands,
                    visible,
                    blocks,
                    stage.scratch,
                    out,
                );
            }
        }
        Ok(())
    }

    /// Stores the keys that each row sees in `visible`, and returns the number of rows of the keys.
    fn see(&self, positions: &[i32], rows: usize, visible: &mut Vec<Visible>) -> Result<usize, Error> {
        let window = if self.window == 0 { u64::MAX } else { self.window };
        visible.clear();
        match self.keys {
            AttentionKeys::State { capacity } => {
                for (row, &position) in positions[..rows].iter().enumerate() {
                    let Ok(position) = u64::try_from(position) else {
                        let reason = format!("row {row} is at position {position}");
                        return Err(Error::invalid_argument(reason));
                    };
                    let count = (position + 1).min(window).min(capacity);
                    visible.push(Visible { start: position + 1 - count, count: count as usize });
                }
                Ok(capacity as usize)
            }
            AttentionKeys::Rows { causal } => {
                for row in 0..rows as u64 {
                    let start = (row + 1).saturating_sub(window);
                    let end = if causal { row + 1 } else { row.saturating_add(window).min(rows as u64) };
                    visible.push(Visible { start, count: (end - start) as usize });
                }
                Ok(rows)
            }
        }
    }
}
