"""The result cache: journals of runs, and an index of them.

    journals/<kernel>-<time>.jsonl     a run's journal, the only place of its events and outcomes
    journals/<kernel>-<time>/          the journals of a set's problems
    index-2.sqlite3                    one table with a row for each journal, wherever it lies

Many processes may use it at once. The index holds nothing that its journals lack: a damaged one is made again from the
cache's own journals. If the folder cannot be used, runs go on without it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sqlite3
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from atune.errors import JournalError
from atune.journal import set_folder
from atune.journal.events import (
    AnyEvent,
    BenchmarkFailed,
    BuildFailed,
    Event,
    RunFinished,
    RunResumed,
    RunStarted,
)
from atune.journal.reader import JournalReader, is_journal, last_event, read, unfit
from atune.journal.result import Result, TuneResult
from atune.journal.state import Entry, Outcome, State, finished, recorded_budget
from atune.journal.writer import Journal, is_written
from atune.model.artifact import Artifact, Roles
from atune.model.candidate import BASELINE, Config, config_key, with_tuples
from atune.model.folders import cache_folder, make_private_folder, untrusted
from atune.workers.storage.result_key import (
    CacheEntry,
    ResultKey,
    exported,
    result_key,
    same_problem,
)

T = TypeVar("T")
Begun = tuple[Journal | None, Sequence[AnyEvent]]
"""The journal that was opened for a run, if its folder can be written, and the events in it."""

INDEX = "index-2.sqlite3"
"""The index's file, with the version of its table. Another version is another file."""
MOST_BYTES = 256 << 20
"""Most bytes of the cache's journals. The oldest are deleted, a set as one; the newest, and those that a run writes,
stay."""
MOST_READ = 8
"""Most journals that known outcomes are read from, the newest first."""
LASTING = ("lower", "codegen", "compile", "launch", "out_of_bounds", "mismatch", "non_finite", "unwritten")
"""Kinds of failure that come back with the same code. The others (a deadline, a lost process, memory that was short)
are tried again."""

Status = Literal["finished", "refreshed", "unfinished", "partial", "uncached"]
"""Status of an indexed run. ``refreshed``: it was asked for though its result was known. ``partial``: it has no winner
of the whole search that its header asks for. ``uncached``: its caller uses no cache."""
_DAMAGE = sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_TOOBIG
UNFINISHED = "unfinished"
ANSWERS = ("finished", "refreshed")
"""Statuses of runs that answer a look-up."""


class IndexedRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row of the index: a journal, and what its run found. Latencies in ms; `time` in seconds since 1970.

    `key`, `work`: hashes of `parts`. `source`: SHA-256 of the kernel's source. `winner`: its index. `tried`, `total`:
    numbers of candidates. `library`: the winner's, as the journal has it. `roles`: of the kernel's parameters.
    `arguments`: the problem, as it was tuned. `ir_digest`: the winner's, see `Lowered`. `bytes`: the journal's length.
    A run that has just begun may have no more than its path.
    """

    path: str
    status: Status = "unfinished"
    key: str = ""
    work: str = ""
    kernel: str = ""
    source: str = ""
    config: Config | None = None
    latency_ms: float | None = None
    reference_ms: float | None = None
    default_ms: float | None = None
    winner: int | None = None
    tried: int = 0
    total: int = 0
    library: Artifact | None = None
    roles: Roles = Roles()
    arguments: Any = None
    ir_digest: str = ""
    time: float = 0.0
    bytes: int = 0
    parts: ResultKey | None = None

    @property
    def entry(self) -> CacheEntry | None:
        """The result as data; None without a winner."""
        if self.parts is None or self.config is None:
            return None
        return CacheEntry(
            parts=self.parts,
            config=self.config,
            latency_ms=self.latency_ms,
            reference_ms=self.reference_ms,
            created=self.time,
        )


_COLUMNS = ("path", "status", "key", "work", "kernel", "source", "time", "bytes")
"""Columns to search by. The column ``run`` has all of a row, as JSON."""
_TABLE = (
    f"CREATE TABLE runs ({', '.join(_COLUMNS)}, run, PRIMARY KEY (path))",
    "CREATE INDEX runs_key ON runs (key, time)",
    "CREATE INDEX runs_work ON runs (work, time)",
    "PRAGMA user_version = 1",
)


Known = tuple[Entry, Outcome]
"""A configuration's entry and outcome in an earlier run."""


