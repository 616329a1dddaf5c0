"""Search for the axes that change a kernel's code, by lowering alone and without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from atune.errors import UsageError
from atune.layout import SAFE
from atune.local.machine import LocalMachine
from atune.model.artifact import Failure
from atune.model.candidate import PASS_CONFIGS, Candidate, Config, config_key, thaw
from atune.model.settings import CompileSettings
from atune.stages.compile.lowering import Blob
from atune.system.places import place_in, placed
from atune.workload.workload import FileRef

PROBED = ("tl.layout_cost_model", "tl.disable_warp_specialized", "tl.disable_shared_memory_reuse")
"""Pass configurations tried in addition to the axes: those of `layout.SAFE` that change the source."""


class Axis(msgspec.Struct, frozen=True):
    """Effect of an axis on the base configuration's code. `kept`: values worth measuring, the base's own first.

    `same`: values that give equal code, each with its kept value. `failed`: values that do not lower, and why.
    """

    name: str
    kept: tuple[Any, ...]
    same: tuple[tuple[Any, Any], ...]
    failed: tuple[tuple[Any, str], ...]

    @property
    def changes(self) -> bool:
        """Whether the axis changes the code."""
        return len(self.kept) > 1


class Suggestion(msgspec.Struct, frozen=True):
    """The axes of a workload, each varied alone from `base`, and then the pass configurations by name."""

    workload: str
    target: str
    base: Config
    axes: tuple[Axis, ...]
    passes: tuple[Axis, ...]


class Probe(msgspec.Struct, frozen=True):
    """One value of an axis, with its code or the reason why it does not lower. The rest is the base configuration.

    `detail`: the traceback of one that does not lower.
    """

    value: Any
    code: str
    why: str = ""
    detail: str = ""


async def suggest(workload: FileRef, *, target: str = "sm_90a") -> Suggestion:
    """Lower each value of each axis and compare the code with the base's.

    The base is the workload's default, or its first configuration. Only one axis differs from it at a time. Values
    that constraints refuse there are tried too. Raises `UsageError` for a large space, or if the base does not lower.
    """
    machine = LocalMachine(workload, target=target, devices=(), compile=CompileSettings(workers=1))
    async with machine.open():
        spec = await machine.describe()
        if not spec.configs:
            raise UsageError(
                f"{spec.name}: the space is too large to try each value: give a list of fewer configurations"
            )
        found, _ = await machine.discover()
        configs = [thaw(config) for config in spec.configs]
        base = configs[spec.default or 0]
        worker, codes = machine.compile_workers()[0], _Codes()

        async def probe(value: Any, config: Config) -> Probe:
            answer = await worker.lower(Candidate(codes.next(), config_key(config), config), anew=True)
            if isinstance(answer, Failure):
                return Probe(value, "", answer.message, answer.detail)
            return Probe(value, msgspec.msgpack.decode(answer.blob, type=Blob).source_key)

        first = await probe(None, base)
        if not first.code:
            said = f"{spec.name}: {base} does not lower, so nothing can be compared with it: {first.why}"
            raise UsageError(placed(said, place_in(first.detail)))
        axes = [
            folded(name, [Probe(base[name], first.code), *[await probe(v, {**base, name: v}) for v in values]])
            for name, values in values_beside(base, configs)
        ]
        own = base.get(PASS_CONFIGS) or {}
        passes = []
        for name in PROBED if found.kind == "cuda" else ():
            values = [value for value in SAFE[name] if value != own.get(name, SAFE[name][0])]
            probes = [await probe(value, {**base, PASS_CONFIGS: {**own, name: value}}) for value in values]
            passes.append(folded(name, [Probe(own.get(name), first.code), *probes]))
    return Suggestion(spec.name, str(found), base, tuple(axes), tuple(passes))


class _Codes:
    """First index for candidates outside the space."""

    def __init__(self) -> None:
        self._last = -1

    def next(self) -> int:
        self._last += 1
        return self._last


def values_beside(base: Config, configs: Sequence[Config]) -> Iterator[tuple[str, list[Any]]]:
    """Yield each axis, ``pass_configs`` included, with its values in `configs`. The base's own value is left out."""
    for name in base:
        values: dict[str, Any] = {}
        for config in configs:
            if name in config and config[name] != base[name]:
                values.setdefault(repr(config[name]), config[name])
        yield name, list(values.values())


def folded(name: str, probes: Sequence[Probe]) -> Axis:
    """Return the effect of an axis from its probes. The base's own probe comes first."""
    by_code: dict[str, Any] = {}
    same, failed = [], []
    for probe in probes:
        if not probe.code:
            failed.append((probe.value, probe.why))
        elif probe.code in by_code:
            same.append((probe.value, by_code[probe.code]))
        else:
            by_code[probe.code] = probe.value
    return Axis(name, tuple(by_code.values()), tuple(same), tuple(failed))


def space_text(found: Suggestion) -> str:
    """Return the suggested space as Python, without values of equal code and values that do not lower."""
    lines = [f"    {axis.name}={list(axis.kept)!r}," for axis in found.axes if axis.name != PASS_CONFIGS]
    own = next((axis for axis in found.axes if axis.name == PASS_CONFIGS), None)
    passes: list[Any] = [None] if own is None else list(own.kept)
    before = found.base.get(PASS_CONFIGS) or {}
    passes += [{**before, axis.name: value} for axis in found.passes for value in axis.kept[1:]]
    if len(passes) > 1 or own is not None:
        lines.append(f"    {PASS_CONFIGS}={passes!r},")
    return "\n".join(["atune.Space(", *lines, ")"])
