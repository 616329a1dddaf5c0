"""Optuna's samplers as strategies. A sampler proposes any place on the axes, and the nearest remaining candidate is
taken.

Optuna: Akiba and others, «Optuna: A Next-generation Hyperparameter Optimization Framework» (KDD 2019).
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from atune.errors import UsageError, name_and_message
from atune.search.interface import Searched
from atune.search.learner import Learner

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NAME = "optuna"
"""This strategy; ``optuna:TPESampler`` names the sampler."""
DEFAULT = "TPESampler"
SEEDS = 2**32
"""Seeds that Optuna takes: below this, and not below zero. Others count modulo it."""
FIRST = 8
"""How many candidates are tried before the sampler is asked, if a prior or advice orders them."""


class Optuna(Learner):
    """A sampler of Optuna's over positions on the axes: numbers in order, others as categories.

    It is told the place of the candidate that was taken for its proposal. A failure counts as the slowest latency so
    far, and is told once there is one. It does not know outstanding candidates.
    """

    def __init__(self, searched: Searched, name: str = NAME) -> None:
        super().__init__(searched)
        self.name = name
        self._optuna = import_module("optuna")
        with _quiet(self._optuna):
            self._study = self._optuna.create_study(sampler=_sampler(name, searched.seed), direction="minimize")
        make = self._optuna.distributions
        self._distributions = {
            f"{number}": make.IntDistribution(0, len(axis.values) - 1)
            if axis.ordered
            else make.CategoricalDistribution(list(range(len(axis.values))))
            for number, axis in enumerate(self.encoding.axes)
        }
        self._attributes = dict[int, dict[str, Any]]()
        """What the sampler noted of a proposal, by the candidate that was taken for it."""
        self._unheard = list[int]()
        """Failures of which the sampler was not told, as nothing is measured yet."""

    def propose(self, rng: random.Random) -> list[int]:
        if not self.asked and (self.advised or self.ranked):
            return self.beginning(rng, FIRST)
        trial = self._study.ask(fixed_distributions=self._distributions)
        candidate = self._nearest([trial.params[name] for name in self._distributions])
        given_up = self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        self._attributes[candidate] = dict(given_up.system_attrs)
        return [candidate]

    def learn(self, candidate: int) -> None:
        if candidate in self.failures:
            self._unheard.append(candidate)
        elif candidate in self.latencies:
            self._say(candidate, self.latencies[candidate])
        while self._unheard and self.latencies:
            self._say(self._unheard.pop(0), max(self.latencies.values()))

    def _say(self, candidate: int, latency_ms: float) -> None:
        place = self.encoding.places[candidate]
        self._study.add_trial(
            self._optuna.trial.create_trial(
                value=math.log(latency_ms),
                params=dict(zip(self._distributions, place, strict=True)),
                distributions=self._distributions,
                system_attrs=self._attributes.get(candidate, {}),
            )
        )

    def _nearest(self, place: list[int]) -> int:
        """Return the candidate that is left and nearest to `place`: the first of those whose axes differ least."""
        import numpy as np

        if len(self._places) < len(self.indices):
            del self._places  # a grid has more of them now
        left = np.array(self.left())
        apart = np.abs(self._places[left] - np.array(place, dtype=np.float64)[None, :])
        apart = np.where(self._ordered, apart / self._lengths, apart > 0)
        return int(left[int(np.argmin(apart.sum(axis=1)))])

    @cached_property
    def _places(self) -> NDArray[np.float64]:
        import numpy as np

        places = self.encoding.places
        return np.array(places, dtype=np.float64).reshape(len(places), len(self.encoding.axes))

    @cached_property
    def _ordered(self) -> NDArray[np.bool_]:
        import numpy as np

        return np.array([axis.ordered for axis in self.encoding.axes], dtype=np.bool_)

    @cached_property
    def _lengths(self) -> NDArray[np.float64]:
        import numpy as np

        return np.array([len(axis.values) - 1 for axis in self.encoding.axes], dtype=np.float64)


def needs(name: str) -> None:
    """Raise `UsageError` if Optuna, the sampler called `name`, or a library that it needs is missing."""
    if find_spec("optuna") is None:
        raise UsageError(
            f"strategy {name!r} needs Optuna, which is not installed: pip install 'atune[optuna]', or take forest, "
            "local or evolution"
        )
    sampler = _sampler(name, 0)
    if not isinstance(sampler, import_module("optuna.samplers").TPESampler):
        _tried(name, sampler)


def _tried(name: str, sampler: Any) -> None:
    """Ask `sampler` for a few points. Raises `UsageError` where a library that it needs is missing: it imports late."""
    optuna = import_module("optuna")
    space = {axis: optuna.distributions.IntDistribution(0, 3) for axis in ("a", "b")}
    with _quiet(optuna):
        study = optuna.create_study(sampler=sampler)
    try:
        for value in range(3):
            study.tell(study.ask(fixed_distributions=space), float(value))
    except ImportError as error:
        raise UsageError(f"strategy {name!r} needs a library that is not installed: {error}") from error


def _sampler(name: str, seed: int) -> Any:
    """Return a new sampler. Raises `UsageError` for one that there is not, or that a seed alone does not make."""
    chosen = name.partition(":")[2] or DEFAULT
    samplers = import_module("optuna.samplers")
    known = [each for each in samplers.__all__ if each.endswith("Sampler") and not each.startswith("Base")]
    if chosen not in known:
        raise UsageError(f"strategy {name!r}: Optuna has no sampler {chosen!r}; there is {', '.join(sorted(known))}")
    try:
        return getattr(samplers, chosen)(seed=seed % SEEDS)
    except (TypeError, ImportError) as error:
        raise UsageError(
            f"strategy {name!r}: Optuna's {chosen} cannot be made with a seed alone ({name_and_message(error)}): "
            "install what it lacks, or take another, such as optuna:TPESampler"
        ) from error


@contextmanager
def _quiet(optuna: Any) -> Generator[None, None, None]:
    """Keep Optuna from logging that a study begins."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
