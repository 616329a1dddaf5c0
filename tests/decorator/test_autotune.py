"""`@atune.autotune` above `@tilelang.jit`, tuning and running for real on the CPU; the same on a GPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import tilelang
import tilelang.language as T
import torch
from decorated import doubled, multiply, plus, scale, scale_jit, shift, shift_any, times
from programs import python
from unset_kernels import WAYS

import atune
from atune.errors import UsageError
from atune.frontends import cached_tune as cached
from atune.frontends.autotuned import Autotuned


def test_lazy_kernels_come_back_compiled(tuned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call with a new key tunes, later ones give the same object, however the arguments are written."""
    kernel = tuned(scale_jit, reference=doubled, hints={"factor": 2})
    found = kernel(256)
    assert isinstance(found, tilelang.JITKernel)
    assert found.config["block"] in (16, 64) and found.latency > 0 and found.ref_latency > 0
    A = torch.randn(256)
    assert torch.equal(found(A), doubled(A))
    monkeypatch.delattr(cached, "tune_planned")
    assert kernel(256) is found and kernel(n=256) is found and kernel.compile(256) is found
    assert kernel.best_config(256) == found.config
    assert kernel.__name__ == "scale" and "A * factor" in kernel.__doc__


TWICE = {"lazy": tilelang.jit(scale), "lazy out_idx": tilelang.jit(scale, out_idx=[-1]), "plain": scale}


@pytest.mark.parametrize("kernel", TWICE.values(), ids=TWICE)
def test_a_call_that_sets_a_tunable_argument_has_the_decorator_s_target_and_hints(kernel: Any) -> None:
    ours = atune.autotune(kernel, space={"block": [16, 64]}, hints={"factor": 3}, target="c", cache=False)
    A = torch.randn(64)
    assert torch.equal(ours(64, block=32)(A), A * 3) and torch.equal(ours(64, factor=5, block=32)(A), A * 5)
    B, compiled = torch.empty(64), ours.compile(64, block=32)
    assert torch.equal(compiled(A), A * 3)
    if getattr(kernel, "out_idx", None) is None:  # tilelang's own kernel takes every parameter
        compiled(A, B)
        assert torch.equal(B, A * 3)


def test_an_eager_call_that_sets_a_tunable_argument_has_them_too() -> None:
    bare = (replace(kernel, target=None, execution_backend=None) for kernel in (shift, shift_any, multiply))
    one, any_length, times = (atune.autotune(k, space={"block": [16, 64]}, target="c", cache=False) for k in bare)
    for A in (torch.randn(64), torch.randn(128)):
        for kernel in (one, any_length):
            assert torch.equal(kernel(A, block=32), A + 1) and torch.equal(kernel(A, 5, 32), A + 5)
    A = torch.arange(64, dtype=torch.int32)
    assert all(torch.equal(times(A, by, block=32), A * by) for by in (2, 3))
    hinted = atune.autotune(shift, space={"block": [16, 64]}, hints={"by": 3}, cache=False)
    assert torch.equal(hinted(torch.zeros(64), block=32), torch.full((64,), 3.0))


@pytest.mark.parametrize("way", WAYS)
def test_a_kernel_is_never_called_here_without_a_value_for_a_tunable(way: str) -> None:
    """tilelang may end the process if an argument is None, which only a worker survives."""
    done = python("-m", "unset_kernels", way)
    assert (done.returncode, done.stdout.split()[-1:]) == (0, ["done"]), done.stderr


