"""Ranges of the values in a journal's events. Values outside these ranges are refused, because atune never writes them.

Each range is wider than any real measurement, but narrow enough that floats can hold sums and ratios of its values.
"""

from typing import Annotated

from msgspec import Meta

Index = Annotated[int, Meta(ge=-1, le=2**53)]
"""A candidate's number, or `BASELINE`."""
Whole = Annotated[int, Meta(ge=0, le=2**53)]
Extent = Annotated[int, Meta(ge=0, le=2**31)]
Moment = Annotated[float, Meta(ge=0, le=250e9)]
"""Seconds since 1970, up to the year 9892. Python's dates end soon after."""
Seconds = Annotated[float, Meta(ge=-1e12, le=1e12)]
Latency = Annotated[float, Meta(ge=1e-9, le=1e12)]
"""Milliseconds or microseconds. `Timing.of` never makes shorter samples."""
Rate = Annotated[float, Meta(ge=1e-9, le=1e30)]
"""A rate is never 0, because code divides by it."""
Quantity = Annotated[float, Meta(ge=-1e30, le=1e30)]
Word = Annotated[str, Meta(max_length=100)]
"""The name of a type. The length of the name is limited, because code searches the name for numbers."""
PathText = Annotated[str, Meta(pattern=r"^[^\0]*$")]
"""A path. File names cannot contain NUL."""
