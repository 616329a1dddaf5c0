// Draws a run's plots and the table of its candidates. D.fields names the cells of each of D.rows.
const S = D.summary, rows = D.rows.map(cells => Object.fromEntries(D.fields.map((name, i) => [name, cells[i]])));
const count = n => n.toLocaleString("en"), textOf = value => typeof value === "string" ? value : python(value);
const has = (row, name) => Object.hasOwn(row.config, name);
const LONG_LABEL = 24;  // plots shorten axis values with more characters

// Returns labels without the middle of long ones, unless that makes two of them equal.
function cut(labels) {
  const short = labels.map(v => v.length <= LONG_LABEL ? v : `${v.slice(0, LONG_LABEL / 2)}…${v.slice(1 - LONG_LABEL / 2)}`);
  return new Set(short).size === labels.length ? short : labels;
}

// Returns the axes with several values, the most important first. Values are in order: numbers by size, then texts.
function axesOf(timed) {
  const inSpace = timed.filter(row => row.index >= 0);
  const names = new Set([...Object.keys(S.axis_importance?.shares ?? {}), ...inSpace.flatMap(row => Object.keys(row.config))]);
  const number = v => typeof v === "number";
  return [...names].map(name => {
    const values = new Map(inSpace.filter(row => has(row, name)).map(row => [textOf(row.config[name]), row.config[name]]));
    const order = [...values].sort(([a, x], [b, y]) => number(y) - number(x) || (number(x) && x - y) || (a < b ? -1 : 1)).map(([text]) => text);
    return { name, labels: cut(order), places: new Map(order.map((text, i) => [text, i])) };
  }).filter(axis => axis.labels.length > 1);
}

// The measured candidates: the row, the rank, and for each axis the position of its value, or null.
const timed = rows.filter(row => row.status === "measured").sort((a, b) => a.latency_ms - b.latency_ms || a.index - b.index);
const axes = axesOf(timed);
const candidates = timed.map((row, i) => ({
  ...row, ms: row.latency_ms, final: row.outcome === "final timing", rank: i + 1,
  at: axes.map(axis => (has(row, axis.name) ? axis.places.get(textOf(row.config[axis.name])) : null) ?? null),
}));
const winner = candidates.find(c => c.index === D.winner), byDefault = candidates.find(c => c.index === D.default);
const describe = c => axes.map((axis, i) => c.at[i] === null ? "" : `${axis.name}=${axis.labels[c.at[i]]}`).filter(Boolean).join("\n");
const title = c => `${say(c.ms)} ms, ${c.index < 0 ? "the baseline" : `candidate ${c.index}`}\n${describe(c)}`;
const rivals = [
  ...(S.reference_ms ? [{ ms: S.reference_ms, text: `reference ${say(S.reference_ms)}` }] : []),
  ...(S.default_ms && D.default !== D.winner ? [{ ms: S.default_ms, text: `default ${say(S.default_ms)}` }] : []),
];
function scaled(values) {
  if (spread(values) <= 5) return { label: "ms", ticks: 6 };
  const [low, high] = d3.extent(values), powers = d3.range(Math.floor(Math.log10(low)), Math.ceil(Math.log10(high)) + 1);
  const round = steps => powers.flatMap(e => steps.map(k => Number((k * 10 ** e).toPrecision(6)))).filter(v => v >= low && v <= high);
  const fine = round([1, 2, 5]);
  return { type: "log", label: "ms, logarithmic", ticks: fine.length > 8 ? round([1]) : fine, tickFormat: "~g" };
}

