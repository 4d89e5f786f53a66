//! Each endpoint with replies of real models, whole and streamed.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use shardwright::{EmbedOptions, Isolation, OpenOptions};
use shardwright_serve::ServedModel;
use shardwright_tests::checkpoints::{DEMO_MODEL, EMBEDDING_FIXTURE};
use shardwright_tests::chip::{CHIP, TestChip};
use shardwright_tests::program::search_path;
use shardwright_tests::scripted::scripted;
use shardwright_tests::tree;

use super::client::{get, metric, post};
use super::{CHAT, Running, calling, chat, embedding, model, seeing};

const QUESTION: &str = "What is politics?";

/// Returns the reply of the library.
fn expected() -> String {
    let options = OpenOptions::new().search_path(search_path()).threads(1);
    let model = options.open(tree::root().join(DEMO_MODEL)).expect("it opens");
    let mut session = model.session().expect("a session");
    session.options.sampling.do_sample = false;
    session.chat(QUESTION).and_then(shardwright::Reply::text).expect("a reply")
}

#[test]
fn chats_are_the_replies_of_the_library_whole_and_streamed() {
    let server = Running::demo();
    let expected = expected();
    let whole = post(server.address, CHAT, &chat(QUESTION, &json!({ "user": "me" })));
    assert_eq!((whole.status, whole.header("shardwright-fields-without-effect")), (200, Some("user")));
    let reply = whole.json();
    assert_eq!(reply["choices"][0]["message"]["content"], expected, "{reply}");
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    assert_eq!(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let tokens = |usage: &Value, name: &str| usage[name].as_u64().expect("a count");
    let usage = &reply["usage"];
    let sum = tokens(usage, "prompt_tokens") + tokens(usage, "completion_tokens");
    assert_eq!(tokens(usage, "total_tokens"), sum);

    let streaming = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let stream = post(server.address, CHAT, &chat(QUESTION, &streaming));
    assert_eq!(stream.header("content-type"), Some("text/event-stream"));
    assert!(stream.body.ends_with("data: [DONE]\n\n"), "{}", stream.body);
    let events = stream.events();
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let pieces: Vec<&str> =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(pieces.concat(), expected);
    assert!(pieces.len() > 4, "{pieces:?}");
    let last = events.last().expect("an event");
    assert_eq!(last["choices"], json!([]));
    // The prompt was cached by the first request, except for its last token.
    let cached = &last["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert_eq!(cached.as_u64(), Some(tokens(usage, "prompt_tokens") - 1), "{last}");
    assert!(last["timings"]["predicted_per_second"].as_f64() > Some(0.0), "{last}");
    assert_eq!(
        metric(server.address, "shardwright_responses_total{endpoint=\"chat\",status=\"200\"}"),
        Some(2.0)
    );
    assert!(metric(server.address, "shardwright_reused_tokens_total") > Some(0.0));
    assert_eq!(metric(server.address, "shardwright_time_to_first_token_seconds_count"), Some(2.0));
    server.end();
}

#[test]
fn stop_seed_and_limits_of_tokens_decide_the_end() {
    let server = Running::demo();
    let ask = |more: Value| post(server.address, CHAT, &chat(QUESTION, &more)).json();
    let cut = ask(json!({ "max_tokens": 3 }));
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    assert_eq!(cut["usage"]["completion_tokens"], 3);
    let stopped = ask(json!({ "stop": [" interests"] }));
    let text = stopped["choices"][0]["message"]["content"].as_str().expect("text").to_owned();
    assert!(expected().starts_with(&text) && !text.contains("interests"), "{text}");
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let drawn = |seed: u64| {
        ask(json!({ "temperature": 1.5, "seed": seed, "max_tokens": 24 }))["choices"][0]["message"].clone()
    };
    assert_eq!(drawn(7), drawn(7));
    assert!((1..8).any(|seed| drawn(seed) != drawn(7)));
}

#[test]
fn likelihoods_belong_to_the_tokens_of_the_text() {
    let server = Running::demo();
    let more = json!({ "logprobs": true, "top_logprobs": 2, "max_tokens": 8 });
    let check = |tokens: &[Value], text: &str| {
        let bytes = tokens.iter().flat_map(|token| token["bytes"].as_array().expect("bytes"));
        let bytes: Vec<u8> = bytes.map(|byte| byte.as_u64().expect("a byte") as u8).collect();
        assert_eq!(String::from_utf8(bytes).expect("text"), text);
        for token in tokens {
            let [first, second] = token["top_logprobs"].as_array().expect("likeliest").as_slice() else {
                panic!("{token}");
            };
            // Greedy: the chosen token is the likeliest.
            assert_eq!(first["logprob"], token["logprob"], "{token}");
            assert!(first["logprob"].as_f64() >= second["logprob"].as_f64(), "{token}");
            assert!(token["logprob"].as_f64() <= Some(0.0), "{token}");
        }
    };
    let reply = post(server.address, CHAT, &chat(QUESTION, &more)).json();
    let choice = &reply["choices"][0];
    let whole = choice["logprobs"]["content"].as_array().expect("tokens");
    assert_eq!(whole.len(), 8);
    check(whole, choice["message"]["content"].as_str().expect("text"));
    let mut streaming = more;
    streaming["stream"] = json!(true);
    let events = post(server.address, CHAT, &chat(QUESTION, &streaming)).events();
    let streamed = events.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array());
    let streamed: Vec<Value> = streamed.flatten().cloned().collect();
    assert_eq!(&streamed, whole);
    let old = json!({ "model": "demo", "prompt": "It is", "temperature": 0, "max_tokens": 4, "logprobs": 1 });
    let old = post(server.address, "/v1/completions", &old).json();
    let likely = &old["choices"][0]["logprobs"];
    let tokens = likely["tokens"].as_array().expect("tokens");
    let text: String = tokens.iter().filter_map(Value::as_str).collect();
    assert_eq!(text, old["choices"][0]["text"].as_str().expect("text"));
    assert_eq!(likely["text_offset"][0], 0);
}

#[test]
fn completions_continue_texts_and_tokens() {
    let server = Running::demo();
    let ask = |prompt: Value, stream: bool| {
        let body =
            json!({ "model": "demo", "prompt": prompt, "temperature": 0, "max_tokens": 6, "stream": stream });
        post(server.address, "/v1/completions", &body)
    };
    let text = ask(json!("It is"), false).json()["choices"][0]["text"].as_str().expect("text").to_owned();
    let streamed = ask(json!(["It is"]), true).events();
    let pieces: String = streamed.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(pieces, text);
    let options = OpenOptions::new().search_path(search_path()).threads(1);
    let model = options.open(tree::root().join(DEMO_MODEL)).expect("it opens");
    let ids = model.tokenizer().and_then(|tokenizer| tokenizer.encode("It is", true)).expect("ids");
    assert_eq!(ask(json!(ids), false).json()["choices"][0]["text"], text);
    let (code, param) = ask(json!([4_000_000]), false).refused(400);
    assert_eq!((code.as_str(), param.as_str()), ("invalid_value", "prompt"));
}

#[test]
fn a_reply_matches_its_schema_and_forced_calls_match_their_tool() {
    let (calls, _folder) = calling();
    let server = Running::with(|builder| builder.model(model("demo", DEMO_MODEL)).model(calls));
    let schema = json!({ "type": "object", "required": ["size"], "additionalProperties": false,
        "properties": { "size": { "type": "integer", "minimum": 1, "maximum": 9 } } });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "s", "schema": schema } });
    let reply = post(server.address, CHAT, &chat(QUESTION, &json!({ "response_format": format }))).json();
    let text = reply["choices"][0]["message"]["content"].as_str().expect("text");
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!((1..=9).contains(&value["size"].as_i64().expect("a number")), "{value}");
    let streaming = json!({ "response_format": format, "stream": true });
    let events = post(server.address, CHAT, &chat(QUESTION, &streaming)).events();
    let pieces = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    assert_eq!(pieces.collect::<String>(), text);
    let unknown = json!({ "type": "json_schema", "json_schema": { "name": "s",
        "schema": { "type": "array", "uniqueItems": true } } });
    let refused = post(server.address, CHAT, &chat(QUESTION, &json!({ "response_format": unknown })));
    assert_eq!(refused.refused(400).1, "response_format");
    assert!(refused.body.contains("uniqueItems"), "{refused:?}");

    let tool = json!({ "type": "function", "function": { "name": "weather", "parameters": {
        "type": "object", "properties": { "city": { "enum": ["Paris", "Rome"] } },
        "required": ["city"], "additionalProperties": false } } });
    let forced = json!({ "model": "calls", "tools": [tool], "tool_choice": "required" });
    let reply = post(server.address, CHAT, &chat(QUESTION, &forced)).json();
    assert_eq!(reply["choices"][0]["finish_reason"], "tool_calls", "{reply}");
    let call = &reply["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "weather");
    let arguments: Value =
        serde_json::from_str(call["function"]["arguments"].as_str().expect("text")).expect("JSON");
    assert!(["Paris", "Rome"].contains(&arguments["city"].as_str().expect("a city")), "{arguments}");

    // The result of the call continues the conversation.
    let mut answered = chat(QUESTION, &json!({ "model": "calls", "tools": [tool], "max_tokens": 4 }));
    let messages = answered["messages"].as_array_mut().expect("messages");
    messages.push(json!({ "role": "assistant", "content": null, "tool_calls": [call] }));
    messages.push(json!({ "role": "tool", "tool_call_id": call["id"], "content": "sunny" }));
    let reply = post(server.address, CHAT, &answered);
    assert_eq!(reply.status, 200, "{reply:?}");
    answered["messages"][2]["tool_call_id"] = json!("other");
    assert_eq!(post(server.address, CHAT, &answered).refused(400).1, "messages");

    let mut streaming = forced;
    streaming["stream"] = json!(true);
    let events = post(server.address, CHAT, &chat(QUESTION, &streaming)).events();
    let streamed = events.iter().find_map(|event| event["choices"][0]["delta"]["tool_calls"].as_array());
    let streamed = &streamed.expect("a call")[0];
    assert_eq!((&streamed["index"], &streamed["function"]["name"]), (&json!(0), &json!("weather")));
}

