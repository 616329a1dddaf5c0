"""What a run raises: the error that counts among several, what the machine is short of, and that nothing worked."""

from __future__ import annotations

import asyncio
import errno
import resource
import sys
import tempfile

from atune.errors import AtuneError, UsageError
from atune.journal.result import TuneResult
from atune.local.patience import machine_error
from atune.system.resources import shortage_of


def unwrapped(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the one error that matters in a task group's exception group, or the group if there are several."""
    found: list[BaseException] = []
    queue: list[BaseException] = [group]
    while queue:
        error = queue.pop()
        if isinstance(error, BaseExceptionGroup):
            queue += error.exceptions
        else:
            found.append(error)
    ours = [e for e in found if isinstance(e, AtuneError)]
    # On trio each task may raise a cancellation; beside an error, it is only the error's consequence.
    cancelled = [asyncio.CancelledError] + ([sys.modules["trio"].Cancelled] if "trio" in sys.modules else [])
    others = [e for e in found if not isinstance(e, tuple(cancelled))] or found[:1]
    return ours[0] if ours else others[0] if len(others) == 1 else group


def of_the_machine(error: OSError) -> Exception:
    """Return the exception to raise for `error`. If the machine is short of something, it says what to do."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return too_many_files(error)
    if (short_of := shortage_of(error)) is None:
        return error
    said = machine_error(short_of, tempfile.gettempdir())
    said.__cause__ = error
    return said


def too_many_files(error: OSError) -> UsageError:
    """Return the exception to raise if no more files can be opened. It names the limit and says what to do."""
    if error.errno == errno.ENFILE:
        said = UsageError("the machine has too many files open: end the programs that hold them, or try again later")
    else:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        said = UsageError(
            f"this process may have {most} files open, and needs more: raise that (ulimit -n 1024), or use fewer "
            "workers (--workers, CompileSettings(workers=…))"
        )
    said.__cause__ = error
    return said


def no_winner_message(result: TuneResult) -> str:
    """Return the message that no candidate worked, with counted reasons. The most frequent comes first."""
    from atune.reporting.summary import failure_summary, first_failure_lines  # rare, and not needed to import atune

    if not result.total or result.remaining == result.total:
        return "no candidate was tried: the budget ended before the first one"
    counts = (
        f"{result.failed} failed, {result.pruned} pruned, {result.duplicates} duplicates, {result.remaining} not tried"
    )
    lines = [f"  {count} × {kind}: {message}" for kind, message, count in failure_summary(result.records)[:10]]
    taught = [f"    {line}" for line in first_failure_lines(result)]
    return "\n".join([f"no candidate worked ({counts}):", *lines, *taught])
