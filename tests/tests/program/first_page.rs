//! Compares the first page with the parts of the project it describes: the output of
//! `cargo xtask demo`, profiles, fixtures and the example of the public crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use shardwright_models::passes_of;
use shardwright_test_checkpoints::cases;
use shardwright_tests::checkpoints::DEMO_MODEL;
use shardwright_tests::program::{finished, shardwright};
use shardwright_tests::{skipped, tree};
use shardwright_vocabulary::Pass;

fn page() -> String {
    tree::read(Path::new("README.md"))
}

/// Returns a section of the first page.
fn section(title: &str) -> String {
    let page = page();
    let found = page.split("\n## ").find(|section| section.starts_with(title));
    found.unwrap_or_else(|| panic!("no section `{title}`")).to_owned()
}

/// Returns the paragraph of the first page about the demo, in one line.
fn promise() -> String {
    let section = section("Try it");
    let paragraph =
        section.split("\n\n").find(|text| text.starts_with("The first command")).expect("a paragraph");
    paragraph.replace('\n', " ")
}

/// Returns the lines between fences of a language.
fn block<'t>(text: &'t str, language: &str) -> Vec<&'t str> {
    let opening = format!("```{language}");
    let from = text.lines().skip_while(|line| *line != opening).skip(1);
    let block: Vec<&str> = from.take_while(|line| *line != "```").collect();
    assert!(!block.is_empty(), "no block of {language}");
    block
}

/// Returns the cells of the rows of the table with this header, without the header.
fn table(text: &str, header: &str) -> Vec<Vec<String>> {
    let rows = rows(text, &format!("| {header} |"));
    rows.into_iter().skip(2).collect()
}

/// Returns the cells of the rows of the table whose header begins so, with the header and the line
/// below it.
fn rows(text: &str, header: &str) -> Vec<Vec<String>> {
    let from = text.lines().skip_while(|line| !line.starts_with(header));
    let cells = |row: &str| row.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
    let rows: Vec<Vec<String>> = from.take_while(|line| line.starts_with('|')).map(cells).collect();
    assert!(rows.len() > 2, "no table of {header}");
    rows
}

/// Returns both streams of `cargo xtask demo`, which `.ci/run` recorded in the file that
/// `SHARDWRIGHT_DEMO_OUTPUT` names. The command cannot run here, because it builds the program that
/// other tests start.
fn output() -> Option<String> {
    let Some(file) = std::env::var_os("SHARDWRIGHT_DEMO_OUTPUT").map(PathBuf::from) else {
        skipped("the demo: SHARDWRIGHT_DEMO_OUTPUT does not name its output, as `.ci/run` does");
        return None;
    };
    Some(std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())))
}

/// Returns the rows of the demo's table of shards. They begin with the number of the shard.
fn shards(output: &str) -> Vec<&str> {
    let table = output.split("\n\n").find(|part| part.starts_with("shard ")).expect("a table of shards");
    // The header may have several lines.
    table.lines().filter(|row| row.starts_with(|c: char| c.is_ascii_digit())).collect()
}

/// Returns the number of shards after these words of a text.
fn number_after(text: &str, words: &str) -> usize {
    let numbers = ["one shard", "two shards", "three shards", "four shards", "five shards"];
    let rest = text.split(words).nth(1).unwrap_or_else(|| panic!("no `{words}`: {text}"));
    let found = numbers.iter().position(|number| rest.starts_with(number));
    found.unwrap_or_else(|| panic!("no number of shards: {rest}")) + 1
}

/// The program of the tests has the MediaTek shim, like the one that the page recommends to
/// install. The demo's program does not have it.
#[test]
fn the_installed_program_does_what_the_first_page_promises() {
    let section = section("Try it");
    let lines = block(&section, "text");
    let command = lines.iter().find_map(|line| line.strip_prefix("$ shardwright plan ")).expect("a command");
    let plan = shardwright(["plan"]).arguments(command.split(' ')).argument("--no-measure").json();
    let shards = plan["shards"].as_array().expect("shards").len();
    assert_eq!(shards, number_after(&promise(), "so its plan has "), "{plan}");
}

