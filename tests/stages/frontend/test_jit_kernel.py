"""A winner as tilelang's own JITKernel: its member of a measured library, called as tilelang's own adapter calls it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import returning_kernels as kernels
import tilelang
import torch
from compile_spy import spy
from decorated import scale, shift
from libraries import CALLS, CPU, config_for, gpu, measured, numbers, plain
from returning_kernels import N

from atune.errors import AtuneError
from atune.model.artifact import Artifact, KernelParam
from atune.model.device import Target
from atune.stages.frontend import elaborate
from atune.stages.jit_kernel import jit_kernel
from atune.stages.loader import LoadError
from atune.stages.tensors import Outputs
from atune.stages.tilelang import KernelParam as TheirParam


def tilelangs(kernel: Any, out_idx: Any, target: Target = CPU, **arguments: Any) -> Any:
    """Return the kernel as tilelang compiles it."""
    return jit_kernel(kernel, arguments, config_for(target), target=target, out_idx=out_idx)


def same(ours: Any, theirs: Any) -> None:
    """Compare results: one tensor, a list of them, or none."""
    assert type(ours) is type(theirs)
    ours, theirs = ([one] if isinstance(one, torch.Tensor) else one for one in (ours, theirs))
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert (one.dtype, one.shape, one.stride(), one.device) == (
            other.dtype, other.shape, other.stride(), other.device,
        )  # fmt: skip
        assert one.view(torch.uint8).equal(other.view(torch.uint8))


def compared(ours: Any, theirs: Any, given: Callable[[str], Sequence[Any]], device: str) -> None:
    first, second = given(device), given(device)
    same(ours(*first), theirs(*second))
    for one, other in zip(first, second, strict=True):  # what was written into what was given
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    assert (ours.out_idx, str(ours.params)) == (theirs.out_idx, str(theirs.params))


@pytest.mark.parametrize(("kernel", "out_idx", "given"), CALLS.values(), ids=CALLS.keys())
def test_results_are_those_of_tilelangs_adapter(kernel: Any, out_idx: Any, given: Any) -> None:
    compared(measured(kernel, out_idx), tilelangs(kernel, out_idx), given, "cpu")


def test_an_output_whose_size_is_an_expression() -> None:
    """tilelang's cython adapter cannot allocate one."""
    kernel = measured(kernels.twice_as_long, [-1])
    for n in (3, 8):
        assert torch.equal(kernel(numbers(n)), torch.cat([numbers(n)] * 2))
        for wrong in (2 * n - 1, 2 * n + 1):  # the C function would write beyond it
            with pytest.raises(ValueError, match=rf"the tensors disagree: .* is {wrong}, but must be {2 * n}"):
                kernel(numbers(n), torch.zeros(wrong))


def test_the_number_of_inputs_is_checked() -> None:
    kernel = measured(kernels.one, [-1])
    for n in (0, 3):
        with pytest.raises(ValueError, match=f"expected 1 inputs, but {n} are provided"):
            kernel(*[numbers()] * n)


def test_outputs_that_are_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match="out of range"):
        measured(kernels.one, [5])
    with pytest.raises(LoadError, match="tune again"):
        jit_kernel(kernels.one, {}, {}, target=CPU, artifact=Artifact(0, "/nowhere.so", "x", (), "c"))


def test_what_the_library_has_needs_no_compile_and_the_rest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = spy(monkeypatch)
    kernel = measured(kernels.one, [-1]).update_tuner_result(1.5, {"block": 16}, 2.5)
    assert isinstance(kernel, tilelang.JITKernel) and kernel.get_tuner_result()["ref_latency"] == 2.5
    assert "float" in kernel.get_kernel_source() and kernel.kernel_source == kernel.get_kernel_source()
    assert kernel.prim_func is not None and kernel.out_idx == [1] and len(kernel.params) == 2
    assert kernel.adapter.libpath.endswith(".so") and kernel.execution_backend == "cython"
    assert kernel.get_profiler() is not None and torch.equal(kernel.adapter(numbers()), numbers() * 2)
    assert not seen
    assert "call(" in kernel.get_host_source() and "call(" in kernel.adapter.get_host_source()
    assert kernel.host_source == kernel.as_tilelang().host_source
    assert seen.count("compile") == 1  # one is made, and kept
    exact = kernel.as_tilelang()
    assert type(exact) is tilelang.JITKernel and exact.latency == 1.5 and exact is kernel.as_tilelang()
    assert kernel.artifact is exact.artifact and torch.equal(exact(numbers()), numbers() * 2)
    assert seen.count("compile") == 1