#[test]
fn responses_are_whole_or_streamed_in_order() {
    let server = Running::demo();
    let ask = |more: Value| {
        let mut body = json!({ "model": "demo", "input": QUESTION, "temperature": 0 });
        more.as_object().into_iter().flatten().for_each(|(name, value)| body[name] = value.clone());
        post(server.address, "/v1/responses", &body)
    };
    let whole = ask(json!({ "store": false })).json();
    assert_eq!((&whole["status"], &whole["object"]), (&json!("completed"), &json!("response")));
    assert_eq!(whole["output"][0]["content"][0]["text"], expected());
    let events = ask(json!({ "stream": true, "max_output_tokens": 3 })).events();
    let names: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(
        names[..4],
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added"
        ]
    );
    assert_eq!(names.last(), Some(&"response.incomplete"));
    let deltas: String = events
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta")
        .filter_map(|event| event["delta"].as_str())
        .collect();
    let last = &events.last().expect("an event")["response"];
    assert_eq!(last["output"][0]["content"][0]["text"], deltas);
    assert_eq!(last["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(ask(json!({ "previous_response_id": "resp_1" })).refused(400).1, "previous_response_id");
    let schema = json!({ "type": "integer", "minimum": 1, "maximum": 9 });
    let format = json!({ "type": "json_schema", "name": "s", "schema": schema });
    let typed = ask(json!({ "text": { "format": format } })).json();
    let text = typed["output"][0]["content"][0]["text"].as_str().expect("text");
    assert!((1..=9).contains(&text.parse::<u8>().unwrap_or_default()), "{typed}");
    // An earlier request had this prompt.
    let usage = &typed["usage"];
    let cached = usage["input_tokens_details"]["cached_tokens"].as_u64();
    assert_eq!(cached.map(|count| count + 1), usage["input_tokens"].as_u64(), "{usage}");
    // Errors that the model finds name the fields of this endpoint.
    let schema = json!({ "type": "array", "uniqueItems": true });
    let format = json!({ "type": "json_schema", "name": "s", "schema": schema });
    assert_eq!(ask(json!({ "text": { "format": format } })).refused(400).1, "text.format");
    assert_eq!(ask(json!({ "input": "politics ".repeat(1900) })).refused(400).1, "input");
}

#[test]
fn calls_have_no_likelihoods_and_no_empty_message() {
    let (calls, _folder) = calling();
    let server = Running::with(|builder| builder.model(calls));
    let parameters = json!({ "type": "object", "properties": { "city": { "enum": ["Paris", "Rome"] } },
        "required": ["city"], "additionalProperties": false });
    let mut body = json!({ "model": "calls", "input": QUESTION, "temperature": 0, "tool_choice": "required",
        "tools": [{ "type": "function", "name": "weather", "parameters": parameters }],
        "include": ["message.output_text.logprobs"] });
    let whole = post(server.address, "/v1/responses", &body).json();
    body["stream"] = json!(true);
    let events = post(server.address, "/v1/responses", &body).events();
    for response in [&whole, &events.last().expect("an event")["response"]] {
        let output = response["output"].as_array().unwrap_or_else(|| panic!("{response}"));
        assert!(output.iter().any(|item| item["type"] == "function_call"), "{response}");
        let is_empty = |item: &Value| item["type"] == "message" && item["content"][0]["text"] == "";
        assert!(!output.iter().any(is_empty), "{response}");
    }
    let tool = json!({ "type": "function", "function": { "name": "weather", "parameters": parameters } });
    let more = json!({ "model": "calls", "tools": [tool], "tool_choice": "required", "logprobs": true,
        "stream": true });
    let events = post(server.address, CHAT, &chat(QUESTION, &more)).events();
    let choice = |event: &Value| event["choices"][0].clone();
    let call = events.iter().map(choice).find(|choice| choice["delta"]["tool_calls"].is_array());
    let call = call.unwrap_or_else(|| panic!("{events:?}"));
    assert_eq!(call["logprobs"], Value::Null, "{call}");
}

#[test]
fn vectors_have_the_bits_of_the_library_and_other_models_are_refused() {
    let server = Running::with(|builder| builder.model(embedding()).model(model("demo", DEMO_MODEL)));
    let ask = |more: Value| {
        let mut body = json!({ "model": "embeds", "input": ["a text", "another"] });
        more.as_object().into_iter().flatten().for_each(|(name, value)| body[name] = value.clone());
        post(server.address, "/v1/embeddings", &body)
    };
    let options = OpenOptions::new().search_path(search_path()).threads(1);
    let model = options.open(tree::root().join(EMBEDDING_FIXTURE)).expect("it opens");
    let own = model.embed("another", &EmbedOptions::default()).expect("a vector");
    let reply = ask(json!({ "encoding_format": "base64" })).json();
    let encoded = reply["data"][1]["embedding"].as_str().expect("text");
    let bytes = STANDARD.decode(encoded).expect("base64");
    let found: Vec<f32> =
        bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().expect("four"))).collect();
    assert_eq!(found, own);
    assert!(reply["usage"]["prompt_tokens"].as_u64() > Some(4), "{reply}");
    let short = ask(json!({ "dimensions": 4 })).json();
    assert_eq!(short["data"][0]["embedding"].as_array().map(Vec::len), Some(4));
    assert_eq!(ask(json!({ "dimensions": 100_000 })).refused(400).1, "dimensions");
    assert_eq!(ask(json!({ "input": "a text ".repeat(2000) })).refused(400).1, "input");
    let unknown = ask(json!({ "prompt_name": "poem" }));
    assert_eq!(unknown.refused(400).1, "prompt_name");
    assert!(unknown.body.contains("document, query"), "{unknown:?}");
    assert_eq!(ask(json!({ "prompt_name": "query" })).status, 200);
    let (code, param) = ask(json!({ "model": "demo" })).refused(400);
    assert_eq!((code.as_str(), param.as_str()), ("unsupported", "model"));
    let chatting = post(server.address, CHAT, &chat(QUESTION, &json!({ "model": "embeds" })));
    assert!((400..500).contains(&chatting.status), "{chatting:?}");
}