// Draws the lines of the reference and the default. Overlapping labels are merged, and the label of `end` stays free.
// `side` is the side on which labels above `end` do not overlap other marks.
function levels(values, end, side) {
  const log = spread(values) > 5 ? Math.log : v => v, range = log(Math.max(...values)) - log(Math.min(...values)) || 1;
  const near = (a, b) => Math.abs(log(a) - log(b)) / range < .08, labels = [];
  for (const rival of rivals) {
    const other = labels.find(label => near(label.ms, rival.ms));
    if (other) Object.assign(other, { ms: Math.max(other.ms, rival.ms), text: `${other.text}, ${rival.text}` }); else labels.push({ ...rival });
  }
  const texts = (kind, dy, at) => Plot.text(labels.filter(kind), { y: "ms", text: d => `${d.text} ms`, dy, frameAnchor: at, textAnchor: at === "left" ? "start" : "end", fill: "var(--c)", stroke: "var(--bg)", strokeWidth: 4 });
  const below = label => label.ms < end && near(label.ms, end), slower = label => label.ms > end && !near(label.ms, end);
  return [
    Plot.ruleY(rivals, { y: "ms", stroke: "var(--c)", strokeWidth: 1.5, strokeDasharray: "6 4" }),
    [texts(slower, -8, side), texts(label => !slower(label) && !below(label), -8, "right"), texts(below, 9, "right")],
    labels.some(below) ? -10 : 14,
  ];
}

