//! The web page of the server in a browser: a chat with the demo model, and scripted replies of all
//! kinds, hostile ones included. Pictures are left in `target/tmp`, so that people can look at
//! them.

mod stage;

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use shardwright_tests::browser::{self, Browser, FAINT};
use shardwright_tests::checkpoints::DEMO_MODEL;
use shardwright_tests::serving::Server;
use shardwright_tests::skipped;

use stage::{Stage, Step};

/// Returns a browser, if one is installed.
fn started() -> Option<Browser> {
    let program = browser::installed();
    if program.is_none() {
        skipped("the page of the server: no Chromium is installed (Debian: apt-get install chromium)");
    }
    program.map(|program| Browser::start(&program))
}

/// JavaScript that lists controls without a name for assistive programs. Decorations are hidden
/// from them.
const NAMELESS: &str = r"(() => {
  const shown = (element) => element.checkVisibility();
  const named = (element) => {
    const by = (element.getAttribute('aria-labelledby') ?? '').split(' ').filter(Boolean);
    const texts = [
      element.getAttribute('aria-label'), element.getAttribute('alt'),
      ...by.map((id) => document.getElementById(id)?.textContent),
      ...[...(element.labels ?? [])].map((label) => label.textContent),
      ['BUTTON', 'A', 'SUMMARY'].includes(element.tagName) ? element.textContent : '',
    ];
    return texts.some((text) => text?.trim());
  };
  const kinds = 'button, a, input, select, textarea, summary, img, audio, dialog, aside, main, ' +
    '[role], [tabindex]:not([tabindex=\'-1\'])';
  return [...document.querySelectorAll(kinds)]
    .filter((element) => shown(element) && !named(element))
    // Messages need no name, and pictures next to their name are decorations.
    .filter((element) => !element.matches('[role=alert], [role=status], img[alt=\'\']'))
    .map((element) => element.outerHTML.slice(0, 200));
})()";

/// JavaScript that lists controls smaller than WCAG 2.2 requires. Links in texts may be smaller.
const SMALL: &str = "[...document.querySelectorAll('button, input, select, textarea, summary')]\
    .filter((it) => it.checkVisibility()).map((it) => [it.id, it.getBoundingClientRect()])\
    .filter(([, box]) => box.width < 24 || box.height < 24).map(([id]) => id)";

/// JavaScript that is true if no reply runs.
const IDLE: &str = "document.getElementById('stop').hidden";

/// JavaScript for the last reply.
const LAST: &str = "[...document.querySelectorAll('article.assistant')].at(-1)";

/// Checks rules that every state of the page keeps.
fn check_look(browser: &mut Browser, width: u32, look: &str) {
    let overflow = browser.evaluate("document.documentElement.scrollWidth");
    assert!(overflow.as_u64() <= Some(width.into()), "{look}: {overflow} pixels");
    assert_eq!(browser.evaluate(FAINT), json!([]), "{look}");
    assert_eq!(browser.evaluate(NAMELESS), json!([]), "{look}");
    assert_eq!(browser.evaluate(SMALL), json!([]), "{look}");
    // The page has no script but its own, and no style in the document.
    assert_eq!(browser.evaluate("document.scripts.length"), 1, "{look}");
    assert_eq!(browser.evaluate("document.querySelectorAll('style, iframe, object, base').length"), 0);
    assert_eq!(browser.evaluate("document.title"), "Shardwright", "{look}");
    let text = browser.call("Accessibility.getFullAXTree", json!({}));
    let nodes = text["nodes"].as_array().expect("nodes");
    for node in nodes.iter().filter(|node| node["ignored"] == false) {
        let controls = ["button", "textbox", "combobox", "spinbutton", "link", "DisclosureTriangle", "image"];
        let role = node["role"]["value"].as_str().unwrap_or_default();
        let name = node["name"]["value"].as_str().unwrap_or_default();
        assert!(!controls.contains(&role) || !name.is_empty(), "{look}: a {role} without a name: {node}");
    }
}

fn keep_picture(browser: &mut Browser, name: &str) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("serve-page-{name}.png"));
    fs::write(path, browser.picture()).expect("written");
}

