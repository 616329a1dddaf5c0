"use strict";
// Draws a page from its data: PARTS has a function for each kind of part in D.parts, and PLOTS for each plot.
// Colours are CSS variables of the page, so both colour schemes share the drawings.
const D = JSON.parse(document.getElementById("data").textContent);
const byId = id => document.getElementById(id);
const say = x => x === null || x === undefined ? "–" : Math.abs(x) >= 100 ? x.toFixed(1) : String(Number(x.toPrecision(4)));

function add(parent, name, attributes, text) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

const TIP = { lineHeight: 1.3 };
const spread = values => Math.max(...values) / Math.min(...values);

// Labels a plot as an image for screen readers, and removes the labels that Plot gives to its parts.
function named(svg, label) {
  svg.querySelectorAll("g[aria-label]").forEach(part => part.removeAttribute("aria-label"));
  svg.setAttribute("role", "img"); svg.setAttribute("aria-label", label);
  return svg;
}

function plot(width, options) {
  return Plot.plot({ width, height: 290, marginLeft: 52, marginRight: 16, marginBottom: 42, style: { fontSize: "12px", background: "none" }, ...options });
}

function drawAll() {
  for (const section of document.querySelectorAll("[data-plot]")) {
    section.hidden = false;
    section.querySelectorAll(".drawn").forEach(node => node.remove());
    const box = add(section, "div", { class: "drawn" }), inner = add(box, "div", { class: "scroll" });
    const drawn = PLOTS[section.id](Math.max(280, Math.floor(section.clientWidth)), box);
    inner.append(drawn.tagName === "svg" ? named(drawn, section.querySelector("h2").textContent) : drawn);
    box.append(inner);
    add(box, "p", { class: "hint" }, "Scroll sideways to see the rest.");
  }
  for (const box of document.querySelectorAll(".scroll")) {
    const over = box.scrollWidth > box.clientWidth + 1;
    box.classList.toggle("over", over);
    if (over && !box.hasAttribute("tabindex")) for (const [name, value] of Object.entries({ tabindex: 0, role: "region", "aria-label": `${box.closest("section").querySelector("h2").textContent}, to scroll` })) box.setAttribute(name, value);
  }
}

function copies(button, text) {
  const label = button.textContent;
  button.addEventListener("click", () => {
    const done = () => { button.textContent = "copied"; setTimeout(() => { button.textContent = label; }, 1500); };
    const byHand = () => { const area = add(document.body, "textarea", {}, text()); area.select(); document.execCommand("copy"); area.remove(); done(); };
    if (navigator.clipboard) navigator.clipboard.writeText(text()).then(done, byHand); else byHand();
  });
}

// A value as Python writes it. Lists of a journal are tuples in a configuration.
const python = value => Array.isArray(value) ? `(${value.map(python).join(", ")}${value.length === 1 ? "," : ""})`
  : value === null ? "None" : typeof value === "boolean" ? (value ? "True" : "False")
  : typeof value === "object" ? `{${Object.entries(value).map(([k, v]) => `${python(k)}: ${python(v)}`).join(", ")}}` : JSON.stringify(value);

// Makes a table sortable, with a filter.
function sortable(table) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0], rows = [...body.rows], titles = heads.map(h => h.textContent), box = table.parentNode;
  const value = cell => { const text = cell.dataset.v ?? cell.textContent; return text === "–" ? null : text !== "" && Number.isFinite(Number(text)) ? Number(text) : text; };
  const compare = (a, b, sign) => a === null || b === null ? (a === null) - (b === null) : sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a) < String(b) ? -1 : String(a) > String(b) ? 1 : 0);
  const sort = (i, sign) => {
    for (const other of heads) other.removeAttribute("aria-sort");
    heads[i].setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    body.append(...rows.map(row => [value(row.cells[i]), row]).sort((a, b) => compare(a[0], b[0], sign)).map(pair => pair[1]));
  };
  heads.forEach((head, i) => {
    head.textContent = "";
    add(head, "button", { type: "button" }, titles[i]).addEventListener("click", () => sort(i, head.getAttribute("aria-sort") === "ascending" ? -1 : 1));
  });
  const label = document.createElement("label"), status = document.createElement("p");
  status.className = "soft"; status.setAttribute("aria-live", "polite");
  label.textContent = "Show only rows that contain all of these words";
  const input = add(label, "input", { id: "filter", type: "search", autocomplete: "off" });
  box.before(label, status);
  const words = new Map(rows.map(row => [row, [...row.cells].map((cell, i) => titles[i] + "=" + cell.textContent + " ").join(" ").toLowerCase()]));
  const count = document.createElement("span"); count.className = "word";
  const apply = () => {
    const wanted = input.value.toLowerCase().split(/\s+/).filter(Boolean).map(w => w.includes("=") ? w + " " : w);
    for (const row of rows) row.hidden = !wanted.every(w => words.get(row).includes(w));
    count.textContent = ` ${rows.filter(row => !row.hidden).length} of ${rows.length} rows `;
  };
  input.addEventListener("input", apply); apply();
  copies(add(status, "button", { type: "button" }, "Copy rows as Python"), () =>
    `[\n${[...body.rows].filter(row => !row.hidden).map(row => "  " + python(JSON.parse(row.dataset.config))).join(",\n")}\n]\n`);
  status.append(count);
}

