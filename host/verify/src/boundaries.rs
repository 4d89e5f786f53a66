//! Runs every shard alone on the reference's boundary values, so that errors do not add up over
//! shards.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use shardwright_build::CompiledGraphs;
use shardwright_graph::{Asset, EntryPoint, Graph};
use shardwright_runtime::{Chain, ShardDescription};
use shardwright_shims::LoadedShard;
use shardwright_vocabulary::{EntryKind, Pass};

use crate::next_norm::NextNorm;
use crate::progress::{PartProgress, reference_fault};
use crate::report::{BoundaryVerification, EntryVerification, ShardVerification};
use crate::rows::{RowErrors, errors, largest_error};
use crate::shard_run::{Feed, Observed, Rows, ShardMemory, Twin};
use crate::thresholds::Thresholds;
use crate::trace::{Chunk, Given, Trace};
use shardwright_vocabulary::{Error, ErrorKind, Result};

/// A prompt to run.
#[derive(Clone)]
pub(crate) struct Prompt<'a> {
    pub(crate) name: String,
    pub(crate) given: Given<'a>,
}

/// Loaded shards to run one by one.
pub(crate) trait Shards {
    /// Returns their descriptions, in order of execution.
    fn descriptions(&self) -> &[ShardDescription];
    /// Returns the number of positions that their states have room for.
    fn context(&self) -> u64;
    /// Calls `borrow` with a shard. Returns false if the shard does not exist.
    fn lend(&self, shard: usize, borrow: &mut dyn FnMut(&mut LoadedShard)) -> bool;
}

impl Shards for Chain {
    fn descriptions(&self) -> &[ShardDescription] {
        &self.description().shards
    }

    fn context(&self) -> u64 {
        Chain::context(self)
    }

    fn lend(&self, shard: usize, borrow: &mut dyn FnMut(&mut LoadedShard)) -> bool {
        self.with_executor(shard, |executor| borrow(executor)).is_some()
    }
}

/// Inputs of the comparison.
pub(crate) struct BoundaryCheck<'a> {
    pub(crate) shards: &'a dyn Shards,
    /// The checkpoint's graph. The reference runs it to produce the inputs of every shard.
    pub(crate) graph: &'a Graph,
    /// The tables from which the chain gathers.
    pub(crate) assets: &'a [Asset],
    /// The graphs that each shard was compiled from. Empty if unknown.
    pub(crate) compiled: &'a [CompiledGraphs],
    /// Whether shards must reproduce the checkpoint's graph.
    pub(crate) exact: bool,
    /// Formats of each shard.
    pub(crate) formats: Vec<String>,
    pub(crate) thresholds: Thresholds,
    /// Largest number of rows of each prompt.
    pub(crate) rows: usize,
    /// Positions of each prompt at which entry points of one row run.
    pub(crate) steps: usize,
}

/// Results of one entry point of one shard.
#[derive(Default)]
struct EntryTally {
    runs: u64,
    /// The shortest run with all rows of the entry point.
    fastest: Option<Duration>,
    outputs: Vec<OutputTally>,
}

struct OutputTally {
    what: String,
    layer: Option<u32>,
    cut: Option<usize>,
    /// Errors against the checkpoint's graph.
    plain: RowErrors,
    /// Errors against the graph that the shard was compiled from.
    compiled: Option<RowErrors>,
}

/// The reference of a comparison.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Against {
    Checkpoint,
    Compiled,
}

impl Against {
    const fn text(self) -> &'static str {
        match self {
            Against::Checkpoint => "the checkpoint in float",
            Against::Compiled => "the graphs the shards were compiled from",
        }
    }
}

