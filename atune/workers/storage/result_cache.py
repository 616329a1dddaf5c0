"""Results of tunings and all measurements, in one embedded database.

Many processes may use it at once (SQLite, write-ahead log). A damaged database is moved aside with a warning. If the
database cannot be used, the run continues without the cache.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from atune.journal.events import (
    AnyEvent,
    BenchmarkFailed,
    BuildFailed,
    CandidateMeasured,
    CandidatePruned,
    Event,
    RunResumed,
    RunStarted,
    decode,
    encode,
)
from atune.journal.result import Result, TuneResult
from atune.journal.state import State
from atune.model.artifact import StaticFacts
from atune.model.candidate import Config, config_key, thaw
from atune.model.folders import cache_folder, make_private_folder
from atune.model.settings import Budget
from atune.workers.storage.result_key import (
    CacheEntry,
    ResultKey,
    exported,
    result_key,
    same_problem,
    served_to,
)

T = TypeVar("T")

SCHEMA = 1
"""Version of the database's tables."""

UNUSABLE = "the result cache cannot be used"
"""Why a result is not kept where the database is no use."""
THERE = "it is there already"
"""Why a result is not kept that was kept before."""

LASTING = ("lower", "codegen", "compile", "launch", "out_of_bounds", "mismatch", "non_finite", "unwritten")
"""Kinds of failure that come back with the same code. The others (a deadline, a lost process, memory that was short)
are tried again."""

_Row = tuple[str, str, float | None, float | None, float]

_TABLES = """
CREATE TABLE IF NOT EXISTS results (
    key TEXT PRIMARY KEY, work TEXT NOT NULL, parts TEXT NOT NULL, kernel TEXT NOT NULL, config TEXT NOT NULL,
    latency_ms REAL, reference_ms REAL, created REAL NOT NULL, used REAL NOT NULL, events BLOB
);
CREATE INDEX IF NOT EXISTS results_work ON results (work);
CREATE TABLE IF NOT EXISTS measurements (
    work TEXT NOT NULL, config_key TEXT NOT NULL, known BLOB NOT NULL, created REAL NOT NULL,
    PRIMARY KEY (work, config_key)
) WITHOUT ROWID;
"""


class Known(msgspec.Struct, frozen=True):
    """Outcome of one configuration in earlier runs."""

    config: Config
    code_key: str
    facts: StaticFacts
    outcome: CandidateMeasured | BuildFailed | BenchmarkFailed | CandidatePruned


def known_of(state: State) -> Iterator[Known]:
    """Yield the lasting outcomes of a run: measurements, and failures that would happen again."""
    for entry in state.entries.values():
        outcome = state.outcome(entry.index)
        if outcome is None or not entry.key:
            continue
        if isinstance(outcome, BuildFailed | BenchmarkFailed) and outcome.kind not in LASTING:
            continue
        yield Known(dict(entry.config), entry.code_key, entry.facts or StaticFacts(), outcome)


