"""Calls of kernels that tune themselves: what can never be taken, what hangs, and kernels that are sent elsewhere."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import cloudpickle
import pytest
import tilelang
import torch
import value_decorated as module
from stand_in_engine import Engine

import atune
from atune.compat import tilelang as drop_in
from atune.errors import SpaceError
from atune.frontends import blocking

NEVER = {
    "rank": torch.ones(64, 2),
    "dtype": torch.ones(64, dtype=torch.float64),
    "strides": torch.ones(128)[::2],
}


@pytest.mark.parametrize("kind", NEVER)
def test_a_call_that_can_never_be_taken_is_refused_before_it_is_tuned(kind: str, tuned: Any, engine: Engine) -> None:
    kernel, there = tuned(module.add), drop_in.autotune(configs=[{"block": 64}])(module.add)
    for one in (kernel, there):
        with pytest.raises(ValueError, match="parameter 0: the kernel takes float32"):
            one(NEVER[kind])
    assert not engine.runs


def test_a_call_that_one_configuration_takes_is_not_refused(tuned: Any, engine: Engine) -> None:
    @tilelang.jit
    def either(A, kind: str = "float32"):
        A: tilelang.language.Tensor((64,), kind)
        with tilelang.language.Kernel(1, threads=1):
            A[0] = A[1]

    kernel = tuned(either, space={"kind": ["float32", "float64"]})
    with pytest.raises(ValueError, match="the kernel takes float32"):
        kernel(torch.ones(64, dtype=torch.int32))
    assert not engine.runs
    with suppress(Exception):  # the stand-in compiles nothing
        kernel(torch.ones(64, dtype=torch.float64))
    assert len(engine.runs) == 1


def test_a_parameter_may_have_any_name() -> None:
    kernel = atune.autotune(module.add, space={"block": [64]}, target="c", cache=False)
    assert kernel(torch.ones(64), 2.0)[0] == 3 and kernel(torch.ones(64))[0] == 2


def spins(block: int) -> bool:
    while block:
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("door", ["tune_async", "call"])
def test_a_constraint_that_hangs_is_ended(door: str, tuned: Any, engine: Engine, monkeypatch: Any) -> None:
    monkeypatch.setattr(blocking, "ANSWER_TIMEOUT_S", 0.2)
    kernel, begun = tuned(where=spins), time.monotonic()
    place = rf'File "{__file__}", line {spins.__code__.co_firstlineno}, in spins'
    with pytest.raises(SpaceError, match=rf"constraint on {{'block': 16}} did not answer within 0.2 s.*\n +{place}"):
        anyio.run(kernel.tune_async, 64) if door == "tune_async" else kernel(64)
    assert time.monotonic() - begun < 10 and not engine.runs
    deadline = time.monotonic() + 10
    while any(one.name == "atune-ask" for one in threading.enumerate()):
        assert time.monotonic() < deadline, "what spins in Python is ended"
        time.sleep(0.01)


def test_constraints_are_asked_outside_of_the_event_loop(tuned: Any, engine: Engine) -> None:
    asked: set[int] = set()
    kernel = tuned(where=lambda block: bool(asked.add(threading.get_ident()) or True))

    async def twice() -> int:
        for _ in range(2):
            await kernel.tune_async(64)
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(kernel.tune_async, 64)
        return threading.get_ident()

    assert anyio.run(twice) not in asked and asked and len(engine.runs) == 1


def doubles(kernel: Any) -> tuple[bool, float]:
    out = torch.zeros(64)
    made = kernel(64)
    made(torch.ones(64), out)
    return kernel is module.doubled, out[0].item()


def test_a_kernel_of_a_module_is_pickled_by_its_name() -> None:
    for one in (module.doubled, module.dropped):
        for dumps in (pickle.dumps, cloudpickle.dumps):
            assert pickle.loads(dumps([one]))[0] is one and len(dumps(one)) < 200
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(doubles, (module.doubled,)) == (True, 2.0)


MAIN = """
import pickle, sys, tilelang, tilelang.language as T, torch, cloudpickle
import atune
from value_kernels import scaled

@atune.autotune(space={"block": [64]}, target="c", cache=False)
@tilelang.jit
def tripled(N: int, block: int = 64):
    return scaled(N, FACTOR)

FACTOR = 3.0
if __name__ == "__main__":
    for name, dumps in (("plain", pickle.dumps), ("cloud", cloudpickle.dumps)):
        open(f"{sys.argv[1]}/{name}", "wb").write(dumps(tripled))
    assert pickle.loads(pickle.dumps(tripled)) is tripled
"""


def test_a_kernel_of_a_script_is_pickled_with_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(MAIN)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(module.__file__).parent), *sys.path])}
    subprocess.run([sys.executable, tmp_path / "script.py", tmp_path], env=environment, check=True)
    for name in ("plain", "cloud"):
        assert doubles(pickle.loads((tmp_path / name).read_bytes())) == (False, 3.0)
