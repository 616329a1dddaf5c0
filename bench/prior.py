"""The ranks that the prior gives to the best candidates of the recorded spaces, compared with chance.

    python bench/prior.py --out bench/results/prior
    python bench/prior.py --read          # reads the facts of the recordings again; needs no GPU and compiles nothing

Next to each recording, NAME.facts.json.xz has the facts of each candidate: those in the journal, and the work of a
block, read off the kernel. With them, the prior can be judged and searches simulated without lowering anything.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from common import ROOT, report
from spaces import FOLDER, HELD_OUT, PROBLEMS, SPACES, opened

from atune import replay
from atune.engine.prior import choices, hedged
from atune.model.artifact import StaticFacts
from atune.model.device import DeviceInfo, Target, figures_of
from atune.model.folders import whole_file
from atune.model.settings import BenchmarkSettings, CompileSettings
from atune.results import Result

GEMM288 = ROOT / "bench" / "results" / "gemm288" / "atune.jsonl"
REFS = {
    "gemm288": f"{ROOT / 'examples' / 'gemm.py'}:WORKLOAD",
    **{name: space.ref for name, space in (SPACES | PROBLEMS).items()},
}
TEN = ("gemm288", *SPACES)
SHARE = 0.05
"""Share of the candidates within which the goal for matrix products is to be met."""
NEAR = 1.02
HEAD = ["space", "seen", "candidates", "within 2 %", "best at", "to 2 %", "at worst", "share", "by 5 %", "chance",
        "chance by 5 %", "rho", "first choice", "best of three"]  # fmt: skip
CHOICES = 3


@contextmanager
def journal_of(name: str) -> Iterator[Path]:
    if name == "gemm288":
        yield GEMM288
    else:
        with opened(name) as journal:
            yield journal


def recorded(name: str) -> Result:
    with journal_of(name) as journal:
        return replay(journal)


# ---- facts


def facts_path(name: str) -> Path:
    return FOLDER / f"{name}.facts.json.xz"


def facts_of(name: str) -> dict[int, StaticFacts]:
    """Return the facts of each candidate of a recording, by index."""
    with lzma.open(facts_path(name)) as packed:
        return msgspec.json.decode(packed.read(), type=dict[int, StaticFacts])


def scores_of(name: str, device: DeviceInfo | None = None) -> dict[int, float]:
    """Return the prior's estimate in milliseconds for each candidate that can run, the best first.

    `device`: None for the recording's device.
    """
    result = recorded(name)
    figures = figures_of(device or result.devices[0])
    return dict(choices(facts_of(name), figures))


def picks_of(name: str) -> list[int]:
    """Return the choices of `atune pick` on the recording's device, the best first."""
    return [index for index, _ in hedged([*scores_of(name).items()], facts_of(name), CHOICES)]


def read(name: str) -> tuple[int, float]:
    """Write the facts of a recording. Return their number, and the milliseconds of reading the work of a kernel.

    The facts of `PROBLEMS` are those of a survey, which has facts of candidates that do not lower.
    """
    from atune.stages.codegen import backend_context
    from atune.stages.facts import foreseen
    from atune.stages.frontend import elaborated
    from atune.stages.session import workload
    from atune.stages.work import work_of

    facts, seconds = {}, 0.0
    result = recorded(name)
    with working_on(REFS[name]):
        work, target = workload(), backend_context().target
        for record in result.records:
            if record.facts is not None or name in PROBLEMS:
                function = elaborated(work.kernel, work.arguments, record.config, target)
                started = time.perf_counter()
                known = work_of(function)
                seconds += time.perf_counter() - started
                known_facts = foreseen(function, "sm_90a") if name in PROBLEMS else record.facts
                facts[record.index] = msgspec.structs.replace(known_facts, work=known)
    with whole_file(facts_path(name)) as part, lzma.open(part, "wb", preset=9) as packed:
        packed.write(msgspec.json.encode(facts))
    facts_path(name).chmod(0o644)
    return len(facts), seconds / max(1, len(facts)) * 1e3


@contextmanager
def working_on(ref: str) -> Iterator[None]:
    """Make this process a compile worker for a workload inside the context."""
    from atune.stages import session
    from atune.workers.messages import Session
    from atune.workload.pickling import FileRef, load

    path, _, name = ref.rpartition(":")
    reference = FileRef(path, name)
    with tempfile.TemporaryDirectory(prefix="prior-") as folder:
        settings = CompileSettings(), BenchmarkSettings()
        session._state.session = Session(reference, Target("cuda", "sm_90a"), *settings, folder)
        session._state.workload = load(reference)
        yield


# ---- judging


