"""The commands ``atune runs`` and ``atune cache``, and the commands that take a journal.

Only ``resume`` and ``bundle`` run code of a workload, and this code runs in workers. A slow module that only one
command needs is imported by this command.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shlex
from pathlib import Path
from typing import Any

import msgspec

from atune.errors import AtuneError, UsageError
from atune.frontends.cli.commands import SHOWN
from atune.frontends.cli.main import show, show_set
from atune.frontends.cli.output import answer, print_lines, print_message, print_out, write
from atune.frontends.run_options import LATEST
from atune.journal.events import RunStarted
from atune.journal.merge import merge
from atune.journal.reader import follow, replay
from atune.journal.result import Record, Result
from atune.journal.set_folder import LOCK, header_of_set, is_begun, is_set, listed
from atune.journal.state import finished, header_in
from atune.journal.writer import is_written
from atune.model.candidate import describe_config, printable
from atune.reporting.export import aligned, export, record_data, record_lines
from atune.reporting.summary import failure_groups
from atune.reporting.text import Line
from atune.workers.result_cache import ResultCache, run_name, stored_run
from atune.workers.result_key import open_sizes, plain_dtypes
from atune.workers.terminal import Interrupts

FINISHED = "finished"


def find_journal(text: str) -> str:
    """Return the path of a journal. `text`: the path, ``latest``, a number in the list of runs, or the start of a name.

    If several names start with `text`, the newest run is chosen. Raises `UsageError` if no run fits.
    """
    if os.path.exists(text) or os.sep in text:
        return text
    runs = [*_listed()]
    if text == LATEST:
        matching = runs
    elif text.isdecimal():
        matching = runs[int(text) - 1 :] if int(text) else []
    else:  # whole names come first: gemm means gemm-1 before gemm_fp8-2
        matching = [path for start in (f"{text}-", text or "?") for path in runs if run_name(path).startswith(start)]
    if not matching:
        listed = f"{len(runs)} run{'s' if len(runs) != 1 else ''}"
        raise UsageError(f"there is no file and no run named {text!r}: atune runs lists {listed}")
    return str(matching[0])


def _listed() -> dict[Path, list[tuple[Path, float]]]:
    """Return the runs in the result cache, the newest first, by the path of the run's journal or of the set's folder.

    Each run is a list of the run's journals, with the time of the last write to each journal.
    """
    runs: dict[Path, list[tuple[Path, float]]] = {}
    for path, written in ResultCache().runs():
        runs.setdefault(path.parent if is_set(path.parent) else path, []).append((path, written))
    return runs


def runs_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    all_runs = _listed()
    chosen = [*all_runs.items()][: None if arguments.all or arguments.json else SHOWN]
    runs = [
        {"number": number, "journal": str(path), "written": journals[0][1], **_data(path)}
        for number, (path, journals) in enumerate(chosen, 1)
    ]
    if arguments.json:
        print_out(json.dumps({"runs": runs}))
    elif not runs:
        print_out("no runs yet; start with: atune tune FILE.py")
    else:
        print_lines(map(Line, aligned([_HEADS, *map(_row, runs)], numbers=1).splitlines()))
        if len(chosen) < len(all_runs):
            print_out(f"and {len(all_runs) - len(chosen)} older: atune runs --all")
    return 0


def _data(path: Path) -> dict[str, Any]:
    """Return the data that ``--json`` prints about a run or a set."""
    try:
        if path.is_dir():
            return _data_of_set(path)
        run = stored_run(str(path), whole=True)
    except (AtuneError, OSError) as error:
        return {"state": "unreadable", "error": str(error)}
    if run is None:
        return {"state": "starting" if is_written(path) else "unreadable", "error": f"{path} has no complete line"}
    return {
        "kernel": run.header.workload,
        "problem": msgspec.to_builtins(plain_dtypes(run.header.arguments)),
        "target": str(run.header.target),
        "best_config": msgspec.to_builtins(run.config),
        "latency_ms": run.found.latency_ms,
        "tried": run.found.tried,
        "total": run.header.total,
        "state": FINISHED if run.end else _unfinished(is_written(path)),
    }


def _data_of_set(folder: Path) -> dict[str, Any]:
    journals = listed(folder)
    runs = [run for path in journals if is_begun(path) and (run := stored_run(str(path))) is not None]
    ended = sum(run.end is not None for run in runs)
    state = FINISHED if ended == len(journals) else _unfinished(is_written(folder / LOCK))
    kernel = max(runs, key=lambda run: run.time).header.workload if runs else ""
    return {"kernel": kernel, "problems": len(journals), "ended": ended, "state": state}


_HEADS = ("#", "kernel", "problem", "best", "tried", "journal")


def _row(run: dict[str, Any]) -> tuple[str, ...]:
    number, name = str(run["number"]), printable(run_name(Path(run["journal"])).removesuffix(".jsonl"))
    if "error" in run:
        return number, run["state"], "", "", "", name
    if "problems" in run:
        done, total, best = run["ended"], run["problems"], ""
        problem = f"{total} problem{'s' * (total != 1)}"
    else:
        problem = describe_config(run["problem"] or {})
        best = "none" if run["latency_ms"] is None else f"{run['latency_ms']:.4g} ms"
        done, total = run["tried"], run["total"]
    tried = str(done) if done == total else f"{done}/{total}"
    tried += "" if run["state"] == FINISHED else f" {run['state']}"
    return number, printable(run["kernel"]), problem, best, tried, name


def _unfinished(written: bool) -> str:
    """Return the state of an unfinished run. `written`: whether a process is writing the journal."""
    return "running" if written else "interrupted"


# A journal


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
        result, header = read_set(journal), header_of_set(Path(journal))
        done, text = "budget" not in options and not any(row.unfinished for row in result), f"the problems of {journal}"
    else:
        state = read_state(journal)
        header = header_in(state)
        done = finished(state, options.get("budget") or options_of(header)["budget"])
        text = f"{journal}, {state.settled} of {state.total} candidates done"
        del state  # the run folds its own state
    say(_finished(journal, header) if done else f"resuming {text}")
    if header is not None and not done:
        completed_by(header, {"accept": arguments.accept})
        workload = workload or origin_of(header, say=say)
    if not of_set:
        return drive(functools.partial(resume, journal, workload, **options), journal, arguments, interrupts)
    if done:
        return show_set(result, arguments)
    return drive_set(functools.partial(resume_set, journal, workload, **options), journal, arguments, interrupts)


def _finished(journal: str, header: RunStarted | None) -> str:
    """Return the message for a finished run or set. The message mentions later changes to the workload's file."""
    from atune.workload.pickling import edited_since

    file = edited_since(header.origin, header.time) if header else ""
    anew = f"; {file} was edited after the run: atune tune {shlex.quote(file)} tunes the new version" if file else ""
    return f"the run of {journal} is finished, so there is nothing left to do{anew}; its result:"


