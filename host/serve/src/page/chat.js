// The conversation: what was written, the reply that runs, and the controls.
//
// The server keeps no conversation. Each request has all turns, and the server reuses what it
// computed for an equal beginning.

/// Turns in their order: `role`, `content` for requests, `calls` of a reply, `node` on the page, and
/// `failed` for a reply that did not end. A failed reply is not sent, nor is the turn before it once
/// another message follows.
let turns = [];

/// The reply that runs: `controller` ends its request.
let running = null;

/// Files of the next message.
const attached = [];

const status = (text) => { byId("status").textContent = text; };

const showAttached = connectMedia(attached, status);

/// Returns the element of a turn with its name for screen readers.
function turnNode(className, title) {
  const heading = element("h2", {}, title);
  return element("article", { class: className, "aria-label": title }, heading);
}

function addToLog(node) {
  byId("empty").hidden = true;
  byId("log").append(node);
  scrollToEnd();
}

/// Distance from the end within which the view follows the reply, in pixels.
const NEAR = 80;

function isAtEnd() {
  const log = byId("log");
  return log.scrollHeight - log.scrollTop - log.clientHeight < NEAR;
}

function scrollToEnd() {
  const log = byId("log");
  log.scrollTop = log.scrollHeight;
}

/// Returns the text and files of a message as the content of a request. Files come first, as models
/// expect them.
function contentOf(text, media) {
  if (media.length === 0) return text;
  const parts = media.map(mediaPart);
  return text === "" ? parts : [...parts, { type: "text", text }];
}

/// Sends the message in the box.
function send() {
  const text = byId("message").value;
  if (running || (text.trim() === "" && attached.length === 0)) return;
  if (openCalls().length > 0) {
    status("Enter the results of the tool calls first, or regenerate the reply.");
    return;
  }
  const options = settings();
  if (!options) return;
  const media = attached.splice(0);
  showAttached();
  byId("message").value = "";
  fitMessage();
  const node = turnNode("user", "You");
  if (media.length > 0) node.append(element("div", { class: "media" }, ...media.map(mediaNode)));
  if (text !== "") node.append(element("div", { class: "text" }, text));
  addToLog(node);
  turns = withoutFailed(turns);
  turns.push({ role: "user", content: contentOf(text, media), node });
  reply(options);
}

/// Returns the turns up to the last complete reply if the last one failed. The others stay on the
/// page, marked.
function withoutFailed(all) {
  if (!all.at(-1)?.failed) return all;
  const isComplete = ({ role, failed, calls }) => role === "assistant" && !failed && calls.length === 0;
  const kept = all.slice(0, all.findLastIndex(isComplete) + 1);
  for (const { node } of all.slice(kept.length)) {
    node.append(element("p", { class: "note" }, "Not part of the conversation."));
  }
  return kept;
}

/// Reads the settings. If one is invalid, reports it and returns `null`.
function settings() {
  const refuse = (input, problem) => {
    byId("settings").open = true;
    status(problem);
    input.focus();
    return null;
  };
  const options = {};
  const numbers = [["temperature", "temperature"], ["max-tokens", "max_tokens"], ["seed", "seed"]];
  for (const [id, field] of numbers) {
    const input = byId(id);
    if (!input.checkValidity()) {
      return refuse(input, `${input.labels[0].textContent}: ${input.validationMessage}`);
    }
    if (input.value !== "") options[field] = input.valueAsNumber;
  }
  // A model that cannot think, or always does, refuses the field.
  if (byId("thinking").value !== "") options.reasoning_effort = byId("thinking").value;
  const tools = byId("tools");
  if (tools.value.trim() !== "") {
    try {
      options.tools = JSON.parse(tools.value);
    } catch (error) {
      return refuse(tools, `Tools: ${error.message}`);
    }
    if (!Array.isArray(options.tools)) return refuse(tools, "Tools: expected a JSON array.");
  }
  return options;
}

/// Returns the messages of a request.
function messages() {
  const system = byId("system").value;
  const sent = system.trim() === "" ? [] : [{ role: "system", content: system }];
  for (const turn of turns) {
    if (turn.role === "tool") {
      sent.push({ role: "tool", tool_call_id: turn.id, content: turn.content });
    } else if (turn.calls?.length > 0) {
      const calls = turn.calls.map(({ id, name, text }) => ({
        id, type: "function", function: { name, arguments: text },
      }));
      sent.push({ role: "assistant", content: turn.content === "" ? null : turn.content, tool_calls: calls });
    } else {
      sent.push({ role: turn.role, content: turn.content });
    }
  }
  return sent;
}

