use shardwright_graph::{EntryPoint, Graph};
use shardwright_planning::request::PromptLength;
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
/// Rows of the prefills that are offered where it is known how long prompts are, smallest first.
const PREFILL_SIZES: [u32; 5] = [16, 32, 64, 128, 256];
/// Rows of the decodes that verify proposed tokens, and of which the largest scores texts: few rows
/// where computing counts, as on a CPU, many where reading the weights does. A size between them
/// would gain a few hundredths at most, and costs a row of the table for every kind and format.
/// On a chip each such row may be a compilation, and a step of many rows costs hardly more than one
/// of few: there the many alone are offered.
const VERIFYING_ROWS: [u32; 2] = [4, 16];

impl EntryMenu {
    /// The usual menu for a model: `prefill_128`, `prefill_16`, `decode_1`, `decode_4`, `decode_16`
    /// (or one `encode`), all within `context`.
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

    /// The same for prompts that usually have these lengths: several prefill entry points, from
    /// that of a short turn to the smallest that holds the longest prompt or the largest of all.
    /// The usual menu if there are none.
    pub fn for_prompts(graph: &Graph, context: u32, prompts: &[PromptLength]) -> Self {
        let mut menu = Self::usual(graph, context);
        // All tokens but the last, which decode takes.
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

    /// The same for a chip: of the decodes that verify, the one with the most rows.
    #[must_use]
    pub fn for_a_chip(mut self) -> Self {
        let most = VERIFYING_ROWS.into_iter().max().unwrap_or(1).min(self.context);
        let stays = |entry: &EntryName| entry.rows == 1 || entry.rows == most;
        self.entries.retain(|entry| entry.kind != EntryKind::Decode || stays(entry));
        self
    }

    /// The menu of an encoder with an entry point for each of these row counts; the usual one if
    /// there are none.
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

    /// The largest row count; ring buffers are sized for it.
    pub fn largest_rows(&self) -> u32 {
        self.entries.iter().map(|entry| entry.rows).max().unwrap_or(1)
    }

    /// The graph's view of an entry of this menu.
    pub fn point(&self, entry: EntryName) -> EntryPoint {
        EntryPoint::of(entry, self.largest_rows())
    }
}
