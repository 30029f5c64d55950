"""What ranks compute beside a collective while that is measured: small matrix products, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["OwnWork"]

_SIDE = 192  # 14 MFLOP a piece, a fraction of a millisecond: a rank notices soon that it is to stop
_ALONE_S = 1.0


class OwnWork:
    """Pieces of work of one rank; all ranks make it together, since it measures what a piece takes without collectives.

    `meet` returns when all ranks are there.
    """

    def __init__(self, meet: Callable[[], None]) -> None:
        import torch

        self._a, self._b, self._c = (torch.ones(_SIDE, _SIDE) for _ in range(3))
        self._product = torch.mm
        for _ in range(2):  # once to warm up
            meet()
            begun = time.perf_counter()
            pieces, seconds = self.until(lambda begun=begun: time.perf_counter() > begun + _ALONE_S)
        self._piece_s = seconds / pieces
        self._beside = (0, 0.0)

    def until(self, done: Callable[[], bool]) -> tuple[int, float]:
        """Work until `done`, which is asked after every piece; pieces, and the seconds that they took."""
        begun, pieces = time.perf_counter(), 0
        while True:
            self._product(self._a, self._b, out=self._c)
            pieces += 1
            if done():
                return pieces, time.perf_counter() - begun

    def beside(self, done: Callable[[], bool]) -> None:
        """Work until a collective is `done`, and count it."""
        pieces, seconds = self.until(done)
        self._beside = self._beside[0] + pieces, self._beside[1] + seconds

    def counted(self) -> tuple[float, float]:
        """Seconds that all work beside collectives took, and what it takes without them; counted anew from here on."""
        pieces, seconds = self._beside
        self._beside = (0, 0.0)
        return seconds, pieces * self._piece_s
