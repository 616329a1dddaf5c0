"""Simulate strategies on recorded spaces: how near to the best they come, and how long they take.

    python bench/simulate.py JOURNAL --strategy bayesian --budget 10% --seeds 100 --json

Plays a strategy against the journal of an exhaustive run, without a GPU. Prints the shares of seeds within 1, 2 and 5 %
of the best, the median regret, and the median wall time. `--budget` also takes seconds of the simulated clock. Each
worker lowers and compiles one candidate at a time, and each device measures one at a time; both take as long as in the
recording, in which the members of a library share its seconds equally. The run's time includes the recording's start,
final and proof, and a tenth of lowering for surveying the space, but not the strategy's own time.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import multiprocessing
import signal
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
from recording import Recording, read_recording

from atune.engine import strategy as strategies
from atune.engine.prior import CAN_RUN, columns, figures_for, survey_fields
from atune.engine.strategy import Enough, Guarded, Searched, Strategy
from atune.journal.events import SpaceSurveyed
from atune.model.artifact import StaticFacts
from atune.model.device import Figures
from atune.model.settings import Budget
from atune.workers.resources import usable_cores

ELABORATING = 0.1
"""Seconds of elaborating, as a share of lowering's, rounded up; it was 5 to 8 % on the spaces in bench/."""
WITHIN = {"within_1pct": 1.01, "within_2pct": 1.02, "within_5pct": 1.05}


def fields_of_facts(facts: Mapping[int, StaticFacts], figures: Figures | None) -> dict[str, Any]:
    """Return the fields of `Searched` that a run computes from `facts` when it surveys the space."""
    fields = {} if figures is None else columns(facts, figures)
    return survey_fields(SpaceSurveyed(seq=0, time=0.0, mono=0.0, **fields)) if fields.get("prior") else {}


@dataclass(frozen=True)
class Trial:
    """A simulated run. `settled`: candidates, in the order of their outcomes.

    `curve`: the best latency after each of these; infinite until a candidate is measured.
    """

    order: tuple[int, ...]
    curve: tuple[float, ...]
    wall_s: float
    settled: tuple[int, ...] = ()
    device_s: float = 0.0


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of many simulated runs of a strategy. Shares are of seeds; a regret of 0.02 is 2 % above the best.

    `evaluations_to_2pct_median`: None if more than half of the seeds did not come within 2 %. `evaluations`: the most
    candidates that a run may try; `evaluations_median`: candidates with an outcome.
    """

    strategy: str
    evaluations: int
    seeds: int
    within_1pct: float
    within_2pct: float
    within_5pct: float
    regret_median: float
    evaluations_to_2pct_median: float | None
    wall_s_median: float
    evaluations_median: float = 0.0
    device_s_median: float = 0.0


Make = Callable[[Searched], Strategy]


def simulate_run(
    recording: Recording,
    make: Make,
    searched: Searched,
    *,
    workers: int = 16,
    devices: int = 1,
    seconds: float | None = None,
    auto: bool = False,
) -> Trial:
    """Play a run of the strategy that `make` returns, until its budget is used up. Raises `StrategyError`.

    `seconds`: a limit of the simulated time. `auto`: whether `Enough` may end the run, if there is a prior.
    """
    last = [index for index, facts in searched.facts.items() if facts.get(CAN_RUN) == 0 and index != searched.default]
    configs = {index: config for index, config in searched.configs.items() if index not in {*last}}
    searched = replace(searched, configs=configs)
    own = make(searched)
    enough = Enough() if auto and searched.prior else None
    strategy = Guarded(own, recording.configs, searched.first, last, enough)
    machine = SimulatedMachine(recording, workers, devices)
    if searched.prior is not None:
        machine.now += ELABORATING * sum(tried.lower_s for tried in recording.tried.values()) / workers
    most = len(recording.configs) if searched.budget is None else searched.budget
    learning = enough is not None or strategies.learns(strategy.name)
    order: list[int] = []
    settled: list[int] = []
    curve: list[float] = []
    best, over, more = math.inf, False, True
    while (more or machine.outstanding) and not over:
        while more and not (learning and strategy.full(machine.outstanding, workers)):
            index = strategy.ask() if len(order) < most else None
            if index is None:
                more = False
            else:
                order.append(index)
                machine.begin(index)
        if machine.outstanding:
            index = machine.settle()
            tried = recording.tried[index]
            strategy.tell(index, tried.latency_ms, tried.reason)
            settled.append(index)
            best = best if tried.latency_ms is None else min(best, tried.latency_ms)
            curve.append(best)
            over = seconds is not None and machine.now >= seconds
    return Trial(tuple(order), tuple(curve), machine.now + recording.end_s, tuple(settled), machine.device_s)


class SimulatedMachine:
    """Workers and devices as a discrete-event simulation: `begin` candidates, and `settle` the next outcome."""

    def __init__(self, recording: Recording, workers: int, devices: int) -> None:
        self._tried, self.now = recording.tried, recording.start_s
        self._free_workers, self._free_devices = workers, devices
        self._to_compile, self._to_measure = deque[int](), deque[int]()
        self._ends: list[tuple[float, int, str]] = []
        self.outstanding = 0
        self.device_s = 0.0
        """Seconds in which devices were busy with settled candidates."""

    def begin(self, index: int) -> None:
        self.outstanding += 1
        self._to_compile.append(index)

    def settle(self) -> int:
        """Let time pass until a candidate has its outcome, and return it."""
        while True:
            self._start()
            self.now, index, stage = heapq.heappop(self._ends)
            if stage == "compile":
                self._free_workers += 1
                if self._tried[index].device_s > 0:
                    self._to_measure.append(index)
                    continue
            else:
                self._free_devices += 1
                self.device_s += self._tried[index].device_s
            self.outstanding -= 1
            return index

    def _start(self) -> None:
        while self._free_workers and self._to_compile:
            index = self._to_compile.popleft()
            self._free_workers -= 1
            took = self._tried[index].lower_s + self._tried[index].compile_s
            heapq.heappush(self._ends, (self.now + took, index, "compile"))
        while self._free_devices and self._to_measure:
            index = self._to_measure.popleft()
            self._free_devices -= 1
            heapq.heappush(self._ends, (self.now + self._tried[index].device_s, index, "measure"))


def regrets(trial: Trial, best_ms: float) -> list[float]:
    """Return the regret after each candidate: the excess over the space's best latency, as a share of it."""
    return [best / best_ms - 1 for best in trial.curve]


