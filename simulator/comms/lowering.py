"""What a collective becomes: phases of link loads, and the bound that holds whatever the algorithm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Draft", "Lowered", "Phase"]


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """Wait `latency_s`, then move nbytes[k] over links[k] together, in no less than `floor_s`.

    A port that reaches only a share of what its link carries takes up more of the link than its bytes: stretch[k] >= 1
    times as much. So one collective alone takes as long as was measured, and two at once share what the port reaches.
    Where a measured time is shorter than the link is stated to allow, the bytes take up less: stretch[k] below 1.
    """

    latency_s: float
    links: NDArray[np.int64]
    nbytes: NDArray[np.float64]
    floor_s: float
    stretch: NDArray[np.float64] | float = 1.0

    def transfer_s(self, usable: NDArray[np.float64]) -> float:
        """Seconds the bytes take when nothing else runs, on links that carry `usable` [all links] bytes/s."""
        busy = self.nbytes * self.stretch / usable[self.links]
        return max(self.floor_s, float(busy.max(initial=0.0)))


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """One group's collective: its algorithm, phases one after the other, and the bound with the link that sets it.

    `peers` is the most peers in other nodes that a member of an all-to-all posts to; 0 for what has none or hides them.
    """

    algorithm: str
    phases: tuple[Phase, ...]
    bound_s: float
    bottleneck: str
    peers: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A lowered collective whose bound is still a link number: `bottleneck` on which `bound_s` is reached."""

    algorithm: str
    phases: tuple[Phase, ...]
    bound_s: float
    bottleneck: int | None
    peers: int = 0
