"""The dependencies of a tuning's result, a result as data, and files of exported results."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from atune.errors import UsageError
from atune.journal.events import RunStarted
from atune.model.candidate import Config, with_tuples
from atune.model.settings import MEASURING

EXPORT_SCHEMA = 1
"""Version of exported files."""


class ResultKey(msgspec.Struct, frozen=True, kw_only=True):
    """All dependencies of a result, as `result_key` makes them of a run's header.

    `kernel`: its name, for people. `source`: SHA-256 of the kernel's source and closure alone, without the defaults of
    what the space sets. `fingerprint`: that of all the kernel, with its callbacks. `problem`: the problem's key, as
    data. `tuned_for`: the problem that was tuned, which stands for all of that key. `device`: the model. `measuring`:
    settings that affect a measurement. `search`: settings that affect the choice of the winner. `space`: SHA-256 of the
    candidates' keys in order.
    """

    kernel: str
    source: str
    fingerprint: str
    problem: Any
    tuned_for: Any = None
    device: str
    target: str
    versions: Mapping[str, str]
    measuring: Mapping[str, Any]
    search: Mapping[str, Any]
    space: str

    @property
    def work(self) -> str:
        """Hash of the dependencies of a single measurement, 16 hex digits."""
        return _digest(self, (*_FOR_PEOPLE, *_CHOICE))

    @property
    def text(self) -> str:
        """Hash of the whole key, 32 hex digits, of which the last 16 are `work`."""
        return _digest(self, _FOR_PEOPLE) + self.work


_FOR_PEOPLE = ("kernel", "source", "tuned_for")
"""Parts that the others imply, or that name the result alone."""
_CHOICE = ("search", "space")
"""Parts on which only the choice of the winner depends."""
_DTYPE = "$dtype"
"""The tag of a dtype of TileLang among a call's arguments."""


def result_key(header: RunStarted) -> ResultKey | None:
    """Return what the result of a run depends on. None where an older atune began the run, which did not record it."""
    if not header.code:
        return None
    compile, benchmark = header.settings.get("compile", {}), header.settings.get("benchmark", {})
    chosen = {name: value for name, value in header.settings.items() if name.startswith("prior")}
    if compile.get("layouts") is not None:
        chosen["layouts"] = compile["layouts"]
    if benchmark.get("same_bits") is not None:
        chosen["same_bits"] = benchmark["same_bits"]
    if header.refused:  # the default may not win
        chosen["refused"] = True
    return ResultKey(
        kernel=header.workload,
        source=header.kernel,
        fingerprint=header.code,
        problem=plain_dtypes(header.problem),
        tuned_for=plain_dtypes(header.arguments),
        device=" + ".join(header.models),
        target=str(header.target),
        versions=header.versions,
        measuring={
            **{name: compile.get(name) for name in MEASURING["compile"]},
            **{name: benchmark.get(name) for name in MEASURING["benchmark"]},
            **({"torch": header.torch} if header.torch else {}),
        },
        search={
            "strategy": header.strategy,
            "seed": 0 if header.strategy == "exhaustive" else header.settings.get("seed"),
            "budget": header.settings.get("budget"),
            **{name: benchmark.get(name) for name in ("n_final", "n_final_rounds")},
            **chosen,
        },
        space=header.space,
    )


def plain_dtypes(value: Any) -> Any:
    """Return a problem in which TileLang's dtypes are their names, as in a workload's arguments."""
    if isinstance(value, Mapping):
        if len(value) == 1 and _DTYPE in value:
            return value[_DTYPE]
        return {name: plain_dtypes(item) for name, item in value.items()}
    return tuple(map(plain_dtypes, value)) if isinstance(value, list | tuple) else value


def open_sizes(problem: Any, tuned_for: Any) -> dict[str, Any]:
    """Return what a problem's key leaves open, as it was tuned: the shape that stands for all of that key."""
    key = problem if isinstance(problem, Mapping) else {}
    return {n: value for n, value in tuned_for.items() if n not in key} if isinstance(tuned_for, Mapping) else {}


def same_problem(one: Any, other: Any) -> bool:
    """Tell whether two problems' keys are the same. The order of names does not count."""
    first, second = (msgspec.json.encode(plain_dtypes(each), order="deterministic") for each in (one, other))
    return first == second


class CacheEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One result in the cache, as in `atune cache ls` and in exported files. Data only."""

    parts: ResultKey
    config: Config
    latency_ms: float | None = None
    reference_ms: float | None = None
    created: float = 0.0
    """Wall clock, seconds since the Unix epoch."""

    @property
    def key(self) -> str:
        return self.parts.text


class _Exported(msgspec.Struct):
    format: Literal["atune results"]
    schema: int
    entries: list[CacheEntry]


def exported(entries: Iterable[CacheEntry]) -> bytes:
    """Return results as JSON that can be shipped with a library."""
    found = _Exported("atune results", EXPORT_SCHEMA, sorted(entries, key=lambda e: e.key))
    return msgspec.json.format(msgspec.json.encode(found), indent=1)


def read_exported(data: bytes) -> list[CacheEntry]:
    """Return the entries of a file that `ResultCache.export` wrote. Raises `UsageError` on anything else."""
    try:
        found = msgspec.json.decode(data, type=_Exported)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"this is not a file of exported results ({error}): give one that `atune cache export` wrote"
        ) from None
    if found.schema > EXPORT_SCHEMA:
        raise UsageError(f"a newer atune exported these results (schema {found.schema}): update atune")
    return [msgspec.structs.replace(entry, config=with_tuples(entry.config)) for entry in found.entries]


def _digest(key: ResultKey, without: Sequence[str]) -> str:
    parts = {name: value for name, value in msgspec.to_builtins(key).items() if name not in without}
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:16]
