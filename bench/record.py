"""Record whole search spaces: tune each exhaustively, and compress its journal.

    python bench/record.py --spaces gemm_square,rms_norm --devices 0 --time-limit 540 --resume

A fresh `atune tune` tunes each space of bench/spaces, one after the other, with empty caches and the artifact store
off. Its journal becomes NAME.jsonl.xz in --out, with paths of this machine cut to the part below the repository.
table.md lists all recordings there.

If a limit cuts a space short, NAME.jsonl remains. `--resume` continues its journal, also on another machine with the
same kind of device, and skips recorded spaces.

The final is timed, too, because without it candidates that differ only in their block order are not compiled together,
which takes several times as long. To try each space out, use `--tune-options='--budget 8'` with another `--out`.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import lzma
import math
import re
import shlex
import signal
import sys
import sysconfig
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from common import ROOT
from counted import Finished, empty_caches, run_counted
from spaces import FAMILIES, FOLDER, PROBLEMS, SPACES, SUFFIX, journal_in, opened

from atune import replay
from atune.errors import AtuneError
from atune.model.folders import whole_file
from atune.reporting.summary import summary
from atune.results import Result

SCRATCH = "record-"
"""Prefix of the folders in which spaces are tuned."""
FIXED = ("--compile-timeout", "60", "--timeout", "15", "--quiet", "--json")
FAULTY = ("failed", "pruned")
HEAD = [
    "space", "candidates", "measured", "duplicates", "failed", "wall s", "a second", "best ms", "torch ms", "best",
    "device", "KiB",
]  # fmt: skip


class Work(NamedTuple):
    """A space to record: the recording's name, and ``FILE.py:NAME``."""

    label: str
    ref: str


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    places = f"of {', '.join(SPACES)} (all), of {', '.join(FAMILIES)} or their problems, or FILE.py:NAME"
    made.add_argument("--spaces", default=",".join(SPACES), help=places)
    made.add_argument("--target", default="cuda", help="as of atune tune (cuda)")
    made.add_argument("--devices", help="as of atune tune (all)")
    made.add_argument("--space-limit", type=float, default=math.inf, metavar="S", help="seconds for one space")
    made.add_argument("--time-limit", type=float, default=math.inf, metavar="S", help="seconds for everything")
    made.add_argument("--tune-options", default="", metavar="TEXT", help="for atune tune, such as '--budget 8'")
    made.add_argument("--out", type=Path, default=FOLDER, help=f"folder for recordings ({FOLDER.relative_to(ROOT)})")
    made.add_argument("--resume", action="store_true", help="keep the recordings in --out, and add missing ones")
    return made


def works_of(text: str) -> list[Work]:
    """Read ``--spaces``. Exits with a message if a space is unknown."""
    works = []
    for word in filter(None, map(str.strip, text.split(","))):
        path, _, name = word.rpartition(":")
        if word in SPACES | PROBLEMS:
            works.append(Work(word, (SPACES | PROBLEMS)[word].ref))
        elif word in FAMILIES:
            works += [Work(name, space.ref) for name, space in PROBLEMS.items() if name.startswith(f"{word}_")]
        elif Path(path).is_file():
            works.append(Work(f"{Path(path).stem}_{name.lower()}", f"{Path(path).resolve()}:{name}"))
        else:
            raise SystemExit(f"--spaces: {word!r} is neither FILE.py:NAME nor any of {', '.join([*SPACES, *FAMILIES])}")
    return works


def command_of(options: argparse.Namespace, work: Work, journal: Path) -> list[str]:
    command = [sys.executable, "-m", "atune", "tune", work.ref, "--target", options.target, *FIXED]
    command += ["--devices", options.devices] if options.devices else []
    return [*command, "--journal", str(journal), *shlex.split(options.tune_options)]


def record(options: argparse.Namespace, work: Work, timeout_s: float) -> str:
    """Tune `work` for at most `timeout_s`, and pack its journal. Return the reason for a failure; else nothing."""
    journal = (options.out / f"{work.label}.jsonl").resolve()
    with empty_caches(SCRATCH) as (folder, env):
        done = run_counted(command_of(options, work, journal), env=env, cwd=folder, timeout_s=timeout_s)
    try:
        result = replay(journal)
    except AtuneError as error:
        return f"{error}; {_last_words(done)}"
    if done.timed_out:
        return f"{result.remaining} of {result.total} are left after {done.wall_s:.0f} s"
    if done.status != 0 or result.remaining or not result.finished:
        return f"{result.remaining} of {result.total} are left; exit status {done.status}; {_last_words(done)}"
    pack(journal, journal.with_name(work.label + SUFFIX))
    return ""


def _last_words(done: Finished) -> str:
    lines = [line for line in done.output.splitlines() if line.strip() and not line.startswith("{")]
    return " | ".join(lines[-3:])[:500]


# ---- recordings


