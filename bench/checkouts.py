"""Compare two checkouts of atune: whole tunings, small drop-in programs, and a second tuning in the same program.

    git worktree add ../before COMMIT
    python bench/checkouts.py ../before --rows all,five,drop-in-4 --pairs 3 --out bench/results/checkouts

Each run is a fresh process with empty caches; with `--states known`, only the compiler states are kept from an
unmeasured run before. The two checkouts take turns in each pair, and every other pair begins
with the other one. A ratio divides this checkout's wall seconds by the other's in the same pair.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import start_programs as programs
from common import ROOT, options, report
from counted import Finished, empty_caches, forget_results, run_counted
from vs_tilelang import machine

RUN_S = 900.0
"""Time limit of a process."""
SECOND = """
import json, time, atune
atune.run("ROOT/examples/gemm.py:WORKLOAD", budget=4)
began = time.perf_counter()
result = atune.run("ROOT/bench/kernels.py:EVEN", budget=20)
print(json.dumps({"second_s": time.perf_counter() - began, "best_config": result.best_config,
                  "latency_ms": result.latency_ms}))
"""
"""A program that tunes twice, and prints the seconds of the second tuning."""

Command = Callable[[Path, Path], list[str]]
"""Function that makes a command from a checkout's root and the working folder of the process."""


def tuned(file: str, *more: str) -> Command:
    """Return the command that tunes a file of the checkout by `atune tune`."""

    def command(root: Path, folder: Path) -> list[str]:
        journal = ["--journal", str(folder / "journal.jsonl")]
        return [sys.executable, "-m", "atune", "tune", f"{root / file}:WORKLOAD", *more, *journal, "--quiet", "--json"]

    return command


def written(text: str) -> Command:
    """Return the command that runs `text` as a program, with the checkout's root in place of ROOT."""

    def command(root: Path, folder: Path) -> list[str]:
        (folder / "program.py").write_text(text.replace("ROOT", str(root)))
        return [sys.executable, "program.py"]

    return command


def rows(target: str) -> dict[str, Command]:
    """Return the commands of all rows, by name."""
    cuda = target == "cuda"
    gemm = "examples/gemm.py" if cuda else "examples/gemm_cpu.py"
    on = "--target", target
    commands = {"all": tuned(gemm, *on), "five": tuned(gemm, *on, "--budget", "5%")}
    if cuda:
        commands |= {"roller20": tuned("examples/gemm_roller.py", *on), "second": written(SECOND)}
    else:
        file = str(ROOT / "bench" / "failing.py")
        commands["failing"] = tuned(file, *on, "--strategy", "exhaustive", "--budget", "50%")
    drop_ins = {f"drop-in-{n}": written(programs.drop_in(target, n, programs.INSTALL)) for n in (1, 4, 10, 20)}
    return {**commands, **drop_ins}


def run(root: Path, command: Command, states: str = "new") -> dict[str, Any]:
    """Run a command once. Return its wall and CPU seconds, and the winner.

    `states`: ``known`` to run it before, unmeasured, so that the compiler states are known; otherwise they are new.
    """
    with empty_caches("checkouts-") as (folder, env):
        paths = [path for path in env["PYTHONPATH"].split(os.pathsep) if Path(path).resolve() != ROOT]
        env["PYTHONPATH"] = os.pathsep.join([str(root), *paths])
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        if states == "known":
            run_counted(command(root, folder), env=env, cwd=folder, timeout_s=RUN_S)
            forget_results(folder.parent / "cache", folder.parent / "tilelang")
        done = run_counted(command(root, folder), env=env, cwd=folder, timeout_s=RUN_S)
    if done.status != 0:
        raise SystemExit(f"{root}: exit status {done.status}\n{done.output[-3000:]}")
    return {**figures(done), "cpu_s": round(done.cpu_s, 2)}


def figures(done: Finished) -> dict[str, Any]:
    """Return the winner from a run's last line, and the wall seconds of the run, or of its second tuning."""
    last = done.output.strip().splitlines()[-1]
    summary: dict[str, Any] = json.loads(last) if last.startswith('{"') else {"best_config": last.rpartition("}")[0]}
    return {
        "wall_s": round(summary.get("second_s", done.wall_s), 3),
        **{key: summary[key] for key in ("best_config", "latency_ms", "measured") if key in summary},
    }


def in_turn(command: Command, roots: Sequence[Path], pairs: int, states: str) -> list[dict[str, dict[str, Any]]]:
    """Run both checkouts in each pair. Every other pair begins with this one."""
    runs = []
    for turn in range(pairs):
        order = roots if turn % 2 == 0 else roots[::-1]
        taken = {root: run(root, command, states) for root in order}
        runs.append(dict(zip(("other", "this"), (taken[root] for root in roots), strict=True)))
    return runs


def line(name: str, pairs: Sequence[dict[str, dict[str, Any]]]) -> list[str]:
    ratios = [pair["this"]["wall_s"] / pair["other"]["wall_s"] for pair in pairs]
    walls = [" ".join(f"{pair[which]['wall_s']:.2f}" for pair in pairs) for which in ("other", "this")]
    same = sum(pair["this"].get("best_config") == pair["other"].get("best_config") for pair in pairs)
    spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    return [name, *walls, spread, f"{same} of {len(pairs)}"]


def commit_of(root: Path) -> str:
    done = subprocess.run(["git", "-C", str(root), "describe", "--always", "--dirty"], capture_output=True, text=True)
    return done.stdout.strip()


def main() -> None:
    other = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else None
    given = options(__doc__ or "", 3000.0, target="cuda", rows="", pairs=3, states="new")
    if other is None or not (other / "atune").is_dir():
        raise SystemExit("the first argument must be the folder of another checkout, such as ../before")
    every = rows(given.target)
    asked = [name for name in given.rows.split(",") if name] or list(every)
    if unknown := [name for name in asked if name not in every]:
        raise SystemExit(f"--rows: {unknown[0]!r} is unknown: choose from {', '.join(every)}")
    roots = (other, ROOT)
    for root in roots:
        run(root, tuned("examples/gemm_cpu.py" if given.target != "cuda" else "examples/gemm.py", "--budget", "2"))
    results: dict[str, Any] = {
        "machine": machine(), "commits": {"other": commit_of(other), "this": commit_of(ROOT)}, "rows": {},
    }  # fmt: skip
    table = [["row", "other, s", "this, s", "this / other", "same winner"]]
    for name in asked:
        results["rows"][name] = in_turn(every[name], roots, given.pairs, given.states)
        table.append(line(name, results["rows"][name]))
        print("  ".join(table[-1]), file=sys.stderr, flush=True)
        if given.out is not None:  # keeps the results so far if a later run fails
            (given.out / f"checkouts-{given.target}.json").write_text(json.dumps(results, indent=1) + "\n")
    report(given, f"checkouts-{given.target}", table, results)


if __name__ == "__main__":
    main()
