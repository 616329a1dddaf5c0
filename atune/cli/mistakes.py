"""What ended a command: told on stderr, and with ``--json`` as an object on stdout, too."""

from __future__ import annotations

import json as data
from typing import TYPE_CHECKING, Any

from atune.cli.printing import OutputLost, complain, mutter, say
from atune.errors import AtuneError, UsageError, WorkerError, message_of

if TYPE_CHECKING:
    from atune.journal.result import TuneResult

NO_WINNER, USAGE = 1, 2


def report_error(error: BaseException, *, debug: bool, json: bool = False, result: TuneResult | None = None) -> int:
    """Print the error on stderr and return the exit status. A caller's mistake takes one line, and its place more.

    `json`: the last line of stdout tells it, too, beside what `result` has.
    """
    if debug:
        import traceback

        mutter("".join(traceback.format_exception(error)))
    error = _only_error(error)
    if isinstance(error, AtuneError):
        complain(str(error))
        if isinstance(error, WorkerError) and error.detail:
            mutter("".join(f"    {line}\n" for line in error.detail.splitlines()[-20:]))
    else:
        hint = "" if debug else "; add --debug to see where"
        complain(f"{type(error).__name__}: {error} (this is a bug in atune{hint})")
    if json and not isinstance(error, OutputLost):
        _say_error(error, result)
    return USAGE if isinstance(error, UsageError) else NO_WINNER


def error_data(error: BaseException) -> dict[str, Any]:
    """Return what ``--json`` prints of an error: its class, its message, and the place in the user's code or None."""
    import msgspec

    from atune.system.places import place_in

    message = message_of(error)
    detail = error.detail if isinstance(error, WorkerError) else ""
    where = place_in(message) or place_in(detail)
    return {
        "kind": type(error).__name__,
        "message": message.partition("\n  File ")[0],
        "where": msgspec.to_builtins(where),
    }


def _say_error(error: BaseException, result: TuneResult | None) -> None:
    from atune.reporting.summary import summary

    known = {} if result is None else summary(result)
    try:
        say(data.dumps({**known, "error": error_data(error)}))
    except (BrokenPipeError, OutputLost):
        pass  # stderr has it


def _only_error(error: BaseException) -> BaseException:
    """Return the error that a task group wrapped. If several failed at once, the caller's mistake comes first."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    inner = [_only_error(e) for e in error.exceptions]
    ranks: tuple[type[BaseException], ...] = (UsageError, AtuneError, BaseException)
    return next(e for kind in ranks for e in inner if isinstance(e, kind))
