// What is pointed at, focused or tapped in the strip, in a panel below it. Without this script a
// layer leads to its row of the table, and a shard to its block.
"use strict";
(() => {
  const panel = document.getElementById("detail");
  const names = [...document.querySelectorAll("#table thead th")].map((name) => name.textContent);
  const marks = document.querySelectorAll(".strip [data-shard]");
  let kept = null;
  document.documentElement.classList.add("scripted");

  const add = (parent, name, text) => {
    const child = parent.appendChild(document.createElement(name));
    child.textContent = text;
    return child;
  };

  const show = (mark) => {
    marks.forEach((other) => other.classList.toggle("shown", other === mark));
    panel.hidden = mark === null;
    panel.replaceChildren();
    if (mark === null) return;
    const box = mark.getBoundingClientRect();
    panel.classList.toggle("above", box.top + box.bottom > innerHeight);
    panel.classList.toggle("kept", mark === kept);
    const shard = document.getElementById("shard-" + mark.dataset.shard);
    const row = mark.dataset.layer && document.getElementById("layer-" + mark.dataset.layer);
    if (row) {
      add(panel, "h3", row.cells[0].textContent);
      const list = panel.appendChild(document.createElement("dl"));
      [...row.cells].slice(1).forEach((cell, index) => {
        const pair = list.appendChild(document.createElement("div"));
        add(pair, "dt", names[index + 1]);
        add(pair, "dd", cell.textContent);
      });
      add(panel, "h4", "Reasons for shard " + mark.dataset.shard);
    } else {
      add(panel, "h3", shard.querySelector("summary").textContent);
    }
    panel.append(shard.querySelector(".reasons").cloneNode(true));
    const more = add(panel, "a", row ? "In the table" : "All of this shard");
    more.href = mark.getAttribute("href");
  };

  marks.forEach((mark) => {
    mark.addEventListener("mouseenter", () => show(mark));
    mark.addEventListener("mouseleave", () => show(kept));
    mark.addEventListener("focus", () => show(mark));
    mark.addEventListener("blur", () => show(kept));
    mark.addEventListener("click", (event) => {
      event.preventDefault();
      kept = mark;
      show(mark);
    });
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    kept = null;
    show(null);
  });
})();
