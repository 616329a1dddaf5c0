"""One tuner per key among threads and tasks; the others wait for it."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Tuning(Generic[T]):
    """Work under way. `done` gets its outcome: None if it was cancelled, so that a waiter may take over."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.done: concurrent.futures.Future[T | None] = concurrent.futures.Future()

    @property
    def is_this_threads(self) -> bool:
        """Whether blocking here would wait forever, because the work is a task of this thread."""
        return self.thread == threading.get_ident()


class Tunings(Generic[T]):
    """Known results and tunings under way, by key."""

    def __init__(self) -> None:
        self.known: dict[str, T] = {}
        self._running: dict[str, Tuning[T]] = {}
        self._lock = threading.Lock()

    def keep(self, key: str, value: T) -> T:
        """Remember `value` unless the key already has one. Returns the remembered value."""
        with self._lock:
            return self.known.setdefault(key, value)

    def forget(self, key: str | None = None) -> None:
        with self._lock:
            if key is None:
                self.known.clear()
            else:
                self.known.pop(key, None)

    def claim(self, key: str) -> tuple[Tuning[T] | None, bool]:
        """Return the work under way and whether the caller must do it, or None if the outcome is known."""
        with self._lock:
            if key in self.known:
                return None, False
            tuning = self._running.get(key)
            if tuning is not None:
                return tuning, False
            self._running[key] = tuning = Tuning()
            return tuning, True

    def leading(self, key: str, tuning: Tuning[T]) -> Leading[T]:
        """Return the context manager for the tuner's work. It yields a function that reports the outcome."""
        return Leading(self, key, tuning)

    def _end(self, key: str, tuning: Tuning[T], outcome: T | None, error: BaseException | None) -> None:
        with self._lock:
            self._running.pop(key, None)
            if outcome is not None:
                self.known[key] = outcome
        if isinstance(error, Exception):
            tuning.done.set_exception(error)
        else:
            tuning.done.set_result(outcome)


class Leading(Generic[T]):
    """Ends a tuning for all waiters, with any outcome."""

    def __init__(self, tunings: Tunings[T], key: str, tuning: Tuning[T]) -> None:
        self._tunings, self._key, self._tuning = tunings, key, tuning
        self._outcome: T | None = None

    def __enter__(self) -> Callable[[T], None]:
        return self._tell

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._tunings._end(self._key, self._tuning, self._outcome, error)

    def _tell(self, outcome: T) -> None:
        self._outcome = outcome