#[test]
fn the_demo_does_what_the_first_page_promises() {
    let Some(output) = output() else { return };
    let promise = promise();
    assert_eq!(shards(&output).len(), number_after(&promise, "so that the plan needs "), "{output}");
    assert!(promise.contains("*emulated on cpu*"), "{promise}");
    // The page omits some lines, and the end of the reply.
    for line in block(&section("Try it"), "text").into_iter().filter(|line| !line.is_empty()) {
        assert!(output.lines().any(|printed| printed.starts_with(line)), "no `{line}` in {output}");
    }
}

/// Draws the demo's plan: a row of layers in shards, and the operations of each below the limit.
fn picture(output: &str) -> String {
    let limit: f64 = output
        .split_once("--limit ops=")
        .and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok())
        .expect("a limit");
    let column = |row: &str, index: usize| {
        let columns = row.split("  ").filter(|text| !text.is_empty());
        columns.map(str::trim).nth(index).expect("a column").to_owned()
    };
    let rows = shards(output);
    let (left, width, gap) = (20.0, 760.0 / rows.len() as f64, 12.0);
    let mut drawn = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 800 190\" font-family=\"sans-serif\" \
         font-size=\"14\">\n<rect width=\"800\" height=\"190\" rx=\"8\" fill=\"#f6f8fa\"/>\n",
    );
    for (index, row) in rows.iter().enumerate() {
        let (components, layers, ops) = (column(row, 1), column(row, 2), column(row, 4));
        let (first, end) = layers.split_once("..").expect("layers");
        let (first, end): (u32, u32) = (first.parse().expect("a layer"), end.parse().expect("a layer"));
        let x = left + width * index as f64;
        let own = width - gap;
        let cell = own / f64::from(end - first);
        let text = |y: f64, size: u32, words: &str| {
            format!("<text x=\"{x:.0}\" y=\"{y:.0}\" font-size=\"{size}\" fill=\"#1f2328\">{words}</text>\n")
        };
        drawn += &text(30.0, 14, &format!("shard {index}"));
        drawn += &text(50.0, 11, &components);
        for layer in first..end {
            let at = x + cell * f64::from(layer - first);
            let _ = writeln!(
                drawn,
                "<rect x=\"{at:.1}\" y=\"60\" width=\"{:.1}\" height=\"36\" rx=\"4\" fill=\"#0969da\"/>\n\
                 <text x=\"{:.1}\" y=\"83\" fill=\"#ffffff\" text-anchor=\"middle\">{layer}</text>",
                cell - 3.0,
                at + cell / 2.0 - 1.5,
            );
        }
        let used: f64 = ops.parse().expect("operations");
        drawn += &text(126.0, 12, &format!("{ops} of {limit} operations"));
        let _ = writeln!(
            drawn,
            "<rect x=\"{x:.1}\" y=\"136\" width=\"{own:.1}\" height=\"12\" rx=\"3\" fill=\"#d0d7de\"/>\n\
             <rect x=\"{x:.1}\" y=\"136\" width=\"{:.1}\" height=\"12\" rx=\"3\" fill=\"#1a7f37\"/>",
            own * used / limit,
        );
    }
    let _ = writeln!(
        drawn,
        "<text x=\"20\" y=\"174\" font-size=\"12\" fill=\"#59636e\">demo-model, cut for mt6989 with at \
         most {limit} operations a shard (cargo xtask demo)</text>\n</svg>",
    );
    drawn
}

/// `SHARDWRIGHT_WRITE_SCREENS=1` draws the picture again.
#[test]
fn the_picture_is_the_plan_of_the_demo() {
    let Some(output) = output() else { return };
    let path = "docs/images/plan.svg";
    let drawn = picture(&output);
    if std::env::var_os("SHARDWRIGHT_WRITE_SCREENS").is_some() {
        std::fs::write(tree::root().join(path), &drawn).expect("written");
    }
    assert_eq!(tree::read(Path::new(path)), drawn, "{path}");
    assert!(page().contains(path));
}

