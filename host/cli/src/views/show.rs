use std::fmt::Write;

use shardwright::ShowReport;

use super::{bytes, table};

/// Components, layer kinds, tables and sizes of a checkpoint.
pub fn show(report: &ShowReport) -> String {
    let mut text = String::new();
    let facts = &report.checkpoint;
    let _ = writeln!(
        text,
        "{} ({}): {} layers, hidden {}, vocabulary {}, context {}, weights {}",
        facts.name,
        facts.family,
        facts.layers.len(),
        facts.hidden,
        facts.vocabulary,
        facts.context,
        facts.dtypes.join(" and ")
    );
    let mut remarks = Vec::new();
    if let Some(window) = facts.window {
        remarks.push(format!("sliding window {window}"));
    }
    if facts.kv_shared_layers() > 0 {
        remarks.push(format!("{} layers read another layer's keys and values", facts.kv_shared_layers()));
    }
    if facts.per_layer_width > 0 {
        remarks.push(format!("per-layer inputs of width {}", facts.per_layer_width));
    }
    if facts.tied {
        remarks.push("head tied to the embedding".to_owned());
    }
    if !remarks.is_empty() {
        let _ = writeln!(text, "{}", remarks.join(", "));
    }
    if facts.unused_tensors > 0 {
        let _ = writeln!(text, "{} tensors ({}) are not used", facts.unused_tensors, bytes(facts.unused_bytes));
    }
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }

    let mut components = table(&["component", "layers", "ops", "primitive ops", "prefill ops", "weights", "multiply-adds/token"]);
    for component in &report.components {
        components.add_row([
            component.name.clone(),
            if component.layers > 0 { component.layers.to_string() } else { "-".to_owned() },
            component.ops.to_string(),
            component.primitive_ops.to_string(),
            component.prefill_ops.to_string(),
            bytes(component.weight_bytes),
            component.multiply_adds.to_string(),
        ]);
    }
    let _ = writeln!(text, "\n{components}");

    let mut kinds = table(&["layer kind", "layers", "ops", "primitive ops", "weights per layer"]);
    for (index, kind) in report.layer_kinds.iter().enumerate() {
        kinds.add_row([
            index.to_string(),
            ranges(&kind.layers),
            kind.ops.to_string(),
            kind.primitive_ops.to_string(),
            bytes(kind.weight_bytes),
        ]);
    }
    let _ = writeln!(text, "\n{kinds}");

    let mut assets = table(&["gathered table", "rows", "width", "size"]);
    for asset in &report.assets {
        assets.add_row([asset.name.clone(), asset.entries.to_string(), asset.width.to_string(), bytes(asset.bytes)]);
    }
    let _ = writeln!(text, "\n{assets}");
    if report.state_bytes > 0 {
        let _ = writeln!(text, "\nstates at a context of {}: {} (f32)", report.context, bytes(report.state_bytes));
    }
    text
}

/// `0-3, 5`
fn ranges(layers: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for &layer in layers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == layer => *last = layer,
            _ => parts.push((layer, layer)),
        }
    }
    let part = |(first, last): (u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    parts.into_iter().map(part).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    #[test]
    fn neighbours_become_ranges() {
        for (layers, text) in [(&[0, 1, 2, 5][..], "0-2, 5"), (&[], ""), (&[7], "7"), (&[1, 3, 5], "1, 3, 5")] {
            assert_eq!(super::ranges(layers), text);
        }
    }
}
