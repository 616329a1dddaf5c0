"""The contract with tilelang: the installed one keeps it, and each way of breaking it is found and named.

This file alone tells whether a new tilelang fits. It needs no compiler and no GPU.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import tilelang.language as T
import torch
from tilelang import jit

import atune
from atune.compat.tilelang import install
from atune.errors import UsageError
from atune.model.device import Target
from atune.model.requirements import REQUIRES
from atune.stages import codegen, tilelang
from atune.stages.facts import instruments
from atune.stages.frontend import (
    READ,
    WRITE,
    accesses,
    eager_dimensions,
    elaborated,
    first_function,
    is_eager,
    is_jit,
    jit_function,
    parameters_of,
    roles_of,
    tensor_names,
)

REPLACED = [f"{place}:{name}" for name, places in tilelang.REPLACED.items() for place in places]


@pytest.fixture(autouse=True)
def asked_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tests may have another version, and take these as the tested ones."""
    monkeypatch.setitem(REQUIRES, "tilelang", ">=0.1.14,<0.1.16")
    tilelang.untested.cache_clear()
    yield
    tilelang.untested.cache_clear()


# What the installed tilelang has


def test_the_installed_tilelang_keeps_the_contract() -> None:
    assert tilelang.breaches() == [] and tilelang.differences(REPLACED) == []


def used(source: str) -> set[str]:
    """Return what a module takes from `atune.stages.tilelang`, as dotted names."""
    tree, owners = ast.parse(source), {"tilelang": ""}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text = ast.unparse(node.value)
            if re.fullmatch(r"tilelang(\.\w+)+", text):
                owners[node.targets[0].id] = text.partition(".")[2] + "."
    chains = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    parts = [chain.partition(".") for chain in chains if re.fullmatch(r"\w+(\.\w+)+", chain)]
    return {owners[owner] + rest for owner, _, rest in parts if owner in owners}


def test_the_contract_has_all_that_is_used() -> None:
    """A chain of attributes counts once, at its full length or where the contract ends."""
    known = {re.split(r"[.:(]", place.partition("(")[0])[-1] for place in tilelang.NAMES} | set(vars(tilelang))
    for place, (_, *parts) in tilelang.NAMES.items():
        owner = "" if place == "tilelang:" else re.split("[.:]", place.partition("(")[0])[-1] + "."
        known |= {owner + part.partition("(")[0] for part in parts}
    texts = [path.read_text() for path in Path(atune.__file__).parent.rglob("*.py")]
    found = set().union(*(used(text) for text in texts if "from atune.stages import tilelang\n" in text))
    covered = {name for name in found if any(f"{name}.".startswith(f"{one}.") for one in known - {"tvm"})}
    inner = {name for name in found if any(one.startswith(f"{name}.") for one in known)}
    assert "tvm.tirx.PrimFunc" in covered and not found - covered - inner


@jit
def doubled(A, threads: int = 32):  # type: ignore[no-untyped-def]
    n = T.const("n")
    A: T.Tensor[[n], T.float32]
    B = T.empty((n,), T.float32)
    with T.Kernel(1, threads=threads):
        for i in T.Parallel(n):
            B[i] = A[i] * 2
    return B


def test_an_eager_kernel_is_known_by_its_sizes_and_outputs() -> None:
    assert is_jit(doubled) and is_eager(doubled, {"A": torch.zeros(64)}, [{}]) and tensor_names(doubled) == ("A",)
    sizes = eager_dimensions(doubled, {"A": torch.zeros(64)}, {}, [{"threads": 64}])
    kernel, configs = jit_function(doubled, eager=True), [{"threads": 64}]
    params = parameters_of(kernel, sizes, configs)
    assert sizes == {"n": 64} and params is not None and [p.shape for p in params] == [(64,), (64,)]
    assert roles_of(first_function(kernel, sizes, configs), None).outputs == (1,)


