"""The bundle as a callable: it picks a kernel by a call's sizes, and counts the calls that no problem fits."""

from __future__ import annotations

import math
import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from atune.bundle.arguments import PLAIN, SHAPE, Misfit, distance, fit
from atune.bundle.cuda import prepare
from atune.bundle.errors import BundleError, OutsideProblems, WrongArguments
from atune.bundle.launch import Plan, plan
from atune.bundle.machine import check_device, check_machine
from atune.bundle.manifest import BundledKernel, named, read_manifest

OnMiss = Literal["error", "nearest", "default"]
MOST_PLANS = 4096
"""Most signatures of calls that a bundle remembers. After that it begins anew."""
SHOWN = 8
"""Problems that a message lists."""
Taking = tuple[BundledKernel, dict[str, int]]
"""A kernel that takes a call's arguments, and the values of its symbolic dimensions."""


@dataclass
class Miss:
    """A call whose sizes no problem has. `used`: the problem whose kernel runs instead; None if none does."""

    shapes: list[list[int]]
    problem: dict[str, Any]
    used: dict[str, Any] | None
    count: int = 0


def load(folder: str | os.PathLike[str], *, on_miss: OnMiss = "error") -> Bundle:
    """Return the bundle in `folder`, a callable.

    Every file is compared with its digest. A library is loaded by the first call that needs it.

    Raises `BundleError`, and its branches `DamagedBundle` and `WrongMachine`.

    Parameters
    ----------
    folder
        The folder that was written.
    on_miss
        What a call does whose sizes no problem has. ``error`` raises `OutsideProblems`. ``nearest`` runs the kernel of
        the nearest problem in log sizes, and ``default`` that of the first problem. Both warn once for each signature,
        and raise `OutsideProblems` if that kernel was compiled for other shapes. `Bundle.misses` counts all of them.
    """
    return Bundle(folder, on_miss=on_miss)


