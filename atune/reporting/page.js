"use strict";
// What the pages of a run and of a set share: they draw the plots of PLOTS with Observable Plot, and make a table sortable.
// Colours are the page's CSS variables, so that both colour schemes need one drawing.
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

// A picture for those who do not see it; Plot labels its parts, which then may not have labels of their own.
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

// A value as Python writes it; what is a list in a journal is a tuple in a configuration.
const python = value => Array.isArray(value) ? `(${value.map(python).join(", ")}${value.length === 1 ? "," : ""})`
  : value === null ? "None" : typeof value === "boolean" ? (value ? "True" : "False")
  : typeof value === "object" ? `{${Object.entries(value).map(([k, v]) => `${python(k)}: ${python(v)}`).join(", ")}}` : JSON.stringify(value);
const WRITTEN = { Python: text => python(JSON.parse(text)), JSON: text => text };

// Makes a table sortable, with a filter; `example` is a word that its rows may have.
function sortable(table, example) {
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
  const label = document.createElement("label"), found = document.createElement("p");
  found.className = "soft"; found.setAttribute("aria-live", "polite");
  label.textContent = `Show only rows with all of these words${example ? `, such as ${example}` : ""}`;
  const input = add(label, "input", { id: "filter", type: "search", autocomplete: "off" });
  box.before(label, found);
  const words = new Map(rows.map(row => [row, [...row.cells].map((cell, i) => titles[i] + "=" + cell.textContent + " ").join(" ").toLowerCase()]));
  const count = document.createElement("span"); count.className = "word";
  const apply = () => {
    const wanted = input.value.toLowerCase().split(/\s+/).filter(Boolean).map(w => w.includes("=") ? w + " " : w);
    for (const row of rows) row.hidden = !wanted.every(w => words.get(row).includes(w));
    count.textContent = ` ${rows.filter(row => !row.hidden).length} of ${rows.length} rows `;
  };
  input.addEventListener("input", apply); apply();
  for (const how of ["Python", "JSON"]) copies(add(found, "button", { type: "button" }, `Copy rows as ${how}`), () =>
    `[\n${[...body.rows].filter(row => !row.hidden).map(row => "  " + WRITTEN[how](row.dataset.config)).join(",\n")}\n]\n`);
  found.append(count);
}

function begin(table, example) {
  const config = byId("config");
  if (config) for (const how of ["Python", "JSON"]) copies(add(config, "button", { type: "button" }, `Copy as ${how}`), () => WRITTEN[how](config.dataset.config));
  if (byId(table)) sortable(byId(table), example);
  drawAll();
  let drawnAt = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== drawnAt) { drawnAt = innerWidth; drawAll(); } });
  document.documentElement.dataset.drawn = "yes";
}
