//! The page that `plan --html` writes: as a file, and in a browser.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use shardwright_tests::browser::{self, Browser, FAINT};
use shardwright_tests::checkpoints::{DEMO_MODEL, MULTIMODAL_FIXTURE};
use shardwright_tests::program::{Run, shardwright};
use shardwright_tests::{skipped, tree};
use tempfile::TempDir;

/// Prepares a plan of several shards.
fn plan(checkpoint: impl AsRef<Path>, page: &Path) -> Run {
    shardwright(["plan", "--no-measure", "--soc", "mt6989", "--limit", "ops=400", "--html"])
        .argument(page)
        .argument(checkpoint.as_ref())
}

/// Returns the layers in a plan, each with its shard.
fn layers(plan: &Value) -> Vec<Value> {
    let shards = plan["shards"].as_array().expect("shards");
    shards.iter().flat_map(|shard| shard["by_layer"].as_array().expect("layers").clone()).collect()
}

#[test]
fn a_page_is_written_beside_the_usual_output() {
    let folder = TempDir::new().expect("a folder");
    let page = folder.path().join("page.html");
    fs::write(&page, "what was there before").expect("written");
    let in_the_way = "page.html: the file exists and is not the page of a plan";
    plan(DEMO_MODEL, &page).refuses_with(2, &[in_the_way]);
    assert_eq!(fs::read(&page).expect("left alone"), b"what was there before");
    fs::remove_file(&page).expect("removed");
    let with_page = plan(DEMO_MODEL, &page).json();
    let text = fs::read_to_string(&page).expect("a page");
    assert!(text.starts_with("<!doctype html>") && text.ends_with("</html>\n"), "{text}");
    // An earlier page is replaced, and the report is the same.
    fs::write(&page, text.replace("</body>", "an earlier one</body>")).expect("written");
    assert_eq!(plan(DEMO_MODEL, &page).json(), with_page);
    assert_eq!(fs::read_to_string(&page).expect("a page"), text);
    // The page shows the content of the report: each layer once.
    let layers = layers(&with_page);
    assert!(layers.len() > 8, "{layers:?}");
    assert_eq!(text.matches("class=\"cell\"").count(), layers.len());
    assert_eq!(text.matches("<tr id=\"layer-").count(), layers.len());

    let nowhere = folder.path().join("nowhere/page.html");
    plan(DEMO_MODEL, &nowhere).refuses_with(3, &["nowhere/page.html"]);
}

/// The fixture plans both its towers. Each writes a page and a request of its own.
#[test]
fn the_files_of_towers_lie_beside_those_of_the_text() {
    let folder = TempDir::new().expect("a folder");
    let file = |name: &str| folder.path().join(name);
    plan(MULTIMODAL_FIXTURE, &file("plan.html"))
        .argument("--write-request")
        .argument(file("request.bin"))
        .succeeds();
    let read = |name: &str| fs::read(file(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    for names in [
        ["plan.html", "plan.picture.html", "plan.clip.html"],
        ["request.bin", "request.picture.bin", "request.clip.bin"],
    ] {
        let [text, picture, clip] = names.map(read);
        assert!(!picture.is_empty() && picture != text && picture != clip && clip != text);
    }
    assert!(read("plan.clip.html").starts_with(b"<!doctype html>"));

    fs::create_dir(file("other.picture.html")).expect("a folder in the way");
    plan(MULTIMODAL_FIXTURE, &file("other.html")).refuses_with(2, &["other.picture.html"]);
}

#[test]
fn two_plans_are_compared() {
    let folder = TempDir::new().expect("a folder");
    let written = |name: &str, limit: &str| {
        let arguments =
            ["plan", "--no-measure", DEMO_MODEL, "--soc", "mt6989", "--limit", limit, "--format", "json"];
        let path = folder.path().join(name);
        fs::write(&path, shardwright(arguments).succeeds()).expect("written");
        path
    };
    let (one, other) = (written("one.json", "ops=300"), written("other.json", "ops=150"));
    let diff =
        |before: &PathBuf, after: &PathBuf| shardwright(["plan", "diff"]).argument(before).argument(after);
    assert!(diff(&one, &one).succeeds().ends_with("no changes\n"));

    let changed = diff(&one, &other).outcome();
    assert_eq!(changed.code, Some(1), "{}", changed.stderr);
    for part in ["mt6989 ops: value: 300 → 150 (-50 %)", "cut: embed", "decoder.0-"] {
        assert!(changed.stdout.contains(part), "{part}\n{}", changed.stdout);
    }
    let changed = diff(&one, &other).arguments(["--format", "json"]).outcome();
    let changed: Value = serde_json::from_str(&changed.stdout).expect("JSON");
    assert_eq!(changed["same"], false);
    let limit = json!({
        "topic": "limits", "place": "mt6989 ops", "what": "value", "before": 300, "after": 150,
        "unit": "none",
    });
    assert!(changed["changes"].as_array().expect("changes").contains(&limit), "{changed:#}");
}

/// JavaScript that returns null for a hidden panel, or its text and whether all of it is in the
/// window.
const PANEL: &str = r"(() => {
  const panel = document.getElementById('detail');
  const box = panel.getBoundingClientRect();
  const seen = box.top >= 0 && box.bottom <= innerHeight + 1 && box.right <= innerWidth + 1;
  return panel.hidden ? null : { text: panel.innerText, seen };
})()";

/// JavaScript that checks whether the panel leaves the selected layer visible.
const UNCOVERED: &str = r"(() => {
  const layer = document.querySelector('.cell.shown');
  const box = layer.getBoundingClientRect();
  return layer.contains(document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2));
})()";

/// A layer in the middle, whose shard has reasons.
const LAYER: &str = "[data-layer='4']";

