//! Losses of formats compared with the file types of llama.cpp: KL divergence from the same float
//! weights over the same windows of the same texts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::cases::{File, ROUNDED, SMALLEST};
use super::losses::{BY_PEER, BY_US, NAME};
use super::{Workshop, answer, folder, keep, llama, make_folder};
use crate::error::Error;
use crate::workspace::Workspace;
use crate::{models, process};

/// Published models to compare.
const MODELS: [&str; 2] = [SMALLEST, "smollm2-135m"];

/// File types, options of `llama-quantize`, and whether rounding is weighted by an importance
/// matrix. The widths of these models are not multiples of 256, so files of K-quants have other
/// blocks of about as many bits for most matrices.
const PEERS: [(&str, &[&str], bool); 10] = [
    ("Q8_0", &[], false),
    ("Q4_0", &[], false),
    ("Q4_0", &[], true),
    ("Q4_0", &["--pure"], false),
    ("Q4_0", &["--pure"], true),
    ("Q3_K_M", &[], false),
    ("Q3_K_M", &[], true),
    ("Q4_K_M", &[], false),
    ("Q5_K_M", &[], false),
    ("Q6_K", &[], false),
];

/// Formats made from the float weights: weights alone, with activations and states in floats, then
/// attention alone, then the formats of speed comparisons.
const OURS: [&str; 12] = [
    "w8-per-channel/f32/f32",
    "w8-block32/f32/f32",
    "w4-block32[head=w8-per-channel]/f32/f32",
    "w4-block32/f32/f32",
    "w4-block32-stepped[head=w8-per-channel]/f32/f32",
    "f32/f32/f32/attention-bf16",
    "f32/f32/f32/attention-f16",
    "w8-block32/a8-dynamic-block32/f16",
    "w8-per-channel/a8-dynamic-block32/f16",
    "w8-per-channel/a8-dynamic/f16",
    "w4-block32/a8-dynamic-block32/f16",
    "w4-block32/a8-dynamic/f16",
];

/// Formats in which files of the peer run here.
const OF_FILES: [&str; 2] = ["as-stored/f32/f32", ROUNDED];

/// The texts that formats are calibrated on here. The importance matrix is made from the same
/// texts.
const CALIBRATION: &str = "host/checkpoints/src/texts";
const CALIBRATION_TEXTS: [&str; 5] = ["turns", "code", "numbers", "languages", "long"];

/// Tokens of a window, half of which are scored.
const WINDOW: &str = "512";
/// Windows of each text. With a vocabulary of 262,144 tokens, the peer keeps a quarter of a
/// gigabyte for each window.
const WINDOWS: &str = "8";

/// Means over all texts, each with the same number of tokens.
struct Loss {
    millinats: f64,
    same_top: f64,
}

struct Comparison<'w> {
    workshop: Workshop<'w>,
    folder: PathBuf,
    llama: llama::Llama,
    texts: Vec<PathBuf>,
}

/// Compares on texts of the user, prints the table and stores it.
pub fn compare(workspace: &Workspace, texts: &[String]) -> Result<(), Error> {
    if texts.is_empty() {
        let what = "`bench quality` needs text files that no format is calibrated on: name at least one";
        return Err(Error::Usage(what.to_owned()));
    }
    let texts: Vec<PathBuf> = texts.iter().map(PathBuf::from).collect();
    for path in &texts {
        fs::metadata(path).map_err(|source| Error::File { path: path.clone(), source })?;
    }
    let peers = folder()?;
    let llama = llama::provide(&peers)?;
    let workshop = Workshop::new(workspace, peers.clone())?;
    let folder = peers.join(NAME);
    make_folder(&folder)?;
    let comparison = Comparison { workshop, folder, llama, texts };
    let mut rows = Vec::new();
    for model in MODELS {
        comparison.model(workspace, model, &mut rows)?;
    }
    let figures = json!({
        "llama_cpp": { "source": llama::SOURCE, "built": comparison.llama.built },
        "window": WINDOW, "windows": WINDOWS, "texts": comparison.texts.len(), "rows": rows,
    });
    keep(workspace, NAME, &figures, &markdown(&figures))
}