Still = Callable[[Any, Sequence[tuple[Config, str]]], bool]
"""Tells whether configurations, for a problem's arguments, are still the kernels of these `Lowered.ir_digest`."""


def known_of(state: State) -> dict[str, Known]:
    """Return the lasting outcomes of a run by config key: measurements, and failures that would happen again."""
    found = ((entry, state.outcome(entry.index)) for entry in state.entries.values() if entry.key)
    return {
        entry.key: (entry, outcome)
        for entry, outcome in found
        if outcome is not None and (not isinstance(outcome, BuildFailed | BenchmarkFailed) or outcome.kind in LASTING)
    }


def indexed(path: str, state: State, result: Result | None = None) -> IndexedRun:
    """Return the row of the journal at `path`, which folds to `state` and `result`. Raises `OSError`."""
    header, result = state.header, result or Result.of(state, replayed=True)
    assert header is not None, "a journal has a header"
    parts, stat, best = result_key(header), os.stat(path), result.best
    key = None if header.settings.get("cache") == "off" else parts
    return IndexedRun(
        path=path,
        status=_status(header, state, result),
        key="" if key is None else key.text,
        work="" if key is None else key.work,
        kernel=header.workload,
        source=header.kernel,
        config=result.best_config,
        latency_ms=result.latency_ms,
        reference_ms=result.reference_ms,
        default_ms=result.default_ms,
        time=stat.st_mtime if state.finished is None else min(state.finished.time, stat.st_mtime + 1),  # which lags
        bytes=stat.st_size,
        parts=parts,
        winner=None if best is None else best.index,
        tried=result.total - result.remaining,
        total=result.total,
        library=result.kept,
        roles=result.roles,
        arguments=header.arguments,
        ir_digest="" if best is None else state.entry(best.index).ir_digest,
    )


def _status(header: RunStarted, state: State, result: Result) -> Status:
    use = header.settings.get("cache")
    if not result.finished:
        return "unfinished"
    if use == "off":
        return "uncached"
    if result.reason == "stopped" or state.accepted or result.best is None:
        return "partial"
    by_another = state.resumed is not None and result.reason in ("budget", "enough")  # than the header's, perhaps
    if by_another and not finished(state, recorded_budget(header)):
        return "partial"
    return "refreshed" if use == "refresh" else "finished"