class ResultCache:
    """The database in `folder` (default: the user's cache folder). It is created with the first stored result.

    Each call opens a new connection, so threads and forks never share one. Calls are rare.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(folder) if folder is not None else cache_folder() / "results"
        self.path = self.folder / "results.sqlite3"

    def find(self, key: ResultKey, header: RunStarted | None = None) -> TuneResult | None:
        """Return the result under `key`, with `cache_hit` set; None if it is missing. `header`: as for `events`."""
        events = self.events(key, header)
        result = Result.from_events(events, replayed=True) if events else None
        if not isinstance(result, TuneResult):
            return None
        result.cache_hit = True
        return result

    def events(self, key: ResultKey, header: RunStarted | None = None) -> list[Event]:
        """Return the events of the run behind the result under `key`; empty where there is none, or it is damaged.

        `header`: the run that asks, as for `served_to`: its kernel has the same code, perhaps in another file.
        """
        packed = self._packed(key)
        try:
            return [] if packed is None else served_to(header, _unpacked(packed))
        except (zlib.error, msgspec.MsgspecError, ValueError) as error:
            _warn(f"the cached result {key.text} of {key.kernel} is damaged and left out ({error})")
            self._use(lambda db: db.execute("DELETE FROM results WHERE key = ?", (key.text,)), None)
            return []

    def find_entry(self, key: ResultKey) -> CacheEntry | None:
        """Return the entry under `key`."""
        return next(iter(self.entries(key=key.text)), None)

    def _packed(self, key: ResultKey) -> bytes | None:
        def ask(db: sqlite3.Connection) -> bytes | None:
            row = db.execute("SELECT events FROM results WHERE key = ?", (key.text,)).fetchone()
            if row is None or row[0] is None:
                return None
            db.execute("UPDATE results SET used = ? WHERE key = ?", (time.time(), key.text))
            return bytes(row[0])

        return self._ask(ask, None)

    def put_run(self, events: Sequence[Event]) -> str:
        """Store what a run found, under the key in its header. Returns why its result is not kept, or an empty text."""
        header = events[0]
        if not isinstance(header, RunStarted) or (key := result_key(header)) is None:
            return "an older atune began the run, and did not record what its result depends on"
        if any(isinstance(event, RunResumed) and event.accepted for event in events):
            return "the run was continued with other work than it began with (accept)"
        return self.put(key, events)

    def put(self, key: ResultKey, events: Sequence[Event]) -> str:
        """Store all measurements of a run, and its result if it has a winner, unless it or a later one is there.

        Returns why the result is not kept, or an empty text.
        """
        state = State.of(events)
        result, now = Result.of(state, replayed=True), events[-1].time  # an imported journal may be a stranger's
        measured = list(known_of(state))
        why_not, row = _incomplete(result, state), None
        if not why_not:
            row = (
                key.text, key.work, _text(key), key.kernel, _text(result.best_config), result.latency_ms,
                result.reference_ms, now, time.time(), _packed(events),
            )  # fmt: skip

        def write(db: sqlite3.Connection) -> str:
            db.executemany(
                "INSERT INTO measurements VALUES (?, ?, ?, ?) ON CONFLICT (work, config_key) DO UPDATE "
                "SET known = excluded.known, created = excluded.created WHERE excluded.created >= created",
                [(key.work, config_key(k.config), msgspec.json.encode(k), now) for k in measured],
            )
            if row is None:
                return why_not
            there = "SELECT created FROM results WHERE key = ? AND created >= ? AND events IS NOT NULL"
            if (known := db.execute(there, (key.text, now)).fetchone()) is not None:
                return "a later result of the same work is there" if known[0] > now else THERE
            db.execute(f"INSERT OR REPLACE INTO results VALUES ({', '.join('?' * len(row))})", row)
            return ""

        return self._use(write, UNUSABLE)

    def known(self, key: ResultKey, configs: Iterable[Config]) -> dict[str, Known]:
        """Return the outcomes of `configs` in earlier runs of the same work, by config key."""
        wanted = {config_key(config) for config in configs}
        query = "SELECT config_key, known FROM measurements WHERE work = ?"
        rows: list[tuple[str, bytes]] = self._ask(lambda db: db.execute(query, (key.work,)).fetchall(), [])
        found = {}
        for name, text in rows:
            if name in wanted:
                with contextlib.suppress(msgspec.MsgspecError):  # of another version: measured again
                    found[name] = msgspec.json.decode(text, type=Known)
        return found

    def entries(
        self, *, kernel: str | None = None, key: str | None = None, work: str | None = None
    ) -> list[CacheEntry]:
        """Return the results, newest first. `kernel`: only this kernel's name. `key`: only keys that begin with it.

        `work`: only results of this work.
        """
        where, values = _where(kernel=kernel, key=key, work=work)
        rows: list[_Row] = self._ask(
            lambda db: db.execute(f"{_SELECT} {where} ORDER BY created DESC", values).fetchall(), []
        )
        return _entries(rows)

    def clear(
        self,
        *,
        kernel: str | None = None,
        key: str | None = None,
        chosen: Callable[[CacheEntry], bool] | None = None,
        problem: Any = None,
    ) -> int:
        """Remove results and the measurements of the same work. Returns the number of results.

        `kernel`: the kernel's name. `key`: the beginning of the key. `chosen`: tells whether a result is meant.
        `problem`: the problem's key. Without any of them, everything is removed.
        """
        found = [
            entry
            for entry in self.entries(kernel=kernel, key=key)
            if (chosen is None or chosen(entry)) and (problem is None or same_problem(problem, entry.parts.problem))
        ]
        everything = kernel is None and key is None and chosen is None and problem is None

        def write(db: sqlite3.Connection) -> None:
            if everything:
                db.execute("DELETE FROM results")
                db.execute("DELETE FROM measurements")
                return
            db.executemany("DELETE FROM results WHERE key = ?", [(e.key,) for e in found])
            db.executemany("DELETE FROM measurements WHERE work = ?", [(e.parts.work,) for e in found])

        self._ask(write, None)
        return len(found)

    def export(self, *, kernel: str | None = None, key: str | None = None) -> bytes:
        """Return results as JSON that can be shipped with a library: keys, winners and latencies, no libraries."""
        return exported(self.entries(kernel=kernel, key=key))

    def _ask(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """Do what `_use` does, for reading: a missing database is not created."""
        return self._use(work, otherwise) if self.path.exists() else otherwise

    def _use(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """Run `work` in one transaction. If the database cannot be used, warn and return `otherwise`."""
        for attempt in (1, 2):
            try:
                with contextlib.closing(self._open()) as db, db:
                    return work(db)
            except (sqlite3.Error, OSError) as error:
                if attempt == 1 and _damaged(error):
                    self._move_aside(error)
                    continue
                _warn(f"the result cache {self.path} cannot be used: {error}")
                break
        return otherwise

    def _open(self) -> sqlite3.Connection:
        make_private_folder(str(self.folder))
        db = sqlite3.connect(self.path, timeout=30.0)
        try:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA:
                raise sqlite3.NotSupportedError(f"a newer atune made it (schema {version}; this one reads {SCHEMA})")
            if version < SCHEMA:
                with self._guard(), db:  # one at a time: switching to the log waits for nobody
                    db.execute("PRAGMA journal_mode = WAL")
                    db.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;")
            db.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            db.close()
            raise
        return db

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        with open(self.folder / ".guard", "w") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            yield

    def _move_aside(self, error: BaseException) -> None:
        """Move a damaged database aside. One process moves it, and the others then find it gone."""
        with self._guard():
            try:
                with contextlib.closing(sqlite3.connect(self.path)) as db:
                    if db.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok":
                        return
            except sqlite3.Error as again:
                if not _damaged(again):
                    return
            aside = self.path.with_name(f"damaged-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.sqlite3")
            for suffix in ("", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{self.path}{suffix}", f"{aside}{suffix}")
        _warn(f"the result cache was damaged ({error}): it was moved to {aside}, and a new one was started")


def _incomplete(result: Result, state: State) -> str:
    """Return why a run's winner is not the result of the whole search that its header asks for; empty where it is."""
    if result.best is None:
        return "it has no winner"
    if not result.finished:
        return "it has not ended"
    if result.reason == "stopped":
        return "it was stopped"
    if state.header is not None and state.resumed is not None and result.reason == "budget":
        from atune.engine.plan import finished

        if not finished(state, msgspec.convert(state.header.settings["budget"], Budget)):
            return "it was continued with a smaller budget"
    return ""


