//! The gathered tables that a planner is offered, and those of a plan.

use shardwright_graph::{Asset, Graph, GraphError};
use shardwright_planning::check::CheckedPlan;
use shardwright_planning::request::{GatheredTable, TableFormat};
use shardwright_vocabulary::{Provenance, WeightFormat};

use crate::TableFormats;

/// Formats that a table is offered in beside the stored one, the widest first. A row of a table has
/// a scale of its own per channel.
const OFFERED: [WeightFormat; 2] = [WeightFormat::W8PerChannel, WeightFormat::W4Block32];

/// What a gathered table loses in a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLoss {
    /// Position in [`Graph::assets`].
    pub table: u32,
    /// The format.
    pub format: WeightFormat,
    /// KL divergence in millionths of a nat per token.
    pub micronats: u32,
    /// Measured, or modelled from how far the values are off.
    pub provenance: Provenance,
}

impl TableFormats {
    /// The format asked for of a table, by its position in [`Graph::assets`]: first the embedding,
    /// then the others.
    pub(crate) fn of(&self, table: usize) -> Option<WeightFormat> {
        if table == 0 { self.embedding } else { self.per_layer }
    }

    /// Those of a plan, whether or not they are as stored.
    pub fn planned(graph: &Graph, plan: &CheckedPlan) -> Self {
        let of = |index: usize| {
            let name = &graph.assets.get(index)?.name;
            plan.tables().iter().find(|table| table.name == *name).map(|table| table.chosen.format)
        };
        TableFormats { embedding: of(0), per_layer: of(1) }
    }

    /// The formats that tables may have to be made in: those asked for, and what is offered of
    /// others.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn to_make(self) -> Vec<WeightFormat> {
        let mut formats = OFFERED.to_vec();
        for asked in [self.embedding, self.per_layer].into_iter().flatten() {
            if !formats.contains(&asked) {
                formats.push(asked);
            }
        }
        formats
    }
}

/// The tables of a model in the formats a plan may have: the one asked for, or as stored and, where
/// the source `remakes` tables, in those offered that suit its width. A float loses nothing, and
/// checkpoints store tables as floats.
///
/// # Errors
///
/// That a table cannot have the format asked for.
pub(crate) fn gathered_tables(
    graph: &Graph,
    asked: TableFormats,
    remakes: bool,
    losses: &[TableLoss],
) -> Result<Vec<GatheredTable>, GraphError> {
    let table = |(index, asset): (usize, &Asset)| -> Result<Option<GatheredTable>, GraphError> {
        let mut formats: Vec<TableFormat> = Vec::new();
        let mut add = |format: WeightFormat, bytes: u64| {
            let stored = asset.table.is_in(format);
            let known = losses.iter().find(|loss| (loss.table as usize, loss.format) == (index, format));
            let (micronats, provenance) = match (stored || !format.is_quantised(), known) {
                (true, _) => (Some(0), Provenance::Measured),
                (false, Some(known)) => (Some(known.micronats), known.provenance),
                (false, None) => (None, Provenance::Modelled),
            };
            if formats.iter().all(|known| known.format != format) {
                formats.push(TableFormat { format, bytes, micronats, provenance });
            }
        };
        match asked.of(index) {
            Some(format) => add(format, asset.table.planned(format)?.bytes()),
            None => {
                add(asset.table.format().unwrap_or(WeightFormat::AsStored), asset.table.bytes());
                for format in OFFERED.into_iter().filter(|_| remakes) {
                    if let Ok(planned) = asset.table.planned(format)
                        && planned.bytes() < asset.table.bytes()
                    {
                        add(format, planned.bytes());
                    }
                }
            }
        }
        Ok((!formats.is_empty()).then(|| GatheredTable { name: asset.name.clone(), formats }))
    };
    let tables: Result<Vec<Option<GatheredTable>>, GraphError> =
        graph.assets.iter().enumerate().map(table).collect();
    Ok(tables?.into_iter().flatten().collect())
}