#[test]
fn pictures_are_data_uris_and_addresses_are_refused_by_name() {
    let server = Running::with(|builder| builder.model(seeing()).model(model("demo", DEMO_MODEL)));
    let ask = |name: &str, address: &str| {
        let content = json!([{ "type": "text", "text": "What is this?" },
            { "type": "image_url", "image_url": { "url": address } }]);
        let body = json!({ "model": name, "temperature": 0, "max_tokens": 2,
            "messages": [{ "role": "user", "content": content }] });
        post(server.address, CHAT, &body)
    };
    let picture = tree::root().join("host/preprocessing/tests/preprocessing/files/smooth.jpg");
    let uri =
        format!("data:image/jpeg;base64,{}", STANDARD.encode(std::fs::read(picture).expect("a picture")));
    let reply = ask("sees", &uri);
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(reply.json()["usage"]["prompt_tokens"].as_u64() > Some(20), "{reply:?}");
    let parts = json!([{ "type": "input_text", "text": "What is this?" },
        { "type": "input_image", "image_url": uri, "detail": "auto" }]);
    let body = json!({ "model": "sees", "temperature": 0, "max_output_tokens": 2,
        "input": [{ "role": "user", "content": parts }] });
    let seen = post(server.address, "/v1/responses", &body).json();
    assert_eq!(seen["usage"]["input_tokens"], reply.json()["usage"]["prompt_tokens"], "{seen}");
    assert_eq!(ask("demo", &uri).refused(400).1, "messages");
    let (code, param) = ask("sees", "http://127.0.0.1:1/picture.png").refused(400);
    assert_eq!(
        (code.as_str(), param.as_str()),
        ("unsupported_value", "messages[0].content[1].image_url.url")
    );
    assert_eq!(ask("sees", "data:image/png;base64,AAAA").refused(400).1, "messages");
    let sound = tree::root().join("host/preprocessing/tests/preprocessing/files/sine_16k.flac");
    let sound = STANDARD.encode(std::fs::read(sound).expect("a sound"));
    let content = json!([{ "type": "input_audio", "input_audio": { "data": sound, "format": "flac" } }]);
    let body = json!({ "model": "sees", "temperature": 0, "max_tokens": 2,
        "messages": [{ "role": "user", "content": content }] });
    assert_eq!(post(server.address, CHAT, &body).status, 200);
}

