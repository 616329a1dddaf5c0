"""A set of problems of one kernel, from sizes, a list or a file."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from numbers import Real
from pathlib import Path
from typing import Any

from atune.errors import SpaceError, UsageError, type_of
from atune.model.candidate import Problem, as_written, forms, normalise, shown
from atune.model.folders import read_file

Given = Iterable[Mapping[str, Any] | Problem]


class Problems(Sequence[Problem]):
    """Problems of a kernel, in the order in which they were given, without duplicates.

        Problems(M=[1, 2, 4], N=4096, K=[4096, 11008])     # every combination
        Problems([{"M": 1, "N": 4096}, {"M": 2, "N": 11008}])
        Problems("shapes.json")                            # or .jsonl or .csv

    Raises `UsageError` for any other value, for an empty set, and for problems whose argument names differ.

    Parameters
    ----------
    given
        A list of dictionaries of arguments, a list of problems from another set, or the path of a file.
    sizes
        Arguments, each with one value or several values. The set has every combination of the values. If you also pass
        `given`, every problem of `given` gets these arguments in addition, so the names must differ.
    """

    def __init__(self, given: Given | str | os.PathLike[str] = (), **sizes: Any) -> None:
        rows = _rows(given)
        values = {name: _column("Problems", name, _values(value), False) for name, value in sizes.items()}
        if twice := [name for name in values if any(name in row for _, row in rows)]:
            both = f"each problem of the list or file has {twice[0]}, and {twice[0]}=… is given for all of them"
            raise UsageError(f"Problems: {both}: leave one out")
        points = [dict(zip(values, point, strict=True)) for point in product(*values.values())] if values else [{}]
        problems, places = dict[str, Problem](), dict[str, str]()
        for where, row in rows or ([("Problems", {})] if values else []):
            for point in points:
                problem = _problem({**row, **point}, where)
                problems.setdefault(problem.key, problem)
                places.setdefault(problem.key, f"{where}: " if rows else "")
        self._problems, self.places = tuple(problems.values()), tuple(places.values())
        """The problems, and the place of each problem in the list or file. Messages name the place."""
        if not self._problems:
            raise UsageError("Problems: the set is empty: give sizes (M=[1, 2, 4]), a list of dictionaries, or a file")

    def __len__(self) -> int:
        return len(self._problems)

    def __getitem__(self, index: Any) -> Any:
        return self._problems[index]

    def __repr__(self) -> str:
        return f"Problems({len(self)}: {self._problems[0]}{' …' if len(self) > 1 else ''})"


def parse_sizes(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Return the values of each argument in texts of ``--arg`` such as ``M=1,2,4``. Each value is JSON, or otherwise a
    string. Raises `UsageError`."""
    sizes: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        cells = [value.strip() for value in values.split(",")]
        if not (name.isidentifier() and equals and all(cells)) or cells[0].startswith(("[", "(")):
            raise UsageError(f"--arg {text!r}: give a name and its values, such as M=1,2,4")
        if name in sizes:
            raise UsageError(f"--arg {text!r}: {name} is given twice; give all its values at once: {name}=1,2,4")
        found = [_cell(cell) for cell in cells]
        sizes[name] = _column(f"--arg {text!r}", name, found, False) if len(found) > 1 else found
    return sizes


def one_problem(texts: Iterable[str], command: str) -> dict[str, Any]:
    """Return the arguments of `command`, which takes a single problem. Raises `UsageError` for several problems."""
    sizes = parse_sizes(texts)
    if several := next((name for name, values in sizes.items() if len(values) > 1), ""):
        raise UsageError(f"--arg {several}: {command} takes a single problem: give {several} a single value")
    return {name: value for name, (value,) in sizes.items()}


def _problem(row: Mapping[str, Any], where: str) -> Problem:
    for name, value in row.items():
        if forms(as_written(value)) - {"list"}:
            raise UsageError(
                f"{where}: {name}={shown(value)} is {type_of(value)}, but the values in a set must be plain data: give "
                f"{shown(normalise(value, name))} or another plain value, or set {name} in the workload instead"
            )
    try:
        return Problem({name: normalise(value, f"{where}: {name}") for name, value in row.items()})
    except SpaceError as error:
        raise UsageError(str(error)) from error


