//! The primitives, and the shapes they take.

use serde::{Deserialize, Serialize};
use shardwright_shim_abi::raw::*;
use shardwright_shim_abi::{Error, NodeView, Result};

/// Names of operations, for reasons and options.
const NAMES: [(u32, &str); 35] = [
    (SW_OP_LINEAR, "linear"),
    (SW_OP_RMS_NORM, "rms-norm"),
    (SW_OP_ROPE, "rope"),
    (SW_OP_ATTENTION, "attention"),
    (SW_OP_GELU, "gelu"),
    (SW_OP_SILU, "silu"),
    (SW_OP_SOFTCAP, "softcap"),
    (SW_OP_SOFTMAX, "softmax"),
    (SW_OP_STATE_UPDATE, "state-update"),
    (SW_OP_L2_NORMALIZE, "l2-normalize"),
    (SW_OP_DYNAMIC_LINEAR, "dynamic-linear"),
    (SW_OP_ROTATE, "rotate"),
    (SW_OP_ADD, "add"),
    (SW_OP_SUB, "sub"),
    (SW_OP_MUL, "mul"),
    (SW_OP_DIV, "div"),
    (SW_OP_ADD_SCALAR, "add-scalar"),
    (SW_OP_MUL_SCALAR, "mul-scalar"),
    (SW_OP_NEG, "neg"),
    (SW_OP_EXP, "exp"),
    (SW_OP_TANH, "tanh"),
    (SW_OP_SQRT, "sqrt"),
    (SW_OP_RSQRT, "rsqrt"),
    (SW_OP_RECIPROCAL, "reciprocal"),
    (SW_OP_REDUCE_SUM, "reduce-sum"),
    (SW_OP_REDUCE_MEAN, "reduce-mean"),
    (SW_OP_REDUCE_MAX, "reduce-max"),
    (SW_OP_MAT_MUL, "mat-mul"),
    (SW_OP_RESHAPE, "reshape"),
    (SW_OP_TRANSPOSE, "transpose"),
    (SW_OP_SLICE, "slice"),
    (SW_OP_CONCAT, "concat"),
    (SW_OP_MAX_SCALAR, "max-scalar"),
    (SW_OP_ROUND, "round"),
    (SW_OP_CONVERT, "convert"),
];

pub(crate) fn op_name(op: u32) -> &'static str {
    NAMES.iter().find(|(number, _)| *number == op).map_or("an unknown operation", |(_, name)| name)
}

pub(crate) fn op_named(name: &str) -> Option<u32> {
    NAMES.iter().find(|(_, held)| *held == name).map(|(number, _)| *number)
}

/// A primitive with its attributes; floats as bits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Step {
    Add,
    Sub,
    Mul,
    Div,
    AddScalar { bits: u32 },
    MulScalar { bits: u32 },
    MaxScalar { bits: u32 },
    Neg,
    Exp,
    Tanh,
    Sqrt,
    Rsqrt,
    Reciprocal,
    Round,
    Convert,
    ReduceSum,
    ReduceMean,
    ReduceMax,
    MatMul { transpose_b: bool },
    Reshape,
    Transpose { perm: Vec<usize> },
    Slice { axis: usize, start: usize, end: usize },
    Concat { axis: usize },
}

fn index(node: NodeView<'_>, value: i64) -> Result<usize> {
    usize::try_from(value)
        .map_err(|_| Error::invalid_argument(format!("node `{}`: {value} is no index", node.name())))
}

