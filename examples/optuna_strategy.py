"""A sampler of Optuna's as the strategy of a run, behind `ask` and `tell`. It needs ``pip install optuna``.

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
"""How often the sampler is asked for a candidate that is left, before one is drawn."""


class OptunaStrategy:
    """Proposes what `sampler` proposes: a value for each axis. What the space lacks, or had before, is told to fail.

    Values must be numbers, texts, booleans or None.
    """

    name = "optuna"

    def __init__(self, sampler: optuna.samplers.BaseSampler) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(sampler=sampler)
        self._trials: dict[int, Trial] = {}

    def begin(self, searched: Any) -> None:
        """Take the space: `searched.configs` has the configurations by index."""
        self._configs: dict[int, dict[str, Any]] = dict(searched.configs)
        axes = {
            name: [config[name] for config in self._configs.values()] for name in next(iter(self._configs.values()))
        }
        self._axes = {name: CategoricalDistribution(list(dict.fromkeys(values))) for name, values in axes.items()}
        self._left = {self._place(config): index for index, config in self._configs.items()}
        self._random = random.Random(searched.seed)

    def ask(self) -> int | None:
        """Return the index of a candidate that is left; None at the end."""
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
        """Tell the sampler of an outcome. Those of an earlier part of the run come first: it has not asked for them."""
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
