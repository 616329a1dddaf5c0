"""The Ray nodes of the clusters' benchmarks: how they end."""

from __future__ import annotations

from pathlib import Path

import pytest
import ray_nodes


def test_nodes_on_one_network_need_no_ip_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program `ip` is for nodes `apart`; without it a benchmark lost its figures at the end."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED", "RAY_process_group_cleanup_enabled"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    nodes = ray_nodes.Nodes([ray_nodes.Spec((0,))], apart=False)
    assert Path(nodes._folder).is_dir()
    nodes.stop()
    assert not Path(nodes._folder).exists()
