"""What workers get by value: kernels of tilelang come along, and a refusal says where."""

from __future__ import annotations

import functools
import pickle
import re
import threading
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import tilelang
import tilelang.language as T
import torch
from torch.nn.attention import SDPBackend

import atune
from atune.compat.tilelang import autotune as drop_in
from atune.errors import WorkloadError
from atune.model.space import Space
from atune.workload.fingerprint import identity
from atune.workload.packing import LazyCallback, pack, unpack
from atune.workload.pickling import ship
from atune.workload.workload import Workload


def lazy() -> Any:
    @tilelang.jit(out_idx=[-1], target="c", execution_backend="cython")
    def double(n: int, block: int = 32):  # type: ignore[no-untyped-def]
        @T.prim_func
        def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
            with T.Kernel(T.ceildiv(n, block)) as bx:
                for i in T.serial(block):
                    B[bx * block + i] = A[bx * block + i] * 2.0

        return main

    return double


def eager() -> Any:
    @tilelang.jit(target="c", execution_backend="cython")
    def double(A, block: int = 32):  # type: ignore[no-untyped-def]
        n = T.const("n")
        A: T.Tensor[[n], T.float32]  # type: ignore[no-redef]
        B = T.empty([n], "float32")
        with T.Kernel(T.ceildiv(n, block)) as bx:
            for i in T.serial(block):
                B[bx * block + i] = A[bx * block + i] * 2.0
        return B

    return double


ON_CALL: dict[str, Any] = {"target": "c", "on_miss": "default", "cache": False}
KERNELS: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any]]] = {
    "lazy": (lazy, lambda kernel, A: kernel(64)(A)),
    "eager": (eager, lambda kernel, A: kernel(A)),
    "compiled": (lambda: lazy()(64), lambda kernel, A: kernel(A)),
    "autotuned": (
        lambda: atune.autotune(lazy(), space={"block": [64]}, **ON_CALL), lambda kernel, A: kernel(64)(A)
    ),
    "measured": (
        lambda: atune.autotune(lazy(), space={"block": [64]}, **ON_CALL)(64), lambda kernel, A: kernel(A)
    ),
}  # fmt: skip
"""Kernels of tilelang and of atune, and how each is called."""
HELD = SimpleNamespace(kernel=None)


class Op:
    def __init__(self, kernel: Any, call: Any) -> None:
        self.kernel, self.call = kernel, call

    def reference(self, A: Any) -> Any:
        return self.call(self.kernel, A)


def holders(kernel: Any, call: Any) -> Iterator[Callable[[Any], Any]]:
    """Yield functions that hold `kernel`, each in another way."""

    def default(A: Any, kernel: Any = kernel) -> Any:
        return call(kernel, A)

    def in_global(A: Any) -> Any:
        return call(HELD.kernel, A)

    HELD.kernel = kernel
    table = {"kernels": [kernel]}
    yield lambda A: call(table["kernels"][0], A)
    yield default
    yield Op(kernel, call).reference
    yield functools.partial(call, kernel)
    yield in_global


@pytest.mark.parametrize("kind", KERNELS)
def test_a_kernel_is_sent_before_and_after_it_was_called(kind: str) -> None:
    (make, call), A = KERNELS[kind], torch.randn(64)
    kernel = make()
    before = identity(kernel)
    for _ in range(2):
        for hold in holders(kernel, call):
            assert torch.equal(unpack(pack(hold))(A), A * 2)
            assert torch.equal(unpack(pack(LazyCallback(hold)))(A), A * 2)
        assert torch.equal(call(kernel, A), A * 2)
    assert identity(kernel) == before


class Layer:
    """An object that keeps a tuned kernel whose parts are its own methods."""

    def __init__(self, way: str) -> None:
        self.factor, made = 2, atune.autotune(self.kernel, space={"block": [64]}, reference=self.reference, **ON_CALL)
        self.tuned = made if way == "held" else {"nested": [made]}

    def kernel(self, N: int, block: int = 64) -> Any:
        return lazy().func(N, block)

    def reference(self, A: Any) -> Any:
        return A * self.factor


@pytest.mark.parametrize("module", [__name__, "__main__"])
@pytest.mark.parametrize("way", ["held", "nested"])
def test_a_tuned_kernel_is_sent_with_the_object_that_holds_it(
    way: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Layer, "__module__", module)
    layer = Layer(way)
    for callback in (layer.reference, LazyCallback(layer.reference)):
        assert torch.equal(unpack(pack(callback))(torch.ones(4)), torch.full((4,), 2.0))
    tuned = unpack(pack(layer)).tuned
    other = tuned if way == "held" else tuned["nested"][0]
    reference = other.options.workload["reference"]
    assert reference(1) == 2 and unpack(pack(reference))(1) == 2
    held = reference._function.__self__
    again = held.tuned if way == "held" else held.tuned["nested"][0]
    assert again.options.workload["reference"].func.__self__ is held, "the cycle is closed"
    assert reference.cache_identity() == LazyCallback(layer.reference).cache_identity()


def plain(N: int, block: int = 64) -> Any:
    return lazy().func(N, block)


class Holder:
    tuned: Any = None

    def __call__(self, A: Any) -> Any:
        return A * 2

    def reference(self, A: Any) -> Any:
        return A * 2