// Writes text that may wrap after "/", ",", "=" and ":". With by_words it wraps there only if a word exceeds a line.
function write(node, text, by_words) {
  for (const word of by_words ? text.split(/( )/) : [text]) {
    const at = by_words && word !== " " ? add(node, "span", { class: "word" }) : node;
    for (const piece of word.split(/(?<=[/,=:])/)) {
      at.append(piece);
      if (/[/,=:]$/.test(piece)) add(at, "wbr");
    }
  }
  return node;
}

function section(parent, part) {
  const made = add(parent, "section", part.id ? { id: part.id } : {});
  if (part.title) add(made, "h2", {}, part.title);
  if (part.text) write(add(made, "p", { class: "soft" }), part.text);
  return made;
}

const written = (parent, lines) => add(parent, "pre", { class: "output", tabindex: 0 }, lines.join("\n"));

function folded(parent, summary, lines) {
  const details = add(parent, "details");
  add(details, "summary", {}, summary);
  written(details, lines);
}

// A cell is a text, or a bar {of, text}, where `of` is its length from 0 to 1.
function cell(row, value, kind) {
  if (value.of === undefined) return write(add(row, kind || "td"), value, !kind);
  const box = add(row, "td", { class: "bar" });
  add(box, "i", { style: `--of: ${value.of}`, class: value.rest ? "rest" : "" });
  box.append(value.text);
}

const LONG = 60;  // the table shortens values with more characters

function valueCell(row, value, { decimals, whole }) {
  const number = typeof value === "number";
  const box = add(row, "td", number || value === null ? { class: "n" } : {});
  if (number) {
    const digits = { minimumFractionDigits: decimals, maximumFractionDigits: decimals };
    box.textContent = Number.isInteger(value) && !decimals ? String(value) : decimals === null ? say(value) : value.toLocaleString("en", digits);
    box.dataset.v = value;
  } else box.textContent = value === null ? "–" : value.length > LONG && !whole ? `${value.slice(0, LONG - 1)}…` : value;
  if (!number && value !== null && value.length > LONG && !whole) box.title = value;
}

const PARTS = {
  card(parent, part) {
    const made = add(parent, "section", { id: "winner" });
    if (part.figures.length) {
      const figures = add(made, "div", { class: "figures" });
      for (const [number, text] of part.figures) {
        const box = add(figures, "div");
        add(box, "b", {}, number); box.append(" "); add(box, "span", {}, text);
      }
    }
    if (part.config) {
      const config = add(made, "div", { id: "config" });
      write(add(config, "code"), part.shown, true);
      copies(add(config, "button", { type: "button" }, "Copy as Python"), () => python(part.config));
    }
    for (const note of part.notes) write(add(made, "p"), note);
    const origin = add(made, "p", { class: "soft" });
    part.origin.forEach((text, i) => { if (i) origin.append(" · "); write(add(origin, "span", { class: "word" }), text); });
    const counts = add(parent, "p", {}, `${part.total}: `);
    part.counts.forEach(([text, bad], i) => { if (i) counts.append(", "); add(counts, "b", { class: bad ? "word bad" : "word" }, text); });
  },

  list(parent, part) {
    const list = add(section(parent, part), "ul");
    for (const text of part.items) write(add(list, "li"), text);
  },

  facts(parent, part) {
    const made = section(parent, part);
    if (!part.rows) return;
    const table = add(add(add(made, "div", { class: "scroll" }), "table"), "tbody");
    if (part.heads) { const row = add(table, "tr"); for (const text of part.heads) add(row, "th", { scope: "col" }, text); }
    for (const [name, ...values] of part.rows) {
      const row = add(table, "tr");
      cell(row, name, "th").setAttribute("scope", "row");
      for (const value of values) cell(row, value);
    }
  },

  table(parent, part) {
    const made = section(parent, part);
    const box = add(made, "div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": part.title });
    const table = add(box, "table", { id: part.name }), head = add(add(table, "thead"), "tr"), body = add(table, "tbody");
    for (const column of part.columns) add(head, "th", { scope: "col" }, column.title);
    for (const line of part.rows) {
      const row = add(body, "tr", { class: line.class, "data-config": JSON.stringify(line.config) });
      line.cells.forEach((value, i) => valueCell(row, value, part.columns[i]));
    }
    add(made, "p", { class: "hint" }, "Scroll sideways for more columns.");
    sortable(table);
  },

  failures(parent, part) {
    const made = section(parent, part);
    for (const group of part.items) {
      add(made, "h3", group.bad ? { class: "bad" } : {}, group.title);
      write(add(made, "p"), group.text);
      if (group.where) written(made, group.where);
      write(add(made, "p", { class: "soft" }), group.example, true);
      if (group.written.length && group.where) folded(made, "Full output", group.written);
      else if (group.written.length) written(made, group.written);
    }
  },

  source(parent, part) {
    const made = section(parent, part);
    if (part.written) { folded(made, part.summary, part.written); return; }
    const text = add(made, "p", { class: "soft" }, "The source was not kept. This command generates it again: ");
    write(add(text, "code"), part.command, true);
  },

  plot(parent, part) { section(parent, part).dataset.plot = ""; },

  text(parent, part) { written(section(parent, part), part.written); },
};

function begin() {
  const main = document.querySelector("main");
  write(add(main, "h1"), D.title, true);
  for (const part of D.parts) PARTS[part.kind](main, part);
  drawAll();
  let drawnAt = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== drawnAt) { drawnAt = innerWidth; drawAll(); } });
  document.documentElement.dataset.drawn = "yes";
}
