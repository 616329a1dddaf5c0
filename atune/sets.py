"""Functions over results for several problems of a kernel.

`cover` chooses few configurations for all problems, `dispatch_rule` serves new problems, and `compare` shows changes.
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
