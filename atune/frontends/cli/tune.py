"""``atune tune`` and ``atune measure``: turn options into arguments, and the outcome into a status."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec

from atune.errors import NoWinner, UsageError
from atune.frontends.cli.commands import with_flags
from atune.frontends.cli.main import INTERRUPTED, OK, show_kept, show_set
from atune.frontends.cli.output import (
    NO_WINNER,
    error_data,
    print_err,
    print_lines,
    print_message,
    print_out,
    report_error,
)
from atune.frontends.cli.preview import compile_only_command, dry_run_command
from atune.frontends.cli.runs import find_journal
from atune.frontends.measure import MeasureResult, measure_many
from atune.frontends.problems import Problems, parse_sizes
from atune.frontends.run_options import LATEST, TuneOptions, journal_at
from atune.frontends.tune_set import SetResult, read_set, tune_set
from atune.frontends.tuner import RunPlan, tune
from atune.journal.events import Event
from atune.journal.result import Result
from atune.journal.set_folder import is_set, journals_in
from atune.journal.state import State
from atune.model.candidate import describe_config
from atune.model.device import device_names
from atune.model.settings import BenchmarkSettings, Budget, CompileSettings
from atune.reporting.log import event_log, stream_logger
from atune.reporting.text import Line
from atune.workers.result_cache import ResultCache
from atune.workers.terminal import Interrupts
from atune.workload.pickling import FileRef, parse_file_ref


def tune_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    """Tune the workload that `arguments` name and print the result. Raises `UsageError` before anything starts."""
    if arguments.journal == LATEST:
        arguments.journal = find_journal(LATEST)
    workload = parse_file_ref(arguments.workload, "atune tune")
    sizes = parse_sizes(arguments.arg)
    several = any(len(values) > 1 for values in sizes.values())
    set_too = sizes and is_set(Path(arguments.journal or ""))
    if arguments.problems is not None or several or set_too:
        return _tune_set(workload, Problems(arguments.problems or (), **sizes), arguments, interrupts)
    workload = workload.at({name: value for name, (value,) in sizes.items()})
    if arguments.dry_run or arguments.compile_only:
        refused = {
            "--compile-only: --dry-run compiles nothing": arguments.dry_run and arguments.compile_only,
            "--journal: --dry-run and --compile-only write no journal": arguments.journal is not None,
            "--cluster: --dry-run and --compile-only use only this machine": arguments.cluster,
        }
        if wrong := [why for why, given in refused.items() if given]:
            raise UsageError(f"{wrong[0]}: leave one of them out")
        command = dry_run_command if arguments.dry_run else compile_only_command
        return command(workload, RunPlan.of("tune", _options(arguments, None)), arguments)
    return _tune_once(workload, arguments, interrupts)


def _tune_once(workload: FileRef, arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    name, given = Path(workload.path).stem, arguments.journal
    journal = str(ResultCache().new_path(name) if given is None else journal_at(given))
    if is_set(Path(journal)):
        raise UsageError(f"--journal {journal} is the folder of a set: also give its problems with --arg or --problems")
    options = _options(arguments, journal)
    if os.path.isfile(journal) and os.path.getsize(journal):
        print_message(f"{journal} exists: if the journal records the same work, its run is resumed", kind="")

    return drive(partial(tune, workload, **options), journal, arguments, interrupts)


def _tune_set(workload: FileRef, problems: Problems, arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    """Tune each of `problems` and print the table. Returns 0 if each problem has a winner."""
    for option in ("dry_run", "compile_only"):
        if getattr(arguments, option):
            raise UsageError(f"--{option.replace('_', '-')} takes a single problem: give each argument a single value")
    folder = arguments.journal or str(ResultCache().new_path(Path(workload.path).stem).with_suffix(""))
    options = _options(arguments, folder)
    if is_set(Path(folder)):
        print_message(f"{folder} exists: if its journals record the same work, they are continued", kind="")
    return drive_set(partial(tune_set, workload, problems, **options), folder, arguments, interrupts)


def _options(arguments: argparse.Namespace, journal: str | None) -> dict[str, Any]:
    """Return the arguments of `tune` for the command's options. Raises `UsageError`."""

    def given(kind: type[Any]) -> dict[str, Any]:
        return {field.name: getattr(arguments, field.name) for field in with_flags(kind)}

    return {
        **given(TuneOptions),
        "devices": device_names(",".join(arguments.devices) or "all"),
        "budget": arguments.budget or Budget(),
        "warm": [source if source == "cache" else find_journal(source) for source in arguments.warm],
        "journal": journal,
        "compile": CompileSettings(**given(CompileSettings)),
        "benchmark": BenchmarkSettings(**given(BenchmarkSettings)),
    }