@pytest.mark.parametrize("target", [Target("c"), Target("cuda", "sm_90a")], ids=str)
def test_a_kernel_is_lowered_and_printed(target: Target) -> None:
    context, tvm, seen = codegen.context_of(target, None), tilelang.tvm, list[Any]()
    function = elaborated(jit_function(doubled, eager=True), {"n": 256}, {"threads": 128}, context.target)
    assert accesses(function) == {0: READ, 1: WRITE}
    configs = tilelang.normalize_pass_configs({})
    with tvm.transform.PassContext(opt_level=3, config=configs, instruments=instruments(seen)), context.target:
        host, device, *_ = tilelang.lower_to_host_device_ir(function, context)
        again = codegen.load_ir(str(tvm.ir.save_json(device)))
        source = tilelang.device_codegen_without_compile(again, context).inspect_source()
        assert "doubled_kernel(" in source
        if target.kind == "cuda":
            assert "doubled_kernel" in tilelang.host_codegen(host, context).inspect_source()
            assert seen


# What another one may have


def without(place: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Return what removes a name from tilelang."""
    module, _, path = place.partition(":")
    owner, _, name = path.rpartition(".")

    def change(patch: pytest.MonkeyPatch) -> None:
        found = import_module(module)
        patch.delattr(attrgetter(owner)(found) if owner else found, name)

    return change


def other(place: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    """Return what puts `value` in a name's place."""
    module, _, path = place.partition(":")
    owner, _, name = path.rpartition(".")

    def change(patch: pytest.MonkeyPatch) -> None:
        found = import_module(module)
        patch.setattr(attrgetter(owner)(found) if owner else found, name, value)

    return change


def without_field(patch: pytest.MonkeyPatch) -> None:
    patch.delitem(import_module("tilelang.jit").JITImpl.__annotations__, "target")


HOST, BUILDER = "tilelang.engine.lower:host_codegen", "tilelang.language.eager.builder"
BREACHES = {
    "a function": (without(HOST), "tilelang.engine.lower.host_codegen is gone"),
    "a method's parameter": (
        other("tilelang:JITKernel.update_tuner_result", lambda self, latency, config: 0),
        "tilelang.JITKernel.update_tuner_result takes (self, latency, config) "
        "instead of (self, latency, config, ref_latency)",
    ),
    "a field": (without_field, "tilelang.jit.JITImpl.target is gone"),
    "what is set when an object is made": (
        other(f"{BUILDER}:JITFunc.__post_init__", lambda self: None), f"{BUILDER}.JITFunc.p1_cache is gone",
    ),
    "a registered function": (
        other("tilelang:tvm.get_global_func", lambda name, allow_missing=False: name.startswith("tile") or None),
        "runtime.ModulePackImportsToTensor is gone; node.LoadJSON is gone; ffi.ModuleLoadFromFile is gone; "
        "ffi.ModuleGlobalsAdd is gone",
    ),
    "an operation": (
        other("tilelang:tvm.ir.Op.list_op_names", staticmethod(lambda: {*tilelang.OPERATIONS} - {"tl.region"})),
        "tl.region is gone",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "said"), BREACHES.values(), ids=BREACHES)
def test_what_moved_is_named(change: Callable[..., None], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch)
    assert "; ".join(tilelang.breaches()) == said


@pytest.mark.parametrize(
    ("version", "tested"),
    [
        ("0.1.14", True), ("0.1.15.post1", True), ("0.1.15+cu130.git0a1b2c", True),
        ("0.1.13", False), ("0.1.16rc1", False), ("0.2.0", False),
    ],
)  # fmt: skip
def test_only_an_untested_one_is_held_to_the_contract(
    version: str, tested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilelang.__version__", version)
    said = f"atune was not tested with tilelang {version}, only with >=0.1.14,<0.1.16; "
    assert tilelang.untested() == ("" if tested else f"{said}all the names that atune uses are there")
    without(HOST)(monkeypatch)
    tilelang.untested.cache_clear()
    if tested:
        assert tilelang.untested() == ""
    else:
        with pytest.raises(UsageError, match="host_codegen is gone"):
            tilelang.untested()


def test_the_drop_in_replaces_all_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = import_module("tilelang").autotune
    without("tilelang.autotuner.tuner:AutoTuneImpl")(monkeypatch)
    with pytest.raises(UsageError, match=r"tilelang\.autotuner\.tuner\.AutoTuneImpl is gone"):
        install()
    assert import_module("tilelang").autotune is theirs