def test_symbolic_dimensions_of_an_eager_kernel(tuned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One compiled kernel takes any size; by default each size is tuned for, on inputs of that size."""
    kernel = tuned(shift_any, reference=plus, do_not_specialize="m")
    sized = tuned(shift_any, reference=plus)
    A = torch.randn(256)
    assert torch.equal(kernel(A), A + 1)
    monkeypatch.delattr(cached, "tune_planned")
    longer = torch.randn(500)
    assert torch.equal(kernel(longer), longer + 1)
    assert kernel.compile(A) is kernel.compile(longer)
    with pytest.raises(NameError, match="tune_planned"):
        sized(longer)
    with pytest.raises(UsageError, match="dimension 'm' is symbolic"):
        sized.compile()


def test_numbers_that_are_given_at_run_time(tuned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no part of the key: one kernel, one tuning, one look-up for all values. One may have a default."""

    @tilelang.jit(target="c", execution_backend="cython")
    def tripled(A, by: T.int32 = 3, block: int = 16):  # type: ignore[no-untyped-def]
        n = T.const("n")
        A: T.Tensor[[n], T.int32]
        B = T.empty((n,), T.int32)
        with T.Kernel(T.ceildiv(n, block), threads=1) as bx:
            for i in T.Parallel(block):
                B[bx * block + i] = A[bx * block + i] * by
        return B

    kernel, A = tuned(tripled, reference=times), torch.arange(64, dtype=torch.int32)
    assert torch.equal(kernel(A), A * 3)
    monkeypatch.delattr(cached, "tune_planned")
    for by in (4, 5):
        assert torch.equal(kernel(A, by), A * by) and torch.equal(kernel(A, by=by), A * by)
    assert len(kernel._entries) == 3 and len(kernel.winners.known) == 1
    with pytest.raises(UsageError, match="is a number: call the kernel with the number"):
        tuned(multiply).compile(n=64)


def test_symbolic_dimensions_by_name(tuned: Any) -> None:
    """An explicit variable among the arguments, on the lazy and on the eager path."""
    kernel = tuned(scale_jit, reference=doubled, hints={"factor": 2}, symbols={"n": 128})
    found = kernel(T.dynamic("n"))
    for n in (64, 512):
        A = torch.randn(n)
        assert torch.equal(found(A), doubled(A))
    assert kernel(T.dynamic("n")) is found
    eager = tuned(shift, reference=plus, symbols={"n": 128}).compile(n=T.dynamic("n"))
    A = torch.randn(192)
    assert torch.equal(eager(A), A + 1)
    inside = tuned(shift_any, reference=plus)
    assert torch.equal(inside.compile(m=64)(A), A + 1) and inside.tune(torch.zeros(64)).cache_hit
    with pytest.raises(TypeError, match="takes no argument 'n'; it takes A, by, block, and the dimensions m by name"):
        inside.compile(n=64)
    with pytest.raises(TypeError, match="takes no argument 'B'; it takes A, by, block"):
        inside(A, B=A)
    with pytest.raises(UsageError, match=r"^shift_any: m must be a whole number, got '64'$"):
        inside.compile(m="64")
    with pytest.raises(UsageError, match=r"symbols=\{…\}"):
        tuned(scale_jit, hints={"factor": 2})(T.dynamic("n"))


def test_tuning_on_the_tensors_of_the_call(tuned: Any) -> None:
    kernel = tuned(shift, inputs="call", check=lambda inputs, outputs: torch.equal(inputs[0], torch.arange(64.0)))
    assert kernel.tune(torch.arange(64.0)).measured == 2
    with pytest.raises(UsageError, match="this call has none"):
        tuned(scale_jit, inputs="call", hints={"factor": 2}).tune(64)


def test_a_configuration_that_cannot_be_traced_costs_itself_alone(tuned: Any) -> None:
    """The first configuration is no more guarded than the others, though dimensions are found out with one."""
    kernel = tuned(shift, [{"block": "wrong"}, {"block": 16}], reference=plus)
    A = torch.randn(64)
    assert torch.equal(kernel(A), A + 1)
    assert kernel.tune(A).failed == 1


def test_threads_that_call_at_once(tuned: Any) -> None:
    """Each gets its own right result; one of them tunes, and one kernel is compiled."""
    kernel = tuned(shift, reference=plus)
    inputs = [torch.randn(96) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        outputs = pool.map(kernel, inputs)
    assert all(torch.equal(out, given + 1) for out, given in zip(outputs, inputs, strict=True))
    assert len(kernel.known()) == 1 and len(kernel._kernels) == 1


# On a GPU


@tilelang.jit
def gpu_eager(A, B, threads: int = 128):
    n = T.const("n")
    A: T.Tensor[[n], T.float32]
    B: T.Tensor[[n], T.float32]
    with T.Kernel(T.ceildiv(n, threads), threads=threads) as bx:
        for i in T.Parallel(threads):
            B[bx * threads + i] = A[bx * threads + i] + 1


GPU_SPACE = {"threads": [64, 128, 256]}


@pytest.mark.gpu
def test_eager_on_a_gpu(tuned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hinted = {**GPU_SPACE, "occupancy": [None, 2], "num_ctas": [None, 2]}
    kernel = tuned(gpu_eager, hinted, reference=plus, devices="0")
    A, B = torch.randn(4096, device="cuda"), torch.zeros(4096, device="cuda")
    kernel(A, B)
    torch.testing.assert_close(B, A + 1)
    assert kernel.tune(A, B).failed == 0
    monkeypatch.delattr(cached, "tune_planned")
    B.zero_()
    kernel(A=A, B=B)
    torch.testing.assert_close(B, A + 1)
    # Its library holds several candidates, and is used as it stands.
    assert kernel.compile(n=4096).adapter.libpath.endswith(".so")


def test_only_kernels_are_decorated() -> None:
    for wrong in (3, atune.autotune(scale_jit, space={"block": [1]})):
        with pytest.raises(UsageError, match=r"give a @tilelang\.jit kernel"):
            atune.autotune(wrong, space={"block": [1]})
    assert isinstance(atune.autotune(space={"block": [1]})(scale_jit), Autotuned)
