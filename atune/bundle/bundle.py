"""The bundle as a callable: it picks a kernel by a call's sizes, and counts the calls that no problem fits."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from atune.bundle.arguments import PLAIN, SHAPE, Misfit, distance, fit, nearest, told_problem
from atune.bundle.cuda import prepare
from atune.bundle.errors import BundleError, OutsideProblems, WrongArguments
from atune.bundle.launch import Plan, plan
from atune.bundle.machine import check_device, check_machine
from atune.bundle.manifest import BundledKernel, named, read_manifest
from atune.bundle.misses import Miss, Misses, MissFile, Told

OnMiss = Literal["error", "nearest", "default"]
MOST_PLANS = 4096
"""Most signatures of calls that a bundle remembers. After that it begins anew."""
SHOWN = 8
"""Problems that a message lists."""
Taking = tuple[BundledKernel, dict[str, int]]
"""A kernel that takes a call's arguments, and the values of its symbolic dimensions."""


def load(
    folder: str | os.PathLike[str],
    *,
    on_miss: OnMiss = "error",
    misses: str | os.PathLike[str] | Told | None = None,
) -> Bundle:
    """Return the bundle in `folder`, a callable.

    Every file is compared with its digest. A library is loaded by the first call that needs it.

    Raises `BundleError`, and its branches `DamagedBundle` and `WrongMachine`; `OSError` for `misses`.

    Parameters
    ----------
    folder
        The folder that was written.
    on_miss
        What a call does whose sizes no problem has, and which are outside of the bundle's rule. ``error`` raises
        `OutsideProblems`. ``nearest`` runs the kernel of the nearest problem in log sizes, and ``default`` that of the
        first problem; of those whose kernels take the shapes, and that differ in sizes alone. Both warn once for each
        signature, and raise `OutsideProblems` if there is none.
    misses
        Who hears of calls whose sizes no problem has, whatever served them: a file for ``atune tune --problems``, to
        which many processes may append, or a function of what `Bundle.misses` lists. Of each problem it hears the
        first call, the second, the fourth and so on.
    """
    return Bundle(folder, on_miss=on_miss, misses=misses)