#[test]
fn the_ten_lines_are_those_of_the_public_crate() {
    let example = tree::read(Path::new("host/shardwright/README.md"));
    assert_eq!(block(&section("In an app"), "rust,no_run"), block(&example, "rust,no_run"));
}

/// An application does not inherit the profiles of this workspace, so none of its crates are
/// optimised, and the threads of the CPU shim need more stack. `cargo xtask test` builds the
/// application in thorough runs, and reports in others that it is left out.
#[test]
fn the_ten_lines_answer_from_an_application_that_is_not_optimised() {
    if !cases(false, true) {
        return;
    }
    let Some(application) = std::env::var_os("SHARDWRIGHT_TEN_LINES") else {
        return skipped("the ten lines: SHARDWRIGHT_TEN_LINES does not name their program");
    };
    let section = section("In an app");
    let chat = |line: &&str| Some(line.split_once("session.chat(\"")?.1.split_once('"')?.0.to_owned());
    let prompt = block(&section, "rust,no_run").iter().find_map(chat).expect("a prompt");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bundle = folder.path().join("bundle");
    shardwright(["compile", DEMO_MODEL, "--soc", "mt6989", "--on", "cpu", "-o"]).argument(&bundle).succeeds();
    let expected = shardwright(["run", "--prompt", &prompt]).argument(&bundle).succeeds();
    assert!(expected.len() > prompt.len(), "{expected}");

    let mut run = Command::new(application);
    run.current_dir(folder.path()).env("SHARDWRIGHT_SHIM_PATH", "");
    let outcome = finished(run);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert_eq!((outcome.stdout.trim_end(), &*outcome.stderr), (expected.trim_end(), ""));
}

/// Chips that a test compiles for, and the file of that test.
const COMPILED: [(&str, &str); 2] = [
    ("compiled by Qualcomm's compiler", "tests/vendors/tests/vendors/qnn.rs"),
    ("run in this project's simulator", "vendor-shims/neuron/tests/shim/support.rs"),
];

#[test]
fn the_table_of_chips_has_every_profile() {
    let mut missing: BTreeSet<String> = ["generic", "soc-72"].map(String::from).into();
    for row in table(&section("Models, chips, platforms"), "chip") {
        let [title, name, so_far] = &row[..] else { panic!("{row:?}") };
        let name = name.trim_matches('`');
        let path = format!("plugins/profiles/{name}.json");
        let profile: serde_json::Value = serde_json::from_str(&tree::read(Path::new(&path))).expect(&path);
        assert_eq!(profile["title"], **title, "{path}");
        missing.insert(name.to_owned());
        let tested = COMPILED.iter().find(|(status, _)| so_far.starts_with(status));
        match tested {
            None => assert_eq!(so_far, "planned", "{name}"),
            Some((_, test)) => {
                assert!(tree::read(Path::new(test)).contains(&format!("\"{name}\"")), "{name} in {test}");
            }
        }
    }
    let folder = std::fs::read_dir(tree::root().join("plugins/profiles")).expect("profiles");
    let stem = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.expect("a file").path().file_stem().expect("a name").to_string_lossy().into_owned()
    };
    let profiles: BTreeSet<String> = folder.map(stem).collect();
    assert_eq!(missing, profiles);
}

/// The `model_type` of fixtures, and their rows in the table of models.
const ROWS: [(&str, &str); 13] = [
    ("gemma3_text", "Gemma 3"),
    ("gemma4", "Gemma 4"),
    ("gemma4_text", "Gemma 4"),
    ("llama", "Llama"),
    ("smollm3", "SmolLM3"),
    ("mistral", "Mistral"),
    ("ministral", "Mistral, Ministral"),
    ("qwen2", "Qwen 2"),
    ("qwen3", "Qwen 2, Qwen 3"),
    ("granite", "Granite 3"),
    ("granitemoehybrid", "Granite 3 and 4"),
    ("phi3", "Phi 3"),
    ("embedding_gemma2", "EmbeddingGemma 1 and 2"),
];

