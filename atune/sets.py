"""Results of several problems of a kernel: how few configurations serve them all, and which serves a new one.

`compare` says what became of the winners since other runs.
"""

from atune.reporting.sets.compare import ComparedProblem, ComparedWinner, Comparison, Difference, compare
from atune.reporting.sets.cover import Cover, cover
from atune.reporting.sets.dispatch import dispatch_rule
from atune.reporting.sets.regret import RegretMatrix, regret_matrix
from atune.reporting.sets.rule import AnyRule, NearestRule, TreeRule

__all__ = [
    "AnyRule",
    "ComparedProblem",
    "ComparedWinner",
    "Comparison",
    "Cover",
    "Difference",
    "NearestRule",
    "RegretMatrix",
    "TreeRule",
    "compare",
    "cover",
    "dispatch_rule",
    "regret_matrix",
]
