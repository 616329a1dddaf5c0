"""Which cluster a run uses."""

from __future__ import annotations

import msgspec

from atune.errors import UsageError

FORMS = "auto, local, ray://HOST:10001 or HOST:6379, and perhaps ,resource=NAME"

HELP = "run on a Ray cluster: auto, local, ray://HOST:10001 or HOST:6379; ,resource=NAME for other devices"


class Cluster(msgspec.Struct, frozen=True):
    """A Ray cluster to run on; needs ``atune[ray]``.

    `address`: ``auto`` for the cluster that RAY_ADDRESS names or that runs on this machine. ``local`` starts one here,
    with a token, on loopback. Any other text goes to `ray.init`. `resource`: a custom resource that stands for GPUs
    where Ray has none registered. Raises `UsageError` for values that are not text.
    """

    address: str = "auto"
    resource: str = ""

    def __post_init__(self) -> None:
        if not (isinstance(self.address, str) and self.address.strip() and isinstance(self.resource, str)):
            raise UsageError(f"Cluster: address must be {FORMS}, got {self.address!r}, {self.resource!r}")

    @classmethod
    def parse(cls, given: object) -> Cluster | None:
        """Read ``ADDRESS`` or ``ADDRESS,resource=NAME``; None and a `Cluster` stay. Raises `UsageError`."""
        if given is None or isinstance(given, cls):
            return given
        if not isinstance(given, str):
            raise UsageError(f"cluster must be {FORMS}, or an atune.Cluster; got {given!r}")
        address, comma, rest = given.partition(",")
        name, equals, resource = rest.partition("=")
        if not address.strip() or (comma and (name.strip() != "resource" or not equals or not resource.strip())):
            raise UsageError(f"cluster {given!r}: give {FORMS}")
        return cls(address.strip(), resource.strip())
