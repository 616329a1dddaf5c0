"""What was tuned in this program: the winners of all decorated kernels, in one place."""

from __future__ import annotations

from html import escape
from typing import Any

import msgspec

from atune.decorator.autotuned import Autotuned, all_autotuned
from atune.decorator.winners import Winner
from atune.journal.printing import describe_config, printable
from atune.journal.result import TuneResult
from atune.model.candidate import Config

TITLES = ("kernel", "key", "from", "latency ms", "reference ms", "config")


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """A winner that a decorated kernel uses in this program.

    `kernel`: its name. `key`: what the tuning is remembered under, arguments by name. `source`: ``tuned`` here, or from
    the result ``cache`` or a ``shipped`` file. `result`: the whole tuning, where it is known.
    """

    kernel: str
    key: Any
    config: Config
    source: str
    latency_ms: float | None = None
    reference_ms: float | None = None
    result: TuneResult | None = None

    @property
    def journal(self) -> str | None:
        """The tuning's journal, where one was written."""
        return None if self.result is None else self.result.journal

    def row(self) -> tuple[str, ...]:
        """Return it as cells of a table: see `TITLES`."""
        times = tuple("–" if ms is None else f"{ms:.4g}" for ms in (self.latency_ms, self.reference_ms))
        key = describe_config(self.key) if isinstance(self.key, dict) else printable(repr(self.key))
        return printable(self.kernel), key, self.source, *times, describe_config(self.config)


class Tunings(tuple[Tuned, ...]):
    """Winners, by kernel and key. Printed, or in a notebook, they are a table."""

    def __str__(self) -> str:
        rows = [TITLES, *(one.row() for one in self)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(TITLES))]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(title)}</th>" for title in TITLES)
        rows = ("".join(f"<td>{escape(cell)}</td>" for cell in one.row()) for one in self)
        return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def tunings() -> Tunings:
    """Return what the kernels under `autotune` in this program have tuned, or found to be tuned, so far."""
    found = [_tuned(kernel, key, winner) for kernel in all_autotuned() for key, winner in kernel.known().items()]
    return Tunings(sorted(found, key=lambda one: (one.kernel, msgspec.json.encode(one.key, order="deterministic"))))


def _tuned(kernel: Autotuned, key: str, winner: Winner) -> Tuned:
    return Tuned(
        kernel=kernel.options.workload.get("name") or kernel.__name__,
        key=msgspec.json.decode(key),
        config=dict(winner.config),
        source=winner.source,
        latency_ms=winner.latency_ms,
        reference_ms=winner.reference_ms,
        result=winner.result,
    )
