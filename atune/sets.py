"""Results of several problems of a kernel: how few configurations serve them all, and which serves a new one."""

from atune.reporting.sets.cover import Cover, cover
from atune.reporting.sets.dispatch import dispatch_rule
from atune.reporting.sets.regret import RegretMatrix, regret_matrix
from atune.reporting.sets.rule import AnyRule, NearestRule, TreeRule

__all__ = [
    "AnyRule",
    "Cover",
    "NearestRule",
    "RegretMatrix",
    "TreeRule",
    "cover",
    "dispatch_rule",
    "regret_matrix",
]
