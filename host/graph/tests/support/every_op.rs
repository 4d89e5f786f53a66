// Included by the tests of operations inside the crate and by the integration tests.

pub(crate) const ROPE: Rope = Rope { head_dim: 8, theta: 1e4, rotated_pairs: 3, factor: 8.0, divisors: Vec::new(), magnitude: 1.0 };
pub(crate) const ATTENTION: Attention = Attention {
    heads: 4,
    kv_heads: 2,
    head_dim: 8,
    scale: 0.1,
    softcap: 50.0,
    window: 512,
    causal: true,
    keys: KeySource::State,
    products: shardwright_vocabulary::AttentionFormat::F32,
};

/// Returns every operation, with unusual attributes, in the order of the list.
pub(crate) fn every_op() -> Vec<Op> {
    let of = |kind: &OpKind| match kind {
        OpKind::Linear => Op::Linear,
        OpKind::RmsNorm => Op::RmsNorm { width: 8, eps: 1e-6, weight_offset: 1.0 },
        OpKind::Rope => Op::Rope(ROPE),
        OpKind::Attention => Op::Attention(ATTENTION),
        OpKind::Gelu => Op::Gelu,
        OpKind::Silu => Op::Silu,
        OpKind::Softcap => Op::Softcap { cap: 30.0 },
        OpKind::Softmax => Op::Softmax,
        OpKind::StateUpdate => Op::StateUpdate,
        OpKind::L2Normalize => Op::L2Normalize,
        OpKind::DynamicLinear => Op::DynamicLinear { block: 32 },
        OpKind::Rotate => Op::Rotate { head_dim: 8 },
        OpKind::LayerNorm => Op::LayerNorm { eps: 1e-6 },
        OpKind::AxialRope => Op::AxialRope(AxialRope { head_dim: 8, theta: 100.0 }),
        OpKind::RelativeAttention => {
            Op::RelativeAttention(RelativeAttention { heads: 4, head_dim: 8, softcap: 50.0 })
        }
        OpKind::Convolution => Op::Convolution { kernel: 3, stride: 2, padding: 1 },
        OpKind::DepthwiseConvolution => Op::DepthwiseConvolution,
        OpKind::Clamp => Op::Clamp,
        OpKind::Sigmoid => Op::Sigmoid,
        OpKind::Glu => Op::Glu,
        OpKind::MeanRows => Op::MeanRows { rows: 9 },
        OpKind::Add => Op::Add,
        OpKind::Sub => Op::Sub,
        OpKind::Mul => Op::Mul,
        OpKind::Div => Op::Div,
        OpKind::AddScalar => Op::AddScalar { value: 0.1 },
        OpKind::MulScalar => Op::MulScalar { value: -0.0 },
        OpKind::Neg => Op::Neg,
        OpKind::Exp => Op::Exp,
        OpKind::Tanh => Op::Tanh,
        OpKind::Sqrt => Op::Sqrt,
        OpKind::Rsqrt => Op::Rsqrt,
        OpKind::Reciprocal => Op::Reciprocal,
        OpKind::ReduceSum => Op::ReduceSum,
        OpKind::ReduceMean => Op::ReduceMean,
        OpKind::ReduceMax => Op::ReduceMax,
        OpKind::MatMul => Op::MatMul { transpose_b: true },
        OpKind::Reshape => Op::Reshape { shape: vec![2, 3, 4] },
        OpKind::Transpose => Op::Transpose { perm: vec![1, 0, 2] },
        OpKind::Slice => Op::Slice { axis: 1, start: 2, end: 3 },
        OpKind::Concat => Op::Concat { axis: 2 },
        OpKind::MaxScalar => Op::MaxScalar { value: 1e-12 },
        OpKind::Round => Op::Round,
        OpKind::Convert => Op::Convert,
        OpKind::Max => Op::Max,
        OpKind::Min => Op::Min,
    };
    OpKind::ALL.iter().map(of).collect()
}
