"""The classes of a result, and the functions `merge` (several journals become one result) and `save_bundle`."""

from atune.frontends.measure import Evaluation, MeasureResult
from atune.frontends.save_bundle import save_bundle
from atune.journal.merge import merge
from atune.journal.result import Record, Result
from atune.model.artifact import Failure
from atune.model.measurement import Measurement, Timing

__all__ = [
    "Evaluation",
    "Failure",
    "MeasureResult",
    "Measurement",
    "Record",
    "Result",
    "Timing",
    "merge",
    "save_bundle",
]
