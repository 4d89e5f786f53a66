//! Pictures and clips of the multimodal fixture: the outputs of its front ends and towers, and
//! prompts with both.

use std::sync::Arc;

use safetensors::{Dtype, SafeTensors};
use shardwright_graph::Pass;
use shardwright_models::Checkpoint;
use shardwright_runtime::{Features, Prompt, SoftRows, Tower};

pub use crate::checkpoints::MULTIMODAL_FIXTURE as FIXTURE;
use crate::tree;

/// Placeholder ids of pictures and sounds in prompts.
pub const PLACEHOLDERS: [(u32, Pass); 2] = [(19, Pass::Picture), (22, Pass::Clip)];

/// Opens the fixture with its towers.
///
/// # Panics
/// If it cannot be read.
pub fn checkpoint() -> Checkpoint {
    let passes = [Pass::Step, Pass::Picture, Pass::Clip];
    Checkpoint::open_for(tree::root().join(FIXTURE), &passes).expect("the fixture")
}

/// Outputs recorded from transformers.
pub struct Goldens(Vec<u8>);

impl Goldens {
    /// Reads the recorded outputs of the fixture.
    ///
    /// # Panics
    /// If they cannot be read.
    pub fn read() -> Self {
        Goldens(std::fs::read(tree::root().join(FIXTURE).join("goldens.safetensors")).expect("goldens"))
    }

    /// Returns the shape and values of a tensor of floats.
    ///
    /// # Panics
    /// If there are no floats of that name.
    pub fn floats(&self, name: &str) -> (Vec<usize>, Vec<f32>) {
        let tensors = SafeTensors::deserialize(&self.0).expect("a file of tensors");
        let tensor = tensors.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(tensor.dtype(), Dtype::F32, "{name}");
        let values = tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        (tensor.shape().to_vec(), values.collect())
    }

    /// Returns the values of a tensor of integers.
    ///
    /// # Panics
    /// If there are no integers of that name.
    pub fn integers(&self, name: &str) -> Vec<i64> {
        let tensors = SafeTensors::deserialize(&self.0).expect("a file of tensors");
        let tensor = tensors.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        match tensor.dtype() {
            Dtype::U8 => tensor.data().iter().map(|&byte| byte.into()).collect(),
            _ => tensor.data().as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect(),
        }
    }

    /// Returns a tensor of integers as token ids.
    ///
    /// # Panics
    /// If there are no integers of that name.
    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.integers(name).into_iter().map(|id| id as u32).collect()
    }

    /// Returns the patches of the first prompt's picture, grouped by soft row.
    pub fn patches(&self) -> FrontEnd {
        let (shape, pixels) = self.floats("p1.pixel_values");
        let positions = self.integers("p1.image_position_ids");
        let position = |place: usize| (positions[2 * place] as i32, positions[2 * place + 1] as i32);
        let mut places: Vec<usize> = (0..shape[0]).filter(|&place| position(place).0 >= 0).collect();
        places.sort_by_key(|&place| {
            let (column, row) = position(place);
            (row / 3, column / 3, row % 3, column % 3)
        });
        let values =
            places.iter().flat_map(|&place| &pixels[place * shape[1]..][..shape[1]]).copied().collect();
        let (columns, rows) = places.iter().map(|&place| position(place)).unzip();
        FrontEnd { count: places.len(), values, columns, rows, origin: [1; 32] }
    }

    /// Returns the frames of the second prompt's clip.
    pub fn frames(&self) -> FrontEnd {
        let (shape, mut values) = self.floats("p2.input_features");
        let count = self.integers("p2.input_features_mask").iter().filter(|&&valid| valid != 0).count();
        values.truncate(count * shape[1]);
        FrontEnd { count, values, columns: Vec::new(), rows: Vec::new(), origin: [2; 32] }
    }

    /// Returns the input of the tower of a pass.
    pub fn given(&self, pass: Pass) -> FrontEnd {
        match pass {
            Pass::Picture => self.patches(),
            _ => self.frames(),
        }
    }
}

/// The output of a front end for a picture or a clip.
#[derive(Clone, Debug)]
pub struct FrontEnd {
    /// Number of patches or frames.
    pub count: usize,
    /// Values of the patches or frames.
    pub values: Vec<f32>,
    /// Column of each patch.
    pub columns: Vec<i32>,
    /// Row of each patch.
    pub rows: Vec<i32>,
    /// Identifies the picture or clip.
    pub origin: [u8; 32],
}

impl FrontEnd {
    /// Encodes the features with a tower.
    ///
    /// # Errors
    /// If the tower fails.
    pub fn encoded(&self, tower: &mut Tower) -> Result<SoftRows, shardwright_runtime::SessionError> {
        let write = |into: &mut [f32]| into.copy_from_slice(&self.values);
        let features =
            Features { count: self.count, columns: &self.columns, rows: &self.rows, write: &write };
        tower.encode(features, self.origin)
    }
}

/// Builds a recorded prompt with soft rows in place of its placeholders.
pub fn prompt(ids: &[u32], rows: &[(Pass, Arc<SoftRows>)]) -> Prompt {
    let mut prompt = Prompt::new();
    for run in ids.chunk_by(|a, b| a == b || !is_placeholder(*a) && !is_placeholder(*b)) {
        let pass = PLACEHOLDERS.iter().find(|(id, _)| *id == run[0]).map(|(_, pass)| *pass);
        match rows.iter().find(|(of, _)| Some(*of) == pass) {
            Some((_, rows)) => prompt.push_soft(run[0], rows),
            None => prompt.push_tokens(run),
        }
    }
    prompt
}

fn is_placeholder(id: u32) -> bool {
    PLACEHOLDERS.iter().any(|(placeholder, _)| *placeholder == id)
}
