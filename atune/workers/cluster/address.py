"""Which cluster a run uses."""

from __future__ import annotations

import msgspec

from atune.errors import UsageError

FORMS = "auto, local, ray://HOST:10001 or HOST:6379, and perhaps ,model=NAME"


class Cluster(msgspec.Struct, frozen=True):
    """A Ray cluster to run on; needs ``atune[ray]``.

    `address`: ``auto`` for the cluster that RAY_ADDRESS names or that runs on this machine. ``local`` starts one here,
    with a token, on loopback. Any other text goes to `ray.init`. `model`: the model of device to measure on, such as
    ``NVIDIA H200``. The other nodes compile. A cluster with several models needs it. Raises `UsageError` for values
    that are not text.
    """

    address: str = "auto"
    model: str = ""

    def __post_init__(self) -> None:
        texts = (self.address, self.model)
        if not (all(isinstance(text, str) for text in texts) and self.address.strip()):
            raise UsageError(f"Cluster: address must be {FORMS}, got {', '.join(map(repr, texts))}")

    @classmethod
    def parse(cls, given: object) -> Cluster | None:
        """Read ``ADDRESS`` or ``ADDRESS,model=NAME``; None and a `Cluster` stay. Raises `UsageError`."""
        if given is None or isinstance(given, cls):
            return given
        if not isinstance(given, str):
            raise UsageError(f"cluster must be {FORMS}, or an atune.Cluster; got {given!r}")
        address, comma, rest = given.partition(",")
        name, _, model = (part.strip() for part in rest.partition("="))
        if not address.strip() or (comma and (name != "model" or not model or "," in model)):
            raise UsageError(f"cluster {given!r}: give {FORMS}")
        return cls(address.strip(), model)
