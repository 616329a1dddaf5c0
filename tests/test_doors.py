"""Each way into atune, from a script whose kernels are sent by value: `make test-newest` runs these."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import printed_by

import atune

KERNELS = '''
import asyncio

import tilelang
import tilelang.language as T
import torch

import atune
import atune.bundle
import atune.compat.tilelang


def double(n: int, block: int = 32):
    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block)) as bx:
            for i in T.serial(block):
                B[bx * block + i] = A[bx * block + i] * 2.0

    return main


def jit():
    """A new kernel, which nothing was asked of yet."""

    @tilelang.jit(out_idx=[-1], target="c", execution_backend="cython")
    def lazy(n: int, block: int = 32):
        @T.prim_func
        def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
            with T.Kernel(T.ceildiv(n, block)) as bx:
                for i in T.serial(block):
                    B[bx * block + i] = A[bx * block + i] * 2.0

        return main

    return lazy


def eager_jit():
    @tilelang.jit(target="c", execution_backend="cython")
    def eager(A, block: int = 32):
        n = T.const("n")
        A: T.Tensor[[n], "float32"]
        B = T.empty([n], "float32")
        with T.Kernel(T.ceildiv(n, block)) as bx:
            for i in T.serial(block):
                B[bx * block + i] = A[bx * block + i] * 2.0
        return B

    return eager


A, AXES, HERE = torch.randn(256), {"block": [32, 64]}, {"target": "c", "progress": False}
work = atune.Workload(double, AXES, arguments={"n": 256}, reference=lambda A: A * 2)


def right(kernel):
    assert torch.equal(kernel(A), A * 2)
    print("right")


'''
DOORS = {
    "await": "right(asyncio.run(atune.tune(work, **HERE)).kernel)",
    "compile_all": 'right(atune.compile_all(double, [{"block": 64}], arguments={"n": 256}, target="c")[0])',
    "decorator": 'right(atune.autotune(jit(), space=AXES, target="c", reference=lambda A: A * 2)(256))',
    "eager": 'right(atune.autotune(eager_jit(), space=AXES, target="c", reference=lambda A: A * 2))',
    "as_op": """
atune.autotune(jit(), space=AXES, target="c", reference=lambda A: A * 2)(256).as_op("doors::double")
right(torch.ops.doors.double)
""",
    "drop_in": """
tuned = atune.compat.tilelang.autotune(configs=[{"block": 32}, {"block": 64}], ref_prog=lambda A: A * 2)(jit())
right(tuned(256))
""",
    "bundle": """
atune.run(work, **HERE).save_bundle("doubled")
right(atune.bundle.load("doubled"))
""",
    "annotations": """
kernel = jit()
decorated = atune.autotune(jit(), space=AXES, target="c", reference=lambda A: kernel(256)(A))
for called in range(2):
    right(decorated(256))
    kernel(256)
    decorated.clear_cache()
""",
    "held": """
class Op:
    def __init__(self, call):
        self.call = call

    def reference(self, A):
        return self.call(A)


def held(make):
    "Check against kernels that a closure, `self` and a default hold, before and after they were called."
    call = make()
    def default(A, call=call):
        return call(A)
    for reference in (Op(call).reference, default):
        right(atune.run(atune.Workload(double, AXES, arguments={"n": 256}, reference=reference), **HERE).kernel)
        call(A)


def later(kernel):
    return lambda A: kernel(256)(A)


held(lambda: jit()(256))
held(lambda: later(jit()))
held(eager_jit)
held(lambda: later(atune.autotune(jit(), space=AXES, target="c", tuning="quick")))
held(lambda: later(atune.compat.tilelang.autotune(configs=[{"block": 64}])(jit())))
""",
}
"""What each script does with the kernels, and prints «right» for."""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("doors")
    for name, text in DOORS.items():
        future = "from __future__ import annotations\n" if name == "annotations" else ""
        main = "\n    ".join(['if __name__ == "__main__":', *text.splitlines()])
        (folder / f"{name}.py").write_text(f"{future}{KERNELS}{main}\n")
    path = {"PYTHONPATH": str(Path(atune.__file__).parents[1])}
    return printed_by([f"{name}.py" for name in DOORS], folder, path)


@pytest.mark.newest
@pytest.mark.parametrize("door", DOORS)
def test_each_door_takes_the_kernels_of_a_script(printed: dict[str, str], door: str) -> None:
    output = printed[f"{door}.py"]
    assert "Traceback" not in output, output
    assert output.splitlines().count("right") == {"held": 10, "annotations": 2}.get(door, 1), output
