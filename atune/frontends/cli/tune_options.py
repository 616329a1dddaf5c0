"""``atune tune`` and its options, in the groups that its help shows. Each is described where it is defined."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from atune.frontends.api.options import TuneOptions
from atune.frontends.cli.parsing import ScreenOptions, add_command, add_options, with_flags
from atune.model.options import Field, Option
from atune.model.settings import BenchmarkSettings, CompileSettings

if TYPE_CHECKING:
    from atune.workers.system.terminal import Interrupts


class HowFar(TypedDict):
    """What is left out of a run."""

    # fmt: off
    dry_run: Annotated[bool, Option(
        "Print what would be done; compile and measure nothing.", default=False, flag="--dry-run", group="search",
        page="concepts.md#dry-run",
    )]
    compile_only: Annotated[bool, Option(
        "Compile every candidate and measure none; with a target such as sm_90a no GPU is needed.", default=False,
        flag="--compile-only", group="search", page="#compile-only",
    )]
    # fmt: on


def groups() -> dict[str, list[Field]]:
    """Return the options by the headings of the help."""
    found: dict[str, list[Field]] = {"search": [], "where": [], "compiling": [], "measuring": [], "output": []}
    for kind in (HowFar, TuneOptions, ScreenOptions):
        for field in with_flags(kind):
            found[field.option.group].append(field)
    found["compiling"] = with_flags(CompileSettings)
    found["measuring"] = with_flags(BenchmarkSettings)
    return found


def add_commands(commands: Any, shown: argparse.ArgumentParser) -> None:
    """Add ``tune``. `shown` holds the options that all commands share."""
    tune = add_command(commands, shown, "tune", _tune, "Tune a workload")
    tune.add_argument("workload", metavar="FILE.py:NAME", help="an atune.Workload by file and name (WORKLOAD)")
    for heading, fields in groups().items():
        add_options(tune.add_argument_group(heading), fields)


def _tune(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    if not arguments.dry_run:
        from atune.workers.processes.server import warm_early

        warm_early()
    from atune.frontends.cli.tune import tune_command

    return tune_command(arguments, interrupts)
