//! Headless Chromium, driven through its debugging pipe. Shows a page and reacts to pointing,
//! clicking and the Tab key.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Longest wait for an answer. A browser starts slowly on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Program names under which distributions install Chromium.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// JavaScript that lists texts with a contrast to their background below 4.5, by the formula of
/// WCAG 2.2.
pub const FAINT: &str = r"(() => {
  const channels = (colour) => colour.match(/[\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = channels(colour).slice(0, 3)
      .map((part) => part / 255)
      .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if ((channels(colour)[3] ?? 1) > 0) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const faint = [];
  for (const element of document.body.querySelectorAll('*')) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || element.tagName === 'SCRIPT') continue;
    const [one, other] = [getComputedStyle(element).color, behind(element)].map(light);
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (contrast < 4.5) faint.push([contrast, element.className, element.textContent]);
  }
  return faint;
})()";

/// Returns the path of the browser's program, if it is installed.
pub fn installed() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let candidates = std::env::split_paths(&path).flat_map(|folder| NAMES.map(|name| folder.join(name)));
    candidates.into_iter().find(|candidate| candidate.is_file())
}

/// A browser with one page.
pub struct Browser {
    child: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    session: Option<String>,
    last: u64,
    events: Vec<Value>,
    _profile: TempDir,
}

impl Browser {
    /// Starts the browser.
    ///
    /// # Panics
    /// If it does not start or does not answer. All functions below panic in the same cases.
    pub fn start(program: &Path) -> Browser {
        let profile = tempfile::tempdir().expect("a folder");
        // Chromium reads commands from descriptor 3 and writes answers to 4. The shell connects its
        // pipes there.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1"])
            .arg(program)
            // Containers and root cannot use the sandbox. The page is the project's own.
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let commands = child.stdin.take().expect("piped");
        let mut answers = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, messages) = mpsc::channel();
        thread::spawn(move || {
            let mut message = Vec::new();
            while answers.read_until(0, &mut message).is_ok_and(|read| read > 0) {
                message.pop_if(|last| *last == 0);
                let sent = serde_json::from_slice(&message).map(|value| sender.send(value));
                if !matches!(sent, Ok(Ok(()))) {
                    return;
                }
                message.clear();
            }
        });
        let mut browser = Browser {
            child,
            commands,
            messages,
            session: None,
            last: 0,
            events: Vec::new(),
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", attach);
        browser.session = Some(attached["sessionId"].as_str().expect("a session").to_owned());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Calls a function of the DevTools protocol.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let id = self.last;
        let mut command = json!({ "id": id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            command["sessionId"] = session.as_str().into();
        }
        let mut bytes = command.to_string().into_bytes();
        bytes.push(0);
        self.commands.write_all(&bytes).and_then(|()| self.commands.flush()).expect("the browser listens");
        loop {
            let message = self.next_message(method);
            if message["id"] == id {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }

    fn next_message(&self, waiting_for: &str) -> Value {
        let message = self.messages.recv_timeout(PATIENCE);
        message.unwrap_or_else(|error| panic!("no answer to {waiting_for}: {error}"))
    }

    /// Returns the parameters of all events of this name since the page was last loaded.
    pub fn events<'e>(&'e self, name: &'e str) -> impl Iterator<Item = &'e Value> {
        self.events.iter().filter(move |event| event["method"] == name).map(|event| &event["params"])
    }

    /// Sets the size of the window in pixels and the colour scheme, `light` or `dark`.
    pub fn set_look(&mut self, width: u32, height: u32, scheme: &str) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let scheme = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", scheme);
    }

    /// Opens a file and waits until it is loaded.
    pub fn open(&mut self, file: &Path) {
        self.open_address(&format!("file://{}", file.display()));
    }

    /// Opens an address and waits until it is loaded.
    pub fn open_address(&mut self, address: &str) {
        self.events.clear();
        let opened = self.call("Page.navigate", json!({ "url": address }));
        assert!(opened["errorText"].is_null(), "{opened}");
        self.loaded();
    }

    /// Loads the page again and waits until it is loaded.
    pub fn reload(&mut self) {
        self.events.clear();
        self.call("Page.reload", json!({}));
        self.loaded();
    }

    fn loaded(&mut self) {
        while self.events("Page.loadEventFired").next().is_none() {
            let message = self.next_message("Page.loadEventFired");
            self.events.push(message);
        }
    }

    /// Evaluates a JavaScript expression in the page and returns its value.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", parameters);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until a JavaScript expression is true.
    pub fn until(&mut self, expression: &str) {
        let begun = Instant::now();
        while self.evaluate(&format!("Boolean({expression})")) != true {
            assert!(begun.elapsed() < PATIENCE, "not true after {PATIENCE:?}: {expression}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Writes a text into the focused element, as the keyboard does.
    pub fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Scrolls the first element that matches the selector to the middle of the window and returns
    /// the middle of the element.
    fn middle_of(&mut self, selector: &str) -> (f64, f64) {
        let place = self.evaluate(&format!(
            "(() => {{ const it = document.querySelector({}); it.scrollIntoView({{ block: 'center' }}); \
             const box = it.getBoundingClientRect(); \
             return [box.x + box.width / 2, box.y + box.height / 2]; }})()",
            json!(selector)
        ));
        let number = |index: usize| place[index].as_f64().unwrap_or_else(|| panic!("{selector}: {place}"));
        (number(0), number(1))
    }

    fn mouse(&mut self, kind: &str, (x, y): (f64, f64), button: &str) {
        let event = json!({ "type": kind, "x": x, "y": y, "button": button, "clickCount": 1 });
        self.call("Input.dispatchMouseEvent", event);
    }

    /// Points at the first element that matches the selector.
    pub fn point_at(&mut self, selector: &str) {
        let place = self.middle_of(selector);
        self.mouse("mouseMoved", place, "none");
    }

    /// Clicks the first element that matches the selector.
    pub fn click(&mut self, selector: &str) {
        let place = self.middle_of(selector);
        self.mouse("mouseMoved", place, "none");
        self.mouse("mousePressed", place, "left");
        self.mouse("mouseReleased", place, "left");
    }

    /// Presses and releases a key such as `Tab`. `code` is its Windows key code.
    pub fn press(&mut self, key: &str, code: u32) {
        for kind in ["rawKeyDown", "keyUp"] {
            let event = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Presses and releases Enter, with Shift if `shift` is set. An element that does not handle
    /// the key gets a new line.
    pub fn press_enter(&mut self, shift: bool) {
        for kind in ["keyDown", "keyUp"] {
            let event = json!({
                "type": kind, "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13,
                "modifiers": if shift { 8 } else { 0 }, "text": if kind == "keyDown" { "\r" } else { "" },
            });
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Returns the parameters of all errors, warnings and messages of the page's console, and of
    /// violations of its security policy, since the page was last loaded.
    pub fn complaints(&self) -> Vec<&Value> {
        let kinds = ["Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"];
        kinds.into_iter().flat_map(|kind| self.events(kind)).collect()
    }

    /// Returns a PNG picture of the whole page.
    pub fn picture(&mut self) -> Vec<u8> {
        let parameters = json!({ "format": "png", "captureBeyondViewport": true });
        let picture = self.call("Page.captureScreenshot", parameters);
        from_base64(picture["data"].as_str().expect("a picture"))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser ends when its pipe closes. Its remaining processes are not needed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Decodes base 64 as a browser writes it.
fn from_base64(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for digit in text.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => break,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
