"""What type checkers say of a user's program: nothing of a right one, and each mistake of a wrong one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import atune

ROOT = Path(atune.__file__).parents[1]

RIGHT = """
from __future__ import annotations

import logging
from collections.abc import Sequence

import structlog

import atune
from atune.testing import FakeMachine


def kernel(M: int, block: int = 32) -> object:
    return (M, block)


@atune.autotune(space={"block": [32, 64]}, tuning={"n_warmup": 1}, devices=[0], log=structlog.get_logger())
def tuned(M: int, block: int = 32) -> object:
    return (M, block)


WORKLOAD = atune.Workload(kernel, atune.Space(block=[32, 64]), arguments={"M": 64})


def seen(event: atune.events.Event) -> None:
    match event:
        case atune.events.CandidateMeasured():
            print(event.index, event.timing.latency_ms)
        case atune.events.BuildFailed() | atune.events.BenchmarkFailed():
            print(event.kind, event.message)
        case _:
            pass


async def go() -> None:
    log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger()
    compile = atune.CompileSettings(flags=("-O2",), pass_configs={"tl.enable_fast_math": True})
    benchmark = atune.BenchmarkSettings(n_warmup=1)
    result = await atune.tune(WORKLOAD, target="c", devices=[0, "1"], budget="90s", log=log, on_event=seen)
    config: dict[str, object] = result.best_config
    block = atune.run(WORKLOAD).best_config["block"]
    known = atune.replay("run.jsonl")
    if isinstance(known, atune.TuneResult):
        print(block, known.best_config["block"], known.latency_ms * 1000, known.best.index)
    async with atune.Tuner(WORKLOAD, compile=compile, benchmark=benchmark) as tuner:
        async for event in tuner.events():
            seen(event)
    atune.run(WORKLOAD, log=logging.getLogger())
    again: atune.TuneResult = await atune.resume("run.jsonl", budget=40)
    print(config, again, tuned.best_config(64))


records: Sequence[atune.results.Record] = atune.run(WORKLOAD, machine=FakeMachine()).records
kernels = atune.compile_all(kernel, [{"block": 1}], ignore_errors=True)
print(records, kernels, atune.run_resume("run.jsonl", accept=["versions"]).latency_ms)
"""

WRONG = """
import atune

WORKLOAD = atune.Workload(print, {"block": [1]})


async def go() -> None:
    await atune.tune(WORKLOAD, targt="c")  # wrong: targt
    await atune.resume("run.jsonl", budgte=4)  # wrong: budgte


atune.run(WORKLOAD, targt="c")  # wrong: targt
atune.run(WORKLOAD, target=3)  # wrong: target
atune.run(WORKLOAD, log="info")  # wrong: log
atune.run_resume("run.jsonl", strateggy="random")  # wrong: strateggy
atune.Tuner(WORKLOAD, budgte=3)  # wrong: budgte
atune.Workload(print, {"block": [1]}, ref=print)  # wrong: ref
atune.CompileSettings(worker=3)  # wrong: worker
atune.autotune(space={"block": [1]}, warmup=3)  # wrong: autotune
"""


def test_mypy_flags_wrong_options_and_no_right_ones(tmp_path: Path) -> None:
    """In the lines that are marked. atune is found as an installed package is: by `py.typed`."""
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\n")
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    # As a folder of packages, and not as the user's own code: what atune's sources have is not the user's to see.
    paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "mypy", "--cache-dir", "cache", "right.py", "wrong.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=170)
    assert done.returncode == 1, done.stdout + done.stderr
    found = re.findall(r"^(right|wrong)\.py:(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    assert not [text for file, _, text in found if file == "right"]
    lines = enumerate(WRONG.splitlines(), 1)
    marked = {number: line.split("# wrong: ")[1] for number, line in lines if "# wrong: " in line}
    assert {int(number) for _, number, _ in found} == marked.keys()
    for _, number, text in found:
        assert f'"{marked[int(number)]}"' in text


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(atune.__file__).parent / "py.typed").read_text() == ""
