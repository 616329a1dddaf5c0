"""What the page in bench/results/cluster_sim says of the engine's cost, computed again from the files beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "bench" / "results" / "cluster_sim"
PAGE = " ".join((STORED / "README.md").read_text().split())


def stored(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((STORED / f"{name}.json").read_text())
    return rows


def of(name: str) -> dict[tuple[int, int], dict[str, Any]]:
    """Return the rows of a file, by their numbers of devices and of candidates."""
    return {(row["devices"], row["candidates"]): row for row in stored(name)}


def says(*texts: str) -> None:
    for text in texts:
        assert text in PAGE, text


def depth(queue: dict[str, Any]) -> str:
    return f"{queue['mean']:.0f}, {queue['most']:,} of {queue['bound']:,}"


def cost(row: dict[str, Any]) -> float:
    milliseconds: float = row["cpu_ms_per_candidate"]
    return milliseconds


def at_once_row(row: dict[str, Any], before: float | None) -> str:
    """Return the page's line of a run whose fakes take no time, and its cost before one worker looked for all."""
    then = "" if before is None else f"{before:.2f} ms"
    figures = f"{cost(row):.2f} ms | {then} | {1e3 / cost(row):,.0f}"
    grown = f"{row['journal_bytes_per_candidate']:,} B | {row['peak_mb']:,} MB"
    return f"| {row['devices']} | {row['candidates']:,} | {figures} | {grown} |".replace("|  |", "| |")


def paced_row(row: dict[str, Any]) -> str:
    busy = f"{row['compilers_busy']:.0%} | {row['devices_busy']:.0%}".replace("%", " %")
    given = f"{row['devices']} | {row['candidates']:,} | {row['candidates_per_s']:.0f}"
    return f"| {given} | {busy} | {depth(row['proposals'])} | {depth(row['artifacts'])} | {row['load']:.2f} |"


def test_costs_of_runs_without_waiting() -> None:
    before, rows = of("before"), of("cluster_sim")
    assert {devices for devices, _ in rows} == {1, 8, 64, 512} and all(row["pace"] == 0 for row in rows.values())
    assert before.keys() <= rows.keys()
    for point, row in rows.items():
        says(at_once_row(row, cost(before[point]) if point in before else None))
    less = max(1 - cost(row) / cost(rows[point]) for point, row in of("quieter").items())
    says(f"the same runs cost up to {less:.0%} less".replace("%", " %"))
    [million] = stored("million")
    assert (million["devices"], million["candidates"]) == (64, 1_000_000)
    says(at_once_row(million, None))


def test_queues_of_runs_with_waiting() -> None:
    rows = stored("paced")
    assert [row["devices"] for row in rows] == [1, 8, 64, 512] and all(row["pace"] == 1 for row in rows)
    says(*map(paced_row, rows))
    says(f"other programs held the cores for {rows[-1]['starved']:.0%} of the last run".replace("%", " %"))


def test_what_breaks_first() -> None:
    before, rows = of("before"), of("cluster_sim")
    [million] = stored("million")
    rate = 1e3 / cost(rows[512, 20_000])
    says(f"about {round(rate, -2):,.0f} candidates a second", f"{rate / 512:.1f} for each of 512 devices")
    many, few = (512, 1500), (64, 10_000)
    says(f"{cost(before[many]) / cost(rows[many]):.0f} times less than before with 512 devices")
    says(f"{cost(before[few]) / cost(rows[few]):.1f} times less with 64")
    says(f"{million['kb_per_candidate']:.1f} kB a candidate", f"{million['peak_mb'] / 1e3:.1f} GB with a million")
    journal_gb = million["journal_bytes_per_candidate"] * million["candidates"] / 1e9
    says(f"{journal_gb:.1f} GB of journal")
    assert all(row["artifacts"]["most"] == 0 for (devices, _), row in rows.items() if devices > 1)