/// Opens the page and waits for the models.
fn open(browser: &mut Browser, address: &str) {
    browser.open_address(address);
    browser.until("document.getElementById('model').options.length > 0");
}

/// Writes a message and sends it with Enter.
fn send(browser: &mut Browser, text: &str) {
    browser.evaluate("document.getElementById('message').focus()");
    browser.write(text);
    browser.press_enter(false);
}

/// Sends a message and waits for the end of the reply. Returns the text of the reply.
fn chat(browser: &mut Browser, text: &str) -> String {
    send(browser, text);
    browser.until(IDLE);
    last(browser)
}

fn last(browser: &mut Browser) -> String {
    let text = browser.evaluate(&format!("{LAST}.querySelector('.prose').innerText"));
    text.as_str().expect("a text").to_owned()
}

fn text_of(browser: &mut Browser, id: &str) -> String {
    let text = browser.evaluate(&format!("document.getElementById('{id}').textContent"));
    text.as_str().expect("a text").to_owned()
}

fn number_of(browser: &mut Browser, id: &str) -> f64 {
    let text = text_of(browser, id);
    text.parse().unwrap_or_else(|error| panic!("{id}: {text}: {error}"))
}

const QUESTION: &str = "What does bug mean?";

#[test]
fn a_chat_with_the_demo_model_streams_and_shows_the_plan() {
    let Some(mut browser) = started() else { return };
    let server = Server::start([DEMO_MODEL]);
    browser.call("Accessibility.enable", json!({}));
    for (scheme, ground) in [("light", "rgb(255, 255, 255)"), ("dark", "rgb(21, 24, 27)")] {
        for (width, height) in [(1280, 800), (390, 844)] {
            let look = format!("{scheme}, {width} pixels");
            browser.set_look(width, height, scheme);
            open(&mut browser, &server.address("/"));
            assert_eq!(browser.evaluate("getComputedStyle(document.body).backgroundColor"), ground, "{look}");
            check_look(&mut browser, width, &look);
            keep_picture(&mut browser, &format!("{width}-{scheme}-empty"));

            browser.evaluate("document.getElementById('temperature').value = '0'");
            // Counts the states of the reply, which arrives in pieces.
            browser.evaluate(
                "window.lengths = new Set(), new MutationObserver(() => lengths.add(document\
                 .getElementById('log').textContent.length)).observe(document.getElementById('log'), \
                 { subtree: true, childList: true, characterData: true })",
            );
            let reply = chat(&mut browser, QUESTION);
            assert!(reply.starts_with("An unwanted and unintended property of a program"), "{look}: {reply}");
            assert!(reply.ends_with("a few personality problems)."), "{look}: {reply}");
            let states = browser.evaluate("window.lengths.size").as_u64();
            assert!(states > Some(3), "{look}: {states:?} states");
            assert_eq!(browser.evaluate(&format!("{LAST}.getAttribute('aria-busy')")), "false", "{look}");
            assert!(text_of(&mut browser, "status").starts_with("Reply complete."), "{look}");
            for id in ["speed", "prompt-tokens", "reply-tokens"] {
                assert!(number_of(&mut browser, id) > 0.0, "{look}: {id}");
            }
            browser.until("document.querySelectorAll('#strip span').length > 0");
            assert_eq!(number_of(&mut browser, "fallbacks"), 0.0, "{look}");
            let (strip, list) = ("document.querySelectorAll('#strip span').length", "shards");
            let shards = browser.evaluate(strip);
            assert_eq!(browser.evaluate(&format!("document.querySelectorAll('#{list} li').length")), shards);
            check_look(&mut browser, width, &look);
            keep_picture(&mut browser, &format!("{width}-{scheme}-reply"));

            // At this temperature, a repeated question gives an equal reply. Its tokens are reused.
            browser.click("#regenerate");
            browser.until(IDLE);
            assert_eq!(last(&mut browser), reply, "{look}");
            assert_eq!(browser.evaluate("document.querySelectorAll('article').length"), 2, "{look}");
            assert!(number_of(&mut browser, "reused") > 0.0, "{look}");

            show_plan(&mut browser, width, &look);
            keep_picture(&mut browser, &format!("{width}-{scheme}-plan"));
            let complaints = browser.complaints();
            assert!(complaints.is_empty(), "{look}: {complaints:?}");
            for request in browser.events("Network.requestWillBeSent") {
                let address = request["request"]["url"].as_str().expect("an address");
                let own = address.starts_with(&server.address("/")) || address.starts_with("data:");
                assert!(own, "{look}: {address}");
            }
        }
    }
}

