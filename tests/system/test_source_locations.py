"""Which line of the user's own code a traceback is about."""

from __future__ import annotations

from pathlib import Path

import pytest

import atune
from atune.workload.source_locations import DETAIL_FRAMES, Place, detail_of, is_users, located, place_in, place_of


@pytest.mark.parametrize(
    ("file", "users"),
    [
        ("/home/me/kernels/gemm.py", True),
        ("<ipython-input-3-abc>", True),
        ("/home/me/atune-kernels/gemm.py", True),
        ("/venv/lib/python3.12/site-packages/tilelang/language/eager/builder.py", False),
        ("/usr/lib/python3.11/inspect.py", False),
        ("/src/tilelang/language/eager/builder.py", False),
        ("/src/atune/layout.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("<unknown>", False),
        ("/workspace/src/runtime/object.cc", False),
    ],
)
def test_the_users_files_are_told_from_libraries(file: str, users: bool) -> None:
    assert is_users(file) is users


def test_each_folder_of_atune_is_known_as_a_librarys() -> None:
    folders = {path.parent.name for path in Path(atune.__file__).parent.glob("*/__init__.py")}
    assert len(folders) > 5 and not any(is_users(f"/src/atune/{folder}/module.py") for folder in folders)


def test_text_that_was_evaluated_and_cxx_frames_hide_no_line_of_the_users() -> None:
    """tilelang evaluates a kernel's annotations as text, and TVM appends frames of C++ to Python's."""
    text = (
        '  File "/me/b.py", line 7, in inner\n    @T.prim_func\n     ^^^^^^^^^^^\n'
        '  File "<string>", line 1, in <module>\n  File "<unknown>", line 0, in tvm::tirx::make_const(int)\n'
    )
    assert place_in(text) == Place("/me/b.py", 7, "inner", "@T.prim_func", " ^^^^^^^^^^^")
    assert place_in('  File "<string>", line 3, in made\n') == Place("<string>", 3, "made")
    spaces: dict[str, object] = {}
    exec(compile("def outer():\n    return eval('1 + missing')\n", "/me/c.py", "exec"), spaces)
    with pytest.raises(NameError) as raised:
        spaces["outer"]()  # type: ignore[operator]
    found = place_of(raised.value)
    assert found is not None and (found.file, found.line) == ("/me/c.py", 2)


def raised_deep(tmp_path: Path, deep: int) -> BaseException:
    """Return what a user's function raised by way of `deep` calls of a library's."""
    library, own = tmp_path / "site-packages" / "deep.py", tmp_path / "mine.py"
    library.parent.mkdir()
    library.write_text("def go(n):\n    if n == 0:\n        raise ValueError('no')\n    go(n - 1)\n")
    own.write_text("def mine(go, n):\n    return go(n)\n")
    spaces: list[dict[str, object]] = [{}, {}]
    for path, space in zip((library, own), spaces, strict=True):
        exec(compile(path.read_text(), str(path), "exec"), space)
    try:
        spaces[1]["mine"](spaces[0]["go"], deep)  # type: ignore[operator]
    except ValueError as error:
        return error
    raise AssertionError


def test_the_place_is_kept_where_a_library_raised_far_below_it(tmp_path: Path) -> None:
    error = raised_deep(tmp_path, 4 * DETAIL_FRAMES)
    found = place_of(error)
    assert found is not None and (found.line, found.function, found.source) == (2, "mine", "return go(n)")
    detail = detail_of(error)
    assert place_in(detail) == found and detail.endswith("ValueError: no\n")
    assert located("it failed", error).splitlines()[:2] == ["it failed", f'  File "{found.file}", line 2, in mine']
    placeless = ValueError("no traceback")
    assert place_of(placeless) is None and located("it failed", placeless) == "it failed"


def test_the_stack_of_a_process_that_a_signal_ended_has_its_innermost_place_first() -> None:
    text = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x7f (most recent call first):\n"
        '  File "/venv/lib/python3.11/site-packages/numpy/core.py", line 3 in add\n'
        '  File "/me/b.py", line 7 in inner\n  File "/me/a.py", line 1 in outer\n'
        '  File "/src/atune/stages/frontend.py", line 36 in elaborate\n\nExtension modules: numpy (total: 1)\n'
    )
    assert place_in(text) == Place("/me/b.py", 7, "inner")
