use std::fmt::Write;

use shardwright_doctor::ShowReport;

use super::{bytes, ignored, ranges, table};

/// Shows components, layer kinds, tables and sizes of a checkpoint.
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
        let _ =
            writeln!(text, "{} tensors ({}) are not used", facts.unused_tensors, bytes(facts.unused_bytes));
    }
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text.push_str(&ignored(&report.ignored, report.unread.as_ref()));

    let mut components = table(&[
        "component",
        "layers",
        "ops",
        "primitive ops",
        "prefill ops",
        "weights",
        "multiply-adds/token",
    ]);
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
        assets.add_row([
            asset.name.clone(),
            asset.entries.to_string(),
            asset.width.to_string(),
            bytes(asset.bytes),
        ]);
    }
    let _ = writeln!(text, "\n{assets}");
    if report.state_bytes > 0 {
        let _ = writeln!(
            text,
            "\nstates at a context of {}: {} (f32)",
            report.context,
            bytes(report.state_bytes)
        );
    }
    text
}
