"""nvcc with the headers parsed once: what it makes is nvcc's, and nothing is lost where it does not do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import msgspec
import pytest
from processes import gone, wait_until
from services import artifacts, children, given_up, lowered, until
from stage_runs import session_of
from versions import needs_cicc

import atune
from atune.model.candidate import Candidate, config_key
from atune.model.device import Target
from atune.model.jobs import BuildJob
from atune.model.settings import CompileSettings
from atune.stages import cicc
from atune.stages import cicc_server as cicc_server
from atune.stages import elf as elf_file
from atune.stages.cicc_source import MICROSOFT, Flavour, parts
from atune.stages.codegen import Blob
from atune.stages.lowering import lower
from atune.stages.tilelang import paths
from atune.workers.local_machine import Shared, shared_processes
from atune.workers.server import parked_service, warm_service
from atune.workers.server_main import parent_of
from atune.workload.pickling import FileRef

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
EXAMPLES = Path(__file__).parents[3] / "examples"
HOPPER, AMPERE = Flavour("sm_90a"), Flavour("sm_80")
GEMM = {"block_M": 64, "block_N": 64, "block_K": 32, "num_stages": 2, "threads": 128}
KERNEL = 'extern "C" __global__ void {name}(float* x) {{ x[threadIdx.x] *= {factor}; }}\n'
INCLUDES = "#include <tl_templates/cuda/reduce.h>\n#include <tl_templates/cuda/debug.h>\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, hopper_server: cicc_server.Server) -> Path:
    """Return the folder of a run that has a server for Hopper."""
    run_dir = tmp_path_factory.mktemp("run")
    hopper_server.link(str(run_dir))
    return run_dir


def code(elf: bytes) -> dict[str, bytes]:
    """Return what a GPU runs of a 64-bit ELF file: instructions, constants, registers and bytes of shared memory.

    What else is there names folders, or counts symbols.
    """
    found = elf_file.sections(elf)
    kept = (".text.", ".nv.constant0.", ".nv.constant2", ".nv.constant3")
    run = {name: section.data for name, section in found.items() if name.startswith(kept)}
    registers = found[".nv.info"].data.split(b"\x04\x2f\x08\x00")[1:]  # EIATTR_REGCOUNT: a symbol, and its registers
    shared = {name: section.size for name, section in found.items() if name.startswith(".nv.shared.")}
    return {**run, "registers": b"".join(sorted(data[4:8] for data in registers)), "shared": str(shared).encode()}


def by_nvcc(source: str, flavour: Flavour, folder: Path) -> bytes:
    """Return nvcc's binary of `source`, compiled with tilelang's command."""
    where = paths()
    command = cicc_server.nvcc_command(flavour, [where.TILELANG_TEMPLATE_PATH, where.CUTLASS_INCLUDE_DIR])
    path = folder / cicc_server.NAME
    path.write_text(source)
    subprocess.run([*command, str(path), "-o", f"{path}.cubin"], check=True, timeout=100, stderr=subprocess.DEVNULL)
    return Path(f"{path}.cubin").read_bytes()


def gemm_source(folder: Path, arch: str, **config: object) -> str:
    """Return the device code that tilelang prints of the example's product."""
    one = {**GEMM, **config}
    with session_of(FileRef(str(EXAMPLES / "gemm.py"), "WORKLOAD"), folder, Target("cuda", arch)):
        return msgspec.msgpack.decode(lower(Candidate(0, config_key(one), one)).blob, type=Blob).source


def test_the_code_is_nvccs_byte_for_byte(server: Path, tmp_path: Path) -> None:
    """Of a kernel with Hopper's instructions; `test_corpus` compares others, and libraries."""
    source = gemm_source(tmp_path, HOPPER.arch, block_N=128, num_stages=0, swizzle=True)
    ours = code(cicc.compile_remotely(source, HOPPER, str(server)))
    assert "wgmma_ss<" in source and sum(name.startswith(".text.") for name in ours) == 1 and any(ours["registers"])
    assert ours == code(by_nvcc(source, HOPPER, tmp_path))