def pack(journal: Path, recording: Path) -> None:
    """Compress `journal` into `recording`, without paths of this machine, and remove it."""
    with journal.open("rb") as plain, whole_file(recording) as part, lzma.open(part, "wb", preset=9) as packed:
        packed.writelines(map(without_paths, plain))
    with opened(recording) as again:
        if _told(replay(again)) != _told(replay(journal)):
            raise SystemExit(f"{recording} differs from {journal} after packing")
    recording.chmod(0o644)
    journal.unlink()


def _told(result: Result) -> bytes:
    """Return a result's summary as JSON, without the journal's path and with other paths cut."""
    return re.sub(_paths(), b"", json.dumps(summary(result) | {"journal": ""}, default=str).encode())


def without_paths(line: bytes) -> bytes:
    """Return a journal's line with paths cut to the part below the repository, the packages or the scratch folder."""
    cut = re.sub(_paths(), b"", json_body(line))
    return b'{"crc":"%08x","event":%b}\n' % (zlib.crc32(cut), cut)


@functools.cache
def _paths() -> bytes:
    """Return the regular expression for the folders that are cut from paths."""
    tilelang = importlib.util.find_spec("tilelang")
    packages = [str(Path(folder).parent) for folder in (tilelang.submodule_search_locations or ())] if tilelang else []
    folders = sorted([str(ROOT), *packages, sysconfig.get_paths()["stdlib"]], key=len, reverse=True)  # may be nested
    return "|".join([*(f"{re.escape(folder)}/" for folder in folders), rf'/[^\s"]*?/{SCRATCH}\w+/']).encode()


def json_body(line: bytes) -> bytes:
    """Return the event's bytes in a journal's line."""
    return line.rstrip(b"\n").partition(b'"event":')[2][:-1]


# ---- the table of recordings


def table(folder: Path) -> str:
    """Return a Markdown table of the recordings and journals in `folder`."""
    places = {f"{name}{end}": place for place, name in enumerate(SPACES) for end in (SUFFIX, ".jsonl")}
    paths = [path for path in folder.iterdir() if path.name.endswith((SUFFIX, ".jsonl"))]
    lines = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    notes = []
    for path in sorted(paths, key=lambda path: (places.get(path.name, len(places)), path.name)):
        with journal_in(path) as journal:
            result = replay(journal)
        name = path.name.partition(".")[0]
        lines.append(f"| {' | '.join(cells(name, result, path))} |")
        kinds = Counter(record.kind or record.status for record in result.records if record.status in FAULTY)
        if kinds:
            notes.append(f"- {name}: {', '.join(f'{n} {kind}' for kind, n in kinds.most_common())}")
    return "\n".join([*lines, "", *(["Failed and pruned:", "", *notes] if notes else [])]).rstrip() + "\n"


def cells(name: str, result: Result, path: Path) -> list[str]:
    settled = result.total - result.remaining
    packed = path.suffix == ".xz"
    best = " ".join(f"{key}={value}" for key, value in (result.best_config or {}).items())
    devices = Counter(device.name for device in result.devices)
    return [
        name if packed else f"{name} (unfinished)",
        str(result.total) if packed else f"{settled} of {result.total}",
        str(result.measured),
        str(result.duplicates),
        str(result.failed + result.pruned),
        f"{result.wall_s:.1f}",
        f"{settled / result.wall_s:.1f}" if result.wall_s else "–",
        _ms(result.latency_ms),
        _ms(result.reference_ms),
        best or "–",
        ", ".join(f"{n} × {device}" for device, n in devices.items()) or "–",
        f"{path.stat().st_size / 1024:.0f}",
    ]


def _ms(latency: float | None) -> str:
    return "–" if latency is None else f"{latency:.4f}"


# ---- all spaces


def check(options: argparse.Namespace, works: Sequence[Work]) -> list[Work]:
    """Return the spaces to record. Exits with a message if --out has some of them, unless --resume is given."""
    todo = [work for work in works if not (options.out / (work.label + SUFFIX)).exists()]
    present = [work for work in works if work not in todo or (options.out / f"{work.label}.jsonl").exists()]
    if present and not options.resume:
        names = ", ".join(work.label for work in present)
        raise SystemExit(f"{options.out} already has {names}: add --resume to keep it, or choose another --out")
    return todo


def main(arguments: Sequence[str] | None = None, clock: Callable[[], float] = time.monotonic) -> int:
    """Record, and print the table. Return 1 if a space has no recording."""
    options = parser().parse_args(arguments)
    deadline = clock() + options.time_limit
    works = works_of(options.spaces)
    todo = check(options, works)
    options.out.mkdir(parents=True, exist_ok=True)
    missing = 0
    try:
        for work in todo:
            left = deadline - clock()
            why = record(options, work, min(options.space_limit, left)) if left > 0 else "no time was left"
            missing += bool(why)
            print(f"{work.label}: {why or 'recorded'}", file=sys.stderr, flush=True)
    finally:
        text = table(options.out)
        (options.out / "table.md").write_text(text)
        print(text, end="")
    return 1 if missing else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the results so far are reported
    raise SystemExit(main())
