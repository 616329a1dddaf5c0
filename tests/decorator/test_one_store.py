"""One store of results: what a run found, a decorated kernel takes, and the other way round."""

from __future__ import annotations

import asyncio
import importlib
import json
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import tilelang.language as T
import torch
from decorated import QUICK, TUNING, doubled, scale, workload
from tilelang import tvm

import atune
from atune.errors import UsageError
from atune.frontends import cached_tune
from atune.frontends.cli.main import main
from atune.frontends.cli.runs import find_journal
from atune.workers.result_cache import ResultCache


@pytest.fixture(autouse=True)
def cache_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATUNE_CACHE_DIR", str(tmp_path / "cache"))


def decorated() -> Any:
    space = {"factor": [1, 2], "block": [16, 64]}
    return atune.autotune(space=space, reference=doubled, name="scale", target="c", tuning=TUNING)(scale)


def test_a_decorated_kernel_takes_what_a_run_found_and_a_run_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same function and space. It is kept once, and is the latest run; records are read beside the loop."""
    found = atune.run(workload(), target="c", benchmark=QUICK)
    [entry] = ResultCache().entries()
    assert entry.config == found.best_config and entry.parts.problem == {"n": 256}
    atune.run(workload(n=320), target="c", benchmark=QUICK)
    monkeypatch.delattr(cached_tune, "tune_planned")  # nothing may be tuned
    again = atune.run(workload(), target="c", benchmark=QUICK, cached=True)
    assert again.cache_hit and again.latency_ms == found.latency_ms
    assert again.journal == found.journal == find_journal("latest")
    with pytest.raises(UsageError, match="none of the"):  # before anything is recorded
        atune.run(workload(atune.Space(block=[8])), target="c", benchmark=QUICK, warm=found)
    assert len(ResultCache().runs()) == 2
    kernel, readers, read = decorated(), [], ResultCache.result

    def reading(*args: Any) -> Any:
        readers.append(threading.current_thread())
        return read(*args)

    monkeypatch.setattr(ResultCache, "result", reading)
    assert kernel.best_config(256) == found.best_config and not readers
    assert asyncio.run(kernel.tune_async(256)).cache_hit
    assert len(readers) == 1 and threading.main_thread() not in readers


def test_a_run_takes_what_a_decorated_kernel_found() -> None:
    result = decorated().tune(256)
    again = atune.run(workload(), target="c", benchmark=QUICK, cached=True)
    assert again.cache_hit and again.latency_ms == result.latency_ms


def test_a_kernel_that_tells_spellings_of_a_dtype_apart_gets_its_own_result() -> None:
    """Without a warning that something changed. A kernel that takes them alike is tuned once for tilelang's two."""

    unchecked = {**TUNING, "check": False}

    def of(kind: Any, *others: type) -> Any:
        def shifted(n: int, kind: Any, block: int = 64):  # type: ignore[no-untyped-def]
            shift = float(isinstance(kind, others))

            @T.prim_func
            def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
                with T.Kernel(1):
                    for i in T.serial(n):
                        B[i] = A[i] + shift

            return main

        kernel = atune.autotune(shifted, space={"block": [16, 64]}, name="spelt", target="c", tuning=unchecked)
        return kernel(64, kind)(torch.zeros(64))[0].item(), kernel.tune(64, kind).cache_hit

    apart = tvm.DataType, torch.dtype
    spellings = "float32", T.float32, torch.float32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [of(kind, *apart)[0] for kind in spellings] == [0.0, 1.0, 1.0]
        assert [of(kind, *apart) for kind in spellings] == [(0.0, True), (1.0, True), (1.0, True)]
        assert len(ResultCache().runs()) == 3
        assert [of(kind)[0] for kind in spellings] == [0.0, 0.0, 0.0]
        assert len(ResultCache().runs()) == 5


FILE = f"""
import sys
sys.path.append({str(Path(__file__).parents[1])!r})
import tilelang
from decorated import scale
import atune

scaled = atune.autotune(space={{"factor": [1, 2], "block": [16, 64]}}, target="c", key=lambda n: n // 256)(scale)
"""


def test_the_command_line_tunes_a_decorated_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its call then tunes nothing. The shape that was tuned stands for all of the key, and is named."""
    (tmp_path / "scaled_kernel.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["tune", f"{tmp_path}/scaled_kernel.py", "--arg", "n=256", "--target", "c", "--quiet"]) == 0
    assert main(["cache", "ls"]) == 0
    assert "key=1 (tuned for n=256)" in capsys.readouterr().out
    again = ["tune", f"{tmp_path}/scaled_kernel.py", "--target", "c", "--quiet", "--cached", "--json", "--arg"]
    for n, known in (("256", True), ("320", False)):  # of the same key, but with another library and latency
        before = ResultCache().entries()[0].created
        assert main([*again, f"n={n}"]) == 0
        result = atune.replay(json.loads(capsys.readouterr().out)["journal"])
        assert result.header and result.header.arguments == {"n": int(n)}
        assert (ResultCache().entries()[0].created == before) == known
    monkeypatch.delattr(cached_tune, "tune_planned")  # nothing may be tuned
    kernel: Any = importlib.import_module("scaled_kernel").scaled
    assert kernel.tune(256).cache_hit
    assert "(tuned for n=320)" in repr(atune.tunings())
    assert main(["tune", f"{tmp_path}/scaled_kernel.py:scaled", "--target", "c", "--quiet"]) == 2
    assert "scale lacks the argument 'n'; pass it with --arg NAME=VALUE" in capsys.readouterr().err
