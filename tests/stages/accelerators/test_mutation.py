"""A kernel function's rewriting is kept for the next candidate, whose kernel and code are those of tilelang's own."""

from __future__ import annotations

import importlib
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import tilelang.language as T
from tilelang import tvm

from atune.model.artifact import Lowered
from atune.model.candidate import Candidate, config_key
from atune.model.device import Target
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.processes.messages import Session
from atune.stages.accelerators import mutation
from atune.stages.compile import lowering
from atune.stages.session.session import session
from atune.workload.workload import FileRef

EAGER: Any = importlib.import_module("tilelang.language.eager.ast")
BUILDER: Any = importlib.import_module("tilelang.language.eager.builder")
GEMM = FileRef(str(Path(__file__).parents[3] / "examples" / "gemm.py"), "WORKLOAD")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


@pytest.fixture
def memo(monkeypatch: pytest.MonkeyPatch) -> mutation.Memo:
    """Install a memo; tilelang has its own function back after the test."""
    for module in (EAGER, BUILDER):
        monkeypatch.setattr(module, "mutate", module.mutate)
    installed = mutation.install()
    assert installed is not None and EAGER.mutate is BUILDER.mutate is installed is mutation.install()
    return installed


@pytest.fixture
def gemm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Candidate]]:
    """Begin a session of the GEMM for sm_90a in this process; return what makes its candidates."""
    with monkeypatch.context() as patch:
        patch.setattr(session, "_state", session._State())
        begun = Session(GEMM, Target("cuda", "sm_90a"), CompileSettings(), BenchmarkSettings(), str(tmp_path))
        session.begin(msgspec.msgpack.encode(begun))

        def candidate(index: int, **config: Any) -> Candidate:
            config = {"block_M": 64, "block_N": 64, "num_stages": 2, "threads": 128, "swizzle": False, **config}
            return Candidate(index, config_key(config), config)

        yield candidate


def test_no_module_keeps_the_one_before(memo: mutation.Memo) -> None:
    held = {name: getattr(module, "__dict__", {}).get("mutate") for name, module in list(sys.modules.items())}
    assert sorted(name for name, value in held.items() if value is memo) == sorted(mutation.HOLDERS)
    assert not [name for name, value in held.items() if value is memo.original]


def same(one: Any, other: Any) -> bool:
    return bool(tvm.ir.structural_equal(one, other, map_free_vars=True))


