"""`atune suggest`: which axes change the code, and the space without the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atune.api.suggest import Axis, Probe, Suggestion, folded, space_text, values_beside
from atune.cli.main import main
from atune.cli.suggest import lines_of

ROOT = Path(__file__).parents[2]


def test_values_of_equal_code_are_kept_once_and_failures_with_their_reason() -> None:
    probes = [Probe("a", "x"), Probe("b", "y"), Probe("c", "x"), Probe("d", "", "it does not fit"), Probe("e", "y")]
    assert folded("axis", probes) == Axis("axis", ("a", "b"), (("c", "a"), ("e", "b")), (("d", "it does not fit"),))


def test_each_axis_has_the_values_of_the_space_beside_the_base() -> None:
    configs: list[dict[str, Any]] = [{"m": 1, "n": 2}, {"m": 3, "n": 2}, {"m": 1, "n": 4}, {"m": 3, "n": 4}]
    assert list(values_beside(configs[0], configs)) == [("m", [3]), ("n", [4])]


def suggestion(*axes: Axis, passes: tuple[Axis, ...] = ()) -> Suggestion:
    return Suggestion("kernel", "cuda-sm_90a", {"m": 1}, axes, passes)


def test_the_suggested_space_is_python() -> None:
    passes = (Axis("tl.layout_cost_model", (None, "io-aware"), (), ()), Axis("tl.other", (None,), ((True, None),), ()))
    found = suggestion(Axis("m", (1, 3), ((2, 1),), ()), passes=passes)
    expected = "atune.Space(\n    m=[1, 3],\n    pass_configs=[None, {'tl.layout_cost_model': 'io-aware'}],\n)"
    assert space_text(found) == expected
    assert "pass_configs" not in space_text(suggestion(Axis("m", (1,), (), ())))


def test_what_an_axis_does_is_said_in_a_line() -> None:
    found = suggestion(
        Axis("m", (1, 3), ((2, 1),), ()), Axis("n", (1,), ((2, 1),), ()), Axis("k", (1,), (), ((2, "odd\nmore"),))
    )
    assert list(lines_of(found))[1:] == [
        "  m: changes the code: 1, 3",
        "      2 gives the same code as 1",
        "  n: changes nothing",
        "  k: has no other value that lowers",
        "      2 does not lower: odd",
    ]


@pytest.mark.slow
def test_the_broadcast_needs_none_of_its_coalesced_widths(tmp_path: Path) -> None:
    """Without a GPU: rows, threads, fragment and loop change the code, beside the default; the width does not."""
    out = tmp_path / "space.py"
    command = [sys.executable, "-m", "atune", "suggest", f"{ROOT / 'examples' / 'layout_broadcast.py'}:WIDE"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [*command, "--json", "-o", str(out)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    kept = {axis["name"]: axis["kept"] for axis in found["axes"]}
    assert kept["threads"] == [256, 128, 64] and kept["held"] == ["compiler", "replicated"]
    assert kept["loop"] == ["compiler", "vector2", "vector8"] and kept["coalesced"] == [0]
    assert next(axis["name"] for axis in found["passes"]) == "tl.layout_cost_model"
    assert found["space"] in out.read_text() and compile(out.read_text(), "space.py", "exec")


def test_a_workload_that_is_not_there_is_the_callers_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suggest", "nowhere.py:WORKLOAD"]) == 2
    assert "nowhere.py" in capsys.readouterr().err


def test_a_default_that_does_not_lower_is_shown_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    kernels = ROOT / "tests" / "teaching_kernels.py"
    assert main(["suggest", f"{kernels}:MISSPELT", "--target", "c", "--json"]) == 2
    out, err = capsys.readouterr()
    told = json.loads(out)["error"]
    assert told["message"].endswith(
        "does not lower, so nothing can be compared with it: NameError: name 'q' is not defined"
    )
    assert (told["where"]["file"], told["where"]["function"]) == (str(kernels), "main")
    first, place, source, caret = err.splitlines()
    assert first == f"atune: error: {told['message']}" and f'File "{kernels}", line ' in place
    assert source[caret.index("^")] == "q"
