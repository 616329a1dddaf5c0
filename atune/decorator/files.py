"""The journal and the report of each tuning of a decorated kernel, in folders of the user's."""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from atune.api.cached_tune import Concurrent, Work
from atune.errors import AtuneError, UsageError
from atune.journal.events import Event
from atune.journal.replay import replay
from atune.journal.result import TuneResult
from atune.journal.writer import line_of
from atune.reporting.report import page_of
from atune.storage.result_cache import ResultCache
from atune.system.folders import whole_file

PathLike = str | os.PathLike[str]


class Files(msgspec.Struct, frozen=True):
    """The folders for journals and for reports; None where these are not wanted."""

    journal: Path | None = None
    report: Path | None = None

    def __bool__(self) -> bool:
        return self.journal is not None or self.report is not None

    def report_of(self, work: Work) -> Path | None:
        """Return where the report of a tuning lies."""
        return None if self.report is None else self.report / f"{stem(work)}.html"


def files_in(journal: PathLike | None, report: PathLike | None) -> Files:
    """Return the folders that a user gave. Raises `UsageError` for the path of a file."""
    for option, path, suffix in (("journal", journal, ".jsonl"), ("report", report, ".html")):
        if path is not None and (Path(path).suffix == suffix or Path(path).is_file()):
            why = "each key gets a file of its own in it"
            raise UsageError(f"{option}: give a folder, and not the file {os.fspath(path)!r}: {why}")
    return Files(None if journal is None else Path(journal), None if report is None else Path(report))


def stem(work: Work) -> str:
    """Return the name of a tuning's files: the kernel's and the key's, as ``atune cache ls`` shows them."""
    name = re.sub(r"[^\w.-]+", "_", work.key.kernel).lstrip(".") or "kernel"
    return f"{name[:80]}-{work.key.text[:12]}"


async def tune_recorded(
    files: Files,
    work: Work,
    cache: ResultCache | None,
    tune: Callable[[], Awaitable[TuneResult]],
    *,
    concurrent: Concurrent,
    refresh: bool,
) -> TuneResult:
    """Return what `tune` does, which tunes `work`, and leave its journal and its report in the folders.

    A run that found no winner, or was cancelled, leaves them too. The files of a cached result are written
    from the cache. Raises `UsageError` where a folder cannot be made. A report that cannot be written is a
    RuntimeWarning.
    """
    if not files:
        return await tune()
    events: list[Event] = []
    laid = await anyio.to_thread.run_sync(_begin, files, work, cache, events, concurrent, refresh)
    try:
        result = await tune()
    finally:
        if events:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(write_report, files, work, list(events))
    if cache is not None and not events:  # another process had tuned it meanwhile, or the cache knew it
        if laid is not None:
            laid.unlink(missing_ok=True)
        await anyio.to_thread.run_sync(write_known, files, work, cache)
    return result


def write_known(files: Files, work: Work, cache: ResultCache) -> None:
    """Write the files of a result that the cache had, where they are not there yet."""
    journal = None if files.journal is None else files.journal / f"{stem(work)}.jsonl"
    report = files.report_of(work)
    lacking = [path for path in (journal, report) if path is not None and not path.exists()]
    events = (cache.events(work.key) or cache.events(work.former_key)) if lacking else []
    if not events:
        return
    _make(files)
    if journal in lacking:
        _write(journal, b"".join(map(line_of, events)))
    if report in lacking:
        write_report(files, work, events)


def write_report(files: Files, work: Work, events: list[Event]) -> None:
    """Write the page of a run that has begun."""
    path = files.report_of(work)
    if path is not None:
        given = work.options.get("journal")
        _write(path, page_of(events, None if given is None else Path(given)).encode())


def _begin(
    files: Files, work: Work, cache: ResultCache | None, events: list[Event], concurrent: Concurrent, refresh: bool
) -> Path | None:
    """Make the folders, and have the work write its journal and keep its events.

    Return the journal where one of what the cache knows of these candidates was laid for the run to go on with.
    """
    _make(files)
    listener: Callable[[Event], None] | None = work.options.get("on_event")

    def listen(event: Event) -> None:
        events.append(event)
        if listener is not None:
            listener(event)

    work.options = {**work.options, "on_event": listen}
    if files.journal is None:
        return None
    own = f"-{os.getpid()}" if concurrent == "tune" else ""  # others may be tuning the same
    work.options["journal"] = path = _journal(files.journal, stem(work) + own, refresh)
    if cache is None or refresh or path.exists() or not (known := work.known_candidates(cache)):
        return None
    _write(path, work.history(known, time.time()))
    return path


def _journal(folder: Path, name: str, refresh: bool) -> Path:
    """Return the journal to write: that of a run that did not finish, else a new one."""
    for number in count(1):
        path = folder / (f"{name}.jsonl" if number == 1 else f"{name}-{number}.jsonl")
        if not path.exists() or (not refresh and _is_unfinished(path)):
            return path
    raise AssertionError


def _is_unfinished(path: Path) -> bool:
    try:
        return not replay(path).finished
    except AtuneError:
        return False


def _make(files: Files) -> None:
    for option, folder in (("journal", files.journal), ("report", files.report)):
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{option}: cannot make the folder {folder}: {error.strerror or error}") from error


def _write(path: Path, data: bytes) -> None:
    try:
        with whole_file(path) as part:
            Path(part).write_bytes(data)
    except OSError as error:
        warnings.warn(f"cannot write {path}: {error.strerror or error}", RuntimeWarning, stacklevel=2)
