//! Follows the page for programs that use the server, and calls the server with the official
//! clients of OpenAI's interface. Each client gets the replies that the program itself prints.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use shardwright_tests::checkpoints::{Copy, DEMO_MODEL, EMBEDDING_FIXTURE, MULTIMODAL_FIXTURE};
use shardwright_tests::program::{Outcome, finished, shardwright};
use shardwright_tests::serving::Server;
use shardwright_tests::{skipped, tree};
use tempfile::NamedTempFile;

/// Variable that `cargo xtask test` sets to the folder of the clients.
const VARIABLE: &str = "SHARDWRIGHT_CLIENTS";

const PAGE: &str = "docs/how-to/serve.md";

/// The address in the page.
const ADDRESS: &str = "http://127.0.0.1:8080";

/// The key of the server that the clients call.
const SECRET: &str = "a-key-of-these-tests";

/// The question of the page.
const QUESTION: &str = "What does bug mean?";

/// Files that the multimodal fixture reads.
const PICTURE: &str = "host/preprocessing/tests/preprocessing/files/smooth.jpg";
const SOUND: &str = "host/preprocessing/tests/preprocessing/files/sine_16k.flac";

/// Returns the folder of the clients, or reports that `what` is skipped.
fn clients(what: &str) -> Option<PathBuf> {
    let folder = std::env::var_os(VARIABLE).map(PathBuf::from);
    if folder.is_none() {
        skipped(&format!("{what}: {VARIABLE} names no clients; `cargo xtask vendor clients` fetches them"));
    }
    folder
}

/// Returns the program of the page in a language, for a server at another address.
fn program_of_page(language: &str, server: &Server) -> String {
    let page = tree::read(Path::new(PAGE));
    let fences: Vec<&str> = page.split("```").skip(1).step_by(2).collect();
    let with = |fence: &&&str| fence.lines().next() == Some(language) && fence.contains(ADDRESS);
    let [fence] = fences.iter().filter(with).collect::<Vec<_>>()[..] else {
        panic!("expected one program in {language} in {PAGE}")
    };
    let indent = |line: &str| line.strip_prefix("   ").unwrap_or(line).to_owned();
    let lines: Vec<String> =
        fence.lines().skip(1).map(indent).filter(|line| !line.trim().is_empty()).collect();
    assert!(lines.len() <= 10, "{language}: {} lines", lines.len());
    lines.join("\n").replace(ADDRESS, &server.address(""))
}

/// Returns the command that runs a file with the clients.
fn command(program: &str, clients: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).env("PYTHONPATH", clients.join("python")).env("NO_PROXY", "127.0.0.1");
    // The clients would use them instead of the arguments.
    for name in ["OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"] {
        command.env_remove(name);
    }
    command
}

/// Returns the output of a client that succeeded.
fn output(command: Command, server: &Server) -> String {
    let shown = format!("{command:?}");
    let Outcome { code, stdout, stderr } = finished(command);
    assert_eq!(code, Some(0), "{shown}\n{stdout}{stderr}\n{}", server.output());
    stdout
}

/// Writes a program for Node next to the packages that it imports.
fn node(clients: &Path, folder: &Path, name: &str, text: &str) -> PathBuf {
    let link = folder.join("node_modules");
    if !link.exists() {
        std::os::unix::fs::symlink(clients.join("node_modules"), &link).expect("a link");
    }
    let file = folder.join(name);
    fs::write(&file, text).expect("written");
    file
}

/// Returns the reply that the program prints.
fn expected() -> String {
    let run = ["run", DEMO_MODEL, "--chat", "--greedy", "--prompt", QUESTION];
    shardwright(run).succeeds().trim_end().to_owned()
}

#[test]
fn the_programs_of_the_page_print_the_reply() {
    let Some(clients) = clients("programs of the how-to page of the server") else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = Server::start([DEMO_MODEL]);
    let expected = expected();
    assert!(expected.starts_with("An unwanted"), "{expected}");

    let python = folder.path().join("page.py");
    fs::write(&python, program_of_page("python", &server)).expect("written");
    let mut run = command("python3", &clients, folder.path());
    run.arg(python);
    assert_eq!(output(run, &server).trim_end(), expected);

    let page = node(&clients, folder.path(), "page.mjs", &program_of_page("js", &server));
    let mut run = command("node", &clients, folder.path());
    run.arg(page);
    assert_eq!(output(run, &server).trim_end(), expected);
}

/// curl is part of every system, so it needs no fetched client.
#[test]
fn the_command_of_the_page_prints_the_reply() {
    let server = Server::start([DEMO_MODEL]);
    let mut run = Command::new("sh");
    run.args(["-euc", &program_of_page("sh", &server)]);
    let answer: Value = serde_json::from_str(&output(run, &server)).expect("JSON");
    assert_eq!(answer["choices"][0]["message"]["content"].as_str().map(str::trim_end), Some(&*expected()));
}

