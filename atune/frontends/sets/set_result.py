"""What a set's run found: one row a problem, as a table and as data."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from atune.errors import UsageError
from atune.journal.result import Result
from atune.journal.set_folder import TunedProblem
from atune.model.candidate import config_key, describe_config, printable
from atune.model.space import Space
from atune.reporting.export import aligned
from atune.reporting.screen import Line, plain
from atune.reporting.sets.cover import Cover, cover
from atune.reporting.sets.dispatch import dispatch_rule
from atune.reporting.sets.reading import why
from atune.reporting.sets.regret import RegretMatrix, regret_matrix
from atune.reporting.sets.rule import AnyRule

HEADS = ("problem", "latency ms", "× default", "× reference", "winner")


class SetResult(Sequence[TunedProblem]):
    """The problems of a set with their results, in the set's order.

    ``result[{"M": 128, "N": 4096}]`` is one problem's `Result`; ``result[0]`` is a row. `folder` holds the journals.
    ``str(result)`` is the table.
    """

    def __init__(self, rows: Sequence[TunedProblem], folder: Path, workload: object = None) -> None:
        self._rows, self.folder = tuple(rows), folder
        self._space: Space | None = getattr(workload, "space", None)
        self._by_key = {row.problem.key: row for row in rows}

    @property
    def winners(self) -> list[TunedProblem]:
        """The problems that have a winner."""
        return [row for row in self._rows if row.won]

    @property
    def results(self) -> list[Result]:
        """Their results."""
        return [row.result for row in self.winners if row.result is not None]

    def save_bundle(self, folder: str | os.PathLike[str]) -> str:
        """Write the winners as a bundle: `atune.results.save_bundle` of `results`."""
        from atune.frontends.api.save_bundle import save_bundle

        return save_bundle(folder, self.results)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the set's page, that of ``atune report``, to the file `path`, in place of an earlier one.

        Raises `UsageError` where `path` cannot be written.
        """
        from atune.journal.output import write_output
        from atune.reporting.sets.page import set_page

        write_output(os.fspath(path), set_page(self, self.folder).encode())

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[TunedProblem]:
        return iter(self._rows)

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, Mapping):
            return self._rows[index]
        if (row := self._by_key.get(config_key(dict(index)))) is None:
            raise KeyError(f"the set has no problem {describe_config(dict(index))}, but {len(self)} others")
        if row.result is None:
            raise KeyError(f"{row.problem} could not be tuned: {row.error}")
        return row.result

    def __str__(self) -> str:
        return plain(set_lines(self))

    def __repr__(self) -> str:
        return f"SetResult({len(self)} problems, {len(self.winners)} with a winner)"

    def regret_matrix(self) -> RegretMatrix:
        """Return how much slower each winner and finalist is than the best one, by problem with a winner."""
        return regret_matrix(self.results)

    def cover(self, *, max_regret: float | None = None, configs: int | None = None) -> Cover:
        """Return few configurations that serve all problems with a winner, by their weights; see `atune.sets.cover`."""
        return cover(self.regret_matrix(), self._weights(), max_regret=max_regret, configs=configs)

    def rule(self) -> AnyRule:
        """Return the rule that chooses a configuration for new problems; see `atune.sets.dispatch_rule`."""
        rule = dispatch_rule(self.regret_matrix(), self._weights())
        return rule if self._space is None else rule.over(self._space)

    def _weights(self) -> list[float]:
        return [row.problem.weight for row in self.winners]


def set_lines(found: SetResult) -> list[Line]:
    """Return a set's result for a screen: the table, the counts, what failed, and where the journals are."""
    tried = [row.result for row in found if row.result is not None]
    measured = sum(one.measured for one in tried)
    rows = [_cells(row) for row in found.winners]
    lines = [*map(Line, aligned([HEADS, *rows]).splitlines()), Line("")] if rows else []
    counts = f"{len(found.winners)} of {len(found)} with a winner; {measured} candidates measured"
    lines.append(Line(f"problems   {counts}", "strong"))
    if len(found.winners) > 1 and (few := _cover_line(found)):
        lines.append(Line(f"cover      {few}"))
    if unfinished := [row for row in found if row.unfinished]:
        waiting = sum(row.result is None for row in unfinished)
        text = f"{len(unfinished)} of {len(found)} problems{f'; {waiting} not begun' if waiting else ''}"
        lines.append(Line(f"unfinished {text}", "attention"))
    for row in found:
        if not (row.won or row.unfinished):
            lines.append(Line(f"failed     {row.problem}: {why(row)}", "attention"))
    lines += [Line(f"warning    {printable(text)}", "attention") for text in warnings(tried)]
    lines.append(Line(f"journals   {printable(str(found.folder))}", "dim"))
    if unfinished:
        folder, header = shlex.quote(printable(str(found.folder))), next((one.header for one in tried), None)
        named = header is not None and header.origin
        how = f"atune resume {folder}" if named else f"tune the set again, with {folder} as its journal"
        lines.append(Line(f"next       {how}"))
    return lines


def _cover_line(found: SetResult) -> str:
    """Return how few configurations serve all problems; empty where no few do."""
    try:
        few = found.cover()
    except UsageError:
        return ""  # what the problems share was measured on too few of them
    count = len(few.configs)
    several = "configurations serve" if count > 1 else "configuration serves"
    return f"{count} {several} all, at most {100 * max(few.worst_regret, 0):.2g} % slower than the winners"


def warnings(results: Sequence[Result]) -> list[str]:
    """Return the warnings of `results`, each once, without why a problem has no winner."""
    said = {result.about_default for result in results if result.best is None}
    return list({text: None for result in results for text in result.warnings if text not in said})


def row_line(row: TunedProblem) -> str:
    """Return what became of a problem, as one line."""
    if not row.won:
        return f"{row.problem}: {why(row)}"
    _, latency, default, _, winner = _cells(row)
    return f"{row.problem}: {latency} ms{f', {default} × default' if default else ''}; {winner}"


def set_data(found: SetResult) -> dict[str, Any]:
    """Return the object that ``--json`` prints of a set: for each problem its summary, or its error."""
    from atune.reporting.summary import summary

    rows = []
    for row in found:
        data = {"problem": msgspec.to_builtins(row.problem.arguments), "weight": row.problem.weight}
        rows.append(data | ({"error": row.error} if row.result is None else summary(row.result)))
    return {
        "problems": rows,
        "winners": len(found.winners),
        "measured": sum(row.result.measured for row in found if row.result is not None),
        "journal": str(found.folder),
    }


def _cells(row: TunedProblem) -> tuple[str, ...]:
    result = row.result
    assert result is not None and result.best is not None and result.latency_ms is not None
    ratios = (_ratio(result.default_ratio), _ratio(result.reference_ratio))
    winner = describe_config(result.best.config) + " (so far)" * (not result.finished)
    return str(row.problem), f"{result.latency_ms:.4g}", *ratios, winner


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"
