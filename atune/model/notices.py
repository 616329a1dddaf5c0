"""Warnings for the user's own code."""

from __future__ import annotations

import sys
import warnings


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn at the line that called atune: it is the user's, and so is what to do about the warning."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "atune":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
