"""Ray clusters of several nodes on this machine, with a token, for tests."""

from __future__ import annotations

import importlib.util
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def ray_cluster(nodes: int = 1, *, cpus: int = 2, **resources: Any) -> Iterator[Any]:
    """Start a cluster and join it, with `cpus` cores a node. Yields Ray's `Cluster`."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed here: pip install ray")
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    import ray  # after the environment, which it reads once
    from ray.cluster_utils import Cluster

    own = {"num_cpus": cpus, **resources}
    cluster = Cluster(initialize_head=True, head_node_args={**own, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            cluster.add_node(**own)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