const PLOTS = {
  search(width) {
    const steps = S.best_over_time.map(step => ({ ...step, s: step.seconds, ms: step.latency_ms })), last = steps.at(-1), end = Math.max(S.wall_s, last.s);
    const line = [...steps, { ...last, s: end }];
    const [rules, labels, dy] = levels([...line, ...rivals].map(d => d.ms), last.ms, "right");
    return plot(width, {
      x: { label: "seconds since the run began", labelOffset: 38, domain: steps[0].s < end ? [steps[0].s, end] : [0, end || 1], ticks: Math.min(10, width / 80) },
      y: { ...scaled([...line, ...rivals].map(d => d.ms)), grid: true }, insetTop: 12, insetBottom: 22, insetRight: 8,
      marks: [
        rules,
        Plot.line(line, { x: "s", y: "ms", curve: "step-after", stroke: "var(--a)", strokeWidth: 2 }),
        Plot.dot(steps, { x: "s", y: "ms", r: 3.5, fill: "var(--a)", title: d => `${say(d.ms)} ms, candidate ${d.index}\nafter ${d.s.toFixed(1)} s, ${d.tried} tried`, tip: TIP }),
        Plot.text([line.at(-1)], { x: "s", y: "ms", text: d => `${say(d.ms)} ms by first timing`, textAnchor: "end", dy, fontWeight: 600, fill: "var(--a)", stroke: "var(--bg)", strokeWidth: 4 }),
        labels,
      ],
    });
  },

  heat(width) {
    const [x, y] = axes, best = new Map();
    for (const c of candidates) {
      const key = `${c.at[0]} ${c.at[1]}`;
      if (c.at[0] !== null && c.at[1] !== null && !best.has(key)) best.set(key, c);
    }
    const columns = x.labels.slice(0, 24), lines = y.labels.slice(0, 24), cells = [...best.values()].filter(c => c.at[0] < 24 && c.at[1] < 24);
    const left = 20 + 7 * Math.max(...lines.map(v => v.length), y.name.length / 3), wide = (width - left) / columns.length, turned = Math.max(...columns.map(v => v.length)) * 7 > wide;
    const across = { x: c => x.labels[c.at[0]], y: c => y.labels[c.at[1]] }, mine = winner && winner.at[0] !== null && winner.at[1] !== null ? [winner] : [];
    return plot(Math.min(width, left + 130 * columns.length), {
      height: Math.max(120, 40 * lines.length + 80), marginLeft: left, marginTop: 30, marginBottom: turned ? 96 : 50, padding: .04,
      x: { domain: columns, label: x.name, labelOffset: turned ? 86 : 40, tickRotate: turned ? -45 : 0, tickSize: 0 }, y: { domain: lines, label: y.name, labelAnchor: "top", labelArrow: "none", tickSize: 0 },
      color: { type: spread(cells.map(c => c.ms)) > 5 ? "log" : "linear", interpolate: t => `color-mix(in oklab, var(--fast) ${(100 - 100 * t).toFixed(1)}%, var(--slow))` },
      marks: [
        Plot.cell(cells, { ...across, fill: "ms", rx: 3 }),
        Plot.cell(mine, { ...across, stroke: "var(--b)", strokeWidth: 2.5, rx: 3 }),
        wide > 46 ? Plot.text(cells, { ...across, text: c => say(Number(c.ms.toPrecision(3))), fill: "currentColor" }) : null,
        Plot.tip(cells, Plot.pointer({ ...across, title, maxRadius: 90, ...TIP })),
      ],
    });
  },

  rank(width) {
    const values = [...candidates, ...rivals].map(d => d.ms), n = candidates.length;
    const [rules, labels] = levels(values, winner ? winner.ms : 0, "left");
    return plot(width, {
      x: { label: "rank", labelOffset: 38, ticks: [1, ...d3.ticks(1, n, Math.min(10, width / 80)).filter(rank => rank > 1 && Number.isInteger(rank))], tickFormat: ",d", domain: [1, n] }, y: { ...scaled(values), grid: true },
      insetLeft: 6, insetRight: 6, insetBottom: 26, insetTop: 12,
      marks: [
        rules, labels,
        Plot.dot(candidates, { x: "rank", y: "ms", r: n > width ? 1.2 : 2.2, fill: "var(--a)", title, tip: TIP }),
        Plot.dot(candidates.filter(c => c.final), { x: "rank", y: "ms", r: 3.2, fill: "var(--b)" }),
        byDefault && byDefault !== winner ? Plot.dot([byDefault], { x: "rank", y: "ms", r: 5, stroke: "var(--c)", strokeWidth: 2 }) : null,
        winner ? Plot.dot([winner], { x: "rank", y: "ms", r: 6, stroke: "var(--b)", strokeWidth: 2 }) : null,
        winner ? Plot.text([winner], { x: "rank", y: "ms", text: c => `winner ${say(c.ms)} ms`, textAnchor: "start", dx: -4, dy: 18, fontWeight: 600, fill: "var(--b)", stroke: "var(--bg)", strokeWidth: 4 }) : null,
      ],
    });
  },

  parallel(width) {
    const names = [...axes.map(axis => axis.name), "ms"], shown = candidates.slice(0, 1500).reverse(), n = candidates.length;
    const lows = candidates.map(c => Math.log(c.ms)), range = [lows[0], lows[n - 1]], height = 340, [top, bottom] = [44, height - 16];
    const wide = Math.max(84, 16 + 8 * Math.max(...names.map(name => name.length)));
    const place = (c, k) => k === axes.length ? (range[1] > range[0] ? (Math.log(c.ms) - range[0]) / (range[1] - range[0]) : .5) : c.at[k] === null ? NaN : 1 - c.at[k] / (axes[k].labels.length - 1);
    const points = shown.flatMap(c => names.map((name, k) => ({ c, k, name, y: place(c, k) })));
    const labels = axes.flatMap((axis, k) => axis.labels.filter((_, i) => i % Math.ceil(axis.labels.length / 14) === 0).map(text => ({ name: axis.name, text: text.length > 12 ? `${text.slice(0, 5)}…${text.slice(-6)}` : text, y: 1 - axis.labels.indexOf(text) / (axis.labels.length - 1) })));
    for (const t of [0, .25, .5, .75, 1]) labels.push({ name: "ms", text: say(Number(Math.exp(range[0] + t * (range[1] - range[0])).toPrecision(3))), y: t });
    const strong = c => c.rank <= Math.max(1, n / 10);
    const svg = plot(Math.max(width, wide * names.length), {
      height, marginTop: top, marginBottom: 16, marginLeft: 62, marginRight: 30,
      x: { type: "point", domain: names, axis: null }, y: { domain: [0, 1], range: [top, bottom], axis: null },
      marks: [
        Plot.line(points, { x: "name", y: "y", z: p => p.c.index, curve: "bump-x", stroke: p => p.c === winner ? "var(--b)" : "var(--a)", strokeWidth: p => p.c === winner ? 3 : strong(p.c) ? 1.4 : .8, strokeOpacity: p => p.c === winner ? 1 : strong(p.c) ? Math.max(.15, Math.min(.75, 200 / n)) : Math.max(.02, Math.min(.4, 25 / n)), className: "lines" }),
        Plot.ruleX(names, { stroke: "var(--soft)", y1: 0, y2: 1 }),
        Plot.text(names.map(name => ({ name })), { x: "name", text: "name", frameAnchor: "top", dy: -22, fontWeight: 600, fill: "currentColor" }),
        ...[["end", -7], ["start", 7]].map(([textAnchor, dx]) => Plot.text(labels.filter(label => (label.name === "ms") === (dx > 0)), { x: "name", y: "y", text: "text", textAnchor, dx, fill: "currentColor", stroke: "var(--bg)", strokeWidth: 4 })),
      ],
    });
    const lines = d3.select(svg).selectAll(".lines path"), held = new Map();
    const x = k => svg.scale("x").apply(names[k]);
    names.forEach((name, k) => {
      const brush = d3.brushY().extent([[-14, top - 6], [14, bottom + 6]]).on("brush end", ({ selection }) => {
        if (selection) held.set(k, selection.map(v => (v - top) / (bottom - top))); else held.delete(k);
        lines.attr("visibility", (_, i) => [...held].every(([axis, [from, to]]) => { const y = place(shown[i], axis); return y >= from && y <= to; }) ? null : "hidden");
      });
      d3.select(svg).append("g").attr("transform", `translate(${x(k)},0)`).attr("class", "brush").call(brush);
    });
    return svg;
  },

  timeline(width, box) {
    const colours = { lower: "var(--soft)", build: "var(--a)", measure: "var(--b)", final: "var(--c)", failed: "var(--bad)" };
    const words = { lower: "lowering", build: "compiling", measure: "measuring", final: "final benchmark", failed: "failed on the device" };
    const spans = D.spans.map(([on, kind, from, to, first, n]) => ({
      row: kind === "lower" || kind === "build" ? on : `device ${on}`, kind, from, to,
      what: kind === "final" ? `of ${n} candidates` : n === 1 ? `candidate ${first}` : `${n} candidates`,
    }));
    const end = Math.max(...spans.map(s => s.to)) || 1, names = [...new Set(spans.map(s => s.row))].sort(inOrder);
    const key = add(box, "p", { class: "key" });
    for (const kind of Object.keys(words)) if (spans.some(s => s.kind === kind)) { const entry = add(key, "span"); add(entry, "i", { style: `background: ${colours[kind]}` }); entry.append(words[kind]); }
    return plot(width, {
      height: 18 * names.length + 70, marginLeft: 16 + 7 * Math.max(...names.map(name => name.length)), marginTop: 24, padding: .12,
      x: { domain: [Math.min(end / 2, ...spans.map(s => s.from)), end], label: "seconds since the run began", labelOffset: 38, ticks: Math.min(10, width / 80) }, y: { domain: names, label: null, tickSize: 0 },
      marks: [
        Plot.barX(spans, { x1: "from", x2: s => Math.max(s.to, s.from + end / 2000), y: "row", fill: s => colours[s.kind] }),
        Plot.ruleX(D.parts_began, { stroke: "var(--fg)", strokeDasharray: "4 3" }),
        Plot.text(D.parts_began, { x: d => d, text: () => "resumed", frameAnchor: "top", dy: -12, fill: "currentColor" }),
        Plot.tip(spans, Plot.pointer({ x: s => (s.from + s.to) / 2, y: "row", title: s => `${words[s.kind]}, ${s.what}\n${say(s.from)} to ${say(s.to)} s`, maxRadius: 30, ...TIP })),
      ],
    });
  },
};

