"""The events of a run. `on_event=` and `Tuner.events` receive events, and a journal stores them."""

# ruff: noqa: F403, F405 - `__all__` lists each name, and nothing else repeats it
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
