"""The commands that take a journal. Only ``resume`` runs code of the workload, in workers.

A command imports itself what only it needs and takes long.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shlex
from pathlib import Path
from typing import Any

from atune.frontends.cli.main import show, show_set
from atune.frontends.cli.output import print_message, print_out, write
from atune.journal.events import RunStarted
from atune.journal.merge import merge
from atune.journal.reader import follow, replay
from atune.journal.result import Result
from atune.journal.set_folder import header_of_set
from atune.journal.state import finished, header_in
from atune.journal.writer import is_written
from atune.reporting.export import export
from atune.workers.terminal import Interrupts


def resume_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    from atune.engine.settings import check_parts
    from atune.frontends.cli.tune import drive, drive_set
    from atune.frontends.resume import completed_by, options_of, origin_of, read_state, resume
    from atune.frontends.tune_set import read_set, resume_set

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


def replay_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    if os.path.isdir(arguments.journal):
        from atune.frontends.tune_set import read_set

        return show_set(read_set(arguments.journal), arguments)
    return show(replay(arguments.journal), arguments)


def watch_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
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


def report_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    journal = Path(arguments.journal)
    if journal.is_dir():
        from atune.reporting.set_table import set_report

        page, output = set_report(journal), f"{journal.resolve()}.html"
    else:
        from atune.reporting.report import report

        page, output = report(journal), str(journal.with_suffix(".html"))
    return write(page.encode(), arguments.output or output, "report  ", arguments)


def export_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    return write(export(arguments.journal, arguments.to), arguments.output or "-", "exported", arguments)


def merge_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    result = merge(arguments.journal, arguments.output)
    if arguments.output is None:
        print_message("nothing was written: add -o FILE to write the journal", kind="")
    return show(result, arguments)


def compare_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    import msgspec

    from atune.reporting.sets import compare

    found = compare(arguments.before, arguments.after, fail_over=arguments.fail_over)
    print_out(json.dumps({"slower": len(found.slower), **msgspec.to_builtins(found)}) if arguments.json else str(found))
    return 1 if found.slower else 0


def bundle_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    from atune.frontends.save_bundle import save_bundle

    results = [result for journal in arguments.journal for result in _winners(journal)]
    folder, n = arguments.output, len(results)
    say = functools.partial(print_message, kind="")
    digest = save_bundle(folder, results, accept=arguments.accept, say=say)
    if arguments.json:
        print_out(json.dumps({"output": folder, "problems": n, "digest": digest}))
    else:
        print_out(f"bundle     {folder}, {n} problem{'s' * (n > 1)}\ndigest     {digest}")
    return 0


def _winners(journal: str) -> list[Result]:
    """Return the result of a journal, or those of a set's problems that have a winner."""
    if not os.path.isdir(journal):
        return [replay(journal)]
    from atune.frontends.tune_set import read_set

    found = read_set(journal)
    if left := len(found) - len(found.winners):
        print_message(f"{left} of {len(found)} problems in {journal} have no winner, and are left out", kind="")
    return found.results
