// A subset of Markdown as DOM nodes: paragraphs, headings, lists, quotes, rules, blocks of code, and
// inside of them code, bold, italics and links to http and https addresses. HTML, pictures and other
// links stay text. The work grows with the length of the text, not faster.

/// Depth up to which lists, quotes and emphasis nest. Deeper ones stay text.
const DEEPEST = 8;

/// Longest text of a link, in characters.
const LONGEST_LABEL = 300;

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6}) +(.*)$/;
const RULE = /^ {0,3}(?:(?:- *){3,}|(?:\* *){3,}|(?:_ *){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;

/// Shows a text in `target`. If the text only became longer, finished blocks keep their nodes, so
/// that a streamed reply is not built again for every piece, and a selection survives.
function showMarkdown(target, text) {
  const blocks = blocksOf(text.split("\n"));
  const before = target.shownBlocks ?? [];
  let same = 0;
  while (same < blocks.length && blocks[same].source === before[same]) same += 1;
  while (target.childNodes.length > same) target.lastChild.remove();
  for (const block of blocks.slice(same)) target.append(blockNode(block, 0));
  target.shownBlocks = blocks.map((block) => block.source);
}

/// Splits lines into blocks. `source` alone determines how a block is shown.
function blocksOf(lines) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at].trim() === "") {
      at += 1;
      continue;
    }
    const [kind, end] = blockAt(lines, at);
    const own = lines.slice(at, end);
    blocks.push({ kind, lines: own, source: own.join("\n") });
    at = end;
  }
  return blocks;
}

/// Returns the kind of the block that begins at a line, and the line after its last one.
function blockAt(lines, from) {
  const first = lines[from];
  const fence = FENCE.exec(first);
  if (fence) {
    const mark = fence[1];
    for (let at = from + 1; at < lines.length; at += 1) {
      const line = lines[at].trim();
      if (line.length >= mark.length && line === mark[0].repeat(line.length)) return ["code", at + 1];
    }
    return ["code", lines.length];
  }
  if (HEADING.test(first)) return ["heading", from + 1];
  if (RULE.test(first)) return ["rule", from + 1];
  if (QUOTE.test(first)) return ["quote", endOf(lines, from, (line) => QUOTE.test(line))];
  if (ITEM.test(first)) return ["list", endOfList(lines, from)];
  return ["paragraph", endOf(lines, from, (line) => line.trim() !== "" && !beginsBlock(line))];
}

/// Returns the first line after `from` that does not belong to the block.
function endOf(lines, from, belongs) {
  let at = from + 1;
  while (at < lines.length && belongs(lines[at])) at += 1;
  return at;
}

/// Checks whether a line ends a paragraph. A number in a text begins a list only if it is 1.
function beginsBlock(line) {
  const item = ITEM.exec(line);
  const list = item !== null && item[3] !== "" && (!/\d/.test(item[2]) || parseInt(item[2], 10) === 1);
  return list || FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line);
}

function indent(line) {
  return line.length - line.trimStart().length;
}

/// Returns the line after a list. An empty line ends it unless an item or indented text follows.
function endOfList(lines, from) {
  const base = indent(lines[from]);
  let at = from + 1;
  while (at < lines.length) {
    if (lines[at].trim() === "") {
      const next = endOf(lines, at, (line) => line.trim() === "");
      if (next === lines.length) return at;
      const continues = indent(lines[next]) > base || (ITEM.test(lines[next]) && !RULE.test(lines[next]));
      if (!continues) return at;
      at = next;
    } else if (indent(lines[at]) <= base && !ITEM.test(lines[at]) && beginsBlock(lines[at])) {
      return at;
    }
    at += 1;
  }
  return at;
}

