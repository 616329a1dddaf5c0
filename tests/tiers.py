"""Which tests run: `make test` the quick ones and those of the promises, `make test-all` all but those to ask for.
`make test-newest` runs those that are marked «newest»: one for each way into atune.

A test is slow by measurement: `make durations` runs all tests and writes those that took long into durations.txt.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
DURATIONS = TESTS / "durations.txt"
"""Lines of seconds and a test's key: its module and name, with its parameters where others of it are quick."""
PROMISES = TESTS.parent / "docs" / "design" / "promises.md"
"""Its tests run in every tier."""
ASKED = ("test_bench", "test_compat_examples", "test_throughput")
"""Modules that compile for minutes, or that time the engine: as if each of their tests were marked «asked»."""
QUICK_S = 0.5
"""A test that takes less is quick."""
RARE = ("benches",)
"""Folders of which no test is quick: tests of the benchmarks."""


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="run quick tests and those of the promises (make test)")
    parser.addoption("--asked", action="store_true", help="run the tests marked «asked», too (make test-asked)")
    parser.addoption("--newest", action="store_true", help="run the tests marked «newest» (make test-newest)")
    parser.addoption("--durations-file", action="store_true", help="write tests/durations.txt (make durations)")


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests of the tier in `items`. Tests that are marked «asked» also run where their file is named."""
    slow, promised = known_durations().keys(), promised_tests()
    named = {Path(argument.partition("::")[0]).resolve() for argument in config.args}
    chosen, left = [], []
    for item in items:
        key = key_of(item.nodeid)
        asked = item.path.stem in ASKED or item.get_closest_marker("asked") is not None
        if config.getoption("--newest"):
            wanted = item.get_closest_marker("newest") is not None
        elif asked:
            wanted = config.getoption("--asked") or item.path in named
        elif config.getoption("--quick") and not {key, bare(key)} & promised:
            wanted = item.path.parent.name not in RARE and not {key, bare(key)} & slow
        else:
            wanted = True
        (chosen if wanted else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = chosen


def key_of(node: str) -> str:
    """Return a test's key: ``test_pool::test_round_trip[asyncio]``. A file that moves to another folder keeps it."""
    file, _, name = node.partition("::")
    return f"{Path(file).stem}::{name}"


def bare(key: str) -> str:
    """Return a test's key without its parameters."""
    return key.partition("[")[0]


def known_durations() -> dict[str, float]:
    """Return seconds of the slow tests, by key."""
    lines = [line.split(maxsplit=1) for line in DURATIONS.read_text().splitlines() if line[:1] != "#"]
    return {key: float(seconds) for seconds, key in lines}


def promised_tests() -> set[str]:
    """Return keys of the tests that the list of promises names."""
    return {key_of(node) for node in re.findall(r"`(tests/\S+?\.py::[^`]+)`", PROMISES.read_text())}


class Durations:
    """Collects how long each test took, and writes the slow ones. Tests that did not run keep their figures."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.ran: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        key = key_of(report.nodeid)
        self.seconds[key] += report.duration
        if report.when == "call" and report.passed:
            self.ran.add(key)

    def pytest_sessionfinish(self) -> None:
        write(renewed(known_durations(), {key: self.seconds[key] for key in self.ran}))


def renewed(known: dict[str, float], measured: dict[str, float]) -> dict[str, float]:
    """Return the slow tests of `known` that did not run, and those that were `measured`."""
    ran = {bare(key) for key in measured}
    kept = {key: seconds for key, seconds in known.items() if bare(key) not in ran}
    return kept | {key: seconds for key, seconds in measured.items() if seconds >= QUICK_S}


def write(durations: dict[str, float]) -> None:
    head = f"# Seconds of the tests that take {QUICK_S} s and more. `make durations` writes this file.\n"
    DURATIONS.write_text(head + "".join(f"{durations[key]:.1f} {key}\n" for key in sorted(durations)))