_SELECT = "SELECT parts, config, latency_ms, reference_ms, created FROM results"


def _entries(rows: Iterable[_Row]) -> list[CacheEntry]:
    found = []
    for parts, config, latency_ms, reference_ms, created in rows:
        with contextlib.suppress(msgspec.MsgspecError):  # of another version
            found.append(
                CacheEntry(
                    parts=msgspec.json.decode(parts, type=ResultKey),
                    config=thaw(msgspec.json.decode(config)),
                    latency_ms=latency_ms,
                    reference_ms=reference_ms,
                    created=created,
                )
            )
    return found


def _where(**values: str | None) -> tuple[str, dict[str, str | None]]:
    texts = {"kernel": "kernel = :kernel", "key": "substr(key, 1, length(:key)) = :key", "work": "work = :work"}
    conditions = [text for name, text in texts.items() if values[name] is not None]
    return (f"WHERE {' AND '.join(conditions)}" if conditions else ""), values


def _text(value: Any) -> str:
    """Return `value` as JSON. Its axes and arguments keep the order in which the user gave them."""
    return msgspec.json.encode(value).decode()


def _packed(events: Iterable[Event]) -> bytes:
    return zlib.compress(b"\n".join(encode(event) for event in events))


def _unpacked(packed: bytes) -> list[AnyEvent]:
    return [decode(line) for line in zlib.decompress(packed).splitlines()]


def _damaged(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)
