"""Whether the winner's outputs were compared with anything: said once a run, where they were not."""

from __future__ import annotations

from atune.journal.result import TuneResult


def why_unchecked(result: TuneResult) -> str:
    """Return why no output was checked; empty where one was, where nothing was measured, or where it is not known."""
    if not result.measurements or any(one.checked for one in result.measurements) or result.header is None:
        return ""
    settings = result.header.settings.get("benchmark")
    asked = settings.get("check") if isinstance(settings, dict) else None
    if asked is True:
        return "the workload has no reference and no check, so that a wrong kernel may win: Workload(…, reference=…)"
    return "the check was switched off (--skip-check)" if asked is False else ""


def unchecked_lines(result: TuneResult) -> list[str]:
    """Return the line of the text that says so; none where outputs were checked."""
    why = why_unchecked(result)
    return [f"outputs    not checked: {why}"] if why else []
