"""Mistakes in a decorator's options, and in the kernel under it: reported where they are made."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tilelang
import tilelang.language as T
import torch
from decorated import doubled, shift, shift_any
from drop_in_tuners import lazy

import atune
from atune.errors import UsageError, WorkloadError
from atune.frontends import cached_tune
from atune.frontends.cli.main import main
from atune.frontends.decorator_options import tuning_options
from atune.model.settings import Budget


@pytest.mark.parametrize("option", ["space", "key", "tune_on"])
def test_a_function_of_other_arguments_than_the_call_s_is_refused_by_its_option(option: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"space": {"block": [16, 64]}, option: lambda A, B: [{"block": 16}]}
    message = rf"^{option}: the function must take the call's arguments: missing a required argument: 'B'$"
    with pytest.raises(UsageError, match=message):
        atune.autotune(shift, **options, cache=tmp_path)(torch.zeros(64))


SPACE = {"block": [16, 64]}
seen: list[int] = []
ASKED: dict[str, Callable[..., Any]] = {
    "space": lambda A, by: seen.append(by) or SPACE,
    "key": lambda A, *, by=7: seen.append(by) or by,
    "tune_on": lambda A, by, **_: seen.append(by) or {"A": A},
}


@pytest.mark.parametrize("option", ASKED)
def test_functions_get_the_kernel_s_default_of_an_argument_that_a_call_leaves_out(
    option: str, tuned: Any, engine: Any
) -> None:
    """Or the hint, as the kernel does; and a default of their own is not the kernel's."""
    options = {"space": SPACE, option: ASKED[option]}
    seen.clear()
    tuned(shift, **options).best_config(torch.zeros(64))
    tuned(shift, **options, hints={"by": 3}).best_config(torch.zeros(64))
    tuned(shift, **options).best_config(torch.zeros(64), by=5)
    assert sorted({*seen}) == [1, 3, 5]


def test_an_eager_kernel_that_cannot_be_traced_is_shown_with_its_line(tmp_path: Path) -> None:
    @tilelang.jit(target="c", execution_backend="cython")
    def broken(A, block: int = 16):  # type: ignore[no-untyped-def]
        n = T.const("n") + missing  # type: ignore[name-defined]  # noqa: F821
        A: T.Tensor[[n], T.float32]
        return T.empty((n,), "float32")

    with pytest.raises(atune.errors.WorkloadError, match="NameError: name 'missing' is not defined") as raised:
        atune.autotune(broken, space={"block": [16, 64]}, cache=tmp_path)(torch.zeros(64))
    _, place, source, caret = str(raised.value).splitlines()
    assert place.startswith(f'  File "{__file__}", line ') and place.endswith(", in broken")
    assert source.strip().startswith("n = T.const(") and source[caret.index("^")] == "m"


def test_a_mistake_in_what_tilelang_rewrites_is_shown_with_its_line(tmp_path: Path) -> None:
    """Its traceback has the line of the function there, whose code stands around the statement."""

    @tilelang.jit(target="c", execution_backend="cython")
    def broken(A, block: int = 16):  # type: ignore[no-untyped-def]
        """Return nothing."""
        n, _ = T.const("n")  # the mistake
        A: T.Tensor[[n], T.float32]
        return T.empty((n,), "float32")

    with pytest.raises(atune.errors.WorkloadError, match="not enough values to unpack") as raised:
        atune.autotune(broken, space={"block": [16, 64]}, cache=tmp_path)(torch.zeros(64))
    assert str(raised.value).splitlines()[2].strip() == 'n, _ = T.const("n")  # the mistake'


@tilelang.jit(target="c", execution_backend="cython")
def product(A, B, block: int = 16):  # type: ignore[no-untyped-def]
    m, n = T.const("m, n")
    A: T.Tensor[[m, 4], T.float32]
    B: T.Tensor[[4, n], T.float32]
    return T.empty((m, n), "float32")


PRODUCT = atune.autotune(product, space={"block": [16, 64]})


def test_the_sizes_that_a_call_lacks_are_named_all_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    both = "product: give the tensors of a call, or its sizes: m=…, n=… (--arg m=… --arg n=…)"
    with pytest.raises(UsageError) as raised:
        PRODUCT.tune()
    assert str(raised.value) == both
    with pytest.raises(UsageError, match=r"sizes: n=… \(--arg n=…\)"):
        PRODUCT(torch.zeros(4, 4))
    for command in ("tune", "explain", "pick"):
        assert main([command, f"{__file__}:PRODUCT"]) == 2
        assert capsys.readouterr().err.endswith(f"atune: error: {both}\n")

    @atune.autotune(space={"block": [16]})
    def lazy(M: int, N: int, block: int = 16) -> Any: ...

    with pytest.raises(TypeError, match=r"^lazy lacks the arguments 'M', 'N'$"):
        lazy.tune()