def replay_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    if os.path.isdir(arguments.journal):
        from atune.frontends.tune_set import read_set

        return show_set(read_set(arguments.journal), arguments)
    return show(replay(arguments.journal), arguments)


def record_at(result: Result, index: int | None) -> Record:
    """Return the record of candidate `index`. By default, choose the winner, or without a winner, the first failure."""
    if index is None and result.best is not None:
        return result.best
    if index is None:
        index = next((group.first.index for group in failure_groups(result.records)), None)
    record = next((record for record in result.all_records if record.index == index), None)
    if record is not None:
        return record
    lacks = "has no candidate that was measured or failed" if index is None else f"has no candidate {index}"
    if index is not None and 0 <= index < result.total:
        lacks = f"has no outcome of candidate {index}, which was not tried"
    journal = str(result.journal)
    raise UsageError(f"{journal} {lacks}; to list its candidates: atune replay {shlex.quote(journal)} --table")


def show_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    if is_set(Path(arguments.journal)) and arguments.index is None:
        return replay_command(arguments, interrupts)
    result = replay(arguments.journal)
    facts = record_at(result, arguments.index), result.header.target.arch, result
    print_out(json.dumps(record_data(*facts)) if arguments.json else "\n".join(record_lines(*facts)))
    return 0


def watch_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    import anyio

    from atune.reporting.progress import Progress

    async def look(progress: Progress) -> None:
        told = False
        async for each in follow(arguments.journal):
            if each is not None:
                progress.on_event(each)
            elif not told and is_written(Path(arguments.journal)):
                progress.tick()
            elif not told:
                told = True
                print_message("no process on this machine is writing this journal; press Ctrl-C to leave", kind="")

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
    from atune.reporting.sets import compare

    compared = compare(arguments.before, arguments.after, fail_over=arguments.fail_over)
    data = {"slower": len(compared.slower), **msgspec.to_builtins(compared)}
    print_out(json.dumps(data) if arguments.json else str(compared))
    return 1 if compared.slower else 0


