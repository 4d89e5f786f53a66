//! Inputs of a tower.

/// Features that a front end computed from one picture or clip.
#[derive(Clone, Copy)]
pub struct Features<'f> {
    /// Number of patches or frames.
    pub count: usize,
    /// Column of each patch in its picture, empty for frames.
    pub columns: &'f [i32],
    /// Row of each patch in its picture, empty for frames.
    pub rows: &'f [i32],
    /// Writes the values of all patches or frames, one after the other. If possible, the target is
    /// the first shard's own memory.
    pub write: &'f dyn Fn(&mut [f32]),
}
