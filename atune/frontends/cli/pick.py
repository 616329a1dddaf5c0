"""``atune pick``: the configurations of a workload that the prior expects to be fastest."""

from __future__ import annotations

import argparse
import json

import msgspec

from atune.frontends.cli.output import print_lines, print_out
from atune.frontends.pick import pick
from atune.frontends.problems import one_problem
from atune.model.candidate import describe_config
from atune.reporting.text import Line
from atune.workers.terminal import Interrupts
from atune.workload.pickling import parse_file_ref


def pick_command(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    workload = parse_file_ref(arguments.workload, "atune pick")
    workload = msgspec.structs.replace(workload, arguments=one_problem(arguments.arg, "pick"))
    found = pick(workload, arguments.n, arguments.gpu)
    if arguments.json:
        print_out(json.dumps(msgspec.to_builtins(found)))
        return 0
    unfit = f", {found.unfit:,} of which cannot run" if found.unfit else ""
    unfit += f", {found.unknown:,} of which gave no answer in time" if found.unknown else ""
    lines = [f"space      {found.candidates:,} candidates{unfit}; nothing was compiled or measured"]
    lines += [f"device     {found.gpu or 'no GPU'}", *([f"prior      {found.why}"] if found.why else [])]
    for place, choice in enumerate(found.choices, 1):
        expected = "" if choice.estimate_ms is None else f"about {choice.estimate_ms:.4g} ms: "
        lines.append(f"choice {place:<4}{expected}{describe_config(choice.config)}")
    print_lines(map(Line, lines))
    return 0
