"""The artifact store as the workers of a run use it: beside the event loop, and given up where it cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import anyio.to_thread

from atune.model.artifact import Artifact, Lowered
from atune.storage.artifact_store import ArtifactStore

T = TypeVar("T")

EXACT = "-nvcc"
"""Marks, in the artifact store, code as tilelang's own compile makes it, beside what a run first compiled. (nvcc alone
made it once; the value is that of the stores there are.)"""


class RunStore:
    """What earlier runs left, and what this one leaves. After the first `OSError` (read-only, full, gone) nothing."""

    def __init__(self, store: ArtifactStore | None = None) -> None:
        self._store = store

    @property
    def used(self) -> bool:
        """Whether anything may be found in it."""
        return self._store is not None

    async def find(self, lowered: Lowered, variant: str = "") -> Artifact | None:
        """Return the artifact of the same code, where it is there; then what it was lowered to is remembered, too."""
        if not lowered.storable:
            return None
        found = await self._do(lambda store: store.find(lowered.store_key + variant, lowered.index))
        if found is not None and lowered.blob and not variant:
            await self.keep_lowered(lowered)
        return found

    async def keep(self, library: Iterable[Artifact]) -> None:
        """Keep artifacts of one library under their keys; those without a key are not for it."""
        if good := [(one.store_key, one) for one in library if one.store_key]:
            await self._do(lambda store: store.put(good))

    async def keep_lowered(self, lowered: Lowered) -> None:
        """Remember what a kernel was lowered to, whose library is kept."""
        await self._do(lambda store: store.put_lowered(lowered))

    async def find_proof(self, artifact: Artifact) -> bool:
        """Tell whether an earlier run proved the code of `artifact` to be tilelang's own."""
        key = artifact.store_key
        return bool(key) and bool(await self._do(lambda store: store.find_proof(key, artifact.path)))

    async def keep_proof(self, artifact: Artifact) -> None:
        """Remember that the code of `artifact` is tilelang's own."""
        if key := artifact.store_key:
            await self._do(lambda store: store.put_proof(key, artifact.path))

    async def _do(self, use: Callable[[ArtifactStore], T]) -> T | None:
        if self._store is None:
            return None
        try:
            return await anyio.to_thread.run_sync(use, self._store)
        except OSError:
            self._store = None  # this run does without
            return None
