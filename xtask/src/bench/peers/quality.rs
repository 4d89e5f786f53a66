//! Losses of formats compared with the file types of llama.cpp: KL divergence from the same float
//! weights over the same windows of the same texts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::{Workshop, answer, folder, keep, llama, make_folder};
use crate::error::Error;
use crate::workspace::Workspace;
use crate::{models, process};

/// Subcommand for this comparison.
pub const NAME: &str = "quality";

/// Published models to compare.
const MODELS: [&str; 2] = ["gemma3-270m", "smollm2-135m"];

/// File types, options of `llama-quantize`, and whether rounding is weighted by an importance
/// matrix.
const PEERS: [(&str, &[&str], bool); 7] = [
    ("Q8_0", &[], false),
    ("Q4_0", &[], false),
    ("Q4_0", &[], true),
    ("Q4_0", &["--pure"], false),
    ("Q4_0", &["--pure"], true),
    ("Q3_K_M", &[], false),
    ("Q3_K_M", &[], true),
];

/// Weight formats. Activations and states are floats, like the peer's KV cache.
const OURS: [&str; 5] = [
    "w8-per-channel/f32/f32",
    "w8-block32/f32/f32",
    "w4-block32[head=w8-per-channel]/f32/f32",
    "w4-block32/f32/f32",
    "w4-block32-stepped[head=w8-per-channel]/f32/f32",
];

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
        let (stored, _) = models::one(model)?;
        let float = self.folder.join(format!("{model}-F32.gguf"));
        self.quantise(&stored, &float, &["--allow-requantize"], "F32")?;
        let matrix = self.importance(workspace, model, &float)?;
        let mut files = vec![("as published".to_owned(), stored.clone())];
        for (kind, options, weighted) in PEERS {
            let by = if weighted { " --imatrix" } else { "" };
            let name = [&[kind], options, &[]].concat().join(" ") + by;
            let file = self.folder.join(format!("{model}-{}.gguf", name.replace(' ', "")));
            let matrix = matrix.to_string_lossy();
            let weighted: &[&str] = if weighted { &["--imatrix", &matrix] } else { &[] };
            self.quantise(&float, &file, &[options, weighted].concat(), kind)?;
            files.push((name, file));
        }
        let mut add = |who: &str, format: &str, (bytes, tables): (u64, Option<u64>), loss: &Loss| {
            let Loss { millinats, same_top } = loss;
            eprintln!("{model}, {who}, {format}: {bytes} bytes, {millinats:.2} millinats, {same_top:.2} %");
            rows.push(json!({
                "model": model, "by": who, "format": format, "bytes": bytes, "table_bytes": tables,
                "millinats": millinats, "same_top": same_top,
            }));
        };
        for ((format, file), loss) in files.iter().zip(self.of_peer(&float, &files)?) {
            let bytes =
                fs::metadata(file).map_err(|source| Error::File { path: file.clone(), source })?.len();
            add("llama.cpp", format, (bytes, None), &loss);
            if *format == "as published" {
                let (_, loss) = self.ours(file, &float, None)?;
                add("shardwright", format, (bytes, None), &loss);
            }
        }
        for format in OURS {
            let ((bytes, tables), loss) = self.ours(&float, &float, Some(format))?;
            add("shardwright", format, (bytes, Some(tables)), &loss);
        }
        Ok(())
    }

    fn quantise(&self, from: &Path, to: &Path, options: &[&str], kind: &str) -> Result<(), Error> {
        if to.is_file() {
            return Ok(());
        }
        let partial = to.with_extension("partial");
        process::run(Command::new(&self.llama.quantize).args(options).arg(from).arg(&partial).arg(kind))?;
        fs::rename(&partial, to).map_err(|source| Error::File { path: to.to_owned(), source })
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

    /// Measures the loss of a file in a format, or in the program's default. Returns it with the
    /// bytes of the weights and of the tables.
    fn ours(&self, file: &Path, float: &Path, format: Option<&str>) -> Result<((u64, u64), Loss), Error> {
        let command = |name: &str| {
            let mut command = Command::new(&self.workshop.program);
            command.args(["--format", "json", name]).arg(file);
            command.args(format.iter().flat_map(|format| ["--formats", format]));
            command
        };
        let plan = answer(command("plan").arg("--no-measure"))?;
        let bytes = |name: &str| {
            plan["totals"][name].as_u64().ok_or_else(|| Error::Answer {
                command: process::shown(&command("plan")),
                problem: format!("no `{name}`"),
            })
        };
        let bytes = (bytes("weight_bytes")?, bytes("table_bytes")?);
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
            "| {} | {} | {} | {:.1} | {} | {:.2} | {:.2} |\n",
            text("model"),
            text("by"),
            text("format"),
            number("bytes") / 1e6,
            row["table_bytes"].as_f64().map_or_else(String::new, |bytes| format!("{:.1}", bytes / 1e6)),
            number("millinats"),
            number("same_top")
        );
    }
    page
}
