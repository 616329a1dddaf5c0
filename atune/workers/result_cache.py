"""The result cache: a folder of journals, and nothing beside them.

    journals/<kernel>/<key>-<time>.jsonl   the journal of a run that has the result of `key`, or is to have it
    journals/<kernel>/<key>-<hash>.jsonl   a link to such a journal that lies elsewhere, or whose name lacks its key
    journals/<name>-<time>.jsonl           a journal that began before its key was known
    journals/<name>-<time>/                the journals of a set's problems

A look-up lists the names with its key, and reads the first and the last line of these journals. Many processes may use
the cache at once: a run keeps its journal locked, and that lock is its claim of the work. If the folder cannot be used,
runs go on without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import msgspec

from atune.errors import JournalError
from atune.journal import set_folder
from atune.journal.events import (
    AnyEvent,
    BenchmarkFailed,
    BuildFailed,
    Event,
    Found,
    RunFinished,
    RunResumed,
    RunStarted,
)
from atune.journal.reader import JournalReader, ends, found_in, is_journal, read
from atune.journal.result import Result, TuneResult
from atune.journal.state import Entry, Outcome, State
from atune.journal.writer import Journal, is_written
from atune.model.artifact import Artifact, Roles
from atune.model.candidate import BASELINE, Config, config_key, with_tuples
from atune.model.folders import cache_folder, make_private_folder, untrusted
from atune.workers.result_key import CacheEntry, ResultKey, exported, result_key, same_problem

Begun = tuple[Journal | None, Sequence[AnyEvent]]
"""The journal that was opened for a run, if its folder can be written, and the events in it."""
KnownOutcome = tuple[Entry, Outcome]
"""A configuration's entry and outcome in an earlier run."""
Still = Callable[[Any, Sequence[tuple[Config, str]]], bool]
"""Tells whether configurations, for a problem's arguments, are still the kernels of these `Lowered.ir_digest`."""

MOST_CACHE_BYTES = 256 << 20
"""Most bytes of the cache's journals. The oldest are deleted, a set as one; the newest, and those that a run writes,
stay."""
NEW_S = 60.0
"""Seconds for which an empty journal stays: a run may be about to lock it."""
MOST_READ = 8
"""Most journals that known outcomes are read from, the newest first."""
LASTING = ("lower", "codegen", "compile", "launch", "out_of_bounds", "mismatch", "non_finite", "unwritten")
"""Kinds of failure that come back with the same code. The others (a deadline, a lost process, memory that was short)
are tried again."""


@dataclass(frozen=True)
class StoredRun:
    """A run, by the first and the last line of its journal. `time`: when it ended, in seconds since 1970.

    `path`: the journal. `end`: its last event; None for a run that has not ended in order. `found`: what it found.
    `roles`: of the kernel's parameters.
    """

    path: str
    time: float
    header: RunStarted
    end: RunFinished | None
    found: Found
    roles: Roles

    @cached_property
    def parts(self) -> ResultKey | None:
        """What the result depends on; None where the run uses no cache, or an older atune began it."""
        return None if self.header.settings.get("cache") == "off" else result_key(self.header)

    @cached_property
    def key(self) -> str:
        return "" if self.parts is None else self.parts.text

    @cached_property
    def config(self) -> Config | None:
        """The winner's configuration."""
        return None if self.found.config is None else with_tuples(self.found.config)

    @property
    def library(self) -> Artifact | None:
        """The winner's library, as the journal names it."""
        return None if self.end is None else self.end.kernel

    @property
    def entry(self) -> CacheEntry | None:
        """The result as data; None for a run that answers no look-up: it has no winner of all that it asks for."""
        if self.parts is None or self.config is None or not self.found.whole:
            return None
        return CacheEntry(
            parts=self.parts,
            config=self.config,
            latency_ms=self.found.latency_ms,
            reference_ms=self.found.reference_ms,
            created=self.time,
        )


