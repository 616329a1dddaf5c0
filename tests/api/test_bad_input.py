"""Callers' mistakes: each is one `UsageError` that names the thing, and starts nothing that stays."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atune.errors import JournalError, TargetError, UsageError
from atune.frontends.tuner import tune
from atune.testing import FakeMachine

pytestmark = pytest.mark.anyio
KERNELS = Path(__file__).parents[1] / "contract_kernels.py"
SCALED = f"{KERNELS}:SCALED"


@pytest.mark.parametrize("workload", [None, 5, object(), len])
async def test_what_is_no_workload(workload: Any) -> None:
    with pytest.raises(UsageError, match=r"workload: give an atune\.Workload or 'FILE\.py:NAME'"):
        await tune(workload)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (lambda folder: folder, "it is a folder: give a file in it"),
        (lambda folder: folder / "file" / "run.jsonl", "a part of the path is a file"),
        (lambda folder: folder / "file", "its only line is incomplete"),
        (lambda folder: folder / ("x" * 300), "File name too long"),
        (lambda folder: "/dev/null", "must be a regular file"),
        (lambda folder: folder / "pipe", "must be a regular file"),
        (lambda folder: "/proc/run.jsonl", "cannot write the journal /proc/run.jsonl"),
    ],
)
async def test_journals_that_cannot_be_written(tmp_path: Path, path: Callable[[Path], Any], message: str) -> None:
    (tmp_path / "file").write_text("something")
    os.mkfifo(tmp_path / "pipe")
    machine = FakeMachine()
    with pytest.raises(JournalError, match=message):
        await tune(machine=machine, journal=path(tmp_path))
    assert machine.opened == 0 and (tmp_path / "file").read_text() == "something"


class TestReal:
    """What only the workers can tell."""

    async def test_a_gpu_that_is_not_there(self) -> None:
        with pytest.raises(TargetError, match=r"device '77' does not exist|there is no CUDA GPU"):
            await tune(SCALED, target="cuda", devices=["77"])

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ("inputs=[]", r"inputs gave 0 tensors, but the kernel has 1 output \(parameter 1\) and 1 input"),
            ("inputs=lambda scale: []", "argument: 'scale'; available arguments: parameters$"),
            (
                "reference=lambda x, y, z: x",
                r"'y' and 'z'; the function gets the kernel's inputs; "
                r"the kernel has 1 output \(parameter 1\) and 1 input",
            ),
            ("reference=lambda x: 5", r"the reference returned an int"),
        ],
    )
    async def test_users_functions_that_do_not_fit(self, tmp_path: Path, change: str, message: str) -> None:
        lines = [
            "import atune, sys, torch",
            f"sys.path.append({str(KERNELS.parent)!r})",
            "from contract_kernels import scaled",
            f"W = atune.Workload(scaled, {{'scale': [1.0]}}, {change})",
        ]
        (tmp_path / "work.py").write_text("\n".join(lines))
        with pytest.raises(UsageError) as told:
            await tune(f"{tmp_path}/work.py:W", target="c")
        message_shown, _, place = str(told.value).partition("\n  File ")
        assert re.search(message, message_shown) and place.startswith(f'"{tmp_path}/work.py", line 4')
