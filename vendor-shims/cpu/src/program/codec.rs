//! The bytes of a program: little-endian, a tag byte per choice, a u64 count before each list.

use super::*;
use crate::error::CpuError;
use crate::kernels::attention::Heads;
use crate::kernels::elementwise::{Binary, Broadcast, Gate, Unary};
use crate::kernels::encoding::{Element, Encoding};
use crate::kernels::integer::IntegerType;
use crate::kernels::linear::PanelType;
use crate::kernels::norm::RmsNorm;
use crate::kernels::reduce::Reduction;
use crate::kernels::shape::Strided;

/// Bytes not yet read; every access is bounded.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    base: u64,
}

impl<'a> Reader<'a> {
    /// Reads `bytes`, which lie at `base` of the artefact.
    pub fn new(bytes: &'a [u8], base: u64) -> Self {
        Reader { bytes, at: 0, base }
    }

    /// An error at the current place.
    pub fn corrupt(&self, reason: impl Into<String>) -> CpuError {
        CpuError::CorruptArtefact { offset: self.base + self.at as u64, reason: reason.into() }
    }

    /// The next `count` bytes.
    pub fn bytes(&mut self, count: u64) -> Result<&'a [u8], CpuError> {
        let end = usize::try_from(count).ok().and_then(|count| self.at.checked_add(count));
        match end.and_then(|end| self.bytes.get(self.at..end)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => Err(self.corrupt(format!("{count} bytes expected, {} left", self.bytes.len() - self.at))),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], CpuError> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N as u64)?);
        Ok(out)
    }

    /// A count, at most `most`.
    fn count(&mut self, most: u64, what: &str) -> Result<u64, CpuError> {
        let count = u64::get(self)?;
        if count > most {
            return Err(self.corrupt(format!("{count} {what}, at most {most}")));
        }
        Ok(count)
    }
}

/// A value with a fixed encoding.
trait Coded: Sized {
    /// Appends the encoding.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads a value.
    fn get(from: &mut Reader<'_>) -> Result<Self, CpuError>;
}

/// Longest list of plain numbers inside a step: ranks.
const MAX_LIST: u64 = MAX_RANK as u64;

macro_rules! coded_numbers {
    ($($type:ty),*) => { $(
        impl Coded for $type {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn get(from: &mut Reader<'_>) -> Result<Self, CpuError> {
                Ok(<$type>::from_le_bytes(from.array()?))
            }
        }
    )* };
}
coded_numbers!(u8, u32, u64, i32, f32);

impl Coded for usize {
    fn put(&self, out: &mut Vec<u8>) {
        (*self as u64).put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, CpuError> {
        let value = u64::get(from)?;
        if value > MAX_VALUES {
            return Err(from.corrupt(format!("size {value}")));
        }
        Ok(value as usize)
    }
}

impl Coded for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, CpuError> {
        match u8::get(from)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(from.corrupt(format!("{other} is no truth value"))),
        }
    }
}

impl Coded for String {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        out.extend_from_slice(self.as_bytes());
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, CpuError> {
        let length = from.count(MAX_NAME, "bytes of a name")?;
        let bytes = from.bytes(length)?;
        // A host is told a blank in the place of a NUL, and two names must not become one.
        if bytes.contains(&0) {
            return Err(from.corrupt("a name holds a NUL"));
        }
        String::from_utf8(bytes.to_vec()).map_err(|_| from.corrupt("a name is not UTF-8"))
    }
}

impl<T: Coded> Coded for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, CpuError> {
        Ok(if bool::get(from)? { Some(T::get(from)?) } else { None })
    }
}

impl<T: Coded + Copy + Default, const N: usize> Coded for [T; N] {
    fn put(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|value| value.put(out));
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, CpuError> {
        let mut out = [T::default(); N];
        for value in &mut out {
            *value = T::get(from)?;
        }
        Ok(out)
    }
}

fn put_list<T: Coded>(list: &[T], out: &mut Vec<u8>) {
    (list.len() as u64).put(out);
    list.iter().for_each(|value| value.put(out));
}

fn get_list<T: Coded>(from: &mut Reader<'_>, most: u64, what: &str) -> Result<Vec<T>, CpuError> {
    // The vector grows with what is really there, not with what the count claims.
    (0..from.count(most, what)?).map(|_| T::get(from)).collect()
}

macro_rules! coded_lists {
    ($($type:ty => $most:expr, $what:literal);* $(;)?) => { $(
        impl Coded for Vec<$type> {
            fn put(&self, out: &mut Vec<u8>) {
                put_list(self, out);
            }
            fn get(from: &mut Reader<'_>) -> Result<Self, CpuError> {
                get_list(from, $most, $what)
            }
        }
    )* };
}
coded_lists! {
    usize => MAX_LIST, "axes";
    u64 => MAX_LIST, "axes";
    DynamicMap => MAX_MAPS as u64, "maps of the same rows";
    Port => MAX_PORTS, "bindings";
    Step => MAX_STEPS, "steps";
    Entry => MAX_ENTRIES, "entries";
}

