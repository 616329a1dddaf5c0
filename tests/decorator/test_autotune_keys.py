"""`@atune.autotune`: keys, policies, options and who tunes. The engine is a stand-in here; nothing is compiled."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
import tilelang.language as T
import torch
from decorated import add, scale, scale_jit, shift
from stand_in_engine import Engine

import atune
from atune.errors import CacheMiss, SpaceError, UsageError, WorkloadError
from atune.frontends import autotuned
from atune.journal.result import Result

# Keys


def test_dimensions_of_eager_kernels_are_arguments_of_the_key(tuned: Any, engine: Engine) -> None:
    kernel = tuned(add, key=["n"])
    A, longer, wider = torch.zeros(8, 16), torch.zeros(32, 16), torch.zeros(8, 32)
    assert not kernel.tune(A, A, A).cache_hit
    assert kernel.tune(longer, longer, longer).cache_hit
    assert not kernel.tune(wider, wider, wider).cache_hit
    assert engine.runs[0][0].arguments == {"m": 8, "n": 16, "dtype": {"$dtype": "float32"}}


def test_names_that_are_not_there_are_mistakes(tuned: Any, engine: Engine) -> None:
    with pytest.raises(UsageError, match=r"key: unknown argument 'N'; the call has n, factor"):
        tuned(key=["N"]).tune(64)
    with pytest.raises(UsageError, match="do_not_specialize: unknown argument 'N'"):
        tuned(do_not_specialize=["N"]).tune(64)
    with pytest.raises(UsageError, match="give either key"):
        tuned(key=["n"], do_not_specialize=["n"])
    with pytest.raises(UsageError, match="give names"):
        tuned(key=[1])
    assert not engine.runs


def test_call_forms_that_differ_have_different_keys(tuned: Any) -> None:
    kernel = tuned()

    def form(*args: Any, **kwargs: Any) -> Any:
        return kernel.form_of(args, kwargs)

    A = torch.zeros(4, 6)
    forms = [
        form(1), form(True), form(1.0), form("1"), form(None), form(1, 1), form(a=1), form(b=1), form(a=1, b=1),
        form(A), form(A.T), form(A.half()), form(torch.zeros(6, 4)), form(a=A), form([1]), form((1,)), form(),
    ]  # fmt: skip
    assert len(set(forms)) == len(forms)
    assert form(a=1, b=2) == form(b=2, a=1) and form(A) == form(torch.ones(4, 6))


def test_other_arguments_than_data(tuned: Any, engine: Engine) -> None:
    """dtypes and symbolic variables are encoded by name; other things have one clear message."""
    kernel = tuned(add)
    A = torch.zeros(8, 16)
    assert kernel.tune(A, A, A, dtype=T.float16).header.arguments["dtype"] == {"$dtype": "float16"}
    assert kernel.tune(A, A, A, dtype=torch.float16).header.arguments["dtype"] == {"$torch.dtype": "float16"}
    with pytest.raises(UsageError, match="add: argument 'dtype' is an object; a problem's arguments must be"):
        kernel.tune(A, A, A, dtype=object())
    for infinite in (math.inf, np.float32("inf")):
        with pytest.raises(SpaceError, match="add: argument 'dtype': a journal cannot store inf; make it a parameter"):
            kernel.tune(A, A, A, dtype=infinite)


# Started early


def test_a_kernel_that_may_tune_starts_the_processes(
    tuned: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(autotuned, "warm_early", lambda: asked.append(True))

    def starts(**options: Any) -> bool:
        asked.clear()
        kernel = tuned(**options)
        return bool(asked) and kernel is not None

    assert starts() and not starts(on_miss="default") and not starts(on_miss="error")
    tuned().tune(64)
    assert not starts(), "it has a result"
    assert starts(kernel=shift) and starts(name="another") and starts(cache=False)


# Spaces


@pytest.mark.parametrize("kernel", [scale_jit, shift], ids=["lazy", "eager"])
def test_axes_and_hints_must_be_arguments_of_the_kernel(tuned: Any, engine: Engine, kernel: Any) -> None:
    argument = 64 if kernel is scale_jit else torch.zeros(64)
    for options in ({"space": {"blok": [16]}}, {"space": [{"blok": 16}]}, {"hints": {"blok": 1}}):
        with pytest.raises(SpaceError, match="takes no argument 'blok'; it takes"):
            tuned(kernel, **options).tune(argument)
    with pytest.raises(TypeError, match="takes no argument 'blok'; it takes"):
        tuned(kernel).tune(argument, blok=3)
    assert not engine.runs


# Where no result is known


def test_what_a_miss_does(tuned: Any, engine: Engine) -> None:
    kernel = tuned()
    assert kernel.best_config(64, on_miss="default") == {"block": 64}
    with pytest.raises(CacheMiss, match=r"scale: no result is known for .*\"n\":64"):
        kernel.best_config(64, on_miss="error")
    assert not engine.runs
    assert kernel.best_config(64) == {"block": 64} and len(engine.runs) == 1
    assert kernel.best_config(64, on_miss="error") == {"block": 64}
    strict = tuned(on_miss="error")
    assert strict.best_config(64) == {"block": 64}  # from the result cache
    with pytest.raises(CacheMiss):
        strict(128)
    with pytest.raises(CacheMiss):
        strict.compile(128)
    assert tuned(space={"block": [8]}, default={"block": 8}).best_config(8, on_miss="default") == {"block": 8}
    with pytest.raises(UsageError, match="on_miss must be"):
        kernel.best_config(64, on_miss="guess")  # type: ignore[arg-type]


def test_the_default_stands_until_something_is_tuned(tuned: Any, engine: Engine) -> None:
    kernel = tuned(shift, {"block": [64, 16]}, on_miss="default", default={"block": 64})
    A = torch.randn(64)
    assert torch.equal(kernel(A), A + 1) and kernel.compile(A).config == {"block": 64}
    assert kernel.tune(A).best_config == {"block": 16}
    assert torch.equal(kernel(A), A + 1)
    assert kernel.compile(A).config == {"block": 16} and len(engine.runs) == 1


def test_shipped_results(tuned: Any, engine: Engine, tmp_path: Path) -> None:
    """Exported results are used where the cache has none: for this source, problem, device, and a space with them."""
    kernel = tuned(space={"block": [16, 64]})
    kernel.tune(64)
    file = tmp_path / "shipped.json"
    file.write_bytes(kernel.options.cache.export())

    def shipped(**options: Any) -> Any:
        return tuned(**{"cache": tmp_path / "empty", "shipped": file, "on_miss": "error", **options})

    assert shipped().best_config(64) == {"block": 64}
    assert shipped(space={"block": [64, 128]}).best_config(64) == {"block": 64}
    assert shipped(tuning="quick", cache=False).best_config(64) == {"block": 64}
    lacking = {"space": {"block": [16]}, "default": {"block": 16}}  # the default may win, from outside of a space, too
    for other in (lacking, {"reference": torch.neg}, {"hints": {"factor": 2}}):
        with pytest.raises(CacheMiss):
            shipped(**other).best_config(64)
    with pytest.raises(CacheMiss):
        shipped().best_config(65)
    with pytest.warns(RuntimeWarning, match="no result is known.*The default configuration is used") as warned:
        assert shipped(on_miss="default").best_config(65) == {"block": 64}
    assert warned[0].filename == __file__, "the call is the user's, and so is what to do"
    assert len(engine.runs) == 1
    file.write_text("{}")
    with pytest.raises(UsageError, match="not a file of exported results"):
        shipped().best_config(64)


def test_without_a_result_cache(tuned: Any, engine: Engine) -> None:
    assert not tuned(cache=False).tune(64).cache_hit
    kernel = tuned(cache=False)
    assert not kernel.tune(64).cache_hit and kernel.tune(64).cache_hit
    assert not kernel.tune(64, refresh=True).cache_hit
    assert len(engine.runs) == 3
    assert kernel.clear_cache() == 0


def test_a_key_of_unknown_names_is_refused_with_those_there_are(tuned: Any, engine: Engine) -> None:
    kernel, eager = tuned(scale), tuned(shift)
    assert eager.clear_cache(key={"n": 64}) == 0, "it may be a dimension"
    eager.tune(torch.zeros(64))
    for one, names in ((kernel, "n, factor, block"), (eager, "A, by, block, n")):
        with pytest.raises(UsageError, match=f"takes no argument 'm'; it takes {names}$"):
            one.clear_cache(key={"m": 64})
    assert atune.clear_cache(key={"n": 64}) >= 1, "also where other kernels have no argument of the name"


def test_a_part_of_a_key_is_refused_and_removes_nothing(tuned: Any, engine: Engine) -> None:
    """It lacks an argument, or is the start of the text that `atune cache ls` lists. A whole key may match nothing."""
    kernel, pair = tuned(scale), tuned(add)
    A, wider = torch.zeros(8, 16), torch.zeros(8, 32)
    kernel.tune(64), pair.tune(A, A, A), pair.tune(wider, wider, wider)
    for given, lacking in (({"m": 8}, "n"), ({}, "m, n")):
        with pytest.raises(UsageError, match=rf"^clear_cache: the key \{given} is incomplete: add {lacking}$"):
            pair.clear_cache(key=given)
    assert pair.clear_cache(key={"m": 9}) == pair.clear_cache(key={"m": 8, "n": 8}) == 0
    listed = kernel.options.cache.entries(kernel="scale")[0].key[:12]
    with pytest.raises(UsageError, match=f"by name, .* got '{listed}'; .*use `atune cache clear --key KEY`$"):
        kernel.clear_cache(key=listed)
    assert kernel.tune(64).cache_hit and pair.tune(A, A, A).cache_hit and pair.tune(wider, wider, wider).cache_hit
    assert kernel.clear_cache(key={"n": 64}) == pair.clear_cache(key={"m": 8, "n": 16}) == 1


def test_a_key_must_fit_one_of_all_kernels(tuned: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [tuned(scale), tuned(shift), buckets := tuned(key=lambda n: f"bucket {n}")]
    monkeypatch.setattr(autotuned, "_all", [])
    for key in ({"n": 64}, "0123456789ab"):
        with pytest.raises(UsageError, match="no kernel is decorated, so no result has the key"):
            atune.clear_cache(key=key)
    assert atune.clear_cache() == 0
    monkeypatch.setattr(autotuned, "_all", kernels)
    buckets.tune(64)
    assert atune.clear_cache(key="bucket 64") == 1, "although this is no key of the other kernels"
    del kernels[1:]
    for key, why in (("bucket 64", "key must be arguments by name"), ({"q": 64}, "takes no argument 'q'")):
        with pytest.raises(UsageError, match=why):
            atune.clear_cache(key=key)


def test_tunings_are_a_table_of_what_kernels_use(tuned: Any, engine: Engine) -> None:
    kernel = tuned(name="twice")
    kernel.tune(64), kernel.tune(128)
    again = tuned(name="twice")
    again.tune(64)
    mine = [one for one in atune.tunings() if one.kernel == "twice"]
    assert sorted((one.key["n"], one.source) for one in mine) == [(64, "cache"), (64, "tuned"), (128, "tuned")]
    assert all(one.config == {"block": 64} and one.latency_ms == 1.0 and one.result is not None for one in mine)
    table = str(atune.tunings())
    assert table.splitlines()[0].split()[:3] == ["kernel", "key", "from"] and "n=128" in table


# Who tunes


def test_who_waits_takes_over_where_the_first_is_cancelled(tuned: Any, engine: Engine, anyio_backend: str) -> None:
    engine.seconds = 0.3
    kernel = tuned()
    results: list[Result] = []

    async def tune(scope: anyio.CancelScope) -> None:
        with scope:
            results.append(await kernel.tune_async(64))

    async def main() -> None:
        first = anyio.CancelScope()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tune, first)
            while not engine.runs:
                await anyio.sleep(0.01)
            tasks.start_soon(tune, anyio.CancelScope())
            await anyio.sleep(0.1)
            first.cancel()

    anyio.run(main, backend=anyio_backend)
    assert len(engine.runs) == 2 and [result.cache_hit for result in results] == [False]


def test_who_waits_for_a_tuning_that_fails_tries_itself(tuned: Any, engine: Engine) -> None:
    engine.seconds, engine.error = 0.1, WorkloadError("no inputs")
    kernel = tuned()
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(kernel.best_config, 64) for _ in range(3)]
    assert [str(one.exception()) for one in asked] == ["no inputs"] * 3 and len(engine.runs) == 3
    engine.error = None
    assert kernel.best_config(64) == {"block": 64}


def test_a_blocking_call_that_would_wait_for_its_own_loop_is_a_mistake(tuned: Any, engine: Engine) -> None:
    engine.seconds = 0.5
    kernel = tuned()

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kernel.tune_async, 64)
            while not engine.runs:
                await anyio.sleep(0.01)
            with pytest.raises(UsageError, match="await tune_async"):
                kernel.best_config(64)

    anyio.run(main)
