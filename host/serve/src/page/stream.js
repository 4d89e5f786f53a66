// Requests to the server, with the API key if it needs one, and the events of a streamed reply.

/// An answer of the server that is not the requested one, or no answer (`status` 0).
class RequestError extends Error {
  constructor(status, message, wait = null) {
    super(message);
    this.status = status;
    /// Seconds after which the server accepts the request, if it knows.
    this.wait = wait;
  }
}

const KEY = "shardwright-key";
let apiKey = stored("sessionStorage", KEY);

/// The open question for a key. Requests that fail meanwhile wait for the same answer.
let keyQuestion = null;

/// Shows the dialog for the key. The promise has whether a key was given.
function requestKey(rejected) {
  keyQuestion ??= new Promise((resolve) => {
    const dialog = byId("key-dialog");
    byId("key-reason").textContent = rejected
      ? "The server rejected this key."
      : "This server needs an API key. The page keeps it until this tab is closed.";
    const end = (given) => {
      dialog.close();
      keyQuestion = null;
      resolve(given);
    };
    byId("key-form").onsubmit = (event) => {
      event.preventDefault();
      apiKey = byId("key").value;
      byId("key").value = "";
      store("sessionStorage", KEY, apiKey);
      end(true);
    };
    byId("key-cancel").onclick = () => end(false);
    dialog.oncancel = (event) => {
      event.preventDefault();
      end(false);
    };
    dialog.showModal();
    byId("key").focus();
  });
  return keyQuestion;
}

/// Sends a request and returns the successful response. An answer of 401 opens the dialog for a key
/// and sends the request again.
async function request(path, options = {}) {
  for (;;) {
    const used = apiKey;
    const headers = { ...options.headers, ...(used ? { Authorization: `Bearer ${used}` } : {}) };
    let response;
    try {
      response = await fetch(path, { ...options, headers, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new RequestError(0, "The server does not answer.");
    }
    if (response.ok) return response;
    if (response.status === 401) {
      // Another request may have got a key meanwhile.
      if (used !== apiKey || await requestKey(used !== null)) continue;
    }
    throw await failure(response);
  }
}

/// Returns the error of a response, in the server's words.
async function failure(response) {
  let message = `${response.status} ${response.statusText}`.trim();
  try {
    message = errorText((await response.json()).error) ?? message;
  } catch {
    // An answer without JSON has its status only.
  }
  const wait = Number.parseInt(response.headers.get("Retry-After") ?? "", 10);
  return new RequestError(response.status, message, Number.isNaN(wait) ? null : wait);
}

/// Returns the text of an error object, with its advice.
function errorText(error) {
  if (typeof error === "string") return error;
  if (typeof error?.message !== "string") return null;
  return typeof error.help === "string" ? `${error.message}. ${error.help}` : error.message;
}

async function requestJson(path) {
  return (await request(path)).json();
}

/// Yields the data of each server-sent event of a response.
async function* serverEvents(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read().catch((error) => {
        throw error.name === "AbortError" ? error : new RequestError(0, "The connection was lost.");
      });
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const lines = rest.split("\n");
      rest = lines.pop();
      for (const ended of lines) {
        const line = ended.endsWith("\r") ? ended.slice(0, -1) : ended;
        if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
        else if (line === "" && data.length > 0) {
          yield data.join("\n");
          data = [];
        }
      }
      if (done) return;
    }
  } finally {
    // Ends the reply on the server too.
    reader.cancel().catch(() => {});
  }
}

/// Yields the chunks of a chat completion until its end.
async function* completion(body, signal) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  for await (const data of serverEvents(response)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new RequestError(500, errorText(chunk.error) ?? "The server reported an error.");
    yield chunk;
  }
  throw new RequestError(0, "The connection ended before the reply.");
}