#[test]
fn reports_and_the_page_are_served() {
    let server = Running::demo();
    let models = get(server.address, "/v1/models").json();
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!("demo")));
    assert_eq!(get(server.address, "/v1/models/demo").json()["object"], "model");
    assert_eq!(get(server.address, "/v1/models/a/b").refused(404).0, "model_not_found");
    assert_eq!(get(server.address, "/health").json(), json!({ "status": "ok" }));
    let placement = get(server.address, "/v1/placement").json();
    let shard = &placement["models"][0]["shards"][0];
    assert!(shard["target"].as_str().is_some_and(|target| target.contains("cpu")), "{placement}");
    assert_eq!(shard["layers"][0], 0, "{placement}");
    assert!(shard["bytes"].as_u64() > Some(1000) && shard["fallback"] == false, "{placement}");
    for (path, kind) in [("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")] {
        let page = get(server.address, path);
        assert!(page.header("content-type").is_some_and(|found| found.starts_with(kind)), "{path}: {page:?}");
        let policy = page.header("content-security-policy").expect("a policy");
        assert!(
            policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
        assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    }
    assert_eq!(get(server.address, "/v2/models").refused(404).0, "unknown_endpoint");
    assert_eq!(get(server.address, CHAT).refused(405).0, "method_not_allowed");
    assert_eq!(post(server.address, CHAT, &chat("x", &json!({ "model": "other" }))).refused(404).1, "model");
}

