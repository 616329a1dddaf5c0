"""Seconds of whole processes until they have an answer, under tilelang's own tuner and under atune in turn.

    python bench/first.py --time-limit 560 --out bench/results/first
    python bench/first.py --target c --rows drop-in-1,one,set --variants tilelang,known --rounds 1
    git worktree add ../before COMMIT && python bench/first.py --other ../before --rows all,fifteen,second

Each run is a new process, and in each round the variants of a row take turns. `known` and `unknown` are atune with a
cache that holds only the compilers' states, or nothing. With `--other`, another checkout of atune takes tilelang's
place. Repeat a command to do the runs that `--time-limit` left out. Without a GPU, tilelang only compiles the drop-ins'
configurations, because its tuner measures on GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import first_programs as programs
from common import ROOT, option_parser, options, report
from counted import run_counted
from sets import PROBLEMS, breakdown
from vs_tilelang import child_command, machine

from atune.workers.result_cache import ResultCache

ABOUT = "Seconds until an answer, under tilelang's own tuner and under atune.", 86400.0
"""The description of the command line, and the time limit in seconds."""
OPTIONS = {"target": "cuda", "rows": "", "variants": "", "rounds": 2, "time_limit": 86400.0, "other": ""}
RUN_S = 300.0
"""Time limit of a process."""
ATUNE = (sys.executable, "-m", "atune")
ANSWER = ("best_config", "latency_ms", "measured")
"""What is stored of the JSON object that a process prints last."""
JOURNALS = 1000
"""Journals in the cache of the row `store`."""
OTHER = "other "
"""Begins the names of the variants of another checkout."""
EDITED = 20
"""Configurations of the file in the row `edit`."""
SMALL = [{"M": m, "N": 128, "K": 64} for m in (64, 128, 192)]
"""Problems of the set on the CPU."""


class Folder:
    """The folder in which the processes of a variant run, with their caches and their environment.

    `root`: the checkout of atune that they use.
    """

    def __init__(self, path: Path, root: Path) -> None:
        self.root, self.work, self.cache, self.tilelang = (
            root,
            path / "work",
            path / "cache" / "atune",
            path / "tilelang",
        )
        for name in ("cache", "tilelang", "tmp", "work"):
            (path / name).mkdir(mode=0o700, parents=True)
        # PYTHONDONTWRITEBYTECODE goes, too, because users' Python modules are compiled.
        left_out = {"TILELANG_DISABLE_CACHE", "ATUNE_CACHE_DIR", "ATUNE_WARM", "PYTHONDONTWRITEBYTECODE"}
        self.env = {name: value for name, value in os.environ.items() if name not in left_out}
        self.env |= {"XDG_CACHE_HOME": str(path / "cache"), "TILELANG_CACHE_DIR": str(path / "tilelang")}
        self.env |= {"TMPDIR": str(path / "tmp")}
        paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", str(ROOT))]
        self.env["PYTHONPATH"] = os.pathsep.join([str(root), *paths])

    def empty(self, keep: str = "") -> None:
        """Empty both caches, but keep what has the name `keep` in atune's folders; see `kept`."""
        saved = {*self.kept(keep)} if keep else set()
        for path in (*self.cache.glob("*"), *self.tilelang.glob("atune/*"), *self.tilelang.glob("*")):
            if not any(path in (one, *one.parents) for one in saved):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def kept(self, name: str) -> list[Path]:
        """Return what has a name in atune's cache, and in the folder that the drop-in has in tilelang's cache."""
        return [*self.cache.glob(name), *self.tilelang.glob(f"atune/{name}")]

    def write(self, name: str, text: str) -> str:
        (self.work / name).write_text(text)
        return str(self.work / name)

    def run(self, command: Sequence[str], timeout_s: float = RUN_S, **env: str) -> dict[str, Any]:
        """Run a process. Return its seconds, its answer, and where the seconds went if it wrote a journal.

        Raises `SystemExit` with its output if it fails or takes `RUN_S`, and `TimeoutError` after less time.
        """
        journal = self.work / "journal"
        if journal.exists():
            shutil.rmtree(journal) if journal.is_dir() else journal.unlink()
        done = run_counted(command, env={**self.env, **env}, cwd=self.work, timeout_s=timeout_s)
        if done.timed_out and timeout_s < RUN_S:
            raise TimeoutError
        if done.status != 0:
            raise SystemExit(f"{shlex.join(command)}: exit status {done.status}\n{done.output[-3000:]}")
        figures: dict[str, Any] = {"wall_s": round(done.wall_s, 3), "cpu_s": round(done.cpu_s, 2)}
        last = done.output.strip().rpartition("\n")[2]
        if last.startswith("["):
            figures["parts_s"] = json.loads(last)
        elif last.startswith('{"'):
            figures |= {key: value for key, value in json.loads(last).items() if key in ANSWER}
        elif last.startswith("{'"):
            figures["best_config"] = last.rpartition("}")[0]
        if journal.exists():
            journals = sorted(journal.glob("*.jsonl")) if journal.is_dir() else [journal]
            figures["stages"] = breakdown(journals, done.started)
        return figures