class ResultCache:
    """The cache in `folder` (default: the user's). It is created with the first run.

    Each call opens a new connection, so threads and forks never share one. Calls are rare.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(os.path.abspath(folder)) if folder is not None else cache_folder()
        self.path, self.journals = self.folder / INDEX, self.folder / "journals"
        self._refused = set[str]()
        """Journals whose results were said to be of another kernel."""

    # Runs come in

    def new_path(self, name: str) -> Path:
        """Return the path for a new journal of a kernel called `name`."""
        moment = time.strftime("%Y%m%d-%H%M%S") + f".{time.time_ns() // 1000 % 1_000_000:06}"
        return self.journals / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)[:80]}-{moment}.jsonl"

    def open_new(self, name: str) -> Journal | None:
        """Return a new journal in the cache; None where its folder cannot be written."""
        with contextlib.suppress(JournalError, OSError):
            make_private_folder(str(self.journals))
            return Journal.create(self.new_path(name))
        return None

    def note(self, path: str | os.PathLike[str]) -> None:
        """Have a row for the journal at `path`, which a run begins to write."""
        row = IndexedRun(path=os.path.abspath(path), time=time.time())
        self._use(lambda db: _write(db, row, "IGNORE"), None)

    def begin(self, header: RunStarted, still: Still | None = None, again: bool = False, own: str = "") -> Begun | None:
        """Return the journal to write for a run of `header`, and its events: of an interrupted run of the same work,
        or new. None where another process writes one. The journal is None where the folder cannot be written.

        `still`: as for `find`. `again`: begin anew though there is an interrupted one. `own`: a run's open journal.
        """
        key = result_key(header)
        assert key is not None, "this atune records all of a key's parts"
        row = IndexedRun(
            path="", key=key.text, work=key.work, kernel=key.kernel, source=key.source, time=time.time(), parts=key
        )
        nothing: Begun | None = (None, [])

        def claim(db: sqlite3.Connection) -> Begun | None:
            opened.close()  # what an attempt opened that failed
            db.execute("BEGIN IMMEDIATE")  # one process at a time looks, and begins
            for run in _rows(db, "WHERE key = ? ORDER BY time DESC", (key.text,)):
                if run.status in ANSWERS and not again and _serves(run, header) and _is_same(run, still):
                    return None  # since it was looked up
                if run.status != UNFINISHED or not self._owns(run.path) or not os.path.exists(run.path):
                    continue
                try:
                    journal, past = Journal.reopen(run.path)
                    opened.callback(journal.close)
                except JournalError as error:
                    if isinstance(error.__cause__, BlockingIOError):
                        return None
                    if os.path.getsize(run.path):  # else it was killed before its first event
                        self._drop(db, run, str(error))
                    continue
                ended = bool(past) and isinstance(past[-1], RunFinished)
                if not (again or own or ended) and _continues(past, header, still):
                    return journal, past
                journal.close()
                if ended:  # but its process has yet to say so
                    _write(db, indexed(run.path, State.of(past)))
                    if not again:
                        return None
            if (new := None if own else self.open_new(key.kernel)) is not None:
                opened.callback(new.close)
            if at := own if new is None else new.path:
                _write(db, msgspec.structs.replace(row, path=at))
            return new, []

        with contextlib.ExitStack() as opened:  # nothing stays open where the index cannot be written
            begun = self._use(claim, nothing)
            if begun is not None and begun[0] is not None:
                opened.pop_all()
        return begun

    def add(self, path: str | os.PathLike[str], state: State | None = None, result: Result | None = None) -> str:
        """Bring the row of the journal at `path` up to date, and keep the cache's journals within `MOST_BYTES`.

        `state`, `result`: what the journal folds to, where that is known. Returns the run's status; empty for a journal
        that cannot be read.
        """
        path = os.path.abspath(path)
        try:
            run = indexed(path, state or State.of(JournalReader(path)), result)
        except (JournalError, OSError) as error:
            self._forget(path, str(error))
            return ""

        def write(db: sqlite3.Connection) -> None:
            for other in _rows(db, "WHERE time > ? AND path <> ?", (time.time(), path)):  # the clock was ahead then
                before = run.time - 2  # more than what `indexed` adds
                _write(db, msgspec.structs.replace(other, time=before))
                with contextlib.suppress(OSError):
                    if self._owns(other.path) and is_journal(other.path):
                        os.utime(other.path, (before, before))
            _write(db, run)

        self._use(write, None)
        self._trim()
        return run.status

    def discard(self, path: str | os.PathLike[str]) -> None:
        """Remove the row of a journal that its run did not keep, and the journal if it is the cache's own."""
        self._delete([IndexedRun(path=os.path.abspath(path))])

    # Look-ups

    def find(self, key: ResultKey, header: RunStarted | None = None, still: Still | None = None) -> IndexedRun | None:
        """Return the newest run that has the result under `key`. Reads its row, and the end of its journal.

        A journal that is gone or damaged is no result, with a warning, and so is one of another kernel. `header`: of
        the run that asks. `still`: None counts any kernel as the same.
        """
        other: IndexedRun | None = None
        for run in self._select(f"WHERE key = ? AND status IN {ANSWERS} ORDER BY time DESC", key.text):
            if _serves(run, header) and self._stands(run):
                if _is_same(run, still):
                    return run
                of_others = header and run.parts and not same_problem(run.parts.tuned_for, header.arguments)
                other = other or (None if of_others else run)
        if other is not None and other.path not in self._refused:
            self._refused.add(other.path)
            why = "its journal does not identify the kernel (an older atune wrote it, or it includes files of yours)"
            if other.ir_digest:
                why = "something that the kernel uses, such as a helper or an environment variable, has changed since"
            _warn(f"the result of {key.kernel} in {other.path} is not used, because {why}")
        return None

    def _stands(self, run: IndexedRun) -> bool:
        """Tell whether a run's journal is as the index has it, or, where it was written since, still answers."""
        try:
            if os.path.getsize(run.path) == run.bytes and isinstance(last_event(Path(run.path)), RunFinished):
                return True
        except OSError as error:
            self._forget(run.path, str(error))
            return False
        return self.add(run.path) in ANSWERS

    def events(self, run: IndexedRun, header: RunStarted | None = None) -> list[Event]:
        """Return the events of a run; empty, with a warning, where its journal is damaged. `header`: as for `find`."""
        try:
            return _served_to(header, read(run.path))
        except JournalError as error:
            self._forget(run.path, str(error))
            return []

    def result(self, run: IndexedRun, header: RunStarted | None = None) -> TuneResult | None:
        """Return the whole result of a run, with `cache_hit` set; None where its journal is damaged."""
        events = self.events(run, header)
        result = Result.from_events(events, run.path, replayed=True) if events else None
        if not isinstance(result, TuneResult):
            return None
        result.cache_hit = True
        return result

    def known(self, work: str, configs: Iterable[Config]) -> dict[str, Known]:
        """Return the outcomes of `configs` in earlier runs of the same work, by config key."""
        wanted, read = {config_key(config) for config in configs}, list[dict[str, Known]]()
        for run in self._select("WHERE work = ? ORDER BY time DESC", work):
            if len(read) == MOST_READ:
                break
            try:
                known = known_of(State.of(JournalReader(run.path)))
                read.append({name: one for name, one in known.items() if name in wanted})
            except JournalError as error:
                if run.status != "unfinished":  # else its run may just begin
                    self._forget(run.path, str(error))
        return {name: one for known in reversed(read) for name, one in known.items()}

    def runs(self) -> list[IndexedRun]:
        """Return all runs whose journals are there, the last written first; `time` is when that was."""
        found = []
        for run in self._select(""):
            with contextlib.suppress(OSError, ValueError):  # no path in this locale's encoding
                found.append(msgspec.structs.replace(run, time=os.stat(run.path).st_mtime))
        return sorted(found, key=lambda run: run.time, reverse=True)

    def answers(
        self, *, kernel: str | None = None, key: str | None = None, work: str | None = None, source: str | None = None
    ) -> list[IndexedRun]:
        """Return the newest run of each key that has a result, the newest first.

        `kernel`: the kernel's name. `key`: the beginning of the key. `work`: the work's hash. `source`: also kernels of
        another name with this source.
        """
        named = "kernel = :kernel" if source is None else "(kernel = :kernel OR source = :source)"
        texts = {"kernel": named, "key": "substr(key, 1, length(:key)) = :key", "work": "work = :work"}
        values = {"kernel": kernel, "key": key, "work": work, "source": source}
        chosen = [text for name, text in texts.items() if values[name] is not None]
        where = " AND ".join([f"status IN {ANSWERS} AND key <> ''", *chosen])
        newest: dict[str, IndexedRun] = {}
        for run in self._select(f"WHERE {where} ORDER BY time DESC", values):
            newest.setdefault(run.key, run)
        return [*newest.values()]

    def entries(self, *, kernel: str | None = None, key: str | None = None) -> list[CacheEntry]:
        """Return the results as data, newest first. `kernel`, `key`: as for `answers`."""
        return [run.entry for run in self.answers(kernel=kernel, key=key) if run.entry is not None]

    def export(self, *, kernel: str | None = None, key: str | None = None) -> bytes:
        """Return results as JSON that can be shipped with a library: keys, winners and latencies, no libraries."""
        return exported(self.entries(kernel=kernel, key=key))

    # Runs go

    def clear(self, results: Iterable[IndexedRun] | None = None) -> int:
        """Forget `results` and all runs of the same work, and delete their journals where these are the cache's own.

        None: forget everything. Returns the number of results.
        """
        found = self.answers() if results is None else list(results)
        works = {run.work for run in found}
        self._delete([run for run in self._select("") if results is None or run.work in works])
        return len(found)

    def _trim(self) -> None:
        """Delete the oldest of the cache's journals beyond `MOST_BYTES`, a set's folder as one."""
        total = self._ask(lambda db: db.execute("SELECT SUM(bytes) FROM runs").fetchone()[0] or 0, 0)
        if total <= MOST_BYTES:
            return
        units: dict[str, list[IndexedRun]] = {}
        for run in self._select("ORDER BY time DESC"):
            if self._owns(run.path):
                units.setdefault(Path(run.path).relative_to(self.journals).parts[0], []).append(run)
        total = sum(run.bytes for unit in units.values() for run in unit)
        for unit in reversed([*units.values()][1:]):
            if total > MOST_BYTES:
                self._delete(unit)
                total -= sum(run.bytes for run in unit)

    def _delete(self, runs: Sequence[IndexedRun]) -> None:
        """Remove the rows of `runs`, and the cache's own journals, but those that a run writes."""
        gone = []
        for run in runs:
            with contextlib.suppress(OSError):
                if self._owns(run.path) and is_journal(run.path):
                    if is_written(Path(run.path)):
                        continue
                    self._remove(Path(run.path))
            gone.append((run.path,))
        self._ask(lambda db: db.executemany("DELETE FROM runs WHERE path = ?", gone), None)

    def _remove(self, journal: Path) -> None:
        """Remove a journal of the cache's own, and its set's folder with the last. Raises `OSError`.

        Where others may write what tells of it, or in its place, it stays, with a warning.
        """
        folder = journal.parent
        if why := next(filter(None, map(untrusted, (self.folder, self.path, self.journals, folder, journal))), ""):
            _warn(f"no journal of the result cache is deleted: {why}")
            return
        journal.unlink()
        lock, index = folder / set_folder.LOCK, folder / set_folder.INDEX
        if folder != self.journals and {*folder.iterdir()} <= {lock, index} and not is_written(lock):
            index.unlink(missing_ok=True)
            lock.unlink(missing_ok=True)
            folder.rmdir()

    def _owns(self, path: str) -> bool:
        """Tell whether a journal is the cache's own, and not elsewhere: by its real path, without links and ``..``."""
        real, journals = Path(path).resolve(), self.journals.resolve()
        return real.is_relative_to(journals) and Path(path) == self.journals / real.relative_to(journals)

    def _forget(self, path: str, why: str) -> None:
        self._ask(lambda db: self._drop(db, IndexedRun(path=path), why), None)

    def _drop(self, db: sqlite3.Connection, run: IndexedRun, why: str) -> None:
        _warn(f"a run of the result cache is left out: {why}")
        db.execute("DELETE FROM runs WHERE path = ?", (run.path,))

    # The index

    def _select(self, where: str, *values: Any) -> list[IndexedRun]:
        named = values[0] if values and isinstance(values[0], dict) else values
        return self._ask(lambda db: _rows(db, where, named), [])

    def _ask(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """Do what `_use` does, for reading: without index and journals nothing is created."""
        return self._use(work, otherwise) if self.path.exists() or self.journals.exists() else otherwise

    def _use(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """Run `work` in one transaction. If the index cannot be used, warn and return `otherwise`."""
        damage: Exception | None = None
        with contextlib.ExitStack() as stack:
            for attempt in (1, 2, 3):
                try:
                    make_private_folder(str(self.folder))
                    if attempt == 2:  # one process makes it again, and the others then find it
                        guard = stack.enter_context(open(self.folder / ".guard", "w"))
                        fcntl.flock(guard, fcntl.LOCK_EX)
                    elif attempt == 3:
                        _warn(f"the index {self.path} was damaged ({damage}), and is made again")
                        Path(part := f"{self.path}.part").unlink(missing_ok=True)
                        with self._opened(part):  # elsewhere: others may still have the damaged one open
                            Path(f"{self.path}-journal").unlink(missing_ok=True)
                        os.replace(part, self.path)
                    with self._opened(self.path) as db, db:
                        return work(db)
                except Exception as error:  # a stranger's row may raise anything
                    damage, code = error, getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
                    damaged = code in _DAMAGE and not isinstance(error, OSError | UnicodeEncodeError)
                    if not damaged or attempt == 3:
                        _warn(f"the result cache {self.folder} cannot be used: {error}")
                        break
        return otherwise

    @contextlib.contextmanager
    def _opened(self, path: str | Path) -> Generator[sqlite3.Connection, None, None]:
        with contextlib.closing(sqlite3.connect(path, timeout=30.0, isolation_level=None)) as db:
            db.execute("PRAGMA synchronous = OFF")  # what is lost is made again
            self._fill(db)
            yield db

    def _fill(self, db: sqlite3.Connection) -> None:
        """Make a new index from the cache's journals. One process makes it, and the others wait."""
        if _is_made(db):
            return
        with db:
            db.execute("BEGIN IMMEDIATE")
            if _is_made(db):
                return
            for statement in _TABLE:
                db.execute(statement)
            for path in [*self.journals.glob("*.jsonl"), *self.journals.glob("*/*.jsonl")]:
                try:
                    _write(db, indexed(str(path), State.of(JournalReader(path))))
                except Exception:  # it may hold what no run wrote
                    _write(db, IndexedRun(path=str(path), time=time.time()))


def _is_made(db: sqlite3.Connection) -> bool:
    return bool(db.execute("PRAGMA user_version").fetchone()[0])


def _serves(run: IndexedRun, header: RunStarted | None) -> bool:
    """Tell whether a winner serves the run of `header`: a default may be none there, or a constraint may refuse it."""
    if header is None or run.winner != BASELINE or run.config is None:
        return True
    return header.baseline is not None and not header.refused and config_key(header.baseline) == config_key(run.config)


def _is_same(run: IndexedRun, still: Still | None) -> bool:
    """Tell whether a run's winner is still the kernel that was measured; not where its journal does not identify it."""
    return still is None or (bool(run.ir_digest) and still(run.arguments, [(run.config or {}, run.ir_digest)]))


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
        and not any(isinstance(event, RunResumed) and event.accepted for event in past)
        and same_problem(first.arguments, header.arguments)
        and all(getattr(first, name) == getattr(header, name) for name in names)
        and first.settings.get("seed") == header.settings.get("seed")
        and (
            still is None
            or still(first.arguments, [(e.config, e.ir_digest) for e in State.of(past).entries.values() if e.lowered])
        )
    )


def _rows(db: sqlite3.Connection, where: str, values: Any = ()) -> list[IndexedRun]:
    found = []
    for [data] in db.execute(f"SELECT run FROM runs {where}", values):
        if unfit(data) or "\0" in (run := msgspec.json.decode(data, type=IndexedRun)).path:
            raise ValueError("a row that no run wrote")
        found.append(run if run.config is None else msgspec.structs.replace(run, config=with_tuples(run.config)))
    return found


def _write(db: sqlite3.Connection, run: IndexedRun, otherwise: Literal["REPLACE", "IGNORE"] = "REPLACE") -> None:
    values = [*(getattr(run, name) for name in _COLUMNS), msgspec.json.encode(run)]
    db.execute(f"INSERT OR {otherwise} INTO runs VALUES ({', '.join('?' * len(values))})", values)


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)
