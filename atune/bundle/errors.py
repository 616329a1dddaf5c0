"""What a bundle raises."""

from __future__ import annotations


class BundleError(Exception):
    """Root of what a bundle raises. Itself: the folder is no bundle, or this version cannot read it."""


class DamagedBundle(BundleError):
    """A file of the bundle is missing, or is not the file that was written. Copy the bundle again."""


class WrongMachine(BundleError):
    """This machine, its device or its packages cannot run the bundle. Use one as the message says, or tune here."""


class WrongArguments(BundleError, TypeError):
    """No kernel of the bundle takes arguments of this number, device, dtype, layout or number of dimensions."""


class OutsideProblems(BundleError, LookupError):
    """No problem of the bundle has these sizes. Tune it, or see `on_miss` of `load`."""
