"""What several journals say of one candidate, and where it is in the space that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from atune.journal.events import CandidateMeasured, RunStarted
from atune.journal.state import Outcome, State
from atune.model.measurement import Timing
from atune.model.shard import Sharding


@dataclass(frozen=True)
class Places:
    """The space of one journal: of a shard, the whole space that it is part of. `sharding`: None if it is no shard."""

    header: RunStarted
    sharding: Sharding | None
    space: str
    total: int
    large: bool

    @classmethod
    def of(cls, state: State, *, whole: bool) -> Places:
        """Return the space of `state`. `whole`: of a shard, the whole space."""
        header = state.header
        assert header is not None
        if header.shard is None or not whole:
            return cls(header, None, header.space, state.total, header.large)
        return cls(header, header.shard, header.shard.space, header.shard.total, header.large)

    def whole(self, index: int) -> int:
        """Return the index of the journal's candidate `index` in this space."""
        return index if self.sharding is None else self.sharding.whole(index)

    @property
    def default(self) -> int | None:
        """Index of the default configuration, where the journal has it."""
        return None if self.header.default is None else self.whole(self.header.default)


@dataclass(frozen=True)
class Several:
    """What counts of candidates that have an outcome in several journals, by configuration key.

    `chosen`: number of the journal whose outcome counts: a measurement before a failure, then the later journal.
    `pooled`: the timing of all samples, where several journals measured the candidate on one model of device.
    `rescued`: how many others have a measurement in one journal and a failure in another. `widest`: how far the
    latencies of one candidate are apart at most, as a share of the least, with its key.
    """

    chosen: Mapping[str, int]
    pooled: Mapping[str, Timing]
    rescued: int
    widest: tuple[float, str]

    @classmethod
    def of(cls, states: Sequence[State]) -> Several:
        """Compare the outcomes in `states`."""
        having: dict[str, list[tuple[int, Outcome]]] = {}
        for number, state in enumerate(states):
            for entry in state.entries.values():
                if entry.key and entry.outcome is not None:
                    having.setdefault(entry.key, []).append((number, entry.outcome))
        chosen, pooled, rescued, widest = dict[str, int](), dict[str, Timing](), 0, (0.0, "")
        for key, found in having.items():
            if len(found) == 1:
                continue
            measured = [(number, outcome) for number, outcome in found if isinstance(outcome, CandidateMeasured)]
            chosen[key] = (measured or found)[-1][0]
            timings = _alike(states, measured)
            if len(timings) > 1:
                pooled[key] = reduce(Timing.and_more, timings)
                latencies = [timing.latency_ms for timing in timings]
                widest = max(widest, (max(latencies) / min(latencies) - 1, key))
            else:
                rescued += 0 < len(measured) < len(found)
        return cls(chosen, pooled, rescued, widest)

    def notes(self, paths: Sequence[str]) -> list[str]:
        """Return the warning about these candidates; none where there are none."""
        told = []
        if self.pooled:
            apart, key = self.widest
            told.append(
                f"{len(self.pooled)} were measured more than once, and the median of all samples counts; latencies of "
                f"one candidate differ by {apart:.1%} at most ({key})"
            )
        if self.rescued:
            told.append(f"of {self.rescued} a measurement counts, and not the failure in another journal")
        if later := len(self.chosen) - len(self.pooled) - self.rescued:
            told.append(f"of {later} the later journal counts")
        if not told:
            return []
        return [f"candidates with several outcomes in the {len(paths)} journals: {len(self.chosen)}; {'; '.join(told)}"]


def _alike(states: Sequence[State], measured: Sequence[tuple[int, CandidateMeasured]]) -> list[Timing]:
    """Return the timings that compare with the last one: by the same method, on the same model of device."""

    def kind(number: int, outcome: CandidateMeasured) -> tuple[str, str]:
        device = states[number].devices.get(outcome.device)
        return outcome.device if device is None else device.name, outcome.timing.method

    return [outcome.timing for number, outcome in measured if kind(number, outcome) == kind(*measured[-1])]
