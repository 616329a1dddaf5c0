"""The workload: what fits a kernel, its fingerprint, and its way to the workers, wherever it was defined."""

from __future__ import annotations

import enum
import functools
import importlib
import linecache
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
import torch

from atune.errors import SpaceError, UsageError, WorkloadError
from atune.model.candidate import BASELINE
from atune.model.space import Space
from atune.workload.fingerprint import annotation_names, fingerprint, kernel_fingerprint
from atune.workload.pickling import load, parse_file_ref, ship
from atune.workload.workload import Workload, describe

ROOT = Path(__file__).parents[2]


def kernel(N: int, block: int = 32, stages: int = 1) -> None:
    """Stands for a kernel factory where nothing is lowered."""


def describing(*args: Any, **options: Any) -> Any:
    return describe(Workload(*args, **options))


def loose(rows: int, scale: float = 1.0, columns=4, mode="fast", block=8) -> None:  # type: ignore[no-untyped-def]
    """Says of some parameters what they take."""


loose.__annotations__["scale"] = float  # as in a module whose annotations are evaluated; `rows` has a text


@pytest.mark.parametrize(
    ("name", "right", "wrong", "must"),
    [
        ("rows", [1, True, -1, {"$dynamic": "m"}], ["x", None, 8.5], "a whole number"),
        ("scale", [1, 0.5], ["x", None], "a number"),
        ("columns", [1, 0.5, None], ["x"], "a number"),
        ("mode", ["slow", 1, None], [], ""),
    ],
)
def test_arguments_are_what_the_kernel_says(name: str, right: list[Any], wrong: list[Any], must: str) -> None:
    work = Workload(loose, Space(block=[1]), arguments={"rows": 4})
    for value in right:
        assert work.at({name: value}).arguments[name] == value
    for value in wrong:
        with pytest.raises(WorkloadError, match=f"argument {name!r} must be {must}, got {value!r}"):
            work.at({name: value})


def test_the_default_is_the_kernels_own_or_the_one_given() -> None:
    assert problem(Space(block=[16, 32])).default == 1 and problem(Space(block=[16, 32])).baseline is None
    assert problem(Space(block=[16, 64]), default={"block": 64}).default == 1


@pytest.mark.parametrize(
    ("space", "options", "baseline"),
    [
        (Space(block=[16, 64], stages=[1]), {}, {"block": 32, "stages": 1}),
        (Space(block=[16, 32], where=lambda block: block < 32), {}, {"block": 32}),
        (Space([{"block": 16}, {"block": 64}]), {}, {"block": 32}),
        (Space(block=[16, 64]), {"default": {"block": 48}}, {"block": 48}),
        (Space(block=[32], pass_configs=[{"tl.enable_fast_math": True}]), {}, {"block": 32, "pass_configs": {}}),
    ],
)
def test_a_default_that_the_space_does_not_hold_is_the_baseline(space: Space, options: Any, baseline: Any) -> None:
    spec = problem(space, **options)
    assert (spec.default, spec.baseline, spec.no_default) == (BASELINE, baseline, "")
    assert (
        baseline not in spec.configs and msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=type(spec)) == spec
    )


class Mode(enum.StrEnum):
    FAST = "fast"
    EXACT = "exact"


def moded(mode: Mode = Mode.EXACT, block: int = 32) -> None:
    """Stands for a kernel factory with an enumeration."""


@pytest.mark.parametrize(
    ("space", "options", "refused"),
    [
        (Space(block=[16, 64]), {}, ""),
        (
            Space(block=[16, 64], where=lambda block: block != 32),
            {},
            "lambda block: block != 32 refuses it",
        ),
        (Space(lambda: [{"block": 16}], where=lambda block: block != 32), {}, "block != 32 refuses it"),
        (Space(block=[16, 64], where=lambda block, N: block != 32 * N), {}, "block != 32 * N refuses it"),
        (
            Space(block=[16, 64], where=lambda block: {16: True, 64: True}[block]),
            {},
            "{'block': 32} raised KeyError: 32",
        ),
        (Space(block=range(1, 200_000), where=lambda block: block != 32), {}, "block != 32 refuses it"),
    ],
)
def test_a_constraint_that_refuses_the_baseline_is_named(space: Space, options: Any, refused: str) -> None:
    spec = problem(space, **options)
    assert spec.default == BASELINE and spec.baseline is not None and spec.baseline not in spec.configs
    assert bool(spec.refused) == bool(refused) and spec.refused.endswith(refused)


