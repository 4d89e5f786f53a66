//! Which boundary tensors pass between shards.

use std::collections::BTreeMap;

use crate::{Boundary, Request, Segment};

/// What each of these shards reads and writes, without encodings; a shard is the list of its
/// segments. A segment reads what the nearest earlier segment wrote under a name. What is read only
/// within the shard that wrote it does not leave the shard.
pub fn boundaries(request: &Request, shards: &[&[Segment]]) -> Vec<(Vec<Boundary>, Vec<Boundary>)> {
    let mut found = vec![(Vec::new(), Vec::new()); shards.len()];
    let add = |list: &mut Vec<Boundary>, name: &str| {
        if !list.iter().any(|boundary| boundary.name == name) {
            list.push(Boundary { name: name.to_owned(), encoding: None });
        }
    };
    // By name the shard that wrote it last, and whether something read it since.
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