def test_a_kernel_that_no_compiler_takes_says_why() -> None:
    with pytest.raises(AtuneError, match=r"failed to compile:\n.*Cannot convert type bfloat16"):
        measured(kernels.copied, [-1], dtype="bfloat16")


FACTOR, LEVEL = {"factor": 3, "block": 16}, {"factor": 3, "block": 16, "compile_flags": ("-O1",)}
COMPILED: dict[str, tuple[Any, dict[str, Any], dict[str, Any], Callable[[Any], Any]]] = {
    "plain": (scale, {"n": 256}, FACTOR, lambda A: A * 3),
    "eager, by its dimensions": (shift, {"n": 256, "by": 4}, {"block": 32}, lambda A: A + 4),
    "symbolic, as a dict of one key": (scale, {"n": {"$dynamic": "n"}}, FACTOR, lambda A: A * 3),
    "with a pass": (
        scale, {"n": 256}, {**LEVEL, "pass_configs": {"tirx.disable_vectorize": True}}, lambda A: A * 3,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kernel", "arguments", "config", "expected"), COMPILED.values(), ids=COMPILED.keys())
def test_without_a_library_tilelang_compiles(kernel: Any, arguments: Any, config: Any, expected: Any) -> None:
    options: Any = {"latency_ms": 1.5, "reference_ms": 2.5, "out_idx": None if kernel is shift else [-1]}
    found = jit_kernel(kernel, arguments, config, target=CPU, flags=["-O3"], **options)
    assert isinstance(found, tilelang.JITKernel) and "float" in found.get_kernel_source()
    assert (found.latency, found.config, found.ref_latency) == (1.5, config, 2.5)
    assert found.compile_flags == [*config.get("compile_flags", ["-O3"])]
    A = torch.randn(256)
    assert torch.equal(found(A), expected(A))


def test_a_kernel_that_returns_something_else_is_named() -> None:
    with pytest.raises(TypeError, match="returned an int"):
        elaborate(lambda n: n, {"n": 1}, {})


# Outputs alone


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "bool", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"])
def test_outputs_have_the_dtype_that_tilelang_gives_them(dtype: str) -> None:
    theirs = kernels.copied(dtype)
    buffer = theirs.buffer_map[theirs.params[1]]
    params = [KernelParam(dtype, (N,))] * 2
    _, out = Outputs(params, [1], "c").among([numbers()])
    assert out.dtype == TheirParam.from_buffer(buffer).torch_dtype() and out.shape == (N,)


def test_atunes_own_callable_allocates_as_much() -> None:
    assert torch.equal(plain(kernels.from_numbers, [-1])(5), torch.arange(N, dtype=torch.int32) + 5)
    with pytest.raises(TypeError, match=r"got array\(\[0.*\.\.\.") as raised:
        plain(kernels.one, [-1])(torch.zeros(64).numpy())
    assert len(str(raised.value)) < 120
    params = [KernelParam("float32", ("m", "n")), KernelParam("float32", ("m",)), KernelParam("int32", None)]
    assert Outputs(params, [0], "c", {2: "n"}).among([torch.zeros(10), 5])[0].shape == (10, 5)
    with pytest.raises(ValueError, match=r"output 0 .* the inputs do not determine 'n'"):
        Outputs(params, [0], "c").among([torch.zeros(10), 5])


# For a GPU that is not there


HOPPER = Target("cuda", "sm_90a")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


@needs_nvcc
def test_a_cuda_library_gets_outputs_that_are_allocated_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled for sm_90a, and launched by a stand-in: it is given every parameter, and no callee allocates."""
    seen, dtype, A = spy(monkeypatch), "float8_e4m3", numbers(dtype=torch.float8_e4m3fn)
    monkeypatch.setattr("atune.stages.jit_kernel.load", lambda _: lambda A, B: B.copy_(A))
    kernel = measured(kernels.copied, [-1], HOPPER, dtype=dtype)
    assert kernel.execution_backend == "tvm_ffi" and "__global__" in kernel.get_kernel_source()
    same(kernel(A), A)
    with pytest.raises(ValueError, match="Kernel expected 1 inputs, but 3 are provided"):
        kernel(A, A, A)
    monkeypatch.delattr("atune.frontends.autotuned._built")
    assert measured(kernels.copied, [-1], HOPPER, dtype=dtype).adapter.libpath and not seen  # from the store


@pytest.mark.gpu
@pytest.mark.parametrize(("kernel", "out_idx", "given"), CALLS.values(), ids=CALLS.keys())
def test_results_on_a_gpu(kernel: Any, out_idx: Any, given: Any) -> None:
    compared(measured(kernel, out_idx, gpu()), tilelangs(kernel, out_idx, gpu()), given, "cuda")