class Judged(NamedTuple):
    """The prior's result on a space. Places begin at 1. A seed orders candidates with equal estimates."""

    candidates: int
    near: int
    """Candidates within 2 % of the best."""
    best_at: float
    first: float
    """Place of the first candidate within 2 %, the median over seeds; `worst`: nine of ten seeds do no worse."""
    worst: float
    by_share: float
    """Share of seeds with such a candidate among the first 5 % of the candidates."""
    chance: float
    """Mean place of the first such candidate in a random order; `chance_by_share`: its chance to be in 5 %."""
    chance_by_share: float
    rho: float
    """Spearman's rank correlation of estimates and latencies."""
    first_choice: float
    """Speed of `atune pick`'s first choice, as a share of the best; 0 if it fails. `best_of_three`: of its three."""
    best_of_three: float


def judge(
    scores: Mapping[int, float], picks: Sequence[int], latencies: Mapping[int, float | None], seeds: int
) -> Judged:
    """Judge `scores` and `picks` by measured latencies, which are None for candidates that failed."""
    measured = {index: latency for index, latency in latencies.items() if latency is not None}
    best = min(measured.values())
    near = {index for index, latency in measured.items() if latency <= best * NEAR}
    most, count = math.ceil(SHARE * len(latencies)), len(latencies)
    places, firsts = [], []
    for seed in range(seeds):
        drawn = random.Random(seed)
        order = sorted(latencies, key=lambda index: (scores.get(index, math.inf), drawn.random()))
        places.append(next(n for n, index in enumerate(order, 1) if measured.get(index) == best))
        firsts.append(next(n for n, index in enumerate(order, 1) if index in near))
    both = [index for index in measured if index in scores]
    picked = [best / measured[index] if index in measured else 0.0 for index in picks]
    return Judged(
        candidates=count,
        near=len(near),
        best_at=statistics.median(places),
        first=statistics.median(firsts),
        worst=sorted(firsts)[math.ceil(0.9 * seeds) - 1],
        by_share=sum(first <= most for first in firsts) / seeds,
        chance=(count + 1) / (len(near) + 1),
        chance_by_share=1 - math.comb(count - len(near), most) / math.comb(count, most),
        rho=statistics.correlation(ranks([scores[i] for i in both]), ranks([measured[i] for i in both])),
        first_choice=picked[0],
        best_of_three=max(picked),
    )


def ranks(values: list[float]) -> list[float]:
    """Return the place of each value among all values. Equal values share the mean of their places."""
    order = sorted(range(len(values)), key=values.__getitem__)
    places, start = [0.0] * len(values), 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for place in order[start:end]:
            places[place] = (start + end - 1) / 2
        start = end
    return places


def cells(name: str, judged: Judged) -> list[str]:
    return [
        name,
        "held out" if name in HELD_OUT else "fitted",
        str(judged.candidates),
        str(judged.near),
        f"{judged.best_at:g}",
        f"{judged.first:g}",
        f"{judged.worst:g}",
        f"{judged.first / judged.candidates:.1%}",
        f"{judged.by_share:.0%}",
        f"{judged.chance:.0f}",
        f"{judged.chance_by_share:.0%}",
        f"{judged.rho:.2f}",
        f"{judged.first_choice:.1%}",
        f"{judged.best_of_three:.1%}",
    ]


def mean(shares: Iterable[float]) -> float:
    """Return the geometric mean."""
    return statistics.geometric_mean(share or 1e-9 for share in shares)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--spaces", default=",".join(TEN), help=f"of {', '.join(REFS)} (the first ten)")
    made.add_argument("--seeds", type=int, default=100, help="orders of candidates with equal estimates (100)")
    made.add_argument("--read", action="store_true", help="read the kernels' facts again first")
    made.add_argument("--out", type=Path, help="folder for the results as JSON")
    return made


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    names = [name for name in map(str.strip, options.spaces.split(",")) if name]
    if unknown := [name for name in names if name not in REFS]:
        raise SystemExit(f"--spaces: {unknown[0]!r} is unknown: choose from {', '.join(REFS)}")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    rows, results = [HEAD], dict[str, Any]()
    for name in names:
        if options.read:
            count, ms = read(name)
            print(f"{name}: {count} kernels, {ms:.2f} ms each", flush=True)
        latencies = {record.index: record.latency_ms for record in recorded(name).records}
        judged = judge(scores_of(name), picks_of(name), latencies, options.seeds)
        results[name] = {"fitted": name not in HELD_OUT, **judged._asdict()}
        rows.append(cells(name, judged))
    for seen, among in (("all", names), ("held out", [name for name in names if name in HELD_OUT])):
        if among:
            means = (mean(results[name][key] for name in among) for key in ("first_choice", "best_of_three"))
            rows.append(["mean", seen, *[""] * (len(HEAD) - 4), *(f"{share:.1%}" for share in means)])
    report(options, "prior", rows, json.loads(json.dumps(results)))


if __name__ == "__main__":
    main()
