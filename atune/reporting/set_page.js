// The maps of a set of problems.
const HUES = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0"];
const shade = name => `color-mix(in oklab, ${HUES[D.winners.indexOf(name) % HUES.length]} ${D.winners.indexOf(name) < HUES.length ? 48 : 18}%, var(--bg))`;
const METRICS = { default: "× default", reference: "× reference", ms: "latency, ms" };
const shownMetrics = Object.keys(METRICS).filter(name => D.problems.some(p => p[name] !== null));
const titleOf = p => [p.text, p.winner && `winner ${p.winner}`, ...Object.keys(METRICS).map(name => p[name] !== null && `${METRICS[name]} ${say(p[name])}`)].filter(Boolean).join("\n");

// A ratio above 1 is blue and one below it orange, the stronger the farther; a latency the stronger the less it is.
function colours(name) {
  const logs = D.problems.filter(p => p[name] !== null).map(p => Math.log(p[name])), [low, high] = d3.extent(logs), far = Math.max(Math.abs(low), Math.abs(high), .1);
  const mixed = (colour, t) => `color-mix(in oklab, var(--${colour}) ${(100 * t).toFixed(1)}%, var(--slow))`;
  if (name === "ms") return p => mixed("fast", high > low ? (high - Math.log(p.ms)) / (high - low) : 1);
  return p => mixed(p[name] < 1 ? "worse" : "fast", Math.abs(Math.log(p[name])) / far);
}

// One map for each combination of the arguments that are not its axes.
function maps(width, what, fill, text, known) {
  const [x, y] = D.axes, all = document.createElement("div"), columns = x.labels, longest = Math.max(...columns.map(v => v.length));
  const left = y ? 20 + 7 * Math.max(...y.labels.map(v => v.length), y.name.length / 2) : 16, wide = Math.max(30, Math.min(110, (width - left - 4) / columns.length)), turned = longest * 8 > wide;
  for (const [group, cells] of d3.group(D.problems, p => p.group)) {
    if (group) add(all, "h3", {}, group);
    const rows = y ? y.labels.filter(label => cells.some(p => p.at[1] === label)) : [""], at = { x: p => p.at[0], y: p => y ? p.at[1] : "" };
    all.append(named(plot(left + wide * columns.length + 4, {
      height: 34 * rows.length + (turned ? 88 : 68), marginLeft: left, marginRight: 4, marginTop: 24, marginBottom: turned ? 64 : 44, padding: .05,
      x: { domain: columns, label: x.name, labelOffset: turned ? 58 : 38, tickRotate: turned ? -45 : 0, tickSize: 0 }, y: { domain: rows, label: y ? y.name : null, labelAnchor: "top", labelArrow: "none", tickSize: 0 },
      marks: [
        Plot.cell(cells.filter(p => !known(p)), { ...at, stroke: "var(--soft)", strokeDasharray: "3 3", fill: "none", rx: 3, inset: 1 }),
        Plot.cell(cells.filter(known), { ...at, fill: { value: fill, scale: null }, rx: 3 }),
        Plot.text(cells.filter(known), { ...at, text, fill: "currentColor", fontSize: wide < 44 ? 10 : 12 }),
        Plot.tip(cells, Plot.pointer({ ...at, title: titleOf, maxRadius: 60, ...TIP })),
      ],
    }), [what, group].filter(Boolean).join(", ")));
  }
  return all;
}

let metric;
const PLOTS = {
  map(width, box) {
    const chosen = shownMetrics.includes(metric) ? metric : shownMetrics[0];
    if (!chosen) return maps(width, "problems", () => "none", () => "", () => false);
    const label = add(box, "label", {}, "Show "), select = add(label, "select", { id: "metric" });
    for (const name of shownMetrics) add(select, "option", { value: name, ...(name === chosen ? { selected: "" } : {}) }, METRICS[name]);
    select.addEventListener("change", () => { metric = select.value; drawAll(); byId("metric").focus(); });
    return maps(width, METRICS[chosen], colours(chosen), p => chosen === "ms" ? say(Number(p.ms.toPrecision(2))) : p[chosen].toFixed(2), p => p[chosen] !== null);
  },

  regions(width, box) {
    const key = add(box, "p", { class: "key" });
    for (const name of D.winners) { const one = add(key, "span"); add(one, "i", { style: `background: ${shade(name)}` }); one.append(`${name} ${D.problems.filter(p => p.winner === name).length}`); }
    return maps(width, "winners", p => shade(p.winner), p => p.winner, p => p.winner !== null);
  },
};

for (const head of document.querySelectorAll("[data-name]")) if (D.winners.includes(head.dataset.name)) head.style.background = shade(head.dataset.name);

// A link to a problem opens what is folded.
function open() {
  const part = /^#problem-\d+$/.test(location.hash) && byId(location.hash.slice(1));
  if (part) { part.open = true; part.scrollIntoView(); }
}
addEventListener("hashchange", open);
begin("problems", D.axes.length ? `${D.axes[0].name}=${D.axes[0].labels[0]}` : "");
open();
