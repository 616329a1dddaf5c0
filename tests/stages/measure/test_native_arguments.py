"""What native code would take for something else is refused at every door: it sees memory, and numbers of C types."""

from collections.abc import Callable
from typing import Any

import pytest
import tilelang.language as T
import torch
from workloads import scale

import atune
import atune.bundle
from atune.bundle.launch import gate
from atune.model.artifact import Artifact, KernelParam, Roles
from atune.model.settings import BenchmarkSettings
from atune.stages.loader import unless_empty

N, S = T.dynamic("N"), T.dynamic("S")
SIZE = 16
FEW = BenchmarkSettings(n_repeat=3, n_final=0)


def negated(kind: str = "int8") -> Any:
    """B = -A + s, with A and B of any stride."""

    @T.prim_func
    def main(A: T.StridedTensor((N,), (S,), "float32"), s: getattr(T, kind), B: T.StridedTensor((N,), (S,), "float32")):
        with T.Kernel(1):
            for i in T.serial(N):
                B[i] = T.cast(s, "float32") - A[i]

    return main


A = torch.arange(SIZE, dtype=torch.float32)


def lazily(size: int = SIZE, stride: int = 1) -> Any:
    return torch._neg_view(torch.arange(size * stride, dtype=torch.float32)[::stride])


def result_of(kernel: Any, *inputs: Any, **arguments: Any) -> Any:
    work = atune.Workload(kernel, [{}], arguments=arguments, inputs=list(inputs) or None)
    return atune.run(work, target="c", progress=False, benchmark=FEW, cached=False)


Call = Callable[..., Any]


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Call]:
    """B = -A from every door: called with A and B."""
    result, folder = result_of(scale, n=SIZE, factor=-1), tmp_path_factory.mktemp("bundle") / "flat"
    result.save_bundle(folder)
    decorated = atune.autotune(scale, space=[{"factor": -1}], target="c", cache=False, tuning="quick")(SIZE)
    return {"result": result.kernel, "bundle": atune.bundle.load(folder), "decorated": decorated}


DOORS = ["result", "bundle", "decorated"]


class Wrapped(torch.Tensor):
    """A subclass whose values are elsewhere."""

    @staticmethod
    def __new__(cls) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, (SIZE,), dtype=torch.float32, device="cpu")

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(function)


class Named(torch.Tensor):
    """A subclass with memory of its own."""


