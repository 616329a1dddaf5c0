"""The page of a set: what it says, and what a browser and axe find on it."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from browser import BROWSER
from event_streams import write
from reporting.test_page import Links, without_script
from reporting.test_page_in_browser import SCHEMES, WIDTHS, opened, violations
from synthetic import stream_of

from atune.errors import UsageError
from atune.frontends.cli.main import main
from atune.frontends.sets.tuning import read_set
from atune.journal.set_folder import entered
from atune.model.problem import Problem
from atune.reporting.page import LIBRARIES
from atune.reporting.sets.page import set_report

STORED = Path(__file__).parents[3] / "bench" / "results" / "sets" / "whole"
"""A set of 56 problems, of an H200."""
in_browser = pytest.mark.skipif(BROWSER is None, reason="no headless Chromium is installed")


def made(folder: Path, runs: list[tuple[dict[str, Any], dict[int, list[float]]]], **header: Any) -> Path:
    """Write a set: for each problem the samples in ms of configurations ``block=index``; none if one failed."""
    paths, lock = entered(folder, [Problem(arguments) for arguments, _ in runs])
    lock.close()
    for path, (arguments, latencies) in zip(paths, runs, strict=True):
        if latencies:
            write(path, stream_of(arguments, latencies, **header).events)
    return folder


def cells(page: str, section: str) -> list[list[str]]:
    """Return the rows of a section's table as text; a cell that is hatched is None's."""
    [inside] = re.findall(rf'<section id="{section}".*?</section>', page, flags=re.S)
    rows = re.findall(r"<tr.*?</tr>", inside, flags=re.S)
    texts = [re.findall(r"<(t[hd])([^>]*)>(.*?)</\1>", row, flags=re.S) for row in rows]
    return [
        ["hatched" if "none" in how else html.unescape(re.sub("<[^>]*>", "", text)) for _, how, text in row]
        for row in texts
    ]


THREE = [
    ({"M": 1, "N": 8}, {0: [1.0], 1: [2.0], 2: []}),
    ({"M": 2, "N": 8}, {0: [1.5], 1: [1.0], 2: []}),
    ({"M": 4, "N": 8}, {2: [3.0], 1: []}),
]


def test_the_table_names_each_problem_and_leads_to_it(tmp_path: Path) -> None:
    page = set_report(made(tmp_path / "s", [*THREE, ({"M": 8, "N": 8}, {1: []}), ({"M": 16, "N": 8}, {})]))
    rows = cells(page, "all")
    assert rows[0] == ["problem", "latency, ms", "× default", "× reference", "winner"]
    assert [row[0] for row in rows[1:]] == ["M=1, N=8", "M=2, N=8", "M=4, N=8", "M=8, N=8", "M=16, N=8"]
    assert [row[1] for row in rows[1:]] == ["1", "1", "3", "–", "–"]
    assert [row[-1] for row in rows[1:4]] == ["A block=0", "B block=1", "C block=2"]
    assert rows[4][-1] == "no candidate worked: 1 gave wrong outputs: wrong" and rows[5][-1] == "not begun"
    for index in range(5):
        assert f'href="#problem-{index}"' in page and f'id="problem-{index}"' in page
    assert "3 of 5 problems have a winner" in without_script(page)
    assert f"atune report {tmp_path / 's' / '0000.jsonl'}" in without_script(page)


def test_a_rule_names_what_must_be_equal(tmp_path: Path) -> None:
    runs = [({"M": m, "dtype": d}, {m % 3: [1.0], 3: [2.0]}) for m in (1, 2, 3) for d in ("half", "float")]
    text = without_script(set_report(made(tmp_path / "s", runs)))
    assert "The configuration of the nearest problem with the same dtype, by the sum of the log2 ratios of M." in text


def test_a_set_that_is_not_finished_says_so(tmp_path: Path) -> None:
    folder = made(tmp_path / "s", [THREE[0], ({"M": 2, "N": 8}, {}), ({"M": 4, "N": 8}, {0: []})])
    (folder / "0000.jsonl").unlink()
    write(folder / "0000.jsonl", stream_of(*THREE[0]).events[:-1])
    page = set_report(folder)
    assert [row[-1][:19] for row in cells(page, "all")[1:]] == [
        "A block=0 (so far)",
        "not begun",
        "no candidate worked",
    ]
    assert page.count('<tr class="bad">') == 1


def test_the_matrix_has_what_was_measured_and_no_more(tmp_path: Path) -> None:
    page = set_report(made(tmp_path / "s", THREE))
    assert cells(page, "regret") == [
        ["problem", "A", "B", "C"],
        ["M=1, N=8", "0.0", "100.0", "hatched"],
        ["M=2, N=8", "50.0", "0.0", "hatched"],
        ["M=4, N=8", "hatched", "hatched", "0.0"],
    ]
    assert page.count('class="own"') == 3


def test_cover_and_rule_are_those_of_the_result(tmp_path: Path) -> None:
    page, found = set_report(STORED), read_set(STORED)
    few, rule, text = found.cover(), found.rule(), without_script(page)
    worst = max(regret for regret in few.regret if regret is not None)
    fewest = f"The {len(few.configs)} that serve are the fewest that do"
    assert f"{fewest}: no problem is more than {100 * worst:.2g} % slower" in text
    served = [int(row[2]) for row in cells(page, "configurations")[1:] if row[2] != "–"]
    assert sorted(served) == sorted(few.serves.count(row) for row in few.rows) and sum(served) == 56
    assert rule.regret is not None and rule.worst_regret is not None
    tested = f"{rule.tested} problems left out in turn were {100 * rule.regret:.2g} % slower on average"
    assert tested in text and f"{100 * rule.worst_regret:.2g} % at most" in text
    assert f"For {rule.unmeasured} more, the rule chose what was not measured there." in text
    [tree] = re.findall(r'<section id="rule".*?</section>', page, flags=re.S)
    names = [row[0] for row in cells(page, "configurations")[1:]]
    for size in (1, 8192):
        picked = rule.pick({"M": size, "N": 4096, "K": 4096})
        assert picked is not None
        config = ", ".join(f"{name}={value}" for name, value in rule.configs[picked].items())
        [letter] = [names[i] for i, row in enumerate(cells(page, "configurations")[1:]) if row[3] == config]
        assert f"<b>{letter}</b>" in tree
    assert "<li>M ≤ 1: <b>" in tree  # whole sizes have whole limits


@pytest.mark.parametrize(
    "runs", [THREE[:1], [({"M": 1}, {})], [({}, {0: [1.0]})], [({"M": 1}, {0: []}), ({"M": 2}, {0: []})]]
)
def test_a_set_of_one_and_one_without_a_winner_have_a_page(runs: Any, tmp_path: Path) -> None:
    page = set_report(made(tmp_path / "s", runs))
    assert len(cells(page, "all")) == len(runs) + 1
    assert 'id="regret"' not in page and 'id="rule"' not in page


def test_it_loads_nothing_and_no_text_gets_out_of_its_place(tmp_path: Path) -> None:
    text = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)><!-- @DATA@"
    runs = [({"M": 1, text: text}, {0: [1.0], 1: [2.0]}), ({"M": 2, text: text}, {0: [2.0], 1: [1.0]})]
    page = set_report(made(tmp_path / "s", runs, workload=text))
    links = Links()
    links.feed(page)
    assert [link for link in links.found if not re.fullmatch(r"#problem-\d+", link)] == ["data:,"]
    assert page.count("<script") == page.count("</script") == 2 + len(LIBRARIES) and "<img" not in page


PROBE = """<script>addEventListener("load", () => {
  const part = document.getElementById("problem-3");
  document.querySelector('a[href="#problem-3"]').click();
  setTimeout(() => parent.postMessage({
    width: innerWidth, wide: document.documentElement.scrollWidth, folded: !part.open,
    squares: ["map", "regions"].map(id => document.querySelectorAll(`#${id} svg rect`).length),
    maps: ["map", "regions"].map(id => document.querySelectorAll(`#${id} svg`).length),
    texts: [...document.querySelectorAll("#map svg text")].map(t => t.textContent),
    letters: [...document.querySelectorAll("#regions svg text")].map(t => t.textContent).filter(t => /^[A-Z]$/.test(t)),
    out: [...document.querySelectorAll("#problems td, #regret td, .figures div")].filter(box => {
      const inside = document.createRange(); inside.selectNodeContents(box);
      return inside.getBoundingClientRect().right > box.getBoundingClientRect().right + 1;
    }).map(box => box.textContent),
  }, "*"), 200);
});</script></body>"""


@in_browser
def test_the_maps_have_a_square_for_each_problem_at_each_width(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(set_report(STORED).replace("</body>", PROBE))
    frames = "".join(f'<iframe src="page.html" width="{w}" height="900" frameborder="0"></iframe>' for w in WIDTHS)
    script = """<script>const all = []; addEventListener("message", e => { all.push(e.data);
      document.body.dataset.seen = JSON.stringify(all); });</script>"""
    (tmp_path / "frames.html").write_text(f"<body>{script}{frames}</body>")
    done = opened(tmp_path / "frames.html", "--virtual-time-budget=15000", "--enable-logging=stderr")
    assert "CONSOLE" not in done.stderr, done.stderr
    [found] = re.findall(r'data-seen="([^"]*)"', done.stdout)
    seen = {one["width"]: one for one in json.loads(html.unescape(found))}
    assert sorted(seen) == sorted(WIDTHS)
    names = [row[-1][0] for row in cells(set_report(STORED), "all")[1:]]
    for width, one in seen.items():
        assert one["wide"] <= width and one["out"] == [] and not one["folded"]
        assert one["squares"] == [56, 56] and one["maps"] == [2, 2]  # one for each K
        assert "3.77" in one["texts"]  # × default
        assert sorted(letter for letter in one["letters"] if letter not in "MN") == sorted(names)


CHOOSE = """<script>addEventListener("load", () => {
  const select = document.getElementById("metric"), offered = [...select.options].map(o => o.textContent);
  select.focus(); select.value = "reference"; select.dispatchEvent(new Event("change"));
  const texts = [...document.querySelectorAll("#map svg text")].map(t => t.textContent);
  document.body.dataset.seen = JSON.stringify([offered, select.isConnected, document.activeElement.value, texts]);
});</script></body>"""


@in_browser
def test_a_reader_chooses_what_the_map_shows(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(set_report(STORED).replace("</body>", CHOOSE))
    [found] = re.findall(r'data-seen="([^"]*)"', opened(tmp_path / "page.html").stdout)
    offered, same, focused, texts = json.loads(html.unescape(found))
    assert offered == ["× default", "× reference", "latency, ms"] and not same and focused == "reference"
    assert "1.02" in texts and "3.77" not in texts


@in_browser
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", ["stored", "failures"])
def test_axe_finds_no_violation(kind: str, scheme: str, tmp_path: Path) -> None:
    folder = STORED if kind == "stored" else made(tmp_path / "s", [*THREE, ({"M": 8, "N": 8}, {1: []})])
    page = re.sub("<details ", "<details open ", set_report(folder), count=4)
    assert violations(page, scheme, tmp_path) == {}


@in_browser
@pytest.mark.parametrize(
    "runs", [THREE[:1], [({"M": m}, {0: [1.0]}) for m in (1, 2)], [({"M": 1}, {}), ({"M": 2}, {})]]
)
def test_it_draws_without_an_error_with_few_sizes(runs: Any, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(set_report(made(tmp_path / "s", runs)))
    done = opened(tmp_path / "page.html", "--enable-logging=stderr")
    assert 'data-drawn="yes"' in done.stdout and "CONSOLE" not in done.stderr, done.stderr


def test_a_result_and_the_command_line_write_the_same_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    folder = made(tmp_path / "gemm-1.5", THREE)
    read_set(folder).report(tmp_path / "page.html")
    assert main(["report", f"{folder}/"]) == 0
    assert capsys.readouterr().out == f"report     {tmp_path}/gemm-1.5.html\n"
    assert (tmp_path / "gemm-1.5.html").read_text() == (tmp_path / "page.html").read_text() == set_report(folder)
    monkeypatch.chdir(folder)
    assert main(["report", ".", "-o", "-"]) == 0 and "problems have a winner" in capsys.readouterr().out
    with pytest.raises(UsageError, match="no folder of a set's journals"):
        set_report(tmp_path)
