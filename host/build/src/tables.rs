//! The gathered tables that a planner is offered, and the tables of a plan.

use shardwright_graph::{Asset, Graph};
use shardwright_planning::check::CheckedPlan;
use shardwright_planning::request::{GatheredTable, TableFormat};
use shardwright_vocabulary::{Provenance, WeightFormat};

use crate::{Result, TableFormats};

/// Formats that a table is offered in, in addition to the stored one, the widest first. Per channel
/// means per row of the table.
const OFFERED: [WeightFormat; 2] = [WeightFormat::W8PerChannel, WeightFormat::W4Block32];

/// The quality loss of a gathered table in a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLoss {
    /// Position in [`Graph::assets`].
    pub table: u32,
    pub format: WeightFormat,
    /// KL divergence in millionths of a nat per token.
    pub micronats: u32,
    /// Measured, or modelled from the errors of the values.
    pub provenance: Provenance,
}

impl TableFormats {
    /// Returns the requested format of a table, by its position in [`Graph::assets`]: first the
    /// embedding, then the others.
    pub fn of(&self, table: usize) -> Option<WeightFormat> {
        if table == 0 { self.embedding } else { self.per_layer }
    }

    /// Returns the formats of a plan, including stored formats.
    pub fn planned(graph: &Graph, plan: &CheckedPlan) -> Self {
        let of = |index: usize| {
            let name = &graph.assets.get(index)?.name;
            plan.tables().iter().find(|table| table.name == *name).map(|table| table.chosen.format)
        };
        TableFormats { embedding: of(0), per_layer: of(1) }
    }

    /// Returns the formats into which tables may have to be converted: the requested ones and the
    /// offered ones.
    pub fn to_make(self) -> Vec<WeightFormat> {
        let mut formats = OFFERED.to_vec();
        for asked in [self.embedding, self.per_layer].into_iter().flatten() {
            if !formats.contains(&asked) {
                formats.push(asked);
            }
        }
        formats
    }
}

/// Returns the tables of a model with the formats that a plan may choose. If a format is requested,
/// it is the only one. Otherwise these are the stored format and, if the source `remakes` tables,
/// the offered formats that make the table smaller. Floats are lossless here, since checkpoints
/// store tables as floats.
///
/// # Errors
///
/// Fails if a table cannot have the requested format.
pub(crate) fn gathered_tables(
    graph: &Graph,
    asked: TableFormats,
    remakes: bool,
    losses: &[TableLoss],
) -> Result<Vec<GatheredTable>> {
    let table = |(index, asset): (usize, &Asset)| -> Result<Option<GatheredTable>> {
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
    let tables: Result<Vec<Option<GatheredTable>>> = graph.assets.iter().enumerate().map(table).collect();
    Ok(tables?.into_iter().flatten().collect())
}
