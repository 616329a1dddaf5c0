"""Whole runs of a large space on one GPU and on several, with all candidates and with a twentieth of them, in turn.

    python bench/scaling_whole.py --devices 0,1 --out bench/results/scaling_whole        (about three minutes)

`bench/scaling.py` compares the measuring stage alone. Here each run is `atune tune` in a fresh process with empty
caches. Waiting is the share of the devices' time, from the first begin of a first timing to the last one's end, in
which they had nothing to measure because nothing was compiled. `--only` names the budget.
`--limit` ends in time with what is done; `--resume` goes on from there.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rounds import Bench, Run, Space, Variant, add_options, carry_out, interval, names, pairs, ratios, spaces_of, waited
from vs_tilelang import BENCH, gpus

BUDGETS = {"all": (), "5%": ("--budget", "5%")}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--space", default=f"{BENCH / 'kernels.py'}:MANY", help="FILE.py:NAME, by default kernels.py:MANY"
    )
    made.add_argument("--devices", default="", metavar="0,1", help="GPUs, by default all there are")
    made.add_argument("--only", default="", help="'all' or '5%%', by default both")
    add_options(made, rounds=1, limit_s=290.0)
    return made


def variants_of(devices: Sequence[str], only: str) -> list[Variant]:
    """Return the runs of a round: each budget on one device, on two, four and so on, and on all."""
    counts = sorted({1, len(devices)} | {n for n in (2, 4) if n < len(devices)})
    if unknown := [name for name in names(only) if name not in BUDGETS]:
        raise SystemExit(f"--only: {unknown[0]!r} is unknown; there are {', '.join(BUDGETS)}")
    return [
        Variant(label(count, budget), ("--devices", ",".join(devices[:count]), *BUDGETS[budget]))
        for budget in names(only) or BUDGETS
        for count in counts
    ]


def label(count: int, budget: str) -> str:
    return f"{count} device{'' if count == 1 else 's'}, {budget}"


def markdown(result: dict[str, Any], runs: Sequence[Run]) -> str:
    """Return a row for each kind of run, and what failed."""
    lines = [f"`{result['command']}`", "", f"{result['machine']['gpu']}; {result['machine']['cores']} cores.", ""]
    if result["stopped"]:
        lines += [f"**Not all of {result['rounds']} rounds: {result['stopped']}.**", ""]
    head = ["run", "runs", "to the result s", "of one device's", "compiling s", "measuring s", "devices waited"]
    head += ["measured", "failed", "winner ms"]
    lines += [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    space = runs[0].space if runs else ""
    for name in dict.fromkeys(run.variant for run in runs):
        own = [run for run in runs if run.variant == name and not run.error]
        if not own:
            continue
        of = ratios(pairs(runs, space, name, label(1, name.partition(", ")[2])), "result_s")
        seconds = [[run.result_s or run.wall_s, run.stages["compile_wall_s"], run.measuring_s] for run in own]
        first, *further = (f"{statistics.median(values):.2f}" for values in zip(*seconds, strict=True))
        idle = statistics.median(waited(run) or 0.0 for run in own)
        ratio = f"{interval(of)[1]:.3f}" if of else "–"
        counts = [str(own[-1].outcomes.get(key, 0)) for key in ("measured", "failed")]
        cells = [name, str(len(own)), first, ratio, *further, f"{100 * idle:.0f} %", *counts]
        lines.append(f"| {' | '.join([*cells, f'{own[-1].latency_ms:.4f}'])} |")
    lines += [f"\n{run.variant}: {why}" for run in runs for why in (run.error, *run.excluded) if why]
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report. Returns 1 where a run failed or none was done."""
    options = parser().parse_args(arguments)
    devices = ["cpu"] if options.target == "c" else names(options.devices) or gpus()
    if not devices:
        raise SystemExit("there is no GPU: give --target c")

    def command(space: Space, variant: Variant, journal: Path) -> list[str]:
        own = [sys.executable, "-m", "atune", "tune", space.ref, "--target", options.target, "--rep", str(options.rep)]
        return [*own, "--journal", str(journal), *variant.arguments, "--quiet", "--json"]

    def write(result: dict[str, Any], runs: Sequence[Run]) -> Mapping[str, str]:
        return {"table.md": markdown(result, runs)}

    said = " ".join(["python", "bench/scaling_whole.py", *(sys.argv[1:] if arguments is None else arguments)])
    common = {"target": options.target, "rep": options.rep, "devices": devices}
    bench = Bench(options, command, write, common, whole=False)
    return carry_out(bench, spaces_of(options.space, None), variants_of(devices, options.only), {"command": said})


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is done is told then, too
    raise SystemExit(main())