WRONG: dict[str, Callable[[], tuple[Any, Any, str]]] = {
    "negated input": lambda: (lazily(), torch.zeros(SIZE), r"lazily negated .*resolve_neg\(\)"),
    "negated output": lambda: (A, lazily(), r"lazily negated .*resolve_neg\(\)"),
    "wrapper": lambda: (Wrapped(), A.clone(), "Wrapped"),
    "sparse": lambda: (A.to_sparse(), A.clone(), "sparse_coo|strides"),
    "meta": lambda: (A.to("meta"), A.clone(), "meta"),
    "gaps": lambda: (torch.zeros(2 * SIZE)[::2], A.clone(), "contiguous"),
    "another dtype": lambda: (A.half(), A.clone(), "float16"),
    "another rank": lambda: (A[:, None], A.clone(), "parameter 0"),
    "a longer one": lambda: (torch.zeros(2 * SIZE), A.clone(), "parameter 0"),
    "no tensor": lambda: ("A", A.clone(), "parameter 0|torch tensors and numbers"),
    "expanded output": lambda: (A, torch.zeros(1).expand(SIZE), "contiguous|expanded"),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_tensor_that_is_more_than_its_memory_is_refused(doors: dict[str, Call], door: str, wrong: str) -> None:
    given, output, message = WRONG[wrong]()
    before = output.clone() if wrong.startswith("negated") else None
    with pytest.raises((ValueError, TypeError, RuntimeError, LookupError), match=message):
        doors[door](given, output)
    assert before is None or torch.equal(output, before)


@pytest.mark.parametrize("door", DOORS)
def test_a_tensor_with_memory_of_its_own_is_taken(doors: dict[str, Call], door: str) -> None:
    """Also a parameter, a subclass, and a view that torch has negated by now."""
    for given in (torch.nn.Parameter(A, requires_grad=False), A.as_subclass(Named), lazily().resolve_neg()):
        output = torch.zeros(SIZE)
        doors[door](given, output)
        assert torch.equal(output, -torch.Tensor(given))


STRIDED: dict[str, Callable[[], tuple[Any, ...]]] = {
    "negated": lambda: (lazily(stride=2), 1, "lazily negated"),
    "expanded output": lambda: (torch.zeros(1).expand(SIZE), 1, torch.zeros(1).expand(SIZE), "expanded output"),
    "too large": lambda: (torch.zeros(1).expand(2**32 + SIZE), 1, "more than 2147483647 elements"),
    "int8": lambda: (A, 300, "int8, which cannot hold 300"),
    "a half": lambda: (A, 1.5, r"int8, which cannot hold 1\.5"),
    "a text": lambda: (A, "1", "int8, which cannot hold '1'|number"),
}


@pytest.fixture(scope="module")
def strided(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Call]:
    result, folder = result_of(negated, A, 1), tmp_path_factory.mktemp("bundle") / "strided"
    result.save_bundle(folder)
    return {"result": result.kernel, "bundle": atune.bundle.load(folder)}


@pytest.mark.parametrize("door", ["result", "bundle"])
@pytest.mark.parametrize("wrong", [*STRIDED])
def test_sizes_and_numbers_that_do_not_fit_their_c_types_are_refused(
    strided: dict[str, Call], door: str, wrong: str
) -> None:
    """After a call of the same form that is right, too."""
    *given, message = STRIDED[wrong]()
    for _ in range(2):
        with pytest.raises((ValueError, TypeError), match=message):
            strided[door](*given)
        for number in (-128, 127, True):
            assert torch.equal(strided[door](A, number), int(number) - A)


RANGES = {
    "int8": (-128, 127), "uint16": (0, 2**16 - 1), "int64": (-(2**63), 2**63 - 1), "bool": (0, 1),
    "float32": (-3.4028234e38, 3.4028234e38), "float16": (-65504.0, 65504.0), "float64": (-1.7e308, 1.7e308),
}  # fmt: skip


@pytest.mark.parametrize("dtype", RANGES)
def test_the_ranges_of_numbers(dtype: str) -> None:
    check, (low, high) = gate([KernelParam(dtype, None)]), RANGES[dtype]
    for value in (low, high, 0, 1, True):
        check([value])
    if dtype != "float64":
        for value in (low * 1.01 - 1, high * 1.01 + 1) if "float" in dtype else (low - 1, high + 1):
            with pytest.raises(ValueError, match=f"parameter 0: the kernel takes {dtype}, which cannot hold"):
                check([value])
    if "float" in dtype:
        check([float("inf")]), check([float("nan")])


def test_whole_shapes_may_have_more_elements_than_symbolic_ones() -> None:
    fixed = gate([KernelParam("int8", (2**16, 2**16))])
    fixed([torch.empty(2**16, 2**16, dtype=torch.int8, device="meta")])
    with pytest.raises(ValueError, match="more than 2147483647"):
        gate([KernelParam("int8", (2**16, "n"))])([torch.empty(2**16, 2**16, dtype=torch.int8, device="meta")])
    with pytest.raises(ValueError, match="more than 4294967296"):
        fixed([torch.empty(2**16, 2**32 + 2**16, dtype=torch.int8, device="meta")])


@pytest.mark.parametrize("shapes", [(("n",), ("n",)), ((0,), (0,)), ((4,), ("n",)), ((4,), (8,))])
def test_a_kernel_whose_outputs_are_empty_is_not_launched(shapes: tuple[tuple[int | str, ...], ...]) -> None:
    """CUDA refuses a grid of no blocks. A kernel with outputs to write is launched, whatever its inputs are."""
    params = tuple(KernelParam("float32", shape) for shape in shapes)
    artifact = Artifact(0, "path", "symbol", params, "cuda", roles=Roles(outputs=(1,)))
    calls: list[int] = []
    call = unless_empty(lambda a, b: calls.append(len(b)), artifact)
    for length in (0, 3):
        call(torch.zeros(4), torch.zeros(length))
    assert calls == ([0, 3] if shapes[1] == (8,) else [3])
