"""The tiers of the tests: what is promised has a test, and what is slow is known by measurement."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import tiers


def test_each_promise_has_a_test_that_exists() -> None:
    rows = [line for line in tiers.PROMISES.read_text().splitlines() if line.startswith("- ")]
    assert len(rows) > 60
    for row in rows:
        (test,) = re.findall(r": `(tests/\S+?)`$", row) or [f"no test in {row}"]
        file, _, name = test.partition("::")
        text = (tiers.TESTS.parent / file).read_text()
        assert re.search(rf"def {tiers.bare(name) or 'test_'}", text), test


@pytest.mark.parametrize(
    ("options", "named", "ran"),
    [
        ({"--quick"}, (), {"test_a::test_new", "test_a::test_newest", "test_p::test_promised[1]"}),
        (
            set(),
            (),
            {"test_a::test_new", "test_a::test_newest", "test_a::test_slow[1]", "test_p::test_promised[1]"}
            | {"test_rare::test_b"},
        ),
        ({"--newest"}, (), {"test_a::test_newest"}),
        (set(), ("test_asked.py",), {"test_asked::test_long"}),
    ],
)
def test_each_tier_has_its_tests(
    monkeypatch: pytest.MonkeyPatch, options: set[str], named: tuple[str, ...], ran: set[str]
) -> None:
    """A test that nobody measured yet counts as quick. Benchmarks' tests never do."""
    monkeypatch.setattr(tiers, "known_durations", lambda: {"test_a::test_slow": 3.0, "test_p::test_promised": 9.0})
    monkeypatch.setattr(tiers, "promised_tests", lambda: {"test_p::test_promised"})
    nodes = (
        "a/test_a.py::test_new",
        "a/test_a.py::test_newest",
        "a/test_a.py::test_slow[1]",
        "test_p.py::test_promised[1]",
        "benches/test_rare.py::test_b",
    )
    nodes = ("test_asked.py::test_long",) if named else (*nodes, "test_asked.py::test_long")
    items: list[Any] = [_Item(node) for node in nodes]
    config: Any = SimpleNamespace(
        args=[str(tiers.TESTS / file) for file in named], getoption=options.__contains__, hook=Mock()
    )
    tiers.select(config, items)
    assert {tiers.key_of(item.nodeid) for item in items} == ran


class _Item:
    def __init__(self, node: str) -> None:
        self.nodeid, self.path = node, tiers.TESTS / node.partition("::")[0]

    def get_closest_marker(self, name: str) -> object:
        return name if self.nodeid.endswith(name) or (name == "asked" and "asked" in self.nodeid) else None
