"""Results of several problems of a kernel: what few configurations serve them all, and what serves a new problem.

`compare` says what became of the winners since other runs.
"""

from atune.reporting.sets import (
    ComparedProblem,
    Comparison,
    Cover,
    NearestRule,
    RegretMatrix,
    compare,
    cover,
    dispatch_rule,
    regret_matrix,
)

__all__ = [
    "ComparedProblem",
    "Comparison",
    "Cover",
    "NearestRule",
    "RegretMatrix",
    "compare",
    "cover",
    "dispatch_rule",
    "regret_matrix",
]
