//! What a tower runs over.

/// What a front end made of one picture or clip.
#[derive(Clone, Copy)]
pub struct Features<'f> {
    /// Patches or frames.
    pub count: usize,
    /// Column of each patch in its picture; empty for frames.
    pub columns: &'f [i32],
    /// Row of each patch; empty for frames.
    pub rows: &'f [i32],
    /// Writes the values of all of them, one after the other. The memory is that of the first shard
    /// where it can be written in place.
    pub write: &'f dyn Fn(&mut [f32]),
}