class Bundle:
    """Kernels of several problems, called as one.

    Call it with the inputs, and it returns the outputs; or with every parameter, and it returns None. The tensors'
    shapes choose the kernel. Where problems differ in something else, name it: ``bundle(Q, K, V, causal=True)``.
    Tensors are as they were tuned: of those dtypes, on such a device, and contiguous or with the declared strides. CUDA
    kernels run on torch's current stream. Several threads may call it.

    Raises `WrongArguments`, `OutsideProblems` and `WrongMachine`. Raises `RuntimeError` if an input requires grad while
    gradients are recorded.
    """

    def __init__(self, folder: str | os.PathLike[str], *, on_miss: OnMiss = "error") -> None:
        if on_miss not in ("error", "nearest", "default"):
            raise BundleError(f"on_miss must be 'error', 'nearest' or 'default', got {on_miss!r}")
        self.folder, self.on_miss = Path(folder), on_miss
        self.manifest, self._kernels = read_manifest(self.folder)
        """All that the bundle says of itself, as plain data."""
        check_machine(self.manifest)
        if (rule := self.manifest["rule"]) is not None:
            raise BundleError(f"{folder} has a dispatch rule, {rule.get('kind')!r}, which this atune does not know")
        self.digest: str = self.manifest["digest"]
        """SHA-256 of the manifest, and so of everything: equal bundles choose equal kernels."""
        self._target: str = self.manifest["target"]
        if self._target == "cuda":
            prepare(self.folder)  # the first call should not wait for it
        self._plans: dict[Any, Plan] = {}
        self._misses: dict[Any, Miss] = {}
        self._lock = threading.Lock()

    @property
    def problems(self) -> list[dict[str, Any]]:
        """The problems that were tuned, in order."""
        return [dict(kernel.problem) for kernel in self._kernels]

    def __call__(self, *arguments: Any, **problem: Any) -> Any:
        try:
            key: Any = tuple([
                None if t.__class__ in PLAIN else (t.dtype, t.shape, t.stride(), t.device, t.requires_grad)
                for t in arguments
            ])  # fmt: skip
            if problem:
                key = key, tuple(sorted(problem.items()))
            known = self._plans.get(key)
        except (AttributeError, TypeError):
            wrong = next((one for one in arguments if one.__class__ not in PLAIN and not hasattr(one, "stride")), None)
            what = f"the problem {problem}" if wrong is None else f"an argument of {type(wrong)}"
            raise WrongArguments(f"a bundle takes torch tensors and numbers; got {what}") from None
        return (known or self._planned(key, arguments, problem))(arguments)

    def misses(self) -> list[dict[str, Any]]:
        """Return the calls whose sizes no problem has, as plain data.

        ``shapes``: of the call's tensors. ``problem``: what of its problem is known by name. ``used``: the problem
        whose kernel ran instead; None if none did. ``count``: how many calls.
        """
        with self._lock:
            return [dict(vars(miss)) for miss in self._misses.values()]

    def __repr__(self) -> str:
        n, name = len(self._kernels), self.manifest["kernel"]["name"]
        return f"<atune bundle of {name}, {n} problems, target {self._target}, digest {self.digest[:12]}>"

    def _planned(self, key: Any, arguments: Sequence[Any], problem: Mapping[str, Any]) -> Plan:
        """Return what calls of this signature do, and remember it."""
        (kernel, sizes), miss = self._chosen(key, arguments, problem)
        if self._target == "cuda":
            home = next((one.device for one in arguments if one.__class__ not in PLAIN), None)
            check_device(self.manifest["arch"], home)
        found = plan(kernel, self.folder, self._target, arguments, sizes)
        if miss is not None:
            found = self._counting(found, miss)
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        self._plans[key] = found
        return found

    def _chosen(self, key: Any, arguments: Sequence[Any], problem: Mapping[str, Any]) -> tuple[Taking, Miss | None]:
        """Return the kernel that a call runs, and the miss that the call is, if it is one."""
        if unknown := [name for name in problem if not any(name in one.problem for one in self._kernels)]:
            raise WrongArguments(f"no problem of the bundle has {unknown[0]!r}; it has {self._listed()}")
        taking, misfits = list[Taking](), list[Misfit]()
        for kernel in self._kernels:
            found = fit(kernel, arguments, self._target)
            misfits.append(found) if isinstance(found, Misfit) else taking.append((kernel, found))
        exact = [(k, sizes) for k, sizes in taking if distance(k.problem, {**sizes, **problem}) == 0]
        if len(exact) > 1:
            raise WrongArguments(_ambiguous([kernel.problem for kernel, _ in exact]))
        if exact:
            return exact[0], None
        nearest_fit = max(misfits, key=lambda one: one.step, default=None)
        if not taking and nearest_fit is not None and nearest_fit.step != SHAPE:
            raise WrongArguments(nearest_fit.why)
        known = {**(taking[0][1] if taking else {}), **problem}
        used = self._instead(taking, problem)
        shapes = [list(one.shape) for one in arguments if one.__class__ not in PLAIN]
        with self._lock:
            miss = self._misses.setdefault(key, Miss(shapes, known, None if used is None else dict(used[0].problem)))
            miss.count += used is None
        if used is None:
            why = f"no problem has {named(known)}" if nearest_fit is None or taking else nearest_fit.why
            fixed = "; its kernels are compiled for fixed sizes" if not taking and self.on_miss != "error" else ""
            raise OutsideProblems(f"{why}; the bundle has {self._listed()}{fixed}")
        instead = f"the kernel of {named(used[0].problem)} runs"
        warnings.warn(f"no problem of the bundle has {named(known)}: {instead}", RuntimeWarning, stacklevel=4)
        return used, miss

    def _instead(self, taking: Sequence[Taking], problem: Mapping[str, Any]) -> Taking | None:
        """Return what `on_miss` runs, of the kernels that take the arguments; None if it raises."""
        if self.on_miss == "nearest":
            far = [distance(kernel.problem, {**sizes, **problem}) for kernel, sizes in taking]
            least = min(far, default=math.inf)
            return taking[far.index(least)] if least < math.inf else None  # of equals the first, on every rank
        first = [one for one in taking if self.on_miss == "default" and one[0] is self._kernels[0]]
        return first[0] if first else None

    def _listed(self) -> str:
        shown = "; ".join(named(kernel.problem) for kernel in self._kernels[:SHOWN])
        return f"{shown}; and {len(self._kernels) - SHOWN} more" if len(self._kernels) > SHOWN else shown

    def _counting(self, plan: Plan, miss: Miss) -> Plan:
        def run(arguments: Sequence[Any]) -> Any:
            with self._lock:
                miss.count += 1
            return plan(arguments)

        return run


def _ambiguous(problems: Sequence[Mapping[str, Any]]) -> str:
    """Return the message for a call that several problems fit."""
    names = [name for name in problems[0] if len({repr(one.get(name)) for one in problems}) > 1]
    ways = " or ".join(f"{names[0]}={one.get(names[0])!r}" for one in problems) if names else "fewer problems"
    return f"{len(problems)} problems take these tensors: give {ways}, by name"