class Bundle:
    """Kernels of several problems, called as one.

    Call it with the inputs, and it returns the outputs; or with every parameter, and it returns None. The tensors'
    shapes choose the kernel. Where problems differ in something else, name it: ``bundle(Q, K, V, causal=True)``. Sizes
    between those that were tuned get the kernel that the bundle's rule says, where one takes them. Where the space's
    `where=` takes a size, the bundle serves the tuned sizes alone.
    Tensors are as they were tuned: of those dtypes, on such a device, and contiguous or with the declared strides. CUDA
    kernels run on torch's current stream. Several threads may call it.

    Raises `WrongArguments`, `OutsideProblems` and `WrongMachine`. Raises `RuntimeError` if an input requires grad while
    gradients are recorded.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        on_miss: OnMiss = "error",
        misses: str | os.PathLike[str] | Told | None = None,
    ) -> None:
        if on_miss not in ("error", "nearest", "default"):
            raise BundleError(f"on_miss must be 'error', 'nearest' or 'default', got {on_miss!r}")
        self.folder, self.on_miss = Path(folder), on_miss
        self.manifest, self._kernels, self._rules = read_manifest(self.folder)
        """All that the bundle says of itself, as plain data."""
        check_machine(self.manifest)
        asks = ", ".join(self.manifest.get("asks", ()))
        self._alone = asks and f"where= takes {asks}, and a bundle holds no functions: it serves the tuned sizes alone"
        """Why other sizes are always a miss; empty where they are not."""
        if self._alone and on_miss != "error":
            warnings.warn(f"on_miss={on_miss!r} of {self.folder} does nothing: {self._alone}", RuntimeWarning, 3)
        self.digest: str = self.manifest["digest"]
        """SHA-256 of the manifest, and so of everything: equal bundles choose equal kernels."""
        self._target: str = self.manifest["target"]
        if self._target == "cuda":
            prepare(self.folder)  # the first call should not wait for it
        self._plans: dict[Any, Plan] = {}
        if not (misses is None or isinstance(misses, (str, os.PathLike)) or callable(misses)):
            raise BundleError(f"misses must be a file or a function, got {misses!r}")
        told = MissFile(misses, [*self._kernels[0].problem]) if isinstance(misses, (str, os.PathLike)) else misses
        self._misses = Misses(told)

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
            wrong = [type(one) for one in arguments if one.__class__ not in PLAIN and not hasattr(one, "stride")]
            what = f"an argument of {wrong[0]}" if wrong else f"the problem {problem}"
            raise WrongArguments(f"a bundle takes torch tensors and numbers; got {what}") from None
        return (known or self._planned(key, arguments, problem))(arguments)

    def misses(self) -> list[dict[str, Any]]:
        """Return the calls whose sizes no problem has, as plain data.

        ``shapes``: of the call's tensors. ``problem``: what is known of its problem. ``used``: the problem whose kernel
        ran instead; None if none did. ``by``: what chose it: ``rule``, or `on_miss`. ``count``: how many calls. What
        comes after 1,024 different ones is one entry without shapes.
        """
        return self._misses()

    def __repr__(self) -> str:
        n, name = len(self._kernels), self.manifest["kernel"]["name"]
        return f"<atune bundle of {name}, {n} problems, target {self._target}, digest {self.digest[:12]}>"

    def _planned(self, key: Any, arguments: Sequence[Any], problem: Mapping[str, Any]) -> Plan:
        """Return what calls of this signature do, and remember it."""
        (kernel, sizes), miss = self._chosen(arguments, problem)
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

    def _chosen(self, arguments: Sequence[Any], problem: Mapping[str, Any]) -> tuple[Taking, Miss | None]:
        """Return the kernel that a call runs, and the miss that the call is, if it is one."""
        if unknown := [name for name in problem if not any(name in one.problem for one in self._kernels)]:
            names = ", ".join(self._kernels[0].problem) or "nothing"
            raise WrongArguments(f"no problem of the bundle has {unknown[0]!r}: by name a call gives {names}")
        taking, misfits = dict[int, Taking](), list[Misfit]()
        for position, kernel in enumerate(self._kernels):
            found = fit(kernel, arguments, self._target)
            if isinstance(found, Misfit):
                misfits.append(found)
            else:
                taking[position] = kernel, found
        for name, size in next((sizes for _, sizes in taking.values()), {}).items():
            if problem.get(name, size) != size:
                raise WrongArguments(f"{name}={problem[name]!r} is given by name, and the tensors have {name}={size}")
        exact = [(k, sizes) for k, sizes in taking.values() if distance(k.problem, {**sizes, **problem}) == 0]
        if len(exact) > 1:
            raise WrongArguments(_differing([kernel.problem for kernel, _ in exact], {}))
        if exact:
            return exact[0], None
        nearest_fit = max(misfits, key=lambda one: (one.step, one.position), default=None)
        if not taking and nearest_fit is not None and nearest_fit.step != SHAPE:
            raise WrongArguments(nearest_fit.why)
        return self._missed(taking, nearest_fit, arguments, problem)

    def _missed(
        self,
        taking: Mapping[int, Taking],
        nearest_fit: Misfit | None,
        arguments: Sequence[Any],
        problem: Mapping[str, Any],
    ) -> tuple[Taking, Miss]:
        """Return what a call of no problem's sizes runs. Raises `OutsideProblems`."""
        call = {**next((sizes for _, sizes in taking.values()), {}), **problem}
        used, by = self._instead(taking, call)
        alike = [kernel for kernel, _ in taking.values()] or self._kernels
        shapes = [list(one.shape) for one in arguments if one.__class__ not in PLAIN]
        told = {**told_problem(alike, arguments), **call}
        if unknown := _differing([kernel.problem for kernel, _ in taking.values()], told):
            raise WrongArguments(unknown)
        miss = self._misses.entry(Miss(shapes, told, None if used is None else dict(used[0].problem), by))
        if used is None:
            self._misses.count(miss)
            which = "no problem of such tensors" if call == problem else "no problem"
            why = f"{which} has {named(call)}" if nearest_fit is None or taking else nearest_fit.why
            more = "" if taking else "; its kernels are compiled for fixed sizes"
            more += ", and the call is outside of its rule" if taking and self._rules else ""
            more += f"; {self._alone}" if taking and self._alone else ""
            raise OutsideProblems(f"{why}; the bundle {self.digest[:12]} has {self._listed()}{more}")
        if by != "rule":
            instead = f"the kernel of {named(used[0].problem)} runs"
            warnings.warn(f"no problem of the bundle has {named(call)}: {instead}", RuntimeWarning, stacklevel=5)
        return used, miss

    def _instead(self, taking: Mapping[int, Taking], call: Mapping[str, Any]) -> tuple[Taking | None, str]:
        """Return what runs, of the kernels that take the arguments, and what says so; None if the call raises."""
        problems = {position: kernel.problem for position, (kernel, _) in taking.items() if not self._alone}
        for rule in self._rules:
            near = nearest({i: problems[i] for i in rule.serving(call) if i in problems}, call)
            if near is not None:
                return taking[near], "rule"
        near = None
        if self.on_miss == "nearest":
            near = nearest(problems, call)
        elif self.on_miss == "default":
            near = next((i for i, one in problems.items() if distance(one, call) < math.inf), None)
        return (None if near is None else taking[near]), self.on_miss

    def _listed(self) -> str:
        shown = "; ".join(named(kernel.problem) for kernel in self._kernels[:SHOWN])
        return f"{shown}; and {len(self._kernels) - SHOWN} more" if len(self._kernels) > SHOWN else shown

    def _counting(self, plan: Plan, miss: Miss) -> Plan:
        def run(arguments: Sequence[Any]) -> Any:
            self._misses.count(miss)
            return plan(arguments)

        return run


def _differing(problems: Sequence[Mapping[str, Any]], known: Mapping[str, Any]) -> str:
    """Return the message for a call that several problems' kernels take, and that does not tell them apart.

    It is empty if all arguments that differ are `known`.
    """
    for name in problems[0] if problems else ():
        values = dict.fromkeys(repr(one.get(name)) for one in problems)
        if name not in known and len(values) > 1:
            ways = " or ".join(f"{name}={value}" for value in values)
            return f"{len(problems)} problems take these tensors: give {ways}, by name"
    return ""
