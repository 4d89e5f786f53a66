//! A letter and a colour for each set of formats.

use std::collections::HashMap;

use minijinja::{Value, context};
use shardwright::PlanReport;

use super::all_layers;
use crate::views::bytes;

/// Number of colours in the style sheet. Further formats share colours, but never letters.
const COLOURS: usize = 8;

/// The sets of formats in a plan, in order of appearance.
pub struct Formats {
    all: Vec<FormatsUse>,
    index: HashMap<String, usize>,
}

/// One set of formats and its use.
struct FormatsUse {
    /// Weights, activations, states and attention as one word.
    formats: String,
    /// Number of layers, and of components without layers.
    layers: u64,
    /// Weight bytes of these layers.
    weight_bytes: u64,
}

impl Formats {
    /// Returns the formats of all layers.
    pub fn of(report: &PlanReport) -> Self {
        let mut formats = Formats { all: Vec::new(), index: HashMap::new() };
        for (_, layer) in all_layers(report) {
            let next = formats.all.len();
            let shown = layer.shown_formats();
            let index = *formats.index.entry(shown.clone()).or_insert(next);
            if index == next {
                formats.all.push(FormatsUse { formats: shown, layers: 0, weight_bytes: 0 });
            }
            if let Some(existing) = formats.all.get_mut(index) {
                existing.layers += 1;
                existing.weight_bytes = existing.weight_bytes.saturating_add(layer.weight_bytes);
            }
        }
        formats
    }

    /// Returns the legend: every set of formats with its letter, colour and use.
    pub fn legend(&self) -> Vec<Value> {
        let all = self.all.iter().enumerate().map(|(index, formats)| {
            let layers = if formats.layers == 1 { "layer" } else { "layers" };
            context! {
                colour => Mark(index).colour(),
                letter => Mark(index).letter(),
                name => &*formats.formats,
                used => format!("{} {layers}, {} of weights", formats.layers, bytes(formats.weight_bytes)),
            }
        });
        all.collect()
    }

    /// Returns the letter and colour of these formats.
    pub fn mark(&self, formats: &str) -> Mark {
        Mark(self.index.get(formats).copied().unwrap_or(0))
    }
}

/// The letter and colour of a set of formats.
#[derive(Clone, Copy)]
pub struct Mark(usize);

impl Mark {
    /// Returns a letter: A to Z, then AA, AB, …, because not every reader can see colours.
    pub fn letter(self) -> String {
        let mut letters = Vec::new();
        let mut rest = self.0 + 1;
        while rest > 0 {
            rest -= 1;
            letters.push(char::from(b'A' + (rest % 26) as u8));
            rest /= 26;
        }
        letters.iter().rev().collect()
    }

    /// Returns the number of the colour in the style sheet.
    pub fn colour(self) -> usize {
        self.0 % COLOURS
    }
}

#[cfg(test)]
mod tests {
    use super::Mark;

    #[test]
    fn letters_never_run_out() {
        for (index, letters) in [(0, "A"), (25, "Z"), (26, "AA"), (27, "AB"), (701, "ZZ"), (702, "AAA")] {
            assert_eq!(Mark(index).letter(), letters);
        }
    }
}
