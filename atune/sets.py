"""Functions that take the results for several problems of a kernel.

`cover` chooses a few configurations that serve all problems. `dispatch_rule` chooses a configuration for a new problem.
`compare` compares the latencies of two sets of results.
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
