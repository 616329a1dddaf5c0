"""The report's page in Chromium: what a reader sees on screens of three widths, and what axe finds against it."""

from __future__ import annotations

import ast
import html
import json
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from event_streams import write
from reporting.test_look import DATA
from reporting.test_page import GPU, LAYOUTS, hostile, parts_of

from atune.frontends.cli.main import main
from atune.journal.reader import read, replay
from atune.reporting.importance import axis_importance
from atune.reporting.report import report

BROWSER = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
in_browser = pytest.mark.skipif(BROWSER is None, reason="no headless Chromium is installed")
pytestmark = in_browser
WIDTHS = (1440, 768, 390)

PROBE = """
<script>{
const broken = [], walk = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
for (let n; (n = walk.nextNode()); ) {
  if (n.parentElement.closest("svg, noscript")) continue;
  for (const m of n.data.matchAll(/[A-Za-z]+/g)) {
    const r = document.createRange();
    r.setStart(n, m.index); r.setEnd(n, m.index + m[0].length);
    if (new Set([...r.getClientRects()].map(x => Math.round(x.top))).size > 1) broken.push(m[0]);
  }
}
const table = document.getElementById("candidates"), rows = () => [...table.tBodies[0].rows];
const column = name => [...table.tHead.rows[0].cells].findIndex(c => c.textContent.startsWith(name));
const sorted = name => {
  table.tHead.rows[0].cells[column(name)].firstChild.click();
  return rows().map(r => r.cells[column(name)].textContent);
};
const registers = [sorted("registers"), sorted("registers")];
const filter = document.getElementById("filter");
filter.value = "threads=64 loop=vector8"; filter.dispatchEvent(new Event("input"));
const left = rows().filter(r => !r.hidden).map(r => r.cells[column("candidate")].textContent);
const axis = document.querySelector("#parallel .brush .overlay"), box = axis.getBoundingClientRect();
const fire = (on, type, clientY) =>
  on.dispatchEvent(new MouseEvent(type, { view: window, bubbles: true, clientX: box.x + box.width / 2, clientY }));
fire(axis, "mousedown", box.y + 1);
fire(window, "mousemove", box.y + box.height / 3);
fire(window, "mouseup", box.y + box.height / 3);
const lines = document.querySelectorAll('#parallel .lines path:not([visibility="hidden"])').length;
const copied = python(D.parts[0].config);
const at = candidates.map(one => one.at[0]), mattered = document.querySelector("#mattered").innerText;
const drawn = [...document.querySelectorAll("[data-plot]")].map(one => [one.id, one.querySelector("h2").textContent]);
const names = axes.map(axis => [axis.name, axis.labels]), heads = [...table.tHead.rows[0].cells].map(c => c.innerText);
const marked = rows().filter(r => r.className === "winner").map(r => r.cells[column("candidate")].textContent);
const wide = document.documentElement.scrollWidth;
const out = [...document.querySelectorAll("td, th, .figures div")].filter(box => {
  const inside = document.createRange();
  inside.selectNodeContents(box);
  return inside.getBoundingClientRect().right > box.getBoundingClientRect().right + 1;
}).map(box => box.textContent);
const hosts = ["device b/0", "device a/10", "compile-1", "device a/9"].sort(besides);
const ofTable = { registers, left, marked, heads }, plots = { lines, names, at, drawn, mattered, hosts };
parent.postMessage({ width: innerWidth, wide, out, broken, python: copied, ...ofTable, ...plots }, "*");
}</script></body>"""


