"""Which cluster a run uses."""

from __future__ import annotations

import msgspec

from atune.errors import UsageError

FORMS = "auto, local, ray://HOST:10001 or HOST:6379, and perhaps ,resource=NAME and ,model=NAME"


class Cluster(msgspec.Struct, frozen=True):
    """A Ray cluster to run on; needs ``atune[ray]``.

    `address`: ``auto`` for the cluster that RAY_ADDRESS names or that runs on this machine. ``local`` starts one here,
    with a token, on loopback. Any other text goes to `ray.init`. `resource`: a custom resource that stands for GPUs
    where Ray has none registered. `model`: the model of device to measure on, such as ``NVIDIA H200``. The other nodes
    compile. A cluster with several models needs it. Raises `UsageError` for values that are not text.
    """

    address: str = "auto"
    resource: str = ""
    model: str = ""

    def __post_init__(self) -> None:
        texts = (self.address, self.resource, self.model)
        if not (all(isinstance(text, str) for text in texts) and self.address.strip()):
            raise UsageError(f"Cluster: address must be {FORMS}, got {', '.join(map(repr, texts))}")

    @classmethod
    def parse(cls, given: object) -> Cluster | None:
        """Read ``ADDRESS`` or ``ADDRESS,resource=NAME,model=NAME``; None and a `Cluster` stay. Raises `UsageError`."""
        if given is None or isinstance(given, cls):
            return given
        if not isinstance(given, str):
            raise UsageError(f"cluster must be {FORMS}, or an atune.Cluster; got {given!r}")
        address, *rest = (part.strip() for part in given.split(","))
        pairs = [tuple(text.strip() for text in part.split("=", 1)) for part in rest]
        named = {pair[0]: pair[-1] for pair in pairs if len(pair) == 2 and pair[-1]}
        if not address or len(named) < len(rest) or named.keys() - {"resource", "model"}:
            raise UsageError(f"cluster {given!r}: give {FORMS}")
        return cls(address, **named)