def test_a_constraint_sees_the_default_as_it_was_given() -> None:
    """An enumeration's member, whose plain value is in the journal."""
    for where, refused in ((lambda mode: mode is Mode.FAST, True), (lambda mode: isinstance(mode, Mode), False)):
        for space in (Space(mode=[Mode.FAST], where=where), Space(mode=[*Mode], block=[16], where=where)):
            spec = describing(moded, space)
            assert spec.baseline is not None and spec.baseline["mode"] == "exact" and bool(spec.refused) == refused


def problem(space: Any, **options: Any) -> Any:
    return describing(kernel, space, **{"arguments": {"N": 1}, **options})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: problem([{"N": 1}, {"block": 2}], arguments={}), "config 1: {'block': 2} lacks 'N'"),
        (lambda: describing(lambda M, N: None, [{}]), "{} lacks 'M', 'N', which the kernel needs; add them to the"),
        (lambda: problem(Space(N=[1])), "'N' is both an axis and a problem argument; give it in one place"),
        (lambda: problem(Space(block=[1, 1])), "{'block': 1} occurs twice, first as config 0"),
        (lambda: problem(Space(block=[1]), arguments={"N": len}), "argument 'N': <built-in function len>"),
        (
            lambda: Space(pass_configs=[3]),
            "axis 'pass_configs': pass_configs must be a dict, such as {'tl.enable_fast_math",
        ),
        (lambda: Workload(5, Space(a=[1])), "kernel must be a function that returns a PrimFunc, got 5"),  # type: ignore[arg-type]
        (
            lambda: Workload(kernel, Space(block=[1]), arguments={"M": 1}),
            "a symbolic dimension (T.dynamic) gets its",
        ),
        (
            lambda: Workload(kernel, Space(block=[1]), arguments={"n": 1}),
            "the kernel takes no argument 'n'; it takes N, block, stages (did you mean 'N'?)",
        ),
        (
            lambda: problem(Space(block=[1]), default={}),
            "does not fit the space: the default has no 'block'; give a value for every axis",
        ),
        (lambda: parse_file_ref(f"{__file__}:a-b"), "'a-b' is not a Python name"),
    ],
)
def test_mistakes_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert isinstance(caught.value, (SpaceError, WorkloadError))


def test_configurations_that_are_computed_are_not_asked_for_when_the_workload_is_made() -> None:
    Workload(kernel, Space(lambda: 1 / 0))  # type: ignore[arg-type, return-value]


def factory(value: Any, other: Any = None) -> Callable[..., Any]:
    def inner(N: int, block: int = 1) -> Any:
        def innermost() -> Any:
            return value

        return innermost, other

    return inner


def from_source(text: str, **names: Any) -> Callable[..., Any]:
    """Define `f` as a notebook cell would."""
    scope: dict[str, Any] = dict(names)
    exec(compile(text, "<a test's cell>", "exec"), scope)
    found: Callable[..., Any] = scope["f"]
    return found


CELL = "def f(N, block=1):\n    def inside():\n        return {body}\n    return inside\n"


def print_of(kernel: Any) -> str:
    return fingerprint(Workload(kernel, Space(block=[1]), arguments={"N": 1}))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (factory({"a": (1, [2])}), factory({"a": (1, [3])})),
        (factory(factory(1)), factory(factory(2))),
        (factory(None), factory(0)),
        (factory(torch.zeros(2, 3)), factory(torch.zeros(3, 2))),
        (factory(torch.zeros(2)), factory(torch.zeros(2, dtype=torch.float16))),
        (factory(torch.float16), factory(torch.bfloat16)),
        (factory(torch.nn.functional.softmax), factory(torch.nn.functional.multi_head_attention_forward)),
        (factory(abs), factory(min)),
        (from_source(CELL.format(body="1")), from_source(CELL.format(body="2"))),
        (from_source(CELL.format(body="table[0]"), table=[1]), from_source(CELL.format(body="table[0]"), table=[2])),
    ],
)
def test_the_fingerprint_follows_the_kernel(one: Any, other: Any) -> None:
    """Its source, what it closes over, and the globals that the functions inside it use."""
    assert print_of(one) == print_of(one) != print_of(other)


