//! Rounding that makes up for its errors: each column of a matrix is rounded to the nearest value
//! of what it is plus what the columns before it left undone, as far as the values that it is
//! multiplied with move together with theirs.
//!
//! Reading order: [`MomentSums`], [`SecondMoments`], [`Factors`], `Rows`;
//! [`Moments`] are those of a model.

mod factor;
mod file;
mod model;
mod moments;
mod product;
mod round;
mod taking;

pub use factor::{DAMPING, Factors};
pub use model::Moments;
pub use moments::{MomentSums, SecondMoments};
pub(crate) use round::{Rounded, Rows};
pub use taking::MatrixInputs;
