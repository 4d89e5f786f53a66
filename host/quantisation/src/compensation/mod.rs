//! Rounding that makes up for its errors: each column of a matrix is rounded to the nearest value
//! of what it is plus what the columns before it left undone, as far as the values that it is
//! multiplied with move together with theirs; and each row of what it is plus what the rows before
//! it left, as far as the loss depends on both together.
//!
//! Reading order: [`MomentSums`], [`SecondMoments`], [`Factors`], `Rows`, `together`, `Sweeps`;
//! [`Moments`] are those of a model, [`sampled_gradient`] is where derivatives begin.

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