@pytest.mark.parametrize(
    "callback", [lambda h: h.reference, lambda h: h, lambda h: functools.partial(Holder.reference, h)]
)
@pytest.mark.parametrize("option", ["reference", "key"])
def test_a_tuned_kernel_that_its_module_lacks_is_sent_with_callbacks_that_hold_it(
    callback: Callable[[Holder], Any], option: str
) -> None:
    """The module has the function under the kernel's name."""
    holder = Holder()
    holder.tuned = atune.autotune(plain, space={"block": [64]}, **{option: callback(holder)}, **ON_CALL)
    for again in (unpack(pack(holder.tuned)), pickle.loads(pickle.dumps(holder.tuned)), unpack(pack(holder)).tuned):
        held = again.options.key if option == "key" else again.options.workload["reference"]
        assert again.kernel is plain and held(1) == 2
    assert unpack(pack(lambda A: (holder.tuned, A)))(1)[1] == 1


def test_a_kernel_that_is_sent_is_compiled_at_its_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile workers unpack what a kernel function holds, and need not run it."""
    kernel = lazy()(64)
    kernel.update_tuner_result(1.5, {"block": 32}, 3.0)
    with monkeypatch.context() as patch:
        patch.setattr(tilelang, "compile", lambda *_, **__: pytest.fail("it is compiled"))
        sent = unpack(pack(kernel))
        assert isinstance(sent, tilelang.JITKernel) and sent.prim_func.script() == kernel.prim_func.script()
    A = torch.randn(64)
    assert torch.equal(sent(A), A * 2) and sent.out_idx == kernel.out_idx
    assert sent.get_kernel_source() == kernel.get_kernel_source()
    assert sent.get_tuner_result() == kernel.get_tuner_result()


def test_other_tuners_kernels_are_sent() -> None:
    ours = unpack(pack(drop_in(configs=[{"block": 64}])(lazy())))
    theirs = unpack(pack(tilelang.autotuner.autotune(configs=[{"block": 64}])(lazy())))
    assert ours.configs == theirs.configs == [{"block": 64}]


def test_a_function_that_remembers_is_sent() -> None:
    factor = 3
    sent = unpack(pack(functools.lru_cache(maxsize=8)(lambda x: x * factor)))
    assert sent(2) == 6 and sent.cache_parameters()["maxsize"] == 8


def test_compiled_kernels_count_by_their_code() -> None:
    kernel = lazy()
    assert identity(kernel(64)) == identity(unpack(pack(kernel(64)))) != identity(kernel(128))


def test_modules_of_any_class_are_sent_by_name() -> None:
    reference = eval("lambda A: torch.ops.aten.mul(A, 1 + torch.backends.cudnn.allow_tf32)", {"torch": torch})
    assert unpack(pack(reference))(torch.ones(2)).sum() == 4
    for one in (SDPBackend, SDPBackend.MATH, torch.ops.aten.mul, torch.ops.aten.softmax.int, torch.backends.cudnn):
        assert unpack(pack(one)) == one


def test_classes_of_one_name_in_two_modules_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script's is as that of its file, which has another module's name in a worker."""
    monkeypatch.setattr("atune.workload.fingerprint._script", "/of/the/program/app.py")
    one, other, script, alone = (type("Part", (), {"__module__": name}) for name in ("a.app", "a.b", "__main__", "app"))
    assert identity(one()) == identity(script()) == identity(alone()) != identity(other())


def test_a_module_that_no_worker_finds_by_its_name_is_refused() -> None:
    """Else the worker would take another module of that name."""
    alias = type("Alias", (ModuleType,), {})("json")
    with pytest.raises(WorkloadError, match="alias cannot be sent to the workers"):
        ship(atune.Workload(kernel, {"block": [1]}, arguments={"N": 1}, reference=lambda A: alias.of(A)))


def kernel(N: int, block: int = 1) -> Any:
    raise AssertionError("nothing is lowered here")


LOCK = threading.Lock()


def in_this_file(A: Any) -> Any:
    def inner() -> Any:
        return LOCK

    return inner


def holding(lock: Any) -> Any:
    return lambda A: lock


class Locked:
    def __init__(self, lock: Any) -> None:
        self.name, self.inner = "outer", SimpleNamespace(back=self, lock=lock)

    def reference(self, A: Any) -> Any:
        return A


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda lock: {"check": LazyCallback(holding([lock]))}, "check → lock → [0]"),
        (lambda lock: {"reference": Locked(lock).reference}, "reference → self → inner → lock"),
        (lambda lock: {"reference": functools.partial(kernel, N=lock)}, "reference → N"),
        (lambda lock: {"reference": in_this_file}, "reference → LOCK"),
        (lambda lock: {"where": holding(lock)}, "constraint 0 → lock"),
    ],
)
def test_a_refusal_names_what_cannot_be_sent_and_where_it_is_held(
    make: Callable[[Any], dict[str, Any]], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in (kernel, in_this_file, Locked, holding):  # as in a script
        monkeypatch.setattr(one, "__module__", "__main__")
    options = make(threading.Lock())
    space = Space(block=[1], **({"where": options.pop("where")} if "where" in options else {}))
    with pytest.raises(
        WorkloadError, match=rf"{re.escape(where)} cannot be sent .*\. Make it inside the function that"
    ):
        ship(Workload(kernel, space, arguments={"N": 1}, **options))