// Orders a timeline's rows: first workers, then devices; compile-10 comes after compile-9.
const isDevice = name => name.startsWith("device ");
const inOrder = (a, b) => isDevice(a) - isDevice(b) || a.localeCompare(b, "en", { numeric: true });

PARTS.plots = parent => {
  const n = candidates.length, drawn = (on, id, title, text) => PARTS.plot(on, { id, title, text });
  const last = S.best_over_time.at(-1);
  if (last) drawn(parent, "search", "Best latency so far", `By first timings. The last improvement came after ${last.seconds.toFixed(1)} s, when ${count(last.tried)} of the ${count(S.total - S.remaining)} candidates had been tried.`);
  if (S.measured) {
    const pair = add(parent, "div", { class: "pair" }), names = axes.slice(0, 2).map(axis => axis.name).join(" and ");
    if (axes.length > 1) drawn(pair, "heat", names, `The best latency in ms for each pair of values of ${names}, whatever the other axes are. The stronger the colour, the faster.`);
    mattered(pair);
  }
  const left = D.timed > n ? ` The fastest ${count(n)} of ${count(D.timed)} are shown.` : "";
  if (n > 1) drawn(parent, "rank", "Latency by rank", `The measured candidates, the fastest first. Orange candidates were timed again in the final.${left}`);
  if (n > 1 && axes.length > 2) drawn(parent, "parallel", "All axes at once", "Each line is a candidate. The fastest tenth is drawn stronger, and the winner in orange. Drag along an axis to keep only the lines that pass there, and along further axes to narrow the selection. Click an axis to clear it.");
  const longest = D.all_spans > D.spans.length ? `Only the ${count(D.spans.length)} longest of ${count(D.all_spans)} spans are drawn.` : "";
  if (D.spans.length) drawn(parent, "timeline", "Timeline", longest);
};