impl BoundaryCheck<'_> {
    /// Runs every entry point of every shard over every prompt.
    ///
    /// If the shards must reproduce the checkpoint's graph, results are compared with it. Otherwise
    /// they are compared with the reference on the graphs that the shards were compiled from, with
    /// the same inputs. The difference from the checkpoint's graph is then reported too, but not
    /// judged.
    pub(crate) fn run(
        &self,
        prompts: &[Prompt<'_>],
        progress: &mut PartProgress<'_>,
    ) -> Result<Vec<BoundaryVerification>> {
        let shards = self.shards.descriptions().len();
        let mut memories = Vec::with_capacity(shards);
        for shard in 0..shards {
            memories.push(self.lend(shard, |executor| ShardMemory::new(executor))?);
        }
        let compiled = if self.exact { &[] } else { self.compiled };
        let twins = compiled.iter().map(Twin::new).collect::<std::result::Result<Vec<_>, _>>();
        let twins = twins.map_err(reference_fault)?;
        let mut tallies: Vec<Vec<EntryTally>> = memories
            .iter()
            .map(|memory| memory.entries.iter().map(|_| EntryTally::default()).collect())
            .collect();
        let mut norms = Norms { graph: self.graph, found: BTreeMap::new() };
        let context = usize::try_from(self.shards.context()).unwrap_or(usize::MAX);
        let rows_of = |prompt: &Prompt<'_>| prompt.given.rows(self.graph);
        let all_rows: usize = prompts.iter().map(|prompt| rows_of(prompt).min(self.rows)).sum();
        let mut rows_done = 0;
        for prompt in prompts {
            let given = match prompt.given {
                Given::Tokens { ids, soft } if self.graph.is_generative() => {
                    Given::Tokens { ids: &ids[..ids.len().min(self.rows).min(context)], soft }
                }
                // An encoder reads a text whole, so a longer text is skipped.
                given if rows_of(prompt) <= context => given,
                _ => continue,
            };
            let all = given.rows(self.graph);
            if all == 0 {
                continue;
            }
            let singles = spread(all, self.steps);
            let mut trace =
                Trace::new(self.graph, given, self.largest_rows(&memories)).map_err(reference_fault)?;
            while let Some(chunk) = trace.next().map_err(reference_fault)? {
                for shard in 0..shards {
                    let name = &self.shards.descriptions()[shard].name;
                    let done = rows_done as f64 + chunk.rows as f64 * shard as f64 / shards as f64;
                    progress
                        .step(done / all_rows.max(1) as f64, || format!("{} through {name}", prompt.name))?;
                    let feed = Feed {
                        graph: self.graph,
                        assets: self.assets,
                        trace: &trace,
                        chunk: &chunk,
                        twin: twins.get(shard),
                        uncapped: self.is_uncapped(),
                    };
                    let mut run = Run { check: self, prompt, feed, norms: &mut norms };
                    run.shard(shard, &mut memories[shard], &mut tallies[shard], &singles, progress)?;
                }
                rows_done += chunk.rows;
            }
        }
        let order = match (self.exact, twins.is_empty()) {
            (true, _) => &[(Against::Checkpoint, true)][..],
            (false, true) => &[(Against::Checkpoint, false)],
            (false, false) => &[(Against::Compiled, true), (Against::Checkpoint, false)],
        };
        let report = |&(against, judged)| self.report(&memories, &mut tallies, &norms, against, judged);
        Ok(order.iter().map(report).collect())
    }

    /// Returns whether the runtime caps the logits after the shards.
    fn is_uncapped(&self) -> bool {
        self.shards.descriptions().iter().any(|shard| shard.logits_softcap.is_some())
    }

    fn lend<R>(&self, shard: usize, borrow: impl FnOnce(&mut LoadedShard) -> Result<R>) -> Result<R> {
        let (mut borrow, mut result) = (Some(borrow), None);
        self.shards.lend(shard, &mut |executor| result = borrow.take().map(|borrow| borrow(executor)));
        let missing = || Error::new(ErrorKind::Internal, format!("the chain has no shard {shard}"));
        result.ok_or_else(missing)?
    }

    /// Returns the rows of the largest entry point, so that each one is filled if the prompt is
    /// long enough.
    fn largest_rows(&self, memories: &[ShardMemory]) -> u64 {
        let entries = memories.iter().flat_map(|memory| &memory.entries);
        entries.map(|entry| entry.interface.point.rows).max().unwrap_or(1)
    }

    /// Returns why an entry point was not run.
    fn why_not_run(&self, point: EntryPoint) -> String {
        let most = point.rows;
        match (point.kind, most) {
            (EntryKind::Encode, _) if self.graph.pass != Pass::Step => {
                format!("no generated {} has at most {most} rows", self.graph.pass)
            }
            (EntryKind::Encode, _) => format!("no recorded text has at most {most} tokens"),
            (_, 1) if self.steps == 0 => "`--steps 0` excludes all positions of prompts".to_owned(),
            _ if self.rows == 0 => "`--rows 0` excludes all rows of prompts".to_owned(),
            _ => "no recorded prompt could be run".to_owned(),
        }
    }

    fn report(
        &self,
        memories: &[ShardMemory],
        tallies: &mut [Vec<EntryTally>],
        norms: &Norms<'_>,
        against: Against,
        judged: bool,
    ) -> BoundaryVerification {
        let compare = |output: &mut OutputTally| {
            let errors = match against {
                Against::Checkpoint => Some(&mut output.plain),
                Against::Compiled => output.compiled.as_mut(),
            };
            let after = output.cut.and_then(|cut| norms.name(cut));
            Some(std::mem::take(errors?).compare(output.what.clone(), output.layer, after, &self.thresholds))
        };
        let descriptions = self.shards.descriptions();
        let mut shards = Vec::new();
        for (index, (description, tallies)) in descriptions.iter().zip(tallies).enumerate() {
            let entries: Vec<EntryVerification> = memories[index]
                .entries
                .iter()
                .zip(tallies)
                .map(|(entry, tally)| EntryVerification {
                    entry: entry.interface.name.clone(),
                    runs: tally.runs,
                    fastest: tally.fastest,
                    not_run: (tally.runs == 0).then(|| self.why_not_run(entry.interface.point)),
                    outputs: tally.outputs.iter_mut().filter_map(compare).collect(),
                })
                .collect();
            let outputs = || entries.iter().flat_map(|entry| &entry.outputs);
            let divergent = outputs().filter(|output| !output.passed).filter_map(|output| output.layer).min();
            shards.push(ShardVerification {
                shard: description.name.clone(),
                layers: Some(description.segments.layers()).filter(|layers| layers.1 > 0),
                place: description.place.to_string(),
                formats: self.formats.get(index).cloned().unwrap_or_default(),
                first_divergent_layer: divergent,
                passed: outputs().all(|output| output.passed),
                entries,
            });
        }
        let compared = shards.iter().flat_map(|shard| &shard.entries).any(|entry| !entry.outputs.is_empty());
        BoundaryVerification {
            against: against.text().to_owned(),
            judged,
            thresholds: self.thresholds,
            first_divergent_layer: shards.iter().filter_map(|shard| shard.first_divergent_layer).min(),
            passed: compared && shards.iter().all(|shard| shard.passed),
            shards,
        }
    }
}