function blockNode({ kind, lines, source }, depth) {
  if (depth >= DEEPEST) return element("p", {}, source);
  switch (kind) {
    case "code": return codeNode(lines);
    case "heading": {
      const [, marks, text] = HEADING.exec(source);
      // The page has headings of the first two levels.
      return element(`h${Math.min(6, marks.length + 2)}`, {}, inline(text.replace(/ +#+ *$/, ""), 0));
    }
    case "rule": return element("hr");
    case "quote": {
      const inner = blocksOf(lines.map((line) => line.replace(QUOTE, "")));
      return element("blockquote", {}, inner.map((block) => blockNode(block, depth + 1)));
    }
    case "list": return listNode(lines, depth);
    default: return element("p", {}, inline(lines.map((line) => line.trim()).join("\n"), 0));
  }
}

function codeNode(lines) {
  const [, mark, language] = FENCE.exec(lines[0]);
  const last = lines[lines.length - 1].trim();
  const closed = lines.length > 1 && last.length >= mark.length && last === mark[0].repeat(last.length);
  const code = lines.slice(1, closed ? -1 : undefined).join("\n");
  const name = language.trim().slice(0, 40);
  const block = element("div", { class: "block" },
    element("pre", { tabindex: "0", role: "region", "aria-label": name ? `Code in ${name}` : "Code" },
      element("code", {}, code)));
  const copy = copyButton(() => code, "Copy the code");
  if (copy) block.append(copy);
  return block;
}

function listNode(lines, depth) {
  const [, before, mark] = ITEM.exec(lines[0]);
  const ordered = /\d/.test(mark);
  const items = [];
  let inner = before.length;
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && (items.length === 0 || item[1].length < inner)) {
      inner = item[1].length + item[2].length + 1;
      items.push([line.slice(item[0].length)]);
    } else {
      items[items.length - 1].push(line.slice(Math.min(indent(line), inner)));
    }
  }
  const start = ordered && parseInt(mark, 10) !== 1 ? parseInt(mark, 10) : null;
  const list = element(ordered ? "ol" : "ul", { start });
  for (const content of items) {
    const nodes = blocksOf(content).map((block, index) => {
      const node = blockNode(block, depth + 1);
      // The first paragraph of an item has no distance of its own.
      return index === 0 && block.kind === "paragraph" ? [...node.childNodes] : [node];
    });
    list.append(element("li", {}, nodes.flat()));
  }
  return list;
}

const WORD = /[\p{L}\p{N}]/u;
const SPACE = /\s/;

/// Returns the nodes of a line of text. `missing` has marks without a closing one in the rest of the
/// text, so that they are not searched for again.
function inline(text, depth) {
  const nodes = [];
  const missing = new Set();
  let plain = "";
  let at = 0;
  const add = (node, end) => {
    if (plain !== "") nodes.push(plain);
    plain = "";
    nodes.push(node);
    at = end;
  };
  while (at < text.length) {
    const letter = text[at];
    let found = null;
    if (letter === "\n") found = [element("br"), at + 1];
    else if (letter === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
      continue;
    } else if (letter === "`") found = codeAt(text, at, missing);
    else if (letter === "*" || letter === "_") found = emphasisAt(text, at, depth, missing);
    else if (letter === "[") found = linkAt(text, at, depth, missing);
    else if (letter === "h" && !WORD.test(text[at - 1] ?? "")) found = addressAt(text, at);
    if (found) {
      add(...found);
    } else {
      // A run of equal marks is text as a whole.
      const run = letter === "`" || letter === "*" || letter === "_" ? runAt(text, at) : 1;
      plain += text.slice(at, at + run);
      at += run;
    }
  }
  if (plain !== "") nodes.push(plain);
  return nodes;
}

/// Returns the number of equal characters from a position.
function runAt(text, at) {
  let end = at + 1;
  while (text[end] === text[at]) end += 1;
  return end - at;
}

function codeAt(text, at, missing) {
  const run = runAt(text, at);
  const mark = "`".repeat(run);
  if (missing.has(mark)) return null;
  for (let end = text.indexOf(mark, at + run); end !== -1;) {
    const length = runAt(text, end);
    if (length === run) {
      const code = text.slice(at + run, end);
      const trimmed = /^ .*\S.* $/s.test(code) ? code.slice(1, -1) : code;
      return [element("code", {}, trimmed), end + run];
    }
    end = text.indexOf(mark, end + length);
  }
  missing.add(mark);
  return null;
}

function emphasisAt(text, at, depth, missing) {
  const run = runAt(text, at);
  const letter = text[at];
  const follows = text[at + run] ?? " ";
  if (run > 3 || depth >= DEEPEST || SPACE.test(follows)) return null;
  if (letter === "_" && WORD.test(text[at - 1] ?? "")) return null;
  const mark = letter.repeat(run);
  if (missing.has(mark)) return null;
  for (let end = text.indexOf(mark, at + run); end !== -1;) {
    const length = runAt(text, end);
    const closes = length === run && !SPACE.test(text[end - 1])
      && !(letter === "_" && WORD.test(text[end + run] ?? ""));
    if (closes) {
      const inner = inline(text.slice(at + run, end), depth + 1);
      const wrapped = run === 1 ? element("em", {}, inner) : element("strong", {}, inner);
      return [run === 3 ? element("em", {}, wrapped) : wrapped, end + run];
    }
    end = text.indexOf(mark, end + length);
  }
  missing.add(mark);
  return null;
}

function linkAt(text, at, depth, missing) {
  if (depth >= DEEPEST || missing.has("](")) return null;
  const middle = text.indexOf("](", at);
  if (middle === -1) {
    missing.add("](");
    return null;
  }
  if (middle - at > LONGEST_LABEL) return null;
  const label = text.slice(at + 1, middle);
  if (label === "" || label.includes("[") || label.includes("\n")) return null;
  const address = /^\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)?)>?(?:\s+"[^"\n]{0,300}")?\s*\)/
    .exec(text.slice(middle + 2, middle + 2 + 2500));
  const target = address && webAddress(address[1]);
  if (!target) return null;
  return [anchor(target, inline(label, DEEPEST)), middle + 2 + address[0].length];
}

function addressAt(text, at) {
  const found = /^https?:\/\/[^\s<>"`]{1,2000}/.exec(text.slice(at, at + 2020));
  if (!found) return null;
  let address = found[0].replace(/[.,;:!?'*_\]}]+$/, "");
  if (address.endsWith(")") && !address.includes("(")) address = address.slice(0, -1);
  const target = webAddress(address);
  return target && [anchor(target, [address]), at + address.length];
}

/// Returns the address if it is one of the web, otherwise `null`.
function webAddress(text) {
  let address;
  try {
    address = new URL(text);
  } catch {
    return null;
  }
  return ["http:", "https:"].includes(address.protocol) ? address.href : null;
}

/// Makes a link that gives the other page no access to this one. Its title is the address, because a
/// text may name another one.
function anchor(address, children) {
  return element("a",
    { href: address, title: address, target: "_blank", rel: "noopener noreferrer nofollow" }, children);
}
