"""The decorator `autotune`, and `tunings`, what decorated kernels use."""

from __future__ import annotations

import inspect
import re
import weakref
from collections.abc import Callable
from typing import Any, Unpack, overload

import msgspec

from atune.errors import UsageError
from atune.frontends.decorator.autotuned import Autotuned
from atune.frontends.decorator.call import text_of
from atune.frontends.decorator.options import TUNING, AutotuneOptions, checked_options
from atune.frontends.decorator.winners import Winner
from atune.model.candidate import describe_config, printable
from atune.model.options import documents, refuse_unknown
from atune.reporting.export import aligned
from atune.workers.processes.server import warm_early
from atune.workers.storage.result_key import open_sizes

_all: weakref.WeakSet[Autotuned] = weakref.WeakSet()
"""The decorated kernels of this program."""
_ELSEWHERE = {name: f'tuning={{"{name}": …}}' for name in TUNING}
"""How to write options that belong in `tuning`, by name."""


@overload
def autotune(kernel: None = None, **options: Unpack[AutotuneOptions]) -> Callable[[Callable[..., Any]], Autotuned]: ...


@overload
def autotune(kernel: Callable[..., Any], **options: Unpack[AutotuneOptions]) -> Autotuned: ...


@documents(AutotuneOptions)
def autotune(kernel: Any = None, **options: Any) -> Any:
    """Tune a kernel when it is called. Put this above `@tilelang.jit`.

    The first call with a new key tunes, and later calls look up the kernel. Returns an `Autotuned`, or a decorator. If
    a call may tune and the result cache has no result of the kernel, `warm` is called once per program.

    Raises `UsageError` and its branches for arguments that cannot work. For an unknown option it is a TypeError too.

    Parameters
    ----------
    kernel
        The kernel, or None for a decorator. `@tilelang.jit`'s `out_idx` and outputs made by `T.empty` need not be
        repeated.
    {options}
    """
    refuse_unknown("autotune", options, [*AutotuneOptions.__annotations__], _ELSEWHERE)
    known = checked_options(options)

    def decorate(kernel: Any) -> Autotuned:
        if not callable(kernel) or isinstance(kernel, Autotuned):
            raise UsageError(
                f"autotune: put it above @tilelang.jit, or above a function that returns a PrimFunc; got {kernel!r}"
            )
        _refuse_jit_above(kernel)
        autotuned = Autotuned(kernel, known)
        autotuned.check_names(known.names)
        _all.add(autotuned)
        if known.on_miss == "tune" and not autotuned.has_result():
            warm_early()
        return autotuned

    return decorate if kernel is None else decorate(kernel)


class Tuned(Winner, frozen=True, kw_only=True):
    """A winner that a decorated kernel uses in this program.

    `kernel`: its name. `key`: what the tuning is remembered under, arguments by name. `source`: ``tuned`` here, or from
    the result ``cache`` or a ``shipped`` file. `result`: the whole tuning, where it is known.
    """

    kernel: str
    key: Any


class TunedTable(tuple[Tuned, ...]):
    """Winners, by kernel and key. Printed, they are a table."""

    def __repr__(self) -> str:
        rows: list[tuple[str, ...]] = [("kernel", "key", "from", "latency ms", "reference ms", "config")]
        for one in self:
            times = ("–" if ms is None else f"{ms:.4g}" for ms in (one.latency_ms, one.reference_ms))
            key = describe_config(one.key) if isinstance(one.key, dict) else printable(repr(one.key))
            if tuned := open_sizes(one.key, one.tuned_for):
                key += f" (tuned for {describe_config(tuned)})"
            rows.append((printable(one.kernel), key, one.source, *times, describe_config(one.config)))
        return aligned(rows)


def tunings() -> TunedTable:
    """Return what the kernels under `autotune` in this program have tuned, or found to be tuned, so far."""
    found = [
        Tuned(
            kernel=kernel.options.workload.get("name") or kernel.__name__,
            key=msgspec.json.decode(key),
            **{**msgspec.structs.asdict(winner), "config": dict(winner.config)},
        )
        for kernel in list(_all)
        for (key, _), winner in kernel.known().items()
    ]
    return TunedTable(sorted(found, key=lambda one: (one.kernel, text_of(one.key))))


def _refuse_jit_above(function: Any) -> None:
    """Raise `UsageError` where the source of `function` has `@tilelang.jit` above `@atune.autotune`.

    tilelang would answer with an error about source files.
    """
    names = decorators_of(function)
    ours = names.index("autotune") if "autotune" in names else 0
    if above := [name for name in names[:ours] if name in ("jit", "lazy_jit")]:
        raise UsageError(
            f"autotune: @tilelang.{above[0]} stands above @atune.autotune of {function.__name__!r}: swap the two, "
            "since autotune tunes what jit makes"
        )


def decorators_of(function: Any) -> list[str]:
    """Return the names of a function's decorators, from above, without their modules; none where it has no source."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        return []
    above = re.split(r"^\s*def ", source, maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"^\s*@(?:\w+\.)*(\w+)", above, re.MULTILINE)
