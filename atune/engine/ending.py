"""What ends a run early: its time budget."""

from __future__ import annotations

import anyio

from atune.engine.run_state import Run


async def keep_time(run: Run, seconds: float | None) -> None:
    """Stop `run` once it took so many seconds, in all its parts together. Returns once all is measured."""
    if seconds is None:
        return
    with anyio.move_on_after(max(0.0, seconds - run.recorder.elapsed_s)) as left:
        await run.measured.wait()
    if left.cancelled_caught:
        run.stop("budget")