// The axes that mattered, with bars.
function mattered(parent) {
  const part = { id: "mattered", title: "Axes that mattered" }, importance = S.axis_importance;
  if (!importance) return PARTS.facts(parent, { ...part, text: "Too few candidates were measured to tell." });
  const shares = Object.entries(importance.shares), most = Math.max(...shares.map(([, share]) => share), importance.unexplained) || 1;
  const bar = (share, rest) => ({ of: Number(Math.min(1, share / most).toFixed(3)), text: `\u00a0${(100 * share).toFixed(1)}\u00a0%`, rest });
  const best = { config: S.best_config ?? {} }, value = name => has(best, name) ? textOf(best.config[name]) : "";
  PARTS.facts(parent, {
    ...part, heads: ["axis", "share", "winner's value"],
    text: `The share of the differences in latency that each axis explains by itself, from ${count(importance.candidates)} candidates.`,
    rows: [...shares.map(([name, share]) => [name, bar(share), value(name)]), ["combinations and noise", bar(importance.unexplained, true), ""]],
  });
}

// The table's columns by the row's field, with title and decimals. The axes replace `config`.
const COLUMNS = {
  index: ["candidate"], latency_ms: ["latency, ms"], times_winner: ["× winner", 2], spread: ["spread, %", 1], mark: ["mark"], config: [],
  registers: ["registers"], stack_bytes: ["stack and spills, bytes"], smem_bytes: ["shared memory, bytes"], threads: ["threads per block"],
  occupancy_blocks: ["occupancy, blocks"], fragment_registers: ["registers of fragments"], redundant: ["redundant iterations"],
  code_bytes: ["code, bytes"], outcome: ["outcome"],
};
const ALWAYS = ["index", "latency_ms", "times_winner", "spread", "mark", "outcome"];  // shown even if all rows have the same value
const CELLS = { index: v => v < 0 ? "baseline" : v, mark: v => v ?? "", spread: v => v === null ? null : 100 * v };

// Draws the table of the candidates. An axis or a fact with the same value in all rows has no column.
PARTS.candidates = parent => {
  if (!rows.length) return;
  const differ = values => new Set(values.filter(v => v !== null).map(textOf)).size > 1;
  const names = [...new Set(rows.flatMap(row => Object.keys(row.config)))], value = (row, name) => has(row, name) ? row.config[name] : null;
  const differing = names.filter(name => differ(rows.map(row => value(row, name))));
  const shown = v => v === null || typeof v === "number" ? v : textOf(v);
  const ofAxis = name => ({ title: name, decimals: null, cell: row => shown(value(row, name)) });
  const columns = Object.entries(COLUMNS).flatMap(([field, [title, decimals = null]]) => {
    if (field === "config") return (differing.length ? differing : names).map(ofAxis);
    if (!ALWAYS.includes(field) && !differ(rows.map(row => row[field]))) return [];
    return [{ title, decimals, cell: row => CELLS[field] ? CELLS[field](row[field]) : row[field] }];
  });
  const left = rows.length < D.records ? ` The table has ${count(rows.length)} of ${count(D.records)} candidates; atune export --to csv writes all.` : "";
  PARTS.table(parent, {
    id: "all", name: "candidates", title: "All candidates", columns,
    text: `The winner comes first, then the other finalists by their final timing, then the rest by their first timing.${left}`,
    rows: rows.map(row => ({
      cells: columns.map(column => column.cell(row)), config: row.config,
      class: row.mark?.startsWith("winner") ? "winner" : row.latency_ms === null ? "bad" : "",
    })),
  });
};