#[test]
fn drafts_memory_and_fallbacks_are_in_the_reports() {
    let served = |options: OpenOptions| {
        let path = tree::root().join(DEMO_MODEL);
        Running::with(|builder| builder.model(ServedModel::new("demo", move |_| options.open(&path))))
    };
    let count = |server: &Running, name: &str| {
        let name = format!("shardwright_{name}{{model=\"demo\"}}");
        metric(server.address, &name).unwrap_or_else(|| panic!("no metric {name}"))
    };
    let options = OpenOptions::new().search_path(search_path()).threads(1);
    let server = served(options.planner_option("speculation", "16"));
    let prompt = "one two three one two three one two three one two";
    let body = json!({ "model": "demo", "prompt": prompt, "temperature": 0, "max_tokens": 24 });
    let usage = post(server.address, "/v1/completions", &body).json()["usage"].clone();
    let of_usage = |name: &str| usage["completion_tokens_details"][name].as_f64().expect("a count");
    let accepted = of_usage("accepted_prediction_tokens");
    assert_eq!(count(&server, "accepted_tokens_total"), accepted);
    let drafted = accepted + of_usage("rejected_prediction_tokens");
    assert!(drafted > 0.0 && count(&server, "drafted_tokens_total") == drafted, "{usage}");
    for name in ["memory_bytes", "prefix_cache_bytes"] {
        assert!(count(&server, name) > 0.0, "{name}");
    }
    assert_eq!(count(&server, "fallbacks"), 0.0);

    let chip = TestChip::new();
    chip.behaves_as("slip");
    let options = OpenOptions::new().search_path(chip.search_path()).soc(CHIP).isolation(Isolation::Off);
    let server = served(options);
    assert!(count(&server, "fallbacks") > 0.0);
    let placement = get(server.address, "/v1/placement").json();
    let model = &placement["models"][0];
    assert!(model["plan"].as_str().is_some_and(|plan| plan.len() > 8), "{placement}");
    let shards = model["shards"].as_array().expect("shards");
    let fallen: Vec<&Value> = shards.iter().filter(|shard| shard["fallback"] == true).collect();
    let has_reason = |shard: &&Value| {
        shard["fallbacks"][0]["because"].as_str().is_some_and(|because| because.contains("in the mood"))
    };
    assert!(!fallen.is_empty() && fallen.iter().all(has_reason), "{placement}");
}

