"""Messages for a call without a known result. They list near results and their differences."""

from __future__ import annotations

from collections.abc import Sequence

from atune.api.cached_tune import Work
from atune.decorator.shipped import shipped_entries
from atune.journal.printing import describe_config, printable
from atune.model.candidate import config_key, thaw
from atune.model.notices import warn_caller
from atune.storage.near_results import NearResult, nearest
from atune.storage.result_cache import ResultCache


def describe_miss(work: Work, key: str, cache: ResultCache | None, shipped: Sequence[str]) -> str:
    """Return the message that no result is known for `work` under `key`, with a line for each near result."""
    first = f"{work.key.kernel}: no result is known for {printable(key)} on {work.key.device}"
    near = _near(work, cache, shipped)
    if near:
        return "\n".join([f"{first}; near it are:", *map(_line, near)])
    return f"{first}; {_nowhere(cache, shipped)}"


def warn_of_default(work: Work, key: str, cache: ResultCache | None, shipped: Sequence[str]) -> None:
    """Warn that the default configuration is used although results were shipped or a near one exists."""
    if shipped or _near(work, cache, shipped):
        said = describe_miss(work, key, cache, shipped)
        warn_caller(f"{said}\nThe default configuration is used and may be slow: tune it", RuntimeWarning)


def _near(work: Work, cache: ResultCache | None, shipped: Sequence[str]) -> list[NearResult]:
    cached = cache.entries(kernel=work.key.kernel) if cache is not None else ()
    known = [("the result cache", entry) for entry in cached]
    known += [(path, entry) for path in shipped for entry in shipped_entries(path)]
    space = {config_key(thaw(config)) for config in work.spec.configs} if shipped else set()
    return nearest((work.key, work.former_key), known, shipped=shipped, space=space)


def _line(near: NearResult) -> str:
    latency = "" if near.entry.latency_ms is None else f" ({near.entry.latency_ms:.4g} ms)"
    differs = printable("; ".join(near.differences)) or "no reported part differs"
    return f"  {describe_config(near.entry.config)}{latency} in {printable(near.source)}: {differs}"


def _nowhere(cache: ResultCache | None, shipped: Sequence[str]) -> str:
    if cache is None and not shipped:
        return "there is neither a result cache nor a shipped file"
    places = ([] if cache is None else ["the result cache"]) + [printable(path) for path in shipped]
    return f"no result of this kernel is in {', '.join(places)}"
