"""The result cache: a folder that contains only journals.

    journals/<kernel>/<key>-<time>.jsonl   the journal of a run that has the result of `key`, or is computing it
    journals/<kernel>/<key>-<hash>.jsonl   a link to a journal of this key that is elsewhere, or has another name
    journals/<name>-<time>.jsonl           a journal that began before its key was known
    journals/<name>-<time>/                the journals of a set's problems

A look-up lists the files whose names begin with the key, and reads the first and the last line of these journals.
Processes may share the cache: a run locks its journal, and thereby claims the work. If the folder cannot be used, runs
continue without it.
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
from atune.model.candidate import BASELINE, Config, config_key, key_of, with_tuples
from atune.model.folders import cache_folder, make_private_folder, untrusted
from atune.workers.result_key import CacheEntry, ResultKey, exported, result_key, same_problem

Begun = tuple[Journal | None, Sequence[AnyEvent]]
"""The journal for a run (None if the journal's folder cannot be written), and the events in this journal."""
KnownOutcome = tuple[Entry, Outcome]
"""The entry and the outcome that a configuration had in an earlier run."""
Still = Callable[[Any, Sequence[tuple[Config, str]]], bool]
"""Tells whether each configuration's kernel, for a problem's arguments, still has the given `Lowered.ir_digest`."""

MOST_CACHE_BYTES = 256 << 20
"""Largest size of all journals together, in bytes. Above this size, the oldest journals are deleted, but the newest
journal is kept, and so are journals that runs are writing. The journals of a set are deleted together."""
NEW_S = 60.0
"""Seconds for which an empty journal is kept, because a run may be about to lock the journal."""
MOST_READ = 8
"""Largest number of journals, beginning with the newest, from which known outcomes are read."""
LASTING = ("lower", "codegen", "compile", "launch", "out_of_bounds", "mismatch", "non_finite", "unwritten")
"""Kinds of failure that the same code always repeats. If a candidate's failure was of another kind (a deadline, a lost
process, a shortage of memory), the candidate is tried again."""


@dataclass(frozen=True)
class StoredRun:
    """A run, as the first and the last line of its journal describe it. `time`: the run's end, in seconds since 1970.

    `path`: the path of the journal. `end`: the run's last event; None if the run did not end normally. `found`: the
    run's findings. `roles`: the roles of the kernel's parameters.
    """

    path: str
    time: float
    header: RunStarted
    end: RunFinished | None
    found: Found
    roles: Roles

    @cached_property
    def parts(self) -> ResultKey | None:
        """The key of the result; None if the run uses no cache, or if an older atune began the run."""
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
        """The winner's library as the journal describes it."""
        return None if self.end is None else self.end.kernel

    @property
    def entry(self) -> CacheEntry | None:
        """The result as data; None if look-ups skip the run, because the run has no winner or is incomplete."""
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
    """Read the run of the journal at `path`. Return None if the journal has no complete header.

    `whole`: if the run has not ended, read its whole journal for the findings so far. The journal of an older atune is
    always read as a whole. Raises `JournalError` and `OSError`.
    """
    header, last = ends(path)
    if header is None:
        return None
    end, written = last if isinstance(last, RunFinished) else None, os.stat(path).st_mtime
    findings, roles = (Found(), Roles()) if end is None else (end.found, end.roles)
    if findings is None or (end is None and whole):
        state = State.of(JournalReader(path))
        findings = found_in(state)
        roles = Result.of(state).roles
    ended = written if end is None else min(end.time, written + 1)  # because the clock that dates files lags
    return StoredRun(path, ended, header, end, findings, roles)


_read: dict[str, tuple[tuple[int, int, int], StoredRun | None]] = {}
"""The journals that this process has read, by path. Each value has the journal file's identity, time and size, and the
journal's run. The run is None if the journal was damaged or had not begun."""


def known_of(state: State) -> dict[str, KnownOutcome]:
    """Return the lasting outcomes of a run, by config key: measurements, and failures whose kind is in `LASTING`."""
    outcomes = ((entry, state.outcome(entry.index)) for entry in state.entries.values() if entry.key)
    return {
        entry.key: (entry, outcome)
        for entry, outcome in outcomes
        if outcome is not None and (not isinstance(outcome, BuildFailed | BenchmarkFailed) or outcome.kind in LASTING)
    }


class ResultCache:
    """The result cache in `folder`, by default in the user's cache folder. The first run creates the folder."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(os.path.abspath(folder)) if folder is not None else cache_folder()
        self.journals = self.folder / "journals"
        self._refused = set[str]()
        """Journals that a warning has already named, because their results belong to another kernel."""

    # Adding runs

    def new_path(self, name: str) -> Path:
        """Return the path for a new journal of the kernel `name` while the journal's key is not known yet."""
        return self.journals / f"{_file_name(name)}-{_moment()}.jsonl"

    def open_new(self, name: str = "", at: Path | None = None) -> Journal | None:
        """Create a journal in the cache, for kernel `name` or at path `at`. On failure, warn and return None."""
        path = at or self.new_path(name)
        try:
            make_private_folder(str(path.parent))
            return Journal.create(path)
        except (JournalError, OSError) as error:
            self._warn_unusable(error)
            return None

    def begin(self, header: RunStarted, still: Still | None = None, again: bool = False, own: str = "") -> Begun | None:
        """Return the journal for a run of `header`, and the journal's events. The journal is new, or it is the journal
        of an interrupted run of the same work. Return None if another process is doing this work or has the result.

        `still`: as in `find`. `again`: continue no interrupted run. `own`: the path of a journal that the run has
        already opened.
        """
        key = result_key(header)
        assert key is not None, "this atune records all parts of a key"

        def taken(mine: str) -> bool:
            """Tell whether another run has claimed the work, or has finished it since the result was looked up."""
            return self._is_claimed(key, mine) or (not again and self._search(key, header, still)[0] is not None)

        if taken(own):
            return None
        if own:
            self.note(own, key)
            begun: Begun = None, []
        elif (begun := self._continued(key, header, still, again))[0] is None:
            begun = self.open_new(at=self._place(key, _moment())), []
        journal = begun[0]
        # A run looks for other runs after it has locked its own journal, so of two runs, at least one sees the other.
        if not taken(own if journal is None else journal.path):
            return begun
        if own:
            self._link(Path(own).resolve(), key).unlink(missing_ok=True)
        if journal is not None:
            journal.close()
        return None

    def _is_claimed(self, key: ResultKey, mine: str) -> bool:
        """Tell whether a run with this key, or a run without a header yet, is writing another journal than `mine`."""
        for real in self._own(key):
            with contextlib.suppress(OSError):
                if str(real) != os.path.realpath(mine) and is_written(real):
                    run = self._run(str(real))
                    if run is None or run.key == key.text:
                        return True
        return False

    def _continued(self, key: ResultKey, header: RunStarted, still: Still | None, again: bool) -> Begun:
        """Reopen the journal of the newest interrupted run that this run may continue. If there is no such run, return
        None."""
        for real in [] if again else self._own(key):
            run = self._run(str(real))
            if run is None or run.end is not None or run.key != key.text:
                continue
            try:
                journal, past = Journal.reopen(real)
            except JournalError as error:
                if not isinstance(error.__cause__, OSError):  # another run has just reopened or removed it
                    _leave_out(str(real), error)
                continue
            if _continues(past, header, still):
                return journal, past
            journal.close()
        return None, []

    def add(self, path: str | os.PathLike[str]) -> None:
        """Link the journal at `path`, whose run has ended, under its key. Delete old journals beyond the size limit."""
        run = self._run(os.path.realpath(path))
        self.note(path, None if run is None else run.parts)
        self._tidy()

    def note(self, path: str | os.PathLike[str], key: ResultKey | None = None) -> None:
        """Link the journal at `path` for look-ups of `key`. Without a key, only `runs` finds the journal."""
        real = Path(path).resolve()
        if self._owns(real) and (key is None or real.name.startswith(key.text)):
            return
        link, unkeyed = self._link(real, key), self._link(real).name
        try:
            make_private_folder(str(link.parent))
            with contextlib.suppress(FileExistsError):
                link.symlink_to(real)
            # A journal has only one link, but an earlier journal at its path may have had another key.
            for file in [] if key is None else self._files():
                if file.name.endswith(unkeyed) and file.name != link.name and file.is_symlink():
                    os.unlink(file.path)
        except OSError as error:
            self._warn_unusable(error)

    def discard(self, path: str | os.PathLike[str]) -> None:
        """Forget a journal that its run did not keep. If the journal is in the cache, delete it."""
        real = os.path.realpath(path)
        self._delete([Path(file.path) for file in self._files() if _real(file.path) == real])

    # Look-ups

    def find(self, key: ResultKey, header: RunStarted | None = None, still: Still | None = None) -> StoredRun | None:
        """Return the newest run that has the result under `key`. Read only the first and the last line of each journal.

        Skip journals that are gone or damaged, and results of another kernel, with a warning. `header`: the header of
        the run that needs the result. `still`: a function that compares kernels; None to accept any kernel.
        """
        run, other = self._search(key, header, still)
        if run is None and other is not None and other.path not in self._refused:
            self._refused.add(other.path)
            why = "its journal does not identify the kernel (an older atune wrote it, or it includes files of yours)"
            if other.found.ir_digest:
                why = "something that the kernel uses has changed since, such as a helper or an environment variable"
            _warn(f"atune does not use the result of {key.kernel} in {other.path}, because {why}")
        return run

    def _search(
        self, key: ResultKey, header: RunStarted | None, still: Still | None
    ) -> tuple[StoredRun | None, StoredRun | None]:
        """Return the newest run that has the result under `key`, and None. If there is no such run, return None, and
        the newest run that has the key but another kernel."""
        other: StoredRun | None = None
        for run in self._answering(key.text):
            if _serves(run, header):
                if _is_same(run, still):
                    return run, None
                of_others = header and key_of(run.header.arguments) != key_of(header.arguments)
                other = other or (None if of_others else run)
        return None, other

    def events(self, run: StoredRun, header: RunStarted | None = None) -> list[Event]:
        """Return the events of a run; none, with a warning, if the run's journal is damaged. `header`: as in `find`."""
        try:
            return _served_to(header, read(run.path))
        except JournalError as error:
            _leave_out(run.path, error)
            return []

    def result(self, run: StoredRun, header: RunStarted | None = None) -> TuneResult | None:
        """Return the whole result of a run, with `cache_hit` set. If the journal is damaged, warn and return None."""
        events = self.events(run, header)
        result = Result.from_events(events, run.path, replayed=True) if events else None
        if isinstance(result, TuneResult):
            result.cache_hit = True
            return result
        if result is not None:
            _leave_out(run.path, f"{run.path} has no winner, although its last line names one")
        return None

    def known(self, work: str, configs: Iterable[Config]) -> dict[str, KnownOutcome]:
        """Return the outcomes that `configs` had in earlier runs of the same work, by config key."""
        wanted, newest_first = {config_key(config) for config in configs}, list[dict[str, KnownOutcome]]()
        for run in self._runs_of(work=work)[:MOST_READ]:
            known = known_of(State.of(self.events(run)))
            newest_first.append({key: outcome for key, outcome in known.items() if key in wanted})
        return {key: outcome for known in reversed(newest_first) for key, outcome in known.items()}

    def runs(self) -> list[tuple[Path, float]]:
        """Return the journals of all runs, newest first, each with the time of its last write in seconds since 1970."""
        written = dict[str, float]()
        for file in self._files():
            with contextlib.suppress(OSError):
                written[_real(file.path)] = file.stat().st_mtime
        return [(Path(path), written[path]) for path in sorted(written, key=written.__getitem__, reverse=True)]

    def answers(
        self, *, kernel: str | None = None, key: str = "", work: str = "", source: str | None = None
    ) -> list[StoredRun]:
        """For each key, return the newest run that has a result. Among these runs, the newest comes first.

        `kernel`: the kernel's name. `key`: the beginning of the keys. `work`: the hash of the work. `source`: also
        return runs of kernels that have this source but another name.
        """
        newest: dict[str, StoredRun] = {}
        for run in self._answering(key, work, kernel if source is None else None):
            if kernel is None or run.header.workload == kernel or run.header.kernel == source:
                newest.setdefault(run.key, run)
        return [*newest.values()]

    def entries(self, *, kernel: str | None = None, key: str = "") -> list[CacheEntry]:
        """Return the results as data, the newest first. `kernel` and `key`: as in `answers`."""
        return [run.entry for run in self.answers(kernel=kernel, key=key) if run.entry is not None]

    def export(self, *, kernel: str | None = None, key: str = "") -> bytes:
        """Return results as JSON to ship with a library: keys, winners and latencies, but no compiled code."""
        return exported(self.entries(kernel=kernel, key=key))

    # Removing runs

    def clear(self, results: Iterable[StoredRun] | None = None) -> int:
        """Forget `results` and all runs of the same work. Delete the journals of these runs, except journals outside
        the cache.

        If `results` is None, forget all runs. Returns the number of results that are no longer available.
        """
        forgotten = self.answers() if results is None else list(results)
        if results is None:
            files = [*self._files()]
        else:
            works = {run.parts.work for run in forgotten if run.parts is not None}
            named = [(work, file) for work in works for file in self._keyed(work=work)]
            files = [file for work, file in named if (run := self._run(file.path)) is None or run.key.endswith(work)]
        self._delete(Path(file.path) for file in files)
        return len({run.key for run in forgotten} - {run.key for run in self.answers()})

    def _tidy(self) -> None:
        """Delete the oldest journals beyond `MOST_CACHE_BYTES`, a set's journals together, and files without a run.

        A file without a run is an empty file that a killed program left, or a link to a deleted journal of the cache. A
        broken link to a journal elsewhere stays until a look-up, because the journal's file system may come back. If a
        wrong clock dated a journal in the future, the journal gets the present time, so that it does not stay the
        newest journal.
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
                total -= 0 if any(path.exists() for path in paths) else size  # a run may be writing it
        links = [Path(file.path) for file in self._files() if not os.path.exists(file.path)]
        self._delete([*empty, *(link for link in links if self._owns(link.resolve()))])

    def _delete(self, paths: Iterable[Path]) -> None:
        """Delete the links and the cache's journals at `paths`, and the cache's journals that the links point to. Skip
        journals that are being written."""
        for path in paths:
            with contextlib.suppress(OSError):
                real = path.resolve()
                is_own = self._owns(real) and (is_journal(real) or _is_empty(real))
                if is_own and is_written(real):
                    continue
                for file, goes in ((real, is_own), (path, path.is_symlink())):
                    if goes:
                        self._remove(file)

    def _remove(self, path: Path) -> None:
        """Remove a link or a journal that is in the cache. With the last journal of a set, also remove the set's
        folder. If other users may write to the journal or its folders, keep the journal and warn. Raises `OSError`."""
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
        """Yield the journals and the links to journals. Does not follow links to folders. `folder`: skip the files in
        folders of another name."""
        for entry in self._listed(os.path.realpath(self.journals)):
            if not entry.is_dir(follow_symlinks=False):
                files: Collection[os.DirEntry[str]] = [entry]
            else:
                files = self._listed(entry.path) if folder in (None, entry.name) else ()
            yield from (file for file in files if file.name.endswith(".jsonl"))

    def _keyed(self, key: str = "", work: str = "", kernel: str | None = None) -> Iterator[os.DirEntry[str]]:
        """Yield the files whose names begin with a key, if the key begins with `key` and ends with the hash `work`.
        `kernel`: yield only files in the folder of kernels with this name."""
        for file in self._files(None if kernel is None else _file_name(kernel)):
            if file.name.startswith(key) and file.name.startswith(work, 16) and KEYED.match(file.name):
                yield file

    def _listed(self, folder: str) -> Collection[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return [*entries]
        except FileNotFoundError:
            return ()
        except OSError as error:
            self._warn_unusable(error)
            return ()

    def _own(self, key: ResultKey) -> list[Path]:
        """Return the journals of a key that are in the cache, beginning with the journal that was written last."""
        own = []
        for file in self._keyed(key.text):
            with contextlib.suppress(OSError):
                if self._owns(real := Path(_real(file.path))):
                    own.append((file.stat().st_mtime, real))
        return [real for _, real in sorted(own, reverse=True)]

    def _runs_of(self, key: str = "", work: str = "", kernel: str | None = None) -> list[StoredRun]:
        """Return the runs whose keys match, the newest first. The parameters are those of `_keyed`. The key in a file's
        name is not reliable, because the journal behind a link may belong to another run by now."""
        runs = (self._run(file.path) for file in self._keyed(key, work, kernel))
        matching = (run for run in runs if run and run.key and run.key.startswith(key) and run.key.startswith(work, 16))
        return sorted(matching, key=lambda run: run.time, reverse=True)

    def _answering(self, key: str = "", work: str = "", kernel: str | None = None) -> list[StoredRun]:
        """Return the runs of `_runs_of` that have a result."""
        return [run for run in self._runs_of(key, work, kernel) if run.entry is not None]

    def _run(self, path: str) -> StoredRun | None:
        """Return the run of the journal at `path`. If the run has not begun, or the journal is damaged (this warns
        once), return None."""
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
        """Tell whether a journal is in the cache. `real`: the journal's path without links."""
        return real.is_relative_to(self.journals.resolve())

    def _place(self, key: ResultKey, name: str) -> Path:
        return self.journals / _file_name(key.kernel) / f"{key.text}-{name}.jsonl"

    def _link(self, journal: Path, key: ResultKey | None = None) -> Path:
        name = hashlib.sha256(os.fsencode(journal)).hexdigest()[:16]
        return self.journals / "elsewhere" / f"{name}.jsonl" if key is None else self._place(key, name)

    def _warn_unusable(self, error: Exception) -> None:
        _warn(f"the result cache {self.folder} cannot be used: {error}")


KEYED = re.compile(r"[0-9a-f]{32}-(.*\.jsonl)$")
"""Pattern for the name of a journal's file that begins with a key."""


def run_name(journal: Path) -> str:
    """Return a journal's name for display: the name of the kernel and a time, without the key between them."""
    return f"{journal.parent.name}-{keyed[1]}" if (keyed := KEYED.match(journal.name)) else journal.name


def _file_name(name: str) -> str:
    """Return a kernel's name, changed so that it can be part of a file's name."""
    return re.sub(r"^\.+|[^A-Za-z0-9_.-]", "_", name)[:80] or "_"


def _moment() -> str:
    return time.strftime("%Y%m%d-%H%M%S") + f".{time.time_ns() // 1000 % 1_000_000:06}"


def _real(path: str) -> str:
    """Return the path of a journal. If `path` is a link, return the path of the journal that the link points to."""
    return os.path.realpath(path) if os.path.islink(path) else path


def _is_empty(real: Path) -> bool:
    """Tell whether a file is an empty journal, because its program has not written anything yet or was killed."""
    return real.suffix == ".jsonl" and real.is_file() and real.stat().st_size == 0


def _stamp(path: str) -> tuple[int, int, int]:
    status = os.stat(path)
    return status.st_ino, status.st_mtime_ns, status.st_size


def _serves(run: StoredRun, header: RunStarted | None) -> bool:
    """Tell whether a run's winner is valid for `header`. If the default won, `header` must allow the same default."""
    if header is None or run.found.winner != BASELINE or run.config is None:
        return True
    return header.baseline is not None and not header.refused and config_key(header.baseline) == config_key(run.config)


def _is_same(run: StoredRun, still: Still | None) -> bool:
    """Tell whether a run's winner is still the measured kernel. False if the journal does not identify that kernel."""
    digest = run.found.ir_digest
    return still is None or (bool(digest) and still(run.header.arguments, [(run.config or {}, digest)]))


def _served_to(header: RunStarted | None, events: Sequence[Event]) -> list[Event]:
    """Return a run's events, with the workload and the kernel renamed as in `header`, whose run does the same work."""
    if header is None or not events or not isinstance(first := events[0], RunStarted):
        return [*events]
    names = {name: getattr(header, name) for name in ("workload", "origin", "fingerprint", "kernel")}
    return [msgspec.structs.replace(first, **names), *events[1:]]


def _continues(past: Sequence[AnyEvent], header: RunStarted, still: Still | None) -> bool:
    """Tell whether a run of `header` may continue the run with the events `past`. Two runs with the same key may do
    different work or have different kernels. Also, a run may have continued another run."""
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
    """Warn of the damaged journal at `path`, and skip the journal until its file changes."""
    with contextlib.suppress(OSError):
        _read[path] = _stamp(path), None
    _warn(f"a run of the result cache is skipped: {why}")


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)