def opened(page: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Return what Chromium prints of a page once its scripts have run."""
    always = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={page.parent / 'profile'}", "--dump-dom"]
    command = [str(BROWSER), *always, *flags, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """What a script finds on the page at three widths, by the width."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "page.html").write_text(report(LAYOUTS).replace("</body>", PROBE))
    frames = "".join(f'<iframe src="page.html" width="{w}" height="900" frameborder="0"></iframe>' for w in WIDTHS)
    script = """<script>const all = []; addEventListener("message", e => { all.push(e.data);
      document.body.dataset.seen = JSON.stringify(all); });</script>"""
    (folder / "frames.html").write_text(f"<body>{script}{frames}</body>")
    done = opened(folder / "frames.html", "--virtual-time-budget=10000")
    [found] = re.findall(r'data-seen="([^"]*)"', done.stdout)
    return {one["width"]: one for one in json.loads(html.unescape(found))}


@pytest.mark.parametrize("width", WIDTHS)
def test_no_word_is_broken_and_nothing_sticks_out_at(width: int, seen: dict[int, Any]) -> None:
    """Hashes may be broken; words of their letters do not count."""
    hashes = json.dumps(parts_of(report(LAYOUTS))["environment"]["rows"])
    assert [word for word in seen[width]["broken"] if not re.search(rf"[0-9a-f-]*\d{word}|{word}\d", hashes)] == []
    assert seen[width]["wide"] <= width and seen[width]["out"] == []


def test_a_click_sorts_the_table_and_another_turns_it_around(seen: dict[int, Any]) -> None:
    records = replay(LAYOUTS).records
    known = sorted(r.machine.registers for r in records if r.machine is not None)
    up, down = ([int(text) for text in column if text != "–"] for column in seen[1440]["registers"])
    assert up == known and down == known[::-1] and 0 < len(known) < len(records)
    assert all(column[len(known) :] == ["–"] * (len(records) - len(known)) for column in seen[1440]["registers"])


def test_the_filter_leaves_the_rows_that_have_all_words(seen: dict[int, Any]) -> None:
    wanted = [r for r in replay(LAYOUTS).records if (r.config["threads"], r.config["loop"]) == (64, "vector8")]
    assert sorted(map(int, seen[1440]["left"])) == [r.index for r in wanted]


def test_dragging_along_an_axis_keeps_the_lines_that_pass_there(seen: dict[int, Any]) -> None:
    highest, at = len(seen[1440]["names"][0][1]) - 1, seen[1440]["at"]
    kept = [place for place in at if place / highest >= 2 / 3]
    assert 0 < len(kept) < len(at) and seen[1440]["lines"] == len(kept)


def test_the_plots_are_of_the_axes_that_matter_most(seen: dict[int, Any]) -> None:
    result, found = replay(LAYOUTS), seen[1440]
    shares, best = axis_importance(result).shares, result.best_config  # type: ignore[union-attr]
    [first, labels], [second, _], *_ = found["names"]
    assert [first, second] == [*shares][:2] and best is not None
    assert dict(found["drawn"]).items() >= {"heat": f"{first} and {second}", "parallel": "All axes at once"}.items()
    fastest = min(result.measurements, key=lambda one: result.records[one.index].latency_ms or 0.0).index
    assert labels[found["at"][0]] == str(result.records[fastest].config[first])
    assert all(re.search(rf"{name}\s+{100 * share:.1f}", found["mattered"]) for name, share in shares.items())


def test_the_table_has_a_column_for_each_axis_and_fact_that_differs(seen: dict[int, Any]) -> None:
    heads = [head.rstrip("\u00a0↕↑↓") for head in seen[1440]["heads"]]
    assert heads[:5] == ["candidate", "latency, ms", "× winner", "spread, %", "mark"]
    assert {"registers", "threads per block", "occupancy, blocks", "loop"} < set(heads)
    differing = {name for name, value in replay(LAYOUTS).records[0].config.items()
                 if any(record.config[name] != value for record in replay(LAYOUTS).records)}  # fmt: skip
    assert differing == set(heads) & replay(LAYOUTS).records[0].config.keys()


def test_a_hosts_devices_are_next_to_each_other(seen: dict[int, Any]) -> None:
    assert seen[1440]["hosts"] == ["compile-1", "device a/9", "device a/10", "device b/0"]


def test_the_winner_is_marked_and_copied_as_python(seen: dict[int, Any]) -> None:
    result = replay(LAYOUTS)
    assert seen[390]["marked"] == [str(result.best_index)]
    assert ast.literal_eval(seen[390]["python"]) == result.best_config


AXE = """<script>{axe}</script><script>
axe.run().then(found => {
  document.body.dataset.dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.body.dataset.axe = JSON.stringify(found.violations.map(v => [v.id, v.nodes.map(n => n.html.slice(0, 200))]));
});
</script></body>"""
SCHEMES = {"dark": 0, "light": 1}
"""Chromium's numbers for what a reader prefers."""


@pytest.mark.parametrize("scheme", SCHEMES)
def test_axe_finds_no_violation(scheme: str, tmp_path: Path) -> None:
    """On the page of a run with failures, which has every part."""
    axe = (files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")
    (tmp_path / "page.html").write_text(report(LAYOUTS).replace("</body>", AXE.replace("{axe}", axe)))
    flags = (f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}", "--virtual-time-budget=20000")
    text = opened(tmp_path / "page.html", *flags).stdout
    assert f'data-dark="{str(scheme == "dark").lower()}"' in text
    [found] = re.findall(r'data-axe="([^"]*)"', text)
    assert json.loads(html.unescape(found)) == []


PLOTS = {"search", "rank", "timeline"}


@pytest.mark.parametrize(
    ("kind", "title", "plots"),
    [
        ("stored", "fake", {*PLOTS, "heat"}),
        ("hostile", "toy", PLOTS),
        ("interrupted", "fake", set()),
        ("nothing measured", "fake", set()),
        ("gpu, two parts", "gemm", {*PLOTS, "heat", "parallel"}),
    ],
)
def test_the_page_draws_in_a_browser_without_an_error(kind: str, title: str, plots: set[str], tmp_path: Path) -> None:
    journal = hostile(tmp_path) if kind == "hostile" else GPU if kind == "gpu, two parts" else DATA
    if kind in ("interrupted", "nothing measured"):
        journal = write(tmp_path / "j", read(DATA)[: 40 if kind == "interrupted" else 3])
    page = tmp_path / "page.html"
    assert main(["report", str(journal), "-o", str(page)]) == 0
    done = opened(page, "--enable-logging=stderr")
    assert 'data-drawn="yes"' in done.stdout and "CONSOLE" not in done.stderr, done.stderr
    drawn = re.findall(r'<section id="(\w+)" data-plot="">(?:(?!</section>).)*<svg', done.stdout, flags=re.S)
    assert plots <= set(drawn) and len(set(drawn)) == len(drawn)
    assert all(f'id="{name}"' in done.stdout for name in ("winner", "environment"))
    assert f"<title>{title}" in done.stdout and "<img" not in done.stdout
    if kind == "stored":
        assert done.stdout.count("<circle") > 10 and "Copy as Python" in done.stdout
