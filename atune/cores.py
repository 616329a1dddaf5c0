"""How many cores this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path


def usable_cores() -> list[int]:
    """Return the CPUs of this process' affinity mask, cut to the cgroup's quota (``cpu.max``, cgroup v2)."""
    cores = sorted(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = cores[: max(1, math.ceil(int(quota) / int(period)))]
    except (OSError, ValueError):
        pass  # no cgroup v2, or no limit in it
    return cores
