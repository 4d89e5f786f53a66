//! L2_NORMALIZATION and the extension's RMS and layer normalisations, over the last dimension. They
//! are computed in 64 bits and rounded once. Relaxed arithmetic rounds inputs and results to 16
//! bits, but does not round the sums, because the hardware's behaviour is unknown.

use super::tensor::{Elements, Layout, Tensor, encoded};

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Norm {
    /// x/√(Σx²), with a divisor of at least 10⁻⁶, as in `kernels/l2norm.cc`.
    L2,
    /// x/√(mean(x²) + ε).
    RootMeanSquare {
        /// ε
        epsilon: f64,
    },
    /// (x − mean)/√(variance + ε).
    Layer {
        /// ε
        epsilon: f64,
    },
}

/// Computes norm(x)·gamma + beta. Gamma and beta have one element, or as many as the last
/// dimension.
pub fn normalise(
    norm: Norm,
    x: &Tensor<'_>,
    gamma: Option<&Tensor<'_>>,
    beta: Option<&Tensor<'_>>,
    out: &Layout,
    relaxed: bool,
) -> Elements<'static> {
    let depth = x.layout.dimensions.last().copied().unwrap_or(1).max(1);
    let gamma = gamma.map(|gamma| gamma.decoded(relaxed));
    let beta = beta.map(|beta| beta.decoded(relaxed));
    let at = |values: &Option<Vec<f64>>, column: usize, otherwise: f64| {
        values.as_ref().map_or(otherwise, |values| if values.len() == 1 { values[0] } else { values[column] })
    };
    let decoded = x.decoded(relaxed);
    let mut found = Vec::with_capacity(decoded.len());
    for row in decoded.chunks(depth) {
        let square = |row: &[f64], centre: f64| row.iter().map(|x| (x - centre) * (x - centre)).sum::<f64>();
        let (centre, divisor) = match norm {
            Norm::L2 => (0.0, square(row, 0.0).sqrt().max(1e-6)),
            Norm::RootMeanSquare { epsilon } => (0.0, (square(row, 0.0) / depth as f64 + epsilon).sqrt()),
            Norm::Layer { epsilon } => {
                let mean = row.iter().sum::<f64>() / depth as f64;
                (mean, (square(row, mean) / depth as f64 + epsilon).sqrt())
            }
        };
        found.extend(
            row.iter()
                .enumerate()
                .map(|(column, x)| (x - centre) / divisor * at(&gamma, column, 1.0) + at(&beta, column, 0.0)),
        );
    }
    encoded(out, found.into_iter(), relaxed)
}