def test_classes_count_by_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object's methods are a part of it, and the class itself may be used."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    keys = []
    for width in ("1", "1", "2 * 2"):
        sys.modules.pop("plans", None)
        (tmp_path / "plans.py").write_text(f"class Plan:\n    def width(self):\n        return {width}\n")
        importlib.invalidate_caches()
        linecache.checkcache()
        plans = importlib.import_module("plans")
        keys.append((print_of(factory(plans.Plan())), print_of(factory(plans.Plan))))
    assert keys[0] == keys[1]
    assert keys[0][0] != keys[2][0] and keys[0][1] != keys[2][1]


def annotated(A: Any, block: int = 1) -> Any:
    rows = block * 2
    B: list[rows] = []  # type: ignore[valid-type]
    return A, B


def test_a_scripts_variable_of_a_kernels_local_name_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as M in the annotations of an eager kernel, and a script's loop over M."""
    before = kernel_fingerprint(annotated)
    monkeypatch.setitem(globals(), "rows", 64)
    assert kernel_fingerprint(annotated) == before


EXTENT = 4


def quoted(A: "list[EXTENT]", block: int = 1) -> Any:  # type: ignore[valid-type]  # noqa: UP037
    return A, block


def test_what_an_annotation_in_quotes_names_belongs_to_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """tilelang evaluates it, in the worker too."""
    assert "EXTENT" in annotation_names(quoted)
    before = kernel_fingerprint(quoted)
    monkeypatch.setitem(globals(), "EXTENT", 8)
    assert kernel_fingerprint(quoted) != before


def test_the_fingerprint_of_a_lambda_is_its_own_source_and_not_the_statement_around_it() -> None:
    base = fingerprint(Workload(kernel, Space(block=[1]), reference=lambda A, k=1: (A * 2, "ä", A + 1)))
    same = fingerprint(Workload(kernel, Space(block=[1, 2, 3]), reference=lambda A, k=1: (A * 2, "ä", A + 1)))
    others = [
        fingerprint(Workload(kernel, Space(block=[1]), reference=lambda A, k=1: (A * 2, "ä", A + 2))),
        fingerprint(Workload(kernel, Space(block=[1]), reference=lambda A, k=2: (A * 2, "ä", A + 1))),
        fingerprint(Workload(kernel, Space(block=[1]), reference=lambda B, k=1: (B * 2, "ä", B + 1))),
    ]
    assert base == same and len({base, *others}) == 4


def test_the_fingerprint_follows_the_problem_and_the_check() -> None:
    base: dict[str, Any] = {"arguments": {"N": 1}, "reference": factory(1), "inputs": factory(2)}
    changes: list[dict[str, Any]] = [
        {}, {"arguments": {"N": 2}}, {"reference": factory(3)}, {"reference": None}, {"inputs": factory(4)},
        {"rtol": 0.1}, {"atol": 0.1}, {"max_mismatched_ratio": 0.1}, {"out_idx": 0}, {"pass_configs": {"tl.x": True}},
        {"supply": "zero"}, {"zero": [0]}, {"check": factory(5)},
    ]  # fmt: skip
    prints = [fingerprint(Workload(kernel, Space(block=[1]), **{**base, **change})) for change in changes]
    assert len(set(prints)) == len(changes)
    assert prints[0] == fingerprint(Workload(kernel, Space(block=[1]), **base))
    # not the space: it has a hash of its own, and may grow before a journal is resumed
    assert prints[0] == fingerprint(Workload(kernel, Space(block=[1], where=lambda block: block), **base))