impl Comparison<'_> {
    fn model(&self, workspace: &Workspace, model: &str, rows: &mut Vec<Value>) -> Result<(), Error> {
        let (as_published, _) = models::one(model)?;
        let float = self.workshop.published(model, &self.llama)?;
        let matrix = self.importance(workspace, model, &float)?;
        let mut files = vec![(File::AsPublished.name().to_owned(), as_published)];
        for (kind, options, weighted) in PEERS {
            let by = if weighted { " --imatrix" } else { "" };
            let name = [&[kind], options, &[]].concat().join(" ") + by;
            let file = self.folder.join(format!("{model}-{}.gguf", name.replace(' ', "")));
            let matrix = matrix.to_string_lossy();
            let weighted: &[&str] = if weighted { &["--imatrix", &matrix] } else { &[] };
            self.llama.quantise(&float, &file, &[options, weighted].concat(), kind)?;
            files.push((name, file));
        }
        type Who<'w> = (&'w str, Option<&'w str>);
        let mut add = |(who, file): Who<'_>, format: &str, bytes: [Option<u64>; 2], loss: &Loss| {
            let (Loss { millinats, same_top }, of) = (loss, of_file(file));
            eprintln!("{model}, {who}, {of}{format}: {millinats:.2} millinats, {same_top:.2} %");
            rows.push(json!({
                "model": model, "by": who, "file": file, "format": format, "bytes": bytes[0],
                "table_bytes": bytes[1], "millinats": millinats, "same_top": same_top,
            }));
        };
        for ((name, file), loss) in files.iter().zip(self.of_peer(&float, &files)?) {
            let metadata = fs::metadata(file).map_err(|source| Error::File { path: file.clone(), source })?;
            let bytes = [Some(metadata.len()), None];
            add((BY_PEER, None), name, bytes, &loss);
            for format in OF_FILES {
                add((BY_US, Some(name.as_str())), format, bytes, &self.ours(file, &float, format)?.1);
            }
        }
        for format in OURS {
            let ([bytes, tables], loss) = self.ours(&float, &float, format)?;
            add((BY_US, None), format, [Some(bytes), Some(tables)], &loss);
        }
        Ok(())
    }

    fn importance(&self, workspace: &Workspace, model: &str, float: &Path) -> Result<PathBuf, Error> {
        let matrix = self.folder.join(format!("{model}-imatrix.gguf"));
        if matrix.is_file() {
            return Ok(matrix);
        }
        let mut all = String::new();
        for name in CALIBRATION_TEXTS {
            let path = workspace.root.join(CALIBRATION).join(format!("{name}.txt"));
            all += &fs::read_to_string(&path).map_err(|source| Error::File { path, source })?;
        }
        let text = self.folder.join("calibration.txt");
        crate::workspace::replace(&text, all.as_bytes())?;
        let partial = self.folder.join("imatrix-partial.gguf");
        let mut make = Command::new(&self.llama.imatrix);
        make.arg("-m").arg(float).arg("-f").arg(&text).arg("-o").arg(&partial).args(["-c", WINDOW]);
        process::run(&mut make)?;
        fs::rename(&partial, &matrix).map_err(|source| Error::File { path: matrix.clone(), source })?;
        Ok(matrix)
    }

    /// Measures the losses of the peer's files. The peer runs each against its own float run.
    fn of_peer(&self, float: &Path, files: &[(String, PathBuf)]) -> Result<Vec<Loss>, Error> {
        let base = self.folder.join("base.kld");
        let run = |file: &Path, text: &Path| {
            let mut command = Command::new(&self.llama.perplexity);
            command.arg("-m").arg(file).arg("-f").arg(text).args(["-c", WINDOW, "--chunks", WINDOWS]);
            command.arg("--kl-divergence-base").arg(&base);
            command
        };
        let mut sums: Vec<Loss> = files.iter().map(|_| Loss { millinats: 0.0, same_top: 0.0 }).collect();
        for text in &self.texts {
            process::run(&mut run(float, text))?;
            for ((_, file), sum) in files.iter().zip(&mut sums) {
                let mut command = run(file, text);
                let printed = process::output(command.arg("--kl-divergence"))?;
                let figure = |label: &str| {
                    let line = printed.lines().find_map(|line| line.trim().strip_prefix(label));
                    let number = line.and_then(|rest| rest.trim_start_matches([' ', ':']).split(' ').next());
                    number.and_then(|number| number.parse::<f64>().ok()).ok_or_else(|| Error::Answer {
                        command: process::shown(&command),
                        problem: format!("no line `{label}`"),
                    })
                };
                sum.millinats += 1000.0 * figure("Mean    KLD")? / self.texts.len() as f64;
                sum.same_top += figure("Same top p")? / self.texts.len() as f64;
            }
        }
        fs::remove_file(&base).map_err(|source| Error::File { path: base.clone(), source })?;
        Ok(sums)
    }

    /// Measures the loss of a file in a format. Returns it with the bytes of the weights and of the
    /// tables.
    fn ours(&self, file: &Path, float: &Path, format: &str) -> Result<([u64; 2], Loss), Error> {
        let command = |name: &str| {
            let mut command = Command::new(&self.workshop.program);
            command.args(["--format", "json", name]).arg(file).args(["--formats", format]);
            command
        };
        let plan = answer(command("plan").arg("--no-measure"))?;
        let bytes = |name: &str| {
            plan["totals"][name].as_u64().ok_or_else(|| Error::Answer {
                command: process::shown(&command("plan")),
                problem: format!("no `{name}`"),
            })
        };
        let bytes = [bytes("weight_bytes")?, bytes("table_bytes")?];
        let mut sum = Loss { millinats: 0.0, same_top: 0.0 };
        for text in &self.texts {
            let mut command = command("perplexity");
            command.args(["--window", WINDOW, "--chunks", WINDOWS]);
            let report = answer(command.arg("--text").arg(text).arg("--against").arg(float))?;
            let figure = |path: &str| {
                report.pointer(path).and_then(Value::as_f64).ok_or_else(|| Error::Answer {
                    command: process::shown(&command),
                    problem: format!("nothing at {path}"),
                })
            };
            sum.millinats += figure("/against/kl/mean/value")? / self.texts.len() as f64;
            sum.same_top += 100.0 * figure("/against/same_top/value")? / self.texts.len() as f64;
        }
        Ok((bytes, sum))
    }
}

