"""A strategy of a user's own, for tests of what strategies are asked and told."""

from __future__ import annotations

from collections import deque

from atune.engine.strategy import Searched


class Own:
    """A user's strategy: the space in its order. It keeps what it was told, and the most that were outstanding.

    `wrong_at`: after how many answers it gives the first one again.
    """

    name = "own"

    def __init__(self, wrong_at: int | None = None) -> None:
        self.wrong_at = wrong_at
        self.asked: list[int] = []
        self.outcomes: dict[int, tuple[float | None, str]] = {}
        self.most = 0

    def begin(self, searched: Searched) -> None:
        self.searched, self._left = searched, deque(searched.configs)

    def ask(self) -> int | None:
        if len(self.asked) == self.wrong_at:
            return self.asked[0]
        if not self._left:
            return None
        self.asked.append(self._left.popleft())
        self.most = max(self.most, len(self.asked) - len(self.outcomes))
        return self.asked[-1]

    def tell(self, index: int, latency_ms: float | None, reason: str = "") -> None:
        self.outcomes[index] = latency_ms, reason
