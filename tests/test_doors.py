"""Each way into atune, from a script whose kernels are sent by value: `make test-newest` runs these."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from programs import printed_by

import atune

DEFAULTS = """
import torch

torch.set_default_device("meta")
torch.set_default_dtype(torch.float64)


def twice(A):
    return A * 2
"""
"""A module of the user's, which workers import with the reference; the scripts' tensors name device and dtype."""
DOUBLE = """\
FACTOR = 2.0

def double(n: int, block: int = 32):
    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block)) as bx:
            for i in T.serial(block):
                B[bx * block + i] = A[bx * block + i] * FACTOR

    return main
"""
KERNELS = '''
import asyncio

import tilelang
import tilelang.language as T
import torch

import atune
import atune.bundle
import atune.compat.tilelang
import defaults


@DOUBLE@


def twice(A):
    return defaults.twice(A)


def jit():
    """A new kernel, which nothing was asked of yet."""
    return tilelang.jit(double, out_idx=[-1], target="c", execution_backend="cython")


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


A = torch.rand(256, dtype=torch.float32, device="cpu")
AXES, HERE = {"block": [32, 64]}, {"target": "c", "progress": False}
work = atune.Workload(double, AXES, arguments={"n": 256}, reference=twice)


def right(kernel):
    assert torch.equal(kernel(A), A * 2)
    print("right")


'''.replace("@DOUBLE@", DOUBLE)
DOORS = {
    "await": "right(asyncio.run(atune.tune(work, **HERE)).kernel)",
    "compile_all": 'right(atune.compile_all(double, [{"block": 64}], arguments={"n": 256}, target="c")[0])',
    "decorator": 'right(atune.autotune(jit(), space=AXES, target="c", reference=twice)(256))',
    "eager": 'right(atune.autotune(eager_jit(), space=AXES, target="c", reference=twice))',
    "as_op": """
atune.autotune(jit(), space=AXES, target="c", reference=twice)(256).as_op("doors::double")
right(torch.ops.doors.double)
""",
    "drop_in": """
tuned = atune.compat.tilelang.autotune(configs=[{"block": 32}, {"block": 64}], ref_prog=twice)(jit())
right(tuned(256))
""",
    "bundle": """
atune.run(work, **HERE).save_bundle("doubled")
right(atune.bundle.load("doubled"))
""",
    "exec": f"""
TEXT = {DOUBLE!r}
exec(compile(TEXT, "made-by-exec", "exec"))
made = atune.Workload(double, AXES, arguments={{"n": 256}}, reference=twice, source=TEXT)
right(atune.run(made, **HERE).kernel)
""",
    "notebook": f"""
import linecache
TEXT, CELL = {DOUBLE!r}, "/tmp/ipykernel_1/123.py"
linecache.cache[CELL] = len(TEXT), None, TEXT.splitlines(True), CELL
exec(compile(TEXT, CELL, "exec"))
right(atune.run(atune.Workload(double, AXES, arguments={{"n": 256}}, reference=twice), **HERE).kernel)
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
    "given": """
for size, inputs in ((256, [A]), (2**19, [A.repeat(2**11)]), (256, lambda parameters: [A])):
    options = {"arguments": {"n": size}, "inputs": inputs, "reference": twice}
    kernel = atune.run(atune.Workload(double, AXES, **options), **HERE).kernel
    right(lambda A: kernel(A.repeat(size // 256))[:256])
""",
    "empty": """
work = atune.Workload(double, AXES, arguments={"n": 256}, inputs=[A], reference=lambda A, none=A[:0]: A * 2)
right(atune.run(work, **HERE).kernel)
""",
    "call": """
right(atune.autotune(eager_jit(), space=AXES, target="c", inputs="call", reference=twice))
with atune.compat.tilelang.set_autotune_inputs(A):
    right(atune.compat.tilelang.autotune(configs=[{"block": 64}], ref_prog=twice)(jit())(256))
def supply(params):
    return [torch.ones(256, dtype=torch.float32, device="cpu")]
right(atune.compat.tilelang.autotune(configs=[{"block": 64}], ref_prog=twice, supply_prog=supply)(jit())(256))
""",
}
"""What each script does with the kernels, and prints «right» for."""

RIGHT = {"held": 10, "annotations": 2, "given": 3, "call": 3}
"""How often the scripts print it; the others do so once."""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("doors")
    (folder / "defaults.py").write_text(DEFAULTS)
    for name, text in DOORS.items():
        future = "from __future__ import annotations\n" if name == "annotations" else ""
        main = "\n    ".join(['if __name__ == "__main__":', *text.splitlines()])
        (folder / f"{name}.py").write_text(f"{future}{KERNELS}{main}\n")
    path = {"PYTHONPATH": f"{Path(atune.__file__).parents[1]}:{folder}"}
    return printed_by([f"{name}.py" for name in DOORS], folder, path)


@pytest.mark.newest
@pytest.mark.parametrize("door", DOORS)
def test_each_door_takes_kernels_of_a_script_under_any_default_device_and_dtype(
    printed: dict[str, str], door: str
) -> None:
    output = printed[f"{door}.py"]
    assert "Traceback" not in output, output
    assert output.splitlines().count("right") == RIGHT.get(door, 1), output


MAKERS = {
    "arange", "as_tensor", "asarray", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "normal",
    "ones", "rand", "randint", "randn", "randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros",
}  # fmt: skip


def test_every_tensor_that_atune_makes_names_its_device_and_dtype() -> None:
    """Also where `functools.partial` makes it later, or names come from a dict."""
    calls = [
        (path, call, call.args[0] if call.args and ast.unparse(call.func).endswith("partial") else call.func)
        for path in sorted(Path(atune.__file__).parent.rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
    ]
    makes = [(path, call) for path, call, made in calls if ast.unparse(made) in {f"torch.{name}" for name in MAKERS}]
    assert len(makes) > 10
    for path, call in makes:
        named = {keyword.arg for keyword in call.keywords}
        assert None in named or {"device", "dtype"} <= named, f"{path}:{call.lineno}: {ast.unparse(call)}"
