//! Verification that every step of a program stays within its operands, and its operands within
//! their places.

use super::*;
use crate::kernels::convolution::Plane;
use crate::kernels::elementwise::Broadcast;
use crate::kernels::encoding::Element;
use crate::kernels::integer::split::Split;
use crate::kernels::linear::PanelType;
use crate::simd::LANES;

type Checked = Result<(), String>;

/// The memory that steps of one entry may touch.
struct Bounds<'a> {
    entry: &'a Entry,
    /// Elements of each port.
    ports: Vec<u64>,
    /// Bytes of the weight section.
    constants: u64,
}

fn ensure(condition: bool, what: impl FnOnce() -> String) -> Checked {
    if condition { Ok(()) } else { Err(what()) }
}

/// Limit on empty loops: a step that loops over this many empty groups still ends quickly.
const MAX_EMPTY: u64 = 1 << 24;

fn product(factors: &[u64]) -> Result<u64, String> {
    // A zero factor must not hide a size that is otherwise unlimited, in memory or in time.
    let empty = factors.contains(&0);
    let most = if empty { MAX_EMPTY } else { MAX_VALUES };
    factors
        .iter()
        .filter(|factor| **factor != 0)
        .try_fold(1u64, |product, factor| product.checked_mul(*factor))
        .filter(|product| *product <= most)
        .map(|product| if empty { 0 } else { product })
        .ok_or_else(|| format!("{factors:?} values are too many"))
}

fn at_most(count: usize, most: u64, what: &str) -> Checked {
    ensure(count as u64 <= most, || format!("{count} {what}, at most {most}"))
}

fn named(name: &str) -> Checked {
    at_most(name.len(), MAX_NAME, "bytes of a name")?;
    // A host receives a blank in place of a NUL, and two names must not become equal.
    ensure(!name.contains('\0'), || "a name contains a NUL".into())
}

fn axes(lists: [&[usize]; 3]) -> Checked {
    for list in lists {
        at_most(list.len(), MAX_RANK as u64, "axes")?;
        ensure(list.iter().all(|size| *size as u64 <= MAX_VALUES), || {
            format!("{list:?} values are too many")
        })?;
    }
    Ok(())
}

impl Program {
    /// Checks that every access of every step is within its place and that no step writes memory
    /// that it reads. `constants` is the length of the weight section in bytes. The error includes
    /// the location.
    pub fn check(&self, constants: u64) -> Result<(), String> {
        at_most(self.entries.len(), MAX_ENTRIES, "entries")?;
        for (index, entry) in self.entries.iter().enumerate() {
            named(&entry.name)?;
            if self.entries[..index].iter().any(|other| other.name == entry.name) {
                return Err(format!("two entries are called `{}`", entry.name));
            }
            entry.check(constants).map_err(|reason| format!("entry `{}`: {reason}", entry.name))?;
        }
        Ok(())
    }
}

impl Entry {
    fn check(&self, constants: u64) -> Checked {
        ensure(self.rows >= 1 && self.rows <= u64::from(u32::MAX), || format!("{} rows", self.rows))?;
        ensure(self.arena <= MAX_VALUES, || format!("an arena of {} values", self.arena))?;
        at_most(self.ports.len(), MAX_PORTS, "bindings")?;
        at_most(self.steps.len(), MAX_STEPS, "steps")?;
        let mut ports = Vec::with_capacity(self.ports.len());
        for port in &self.ports {
            named(&port.name)?;
            ensure(port.shape.len() <= MAX_RANK, || {
                format!("binding `{}` of rank {}", port.name, port.shape.len())
            })?;
            ensure(port.encoding.is_consistent(), || {
                format!("binding `{}` is encoded as {:?}", port.name, port.encoding)
            })?;
            ports.push(product(&port.shape).map_err(|reason| format!("binding `{}`: {reason}", port.name))?);
        }
        let bounds = Bounds { entry: self, ports, constants };
        for (index, step) in self.steps.iter().enumerate() {
            bounds.step(step).map_err(|reason| format!("step {index}: {reason}"))?;
        }
        Ok(())
    }
}