/// On a phone the plan covers the chat until it is closed. On a wide screen it is next to the chat.
fn show_plan(browser: &mut Browser, width: u32, look: &str) {
    let visible = "document.getElementById('plan').checkVisibility()";
    let expanded = "document.getElementById('show-plan').getAttribute('aria-expanded')";
    let narrow = width < 600;
    assert_eq!(browser.evaluate(visible), !narrow, "{look}");
    browser.click("#show-plan");
    assert_eq!(browser.evaluate(visible), narrow, "{look}");
    assert_eq!(browser.evaluate(expanded), if narrow { "true" } else { "false" }, "{look}");
    if narrow {
        check_look(browser, width, look);
    } else {
        browser.click("#show-plan");
    }
}

/// Markdown whose parts would do harm as HTML, and its expected parts.
const HOSTILE: &str = "<script>document.title = 'obeyed'</script>\n\
    <img src=x onerror=\"document.title='obeyed'\"> **bold** *italic* `a<b>` [here](https://example.org/a) \
    [there](javascript:document.title='obeyed') [data](data:text/html,x) \
    ![seen](https://example.org/x.png)\n\n\
    # A title <b>\n\n1. one\n2. two\n   - inner\n\n```html\n<script>document.title = 'obeyed'</script>\n```\n\
    > quoted\n\nhttps://example.org/b?c=1.";

/// Tools and replies of the stage.
fn script(request: &Value) -> Vec<Step> {
    let last = request["messages"].as_array().and_then(|all| all.last()).expect("a message");
    let text = |text: &str| Step::Delta(json!({ "content": text }));
    let usage = json!({
        "choices": [], "timings": { "prompt_ms": 10.0, "predicted_ms": 100.0, "predicted_per_second": 63.25 },
        "usage": { "prompt_tokens": 20, "completion_tokens": 7, "total_tokens": 27,
                   "prompt_tokens_details": { "cached_tokens": 13 } },
    });
    let end = |reason| [Step::Finish(reason), Step::Event(usage), Step::Done];
    let mut steps = vec![Step::Delta(json!({ "role": "assistant", "content": "" }))];
    match last["content"].as_str().unwrap_or("parts") {
        "hostile" => {
            // Pieces end within marks and within characters' escapes.
            let letters: Vec<char> = HOSTILE.chars().collect();
            steps.extend(letters.chunks(5).map(|piece| text(&piece.iter().collect::<String>())));
            steps.extend(end("stop"));
        }
        "think" => {
            let thought = |text: &str| Step::Delta(json!({ "reasoning_content": text }));
            steps.extend([thought("Two and <b>two</b>"), thought(" make four."), text("4")]);
            steps.extend(end("stop"));
        }
        "call" => {
            let call = |function: Value| {
                Step::Delta(json!({ "tool_calls": [{ "index": 0, "id": "call_1", "type": "function",
                                                     "function": function }] }))
            };
            steps.push(call(json!({ "name": "weather", "arguments": "" })));
            let arguments = ["{\"city\": ", "\"<img src=x>\"}"];
            steps.extend(arguments.map(|part| {
                Step::Delta(json!({ "tool_calls": [{ "index": 0, "function": { "arguments": part } }] }))
            }));
            steps.extend(end("tool_calls"));
        }
        "slow" => {
            let word = |index: u32| [text(&format!("word{index} ")), Step::Wait(Duration::from_millis(20))];
            steps.extend((0..2000).flat_map(word));
            steps.extend(end("stop"));
        }
        "long" => {
            steps.push(text("cut"));
            steps.extend(end("length"));
        }
        "break" => steps.push(text("half")),
        "fail" => {
            let error = json!({ "error": { "message": "the device was lost", "type": "server_error" } });
            steps.extend([text("half"), Step::Event(error)]);
        }
        "busy" => {
            let error = json!({ "error": { "message": "too many requests <b>", "type": "rate_limit" } });
            steps = vec![Step::Refuse(429, error)];
        }
        other => {
            steps.push(text(&format!("got {other}")));
            steps.extend(end("stop"));
        }
    }
    steps
}

