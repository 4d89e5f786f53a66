//! Sequences with common beginnings as a tree. Each node has the states of adjacent positions.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::rows::Rows;
use super::{Mark, PrefixCacheStatistics};
use crate::chain::{Chain, ChainMark};
use crate::error::SessionError;
use crate::memory::{MemoryBudget, MemoryShare};

/// Most positions of a node. The cache drops whole nodes.
const BLOCK: usize = 256;

/// Bytes that a node needs in addition to its marks and rows, at most.
const NODE_BYTES: u64 = 512;

/// Appends the rows of a state at these positions.
pub(super) type Read<'r> = &'r mut dyn FnMut(usize, Range<usize>, &mut Vec<u8>) -> Result<(), SessionError>;

struct Node {
    parent: Option<u64>,
    children: Vec<u64>,
    /// At least one mark.
    marks: Vec<Mark>,
    rows: Arc<Rows>,
    bytes: u64,
    /// Time of the last use.
    used: u64,
}

/// The first nodes of the sequences of one chain.
struct Root {
    chain: ChainMark,
    children: Vec<u64>,
}

/// Stored states of the beginning of a sequence. They stay in memory until this is dropped.
pub(crate) struct Found {
    /// Number of positions.
    pub length: usize,
    /// Nodes with the number of their positions that are used, in order.
    nodes: Vec<(Arc<Rows>, usize)>,
}

impl Found {
    /// Returns the rows of a state at these positions, in pieces with their positions.
    pub(crate) fn rows(
        &self,
        state: usize,
        positions: Range<usize>,
    ) -> impl Iterator<Item = (Range<usize>, &[u8])> {
        let mut begin = 0;
        self.nodes.iter().filter_map(move |(rows, count)| {
            let own = begin..begin + count;
            begin = own.end;
            let used = own.start.max(positions.start)..own.end.min(positions.end);
            let within = used.start.checked_sub(own.start)?..used.end.checked_sub(own.start)?;
            (!used.is_empty()).then(|| (used, rows.of(state, within)))
        })
    }
}

/// The place in the tree where a sequence ends or leaves the stored ones.
struct Path {
    /// Nodes with the number of their positions that are equal. Only the last may be partly equal.
    nodes: Vec<(u64, usize)>,
    length: usize,
}

pub(super) struct Tree {
    roots: Vec<Root>,
    nodes: BTreeMap<u64, Node>,
    /// Counts uses, and numbers the nodes.
    clock: u64,
    statistics: PrefixCacheStatistics,
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree").field("statistics", &self.statistics).finish_non_exhaustive()
    }
}

impl Tree {
    pub(super) fn new(limit: u64) -> Tree {
        let statistics = PrefixCacheStatistics { limit, ..PrefixCacheStatistics::default() };
        Tree { roots: Vec::new(), nodes: BTreeMap::new(), clock: 0, statistics }
    }

    pub(super) fn statistics(&self) -> PrefixCacheStatistics {
        self.statistics
    }