@pytest.mark.asked
def test_headers_of_few_kernels_are_parsed_by_those(server: Path, tmp_path: Path) -> None:
    """Instructions of earlier devices, and atomics, where the server knows neither; each set is preprocessed once."""
    atomic = 'extern "C" __global__ void k(float* x) { AtomicAdd(&x[threadIdx.x], 1.0f); }\n'
    also = [
        gemm_source(tmp_path, AMPERE.arch, swizzle=False),
        f"{INCLUDES}#include <tl_templates/cuda/atomic.h>\n{atomic}",
    ]
    assert "mma_sync" in also[0]
    for source in also:
        assert not set(parts(source)[0]) <= set(cicc_server.includes_for(HOPPER.arch))
        with ThreadPoolExecutor(2) as threads:
            both = list(threads.map(lambda one: cicc.compile_remotely(one, HOPPER, str(server)), [source] * 2))
        made = {path: path.stat().st_mtime_ns for path in (server / cicc_server.FOLDER).glob("more-*.ii")}
        ours = code(cicc.compile_remotely(source, HOPPER, str(server)))
        assert sum(name.startswith(".text.") for name in ours) == 1 and [code(one) for one in both] == [ours] * 2
        assert ours == code(by_nvcc(source, HOPPER, tmp_path))
        assert made == {path: path.stat().st_mtime_ns for path in (server / cicc_server.FOLDER).glob("more-*.ii")}
    assert len(made) == 2 and not [path for path in (server / cicc_server.FOLDER).glob("more-*") if path.is_dir()]


def test_the_command_is_tilelangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every word that tilelang calls nvcc with, in its order; or else the code would not be the same."""
    from tilelang.contrib import nvcc
    from tilelang.cuda.backend import tilelang_callback_cuda_compile
    from tvm.target import Target

    seen: list[list[str]] = []

    class Stop(Exception):
        pass

    def popen(command: list[str], **_: object) -> None:
        seen.append(command)
        raise Stop

    monkeypatch.setattr(nvcc.subprocess, "Popen", popen)
    where = paths()
    for fast_math in (False, True):
        target = Target({"kind": "cuda", "arch": "sm_90a"})
        with pytest.raises(Stop):
            tilelang_callback_cuda_compile("// nothing", target, {"tl.enable_fast_math": fast_math})
        expected = cicc_server.nvcc_command(
            Flavour("sm_90a", fast_math), [where.TILELANG_TEMPLATE_PATH, where.CUTLASS_INCLUDE_DIR]
        )
        assert seen.pop()[: len(expected)] == expected


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (INCLUDES + "#include <curand_kernel.h>\n", "includes <curand_kernel.h>, which the server has not parsed"),
        (INCLUDES + '#include "mine.h"\n', """it has '#include "mine.h"' among its kernels"""),
        (
            "#define WARP 16\n" + MICROSOFT + INCLUDES,
            "it has '#include <tl_templates/cuda/reduce.h>' among its kernels",
        ),
        (INCLUDES + "__device__ int f() { return std::vector<int>().size(); }\n", 'has no member "vector"'),
        ("#include <tl_templates/cuda/instruction/wgmma.h>\nusing namespace cute;\n", "uses CUTLASS directly"),
        (INCLUDES + 'extern "C" __global__ void k() { asm("nonsense;"); }\n', "ptxas failed"),
    ],
)
def test_what_needs_more_is_refused_with_the_reason(server: Path, source: str, why: str) -> None:
    with pytest.raises(cicc_server.CiccError) as raised:
        cicc.compile_remotely(source, HOPPER, str(server))
    assert why in str(raised.value)
    assert not list(server.glob("cicc-*"))


LONG = INCLUDES + "".join(KERNEL.format(name=f"k{n}", factor=n) for n in range(2000))
"""Takes cicc many seconds."""


def test_a_child_that_ends_early_is_a_failure(server: Path, hopper_server: cicc_server.Server) -> None:
    """Nothing that it may have written counts."""
    pid = hopper_server.process.pid

    def kill() -> None:
        wait_until(lambda: bool(children(pid)), 10, "a child of cicc's")
        for child in children(pid):
            os.kill(child, signal.SIGKILL)

    with ThreadPoolExecutor(1) as threads:
        killed = threads.submit(kill)
        with pytest.raises(cicc_server.CiccError, match="its process ended"):
            cicc.compile_remotely(LONG, HOPPER, str(server))
        killed.result()
    assert code(cicc.compile_remotely(INCLUDES + KERNEL.format(name="k", factor=2), HOPPER, str(server)))


@needs_cicc
@pytest.mark.anyio
async def test_a_cancelled_run_leaves_no_parsed_headers() -> None:
    """Neither before nor after they are used."""
    for used in (False, True):
        with anyio.CancelScope() as scope:
            async with shared_processes() as shared:
                warm_service("sm_90a")
                if used:
                    async with lowered(1, CompileSettings(workers=1), "sm_90a", shared) as (machine, _, _):
                        assert machine.service.ready and parked_service.server is None
                scope.cancel()
                await anyio.sleep_forever()
        assert parked_service.server is None


def test_a_server_whose_headers_were_written_since_is_not_used(
    hopper_server: cicc_server.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state of what it compiles would be the new headers' state."""
    assert hopper_server.fits(HOPPER, ()) and not hopper_server.fits(AMPERE, ())
    (tmp_path / "edited.h").touch()
    monkeypatch.setattr(hopper_server, "_read", [*hopper_server._read, str(tmp_path / "edited.h")])
    assert not hopper_server.fits(HOPPER, ())


