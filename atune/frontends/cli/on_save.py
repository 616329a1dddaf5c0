"""``atune tune --on-save``: tune again whenever the workload's file is saved, or a module next to it that it imports.

Each save is a run with a journal of its own. Between runs the fork server stays, with tilelang imported, and the
compile service, with CUDA's headers parsed. They never import the user's files: each run's workers load them anew.
Libraries of unchanged code come from the artifact store.
"""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from atune.errors import AtuneError, TargetError
from atune.frontends.cli.main import INTERRUPTED
from atune.frontends.cli.output import print_lines, print_message
from atune.journal.result import Result
from atune.model.candidate import describe_config, printable
from atune.model.requirements import optional
from atune.reporting.screen import Line
from atune.workers.processes.server import parked

if TYPE_CHECKING:
    from atune.frontends.cli.tune import Reporter, Tuning

Texts = Mapping[str, bytes]
"""The files that a workload is made of, by path."""
Wait = Callable[[Callable[[], Awaitable[Any]]], Any]

QUIET_MS, LOOK_MS = 50, 500
"""A save counts once no file has changed for so long. The files are also read in intervals, because not every file
system tells of changes."""
NAMED = 3
"""New candidates that are named."""


class Saved(Exception):
    """The files were saved while they were being tuned."""


def tune_on_save(path: str, once: Callable[[Tuning, Reporter], int], wait: Wait, *, json: bool) -> int:
    """Tune the workload in the file at `path`, and again after each save, until a signal. Returns the exit status.

    `once` tunes: it wraps the coroutine function that does so by its first argument, and has the outcome reported by
    its second. `wait` awaits, and returns None if a signal came, or what was raised.

    Ends with the error if a save cannot mend it, as for a target that this machine lacks. Raises `UsageError` without
    watchfiles.
    """
    optional("--on-save", "watchfiles")
    parked.begin_series()
    try:
        return _tune_on_save(path, once, wait, Rounds(json=json))
    finally:
        parked.end_series()


def _tune_on_save(path: str, once: Callable[[Tuning, Reporter], int], wait: Wait, rounds: Rounds) -> int:
    while True:
        texts = texts_of(path)
        status = once(partial(until_saved, path, texts), rounds.report)
        if status == INTERRUPTED or rounds.hopeless:
            return status
        if not rounds.cut:
            print_message(f"waiting for the next save of {_names(texts)} (Ctrl-C ends)", kind="")
        now = wait(partial(saved, path, texts))
        if now is None:
            print_message("interrupted", kind="")
            return INTERRUPTED
        if isinstance(now, BaseException):
            raise now
        changed = [one for one in now if now[one] != texts.get(one)]
        print_message(f"{_names(changed) or os.path.basename(path)} was saved: tuning again", kind="")
        for one in changed:  # Python tells a compiled file of an older text by whole seconds and its size
            with suppress(OSError, NotImplementedError):
                os.unlink(importlib.util.cache_from_source(one))


class Rounds:
    """What the runs of one command leave for the next: the last winner, and how the last run ended."""

    def __init__(self, *, json: bool) -> None:
        self.cut = self.hopeless = False
        """Whether the last run was cancelled by a save, or failed by what no save mends."""
        self._json = json
        self._best: Result | None = None

    def report(self, ended: Result | BaseException | None, tried: int, usual: Callable[[], int]) -> int:
        """Say how a run `ended` that had `tried` so many candidates, as `usual`, and what is new. Return its status."""
        self.cut = isinstance(ended, Saved)
        self.hopeless = isinstance(ended, TargetError) or not isinstance(ended, Result | AtuneError | Saved | None)
        if self.cut:
            print_message(f"the search was cancelled after {tried} candidates", kind="")
            return 0
        status = usual()
        if isinstance(ended, Result):
            if self._best is not None and not self._json:
                print_lines(change_lines(self._best, ended))
            self._best = ended
        return status