/// Requests a reply to the turns and shows it while it arrives.
async function reply(options) {
  const controller = new AbortController();
  const conversation = turns;
  running = controller;
  showControls();
  removeBelow();
  status("Replying…");
  const view = new ReplyView(byId("model").value || "Model");
  addToLog(view.node);
  const began = performance.now();
  const since = () => (performance.now() - began) / 1000;
  const figures = {};
  const result = { role: "assistant", content: "", thought: "", calls: [], node: view.node };
  let [pieces, problem, reason] = [0, null, null];
  try {
    if (byId("model").value === "") await loadModels();
    const body = {
      model: byId("model").value, messages: messages(), stream: true,
      stream_options: { include_usage: true }, ...options,
    };
    for await (const chunk of completion(body, controller.signal)) {
      figures.usage = chunk.usage ?? figures.usage;
      figures.timings = chunk.timings ?? figures.timings;
      const choice = chunk.choices?.[0];
      reason = choice?.finish_reason ?? reason;
      if (choice?.delta && addDelta(result, choice.delta)) {
        figures.first ??= since();
        pieces += 1;
        showRunning(pieces - 1, since() - figures.first);
        view.update(result);
      }
    }
  } catch (error) {
    problem = error;
  }
  // A new chat has begun.
  if (conversation !== turns) return;
  const stopped = problem?.name === "AbortError";
  result.failed = problem !== null && !(stopped && result.content !== "" && result.calls.length === 0);
  turns.push(result);
  running = null;
  view.end(result, { problem, stopped, reason });
  showFigures(figures);
  showControls();
  addBelow(result);
  status(endText(result, { problem, stopped, reason, usage: figures.usage }));
  showPlacement(byId("model").value);
}

/// Adds a piece of a reply. Returns whether it has text.
function addDelta(result, delta) {
  result.content += delta.content ?? "";
  result.thought += delta.reasoning_content ?? "";
  for (const piece of delta.tool_calls ?? []) {
    const call = result.calls[piece.index ?? 0] ??= { id: "", name: "", text: "" };
    call.id = piece.id ?? call.id;
    call.name += piece.function?.name ?? "";
    call.text += piece.function?.arguments ?? "";
  }
  return Boolean(delta.content || delta.reasoning_content || delta.tool_calls?.length);
}

function endText(result, { problem, stopped, reason, usage }) {
  if (stopped) return "Stopped.";
  if (problem) return `Failed: ${problem.message}`;
  if (result.calls.length > 0) return "The model calls tools. Enter their results.";
  const tokens = usage ? ` ${usage.completion_tokens} tokens.` : "";
  return reason === "length" ? `The reply was cut.${tokens}` : `Reply complete.${tokens}`;
}

/// The view of a reply. Pieces are shown once per frame of the screen.
class ReplyView {
  constructor(title) {
    this.node = turnNode("assistant", title);
    this.node.setAttribute("aria-busy", "true");
    this.body = element("div", { class: "prose waiting" });
    this.calls = element("div");
    this.node.append(this.body, this.calls);
    this.frame = null;
  }

  update(result) {
    this.frame ??= requestAnimationFrame(() => this.show(result));
  }

  show(result) {
    if (this.frame !== null) cancelAnimationFrame(this.frame);
    this.frame = null;
    const follow = isAtEnd();
    if (result.thought !== "") this.showThought(result);
    showMarkdown(this.body, result.content);
    result.calls.forEach((call, index) => {
      const node = this.calls.children[index] ?? this.calls.appendChild(callNode(call));
      node.querySelector("b").textContent = call.name;
      node.querySelector("pre").textContent = call.text;
    });
    if (follow) scrollToEnd();
  }

  /// Shows thoughts, open until the answer begins. The user's choice has precedence.
  showThought({ thought, content, calls }) {
    if (!this.thoughts) {
      this.thoughts = element("details", { class: "thoughts", open: true },
        element("summary", { onclick: () => { this.chosen = true; } }, "Thoughts"),
        element("div", { class: "text" }));
      this.body.before(this.thoughts);
    }
    this.thoughts.lastChild.textContent = thought;
    if (!this.chosen) this.thoughts.open = content === "" && calls.length === 0 && running !== null;
  }