Command = Callable[[Folder], Sequence[str]]
Prepare = Callable[[Folder], None]


class Variant(NamedTuple):
    """One way to do the work of a row. `prepare` fills the caches before each run."""

    command: Command
    prepare: Prepare = Folder.empty
    env: dict[str, str] = {}  # noqa: RUF012


def written(text: str) -> Command:
    """Return the command that runs `text` as a program, with the checkout's root in place of ROOT."""
    return lambda folder: [sys.executable, folder.write("program.py", text.replace("ROOT", str(folder.root)))]


def tuned(workload: str, *more: str) -> Command:
    """Return the command that tunes a workload, whose file may be relative to the checkout's root."""
    end = "--journal", "journal", "--json", *more
    return lambda folder: [*ATUNE, "tune", str(folder.root / workload), *end]


def tuned_file(text: str, target: str) -> Command:
    return lambda folder: tuned(f"{folder.write('tuned.py', text)}:WORKLOAD", "--target", target)(folder)


def after(command: Command, keep: str = "") -> Prepare:
    """Return a function that empties the caches and runs `command`.

    With `keep`, it runs the command only once. It then keeps only what has this name in atune's cache; ``*`` keeps all.
    """

    def prepare(folder: Folder) -> None:
        if not (keep and folder.kept(keep)):
            folder.empty()
            folder.run(command(folder))
        if keep not in ("", "*"):
            folder.empty(keep)

    return prepare


def filled(folder: Folder) -> None:
    """Fill the cache with journals."""
    cache = ResultCache(folder.cache)
    if not cache.journals.exists():
        folder.run([*ATUNE, "tune", f"{programs.EXAMPLES['c']}:WORKLOAD", "--target", "c", "--budget", "10"])
        journal = next(cache.journals.rglob("*.jsonl"))
        for number in range(JOURNALS):
            place = cache.journals / f"kernel-{number % 50}" / f"{number:032x}-20260101-000000.{number:06}.jsonl"
            place.parent.mkdir(mode=0o700, exist_ok=True)
            shutil.copyfile(journal, place)


