"""The commands that take a journal. Only ``resume`` runs code of the workload, in workers.

A command imports itself what only it needs and takes long.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from atune.frontends.api.options import RunOptions
from atune.frontends.cli.main import show, show_set
from atune.frontends.cli.options import CommandOptions, add_options
from atune.frontends.cli.output import print_message, print_out, write
from atune.frontends.cli.parsing import Parser, add_command
from atune.frontends.cli.runs import JOURNAL, add_accept, add_journal, add_workload, find_journal
from atune.journal.events import RunStarted
from atune.journal.merge import merge
from atune.journal.reader import follow, replay
from atune.journal.result import Result
from atune.journal.set_folder import header_of_set
from atune.journal.state import finished, header_in
from atune.journal.writer import is_written
from atune.model.candidate import over_sizes
from atune.reporting.export import export
from atune.workers.system.terminal import Interrupts


def add_commands(commands: Any, shown: Parser) -> None:
    """Add the commands' parsers to `commands`. `shown` holds the options that all commands share."""

    def add(name: str, command: Callable[..., int], text: str) -> Parser:
        parser = add_command(commands, shown, name, command, text)
        add_journal(parser)
        return parser

    resume = add("resume", _resume, "Continue an interrupted run")
    add_workload(resume)
    add_accept(resume, "accept that kernel, target, device, versions or settings differ")
    add_options(resume, RunOptions, "budget", "devices", "cluster", unset="the journal's")
    add_options(resume, CommandOptions, "quiet")

    every = "print every candidate"
    replay = add("replay", _replay, "Show a journal's result; runs no code")
    replay.add_argument("--table", action="store_true", help=every)

    watch = add("watch", _watch, "Follow a run that another process writes; runs no code")
    watch.add_argument("--table", action="store_true", help=every)

    report = add("report", _report, "Write a journal's report as one HTML page; runs no code")
    report.add_argument(
        "-o", "--output", metavar="FILE", help="the page's path, - for stdout [default: the journal's name, .html]"
    )

    export = add("export", _export, "Write a journal's records for other tools; runs no code")
    export.add_argument("--to", required=True, metavar="csv|json", help="the format")
    export.add_argument("-o", "--output", metavar="FILE", help="where [default: stdout]")

    text = "Merge several journals of the same work into one; runs no code"
    merge = add_command(commands, shown, "merge", _merge, text)
    add_journal(merge, nargs="+")
    merge.add_argument("-o", "--output", metavar="FILE", help="the new journal [default: none is written]")
    merge.add_argument("--table", action="store_true", help=every)

    text = "Compare the winners of two journals or folders of them; status 1 where one is slower; runs no code"
    compare = add_command(commands, shown, "compare", _compare, text)
    for name in ("before", "after"):
        compare.add_argument(
            name, metavar="J", type=find_journal, help=f"the journal {name}, as elsewhere; or a folder"
        )
    limit = "status 1 where a winner is slower by more, with its whole interval [default: 2%%]"
    compare.add_argument("--fail-over", metavar="X%", type=_percentage, default=0.02, help=limit)

    text = "Write winners and their libraries as a bundle; it runs without tilelang"
    bundle = add_command(commands, shown, "bundle", _bundle, text)
    add_journal(bundle, nargs="+", help=f"{JOURNAL}, or the folder of a set")
    bundle.add_argument("-o", "--output", metavar="DIR", required=True, help="the new folder")
    add_accept(bundle, "accept that compilers get a journal's settings")


def _percentage(text: str) -> float:
    """Read ``2%``. A number alone is refused: it may be meant as a share."""
    if not re.fullmatch(r"\d+(\.\d*)?%", text):
        raise argparse.ArgumentTypeError(f"must be a percentage, zero or more, such as 2%, got {text!r}")
    return float(text[:-1]) / 100


