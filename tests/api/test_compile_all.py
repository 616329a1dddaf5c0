"""`compile_all`: kernels in order, each computing its own; failures that cost the others nothing."""

from __future__ import annotations

import anyio
import pytest
import tilelang
import torch
from contract_kernels import moody
from guide_kernels import picky, scaled

import atune
from atune.engine.run_state import Run
from atune.frontends.compile_all import compile_candidates
from atune.model.candidate import numbered
from atune.testing import FakeMachine, Script


def test_what_fails_is_told_after_the_others_are_compiled() -> None:
    configs = [{"block": block} for block in (8, 12, 16, 24)]
    with pytest.raises(atune.errors.CompileFailed, match="2 of 4 configurations failed to compile") as caught:
        atune.compile_all(picky, configs, target="c")
    assert [one.config for one in caught.value.failures] == [{"block": 12}, {"block": 24}]
    _, first, example, place, source, *_ = map(str.strip, str(caught.value).splitlines())
    assert first == "2 failed to lower, for example: ValueError: block 12 is no power of two"
    assert example == "for example, candidate 1: block=12"
    assert "guide_kernels.py" in place and source.startswith("raise")

    kernels = atune.compile_all(picky, configs, target="c", ignore_errors=True)
    assert [kernel is None for kernel in kernels] == [False, True, False, True]


def test_configurations_may_be_generated_and_arguments_given_apart() -> None:
    kernels = atune.compile_all(
        scaled, lambda n: ({"block": b} for b in (8, 16) if n % b == 0), arguments={"n": 24}, target="c"
    )
    assert [kernel.config for kernel in kernels] == [{"block": 8}]
    with pytest.raises(atune.errors.SpaceError, match="takes no argument 'tile'"):
        atune.compile_all(scaled, [{"tile": 8}], target="c")


def test_a_jit_kernel_that_was_called_before_can_be_compiled_and_tuned() -> None:
    """What tilelang compiled for that call stays here; it does not travel to the workers."""
    jit = tilelang.jit(out_idx=[-1], target="c", execution_backend="cython")(scaled)
    A = torch.randn(64)
    assert torch.equal(jit(64, 3)(A), A * 3)
    [kernel] = atune.compile_all(jit, [{"block": 8}], arguments={"n": 64, "factor": 5}, target="c")
    assert torch.equal(kernel(A), A * 5)
    assert jit(64, 3) is jit(64, 3) and len(jit._kernel_cache) == 1  # and its own caches are as they were


@pytest.mark.anyio
@pytest.mark.parametrize("slow", [None, 0], ids=["in order", "the first is lowered last"])
async def test_the_same_code_is_built_once_and_every_candidate_has_an_answer(slow: int | None) -> None:
    script = Script(
        code_key=lambda config: str(config["x"] % 5),
        fails={3: "compile", 1: "lower"},
        lower_s=lambda config: 99.0 if config["x"] == slow else 0.1,
    )
    machine = FakeMachine(20, script, workers=3)
    candidates = numbered(machine.configs)
    async with machine.open():
        with anyio.fail_after(10):
            found = await compile_candidates(machine, candidates, Run(), 4)
    assert [one.record.index for one in found] == list(range(20))
    built = {i for group in machine.groups for i in group}
    assert len(built) == 5 and all(len(group) <= 4 for group in machine.groups)
    failed = [one.record for one in found if one.artifact is None]
    assert [(one.index, one.config, one.status) for one in failed] == [
        (i, {"x": i}, "failed") for i in (1, 3, 8, 13, 18)
    ]


@pytest.mark.gpu
@pytest.mark.timeout(120)
def test_cuda_kernels_run() -> None:
    kernels = atune.compile_all(moody, [{"mode": mode} for mode in ("ok", "also ok")], arguments={"threads": 32})
    x = torch.randn(32, device="cuda")
    for kernel in kernels:
        assert torch.equal(kernel(x), x * 2)
