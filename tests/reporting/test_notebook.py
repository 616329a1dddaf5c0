"""What a notebook shows of results, records, spaces, workloads and progress; and the notebook among the examples."""

from __future__ import annotations

import copy
import importlib
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from event_streams import Stream

import atune
from atune.journal.events import BuildFailed
from atune.journal.replay import replay
from atune.journal.result import Result
from atune.reporting.notebook import ROWS, enable, record_html, result_html, space_html, workload_html
from atune.reporting.plot import rank_plot
from atune.reporting.progress import Progress
from atune.reporting.summary import summary

ROOT = Path(__file__).resolve().parents[2]
LAYOUTS = ROOT / "bench" / "results" / "layouts" / "uneven.jsonl.xz"


def parsed(html: str) -> ElementTree.Element:
    """Return HTML that is written as XML too: every element is closed, every text is escaped."""
    return ElementTree.fromstring(f"<body>{html.replace('<br>', '<br/>')}</body>")


def text_of(html: str) -> str:
    return " ".join(" ".join(parsed(html).itertext()).split())


def kernel(M: int, block: int = 16, mode: str = "a") -> None:
    """Nothing calls it."""


def test_a_result_shows_winner_ranking_failures_and_plot() -> None:
    result = replay(LAYOUTS)
    html = result_html(result)
    text = text_of(html)
    assert "scaled rows of 2560: 0.01293 ms, 4.79 times faster than the reference (0.06192 ms)" in text
    assert "held='compiler'" in text and "the default configuration" in text
    assert "Candidates 72: 22 measured, 6 failed, 44 duplicates; " in text
    assert "4 failed to lower: ValueError: layout: 256 threads" in text and "registers" in text
    body = parsed(html)
    assert len(body.findall(".//tr")) == 1 + ROWS
    assert len(list(body.iter("{http://www.w3.org/2000/svg}circle"))) == result.measured


def test_values_are_registered_with_ipython_by_their_types(monkeypatch: pytest.MonkeyPatch) -> None:
    enable()  # outside of IPython it does nothing
    shown: dict[type, Any] = {}
    html = SimpleNamespace(for_type=shown.__setitem__)
    ipython = ModuleType("IPython")
    shell = SimpleNamespace(display_formatter=SimpleNamespace(formatters={"text/html": html}))
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    importlib.reload(atune)
    result, space = replay(LAYOUTS), atune.Space(block=[16])
    values = [result, result.best, space, atune.Workload(kernel, space, arguments={"M": 64})]
    for value in values:
        kind = next(kind for kind in type(value).__mro__ if kind in shown)  # as IPython looks it up
        assert shown.pop(kind)(value).count("<")
    assert not shown


def test_a_result_without_a_winner_shows_why() -> None:
    result = Result.from_events(Stream(total=1).proposed(0).build_failed(0).finished().events)
    text = text_of(result_html(result))
    assert "toy : no candidate worked" in text and "1 failed to compile: g++ said no" in text
    where = 'File "/home/me/kernel.py", line 3, in main'
    detail = f"Traceback (most recent call last):\n  {where}\n    a + q\n        ^\nNameError: q"
    stream = Stream(total=1).proposed(0).add(BuildFailed, index=0, kind="lower", message="NameError: q", detail=detail)
    broken = result_html(Result.from_events(stream.finished().events))
    assert "\n".join(["block=0", f"  {where}", "    a + q", "        ^"]) in "".join(parsed(broken).itertext())
    assert "No candidate was measured." in rank_plot(result).svg


def test_a_record_shows_what_is_known_of_it() -> None:
    result = replay(LAYOUTS)
    assert result.best is not None
    text = text_of(record_html(result.best))
    assert "Candidate 28 status measured block_rows 4" in text and "registers 128" in text and "TB/s" in text
    reasons = {text_of(record_html(failed)).partition("failure ")[2].partition(":")[0] for failed in result.failures}
    assert reasons == {"lower reason ValueError", "timeout reason hopeless"}


def test_a_space_shows_its_axes_and_asks_none_of_its_functions() -> None:
    def never(**values: Any) -> Any:
        raise AssertionError("asked")

    text = text_of(space_html(atune.Space(block=[16, 32], mode=["a", "<b>"], where=never)))
    assert text == "Space of 4 points, before 1 constraint block 16, 32 mode 'a', '<b>'"
    assert "by never" in text_of(space_html(atune.Space(block=never)))
    assert text_of(space_html(atune.Space([{"x": 1}, {"x": 2}]))) == "Space of 2 configurations"
    assert "a function gives" in text_of(space_html(atune.Space(never)))
    assert "(1,000 values)" in text_of(space_html(atune.Space(x=list(range(1000)))))


def test_a_workload_shows_its_problem_and_whether_it_is_checked() -> None:
    workload = atune.Workload(kernel, atune.Space(block=[16]), arguments={"M": 64})
    text = text_of(workload_html(workload))
    assert "Workload kernel problem M=64" in text and "nothing: outputs are not checked" in text
    checked = atune.Workload(kernel, atune.Space(block=[16]), arguments={"M": 64}, reference=text_of)
    assert "checked against text_of" in text_of(workload_html(checked))