def stored_run(path: str, *, whole: bool = False) -> StoredRun | None:
    """Read the run of the journal at `path`; None where it has no whole header. Raises `JournalError` and `OSError`.

    `whole`: read all of a run that has not ended, for what it has found so far. One that an older atune ended is read
    so, too.
    """
    header, last = ends(path)
    if header is None:
        return None
    end, written = last if isinstance(last, RunFinished) else None, os.stat(path).st_mtime
    found, roles = (Found(), Roles()) if end is None else (end.found, end.roles)
    if found is None or (end is None and whole):
        state = State.of(JournalReader(path))
        found = found_in(state)
        roles = Result.of(state).roles
    ended = written if end is None else min(end.time, written + 1)  # the clock that dates files lags
    return StoredRun(path, ended, header, end, found, roles)


_read: dict[str, tuple[tuple[int, int, int], StoredRun | None]] = {}
"""What this process has read, by path: the file's identity, time and size then, and its run. The run is None where the
journal is damaged, or has not begun."""


def known_of(state: State) -> dict[str, KnownOutcome]:
    """Return the lasting outcomes of a run by config key: measurements, and failures that would happen again."""
    found = ((entry, state.outcome(entry.index)) for entry in state.entries.values() if entry.key)
    return {
        entry.key: (entry, outcome)
        for entry, outcome in found
        if outcome is not None and (not isinstance(outcome, BuildFailed | BenchmarkFailed) or outcome.kind in LASTING)
    }


