"""A kernel and a reference that print where their processes may run, and at which niceness."""

from __future__ import annotations

import os
from typing import Any

from workloads import scale

import atune

N = 32


def say(what: str) -> None:
    print(what, *sorted(os.sched_getaffinity(0)), "nice", os.nice(0))


def kernel(times: int) -> Any:
    say("lowered on")
    return scale(N, times, N)


def reference(A: Any) -> Any:
    say("measured on")
    return A


WORKLOAD = atune.Workload(kernel, [{"times": 1}], reference=reference)