/// The default address is the one that the page names.
#[test]
fn the_page_names_the_default_address() {
    let help = shardwright(["serve", "--help"]).succeeds();
    let (host, port) = ADDRESS.strip_prefix("http://").and_then(|rest| rest.split_once(':')).expect("a port");
    for part in [host, port] {
        assert!(help.contains(part), "{part}\n{help}");
    }
    for page in ["README.md", "docs/using.md", PAGE] {
        assert!(tree::read(Path::new(page)).contains(&format!("`{ADDRESS}/`")), "{page}");
    }
}

/// The models of the clients' tests: text, the same with a template that has tools, vectors, and
/// pictures.
struct Served {
    server: Server,
    /// The argument of the clients.
    given: Value,
    /// The vectors of the texts that the clients send.
    vectors: Vec<Vec<f64>>,
    _tools: Copy,
    _keys: NamedTempFile,
}

impl Served {
    fn start() -> Served {
        let template = tree::read(Path::new("tests/clients/tools.jinja"));
        let tools = Copy::of(DEMO_MODEL).with("chat_template.jinja", template);
        let own = tools.path().to_str().expect("a path").to_owned();
        let keys = NamedTempFile::new().expect("a temporary file");
        fs::write(keys.path(), SECRET).expect("written");
        let keys_path = keys.path().to_str().expect("a path");
        let models = [DEMO_MODEL, own.as_str(), EMBEDDING_FIXTURE, MULTIMODAL_FIXTURE];
        let server = Server::start(models.into_iter().chain(["--api-key", keys_path]));
        let name = |path: &str| {
            Path::new(path).file_name().and_then(|name| name.to_str()).expect("a name").to_owned()
        };
        let encoded = |file: &str| base64(&fs::read(tree::root().join(file)).expect("a file"));
        let parameters = json!({
            "type": "object", "properties": { "city": { "type": "string", "enum": ["Paris", "Rome"] } },
            "required": ["city"], "additionalProperties": false,
        });
        let schema = json!({
            "type": "object", "required": ["kind", "size"], "additionalProperties": false,
            "properties": {
                "kind": { "type": "string", "enum": ["bug", "kluge"] },
                "size": { "type": "integer", "minimum": 1, "maximum": 9 },
            },
        });
        let given = json!({
            "server": server.address("/v1"), "key": SECRET, "question": QUESTION,
            "chat": name(DEMO_MODEL), "tools": name(&own), "embed": name(EMBEDDING_FIXTURE),
            "sees": name(MULTIMODAL_FIXTURE), "schema": schema,
            "picture": format!("data:image/jpeg;base64,{}", encoded(PICTURE)), "sound": encoded(SOUND),
            "tool": { "name": "weather", "description": "Returns the weather", "parameters": parameters },
        });
        let lines = shardwright(["embed", EMBEDDING_FIXTURE, "a text", "another"]).succeeds();
        let numbers = |line: &str| line.split(' ').map(|number| number.parse().expect("a number")).collect();
        Served { server, given, vectors: lines.lines().map(numbers).collect(), _tools: tools, _keys: keys }
    }

    /// Checks the results that all clients have.
    fn check(&self, results: &Value, client: &str) {
        let expected = expected();
        for name in ["reply", "streamed"] {
            assert_eq!(results[name].as_str().map(str::trim_end), Some(&*expected), "{client}: {name}");
        }
        assert_eq!(results["finish"], "stop", "{client}");
        assert_eq!(results["tokens"], results["streamed_tokens"], "{client}");
        let generated = results["tokens"][1].as_u64().expect("a number");
        assert!(results["pieces"].as_u64() > Some(generated / 4), "{client}: {results}");
        assert_eq!(results["call"]["name"], "weather", "{client}");
        let city = results["call"]["arguments"]["city"].as_str().unwrap_or_default();
        assert!(["Paris", "Rome"].contains(&city), "{client}: {results}");
        assert_eq!(results["call_finish"], "tool_calls", "{client}");
        let typed = &results["typed"];
        assert!(["bug", "kluge"].contains(&typed["kind"].as_str().unwrap_or_default()), "{client}: {typed}");
        assert!((1..=9).contains(&typed["size"].as_i64().unwrap_or_default()), "{client}: {typed}");
        let vectors: Vec<Vec<f64>> = serde_json::from_value(results["vectors"].clone()).expect("vectors");
        assert_eq!(vectors.len(), self.vectors.len(), "{client}");
        for (vector, own) in vectors.iter().zip(&self.vectors) {
            let is_near = |(one, other): (&f64, &f64)| (one - other).abs() < 1e-6;
            assert!(vector.len() == own.len() && vector.iter().zip(own).all(is_near), "{client}: {vector:?}");
        }
        // A picture has at most 70 soft tokens, with a few tokens around them.
        let tokens = results["picture_tokens"].as_i64().unwrap_or_default();
        assert!((40..=72).contains(&tokens), "{client}: {tokens}");
    }

