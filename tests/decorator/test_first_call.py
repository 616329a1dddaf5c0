"""The first call of a kernel whose winner is known: the library that was measured is called, and nothing is compiled
in the program's process, wherever the winner is known from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from compile_spy import spy
from decorated import QUICK, add, doubled, multiply, plus, scale, scale_jit, shift, shift_any, times, workload

import atune
from atune.frontends import cached_tune
from atune.journal.result import TuneResult
from atune.model.folders import artifacts_folder

Decorate = Callable[..., Any]


@pytest.fixture(autouse=True)
def compiled_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names what this process lowers and compiles."""
    return spy(monkeypatch)


def forbid(patch: pytest.MonkeyPatch, *, workers: bool = True) -> None:
    """Let nothing be tuned; and with `workers` start none to compile."""
    patch.delattr(cached_tune, "tune_planned")
    if workers:
        patch.delattr("atune.frontends.autotuned._built")


def lazily(kernel: Any, *tensors: torch.Tensor) -> Any:
    return kernel(len(tensors[0]), 2)(*tensors)


def eagerly(kernel: Any, *given: Any) -> Any:
    return kernel(*given)


def in_place(kernel: Any, A: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(A)
    kernel(A, A, out)
    return out


FLOATS = torch.arange(64.0)
KINDS: dict[str, tuple[Any, dict[str, Any], tuple[Any, ...], Callable[..., Any], torch.Tensor]] = {
    "lazy, with out_idx": (scale_jit, {"reference": doubled}, (FLOATS,), lazily, FLOATS * 2),
    "a plain function": (scale, {"reference": doubled, "target": "c", "out_idx": -1}, (FLOATS,), lazily, FLOATS * 2),
    "eager": (shift, {"reference": plus}, (FLOATS,), eagerly, FLOATS + 1),
    "eager, of any size": (shift_any, {"reference": plus}, (FLOATS,), eagerly, FLOATS + 1),
    "with a number": (multiply, {"reference": times}, (FLOATS.to(torch.int32), 3), eagerly, FLOATS.to(torch.int32) * 3),
    "in place": (add, {"reference": torch.add}, (FLOATS.view(8, 8),), in_place, FLOATS.view(8, 8) * 2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_after_tune_async_the_first_call_compiles_nothing(
    kind: str, tuned: Decorate, compiled_here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the event loop, which a compile would hold up: none is made, and no worker is started to make one."""
    kernel, options, given, call, expected = KINDS[kind]
    decorated = tuned(kernel, **options)
    asked = (64, 2) if call is lazily else (*given, *given, given[0].clone()) if call is in_place else given

    async def main() -> None:
        result = await decorated.tune_async(*asked)
        assert not result.cache_hit and not result.failed
        with monkeypatch.context() as patch:
            forbid(patch)
            assert torch.equal(call(decorated, *given), expected)

    anyio.run(main)
    assert not compiled_here


def test_after_tune_the_library_that_was_measured_is_called(tuned: Decorate, compiled_here: list[str]) -> None:
    kernel = tuned(shift, reference=plus)
    result = kernel.tune(FLOATS)
    assert torch.equal(kernel(FLOATS), FLOATS + 1)
    compiled = kernel.compile(n=64)
    assert compiled.adapter.libpath == result.artifact.path
    assert compiled.config == result.best_config and compiled.latency == result.latency_ms
    assert torch.equal(result.kernel(FLOATS), FLOATS + 1) and not compiled_here


def test_a_known_result_compiles_nothing_and_where_its_library_is_gone_a_worker_does_once(
    tuned: Decorate, compiled_here: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A result of the cache, and one that was shipped."""
    kernel, file = tuned(shift, reference=plus), tmp_path / "shipped.json"
    kernel.tune(FLOATS)
    file.write_bytes(kernel.options.cache.export())
    shipping = {"shipped": file, "cache": tmp_path / "empty", "on_miss": "error"}
    with monkeypatch.context() as patch:
        forbid(patch)
        assert torch.equal(tuned(shift, reference=plus)(FLOATS), FLOATS + 1)
    for options in ({}, shipping):
        shutil.rmtree(artifacts_folder())
        with monkeypatch.context() as patch:
            forbid(patch, workers=False)
            found = tuned(shift, reference=plus, **options)
            assert torch.equal(found(FLOATS), FLOATS + 1) and found.compile(n=64).latency > 0
            patch.delattr("atune.frontends.autotuned._built")  # it is in the store now
            assert torch.equal(tuned(shift, reference=plus, **options)(FLOATS), FLOATS + 1)
    assert not compiled_here


def test_other_sizes_that_share_a_winner_are_compiled_by_a_worker(
    tuned: Decorate, compiled_here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `tune_async` for them not at the call any more."""
    kernel = tuned(shift, reference=plus, do_not_specialize="n")
    kernel.tune(FLOATS)
    forbid(monkeypatch, workers=False)
    other, third = torch.arange(128.0), torch.arange(192.0)
    assert torch.equal(kernel(other), other + 1)

    async def main() -> None:
        assert (await kernel.tune_async(third)).cache_hit
        monkeypatch.delattr("atune.frontends.autotuned._built")
        assert torch.equal(kernel(third), third + 1)

    anyio.run(main)
    assert not compiled_here


def test_a_resumed_run_hands_out_the_library_that_was_measured(tmp_path: Path, compiled_here: list[str]) -> None:
    journal = tmp_path / "run.jsonl"
    atune.run(workload(), journal=journal, budget=3, target="c", benchmark=QUICK)

    async def resumed() -> TuneResult:
        return await atune.resume(journal, workload(), budget=None)

    A = torch.randn(256)
    for result in (anyio.run(resumed), atune.replay(journal)):
        assert torch.equal(result.kernel(A), A * 2)
    assert not compiled_here