@pytest.mark.parametrize("size", ["64", 64.0, None, True, [64]])
def test_a_size_that_is_no_whole_number_is_refused_before_anything_is_tuned(
    size: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of constant and of symbolic dimensions, by each method of the kernel."""
    monkeypatch.delattr(cached_tune, "tune_planned")  # nothing may be tuned
    for function, name in ((shift, "n"), (shift_any, "m")):
        kernel = atune.autotune(function, space={"block": [16]}, cache=tmp_path)
        got = re.escape(repr(tuple(size) if isinstance(size, list) else size))
        for ask in (kernel.compile, kernel.tune, kernel.best_config):
            with pytest.raises(UsageError, match=f"^{kernel.__name__}: {name} must be a whole number, got {got}$"):
                ask(**{name: size})


@pytest.mark.parametrize(("value", "named"), [([1.0], "a list"), (None, "None"), (3, "an int")])
def test_what_stands_in_place_of_a_tensor_is_named(value: Any, named: str) -> None:
    with pytest.raises(UsageError, match=f"^product: B must be a tensor, got {named}$"):
        PRODUCT(torch.zeros(4, 4), value)
    if value != 3:  # a number is refused where sizes are read off tensors
        with pytest.raises(UsageError, match=f"^shift_any: A must be a tensor, got {named}$"):
            atune.autotune(shift_any, space={"block": [16]})(value)


def test_a_tensor_that_a_call_lacks_is_named_before_anything_is_tuned(tmp_path: Path) -> None:
    @tilelang.jit(target="c", execution_backend="cython")
    def add(A, B, block: int = 16):  # type: ignore[no-untyped-def]
        n = T.const("n")
        A: T.Tensor[[n], T.float32]
        B: T.Tensor[[n], T.float32]
        return T.empty((n,), "float32")

    kernel = atune.autotune(add, space={"block": [16, 64]}, cache=tmp_path)
    with pytest.raises(TypeError, match=r"^add lacks the argument 'B'$"):
        kernel(torch.zeros(64))
    assert not kernel.known()


# Decorators in the wrong order, and other things in place of a kernel


def test_jit_above_autotune_is_refused_with_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"@tilelang\.jit stands above @atune\.autotune: swap the two"):

        @tilelang.jit(out_idx=[-1])
        @atune.autotune(space={"block": [16, 32]})
        def kernel(N: int, block: int = 16) -> Any: ...


def test_a_kernel_that_takes_tensors_is_refused_as_a_workload_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kernel.py"
    file.write_text("from decorated import shift\n")
    hint = re.escape("takes tensors (eager style): put @atune.autotune(space=…) above its @tilelang.jit, and call it")
    with pytest.raises(WorkloadError, match=f"^Workload: the kernel {hint}$"):
        atune.Workload(shift, {"block": [16]}, arguments={"n": 64})
    with pytest.raises(WorkloadError, match=hint):
        atune.compile_all(shift, [{"block": 16}], arguments={"n": 64}, target="c")
    for command in ("tune", "explain"):
        assert main([command, f"{file}:shift"]) != 0
        assert re.search(f"kernel.py:shift {hint}", capsys.readouterr().err)


class PrimFunc:
    """Stands in for tilelang's, which can be called, too."""

    def __repr__(self) -> str:
        return "a page\n" * 40


class JITKernel:
    """Stands in for tilelang's."""

    prim_func = adapter = None

    def __call__(self, *tensors: Any) -> None: ...


@pytest.mark.parametrize(
    ("kernel", "name"), [(PrimFunc(), "a PrimFunc"), (JITKernel(), "a compiled kernel")], ids=["PrimFunc", "JITKernel"]
)
def test_what_was_made_of_a_kernel_function_is_refused_in_its_place(kernel: Any, name: str) -> None:
    with pytest.raises(WorkloadError, match=rf"got {name}: do not call the function$"):
        atune.Workload(kernel, {"block": [16]})


def test_a_method_is_refused_where_it_is_decorated() -> None:
    with pytest.raises(UsageError, match=r"scaled is a method: put @atune\.autotune above a function"):

        class Layer:
            @atune.autotune(space={"block": [16, 64]})
            def scaled(self, n: int, block: int = 16) -> None: ...


def test_tuning_takes_what_tune_takes_and_refuses_what_it_refuses(tmp_path: Path) -> None:
    assert tuning_options({"preset": "quick", "budget": None})["budget"] == Budget()
    with pytest.raises(UsageError, match="strategy 'bayesian' learns while candidates compile"):
        atune.autotune(shift, space={"block": [16]}, tuning={"strategy": "bayesian", "pipeline": False})
    kernel = atune.autotune(shift, space={"block": [16]}, tune_on=lambda A, **_: {"block": 16}, cache=tmp_path)
    with pytest.raises(UsageError, match="'block' is given by tune_on, so nothing is tuned; leave this argument to"):
        kernel(torch.zeros(64))


def test_a_kernel_that_nothing_checks_is_said_once_at_the_call(tuned: Any, engine: Any) -> None:
    """Not where outputs are compared, nor where the check was switched off, nor by the drop-in: tilelang is silent."""
    plain = tuned()
    with pytest.warns(RuntimeWarning) as warned:
        assert plain.best_config(64) == plain.best_config(64) and plain.best_config(128)
    why = "the outputs were not checked: the workload has no reference and no check, or its outputs are empty"
    assert len(warned) == 1 and str(warned[0].message).startswith(f"scale: {why}")
    assert warned[0].filename == __file__
    with warnings.catch_warnings(action="error"):
        for options in ({"reference": doubled}, {"check": lambda *_: None}, {"tuning": {"check": False}}):
            assert tuned(**options).best_config(32)
        dropped = lazy()
        assert dropped.winners.find(dropped.call_of((32,), {}).tuned)