def cicc_beside(service: int) -> int:
    """Return the cicc that the fork server of the process `service` has started."""
    (cicc,) = {*children(parent_of(service))} - {service}
    return cicc


@needs_cicc
@pytest.mark.anyio
async def test_a_group_is_compiled_and_is_tilelangs_own() -> None:
    async with lowered(3, CompileSettings(workers=1)) as (machine, worker, group):
        assert machine.service.ready, machine.service.why
        built = artifacts(list(await worker.run(BuildJob(tuple(group)))))
        assert [one.compiler for one in built] == ["cicc"] * 3
        assert len({one.path for one in built}) == 1
        assert built[0].why == ""
        library = Path(built[0].path).read_bytes()
        assert all(f"{one.symbol}_kernel".encode() in library for one in built)

        # A compile that is given up ends, with the one who asked.
        server = cicc_beside(machine.service.process.worker.pid)
        await given_up(worker, group, server)
        assert machine.service.ready
        (again, *_) = artifacts(list(await worker.run(BuildJob(tuple(group)))))
        assert again.compiler == "cicc"


@needs_cicc
@pytest.mark.anyio
async def test_without_the_service_nvcc_takes_over_and_says_why() -> None:
    async with lowered(1, CompileSettings(workers=1)) as (machine, worker, group):
        assert machine.service.ready
        service = machine.service.process.worker.pid
        os.killpg(service, signal.SIGKILL)
        await until(machine, lambda: not machine.service.ready, 5)
        (built,) = artifacts(list(await worker.run(BuildJob(tuple(group)))))
        assert built.compiler == "nvcc"
        assert "SIGKILL" in built.why


@needs_cicc
@pytest.mark.anyio
async def test_runs_at_the_same_time_share_the_headers_where_they_fit() -> None:
    """As in a set, and after it: the next run takes them. The process parses those of another architecture itself."""

    async def run(arch: str, shared: Shared) -> None:
        async with lowered(1, CompileSettings(workers=1), arch, shared) as (_, worker, group):
            (built,) = artifacts(list(await worker.run(BuildJob(tuple(group)))))
            assert built.compiler == "cicc", built.why

    atune.shutdown()
    async with shared_processes() as shared:
        await run("sm_90a", shared)
        service = shared.service.worker.pid
        server = cicc_beside(service)
        await run("sm_90a", shared)
        assert children(service) == []
        await run("sm_80", shared)
        (other,) = children(service)
    wait_until(lambda: gone(service) and gone(other), 2, "the end of the service")
    async with shared_processes() as shared:
        await run("sm_90a", shared)
        assert cicc_beside(shared.service.worker.pid) == server and children(shared.service.worker.pid) == []
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: gone(shared.service.worker.pid), 2, "the end of the process, which is useless without cicc")
    async with shared_processes() as shared:
        await run("sm_90a", shared)
        (server,) = children(shared.service.worker.pid)
    atune.shutdown()
    wait_until(lambda: gone(server), 2, "the end of cicc")
