"""Where no result is known: those that are near, and in what they differ."""

from __future__ import annotations

from typing import Any

import pytest
from cache_entries import key

from atune.storage.near_results import nearest
from atune.storage.result_key import CacheEntry

WANTED = key()


def entry(created: float = 0.0, **changes: Any) -> CacheEntry:
    return CacheEntry(parts=key(**changes), config={"block": 16}, latency_ms=1.0, created=created)


def differences(**changes: Any) -> tuple[str, ...]:
    [near] = nearest([WANTED], [("the result cache", entry(**changes))])
    return near.differences


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"source": "d", "fingerprint": "g"}, ("the kernel's source, or what it uses, changed since",)),
        ({"fingerprint": "g"}, ("its reference, inputs, setup or check, or the tolerances, changed since",)),
        ({"problem": {"M": 65, "N": 1}}, ("M was 65 and is 64", "N was 1 and is not there")),
        ({"problem": "a bucket"}, ('the problem was "a bucket" and is {"M":64}',)),
        ({"device": "NVIDIA H200"}, ("it is for NVIDIA H200, and here is CPU",)),
        ({"target": "sm_90a"}, ("its target is sm_90a, and here it is c",)),
        ({"versions": {"atune": "1", "tilelang": "0.1.14"}}, ('tilelang was "0.1.14" and is not there',)),
        ({"measuring": {"n_repeat": 5}}, ("n_repeat was 5 and is 3",)),
        ({"search": {"n_final": 0}}, ("n_final was 0 and is 5",)),
        ({"space": "t"}, ("its space has other configurations",)),
        ({"kernel": "renamed", "problem": {"M": 1}}, ("M was 1 and is 64",)),
    ],
)
def test_each_part_of_the_key_has_its_words(changes: dict[str, Any], said: tuple[str, ...]) -> None:
    assert differences(**changes) == said


def test_results_of_other_kernels_are_not_near() -> None:
    assert nearest([WANTED], [("the result cache", entry(kernel="softmax", source="d", fingerprint="g"))]) == []


def test_those_that_differ_least_come_first_and_then_the_newest() -> None:
    known = [
        entry(1.0, device="A", target="sm_80"), entry(2.0, device="B"), entry(3.0, device="C"), entry(4.0, device="D"),
    ]  # fmt: skip
    near = nearest([WANTED], [("the result cache", one) for one in known])
    assert [one.entry.parts.device for one in near] == ["D", "C", "B"]


def test_sources_taken_as_before_count_as_the_same() -> None:
    [near] = nearest([WANTED, key(source="old", fingerprint="old")], [("x", entry(fingerprint="old", device="A"))])
    assert near.differences == ("it is for A, and here is CPU",)


def test_of_shipped_results_only_what_decides_is_told() -> None:
    shipped = entry(versions={}, measuring={}, space="t", device="A")
    [near] = nearest([WANTED], [("tuned.json", shipped)], shipped=["tuned.json"], space=set())
    assert near.differences == ("it is for A, and here is CPU", "its configuration is not in the space")
