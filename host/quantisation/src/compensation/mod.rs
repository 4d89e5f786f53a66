//! Rounding with error compensation. Errors of earlier columns are added to a column before it is
//! rounded, weighted by the correlation of the inputs. Errors of earlier rows are added to a row,
//! weighted by the joint effect of both rows on the loss.
//!
//! Reading order: [`MomentSums`], [`SecondMoments`], [`Factors`], `Rows`, `joint_rounding`,
//! `Sweeps`. [`Moments`] are the moments of a whole model. [`sampled_gradient`] is the start of the
//! backward pass.

mod factor;
mod file;
mod joint_rounding;
mod matrix_inputs;
mod model;
mod moment_warning;
mod moments;
mod product;
mod round;
mod sample;
mod sweeps;

pub use factor::{DAMPING, Factors, GRADIENT_DAMPING, MatrixFactors};
pub use matrix_inputs::MatrixInputs;
pub(crate) use matrix_inputs::PassedOn;
pub use model::Moments;
pub(crate) use moment_warning::MomentWarning;
pub use moments::{MomentSums, SecondMoments};
pub(crate) use round::{Rounded, Rows};
pub use sample::sampled_gradient;
pub(crate) use sweeps::Sweeps;
