"""Run a notebook's cells as Jupyter's kernel does, inside a running event loop, and print what each would show.

    python tests/notebook_cells.py NOTEBOOK.ipynb [--store]

IPython is a stand-in. The last line of stdout is JSON: for each code cell, by its id, the HTML or text of its last
expression, and what the cell wrote to stderr. With `--store` (`make notebook`) the
notebook gets these as its cells' outputs: GitHub shows a notebook as it is stored.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
import linecache
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


def stand_in() -> None:
    """Put a module with IPython's name in place."""
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=True)  # type: ignore[attr-defined]
    sys.modules["IPython"] = ipython


def forms(value: Any) -> dict[str, str]:
    """Return how a notebook shows a value, the richest form first, by MIME type; nothing for None."""
    if value is None:
        return {}
    html = {"text/html": str(value._repr_html_())} if hasattr(value, "_repr_html_") else {}
    return {**html, "text/plain": repr(value)}


def outputs(number: int, written: str, value: Any) -> list[dict[str, Any]]:
    """Return a cell's outputs as a notebook stores them: what it wrote to stderr, and its value."""
    lines = written.splitlines(keepends=True)
    shown: list[dict[str, Any]] = [{"output_type": "stream", "name": "stderr", "text": lines}] if lines else []
    if data := forms(value):
        shown.append({"output_type": "execute_result", "execution_count": number, "data": data, "metadata": {}})
    return shown


async def run_cell(name: str, source: str, names: dict[str, Any]) -> Any:
    """Run a cell and return the value of its last expression."""
    file = f"/tmp/ipykernel_1/{name}.py"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    tree = ast.parse(source, file)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    body = compile(tree, file, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    await awaited(eval(body, names))
    if last is None:
        return None
    expression = ast.Expression(last.value)
    return await awaited(eval(compile(expression, file, "eval", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names))


async def awaited(value: Any) -> Any:
    return await value if inspect.iscoroutine(value) else value


async def main(path: Path, store: bool) -> None:
    stand_in()
    shown, notebook = {}, json.loads(path.read_text())
    for number, cell in enumerate((cell for cell in notebook["cells"] if cell["cell_type"] == "code"), 1):
        with contextlib.redirect_stderr(io.StringIO()) as written:
            value = await run_cell(cell["id"], "".join(cell["source"]), sys.modules["__main__"].__dict__)
        shown[cell["id"]] = {"value": next(iter(forms(value).values()), ""), "written": written.getvalue()}
        cell |= {"execution_count": number, "outputs": outputs(number, written.getvalue(), value)}
    if store:
        text = json.dumps(notebook, ensure_ascii=False, indent=1)
        path.write_text(text.replace(str(Path.home()), "~") + "\n")  # the journal's folder
    print(json.dumps(shown))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2:] == ["--store"]))