def rows(target: str) -> dict[str, dict[str, Variant]]:
    """Return the variants of each row."""
    cuda = target == "cuda"
    file = "examples/gemm.py:WORKLOAD" if cuda else "examples/gemm_cpu.py:WORKLOAD"
    shapes = "bench/kernels.py:SHAPES" if cuda else file

    def tune(*more: str, workload: str = file) -> Command:
        return tuned(workload, "--target", target, *more)

    def both(command: Command, tilelangs: Command | None = None, first: Command | None = None) -> dict[str, Variant]:
        ours = {"known": Variant(command, after(first or command, "states")), "unknown": Variant(command)}
        return ours if tilelangs is None else {"tilelang": Variant(tilelangs), **ours}

    def drop_in(count: int, head: str = programs.INSTALL) -> dict[str, Variant]:
        theirs = programs.drop_in if cuda else programs.compiled_only
        return both(written(programs.drop_in(target, count, head)), written(theirs(target, count)))

    def library(operators: Sequence[programs.Operator]) -> dict[str, Variant]:
        ours, theirs = (written(programs.library(target, operators, head)) for head in (programs.INSTALL, ""))
        return both(ours, theirs if cuda else None)

    def tilelangs_all(folder: Folder) -> Sequence[str]:
        job = {"space": str(folder.root / file), "target": "cuda", "run": {"warmup": 3, "rep": 20}, "check": False}
        return child_command("tilelang", Path(folder.write("job.json", json.dumps({**job, "answer": "answer.json"}))))

    def whole_set(folder: Folder) -> Sequence[str]:
        listed = folder.write("problems.json", json.dumps(PROBLEMS[::4] if cuda else SMALL))
        return tune("--problems", listed, "--budget", "12", workload=shapes)(folder)

    table = {f"drop-in-{n}": drop_in(n) for n in (1, 4, 10)}
    table["library"] = library(programs.LIBRARY[target])
    if cuda:
        table["attention"] = library([programs.ATTENTION])
        table["roller20"] = both(tune(workload="examples/gemm_roller.py:WORKLOAD"))
        table["uneven"] = both(tune(workload="examples/layout_broadcast.py:UNEVEN"))
        table["second"] = both(written(programs.SECOND))
    else:
        failing = tune("--strategy", "exhaustive", "--budget", "50%", workload=f"{ROOT}/bench/failing.py:WORKLOAD")
        table["failing"] = both(failing)
    table |= {name: both(tune("--budget", n)) for name, n in (("one", "1"), ("fifteen", "15"), ("auto", "auto"))}
    table["all"] = both(tune(), tilelangs_all if cuda else None, first=tune("--budget", "15"))
    table["set"] = both(whole_set)
    table["late"] = drop_in(1, programs.LATE)
    table["warm"] = {name: Variant(written(programs.warmed(target, name == "warm()"))) for name in ("late", "warm()")}
    files = (programs.workload_file(target, EDITED, edited=edited) for edited in (False, True))
    cold, edited = (tuned_file(file, target) for file in files)
    table["edit"] = {"cold": Variant(cold), "edited": Variant(edited, after(cold))}
    cached = after(written(programs.drop_in(target, 1, programs.INSTALL)), "*")
    early = {"early": {}, "not early": {"ATUNE_WARM": "off"}}  # of a program that is not written again
    table["hit"] = {name: Variant(lambda _: [sys.executable, "program.py"], cached, env) for name, env in early.items()}
    looked = {"atune runs": lambda _: [*ATUNE, "runs"], "look-up": written(programs.LOOK_UP)}
    table["store"] = {name: Variant(command, filled) for name, command in looked.items()}
    return table


def kept(row: dict[str, Variant], variants: str) -> dict[str, Variant]:
    """Return the variants of a row that are named in `variants`, which is separated by commas; all if it is empty."""
    return {name: variant for name, variant in row.items() if not variants or name in variants.split(",")}


def beside(row: dict[str, Variant]) -> dict[str, Variant]:
    """Return the variants of a row for two checkouts of atune in turn, without tilelang's."""
    ours = {name: variant for name, variant in row.items() if name != "tilelang"}
    return {which + name: variant for name, variant in ours.items() for which in (OTHER, "")}


Taken = dict[str, dict[str, Any]]
"""The figures of a round, by variant."""


def line_of(name: str, variant: str, names: Sequence[str], rounds: Sequence[Taken]) -> list[str]:
    """Return a variant's line in the table. The ratio is to the other checkout's in the same rounds, or to the first of
    the row's `names`."""
    base = OTHER + variant if OTHER + variant in names else names[0]
    taken = [found[variant] for found in rounds if variant in found]
    walls = [figures["wall_s"] for figures in taken]
    both = [(found[variant], found[base]) for found in rounds if variant in found and base in found]
    ratios = [mine["wall_s"] / its["wall_s"] for mine, its in both]
    same = [
        mine["best_config"] == its["best_config"]
        for mine, its in both
        if "best_config" in mine and "best_config" in its
    ]
    columns = zip(*(figures.get("parts_s", ()) for figures in taken), strict=True)
    return [
        name, variant, f"{statistics.median(walls):.2f}", ", ".join(f"{wall:.2f}" for wall in walls),
        f"{statistics.median(ratios):.2f}" if ratios and variant != base else "",
        f"{sum(same)} of {len(same)}" if OTHER + variant == base else "",
        ", ".join(f"{statistics.median(seconds):.3g}" for seconds in columns),
    ]  # fmt: skip