def test_the_fingerprint_is_the_same_in_another_process(tmp_path: Path) -> None:
    """No address or hash seed gets into it."""
    code = "import tests_workload_print as t, atune.workload.fingerprint as f; print(f.fingerprint(t.WORK))"
    module = """
    from atune import Space, Workload
    import functools, math
    HELPERS = (math.sqrt, len, {"b": lambda x: x, "a": {3, 1, 2, "x", "y"}})
    class Thing: pass
    thing = Thing()
    def reference(x): return HELPERS, thing
    def kernel(N, block=(1, 2)): return HELPERS, thing, functools
    WORK = Workload(kernel, Space(block=[1]), arguments={"N": 1}, reference=reference)
    """
    (tmp_path / "tests_workload_print.py").write_text(textwrap.dedent(module))
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    prints = {
        subprocess.check_output([sys.executable, "-c", code], env={**environment, "PYTHONHASHSEED": seed}, text=True)
        for seed in ("1", "2")
    }
    assert len(prints) == 1 and len(prints.pop().strip()) == 64


def test_functools_partial_is_a_kernel() -> None:
    spec = describing(functools.partial(kernel, stages=2), Space(block=[1, 2]), arguments={"N": 1}, name="partial")
    assert len(spec.configs) == 2 and spec.name == "partial"


class Slow:
    """Takes its time to be pickled."""

    def __reduce__(self) -> Any:
        time.sleep(0.05)
        return (int, ())


def test_two_threads_ship_kernels_of_one_module_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both go by value: one thread's end of pickling does not change how the other's goes on."""
    module = ModuleType("a_module_that_no_worker_can_import")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec("def f(N, block=1):\n    return g(N)\n\ndef g(N):\n    return N\n", module.__dict__)
    work = Workload(module.__dict__["f"], Space(block=[1]), arguments={"N": 1}, inputs=[Slow()])
    with ThreadPoolExecutor(4) as pool:
        refs = list(pool.map(lambda _: ship(work), range(8)))
    monkeypatch.delitem(sys.modules, module.__name__)
    assert [load(ref).kernel(7) for ref in refs] == [7] * 8


def product(M: int, N: int, block: int = 1) -> Any:
    raise AssertionError("not called")


def work_of(**options: Any) -> Workload:
    return Workload(product, {"block": [1, 2]}, arguments={"M": 3, "N": 5}, **options)


def test_work_may_be_numbers_or_functions_of_the_arguments_that_they_name() -> None:
    one = work_of(flops=lambda M, N: 2.0 * M * N, bytes=64)
    assert (one.flops, one.bytes) == (30.0, 64)
    assert work_of(bytes=lambda N: N).bytes == 5 and work_of().flops is None


def test_a_function_of_what_is_no_argument_is_refused_by_name() -> None:
    with pytest.raises(WorkloadError, match="'K', which is not an argument of the problem"):
        work_of(flops=lambda K: K)


def test_a_workload_and_a_space_show_what_made_them() -> None:
    def fits(block: int, N: int) -> bool:
        raise AssertionError("nothing is called to show one")

    def blocks(N: int) -> list[int]:
        raise AssertionError

    def kernel(N: int, block: int, stages: int = 1) -> None: ...

    space = Space(block=blocks, stages=[1, 2, 3], where=fits)
    workload = Workload(kernel, space, arguments={"N": 64}, reference=max)
    shown = "Space(block=blocks, stages=[1, 2, 3], where=fits)"
    assert repr(space) == shown
    assert repr(workload) == f"Workload(kernel, {shown}, arguments={{'N': 64}}, reference=max)"
    assert repr(Space([{"block": 1}, {"block": 2}])) == "Space(2 configurations)"
    assert repr(Space(blocks)) == "Space(blocks)"
    assert len(repr(Space(block=list(range(1000))))) < 50


def test_an_empty_space_says_which_constraint_refused_how_many() -> None:
    space = Space(block=[16, 32, 64], where=[lambda block: block > 16, lambda block, N: block > N])
    with pytest.raises(SpaceError) as caught:
        describing(kernel, space, arguments={"N": 128})
    assert str(caught.value).splitlines() == [
        "Space is empty: no configuration satisfies the constraints for N=128",
        "  1 refused by lambda block: block > 16",
        "  2 refused by lambda block, N: block > N",
    ]
    with pytest.raises(SpaceError) as caught:
        describing(kernel, Space(block=[16], where=lambda block, N: N % block == 0), arguments={"N": -5})
    assert str(caught.value).splitlines()[2:] == ["  N is negative, but a size must be 0 or more"]
