"""`atune tune --dry-run`: said and not done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atune.api.dry_run import Begun, DryRun, Pace
from atune.cli.dry_run import lines_of
from atune.model.device import Target
from atune.workload.space_survey import Refusals, SpaceSurvey

ROOT = Path(__file__).parents[2]
KERNEL = """\
import os
import atune

ran = "ran"

def kernel(N, block=16):
    open(os.path.join(os.path.dirname(__file__), ran), "w").close()
    raise RuntimeError("this is lowering")

WORKLOAD = atune.Workload(
    kernel, atune.Space(block=[16, 32, 64, 128], where=lambda block, N: block <= N), arguments={"N": 64}
)
EMPTY = atune.Workload(kernel, atune.Space(block=[128], where=lambda block, N: block <= N), arguments={"N": 64})
"""


def run_cli(folder: Path, *arguments: str) -> Any:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, "-m", "atune", "tune", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_candidates_are_counted_and_nothing_is_lowered(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(KERNEL)
    done = run_cli(tmp_path, "toy.py", "--dry-run", "--json", "--target", "c", "--journal", "j.jsonl")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert (said["points"], said["candidates"], said["to_do"], said["exact"]) == (4, 3, 3, True)
    assert said["refused"] == [{"constraint": "lambda block, N: block <= N", "count": 1}]
    assert (said["target"], said["seconds"], said["journal"], said["cached"]) == ("c", None, None, [])
    assert not (tmp_path / "ran").exists() and not (tmp_path / "j.jsonl").exists()
    assert not list((tmp_path / "cache").rglob("*.jsonl"))


@pytest.mark.asked  # the one above starts a worker, too
def test_an_empty_space_says_which_constraint_empties_it(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(KERNEL)
    done = run_cli(tmp_path, "toy.py:EMPTY", "--dry-run", "--target", "c")
    assert done.returncode == 2 and "the space is empty" in done.stderr
    assert "1 refused by lambda block, N: block <= N" in done.stdout


def found(**changes: Any) -> DryRun:
    space = SpaceSurvey(
        workload="toy", arguments={"N": 64}, fingerprints=("f",), prints=("p",), points=4, looked_at=4, admitted=3,
        exact=True, refusals=(Refusals("fits (toy.py, line 3)", 1),),
    )  # fmt: skip
    parts: dict[str, Any] = {
        "space": space, "target": Target("c"), "devices": ("CPU",), "impossible": "", "begun": None, "cached": (),
        "libraries": 2, "to_do": 3, "pace": None, "seconds": None,
    }  # fmt: skip
    return DryRun(**{**parts, **changes})


def test_people_are_told_what_the_figures_rest_on() -> None:
    text = "\n".join(lines_of(found(), "exhaustive"))
    assert "4 points, of which 3 are candidates" in text and "1 refused by fits (toy.py, line 3)" in text
    assert "no estimate: this workload has no earlier journal" in text
    pace = Pace("j.jsonl", 20, 6.0, 0.5, same=False)
    begun = Begun("j.jsonl", False, 2, {"measured": 2, "failed": 0})
    text = "\n".join(lines_of(found(pace=pace, seconds=67.5, begun=begun, cached=({"block": 64},)), "random"))
    assert (
        "about 1 min 08 s\n           from 20 candidates in j.jsonl: 6.0 s to begin and end, 0.5 s per candidate"
        in text
    )
    assert "the kernel's source has changed since" in text and "tuning would refuse it" in text
    assert "the result cache has a winner: block=64; atune tune would measure again" in text


def test_estimates_are_called_so() -> None:
    from msgspec.structs import replace

    space = replace(found().space, points=10**9, looked_at=1000, admitted=250, exact=False)
    text = "\n".join(lines_of(found(space=space, to_do=250_000_000), "random"))
    assert "1,000,000,000 points, of which about 250,000,000 are candidates" in text
    assert "counted on 1,000 points: 250 of them are candidates" in text
    text = "\n".join(lines_of(found(space=replace(space, points=None), to_do=None, impossible="no GPU"), "random"))
    assert "an unknown number of points, of which an unknown number are candidates" in text
    assert "to do      an unknown number of candidates, strategy random" in text
    assert "cannot be tuned here: no GPU" in text
