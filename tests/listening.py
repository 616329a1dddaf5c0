"""A strategy of a user's own, for tests of what strategies are told."""

from __future__ import annotations

from atune.engine.search.interface import Searched


class Listening:
    """A user's strategy that keeps what it was told at the beginning."""

    name = "listening"

    def begin(self, searched: Searched) -> None:
        self.searched, self.left = searched, list(searched.configs)

    def ask(self) -> int | None:
        return self.left.pop() if self.left else None

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        pass