/// Returns the page in front of a script.
fn staged(browser: &mut Browser, server: &Server) -> Stage {
    let stage = Stage::new(server.host(), script);
    browser.call("Accessibility.enable", json!({}));
    open(browser, &stage.address());
    stage
}

#[test]
fn texts_of_models_and_users_never_become_elements() {
    let Some(mut browser) = started() else { return };
    let server = Server::start([DEMO_MODEL]);
    for (width, scheme) in [(1280, "light"), (390, "dark")] {
        browser.set_look(width, 844, scheme);
        let stage = staged(&mut browser, &server);
        let attack =
            "<script>document.title = 'obeyed'</script><img src=x onerror=\"document.title='obeyed'\">";
        assert_eq!(chat(&mut browser, attack), format!("got {attack}"));
        let own = "document.querySelector('article.user .text').textContent";
        assert_eq!(browser.evaluate(own), attack);

        chat(&mut browser, "hostile");
        let count = |kind: &str| format!("{LAST}.querySelectorAll('{kind}').length");
        let counted = [
            ("script", 0),
            ("img", 0),
            ("strong", 1),
            ("em", 1),
            ("code", 2),
            ("h3", 1),
            ("ol > li", 2),
            ("li li", 1),
            ("pre", 1),
            ("blockquote", 1),
            ("a", 3),
            ("[onerror], [onclick], [style]", 0),
        ];
        for (kind, expected) in counted {
            assert_eq!(browser.evaluate(&count(kind)), expected, "{kind}");
        }
        let links =
            browser.evaluate(&format!("[...{LAST}.querySelectorAll('a')].map((it) => [it.href, it.rel])"));
        let rel = "noopener noreferrer nofollow";
        let addresses = ["https://example.org/a", "https://example.org/x.png", "https://example.org/b?c=1"];
        assert_eq!(links, json!(addresses.map(|address| [address, rel])));
        let text = last(&mut browser);
        for part in ["<script>document.title", "[there](javascript:document.title='obeyed')", "A title <b>"] {
            assert!(text.contains(part), "{part}\n{text}");
        }

        // Thoughts are apart from the answer, and closed once it begins.
        assert_eq!(chat(&mut browser, "think"), "4");
        let thoughts = format!("{LAST}.querySelector('.thoughts')");
        assert_eq!(browser.evaluate(&format!("{thoughts}.open")), false);
        let thought = browser.evaluate(&format!("{thoughts}.querySelector('.text').textContent"));
        assert_eq!(thought, "Two and <b>two</b> make four.");
        check_look(&mut browser, width, scheme);
        keep_picture(&mut browser, &format!("{width}-{scheme}-markdown"));
        for (id, expected) in
            [("speed", "63.3"), ("prompt-tokens", "20"), ("reused", "13"), ("reply-tokens", "7")]
        {
            assert_eq!(text_of(&mut browser, id), expected, "{id}");
        }
        // Later requests have the answers without the thoughts.
        chat(&mut browser, "end");
        let requests = stage.requests();
        let sent = requests.last().expect("a request")["messages"].as_array().expect("messages").clone();
        assert_eq!(sent.len(), 7, "{sent:?}");
        assert_eq!(
            (&sent[3]["content"], &sent[5]),
            (&json!(HOSTILE), &json!({ "role": "assistant", "content": "4" }))
        );
        let complaints = browser.complaints();
        assert!(complaints.is_empty(), "{complaints:?}");
    }
}

