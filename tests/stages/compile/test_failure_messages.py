"""What is said of a kernel that does not lower or compile: the sentence that names the cause, first."""

from __future__ import annotations

from typing import NoReturn

import pytest

from atune.errors import cause_in, in_one_line, name_and_message
from atune.model.artifact import Failure, Lowered, StaticFacts
from atune.stages import codegen

SHOWN = """Check failed: layout_map.count(C) != 0 (0 vs. 0) : The layout for fragment C can not be inferred correctly.
  --> /tmp/bad.py:49:1
     |
 49 |             C = T.alloc_fragment((block, block), "float32")
     |             ^"""
"""As tilelang 0.1.15 says it, with the line of the kernel."""
CONFLICT = """Layout infer conflict between A_frag and B_frag in T.Parallel loop:
    loop Fragment((128, 4) -> (4,), replicate: 1, thread: 128, forward_thread: _i)
    fragment Fragment((128, 4) -> (4,), replicate: 1, thread: 128, forward_thread: (_i + 1) % 128)
"""
STACKED = """Traceback (most recent call last):
  File "python/tvm_ffi/cython/function.pxi", line 968, in tvm_ffi.core.Function.__call__
  0: tvm::tl::LayoutInferencer::Substitute(tvm::tirx::PrimFunc)
  [bt] (1) libtvm.so(+0x1234)
Need to load/store by multiple of bytes"""


class InternalError(RuntimeError):
    """As TVM's is called."""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (SHOWN, "The layout for fragment C can not be inferred correctly."),
        (CONFLICT, "Layout infer conflict between A_frag and B_frag in T.Parallel loop"),
        (STACKED, "Need to load/store by multiple of bytes"),
        ("Check failed: (M % kMPerWarp == 0) is false: M must be divisible by 16", "M must be divisible by 16"),
        ('Check failed: (b.is_int()) is false: "64"', 'Check failed: (b.is_int()) is false: "64"'),
        ("     |        ^", ""),
    ],
)
def test_the_sentence_that_names_the_cause_is_found(text: str, cause: str) -> None:
    assert cause_in(text) == cause


def test_the_class_is_named_unless_it_is_tvms_own() -> None:
    assert in_one_line(ValueError("no such block")) == "ValueError: no such block"
    assert in_one_line(InternalError(CONFLICT)).startswith("Layout infer conflict between A_frag and B_frag")
    assert in_one_line(InternalError("  |  ^")) == "InternalError: "
    assert in_one_line(KeyError()) == "KeyError: "


REGISTERS = "ptxas fatal   : (C7602) Insufficient registers (128) to compile instruction{}. Try a target of 154."


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (
            '/tmp/a/tmpx1/tvm_kernels.cu(19): error: identifier "f" is undefined\n      x = f();\n          ^\n',
            'kernel.cu(19): error: identifier "f" is undefined',
        ),
        (
            "/usr/bin/ld: /tmp/x/12.part:(.text+0x1): undefined reference to `g'\ncollect2: error: ld returned 1",
            "/usr/bin/ld: kernel: undefined reference to `g'",
        ),
        (
            REGISTERS.format(" at line 2266 in function atune_kernel_4b_kernel") + "\nptxas fatal   : aborted",
            REGISTERS.format(""),
        ),
    ],
)
def test_of_a_compilers_output_the_line_that_names_the_cause_is_told(
    output: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tilelang puts the source before it. Names and places are left out, so that failures of one kind are alike."""

    def build(*_: object) -> NoReturn:
        raise RuntimeError(f"float error;\nCompilation error:\n{output}\n")

    monkeypatch.setattr(codegen, "build", build)
    [failure] = codegen.answer([Lowered(0, "", "", (), StaticFacts(), 0.0, b"")], "")
    assert isinstance(failure, Failure) and failure.message == line


def test_an_error_without_a_message_is_its_name() -> None:
    assert name_and_message(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert name_and_message(ValueError("n: ")) == "ValueError: n: "
