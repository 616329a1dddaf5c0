"""The artifact store for the workers of a run: used in threads, and dropped after an I/O error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import anyio.to_thread

from atune.model.artifact import Artifact, Lowered
from atune.storage.artifact_store import ArtifactStore

T = TypeVar("T")


class RunStore:
    """Finds artifacts of earlier runs and keeps those of this one. After the first `OSError` it does nothing.

    Such an error means that the store is read-only, full or gone.
    """

    def __init__(self, store: ArtifactStore | None = None) -> None:
        self._store = store

    @property
    def used(self) -> bool:
        """Whether the run still uses a store."""
        return self._store is not None

    async def find(self, lowered: Lowered) -> Artifact | None:
        """Return the artifact of the same code if the store has it. Then also keep what its kernel was lowered to."""
        if not lowered.storable:
            return None
        found = await self._do(lambda store: store.find(lowered.store_key, lowered.index))
        if found is not None and lowered.blob:
            await self.keep_lowered(lowered)
        return found

    async def keep(self, library: Iterable[Artifact]) -> None:
        """Keep artifacts of one library under their keys. Skip those without a key."""
        if good := [(one.store_key, one) for one in library if one.store_key]:
            await self._do(lambda store: store.put(good))

    async def keep_lowered(self, lowered: Lowered) -> None:
        """Keep what a kernel was lowered to. Its library must be in the store."""
        await self._do(lambda store: store.put_lowered(lowered))

    async def find_proof(self, artifact: Artifact) -> bool:
        """Tell whether an earlier run proved that the code of `artifact` is tilelang's own."""
        key = artifact.store_key
        return bool(key) and bool(await self._do(lambda store: store.find_proof(key, artifact.path)))

    async def keep_proof(self, artifact: Artifact) -> None:
        """Record the proof that the code of `artifact` is tilelang's own."""
        if key := artifact.store_key:
            await self._do(lambda store: store.put_proof(key, artifact.path))

    async def _do(self, use: Callable[[ArtifactStore], T]) -> T | None:
        if self._store is None:
            return None
        try:
            return await anyio.to_thread.run_sync(use, self._store)
        except OSError:
            self._store = None  # this run continues without a store
            return None
