"""Whether `until` ends runs at the right time: simulated on recorded spaces.

    python bench/until.py --seeds 100

A run with `--until 2%` ends when a further gain above 2 % has less than one chance in ten. So in 80 to 97 % of its
stops no candidate left should be better by more than 2 %. Plays `--strategies` on every space of `--spaces`, without a
budget, and writes results/until/table.md and result.json. Rows of result.json that `--spaces` and `--strategies` leave
out stay. Needs no GPU and no torch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import msgspec
from spaces import SPACES
from strategies import RESULTS, interval, recorded

from atune.search.simulation import Limits, held, simulate


class Row(msgspec.Struct, frozen=True, kw_only=True):
    space: str
    total: int
    strategy: str
    prior: bool
    seeds: int
    stops: int
    """Seeds that ended because a gain was unlikely; the others tried all."""
    held: int
    """Of these, those in which no candidate left was better by more than the gain."""
    tried_median: float
    wall_s_median: float
    whole_wall_s: float
    """Of a run over the whole space."""


def play(space: str, strategy: str, gain: float, seeds: int, processes: int, *, prior: bool) -> Row:
    recording = recorded(space)
    _, whole = simulate(recording, "exhaustive", budget=None, seeds=1)
    summary, trials = simulate(
        recording, strategy, budget=None, seeds=seeds, prior=prior, limits=Limits(until=gain), processes=processes
    )
    stopped = [trial for trial in trials if trial.reason == "until"]
    return Row(
        space=space,
        total=len(recording.configs),
        strategy=strategy,
        prior=prior,
        seeds=seeds,
        stops=len(stopped),
        held=sum(held(trial, recording, gain) for trial in stopped),
        tried_median=summary.evaluations_median,
        wall_s_median=round(statistics.median(trial.wall_s for trial in trials), 1),
        whole_wall_s=round(whole[0].wall_s, 1),
    )


def shown(row: Row) -> str:
    low, high = interval(row.held / row.stops, row.stops) if row.stops else (0.0, 1.0)
    share = f"{100 * row.held / row.stops:.0f} ({100 * low:.0f}–{100 * high:.0f})" if row.stops else "–"
    name = f"{row.strategy}{' with prior' if row.prior else ''}"
    return (
        f"| {row.space} ({row.total}) | {name} | {row.stops} of {row.seeds} | {share} | {row.tried_median:g} | "
        f"{row.wall_s_median:.1f} | {row.whole_wall_s:.1f} |"
    )


def page(rows: list[Row], gain: float) -> str:
    lines = [
        "# When `until` ends a run",
        "",
        f"Simulated, gain {gain:.0%}, no budget, 16 compile workers and one device. Held: of the stops, those in which",
        f"no candidate left was better by more than {gain:.0%}, in per cent; in brackets Wilson's 95 % interval. Tried",
        "and wall seconds are medians; the last column is a run over the whole space.",
        "",
        "| space (candidates) | strategy | stops | held | tried | wall s | whole s |",
        "|---|---|---|---|---|---|---|",
        *map(shown, rows),
        "",
    ]
    for kind in dict.fromkeys((row.strategy, row.prior) for row in rows):
        of = [row for row in rows if (row.strategy, row.prior) == kind]
        stops, kept = sum(row.stops for row in of), sum(row.held for row in of)
        inside = sum(row.stops > 0 and 0.8 <= row.held / row.stops <= 0.97 for row in of)
        above = sum(row.stops > 0 and row.held / row.stops > 0.97 for row in of)
        lines.append(
            f"- {kind[0]}{' with prior' if kind[1] else ''}: held in {kept} of {stops} stops "
            f"({100 * kept / max(1, stops):.1f} %); of {len(of)} spaces {inside} in 80 to 97 %, {above} above."
        )
    return "\n".join(lines) + "\n"


def kept(path: Path, spaces: list[str], strategies: list[str]) -> list[Row]:
    """Return the rows of an earlier result.json that are not played now."""
    if not path.exists():
        return []
    rows = msgspec.convert(json.loads(path.read_text())["rows"], list[Row])
    return [row for row in rows if row.space not in spaces or name_of(row) not in strategies]


def name_of(row: Row) -> str:
    return f"{row.strategy}{'+prior' if row.prior else ''}"


def in_order(rows: list[Row]) -> list[Row]:
    """Return rows by strategy, then by space."""
    spaces = ["gemm288", *SPACES]
    return sorted(rows, key=lambda row: (row.strategy, row.prior, spaces.index(row.space)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spaces", nargs="+", default=["gemm288", *SPACES], metavar="NAME")
    parser.add_argument("--strategies", nargs="+", default=["forest", "forest+prior"], metavar="NAME[+prior]")
    parser.add_argument("--until", type=float, default=0.02)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "until")
    options = parser.parse_args()
    rows, began = kept(options.out / "result.json", options.spaces, options.strategies), time.monotonic()
    for strategy in options.strategies:
        name, _, more = strategy.partition("+")
        for space in options.spaces:
            rows.append(play(space, name, options.until, options.seeds, options.processes, prior=more == "prior"))
            print(f"{time.monotonic() - began:6.0f} s {shown(rows[-1])}", flush=True)
            options.out.mkdir(parents=True, exist_ok=True)
            found = in_order(rows)
            (options.out / "table.md").write_text(page(found, options.until))
            data = {"until": options.until, "rows": msgspec.to_builtins(found)}
            (options.out / "result.json").write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
