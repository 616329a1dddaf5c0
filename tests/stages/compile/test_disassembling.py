"""Instructions by kind, as CUDA's disassemblers list them: here stand-ins for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from atune.model.instructions import Instructions, counted
from atune.stages.compile import disassembling, elf

LISTING = """\
\t.section\t.text.other_kernel,"ax",@progbits
        /*0000*/                   HGMMA.64x128x16.F32 R24, gdesc[UR4], R24 ;
\t.section\t.text.mine_kernel,"ax",@progbits
.text.mine_kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 UTMALDG.2D [UR8], [UR6] ;
.L_x_1:
        /*0020*/             @UP1 SYNCS.ARRIVE.TRANS64 RZ, [UR4], RZ ;
        /*0030*/                   HGMMA.64x128x16.F32 R24, gdesc[UR4], R24 ;
        /*0040*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0050*/                   STL [R1], R4 ;
        /*0060*/                   EXIT ;
        /*0070*/                   NOP ;
\t.section\t.text.mine_kernel_1,"ax",@progbits
        /*0000*/                   LDGSTS.E.128 [R3], [R4.64] ;
"""
DUMPED = """\
\t\tFunction : mine_kernel
\t.headerflags\t@"EF_CUDA_SM90"
        /*0000*/                   HMMA.16816.F32 R4, R8, R10, R4 ;      /* 0x00000a00ff017b82 */
                                                                         /* 0x000fe20000000800 */
\t\tFunction : other_kernel
        /*0000*/                   EXIT ;                                /* 0x000000000000794d */
"""


def test_instructions_of_a_functions_kernels_are_counted_by_kind() -> None:
    found = counted(LISTING, "mine")
    assert found == Instructions(total=8, wgmma=1, tma=1, cp_async=1, barriers=1, mbarriers=1, local=1)
    assert counted(DUMPED, "mine") == Instructions(total=1, mma=1)
    assert counted(LISTING, "absent") is None


def stand_in(folder: Path, name: str, text: str, status: int = 0) -> None:
    """Write a disassembler that says `text` of any file with something in it."""
    tool = folder / name
    tool.write_text(
        f"#!/bin/sh\nfor last; do :; done\ntest -s $last || exit 9\ncat <<'EOF'\n{text}EOF\nexit {status}\n"
    )
    tool.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one folder that is searched for disassemblers; every library is one binary."""
    monkeypatch.setattr(disassembling, "folders", lambda: [str(tmp_path)])
    monkeypatch.setattr(elf, "cuda_binaries", lambda library: iter([library]))
    monkeypatch.setattr(elf, "whole", lambda binary: binary)
    return tmp_path


def test_without_a_disassembler_nothing_is_known(tools: Path) -> None:
    assert disassembling.instructions_of(b"code", "mine") is None


def test_nvdisasm_goes_first_and_cuobjdump_where_it_fails(tools: Path) -> None:
    stand_in(tools, "cuobjdump", DUMPED)
    assert disassembling.instructions_of(b"code", "mine") == Instructions(total=1, mma=1)
    stand_in(tools, "nvdisasm", LISTING)
    found = disassembling.instructions_of(b"code", "mine")
    assert found is not None and found.total == 8
    stand_in(tools, "nvdisasm", LISTING, status=1)
    assert disassembling.instructions_of(b"code", "mine") == Instructions(total=1, mma=1)


def test_a_toolkits_folder_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    stand_in(tmp_path / "bin", "nvdisasm", LISTING)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert tmp_path / "bin" / "nvdisasm" in list(disassembling.disassemblers())
