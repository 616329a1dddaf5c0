"""Single flight: one thread or task does the work of a key, and the others wait for its outcome."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import anyio

from atune.errors import UsageError

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

WAIT_S = 0.02
"""Seconds between two checks of a task whether another one has finished the work that it needs."""


class _Flight(Generic[T]):
    """Work under way. `done` gets its outcome: None if it was cancelled, so that a waiter may take over."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.done: concurrent.futures.Future[T | None] = concurrent.futures.Future()
        self.outcome: T | None = None


class SingleFlight(Generic[K, T]):
    """Known outcomes by key, and work under way. `name`: whose work it is, for messages."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.known: dict[K, T] = {}
        self._running: dict[K, _Flight[T]] = {}
        self._lock = threading.Lock()

    def keep(self, key: K, value: T) -> T:
        """Remember `value` unless the key already has one. Returns the remembered value."""
        with self._lock:
            return self.known.setdefault(key, value)

    def forget(self, key: K | None = None) -> None:
        """Forget the outcome of `key`, or all outcomes."""
        with self._lock:
            if key is None:
                self.known.clear()
            else:
                self.known.pop(key, None)

    def run(self, key: K, work: Callable[[], T]) -> T:
        """Return the outcome of `key`: known, of the thread or task that is at it, or of `work`; blocking.

        Raises what the work raises. Raises `UsageError` where a task of this very thread is at it: waiting would
        block that task.
        """
        while True:
            flight, mine = self._claim(key)
            if mine:
                with self._leading(key, flight):
                    flight.outcome = work()
                return flight.outcome
            if flight.thread == threading.get_ident() and not flight.done.done():
                raise UsageError(
                    f"a task of this thread's event loop is tuning {self.name}, and waiting here would block that "
                    "task. Before the call, await tune_async(…) with the same arguments"
                )
            if (found := flight.done.result()) is not None:
                return found

    async def run_async(self, key: K, work: Callable[[], Awaitable[T]]) -> tuple[T, bool]:
        """Do what `run` does, awaiting. Returns the outcome, and whether `work` was awaited for it."""
        while True:
            flight, mine = self._claim(key)
            if mine:
                with self._leading(key, flight):
                    flight.outcome = await work()
                return flight.outcome, True
            while not flight.done.done():
                await anyio.sleep(WAIT_S)
            if (found := flight.done.result()) is not None:
                return found, False

    def _claim(self, key: K) -> tuple[_Flight[T], bool]:
        """Return the work under way, or one that is done if the outcome is known; and whether the caller must do it."""
        with self._lock:
            if (flight := self._running.get(key)) is not None:
                return flight, False
            flight = _Flight()
            if (known := self.known.get(key)) is not None:
                flight.done.set_result(known)
                return flight, False
            self._running[key] = flight
            return flight, True

    @contextmanager
    def _leading(self, key: K, flight: _Flight[T]) -> Iterator[None]:
        """End the work for all waiters, with any outcome."""
        raised: Exception | None = None
        try:
            yield
        except Exception as error:
            raised = error
            raise
        finally:
            with self._lock:
                self._running.pop(key, None)
                if flight.outcome is not None:
                    self.known[key] = flight.outcome
            if raised is not None:
                flight.done.set_exception(raised)
            else:
                flight.done.set_result(flight.outcome)