    /// Checks the results that only the clients of OpenAI have.
    fn check_openai(&self, results: &Value, client: &str) {
        let names = ["chat", "tools", "embed", "sees"].map(|name| self.given[name].clone());
        assert_eq!(results["models"], json!(names), "{client}");
        assert!(results["reused"].as_u64() > Some(0), "{client}: {results}");
        assert_eq!(results["response"].as_str().map(str::trim_end), Some(&*expected()), "{client}");
        let run = ["run", DEMO_MODEL, "--raw", "--greedy", "-n", "4", "--prompt", "It is"];
        let continued = shardwright(run).succeeds();
        let own = results["continued"].as_str().unwrap_or_default();
        assert!(!own.is_empty() && continued.contains(own.trim()), "{client}: {own}\n{continued}");
        assert!(results["sound_tokens"].as_u64() > Some(2), "{client}: {results}");
        assert!(results["after_call"].as_u64() > results["tokens"][0].as_u64(), "{client}: {results}");
        for (index, (status, part)) in [(404, "unknown"), (400, "no_such_field")].into_iter().enumerate() {
            let refused = &results["refused"][index];
            assert_eq!(refused[0], status, "{client}: {refused}");
            assert!(refused[1].as_str().is_some_and(|text| text.contains(part)), "{client}: {refused}");
        }
    }
}

/// Encodes bytes in base 64 with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for part in bytes.chunks(3) {
        let bits =
            part.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - part.len()));
        for digit in 0..4 {
            let value = (bits >> (18 - 6 * digit)) as usize & 63;
            text.push(if digit <= part.len() { char::from(DIGITS[value]) } else { '=' });
        }
    }
    text
}

#[test]
fn official_clients_get_what_they_expect() {
    let Some(clients) = clients("official clients of the server") else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let served = Served::start();
    let given = served.given.to_string();
    let sources = tree::root().join("tests/clients");
    let parsed = |text: String| -> Value {
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    };

    let mut run = command("python3", &clients, folder.path());
    run.arg(sources.join("openai_python.py")).arg(&given);
    let results = parsed(output(run, &served.server));
    served.check(&results, "openai for Python");
    served.check_openai(&results, "openai for Python");

    for (name, is_openai) in [("openai_node", true), ("ai_sdk", false)] {
        let text = tree::read(&Path::new("tests/clients").join(name).with_extension("js"));
        let file = node(&clients, folder.path(), &format!("{name}.mjs"), &text);
        let mut run = command("node", &clients, folder.path());
        run.arg(file).arg(&given);
        let results = parsed(output(run, &served.server));
        served.check(&results, name);
        if is_openai {
            served.check_openai(&results, name);
        }
    }
}

/// `llm` reads models from a file in its own folder.
#[test]
fn the_program_llm_chats_streams_sees_and_keeps_a_schema() {
    let Some(clients) = clients("the program llm") else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let served = Served::start();
    let model = |id: &str, name: &Value| {
        let base = served.server.address("/v1");
        format!(
            "- model_id: {id}\n  model_name: {name}\n  api_base: \"{base}\"\n  api_key_name: own\n  \
             supports_schema: true\n  vision: true\n"
        )
    };
    let models = model("chat", &served.given["chat"]) + &model("sees", &served.given["sees"]);
    fs::write(folder.path().join("extra-openai-models.yaml"), models).expect("written");
    let llm = |arguments: &[&str]| {
        let mut run = command("python3", &clients, folder.path());
        run.env("LLM_USER_PATH", folder.path()).args(["-m", "llm", "--key", SECRET, "--no-log"]);
        run.args(["-o", "temperature", "0"]);
        run.args(arguments);
        output(run, &served.server)
    };
    let expected = expected();
    assert_eq!(llm(&["-m", "chat", QUESTION]).trim_end(), expected);
    assert_eq!(llm(&["-m", "chat", "--no-stream", QUESTION]).trim_end(), expected);
    let schema = served.given["schema"].to_string();
    let typed: Value =
        serde_json::from_str(&llm(&["-m", "chat", "--schema", &schema, QUESTION])).expect("JSON");
    assert!(["bug", "kluge"].contains(&typed["kind"].as_str().unwrap_or_default()), "{typed}");
    let picture = tree::root().join(PICTURE).display().to_string();
    let limited = ["-m", "sees", "-o", "max_tokens", "4"];
    let seen = llm(&[&limited[..], &["-a", &picture, QUESTION]].concat());
    assert_ne!(seen, llm(&[&limited[..], &[QUESTION]].concat()), "the picture has no effect");
}

#[test]
fn base_64_is_encoded_with_padding() {
    for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")] {
        assert_eq!(base64(bytes.as_bytes()), text);
    }
}
