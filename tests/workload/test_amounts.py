"""The work of a problem, as `Workload(flops=…, bytes=…)` takes it."""

from __future__ import annotations

from typing import Any

import pytest

from atune import Workload, WorkloadError


def kernel(M: int, N: int, block: int = 1) -> Any:
    raise AssertionError("not called")


def workload(**options: Any) -> Workload:
    return Workload(kernel, {"block": [1, 2]}, arguments={"M": 3, "N": 5}, **options)


def test_work_may_be_numbers_or_functions_of_the_arguments_that_they_name() -> None:
    one = workload(flops=lambda M, N: 2.0 * M * N, bytes=64)
    assert (one.flops, one.bytes) == (30.0, 64)
    assert workload(bytes=lambda N: N).bytes == 5 and workload().flops is None


@pytest.mark.parametrize(
    ("flops", "says"),
    [
        (lambda K: K, "'K', which is none of the arguments"),
        (lambda M: M / 0, "flops raised ZeroDivisionError"),
        (lambda M: "many", "must return a number, got 'many'"),
        (lambda M: -1.0, "flops must be a number, zero or more, or a function of arguments, got -1.0"),
    ],
)
def test_a_function_that_gives_no_amount_is_refused_by_name(flops: Any, says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        workload(flops=flops)
