"""The library of a result's winner: whether it is still there, and whether it may be loaded."""

from __future__ import annotations

from pathlib import Path

from atune.errors import AtuneError
from atune.model.artifact import Artifact
from atune.system.paths import cache_folder, is_cached, is_stored


def loadable(artifact: Artifact | None, *, replayed: bool) -> Artifact:
    """Return the library of a winner, once it is known to be there and to be safe to load.

    `replayed`: its path comes from a file, and only a library of the cache folder is loaded. Raises `AtuneError`.
    """
    if artifact is None:
        raise AtuneError(
            "there is no kernel: the run did not finish, or its winner's library could not be kept; tune again"
        )
    if replayed and not is_cached(artifact.path):
        # Loading a library runs its code, and a journal may come from a stranger.
        raise AtuneError(f"{artifact.path} is outside the cache folder {cache_folder()}, and is not loaded; tune again")
    if not Path(artifact.path).is_file():
        raise AtuneError(
            f"the winner's library {artifact.path} is gone (cache cleaned, or another machine's); tune again"
        )
    if replayed and not (is_stored(artifact.path) and artifact.symbol.isidentifier()):
        raise AtuneError(
            f"{artifact.path} is not the library that was kept under this name, and is not loaded; tune again"
        )
    return artifact
