"""Default values written anew in a file's text: only their spans change, and what has no place is refused."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from atune.errors import UsageError
from atune.workload.kernel_defaults import literal, write_defaults


def written(text: str, values: dict[str, Any], **options: Any) -> str:
    """Write the defaults of the function `kernel` in `text`."""
    [function] = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and n.name == "kernel"]
    line = min(function.lineno, *(one.lineno for one in function.decorator_list), function.lineno)
    return write_defaults(text, "kernel", line, values, **options)[0]


def test_comments_and_formatting_stay() -> None:
    text = '''\
# é: columns are counted in bytes, and this is longer there
@tilelang.jit(  # compiled
    out_idx=[-1],
)
def kernel(
    N, *,
    block : int=32,   # é rows
    tile = ( 1,
             2 ),     # in both directions
    name='gemm', stages: int = 0x02,
):
    """Keeps   its text."""
'''
    expected = text.replace("int=32", "int=128").replace("( 1,\n             2 )", "(4, 4)").replace("'gemm'", '"fast"')
    assert written(text, {"block": 128, "tile": (4, 4), "name": "fast", "stages": 2}) == expected


@pytest.mark.parametrize("end", ["\r\n", "\r", "\n"])
def test_line_ends_stay(end: str) -> None:
    text = f"x = 1{end}\fdef kernel(a,{end}  b=1):{end}  pass{end}"
    assert written(text, {"b": 2}) == text.replace("b=1", "b=2")


def test_defaults_are_added_where_the_grammar_allows() -> None:
    text = "def kernel(N, block: int, stages, *, threads, order: str = 'M'): pass\n"
    added = "def kernel(N, block: int = 64, stages=2, *, threads=128, order: str = 'M'): pass\n"
    assert written(text, {"block": 64, "stages": 2, "threads": 128}) == added
    with pytest.raises(UsageError, match="block has no default and can have none, for N after it has none"):
        written("def kernel(block, N, stages=1): pass", {"block": 64, "stages": 2})
    assert written("def kernel(block, N=1, *, M): pass", {"block": 6}) == "def kernel(block=6, N=1, *, M): pass"
    assert written("def kernel(block, /, N): pass", {"block": 6, "N": 7}) == "def kernel(block=6, /, N=7): pass"


def test_a_value_that_is_there_stays_as_it_is_written() -> None:
    text = "def kernel(N, block=0x40, tile=[8, 8], flag=(True)): pass\n"
    assert write_defaults(text, "kernel", 1, {"block": 64, "tile": (8, 8), "flag": True}) == (text, [])
    assert "flag=(1)" in written(text, {"flag": 1}) and "tile=[8, 9]" in written(text, {"tile": (8, 9)})
    assert "block=64.0" in written(text, {"block": 64.0})


@pytest.mark.parametrize(
    ("text", "values", "why"),
    [
        ("def kernel(N, block=BLOCK): pass", {"block": 64}, "the default of block is BLOCK, not a literal: set "),
        ("def kernel(N, block=32 * 2): pass", {"block": 64}, r"is 32 \* 2, not a literal: set it to 64"),
        ("def kernel(N, **config): pass", {"block": 64}, r"block is taken by \*\*config, .* write block=64 out"),
        ("def kernel(N, M): pass", {"block": 64}, "there is no parameter block; there is N, M"),
        ("def kernel(*config): pass", {"config": 1}, "there is no parameter config; there is none"),
    ],
)
def test_where_it_cannot_be_done_says_why(text: str, values: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=rf"the defaults of kernel, line 1, cannot be written:\n  .*{why}"):
        written(text, values)


def test_every_reason_is_listed_and_nothing_is_changed() -> None:
    with pytest.raises(UsageError) as caught:
        written("def kernel(N, block=BLOCK, tile=1): pass", {"block": 64, "stages": 2, "tile": 2})
    assert str(caught.value).count("\n  ") == 2


def test_of_functions_of_one_name_the_one_in_that_line_is_meant() -> None:
    text = "def kernel(b=1): pass\n\n@jit\ndef kernel(b=1): pass\n"
    for line in (3, 4):
        assert (
            write_defaults(text, "kernel", line, {"b": 2})[0]
            == "def kernel(b=1): pass\n\n@jit\ndef kernel(b=2): pass\n"
        )
    with pytest.raises(UsageError, match="line 2 of the file does not begin a function 'kernel'"):
        write_defaults(text, "kernel", 2, {"b": 2})


@pytest.mark.parametrize(
    "value",
    [None, True, -1, 1.5, 1e-9, "a", "it's", 'say "x"', "a\\b\n", "é\u202e", (), (1,), (1, ("a", None)), [1], {"a": 1}],
)
def test_literals_are_what_python_reads_back_in_ascii(value: Any) -> None:
    assert literal(value).isascii() and literal(value).isprintable()
    read = ast.literal_eval(literal(value))
    assert read == value and type(read) is type(value)
