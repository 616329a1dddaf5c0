"""`atune tune --dry-run`: said and not done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from programs import python

from atune.frontends.cli import preview as module
from atune.frontends.cli.main import main
from atune.frontends.cli.preview import dry_run_lines
from atune.reporting.report import report as page
from atune.workload.pickling import FileRef
from atune.workload.workload import WorkloadSpec

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
"""


def run_cli(folder: Path, *arguments: str) -> Any:
    return python("-m", "atune", "tune", *arguments, folder=folder, XDG_CACHE_HOME=str(folder / "cache"))


def test_candidates_are_counted_and_nothing_is_lowered(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(KERNEL)
    done = run_cli(tmp_path, "toy.py", "--dry-run", "--json", "--target", "c")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    assert [printed[name] for name in ("points", "looked_at", "candidates", "to_do")] == [4, 4, 3, 3]
    assert printed["refusals"] == [{"constraint": "lambda block, N: block <= N", "count": 1}]
    assert not (tmp_path / "ran").exists()
    assert not list((tmp_path / "cache").rglob("*.jsonl"))


def test_the_page_has_the_command_that_was_typed(tmp_path: Path) -> None:
    (tmp_path / "toy file.py").write_text(KERNEL)
    assert run_cli(tmp_path, "toy file.py:WORKLOAD", "--target", "c", "--journal", "j.jsonl").returncode == 1
    typed = "atune tune 'toy file.py:WORKLOAD' --target c --journal j.jsonl"
    assert f'["command","{typed}"]' in page(tmp_path / "j.jsonl")


TOY = WorkloadSpec(
    name="toy", origin="", arguments={"N": 64}, configs=tuple({"x": x} for x in range(10)), default=None,
    fingerprint="", refusals=(("fits (toy.py, line 3)", 2),),
)  # fmt: skip


def test_a_budget_leaves_fewer_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    async def counted(ref: FileRef, seed: int) -> WorkloadSpec:
        return TOY

    monkeypatch.setattr(module, "counted", counted)
    (tmp_path / "toy.py").write_text(KERNEL)
    for budget, to_do in (("5", 5), ("50", 10), ("20%", 2), ("9s", 10)):
        assert main(["tune", f"{tmp_path}/toy.py", "--dry-run", "--json", "--budget", budget]) == 0
        assert json.loads(capsys.readouterr().out)["to_do"] == to_do


def test_what_a_tuning_refuses_is_refused(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "toy.py").write_text(KERNEL)
    for option in ("--dry-run", "--compile-only"):
        assert main(["tune", f"{tmp_path}/toy.py", option, "--strategy", "bayesian", "--no-pipeline"]) == 2
        assert "learns while candidates compile" in capsys.readouterr().err


def test_the_text_says_what_the_figures_rest_on() -> None:
    text = "\n".join(dry_run_lines(TOY, "10 candidates, strategy auto"))
    assert "12 points, of which 10 are candidates" in text and "2 refused by fits (toy.py, line 3)" in text
    assert "to do      10 candidates, strategy auto" in text
    text = "\n".join(dry_run_lines(msgspec.structs.replace(TOY, points=10**9), ""))
    assert "1,000,000,000 points, of which 10 are candidates" in text
    assert "drawn with the seed: 12 points were examined" in text