def evaluations_to(trial: Trial, best_ms: float, factor: float) -> float:
    """Return the number of candidates until one took at most `factor` times the space's best; infinity if none did."""
    return next((n for n, best in enumerate(trial.curve, 1) if best <= best_ms * factor), math.inf)


def summary_of(name: str, evaluations: int, trials: Sequence[Trial], recording: Recording) -> Summary:
    """Summarise `trials` of a strategy on a space."""
    best_ms = recording.best_ms
    ends = [regrets(trial, best_ms)[-1] if trial.curve else math.inf for trial in trials]
    within = {key: sum(end <= factor - 1 + 1e-12 for end in ends) / len(ends) for key, factor in WITHIN.items()}
    to_2pct = statistics.median(evaluations_to(trial, best_ms, 1.02) for trial in trials)
    return Summary(
        strategy=name,
        evaluations=evaluations,
        seeds=len(trials),
        **within,
        regret_median=statistics.median(ends),
        evaluations_to_2pct_median=None if math.isinf(to_2pct) else to_2pct,
        wall_s_median=round(statistics.median(trial.wall_s for trial in trials), 3),
        evaluations_median=statistics.median(len(trial.settled) for trial in trials),
        device_s_median=round(statistics.median(trial.device_s for trial in trials), 3),
    )


def simulate_seeds(
    recording: Recording,
    make: Make,
    *,
    budget: int | None,
    seeds: Sequence[int],
    workers: int = 16,
    devices: int = 1,
    known: Mapping[str, Any] | None = None,
    seconds: float | None = None,
    auto: bool = False,
) -> list[Trial]:
    """Play a run for each seed. `known`: further fields of `Searched`, from `fields_of_facts`."""
    searched = [Searched(recording.configs, seed, budget, **(known or {}), default=recording.default) for seed in seeds]
    how: dict[str, Any] = {"workers": workers, "devices": devices, "seconds": seconds, "auto": auto}
    return [simulate_run(recording, make, each, **how) for each in searched]


