"""What a notebook, or a table of data, asks of a result."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, cast

from atune.errors import UsageError

if TYPE_CHECKING:
    from atune.journal.result import TuneResult

LOADED = ("kernel",)
"""What a result remembers that belongs to this process alone: the winner's loaded library."""


class Shown:
    """The part of `TuneResult` that shows it. It loads the drawing code of `atune.reporting` when called."""

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame with a row for each record, as `atune export` writes them.

        The configuration has a column ``config.NAME`` for each axis. Raises `UsageError` where pandas is not installed.
        """
        try:
            pandas: Any = importlib.import_module("pandas")
        except ImportError as error:
            raise UsageError("to_dataframe needs pandas, which is not installed: pip install pandas") from error
        from atune.journal.export import rows

        return pandas.DataFrame(rows(cast("TuneResult", self).records))

    def plot(self) -> Any:
        """Return a picture of all measured latencies by rank, in ms: a notebook shows it.

        Its `svg` is the picture as text, and `save(path)` writes it to a file. It needs no plotting library.
        """
        return importlib.import_module("atune.reporting.plot").rank_plot(self)

    def _repr_html_(self) -> str:
        return str(importlib.import_module("atune.reporting.notebook").result_html(self))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this process: the kernel is loaded again where it is asked for."""
        return {name: value for name, value in self.__dict__.items() if name not in LOADED}

    def __copy__(self) -> Any:
        found = object.__new__(type(self))
        found.__dict__.update(self.__dict__)
        return found
