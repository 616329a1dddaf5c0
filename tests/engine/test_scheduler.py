"""The scheduler as a pure function, without a loop: what a free worker does next; nothing is lost or done twice."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from atune.engine.interfaces import CompileHints
from atune.engine.scheduler import (
    FIRST_GROUP,
    MAX_GROUP,
    Build,
    CompileState,
    Lower,
    halves,
)
from atune.model.artifact import Lowered, StaticFacts
from atune.model.layouts import Layouts, LoopFacts


def lowered(index: int, merge_key: str = "") -> Lowered:
    return Lowered(index, f"c{index}", merge_key, (), StaticFacts(), 0.0, b"")


def state(ready: int = 0, resting: int = 0, **fields: Any) -> CompileState:
    """Return a state in which so many candidates are `ready`."""
    values = {"workers": 2, "devices": 1, "total": 100, "ready": [lowered(i) for i in range(ready)], **fields}
    return CompileState(hints=CompileHints(resting=resting), **values)


def indices(job: object) -> list[int]:
    assert isinstance(job, Build)
    return [member.index for member in job.group]


def test_workers_rest_while_devices_need_their_cores() -> None:
    """They start nothing new; what they have begun they finish, and one worker always goes on."""
    assert state(waiting=5, busy=1, resting=1).next_job() is None
    assert isinstance(state(waiting=5, busy=0, resting=1).next_job(), Lower)
    assert isinstance(state(waiting=5, busy=2, resting=1, workers=4).next_job(), Lower)
    assert isinstance(state(waiting=5, busy=0, resting=2, workers=1).next_job(), Lower)
    assert state(retry=[(lowered(0),)], busy=1, resting=1).next_job() is None


def test_the_first_group_is_small_and_one_a_device() -> None:
    one = state(ready=3, waiting=5, devices=1)
    assert indices(one.next_job()) == list(range(FIRST_GROUP))
    assert isinstance(one.next_job(), Lower)  # the device has something to do now
    two = state(ready=4, waiting=5, devices=2)
    assert [indices(two.next_job()), indices(two.next_job())] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(("total", "expected"), [(1000, MAX_GROUP), (40, 13)])
def test_groups_are_a_share_of_what_is_left_within_bounds(total: int, expected: int) -> None:
    """Two workers take a third each of what is left: 40 that are ready, and twice what is to be lowered and built."""
    one = state(ready=40, waiting=3, total=total, seen=40, groups=9)
    assert len(indices(one.next_job())) == expected


def test_the_deferred_come_last_the_longest_first_by_a_workers_share() -> None:
    facts = [StaticFacts(accumulators=256 * (1 + i % 2)) for i in range(8)]
    deferred = [msgspec.structs.replace(lowered(i), facts=one) for i, one in enumerate(facts)]
    one = state(proposing=False, workers=4, deferred=deferred)
    groups = [indices(one.next_job()) for _ in range(8)]
    assert groups == [[1], [3], [5], [7], [0], [2], [4], [6]]


def with_loop(index: int, iterations: int) -> Lowered:
    layouts = Layouts(loops=(LoopFacts(extents=(iterations,), slots=iterations),))
    return msgspec.structs.replace(lowered(index), facts=StaticFacts(layouts=layouts))


def test_kernels_with_far_longer_loops_than_others_come_last_each_one_alone() -> None:
    one = state(proposing=False, devices=0)
    for index, iterations in enumerate([10240, 40, 2560, 80, 40, 80]):
        one.add(with_loop(index, iterations))
    assert [indices(one.next_job()) for _ in range(5)] == [[1, 3], [4], [5], [0], [2]]


def test_a_requested_size_counts_even_for_long_loops() -> None:
    one = state(proposing=False, group_size=2)
    for index, iterations in enumerate([40, 40, 80]):
        one.add(with_loop(index, iterations))
    one.add(with_loop(3, 10240), deferred=True)
    one.add(with_loop(4, 10240), deferred=True)
    jobs = [one.next_job() for _ in range(3)]
    assert isinstance(jobs[2], Build) and indices(jobs[2]) == [3, 4] and jobs[2].reason == "deferred by the screen"


def test_loops_that_are_all_long_defer_nothing() -> None:
    one = state(proposing=False, devices=0, workers=1)
    for index in range(4):
        one.add(with_loop(index, 2560))
    assert indices(one.next_job()) == [0, 1, 2, 3]


def test_members_of_a_group_share_a_merge_key_and_the_oldest_goes_first() -> None:
    one = state(proposing=False, group_size=4)
    one.ready, one.lowering = [lowered(i, "ab"[i % 2]) for i in range(3)], 1
    assert one.next_job() is None  # a size that is asked for waits until it is full
    one.ready, one.lowering = [lowered(i, "ab"[i % 2]) for i in range(7)], 0
    assert indices(one.next_job()) == [0, 2, 4, 6] and indices(one.next_job()) == [1, 3, 5]
    assert one.next_job() is None and one.finished


def test_parts_of_failed_groups_come_first() -> None:
    one = state(ready=20, waiting=5)
    one.retry += halves([lowered(7), lowered(8), lowered(9)])
    assert [indices(one.next_job()), indices(one.next_job())] == [[8, 9], [7]]


def test_a_group_is_no_larger_than_what_is_left_for_each_free_worker() -> None:
    few = state(ready=4, workers=16, total=18, seen=4, groups=1)
    assert indices(few.next_job()) == [0, 1]  # 18 for 16
    alone = state(ready=3, waiting=9, workers=16, total=18, seen=3, groups=5, building=14, busy=14)
    assert isinstance(alone.next_job(), Lower)  # groups of four are not too large for two


@pytest.mark.parametrize("seed", range(100))
def test_every_candidate_is_built_once_whatever_the_timings(seed: int) -> None:
    """Simulate workers with random times, merge keys, deferrals, failures and settings."""
    rng = random.Random(seed)
    total = rng.choice([1, 2, 3, 7, 20, 90, 288])
    workers, devices = rng.randint(1, 9), rng.randint(1, 4)
    group_size = rng.choice([None, None, None, 1, 2, 5, 400])
    keys = rng.randint(1, 3)
    bad = {i for i in range(total) if rng.random() < rng.choice([0, 0.05, 0.5])}
    deferred = {i for i in range(total) if rng.random() < rng.choice([0, 0.1, 1])}
    dropped = {i for i in range(total) if rng.random() < 0.1}  # fails, is pruned or aliased in lowering
    relatives = rng.randint(1, 6)
    accumulators = [rng.choice([None, 64, 256, 512, 1024]) for _ in range(total)]  # by relatives
    lengths = [rng.choice([None, 2_000, 40_000, 500_000]) for _ in range(total)]  # by relatives, too
    one = CompileState(workers, devices, total, group_size, pipeline=rng.random() < 0.8)
    proposals = list(range(total))
    buffer: list[int] = []
    built: Counter[int] = Counter()
    failed: Counter[int] = Counter()
    running: list[tuple[float, int, tuple[Lowered, ...] | list[int]]] = []
    now, number = 0.0, 0

    def take() -> None:
        nonlocal number
        while one.busy < workers:
            while proposals and len(buffer) < 2 * workers:
                buffer.append(proposals.pop(0))
            one.proposing = bool(proposals)
            one.waiting = len(buffer)
            held = bool(running) and rng.random() < 0.1  # something goes on that will end it
            one.hints = CompileHints(builds=not held)
            job = one.next_job()
            if job is None:
                return
            number += 1
            one.busy += 1
            if isinstance(job, Lower):
                one.lowering += 1
                begun, buffer[:1] = buffer[:1], []
                heapq.heappush(running, (now + rng.random(), number, begun))
            else:
                assert 1 <= len(job.group) <= (group_size or MAX_GROUP)
                if job.reason != "after a failed or lost group":
                    work = one.work_of(job.group)
                    assert work <= MAX_GROUP or len(job.group) == 1 or group_size
                assert len({member.merge_key for member in job.group}) == 1
                one.building += 1
                heapq.heappush(running, (now + 5 * rng.random() * len(job.group), number, job.group))

    take()
    while running:
        now, _, what = heapq.heappop(running)
        one.busy -= 1
        if isinstance(what, list):
            one.lowering -= len(what)
            one.seen += len(what)
            for index in what:
                if index not in dropped:
                    registers, length = accumulators[index // relatives], lengths[index // relatives]
                    facts = StaticFacts(accumulators=registers, source_bytes=length)
                    candidate = msgspec.structs.replace(lowered(index, str(index % keys)), facts=facts)
                    one.add(candidate, deferred=index in deferred)
        else:
            one.building -= 1
            members = {member.index for member in what}
            if not members & bad:
                built.update(members)
            elif len(what) == 1:
                failed.update(members)
            else:
                one.retry += halves(what)
        take()
    one.waiting = len(buffer)
    assert one.finished and not proposals and not buffer  # nobody waits for ever
    expected = set(range(total)) - dropped
    assert set(built) == expected - bad and set(failed) == expected & bad
    assert set((built + failed).values()) <= {1}


@pytest.mark.parametrize("builds", [True, False])
def test_while_headers_are_parsed_no_group_is_compiled_even_for_a_waiting_device(builds: bool) -> None:
    ready = [lowered(0), lowered(1)]
    state = CompileState(2, 1, 4, ready=ready, proposing=False, hints=CompileHints(builds=builds))
    assert isinstance(state.next_job(), Build) == builds
