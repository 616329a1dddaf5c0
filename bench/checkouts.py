"""Two checkouts of atune in turn: whole tunings, small drop-in programs, and a second tuning in one program.

    git worktree add ../before COMMIT
    python bench/checkouts.py ../before --rows all,five,drop-in-4 --pairs 3 --out bench/results/checkouts

Each run is a fresh process with empty caches; the order turns with each pair. Ratios are this checkout's wall seconds
over the other's, within a pair. The winner's latency is the one that its own run timed.
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
from counted import Finished, empty_caches, run_counted
from vs_tilelang import machine

RUN_S = 900.0
"""Longest that one process may take."""
SECOND = """
import json, time, atune
atune.run("ROOT/examples/gemm.py:WORKLOAD", budget=4)
began = time.perf_counter()
result = atune.run("ROOT/bench/kernels.py:EVEN", budget=20)
print(json.dumps({"second_s": time.perf_counter() - began, "best_config": result.best_config,
                  "latency_ms": result.latency_ms}))
"""
"""Tunes twice in one program, and prints what the second time took."""

Command = Callable[[Path, Path], list[str]]
"""Makes a command from the checkout's root and the folder that the process runs in."""


def tuned(file: str, *more: str) -> Command:
    """Return the command of `atune tune` for a file of the checkout."""

    def command(root: Path, folder: Path) -> list[str]:
        journal = ["--journal", str(folder / "journal.jsonl")]
        return [sys.executable, "-m", "atune", "tune", f"{root / file}:WORKLOAD", *more, *journal, "--quiet", "--json"]

    return command


def written(text: str) -> Command:
    """Return the command of a program with that text, in which ROOT is the checkout's root."""

    def command(root: Path, folder: Path) -> list[str]:
        (folder / "program.py").write_text(text.replace("ROOT", str(root)))
        return [sys.executable, "program.py"]

    return command


def rows(target: str) -> dict[str, Command]:
    """Return what can be run, by name."""
    cuda = target == "cuda"
    gemm = "examples/gemm.py" if cuda else "examples/gemm_cpu.py"
    on = "--target", target
    found = {"all": tuned(gemm, *on), "five": tuned(gemm, *on, "--budget", "5%")}
    if cuda:
        found |= {"roller20": tuned("examples/gemm_roller.py", *on), "second": written(SECOND)}
    else:
        file = str(ROOT / "bench" / "failing.py")
        found["failing"] = tuned(file, *on, "--strategy", "exhaustive", "--budget", "50%")
    drop_ins = {f"drop-in-{n}": written(programs.drop_in(target, n, programs.INSTALL)) for n in (1, 4, 10, 20)}
    return {**found, **drop_ins}


def run(root: Path, command: Command) -> dict[str, Any]:
    """Run once; return the wall and CPU seconds, and what its last line says of the winner."""
    with empty_caches("checkouts-") as (folder, env):
        paths = [path for path in env["PYTHONPATH"].split(os.pathsep) if Path(path).resolve() != ROOT]
        env["PYTHONPATH"] = os.pathsep.join([str(root), *paths])
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        done = run_counted(command(root, folder), env=env, cwd=folder, timeout_s=RUN_S)
    if done.status != 0:
        raise SystemExit(f"{root}: exit status {done.status}\n{done.output[-3000:]}")
    return {**figures(done), "cpu_s": round(done.cpu_s, 2)}


def figures(done: Finished) -> dict[str, Any]:
    """Return what a run's last line says in JSON, with its wall seconds, or the second tuning's own."""
    last = done.output.strip().splitlines()[-1]
    said: dict[str, Any] = json.loads(last) if last.startswith('{"') else {"best_config": last.rpartition("}")[0]}
    return {
        "wall_s": round(said.get("second_s", done.wall_s), 3),
        **{key: said[key] for key in ("best_config", "latency_ms", "measured") if key in said},
    }


def in_turn(command: Command, roots: Sequence[Path], pairs: int) -> list[dict[str, dict[str, Any]]]:
    """Run both checkouts in each pair, the other first in each second one."""
    found = []
    for turn in range(pairs):
        order = roots if turn % 2 == 0 else roots[::-1]
        taken = {root: run(root, command) for root in order}
        found.append(dict(zip(("other", "this"), (taken[root] for root in roots), strict=True)))
    return found


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
    given = options(__doc__ or "", 3000.0, target="cuda", rows="", pairs=3)
    if other is None or not (other / "atune").is_dir():
        raise SystemExit("give the other checkout's folder first, such as ../before")
    every = rows(given.target)
    asked = [name for name in given.rows.split(",") if name] or list(every)
    if unknown := [name for name in asked if name not in every]:
        raise SystemExit(f"--rows: {unknown[0]!r} is unknown; there are {', '.join(every)}")
    roots = (other, ROOT)
    for root in roots:
        run(root, tuned("examples/gemm_cpu.py" if given.target != "cuda" else "examples/gemm.py", "--budget", "2"))
    results: dict[str, Any] = {
        "machine": machine(), "commits": {"other": commit_of(other), "this": commit_of(ROOT)}, "rows": {},
    }  # fmt: skip
    table = [["row", "other, s", "this, s", "this / other", "same winner"]]
    for name in asked:
        results["rows"][name] = in_turn(every[name], roots, given.pairs)
        table.append(line(name, results["rows"][name]))
        print("  ".join(table[-1]), file=sys.stderr, flush=True)
        if given.out is not None:  # what is done stays, whatever comes
            (given.out / f"checkouts-{given.target}.json").write_text(json.dumps(results, indent=1) + "\n")
    report(given, f"checkouts-{given.target}", table, results)


if __name__ == "__main__":
    main()