impl Bounds<'_> {
    /// Checks that the operand is within its place and has at least `needed` elements, in any
    /// encoding.
    fn reads_stored(&self, operand: Operand, needed: u64) -> Checked {
        let end = operand.offset.checked_add(operand.elements);
        let available = match operand.place {
            Place::Arena => self.entry.arena,
            Place::Constant => self.constants / VALUE_BYTES,
            Place::Bound(port) => {
                *self.ports.get(port as usize).ok_or_else(|| format!("no binding {port}"))?
            }
        };
        ensure(end.is_some_and(|end| end <= available), || {
            format!("{operand:?} reaches beyond {available} values")
        })?;
        ensure(needed <= operand.elements, || format!("{needed} values are used of {operand:?}"))
    }

    /// Performs the checks of [`Bounds::reads_stored`] and requires unencoded values.
    fn reads(&self, operand: Operand, needed: u64) -> Checked {
        self.reads_stored(operand, needed)?;
        self.direct(operand)
    }

    fn direct(&self, operand: Operand) -> Checked {
        match operand.place {
            Place::Bound(port) if !self.entry.ports[port as usize].encoding.is_direct() => {
                Err(format!("{operand:?} is encoded"))
            }
            _ => Ok(()),
        }
    }

    /// Performs the checks of [`Bounds::writes_stored`] and requires unencoded values.
    fn writes(&self, operand: Operand, needed: u64, sources: &[Operand]) -> Checked {
        self.writes_stored(operand, needed, sources)?;
        self.direct(operand)
    }

    /// Performs the checks of [`Bounds::reads_stored`]. In addition, the place must be writable and
    /// must not overlap any of `sources`.
    fn writes_stored(&self, operand: Operand, needed: u64, sources: &[Operand]) -> Checked {
        self.reads_stored(operand, needed)?;
        let writable = match operand.place {
            Place::Arena => true,
            Place::Constant => false,
            Place::Bound(port) => self.entry.ports[port as usize].direction.is_writable(),
        };
        ensure(writable, || format!("{operand:?} is written"))?;
        for source in sources {
            let apart = source.place != operand.place
                || source.offset + source.elements <= operand.offset
                || operand.offset + operand.elements <= source.offset;
            ensure(apart || source.elements == 0 || operand.elements == 0, || {
                format!("{source:?} is read and {operand:?} written")
            })?;
        }
        Ok(())
    }

    fn most(&self, extent: Extent) -> Result<u64, String> {
        extent
            .most(self.entry.rows)
            .filter(|count| *count <= MAX_VALUES)
            .ok_or_else(|| format!("{extent:?} of {} rows", self.entry.rows))
    }

    fn broadcast(&self, broadcast: &Broadcast) -> Result<(u64, u64, u64), String> {
        let Broadcast { shape, a, b } = broadcast;
        axes([shape, a, b])?;
        ensure(!shape.is_empty() && shape.len() == a.len() && shape.len() == b.len(), || {
            "a broken broadcast".into()
        })?;
        let total = product(&shape.iter().map(|extent| *extent as u64).collect::<Vec<u64>>())?;
        let reach = |strides: &[usize]| {
            Broadcast::reach(shape, strides)
                .map(|reach| reach as u64)
                .ok_or_else(|| "a broadcast reaches too far".to_owned())
        };
        Ok((total, reach(a)?, reach(b)?))
    }

    fn packed(&self, weights: &PackedWeights) -> Checked {
        product(&[weights.outputs.div_ceil(LANES as u64), LANES as u64, weights.inputs])?;
        let fitting = match weights.scales {
            PackedScales::None => !weights.kind.is_integer(),
            PackedScales::PerOutput { .. } => weights.kind.is_integer(),
            PackedScales::PerBlock { size, .. } | PackedScales::Affine { size, .. } => {
                matches!(weights.kind, PanelType::I8 | PanelType::I4)
                    && (1..=weights.inputs.max(1)).contains(&size)
            }
        };
        ensure(fitting, || format!("{:?} with {:?}", weights.kind, weights.scales))?;
        let bytes = weights.bytes().ok_or_else(|| format!("{weights:?} are too many"))?;
        self.in_section(weights.offset, weights.scales, bytes)
            .map_err(|reason| format!("{weights:?} {reason}"))
    }

    fn tiles(&self, weights: &PackedTiles) -> Checked {
        let fitting = match weights.scales {
            PackedScales::None | PackedScales::Affine { .. } => false,
            PackedScales::PerOutput { .. } => true,
            PackedScales::PerBlock { size, .. } => (1..=weights.inputs.max(1)).contains(&size),
        };
        ensure(fitting, || format!("{:?} with {:?}", weights.kind, weights.scales))?;
        // Padding makes a row at most sixteen times as long, so the computations below cannot
        // overflow.
        product(&[weights.outputs.div_ceil(LANES as u64), LANES as u64, weights.inputs])?;
        self.in_section(weights.offset, weights.scales, weights.bytes())
            .map_err(|reason| format!("{weights:?} {reason}"))
    }

    fn split(&self, weights: &PackedSplit) -> Checked {
        ensure(Split::takes(weights.inputs), || format!("{} inputs in two parts", weights.inputs))?;
        product(&[weights.outputs.div_ceil(LANES as u64), LANES as u64, weights.inputs])?;
        for (offset, bytes) in weights.parts() {
            let end = offset.checked_add(bytes);
            ensure(end.is_some_and(|end| end <= self.constants) && offset % 64 == 0, || {
                format!("{weights:?} reach beyond {} bytes", self.constants)
            })?;
        }
        Ok(())
    }

    /// Checks that weights and scales of these lengths are within the weight section.
    fn in_section(&self, weights: u64, scales: PackedScales, bytes: [u64; 2]) -> Checked {
        let scales = match scales {
            PackedScales::None => 0,
            PackedScales::PerOutput { offset }
            | PackedScales::PerBlock { offset, .. }
            | PackedScales::Affine { offset, .. } => offset,
        };
        for (offset, bytes) in [weights, scales].into_iter().zip(bytes) {
            let end = offset.checked_add(bytes);
            ensure(end.is_some_and(|end| end <= self.constants) && offset % 64 == 0, || {
                format!("reach beyond {} bytes", self.constants)
            })?;
        }
        Ok(())
    }

    fn linear(
        &self,
        x: Operand,
        rows: Extent,
        [inputs, outputs]: [u64; 2],
        bias: Option<Operand>,
        out: Operand,
    ) -> Checked {
        let rows = self.most(rows)?;
        self.reads(x, product(&[rows, inputs])?)?;
        if let Some(bias) = bias {
            self.reads(bias, outputs)?;
        }
        self.writes(out, product(&[rows, outputs])?, &[&[x], bias.as_slice()].concat())
    }

    fn step(&self, step: &Step) -> Checked {
        match step {
            Step::Linear { x, rows, weights, bias, out, .. } => {
                self.packed(weights)?;
                self.linear(*x, *rows, [weights.inputs, weights.outputs], *bias, *out)
            }
            Step::DynamicLinear { x, rows, block, maps } => {
                ensure((1..=MAX_MAPS).contains(&maps.len()), || {
                    format!("{} maps of the same rows", maps.len())
                })?;
                for (index, DynamicMap { weights, bias, out, .. }) in maps.iter().enumerate() {
                    self.tiles(weights)?;
                    let cut = weights.rows(*block);
                    ensure(cut.is_some() && cut == maps[0].weights.rows(*block), || {
                        format!("{weights:?} cut rows otherwise than {:?}", maps[0].weights)
                    })?;
                    self.linear(*x, *rows, [weights.inputs, weights.outputs], *bias, *out)?;
                    // Maps run concurrently, so no map may access memory that another map writes.
                    for other in maps[index + 1..].iter().chain(&maps[..index]) {
                        self.writes(*out, 0, &[&[other.out], other.bias.as_slice()].concat())?;
                    }
                }
                Ok(())
            }
            Step::SplitLinear { x, rows, weights, cap, out } => {
                self.split(weights)?;
                ensure(cap.is_none_or(|cap| cap > 0.0 && cap.is_finite()), || {
                    format!("results capped at {cap:?}")
                })?;
                self.linear(*x, *rows, [weights.inputs, weights.outputs], None, *out)
            }
            Step::MatMul { a, b, out, sizes: [m, k, n], batch, .. } => {
                let (batches, reach_a, reach_b) = self.broadcast(batch)?;
                product(&[n.div_ceil(LANES as u64), LANES as u64, *k])?;
                self.reads(*a, product(&[reach_a, product(&[*m, *k])?])?)?;
                self.reads(*b, product(&[reach_b, product(&[*k, *n])?])?)?;
                self.writes(*out, product(&[batches, product(&[*m, *n])?])?, &[*a, *b])
            }
            Step::RmsNorm { norm, x, weight, residual, groups, out } => {
                let count = product(&[self.most(*groups)?, norm.width as u64])?;
                self.reads(*x, count)?;
                if let Some(weight) = weight {
                    self.reads(*weight, norm.width as u64)?;
                }
                if let Some(residual) = residual {
                    self.reads(*residual, count)?;
                }
                self.writes(*out, count, &[&[*x], weight.as_slice(), residual.as_slice()].concat())
            }
            Step::L2Normalize { x, width, groups, out } | Step::Softmax { x, width, groups, out } => {
                let count = product(&[self.most(*groups)?, *width])?;
                self.reads(*x, count)?;
                self.writes(*out, count, &[*x])
            }
            Step::Reduce { x, width, groups, out, .. } => {
                let groups = self.most(*groups)?;
                self.reads(*x, product(&[groups, *width])?)?;
                self.writes(*out, groups, &[*x])
            }
            Step::RotaryTable { positions, inverse, rows, cos, sin } => {
                let rows = self.most(*rows)?;
                let count = product(&[rows, inverse.elements])?;
                self.reads(*positions, rows)?;
                self.reads(*inverse, inverse.elements)?;
                self.writes(*cos, count, &[*positions, *inverse])?;
                self.writes(*sin, count, &[*positions, *inverse, *cos])
            }
            Step::Rope { x, cos, sin, sizes: [head_dim, heads, pairs], rows, out } => {
                let rows = self.most(*rows)?;
                let count = product(&[rows, *head_dim, *heads])?;
                ensure(head_dim % 2 == 0 && *pairs <= head_dim / 2, || {
                    format!("{pairs} pairs of {head_dim} values")
                })?;
                let table = product(&[rows, *pairs])?;
                self.reads(*x, count)?;
                self.reads(*cos, table)?;
                self.reads(*sin, table)?;
                self.writes(*out, count, &[*x, *cos, *sin])
            }
            Step::Attention { heads, keys, q, k, v, positions, rows, out, .. } => {
                let rows = self.most(*rows)?;
                let even = heads.kv_heads > 0 && heads.heads > 0 && heads.heads % heads.kv_heads == 0;
                ensure(even && heads.head_dim > 0, || format!("broken {heads:?}"))?;
                let count = product(&[rows, heads.heads as u64, heads.head_dim as u64])?;
                let capacity = match keys {
                    AttentionKeys::State { capacity } => {
                        ensure(*capacity > 0, || "a state of no rows".into())?;
                        self.reads(*positions, rows)?;
                        *capacity
                    }
                    AttentionKeys::Rows { .. } => {
                        // The positions must be in bounds, although the result does not depend on
                        // them.
                        self.reads(*positions, 0)?;
                        rows
                    }
                };
                let existing = product(&[capacity, heads.kv_heads as u64, heads.head_dim as u64])?;
                product(&[capacity + 1, heads.heads as u64])?;
                self.reads(*q, count)?;
                self.reads_stored(*k, existing)?;
                self.reads_stored(*v, existing)?;
                self.writes(*out, count, &[*q, *k, *v, *positions])
            }
            Step::Unary { x, count, out, .. } => {
                let count = self.most(*count)?;
                self.reads(*x, count)?;
                self.writes(*out, count, &[*x])
            }
            Step::Gated { gate, up, count, out, .. } => {
                let count = self.most(*count)?;
                self.reads(*gate, count)?;
                self.reads(*up, count)?;
                self.writes(*out, count, &[*gate, *up])
            }
            Step::Binary { broadcast, outer, a, b, out, .. } => {
                let (total, reach_a, reach_b) = self.broadcast(broadcast)?;
                let most = self.most(*outer)?;
                let inner = |strides: &[usize]| strides.last().is_some_and(|stride| *stride <= 1);
                ensure(inner(&broadcast.a) && inner(&broadcast.b), || "an innermost axis with gaps".into())?;
                ensure(most <= broadcast.shape[0] as u64, || {
                    format!("{most} steps of {}", broadcast.shape[0])
                })?;
                self.reads(*a, reach_a)?;
                self.reads(*b, reach_b)?;
                self.writes(*out, total, &[*a, *b])
            }
            Step::Copy { copy, source, target } => {
                axes([&copy.shape, &copy.source, &copy.target])?;
                let rank = copy.shape.len();
                ensure(copy.source.len() == rank && copy.target.len() == rank, || "a broken copy".into())?;
                let total = product(&copy.shape.iter().map(|extent| *extent as u64).collect::<Vec<u64>>())?;
                ensure(total <= target.elements, || format!("{total} values copied to {}", target.elements))?;
                let reach = |strides: &[usize]| {
                    Broadcast::reach(&copy.shape, strides)
                        .map(|reach| reach as u64)
                        .ok_or_else(|| "a copy reaches too far".to_owned())
                };
                self.reads(*source, reach(&copy.source)?)?;
                self.writes(*target, reach(&copy.target)?, &[*source])
            }
            Step::StateUpdate { state, width, new, slots, rows } => {
                let rows = self.most(*rows)?;
                ensure(*width > 0 && state.elements % width == 0, || {
                    format!("a state of rows of {width} values")
                })?;
                self.reads(*new, product(&[rows, *width])?)?;
                self.reads(*slots, rows)?;
                self.writes_stored(*state, 0, &[*new, *slots])
            }
            Step::Decode { source, count, out } => {
                let count = self.most(*count)?;
                self.reads_stored(*source, count)?;
                self.writes(*out, count, &[*source])
            }
            Step::Encode { x, count, target } => {
                let count = self.most(*count)?;
                self.reads(*x, count)?;
                self.writes_stored(*target, count, &[*x])
            }
            Step::Nearest { encoding, count, values } => {
                let value = encoding.is_consistent() && encoding.element != Element::I32;
                ensure(value, || format!("values as {encoding:?}"))?;
                self.writes(*values, self.most(*count)?, &[])
            }
            Step::ZeroTail { target, valid } => self.writes(*target, self.most(*valid)?, &[]),
            Step::LayerNorm { norm, x, weight, bias, groups, out } => {
                let count = product(&[self.most(*groups)?, norm.width as u64])?;
                self.reads(*x, count)?;
                for values in [weight, bias].into_iter().flatten() {
                    self.reads(*values, norm.width as u64)?;
                }
                self.writes(*out, count, &[&[*x], weight.as_slice(), bias.as_slice()].concat())
            }
            Step::AxialRope { x, cos, sin, sizes: [head_dim, heads], rows, out } => {
                let rows = self.most(*rows)?;
                ensure(*head_dim > 0 && head_dim % 4 == 0, || format!("halves of pairs of {head_dim}"))?;
                let count = product(&[rows, *head_dim, *heads])?;
                self.reads(*x, count)?;
                for table in cos.iter().chain(sin) {
                    self.reads(*table, product(&[rows, head_dim / 4])?)?;
                }
                self.writes(*out, count, &[&[*x], &cos[..], sin].concat())
            }
            Step::RelativeAttention { relative, q, k, v, by_distance, rows, out } => {
                let width = product(&[relative.heads as u64, relative.head_dim as u64])?;
                ensure(width > 0 && relative.window > 0, || format!("broken {relative:?}"))?;
                let rows = self.most(*rows)?;
                let count = product(&[rows, width])?;
                for values in [q, k, v] {
                    self.reads(*values, count)?;
                }
                self.reads(*by_distance, product(&[rows, relative.heads as u64, relative.window as u64])?)?;
                self.writes(*out, count, &[*q, *k, *v, *by_distance])
            }
            Step::Convolution { plane, x, weights, height, rows, out } => {
                self.packed(weights)?;
                let Plane { width, channels, .. } = *plane;
                let full = channels > 0 && weights.outputs > 0;
                let columns = plane.results(width).filter(|_| full);
                let columns = columns.ok_or_else(|| format!("broken {plane:?}"))?;
                let inputs = plane.inputs().map(|inputs| inputs as u64);
                ensure(inputs == Some(weights.inputs), || format!("{plane:?} with {weights:?}"))?;
                self.reads(*x, product(&[self.most(*height)?, width as u64, channels as u64])?)?;
                let count = product(&[self.most(*rows)?, columns as u64, weights.outputs])?;
                self.writes(*out, count, &[*x])
            }
            Step::Depthwise { x, weight, sizes: [channels, kernel], rows, out } => {
                ensure(*kernel > 0, || "a kernel of no rows".into())?;
                let count = product(&[self.most(*rows)?, *channels])?;
                self.reads(*x, count)?;
                self.reads(*weight, product(&[*channels, *kernel])?)?;
                self.writes(*out, count, &[*x, *weight])
            }
            Step::Glu { x, width, groups, out } => {
                let groups = self.most(*groups)?;
                self.reads(*x, product(&[2, groups, *width])?)?;
                self.writes(*out, product(&[groups, *width])?, &[*x])
            }
            Step::MeanRows { x, sizes: [width, rows], valid, groups, out } => {
                let groups = self.most(*groups)?;
                ensure(*rows > 0, || "means of no rows".into())?;
                product(&[groups, *rows])?;
                self.reads(*x, product(&[self.most(*valid)?, *width])?)?;
                self.writes(*out, product(&[groups, *width])?, &[*x])
            }
        }
    }
}
