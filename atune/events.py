"""The events of a run, as `on_event=`, `Tuner.events` and a journal have them, and `play`, which plays a journal's."""

# ruff: noqa: F403, F405 - so that each name stands once, in `__all__`
from atune.journal.events import *
from atune.journal.replay import play

__all__ = [
    "ArtifactBuilt",
    "BenchmarkFailed",
    "BenchmarkRepeated",
    "BenchmarkStarted",
    "BestChanged",
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
    "WinnerProven",
    "play",
]


def __dir__() -> list[str]:
    return __all__
