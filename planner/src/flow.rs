//! Boundary tensors that pass between shards.

use std::collections::BTreeMap;

use crate::{Boundary, Request, Segment};

/// Returns the inputs and outputs of each shard, without encodings. A shard is given as the list of
/// its segments. A segment reads a tensor from the nearest earlier segment that wrote its name. A
/// tensor that is read only within the shard that wrote it is not an output.
pub fn boundaries(request: &Request, shards: &[&[Segment]]) -> Vec<(Vec<Boundary>, Vec<Boundary>)> {
    let mut found = vec![(Vec::new(), Vec::new()); shards.len()];
    let add = |list: &mut Vec<Boundary>, name: &str| {
        if !list.iter().any(|boundary| boundary.name == name) {
            list.push(Boundary { name: name.to_owned(), encoding: None });
        }
    };
    // For each name, the shard that wrote it last, and whether it was read since.
    let mut written: BTreeMap<&str, (usize, bool)> = BTreeMap::new();
    for (shard, segments) in shards.iter().enumerate() {
        for segment in *segments {
            let Some(component) = request.model.components.get(segment.component as usize) else { continue };
            for name in &component.inputs {
                let writer = written.get_mut(name.as_str()).map(|(writer, read)| {
                    *read = true;
                    *writer
                });
                if writer == Some(shard) {
                    continue;
                }
                if let Some(writer) = writer {
                    add(&mut found[writer].1, name);
                }
                add(&mut found[shard].0, name);
            }
            for name in &component.outputs {
                if let Some((writer, false)) = written.insert(name, (shard, false)) {
                    add(&mut found[writer].1, name);
                }
            }
        }
    }
    for (name, (writer, read)) in written {
        if !read {
            add(&mut found[writer].1, name);
        }
    }
    found
}
