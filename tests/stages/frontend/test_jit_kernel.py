"""A winner as tilelang's own JITKernel: the right member of its library, called as the user asked."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import tilelang
import tilelang.language as T
import torch
from decorated import scale, scale_jit

import atune
from atune.model.candidate import config_key
from atune.model.device import Target
from atune.stages.frontend.frontend import elaborate
from atune.stages.frontend.jit_kernel import jit_kernel

CPU = Target("c")


@tilelang.jit(target="c", execution_backend="cython")
def shifted(A, by: int = 1, block: int = 16):
    n = T.const("n")
    A: T.Tensor[[n], T.float32]
    B = T.empty((n,), "float32")
    with T.Kernel(T.ceildiv(n, block)) as bx:
        for i in T.serial(block):
            B[bx * block + i] = A[bx * block + i] + by
    return B


def scale_on_gpu(n: int, factor: int = 1, threads: int = 128) -> Any:
    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, threads), threads=threads) as bx:
            for i in T.Parallel(threads):
                B[bx * threads + i] = A[bx * threads + i] * factor

    return main


@pytest.mark.parametrize("kernel", [scale, scale_jit], ids=["plain", "jit"])
def test_outputs_are_returned_where_asked(kernel: Any) -> None:
    found = jit_kernel(
        kernel, {"n": 256}, {"factor": 3, "block": 16}, target=CPU, out_idx=[-1], latency_ms=1.5, reference_ms=2.5
    )
    assert isinstance(found, tilelang.JITKernel)
    assert (found.latency, found.config, found.ref_latency) == (1.5, {"factor": 3, "block": 16}, 2.5)
    A = torch.randn(256)
    assert torch.equal(found(A), A * 3)
    assert "float" in found.get_kernel_source()


def test_symbolic_dimensions() -> None:
    """A dict of one key stands for a symbolic variable; the kernel takes any size then."""
    found = jit_kernel(scale, {"n": {"$dynamic": "n"}}, {"factor": 2, "block": 16}, target=CPU, out_idx=[-1])
    for n in (64, 512):
        A = torch.randn(n)
        assert torch.equal(found(A), A * 2)


def test_eager_kernels_take_their_dimensions_by_name() -> None:
    found = jit_kernel(shifted, {"n": 128, "by": 4}, {"block": 32}, target=CPU)
    A = torch.randn(128)
    assert torch.equal(found(A), A + 4)


@pytest.mark.parametrize("passes", [{"tirx.disable_vectorize": True}, {}, None])
def test_reserved_names_are_no_arguments(passes: Any) -> None:
    config = {"factor": 2, "compile_flags": ("-O1",), "pass_configs": passes}
    found = jit_kernel(scale, {"n": 64}, config, target=CPU, out_idx=[-1], flags=["-O3"])
    assert found.compile_flags == ["-O1"]
    A = torch.randn(64)
    assert torch.equal(found(A), A * 2)


def test_a_kernel_that_returns_something_else_is_named() -> None:
    with pytest.raises(TypeError, match="returned an int"):
        elaborate(lambda n: n, {"n": 1}, {})


def tuned_on_gpu() -> atune.TuneResult:
    """Three candidates in one library."""
    work = atune.Workload(scale_on_gpu, atune.Space(factor=[1, 2, 3]), arguments={"n": 1024}, name="scale")
    settings = atune.CompileSettings(group_size=3, workers=1, store=False)
    benchmark = atune.BenchmarkSettings(n_warmup=1, n_repeat=3, n_final=0, check=False)
    return atune.run(work, target="cuda", devices="0", compile=settings, benchmark=benchmark)


@pytest.mark.gpu
def test_each_member_of_one_library_is_itself() -> None:
    """tilelang alone would load the library's first member for all three."""
    result = tuned_on_gpu()
    assert result.artifact is not None and result.header is not None
    A = torch.randn(1024, device="cuda")
    for factor in (1, 2, 3):
        symbol = f"atune_kernel_{config_key({'factor': factor})}"
        artifact = msgspec.structs.replace(result.artifact, symbol=symbol)
        found = jit_kernel(
            scale_on_gpu, {"n": 1024}, {"factor": factor}, target=result.header.target, artifact=artifact
        )
        B = torch.empty_like(A)
        found(A, B)
        torch.testing.assert_close(B, A * factor)
        assert isinstance(found, tilelang.JITKernel) and found.adapter.libpath == artifact.path


@pytest.mark.gpu
@pytest.mark.parametrize("out_idx", [[-1], [1], -1])
def test_outputs_of_a_gpu_kernel_are_returned(out_idx: Any) -> None:
    result = tuned_on_gpu()
    assert result.header is not None and result.best_config is not None
    found = jit_kernel(
        scale_on_gpu, {"n": 1024}, result.best_config, target=result.header.target, artifact=result.artifact,
        out_idx=out_idx,
    )  # fmt: skip
    A = torch.randn(1024, device="cuda")
    torch.testing.assert_close(found(A), A * result.best_config["factor"])
