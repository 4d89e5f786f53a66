//! Rounding with error compensation. Errors of earlier columns are added to a column before it is
//! rounded, weighted by the correlation of the inputs. Errors of earlier rows are added to a row,
//! weighted by the joint effect of both rows on the loss.
//!
//! Reading order: [`MomentSums`], [`SecondMoments`], [`Factors`], `Rows`, `together`, `Sweeps`.
//! [`Moments`] are the moments of a whole model. [`sampled_gradient`] is the start of the backward
//! pass.

mod factor;
mod file;
mod model;
mod moments;
mod product;
mod remark;
mod round;
mod sample;
mod sweeps;
mod taking;
mod together;

pub use factor::{DAMPING, Factors, GRADIENT_DAMPING, MatrixFactors};
pub use model::Moments;
pub use moments::{MomentSums, SecondMoments};
pub(crate) use remark::Remark;
pub(crate) use round::{Rounded, Rows};
pub use sample::sampled_gradient;
pub(crate) use sweeps::Sweeps;
pub use taking::MatrixInputs;
pub(crate) use taking::PassedOn;
