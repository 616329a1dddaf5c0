"""The events of a run, as `on_event=`, `Tuner.events` and a journal have them."""

# ruff: noqa: F403, F405 - so that each name stands once, in `__all__`
from atune.journal.events import *

__all__ = [
    "ArtifactBuilt",
    "BenchmarkFailed",
    "BenchmarkRepeated",
    "BenchmarkStarted",
    "BestChanged",
    "BitsCompared",
    "BuildFailed",
    "CandidateAliased",
    "CandidateLowered",
    "CandidateMeasured",
    "CandidateProposed",
    "CandidatePruned",
    "CompileRepeated",
    "DeviceExcluded",
    "DeviceLost",
    "DeviceReady",
    "Event",
    "FinalOrdered",
    "FinalStarted",
    "GroupSplit",
    "JournalRepaired",
    "ReferenceMeasured",
    "RunFinished",
    "RunInterrupted",
    "RunResumed",
    "RunStarted",
    "SpaceSurveyed",
    "Warned",
]


def __dir__() -> list[str]:
    return __all__