def bundle_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    from atune.frontends.save_bundle import save_bundle

    results = [result for journal in arguments.journal for result in _winners(journal)]
    folder, n = arguments.output, len(results)
    say = functools.partial(print_message, kind="")
    digest = save_bundle(folder, results, accept=arguments.accept, say=say)
    lines = [Line(f"bundle     {folder}, {n} problem{'s' * (n > 1)}"), Line(f"digest     {digest}")]
    answer(arguments, lambda: {"output": folder, "problems": n, "digest": digest}, lambda: lines)
    return 0


def _winners(journal: str) -> list[Result]:
    """Return the result of a journal. For the folder of a set, return the results of all problems with a winner."""
    if not os.path.isdir(journal):
        return [replay(journal)]
    from atune.frontends.tune_set import read_set

    results = read_set(journal)
    if left := len(results) - len(results.winners):
        print_message(f"{left} of {len(results)} problems in {journal} have no winner, and are left out", kind="")
    return results.results


# The result cache


def _chosen(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the chosen kernel and key. An empty string, which may come from an unset variable, raises `UsageError`."""
    given = {"kernel": arguments.kernel, "key": arguments.key}
    chosen = {name: value for name, value in given.items() if value is not None}
    for name, value in chosen.items():
        if not value:
            raise UsageError(f"--{name} is empty: give a {name}, or leave the option out to take all results")
    return chosen


def ls_results_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    entries = ResultCache().entries(**_chosen(arguments))
    if arguments.json:
        print_out(json.dumps({"results": [{"key": entry.key, **msgspec.to_builtins(entry)} for entry in entries]}))
        return 0
    rows: list[tuple[str, ...]] = [("key", "kernel", "problem", "device", "latency ms", "config")]
    for entry in entries:
        latency = "-" if entry.latency_ms is None else f"{entry.latency_ms:.4g}"
        problem = describe_config(entry.parts.problem) or "no arguments"
        if tuned := open_sizes(entry.parts.problem, entry.parts.tuned_for):
            problem += f" (tuned for {describe_config(tuned)})"
        named = printable(entry.parts.kernel), problem, printable(entry.parts.device)
        rows.append((entry.key[:12], *named, latency, describe_config(entry.config)))
    print_out(aligned(rows) if entries else "no results")
    return 0


def clear_results_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    cache, chosen = ResultCache(), _chosen(arguments)
    removed = cache.clear(cache.answers(**chosen) if chosen else None)
    print_out(json.dumps({"removed": removed}) if arguments.json else f"removed    {removed}")
    return 0


def export_results_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    chosen = _chosen(arguments)
    if chosen and not ResultCache().answers(**chosen):
        raise UsageError("the result cache has no result for this kernel or key: atune cache ls lists all results")
    data = ResultCache().export(**chosen)
    return write(data + b"\n", arguments.output or "-", "exported", arguments)
