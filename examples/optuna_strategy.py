"""Use a sampler of Optuna as the strategy of a run, by `ask` and `tell`. Needs ``pip install optuna``.

python examples/optuna_strategy.py
"""

from __future__ import annotations

import random
from typing import Any

import anyio
import optuna
from gemm_cpu import WORKLOAD
from optuna.distributions import CategoricalDistribution
from optuna.trial import Trial, TrialState, create_trial

import atune
from atune.reporting.export import table

TRIES = 20
"""Times that the sampler is asked for a remaining candidate before a candidate is drawn at random."""


class OptunaStrategy:
    """Proposes the candidates that `sampler` suggests, by a value for each axis.

    Suggestions that the space lacks, or that were tried, are reported as failed. Values are not lists or dicts.
    """

    name = "optuna"

    def __init__(self, sampler: optuna.samplers.BaseSampler) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(sampler=sampler)
        self._trials: dict[int, Trial] = {}

    def begin(self, searched: Any) -> None:
        """Take the space, whose configurations are in `searched.configs`, by index."""
        self._configs: dict[int, dict[str, Any]] = dict(searched.configs)
        axes = {
            name: [config[name] for config in self._configs.values()] for name in next(iter(self._configs.values()))
        }
        self._axes = {name: CategoricalDistribution(list(dict.fromkeys(values))) for name, values in axes.items()}
        self._left = {self._place(config): index for index, config in self._configs.items()}
        self._random = random.Random(searched.seed)

    def ask(self) -> int | None:
        """Return the index of a remaining candidate; None if there is none."""
        if not self._left:
            return None
        for _ in range(TRIES):
            trial = self._study.ask(self._axes)
            place = self._place(trial.params)
            if place in self._left:
                break
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            place = self._random.choice(list(self._left))
            self._study.enqueue_trial(self._configs[self._left[place]])
            trial = self._study.ask(self._axes)
        index = self._left.pop(place)
        self._trials[index] = trial
        return index

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        """Report an outcome to the sampler. A resumed run first reports earlier outcomes, which were not asked for."""
        state = TrialState.FAIL if latency_ms is None else TrialState.COMPLETE
        if index in self._trials:
            self._study.tell(self._trials.pop(index), latency_ms, state=state)
        elif self._left.pop(self._place(self._configs[index]), None) is not None:
            self._study.add_trial(
                create_trial(params=self._configs[index], distributions=self._axes, value=latency_ms, state=state)
            )

    def _place(self, config: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(config[name] for name in self._axes)


async def main() -> None:
    strategy = OptunaStrategy(optuna.samplers.TPESampler(seed=0))
    result = await atune.tune(WORKLOAD, target="c", strategy=strategy, budget=6)
    print(table(result))


if __name__ == "__main__":
    anyio.run(main)
