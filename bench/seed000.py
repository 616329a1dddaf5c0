"""The experiments of tilelang's pull request 2159 on atune's engine: pipeline, groups, several GPUs, and all at once.

    python bench/seed000.py --space roller20@2 --out bench/results/seed000
    python bench/seed000.py --space gemm288 --resume --out bench/results/seed000
    python bench/seed000.py --devices 0,1 --only devices,all --out bench/results/seed000_2

`nothing` measures once all is compiled, compiles each candidate alone, measures on one device and does without cicc.
The experiments `pipeline`, `groups` and `devices` turn on that one feature. `all` has each of them, as atune does by
default. Each run is a fresh process with empty caches, and the ways take turns. End to end are the seconds from the
start of the process to the result. Compile and benchmark seconds are those in which a worker
compiled and a device measured, as `atune tune --json` has them, without the final.

`--limit` ends in time with what is done; `--resume` goes on from there. Three kinds of seconds are drawn in figure.svg.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rounds import Bench, Run, Space, Variant, add_options, carry_out, names, spaces_of
from vs_tilelang import SPACES, gpus

NOTHING = "nothing"
STAGES = {"end to end": "result_s", "compile": "compile_wall_s", "benchmark": "benchmark_wall_s"}
"""Kinds of seconds, and where a run has them."""
COLOURS = ("#3b76ea", "#c2620a", "#15803d")


# ---- the ways


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = ", ".join(SPACES)
    made.add_argument("--space", default="roller20@2,gemm288", help=f"of {known}, FILE.py:NAME; each @CORES")
    made.add_argument("--only", default="", help="experiments: of pipeline, groups, devices, all")
    made.add_argument("--devices", default="", metavar="0,1", help="GPUs, by default all there are")
    made.add_argument("--budget", default="", metavar="N", help="candidates, by default all")
    add_options(made, rounds=1, limit_s=290.0)
    return made


def ways(devices: Sequence[str]) -> dict[str, list[Variant]]:
    """Return the variants by experiment, without `NOTHING`."""
    found = {
        "pipeline": [way("pipeline", devices[:1], "--pipeline")],
        "groups": [way(f"groups of {n}", devices[:1], "--group-size", str(n)) for n in (2, 4)]
        + [way("groups automatic", devices[:1], "--group-size", "0")],
        "all": [way("all", devices, "--pipeline", "--group-size", "0", "--cicc")],
    }
    return found if len(devices) < 2 else {"devices": [way(f"{len(devices)} devices", devices)], **found}


def way(label: str, devices: Sequence[str], *features: str) -> Variant:
    return Variant(label, ("--devices", ",".join(devices), *features))


def chosen(only: str, devices: Sequence[str]) -> list[Variant]:
    """Return `NOTHING`, and the variants of the experiments in `only`. Exits with a message on what is unknown."""
    known = ways(devices)
    if unknown := [name for name in names(only) if name not in known]:
        why = "needs several devices" if unknown[0] == "devices" else f"is unknown; there are {', '.join(known)}"
        raise SystemExit(f"--only: {unknown[0]!r} {why}")
    asked = names(only) or known
    return [way(NOTHING, devices[:1]), *(one for name, found in known.items() if name in asked for one in found)]


def tune(arguments: Sequence[str]) -> None:
    """Tune once, in this process, and print the result as JSON."""
    import atune
    from atune.reporting.summary import summary

    made = argparse.ArgumentParser()
    made.add_argument("ref")
    for name in ("--target", "--devices", "--journal", "--budget"):
        made.add_argument(name)
    made.add_argument("--rep", type=int)
    made.add_argument("--pipeline", action="store_true")
    made.add_argument("--group-size", type=int, default=1)
    made.add_argument("--cicc", action="store_true")
    given = made.parse_args(arguments)
    result = atune.run(
        given.ref,
        target=given.target,
        devices=given.devices,
        pipeline=given.pipeline,
        budget=given.budget,
        cached=False,
        journal=given.journal,
        compile=atune.CompileSettings(group_size=given.group_size or None, cicc=given.cicc),
        benchmark=atune.BenchmarkSettings(n_repeat=given.rep),
        progress=False,
    )
    print(json.dumps(summary(result)))


# ---- what it writes


def median(runs: Sequence[Run], figure: str) -> float | None:
    """Return the median of a figure over the runs that have it."""
    found = [run.result_s if figure == "result_s" else run.stages.get(figure) for run in runs]
    known = [value for value in found if value is not None]
    return statistics.median(known) if known else None


def rows(runs: Sequence[Run], space: str, labels: Sequence[str]) -> dict[str, list[Run]]:
    """Return the runs of a space that came to a result, by way."""
    good = [run for run in runs if run.space == space and not run.error]
    return {label: found for label in labels if (found := [run for run in good if run.variant == label])}


def markdown(result: dict[str, Any], runs: Sequence[Run], labels: Sequence[str]) -> str:
    """Return a table for each space, and what failed."""
    where = result["machine"]
    lines = [f"`{result['command']}`", "", f"{where['gpu']}; tilelang {where['versions']['tilelang']}."]
    lines += ["", "Medians of seconds; in brackets how many times less than those of `nothing`."]
    if result["stopped"]:
        lines += ["", f"**Not all of {result['rounds']} rounds: {result['stopped']}.**"]
    head = ["way", "runs", *(f"{name} s" for name in STAGES), "summed: compile s", "benchmark s"]
    head += ["measured", "failed", "winner ms"]
    for space in dict.fromkeys(run.space for run in runs):
        found = rows(runs, space, labels)
        cores = max((run.cores for run in runs if run.space == space), default=0)
        lines += ["", f"## {space}, {cores} cores", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for label, own in found.items():
            cells = [compared(median(own, name), median(found.get(NOTHING, []), name)) for name in STAGES.values()]
            cells += [number(median(own, name)) for name in ("compile_s", "benchmark_s")]
            last = own[-1]
            cells += [str(last.outcomes.get(name, 0)) for name in ("measured", "failed")]
            lines.append(f"| {label} | {len(own)} | {' | '.join(cells)} | {last.latency_ms:.4f} |")
    if notes := [(run, why) for run in runs for why in (run.error, *run.excluded) if why]:
        lines += ["", "## Runs that failed, and devices that were excluded", ""]
        lines += [f"- {run.space}, round {run.round + 1}, {run.variant}: {why}" for run, why in notes]
    return "\n".join([*lines, ""])


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def compared(value: float | None, base: float | None) -> str:
    return number(value) + (f" ({base / value:.2f})" if value and base and value is not base else "")


def figure(runs: Sequence[Run], labels: Sequence[str]) -> str:
    """Return the bars of all ways as SVG: for each space and way one for each kind of seconds."""
    drawn, top = [], 24
    for n, name in enumerate(STAGES):
        drawn.append(f'<rect x="{150 + 110 * n}" y="8" width="10" height="10" fill="{COLOURS[n]}"/>')
        drawn.append(f'<text x="{164 + 110 * n}" y="17">{name}</text>')
    for space in dict.fromkeys(run.space for run in runs):
        found = rows(runs, space, labels)
        seconds = {way: [median(own, name) or 0.0 for name in STAGES.values()] for way, own in found.items()}
        most = max((max(values) for values in seconds.values()), default=0.0) or 1.0
        drawn.append(f'<text x="10" y="{top + 20}" font-weight="bold">{escape(space)}, seconds</text>')
        top += 30
        for label, values in seconds.items():
            drawn.append(f'<text x="140" y="{top + 23}" text-anchor="end">{escape(label)}</text>')
            for n, value in enumerate(values):
                width, y = 460 * value / most, top + 12 * n
                drawn.append(f'<rect x="150" y="{y}" width="{width:.1f}" height="10" fill="{COLOURS[n]}"/>')
                drawn.append(f'<text x="{154 + width:.1f}" y="{y + 9}" font-size="10">{value:.2f}</text>')
            top += 44
    style = 'font-family="sans-serif" font-size="12" fill="#757f92"'
    body = "\n".join(drawn)
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="680" height="{top}" {style}>\n{body}\n</svg>\n'


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report. Returns 1 where a run failed or none was done."""
    options = parser().parse_args(arguments)
    devices = ["cpu"] if options.target == "c" else names(options.devices) or gpus()
    if not devices:
        raise SystemExit("there is no GPU: give --target c")
    variants = chosen(options.only, devices)

    def command(space: Space, variant: Variant, journal: Path) -> list[str]:
        own = [sys.executable, str(Path(__file__).resolve()), "--child", space.ref, "--target", options.target]
        own += ["--rep", str(options.rep), "--journal", str(journal), *variant.arguments]
        return own + (["--budget", options.budget] if options.budget and "--budget" not in variant.arguments else [])

    def write(result: dict[str, Any], runs: Sequence[Run]) -> Mapping[str, str]:
        labels = list(dict.fromkeys([*result["variants"], *(run.variant for run in runs)]))  # earlier ones stay
        return {"table.md": markdown(result, runs, labels), "figure.svg": figure(runs, labels)}

    said = " ".join(["python", "bench/seed000.py", *(sys.argv[1:] if arguments is None else arguments)])
    common = {name: getattr(options, name) for name in ("target", "rep", "budget")} | {"devices": devices}
    bench = Bench(options, command, write, common, whole=False)
    return carry_out(bench, spaces_of(options.space, None), variants, {"command": said})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        tune(sys.argv[2:])
        raise SystemExit(0)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is done is told then, too
    raise SystemExit(main())
