// The start of the page: models, colours, keys, and the panel of the plan.

const THEME = "shardwright-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

/// Applies the chosen colours, otherwise those that the system prefers.
function showTheme() {
  const chosen = stored("localStorage", THEME);
  const theme = ["light", "dark"].includes(chosen) ? chosen : dark.matches ? "dark" : "light";
  document.documentElement.dataset.theme = theme;
  byId("theme").setAttribute("aria-pressed", `${theme === "dark"}`);
}

function switchTheme() {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  store("localStorage", THEME, theme);
  document.documentElement.dataset.theme = theme;
  byId("theme").setAttribute("aria-pressed", `${theme === "dark"}`);
}

function showPlanPanel(visible) {
  byId("plan").hidden = !visible;
  byId("show-plan").setAttribute("aria-expanded", `${visible}`);
}

/// Reads the models that the server offers. The first one is chosen.
async function loadModels() {
  const { data } = await requestJson("v1/models");
  if (!Array.isArray(data) || data.length === 0) throw new RequestError(0, "The server has no model.");
  const select = byId("model");
  select.replaceChildren(...data.map(({ id }) => element("option", { value: id }, id)));
  select.disabled = false;
  document.title = "Shardwright";
  await showPlacement(select.value);
}

const narrow = matchMedia("(max-width: 52rem)");

/// On a narrow window the plan covers the chat, so Esc closes it first.
function escape() {
  if (running) stop();
  else if (narrow.matches && !byId("plan").hidden) {
    showPlanPanel(false);
    byId("show-plan").focus();
  }
}

function start() {
  showTheme();
  dark.addEventListener("change", showTheme);
  narrow.addEventListener("change", () => showPlanPanel(!narrow.matches));
  showPlanPanel(!narrow.matches);
  byId("theme").onclick = switchTheme;
  byId("show-plan").onclick = () => showPlanPanel(byId("plan").hidden);
  byId("new-chat").onclick = newChat;
  byId("send").onclick = send;
  byId("stop").onclick = stop;
  byId("model").onchange = (event) => showPlacement(event.currentTarget.value);
  const box = byId("message");
  box.oninput = fitMessage;
  box.onkeydown = (event) => {
    // While an input method composes a word, Enter belongs to it.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.isComposing && !byId("key-dialog").open) escape();
  });
  box.focus();
  loadModels().catch((error) => status(error.message));
}

start();