/// Norms by cut, created on first use.
struct Norms<'g> {
    graph: &'g Graph,
    found: BTreeMap<usize, Option<NextNorm>>,
}

impl Norms<'_> {
    fn after(&mut self, cut: usize) -> Result<Option<&NextNorm>> {
        if !self.found.contains_key(&cut) {
            let norm = NextNorm::after(self.graph, cut).map_err(reference_fault)?;
            self.found.insert(cut, norm);
        }
        Ok(self.found.get(&cut).and_then(Option::as_ref))
    }

    fn name(&self, cut: usize) -> Option<String> {
        self.found.get(&cut)?.as_ref().map(|norm| norm.name.clone())
    }
}

/// Computes the results of a run without rounding, by their names.
type Unrounded<'u> = dyn FnMut(&Feed<'_>) -> Result<BTreeMap<String, Vec<f32>>> + 'u;

/// A chunk of a prompt on its way through a shard.
struct Run<'r, 'a> {
    check: &'r BoundaryCheck<'a>,
    prompt: &'r Prompt<'r>,
    feed: Feed<'r>,
    norms: &'r mut Norms<'a>,
}

impl Run<'_, '_> {
    fn shard(
        &mut self,
        shard: usize,
        memory: &mut ShardMemory,
        tallies: &mut [EntryTally],
        singles: &BTreeSet<usize>,
        progress: &mut PartProgress<'_>,
    ) -> Result<()> {
        for (entry, tally) in tallies.iter_mut().enumerate() {
            let point = memory.entries[entry].interface.point;
            for rows in pieces(point.kind, point.rows as usize, self.feed.chunk, singles) {
                progress.check()?;
                let (observed, took) =
                    self.check.lend(shard, |executor| memory.run(executor, entry, &self.feed, rows))?;
                tally.runs += 1;
                if rows.rows as u64 == point.rows {
                    tally.fastest = Some(tally.fastest.map_or(took, |fastest| fastest.min(took)));
                }
                self.enter_all(tally, observed, rows, &mut |feed| memory.unrounded(entry, feed, rows))?;
            }
        }
        Ok(())
    }

    /// Compares all results of a run. If an error exceeds the bound, the effect of rounding on its
    /// rows decides whether it is too large.
    fn enter_all(
        &mut self,
        tally: &mut EntryTally,
        observed: Vec<Observed>,
        rows: Rows,
        unrounded: &mut Unrounded<'_>,
    ) -> Result<()> {
        let mut without = None;
        for Observed { what, layer, cut, width, got, wanted, compiled } in observed {
            let got = self.normed(cut, width, got)?;
            let wanted = self.normed(cut, width, wanted)?;
            let compiled = compiled.map(|values| self.normed(cut, width, values)).transpose()?;
            let mut rounding = Vec::new();
            if let Some(compiled) = &compiled
                && largest_error(&got, compiled, width) > self.check.thresholds.row_p95
            {
                let all = match &without {
                    Some(all) => all,
                    None => without.insert(unrounded(&self.feed)?),
                };
                if let Some(values) = all.get(&what) {
                    let values = self.normed(cut, width, values.clone())?;
                    rounding = errors(&values, compiled, width);
                }
            }
            let index = match tally.outputs.iter().position(|existing| existing.what == what) {
                Some(index) => index,
                None => {
                    let plain = RowErrors::default();
                    tally.outputs.push(OutputTally { what, layer, cut, plain, compiled: None });
                    tally.outputs.len() - 1
                }
            };
            let output = &mut tally.outputs[index];
            self.rows(&mut output.plain, (&got, &wanted, &[]), width, rows);
            if let Some(compiled) = compiled {
                let errors = output.compiled.get_or_insert_default();
                self.rows(errors, (&got, &compiled, &rounding), width, rows);
            }
        }
        Ok(())
    }