class ResultCache:
    """The cache in `folder` (default: the user's). It is created with the first run."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(os.path.abspath(folder)) if folder is not None else cache_folder()
        self.journals = self.folder / "journals"
        self._refused = set[str]()
        """Journals whose results were said to be of another kernel."""

    # Runs come in

    def new_path(self, name: str) -> Path:
        """Return the path for a new journal of a kernel called `name`, whose key is not known yet."""
        return self.journals / f"{_file_name(name)}-{_moment()}.jsonl"

    def open_new(self, name: str = "", at: Path | None = None) -> Journal | None:
        """Return a new journal in the cache, for `name` or `at` a path; None, with a warning, where that fails."""
        path = at or self.new_path(name)
        try:
            make_private_folder(str(path.parent))
            return Journal.create(path)
        except (JournalError, OSError) as error:
            self._warn_unusable(error)
            return None

    def begin(self, header: RunStarted, still: Still | None = None, again: bool = False, own: str = "") -> Begun | None:
        """Return the journal to write for a run of `header`, and its events: of an interrupted run of the same work,
        or new. None where another process writes one. The journal is None where the folder cannot be written.

        `still`: as for `find`. `again`: begin anew though there is an interrupted one. `own`: a run's open journal.
        """
        key = result_key(header)
        assert key is not None, "this atune records all of a key's parts"

        def taken(mine: str) -> bool:
            """Tell whether another run has the claim, or has ended with the result since it was looked up."""
            return self._is_claimed(key, mine) or (not again and self._search(key, header, still)[0] is not None)

        if taken(own):
            return None
        if own:
            self.note(own, key)
            begun: Begun = None, []
        elif (begun := self._continued(key, header, still, again))[0] is None:
            begun = self.open_new(at=self._place(key, _moment())), []
        journal = begun[0]
        # Each looks after it has locked its own, so of two that begin at once one sees the other, or both do.
        if not taken(own if journal is None else journal.path):
            return begun
        if own:
            self._link(Path(own).resolve(), key).unlink(missing_ok=True)
        if journal is not None:
            journal.close()
        return None

    def _is_claimed(self, key: ResultKey, mine: str) -> bool:
        """Tell whether a run of this key, or one without a header yet, writes a journal of the cache, but `mine`."""
        for real in self._own(key):
            with contextlib.suppress(OSError):
                if str(real) != os.path.realpath(mine) and is_written(real):
                    run = self._run(str(real))
                    if run is None or run.key == key.text:
                        return True
        return False

    def _continued(self, key: ResultKey, header: RunStarted, still: Still | None, again: bool) -> Begun:
        """Reopen the newest interrupted run of the same work that may be continued; no journal where there is none."""
        for real in [] if again else self._own(key):
            run = self._run(str(real))
            if run is None or run.end is not None or run.key != key.text:
                continue
            try:
                journal, past = Journal.reopen(real)
            except JournalError as error:
                if not isinstance(error.__cause__, OSError):  # another run has just reopened it, or removed it
                    _leave_out(str(real), error)
                continue
            if _continues(past, header, still):
                return journal, past
            journal.close()
        return None, []

    def add(self, path: str | os.PathLike[str]) -> None:
        """Keep the journal at `path`, whose run has ended somehow, under its key, and all within `MOST_CACHE_BYTES`."""
        run = self._run(os.path.realpath(path))
        self.note(path, None if run is None else run.parts)
        self._tidy()

    def note(self, path: str | os.PathLike[str], key: ResultKey | None = None) -> None:
        """Link the journal at `path` where it is found, unless it lies there: by its `key`, or else by `runs` alone."""
        real = Path(path).resolve()
        if self._owns(real) and (key is None or real.name.startswith(key.text)):
            return
        link, unkeyed = self._link(real, key), self._link(real).name
        try:
            make_private_folder(str(link.parent))
            with contextlib.suppress(FileExistsError):
                link.symlink_to(real)
            # A journal has one link: what was at its path before may have had another key.
            for file in [] if key is None else self._files():
                if file.name.endswith(unkeyed) and file.name != link.name and file.is_symlink():
                    os.unlink(file.path)
        except OSError as error:
            self._warn_unusable(error)

    def discard(self, path: str | os.PathLike[str]) -> None:
        """Forget a journal that its run did not keep, and delete it if it is the cache's own."""
        real = os.path.realpath(path)
        self._delete([Path(file.path) for file in self._files() if _real(file.path) == real])

    # Look-ups

    def find(self, key: ResultKey, header: RunStarted | None = None, still: Still | None = None) -> StoredRun | None:
        """Return the newest run that has the result under `key`. Reads the ends of journals.

        A journal that is gone or damaged is no result, with a warning, and so is one of another kernel. `header`: of
        the run that asks. `still`: None counts any kernel as the same.
        """
        run, other = self._search(key, header, still)
        if run is None and other is not None and other.path not in self._refused:
            self._refused.add(other.path)
            why = "its journal does not identify the kernel (an older atune wrote it, or it includes files of yours)"
            if other.found.ir_digest:
                why = "something that the kernel uses, such as a helper or an environment variable, has changed since"
            _warn(f"the result of {key.kernel} in {other.path} is not used, because {why}")
        return run

    def _search(
        self, key: ResultKey, header: RunStarted | None, still: Still | None
    ) -> tuple[StoredRun | None, StoredRun | None]:
        """Return the newest run that has the result under `key`; else None, and the newest of another kernel."""
        other: StoredRun | None = None
        for run in self._answering(key.text):
            if _serves(run, header):
                if _is_same(run, still):
                    return run, None
                of_others = header and run.parts and not same_problem(run.parts.tuned_for, header.arguments)
                other = other or (None if of_others else run)
        return None, other

    def events(self, run: StoredRun, header: RunStarted | None = None) -> list[Event]:
        """Return the events of a run; empty, with a warning, where its journal is damaged. `header`: as for `find`."""
        try:
            return _served_to(header, read(run.path))
        except JournalError as error:
            _leave_out(run.path, error)
            return []

    def result(self, run: StoredRun, header: RunStarted | None = None) -> TuneResult | None:
        """Return the whole result of a run, with `cache_hit` set; None where its journal is damaged."""
        events = self.events(run, header)
        result = Result.from_events(events, run.path, replayed=True) if events else None
        if isinstance(result, TuneResult):
            result.cache_hit = True
            return result
        if result is not None:
            _leave_out(run.path, f"{run.path} has no winner, though its last line says so")
        return None

    def known(self, work: str, configs: Iterable[Config]) -> dict[str, KnownOutcome]:
        """Return the outcomes of `configs` in earlier runs of the same work, by config key."""
        wanted, found = {config_key(config) for config in configs}, list[dict[str, KnownOutcome]]()
        for run in self._runs_of(work=work)[:MOST_READ]:
            known = known_of(State.of(self.events(run)))
            found.append({name: one for name, one in known.items() if name in wanted})
        return {name: one for known in reversed(found) for name, one in known.items()}

    def runs(self) -> list[tuple[Path, float]]:
        """Return the journals of all runs, the last written first, and when that was; in seconds since 1970."""
        found = dict[str, float]()
        for file in self._files():
            with contextlib.suppress(OSError):
                found[_real(file.path)] = file.stat().st_mtime
        return [(Path(path), found[path]) for path in sorted(found, key=found.__getitem__, reverse=True)]

    def answers(
        self, *, kernel: str | None = None, key: str = "", work: str = "", source: str | None = None
    ) -> list[StoredRun]:
        """Return the newest run of each key that has a result, the newest first.

        `kernel`: the kernel's name. `key`: the beginning of the key. `work`: the work's hash. `source`: also kernels of
        another name with this source.
        """
        newest: dict[str, StoredRun] = {}
        for run in self._answering(key, work, kernel if source is None else None):
            if kernel is None or run.header.workload == kernel or run.header.kernel == source:
                newest.setdefault(run.key, run)
        return [*newest.values()]

    def entries(self, *, kernel: str | None = None, key: str = "") -> list[CacheEntry]:
        """Return the results as data, newest first. `kernel`, `key`: as for `answers`."""
        return [run.entry for run in self.answers(kernel=kernel, key=key) if run.entry is not None]

    def export(self, *, kernel: str | None = None, key: str = "") -> bytes:
        """Return results as JSON that can be shipped with a library: keys, winners and latencies, no libraries."""
        return exported(self.entries(kernel=kernel, key=key))

    # Runs go

    def clear(self, results: Iterable[StoredRun] | None = None) -> int:
        """Forget `results` and all runs of the same work, and delete their journals where these are the cache's own.

        None: forget everything. Returns the number of results that answer no more.
        """
        found = self.answers() if results is None else list(results)
        if results is None:
            files = [*self._files()]
        else:
            works = {run.parts.work for run in found if run.parts is not None}
            named = [(work, file) for work in works for file in self._keyed(work=work)]
            files = [file for work, file in named if (run := self._run(file.path)) is None or run.key.endswith(work)]
        self._delete(Path(file.path) for file in files)
        return len({run.key for run in found} - {run.key for run in self.answers()})

    def _tidy(self) -> None:
        """Delete the oldest journals beyond `MOST_CACHE_BYTES`, a set's folder as one, and what holds no run.

        Links to journals that it had hold none, and files that killed programs left empty. A link to what is gone
        elsewhere stays until a look-up: its file system may come back. A journal that was dated by a clock that was
        ahead becomes older than those that came after it.
        """
        units, empty = dict[Path, tuple[float, int, list[Path]]](), list[Path]()
        now, is_set = time.time(), cache(set_folder.is_set)
        for file in self._files():
            if file.is_symlink():
                continue
            with contextlib.suppress(OSError):
                path, written, size = Path(file.path), file.stat().st_mtime, file.stat().st_size
                if written > now and is_journal(path):
                    written = now - 2  # more than the clock that dates files lags
                    os.utime(path, (written, written))
                if not size and written < now - NEW_S:
                    empty.append(path)
                unit = path.parent if is_set(path.parent) else path
                latest, before, paths = units.get(unit, (0.0, 0, []))
                units[unit] = max(latest, written), before + size, [*paths, path]
        oldest_first = sorted(units.values(), key=lambda unit: unit[0])
        total = sum(size for _, size, _ in oldest_first)
        for _, size, paths in oldest_first[:-1]:
            if total > MOST_CACHE_BYTES:
                self._delete(paths)
                total -= 0 if any(path.exists() for path in paths) else size  # a run may write it
        links = [Path(file.path) for file in self._files() if not os.path.exists(file.path)]
        self._delete([*empty, *(link for link in links if self._owns(link.resolve()))])

    def _delete(self, paths: Iterable[Path]) -> None:
        """Delete the cache's own journals at `paths`, or linked there, but those that a run writes; and the links."""
        for path in paths:
            with contextlib.suppress(OSError):
                real = path.resolve()
                is_own = self._owns(real) and (is_journal(real) or _is_empty(real))
                if is_own and is_written(real):
                    continue
                for one, goes in ((real, is_own), (path, path.is_symlink())):
                    if goes:
                        self._remove(one)

    def _remove(self, path: Path) -> None:
        """Remove a journal of the cache's own, and its set's folder with the last; or a link. Raises `OSError`.

        Where others may write what tells of it, or in its place, it stays, with a warning.
        """
        folder = path.parent
        places = [self.folder, self.journals, folder, *([] if path.is_symlink() else [path])]
        for place in places:
            if why := untrusted(place, "no journal of the result cache is deleted there"):
                _warn(why)
                return
        path.unlink()
        lock, index = folder / set_folder.LOCK, folder / set_folder.INDEX
        left = {*folder.iterdir()}
        if left and left <= {lock, index} and not is_written(lock):
            index.unlink(missing_ok=True)
            lock.unlink(missing_ok=True)
            folder.rmdir()

    # The folder

    def _files(self, folder: str | None = None) -> Iterator[os.DirEntry[str]]:
        """Yield the files of journals, and the links to others, but what lies in other folders than `folder`, if given.

        Looks through no link to a folder.
        """
        for one in self._listed(os.path.realpath(self.journals)):
            if not one.is_dir(follow_symlinks=False):
                found: Collection[os.DirEntry[str]] = [one]
            else:
                found = self._listed(one.path) if folder in (None, one.name) else ()
            yield from (file for file in found if file.name.endswith(".jsonl"))

    def _keyed(self, key: str = "", work: str = "", kernel: str | None = None) -> Iterator[os.DirEntry[str]]:
        """Yield the files whose names begin with a key: one that begins with `key`, and is of `work`.

        `kernel`: only those in the folder of kernels with this name.
        """
        for file in self._files(None if kernel is None else _file_name(kernel)):
            if file.name.startswith(key) and file.name.startswith(work, 16) and KEYED.match(file.name):
                yield file

    def _listed(self, folder: str) -> Collection[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as found:
                return [*found]
        except FileNotFoundError:
            return ()
        except OSError as error:
            self._warn_unusable(error)
            return ()

    def _own(self, key: ResultKey) -> list[Path]:
        """Return the cache's own journals of a key, the last written first."""
        found = []
        for file in self._keyed(key.text):
            with contextlib.suppress(OSError):
                if self._owns(real := Path(_real(file.path))):
                    found.append((file.stat().st_mtime, real))
        return [real for _, real in sorted(found, reverse=True)]

    def _runs_of(self, key: str = "", work: str = "", kernel: str | None = None) -> list[StoredRun]:
        """Return the runs that have such a key, the newest first. The arguments are those of `_keyed`.

        A name is a first guess: since a journal was linked, a run of another key may have taken its path.
        """
        runs = (self._run(file.path) for file in self._keyed(key, work, kernel))
        found = (run for run in runs if run and run.key and run.key.startswith(key) and run.key.startswith(work, 16))
        return sorted(found, key=lambda run: run.time, reverse=True)

    def _answering(self, key: str = "", work: str = "", kernel: str | None = None) -> list[StoredRun]:
        """Return those of `_runs_of` that have a result."""
        return [run for run in self._runs_of(key, work, kernel) if run.entry is not None]

    def _run(self, path: str) -> StoredRun | None:
        """Return the run of the journal at `path`; None where it has not begun, or is damaged, with a warning once."""
        real = _real(path)
        try:
            stamp = _stamp(real)
            if (known := _read.get(real)) is None or known[0] != stamp:
                known = _read[real] = stamp, stored_run(real)
            return known[1]
        except FileNotFoundError as error:
            with contextlib.suppress(OSError):
                if os.path.islink(path):
                    self._remove(Path(path))
                    _leave_out(real, error)
        except (JournalError, OSError) as error:
            _leave_out(real, error)
        return None

    def _owns(self, real: Path) -> bool:
        """Tell whether a journal, by its path without links, is the cache's own, and not elsewhere."""
        return real.is_relative_to(self.journals.resolve())

    def _place(self, key: ResultKey, name: str) -> Path:
        return self.journals / _file_name(key.kernel) / f"{key.text}-{name}.jsonl"

    def _link(self, journal: Path, key: ResultKey | None = None) -> Path:
        """Return the place of the link to a journal."""
        name = hashlib.sha256(os.fsencode(journal)).hexdigest()[:16]
        return self.journals / "elsewhere" / f"{name}.jsonl" if key is None else self._place(key, name)

    def _warn_unusable(self, error: Exception) -> None:
        _warn(f"the result cache {self.folder} cannot be used: {error}")


KEYED = re.compile(r"[0-9a-f]{32}-(.*\.jsonl)$")
"""A journal's name that begins with its key."""


def run_name(journal: Path) -> str:
    """Return the name of a journal for people: a kernel's and a time, without the key between them."""
    return f"{journal.parent.name}-{keyed[1]}" if (keyed := KEYED.match(journal.name)) else journal.name


def _file_name(name: str) -> str:
    """Return a kernel's name as part of a file's."""
    return re.sub(r"^\.+|[^A-Za-z0-9_.-]", "_", name)[:80] or "_"


def _moment() -> str:
    return time.strftime("%Y%m%d-%H%M%S") + f".{time.time_ns() // 1000 % 1_000_000:06}"


def _real(path: str) -> str:
    """Return the path of a listed journal, or of the one that it is a link to."""
    return os.path.realpath(path) if os.path.islink(path) else path


def _is_empty(real: Path) -> bool:
    """Tell whether a journal has no byte yet, or its program was killed before it wrote one."""
    return real.suffix == ".jsonl" and real.is_file() and real.stat().st_size == 0


def _stamp(path: str) -> tuple[int, int, int]:
    status = os.stat(path)
    return status.st_ino, status.st_mtime_ns, status.st_size


def _serves(run: StoredRun, header: RunStarted | None) -> bool:
    """Tell whether a winner serves the run of `header`: a default may be none there, or a constraint may refuse it."""
    if header is None or run.found.winner != BASELINE or run.config is None:
        return True
    return header.baseline is not None and not header.refused and config_key(header.baseline) == config_key(run.config)


def _is_same(run: StoredRun, still: Still | None) -> bool:
    """Tell whether a run's winner is still the kernel that was measured; not where its journal does not identify it."""
    digest = run.found.ir_digest
    return still is None or (bool(digest) and still(run.header.arguments, [(run.config or {}, digest)]))


def _served_to(header: RunStarted | None, events: Sequence[Event]) -> list[Event]:
    """Return the events of a run with the names of the run of `header`, which does the same work."""
    if header is None or not events or not isinstance(first := events[0], RunStarted):
        return [*events]
    names = {name: getattr(header, name) for name in ("workload", "origin", "fingerprint", "kernel")}
    return [msgspec.structs.replace(first, **names), *events[1:]]


def _continues(past: Sequence[AnyEvent], header: RunStarted, still: Still | None) -> bool:
    """Tell whether a run of `header` may continue one with these events.

    The same key may stand for other work or other kernels, and the run may have been continued with other work.
    """
    first = past[0] if past else None
    names = ("fingerprint", "strategy", "refused")
    return (
        isinstance(first, RunStarted)
        and not isinstance(past[-1], RunFinished)
        and not any(isinstance(event, RunResumed) and event.accepted for event in past)
        and same_problem(first.arguments, header.arguments)
        and all(getattr(first, name) == getattr(header, name) for name in names)
        and first.settings.get("seed") == header.settings.get("seed")
        and (
            still is None
            or still(first.arguments, [(e.config, e.ir_digest) for e in State.of(past).entries.values() if e.lowered])
        )
    )


def _leave_out(path: str, why: Exception | str) -> None:
    """Count the journal at `path` as damaged until it is written, and say so."""
    with contextlib.suppress(OSError):
        _read[path] = _stamp(path), None
    _warn(f"a run of the result cache is left out: {why}")


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)