#[test]
fn the_table_of_models_has_every_family_that_was_compared() {
    let rows = table(&section("Models, chips, platforms"), "family");
    let mut inputs: BTreeMap<usize, BTreeSet<&str>> = BTreeMap::new();
    for entry in std::fs::read_dir(tree::root().join("tests/fixtures")).expect("fixtures") {
        let folder = entry.expect("a folder").path();
        let Ok(config) = std::fs::read(folder.join("config.json")) else { continue };
        let config: serde_json::Value = serde_json::from_slice(&config).expect("a configuration");
        let model_type = config["model_type"].as_str().expect("a type");
        let (_, begins) = ROWS.iter().find(|(known, _)| *known == model_type).expect(model_type);
        // EmbeddingGemma 1 has the type of a model that generates.
        let is_for_vectors = folder.join("modules.json").is_file();
        let begins = if is_for_vectors { "EmbeddingGemma" } else { begins };
        let row = rows.iter().position(|row| row[0].starts_with(begins));
        let row = row.unwrap_or_else(|| panic!("{model_type}: no row begins with {begins}"));
        let passes = passes_of(&folder).expect("passes").into_iter().map(|pass| match pass {
            Pass::Step if is_for_vectors => "text to vectors",
            Pass::Step => "text",
            Pass::Picture => "pictures",
            Pass::Clip => "sounds",
        });
        inputs.entry(row).or_default().extend(passes);
    }
    assert_eq!(inputs.len(), rows.len(), "a row without a fixture");
    for (row, inputs) in inputs {
        assert_eq!(rows[row][1].split(", ").collect::<BTreeSet<_>>(), inputs, "{}", rows[row][0]);
    }
    // Models with recorded outputs of published weights.
    let published: BTreeSet<&str> =
        rows.iter().map(|row| &*row[2]).filter(|weights| *weights != "none").collect();
    assert_eq!(published, BTreeSet::from(["Gemma 3 270M", "SmolLM2 135M"]));
    for model in ["gemma3-270m", "smollm2-135m"] {
        assert!(tree::root().join("tests/models").join(format!("{model}.json")).exists(), "{model}");
    }
}

/// Evidence in the tree for a claim about this project.
enum Evidence {
    /// A test, by file and name.
    Test(&'static str, &'static str),
    /// Checkpoints that the program reads.
    Reads(&'static [&'static str]),
    /// A sentence of the page of known gaps.
    Gap(&'static str),
}

/// Rows of the table of alternatives, with the claim about this project.
const CLAIMS: [(&str, &str, Evidence); 12] = [
    ("has run on phones", "no", Evidence::Gap("Shardwright has not run on a phone.")),
    ("GPU", "no", Evidence::Gap("There is no shim for a GPU.")),
    ("Kotlin, Python", "no", Evidence::Gap("no library for Kotlin, Swift or Python")),
    (
        "OpenAI server",
        "yes",
        Evidence::Test("tests/tests/program/howto_serve.rs", "official_clients_get_what_they_expect"),
    ),
    (
        "calls of tools parsed",
        "yes",
        Evidence::Test("tests/tests/program/howto_serve.rs", "official_clients_get_what_they_expect"),
    ),
    ("reads GGUF", "yes", Evidence::Reads(&["tests/fixtures/gguf/llama3.gguf"])),
    (
        "reads GPTQ, AWQ, compressed-tensors",
        "yes",
        Evidence::Reads(&[
            "tests/fixtures/quantised/gptq4_channel",
            "tests/fixtures/quantised/awq_group32",
            "tests/fixtures/quantised/compressed_int8_channel",
        ]),
    ),
    (
        "reports every flag that was ignored",
        "yes",
        Evidence::Test(
            "tests/vendors/tests/vendors/neuron_flags.rs",
            "a_compiler_that_repeats_twenty_flags_and_uses_none_is_found_out",
        ),
    ),
    (
        "plans again after a compiler's refusal",
        "yes",
        Evidence::Test("tests/tests/numbers/revision.rs", "a_refused_plan_is_revised_and_then_right"),
    ),
    (
        "one bundle for several chips",
        "yes",
        Evidence::Test(
            "tests/vendors/tests/vendors/variants.rs",
            "every_chip_runs_its_variant_whatever_the_order_and_the_form",
        ),
    ),
    (
        "a policy in a sandboxed file",
        "yes",
        Evidence::Test(
            "tests/tests/program/howto_soc_and_planner.rs",
            "a_planner_dropped_into_a_folder_plans",
        ),
    ),
    (
        "fits? answered before the download",
        "yes",
        Evidence::Test("tests/tests/program/without_weights.rs", "headers_are_enough_to_plan"),
    ),
];