def test_text_of_a_stranger_are_escaped_everywhere() -> None:
    stream = Stream(total=2).candidate(0, 1.0, mode="<script>'\"&").build_failed(1, "</svg><script>")
    result = Result.from_events(stream.finished().events)
    assert result.best is not None
    for html in (result_html(result), record_html(result.best), rank_plot(result).svg):
        assert "<script" not in html and parsed(html) is not None


def test_a_plot_has_a_point_for_each_code_and_can_be_saved(tmp_path: Path) -> None:
    result = replay(LAYOUTS)
    plot = rank_plot(result)
    plot.save(tmp_path / "latencies.svg")
    picture = ElementTree.parse(tmp_path / "latencies.svg").getroot()
    points = list(picture.iter("{http://www.w3.org/2000/svg}circle"))
    assert len(points) == result.measured and plot._repr_svg_() == plot.svg
    assert sum(point.get("r") == "4.5" for point in points) == len(result.final)
    heights = [float(point.get("cy") or 0) for point in points]
    assert heights == sorted(heights, reverse=True)
    assert "reference" in plot.svg and "0.02 ms" in plot.svg and repr(plot).startswith("<Plot")


def test_a_result_whose_kernel_was_loaded_pickles_without_it() -> None:
    result = replay(LAYOUTS)
    result.__dict__["kernel"] = lambda: None  # which cannot be pickled
    again = pickle.loads(pickle.dumps(result))
    assert summary(again) == summary(result) and again.records == result.records
    assert "kernel" not in again.__dict__
    assert copy.copy(result).kernel is result.kernel  # a copy in this process keeps it


def put_ipython(monkeypatch: pytest.MonkeyPatch, log: list[Any]) -> None:
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]

    def show(shown: dict[str, str], raw: bool, display_id: bool) -> Any:
        log.append(("new", shown["text/html"], shown["text/plain"]))
        return SimpleNamespace(update=lambda new, raw: log.append(("update", new["text/html"], new["text/plain"])))

    display.display = show  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)


def test_progress_in_a_notebook_is_one_place_that_is_updated(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    log: list[Any] = []
    put_ipython(monkeypatch, log)
    stream = Stream(total=2).add(atune.events.Warned, message="mind <this>").candidate(0, 2.0).candidate(1, 1.0)
    with Progress() as progress:
        for event in stream.finished().events:
            progress.on_event(event)
    assert [kind for kind, *_ in log] == ["new", *["update"] * (len(log) - 1)] and len(log) > 3
    bars = parsed(log[-1][1]).findall(".//progress")
    assert [(bar.get("value"), bar.get("max")) for bar in bars] == [("2", "2"), ("2", "2")]
    assert "best 1 ms (first timing): block=1" in log[-1][2] and "warning: mind <this>" in text_of(log[-1][1])
    assert capsys.readouterr() == ("", "")


def test_progress_to_a_stream_that_is_given_stays_there(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    log: list[Any] = []
    put_ipython(monkeypatch, log)
    with Progress(sys.stderr) as progress:
        for event in Stream(total=1).candidate(0, 1.0).finished().events:
            progress.on_event(event)
    assert log == [] and "1/1 compiled" in capsys.readouterr().err


@pytest.mark.newest
def test_the_example_notebook_runs_and_shows_what_it_promises(tmp_path: Path) -> None:
    """Cell by cell inside a running event loop, as Jupyter runs it; the bars and pictures are those of this version."""
    path = os.pathsep.join([str(Path(atune.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)}
    command = [sys.executable, str(ROOT / "tests" / "notebook_cells.py"), str(ROOT / "examples" / "notebook.ipynb")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout.splitlines()[-1])
    assert text_of(shown["workload"]["value"]).startswith("Workload matmul problem M=256")
    assert re.search(r"Candidates 12: 12 measured", text_of(shown["tune"]["value"]))
    assert "12 of 12" in text_of(shown["tune"]["displayed"][-1]) and len(shown["tune"]["displayed"]) > 2
    assert shown["plot"]["value"].count("<circle") == 12 and shown["call"]["value"] == ""
    assert "Candidate" in shown["record"]["value"] and "'block_M'" in shown["run"]["value"]


def test_the_example_notebook_is_stored_with_outputs() -> None:
    """`make notebook` stores them; nothing in them is of the machine's folders, and no script."""
    text = (ROOT / "examples" / "notebook.ipynb").read_text()
    notebook = json.loads(text)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5) and all(
        cell["id"] for cell in notebook["cells"]
    )
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    shown = {cell["id"]: {kind: "".join(data) for out in cell["outputs"] for kind, data in out["data"].items()}
             for cell in code}  # fmt: skip
    assert {cell for cell, data in shown.items() if not data} == {"kernel", "call"}  # which end without a value
    assert "faster than the default" in text_of(shown["tune"]["text/html"])
    assert shown["plot"]["image/svg+xml"].count("<circle") == 12 and parsed(shown["record"]["text/html"]) is not None
    assert "'block_M'" in shown["run"]["text/plain"]
    assert not re.search(r"<script|/home/|/root/|/tmp/|Traceback", text)