def drive(
    call: Callable[..., Awaitable[Result]], journal: str, arguments: argparse.Namespace, interrupts: Interrupts
) -> int:
    """Await the run `call`, show its progress or its log, and print the outcome. Returns the exit status."""
    state, since, log = State(), time.time(), event_log(arguments.verbose and stream_logger())

    def on_event(event: Event) -> None:
        state.apply(event)
        log(event, state, os.path.basename(journal))

    shown = partial(call, on_event=on_event, progress=not (arguments.quiet or arguments.verbose))
    with interrupts.counted():
        ended = anyio.run(interruptible, shown, interrupts, backend="asyncio")
        if isinstance(ended, Result):
            return show_kept(ended, arguments)
        if ended is None:
            kept = os.path.exists(journal)
            if arguments.json and state.header is not None:
                show_kept(Result.of(state, journal if kept else None), arguments)
            elif arguments.json:
                print_out(json.dumps({"error": error_data(KeyboardInterrupt("interrupted before it began"))}))
            how = f" kept in {journal}; continue with atune resume {shlex.quote(journal)}" if kept else ""
            count = state.counts["measured"]
            print_message(f"interrupted; {count} measurement{'s' * (count != 1)}{how}", kind="")
            return INTERRUPTED
        if isinstance(ended, NoWinner):
            worked = bool(ended.result.about_default) and not arguments.json  # the summary begins with `about_default`
            if arguments.debug:
                report_error(ended, debug=True)
            elif not worked:
                print_message(str(ended))
            if arguments.json or worked:
                show_kept(ended.result, arguments)
            return NO_WINNER
        part, known = state.resumed or state.header, None
        if part is not None and part.time >= since:  # an older state may be of other work, whose journal was refused
            known = Result.of(state, journal if os.path.exists(journal) else None)
        status = report_error(ended, debug=arguments.debug, json=arguments.json, result=known)
        if known is not None and known.journal is not None:
            print_err(f"  journal: {known.journal}\n")
        return status


async def interruptible(call: Callable[[], Awaitable[Any]], interrupts: Interrupts) -> Any:
    """Return the result or the exception of `call`. If a signal cancelled `call`, return None after the clean-up."""
    ended: Any = None
    with anyio.open_signal_receiver(*interrupts.signals) as received:
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as work:

                async def watch() -> None:
                    async for _ in received:  # further signals have no effect, so they cannot disturb the clean-up
                        work.cancel()

                tasks.start_soon(watch)
                if interrupts.count:  # the signal came before the receiver was open
                    work.cancel()
                try:
                    ended = await call()
                except Exception as error:
                    ended = error
            tasks.cancel_scope.cancel()
    return ended


def drive_set(
    call: Callable[..., Awaitable[SetResult]], folder: str, arguments: argparse.Namespace, interrupts: Interrupts
) -> int:
    """Await the set `call`, show its progress or its log, and print the outcome. Returns the exit status."""
    log = arguments.verbose and stream_logger()
    shown = partial(call, log=log, progress=not (arguments.quiet or arguments.verbose))
    with interrupts.counted():
        ended = anyio.run(interruptible, shown, interrupts, backend="asyncio")
    if (ended is None or isinstance(ended, NoWinner)) and arguments.json:
        with suppress(UsageError):  # no problem was begun
            show_set(read_set(folder), arguments)
    if ended is None:
        kept = "no problem was begun"
        if journals_in(Path(folder)):
            kept = f"the measurements are kept; continue with atune resume {shlex.quote(folder)}"
        print_message(f"interrupted; {kept}", kind="")
        return INTERRUPTED
    if isinstance(ended, NoWinner):
        print_message(str(ended))
        return NO_WINNER
    if isinstance(ended, BaseException):
        return report_error(ended, debug=arguments.debug, json=arguments.json)
    return show_set(ended, arguments)


def measure_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    """Measure the candidates that `arguments` name. Returns 0 only if all candidates pass."""
    task = parse_file_ref(arguments.task, "atune measure --task")
    options = {name: getattr(arguments, name) for name in ("problems", "allow", "target", "journal")}
    options["devices"] = device_names(",".join(arguments.devices) or "all")
    options["compile"] = CompileSettings(compile_timeout_s=arguments.compile_timeout_s)
    options["benchmark"] = BenchmarkSettings(benchmark_timeout_s=arguments.benchmark_timeout_s)

    def show(result: MeasureResult) -> None:
        print_out(msgspec.json.encode(result).decode()) if arguments.json else print_lines([_line(result)])

    names = [name.strip() for each in arguments.candidates for name in (sys.stdin if each == "-" else [each])]
    if not any(names):
        raise UsageError("no candidate is given: standard input names no file")
    call = partial(measure_many, [Path(name) for name in names if name], task, on_result=show, **options)
    with interrupts.counted():
        ended = anyio.run(interruptible, call, interrupts, backend="asyncio")
    if ended is None:
        print_message("interrupted", kind="")
        return INTERRUPTED
    if isinstance(ended, BaseException):
        raise ended
    return OK if all(result.status == "passed" for result in ended) else NO_WINNER


def _line(result: MeasureResult) -> Line:
    if result.latency_ms is None or result.speedup is None:
        where = describe_config(result.problems[-1].problem)
        return Line(f"{result.candidate}   {result.status} for {where}: {result.reason}", "error")
    low, over, high = result.speedup
    gain = f"{over:.3f} times as fast as the default ({low:.3f} to {high:.3f})"
    return Line(f"{result.candidate}   {result.latency_ms[1]:.4g} ms, {gain}")