/// Checks that the tree has this evidence.
fn expect_evidence(row: &str, evidence: &Evidence) {
    match evidence {
        Evidence::Test(file, name) => {
            let begins = format!("#[test]\nfn {name}() {{\n");
            assert!(tree::read(Path::new(file)).contains(&begins), "{row}: no test {name} in {file}");
        }
        Evidence::Reads(checkpoints) => {
            for checkpoint in *checkpoints {
                shardwright(["show"]).argument(checkpoint).succeeds();
            }
        }
        Evidence::Gap(sentence) => {
            let gaps = tree::read(Path::new("docs/known-gaps.md")).replace("\n  ", " ");
            assert!(gaps.contains(sentence), "{row}: no `{sentence}` among the known gaps");
        }
    }
}

#[test]
fn the_table_of_alternatives_has_evidence_and_sources() {
    let section = section("Alternatives");
    let compared = rows(&section, "| | Shardwright |");
    let sources = table(&section, "alternative");
    let named: Vec<&String> = sources.iter().map(|source| &source[0]).collect();
    assert_eq!(compared[0][2..].iter().collect::<Vec<_>>(), named, "columns without a source");
    for source in &sources {
        let [alternative, packages, address] = &source[..] else { panic!("{source:?}") };
        let has_version = packages.split(", ").all(|package| package.contains(|c: char| c.is_ascii_digit()));
        assert!(has_version, "{alternative}: {packages}");
        assert!(address.contains("](https://"), "{alternative}: {address}");
    }
    let mut claims = CLAIMS.iter();
    for row in &compared[2..] {
        let [name, own, others @ ..] = &row[..] else { panic!("{row:?}") };
        let (claimed, claim, evidence) = claims.next().unwrap_or_else(|| panic!("no evidence for {name}"));
        assert_eq!((&**name, own.trim_matches('*')), (*claimed, *claim));
        assert_eq!(others.len(), sources.len(), "{name}");
        for other in others {
            assert!(["yes", "no", "in part"].contains(&&**other), "{name}: {other}");
        }
        expect_evidence(name, evidence);
    }
    assert_eq!(claims.count(), 0, "evidence without a row");
    // A chip with a GPU would have a profile.
    for entry in std::fs::read_dir(tree::root().join("plugins/profiles")).expect("profiles") {
        let profile = std::fs::read(entry.expect("a file").path()).expect("a profile");
        let profile: serde_json::Value = serde_json::from_slice(&profile).expect("JSON");
        assert_ne!(profile["kind"], "gpu", "{profile}");
    }
}

/// The page states that the list of known gaps is the whole one.
#[test]
fn what_does_not_work_yet_is_a_known_gap() {
    let section = section("What does not work yet");
    let (list, _) = section.split_once("\n\n[").expect("a link below the list");
    let items: Vec<String> = list.split("\n* ").skip(1).map(|item| item.replace("\n  ", " ")).collect();
    assert!(items.len() > 3, "{items:?}");
    let gaps = tree::read(Path::new("docs/known-gaps.md")).replace("\n  ", " ");
    for item in &items {
        let sentence = item.split('.').next().unwrap_or_default().trim_start_matches("**");
        assert!(gaps.contains(sentence), "no `{sentence}` among the known gaps");
    }
    // Shards run in the program, unless the option says otherwise.
    let hangs = items.iter().find(|item| item.contains("hangs or ends your program")).expect("an item");
    assert!(hangs.contains("unless you set `--isolation process`"), "{hangs}");
}

