"""The bench that plays strategies on spaces of other tuners, on a small one."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest
from hub import main


def test_it_counts_seeds_at_each_mark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [[x, y, None if x == 9 else 1.0 + abs(x - 3) + abs(y - 2)] for x in range(10) for y in range(6)]
    data = {"axes": {"x": list(range(10)), "y": list(range(6))}, "rows": rows}
    path = tmp_path / "small.json.xz"
    path.write_bytes(lzma.compress(json.dumps(data).encode()))
    main([str(path), "--strategy", "exhaustive", "--seeds", "2", "--budget", "30", "--json"])
    [found] = json.loads(capsys.readouterr().out)
    assert (found["space"], found["candidates"], found["outstanding"]) == ("small", 60, 1)
    first, last = found["marks"]
    assert (first["evaluations"], first["within_5pct"], last["evaluations"], last["within_2pct"]) == (25, 2, 30, 2)
    main([str(path), "--strategy", "exhaustive", "--seeds", "3", "--budget", "20"])
    assert "20 evaluations:   0.00 % above the best (median)" not in capsys.readouterr().out
    main([str(path), "--seeds", "3", "--budget", "30", "--outstanding", "4"])
    assert "bayesian, 4 outstanding, 3 seeds" in capsys.readouterr().out
