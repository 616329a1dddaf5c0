"""The commands that take a journal. Only ``resume`` runs code of the workload; what each needs is imported inside it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atune.events import Event
    from atune.interrupts import Interrupts
    from atune.result import TuneResult


def add_journal_commands(commands: Any, shown: argparse.ArgumentParser) -> None:
    """Add the commands' parsers to `commands`; `shown` has the options that all have."""

    def add(name: str, command: Callable[..., int], text: str, *, many: bool = False) -> argparse.ArgumentParser:
        help = f"{text[0].lower()}{text[1:]}"
        parser: argparse.ArgumentParser = commands.add_parser(
            name, parents=[shown], allow_abbrev=False, help=help, description=f"{text}."
        )
        parser.set_defaults(command=command)
        parser.add_argument("journal", metavar="J", nargs="+" if many else None, help="the journal's path")
        return parser

    parser = add("resume", _resume, "Go on with a run that was interrupted")
    parser.add_argument("--workload", metavar="FILE.py:NAME", help="in place of the one that the journal names")
    parser.add_argument("--force-part", action="append", default=[], metavar="PART", help=_PARTS)
    parser.add_argument("--budget", metavar="N|90s", help="of all parts together, in place of the journal's")
    parser.add_argument("--devices", metavar="all|cpu|0,1", help="in place of the journal's")
    parser.add_argument("--table", action="store_true", help="print every candidate")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.add_argument("--verbose", action="store_true", help="every event on stderr, instead of progress")
    parser.add_argument("--log-json", action="store_true", help="as --verbose, one JSON object an event")

    parser = add("replay", _replay, "Show a journal's result; runs no code")
    parser.add_argument("--table", action="store_true", help="print every candidate")
    parser.add_argument("--salvage", action="store_true", help="leave out what is damaged, and say what")


_PARTS = "accept that kernel, space, target, device, versions or settings differ; repeatable"


def _resume(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    from atune.cli import complain
    from atune.cli_tune import drive
    from atune.continuation import options_of, origin_of, read_state, resume
    from atune.resumption import check_parts
    from atune.settings import Budget

    check_parts(arguments.force_part)
    state = read_state(arguments.journal)
    options: dict[str, Any] = {}
    if arguments.budget is not None:
        options["budget"] = Budget.parse(arguments.budget)
    if arguments.devices is not None:
        options["devices"] = tuple(name.strip() for name in arguments.devices.split(","))
    workload = arguments.workload or (None if state.finished else origin_of(state.header))
    budget: Budget = options.get("budget") or options_of(state.header)["budget"]
    if workload is not None:  # said first: going on runs that file
        complain(f"going on with {workload}, {state.settled} of {state.total} candidates done", kind="")

    def call(on_event: Callable[[Event], None]) -> Awaitable[TuneResult]:
        return resume(arguments.journal, workload, force_parts=arguments.force_part, on_event=on_event, **options)

    return drive(call, budget, arguments.journal, arguments, interrupts)


def _replay(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    from atune.cli import complain, show
    from atune.playback import salvage

    if not arguments.salvage:
        from atune.playback import replay

        return show(replay(arguments.journal), arguments)
    result, lost = salvage(arguments.journal)
    for text in lost[:20]:
        complain(text, kind="salvage: ")
    if len(lost) > 20:
        complain(f"{len(lost) - 20} more", kind="salvage: ")
    complain("nothing is lost" if not lost else "the result below is without that", kind="salvage: ")
    sys.stderr.flush()
    return show(result, arguments)
