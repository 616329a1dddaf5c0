"""Guard zones: memory before and after each of a kernel's tensors, in which nothing may be written."""

from __future__ import annotations

from typing import Any, NamedTuple

GUARD_BYTES = 64 << 10
"""On each side of a tensor: a last block that is not cut off at the tensor's end writes a tile farther at most."""
ALIGN_BYTES = 512
"""What tensors are aligned to, as torch aligns them on a GPU. TMA needs 128 bytes at most (CUDA C++ Programming Guide,
«Asynchronous Data Copies», table of alignments)."""
_LOWEST, _HIGHEST = 0x11, 0x37
"""Bytes of the pattern: finite in every float format, and neither small integers nor parts of common floats."""


class _Guard(NamedTuple):
    position: int
    after: bool
    zone: Any
    pattern: Any


class Guards:
    """Allocates tensors with a guard on each side, and tells which guard was written into.

    Every parameter's pattern is another one: what is copied from beyond the end of one tensor to beyond the end of
    another is seen, too. All take `GUARD_BYTES` twice, and `ALIGN_BYTES`, a tensor, and as much as one for the pattern.
    """

    def __init__(self, device: str, n_params: int) -> None:
        import torch

        self.device = device
        self._guards: list[_Guard] = []
        generator = torch.Generator().manual_seed(0)  # of its own: inputs are drawn from torch's
        size = GUARD_BYTES + n_params
        pattern = torch.randint(_LOWEST, _HIGHEST + 1, (size,), dtype=torch.uint8, generator=generator)
        self._pattern = pattern.to(device)

    def allocate(self, position: int, count: int, dtype: Any) -> Any:
        """Return a flat tensor of `count` elements for the parameter at `position`, uninitialised, between guards."""
        import torch

        n = count * dtype.itemsize
        whole = torch.empty(2 * GUARD_BYTES + ALIGN_BYTES + n, dtype=torch.uint8, device=self.device)
        start = GUARD_BYTES + -whole.data_ptr() % ALIGN_BYTES
        end = start + n
        pattern = self._pattern[position : position + GUARD_BYTES]
        for after, at in ((False, start - GUARD_BYTES), (True, end)):
            zone = whole[at : at + GUARD_BYTES]
            zone.copy_(pattern)
            self._guards.append(_Guard(position, after, zone, pattern))
        # With a storage of its own, in which it begins at 0, like any tensor: from_dlpack takes the bare address.
        return torch.from_dlpack(whole[start:end]).view(dtype)

    def renew(self) -> None:
        """Write the pattern again."""
        for guard in self._guards:
            guard.zone.copy_(guard.pattern)

    def damage(self) -> str:
        """Say which parameters were written past, on which side and how far; empty where none was. Waits for it."""
        import torch

        if not self._guards:  # no parameter is a tensor
            return ""
        hit = torch.stack([(guard.zone != guard.pattern).any() for guard in self._guards]).tolist()
        return "; ".join(_told(guard) for guard, was_hit in zip(self._guards, hit, strict=True) if was_hit)


def _told(guard: _Guard) -> str:
    places = (guard.zone != guard.pattern).nonzero()
    far = int(places.max()) + 1 if guard.after else GUARD_BYTES - int(places.min())
    side = "after its end" if guard.after else "before its start"
    return f"parameter {guard.position}: written up to {far} bytes {side}"
