"""From Enter to the first kernel: early starts, warm processes, and small tunings, in turn with tilelang's own tuner.

    python bench/start.py --target cuda --out bench/results/start
    python bench/start.py --target cpu --only drop-in-1,hit --pairs 3

Each row runs its variants in turn, `--pairs` times, each in a fresh process, in rotating order. Caches are empty unless
the row is about them. But under the drop-in, an unmeasured run first compares the compiler states, except for `new`. A
ratio divides the figures of the same pair. On the CPU, a program in which tilelang compiles the same configurations
without measuring stands in for its tuner, which needs a GPU.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import start_programs as programs
from common import ROOT, options, report
from counted import forget_results
from vs_tilelang import machine

from atune.workers.result_cache import ResultCache

RUN_S = 300.0
"""Time limit of a process."""
ATUNE = (sys.executable, "-m", "atune")
NOT_EARLY = {"ATUNE_WARM": "off"}
FILE = "tuned.py"
JOURNALS = 1000
"""Journals in the cache of the row `store`."""
GOALS = {1: "at most 0.7", 4: "at most 0.35", 10: "at most 0.3", 20: "at most 0.5"}
"""Goals of the drop-in's programs, by number of configurations."""
EDITED = 20
"""Configurations of the file in the row `edit`."""


class Folder:
    """The folder in which a row's processes run, with caches that can be emptied, and their environment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name in ("cache", "tilelang", "tmp", "work"):
            (path / name).mkdir(mode=0o700)
        left_out = {"TILELANG_DISABLE_CACHE", "ATUNE_CACHE_DIR", "ATUNE_WARM"}
        left_out.add("PYTHONDONTWRITEBYTECODE")  # users' Python modules are compiled
        self.env = {name: value for name, value in os.environ.items() if name not in left_out}
        self.env |= {
            "XDG_CACHE_HOME": str(path / "cache"),
            "TILELANG_CACHE_DIR": str(path / "tilelang"),
            "TMPDIR": str(path / "tmp"),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", "")))),
        }

    def empty_caches(self) -> None:
        for name in ("cache", "tilelang"):
            shutil.rmtree(self.path / name)
            (self.path / name).mkdir(mode=0o700)

    def write(self, name: str, text: str) -> str:
        file = self.path / "work" / name
        file.write_text(text)
        return str(file)

    def run(self, *command: str, **env: str) -> float:
        """Run a command, and return its seconds. Raises `SystemExit` with its output if it fails."""
        with (self.path / "output.txt").open("w+") as output:
            began = time.perf_counter()
            process = subprocess.Popen(
                command, env={**self.env, **env}, cwd=self.path / "work", stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
            try:
                status: int | str = process.wait(RUN_S)
            except BaseException as error:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                status = f"none within {RUN_S:g} s"
            seconds = time.perf_counter() - began
            output.seek(0)
            if status != 0:
                raise SystemExit(f"{shlex.join(command)}: exit status {status}\n{output.read()[-3000:]}")
        return seconds

    def program(self, text: str, **env: str) -> float:
        return self.run(sys.executable, self.write("program.py", text), **env)

    def tune(self, workload: str, *more: str, **env: str) -> dict[str, float]:
        """Run `atune tune`. Return its wall seconds, and the `figures` of its journal."""
        journal = self.path / "work" / "journal.jsonl"
        journal.unlink(missing_ok=True)
        began = time.time()
        wall_s = self.run(*ATUNE, "tune", workload, "--journal", str(journal), "--json", *more, **env)
        events = [json.loads(line)["event"] for line in journal.read_text().splitlines()]
        return {"wall_s": wall_s, **figures(events, began)}


def figures(events: Sequence[dict[str, Any]], began: float) -> dict[str, float]:
    """Return seconds: from `began` to the first work (`start_s`) and to the winner (`winner_s`), and `own_s`.

    The first work is surveying the space, or lowering. The winner is known once the last new best is measured. `own_s`:
    lowering, compiling and measuring the first candidate, as the workers timed them.
    """
    lowered = [e for e in events if e["event"] == "candidate_lowered"]
    surveyed = [e["time"] - e["seconds"] - began for e in events if e["event"] == "space_surveyed"]
    own = [next((e for e in events if e["event"] == k), {}) for k in ("artifact_built", "candidate_measured")]
    first = min(lowered, key=lambda e: e["time"] - e["seconds"])
    start_s = min([first["time"] - first["seconds"] - began, *surveyed])
    own_s = first["seconds"] + sum(e.get("seconds", 0.0) for e in own)
    winner_s = max(e["time"] - began for e in events if e["event"] == "best_changed")
    return {"start_s": start_s, "own_s": own_s, "winner_s": winner_s}


Variant = Callable[[Folder], dict[str, float]]


class Row(NamedTuple):
    """A case: its variants by name, the figure of each pair, and the goal."""

    variants: dict[str, Variant]
    figure: str
    """Name of the figure."""
    value: Callable[[dict[str, dict[str, float]]], float]
    goal: str = ""
    beside: Mapping[str, Callable[[dict[str, dict[str, float]]], float]] = {}
    """Further figures of each pair, by name."""


def ratio(above: str, below: str) -> Callable[[dict[str, dict[str, float]]], float]:
    return lambda pair: pair[above]["wall_s"] / pair[below]["wall_s"]


def above_own(variant: str) -> Callable[[dict[str, dict[str, float]]], float]:
    return lambda pair: pair[variant]["wall_s"] - pair[variant]["own_s"]


def program(text: str, *, known: bool = False, **env: str) -> Variant:
    """Return a variant that runs a program with empty caches. `known`: but the compiler states are known."""

    def run(folder: Folder) -> dict[str, float]:
        folder.empty_caches()
        if known:
            folder.program(text, **env)
            forget_results(folder.path / "cache", folder.path / "tilelang")
        return {"wall_s": folder.program(text, **env)}

    return run


def tuned_file(target: str, count: int, *more: str, **env: str) -> Variant:
    """Return a variant that tunes a file of `count` configurations with empty caches."""

    def run(folder: Folder) -> dict[str, float]:
        folder.empty_caches()
        return folder.tune(f"{folder.write(FILE, programs.workload_file(target, count))}:WORKLOAD", *more, **env)

    return run


def rows(target: str) -> dict[str, Row]:
    """Return all rows, by name."""
    example = f"{programs.EXAMPLES[target]}:WORKLOAD"

    def tune(*more: str, **env: str) -> Variant:
        def run(folder: Folder) -> dict[str, float]:
            folder.empty_caches()
            return folder.tune(example, *more, **env)

        return run

    table = {
        "budget-1": Row(
            {"prior": tune("--budget", "1"), "no prior": tune("--budget", "1", "--strategy", "random")},
            "prior: seconds above the candidate's own", above_own("prior"),
            beside={"the same without the prior": above_own("no prior")},
        ),
        "edit": edit_row(target),
        "hit": hit_row(target),
        "store": store_row(target),
        "warm": Row(
            {name: program(programs.warmed(target, warm=name == "warm()")) for name in ("late", "warm()")},
            "warm() / late", ratio("warm()", "late"),
        ),
    }  # fmt: skip
    table |= {f"drop-in-{n}": drop_in_row(target, n, goal) for n, goal in GOALS.items()}
    table |= {f"few-{n}": few_row(target, n) for n in (15, 20)}
    late = drop_in_row(target, 1, GOALS[1], programs.LATE)
    return {**table, "drop-in-1-late": late}


def drop_in_row(target: str, count: int, goal: str, head: str = programs.INSTALL) -> Row:
    """Return the row of a program with `count` configurations under tilelang's tuner, and under atune's `install()`."""
    atunes = programs.drop_in(target, count, head)
    theirs = programs.drop_in(target, count) if target == "cuda" else programs.compiled_only(target, count)
    known = target == "cuda"
    variants = {"tilelang": program(theirs), "atune": program(atunes, known=known), "new": program(atunes)}
    if count == 1:
        variants["atune, not early"] = program(atunes, known=known, **NOT_EARLY)
    return Row(variants, "atune / tilelang", ratio("atune", "tilelang"), goal,
               beside={"the same in a new compiler state": ratio("new", "tilelang")})  # fmt: skip


def hit_row(target: str) -> Row:
    """Return the row of a program whose results are all cached: the cost of starting early."""
    text = programs.drop_in(target, 1, programs.INSTALL)

    def run(**env: str) -> Variant:
        def again(folder: Folder) -> dict[str, float]:
            file = folder.path / "work" / "program.py"
            if not file.exists():
                folder.program(text)  # tunes
            return {"wall_s": folder.run(sys.executable, str(file), **env)}

        return again

    variants = {"early": run(), "not early": run(**NOT_EARLY)}
    return Row(variants, "early / not early", ratio("early", "not early"), "at most 1.03")


def edit_row(target: str) -> Row:
    """Return the row of a file that is tuned, edited and tuned again, compared with its tuning with empty caches."""

    def again(folder: Folder) -> dict[str, float]:
        tuned_file(target, EDITED)(folder)
        name = folder.write(FILE, programs.workload_file(target, EDITED, edited=True))
        return folder.tune(f"{name}:WORKLOAD")

    return Row(
        {"cold": tuned_file(target, EDITED), "edited": again},
        "edited / cold", ratio("edited", "cold"),
        beside={"edited, to the winner / cold": lambda p: p["edited"]["winner_s"] / p["cold"]["wall_s"]},
    )  # fmt: skip


def store_row(target: str) -> Row:
    """Return the row of a cache with 1,000 journals: `atune runs`, and a repeated look-up in this process."""

    def runs(folder: Folder) -> dict[str, float]:
        cache = ResultCache(folder.path / "cache" / "atune")
        if not cache.journals.exists():
            folder.tune(f"{programs.EXAMPLES[target]}:WORKLOAD", "--budget", "10")
            for number in range(JOURNALS):
                place = cache.journals / f"kernel-{number % 50}" / f"{number:032x}-20260101-000000.{number:06}.jsonl"
                place.parent.mkdir(mode=0o700, exist_ok=True)
                shutil.copyfile(folder.path / "work" / "journal.jsonl", place)
        key = cache.answers()[0].parts
        began = time.perf_counter()
        assert key is not None and cache.find(key) is not None
        look_up_s = time.perf_counter() - began
        return {"wall_s": folder.run(*ATUNE, "runs"), "look_up_s": look_up_s}

    ms = {"ms of a look-up": lambda p: 1e3 * p["atune runs"]["look_up_s"]}
    return Row({"atune runs": runs}, "seconds", lambda p: p["atune runs"]["wall_s"], "at most 0.5", ms)


def few_row(target: str, count: int) -> Row:
    """Return the row of `count` configurations, compiled as atune chooses, and all by nvcc."""
    return Row(
        {"auto": tuned_file(target, count), "plain": tuned_file(target, count, "--no-cicc")},
        "auto / plain", ratio("auto", "plain"),
        beside={"to the winner: auto / plain": lambda p: p["auto"]["winner_s"] / p["plain"]["winner_s"]},
    )  # fmt: skip


def run_row(row: Row, pairs: int) -> dict[str, Any]:
    """Run all variants in turn. Return the figures of the row, and of each pair."""
    with tempfile.TemporaryDirectory(prefix="start-") as name:
        return _in_turn(row, pairs, Folder(Path(name)))


def _in_turn(row: Row, pairs: int, folder: Folder) -> dict[str, Any]:
    names, runs = list(row.variants), list[dict[str, dict[str, float]]]()
    for turn in range(pairs):
        order = [names[(turn + i) % len(names)] for i in range(len(names))]
        taken = {name: row.variants[name](folder) for name in order}
        runs.append({name: {k: round(v, 3) for k, v in taken[name].items()} for name in names})
    values = [round(row.value(pair), 3) for pair in runs]
    beside = {name: [round(value(pair), 3) for pair in runs] for name, value in row.beside.items()}
    walls = {name: round(statistics.median(pair[name]["wall_s"] for pair in runs), 3) for name in names}
    return {"figure": row.figure, "goal": row.goal, "values": values, "median": statistics.median(values),
            "median_wall_s": walls, "beside": beside, "pairs": runs}  # fmt: skip


def lines_of(name: str, result: dict[str, Any]) -> list[list[str]]:
    walls = ", ".join(f"{variant} {seconds:.2f}" for variant, seconds in result["median_wall_s"].items())
    more = [["", "", figure, spread(values), ""] for figure, values in result["beside"].items()]
    return [[name, walls, result["figure"], spread(result["values"]), result["goal"]], *more]


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    given = options("From Enter to the first kernel.", 3000.0, target="cuda", pairs=5, only="")
    target = {"cpu": "c", "c": "c", "cuda": "cuda"}.get(given.target)
    if target is None:
        raise SystemExit(f"--target must be cuda or cpu, got {given.target!r}")
    every = rows(target)
    asked = [name.strip() for name in given.only.split(",") if name.strip()] or list(every)
    if unknown := [name for name in asked if name not in every]:
        raise SystemExit(f"--only: {unknown[0]!r} is unknown: choose from {', '.join(every)}")
    subprocess.run([sys.executable, "-c", "import tilelang"], check=True)  # or the first run reads it from the disk
    results: dict[str, Any] = {"command": shlex.join(["python", "bench/start.py", *sys.argv[1:]]), "machine": machine()}
    results["rows"] = {}
    table = [["row", "median wall, s", "figure", "median (all)", "goal"]]
    for name in asked:
        load = os.getloadavg()[0]
        result = results["rows"][name] = {**run_row(every[name], given.pairs), "load_before": round(load, 1)}
        for line in lines_of(name, result):
            table.append(line)
            print("  ".join(line), file=sys.stderr, flush=True)
        if given.out is not None:  # keeps the results so far if a later row fails
            (given.out / f"start-{given.target}.json").write_text(json.dumps(results, indent=1) + "\n")
    report(given, f"start-{given.target}", table, results)


if __name__ == "__main__":
    main()