fn panel(browser: &mut Browser) -> Value {
    browser.evaluate(PANEL)
}

/// Views the page at two widths and in both colour schemes, and uses it by mouse, by keyboard and
/// without its script. Pictures are left in `target/tmp`, so that people can look at them too.
#[test]
#[ignore = "needs Chromium: see CONTRIBUTING.md"]
fn a_page_is_looked_at_and_used_in_a_browser() {
    let Some(program) = browser::installed() else {
        skipped("the page of a plan in a browser: no Chromium is installed");
        return;
    };
    let folder = TempDir::new().expect("a folder");
    // A checkpoint whose name would be an HTML element that changes the title.
    let named = folder.path().join("<img src=x onerror=\"document.title='obeyed'\">");
    symlink(tree::root().join(DEMO_MODEL), &named).expect("a link");
    let page = folder.path().join("page.html");
    let report = plan(&named, &page).json();
    let layers = layers(&report);
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let mut browser = Browser::start(&program);

    for (scheme, ground) in [("light", "rgb(255, 255, 255)"), ("dark", "rgb(21, 24, 27)")] {
        for (width, height) in [(1280, 800), (360, 740)] {
            let look = format!("{scheme}, {width} pixels");
            browser.set_look(width, height, scheme);
            browser.open(&page);
            let picture = pictures.join(format!("plan-page-{width}-{scheme}.png"));
            fs::write(&picture, browser.picture()).expect("written");
            let mut ask = |question: &str| browser.evaluate(question);
            // The page's own script runs, and no other one does.
            assert_eq!(ask("document.documentElement.className"), "scripted", "{look}");
            assert_eq!(ask("document.querySelectorAll('img, iframe, script, link').length"), 1, "{look}");
            let title = ask("document.title");
            assert!(title.as_str().is_some_and(|title| title.starts_with("<img")), "{look}: {title}");
            assert_eq!(ask("document.querySelectorAll('.cell').length"), layers.len(), "{look}");
            // The page fits, is readable, and works by touch.
            assert_eq!(ask("getComputedStyle(document.body).backgroundColor"), ground, "{look}");
            assert!(ask("document.documentElement.scrollWidth").as_u64() <= Some(width.into()), "{look}");
            assert_eq!(ask(FAINT), json!([]), "{look}");
            let small = "[...document.querySelectorAll('.cell, .head')].map((it) => it.getBoundingClientRect())\
                         .filter((box) => box.width < 24 || box.height < 24).length";
            assert_eq!(ask(small), 0, "{look}");

            // Pointing at a layer shows its figures and the reasons of its shard.
            assert_eq!(panel(&mut browser), Value::Null, "{look}");
            browser.point_at(LAYER);
            let shown = panel(&mut browser);
            let text = shown["text"].as_str().unwrap_or_default();
            let layer = &layers[4];
            let name = format!("{} {}", layer["component"].as_str().unwrap_or_default(), layer["layer"]);
            for part in [name.as_str(), layer["formats"].as_str().unwrap_or_default(), "Reasons for shard"] {
                assert!(text.contains(part), "{look}: {part}\n{shown}");
            }
            assert_eq!(shown["seen"], true, "{look}: {shown}");
            browser.point_at("h1");
            assert_eq!(panel(&mut browser), Value::Null, "{look}");
            // After a click the panel stays until it is dismissed.
            browser.click(LAYER);
            assert_eq!(browser.evaluate(UNCOVERED), true, "{look}");
            let picture = pictures.join(format!("plan-page-{width}-{scheme}-panel.png"));
            fs::write(&picture, browser.picture()).expect("written");
            browser.point_at("h1");
            assert_eq!(panel(&mut browser)["text"], text, "{look}");
            browser.press("Escape", 27);
            assert_eq!(panel(&mut browser), Value::Null, "{look}");
            // Every layer can be reached with the keyboard alone.
            browser.evaluate("document.querySelector('.head').focus()");
            let (mut reached, mut tabs) = (Vec::new(), 0);
            while reached.len() < layers.len() {
                browser.press("Tab", 9);
                let at = browser.evaluate("document.activeElement.dataset?.layer ?? null");
                tabs += 1;
                assert!(tabs < 60, "{look}: {reached:?}");
                if let Some(at) = at.as_str() {
                    assert_ne!(panel(&mut browser), Value::Null, "{look}: {at}");
                    reached.push(at.to_owned());
                }
            }
            let all: Vec<String> = (0..layers.len()).map(|index| index.to_string()).collect();
            assert_eq!(reached, all, "{look}");

            let asked: Vec<_> = browser.events("Network.requestWillBeSent").collect();
            assert_eq!(asked.len(), 1, "{look}: {asked:?}");
            for complaint in ["Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"] {
                assert_eq!(browser.events(complaint).next(), None, "{look}");
            }
        }
    }

    // Without scripts a layer links to its row, and the reasons are on the page.
    browser.call("Emulation.setScriptExecutionDisabled", json!({ "value": true }));
    browser.open(&page);
    browser.click(LAYER);
    assert_eq!(browser.evaluate("location.hash"), "#layer-4");
    assert_eq!(browser.evaluate("document.documentElement.className"), "");
    for shard in report["shards"].as_array().expect("shards") {
        let reasons = shard["reasons"].as_array().expect("reasons");
        let seen =
            browser.evaluate(&format!("document.querySelector('#shard-{}').innerText", shard["index"]));
        let seen = seen.as_str().expect("a text");
        assert!(!reasons.is_empty());
        for reason in reasons {
            for part in ["choice", "because"] {
                // On the page, names in backticks are code.
                let part = reason[part].as_str().expect("a text").replace('`', "");
                assert!(seen.contains(&part), "{part}\n{seen}");
            }
        }
    }
}