def _values(value: Any) -> list[Any]:
    several = isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
    return list(value) if several else [value]


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _rows(given: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the entries of a list or a file, and the place of each entry for messages. Raises `UsageError`."""
    in_file = isinstance(given, (str, os.PathLike))
    if in_file:
        where, rows = f"problems {os.fspath(given)}", _read(Path(given))
        if not rows:
            raise UsageError(f"{where}: the file lists no problems: add one")
    else:
        where, rows = "Problems", given
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise UsageError(f'{where}: give a list of dictionaries, such as [{{"M": 1}}, {{"M": 2}}], got {rows!r}')
    rows = [row.arguments if isinstance(row, Problem) else row for row in rows]
    for number, row in enumerate(rows, 1):
        entry = f"{where}, entry {number}"
        if not isinstance(row, Mapping) or not row or not all(isinstance(name, str) and name for name in row):
            raise UsageError(f"{entry}: each problem is a dictionary of arguments, such as {{'M': 1}}, got {row!r}")
        if wrong := [name for name in row if not name.isidentifier()]:
            table = "a table has commas between its columns, and its first line names the columns"
            raise UsageError(f"{entry}: {wrong[0]!r} cannot be the name of an argument; {table}")
        for name in sorted(row.keys() ^ rows[0].keys()):
            lacking, having = (1, number) if name in row else (number, 1)
            raise UsageError(f"{where}, entry {lacking} has no {name!r}, but entry {having} has it")
    columns = {name: _column(where, name, [row[name] for row in rows], in_file) for name in (rows[0] if rows else ())}
    return [(f"{where}, entry {n + 1}", {name: columns[name][n] for name in row}) for n, row in enumerate(rows)]


def _column(where: str, name: str, values: list[Any], in_file: bool) -> list[Any]:
    """Return an argument's values. If all numbers of a file are whole, 32.0 becomes 32, because pandas may add .0.

    Raises `UsageError` for an entry that is text if the text looks like a number, or if other entries are numbers.
    """
    numbers = any(map(_is_number, values))
    for number, value in enumerate(values, 1):
        if isinstance(value, str) and (numbers or _is_number(_cell(value))):
            raise UsageError(f"{where}, entry {number}: {name} must be a number, got the text {value!r}")
    whole = in_file and all(v.is_integer() and abs(v) < 2**53 for v in values if isinstance(v, float))
    return [int(value) if whole and isinstance(value, float) else value for value in values]


def _read(file: Path) -> Any:
    """Return the content of a file: JSON, one object per line (.jsonl), or a table (.csv). Raises `UsageError`."""
    try:
        data = sys.stdin.buffer.read(64 << 20) if str(file) == "/dev/stdin" else read_file(file)
        text = data.decode("utf-8-sig")  # spreadsheets write a byte order mark
        if not text.strip():
            return []
        if file.suffix == ".csv":
            table = csv.DictReader(text.splitlines(), skipinitialspace=True)
            return [_cells(row, f"problems {file}, entry {number}") for number, row in enumerate(table, 1)]
        if file.suffix == ".jsonl":
            lines = [line for line in text.splitlines() if line.strip()]
            return json.loads("[" + "\n,".join(lines) + "]")
        return json.loads(text)
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        why = f"{getattr(error, 'strerror', None) or error}: give a .json, .jsonl or .csv file"
        if isinstance(error, json.JSONDecodeError) and file.suffix in (".json", ".jsonl"):
            why = f"invalid JSON: {error}"
        raise UsageError(f"problems {file}: {why}") from error


def _cells(row: Mapping[Any, Any], entry: str) -> dict[str, Any]:
    if None in row or not all(row.values()):
        wrong = next((f"has none for {name}" for name, cell in row.items() if not cell), "has more")
        raise UsageError(f"{entry} must have a value for each column, but {wrong}")
    return {name: _cell(cell) for name, cell in row.items()}


def _cell(text: str) -> Any:
    """Return the JSON value of a cell's text, or the text itself if the text is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text
