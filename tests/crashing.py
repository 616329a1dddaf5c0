"""A run over scripted fakes in a process tree of its own, to be killed at a random instant; see `Crash`."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from atune.errors import JournalError
from atune.journal.events import BenchmarkFailed, BenchmarkStarted, CandidateMeasured, RunResumed
from atune.journal.reader import read, replay

TOTAL, KILLS = 24, 3


def machine() -> Any:
    """A space with failures of every stage, duplicates, two devices, and a pace that spreads the run over 0.2 s."""
    from atune.model.artifact import StaticFacts
    from atune.model.device import DeviceLimits
    from atune.testing import FakeClock, FakeMachine, Script

    script = Script(
        latency_ms=lambda c: 1.0 + abs(c["x"] - 13) / 7,
        code_key=lambda c: str(c["x"] % 20),
        fails={3: "compile", 5: "mismatch", 8: "fault", 2: "lower"},
        facts=lambda c: StaticFacts(smem_bytes=100 * c["x"]),
    )
    return FakeMachine(
        TOTAL, script, devices=2, limits=DeviceLimits(smem_bytes=1850), default=7, clock=FakeClock(pace=0.015)
    )


def torn_writes() -> None:
    """Write each line in two pieces with a moment between them, so that a kill often hits in mid-append."""
    write = os.write

    def pieces(fd: int, data: bytes) -> int:
        if len(data) < 20 or not data.startswith(b'{"crc"'):
            return write(fd, data)
        write(fd, data[: len(data) // 2])
        time.sleep(0.0005)
        return len(data) // 2 + write(fd, data[len(data) // 2 :])

    os.write = pieces  # type: ignore[assignment]


def work(journal: str) -> None:
    """The program that is killed. A child of its own stands for the workers."""
    subprocess.Popen(["sleep", "100"])
    torn_writes()
    from atune.frontends.tuner import tune

    sys.stdout.write("begun\n")
    sys.stdout.flush()
    anyio.run(lambda: tune(machine=machine(), journal=journal))
    os.killpg(os.getpgid(0), signal.SIGKILL)  # the child too


@dataclass
class Crash:
    """What rounds of killing and going on have found."""

    kills: int = 0
    measurements: int = 0


def truth(journal: Path) -> dict[int, tuple[Any, ...]]:
    return {r.index: (r.status, r.kind, r.same_as, r.latency_ms) for r in replay(journal).records}


async def finish(journal: Path) -> None:
    from atune.frontends.tuner import tune

    await tune(machine=machine(), journal=journal)


def one_round(folder: Path, seed: int, whole: Path, found: Crash) -> None:
    """Kill the whole tree at random instants, up to `KILLS` times, then let it end. Raises where a thing is lost."""
    dice, journal = random.Random(seed), folder / f"{seed}.jsonl"
    kept: dict[int, tuple[float, ...]] = {}
    for kill in range(dice.randint(1, KILLS) + 1):
        last = kill == KILLS
        process = subprocess.Popen(
            [sys.executable, __file__, str(journal)], stdout=subprocess.PIPE, start_new_session=True
        )
        assert process.stdout is not None and process.stdout.readline() == b"begun\n"
        if not last:
            time.sleep(dice.uniform(0.0, 0.45))
            os.killpg(process.pid, signal.SIGKILL)
            found.kills += 1
        process.wait(30)
        process.stdout.close()
        if not journal.exists() or not journal.stat().st_size:
            continue
        try:
            now = timings(journal)
        except JournalError as error:
            assert "only line is incomplete" in str(error), error
            journal.unlink()  # killed in the middle of the header: nothing was measured
            continue
        assert kept.items() <= now.items(), f"round {seed}: a finished measurement is lost"
        kept = now
    anyio.run(finish, journal)
    assert kept.items() <= timings(journal).items(), f"round {seed}: a finished measurement is lost"
    events = read(journal)
    suspects = {e.index for e in events if isinstance(e, BenchmarkFailed) and e.kind == "suspect"}
    for index in suspects:
        deaths = sum(isinstance(e, BenchmarkStarted) and e.index == index for e in events)
        assert deaths == 2 <= sum(isinstance(e, RunResumed) for e in events), (
            f"round {seed}: suspect without two deaths"
        )
    expected, got = truth(whole), truth(journal)
    if suspects:
        unlike = {i for i in expected if got[i] != expected[i] and got[i][2] is None}
        assert unlike <= suspects | {i for i in expected if expected[i][2] in suspects or got[i][2] in suspects}
    else:
        assert got == expected, f"round {seed}: the final result differs"
        assert replay(journal).best_index == replay(whole).best_index
    found.measurements += len(timings(journal))


def timings(journal: Path) -> dict[int, tuple[float, ...]]:
    """Return the measurements; each candidate may have one."""
    events = [e for e in read(journal) if isinstance(e, CandidateMeasured)]
    again = [index for index, n in Counter(e.index for e in events).items() if n > 1]
    assert not again, f"measured again: {again}"
    return {e.index: (e.time, *e.timing.samples_us) for e in events}


if __name__ == "__main__":
    work(sys.argv[1])