#[test]
fn thoughts_are_apart_from_the_answer() {
    let copy =
        scripted(&[("\n", "<|channel>"), ("<|channel>", "Q"), ("Q", "<channel|>"), ("<channel|>", "Z")]);
    let (path, options) = (copy.path().to_owned(), OpenOptions::new().search_path(search_path()).threads(1));
    let server =
        Running::with(|builder| builder.model(ServedModel::new("demo", move |_| options.open(&path))));
    let reply = post(server.address, CHAT, &chat("hello", &json!({}))).json();
    let message = &reply["choices"][0]["message"];
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("Q"), &json!("Z")), "{reply}");
    assert_eq!(reply["usage"]["completion_tokens_details"]["reasoning_tokens"], 1, "{reply}");
    let events = post(server.address, CHAT, &chat("hello", &json!({ "stream": true }))).events();
    let of = |name: &str| -> String {
        events.iter().filter_map(|event| event["choices"][0]["delta"][name].as_str()).collect()
    };
    assert_eq!((of("reasoning_content"), of("content")), ("Q".to_owned(), "Z".to_owned()), "{events:?}");
    let body = json!({ "model": "demo", "input": "hello", "temperature": 0 });
    let output = post(server.address, "/v1/responses", &body).json()["output"].clone();
    assert_eq!((&output[0]["type"], &output[0]["content"][0]["text"]), (&json!("reasoning"), &json!("Q")));
    assert_eq!(output[1]["content"][0]["text"], "Z", "{output}");
}
