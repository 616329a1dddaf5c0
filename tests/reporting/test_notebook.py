"""What a notebook shows of a result; and the notebook among the examples."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from event_streams import Stream

import atune
from atune.journal.reader import replay
from atune.journal.result import Result
from atune.reporting.summary import summary, summary_text

ROOT = Path(__file__).resolve().parents[2]
LAYOUTS = ROOT / "bench" / "results" / "layouts" / "uneven.jsonl"


def parsed(text: str) -> ElementTree.Element:
    """Return HTML that is written as XML too: every element is closed, every text is escaped."""
    return ElementTree.fromstring(f"<body>{text}</body>")


def text_of(text: str) -> str:
    return " ".join(" ".join(parsed(text).itertext()).split())


def test_a_result_shows_the_text_of_the_screen() -> None:
    stream = Stream(total=2).candidate(0, 1.0, mode="<script>'\"&").build_failed(1, "</pre><script>").finished()
    for result in (replay(LAYOUTS), Result.from_events(stream.events)):
        shown = result._repr_html_()
        assert "".join(parsed(shown).itertext()) == summary_text(result) == str(result) and "<script" not in shown


def test_a_result_whose_kernel_was_loaded_pickles_without_it() -> None:
    result = replay(LAYOUTS)
    result.__dict__["kernel"] = lambda: None  # which cannot be pickled
    again = pickle.loads(pickle.dumps(result))
    assert summary(again) == summary(result) and again.records == result.records
    assert "kernel" not in again.__dict__


@pytest.mark.newest
def test_the_example_notebook_runs_and_shows_what_it_promises(tmp_path: Path) -> None:
    """Cell by cell inside a running event loop, as Jupyter runs it."""
    path = os.pathsep.join([str(Path(atune.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)}
    command = [sys.executable, str(ROOT / "tests" / "notebook_cells.py"), str(ROOT / "examples" / "notebook.ipynb")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout.splitlines()[-1])
    assert shown["workload"]["value"].startswith("Workload(matmul")
    assert re.search(r"candidates 12: 12 measured", text_of(shown["tune"]["value"]))
    assert "12/12 compiled, 12/12 measured" in shown["tune"]["written"]
    assert shown["record"]["value"].startswith("Record(") and shown["call"]["value"] == ""
    assert "'block_M'" in shown["run"]["value"]


def test_the_example_notebook_is_stored_with_outputs() -> None:
    """`make notebook` stores them; nothing in them is of the machine's folders, and no script."""
    text = (ROOT / "examples" / "notebook.ipynb").read_text()
    code = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    without = {cell["id"] for cell in code if not any("data" in output for output in cell["outputs"])}
    assert without == {"kernel", "call"} and len(code) > 4  # which end without a value
    assert not re.search(r"<script|/home/|/root/|/tmp/|Traceback", text)
