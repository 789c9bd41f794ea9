"""Numbers drawn from a key: the same on every machine, in every version of everything."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeVar

from anchorwatch import renamed_method

T = TypeVar("T")


class Draw:
    """A stream of numbers that is a function of its key.

    >>> Draw("item", 0, 7).below(1000) == Draw("item", 0, 7).below(1000)
    True
    """

    def __init__(self, *key: str | int) -> None:
        self._key = blake2b(repr(key).encode(), digest_size=32).digest()
        self._block = 0
        self._left: list[int] = []

    def word(self) -> int:
        """A whole number below 2**64."""
        if not self._left:
            block = blake2b(self._block.to_bytes(8, "little"), key=self._key).digest()
            self._left = list(struct.unpack("<8Q", block))
            self._block += 1
        return self._left.pop()

    def below(self, count: int) -> int:
        """A whole number from 0 to count - 1; the bias is under count / 2**64."""
        return (self.word() * count) >> 64

    def chance(self, share: float) -> bool:
        """True in `share` of the draws."""
        return self.word() < share * 2.0**64

    def pick(self, things: Sequence[T]) -> T:
        """One of the things, all alike."""
        return things[self.below(len(things))]

    def shuffle(self, things: Sequence[T]) -> list[T]:
        """All of the things, in any order."""
        mixed = list(things)
        for last in range(len(mixed) - 1, 0, -1):
            other = self.below(last + 1)
            mixed[last], mixed[other] = mixed[other], mixed[last]
        return mixed

    shuffled = renamed_method("shuffled", "shuffle")
