use shardwright_graph::{EntryPoint, Graph};
use shardwright_planning::request::PromptLength;
use shardwright_vocabulary::{EntryKind, EntryName};

/// The entry points a plan may choose from: one context capacity, several row counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryMenu {
    /// Context capacity in tokens. For encoders, the rows of the usual entry point.
    pub context: u32,
    pub entries: Vec<EntryName>,
}

/// Rows of the large prefill: enough to keep wide engines busy, few enough to keep ring buffers
/// small.
const PREFILL_ROWS: u32 = 128;
/// Rows of the small prefill, for the remainder of a prompt and for short turns.
const SHORT_PREFILL_ROWS: u32 = 16;
/// Rows of the prefills that are offered if the usual lengths of prompts are known, smallest first.
const PREFILL_SIZES: [u32; 5] = [16, 32, 64, 128, 256];
/// Rows of the decodes that verify proposed tokens. The largest also scores texts.
///
/// Few rows are better where computing dominates, as on a CPU, and many where reading the weights
/// does. A size between them would gain a few per cent at most, and adds a row to the cost table
/// for every kind and format. On a chip each such row may need a compilation, and a step of many
/// rows costs hardly more than a step of few. Chips are therefore offered only the largest size.
const VERIFYING_ROWS: [u32; 2] = [4, 16];

impl EntryMenu {
    /// Creates the usual menu for a model: `prefill_128`, `prefill_16`, `decode_1`, `decode_4`,
    /// `decode_16` (or one `encode`), all within `context`.
    pub fn usual(graph: &Graph, context: u32) -> Self {
        let context = context.max(1);
        let name = |kind, rows: u32| EntryName { kind, rows: rows.min(context), context };
        let mut entries = if graph.is_generative() {
            let prefills = [PREFILL_ROWS, SHORT_PREFILL_ROWS].map(|rows| name(EntryKind::Prefill, rows));
            let decodes = std::iter::once(1).chain(VERIFYING_ROWS).map(|rows| name(EntryKind::Decode, rows));
            prefills.into_iter().chain(decodes).collect()
        } else {
            vec![EntryName { kind: EntryKind::Encode, rows: context, context: 0 }]
        };
        entries.dedup();
        EntryMenu { context, entries }
    }

    /// Creates the menu for prompts that usually have these lengths, with several prefill entry
    /// points. They range from 16 rows to the smallest size that the longest prompt fits into, or
    /// to the largest size. Without lengths, returns the usual menu.
    pub fn for_prompts(graph: &Graph, context: u32, prompts: &[PromptLength]) -> Self {
        let mut menu = Self::usual(graph, context);
        // All tokens but the last, which decode reads.
        let Some(longest) = prompts.iter().map(|prompt| prompt.tokens.saturating_sub(1)).max() else {
            return menu;
        };
        if !graph.is_generative() {
            return menu;
        }
        let first_that_holds = PREFILL_SIZES.iter().position(|rows| *rows >= longest);
        let count = first_that_holds.map_or(PREFILL_SIZES.len(), |position| position + 1);
        let sizes = PREFILL_SIZES[..count].iter().rev().map(|rows| (*rows).min(menu.context));
        let prefills = sizes.map(|rows| EntryName { kind: EntryKind::Prefill, rows, context: menu.context });
        menu.entries.retain(|entry| entry.kind != EntryKind::Prefill);
        menu.entries = prefills.chain(menu.entries).collect();
        menu.entries.dedup();
        menu
    }

    /// Reduces the menu for a chip: keeps only the largest of the decodes that verify.
    #[must_use]
    pub fn for_a_chip(mut self) -> Self {
        let most = VERIFYING_ROWS.into_iter().max().unwrap_or(1).min(self.context);
        let stays = |entry: &EntryName| entry.rows == 1 || entry.rows == most;
        self.entries.retain(|entry| entry.kind != EntryKind::Decode || stays(entry));
        self
    }

    /// Creates the menu of an encoder with an entry point for each of these row counts, or the
    /// usual menu if `rows` is empty.
    pub fn for_rows(graph: &Graph, context: u32, rows: &[u32]) -> Self {
        let menu = Self::usual(graph, context);
        if rows.is_empty() || graph.is_generative() {
            return menu;
        }
        let of = |rows: &u32| EntryName { kind: EntryKind::Encode, rows: (*rows).min(context), context: 0 };
        let mut entries: Vec<EntryName> = rows.iter().rev().map(of).collect();
        entries.dedup();
        EntryMenu { entries, ..menu }
    }

    /// Returns the largest row count, for which ring buffers are sized.
    pub fn largest_rows(&self) -> u32 {
        self.entries.iter().map(|entry| entry.rows).max().unwrap_or(1)
    }

    /// Returns the graph's entry point for an entry of this menu.
    pub fn point(&self, entry: EntryName) -> EntryPoint {
        EntryPoint::of(entry, self.largest_rows())
    }
}