impl Step {
    /// The step a node asks for, or why there is none.
    pub(crate) fn of(node: NodeView<'_>) -> Result<Step> {
        if node.op_version() != 1 {
            return Err(Error::unsupported_op(format!(
                "version {} of {} is newer than this shim",
                node.op_version(),
                op_name(node.op())
            )));
        }
        let bits = || node.attribute_f32("value").map(f32::to_bits);
        Ok(match node.op() {
            SW_OP_ADD => Step::Add,
            SW_OP_SUB => Step::Sub,
            SW_OP_MUL => Step::Mul,
            SW_OP_DIV => Step::Div,
            SW_OP_ADD_SCALAR => Step::AddScalar { bits: bits()? },
            SW_OP_MUL_SCALAR => Step::MulScalar { bits: bits()? },
            SW_OP_MAX_SCALAR => Step::MaxScalar { bits: bits()? },
            SW_OP_NEG => Step::Neg,
            SW_OP_EXP => Step::Exp,
            SW_OP_TANH => Step::Tanh,
            SW_OP_SQRT => Step::Sqrt,
            SW_OP_RSQRT => Step::Rsqrt,
            SW_OP_RECIPROCAL => Step::Reciprocal,
            SW_OP_ROUND => Step::Round,
            SW_OP_CONVERT => Step::Convert,
            SW_OP_REDUCE_SUM => Step::ReduceSum,
            SW_OP_REDUCE_MEAN => Step::ReduceMean,
            SW_OP_REDUCE_MAX => Step::ReduceMax,
            SW_OP_MAT_MUL => Step::MatMul { transpose_b: node.attribute_i64("transpose_b")? != 0 },
            SW_OP_RESHAPE => Step::Reshape,
            SW_OP_TRANSPOSE => Step::Transpose {
                perm: node
                    .attribute_list("perm")?
                    .iter()
                    .map(|&axis| index(node, axis))
                    .collect::<Result<_>>()?,
            },
            SW_OP_SLICE => Step::Slice {
                axis: node.attribute_usize("axis")?,
                start: node.attribute_usize("start")?,
                end: node.attribute_usize("end")?,
            },
            SW_OP_CONCAT => Step::Concat { axis: node.attribute_usize("axis")? },
            other => {
                return Err(Error::unsupported_op(format!("there is no operation {other} here")));
            }
        })
    }

    /// Whether stored values are moved as they are.
    pub(crate) fn moves(&self) -> bool {
        matches!(self, Step::Reshape | Step::Transpose { .. } | Step::Slice { .. } | Step::Concat { .. })
    }

    /// Whether operands of these shapes give a result of that shape.
    pub(crate) fn fits(&self, operands: &[&[usize]], result: &[usize]) -> bool {
        let one = |of: &dyn Fn(&[usize]) -> Option<Vec<usize>>| match operands {
            [x] => of(x).as_deref() == Some(result),
            _ => false,
        };
        match self {
            Step::Add | Step::Sub | Step::Mul | Step::Div => match operands {
                [a, b] => broadcast(a, b).as_deref() == Some(result),
                _ => false,
            },
            Step::AddScalar { .. }
            | Step::MulScalar { .. }
            | Step::MaxScalar { .. }
            | Step::Neg
            | Step::Exp
            | Step::Tanh
            | Step::Sqrt
            | Step::Rsqrt
            | Step::Reciprocal
            | Step::Round
            | Step::Convert => one(&|x| Some(x.to_vec())),
            Step::ReduceSum | Step::ReduceMean | Step::ReduceMax => one(&|x| {
                let (_, outer) = x.split_last()?;
                Some([outer, &[1]].concat())
            }),
            Step::MatMul { transpose_b } => match operands {
                [a, b] => product(a, b, *transpose_b).as_deref() == Some(result),
                _ => false,
            },
            Step::Reshape => one(&|x| {
                let elements = |shape: &[usize]| shape.iter().product::<usize>();
                (elements(x) == elements(result)).then(|| result.to_vec())
            }),
            Step::Transpose { perm } => one(&|x| {
                let mut seen = vec![false; x.len()];
                for &axis in perm {
                    if std::mem::replace(seen.get_mut(axis)?, true) {
                        return None;
                    }
                }
                (perm.len() == x.len()).then(|| perm.iter().map(|&axis| x[axis]).collect())
            }),
            Step::Slice { axis, start, end } => one(&|x| {
                let mut shape = x.to_vec();
                let extent = shape.get_mut(*axis)?;
                (start < end && end <= extent).then(|| *extent = end - start)?;
                Some(shape)
            }),
            Step::Concat { axis } => {
                let joined = |operands: &[&[usize]]| {
                    let mut shape = operands.first()?.to_vec();
                    *shape.get_mut(*axis)? = 0;
                    for operand in operands {
                        let alike = operand.len() == shape.len()
                            && (0..shape.len()).all(|other| other == *axis || operand[other] == shape[other]);
                        alike.then_some(())?;
                        shape[*axis] = shape[*axis].checked_add(operand[*axis])?;
                    }
                    Some(shape)
                };
                joined(operands).as_deref() == Some(result)
            }
        }
    }
}

