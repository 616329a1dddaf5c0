"""What the journal and the engine cost by themselves: events a second, replay, and time and memory a candidate.

    python bench/journal.py [FOLDER] [--out FILE]

FOLDER is where the journals are written: its disk is what the syncs are of. Compilers and devices are the fakes of
`atune.testing`, which take no time. Each figure comes from a process of its own, so that peaks of memory do not mix.
What the journal costs a candidate is the difference of two runs, with it and without.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio

SIZES = (1_000, 10_000, 100_000)
EVENTS = 100_000
DIGITS = (6, 9)


def appending(folder: Path, synced: bool) -> dict[str, Any]:
    """Append events of the size of a measurement; with `synced`, in groups as the engine does."""
    from atune.journal.events import CandidateMeasured
    from atune.journal.writer import Journal
    from atune.model.measurement import Timing

    timing = Timing.of([1000.0 + i / 7 for i in range(20)], "events")
    syncs = 0

    async def main() -> None:
        nonlocal syncs

        async def sync() -> None:
            nonlocal syncs
            while not done.is_set():
                await journal.sync()
                syncs += 1
                await anyio.sleep(0)

        done = anyio.Event()
        async with anyio.create_task_group() as tasks:
            if synced:
                tasks.start_soon(sync)
            for seq in range(EVENTS):
                journal.append(
                    CandidateMeasured(
                        seq=seq, time=1.8e9, mono=seq / 10, index=seq, device="0", timing=timing, checked=True
                    )
                )
                if synced and seq % 10 == 0:
                    await anyio.sleep(0)
            await journal.sync()
            done.set()

    with Journal.create(folder / "append.jsonl") as journal:
        started = time.perf_counter()
        anyio.run(main)
        seconds = time.perf_counter() - started
    return {"events_per_s": round(EVENTS / seconds), "syncs": syncs + 1}


def tuning(folder: Path, total: int, journal: bool) -> dict[str, Any]:
    """Run the engine over `total` candidates that take no time."""
    from idle import InstantClock

    from atune.frontends.api.tuner import tune
    from atune.testing import FakeMachine, Script

    script = Script(latency_ms=lambda c: 1.0 + (c["x"] * 7919 % total) / total)
    machine = FakeMachine(total, script, workers=4, devices=2, clock=InstantClock())
    path = folder / f"tune-{total}.jsonl" if journal else None
    before = peak_bytes()
    started, worked = time.perf_counter(), time.process_time()
    result = anyio.run(lambda: tune(machine=machine, journal=path))
    seconds, worked = time.perf_counter() - started, time.process_time() - worked
    assert result.measured == total
    figures: dict[str, Any] = {
        "ms_per_candidate": round(1e3 * seconds / total, 4),
        "cpu_ms_per_candidate": round(1e3 * worked / total, 4),
        "bytes_per_candidate": round((peak_bytes() - before) / total),
    }
    if path is not None:
        figures["journal_bytes_per_candidate"] = round(path.stat().st_size / total)
        figures["events"] = path.read_bytes().count(b"\n")
    return figures


def delaying(folder: Path, total: int) -> dict[str, Any]:
    """Look again and again, beside a run, how long the event loop has kept others waiting.

    `busy_ms`: processor time that its thread took meanwhile; `waited_ms` has what the machine's other work took, too.
    """
    from idle import InstantClock

    from atune.frontends.api.tuner import tune
    from atune.testing import FakeMachine, Script

    script = Script(latency_ms=lambda c: 1.0 + (c["x"] * 7919 % total) / total)
    busy, waited = [0.0], [0.0]

    async def look() -> None:
        while True:
            began, worked = time.perf_counter(), time.thread_time()
            await anyio.sleep(0.001)
            waited.append(time.perf_counter() - began - 0.001)
            busy.append(time.thread_time() - worked)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look)
            await tune(machine=FakeMachine(total, script, workers=4, devices=2, clock=InstantClock()))
            tasks.cancel_scope.cancel()

    anyio.run(main)
    figures = {"looks": len(busy), "over_10_ms": sum(seconds > 0.01 for seconds in busy)}
    return {**figures, **{n: round(1e3 * max(s), 1) for n, s in (("busy_ms", busy), ("waited_ms", waited))}}


def budgeting(folder: Path, digits: int) -> dict[str, Any]:
    """Tune 100 of 10**digits points; `first_ms`: to the first proposal."""
    from idle import InstantClock

    from atune.frontends.api.tuner import tune
    from atune.journal.events import CandidateProposed, Event
    from atune.model.space import Space
    from atune.testing import FakeMachine

    first: list[float] = []

    def listen(event: Event) -> None:
        if isinstance(event, CandidateProposed) and not first:
            first.append(time.perf_counter() - started)

    before, started = peak_bytes(), time.perf_counter()
    space = Space({f"d{i}": list(range(10)) for i in range(digits)}, where=lambda d0, d1: d0 <= d1)
    machine = FakeMachine(space, clock=InstantClock())
    result = anyio.run(lambda: tune(machine=machine, budget=100, strategy="random", on_event=listen))
    assert result.measured == 100
    figures = {"first_ms": round(1e3 * first[0], 1), "ms": round(1e3 * (time.perf_counter() - started), 1)}
    return {**figures, "peak_bytes": peak_bytes() - before}


def replaying(folder: Path, journal: Path) -> dict[str, Any]:
    """Fold the first `EVENTS` events of a journal into a result."""
    import itertools

    from atune.journal.reader import JournalReader
    from atune.journal.result import Result

    before = peak_bytes()
    started = time.perf_counter()
    result = Result.from_events(itertools.islice(JournalReader(journal), EVENTS))
    seconds = time.perf_counter() - started
    return {"seconds": round(seconds, 3), "candidates": len(result.records), "peak_bytes": peak_bytes() - before}


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def asked(folder: Path, *question: str) -> dict[str, Any]:
    """Answer a question in a fresh process."""
    command = [sys.executable, __file__, str(folder), *question]
    answer: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(" ".join(question), answer, file=sys.stderr, flush=True)
    return answer


def answer(folder: Path, question: list[str]) -> dict[str, Any]:
    match question:
        case ["append", how]:
            return appending(folder, how == "synced")
        case ["tune", total, how]:
            return tuning(folder, int(total), how == "journal")
        case ["delay", total]:
            return delaying(folder, int(total))
        case ["budget", digits]:
            return budgeting(folder, int(digits))
        case ["replay", journal]:
            return replaying(folder, Path(journal))
    raise SystemExit(f"unknown question {question}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER", help="(that of temporary files)")
    parser.add_argument("question", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures there, with the command")
    options = parser.parse_args()
    if options.question:
        print(json.dumps(answer(options.folder, options.question)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        figures: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}
        figures["append"] = asked(folder, "append", "unsynced")
        (folder / "append.jsonl").unlink()
        figures["append_synced"] = asked(folder, "append", "synced")
        for total in SIZES:
            figures[f"engine_{total}"] = asked(folder, "tune", str(total), "nothing")
            figures[f"engine_{total}_journal"] = asked(folder, "tune", str(total), "journal")
            with_it, without = figures[f"engine_{total}_journal"], figures[f"engine_{total}"]
            for name in ("ms_per_candidate", "cpu_ms_per_candidate"):
                with_it[f"journal_{name}"] = round(with_it[name] - without[name], 4)
        figures[f"loop_{SIZES[-1]}"] = asked(folder, "delay", str(SIZES[-1]))
        for digits in DIGITS:
            figures[f"space_1e{digits}"] = asked(folder, "budget", str(digits))
        figures[f"replay_{EVENTS}"] = asked(folder, "replay", str(folder / f"tune-{SIZES[-1]}.jsonl"))
    if options.out is not None:
        command = " ".join(["python", "bench/journal.py", *map(shlex.quote, sys.argv[1:])])
        options.out.write_text(json.dumps({"command": command, "result": figures}, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