  end(result, { problem, stopped, reason }) {
    this.show(result);
    this.body.classList.remove("waiting");
    for (const call of this.calls.children) {
      const code = call.querySelector("pre");
      try {
        code.textContent = JSON.stringify(JSON.parse(code.textContent), null, 2);
      } catch {
        // Arguments that are not JSON are shown as they are.
      }
    }
    if (stopped) this.note("Stopped.");
    else if (problem) this.fault(problem);
    else if (reason === "length") this.note("Cut: the longest reply or the context is reached.");
    else if (result.content === "" && result.calls.length === 0) this.note("The reply is empty.");
    this.node.setAttribute("aria-busy", "false");
  }

  note(text) {
    this.node.append(element("p", { class: "note" }, text));
  }

  fault(problem) {
    const wait = Number.isInteger(problem.wait) ? [`. Try again in ${problem.wait} s.`] : [];
    this.node.append(element("p", { class: "fault", role: "alert" },
      element("b", {}, "Error: "), problem.message.replace(/\.$/, wait.length > 0 ? "" : "."), ...wait));
  }
}

/// Returns the card of a tool call, with a place for its result.
function callNode({ name, text }) {
  const shown = element("pre", { tabindex: "0", role: "region", "aria-label": "Arguments" }, text);
  return element("div", { class: "call" }, "Tool call ", element("b", {}, name), shown);
}

/// Returns the calls of the last reply, which need results before the conversation continues.
function openCalls() {
  const last = turns.at(-1);
  return last && !last.failed ? last.calls ?? [] : [];
}

/// Adds the controls below the last reply.
function addBelow(result) {
  const again = smallButton(result.failed ? "Try again" : "Regenerate", regenerate, { id: "regenerate" });
  const copy = result.content === "" ? null : copyButton(() => result.content, "Copy the reply");
  const row = element("div", { class: "below" }, ...[copy, again].filter(Boolean));
  const follow = isAtEnd();
  if (!result.failed && result.calls.length > 0) addResults(result);
  result.node.append(row);
  if (follow) scrollToEnd();
}

/// Adds inputs for the results of tool calls.
function addResults(result) {
  const cards = [...result.node.querySelectorAll(".call")];
  const inputs = cards.map((card, index) => {
    const title = `Result of ${result.calls[index].name}`;
    const input = element("textarea", { rows: "2", "aria-label": title, placeholder: title });
    card.append(input);
    return input;
  });
  const button = smallButton("Send results", () => {
    const options = settings();
    if (running || !options) return;
    inputs.forEach((input, index) => {
      const node = turnNode("user", `Result of ${result.calls[index].name}`);
      node.append(element("div", { class: "text code" }, input.value));
      addToLog(node);
      turns.push({ role: "tool", id: result.calls[index].id, content: input.value, node });
      input.remove();
    });
    button.remove();
    reply(options);
  }, { id: "send-results" });
  cards.at(-1).append(element("div", { class: "row" }, button));
}

/// Removes the control that only the last reply has.
function removeBelow() {
  byId("regenerate")?.remove();
}

/// Replaces the last reply by another one to the same turns.
function regenerate() {
  const options = settings();
  if (running || turns.at(-1)?.role !== "assistant" || !options) return;
  turns.pop().node.remove();
  byId("message").focus();
  reply(options);
}

function stop() {
  running?.abort();
}

function newChat() {
  stop();
  running = null;
  turns = [];
  attached.length = 0;
  showAttached();
  byId("log").replaceChildren(byId("empty"));
  byId("empty").hidden = false;
  showControls();
  status("New chat.");
  byId("message").focus();
}

/// Shows either the button that sends or the one that stops. The focus moves with it.
function showControls() {
  const [shown, hidden] = running ? ["stop", "send"] : ["send", "stop"];
  const focused = document.activeElement === byId(hidden);
  byId(shown).hidden = false;
  byId(hidden).hidden = true;
  if (focused) byId(shown).focus();
}

/// Makes the box as high as its text, up to the height that the style allows.
function fitMessage() {
  const box = byId("message");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}