def commit_of(root: str) -> str:
    command = ["git", "-C", str(ROOT / root), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


class Session:
    """The runs of one command, and the results of all commands with the same folder."""

    def __init__(self, given: Any, scratch: Path) -> None:
        self.given, self.scratch, self.began = given, scratch, time.monotonic()
        self.folders, self.failed = dict[tuple[str, str], Folder](), ""
        self.file = None if given.out is None else given.out / f"first-{given.target}.json"
        command = shlex.join(["python", "bench/first.py", *sys.argv[1:]])
        commits = {root: commit_of(root) for root in filter(None, (".", given.other))}
        self.results: dict[str, Any] = {"command": command, "machine": machine(), "commits": commits, "rows": {}}
        if self.file is not None and self.file.exists():
            before = json.loads(self.file.read_bytes())
            if before["machine"] != self.results["machine"]:
                raise SystemExit(f"{self.file}: another machine measured it, so give another folder (--out)")
            self.results["rows"] = before["rows"]

    def round(self, name: str, row: dict[str, Variant], turn: int) -> None:
        """Do the runs of a row's round that are left, each variant first in its turn. Raises `TimeoutError`."""
        rounds: list[Taken] = self.results["rows"].setdefault(name, [])
        rounds += [{} for _ in range(turn + 1 - len(rounds))]
        names = list(row)
        for variant in names[turn % len(names) :] + names[: turn % len(names)]:
            if variant in rounds[turn]:
                continue
            if (folder := self.folders.get((name, variant))) is None:
                root = Path(self.given.other).resolve() if variant.startswith(OTHER) else ROOT
                folder = self.folders[name, variant] = Folder(self.scratch / name / variant, root)
            command, prepare, env = row[variant]
            try:
                prepare(folder)
                left_s = self.given.time_limit - (time.monotonic() - self.began)
                if left_s < max((found[variant]["wall_s"] for found in rounds if variant in found), default=0.0):
                    raise TimeoutError
                rounds[turn][variant] = folder.run(command(folder), min(RUN_S, left_s), **env)
            except SystemExit as error:  # the others do not need it
                self.failed = f"{name}, {variant}: {error}"
                continue
            print(" ".join(line_of(name, variant, names, rounds)), file=sys.stderr, flush=True)
            if self.file is not None:
                self.file.write_text(json.dumps(self.results, indent=1) + "\n")


def parser() -> argparse.ArgumentParser:
    return option_parser(*ABOUT, **OPTIONS)


def main() -> None:
    given = options(*ABOUT, **OPTIONS)
    if given.other and not Path(given.other, "atune").is_dir():
        raise SystemExit("--other must be the folder of another checkout, such as ../before")
    chosen = {name: kept(row, given.variants) for name, row in rows(given.target).items()}
    every = {name: beside(row) if given.other else row for name, row in chosen.items()}
    asked = [name for name in given.rows.split(",") if name] or list(every)
    if unknown := [name for name in asked if name not in every]:
        raise SystemExit(f"--rows: {unknown[0]!r} is unknown: choose from {', '.join(every)}")
    subprocess.run([sys.executable, "-c", "import tilelang"], check=True)  # or the first run reads it from the disk
    with tempfile.TemporaryDirectory(prefix="first-") as scratch:
        session = Session(given, Path(scratch))
        try:
            for turn in range(given.rounds):
                for name in asked:
                    session.round(name, every[name], turn)
        except TimeoutError:
            print(f"--time-limit: {given.time_limit:g} s are over; repeat the command for the rest", file=sys.stderr)
    table = [["row", "variant", "median, s", "all", "ratio", "same winner", "parts, s"]]
    for name, rounds in session.results["rows"].items():
        order = [*dict.fromkeys(variant for taken in rounds for variant in taken)]
        table += [line_of(name, variant, order, rounds) for variant in order]
    if given.out is not None:
        head, *lines = (f"| {' | '.join(line)} |" for line in table)
        page = "\n".join((head, "|---" * len(table[0]) + "|", *lines, ""))
        (given.out / f"first-{given.target}.md").write_text(page)
    report(given, f"first-{given.target}", table, session.results)
    sys.exit(session.failed or None)


if __name__ == "__main__":
    main()
