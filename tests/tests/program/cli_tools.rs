//! Tools of `run`: calls on standard output, choices, and results in a conversation.

use serde_json::Value;
use shardwright_tests::calling::{TOOLS, calling};
use shardwright_tests::program::shardwright;

/// Returns the lines of JSON of an output.
fn lines(output: &str) -> Vec<Value> {
    output
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

#[test]
fn calls_are_lines_of_json_and_choices_force_them() {
    let (checkpoint, folder) = (calling(), tempfile::tempdir().expect("a temporary folder"));
    let tools = folder.path().join("tools.json").display().to_string();
    std::fs::write(&tools, TOOLS).expect("written");
    let run = |more: &[&str]| {
        let run =
            shardwright(["run"]).argument(checkpoint.path()).arguments(["--prompt", "hello", "--quiet"]);
        run.arguments(["--tools", &tools]).arguments(more).outcome()
    };
    let plain = run(&[]);
    assert_eq!((plain.code, plain.stdout.as_str()), (Some(0), "Z\n"), "{}", plain.stderr);
    assert_eq!(run(&["--tool-choice", "none"]).stdout, "Z\n");
    let named = run(&["--tool-choice", "now"]);
    assert_eq!(named.code, Some(0), "{}", named.stderr);
    let [call] = &lines(&named.stdout)[..] else { panic!("{}", named.stdout) };
    assert_eq!((&call["name"], &call["arguments"]), (&"now".into(), &serde_json::json!({})));
    let required = run(&["--tool-choice", "required"]);
    assert!(lines(&required.stdout).iter().all(|call| call["id"].is_string()), "{}", required.stdout);
    assert_eq!(run(&["--tool-choice", "sleep"]).code, Some(2));

    let json = lines(&run(&["--tool-choice", "get_weather", "--format", "json"]).stdout);
    let begin = json.iter().find_map(|line| line.get("call_begin")).expect("a begin");
    let call = json.iter().find_map(|line| line.get("call")).expect("a call");
    let texts = json.iter().filter_map(|line| line["call_arguments"]["text"].as_str()).collect::<String>();
    assert_eq!((&begin["name"], &begin["id"], &begin["index"]), (&call["name"], &call["id"], &0.into()));
    assert_eq!(&serde_json::from_str::<Value>(&texts).expect("JSON"), &call["arguments"]);
    let done = json.last().expect("an end");
    assert_eq!((&done["calls"][0]["id"], &done["reply"]), (&call["id"], &"".into()));
}

#[test]
fn a_result_is_a_line_of_a_conversation() {
    let (checkpoint, folder) = (calling(), tempfile::tempdir().expect("a temporary folder"));
    let tools = folder.path().join("tools.json").display().to_string();
    std::fs::write(&tools, TOOLS).expect("written");
    let talk = |choice: &str, lines: &str| {
        let input = folder.path().join("lines");
        std::fs::write(&input, lines).expect("written");
        let run = shardwright(["run"])
            .argument(checkpoint.path())
            .arguments(["--chat", "--quiet", "--format", "json"]);
        run.arguments(["--tools", &tools, "--tool-choice", choice]).input(input).outcome()
    };
    let talked = talk("now", "hello\n/result noon\n/result again\n");
    assert_eq!(talked.code, Some(0), "{}", talked.stderr);
    // Each reply is forced to be a call, also the one after the result.
    let done: Vec<Value> =
        lines(&talked.stdout).into_iter().filter(|line| line.get("done").is_some()).collect();
    assert_eq!(done.len(), 3, "{}", talked.stdout);
    let tokens = |index: usize| done[index]["statistics"]["prompt_tokens"].as_u64().expect("tokens");
    assert!(tokens(0) < tokens(1) && tokens(1) < tokens(2), "the results are part of the conversation");
    let ids: Vec<&Value> = done.iter().map(|done| &done["calls"][0]["id"]).collect();
    assert!(ids[0] != ids[1] && ids[1] != ids[2], "{ids:?}");

    let none = talk("auto", "/result noon\nhello\n");
    assert!(none.stderr.contains("no call waits for a result"), "{}", none.stderr);
    let done = lines(&none.stdout).into_iter().filter(|line| line.get("done").is_some());
    assert_eq!(done.count(), 1, "only the turn has a reply");
}

#[test]
fn files_of_tools_are_checked() {
    let (checkpoint, folder) = (calling(), tempfile::tempdir().expect("a temporary folder"));
    let tools = folder.path().join("tools.json");
    for (text, code, says) in [
        ("{", 4, "not valid JSON"),
        ("[1]", 2, "a tool should be a JSON object"),
        (r#"{"type": "function", "function": {"name": "a b"}}"#, 2, "`function.name`"),
    ] {
        std::fs::write(&tools, text).expect("written");
        let run =
            shardwright(["run"]).argument(checkpoint.path()).arguments(["--prompt", "hello", "--tools"]);
        run.argument(&tools).refuses_with(code, &[says, "tools.json"]);
    }
}