/// Returns the words before formats that are of a file of the peer.
fn of_file(file: Option<&str>) -> String {
    file.map_or_else(String::new, |file| format!("{file}: "))
}

fn markdown(figures: &Value) -> String {
    let mut page = format!(
        "KL divergence from the same float weights, each program against its own float run: {} windows of {} tokens of each of {} texts; {}. A table of embeddings of its own, of which a token reads one row, is counted apart.\n\n| model | by | format | MB | table, MB | millinats | same likeliest token, % |\n|---|---|---|---:|---:|---:|---:|\n",
        figures["windows"].as_str().unwrap_or_default(),
        figures["window"].as_str().unwrap_or_default(),
        figures["texts"],
        figures["llama_cpp"]["source"].as_str().unwrap_or_default(),
    );
    for row in figures["rows"].as_array().into_iter().flatten() {
        let text = |name: &str| row[name].as_str().unwrap_or_default();
        let number = |name: &str| row[name].as_f64().unwrap_or(f64::NAN);
        page += &format!(
            "| {} | {} | {}{} | {:.1} | {} | {:.2} | {:.2} |\n",
            text("model"),
            text("by"),
            of_file(row["file"].as_str()),
            text("format"),
            number("bytes") / 1e6,
            row["table_bytes"].as_f64().map_or_else(String::new, |bytes| format!("{:.1}", bytes / 1e6)),
            number("millinats"),
            number("same_top")
        );
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_name_the_file_whose_weights_are_used() {
        let row = |by: &str, file: Value, format: &str| {
            json!({
                "model": "m", "by": by, "file": file, "format": format, "bytes": 2_500_000,
                "table_bytes": null, "millinats": 2.584, "same_top": 96.9,
            })
        };
        let rows = [row(BY_PEER, Value::Null, "Q8_0"), row(BY_US, json!("Q8_0"), ROUNDED)];
        let page = markdown(&json!({ "rows": rows }));
        for line in [
            "| m | llama.cpp | Q8_0 | 2.5 |  | 2.58 | 96.90 |",
            "| m | shardwright | Q8_0: as-stored/a8-dynamic-block32/f16 | 2.5 |  | 2.58 | 96.90 |",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
    }
}
