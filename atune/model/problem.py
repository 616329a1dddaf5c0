"""A problem: arguments of a kernel; and how far apart two are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from atune.errors import UsageError
from atune.model.candidate import config_key, describe_config


class Problem(msgspec.Struct, frozen=True):
    """One problem: arguments of the kernel."""

    arguments: dict[str, Any]

    @property
    def key(self) -> str:
        """The arguments as text; equal for equal problems."""
        return config_key(self.arguments)

    def __str__(self) -> str:
        return describe_config(self.arguments)


def check_same_names(problems: Sequence[Problem], where: str) -> None:
    """Raise `UsageError`, naming `where`, where problems differ in the names of their arguments."""
    for one in problems:
        if one.arguments.keys() != problems[0].arguments.keys():
            raise UsageError(f"{where}: {one} and {problems[0]} differ in the names of their arguments")


def is_size(value: Any) -> bool:
    """Tell whether a problem's argument has a logarithm: a number above zero, and no flag."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Return the sum of the log2 ratios of two problems' sizes. Each other difference counts as one.

    Rounded, so that machines whose logarithms differ in their last digit find the same ties.
    """
    return round(math.fsum(_apart(one.get(name), other.get(name)) for name in {**one, **other}), 9)


def _apart(one: Any, other: Any) -> float:
    if one == other:
        return 0.0
    return abs(math.log2(one / other)) if is_size(one) and is_size(other) else 1.0
