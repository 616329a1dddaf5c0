"""What bench/results/README.md says, computed again from the files that are stored beside it."""

from __future__ import annotations

import json
import lzma
import re
from collections import Counter
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from atune.frontends.api.resume import read_state
from atune.journal.events import (
    BenchmarkFailed,
    CandidateMeasured,
    RunStarted,
)
from atune.journal.reader import read
from atune.journal.result import Result

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
NOT_DATA = {".md", ".pyc"}
"""Endings of files that may name folders: pages tell how to call, and compiled modules where their source lies."""


def stored(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def journal(name: str) -> Result:
    return Result(read_state(RESULTS / name))


@cache
def claims() -> dict[str, str]:
    """Return what the README's list says, in one line each, by the folder that it begins with."""
    listed = (RESULTS / "README.md").read_text().partition("What the runs printed:")[2]
    found = re.findall(r"^- ([\w]+)[:,](.*?)(?=^- |\Z)", listed, re.M | re.S)
    return {folder: " ".join(text.split()) for folder, text in found}


def says(folder: str, *figures: str) -> None:
    for figure in figures:
        assert re.search(rf"(?<![\d.]){re.escape(figure)}", claims()[folder]), f"{folder}: {figure}: {claims()[folder]}"


def test_each_claim_is_computed_here() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert claims().keys() <= tested


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


def test_vs_tilelang() -> None:
    compared("vs_tilelang", "default")
    first, theirs, second = (one["result_s"] for one in stored("vs_tilelang/h100/result.json")["tuners"])
    says("vs_tilelang", f"took {first:.1f} and {second:.1f} s, and tilelang's tuner between them {theirs:.1f} s")


def test_roller20() -> None:
    compared("roller20", "default", "pipeline", "grouped", "both")
    says("roller20", f"{stored('roller20/result.json')['tuners'][-1]['stages_s']['start']:.1f} are the start")


def test_checkouts() -> None:
    rows = stored("checkouts/checkouts-cuda.json")["rows"]
    for name, row in rows.items():
        assert all(pair["this"]["best_config"] == pair["other"]["best_config"] for pair in row) and len(row) == 3, name
        ratios = sorted(pair["this"]["wall_s"] / pair["other"]["wall_s"] for pair in row)
        says("checkouts", f"{median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})")


def test_bundle() -> None:
    for name, target in ("bundle", "c"), ("cuda", "cuda"):
        found = stored(f"bundle/{name}.json")
        assert found["target"] == target and found["bundle"]["over_kernel_ns"][2] < 2000
        says("bundle", f"{found['bundle']['over_kernel_ns'][1] / 1e3:.1f} µs")
        says("bundle", *(f"{found['fresh'][part]:.1f} ms" for part in ("load_ms", "first_ms")))


def test_resume() -> None:
    half, whole = journal("resume/half.jsonl"), journal("resume/whole.jsonl")
    events = [json.loads(line)["event"] for line in (RESULTS / "resume" / "half.jsonl").read_text().splitlines()]
    names = [event["event"] for event in events]
    before = names[: names.index("run_resumed")].count("candidate_measured")
    measured = Counter(event["index"] for event in events if event["event"] == "candidate_measured")
    assert set(measured.values()) == {1} and half.best_config == whole.best_config
    says("resume", f"{half.wall_s:.1f} s in two parts", f"killed with {before} measured", f"{whole.wall_s:.1f} s")
    says("resume", f"{len(measured)} measured once each")


def test_op_library() -> None:
    rows = {(row["operator"], row["tuner"]): row for row in stored("op_library/op_library.json")["rows"]}
    for name in ("Silu", "RmsNorm"):
        theirs, ours = rows[name, "tilelang"], rows[name, "atune"]
        says("op_library", f"{ours['seconds'] / theirs['seconds']:.2f}")
        [(one, other)] = zip(theirs["retimed"].values(), ours["retimed"].values(), strict=True)
        says("op_library", f"{other['latency_ms'] / one['latency_ms']:.3f}")
    says("op_library", f"{rows['SplitKGemm', 'atune']['seconds']:.1f} s")
    assert rows["SplitKGemm", "tilelang"]["error"] == "not ended after 110 s"
    assert all(row["correct"] for row in rows.values() if not row["error"])


def test_outputs() -> None:
    _, *rows = stored("outputs/outputs.json")["rows"]
    short, long = (row for row in rows if row[0] == "length")
    says("outputs", f"{float(short[2]):.3f} and {float(long[2]):.2f} ms", f"{float(short[3]):.2f} and")
    assert {row[-1] for row in rows if row[0] == "zero"} == {"9 of 9"} and "9 of 9 calls" in claims()["outputs"]


def test_sets_plain() -> None:
    names = ("before", "one_gpu", "two_gpus")
    found = [stored(f"sets/plain/{name}.json")["pairs"][0]["set"] for name in names]
    before, one, two = (each["wall_s"] for each in found)
    says(
        "sets_plain", f"{one:.1f} s on one GPU, before {before:.1f} s ({one / before:.2f})", f"{two:.1f} s on two GPUs"
    )
    assert {each["measured"] for each in found} == {336} and two <= one <= 1.3 * before


def test_states() -> None:
    rows = stored("states/turns.json")["rows"]
    for run in {row["run"] for row in rows}:
        before, now = (
            [row["wall_s"] for row in rows if (row["tree"], row["run"]) == (t, run)] for t in ("before", "now")
        )
        says("states", *(f"{n / b:.2f}" for b, n in zip(before, now, strict=True)))


def test_faults() -> None:
    found = stored("faults/faults.json")
    head, *rows = found["rows"]
    right = sum(row[head.index("right")] == "yes" for row in rows)
    says("faults", f"{right} of {len(rows)} named rightly", f"{len(found['ratios'])} of 20 good candidates measured")
    for ratios in (found["ratios"], found["clean_ratios"]):
        says("faults", f"{max(abs(ratio - 1) for ratio in ratios.values()):.2%}".replace("%", " %"))
    [hang] = [row for row in rows if row[0] == "endless"]
    says("faults", f"{hang[head.index('kill s')]} s after its deadline", f"{hang[head.index('again s')]} s after it")


def test_scaling() -> None:
    found = stored("scaling/scaling.json")
    stage, engine = found["stage"], found["engine"]
    says("scaling", f"{stage['measurements']} measurements", *(f"{stage['times_faster'][n]:.2f} times" for n in "24"))
    one = engine["1"]["stage_s"]
    says("scaling", f"{one / engine['2']['stage_s']:.2f} and {one / engine['4']['stage_s']:.2f} times faster")
    walls = [f"{engine[n]['wall_s']:.1f}" for n in "124"]
    says("scaling", f"{walls[0]}, {walls[1]} and {walls[2]} s")


def test_compat() -> None:
    rows = stored("compat/compat.json")["rows"]
    ratios = [b["result_s"] / a["result_s"] for a, b in zip(rows[::2], rows[1::2], strict=True)]
    says("compat", f"{min(ratios):.2f} to {max(ratios):.2f}")


def test_overhead() -> None:
    found = stored("overhead/overhead.json")["eager: @atune.autotune"]
    says("overhead", f"{found['over_kernel_ns'][1] / 1e3:.1f} µs more", f"{-found['over_jit_ns'][1] / 1e3:.1f} µs less")


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


def test_cluster_faults() -> None:
    found = stored("cluster_faults/result.json")
    rows = {row["fault"]: row for row in found["rows"]}
    assert {row["measured"] for row in rows.values()} == {found["candidates"]} and len(rows) == 6
    assert not any(row["orphans"] or row["twice"] for row in rows.values())
    says("cluster_faults", f"all {found['candidates']} candidates were measured once")
    says("cluster_faults", f"{found['orphans_after_s']:g} s after its end")
    for name in ("a worker killed", "a node killed", "an agent hung", "a network that stalls"):
        row = rows[name]
        noticed, again = f"{row['noticed_s']:.2f} s until noticed", f"{row['again_s']:.2f} s until begun again"
        says("cluster_faults", f"{name}: {noticed}, {again}")
    says("cluster_faults", f"a cancelled run ended in {rows['cancelled, then resumed']['noticed_s']:.2f} s")


def test_sets_tilelang() -> None:
    seconds, latencies = [], []
    for m in (1, 64, 2048):
        theirs, ours = stored(f"sets/tilelang/m{m}/result.json")["tuners"]
        seconds.append(f"{ours['result_s'] / theirs['result_s']:.3f}")
        assert ours["measured"] == theirs["measured"] == 144 and ours["retimed_correct"] and theirs["retimed_correct"]
        table = (RESULTS / "sets" / "tilelang" / f"m{m}" / "table.md").read_text()
        latencies += re.findall(r"([\d.]+) \(95 % interval", table)
    says("sets_tilelang", f"{', '.join(seconds[:-1])} and {seconds[-1]} of the seconds")
    says("sets_tilelang", f"{', '.join(latencies[:-1])} and {latencies[-1]} of its latency")


def test_seed000() -> None:
    def runs(name: str, space: str) -> dict[str, Any]:
        found = stored(f"seed000/{name}/result.json")["runs"]
        return {run["variant"]: run for run in found if run["space"] == space}

    def gain(found: dict[str, Any], way: str) -> str:
        return f"{found['nothing']['result_s'] / found[way]['result_s']:.2f}"

    roller, gemm = runs("roller20", "roller20@2"), runs("gemm288", "gemm288")
    says("seed000", f"{gain(roller, 'all')} times as early", f"the 288 {gain(gemm, 'all')} times")
    says("seed000", f"alone gains {gain(roller, 'pipeline')} and {gain(gemm, 'pipeline')} times")
    groups = [gain(roller, name) for name in roller if name.startswith("groups")]
    says("seed000", f"{min(groups)} to {max(groups)} times")
    slower = runs("groups", "gemm288")
    each = [gain(slower, f"groups {size}") for size in ("of 2", "of 4", "automatic")]
    says("seed000", "{}, {} and {} times on the 288".format(*each), f"everything {gain(slower, 'all')} times")
    two = runs("two_devices", "gemm288")
    seconds = [two[name]["stages"]["benchmark_wall_s"] for name in ("nothing", "2 devices")]
    says("seed000", f"{seconds[0] / seconds[1]:.2f} times as fast", f"end {gain(two, '2 devices')} times as early")
    excluded = runs("one_excluded", "gemm288")
    stages = excluded["2 devices"]["stages"]
    assert stages["benchmark_s"] == stages["benchmark_wall_s"]
    says("seed000", f"{gain(excluded, '2 devices')} times was gained")


def test_faults_apart() -> None:
    found, parts = stored("faults_apart/apart.json"), stored("faults_apart/resumed.json")
    says("faults_apart", f"{found['figures']} figures", f"{100 * found['farthest']:.2f} % at most")
    says("faults_apart", f"by {100 * found['clean_farthest']:.2f} %")
    assert found["twice"] == parts["twice"] == [] and parts["status"] == 0 and len(parts["measured"][1]) == 1
    events = read(RESULTS / "faults_apart" / "resumed.jsonl.xz")
    before = [event for event in events if isinstance(event, CandidateMeasured)][: sum(parts["measured"][0].values())]
    total = next(event.total for event in events if isinstance(event, RunStarted))
    says("faults_apart", f"killed with {len(before)} of {total} measured")
    measured = Counter(event.index for event in events if isinstance(event, CandidateMeasured))
    assert len(measured) == total and set(measured.values()) == {1}
    for number in (1, 2, 3):
        tried = read(RESULTS / "faults_apart" / f"faulty-{number}.jsonl.xz")
        assert sum(isinstance(event, BenchmarkFailed) for event in tried) == 9


def test_layouts() -> None:
    found = [journal(f"layouts/{name}.jsonl.xz") for name in ("wide", "uneven")]
    ratios = [result.speedup_over_default for result in found]
    says("layouts", " and ".join(f"{ratio[1]:.1f}" for ratio in ratios if ratio is not None) + " times faster")
    assert (found[0].measured, found[0].duplicates) == (18, 54)


def row(name: str) -> dict[str, Any]:
    """Return a row of bench/start.py that was recorded on an H200."""
    found: dict[str, Any] = stored(f"start/cuda-{name}.json")["rows"][name]
    return found


def test_start() -> None:
    says("start", f"{row('drop-in-1')['median']:.2f} of the time")
    says(
        "start", f"one with four {row('drop-in-4')['median']:.2f}", f"one with twenty {row('drop-in-20')['median']:.2f}"
    )


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
    says("strategies15", f"all on the other {COUNTS[len(shares) - len(missed)]}")


def test_strategies_prior5() -> None:
    for strategy in ("prior", "forest"):
        found = summaries("strategies_prior5", strategy)
        assert len(found) == 10 and found["gemm288"]["evaluations"] == 15
        assert {summary["within_2pct"] for summary in found.values()} == {1.0}
    says("strategies_prior5", "5 % of the candidates", "100 of 100 seeds", "each of the ten recordings")


COUNTS = {6: "six", 7: "seven", 9: "nine", 18: "eighteen"}


@pytest.mark.parametrize("folder", ["results", "spaces"])
def test_stored_files_name_no_folder_of_a_machine(folder: str) -> None:
    """Paths in journals are cut to what is below the repository; temporary files may stand in compilers' output."""
    files = [file for file in (ROOT / "bench" / folder).rglob("*") if file.is_file() and file.suffix not in NOT_DATA]
    assert len(files) > 5
    own = re.compile(rb"/(work|root|home|mnt|Users)/")
    for file in files:
        raw = lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes()
        assert own.search(raw) is None, file