macro_rules! coded_struct {
    ($type:ident { $($field:ident),* $(,)? }) => {
        impl Coded for $type {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }
            fn get(from: &mut Reader<'_>) -> Result<Self, CpuError> {
                Ok($type { $($field: Coded::get(from)?),* })
            }
        }
    };
}
coded_struct!(Operand { place, offset, elements });
coded_struct!(PackedWeights { offset, kind, scales, inputs, outputs });
coded_struct!(PackedTiles { offset, kind, scales, inputs, outputs });
coded_struct!(PackedSplit { high, low, spread, scales, inputs, outputs });
coded_struct!(DynamicMap { weights, bias, out });
coded_struct!(RmsNorm { width, eps, offset });
coded_struct!(Heads { heads, kv_heads, head_dim, scale, softcap });
coded_struct!(Broadcast { shape, a, b });
coded_struct!(Strided { shape, source, target });
coded_struct!(Encoding { element, scale, zero_point });
coded_struct!(Port { name, direction, role, encoding, shape });
coded_struct!(Entry { name, rows, context, ports, arena, steps });
coded_struct!(Program { threads, entries });

macro_rules! coded_enum {
    ($type:ident { $($tag:literal => $case:ident $(($($value:ident),*))? $({$($field:ident),* $(,)?})?),* $(,)? }) => {
        impl Coded for $type {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $($type::$case $(($($value),*))? $({$($field),*})? => {
                        out.push($tag);
                        $($($value.put(out);)*)?
                        $($($field.put(out);)*)?
                    })*
                }
            }
            fn get(from: &mut Reader<'_>) -> Result<Self, CpuError> {
                match u8::get(from)? {
                    $($tag => {
                        $($(let $value = Coded::get(from)?;)*)?
                        $($(let $field = Coded::get(from)?;)*)?
                        Ok($type::$case $(($($value),*))? $({$($field),*})?)
                    })*
                    other => Err(from.corrupt(format!(concat!("{} is no ", stringify!($type)), other))),
                }
            }
        }
    };
}
coded_enum!(Place { 0 => Arena, 1 => Constant, 2 => Bound(port) });
coded_enum!(Extent { 0 => Fixed(count), 1 => PerRow(count) });
coded_enum!(PanelType { 0 => F32, 1 => Bf16, 2 => F16, 3 => I8, 4 => I4, 5 => I2 });
coded_enum!(IntegerType { 0 => I8, 1 => I4, 2 => I2 });
coded_enum!(PackedScales { 0 => None, 1 => PerOutput { offset }, 2 => PerBlock { offset, size } });
coded_enum!(Element { 0 => F32, 1 => F16, 2 => Bf16, 3 => U16, 4 => I16, 5 => U8, 6 => I8, 7 => I32 });
coded_enum!(PortDirection { 0 => Input, 1 => Output, 2 => State, 3 => StateRead });
coded_enum!(Reduction { 0 => Sum, 1 => Mean, 2 => Max });
coded_enum!(Binary { 0 => Add, 1 => Sub, 2 => Mul, 3 => Div });
coded_enum!(Gate { 0 => Gelu, 1 => Silu });
coded_enum!(AttentionKeys { 0 => State { capacity }, 1 => Rows { causal } });
coded_enum!(Unary {
    0 => Copy, 1 => Gelu, 2 => Silu, 3 => Softcap(value), 4 => Add(value), 5 => Mul(value), 6 => Max(value), 7 => Neg,
    8 => Exp, 9 => Tanh, 10 => Sqrt, 11 => Rsqrt, 12 => Reciprocal, 13 => Round,
});
coded_enum!(Step {
    0 => Linear { x, rows, weights, bias, out },
    1 => MatMul { a, b, out, sizes, transpose_b, batch },
    2 => RmsNorm { norm, x, weight, residual, groups, out },
    3 => L2Normalize { x, width, groups, out },
    4 => Softmax { x, width, groups, out },
    5 => Reduce { kind, x, width, groups, out },
    6 => RotaryTable { positions, inverse, rows, cos, sin },
    7 => Rope { x, cos, sin, sizes, rows, out },
    8 => Attention { heads, window, keys, q, k, v, positions, rows, out },
    9 => Unary { kind, x, count, out },
    10 => Binary { kind, broadcast, outer, a, b, out },
    11 => Copy { copy, source, target },
    12 => StateUpdate { state, width, new, slots, rows },
    13 => ZeroTail { target, per_row },
    14 => DynamicLinear { x, rows, maps },
    15 => Decode { source, count, out },
    16 => Encode { x, count, target },
    17 => Nearest { encoding, count, values },
    18 => Gated { kind, gate, up, count, out },
    19 => SplitLinear { x, weights, cap, out },
});

/// The program's bytes; equal programs give equal bytes.
pub fn encode(program: &Program) -> Vec<u8> {
    let mut out = Vec::new();
    program.put(&mut out);
    out
}

/// The program of `bytes`, which lie at `base` of the artefact. Not yet checked: see [`Program::check`].
pub fn decode(bytes: &[u8], base: u64) -> Result<Program, CpuError> {
    let mut reader = Reader::new(bytes, base);
    let program = Program::get(&mut reader)?;
    if reader.at != bytes.len() {
        return Err(reader.corrupt("bytes after the program"));
    }
    Ok(program)
}
