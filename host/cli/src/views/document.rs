//! Shows a JSON document from any source as text: values by path, lists of similar objects as
//! tables.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::{printable, table};

/// Largest number of rows of a table that are shown. The others are counted.
const ROWS: usize = 64;
/// Largest number of levels that are indented. Deeper ones are shown as JSON.
const DEPTH: usize = 6;

pub fn document(value: &Value) -> String {
    let mut text = String::new();
    member(&mut text, "", value, 0);
    text
}

fn member(text: &mut String, path: &str, value: &Value, depth: usize) {
    match value {
        Value::Object(members) if depth < DEPTH && !members.is_empty() => {
            // Members that fit on a line come before the others.
            let (short, long): (Vec<_>, Vec<_>) = members.iter().partition(|(_, value)| is_short(value));
            for (name, value) in short.into_iter().chain(long) {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                member(text, &path, value, depth + 1);
            }
        }
        Value::Array(items) if depth < DEPTH && !is_short(value) => list(text, path, items, depth),
        value => {
            let _ = writeln!(text, "{path}: {}", short(value));
        }
    }
}

fn list(text: &mut String, path: &str, items: &[Value], depth: usize) {
    let rows: Vec<&Map<String, Value>> = items.iter().filter_map(Value::as_object).collect();
    let flat = rows.len() == items.len() && rows.iter().all(|row| row.values().all(is_cell));
    if flat {
        let mut columns: Vec<&str> = Vec::new();
        for name in rows.iter().flat_map(|row| row.keys()) {
            if !columns.contains(&name.as_str()) {
                columns.push(name);
            }
        }
        // The members of an object are sorted, but a name comes first.
        columns.sort_by_key(|column| *column != "name");
        let mut shown = table(&columns);
        for row in rows.iter().take(ROWS) {
            shown.add_row(columns.iter().map(|column| row.get(*column).map(cell).unwrap_or_default()));
        }
        let _ = writeln!(text, "{path}\n{shown}");
        if rows.len() > ROWS {
            let _ = writeln!(text, "and {} more", rows.len() - ROWS);
        }
        return;
    }
    for (index, item) in items.iter().take(ROWS).enumerate() {
        let name = item.get("name").and_then(Value::as_str);
        let path = format!("{path}[{}]", name.map_or_else(|| index.to_string(), printable));
        text.push('\n');
        member(text, &path, item, depth + 1);
    }
    if items.len() > ROWS {
        let _ = writeln!(text, "and {} more", items.len() - ROWS);
    }
}

/// Checks whether a value fits on a line: it is not an object, and not a list with other than plain
/// values.
fn is_short(value: &Value) -> bool {
    match value {
        Value::Object(members) => members.is_empty(),
        Value::Array(items) => items.iter().all(|item| !item.is_object() && !item.is_array()),
        _ => true,
    }
}

/// Checks whether a value fits into a table: it fits on a line, or is an object whose members all
/// do.
fn is_cell(value: &Value) -> bool {
    is_short(value) || value.as_object().is_some_and(|members| members.values().all(is_short))
}

/// Formats an object as `kind=per-tensor scale=0.5`.
fn cell(value: &Value) -> String {
    match value.as_object() {
        Some(members) => {
            let members = members.iter().map(|(name, value)| format!("{}={}", printable(name), short(value)));
            members.collect::<Vec<_>>().join(" ")
        }
        None => short(value),
    }
}

fn short(value: &Value) -> String {
    match value {
        Value::String(text) => printable(text),
        value => value.to_string().replace(',', ", "),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_come_by_path_and_things_alike_as_tables() {
        let text = document(&json!({
            "graphs": [{
                "name": "decode_1",
                "outputs": [],
                "inputs": [
                    {"name": "hidden", "dtype": "u16", "shape": [1, 64]},
                    {"name": "mask", "dtype": "u16", "encoding": {"kind": "per-tensor", "scale": 0.5}},
                ],
            }],
            "soc": {"id": 87, "name": "SM\u{1b}8850"},
            "empty": {},
        }));
        let lines: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            lines,
            [
                "empty: {}",
                "",
                "graphs[decode_1].name: decode_1",
                "graphs[decode_1].outputs: []",
                "graphs[decode_1].inputs",
                "name dtype shape encoding",
                "hidden u16 [1, 64]",
                "mask u16 kind=per-tensor scale=0.5",
                "soc.id: 87",
                "soc.name: SM\u{fffd}8850",
            ]
        );
    }

    #[test]
    fn depth_and_length_are_bounded() {
        let mut deep = json!(1);
        for _ in 0..100 {
            deep = json!({ "a": [deep] });
        }
        assert!(document(&deep).lines().count() < 20);
        let long = json!({ "rows": vec![json!({"name": "x"}); 1000] });
        let text = document(&long);
        assert!(text.lines().count() < 80 && text.contains("and 936 more"), "{text}");
    }
}
