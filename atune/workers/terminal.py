"""Interrupts and standard streams of the command line."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Self, TextIO

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def end_at_once(number: int, frame: FrameType | None) -> None:
    """End the process, because a signal has arrived while a command is being imported, and nothing is open yet. A
    KeyboardInterrupt could be lost in a destructor of the import system."""
    os.write(2, b"atune: interrupted\n")
    os._exit(130)


class Interrupts:
    """Turns the first of `SIGNALS` into a KeyboardInterrupt. Later signals are only counted.

    Python drops an exception that a destructor raises. If the signal came in a destructor, the KeyboardInterrupt is
    raised again soon afterwards.

    If SIGHUP is already ignored, for example because of `nohup`, it stays ignored. `keep`: on exit, leave the handlers
    installed, for a process that is about to end.
    """

    def __init__(self, *, keep: bool) -> None:
        self.count = 0
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self.signals = tuple(number for number in SIGNALS if not (ignored and number is signal.SIGHUP))
        """The signals that interrupt this process."""
        self._keep = keep
        self._leaves = keep
        """Whether a signal ends the process immediately. True while a command is being imported."""
        self._raises, self._raised = True, False
        self._before: dict[signal.Signals, Any] = {}
        self._report_unraisable = sys.unraisablehook

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python refuses handlers in other threads
            for number in self.signals:
                self._before[number] = signal.signal(number, self._on_signal)
            sys.unraisablehook = self._on_unraisable
        return self

    def __exit__(self, *_: object) -> None:
        self._raises = False
        if not self._keep:
            for number, handler in self._before.items():
                signal.signal(number, handler)
            sys.unraisablehook = self._report_unraisable

    def loaded(self) -> None:
        """From now on, raise `KeyboardInterrupt` at a signal, because the command has been imported.

        Before, a signal ended the process, because nothing was open, and an exception could crash a module such as
        msgspec.
        """
        self._leaves = False

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Inside the block, only count signals. The block's event loop receives the signals, and cancels the block's
        work.

        If a signal came before the block, raises `KeyboardInterrupt`, because a destructor may have lost the first
        exception.
        """
        self._raises = False
        if self.count:
            raise KeyboardInterrupt
        try:
            yield
        finally:
            for number in self._before:  # the event loop has set Python's defaults
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self._leaves:
            end_at_once(number, frame)
        if self._raises and not self._raised:
            self._raised = True
            raise KeyboardInterrupt

    def _on_unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._report_unraisable(unraisable)
            return
        self._raised = False
        signal.signal(signal.SIGALRM, self._on_signal)
        signal.setitimer(signal.ITIMER_REAL, 0.05)  # last, because an exception raised here would be lost, too


def prepare() -> None:
    """Make stdin, stdout and stderr usable.

    The null device replaces a closed stream. Otherwise a journal could get the stream's descriptor, and printed text
    would end up in the journal. If a stream cannot encode a character, the stream gets an escape instead.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is `number`
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def discard(stream: TextIO, number: int) -> None:
    """Discard the rest of `stream`'s buffer and all later writes, because Python would fail to write them at exit."""
    with suppress(OSError, ValueError):
        if stream.fileno() == number:
            fd = os.open(os.devnull, os.O_WRONLY)
            os.dup2(fd, number)
            os.close(fd)