#[test]
fn replies_are_stopped_repeated_and_continued_with_the_results_of_tools() {
    let Some(mut browser) = started() else { return };
    let server = Server::start([DEMO_MODEL]);
    browser.set_look(1280, 800, "light");
    let stage = staged(&mut browser, &server);

    // Shift and Enter begin a line.
    browser.write("one");
    browser.press_enter(true);
    browser.write("two");
    assert_eq!(browser.evaluate("document.getElementById('message').value"), "one\ntwo");
    browser.press_enter(false);
    browser.until(IDLE);
    assert_eq!(last(&mut browser), "got one\ntwo");

    // Esc stops a reply, and so does the button, which has the focus of the one that it replaces.
    for by_key in [true, false] {
        let left = stage.left();
        send(&mut browser, "slow");
        browser.until(&format!("{LAST}.textContent.includes('word3')"));
        assert_eq!(browser.evaluate("document.getElementById('send').hidden"), true);
        if by_key {
            browser.press("Escape", 27)
        } else {
            browser.click("#stop")
        }
        browser.until(IDLE);
        assert_eq!(text_of(&mut browser, "status"), "Stopped.");
        assert!(last(&mut browser).starts_with("word0 word1"));
        // The request ends on the server.
        for _ in 0..500 {
            if stage.left() > left {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(stage.left(), left + 1);
        browser.click("#new-chat");
        assert_eq!(browser.evaluate("document.querySelectorAll('article').length"), 0);
        assert_eq!(browser.evaluate("document.activeElement.id"), "message");
    }

    // A call of a tool waits for its result.
    browser.evaluate("document.getElementById('tools').value = '[{\"type\":\"function\"}]'");
    chat(&mut browser, "call");
    let call = format!("{LAST}.querySelector('.call')");
    let shown = browser.evaluate(&format!("{call}.querySelector('pre').textContent"));
    assert_eq!(shown, "{\n  \"city\": \"<img src=x>\"\n}");
    assert_eq!(browser.evaluate(&format!("{call}.querySelector('b').textContent")), "weather");
    check_look(&mut browser, 1280, "a call");
    keep_picture(&mut browser, "1280-light-call");
    let before = stage.requests().len();
    send(&mut browser, "more");
    assert!(text_of(&mut browser, "status").contains("results of the tool calls"));
    assert_eq!(stage.requests().len(), before);
    browser.evaluate("document.getElementById('message').value = ''");
    browser.evaluate(&format!("{call}.querySelector('textarea').focus()"));
    browser.write("sunny");
    browser.click("#send-results");
    browser.until(&format!("{IDLE} && document.querySelectorAll('article').length === 4"));
    assert_eq!(last(&mut browser), "got sunny");
    let sent = stage.requests().pop().expect("a request");
    assert_eq!(sent["tools"], json!([{ "type": "function" }]));
    let function = json!({ "name": "weather", "arguments": "{\"city\": \"<img src=x>\"}" });
    let calls = json!([{ "id": "call_1", "type": "function", "function": function }]);
    assert_eq!(sent["messages"][1], json!({ "role": "assistant", "content": null, "tool_calls": calls }));
    assert_eq!(sent["messages"][2], json!({ "role": "tool", "tool_call_id": "call_1", "content": "sunny" }));

    assert_eq!(chat(&mut browser, "long"), "cut");
    assert!(text_of(&mut browser, "status").starts_with("The reply was cut."));
    let complaints = browser.complaints();
    assert!(complaints.is_empty(), "{complaints:?}");
}

#[test]
fn failures_are_shown_and_can_be_repeated() {
    let Some(mut browser) = started() else { return };
    let server = Server::start([DEMO_MODEL]);
    browser.set_look(1280, 800, "light");
    let stage = staged(&mut browser, &server);
    let fault = format!("{LAST}.querySelector('[role=alert]').textContent");
    for (message, words) in [
        ("busy", "Error: too many requests <b>. Try again in 3 s."),
        ("fail", "Error: the device was lost"),
        ("break", "Error: The connection ended before the reply."),
    ] {
        chat(&mut browser, message);
        assert_eq!(browser.evaluate(&fault), words);
        assert_eq!(browser.evaluate("document.getElementById('regenerate').textContent"), "Try again");
        let (before, articles) =
            (stage.requests(), browser.evaluate("document.querySelectorAll('article').length"));
        browser.click("#regenerate");
        browser.until(IDLE);
        assert_eq!(browser.evaluate("document.querySelectorAll('article').length"), articles);
        let (last, again) = (before.last().cloned(), stage.requests());
        assert_eq!((again.len(), again.last().cloned()), (before.len() + 1, last));
    }
    check_look(&mut browser, 1280, "failures");
    // A message after a failure does not send the failed turns.
    assert_eq!(chat(&mut browser, "next"), "got next");
    let sent = stage.requests().pop().expect("a request");
    assert_eq!(sent["messages"], json!([{ "role": "user", "content": "next" }]));

    // Invalid settings are refused before a request.
    let requests = stage.requests().len();
    for (id, value, words) in
        [("temperature", "3", "Temperature"), ("tools", "[", "Tools:"), ("tools", "{}", "Tools: expected")]
    {
        browser.evaluate(&format!("document.getElementById('{id}').value = '{value}'"));
        send(&mut browser, "x");
        let status = text_of(&mut browser, "status");
        assert!(status.starts_with(words), "{status}");
        assert_eq!(browser.evaluate("document.activeElement.id"), id);
        browser.evaluate(&format!("document.getElementById('{id}').value = ''"));
        browser.evaluate("document.getElementById('message').value = ''");
    }
    assert_eq!(stage.requests().len(), requests);

    // If the server is gone, the page reports it.
    drop(server);
    browser.evaluate("document.getElementById('model').replaceChildren()");
    chat(&mut browser, "gone");
    let status = text_of(&mut browser, "status");
    assert!(status.starts_with("Failed: "), "{status}");
}

#[test]
fn pictures_and_sounds_are_attached_by_paste_drop_and_button() {
    let Some(mut browser) = started() else { return };
    let server = Server::start([DEMO_MODEL]);
    browser.set_look(390, 844, "light");
    let stage = staged(&mut browser, &server);
    // A PNG with one pixel.
    let bytes = "Uint8Array.from(atob('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9Q\
                 DwADhgGAWjR9\
                 awAAAABJRU5ErkJggg=='), (letter) => letter.charCodeAt(0))";
    let file = |name: &str, kind: &str| format!("new File([{bytes}], '{name}', {{ type: '{kind}' }})");
    let with = |files: &str, event: &str, target: &str| {
        format!(
            "(() => {{ const data = new DataTransfer(); for (const file of [{files}]) data.items.add(file); \
             {target}.dispatchEvent({event}); }})()"
        )
    };
    let paste = "new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true })";
    let drop = "new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true })";
    let attached = |count: u32| format!("document.querySelectorAll('#attached li').length === {count}");
    browser.evaluate(&with(&file("a.png", "image/png"), paste, "document.getElementById('message')"));
    browser.until(&attached(1));
    let dropped = format!("{}, {}", file("b.wav", "audio/wav"), file("c.tiff", ""));
    browser.evaluate(&with(&dropped, drop, "document.body"));
    browser.until(&attached(3));
    let input = with(&file("d.flac", "audio/flac"), "new Event('change')", "input");
    let input = input.replace(
        "input.dispatch",
        "const input = document.getElementById('files'); \
                               input.files = data.files; input.dispatch",
    );
    browser.evaluate(&input);
    browser.until(&attached(4));
    browser.evaluate(&with(&file("e.txt", "text/plain"), drop, "document.body"));
    browser.until("document.getElementById('status').textContent.includes('not a picture or a sound')");
    assert_eq!(browser.evaluate(&attached(4)), true);
    check_look(&mut browser, 390, "attached files");
    keep_picture(&mut browser, "390-light-attached");
    // One is removed again.
    browser.click("#attached li:last-child button");
    browser.until(&attached(3));

    send(&mut browser, "What is this?");
    browser.until(IDLE);
    let sent = stage.requests().pop().expect("a request");
    let content = sent["messages"][0]["content"].as_array().expect("parts").clone();
    let kinds: Vec<&Value> = content.iter().map(|part| &part["type"]).collect();
    assert_eq!(kinds, ["image_url", "input_audio", "image_url", "text"]);
    for (part, begin) in [(0, "data:image/png;base64,iVBOR"), (2, "data:image/tiff;base64,iVBOR")] {
        let address = content[part]["image_url"]["url"].as_str().expect("an address");
        assert!(address.starts_with(begin), "{address}");
    }
    assert_eq!(content[1]["input_audio"]["format"], "wav");
    let sound = content[1]["input_audio"]["data"].as_str().expect("data");
    assert!(sound.starts_with("iVBOR"), "{sound}");
    assert_eq!(browser.evaluate("document.querySelectorAll('article.user .media > *').length"), 3);
    assert_eq!(browser.evaluate(&attached(0)), true);
    check_look(&mut browser, 390, "sent files");
}

#[test]
fn every_control_is_reached_with_the_keyboard_and_the_colours_switch() {
    let Some(mut browser) = started() else { return };
    let server = Server::start([DEMO_MODEL]);
    browser.set_look(1280, 800, "light");
    let _stage = staged(&mut browser, &server);
    chat(&mut browser, "hostile");
    browser.evaluate("document.getElementById('settings').open = true");
    let controls = "[...document.querySelectorAll(\
                    'button, a, input, select, textarea, summary, [tabindex=\"0\"]')]\
                    .filter((it) => it.checkVisibility() && !it.disabled)";
    browser.evaluate(&format!("{controls}.forEach((it, index) => {{ it.dataset.stop = index; }})"));
    let count = browser.evaluate(&format!("{controls}.length")).as_u64().expect("a number");
    assert!(count > 12, "{count} controls");
    browser.evaluate("document.activeElement.blur()");
    let mut reached = std::collections::BTreeSet::new();
    for _ in 0..count + 8 {
        browser.press("Tab", 9);
        let at = browser.evaluate("document.activeElement.dataset?.stop ?? null");
        if let Some(at) = at.as_str() {
            let outline = browser.evaluate("getComputedStyle(document.activeElement).outlineStyle");
            assert_eq!(outline, "solid", "the focus is not visible at {at}");
            reached.insert(at.to_owned());
        }
    }
    assert_eq!(reached.len() as u64, count, "{reached:?}");

    // The switch has precedence over the system's colours, and the page remembers it.
    let ground = "getComputedStyle(document.body).backgroundColor";
    browser.click("#theme");
    assert_eq!(browser.evaluate("document.getElementById('theme').getAttribute('aria-pressed')"), "true");
    assert_eq!(browser.evaluate(ground), "rgb(21, 24, 27)");
    check_look(&mut browser, 1280, "switched to dark");
    browser.reload();
    assert_eq!(browser.evaluate("document.documentElement.dataset.theme"), "dark");
    assert_eq!(browser.evaluate(ground), "rgb(21, 24, 27)");
}

#[test]
fn a_server_with_a_key_lets_the_page_in_with_it() {
    const SECRET: &str = "a-key-of-this-test";
    let Some(mut browser) = started() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let keys = folder.path().join("keys.txt");
    fs::write(&keys, format!("{SECRET}\n")).expect("written");
    let server = Server::start([DEMO_MODEL.as_ref(), "--api-key".as_ref(), keys.as_os_str()]);
    browser.set_look(390, 844, "light");
    browser.call("Accessibility.enable", json!({}));
    browser.open_address(&server.address("/"));
    let dialog = "document.getElementById('key-dialog').open";
    browser.until(dialog);
    check_look(&mut browser, 390, "the question for a key");
    keep_picture(&mut browser, "390-light-key");
    browser.write("another");
    browser.press_enter(false);
    browser.until("document.getElementById('key-reason').textContent.includes('rejected')");
    browser.until(dialog);
    browser.write(SECRET);
    browser.press_enter(false);
    browser.until("document.getElementById('model').options.length > 0");
    assert_eq!(browser.evaluate(dialog), false);
    browser.evaluate("document.getElementById('temperature').value = '0'");
    assert!(chat(&mut browser, QUESTION).starts_with("An unwanted"), "{}", server.output());
    // The tab keeps the key.
    browser.reload();
    browser.until("document.getElementById('model').options.length > 0");
    assert_eq!(browser.evaluate(dialog), false);
    assert!(!server.output().contains(SECRET), "{}", server.output());
}