    /// Applies the next norm to rows of the residual stream. Other rows are returned unchanged.
    fn normed(&mut self, cut: Option<usize>, width: usize, values: Vec<f32>) -> Result<Vec<f32>> {
        let norm = match cut {
            Some(cut) => self.norms.after(cut)?,
            None => None,
        };
        match norm {
            Some(norm) => norm.apply(&values, width).map_err(reference_fault),
            None => Ok(values),
        }
    }

    /// Enters rows, with the effect of rounding on each if it is known.
    fn rows(
        &self,
        errors: &mut RowErrors,
        (got, wanted, rounding): (&[f32], &[f32], &[f64]),
        width: usize,
        rows: Rows,
    ) {
        let first = self.feed.chunk.first + rows.offset;
        let name = &self.prompt.name;
        if got.len() != wanted.len() {
            errors.add(got, wanted, || (name.clone(), first, 0));
            return;
        }
        let width = width.max(1);
        for (row, (got, wanted)) in got.chunks(width).zip(wanted.chunks(width)).enumerate() {
            let rounding = rounding.get(row).copied().unwrap_or(0.0);
            let at = || (name.clone(), first + row % rows.rows, row / rows.rows);
            errors.add_rounded(got, wanted, rounding, at);
        }
    }
}

/// Returns the runs of an entry point over a chunk, with as many rows at a time as it supports. An
/// entry point of one row runs only at the positions in `singles`.
pub(crate) fn pieces(kind: EntryKind, most: usize, chunk: &Chunk, singles: &BTreeSet<usize>) -> Vec<Rows> {
    match (kind, most) {
        (EntryKind::Encode, _) if chunk.rows > most => Vec::new(),
        (EntryKind::Encode, _) => vec![Rows { offset: 0, rows: chunk.rows }],
        (_, 1) => {
            let within = singles.range(chunk.first..chunk.first + chunk.rows);
            within.map(|position| Rows { offset: position - chunk.first, rows: 1 }).collect()
        }
        _ => {
            let starts = (0..chunk.rows).step_by(most.max(1));
            starts.map(|offset| Rows { offset, rows: most.min(chunk.rows - offset) }).collect()
        }
    }
}

/// Returns at most `count` evenly spaced positions below `length`, including the first and the
/// last.
fn spread(length: usize, count: usize) -> BTreeSet<usize> {
    match count {
        0 => BTreeSet::new(),
        1 => BTreeSet::from([length - 1]),
        _ => (0..count).map(|index| index * (length - 1) / (count - 1)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_spread_over_the_prompt() {
        for (length, count, wanted) in
            [(10, 4, &[0, 3, 6, 9][..]), (2, 8, &[0, 1]), (1, 3, &[0]), (5, 1, &[4]), (5, 0, &[])]
        {
            assert_eq!(spread(length, count).into_iter().collect::<Vec<_>>(), wanted, "{length} {count}");
        }
    }

    #[test]
    fn chunks_go_through_every_entry_point_in_its_rows() {
        let chunk = |first, rows| Chunk {
            first,
            rows,
            hidden: Vec::new(),
            per_layer: Vec::new(),
            logits: Vec::new(),
            embedding: Vec::new(),
            soft_rows: Vec::new(),
        };
        let singles = BTreeSet::from([3, 8, 20]);
        let of = |kind, most, chunk: &Chunk| -> Vec<(usize, usize)> {
            pieces(kind, most, chunk, &singles).into_iter().map(|rows| (rows.offset, rows.rows)).collect()
        };
        assert_eq!(of(EntryKind::Decode, 1, &chunk(4, 10)), [(4, 1)]);
        assert_eq!(of(EntryKind::Decode, 4, &chunk(4, 10)), [(0, 4), (4, 4), (8, 2)]);
        assert_eq!(of(EntryKind::Prefill, 16, &chunk(0, 10)), [(0, 10)]);
        assert_eq!(of(EntryKind::Encode, 16, &chunk(0, 10)), [(0, 10)]);
        assert_eq!(of(EntryKind::Encode, 8, &chunk(0, 10)), []);
    }
}
