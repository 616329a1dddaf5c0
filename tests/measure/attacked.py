"""Tasks that are attacked: inputs that never change, more work than a GPU can do in time, and a larger problem."""

from __future__ import annotations

import torch
from tasks import double, twice

import atune

SAME = atune.Workload(
    double, {"block": [32]}, arguments={"n": 1024}, reference=twice, inputs=lambda parameters: [torch.ones(1024)]
)
IMPOSSIBLE = atune.Workload(double, {"block": [32]}, arguments={"n": 1024}, reference=twice, bytes=1e12)
