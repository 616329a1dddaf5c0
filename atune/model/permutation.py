"""All numbers below a bound in a random-looking order, one at a time and without a list of them."""

from __future__ import annotations

import math

ROUNDS = 6
_MASK = (1 << 64) - 1


class Permutation:
    """A permutation of ``range(size)``, determined by `seed`: ``permutation[i]`` is the number at position `i`.

    It is an unbalanced Feistel network over pairs (Black and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA
    2002). Numbers beyond `size` are permuted again until they fall below it. `size` is below 2**64.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self._left = max(1, math.isqrt(max(0, size - 1)) + 1)
        self._right = max(1, -(-size // self._left))
        self._keys = [_mixed((seed & _MASK) + (n << 32) + 1) for n in range(ROUNDS)]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, position: int) -> int:
        if not 0 <= position < self.size:
            raise IndexError(position)
        number = self._permuted(position)
        while number >= self.size:
            number = self._permuted(number)
        return number

    def _permuted(self, number: int) -> int:
        left, right = divmod(number, self._right)
        for n, key in enumerate(self._keys):
            if n % 2:
                right = (right + _mixed(left ^ key)) % self._right
            else:
                left = (left + _mixed(right ^ key)) % self._left
        return left * self._right + right


def _mixed(number: int) -> int:
    """Return 64 bits that each depend on all bits of `number` (Steele, Lea and Flood, SplitMix, OOPSLA 2014)."""
    number = (number + 0x9E3779B97F4A7C15) & _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)
