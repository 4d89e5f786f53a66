// The plan next to the chat: a strip of shards, where each runs, fallbacks, notices, and the figures
// of the last reply.

/// Number of colours for targets. Further targets repeat them, and their names are in the list.
const COLOURS = 6;

/// Formats bytes in the unit that has at most four digits.
function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let value = bytes;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

function layersText(layers) {
  if (!Array.isArray(layers) || layers.length < 2) return "no layers";
  return layers[0] === layers[1] ? `layer ${layers[0]}` : `layers ${layers[0]} to ${layers[1]}`;
}

function factsText({ layers, bytes }) {
  const known = typeof bytes === "number" ? [bytesText(bytes)] : [];
  return [layersText(layers), ...known].join(", ");
}

/// Returns the text of a notice or a move, which the server sends as a text or as an object.
function reportText(report) {
  if (typeof report === "string") return report;
  if (typeof report?.text === "string") return report.text;
  const to = Array.isArray(report?.to) ? report.to.join(", ") : report?.to;
  const parts = [report?.shard, report?.from && `from ${report.from}`, to && `to ${to}`];
  const known = parts.filter((part) => typeof part === "string" && part !== "");
  const error = typeof report?.error === "string" ? `: ${report.error}` : "";
  return known.length > 0 ? known.join(" ") + error : JSON.stringify(report);
}

/// Reads where the model runs and shows it. A failure is shown in the place of the plan.
async function showPlacement(id) {
  let found;
  try {
    const answer = await requestJson("v1/placement");
    found = answer.models?.find((model) => model.id === id);
  } catch (error) {
    byId("plan-summary").textContent = `The plan cannot be shown: ${error.message}`;
    return;
  }
  const shards = found?.shards ?? [];
  const moves = found?.moves ?? [];
  const targets = [...new Set(shards.map((shard) => shard.target))];
  const colour = (shard) => `t${targets.indexOf(shard.target) % COLOURS}`;
  byId("plan-summary").textContent = summary(found, shards, targets);
  byId("strip").replaceChildren(...shards.map((shard, index) => {
    const classes = shard.fallback ? `${colour(shard)} fallback` : colour(shard);
    const cell = element("span", { class: classes }, `${index}`);
    const [first, last] = Array.isArray(shard.layers) ? shard.layers : [0, 0];
    cell.style.flexGrow = Math.max(1, last - first + 1);
    return cell;
  }));
  byId("strip").setAttribute("aria-label", shards.length === 0
    ? "No plan yet"
    : `${countText(shards)} on ${targets.join(", ")}`);
  byId("shards").replaceChildren(...shards.map((shard, index) => element("li", { class: colour(shard) },
    element("b", {}, `${index} ${shard.name}`), " on ", shard.target, " ",
    shard.fallback ? element("span", { class: "badge" }, "fallback") : "",
    element("br"),
    element("small", {}, factsText(shard)),
    ...(shard.fallbacks ?? []).flatMap(({ what, because }) => [
      element("br"), element("small", {}, `${what}: ${because}`),
    ]))));
  const fallbacks = shards.filter((shard) => shard.fallback).length + moves.length;
  byId("fallbacks").textContent = shards.length === 0 ? "–" : `${fallbacks}`;
  const notices = [
    ...moves.map((move) => element("li", { class: "fallback" }, `moved: ${reportText(move)}`)),
    ...(found?.notices ?? []).map((notice) => element("li",
      { class: notice?.kind === "fallback" ? "fallback" : null }, reportText(notice))),
  ];
  byId("notices").replaceChildren(...(notices.length > 0 ? notices : [element("li", {}, "none")]));
}

function countText(shards) {
  return shards.length === 1 ? "1 shard" : `${shards.length} shards`;
}

function summary(found, shards, targets) {
  if (!found || found.loaded === false) return "The model is loaded by the first message.";
  const plan = ["plan", "chain"].filter((name) => ["string", "number"].includes(typeof found[name]));
  // The id of a plan is a hash, of which the beginning identifies it.
  const begin = (name) => String(found[name]).slice(0, 16);
  const facts = plan.map((name) => `${name === "plan" ? "Plan" : "Chain"}: ${begin(name)}.`);
  const emulated = found.emulated_on ? [`Emulated on ${found.emulated_on}.`] : [];
  return [`${countText(shards)} on ${targets.join(", ")}.`, ...emulated, ...facts].join(" ");
}

/// Formats seconds with the digits that a reader needs.
function secondsText(seconds) {
  return seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`;
}

/// Shows the speed while a reply runs. A piece of text is about a token.
function showRunning(pieces, seconds) {
  if (pieces > 1 && seconds > 0) byId("speed").textContent = `≈ ${(pieces / seconds).toFixed(1)}`;
}

/// Shows the figures of an ended reply. Figures that the server did not send are shown as unknown.
function showFigures({ usage, timings, first }) {
  const set = (id, value, text = String) => {
    byId(id).textContent = typeof value === "number" ? text(value) : "–";
  };
  set("speed", timings?.predicted_per_second, (value) => value.toFixed(1));
  set("first", first, secondsText);
  set("prompt-tokens", usage?.prompt_tokens);
  set("reused", usage?.prompt_tokens_details?.cached_tokens);
  set("reply-tokens", usage?.completion_tokens);
}
