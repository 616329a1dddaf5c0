"""The process that is asked for a space: it is ended where the user's code hangs, and says which function that was."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import space_kernels

import atune
from atune.errors import SpaceError, UsageError, WorkloadError
from atune.frontends.tuner import tune
from atune.model.settings import Budget
from atune.stages import session as entries
from atune.workers import workers
from atune.workers.local_machine import LocalMachine
from atune.workload.pickling import parse_file_ref
from atune.workload.workload import describe

pytestmark = pytest.mark.anyio
KERNELS = Path(space_kernels.__file__)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "ANSWER_TIMEOUT_S", 1.0)
    monkeypatch.setattr(workers, "FILE_TIMEOUT_S", 3.0)


@pytest.fixture
async def machine(request: pytest.FixtureRequest) -> AsyncGenerator[LocalMachine, None]:
    """Of the workload that the test names."""
    opened = LocalMachine(parse_file_ref(f"{KERNELS}:{request.param}"), target="c")
    async with opened.open():
        yield opened


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        ("HOLDS_THE_LOCK", r"holds_the_lock \(space_kernels\.py, line \d+\) did not answer within 1 s"),
        (
            "CALLS_WHAT_SLEEPS",
            r"calls_what_sleeps \(space_kernels\.py, line \d+\), in sleeps \(space_kernels\.py",
        ),
        ("AXIS", r"axis \(space_kernels\.py, line \d+\), in sleeps"),
        ("LEAVES", r"a function of the space of \S+:LEAVES ended the process: .* exited with status 3"),
    ],
    indirect=["machine"],
)
async def test_what_a_space_asks_is_ended_where_it_hangs(machine: LocalMachine, message: str, impatient: None) -> None:
    with pytest.raises(SpaceError, match=message):
        await machine.describe()


@pytest.mark.parametrize("machine", ["LATE"], indirect=True)
async def test_a_constraint_that_hangs_later_is_ended_too(machine: LocalMachine, impatient: None) -> None:
    with pytest.raises(SpaceError, match=r"late .* in sleeps"):
        await machine.describe()


@pytest.mark.parametrize("machine", ["LISTED"], indirect=True)
async def test_a_listed_space_is_what_this_process_would_list(machine: LocalMachine) -> None:
    """Also where it comes in several parts."""
    spec = await machine.describe()
    own = describe(space_kernels.LISTED, spec.origin)
    assert (spec.configs, spec.space, spec.default) == (own.configs, own.space, own.default)
    assert len(spec.configs) == 4950 > 2 * entries.PART


async def test_tune_asks_no_constraint_in_the_program_itself() -> None:
    here = os.getpid()

    def where(a: int) -> bool:
        return os.getpid() != here

    def lower(a: int) -> Any:
        raise ValueError("lowered")

    with pytest.raises(atune.NoWinner, match="2 failed to lower: ValueError: lowered"):
        await tune(atune.Workload(lower, atune.Space(a=[1, 2], where=where)), target="c")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import time\ntime.sleep(1e6)", r"takes more than 3 s and hangs in <module> \(w\.py, line 2\)\. .*__main__"),
        ("import os\nos.kill(os.getpid(), 11)", "loading .*w.py:W failed: .*SIGSEGV"),
        ("import sys\nsys.exit('no licence')", "w.py cannot be loaded: SystemExit: no licence"),
    ],
    ids=["hangs", "crashes", "calls exit"],
)
async def test_a_file_that_does_not_load_is_named(tmp_path: Path, text: str, message: str, impatient: None) -> None:
    (tmp_path / "w.py").write_text(f"{text}\n")
    machine = LocalMachine(parse_file_ref(f"{tmp_path}/w.py:W"), target="c")
    async with machine.open():
        with pytest.raises(WorkloadError, match=message):
            await machine.describe()


async def test_a_budget_of_a_billion_points_is_tuned_by_real_processes(tmp_path: Path) -> None:
    """All the way: proposed, lowered, built and measured on the CPU, over axes that a constraint narrows."""
    result = await tune(f"{KERNELS}:TUNABLE", target="c", budget=Budget(candidates=4), strategy="random")
    assert result.measured + result.duplicates == 4 and result.total == 100_000
    assert all(record.config["a"] <= record.config["b"] for record in result.records)


@pytest.mark.parametrize(
    ("space", "told"),
    [
        ("[{'block': 64}, 5]", "config 1 is 5; a config is a dict of arguments"),
        ("atune.Space(block=[64], where=lambda block: block > 64)", "refused by lambda block: block > 64"),
        ("atune.Space(block=[64]), default={'blok': 64}", "the space has no axis 'blok'"),
    ],
)
async def test_a_mistake_of_the_space_is_shown_with_the_line_of_the_file(space: str, told: str, tmp_path: Path) -> None:
    """By a dry run, too, which has the same things to say."""
    file = tmp_path / "work.py"
    file.write_text(f"import atune\ndef kernel(block): ...\n\nW = atune.Workload(kernel, {space})\n")
    machine = LocalMachine(parse_file_ref(str(file)), target="c")
    async with machine.open():
        with pytest.raises(UsageError) as caught:
            await machine.describe()
    message, _, place = str(caught.value).partition("\n  File ")
    assert told in message and place.startswith(f'"{file}", line 4') and "\n  File" not in place
    with pytest.raises(UsageError, match=f"^{re.escape(str(caught.value))}$"):
        await workers.counted(parse_file_ref(str(file)), 0)
