"""Ranges of what a journal's events hold. A line with anything else, which only a stranger writes, is refused whole.

They are wider than what a run can record: what counts or lasts longer is no measurement, and no float holds its ratios.
"""

from typing import Annotated

from msgspec import Meta

Index = Annotated[int, Meta(ge=-1, le=2**53)]
"""A candidate's number, or `BASELINE`."""
Whole = Annotated[int, Meta(ge=0, le=2**53)]
Extent = Annotated[int, Meta(ge=0, le=2**31)]
Moment = Annotated[float, Meta(ge=0, le=250e9)]
"""Seconds since 1970, to the year 9892: later ones have no date."""
Seconds = Annotated[float, Meta(ge=-1e12, le=1e12)]
Latency = Annotated[float, Meta(ge=1e-9, le=1e12)]
"""Milliseconds or microseconds. `Timing.of` makes none that is shorter."""
Rate = Annotated[float, Meta(ge=1e-9, le=1e30)]
"""What is divided by."""
Quantity = Annotated[float, Meta(ge=-1e30, le=1e30)]
Word = Annotated[str, Meta(max_length=100)]
"""A type's name, in which numbers are read."""
PathText = Annotated[str, Meta(pattern=r"^[^\0]*$")]
"""No file has a NUL in its name."""
