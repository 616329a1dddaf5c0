"""A fragment's layout as SVG: one square per element, in the colour of the thread that holds it."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from atune.model.layouts import Picture

SIDE = 34
"""Side of a square, in pixels."""
TOP = 44


def svg(picture: Picture) -> str:
    """Return the drawing as SVG text. Each square names its element, thread and slot."""
    columns = max((len(row) for row in picture.threads), default=0)
    width, height = max(360, columns * SIDE + 2), TOP + len(picture.threads) * SIDE + 2
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="10"><text x="2" y="16" font-size="13">{escape(_title(picture))}</text>'
        f'<text x="2" y="34">in each square: thread, and slot of that thread</text>'
    )
    return "\n".join([head, *_squares(picture), "</svg>", ""])


def _title(picture: Picture) -> str:
    shape = "×".join(map(str, picture.shape))
    drawn = sum(map(len, picture.threads))
    whole = 1
    for extent in picture.shape:
        whole *= extent
    part = "" if drawn == whole else f", its first {len(picture.threads)} rows and {len(picture.threads[0])} columns"
    held = "" if picture.replication == 1 else f"; {picture.replication} threads hold each element, the first is shown"
    return f"{picture.name}, {shape}{part}{held}"


def _squares(picture: Picture) -> Iterator[str]:
    for i, (threads, slots) in enumerate(zip(picture.threads, picture.slots, strict=True)):
        for j, (thread, slot) in enumerate(zip(threads, slots, strict=True)):
            x, y = j * SIDE + 1, TOP + i * SIDE
            hue = thread * 137 % 360  # far apart for neighbours
            yield (
                f'<g data-thread="{thread}" data-slot="{slot}"><title>row {i}, column {j}: thread {thread}, slot {slot}'
                f'</title><rect x="{x}" y="{y}" width="{SIDE}" height="{SIDE}" fill="hsl({hue},60%,82%)" '
                'stroke="#555"/>'
                f'<text x="{x + SIDE / 2:g}" y="{y + 15}" text-anchor="middle">{thread}</text>'
                f'<text x="{x + SIDE / 2:g}" y="{y + 28}" text-anchor="middle" fill="#555">{slot}</text></g>'
            )