/// Draws lines as a terminal in which a command appears first, then its output.
fn session(lines: &[&str]) -> String {
    const ROW: f64 = 18.0;
    let height = 22.0 + ROW * lines.len() as f64;
    let mut drawn = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 940 {height:.0}\" \
         font-family=\"monospace\" font-size=\"13\">\n\
         <rect width=\"940\" height=\"{height:.0}\" rx=\"8\" fill=\"#0d1117\"/>\n"
    );
    let mut second = 0.5;
    for (index, line) in lines.iter().enumerate().filter(|(_, line)| !line.is_empty()) {
        let is_command = line.starts_with("$ ");
        let (y, fill) = (24.0 + ROW * index as f64, if is_command { "#7ee787" } else { "#e6edf3" });
        let shown = line.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(
            drawn,
            "<text x=\"16\" y=\"{y:.0}\" fill=\"{fill}\" xml:space=\"preserve\" opacity=\"0\">{shown}\
             <set attributeName=\"opacity\" to=\"1\" begin=\"{second:.1}s\" fill=\"freeze\"/></text>",
        );
        second += if is_command { 1.2 } else { 0.2 };
    }
    drawn + "</svg>\n"
}

/// Another test compares these lines with the output of the demo. `SHARDWRIGHT_WRITE_SCREENS=1`
/// draws the session again.
#[test]
fn the_recorded_session_has_the_lines_of_the_page() {
    let path = "docs/images/session.svg";
    let drawn = session(&block(&section("Try it"), "text"));
    if std::env::var_os("SHARDWRIGHT_WRITE_SCREENS").is_some() {
        std::fs::write(tree::root().join(path), &drawn).expect("written");
    }
    assert_eq!(tree::read(Path::new(path)), drawn, "{path}");
    assert!(page().contains(path));
}

/// Measures the table with the command above it, in thorough runs.
#[test]
fn losses_of_formats_are_those_that_the_command_measures() {
    if !cases(false, true) {
        return;
    }
    let Some(models) = std::env::var_os("SHARDWRIGHT_MODELS").map(PathBuf::from) else {
        return skipped("losses of formats: `cargo xtask vendor models` fetches the models");
    };
    let mut wrong = Vec::new();
    for row in table(&section("What formats cost"), "weights/activations/KV cache") {
        for (model, shown) in ["gemma3-270m", "smollm2-135m"].into_iter().zip(&row[1..]) {
            let folder = models.join(model).join("folder");
            let run = shardwright(["perplexity"]).argument(&folder).arguments(["--formats", &row[0]]);
            let run = run.arguments(["--rounding", "nearest", "--text", "demo-model/README.md"]);
            let report = run.argument("--against").argument(&folder).json();
            let found = report["against"]["kl"]["mean"]["value"].as_f64().expect("a loss");
            let figure: f64 = shown.replace(',', "").parse().expect("a figure");
            // A unit of the last digit, or the spread of other processors.
            let decimals = shown.split_once('.').map_or(0, |(_, decimals)| decimals.len());
            let most = 0.1_f64.powi(i32::try_from(decimals).expect("few")).max(figure * 0.02);
            if (found - figure).abs() > most {
                wrong.push(format!("{model}, {}: {found}, the page has {shown}", row[0]));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn figures_of_speed_are_those_of_the_benchmarks() {
    let benchmarks = tree::read(Path::new("BENCHMARKS.md"));
    for row in table(&section("Speed"), "model") {
        let begins = format!("| {} | {} | {}", row[0], row[1], row[2]);
        assert!(benchmarks.lines().any(|line| line.starts_with(&begins)), "no row begins with {begins}");
        let (_, formats) = row[0].split_once(", ").expect("formats");
        let losses = match formats {
            "int8 against Q8_0" => format!("int8 loses {} and Q8_0 {}.", row[3], row[4]),
            _ => format!("Int4, rounded to the nearest, loses {}, and Q4_0 {}.", row[3], row[4]),
        };
        assert!(benchmarks.replace('\n', " ").contains(&losses), "no `{losses}`");
    }
}