def _resume(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    from atune.engine.start import check_parts
    from atune.frontends.api.resume import completed_by, options_of, origin_of, read_state, resume
    from atune.frontends.api.tune_set import read_set, resume_set
    from atune.frontends.cli.tune import drive, drive_set

    check_parts(arguments.accept)
    say = functools.partial(print_message, kind="")
    options: dict[str, Any] = {"accept": arguments.accept}
    given = {"budget": arguments.budget, "cluster": arguments.cluster, "devices": ",".join(arguments.devices)}
    options |= {name: value for name, value in given.items() if value}
    journal, workload = arguments.journal, arguments.workload
    of_set = os.path.isdir(journal)
    if of_set:
        found, header = read_set(journal), header_of_set(Path(journal))
        done, text = "budget" not in options and not any(row.unfinished for row in found), f"the problems of {journal}"
    else:
        state = read_state(journal)
        header = header_in(state)
        done = finished(state, options.get("budget") or options_of(header)["budget"])
        text = f"{journal}, {state.settled} of {state.total} candidates done"
        del state  # the run folds its own
    say(_finished(journal, header) if done else f"resuming {text}")
    if header is not None and not done:
        completed_by(header, {"accept": arguments.accept})
        workload = workload or origin_of(header, say=say)
    if not of_set:
        return drive(functools.partial(resume, journal, workload, **options), journal, arguments, interrupts)
    if done:
        return show_set(found, arguments)
    return drive_set(functools.partial(resume_set, journal, workload, **options), journal, arguments, interrupts)


def _finished(journal: str, header: RunStarted | None) -> str:
    """Return that a run or a set has ended, and whether its file was written since it began."""
    from atune.workload.pickling import edited_since

    file = edited_since(header.origin, header.time) if header else ""
    text = f"the run of {journal} is finished: nothing is left to do, and this is its result"
    anew = f". {file} was written since: atune tune {shlex.quote(file)} tunes it as it is now"
    return text + (anew if file else "")


def _replay(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    if os.path.isdir(arguments.journal):
        from atune.frontends.api.tune_set import read_set

        return show_set(read_set(arguments.journal), arguments)
    return show(replay(arguments.journal), arguments)


def _watch(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    import anyio

    from atune.reporting.progress import Progress

    async def look(progress: Progress) -> None:
        told = False
        async for each in follow(arguments.journal):
            if each is not None:
                progress.on_event(each)
            elif not told and not is_written(Path(arguments.journal)):
                told = True
                print_message("no run on this machine writes it; press Ctrl-C to leave", kind="")

    with Progress() as progress:
        anyio.run(look, progress)
    return show(Result.of(progress.state, arguments.journal, replayed=True), arguments)


def _report(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    journal = Path(arguments.journal)
    if journal.is_dir():
        from atune.reporting.set_table import set_report

        page, output = set_report(journal), f"{journal.resolve()}.html"
    else:
        from atune.reporting.report import report

        page, output = report(journal), str(journal.with_suffix(".html"))
    return write(page.encode(), arguments.output or output, "report  ", arguments)


def _export(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    return write(export(arguments.journal, arguments.to), arguments.output or "-", "exported", arguments)


def _merge(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    result = merge(arguments.journal, arguments.output)
    if arguments.output is None:
        print_message("nothing was written: add -o FILE to write the journal", kind="")
    return show(result, arguments)


def _compare(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    import msgspec

    from atune.reporting.sets import compare

    found = compare(arguments.before, arguments.after, fail_over=arguments.fail_over)
    print_out(json.dumps({"slower": len(found.slower), **msgspec.to_builtins(found)}) if arguments.json else str(found))
    return 1 if found.slower else 0


def _bundle(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    from atune.frontends.api.save_bundle import save_bundle

    results = [result for journal in arguments.journal for result in _winners(journal)]
    folder, n = arguments.output, sum(not over_sizes(result.header.arguments) for result in results)
    say = functools.partial(print_message, kind="")
    digest = save_bundle(folder, results, accept=arguments.accept, say=say)
    if arguments.json:
        print_out(json.dumps({"output": folder, "problems": n, "digest": digest}))
    else:
        print_out(f"bundle     {folder}, {n} problem{'s' * (n > 1)}\ndigest     {digest}")
    return 0


def _winners(journal: str) -> list[Result]:
    """Return the result of a journal, or those of a set's problems that have a winner, and of what ranked for them."""
    if not os.path.isdir(journal):
        return [replay(journal)]
    from atune.frontends.api.save_bundle import rankings_of
    from atune.frontends.api.tune_set import read_set

    found = read_set(journal)
    if left := len(found) - len(found.winners):
        print_message(f"{left} of {len(found)} problems in {journal} have no winner, and are left out", kind="")
    return [*found.results, *rankings_of(found.folder)]