/// The shape both broadcast to: aligned at the last axis, extents equal or 1.
pub(crate) fn broadcast(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let extent = |shape: &[usize], axis: usize| match (axis + shape.len()).checked_sub(rank) {
        Some(own) => shape[own],
        None => 1,
    };
    (0..rank)
        .map(|axis| match (extent(a, axis), extent(b, axis)) {
            (a, b) if a == b || b == 1 => Some(a),
            (1, b) => Some(b),
            _ => None,
        })
        .collect()
}

fn product(a: &[usize], b: &[usize], transpose_b: bool) -> Option<Vec<usize>> {
    let ([a_outer @ .., m, k], [b_outer @ .., b_rows, b_columns]) = (a, b) else { return None };
    let (inner, n) = if transpose_b { (b_columns, b_rows) } else { (b_rows, b_columns) };
    (inner == k).then_some(())?;
    Some([broadcast(a_outer, b_outer)?, vec![*m, *n]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_that_fit_and_shapes_that_do_not() {
        type Case<'a> = (Step, &'a [&'a [usize]], &'a [usize], bool);
        let table: [Case<'_>; 19] = [
            (Step::Add, &[&[2, 3], &[3]], &[2, 3], true),
            (Step::Add, &[&[2, 1, 4], &[3, 1]], &[2, 3, 4], true),
            (Step::Add, &[&[2, 3], &[2]], &[2, 3], false),
            (Step::Mul, &[&[2, 3]], &[2, 3], false),
            (Step::ReduceMax, &[&[2, 3]], &[2, 1], true),
            (Step::ReduceMax, &[&[2, 3]], &[2], false),
            (Step::MatMul { transpose_b: true }, &[&[4, 8], &[5, 8]], &[4, 5], true),
            (Step::MatMul { transpose_b: false }, &[&[2, 3, 4, 8], &[2, 1, 8, 5]], &[2, 3, 4, 5], true),
            (Step::MatMul { transpose_b: false }, &[&[4, 8], &[5, 8]], &[4, 5], false),
            (Step::Reshape, &[&[2, 6]], &[3, 4], true),
            (Step::Reshape, &[&[2, 6]], &[3, 5], false),
            (Step::Transpose { perm: vec![1, 2, 0] }, &[&[2, 3, 4]], &[3, 4, 2], true),
            (Step::Transpose { perm: vec![1, 1, 0] }, &[&[2, 3, 4]], &[3, 3, 2], false),
            (Step::Transpose { perm: vec![0] }, &[&[2, 3]], &[2], false),
            (Step::Slice { axis: 1, start: 1, end: 3 }, &[&[2, 3]], &[2, 2], true),
            (Step::Slice { axis: 1, start: 1, end: 4 }, &[&[2, 3]], &[2, 3], false),
            (Step::Slice { axis: 2, start: 0, end: 1 }, &[&[2, 3]], &[2, 3], false),
            (Step::Concat { axis: 0 }, &[&[2, 3], &[1, 3]], &[3, 3], true),
            (Step::Concat { axis: 0 }, &[&[2, 3], &[1, 2]], &[3, 3], false),
        ];
        for (step, operands, result, fits) in table {
            assert_eq!(step.fits(operands, result), fits, "{step:?} {operands:?} {result:?}");
        }
    }

    #[test]
    fn operations_are_found_by_name_and_number() {
        for (number, name) in NAMES {
            assert_eq!((op_name(number), op_named(name)), (name, Some(number)));
        }
        assert_eq!((op_name(999), op_named("sideways")), ("an unknown operation", None));
    }
}
