"""tvm's objects as text, within one run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def load(text: str) -> Any:
    """Return the object that `tvm.ir.save_json` wrote.

    `tvm.ir.load_json` would first convert texts of older releases in Python, which takes ten times as long as loading.
    """
    return _loader()(text)


@functools.cache
def _loader() -> Callable[[str], Any]:
    from tilelang import tvm  # noqa: F401 - registers the function
    from tvm_ffi import get_global_func

    found: Callable[[str], Any] = get_global_func("node.LoadJSON")
    return found
