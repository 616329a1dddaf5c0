"""``atune measure``: judge kernels that nobody trusts, and print a line or a JSON object for each."""

from __future__ import annotations

import argparse
import sys
from functools import partial

import anyio
import msgspec

from atune.frontends.cli.main import INTERRUPTED, OK
from atune.frontends.cli.output import NO_WINNER, print_lines, print_message, print_out, report_error
from atune.frontends.cli.tune import interruptible
from atune.frontends.measure import MeasureResult, measure_many
from atune.model.device import device_names
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.reporting.text import Line
from atune.workers.terminal import Interrupts
from atune.workload.pickling import parse_file_ref


def measure_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    """Measure the candidates that `arguments` name. Returns 0 only if each passed."""
    task = parse_file_ref(arguments.task, "atune measure --task")
    options = {name: getattr(arguments, name) for name in ("problems", "allow", "target", "journal")}
    options["devices"] = device_names(",".join(arguments.devices) or "all")
    options["compile"] = CompileSettings(compile_timeout_s=arguments.compile_timeout_s)
    options["benchmark"] = BenchmarkSettings(benchmark_timeout_s=arguments.benchmark_timeout_s)
    candidates = [name for each in arguments.candidates for name in (sys.stdin if each == "-" else [each])]
    call = partial(measure_many, [name.strip() for name in candidates if name.strip()], task, **options)
    with interrupts.counted():
        ended = anyio.run(interruptible, call, interrupts, backend="asyncio")
    if ended is None:
        print_message("interrupted", kind="")
        return INTERRUPTED
    if isinstance(ended, BaseException):
        return report_error(ended, debug=arguments.debug, json=arguments.json)
    for result in ended:
        print_out(msgspec.json.encode(result).decode()) if arguments.json else print_lines([_line(result)])
    return OK if all(result.status == "passed" for result in ended) else NO_WINNER


def _line(result: MeasureResult) -> Line:
    if result.latency_ms is None or result.speedup is None:
        return Line(f"{result.candidate}   {result.status}: {result.reason}", "error")
    low, over, high = result.speedup
    gain = f"{over:.3f} times as fast as the default ({low:.3f} to {high:.3f})"
    return Line(f"{result.candidate}   {result.latency_ms[1]:.4g} ms, {gain}")
