"""Spaces from TileLang's carver: enumerated without a GPU, the same as with one, and fit for the kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from atune.carver import AXES, HARDWARE, Hardware, matmul_space
from atune.errors import SpaceError
from atune.workload.workload import WorkloadSpec, describe, load, parse_file_ref, ship

ROOT = Path(__file__).parents[2]
PROBLEM = {"M": 1024, "N": 1024, "K": 1024}


@pytest.fixture(scope="module")
def spec() -> WorkloadSpec:
    return describe(load(parse_file_ref(f"{ROOT}/examples/gemm_roller.py:WORKLOAD")))


def test_the_example_has_twenty_distinct_configurations(spec: WorkloadSpec) -> None:
    assert len(spec.configs) == 20
    assert all(tuple(config) == AXES for config in spec.configs)
    assert spec.configs[0] == {
        "block_M": 64, "block_N": 128, "block_K": 32, "num_stages": 2, "threads": 128, "swizzle": True,
    }  # fmt: skip


def test_the_space_fits_the_hardware_it_was_made_for(spec: WorkloadSpec) -> None:
    """Each tile divides the problem, and its bf16 buffers fit the multiprocessor that the roller was told of."""
    hardware = HARDWARE["sm_90a"]
    for config in spec.configs:
        assert all(4096 % config[axis] == 0 for axis in ("block_M", "block_N", "block_K"))
        stage = (config["block_M"] + config["block_N"]) * config["block_K"] * 2
        assert stage * max(config["num_stages"], 1) <= 2 * hardware.smem_bytes
        assert config["threads"] % 32 == 0 and 32 <= config["threads"] <= 1024


def test_topk_takes_the_first_and_names_rename() -> None:
    every = matmul_space(topk=8).configs(PROBLEM)
    assert len(every) == 8 and matmul_space(topk=3).configs(PROBLEM) == every[:3]
    renamed = matmul_space(topk=3, names={"threads": "thread_num"}).configs(PROBLEM)
    assert [c.pop("thread_num") for c in renamed] == [c["threads"] for c in every[:3]]


def test_hardware_matters() -> None:
    """A problem whose inputs fit the L2 cache needs no swizzle: told a larger cache, the roller leaves it out."""
    large = msgspec.structs.replace(HARDWARE["sm_90a"], l2_bytes=1 << 30)
    assert [c["swizzle"] for c in matmul_space(topk=2, arch=large).configs(dict.fromkeys("MNK", 8192))] == [False] * 2
    assert [c["swizzle"] for c in matmul_space(topk=2).configs(dict.fromkeys("MNK", 8192))] == [True] * 2


def test_mistakes_are_named() -> None:
    with pytest.raises(SpaceError, match="arch 'sm_42' is not described; use sm_80, sm_90a"):
        matmul_space(arch="sm_42")
    with pytest.raises(SpaceError, match="topk must be at least 1"):
        matmul_space(topk=0)
    with pytest.raises(SpaceError, match="names has 'thread'; the axes are block_M"):
        matmul_space(names={"thread": "n"})
    with pytest.raises(SpaceError, match="needs K"):
        matmul_space().configs({"M": 64, "N": 64})
    odd = Hardware(arch="sm_90a", multiprocessors=132, l2_bytes=1 << 20)
    with pytest.raises(SpaceError, match="no tensor core schedule for M=64"):
        matmul_space(arch=odd, in_dtype="float32").configs(dict.fromkeys("MNK", 64))


def test_the_space_travels_to_workers() -> None:
    """By value too: then the program that enumerates it is a worker."""
    work = load(parse_file_ref(f"{ROOT}/examples/gemm_roller.py:WORKLOAD"))
    assert [c.config for c in load(ship(work)).candidates()] == [c.config for c in work.candidates()]


def test_making_a_space_imports_nothing_heavy() -> None:
    code = "import sys, atune.carver as c; c.matmul_space(); assert not {'tilelang', 'torch', 'tvm'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.gpu
def test_the_description_is_what_tilelang_reads_from_the_gpu() -> None:
    """On the GPU that HARDWARE describes, the roller gives the same for tilelang's own description of it."""
    code = """
import torch
from tilelang.carver.arch import CUDA
from tilelang.carver.template import MatmulTemplate
from atune.carver import HARDWARE, matmul_space
from atune.stages.frontend.roller import described
own = CUDA("cuda")
known = {a.removesuffix("a"): a for a in HARDWARE}
name = known.get(f"sm_{own.sm_version}")
if name is None:
    print("not described")
    raise SystemExit
ours = described(HARDWARE[name])
for attribute in ("sm_version", "smem_cap", "max_smem_usage", "compute_max_core", "reg_cap", "warp_size",
                  "sm_partition", "transaction_size", "bandwidth", "l2_cache_size_bytes", "compute_capability"):
    print(attribute, getattr(own, attribute), getattr(ours, attribute))
template = MatmulTemplate(M=4096, N=4096, K=4096, in_dtype="bfloat16", out_dtype="bfloat16", accum_dtype="float32")
hints = template.with_arch(own).recommend_hints(topk=20)
theirs = [(*h.block, h.rstep[0], h.pipeline_stage, h.block[0] // h.warp[0] * (h.block[1] // h.warp[1]) * 32)
          for h in hints]
space = matmul_space(arch=name, in_dtype="bfloat16", out_dtype="bfloat16")
configs = space.configs({"M": 4096, "N": 4096, "K": 4096})
mine = [tuple(c[k] for k in ("block_M", "block_N", "block_K", "num_stages", "threads")) for c in configs]
assert [tuple(map(int, t)) for t in dict.fromkeys(theirs)][: len(mine)] == mine[: len(set(theirs))], (theirs, mine)
print("the same")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    if "not described" in done.stdout:
        pytest.skip(reason="this GPU is not in HARDWARE")
    assert "the same" in done.stdout
