"""Registers that a block waits for with setmaxnreg, read off its source."""

from __future__ import annotations

from atune.stages.compile.facts import lacking_registers

SOURCE = "__launch_bounds__(256, {}) f() {{ tl::warpgroup_reg_dealloc<24>(); tl::warpgroup_reg_alloc<240>(); }}"


def test_two_blocks_a_multiprocessor_leave_too_few_registers() -> None:
    """The second is a kernel that hung: each thread begins with 128 registers."""
    assert lacking_registers(SOURCE.format(1)) == 0 and lacking_registers(SOURCE.format(2)) == 128 * (240 + 24 - 256)
    assert lacking_registers("__launch_bounds__(256, 2) f() {}") == 0 == lacking_registers("f() {}")
