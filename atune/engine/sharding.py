"""A run over one shard of its space: the shard is a space of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from atune.engine.proposals import LookUp
from atune.errors import JournalError, UsageError
from atune.journal.events import RunStarted
from atune.model.candidate import Candidate
from atune.model.shard import Shard, Sharding
from atune.workload.workload import WorkloadSpec


def sharding_of(spec: WorkloadSpec, given: Shard | None, header: RunStarted | None) -> Sharding | None:
    """Return which shard of `spec` a run has; None for the whole space. A resumed run keeps its header's.

    Raises `UsageError` if the shard is empty. Raises `JournalError` if the journal has another shard, or one of another
    space.
    """
    if header is None:
        shard = given
    else:
        shard = None if header.shard is None else header.shard.shard
        if given not in (None, shard):
            had = "the whole space" if shard is None else f"shard {shard}"
            raise JournalError(f"the journal is of {had}, and not of shard {given}: give each shard its own journal")
    if shard is None:
        return None
    found = Sharding(shard, spec.total, spec.identity(), spec.size is not None)
    if header is not None and header.shard != found:
        raise JournalError(
            f"the journal is of shard {shard} of another space: its candidates were dealt out differently. "
            "Give another journal, or the space as it was"
        )
    if not found.size:
        raise UsageError(f"shard {shard} is empty, as the space has {spec.total} candidates: use fewer shards")
    return found


def narrowed(spec: WorkloadSpec, sharding: Sharding) -> WorkloadSpec:
    """Return the shard of `spec` as a space. That of a large space has no axes, so it has no neighbours."""
    default = None if spec.default is None else sharding.own(spec.default)
    if spec.size is None:
        configs = tuple(spec.configs[index] for index in sharding.members)
        return msgspec.structs.replace(spec, configs=configs, default=default, space="")
    space = hashlib.sha256(f"{sharding.space} shard {sharding.shard}".encode()).hexdigest()
    return msgspec.structs.replace(spec, size=sharding.size, default=default, space=space, axes=())


def sharded(look_up: LookUp, sharding: Sharding) -> LookUp:
    """Return what looks up places of a large space's shard."""

    async def looked_up(places: Sequence[int]) -> list[Candidate | None]:
        answers = await look_up([sharding.whole(place) for place in places])
        return [
            None if one is None else Candidate(place, one.key, one.config)
            for place, one in zip(places, answers, strict=False)
        ]

    return looked_up
