use std::fmt::Write;

use shardwright::{FormatShare, LossRow, Provenance, SensitivityReport};

use shardwright_build::units;

use super::{table, wrapped};

/// Shows how much is measured, then a line for each place with the loss of each format.
pub fn sensitivity(report: &SensitivityReport) -> String {
    let mut text = String::new();
    let SensitivityReport { model, family, rounding, tokens, measured, of, .. } = report;
    let mut line = |what: String| {
        let _ = writeln!(text, "{}", wrapped(&what, 10));
    };
    line(format!("model     {model} ({family}), rounding {rounding}"));
    line(format!("text      {tokens} tokens of {}", report.text));
    line(format!("measured  {measured} of {of} losses"));
    for share in &report.formats {
        line(format!("          {}", everywhere(share)));
    }
    text.push_str("\nMillinats of KL divergence per token; ~ is expected, not measured.\n");
    // Formats of weights and tables, and formats of values, never share a row.
    for of_values in [false, true] {
        let rows: Vec<&LossRow> = report.losses.iter().filter(|row| is_of_values(row) == of_values).collect();
        let mut formats: Vec<&str> = Vec::new();
        let mut places: Vec<(String, &str)> = Vec::new();
        for row in &rows {
            if !formats.contains(&row.format.as_str()) {
                formats.push(&row.format);
            }
            let place = place(row);
            if !places.contains(&place) {
                places.push(place);
            }
        }
        if rows.is_empty() {
            continue;
        }
        let header: Vec<&str> = ["place", "values"].into_iter().chain(formats.iter().copied()).collect();
        let mut lines = table(&header);
        for key in &places {
            let of = |format: &&str| {
                let found = rows.iter().find(|row| place(row) == *key && row.format == **format);
                found.map_or_else(String::new, |row| shown(row))
            };
            let cells = [key.0.clone(), key.1.to_owned()];
            lines.add_row(cells.into_iter().chain(formats.iter().map(of)).collect::<Vec<_>>());
        }
        let _ = writeln!(text, "\n{lines}");
    }
    text
}

fn is_of_values(row: &LossRow) -> bool {
    row.component.is_some() && ["activations", "states", "attention"].contains(&row.what.as_str())
}

/// Returns a place such as `decoder 3`, and the values there.
fn place(row: &LossRow) -> (String, &str) {
    let place = match (&row.component, row.layer) {
        (Some(component), Some(layer)) => format!("{component} {layer}"),
        (Some(component), None) => component.clone(),
        (None, _) => "table".to_owned(),
    };
    (place, &row.what)
}

fn shown(row: &LossRow) -> String {
    match (row.micronats, row.provenance) {
        (None, _) => "?".to_owned(),
        _ if !row.is_finite() => "not finite".to_owned(),
        (Some(micronats), Provenance::Measured) => format!("{:.4}", micronats / 1000.0),
        (Some(micronats), _) => format!("~{:.3}", micronats / 1000.0),
    }
}

/// Formats `w4-block32 everywhere: 131 millinats, 63 % of it measured`.
fn everywhere(share: &FormatShare) -> String {
    let FormatShare { format, micronats, measured_micronats } = share;
    match micronats {
        None => format!("{format} everywhere: not known"),
        Some(micronats) if *micronats > 0.0 => format!(
            "{format} everywhere: {}, {:.0} % of it measured",
            units::micronats(micronats.round() as u64),
            100.0 * measured_micronats / micronats
        ),
        Some(_) => format!("{format} everywhere: no loss"),
    }
}
