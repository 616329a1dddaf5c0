"""The libraries that draw the report's plots. They lie in `vendored`, unchanged, each next to its licence."""

from __future__ import annotations

from pathlib import Path

import msgspec

VENDORED = Path(__file__).with_name("vendored")


class VendoredScript(msgspec.Struct, frozen=True):
    """A script as its package in the npm registry has it. `sha256`: the file's digest. `licence`: its SPDX name."""

    package: str
    version: str
    file: str
    licence: str
    sha256: str

    @property
    def text(self) -> str:
        """The script."""
        return (VENDORED / self.file).read_text(encoding="utf-8")

    @property
    def licence_text(self) -> str:
        """The licence, and those of what the script contains."""
        return (VENDORED / f"{self.file.partition('.')[0]}.LICENSE").read_text(encoding="utf-8")


LIBRARIES = (
    VendoredScript(
        "d3",
        "7.9.0",
        "d3.min.js",
        "ISC",
        "f2094bbf6141b359722c4fe454eb6c4b0f0e42cc10cc7af921fc158fceb86539",
    ),
    VendoredScript(
        "@observablehq/plot",
        "0.6.17",
        "plot.umd.min.js",
        "ISC AND MIT",
        "4358086467740777dd788d6b27a95cebdbaefdd50c730a3060117073bd7134cb",
    ),
)
"""In the order in which a page loads them."""


def scripts() -> str:
    """Return the libraries as script elements. Each begins with its licence, which goes where the page goes."""
    return "\n".join(f"<script>/*\n{one.licence_text}*/\n{one.text}</script>" for one in LIBRARIES)
