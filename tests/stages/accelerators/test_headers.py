"""nvcc parses the instructions of Hopper that a library uses, and makes the same of it as with all of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from atune.local.backend import LocalBackend
from atune.model.artifact import Artifact, Lowered
from atune.model.candidate import Candidate, config_key
from atune.model.settings import CompileSettings
from atune.stages.accelerators import headers
from atune.stages.compile import device_source
from atune.stages.compile.lowering import Blob
from atune.workload.workload import FileRef

GEMM = FileRef(str(Path(__file__).parents[3] / "examples" / "gemm.py"), "WORKLOAD")
CONFIGS = [
    {"block_M": 64, "block_N": n, "block_K": 32, "num_stages": stages, "threads": 128, "swizzle": False}
    for n, stages in ((64, 2), (128, 0))
]
INCLUDES = "#include <tl_templates/cuda/instruction/wgmma.h>\n#include <tl_templates/cuda/reduce.h>\n"
USE = "tl::wgmma_ss<tl::DataType::kBFloat16, tl::DataType::kBFloat16, tl::DataType::kFloat32, 64, 128, 16, false>(a);\n"
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_what_a_source_uses_is_read_off_it() -> None:
    expected = ("SS", "kBFloat16", "kBFloat16", "kFloat32", 64, 128, 16)
    assert headers.uses(INCLUDES + USE + USE) == {expected}
    assert headers.uses(INCLUDES + USE.replace("_ss", "_rs")) == {("RS", *expected[1:])}
    assert headers.uses(INCLUDES) == frozenset()


@pytest.mark.parametrize(
    "source",
    [
        "#include <tl_templates/cuda/reduce.h>\n",  # not for Hopper
        INCLUDES + "#include <tl_templates/cuda/gemm.h>\n" + USE,
        INCLUDES + "#include <cute/tensor.hpp>\n" + USE,
        INCLUDES + USE + "cute::warpgroup_arrive();\n",
        '#include "mine.h"\n' + INCLUDES + USE,
        INCLUDES + USE + "tl::wgmma_ss<A, B, C, M, N, K>(a);\n",
    ],
)
def test_a_source_that_may_use_more_gets_all(source: str) -> None:
    assert headers.uses(source) is None


def test_headers_that_are_otherwise_are_left_alone(tmp_path: Path) -> None:
    where, used = device_source.tilelang_paths(), headers.uses(INCLUDES + USE)
    assert used is not None
    templates, cutlass = where.TILELANG_TEMPLATE_PATH, where.CUTLASS_INCLUDE_DIR
    unknown = frozenset({("SS", "kFloat32", "kFloat32", "kFloat32", 64, 128, 16)})
    assert headers.without_unused(templates, cutlass, unknown, str(tmp_path)) is None
    assert headers.without_unused(str(tmp_path), cutlass, used, str(tmp_path)) is None
    changed = tmp_path / "changed"
    (changed / headers.WGMMA).parent.mkdir(parents=True)
    text = (Path(templates) / headers.WGMMA).read_text()
    (changed / headers.WGMMA).write_text(text.replace("(TL_WGMMA_DEFINE_F32_TF32_SS_TN);", "(ANOTHER);"))
    assert headers.without_unused(str(changed), cutlass, used, str(tmp_path)) is None
    assert [path.name for path in tmp_path.iterdir()] == ["changed"]


def test_the_variable_is_there_while_nvcc_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(headers.PREPENDED, raising=False)
    with pytest.raises(KeyError), headers.included_first("/a folder"):
        assert os.environ[headers.PREPENDED] == "-I'/a folder'"
        raise KeyError
    assert headers.PREPENDED not in os.environ


def compiled(source: Path, folders: list[str]) -> bytes:
    nvcc, binary = shutil.which("nvcc"), source.with_suffix(".cubin")
    assert nvcc is not None
    flags = ["-arch=sm_90a", "-cubin", "-std=c++20", "-O3", "-lineinfo", "-w"]  # tilelang asks for line information
    command = [nvcc, *flags, *(f"-I{folder}" for folder in folders)]
    subprocess.run([*command, str(source), "-o", str(binary)], check=True, timeout=60)
    return binary.read_bytes()


@needs_nvcc
@pytest.mark.anyio
async def test_the_code_is_the_same_byte_for_byte(tmp_path: Path) -> None:
    backend = LocalBackend(GEMM, target="sm_90a", devices=(), compile=CompileSettings(workers=1, store=False))
    async with backend.open():
        await backend.discover()
        (lane,) = backend.compile_lanes()
        candidates = [Candidate(i, config_key(c), c) for i, c in enumerate(CONFIGS)]
        found = [await lane.lower(candidate) for candidate in candidates]
        blobs = [msgspec.msgpack.decode(one.blob, type=Blob) for one in found if isinstance(one, Lowered)]
        # In the run itself they are used, too, and are what is left in its folder.
        built = await lane.as_tilelang(candidates, {})
        assert all(isinstance(one, Artifact) and one.compiler == "nvcc" for one in built), built
        written = [path for path in Path(backend.run_dir).iterdir() if path.name.startswith("headers-")]
        assert len(written) == 1
    where = device_source.tilelang_paths()
    whole = [where.TILELANG_TEMPLATE_PATH, where.CUTLASS_INCLUDE_DIR]
    shapes = Counter[int]()
    for blob in blobs:
        used = headers.uses(blob.source)
        assert used
        shapes.update(n for *_, n, _ in used)
        folder = headers.without_unused(*whole, used, str(tmp_path))
        assert folder is not None
        sizes = [sum((Path(base) / name).stat().st_size for name in headers.GMMA) for base in (folder, whole[1])]
        assert sizes[0] < sizes[1] / 10
    assert len(shapes) == 2
    source = tmp_path / "kernel.cu"
    source.write_text(blob.source)  # the last one's: nvcc takes seconds for each, and test_cicc has more
    assert compiled(source, [folder, *whole]) == compiled(source, whole)