@needs_nvcc
def test_candidates_are_lowered_to_the_same_and_rewritten_once(
    gemm: Callable[..., Candidate], memo: mutation.Memo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the workers' entry point, with and without; from the second candidate on nothing is rewritten."""
    candidates = [gemm(0, block_K=32), gemm(1, block_K=64), gemm(2, block_K=32, num_stages=3), gemm(3, block_N=128)]
    found, kernels, rewrites = [], [], []
    for candidate in candidates:
        kernels.append(lowering.elaborate(candidate))
        found.append(msgspec.msgpack.decode(lowering.run_anew(msgspec.msgpack.encode(candidate)), type=Lowered))
        rewrites.append(memo.rewrites)
    assert rewrites[0] > 1 and set(rewrites) == {rewrites[0]}
    for module in (EAGER, BUILDER):
        monkeypatch.setattr(module, "mutate", memo.original)
    for candidate, one, kernel in zip(candidates, found, kernels, strict=True):
        own = lowering.lower(candidate)
        assert same(kernel, lowering.elaborate(candidate))
        assert (one.ir_key, one.code_key, one.facts) == (own.ir_key, own.code_key, own.facts)
        blobs = [msgspec.msgpack.decode(lowered.blob, type=lowering.Blob) for lowered in (one, own)]
        assert blobs[0].source == blobs[1].source and "wgmma" in blobs[0].source
    assert memo.rewrites == rewrites[0]
    assert len({one.code_key for one in found}) == len(candidates)


def times(factor: Any) -> Any:
    @T.macro
    def scaled(x: Any) -> Any:
        return x * factor

    return scaled


def scale(size: int, factor: Any, launch: Any = T.Kernel) -> Any:
    scaled = times(factor)

    @T.prim_func
    def main(A: T.Tensor((size,), "float32")):
        with launch(1, threads=size) as _:
            for i in T.Parallel(size):
                A[i] = scaled(A[i])

    return main


def launched(*extents: Any, **named: Any) -> Any:
    return T.Kernel(*extents, **named)


def test_values_of_a_closure_are_its_own(memo: mutation.Memo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels and macros of one code and several closures, and one whose ``with`` is no launch to tilelang."""
    arguments = [(32, 2.0), (64, 2.0), (32, 3.0), (32, 2.0, launched), (64, 3.0, T.Kernel)]
    kernels = [scale(*given) for given in arguments]
    assert memo.rewrites == 4  # the macro, the kernel, the kernel with the other `launch`, and back again
    for module in (EAGER, BUILDER):
        monkeypatch.setattr(module, "mutate", memo.original)
    for given, kernel in zip(arguments, kernels, strict=True):
        assert same(kernel, scale(*given))
    assert not same(kernels[0], kernels[1]) and not same(kernels[0], kernels[2])


def annotated(language: Any, launch: Any) -> Callable[..., Any]:
    def kernel(A: Any, n: Any) -> None:
        A: language.Tensor[[n], language.float32]  # type: ignore[no-redef]
        n: language.int32  # type: ignore[no-redef]
        with launch(1) as _:
            language.evaluate(0)  # an annotation alone takes no variable into the closure

    return kernel


def test_what_is_looked_up_is_that_of_the_closure(memo: mutation.Memo) -> None:
    other = SimpleNamespace(Tensor=object(), int32=T.int64)
    for language, launch in [(T, T.Kernel), (other, T.Kernel), (T, launched), (T, T.Kernel), (other, launched)]:
        function = annotated(language, launch)
        ours, own = memo(function), memo.original(function)
        assert ours.source == own.source
        assert list(ours.extra_type_hints) == list(own.extra_type_hints)
        assert all(value is own.extra_type_hints[name] for name, value in ours.extra_type_hints.items())
        assert ("skip_kernel_ctx" in ours.source) == (launch is T.Kernel)
    rewrites = memo.rewrites
    assert memo(annotated(other, launched)).extra_type_hints.keys() == {"n"} and memo.rewrites == rewrites


def test_hints_are_not_shared(memo: mutation.Memo) -> None:
    memo(annotated(T, T.Kernel)).extra_type_hints.clear()
    assert memo(annotated(T, T.Kernel)).extra_type_hints.keys() == {"A", "n"}


def test_a_variable_that_is_not_bound_yet_is_no_parameter(memo: mutation.Memo) -> None:
    def make(early: bool) -> Any:
        if not early:
            late = 2

        def kernel() -> Any:
            return late

        generator = memo(kernel)
        late = 3
        return generator.source

    assert "make_closure():" in make(early=True) and "make_closure(late):" in make(early=False)
    assert "make_closure():" in make(early=True) and memo.rewrites == 2


def failing(size: int) -> Any:
    @T.prim_func
    def main(A: T.Tensor((size,), "float32")):
        with T.Kernel(1, threads=size) as _:
            assert size == 32, "line of the error"
            A[0] = 1.0

    return main


def test_an_error_names_its_line(memo: mutation.Memo, monkeypatch: pytest.MonkeyPatch) -> None:
    def frames() -> list[tuple[str, int | None, str]]:
        with pytest.raises(AssertionError, match="line of the error") as caught:
            failing(64)
        return [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(caught.tb) if f.filename == __file__]

    failing(32)
    ours, rewrites = frames(), memo.rewrites
    monkeypatch.setattr(BUILDER, "mutate", memo.original)
    assert ours == frames() and rewrites == 1
    line = Path(__file__).read_text().splitlines().index('            assert size == 32, "line of the error"') + 1
    assert any(number == line for _, number, _ in ours)


def test_the_memory_is_bounded(memo: mutation.Memo, tmp_path: Path) -> None:
    path = tmp_path / "many.py"
    path.write_text("".join(f"def f{i}():\n    return {i}\n" for i in range(mutation.KEPT + 20)))
    made: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), made)
    functions = [value for name, value in made.items() if name.startswith("f")]
    for function in functions:
        memo(function)
    assert len(memo._kept) == mutation.KEPT
    rewrites = memo.rewrites
    memo(functions[-1])
    assert memo.rewrites == rewrites
    memo(functions[0])
    assert memo.rewrites == rewrites + 1


@pytest.mark.parametrize("missing", ["_try_eval", "DSLMutator", "IRGenerator", "utils", "_empty"])
def test_another_tilelang_is_left_alone(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = EAGER.mutate
    monkeypatch.delattr(EAGER, missing)
    assert mutation.install() is None and EAGER.mutate is original is BUILDER.mutate


def test_another_mutate_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutate(func: Any) -> Any:
        return EAGER.utils.get_ast(func)

    monkeypatch.setattr(EAGER, "mutate", mutate)
    assert mutation.install() is None and EAGER.mutate is mutate
    monkeypatch.undo()
    monkeypatch.setattr(EAGER.DSLMutator, "visit_Name", lambda self, node: self.nonlocals.get(node.id, node))
    assert mutation.install() is None