def simulate(
    recording: Recording,
    strategy: str,
    *,
    budget: int | None,
    seeds: int = 100,
    workers: int = 16,
    devices: int = 1,
    prior: bool = False,
    seconds: float | None = None,
    processes: int = 1,
    auto: bool = False,
) -> tuple[Summary, list[Trial]]:
    """Play the strategy with the name `strategy` and seeds from 0, in `processes` processes, and summarise the runs.

    `budget`: candidates; None if only `seconds` end a run. `prior`: use estimates from the recorded facts, if these
    suffice.

    Raises `UsageError` if the strategy is unknown, or its library is not installed.
    """
    strategies.check_given(strategy)
    figures = figures_for(recording.target, recording.devices)
    prior = prior and strategies.uses_prior(strategy, len(recording.configs))
    known = fields_of_facts(recording.facts, figures) if prior else {}
    if strategy == strategies.AUTO:
        limited, has_prior = budget is not None or seconds is not None, known.get("prior") is not None
        strategy = strategies.chosen(len(recording.configs), budget, limited=limited, prior=has_prior)
    make = partial(strategies.make_strategy, strategy)
    play = partial(
        simulate_seeds, recording, make, budget=budget, workers=workers, devices=devices, known=known, seconds=seconds,
        auto=auto,
    )  # fmt: skip
    slices = [range(first, seeds, processes) for first in range(min(processes, seeds))]
    if len(slices) == 1:
        trials = play(seeds=slices[0])
    else:
        fork = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(len(slices), mp_context=fork, initializer=_leave_signals) as pool:
            played = [pool.submit(play, seeds=each) for each in slices]
            parts = [future.result() for future in played]
        trials = [parts[seed % processes][seed // processes] for seed in range(seeds)]
    most = len(recording.configs) if budget is None else min(budget, len(recording.configs))
    return summary_of(strategy, most, trials, recording), trials


def _leave_signals() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles the interrupt


MANY_SEEDS = 8
"""Fewest seeds for which several processes share the runs."""


def main(argv: Sequence[str] | None = None) -> None:
    """Simulate with the options of the command line, and print the summary."""
    parser = argparse.ArgumentParser(description="Simulate a strategy on an exhaustive journal.")
    parser.add_argument("journal")
    parser.add_argument("--strategy", default=strategies.AUTO, metavar="NAME")
    parser.add_argument("--budget", default="10%", metavar="N|10%%|90s|auto")
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="number of runs, with seeds from 0 (100)")
    parser.add_argument("--workers", type=int, default=16, metavar="N", help="simulated compile workers (16)")
    parser.add_argument("--devices", type=int, default=1, metavar="N", help="simulated devices (1)")
    parser.add_argument("--prior", action=argparse.BooleanOptionalAction, default=True, help="begin with its estimates")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    recording, budget = read_recording(arguments.journal), Budget.parse(arguments.budget)
    summary, _ = simulate(
        recording,
        arguments.strategy,
        budget=budget.most(len(recording.configs)),
        seeds=arguments.seeds,
        workers=arguments.workers,
        devices=arguments.devices,
        prior=arguments.prior,
        seconds=budget.seconds,
        auto=budget.auto,
        processes=min(len(usable_cores()), arguments.seeds) if arguments.seeds >= MANY_SEEDS else 1,
    )
    print(json.dumps(msgspec.to_builtins(summary)) if arguments.json else lines_of(summary, recording))


def lines_of(summary: Summary, recording: Recording) -> str:
    """Return a simulation's summary as text."""
    to_2pct = summary.evaluations_to_2pct_median
    candidates = "candidate" if to_2pct == 1 else "candidates"
    reached = f"after {to_2pct:g} {candidates}" if to_2pct is not None else "not reached"
    return "\n".join(
        (
            f"strategy   {summary.strategy}: {summary.evaluations} of {len(recording.configs)} candidates, "
            f"{summary.seeds} seeds",
            f"within     1 % of the best: {summary.within_1pct:.0%} of seeds; 2 %: {summary.within_2pct:.0%}; "
            f"5 %: {summary.within_5pct:.0%}",
            f"median     {summary.regret_median:.2%} above the best; 2 %: {reached}; "
            f"{summary.evaluations_median:g} tried, {summary.device_s_median:.1f} s of devices, "
            f"{summary.wall_s_median:.1f} s",
        )
    )


if __name__ == "__main__":
    main()
