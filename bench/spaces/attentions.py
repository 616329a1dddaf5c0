"""Flash attention with a causal mask: the kernel of bench/attention.py over more tiles.

python -m atune tune bench/spaces/attentions.py:CAUSAL
"""

import sys
from pathlib import Path

import atune

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from attention import SHARED_BYTES, WIDTH, workload


def fits(block_M: int, block_N: int, num_stages: int, threads: int) -> bool:
    """Tell whether each warp group has 64 queries (or, alone, 128), and the queries and all stages fit."""
    shared_bytes = 2 * WIDTH * (block_M + 2 * block_N * num_stages)
    return shared_bytes <= SHARED_BYTES and (block_M * 128 == 64 * threads or (block_M, threads) == (128, 128))


# Tiles need not divide the length, because the mask also hides the keys beyond the last one.
CAUSAL = workload(
    atune.Space(
        block_M=[64, 128, 192],
        block_N=[32, 48, 64, 80, 96, 112, 128, 144, 160],
        num_stages=[1, 2, 3, 4],
        threads=[128, 256, 384],
        where=fits,
    ),
    "attention_causal",
)