def change_lines(before: Result, after: Result) -> list[Line]:
    """Return what is new in a result: which candidates, and how the winner and its latency moved."""
    from atune.reporting.summary import comparison

    olds, news = ({record.key: record for record in result.records} for result in (before, after))
    new = [record for key, record in news.items() if key not in olds]
    kept = [(olds[key], record) for key, record in news.items() if key in olds]
    other = sum(old.code_key != record.code_key for old, record in kept)
    counts = {
        f"{len(new)} new": len(new),
        f"{other} with other code": other,
        f"{len(kept) - other} with the same code": len(kept) - other,
        f"{len(olds) - len(kept)} gone": len(olds) - len(kept),
    }
    lines = [Line(""), Line(f"changed    candidates: {', '.join(text for text, count in counts.items() if count)}")]
    if new:
        named = [describe_config(record.config) for record in new[:NAMED]]
        lines.append(Line(f"           new: {'; '.join(named)}{f'; {len(new) - NAMED} more' if new[NAMED:] else ''}"))
    problems = [describe_config(one.header.arguments) for one in (before, after) if one.header is not None]
    if len({*problems}) > 1:
        return [*lines, Line(f"           problem: {' → '.join(problems)}, so that the latencies do not compare")]
    if before.best is None or after.best is None or not before.latency_ms or not after.latency_ms:
        return lines
    old, now = describe_config(before.best.config), describe_config(after.best.config)
    ratio = before.latency_ms / after.latency_ms
    moved = f"{before.latency_ms:.4g} ms → {after.latency_ms:.4g} ms, {comparison((ratio,) * 3, 'before')}"
    winner = Line(f"winner     {f'still {now}' if old == now else f'{old} → {now}'}", "strong")
    return [*lines, winner, Line(f"           {moved}", "strong")]


async def until_saved(path: str, texts: Texts, tuning: Callable[[], Awaitable[Result]]) -> Result:
    """Return what `tuning` returns, or raise what it raises. Raises `Saved` if the files are no more `texts` before.

    A save cancels it.
    """
    ended: list[Result | Exception] = []
    over = anyio.Event()
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            await saved(path, texts, over)
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        try:
            ended.append(await tuning())
        except Exception as error:
            ended.append(error)
        over.set()
    if not ended or (isinstance(ended[0], Exception) and texts_of(path) != texts):
        raise Saved
    if isinstance(ended[0], Exception):
        raise ended[0]
    return ended[0]


async def saved(path: str, texts: Texts, over: anyio.Event | None = None) -> Texts:
    """Wait until the files of a workload are no more `texts`, or `over` is set, and return what they are then.

    A cancellation comes through after `LOOK_MS` at the latest, and `over` after `QUIET_MS`.
    """
    from watchfiles import Change, awatch

    def is_source(change: Change, name: str) -> bool:
        return name.endswith(".py")

    folders = {os.path.dirname(one) for one in (path, *texts)}
    changes = awatch(
        *folders, watch_filter=is_source, recursive=False, debounce=4 * QUIET_MS, step=QUIET_MS,
        rust_timeout=LOOK_MS, yield_on_timeout=True, stop_event=over,
    )  # fmt: skip
    async with aclosing(changes):
        async for _ in changes:
            now = await anyio.to_thread.run_sync(texts_of, path)
            if path in now and now != texts:  # an editor may replace a file that is gone for a moment
                return now
    return texts


def texts_of(path: str) -> Texts:
    """Return the text of the file at `path`, and those of modules in its folder that it imports, also by another.

    A file that cannot be read is missing. One that is no Python has no imports, nor one that imports from above ``/``.
    """
    folder, found, queue = os.path.dirname(path), dict[str, bytes](), [path]
    while queue:
        one = queue.pop()
        if one in found:
            continue
        with suppress(OSError, SyntaxError, ValueError, RecursionError, IndexError):
            found[one] = Path(one).read_bytes()
            queue += _imported(found[one], Path(one), Path(folder))
    return found


def _imported(text: bytes, file: Path, folder: Path) -> Iterator[str]:
    """Yield the files below `folder` that the imports of `file` may run. `folder` is where Python looks first."""
    for level, name in _imports(text):
        place = file.parents[level - 1] if level else folder
        for part in filter(None, name.split(".")):
            place /= part
            yield from (str(one) for one in (place.with_suffix(".py"), place / "__init__.py") if one.is_file())


@lru_cache(256)
def _imports(text: bytes) -> list[tuple[int, str]]:
    """Return what a file imports, each with its leading dots. Remembered, since the files are read again and again."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(node.level, f"{node.module or ''}.{alias.name}") for alias in node.names]
    return found


def _names(paths: Mapping[str, bytes] | list[str]) -> str:
    return printable(", ".join(os.path.basename(one) for one in paths))
