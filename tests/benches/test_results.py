"""What the pages take from bench/results/README.md, computed again from the files that are stored beside it."""

from __future__ import annotations

import json
import lzma
import re
import shlex
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from atune.frontends.cli.main import make_parser

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
NOT_DATA = {".md", ".pyc"}
"""Endings of files that may name folders: pages tell how to call, and compiled modules where their source lies."""


def stored(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


@cache
def claims() -> dict[str, str]:
    """Return what the README's list says, in one line each, by the folder that it begins with."""
    listed = (RESULTS / "README.md").read_text().partition("What the runs printed:")[2]
    found = re.findall(r"^- ([\w]+)[:,](.*?)(?=^- |\Z)", listed, re.M | re.S)
    return {folder: " ".join(text.split()) for folder, text in found}


def says(folder: str, *figures: str) -> None:
    for figure in figures:
        assert re.search(rf"(?<![\d.]){re.escape(figure)}", claims()[folder]), f"{folder}: {figure}: {claims()[folder]}"


def compared(folder: str, *others: str) -> None:
    """The seconds of both tuners, which modes of tilelang's were run, and the ratios to the fastest."""
    *theirs, ours = stored(f"{folder}/result.json")["tuners"]
    assert [f"tilelang {mode}" for mode in others] == [other["tuner"] for other in theirs] and ours["tuner"] == "atune"
    says(folder, f"{ours['result_s']:.1f} s", *(f"{other['result_s']:.1f} s" for other in theirs))
    says(folder, *(f"`{mode}`" for mode in others))
    best = min(theirs, key=lambda other: float(other["result_s"]))
    says(folder, f"{ours['cpu_s'] / best['cpu_s']:.3f}", f"{ours['result_s'] / best['result_s']:.3f}")
    table = (RESULTS / folder / "table.md").read_text()
    found = re.findall(r"that of (.*): ([\d.]+) \(95 % interval ([\d.]+) to ([\d.]+)\)", table)
    [(middle, low, high)] = [figures for tuner, *figures in found if tuner == best["tuner"]]
    says(folder, f"{middle} ({low}–{high})")


def test_the_page_names_what_is_there() -> None:
    """Each folder has a row, and the commands have options that atune takes."""
    page = (RESULTS / "README.md").read_text()
    rows = " ".join(row.split("|")[1] for row in page.splitlines() if row.startswith("| "))
    assert {folder.name for folder in RESULTS.iterdir() if folder.is_dir()} <= set(re.findall(r"\w+", rows))
    for _, *words in map(shlex.split, re.findall(r"`(atune \w+ [^`]+)`", page)):
        make_parser().parse_args(words)


def test_vs_tilelang() -> None:
    compared("vs_tilelang", "default")
    first, theirs, second = (one["result_s"] for one in stored("vs_tilelang/h100/result.json")["tuners"])
    says("vs_tilelang", f"took {first:.1f} and {second:.1f} s, and tilelang's tuner between them {theirs:.1f} s")


def test_roller20() -> None:
    compared("roller20", "default", "pipeline", "grouped", "both")
    says("roller20", f"{stored('roller20/result.json')['tuners'][-1]['stages_s']['start']:.1f} are the start")


def test_loop_delay() -> None:
    now, before = stored("loop_delay/loop_delay.json"), stored("loop_delay/before.json")

    def longest(found: dict[str, Any], *words: str) -> float:
        return max(found[name]["max_ms"] for name in found if any(name.startswith(word) for word in words))

    says("loop_delay", f"{longest(now, 'plain', 'again'):.1f} ms at most", f"{longest(now, 'closure'):.1f} ms; before")
    for kind in ("bytes", "torch", "numpy"):
        says("loop_delay", f"{before[f'closure of 200 MB, {kind}']['max_ms']:.0f} ms ({kind})")
    many, resumed = "20,000 candidates", "20,000 candidates, resumed"
    says("loop_delay", f"it is {now[many]['max_ms']:.1f} ms, and {now[resumed]['max_ms']:.1f} ms")
    says("loop_delay", f"{before[many]['max_ms']:.0f} and {before[resumed]['max_ms']:.0f} ms")
    slow = [name for name, found in now.items() if isinstance(found, dict) and found["p99_ms"] >= 10]
    assert slow == [resumed]
    says("loop_delay", f"that last one: {now[resumed]['p99_ms']:.1f} ms")
    service = stored("loop_delay/service.json")["web service"]
    says("loop_delay", f"{service['p50_ms']:.1f} ms (p50) and {service['p99_ms']:.1f} ms (p99)")
    assert service["p99_ms"] <= 10


def summaries(folder: str, strategy: str) -> dict[str, dict[str, Any]]:
    """Return a strategy's summaries by space, of the least budget that is a share of the space."""
    rows = [row for row in stored(f"{folder}/result.json")["rows"] if row["summary"]["strategy"] == strategy]
    assert all(row["summary"]["seeds"] == 100 for row in rows)
    rows.sort(key=lambda row: -row["summary"]["evaluations"])
    return {row["space"]: row["summary"] for row in rows}


def test_strategies15() -> None:
    rows = [row["summary"] | row for row in stored("strategies15/result.json")["rows"]]
    shares = {row["space"]: row["summary"]["within_2pct"] for row in rows if row["evaluations"] >= 0.15 * row["total"]}
    assert len(shares) == 10 and {row["seeds"] for row in rows} == {40}
    missed = {space: share for space, share in sorted(shares.items(), key=lambda item: item[1]) if share < 1}
    assert min(missed.values()) >= 0.8
    says("strategies15", *(f"{100 * share:.0f} % on {space}" for space, share in missed.items()))
    says("strategies15", "all on the other six")
    assert len(shares) - len(missed) == 6


def test_strategies_prior5() -> None:
    for strategy in ("prior", "bayesian"):
        found = summaries("strategies_prior5", strategy)
        assert len(found) == 10 and found["gemm288"]["evaluations"] == 15
        assert {summary["within_2pct"] for summary in found.values()} == {1.0}
    says("strategies_prior5", "5 % of the candidates", "100 of 100 seeds", "each of the ten recordings")


def test_auto() -> None:
    rows = stored("auto/result.json")["rows"]
    assert len(rows) == 10 and {row["summary"]["seeds"] for row in rows} == {40}
    assert {row["summary"]["within_2pct"] for row in rows} == {1.0}
    tried = {row["space"]: row["summary"]["evaluations_median"] for row in rows}
    share = median(tried[row["space"]] / row["total"] for row in rows)
    says("auto", "all 40 seeds", f"{100 * share:.1f} % of its candidates")
    parts, within = ((RESULTS / "auto" / "parts.txt").read_text().splitlines()[-1].split()[at] for at in (0, 2))
    says("auto", f"On {parts} parts of these spaces", f"{within.rstrip('%')} % of the seeds come within 2 %")
    says("auto", f"{100 * sum(tried.values()) / sum(row['total'] for row in rows):.1f} % are")


@pytest.mark.parametrize("folder", ["results", "spaces"])
def test_stored_files_name_no_folder_of_a_machine(folder: str) -> None:
    """Paths in journals are cut to what is below the repository; temporary files may stand in compilers' output."""
    files = [file for file in (ROOT / "bench" / folder).rglob("*") if file.is_file() and file.suffix not in NOT_DATA]
    assert len(files) > 5
    own = re.compile(rb"/(work|root|home|mnt|Users)/")
    for file in files:
        raw = lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes()
        assert own.search(raw) is None, file
