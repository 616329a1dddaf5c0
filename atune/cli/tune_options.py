"""``atune tune`` and its options, in the groups that its help shows."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from atune.cli.parsing import PLAIN, add_command, number, strategy_name
from atune.cluster.address import HELP as CLUSTER_HELP
from atune.model.settings import ACCELERATORS
from atune.search.choosing import SHOWN

if TYPE_CHECKING:
    from atune.system.signals import Interrupts

_SWITCH = argparse.BooleanOptionalAction


def add_commands(commands: Any, shown: argparse.ArgumentParser) -> None:
    """Add ``tune``. `shown` holds the options that all commands share."""
    tune = add_command(commands, shown, "tune", _tune, "Tune a workload")
    tune.add_argument("workload", metavar="FILE.py:NAME", help="an atune.Workload by file and name (WORKLOAD)")
    _add_search(tune.add_argument_group("search"))
    _add_where(tune.add_argument_group("where"))
    _add_compiling(tune.add_argument_group("compiling"))
    _add_measuring(tune.add_argument_group("measuring"))
    _add_output(tune.add_argument_group("output"))


def _add_search(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--dry-run", action="store_true", help="print what would be done; compile and measure nothing")
    group.add_argument(
        "--compile-only",
        action="store_true",
        help="compile every candidate and measure none; with a target such as sm_90a no GPU is needed",
    )
    group.add_argument(
        "--strategy",
        type=strategy_name,
        metavar="NAME",
        help=f"{', '.join(SHOWN)} (auto, or what the journal began with)",
    )
    group.add_argument(
        "--prior",
        action=_SWITCH,
        default=True,
        help="begin a search with the candidates that the machine model prefers (on)",
    )
    group.add_argument("--seed", type=number(zero=True), default=0, metavar="N", help="seed of the strategy (0)")
    _add_limits(group)


def _add_limits(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--budget",
        metavar="N|10%|90s",
        help="stop after N candidates, a share of them, or a time (s, m or h)",
    )
    group.add_argument(
        "--audit",
        nargs="?",
        const=True,
        metavar="10%",
        help="measure a share of the candidates skipped as likely to lose, and count wrong skips (10 %%)",
    )
    group.add_argument(
        "--warm",
        action="append",
        default=[],
        metavar="J",
        help="begin with the best of this journal of the same kernel, or of the result cache (cache); repeatable",
    )


def _add_where(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--target", default="auto", help="auto, cuda (or an arch such as sm_90a), or c (auto)")
    group.add_argument("--devices", metavar="all|cpu|0,1", help="devices to measure on (all)")
    group.add_argument(
        "--device", action="append", metavar="cpu|0", help="one device to measure on; repeatable, instead of --devices"
    )
    group.add_argument("--cluster", metavar="ADDRESS", help=CLUSTER_HELP)


def _add_compiling(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--pipeline", action=_SWITCH, default=True, help="measure candidates while others compile (on)")
    group.add_argument(
        "--group-size", type=number("candidates"), metavar="N", help="candidates per library; 1 turns grouping off"
    )
    group.add_argument(
        "--workers", type=number("processes"), metavar="N", help="compile processes (from the number of cores)"
    )
    group.add_argument(
        "--layouts", type=number("layouts"), metavar="N", help="measure the N best layouts of a configuration (all)"
    )
    group.add_argument("--store", action=_SWITCH, default=True, help="use and keep compiled libraries (on)")
    group.add_argument(
        "--accelerate",
        default="auto",
        metavar="HOW",
        help=f"compile faster: auto, off, some of {','.join(ACCELERATORS)}, or auto without some (auto,-cicc) (auto)",
    )
    group.add_argument(
        "--proof",
        action=_SWITCH,
        default=True,
        help="compile the winner again without accelerators, and compare (on)",
    )
    group.add_argument(
        "--compile-timeout",
        type=number("seconds", whole=False),
        default=120.0,
        metavar="S",
        help="time limit for one lowering, or for one group's compile, in seconds (120)",
    )
    group.add_argument(
        "--end-hopeless", action=_SWITCH, default=True, help="end compiles that take far longer than the others' (on)"
    )


def _add_measuring(group: argparse._ArgumentGroup) -> None:
    milliseconds = number("milliseconds", whole=False)
    group.add_argument(
        "--timeout",
        type=number("seconds", whole=False),
        default=60.0,
        metavar="S",
        help="time limit for measuring one candidate, in seconds (60)",
    )
    group.add_argument(
        "--warmup", type=number("calls", zero=True), default=3, metavar="N", help="calls before timing (3)"
    )
    group.add_argument("--rep", type=number("samples"), default=20, metavar="N", help="samples per timing (20)")
    group.add_argument("--warmup-ms", type=milliseconds, metavar="MS", help="warm up for this time instead of --warmup")
    group.add_argument("--rep-ms", type=milliseconds, metavar="MS", help="time for this long instead of --rep")
    group.add_argument(
        "--method",
        default="auto",
        help="auto, events (or event), cuda_graph (or cudagraph) or cupti on GPUs, perf_counter (or wall) on the CPU "
        "(auto)",
    )
    group.add_argument(
        "--adaptive", action=_SWITCH, default=True, help="take few samples of plainly slow candidates (on)"
    )
    group.add_argument(
        "--n-final", type=number("candidates", zero=True), default=5, metavar="N", help="finalists to re-benchmark (5)"
    )
    group.add_argument(
        "--n-final-limit",
        type=number("rounds"),
        default=200,
        metavar="N",
        help="most rounds of the final benchmark (200)",
    )
    group.add_argument("--skip-check", action="store_true", help="do not compare outputs with the reference")
    group.add_argument("--cache-inputs", action=_SWITCH, default=True, help="make the inputs once per device (on)")
    group.add_argument("--input-seed", type=number(zero=True), default=0, metavar="N", help="seed of the inputs (0)")
    group.add_argument(
        "--standby", action=_SWITCH, default=None, help="keep a second process on each GPU (if memory allows)"
    )
    group.add_argument(
        "--energy", action="store_true", help="measure the finalists' power and energy, where the GPU counts it"
    )
    group.add_argument("--mixed-devices", action="store_true", help="allow GPUs of different models in one run")


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--journal", metavar="J", help="write the events here (a new file in the user's cache folder)")
    group.add_argument("--table", action="store_true", help="print every candidate")
    group.add_argument("--quiet", action="store_true", help="show no progress on stderr")
    group.add_argument("--plain", action="store_true", help=PLAIN)
    group.add_argument("--verbose", action="store_true", help="log every event on stderr instead of the progress")
    group.add_argument("--log-json", action="store_true", help="like --verbose, with one JSON object per event")


def _tune(arguments: argparse.Namespace, interrupts: Interrupts) -> int:
    if not arguments.dry_run:
        from atune.local.fork_servers import warm_early

        warm_early()
    from atune.cli.tune import tune_command

    return tune_command(arguments, interrupts)
