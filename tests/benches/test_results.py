"""What the pages take from bench/results/README.md, computed again from the files that are stored beside it; and the
scripts that the pages of the benchmarks name."""

from __future__ import annotations

import json
import lzma
import re
import shlex
import subprocess
import sys
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


def test_the_page_names_what_is_there() -> None:
    """Each folder has a row, and the commands have options that atune takes."""
    page = (RESULTS / "README.md").read_text()
    rows = " ".join(row.split("|")[1] for row in page.splitlines() if row.startswith("| "))
    assert {folder.name for folder in RESULTS.iterdir() if folder.is_dir()} <= set(re.findall(r"\w+", rows))
    for _, *words in map(shlex.split, re.findall(r"`(atune \w+ [^`]+)`", page)):
        make_parser().parse_args(words)


def test_vs_tilelang() -> None:
    theirs, ours = stored("vs_tilelang/result.json")["tuners"]
    says("vs_tilelang", f"{ours['result_s']:.1f} s", f"{theirs['result_s']:.1f} s")
    says("vs_tilelang", f"{ours['cpu_s'] / theirs['cpu_s']:.3f}", f"{ours['result_s'] / theirs['result_s']:.3f}")
    first, theirs, second = (one["result_s"] for one in stored("vs_tilelang/h100/result.json")["tuners"])
    says("vs_tilelang", f"took {first:.1f} and {second:.1f} s, and tilelang's tuner between them {theirs:.1f} s")


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
    says("strategies15", "all on the other seven")
    assert len(shares) - len(missed) == 7


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
    says("auto", "all 40 seeds", f"{100 * share:.1f} % of the median space")
    parts, within = ((RESULTS / "auto" / "parts.txt").read_text().splitlines()[-1].split()[at] for at in (0, 2))
    says("auto", f"On {parts} parts of these spaces", f"{within.rstrip('%')} % of the seeds come within 2 %")
    says("auto", f"{100 * sum(tried.values()) / sum(row['total'] for row in rows):.1f} % of all")


@pytest.mark.parametrize("folder", ["results", "spaces"])
def test_stored_files_name_no_folder_of_a_machine(folder: str) -> None:
    """Paths in journals are cut to what is below the repository; temporary files may stand in compilers' output."""
    files = [file for file in (ROOT / "bench" / folder).rglob("*") if file.is_file() and file.suffix not in NOT_DATA]
    assert len(files) > 5
    own = re.compile(rb"/(work|root|home|mnt|Users)/")
    for file in files:
        raw = lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes()
        assert own.search(raw) is None, file


BENCH = ROOT / "bench"
COMMAND = re.compile(r"`python bench/([\w.]+)([^`]*)`")
COMMANDS = [found for page in (BENCH, RESULTS) for found in COMMAND.findall((page / "README.md").read_text())]


@pytest.mark.parametrize("script", sorted({script for script, _ in COMMANDS}))
def test_a_script_explains_itself(script: str) -> None:
    """It starts, and takes the options that the pages give it."""
    done = subprocess.run([sys.executable, str(BENCH / script), "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "usage:" in done.stdout, done.stderr
    given = " ".join(given for name, given in COMMANDS if name == script)
    assert set(re.findall(r"--[\w-]+", given)) <= set(re.findall(r"--[\w-]+", done.stdout))