    pub(super) fn clear(&mut self) {
        (self.roots, self.nodes) = Default::default();
        (self.statistics.bytes, self.statistics.positions) = (0, 0);
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn root(&self, chain: &Chain) -> Option<usize> {
        self.roots.iter().position(|root| root.chain.is_of(chain))
    }

    /// Walks as far as stored sequences are equal to `marks`.
    fn walk(&self, chain: &Chain, marks: &[Mark]) -> Path {
        let mut path = Path { nodes: Vec::new(), length: 0 };
        let Some(root) = self.root(chain) else { return path };
        let mut children = &self.roots[root].children;
        loop {
            let left = &marks[path.length..];
            let equal = |id: &u64| {
                let own = self.nodes.get(id).map_or(&[][..], |node| &node.marks);
                own.iter().zip(left).take_while(|(own, other)| own == other).count()
            };
            // Siblings differ in their first position.
            let Some((id, count)) = children.iter().map(|id| (*id, equal(id))).find(|(_, count)| *count > 0)
            else {
                return path;
            };
            path.nodes.push((id, count));
            path.length += count;
            match self.nodes.get(&id) {
                Some(node) if node.marks.len() == count => children = &node.children,
                _ => return path,
            }
        }
    }

    fn touch(&mut self, path: &Path) {
        let now = self.tick();
        for (id, _) in &path.nodes {
            if let Some(node) = self.nodes.get_mut(id) {
                node.used = now;
            }
        }
    }

    /// Returns the states of the longest stored beginning of `marks`, shortened by `whole` so that
    /// no part is cut, if it is longer than `known`.
    pub(super) fn find(
        &mut self,
        chain: &Chain,
        marks: &[Mark],
        known: usize,
        whole: &dyn Fn(usize) -> usize,
    ) -> Option<Found> {
        let path = self.walk(chain, marks);
        self.touch(&path);
        let length = whole(path.length);
        if length <= known {
            self.statistics.misses += 1;
            return None;
        }
        self.statistics.hits += 1;
        self.statistics.reused_positions += (length - known) as u64;
        let rows = |&(id, count): &(u64, usize)| Some((Arc::clone(&self.nodes.get(&id)?.rows), count));
        Some(Found { length, nodes: path.nodes.iter().filter_map(rows).collect() })
    }

    pub(super) fn store(&mut self, chain: &Chain, marks: &[Mark], readable: Range<usize>, read: Read<'_>) {
        self.forget_unloaded();
        let path = self.walk(chain, marks);
        self.touch(&path);
        let mut length = path.length;
        if length == marks.len() {
            return;
        }
        let mut parent = path.nodes.last().copied();
        while length < marks.len() {
            let positions = length..marks.len().min(length + BLOCK);
            let is_readable = readable.start <= positions.start && positions.end <= readable.end;
            let stored = is_readable.then(|| {
                let whole = match parent {
                    None => None,
                    Some((id, count)) => Some(self.split(chain, id, count)?),
                };
                self.add(chain, whole, &marks[positions.clone()], positions.clone(), read)
            });
            let Some(id) = stored.flatten() else {
                self.statistics.skipped_positions += (marks.len() - length) as u64;
                return;
            };
            length = positions.end;
            parent = Some((id, positions.len()));
        }
    }

    /// Returns the bytes of a node of the chain with this number of positions.
    fn bytes_of(chain: &Chain, positions: usize) -> u64 {
        let rows = chain.layout().states.iter().map(|plan| plan.row_bytes);
        let row = rows.fold(size_of::<Mark>() as u64, u64::saturating_add);
        row.saturating_mul(positions as u64).saturating_add(NODE_BYTES)
    }

    /// Divides a node after `count` positions, unless they are all of it. Returns the id of the
    /// node that ends there, or `None` if there is no room.
    fn split(&mut self, chain: &Chain, id: u64, count: usize) -> Option<u64> {
        let node = self.nodes.get(&id)?;
        let (positions, own, parent) = (node.marks.len(), node.bytes, node.parent);
        if count == positions {
            return Some(id);
        }
        // Rows are copied, so both parts need memory while the whole node exists.
        let (bytes, rest) = (Tree::bytes_of(chain, count), Tree::bytes_of(chain, positions - count));
        let share = self.make_room(bytes.saturating_add(rest), chain.budget(), Some(id))?;
        let (share, remaining) = share.map(|share| share.divided(bytes)).unzip();
        let first = self.tick();
        let node = self.nodes.get_mut(&id)?;
        let rows = Arc::new(node.rows.part(&(0..count), share));
        let rest_rows = Arc::new(node.rows.part(&(count..positions), remaining));
        let rest_marks = node.marks.split_off(count);
        let marks = std::mem::replace(&mut node.marks, rest_marks);
        (node.rows, node.bytes, node.parent) = (rest_rows, rest, Some(first));
        let used = node.used;
        self.statistics.bytes = (self.statistics.bytes + bytes + rest).saturating_sub(own);
        self.nodes.insert(first, Node { parent, children: vec![id], marks, rows, bytes, used });
        let siblings = self.siblings(chain, parent);
        siblings.retain(|sibling| *sibling != id);
        siblings.push(first);
        Some(first)
    }

    /// Adds a node, and drops others until it fits. Returns `None` if it does not fit, or if its
    /// rows cannot be read.
    fn add(
        &mut self,
        chain: &Chain,
        parent: Option<u64>,
        marks: &[Mark],
        positions: Range<usize>,
        read: Read<'_>,
    ) -> Option<u64> {
        let bytes = Tree::bytes_of(chain, marks.len());
        let share = self.make_room(bytes, chain.budget(), parent)?;
        let states = chain.layout().states.len();
        let (mut rows, mut ends) = (Vec::new(), Vec::with_capacity(states));
        for state in 0..states {
            if let Err(error) = read(state, positions.clone(), &mut rows) {
                tracing::info!(%error, "the states of a prompt are not cached");
                return None;
            }
            ends.push(rows.len());
        }
        let id = self.tick();
        let (marks, rows) = (marks.to_vec(), Arc::new(Rows::new(&rows, ends, marks.len(), share)));
        self.statistics.bytes += bytes;
        self.statistics.positions += marks.len() as u64;
        self.nodes.insert(id, Node { parent, children: Vec::new(), marks, rows, bytes, used: id });
        self.siblings(chain, parent).push(id);
        Some(id)
    }

    /// Returns the children of a node, or the first nodes of a chain.
    fn siblings(&mut self, chain: &Chain, parent: Option<u64>) -> &mut Vec<u64> {
        let index = match self.root(chain) {
            Some(index) => index,
            None => {
                self.roots.push(Root { chain: chain.mark(), children: Vec::new() });
                self.roots.len() - 1
            }
        };
        match parent.and_then(|parent| self.nodes.get_mut(&parent)) {
            Some(node) => &mut node.children,
            None => &mut self.roots[index].children,
        }
    }

    /// Drops nodes until `bytes` more fit into the cache and the budget, and reserves them in the
    /// budget. `kept` is not dropped. Returns `None` if too little can be dropped.
    fn make_room(
        &mut self,
        bytes: u64,
        budget: Option<&MemoryBudget>,
        kept: Option<u64>,
    ) -> Option<Option<MemoryShare>> {
        while self.statistics.bytes.saturating_add(bytes) > self.statistics.limit {
            let all = bytes > self.statistics.limit;
            (!all && self.drop_oldest(kept, None)).then_some(())?;
        }
        let Some(budget) = budget else { return Some(None) };
        loop {
            match budget.take_unclaimed(bytes) {
                Ok(share) => return Some(Some(share)),
                Err(_) => self.drop_oldest(kept, Some(budget)).then_some(())?,
            }
        }
    }

    /// Drops the least recently used node at the end of a sequence, except `kept`. Returns false if
    /// there is none that counts against the budget.
    fn drop_oldest(&mut self, kept: Option<u64>, budget: Option<&MemoryBudget>) -> bool {
        let counts = |node: &Node| match budget {
            None => true,
            Some(budget) => node.rows.share.as_ref().is_some_and(|share| share.is_of(budget)),
        };
        let ends = self.nodes.iter().filter(|(id, node)| node.children.is_empty() && kept != Some(**id));
        let oldest = ends.filter(|(_, node)| counts(node)).min_by_key(|(_, node)| node.used);
        let Some(id) = oldest.map(|(id, _)| *id) else { return false };
        self.remove(id);
        true
    }

    /// Removes a node without children.
    fn remove(&mut self, id: u64) {
        let Some(node) = self.nodes.remove(&id) else { return };
        self.statistics.bytes = self.statistics.bytes.saturating_sub(node.bytes);
        let positions = node.marks.len() as u64;
        self.statistics.positions = self.statistics.positions.saturating_sub(positions);
        self.statistics.dropped_positions += positions;
        match node.parent.and_then(|parent| self.nodes.get_mut(&parent)) {
            Some(parent) => parent.children.retain(|child| *child != id),
            None => self.roots.iter_mut().for_each(|root| root.children.retain(|child| *child != id)),
        }
    }

    /// Removes the sequences of chains that are no longer loaded.
    fn forget_unloaded(&mut self) {
        let (alive, gone) =
            std::mem::take(&mut self.roots).into_iter().partition(|root| root.chain.is_alive());
        self.roots = alive;
        let mut left: Vec<u64> = gone.into_iter().flat_map(|root: Root| root.children).collect();
        while let Some(id) = left.pop() {
            let children = self.nodes.get_mut(&id).map(|node| std::mem::take(&mut node.children));
            left.extend(children.unwrap_or_default());
            self.remove(id);
        }
    }

    pub(super) fn reclaim(&mut self, budget: &MemoryBudget, bytes: u64) -> bool {
        let before = self.statistics.bytes;
        while before - self.statistics.bytes < bytes && self.drop_oldest(None, Some(budget)) {}
        self.statistics.bytes < before
    }
}
