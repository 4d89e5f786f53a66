use shardwright_graph::{EntryPoint, Graph};
use shardwright_vocabulary::{EntryKind, EntryName};

/// The entry points a plan may choose from: one context capacity, several row counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryMenu {
    /// Context capacity in tokens; for encoders the rows of the only entry point.
    pub context: u32,
    /// The entry points.
    pub entries: Vec<EntryName>,
}

/// Rows of the large prefill: enough to keep wide engines busy, few enough to keep ring buffers
/// small.
const PREFILL_ROWS: u32 = 128;
/// Rows of the small prefill, for the remainder of a prompt and for short turns.
const SHORT_PREFILL_ROWS: u32 = 16;
/// Rows of the scoring decode.
const SCORING_ROWS: u32 = 16;

impl EntryMenu {
    /// The usual menu for a model: `prefill_128`, `prefill_16`, `decode_1`, `decode_16` (or one
    /// `encode`), all within `context`.
    pub fn usual(graph: &Graph, context: u32) -> Self {
        let context = context.max(1);
        let name = |kind, rows: u32| EntryName { kind, rows: rows.min(context), context };
        let mut entries = if graph.is_generative() {
            vec![
                name(EntryKind::Prefill, PREFILL_ROWS),
                name(EntryKind::Prefill, SHORT_PREFILL_ROWS),
                name(EntryKind::Decode, 1),
                name(EntryKind::Decode, SCORING_ROWS),
            ]
        } else {
            vec![EntryName { kind: EntryKind::Encode, rows: context, context: 0 }]
        };
        entries.dedup();
        EntryMenu { context, entries }
    }

    /// The largest row count; ring buffers are sized for it.
    pub fn largest_rows(&self) -> u32 {
        self.entries.iter().map(|entry| entry.rows).max().unwrap_or(1)
    }

    /// The graph's view of an entry of this menu.
    pub fn point(&self, entry: EntryName) -> EntryPoint {
        EntryPoint::of(entry, self.largest_rows())
    }
}
