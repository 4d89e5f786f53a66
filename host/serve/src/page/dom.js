// Helpers for the document. Text of models, users and servers only becomes text nodes and values of
// attributes that cannot run code. No file of this page parses HTML.

const byId = (id) => document.getElementById(id);

/// Makes an element. Attributes whose name starts with `on` are listeners. `null`, `undefined` and
/// `false` omit an attribute. Children may be lists of children, which can be long.
function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) {
      node.setAttribute(key, value === true ? "" : value);
    }
  }
  for (const child of children.flat()) node.append(child);
  return node;
}

/// Makes a small button.
function smallButton(text, onclick, attributes = {}) {
  return element("button", { type: "button", class: "small", onclick, ...attributes }, text);
}

/// Makes a button that copies what `text` returns, or `null` where the browser has no clipboard for
/// pages, as on addresses without encryption other than this machine.
function copyButton(text, label) {
  if (!navigator.clipboard) return null;
  return smallButton("Copy", async (event) => {
    const button = event.currentTarget;
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not copied";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  }, { "aria-label": label });
}

/// Reads a value that the browser stores, or `null` if storage is unavailable.
function stored(storage, name) {
  try {
    return window[storage].getItem(name);
  } catch {
    return null;
  }
}

/// Stores a value if storage is available. Without it, the value applies until the page is closed.
function store(storage, name, value) {
  try {
    window[storage].setItem(name, value);
  } catch {
    // Private windows and strict settings have no storage.
  }
}
