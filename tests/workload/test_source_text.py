"""Source texts: what decides of a fingerprint, syntax trees in programs with threads, and what a worker keeps."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import linecache
import textwrap
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from atune.model.space import Space
from atune.workload.fingerprint import (
    PARSE_TRIES,
    fingerprint,
    keep_texts,
    kernel_fingerprint,
    normalised,
    normalised_expression,
    parse_module,
)
from atune.workload.workload import Workload

KERNEL = """\
def outer(scale):
    def kernel(N, block=32, *, stages=2):
        def main(A: T.Tensor((N,), "float32")):
            for i in range(N // block):
                A[i] = A[i] * scale
        return main
    return kernel

class Plan:
    width = 4

KERNEL = outer(3)
REFERENCE = lambda A: A * 3
"""

SAME = {
    "a comment": ("            for i in", "            # over the blocks\n            for i in"),
    "a comment further to the left than the function": ("        return main", "# done\n        return main"),
    "a docstring": ("    def kernel(N, block=32, *, stages=2):\n", "    def kernel(N, block=32, *, stages=2):\n"
                    '        """Scale.\n\nMore to the left.\n"""\n'),
    "a text between statements": ("        return main", '        """What it makes."""\n        return main'),
    "formatting": ("block=32, *, stages=2", "block = 32,\n               *,\n               stages=(2),"),
    "a comment in a lambda": ("lambda A: A * 3", "lambda A: (A  # as it came\n    * 3)"),
}  # fmt: skip
OTHER = {
    "an expression": ("// block", "// block + 0"),
    "a text that looks like a docstring": ("        return main", '        main = "a value"\n        return main'),
    "the type of a number": ("* scale", "* scale * 1.0"),
    "a default": ("block=32", "block=64"),
    "what the closure holds": ("outer(3)", "outer(4)"),
}


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[[str], Any]:
    """Write a module and load it; each time from another file, as an edited one is in another process."""
    count = iter(range(100))

    def load(text: str) -> Any:
        path = tmp_path / f"kernels_{next(count)}.py"
        path.write_text(text)
        linecache.checkcache()
        spec = importlib.util.spec_from_file_location("kernels", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def prints(module: Any) -> tuple[str, str]:
    workload = Workload(module.KERNEL, Space(block=[32]), arguments={"N": 64}, reference=module.REFERENCE)
    return kernel_fingerprint(module.KERNEL), fingerprint(workload)


@pytest.mark.parametrize("change", SAME)
def test_what_decides_nothing_does_not_count(change: str, loaded: Callable[[str], Any]) -> None:
    before, after = SAME[change]
    assert before in KERNEL
    assert prints(loaded(KERNEL)) == prints(loaded(KERNEL.replace(before, after)))


@pytest.mark.parametrize("change", OTHER)
def test_what_decides_counts(change: str, loaded: Callable[[str], Any]) -> None:
    before, after = OTHER[change]
    assert before in KERNEL
    assert prints(loaded(KERNEL))[1] != prints(loaded(KERNEL.replace(before, after)))[1]


def test_a_keywords_default_that_is_a_name_counts_by_its_value(loaded: Callable[[str], Any]) -> None:
    text = f"STAGES = 2\n{KERNEL.replace('stages=2', 'stages=STAGES')}"
    assert prints(loaded(text)) != prints(loaded(text.replace("STAGES = 2", "STAGES = 3")))


def test_defaults_of_what_is_tuned_can_be_left_out(loaded: Callable[[str], Any]) -> None:
    forms = ("block=32, *, stages=2", "block=64, *, stages=3", "block, *, stages")
    kernels = [loaded(KERNEL.replace(forms[0], form)).KERNEL for form in forms]
    assert len({kernel_fingerprint(kernel, without_defaults={"block", "stages"}) for kernel in kernels}) == 1
    assert len({kernel_fingerprint(kernel, without_defaults={"block"}) for kernel in kernels}) == 3


def test_a_decorator_that_tunes_is_no_part_of_the_kernel() -> None:
    plain = "@jit\ndef kernel(n):\n    return n\n"
    tuned = f"@atune.autotune(space={{'block': [1]}})  # quick\n{plain}"
    assert normalised(tuned) == normalised(plain) != normalised(plain.replace("@jit", "@jit(target='c')"))


def test_a_text_of_several_lines_keeps_its_own_indentation() -> None:
    """Dedenting the source would change it."""
    text = '    def f():\n        return """\n  two\n"""\n'
    assert "\\n  two\\n" in normalised(text)
    assert normalised(text) == normalised(textwrap.dedent('def f():\n    return "\\n  two\\n"\n'))


def test_what_is_no_python_is_taken_as_it_is() -> None:
    assert normalised("<a cell>") == "<a cell>"
    assert normalised_expression("A *") == "A *"
    deep = f"def f():\n    return {'(' * 150}1{')' * 150}\n"
    assert normalised(deep)  # too deep for some parsers: then as it is


@pytest.mark.parametrize("fails", [PARSE_TRIES - 1, PARSE_TRIES])
def test_an_error_that_passes_is_tried_again(monkeypatch: pytest.MonkeyPatch, fails: int) -> None:
    """As CPython 3.11 raises it while another thread parses."""
    parse, left = ast.parse, [SystemError("AST constructor recursion depth mismatch")] * fails

    def fail_first(text: str) -> ast.AST:
        if left:
            raise left.pop()
        return parse(text)

    monkeypatch.setattr(ast, "parse", fail_first)
    with pytest.raises(SystemError) if fails == PARSE_TRIES else nullcontext():
        assert ast.unparse(parse_module("x = 1")) == "x = 1"
    assert not left


def test_a_text_that_was_read_stays_after_an_edit(tmp_path: Path) -> None:
    file = tmp_path / "kernel.py"
    file.write_text("def kernel():\n    return 1\n")
    scope: dict[str, object] = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    kernel = scope["kernel"]
    assert inspect.getsource(kernel).endswith("return 1\n")  # type: ignore[arg-type]
    keep_texts()
    file.write_text("# a comment\ndef kernel():\n    return 22\n")
    assert inspect.getsource(kernel) == "def kernel():\n    return 1\n"  # type: ignore[arg-type]
    del linecache.cache[str(file)]
