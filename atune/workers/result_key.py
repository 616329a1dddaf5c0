"""The key of a tuning's result, which records what the result depends on; results as data; and exported results."""

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
    """Everything that a result depends on. `result_key` creates it from the header of a run.

    `kernel`: the kernel's name, for display. `source`: SHA-256 of only the kernel's source and closure, without the
    defaults of tunable arguments. `fingerprint`: hash of the whole kernel with its callbacks. `problem`: the key of the
    problem, as data. `tuned_for`: the tuned problem, which represents all problems with this key. `device`: the
    device's model. `measuring`: settings that affect a measurement. `search`: settings that affect the choice of the
    winner. `space`: SHA-256 of the candidates' keys, in order.
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
        """The hash of everything that a single measurement depends on: 16 hex digits."""
        return _digest(self, (*_FOR_PEOPLE, *_CHOICE))

    @property
    def text(self) -> str:
        """The hash of the whole key: 32 hex digits, of which the last 16 are `work`."""
        return _digest(self, _FOR_PEOPLE) + self.work


_FOR_PEOPLE = ("kernel", "source", "tuned_for")
"""Parts of the key that the other parts determine, or that only name the result."""
_CHOICE = ("search", "space")
"""Parts of the key that affect only the choice of the winner."""
_DTYPE = "$dtype"
"""The name that marks a TileLang dtype among the arguments of a call."""


def result_key(header: RunStarted) -> ResultKey | None:
    """Return the key of a run's result; None if an older atune began the run without recording all parts of the key."""
    if not header.code:
        return None
    compile, benchmark = header.settings.get("compile", {}), header.settings.get("benchmark", {})
    chosen = {name: value for name, value in header.settings.items() if name.startswith("prior")}
    if compile.get("layouts") is not None:
        chosen["layouts"] = compile["layouts"]
    if benchmark.get("same_bits") is not None:
        chosen["same_bits"] = benchmark["same_bits"]
    if header.refused:  # the default must not win
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
    """Return `value` with TileLang's dtypes replaced by their names, as in the arguments of a workload."""
    if isinstance(value, Mapping):
        if len(value) == 1 and _DTYPE in value:
            return value[_DTYPE]
        return {name: plain_dtypes(item) for name, item in value.items()}
    return tuple(map(plain_dtypes, value)) if isinstance(value, list | tuple) else value


def open_sizes(problem: Any, tuned_for: Any) -> dict[str, Any]:
    """Return those arguments of the tuned problem, by name, that do not occur in the problem's key."""
    key = problem if isinstance(problem, Mapping) else {}
    tuned = tuned_for if isinstance(tuned_for, Mapping) else {}
    return {name: value for name, value in tuned.items() if name not in key}


def same_problem(one: Any, other: Any) -> bool:
    """Tell whether two problems have the same key. The order of the names makes no difference."""
    first, second = (msgspec.json.encode(plain_dtypes(each), order="deterministic") for each in (one, other))
    return first == second


class CacheEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A result in the cache as plain data, which `atune cache ls` prints and exported files contain."""

    parts: ResultKey
    config: Config
    latency_ms: float | None = None
    reference_ms: float | None = None
    created: float = 0.0
    """The end of the run, in seconds since the Unix epoch."""

    @property
    def key(self) -> str:
        return self.parts.text


class _Exported(msgspec.Struct):
    format: Literal["atune results"]
    schema: int
    entries: list[CacheEntry]


def exported(entries: Iterable[CacheEntry]) -> bytes:
    """Return results as JSON that can be shipped with a library."""
    content = _Exported("atune results", EXPORT_SCHEMA, sorted(entries, key=lambda entry: entry.key))
    return msgspec.json.format(msgspec.json.encode(content), indent=1)


def read_exported(data: bytes) -> list[CacheEntry]:
    """Return the entries of a file that `ResultCache.export` wrote. Raises `UsageError` for any other file."""
    try:
        content = msgspec.json.decode(data, type=_Exported)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"this is not a file of exported results ({error}): give a file that `atune cache export` wrote"
        ) from None
    if content.schema > EXPORT_SCHEMA:
        raise UsageError(f"a newer atune exported these results (schema {content.schema}): update atune")
    return [msgspec.structs.replace(entry, config=with_tuples(entry.config)) for entry in content.entries]


def _digest(key: ResultKey, without: Sequence[str]) -> str:
    parts = {name: value for name, value in msgspec.to_builtins(key).items() if name not in without}
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:16]
