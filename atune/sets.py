"""Results of several problems of a kernel: how few configurations serve them all."""

from atune.reporting.sets.cover import Cover, cover
from atune.reporting.sets.regret import RegretMatrix, regret_matrix

__all__ = [
    "Cover",
    "RegretMatrix",
    "cover",
    "regret_matrix",
]
